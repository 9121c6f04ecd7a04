"""The libraries that `fedtaste bench --peers` measures: where each is installed, and how its program is started.

Every program is a process of its own on one core, with one thread for every library that has threads. Libraries whose
requirements fit ours come with the extra `bench`. The others, LensKit (an older pandas) and pfl (an older
dp-accounting), get an environment of their own in the cache, which `--install` makes.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import venv
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtaste.bench.peers_result import Part
from fedtaste.errors import RunError, SettingError
from fedtaste.text import did_you_mean

PROGRAMS = Path(__file__).parent / "programs"
LIMIT = 3600  # seconds of a program
INSTALL_EXTRA = "pip install 'fedtaste[bench]'"
ENVIRONMENT = {
    **{f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL", "NUMBA", "RAYON", "LK")},
    "OMP_WAIT_POLICY": "passive",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
    "JAX_PLATFORMS": "cpu",
    "FLWR_TELEMETRY_ENABLED": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # Ray otherwise warns about graphics cards
}


@dataclass(frozen=True)
class Peer:
    """A library, its program and what it computes."""

    part: Part
    program: str
    module: str  # which must be importable
    lines: Mapping[str, str]  # the title of each figure of the program
    requirements: tuple[str, ...] = ()  # of an environment of its own

    def python(self, name: str, cache: Path) -> str | None:
        """The interpreter in which the library is installed, if there is one."""
        own = environment_of(name, cache)
        if self.requirements and own.is_file():
            return str(own)
        try:
            return sys.executable if importlib.util.find_spec(self.module) else None
        except ModuleNotFoundError:  # its parent package is missing
            return None

    @property
    def advice(self) -> str:
        """How it is installed."""
        return "fedtaste bench --peers --install" if self.requirements else INSTALL_EXTRA


PEERS = {
    "implicit": Peer(
        "als", "implicit_als", "implicit",
        {"exact": "implicit, exact", "cg": "implicit, 3 conjugate-gradient steps"},
    ),
    "lenskit": Peer("als", "lenskit_als", "lenskit", {"exact": "LensKit ImplicitMF"}, ("lenskit==2025.8.1",)),
    "flower": Peer("fedavg", "flower_fedavg", "ray", {"round": "Flower simulation"}),
    "fedjax": Peer("fedavg", "fedjax_fedavg", "fedjax", {"round": "FedJAX"}),
    "pfl": Peer("fedavg", "pfl_fedavg", "pfl", {"round": "pfl"}, ("pfl==0.6.0",)),
    "torch": Peer("fedavg", "torch_loop", "torch", {"round": "plain torch, one person at a time"}),
}  # fmt: skip
OWN = {
    "fedals": "FedALS", "fedavg": "FedAvg", "fedmf": "FedMF", "fedrecon": "FedRecon", "fedrap": "FedRAP",
    "pfedrec": "PFedRec",
}  # fmt: skip


class Program(NamedTuple):
    """What a program measured."""

    version: str
    cpu_seconds: dict[str, float]
    figures: dict[str, float]
    tables: dict[str, NDArray[np.float32]]


def choose(names: tuple[str, ...]) -> dict[str, Peer]:
    """The peers of these names; `all` is every one."""
    for name in names:
        if name not in ("all", *PEERS):
            raise SettingError(did_you_mean(name, ("all", *PEERS), "peer"))
    return {name: peer for name, peer in PEERS.items() if "all" in names or name in names}


def environment_of(name: str, cache: Path) -> Path:
    """The interpreter of a peer's own environment."""
    return cache / "peers" / name / "bin" / "python"


def install(name: str, peer: Peer, cache: Path) -> None:
    """Make the peer's own environment, with our version of torch."""
    python = environment_of(name, cache)
    venv.create(python.parents[1], with_pip=True, clear=True)
    words = [
        str(python),
        "-m",
        "pip",
        "install",
        "--quiet",
        *peer.requirements,
        f"torch=={version('torch').split('+')[0]}",
    ]
    process = subprocess.run(words, capture_output=True, text=True)
    if process.returncode:
        python.unlink()  # an environment without the library is none
        raise RunError(f"{name} could not be installed: {_last_line(process.stderr)}")


def start(program: str, python: str, arrays: Mapping[str, object], folder: Path) -> Program:
    """Run one program in a process of its own. RunError if it fails."""
    task, result = folder / "task.npz", folder / f"{program}.npz"
    np.savez(task, **{name: np.asarray(value) for name, value in arrays.items()})  # type: ignore[arg-type]
    settings = [f"{name}={value}" for name, value in ENVIRONMENT.items()]
    words = ["env", *settings, python, str(PROGRAMS / "runner.py"), program, str(task), str(result)]
    try:
        process = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT, errors="replace")
    except subprocess.TimeoutExpired:
        raise RunError(f"{program} took more than {LIMIT:,} seconds.") from None
    if process.returncode:
        raise RunError(f"{program} failed: {_last_line(process.stderr)}")
    facts = json.loads(Path(f"{result}.json").read_text("utf-8"))
    with np.load(result) as file:
        tables = dict(file)
    return Program(facts["version"], facts["cpu_seconds"], facts["figures"], tables)


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip() if lines else "it printed no error."
