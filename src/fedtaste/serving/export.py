"""Export a finished run as a bundle: a static folder with the page and everything it needs, for any web server.

run folder -> plan -> recipe and tables -> (int8) -> popularity, map, vectors, card -> hashes -> index.html, sw.js
"""

from __future__ import annotations

import html
import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from fedtaste import __version__
from fedtaste.errors import SettingError
from fedtaste.evaluation.ranking import rank_items
from fedtaste.experiment.result import FitResult, RunResult
from fedtaste.experiment.settings import Settings
from fedtaste.files.folders import check_replaceable, replace_folder
from fedtaste.methods import METHODS, build
from fedtaste.models import additive, factorization
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
from fedtaste.serving.bundle_recommender import BundleRecommender, Ranking
from fedtaste.serving.item_lists import genre_items
from fedtaste.serving.item_map import place
from fedtaste.serving.model_card import describe, licences, model_card
from fedtaste.serving.open_model import Catalogue, OpenModel
from fedtaste.serving.rebuild import Taste
from fedtaste.serving.rebuild_parts import RebuildParts, trail_kept, widest_entries
from fedtaste.serving.recommendation import Json
from fedtaste.serving.sequence_state import network_shapes
from fedtaste.serving.similar import similar_items
from fedtaste.wire.packing import int8

Log = Callable[[str], None]
CASE_LIKES = (1, 3, 12, 40)  # numbers of likes of the random people in vectors.json
TRAIL_EXACT = 2**26  # most entries of the whole table in float32
SHOWN, SAMPLE = 20, 200  # items of a list; random people over whom int8 is compared with float32
NAMES = {"ml-100k": "MovieLens 100K", "ml-1m": "MovieLens 1M", "lastfm": "Last.fm", "synthetic": "A made-up catalogue"}


@dataclass(frozen=True)
class TrainedModel:
    """The parts of a finished run that a bundle is made from."""

    settings: Settings
    result: RunResult | FitResult
    items: Catalogue
    parts: RebuildParts
    private: bool  # trained with differential privacy: nothing may be published that its promise does not cover


def export(run: Path, out: Path, *, float32: bool = False, log: Log = lambda text: None) -> Manifest:
    """Write the bundle of a run into a folder that is new, empty, or a bundle: all of it or nothing."""
    model = gather(run)
    check_replaceable(out, "a bundle", _bundle_files)
    log("Placing the items on the map")
    contents = bundle_files(model, "float32" if float32 else "int8", log)
    replace_folder(out, lambda folder: _write_files(folder, contents))
    return Manifest.model_validate_json(contents["manifest.json"])


def gather(path: Path) -> TrainedModel:
    """Read a finished run or a fitted model: its recipe and tables; refuses methods without a recipe."""
    model = OpenModel.open(path)
    plan, parts = model.plan(timed=True), model.rebuild_parts
    if parts is None:
        raise SettingError(
            f"{model.settings.method} cannot be exported with these settings: the page cannot compute its "
            f"lists. `fedtaste recommend` computes them here. Methods that can be exported: {', '.join(_exportable())}."
        )
    private = plan.wire.mechanism is not None or bool(plan.method.privacy.bounds)
    return TrainedModel(model.settings, model.result, model.items, parts, private)


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
    contents["map.i16"] = place(model.parts.item, popular).astype("<i2").tobytes()
    log("Computing the cases that the page checks itself with")
    manifest = _manifest(model, precision)
    recommender = BundleRecommender(parse(manifest, contents, Path("bundle")))
    overlap = None if precision == "float32" else _overlap(recommender, model, manifest, contents)
    about = describe(model.settings, model.result, model.parts.recipe, overlap, manifest.name)
    contents["vectors.json"] = _dump({"cases": vectors(recommender), "similar": similar_vectors(recommender)})
    contents["MODEL_CARD.md"] = model_card(
        model.settings, model.result, about, precision, origin, model.parts.recipe
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
        items=model.parts.item.shape[0],
        k=model.parts.item.shape[1],
        ones=model.parts.ones,
        scale=(low, high),
        integer_steps=all(float(x).is_integer() for x in (low, high)) and high - low <= 10,
        tables={"offset": model.parts.offset is not None},
        trail=_trail_width(model, precision),
        recipe=model.parts.recipe,
        people=result.members,
        about=describe(model.settings, result, model.parts.recipe, None, name),
        files={},
        entrance={},
    )


def _tables(model: TrainedModel, precision: Precision) -> dict[str, bytes]:
    """The item table, the offsets and the trail table as bytes."""
    tables = _encode("item", "scale.f32", model.parts.item, precision)
    if model.parts.offset is not None:
        tables["offset.f32"] = model.parts.offset.astype("<f4").tobytes()
    if model.parts.trail is not None:
        width = _trail_width(model, precision)
        at = widest_entries(model.parts.trail, width)
        tables["trail.u16"] = at.astype("<u2").tobytes()
        values = np.take_along_axis(model.parts.trail, at, axis=1)
        tables |= _encode("trail", "trail-scale.f32", values, precision)
    return tables | _network(model, precision)


def _network(model: TrainedModel, precision: Precision) -> dict[str, bytes]:
    """The files of a sequence network: the matrices one after the other, and the vectors in single precision."""
    if model.parts.recipe.sequence is None:
        return {}
    files = {"network-vectors.f32": b""}
    for name, shape in network_shapes(model.parts.recipe.sequence, model.parts.item.shape[1]).items():
        value = model.parts.network[name].reshape(shape)
        parts = {"network-vectors.f32": value.astype("<f4").tobytes()}
        if len(shape) == 2:
            parts = _encode("network", "network-scale.f32", value, precision)
        files |= {file: files.get(file, b"") + content for file, content in parts.items()}
    return files


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
    if model.parts.trail is None:
        return 0
    most = trail_kept(model.parts.recipe) if precision == "int8" else TRAIL_EXACT // len(model.parts.trail)
    return max(1, min(most, int((model.parts.trail > 0).sum(1).max())))


def popularity(model: TrainedModel) -> tuple[NDArray[np.uint8], str]:
    """(a byte for every item, a sentence on its origin). Counts are not covered by a promise of differential privacy;
    a private model's own offsets or vector lengths take their place."""
    counts = np.array(model.items["counts"], np.float64)
    if model.private or not counts.any():
        size = model.parts.offset if model.parts.offset is not None else np.linalg.norm(model.parts.item, axis=1)
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


def _random_people(recommender: BundleRecommender, sizes: list[int], seed: int) -> list[Taste]:
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


def vectors(recommender: BundleRecommender) -> list[Json]:
    """Test cases: people and what Python recommends to them. The page compares its own lists with these first."""
    sequence = recommender.recipe.sequence
    more_than_it_reads = [sequence.length + 4] if sequence else []
    people = _random_people(recommender, [*CASE_LIKES, *more_than_it_reads], 7)
    nobody = Taste(people[0].likes[:0], people[0].values[:0], people[0].dislikes)
    cases = [(taste, 0.0) for taste in [nobody, *people]]
    cases += [(people[2]._replace(timed=True), 0.0), (people[2], 0.7), (people[3], -0.4)]
    vectors = [_vector(taste, lean, recommender.rank(taste, SHOWN, lean)) for taste, lean in cases]
    items = recommender.bundle.items
    if items.genre_names:
        allowed = genre_items(items, items.genre_names[:1])
        vectors.append(_vector(people[1], 0.0, recommender.rank(people[1], SHOWN, 0.0, allowed)) | {"genres": [0]})
    return vectors


def similar_vectors(recommender: BundleRecommender) -> list[Json]:
    """Test cases of similar items: the most and the least popular item, and one between."""
    order = rank_items(recommender.popularity)
    chosen = dict.fromkeys(order[[0, len(order) // 2, -1]].tolist())
    groups = recommender.titles.groups
    return [{"item": at, "items": similar_items(recommender.tables, at, 5, groups)[0].tolist()} for at in chosen]


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


def _overlap(
    recommender: BundleRecommender, model: TrainedModel, manifest: Manifest, contents: dict[str, bytes]
) -> float:
    """The share of the first twenty items that int8 and float32 have in common, averaged over random people."""
    exact_manifest = manifest.model_copy(update={"precision": "float32", "trail": _trail_width(model, "float32")})
    exact = BundleRecommender(parse(exact_manifest, contents | _tables(model, "float32"), Path("bundle")))
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


def _bundle_files(out: Path) -> set[str]:
    """The files of a bundle in this folder; none where it is no bundle."""
    try:
        manifest = json.loads((out / "manifest.json").read_bytes())
        bundle = str(manifest["format"]).startswith(("fedtaste-bundle-", f"{OLD_NAME}-bundle-"))
        return {*UNPINNED, *manifest["files"]} if bundle else set()
    except (OSError, ValueError, TypeError, KeyError):
        return set()


def _write_files(folder: Path, contents: dict[str, bytes]) -> None:
    for name, content in contents.items():
        (folder / name).write_bytes(content)


def _dump(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
