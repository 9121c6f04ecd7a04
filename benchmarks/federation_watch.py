"""A federation seen from outside: its processes, what they listen on, their cost; and the same run on the simulator.

Everything that Flower starts for a run has its settings in the run folder (FLWR_HOME), and inherits a mark that says
for which part it works: superlink (with the ServerApp), node-0, node-1, ... So a run is found, measured and killed
without its help. `again` is the law that all of it is held against: the simulator, with exactly the participation that
the federation wrote into its result, must come to the same parameters, shared and private.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from fedtaste import __version__
from fedtaste.cli.output import cache
from fedtaste.core import Params
from fedtaste.data.sources import load
from fedtaste.engine.checkpoint import load_params
from fedtaste.engine.run import State, begin
from fedtaste.engine.store import Store
from fedtaste.experiment.folder import RunFolder
from fedtaste.experiment.plan import plan
from fedtaste.experiment.result import RunResult
from fedtaste.experiment.train import execute, make_task, prepare
from fedtaste.federation import Federation, People
from fedtaste.flower.processes import MARK
from fedtaste.flower.shards import load_shard

TICK = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


# Processes


class Seen(NamedTuple):
    """A process of a federation."""

    part: str  # superlink, node-0, ...
    pid: int
    command: str
    cpu: float  # seconds, with those of children that have ended
    memory: int  # bytes
    began: float  # seconds since 1970


def family(home: Path) -> list[Seen]:
    """Everything that runs with Flower's settings under this folder."""
    found, below = [], f"FLWR_HOME={home.resolve()}/".encode()
    booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError, IndexError, ValueError):  # gone meanwhile, or somebody else's
            words = Path(entry.path, "environ").read_bytes().split(b"\0")
            if not any((word + b"/").startswith(below) for word in words):
                continue
            mark = next(word for word in words if word.startswith(MARK.encode() + b"=")).decode()
            command = Path(entry.path, "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            stat = Path(entry.path, "stat").read_text().rpartition(")")[2].split()
            if command and stat[0] != "Z":
                cpu = sum(map(int, stat[11:15])) / TICK
                part, began = mark.partition(":")[2], booted + int(stat[19]) / TICK
                found.append(Seen(part, int(entry.name), command, cpu, int(stat[21]) * PAGE, began))
    return found


def program_of(home: Path, part: str, name: str, since: float = 0.0) -> int | None:
    """The process of one of Flower's programs in a part, if it runs now and was started after that time."""
    fits = (one for one in family(home) if one.part == part and f"/{name} " in f"{one.command} ")
    return next((one.pid for one in fits if one.began > since), None)


def listening(processes: list[int]) -> set[tuple[str, int]]:
    """(address in hexadecimal, port) of every socket that these processes listen on. 0100007F is 127.0.0.1."""
    sockets: set[str] = set()
    for process in processes:
        with contextlib.suppress(OSError):
            for link in Path(f"/proc/{process}/fd").iterdir():
                with contextlib.suppress(OSError):
                    found = re.fullmatch(r"socket:\[(\d+)\]", os.readlink(link))
                    sockets |= {found[1]} if found else set()
    there = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and words[9] in sockets:
                address, port = words[1].split(":")
                there.add((address, int(port, 16)))
    return there


def command(*words: object) -> list[str]:
    """`fedtaste` with these words, as somebody would type it."""
    return [sys.executable, "-m", "fedtaste", *map(str, words)]


def started(*words: object) -> subprocess.Popen[str]:
    env = {"OMP_NUM_THREADS": "1"} | dict(os.environ)
    return subprocess.Popen(
        command(*words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, start_new_session=True
    )


def fedtaste(*words: object) -> dict[str, Any]:
    """What `fedtaste ... --json` prints."""
    process = started(*words, "--json")
    told, wrong = process.communicate()
    if process.returncode:
        raise SystemExit(f"fedtaste {' '.join(map(str, words))} failed:\n{wrong}")
    return json.loads(told)


def rounds_done(run: Path) -> tuple[str, int, float]:
    """(phase, rounds behind it, when they were safe on disk: 0 while they are not) of a federation."""
    try:
        at = json.loads((run / "federation" / "status.json").read_text())
        saved = (run / "state.safetensors").stat().st_mtime if at["done"] else at["time"]
    except (OSError, ValueError, KeyError):  # not written yet, or without a phase
        return "", 0, 0.0
    return str(at["phase"]), int(at["done"]), saved if saved >= at["time"] else 0.0


def kill_when(run: Path, part: str, name: str, ready: Callable[[], bool], alive: Callable[[], bool]) -> dict[str, Any]:
    """kill -9 a program of a part as soon as that is ready; where the run was then."""
    while not ready():
        if not alive():
            raise RuntimeError(f"the run ended before {part} could be killed")
        time.sleep(0.1)
    process = program_of(run, part, name)
    while process is None:
        process = program_of(run, part, name)
    os.kill(process, signal.SIGKILL)
    phase, done, _ = rounds_done(run)
    return {"killed": name, "of": part, "phase": phase, "while_in_round": done + 1}


def at_work(run: Path, phase: str, number: int, part: str, name: str = "flwr-clientapp") -> Callable[[], bool]:
    """Whether a part is computing for this round of the phase now; what ran for the one before it has ended."""

    def so() -> bool:
        at, done, saved = rounds_done(run)
        return (at, done) == (phase, number - 1) and saved > 0 and program_of(run, part, name, saved) is not None

    return so


# The same on the simulator


@dataclass(eq=False)
class Recorded(Federation):
    """People of whom those answer who did: by round, from 0."""

    answering: dict[int, People] = field(default_factory=dict)

    def cohort(self, round: int, **more: Any) -> tuple[People, People]:
        asked, _ = super().cohort(round, **more)
        return asked, np.intersect1d(asked, self.answering[round])


def shards_of(run: Path) -> dict[str, People]:
    """By node: the numbers of its people."""
    places = sorted((run / "federation" / "nodes").iterdir())
    return {place.name: load_shard(place / "shard.safetensors").own for place in places}


def again(run: Path, into: Path) -> RunResult:
    """The run of this folder on the simulator, in another, with the participation that is in its result."""
    folder = RunFolder.open(run)
    settings, owns = folder.settings(), shards_of(run)
    data = load(settings.data, seed=settings.seed, cache=cache())
    told: dict[str, dict[int, People]] = {"search": {}, "final": {}}
    for entry in folder.result().federation.history:
        place = told[entry.phase]
        assert entry.round - 1 not in place, f"round {entry.round} of {entry.phase} was counted twice"
        place[entry.round - 1] = np.concatenate([owns[name] for name in entry.nodes] or [np.zeros(0, np.int64)])
    task = make_task(settings, data)

    recorded_from = task.federation

    def recorded(phase: str, *more: Any) -> Federation:
        made = recorded_from(phase, *more)
        return Recorded(made.people, made.members, made.examples, made.catalogue, made.names, told[phase])

    copy = RunFolder.create(into, settings.model_dump(), data, __version__)
    task.federation = recorded  # type: ignore[method-assign]
    return execute(prepare(settings, data, task=task), copy)


def fresh(run: Path) -> State:
    folder = RunFolder.open(run)
    settings = folder.settings()
    task = make_task(settings, load(settings.data, seed=settings.seed, cache=cache()))
    made = plan(settings, task.facts)
    return begin(made.method, made.model, task.federation("final", made.method, made.sampling, None), made.seed)


def gap(found: Params, expected: Params) -> float:
    """The largest difference, relative to the largest number expected."""
    if {n: v.shape for n, v in found.items()} != {n: v.shape for n, v in expected.items()}:
        return float("inf")
    differ = max(
        (float((found[n].double() - v.double()).abs().max()) for n, v in expected.items() if v.numel()), default=0.0
    )
    return differ / max((float(v.double().abs().max()) for v in expected.values() if v.numel()), default=1.0)


def shared_of(run: Path) -> Params:
    return load_params(run / "model.safetensors")[0]


def private_of(run: Path) -> Store:
    """Everybody's private parameters, as the nodes of a federation have them on disk after its last round."""
    folder, store = RunFolder.open(run), fresh(run).private
    history = [entry for entry in folder.result().federation.history if entry.phase == "final"]
    everybody: dict[str, list[torch.Tensor]] = {}
    people: list[People] = []
    for name, own in shards_of(run).items():
        behind = max((entry.round for entry in history if name in entry.nodes), default=0)
        one = fresh(run).private
        if behind:
            path = (
                run / "federation" / "nodes" / name / "store" / f"{folder.run_id:016x}" / f"final-{behind}.safetensors"
            )
            one.unpack_part(own, load_params(path)[0])
        people.append(own)
        for leaf, value in one.gather(own).items():
            everybody.setdefault(leaf, []).append(value)
    store.put(np.concatenate(people), {leaf: torch.cat(values) for leaf, values in everybody.items()})
    return store


def compared(run: Path, simulated: Path) -> dict[str, Any]:
    """How far a federation's run is from one on the simulator."""
    mine, other = RunFolder.open(run), RunFolder.open(simulated)
    everybody = np.arange(fresh(run).private.people)
    own = other.final(fresh(simulated)).private.gather(everybody)
    results = mine.result().dump(), other.result().dump()
    one, two = map(numbers_of, results)
    return {
        "shared_parameters_differ_by": gap(shared_of(run), shared_of(simulated)),
        "same_bytes": all(torch.equal(value, shared_of(simulated)[name]) for name, value in shared_of(run).items()),
        "private_parameters_differ_by": gap(private_of(run).gather(everybody), own) if own else None,
        "private_numbers": sum(value.numel() for value in own.values()),
        "metrics_differ_by": max((abs(one[name] - two[name]) for name in one.keys() & two.keys()), default=0.0),
        "metrics_of_one_alone": sorted(one.keys() ^ two.keys()),
        "other_keys": sorted(set(results[0]) ^ set(results[1])),
    }


def numbers_of(result: dict[str, Any]) -> dict[str, float]:
    """Every metric of a result by its path."""
    out: dict[str, float] = {}

    def walk(value: Any, path: str) -> None:
        if isinstance(value, dict):
            for name, part in value.items():
                walk(part, f"{path}/{name}")
        elif isinstance(value, int | float):
            out[path] = float(value)

    for name in ("seen", "new", "rounds", "best_round", "people", "members"):
        walk(result.get(name), name)
    return out
