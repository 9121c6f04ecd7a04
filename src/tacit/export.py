"""`tacit export`: out of a finished run, a static folder that any web server can host: the page and all that it needs.

run folder -> plan -> recipe and tables -> (int8) -> popularity, map, vectors, card -> hashes -> index.html, sw.js
"""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from . import __version__
from .bundle import FORMAT, UNPINNED, Manifest, filled, integrity, parse, sha256
from .card import about, licences, model_card
from .errors import RunError, SettingError
from .experiment import passes
from .plane import place
from .recipes import Recipe, Taste
from .recommender import Recommender
from .runs import RunFolder
from .settings import Settings, plan
from .tasks import Facts

Say = Callable[[str], None]
CHECKED, SHOWN, SAMPLE = (1, 3, 12, 40), 20, 200
NAMES = {"ml-100k": "MovieLens 100K", "ml-1m": "MovieLens 1M", "lastfm": "Last.fm", "synthetic": "A made-up catalogue"}


@dataclass(frozen=True)
class Learnt:
    """What a run has learnt, as a bundle wants it."""

    settings: Settings
    result: dict[str, Any]
    items: dict[str, Any]
    recipe: Recipe
    item: NDArray[np.float32]  # [m, k]
    offset: NDArray[np.float32] | None
    ones: bool
    promised: bool  # differential privacy: then nothing may go out that the promise does not cover


def export(run: Path, out: Path, *, float32: bool = False, told: Say = lambda text: None) -> dict[str, Any]:
    """Write the bundle of a run into a folder that is new, empty, or a bundle; the manifest. All of it or nothing."""
    learnt = gather(run)
    _free(out)
    told("Placing the items on the map")
    contents = files_of(learnt, "float32" if float32 else "int8", told)
    _put(out, contents)
    manifest: dict[str, Any] = json.loads(contents["manifest.json"])
    return manifest


def gather(run: Path) -> Learnt:
    """The recipe and the tables of a finished run; refuses methods that have none."""
    folder = RunFolder.open(run)
    settings, result = folder.settings(), folder.result()
    if result["task"] not in ("ranking", "ratings"):
        raise SettingError(f"{run} is about {result['task']}; there are no items to recommend.")
    facts = Facts(
        result["task"], result["items"], True, tuple(result["scale"]), people=result.get("members", 0),
        feature_count=result.get("feature_count", 0),
    )  # fmt: skip
    made = plan(settings, facts, elsewhere=folder.federated)
    if made.method.recipe is None:
        raise SettingError(
            f"{settings.method} cannot be rebuilt in a browser with these settings: it has no recipe. Methods that "
            f"have one: {', '.join(sorted(_exportable()))}."
        )
    from .data.sampling import SERVE
    from .engine.run import begin
    from .federation import of_histories
    from .recommend import nobody

    home = of_histories(nobody(), facts.items, examples=made.method.examples, seed=settings.seed, stream=SERVE)
    start = begin(made.method, made.model, home, made.seed)
    shared = folder.model(start.shared)
    found = {name: value.numpy().astype(np.float32) for name, value in (shared | start.private.initial).items()}
    if not all(np.isfinite(value).all() for value in found.values()):
        raise RunError(f"{run} holds numbers that are not finite. Export a model that has not diverged.")
    offset = found["item_bias"] + found["mean"] if "item_bias" in found else None
    begun: list[float] = found.get("start.user", found.get("user", np.zeros(0))).tolist()
    begun = [*begun, float(found["bias"])] if "bias" in found else begun
    own = bool(start.private.initial)
    recipe = replace(
        made.method.recipe, examples=made.method.examples, batch=made.sampling.batch, seed=str(settings.seed % 2**64),
        negatives=made.sampling.negatives if facts.kind == "ranking" else 0,
        rounds=passes(replace(start, round=result["rounds"])) if own else 1, start=tuple(begun),
    )  # fmt: skip
    return Learnt(
        settings, result, folder.items(facts.items), recipe, found["item"], offset,
        offset is not None or "bias" in found, made.wire.mechanism is not None or bool(made.method.release),
    )  # fmt: skip


def files_of(learnt: Learnt, precision: Literal["int8", "float32"], told: Say = lambda text: None) -> dict[str, bytes]:
    """Every file of the bundle, by name."""
    m, k = learnt.item.shape
    fame, told_of = popularity(learnt)
    contents = tables_of(learnt, precision)
    contents["items.json"] = _dump(_catalogue(learnt.items))
    contents["popularity.u8"] = fame.tobytes()
    contents["map.i16"] = place(learnt.item, fame).astype("<i2").tobytes()
    told("Computing the cases that the page checks itself with")
    name = NAMES.get(learnt.settings.data, Path(learnt.settings.data).stem)
    low, high = learnt.result["scale"]
    facts: dict[str, Any] = {
        "format": FORMAT, "tacit": __version__, "name": name, "task": learnt.result["task"],
        "method": learnt.settings.method, "precision": precision, "items": m, "k": k, "ones": learnt.ones,
        "scale": (low, high), "integer_steps": all(float(x).is_integer() for x in (low, high)) and high - low <= 10,
        "tables": {"offset": learnt.offset is not None}, "recipe": learnt.recipe,
        "people": learnt.result.get("members", learnt.result.get("people", 0)), "files": {}, "entrance": {},
        "about": about(learnt.settings, learnt.result, learnt.recipe, None, name),
    }  # fmt: skip
    mine = Recommender(parse(Manifest(**facts), contents, Path("bundle")))
    kept = None if precision == "float32" else overlap(mine, learnt, facts, contents)
    facts["about"] = about(learnt.settings, learnt.result, learnt.recipe, kept, name)
    contents["vectors.json"] = _dump({"cases": vectors(mine)})
    contents["MODEL_CARD.md"] = model_card(
        learnt.settings, learnt.result, facts["about"], facts | {"popularity": told_of}
    ).encode()
    contents["LICENCES.md"] = licences(facts["about"]).encode()
    page = {name: content for name, content in page_files().items() if name not in UNPINNED}
    contents = page | contents
    facts["entrance"] = {of: sha256(content) for of, content in doors(name, contents).items()}
    facts["files"] = {name: {"bytes": len(c), "sha256": sha256(c)} for name, c in sorted(contents.items())}
    contents["manifest.json"] = _dump(Manifest(**facts).model_dump(mode="json"))
    return contents | entrance(name, contents)


def tables_of(learnt: Learnt, precision: Literal["int8", "float32"]) -> dict[str, bytes]:
    """The item table and the offsets as bytes."""
    out: dict[str, bytes] = {}
    if precision == "float32":
        out["item.f32"] = learnt.item.astype("<f4").tobytes()
    else:
        import torch

        from .wire.packing import int8

        parts = int8(torch.from_numpy(learnt.item))
        out["item.i8"], out["scale.f32"] = (
            parts["values"].numpy().tobytes(),
            parts["scale"].numpy().astype("<f4").tobytes(),
        )
    if learnt.offset is not None:
        out["offset.f32"] = learnt.offset.astype("<f4").tobytes()
    return out


def popularity(learnt: Learnt) -> tuple[NDArray[np.uint8], str]:
    """(a byte for every item, where it is from). Counts are not covered by a promise of privacy: then the model's own
    idea of what is popular has to do."""
    counts = np.array(learnt.items["counts"], np.float64)
    if learnt.promised or not counts.any():
        size = learnt.offset if learnt.offset is not None else np.linalg.norm(learnt.item, axis=1)
        size = size.astype(np.float64) - min(0.0, float(size.min()))
        return _bytes(size), "How popular items are is read from the model itself; no counts are in it."
    return _bytes(np.log1p(counts)), "How many people took each item, roughly: a byte, on a logarithmic scale."


def _bytes(size: NDArray[np.float64]) -> NDArray[np.uint8]:
    return (255 * size / (size.max() or 1.0)).round().astype(np.uint8)


def _catalogue(items: dict[str, Any]) -> dict[str, Any]:
    """Titles and genres, the genres as numbers, the most common first."""
    apart = [[w.strip() for w in re.split(r"[,|]", text) if w.strip()] for text in items.get("genres") or []]
    apart = apart or [[] for _ in items["names"]]
    counted: dict[str, int] = {}
    for words in apart:
        for word in words:
            counted[word] = counted.get(word, 0) + 1
    words = sorted(counted, key=lambda word: (-counted[word], word))
    number = {word: at for at, word in enumerate(words)}
    genres = [[number[word] for word in dict.fromkeys(of)] for of in apart]
    return {"names": items["names"], "titles": items["titles"], "genres": genres, "genre_names": words}


def _people(mine: Recommender, sizes: list[int], seed: int) -> list[Taste]:
    """People who do not exist, with as many likes; popular items more often, as in life."""
    rng, m = np.random.default_rng(seed), mine.bundle.manifest.items
    weights = 0.02 + mine.popularity
    out = []
    for size in sizes:
        chosen = rng.choice(m, min(size + 2, m), replace=False, p=weights / weights.sum()).astype(np.int64)
        likes, against = chosen[:-2] if len(chosen) > 2 else chosen[:1], chosen[-2:] if len(chosen) > 2 else chosen[:0]
        low, high = mine.scale
        steps = rng.integers(0, 5, len(likes)) / 4
        values = low + steps * (high - low) if mine.task == "ratings" else np.ones(len(likes))
        out.append(Taste(likes, values, against if mine.task == "ranking" and size > 3 else against[:0]))
    return out


def vectors(mine: Recommender) -> list[dict[str, Any]]:
    """People and what Python recommends to them; the page computes the same before it is used."""
    people = _people(mine, list(CHECKED), 7)
    nobody = Taste(people[0].likes[:0], people[0].values[:0], people[0].dislikes)
    cases = [(taste, 0.0) for taste in [nobody, *people]]
    cases += [(people[2]._replace(timed=True), 0.0), (people[2], 0.7), (people[3], -0.4)]
    out = []
    for taste, lean in cases:
        found = mine.rank(taste, SHOWN, lean)
        likes = [[int(i), float(v)] for i, v in zip(taste.likes, taste.values)]
        out.append(
            {"likes": likes, "dislikes": taste.dislikes.tolist(), "timed": taste.timed, "adventurous": lean,
             "popular": found.popular, "items": found.items.tolist(), "scores": found.scores.tolist(),
             "because": found.because, "you": found.you}
        )  # fmt: skip
    return out


def overlap(mine: Recommender, learnt: Learnt, facts: dict[str, Any], contents: dict[str, bytes]) -> float:
    """The share of people's first twenty that a byte a number keeps, over people who do not exist."""
    whole = parse(Manifest(**facts | {"precision": "float32"}), contents | tables_of(learnt, "float32"), Path("bundle"))
    exact = Recommender(whole)
    people = _people(mine, [3 + at % 40 for at in range(SAMPLE)], 8)
    pairs = [(mine.rank(taste, SHOWN).items, exact.rank(taste, SHOWN).items) for taste in people]
    return float(np.mean([len(np.intersect1d(a, b)) / len(b) for a, b in pairs if len(b)]))


def page_files() -> dict[str, bytes]:
    """The page's own files, as they lie in the package."""
    folder = resources.files("tacit") / "web"
    return {entry.name: entry.read_bytes() for entry in folder.iterdir() if entry.is_file() and entry.name[0] != "."}


def entrance(name: str, contents: dict[str, bytes]) -> dict[str, bytes]:
    """index.html and sw.js of a bundle that has its manifest."""
    pin = sha256(contents["manifest.json"])
    return {of: filled(content, pin) for of, content in doors(name, contents).items()}


def doors(name: str, contents: dict[str, bytes]) -> dict[str, bytes]:
    """index.html, which pins styles and scripts, and sw.js; in both a place is left for the manifest's hash."""
    page = {n: c.decode() for n, c in page_files().items() if n in UNPINNED}
    text = page["index.html"].replace("{{title}}", html.escape(name))
    text = re.sub(r"\{\{integrity:([\w.-]+)\}\}", lambda found: integrity(sha256(contents[found[1]])), text)
    cached = ["./", "manifest.json", *sorted(n for n in contents if n != "manifest.json" and not n.endswith(".md"))]
    return {"index.html": text.encode(), "sw.js": page["sw.js"].replace("{{files}}", json.dumps(cached)).encode()}


def _exportable() -> list[str]:
    """Methods that have a recipe, with their usual settings."""
    from .methods import METHODS, build
    from .models import additive, factorization

    found = set()
    for name in METHODS:
        for model in (factorization(4, k=2), additive(4, k=2)):
            try:
                found |= {name} if build(name, model, {}).recipe else set()
            except SettingError:
                continue
    return sorted(found)


def _free(out: Path) -> None:
    """Refuse a folder that holds anything but a bundle."""
    if out.is_symlink() or (out.exists() and not out.is_dir()):
        raise RunError(f"{out} is not a folder. Give a new one, as in `tacit export RUN site`.")
    if out.is_dir() and any(out.iterdir()):
        try:
            found = json.loads((out / "manifest.json").read_bytes())
            known = {*UNPINNED, *found["files"]} if str(found["format"]).startswith("tacit-bundle-") else set()
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


def _put(out: Path, contents: dict[str, bytes]) -> None:
    """All files at once: a new folder beside, then a change of names; what was there goes last."""
    try:
        out = out.absolute()
        out.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
        try:
            for name, content in contents.items():
                (made / name).write_bytes(content)
            made.chmod(0o755)
            if out.exists() and not any(out.iterdir()):  # perhaps somebody stands in it: the folder itself stays
                for name in contents:
                    os.replace(made / name, out / name)
                made.rmdir()
            elif out.exists():
                old = Path(tempfile.mkdtemp(prefix=f".{out.name}.old.", dir=out.parent))
                os.replace(out, old)
                os.replace(made, out)
                shutil.rmtree(old)
            else:
                os.replace(made, out)
        except BaseException:
            shutil.rmtree(made, ignore_errors=True)
            raise
    except OSError as error:
        raise RunError(
            f"{out} cannot be written ({error.strerror}). Choose another folder, or free some space."
        ) from error


def _dump(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
