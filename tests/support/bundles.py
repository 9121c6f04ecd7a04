"""Small trained models, run folders and exported bundles on synthetic data, created once per test process."""

from __future__ import annotations

import functools
import json
import tempfile
from pathlib import Path

import numpy as np

from fedtaste.data.sources import load
from fedtaste.experiment.folder import RunFolder
from fedtaste.experiment.settings import Settings
from fedtaste.experiment.train import execute, prepare
from fedtaste.recipe import Recipe
from fedtaste.serving.bundle import FORMAT, Manifest, sha256, with_pin
from fedtaste.serving.export import export, gather

SHORT = {"participations": "1", "length": "24"}  # fewer than the likes of some people
# name -> settings; together they cover every recipe with which the page can compute a person's vector
MODELS: dict[str, dict] = {
    "fedals": {"method": "fedals", "rounds": 3},
    "fedals-ratings": {"method": "fedals", "task": "ratings", "rounds": 3},
    "fedrecon": {"method": "fedrecon", "rounds": 4, "set": {"recon_passes": "5"}},
    "fedrecon-ratings": {"method": "fedrecon", "task": "ratings", "rounds": 4},
    "fedrecon-exact": {"method": "fedrecon", "rounds": 4, "set": {"solver": "exact", "loss": "squared"}},
    "fedrecon-exact-ratings": {"method": "fedrecon", "task": "ratings", "rounds": 4, "set": {"solver": "exact"}},
    "fedmf": {"method": "fedmf", "rounds": 6},
    "fedmf-ratings": {"method": "fedmf", "task": "ratings", "rounds": 4},
    "fedrap": {"method": "fedrap", "rounds": 4},
    "fedtrail": {"method": "fedtrail"},
    "fedtrail-trail": {"method": "fedtrail", "set": {"parts": "trail", "keep": "40", "bits": "8"}},
    "fedtrail-als": {"method": "fedtrail", "rounds": 3, "set": {"parts": "trail+als"}},
    "fedseq": {"method": "fedseq", "set": SHORT},
    "fedseq-plain": {"method": "fedseq", "set": SHORT | {"trail": "false", "start": "items", "heads": "1"}},
    "fedseq-gru": {"method": "fedseq", "set": SHORT | {"network": "gru"}},
}
DATA = "synthetic:300x200x6000"


@functools.cache
def run_of(name: str) -> Path:
    """A finished run folder."""
    fields = dict(MODELS[name])
    chosen = fields.pop("set", {})
    width = {} if chosen.get("parts") == "trail" else {"k": "8"}  # a trail alone has no factors
    settings = Settings(data=DATA, set=width | chosen, **fields)
    data = load(settings.data, seed=0)
    folder = RunFolder.create(Path(tempfile.mkdtemp(prefix="fedtaste-test-")) / "run", settings.model_dump(), data, "0")
    execute(prepare(settings, data), folder)
    return folder.path


@functools.cache
def bundle_of(name: str, *, float32: bool = False) -> Path:
    """An exported bundle; tests that change it copy it first."""
    out = run_of(name).parent / ("float32" if float32 else "int8")
    export(run_of(name), out, float32=float32)
    return out


@functools.cache
def export_source(name: str):
    """The parts of a run folder that `export` gathers."""
    return gather(run_of(name))


TITLES = ["Lion King, The (1994)", "Amélie (2001)", 'A "quoted" <b>title</b>', *(f"Film {n:02}" for n in range(57))]


def small_bundle(folder: Path, task: str = "ranking") -> Path:
    """Write a bundle of 60 items with random tables and a minimal page, without training."""
    rng, m, k, rated = np.random.default_rng(0), len(TITLES), 8, task == "ratings"
    contents = {
        "items.json": json.dumps(
            {"names": [f"i{n}" for n in range(m)], "titles": TITLES, "genres": [[n % 2] for n in range(m)],
             "genre_names": ["Drama", "Film-Noir"]}
        ).encode(),
        "item.f32": rng.normal(size=(m, k)).astype("<f4").tobytes(),
        "popularity.u8": rng.integers(0, 256, m).astype(np.uint8).tobytes(),
        "map.i16": rng.integers(-9, 9, (m, 2)).astype("<i2").tobytes(),
        "vectors.json": b'{"cases":[]}',
        "main.js": b"export const one = 1;\n" * 40,
        "style.css": b"p { color: teal }\n" * 40,
        "MODEL_CARD.md": "# A card — short\n".encode(),
    } | ({"offset.f32": rng.normal(3.5, 0.3, m).astype("<f4").tobytes()} if rated else {})  # fmt: skip
    entrance = {"index.html": b"<!doctype html><p>{{manifest}}" + b"<p>Hello" * 40, "sw.js": b"// {{version}}\n"}
    manifest = Manifest(
        format=FORMAT, fedtaste="0", name="Small", task=task, method="fedals", precision="float32", items=m, k=k,
        ones=rated, scale=(1, 5) if rated else (0, 1), integer_steps=True, tables={"offset": rated},
        recipe=Recipe("ridge", lam=0.1, prior=1.0, alpha0=0.0 if rated else 0.01, recency=0.9), people=1,
        about={"title": "Small", "lines": [], "licence": [], "measured": []},
        files={name: {"bytes": len(c), "sha256": sha256(c)} for name, c in contents.items()},
        entrance={name: sha256(c) for name, c in entrance.items()},
    )  # fmt: skip
    contents["manifest.json"] = manifest.model_dump_json().encode()
    contents |= {name: with_pin(c, sha256(contents["manifest.json"])) for name, c in entrance.items()}
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return folder
