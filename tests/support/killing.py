"""Kill processes with kill -9 at random moments and check what is left on the disk, for tests and benchmarks/faults.py.

`python killing.py saving|runs HOW_OFTEN SEED FOLDER` prints a report as JSON:

    saving   a process only writes checkpoints; after every kill the file must be one of those written
    runs     `fedtaste run` is killed, `fedtaste resume` goes on (and may be killed too); the result must be the same bytes

Processes are forked from one that has imported everything, so that hundreds of them take minutes, not hours.
"""

from __future__ import annotations

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

import numpy as np
import torch

from fedtaste.cli import main as cli
from fedtaste.engine.checkpoint import load_params
from fedtaste.engine.run import State
from fedtaste.engine.store import Store
from fedtaste.experiment import train as experiment
from fedtaste.experiment.folder import RunFolder
from fedtaste.experiment.progress import Progress
from fedtaste.files.lock import lock_folder
from fedtaste.report import html as report

RUN = (
    "--data", "synthetic:60x50x900", "--method", "fedals", "--rounds", "40", "--patience", "0", "--threads", "1",
    "--new-people", "folds", "--set", "k=8", "--set", "spread=0.1", "--json",
)  # fmt: skip
FAST = 50  # how much faster than the clock the killed runs think the time passes
WEIGHTS = ("model.safetensors", "final.safetensors")


def forked(work: Callable[[], None]) -> int:
    """Fork a process that does this and ends, with its output discarded; its id."""
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


def ended(process: int, after: float | None = None, begun: Path | None = None) -> int:
    """The exit code of a process (-9: killed). It is killed after `after` seconds, counted from the moment when the file
    `begun` exists."""
    while begun is not None and not begun.exists():
        if os.waitpid(process, os.WNOHANG)[0]:
            return 0
        time.sleep(0.002)
    until = None if after is None else time.monotonic() + after
    while until is not None and time.monotonic() < until:
        if os.waitpid(process, os.WNOHANG)[0]:
            return 0
        time.sleep(0.002)
    if until is not None:
        os.kill(process, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


# Checkpoints


def marked(number: int, rows: int) -> tuple[State, Progress]:
    """A state of a few megabytes in which every number is this one."""
    private = Store.fresh({"user": torch.full((8,), float(number))}, 200, [])  # no pages: their kernels outlive no fork
    return State({"item": torch.full((rows, 50), float(number))}, {}, private, number), Progress(best_round=number)


def kill_while_saving(times: int, seed: int, folder: Path, rows: int = 10_000) -> dict[str, Any]:
    draw, run = random.Random(seed), RunFolder(folder)
    fresh = lambda: marked(0, rows)[0]
    run.save(*marked(1, rows))
    began = time.perf_counter()
    run.save(*marked(1, rows))
    took = time.perf_counter() - began
    last, torn, halves, left, went_back = 1, [], 0, 0, 0

    def work() -> None:
        number = last
        while True:
            number += 1
            run.save(*marked(number, rows))

    for _ in range(times):
        ended(forked(work), draw.uniform(0.0, 4 * took))
        halves += any(folder.glob(".*.part"))
        try:
            state, progress = run.restore(fresh)
            assert state is not None and progress is not None
            number, own = state.round, state.private.gather(np.arange(200))
            assert bool((state.shared["item"] == number).all() and (own["user"] == number).all())
            assert progress.best_round == number
        except Exception as error:  # noqa: BLE001 (told, and counted)
            torn.append(f"{type(error).__name__}: {error}")
            continue
        went_back += number < last
        last = max(last, number)
        with lock_folder(folder):  # as the next one does who goes on with it
            left += any(folder.glob(".*.part"))
    megabytes = round((folder / "state.safetensors").stat().st_size / 1e6, 2)
    return {"kills": times, "torn": torn, "went_back": went_back, "killed_while_a_file_was_half_written": halves,
            "half_files_left_by_the_next_start": left, "checkpoints_written": last, "megabytes": megabytes}  # fmt: skip


# Runs


def fedtaste(*words: object) -> Callable[[], None]:
    def work() -> None:
        clock = {name: lambda name=name: FAST * getattr(time, name)() for name in ("perf_counter", "process_time")}
        experiment.time = SimpleNamespace(**clock)  # a checkpoint is due every second
        report.write_report = lambda *_, **__: None  # half of the time, and nothing to lose
        sys.argv = ["fedtaste", *map(str, words)]
        cli.main()

    return work


def outcome(path: Path) -> dict[str, Any]:
    """Everything of a run that must be equal: its result without times, and its weights."""
    told = json.loads((path / "result.json").read_text())
    for name in ("seconds", "peak_rss_mb", "run"):
        told.pop(name)
    return told | {name: (path / name).read_bytes() for name in WEIGHTS}


def place(path: Path) -> str:
    """The part of the run in which it was killed."""
    if not (path / "settings.json").exists():
        return "before it was a run"
    if not (path / "state.safetensors").exists():
        return "before the first checkpoint"
    if (path / "result.json").exists():
        return "after the result"
    params, about = load_params(path / "state.safetensors")
    phase = about["progress"]["phase"].split("-")[0]
    return f"in {phase}" if params else f"at the start of {phase}"


def kill_runs(times: int, seed: int, folder: Path, run: tuple[str, ...] = RUN) -> dict[str, Any]:
    draw, whole = random.Random(seed), folder / "whole"
    assert ended(forked(fedtaste("run", *run, "--out", folder / "first"))) == 0  # kernels are compiled and kept
    began = time.perf_counter()
    assert ended(forked(fedtaste("run", *run, "--out", whole))) == 0
    took = time.perf_counter() - began  # what is over when it should be killed is begun again
    expected, different, failed = outcome(whole), [], []
    places: dict[str, int] = {}
    kills = again = 0
    while kills < times:
        path = folder / f"{kills}"
        early = draw.random() < 0.1  # at any moment, also before there is a folder; the others within the run itself
        begun = None if early else path / "settings.json"
        if ended(forked(fedtaste("run", *run, "--out", path)), draw.uniform(0, took), begun) == 0:
            shutil.rmtree(path)  # it was over
            continue
        kills += 1
        places[place(path)] = places.get(place(path), 0) + 1
        while draw.random() < 0.3 and kills < times and (path / "settings.json").exists():
            if ended(forked(fedtaste("resume", path, "--json")), draw.uniform(0.05, 0.8) * took) == 0:
                break
            kills, again = kills + 1, again + 1
        words = ("resume", path, "--json") if (path / "settings.json").exists() else ("run", *run, "--out", path)
        code = ended(forked(fedtaste(*words)))
        if code:
            failed.append({"kill": kills, "exit": code})
            continue
        got, names = outcome(path), {file.name for file in path.iterdir()} ^ {file.name for file in whole.iterdir()}
        if got != expected or names:
            unlike = sorted(names) + [name for name in expected | got if expected.get(name) != got.get(name)]
            different.append({"kill": kills, "what": unlike})
        shutil.rmtree(path)
    return {"kills": kills, "of_them_in_a_resumed_run": again, "not_resumed": failed, "not_the_same_bytes": different,
            "where": places, "seconds_of_a_run": round(took, 2)}  # fmt: skip


if __name__ == "__main__":
    torch.set_num_threads(1)
    how, times, seed, where = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    print(json.dumps({"saving": kill_while_saving, "runs": kill_runs}[how](times, seed, where)))
