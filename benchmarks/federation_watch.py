"""Observe the processes of a federation from outside, and repeat its run on the simulator.

Every process that Flower starts for a run has FLWR_HOME in the run folder and inherits an environment variable with its
part: superlink (with the ServerApp), node-0, node-1, ... So the processes of a run can be found, measured and killed.
`again` repeats the run on the simulator with the participation in the federation's result; it must give the same shared
and private parameters.
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
    """All running processes with FLWR_HOME in this folder."""
    processes, below = [], f"FLWR_HOME={home.resolve()}/".encode()
    boot_time = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError, IndexError, ValueError):  # the process has ended, or belongs to another user
            words = Path(entry.path, "environ").read_bytes().split(b"\0")
            if not any((word + b"/").startswith(below) for word in words):
                continue
            mark = next(word for word in words if word.startswith(MARK.encode() + b"=")).decode()
            command = Path(entry.path, "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            stat = Path(entry.path, "stat").read_text().rpartition(")")[2].split()
            if command and stat[0] != "Z":
                cpu = sum(map(int, stat[11:15])) / TICK
                part, began = mark.partition(":")[2], boot_time + int(stat[19]) / TICK
                processes.append(Seen(part, int(entry.name), command, cpu, int(stat[21]) * PAGE, began))
    return processes


def program_of(home: Path, part: str, name: str, since: float = 0.0) -> int | None:
    """The process id of one of Flower's programs in a part, if it runs and was started after `since`."""
    processes = (seen for seen in family(home) if seen.part == part and f"/{name} " in f"{seen.command} ")
    return next((seen.pid for seen in processes if seen.began > since), None)


def listening(processes: list[int]) -> set[tuple[str, int]]:
    """(address in hexadecimal, port) of every socket that these processes listen on. 0100007F is 127.0.0.1."""
    sockets: set[str] = set()
    for process in processes:
        with contextlib.suppress(OSError):
            for link in Path(f"/proc/{process}/fd").iterdir():
                with contextlib.suppress(OSError):
                    match = re.fullmatch(r"socket:\[(\d+)\]", os.readlink(link))
                    sockets |= {match[1]} if match else set()
    addresses = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and words[9] in sockets:
                address, port = words[1].split(":")
                addresses.add((address, int(port, 16)))
    return addresses


def command(*words: object) -> list[str]:
    """The command line of `fedtaste` with these arguments."""
    return [sys.executable, "-m", "fedtaste", *map(str, words)]


def started(*words: object) -> subprocess.Popen[str]:
    env = {"OMP_NUM_THREADS": "1"} | dict(os.environ)
    return subprocess.Popen(
        command(*words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, start_new_session=True
    )


def fedtaste(*words: object) -> dict[str, Any]:
    """The result of `fedtaste ... --json`."""
    process = started(*words, "--json")
    output, errors = process.communicate()
    if process.returncode:
        raise SystemExit(f"fedtaste {' '.join(map(str, words))} failed:\n{errors}")
    return json.loads(output)


def rounds_done(run: Path) -> tuple[str, int, float]:
    """(phase, finished rounds, time at which they were saved, or 0 if they are not saved yet) of a federation."""
    try:
        status = json.loads((run / "federation" / "status.json").read_text())
        saved = (run / "state.safetensors").stat().st_mtime if status["done"] else status["time"]
    except (OSError, ValueError, KeyError):  # not written yet, or without a phase
        return "", 0, 0.0
    return str(status["phase"]), int(status["done"]), saved if saved >= status["time"] else 0.0


def kill_when(run: Path, part: str, name: str, ready: Callable[[], bool], alive: Callable[[], bool]) -> dict[str, Any]:
    """kill -9 a program of a part as soon as `ready()`; return the phase and round of that moment."""
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
    """A function that tells whether a part is computing for this round of the phase."""

    def is_computing() -> bool:
        at, done, saved = rounds_done(run)
        return (at, done) == (phase, number - 1) and saved > 0 and program_of(run, part, name, saved) is not None

    return is_computing


# The same on the simulator


@dataclass(eq=False)
class Recorded(Federation):
    """People of whom those answer who did: by round, from 0."""

    answering: dict[int, People] = field(default_factory=dict)

    def cohort(self, round: int, **more: Any) -> tuple[People, People]:
        people, _ = super().cohort(round, **more)
        return people, np.intersect1d(people, self.answering[round])


def shards_of(run: Path) -> dict[str, People]:
    """The numbers of the people of every node."""
    places = sorted((run / "federation" / "nodes").iterdir())
    return {place.name: load_shard(place / "shard.safetensors").own for place in places}


def again(run: Path, into: Path) -> RunResult:
    """Repeat the run of this folder on the simulator, in the folder `into`, with the participation in its result."""
    folder = RunFolder.open(run)
    settings, owns = folder.settings(), shards_of(run)
    data = load(settings.data, seed=settings.seed, cache=cache())
    participants: dict[str, dict[int, People]] = {"search": {}, "final": {}}
    for entry in folder.result().federation.history:
        place = participants[entry.phase]
        assert entry.round - 1 not in place, f"round {entry.round} of {entry.phase} was counted twice"
        place[entry.round - 1] = np.concatenate([owns[name] for name in entry.nodes] or [np.zeros(0, np.int64)])
    task = make_task(settings, data)

    build_federation = task.federation

    def recorded(phase: str, *more: Any) -> Federation:
        federation = build_federation(phase, *more)
        return Recorded(
            federation.people,
            federation.members,
            federation.examples,
            federation.catalogue,
            federation.names,
            participants[phase],
        )

    copy = RunFolder.create(into, settings.model_dump(), data, __version__)
    task.federation = recorded  # type: ignore[method-assign]
    return execute(prepare(settings, data, task=task), copy)


def fresh(run: Path) -> State:
    """The initial state of a run."""
    folder = RunFolder.open(run)
    settings = folder.settings()
    task = make_task(settings, load(settings.data, seed=settings.seed, cache=cache()))
    run_plan = plan(settings, task.facts)
    return begin(
        run_plan.method,
        run_plan.model,
        task.federation("final", run_plan.method, run_plan.sampling, None),
        run_plan.seed,
    )


def gap(params: Params, expected: Params) -> float:
    """The largest difference, relative to the largest number expected."""
    if {n: v.shape for n, v in params.items()} != {n: v.shape for n, v in expected.items()}:
        return float("inf")
    difference = max(
        (float((params[n].double() - v.double()).abs().max()) for n, v in expected.items() if v.numel()), default=0.0
    )
    return difference / max((float(v.double().abs().max()) for v in expected.values() if v.numel()), default=1.0)


def shared_of(run: Path) -> Params:
    return load_params(run / "model.safetensors")[0]


def private_of(run: Path) -> Store:
    """Everybody's private parameters on the disks of the nodes after the last round."""
    folder, store = RunFolder.open(run), fresh(run).private
    history = [entry for entry in folder.result().federation.history if entry.phase == "final"]
    everybody: dict[str, list[torch.Tensor]] = {}
    people: list[People] = []
    for name, own in shards_of(run).items():
        last_round = max((entry.round for entry in history if name in entry.nodes), default=0)
        store_of_node = fresh(run).private
        if last_round:
            path = (
                run
                / "federation"
                / "nodes"
                / name
                / "store"
                / f"{folder.run_id:016x}"
                / f"final-{last_round}.safetensors"
            )
            store_of_node.unpack_part(own, load_params(path)[0])
        people.append(own)
        for leaf, value in store_of_node.gather(own).items():
            everybody.setdefault(leaf, []).append(value)
    store.put(np.concatenate(people), {leaf: torch.cat(values) for leaf, values in everybody.items()})
    return store


def compared(run: Path, simulated: Path) -> dict[str, Any]:
    """Compare a federation's run with one on the simulator."""
    folder, other = RunFolder.open(run), RunFolder.open(simulated)
    everybody = np.arange(fresh(run).private.people)
    own = other.final(fresh(simulated)).private.gather(everybody)
    results = folder.result().dump(), other.result().dump()
    metrics, expected = map(numbers_of, results)
    return {
        "shared_parameters_differ_by": gap(shared_of(run), shared_of(simulated)),
        "same_bytes": all(torch.equal(value, shared_of(simulated)[name]) for name, value in shared_of(run).items()),
        "private_parameters_differ_by": gap(private_of(run).gather(everybody), own) if own else None,
        "private_numbers": sum(value.numel() for value in own.values()),
        "metrics_differ_by": max(
            (abs(metrics[name] - expected[name]) for name in metrics.keys() & expected.keys()), default=0.0
        ),
        "metrics_of_one_alone": sorted(metrics.keys() ^ expected.keys()),
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
