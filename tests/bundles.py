"""Bundles that tests share: small models on made-up data, trained once for each test process."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

from tacit.data.sources import load
from tacit.experiment import execute
from tacit.export import export, gather
from tacit.runs import RunFolder
from tacit.settings import Settings

# name -> what is asked for; each is a recipe of its own
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
}
DATA = "synthetic:300x200x6000"


@functools.cache
def run_of(name: str) -> Path:
    """A finished run folder."""
    asked = dict(MODELS[name])
    settings = Settings(data=DATA, set={"k": "8"} | asked.pop("set", {}), **asked)
    data = load(settings.data, seed=0)
    folder = RunFolder.create(Path(tempfile.mkdtemp(prefix="tacit-test-")) / "run", settings.model_dump(), data, "0")
    execute(settings, data, folder)
    return folder.path


@functools.cache
def bundle_of(name: str, *, float32: bool = False) -> Path:
    """An exported bundle; tests that change it copy it first."""
    out = run_of(name).parent / ("float32" if float32 else "int8")
    export(run_of(name), out, float32=float32)
    return out


@functools.cache
def learnt_of(name: str):
    return gather(run_of(name))
