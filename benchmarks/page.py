"""Measure the exported page on ML-100K: `python benchmarks/page.py [PART ...]`.

Without arguments it runs all parts but the pictures. It prints a JSON object for each part and writes it to
docs/evidence/page.json.

lists    200 random people: the first twenty titles in chromium (float32), in Python and of `fedtaste recommend`
int8     the effect of 8-bit tables: NDCG@10 of everybody's held-out item, and the overlap of the first twenty titles
fedtrail the same as lists and int8 for FedTrail, whose trail table is also pruned, and the size of its bundle
fedseq   the same for FedSeq, and an update in headless chromium: ML-100K, and 10,000 items
speed    an update in headless chromium, and the bytes of a first load: ML-100K, and 10,000 items x 64
api      2,000 requests that schemathesis generates, and 100 at once, to `fedtaste serve --api` (page_api.py)
shots    the pictures of the page in the README
report   the picture of a report in the README: six methods on ML-100K
"""

from __future__ import annotations

import csv
import datetime
import io
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from page_api import api  # noqa: E402

from fedtaste.data.sources import load as load_data  # noqa: E402
from fedtaste.engine.run import State, begin  # noqa: E402
from fedtaste.experiment.folder import RunFolder  # noqa: E402
from fedtaste.experiment.plan import plan  # noqa: E402
from fedtaste.experiment.settings import Settings  # noqa: E402
from fedtaste.experiment.train import execute, make_task, prepare  # noqa: E402
from fedtaste.serving.bundle import Manifest, parse  # noqa: E402
from fedtaste.serving.bundle_recommender import BundleRecommender  # noqa: E402
from fedtaste.serving.export import TrainedModel, bundle_files, gather  # noqa: E402
from fedtaste.serving.rebuild import Taste  # noqa: E402
from fedtaste.serving.recommend import recommend  # noqa: E402
from fedtaste.tasks.base import Served  # noqa: E402
from fedtaste.tasks.serve import passes  # noqa: E402
from support.browser import FLAGS, FULL_PROGRAMS, Site  # noqa: E402

EVIDENCE = ROOT / "docs" / "evidence" / "page.json"
PEOPLE, SHOWN, PICKS = 200, 20, 50
FILMS = ["Toy Story (1995)", "Fargo (1996)", "Blade Runner (1982)", "Alien (1979)", "Brazil (1985)", "Ed Wood (1994)"]
METHODS = {  # with a model of ratings for methods that have one
    "fedals": {},
    "fedals ratings": {"task": "ratings"},
    "fedrecon": {"method": "fedrecon"},
    "fedrecon ratings, exact": {"method": "fedrecon", "task": "ratings", "set": {"solver": "exact"}},
    "fedmf": {"method": "fedmf"},
    "fedrap, common part": {"method": "fedrap"},
    "fedtrail": {"method": "fedtrail"},
    "fedseq": {"method": "fedseq"},
}


def trained(folder: Path, name: str) -> Path:
    """The folder of a run on ML-100K with default settings; trained once."""
    path = folder / name.replace(" ", "-").replace(",", "")
    if not path.exists():
        settings = Settings(**METHODS[name])  # type: ignore[arg-type]
        data = load_data(settings.data)
        execute(prepare(settings, data), RunFolder.create(path, settings.model_dump(), data, "0"))
    return path


def export(run: Path, precision: str) -> tuple[BundleRecommender, dict[str, bytes]]:
    contents = bundle_files(gather(run), precision)  # type: ignore[arg-type]
    manifest = Manifest.model_validate_json(contents["manifest.json"])
    return BundleRecommender(parse(manifest, contents, run), contents), contents


def random_person(rng: np.random.Generator, python: BundleRecommender) -> Taste:
    own = np.unique(python.titles.groups)  # some titles occur twice
    likes = rng.permutation(own)[: rng.integers(1, 60)]
    low, high = python.scale
    values = rng.integers(low, high + 1, len(likes)).astype(float) if python.task == "ratings" else np.ones(len(likes))
    return Taste(likes.astype(np.int64), values, likes[:0].astype(np.int64))


class Browser:
    """A headless chromium that opens exported pages."""

    def __init__(self) -> None:
        import shutil

        from playwright.sync_api import sync_playwright

        self.playwright = sync_playwright().start()
        program = next(filter(None, map(shutil.which, FULL_PROGRAMS)))
        self.chromium = self.playwright.chromium.launch(executable_path=program, args=FLAGS)

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self.chromium.close()
        self.playwright.stop()

    def open(self, site: Site, **options: Any) -> Any:
        page = self.chromium.new_page(**options)
        page.goto(site.url)
        page.wait_for_selector("html:not([data-state=loading])", state="attached")
        assert page.evaluate("document.documentElement.dataset.state") == "ready", page.inner_text("#problem")
        return page


def after(page: Any, act: Callable[[], None]) -> None:
    """Call `act` and wait until the page shows the result."""
    before = page.evaluate("document.documentElement.dataset.generation")
    act()
    page.wait_for_selector(f"html:not([data-generation='{before}'])", state="attached")


def import_rows(page: Any, rows: Iterable[Sequence[str]]) -> None:
    """Load a list from a file, as a visitor would."""
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    file = {"name": "list.csv", "mimeType": "text/csv", "buffer": text.getvalue().encode()}
    after(page, lambda: page.set_input_files("#import", file))


def shown(page: Any, python: BundleRecommender, taste: Taste) -> list[int]:
    """The recommended items after a list was loaded."""
    marks = ["yes"] * len(taste.likes) if python.task == "ranking" else [f"{value:g}" for value in taste.values]
    title = python.bundle.titles
    rows = [("title", "item", "liked" if python.task == "ranking" else "rating")]
    rows += [(title[at], python.bundle.names[at], mark) for at, mark in zip(taste.likes, marks)]
    import_rows(page, rows)
    return [int(x) for x in page.eval_on_selector_all("#recommendations > li", "all => all.map(x => x.dataset.item)")]


def lists(folder: Path, names: Iterable[str] = METHODS) -> list[dict[str, Any]]:
    out = []
    with Browser() as chromium:
        for name in names:
            run = trained(folder, name)
            python, contents = export(run, "float32")
            equal = same = 0
            with Site(contents | {"": contents["index.html"]}) as site:
                rng, page = np.random.default_rng(1), chromium.open(site)
                for _ in range(PEOPLE):
                    taste = random_person(rng, python)
                    expected = python.rank(taste, SHOWN).items.tolist()
                    equal += shown(page, python, taste) == expected
                    after(page, lambda page=page: page.click("#clear"))
                    if name != "fedrap, common part" and python.task == "ranking":
                        names = [python.bundle.names[at] for at in taste.likes]  # several items may have one title
                        items = recommend(run, likes=names, n=SHOWN).items
                        same += [x.title for x in items] == [python.bundle.titles[at] for at in expected]
            row = {"method": name, "people": PEOPLE, "page equals BundleRecommender": equal}
            out.append(row | ({"BundleRecommender equals fedtaste recommend": same} if same else {}))
            print(out[-1], file=sys.stderr)
    return out


def int8(folder: Path, name: str = "fedals") -> dict[str, Any]:
    run = trained(folder, name)
    run_folder = RunFolder.open(run)
    settings = run_folder.settings()
    task = make_task(settings, load_data(settings.data))
    run_plan = plan(settings, task.facts)
    fresh = begin(
        run_plan.method,
        run_plan.model,
        task.federation("final", run_plan.method, run_plan.sampling, None),
        run_plan.seed,
    )
    state = run_folder.final(fresh)

    def ndcg(of: State) -> dict[str, float]:
        served = Served(run_plan.method, run_plan.model, of, run_plan.sampling)
        values = {
            "seen": task.evaluate(served, task.seen, None).values,
            "new": task.evaluate(served, task.newcomers, passes(of)).values,
        }
        return {f"{who} {kind}": values[who][kind]["ndcg@10"] for who in values for kind in ("sampled", "full")}

    (wide, _), (narrow, _) = export(run, "float32"), export(run, "int8")
    item = torch.from_numpy(narrow.tables.item).float()
    tables = {"item": item} | ({"gram": item.T @ item} if "gram" in state.shared else {})
    if narrow.tables.trail:
        rows = torch.zeros(len(item), len(item), dtype=torch.float64)
        at, values = map(torch.from_numpy, narrow.tables.trail)
        tables["trail"] = rows.scatter(1, at, values).float()
    for part, value in (narrow.tables.network or {}).items():
        tables[part] = torch.from_numpy(value).float().reshape(state.shared[part].shape)
    exact, rounded = ndcg(state), ndcg(replace(state, shared=state.shared | tables))
    rng, overlaps = np.random.default_rng(1), []
    for _ in range(PEOPLE):
        taste = random_person(rng, wide)
        overlaps.append(len(np.intersect1d(wide.rank(taste, SHOWN).items, narrow.rank(taste, SHOWN).items)) / SHOWN)
    return {
        "ndcg@10 float32": {name: round(value, 6) for name, value in exact.items()},
        "ndcg@10 lost": {name: round(value - rounded[name], 6) for name, value in exact.items()},
        "overlap of the first twenty": round(float(np.mean(overlaps)), 4),
    }


def fedtrail(folder: Path, name: str = "fedtrail") -> dict[str, Any]:
    _, contents = export(trained(folder, name), "int8")
    tables = {name: len(content) for name, content in contents.items() if name.endswith((".i8", ".f32", ".u16"))}
    size = {"bytes of the bundle": sum(map(len, contents.values())), "bytes of its tables": tables}
    return size | int8(folder, name) | lists(folder, [name])[0]


def fedseq(folder: Path) -> dict[str, Any]:
    run = trained(folder, "fedseq")
    return fedtrail(folder, "fedseq") | {"speed": speed(folder, "fedseq", history(run))}


def history(run: Path) -> int:
    """The number of likes from which the network of a run reads no more of them."""
    sequence = gather(run).parts.recipe.sequence
    assert sequence is not None
    return sequence.length


def large(model: TrainedModel, items: int = 10_000, k: int = 64) -> dict[str, bytes]:
    """A bundle with a generated catalogue of another size."""
    rng, parts = np.random.default_rng(0), model.parts
    titles_of_run, genres = model.items["titles"], model.items["genres"]
    titles = [f"{titles_of_run[n % len(titles_of_run)]} {n // len(titles_of_run) or ''}".strip() for n in range(items)]
    catalogue = {
        "names": [str(n) for n in range(items)], "titles": titles,
        "genres": [genres[n % len(titles_of_run)] for n in range(items)],
        "counts": rng.zipf(1.5, items).clip(max=100_000).tolist(),
    }  # fmt: skip
    table = (rng.normal(size=(items, k)) / k**0.5).astype(np.float32)
    recipe = replace(parts.recipe, prior=parts.recipe.alpha0 * items)
    offset = None if parts.offset is None else rng.choice(parts.offset, items)
    trail = None
    if parts.trail is not None:
        trail, strong = np.zeros((items, items), np.float32), parts.trail[parts.trail > 0]
        columns = (rng.integers(0, items, (items, 1)) + 23 * np.arange(400)) % items  # 23: no column twice in a row
        np.put_along_axis(trail, columns, rng.choice(strong, columns.shape), axis=1)
    parts = replace(parts, item=table, recipe=recipe, offset=offset, trail=trail)
    result = model.result.model_copy(update={"items": items})
    return bundle_files(replace(model, parts=parts, items=catalogue, result=result), "int8")


def speed(folder: Path, name: str = "fedals", before: int = 0) -> list[dict[str, Any]]:
    """Times of picks one by one, after a list of so many titles was imported."""
    out, model = [], gather(trained(folder, name))
    width = model.parts.item.shape[1]
    with Browser() as chromium:
        for catalogue, contents in (
            (f"ML-100K, 1,682 x {width}", bundle_files(model, "int8")),
            ("10,000 x 64", large(model)),
        ):
            titles = json.loads(contents["items.json"])["titles"]
            order = [titles[at] for at in np.random.default_rng(2).permutation(len(titles))[: before + PICKS]]
            with Site(contents | {"": contents["index.html"]}) as site:
                page = chromium.open(site)
                first = len(site.requests)
                if before:
                    import_rows(page, [("title",), *((title,) for title in order[:before])])
                worker, wall = timed_picks(page, order[before:])
                out.append({
                    "catalogue": catalogue, "likes before": before, "picks": PICKS,
                    "worker ms, median": round(statistics.median(worker), 2), "worker ms, worst": round(max(worker), 2),
                    "key to list ms, median": round(statistics.median(wall), 1),
                    "requests after load": len(site.requests) - first,
                    "bytes of a first load": sum(len(site.files[path]) for path in site.requests if path in site.files),
                })  # fmt: skip
                page.close()
                print(out[-1], file=sys.stderr)
    return out


def timed_picks(page: Any, titles: Iterable[str]) -> tuple[list[float], list[float]]:
    """Milliseconds in the worker, and from the key to the list, of picking these titles one by one."""
    worker, wall = [], []
    for title in titles:
        page.fill("#search", title)
        page.wait_for_selector("#options [role=option]")
        page.evaluate(TIMED)
        after(page, lambda: page.press("#search", "Enter"))
        wall.append(page.evaluate("window.ended - window.began"))
        worker.append(float(page.evaluate("document.documentElement.dataset.ms")))
    return worker, wall


SHOTS = {  # file in docs/ -> model, picks, width, height, colours
    "page.png": ("fedals", FILMS, 1280, 900, "light"),
    "page-dark.png": ("fedals", FILMS, 1280, 900, "dark"),
    "page-phone.png": ("fedals", FILMS, 390, 844, "light"),
    "page-phone-dark.png": (
        "fedals ratings",
        [f"{film},{5 - at % 2}" for at, film in enumerate(FILMS)],
        390,
        844,
        "dark",
    ),
}


def shots(folder: Path) -> list[str]:
    """Write the pictures of the README into docs/."""
    with Browser() as chromium:
        for file, (name, rows, width, height, colours) in SHOTS.items():
            _, contents = export(trained(folder, name), "int8")
            with Site(contents | {"": contents["index.html"]}) as site:
                size = {"width": width, "height": height}
                page = chromium.open(site, viewport=size, color_scheme=colours, device_scale_factor=1.5)
                text = "\n".join(["title" if name == "fedals" else "title,rating", *rows])
                upload = {"name": "films.csv", "mimeType": "text/csv", "buffer": text.encode()}
                after(page, lambda page=page, upload=upload: page.set_input_files("#import", upload))
                page.evaluate("document.getElementById('import-note').hidden = true")
                page.evaluate("document.getElementById('undo').hidden = true")
                if width < 600:
                    page.evaluate("document.getElementById('rec-title').scrollIntoView()")
                page.mouse.move(0, 0)
                page.wait_for_timeout(500)
                page.screenshot(path=ROOT / "docs" / file)
                page.close()
    return list(SHOTS)


def report(folder: Path) -> list[str]:
    """Write docs/report.png."""
    options = ["--methods", "popularity,local,fedavg,fedrecon,fedals,centralised", "--out", str(folder / "report")]
    subprocess.run([sys.executable, "-m", "fedtaste", "compare", "--data", "ml-100k", *options], check=True)
    with Browser() as chromium:
        page = chromium.chromium.new_page(viewport={"width": 1280, "height": 1450})
        page.goto((folder / "report" / "report.html").as_uri())
        page.screenshot(path=ROOT / "docs" / "report.png")
    return ["report.png"]


TIMED = """() => {
  addEventListener("keydown", () => (window.began = performance.now()), { capture: true, once: true });
  new MutationObserver((_, seen) => { window.ended = performance.now(); seen.disconnect(); })
    .observe(document.documentElement, { attributeFilter: ["data-generation"] });
}"""
PARTS: dict[str, Callable[[Path], Any]] = {
    "int8": int8,
    "fedtrail": fedtrail,
    "fedseq": fedseq,
    "speed": speed,
    "api": lambda folder: api(),
    "lists": lists,
}
PICTURES = {"shots": shots, "report": report}


def main() -> None:
    evidence = json.loads(EVIDENCE.read_text()) if EVIDENCE.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        for name in sys.argv[1:] or PARTS:
            if name in PICTURES:
                print(json.dumps({name: PICTURES[name](Path(folder))}))
                continue
            result = PARTS[name](Path(folder))
            today = datetime.date.today().isoformat()
            evidence[name] = {"command": f"python benchmarks/page.py {name}", "date": today, "result": result}
            print(json.dumps({name: result}), flush=True)
            EVIDENCE.write_text(json.dumps(evidence, indent=1) + "\n")


if __name__ == "__main__":
    main()
