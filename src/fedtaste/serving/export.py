"""Export a finished run as a bundle: a static folder with the page and everything it needs, for any web server.

run folder -> plan -> recipe and tables -> (int8) -> popularity, map, vectors, card -> hashes -> index.html, sw.js
"""

from __future__ import annotations

import html
import json
import os
import re
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from fedtaste import __version__
from fedtaste.engine.run import begin
from fedtaste.errors import RunError, SettingError
from fedtaste.experiment.result import RunResult
from fedtaste.experiment.settings import Settings
from fedtaste.methods import METHODS, build
from fedtaste.models import additive, factorization
from fedtaste.recipe import Recipe
from fedtaste.serving.bundle import (
    FORMAT,
    OLD_NAME,
    UNPINNED,
    Entry,
    Items,
    Manifest,
    Precision,
    integrity,
    parse,
    sha256,
    with_pin,
)
from fedtaste.serving.item_map import place
from fedtaste.serving.model_card import describe, licences, model_card
from fedtaste.serving.rebuild import Taste
from fedtaste.serving.recommend import Catalogue, OpenRun, one_person
from fedtaste.serving.recommendation import Json
from fedtaste.serving.recommender import Ranking, Recommender
from fedtaste.tasks.serve import passes
from fedtaste.wire.packing import int8

Log = Callable[[str], None]
CASE_LIKES = (1, 3, 12, 40)  # numbers of likes of the random people in vectors.json
# Largest entries of a row of the trail table. On ML-100K 200 cost .001 of NDCG@10, and 100 cost .009.
TRAIL_KEPT = 200
TRAIL_EXACT = 2**26  # most entries of the whole table in float32
SHOWN, SAMPLE = 20, 200  # items of a list; random people over whom int8 is compared with float32
NAMES = {"ml-100k": "MovieLens 100K", "ml-1m": "MovieLens 1M", "lastfm": "Last.fm", "synthetic": "A made-up catalogue"}


@dataclass(frozen=True)
class TrainedModel:
    """The parts of a finished run that a bundle is made from."""

    settings: Settings
    result: RunResult
    items: Catalogue
    recipe: Recipe
    item: NDArray[np.float32]  # [m, k]
    offset: NDArray[np.float32] | None
    ones: bool
    trail: NDArray[np.float32] | None  # [m, m]
    private: bool  # trained with differential privacy: nothing may be published that its promise does not cover


def export(run: Path, out: Path, *, float32: bool = False, log: Log = lambda text: None) -> Manifest:
    """Write the bundle of a run into a folder that is new, empty, or a bundle: all of it or nothing."""
    model = gather(run)
    _check_target(out)
    log("Placing the items on the map")
    contents = bundle_files(model, "float32" if float32 else "int8", log)
    _write_folder(out, contents)
    return Manifest.model_validate_json(contents["manifest.json"])


def gather(path: Path) -> TrainedModel:
    """Read a finished run: its recipe and tables; refuses methods without a recipe."""
    run = OpenRun.open(path)
    plan = run.plan(replace(run.facts, timed=True))
    if plan.method.recipe is None:
        raise SettingError(
            f"{run.settings.method} cannot be rebuilt in a browser with these settings: it has no recipe. Methods that "
            f"have one: {', '.join(_exportable())}."
        )
    start = begin(plan.method, plan.model, one_person(plan, run.facts), plan.seed)
    shared = run.folder.model(start.shared)
    params = (plan.method.tables(shared) if plan.method.tables else shared) | start.private.initial
    arrays = {name: value.numpy().astype(np.float32) for name, value in params.items()}
    if not all(np.isfinite(value).all() for value in arrays.values()):
        raise RunError(f"{path} holds numbers that are not finite. Export a model that has not diverged.")
    offset = arrays["item_bias"] + arrays["mean"] if plan.model.kind == "rating_factorization" else None
    user: list[float] = arrays.get("start.user", arrays.get("user", np.zeros(0))).tolist()
    recipe = replace(
        plan.method.recipe,
        examples=plan.method.examples,
        batch=plan.sampling.batch,
        seed=str(plan.seed % 2**64),
        negatives=plan.sampling.negatives if run.facts.kind == "ranking" else 0,
        rounds=passes(replace(start, round=run.result.rounds)) if start.private.initial else 1,
        start=(*user, float(arrays["bias"])) if "bias" in arrays else tuple(user),
    )
    return TrainedModel(
        run.settings,
        run.result,
        run.items,
        recipe,
        arrays["item"],
        offset,
        ones=offset is not None or "bias" in arrays,
        trail=arrays.get("trail"),
        private=plan.wire.mechanism is not None or bool(plan.method.privacy.bounds),
    )


def _exportable() -> list[str]:
    """Methods that have a recipe with their default settings."""
    names = set()
    for name in METHODS:
        for model in (factorization(4, k=2), additive(4, k=2)):
            try:
                names |= {name} if build(name, model, {}).recipe else set()
            except SettingError:
                continue
    return sorted(names)


def bundle_files(model: TrainedModel, precision: Precision, log: Log = lambda text: None) -> dict[str, bytes]:
    """Every file of the bundle, by name."""
    popular, origin = popularity(model)
    contents = _tables(model, precision)
    contents["items.json"] = _dump(_catalogue(model.items).model_dump())
    contents["popularity.u8"] = popular.tobytes()
    contents["map.i16"] = place(model.item, popular).astype("<i2").tobytes()
    log("Computing the cases that the page checks itself with")
    manifest = _manifest(model, precision)
    recommender = Recommender(parse(manifest, contents, Path("bundle")))
    overlap = None if precision == "float32" else _overlap(recommender, model, manifest, contents)
    about = describe(model.settings, model.result, model.recipe, overlap, manifest.name)
    contents["vectors.json"] = _dump({"cases": vectors(recommender)})
    contents["MODEL_CARD.md"] = model_card(
        model.settings, model.result, about, precision, origin, model.trail is not None
    ).encode()
    contents["LICENCES.md"] = licences(about).encode()
    contents = {name: content for name, content in page_files().items() if name not in UNPINNED} | contents
    entrance = {name: sha256(content) for name, content in _unpinned(manifest.name, contents).items()}
    files = {name: Entry(bytes=len(c), sha256=sha256(c)) for name, c in sorted(contents.items())}
    manifest = manifest.model_copy(update={"about": about, "entrance": entrance, "files": files})
    contents["manifest.json"] = _dump(manifest.model_dump(mode="json"))
    return contents | entrance_files(manifest.name, contents)


def _manifest(model: TrainedModel, precision: Precision) -> Manifest:
    """The manifest before its files are known."""
    result, (low, high) = model.result, model.result.scale
    name = NAMES.get(model.settings.data, Path(model.settings.data).stem)
    return Manifest(
        format=FORMAT,
        fedtaste=__version__,
        name=name,
        task="ratings" if result.task == "ratings" else "ranking",
        method=model.settings.method,
        precision=precision,
        items=model.item.shape[0],
        k=model.item.shape[1],
        ones=model.ones,
        scale=(low, high),
        integer_steps=all(float(x).is_integer() for x in (low, high)) and high - low <= 10,
        tables={"offset": model.offset is not None},
        trail=_trail_width(model, precision),
        recipe=model.recipe,
        people=result.members,
        about=describe(model.settings, result, model.recipe, None, name),
        files={},
        entrance={},
    )


def _tables(model: TrainedModel, precision: Precision) -> dict[str, bytes]:
    """The item table, the offsets and the trail table as bytes."""
    tables = _encode("item", "scale.f32", model.item, precision)
    if model.offset is not None:
        tables["offset.f32"] = model.offset.astype("<f4").tobytes()
    if model.trail is not None:
        width = _trail_width(model, precision)
        at = np.sort(np.argpartition(-model.trail, width - 1, axis=1)[:, :width], axis=1)
        tables["trail.u16"] = at.astype("<u2").tobytes()
        values = np.take_along_axis(model.trail, at, axis=1)
        tables |= _encode("trail", "trail-scale.f32", values, precision)
    return tables


def _encode(name: str, scale: str, table: NDArray[np.float32], precision: Precision) -> dict[str, bytes]:
    """The files of a table: as numbers of four bytes, or as bytes with a scale for every row."""
    if precision == "float32":
        return {f"{name}.f32": table.astype("<f4").tobytes()}
    parts = int8(torch.from_numpy(table))
    return {
        f"{name}.i8": parts["values"].numpy().tobytes(),
        scale: parts["scale"].numpy().astype("<f4").tobytes(),
    }


def _trail_width(model: TrainedModel, precision: Precision) -> int:
    """How many entries of every row of the trail table are kept: in float32 all above zero, as far as they fit."""
    if model.trail is None:
        return 0
    most = TRAIL_KEPT if precision == "int8" else TRAIL_EXACT // len(model.trail)
    return max(1, min(most, int((model.trail > 0).sum(1).max())))


def popularity(model: TrainedModel) -> tuple[NDArray[np.uint8], str]:
    """(a byte for every item, a sentence on its origin). Counts are not covered by a promise of differential privacy;
    a private model's own offsets or vector lengths take their place."""
    counts = np.array(model.items["counts"], np.float64)
    if model.private or not counts.any():
        size = model.offset if model.offset is not None else np.linalg.norm(model.item, axis=1)
        size = size.astype(np.float64) - min(0.0, float(size.min()))
        return _as_bytes(size), "How popular items are is read from the model itself; no counts are in it."
    return _as_bytes(np.log1p(counts)), "How many people took each item, roughly: a byte, on a logarithmic scale."


def _as_bytes(size: NDArray[np.float64]) -> NDArray[np.uint8]:
    return (255 * size / (size.max() or 1.0)).round().astype(np.uint8)


def _catalogue(items: Catalogue) -> Items:
    """Titles and genres, the genres as numbers, the most common first."""
    genres = [[word.strip() for word in re.split(r"[,|]", text) if word.strip()] for text in items.get("genres") or []]
    genres = genres or [[] for _ in items["names"]]
    count = Counter(word for words in genres for word in words)
    names = sorted(count, key=lambda word: (-count[word], word))
    number = {word: at for at, word in enumerate(names)}
    numbers = [[number[word] for word in dict.fromkeys(words)] for words in genres]
    return Items(names=items["names"], titles=items["titles"], genres=numbers, genre_names=names)


def _random_people(recommender: Recommender, sizes: list[int], seed: int) -> list[Taste]:
    """Random people with these numbers of likes; popular items are liked more often."""
    rng, m = np.random.default_rng(seed), recommender.bundle.manifest.items
    weights = 0.02 + recommender.popularity
    low, high = recommender.scale
    people = []
    for size in sizes:
        items = rng.choice(m, min(size + 2, m), replace=False, p=weights / weights.sum()).astype(np.int64)
        likes, dislikes = (items[:-2], items[-2:]) if len(items) > 2 else (items[:1], items[:0])
        steps = rng.integers(0, 5, len(likes)) / 4
        values = low + steps * (high - low) if recommender.task == "ratings" else np.ones(len(likes))
        people.append(Taste(likes, values, dislikes if recommender.task == "ranking" and size > 3 else dislikes[:0]))
    return people


def vectors(recommender: Recommender) -> list[Json]:
    """Test cases: people and what Python recommends to them. The page compares its own lists with these first."""
    people = _random_people(recommender, list(CASE_LIKES), 7)
    nobody = Taste(people[0].likes[:0], people[0].values[:0], people[0].dislikes)
    cases = [(taste, 0.0) for taste in [nobody, *people]]
    cases += [(people[2]._replace(timed=True), 0.0), (people[2], 0.7), (people[3], -0.4)]
    return [_vector(taste, lean, recommender.rank(taste, SHOWN, lean)) for taste, lean in cases]


def _vector(taste: Taste, lean: float, best: Ranking) -> Json:
    return {
        "likes": [[int(i), float(v)] for i, v in zip(taste.likes, taste.values)],
        "dislikes": taste.dislikes.tolist(),
        "timed": taste.timed,
        "adventurous": lean,
        "popular": best.popular,
        "items": best.items.tolist(),
        "scores": best.scores.tolist(),
        "because": best.because,
        "you": best.place,
    }


def _overlap(recommender: Recommender, model: TrainedModel, manifest: Manifest, contents: dict[str, bytes]) -> float:
    """The share of the first twenty items that int8 and float32 have in common, averaged over random people."""
    exact_manifest = manifest.model_copy(update={"precision": "float32", "trail": _trail_width(model, "float32")})
    exact = Recommender(parse(exact_manifest, contents | _tables(model, "float32"), Path("bundle")))
    people = _random_people(recommender, [3 + at % 40 for at in range(SAMPLE)], 8)
    pairs = [(recommender.rank(taste, SHOWN).items, exact.rank(taste, SHOWN).items) for taste in people]
    return float(np.mean([len(np.intersect1d(a, b)) / len(b) for a, b in pairs if len(b)]))


def page_files() -> dict[str, bytes]:
    """The page's own files, from the package."""
    folder = resources.files("fedtaste.serving") / "web"
    return {entry.name: entry.read_bytes() for entry in folder.iterdir() if entry.is_file() and entry.name[0] != "."}


def entrance_files(name: str, contents: dict[str, bytes]) -> dict[str, bytes]:
    """index.html and sw.js of a bundle that has its manifest."""
    pin = sha256(contents["manifest.json"])
    return {file: with_pin(content, pin) for file, content in _unpinned(name, contents).items()}


def _unpinned(name: str, contents: dict[str, bytes]) -> dict[str, bytes]:
    """index.html, which pins styles and scripts, and sw.js; both with a placeholder for the manifest's hash."""
    page = {file: content.decode() for file, content in page_files().items() if file in UNPINNED}
    text = page["index.html"].replace("{{title}}", html.escape(name))
    text = re.sub(r"\{\{integrity:([\w.-]+)\}\}", lambda match: integrity(sha256(contents[match[1]])), text)
    cached = ["./", "manifest.json", *sorted(n for n in contents if n != "manifest.json" and not n.endswith(".md"))]
    return {"index.html": text.encode(), "sw.js": page["sw.js"].replace("{{files}}", json.dumps(cached)).encode()}


def _check_target(out: Path) -> None:
    """Refuse a folder that holds anything but a bundle."""
    if out.is_symlink() or (out.exists() and not out.is_dir()):
        raise RunError(f"{out} is not a folder. Give a new one, as in `fedtaste export RUN site`.")
    if not out.is_dir() or not any(out.iterdir()):
        return
    try:
        manifest = json.loads((out / "manifest.json").read_bytes())
        bundle = str(manifest["format"]).startswith(("fedtaste-bundle-", f"{OLD_NAME}-bundle-"))
        known = {*UNPINNED, *manifest["files"]} if bundle else set()
    except (OSError, ValueError, TypeError, KeyError):
        known = set()
    if not known:
        raise RunError(f"{out} is not empty, and what is in it is not a bundle. Give a new folder.")
    others = sorted({entry.name for entry in out.iterdir()} - known)
    if others:
        raise RunError(
            f"{out} holds a bundle and also {', '.join(others[:3])}, which would be lost. Move that away, or "
            "export into a new folder and copy it over."
        )


def _write_folder(out: Path, contents: dict[str, bytes]) -> None:
    """Write all files into a new folder beside `out`, then put it in the place of `out`: all of it or nothing."""
    out = out.absolute()
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as beside:
            new, old = Path(beside) / "new", Path(beside) / "old"
            new.mkdir()
            new.chmod(0o755)
            for name, content in contents.items():
                (new / name).write_bytes(content)
            if out.exists() and not any(out.iterdir()):  # keep the folder: it may be a process's working directory
                for name in contents:
                    os.replace(new / name, out / name)
                return
            try:
                if out.exists():
                    os.replace(out, old)
                os.replace(new, out)
            finally:
                if old.exists() and not out.exists():
                    os.replace(old, out)
    except OSError as error:
        raise RunError(
            f"{out} cannot be written ({error.strerror}). Choose another folder, or free some space."
        ) from error


def _dump(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
