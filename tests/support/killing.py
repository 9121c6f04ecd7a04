"""Kill processes with kill -9 at random moments and check the files on the disk, for tests and benchmarks/faults.py.

`python killing.py saving|runs HOW_OFTEN SEED FOLDER [METHOD]` prints a report as JSON:

    saving   a process only writes checkpoints; after every kill the file must be one of those written
    runs     `fedtaste run` is killed, and `fedtaste resume` continues it (and may be killed too); the result must have
             the same bytes as that of an uninterrupted run

Processes are forked from one that has imported all modules and loaded the kernels, so that hundreds of them take
minutes, not hours.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numba
import numpy as np
import torch

from fedtaste.cli import main as cli
from fedtaste.engine.checkpoint import load_params
from fedtaste.engine.run import State
from fedtaste.engine.store import Store
from fedtaste.errors import RunError
from fedtaste.experiment import train as experiment
from fedtaste.experiment.folder import RunFolder
from fedtaste.experiment.progress import Progress
from fedtaste.files.lock import lock_folder
from fedtaste.report import html as report

RUN = (
    "--data", "synthetic:60x50x900", "--method", "fedals", "--rounds", "40", "--patience", "0", "--threads", "1",
    "--new-people", "folds", "--set", "k=8", "--set", "spread=0.1", "--json",
)  # fmt: skip
RUNS = {
    "fedals": RUN,
    "fedseq": (
        "--data", "synthetic:60x50x900", "--method", "fedseq", "--cohort", "8", "--threads", "1", "--set", "k=8",
        "--set", "length=12", "--set", "negatives=20", "--set", "participations=12", "--json",
    ),
}  # fmt: skip
FAST = 50  # the clock of killed runs is this many times faster
WEIGHTS = ("model.safetensors", "final.safetensors")


def fork(work: Callable[[], None]) -> int:
    """Fork a process that does this work and ends, with its output discarded. Returns its id."""
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        quiet = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(quiet, stream)
        work()
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 1
    finally:
        os._exit(code)


def wait_or_kill(process: int, after: float | None = None, started: Callable[[], bool] | None = None) -> int:
    """The exit code of a process (-9: killed). It is killed after `after` seconds, which count from the moment when
    `started` is true, if that is given."""
    while started is not None and not started():
        if os.waitpid(process, os.WNOHANG)[0]:
            return 0
        time.sleep(0.002)
    deadline = None if after is None else time.monotonic() + after
    while deadline is not None and time.monotonic() < deadline:
        if os.waitpid(process, os.WNOHANG)[0]:
            return 0
        time.sleep(0.002)
    if deadline is not None:
        os.kill(process, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


# Checkpoints


def state_of_number(number: int, rows: int) -> tuple[State, Progress]:
    """A state of a few megabytes in which every number is `number`."""
    # There are no pages, because their kernels do not survive a fork.
    private = Store.fresh({"user": torch.full((8,), float(number))}, 200, [])
    return State({"item": torch.full((rows, 50), float(number))}, {}, private, number), Progress(best_round=number)


def kill_while_saving(times: int, seed: int, folder: Path, rows: int = 10_000) -> dict[str, Any]:
    """Kill a process that writes checkpoints, and check after every kill that the file is one of those written."""
    draw, run = random.Random(seed), RunFolder(folder)
    fresh = lambda: state_of_number(0, rows)[0]
    run.save(*state_of_number(1, rows))
    start_time = time.perf_counter()
    run.save(*state_of_number(1, rows))
    save_seconds = time.perf_counter() - start_time
    last_number, damaged, half_written, leftovers, went_back = 1, [], 0, 0, 0

    def work() -> None:
        number = last_number
        while True:
            number += 1
            run.save(*state_of_number(number, rows))

    for _ in range(times):
        wait_or_kill(fork(work), draw.uniform(0.0, 4 * save_seconds))
        half_written += any(folder.glob(".*.part"))
        try:
            state, progress = run.restore(fresh)
            assert state is not None and progress is not None
            number, private = state.round, state.private.gather(np.arange(200))
            assert bool((state.shared["item"] == number).all() and (private["user"] == number).all())
            assert progress.best_round == number
        except Exception as error:  # noqa: BLE001 (reported and counted)
            damaged.append(f"{type(error).__name__}: {error}")
            continue
        went_back += number < last_number
        last_number = max(last_number, number)
        with lock_folder(folder):  # as a resumed run does
            leftovers += any(folder.glob(".*.part"))
    megabytes = round((folder / "state.safetensors").stat().st_size / 1e6, 2)
    return {
        "kills": times,
        "torn": damaged,
        "went_back": went_back,
        "killed_while_a_file_was_half_written": half_written,
        "half_files_left_by_the_next_start": leftovers,
        "checkpoints_written": last_number,
        "megabytes": megabytes,
    }


# Runs


def fedtaste(*args: object) -> Callable[[], None]:
    """A function that runs this command in the current process, with a fast clock and without a report."""

    def work() -> None:
        clock = {name: lambda name=name: FAST * getattr(time, name)() for name in ("perf_counter", "process_time")}
        experiment.time = SimpleNamespace(**clock)  # a checkpoint is due every second
        report.write_report = lambda *_, **__: None  # it takes half of the time and is not tested here
        sys.argv = ["fedtaste", *map(str, args)]
        cli.main()

    return work


def load_kernels(run: tuple[str, ...], folder: Path) -> None:
    """Run once in this process: it takes a second to load the kernels, which forked processes then have."""
    numba.config.THREADING_LAYER = "workqueue"  # kernels of the default layer do not survive a fork
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            fedtaste("run", *run, "--out", folder)()
    except SystemExit as stop:
        assert stop.code == 0, stop.code


def comparable_result(path: Path) -> dict[str, Any]:
    """The parts of a run that must be equal: its result without times, and its weights."""
    result = json.loads((path / "result.json").read_text())
    for name in ("seconds", "peak_rss_mb", "run"):
        result.pop(name)
    return result | {name: (path / name).read_bytes() for name in WEIGHTS}


def phase_of_kill(path: Path) -> str:
    """The phase in which the run was killed."""
    if not (path / "settings.json").exists():
        return "before it was a run"
    if not (path / "state.safetensors").exists():
        return "before the first checkpoint"
    if (path / "result.json").exists():
        return "after the result"
    params, about = load_params(path / "state.safetensors")
    phase = about["progress"]["phase"].split("-")[0]
    return f"in {phase}" if params else f"at the start of {phase}"


def searched(path: Path) -> bool:
    """Whether the last checkpoint is of a phase after the search."""
    try:
        return (path / "state.safetensors").exists() and "search" not in phase_of_kill(path)
    except RunError:  # the file was replaced while it was opened
        return False


def kill_runs(times: int, seed: int, folder: Path, run: tuple[str, ...] = RUN) -> dict[str, Any]:
    """Kill `fedtaste run` and `fedtaste resume`, and compare every result with that of an uninterrupted run."""
    draw, reference = random.Random(seed), folder / "whole"
    load_kernels(run, folder / "first")
    start_time = time.perf_counter()
    assert wait_or_kill(fork(fedtaste("run", *run, "--out", reference))) == 0
    run_seconds = time.perf_counter() - start_time  # a run that ended before it was killed is started again
    expected, different, failed = comparable_result(reference), [], []
    places: dict[str, int] = {}
    kills = kills_of_resumed = 0
    while kills < times:
        path = folder / f"{kills}"
        early = draw.random() < 0.1  # kill at any moment, also before the folder exists; else during training
        # In turn early in the search, after it, and anywhere: how long each takes varies with the machine's load.
        started, longest = (
            ((path / "state.safetensors").exists, 0.02),
            (lambda path=path: searched(path), 0.3),
            ((path / "settings.json").exists, 1.0),
        )[kills % 3]
        moment = draw.random() * longest * run_seconds
        if wait_or_kill(fork(fedtaste("run", *run, "--out", path)), moment, None if early else started) == 0:
            shutil.rmtree(path)  # it ended before it was killed
            continue
        kills += 1
        places[phase_of_kill(path)] = places.get(phase_of_kill(path), 0) + 1
        while draw.random() < 0.3 and kills < times and (path / "settings.json").exists():
            if wait_or_kill(fork(fedtaste("resume", path, "--json")), draw.uniform(0.05, 0.8) * run_seconds) == 0:
                break
            kills, kills_of_resumed = kills + 1, kills_of_resumed + 1
        args = ("resume", path, "--json") if (path / "settings.json").exists() else ("run", *run, "--out", path)
        code = wait_or_kill(fork(fedtaste(*args)))
        if code:
            failed.append({"kill": kills, "exit": code})
            continue
        result = comparable_result(path)
        names = {file.name for file in path.iterdir()} ^ {file.name for file in reference.iterdir()}
        if result != expected or names:
            different_parts = sorted(names) + [
                name for name in expected | result if expected.get(name) != result.get(name)
            ]
            different.append({"kill": kills, "what": different_parts})
        shutil.rmtree(path)
    return {
        "kills": kills,
        "of_them_in_a_resumed_run": kills_of_resumed,
        "not_resumed": failed,
        "not_the_same_bytes": different,
        "where": places,
        "seconds_of_a_run": round(run_seconds, 2),
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    how, times, seed, where = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    if how == "runs":
        report_of_kills = kill_runs(times, seed, where, RUNS[sys.argv[5] if len(sys.argv) > 5 else "fedals"])
    else:
        report_of_kills = kill_while_saving(times, seed, where)
    print(json.dumps(report_of_kills))
