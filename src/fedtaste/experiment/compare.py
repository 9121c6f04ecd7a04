"""Comparisons: plan several runs on the same data, and train them one after the other or in parallel processes.

A few runs are trained in this process. Many are trained in parallel, one process per core: a run folder holds all that
its run needs, so a worker process is started as `fedtaste resume FOLDER` on a run that has not begun.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedtaste.errors import DivergedError, RunError, SettingError
from fedtaste.experiment.duplicate_runs import copy_run, find_duplicates
from fedtaste.experiment.folder import Data, RunFolder
from fedtaste.experiment.progress import ProgressListener
from fedtaste.experiment.result import RunResult
from fedtaste.experiment.settings import Settings
from fedtaste.experiment.train import Prepared, make_task, prepare
from fedtaste.tasks.base import Task

FEW_RUNS = 6  # fewer runs than these are not worth starting processes
POLL_SECONDS = 0.3
Log = Callable[[str], None]
TrainRun = Callable[[str, RunFolder, Prepared], object]


@dataclass(frozen=True)
class Variant:
    """One method of a comparison, with settings of its own (a value of a sweep)."""

    method: str
    set: dict[str, str]


@dataclass(frozen=True, eq=False)
class ComparisonPlan:
    """The runs of a comparison by label, and the folder that theirs are in."""

    path: Path
    task: Task  # the same for all runs
    runs: dict[str, Prepared]
    duplicates: dict[str, str]  # runs that equal an earlier one, which is trained once and copied
    refused: dict[str, str]  # methods that do not fit the data, and why

    @property
    def trained(self) -> dict[str, Prepared]:
        """The runs that are trained."""
        return {label: prepared for label, prepared in self.runs.items() if label not in self.duplicates}

    def folder(self, label: str) -> RunFolder:
        """The run folder of a label."""
        return RunFolder(self.path / label.replace("/", "-").replace(":", "-"))

    def results(self) -> list[RunResult]:
        """The results of the runs that have finished, in the order of the plan."""
        folders = (self.folder(label) for label in self.runs)
        return [folder.result() for folder in folders if folder.finished]


def label_runs(settings: Settings, variants: Sequence[Variant], budgets: Sequence[float | None]) -> dict[str, Settings]:
    """The settings of every variant with every privacy budget, by a label such as `fedals-k=8-epsilon=3`."""
    runs = {}
    for variant in variants:
        for budget in budgets:
            marks = [f"{name}={value}" for name, value in variant.set.items()]
            if len(budgets) > 1:
                marks.append(f"epsilon={'none' if budget is None else f'{budget:g}'}")
            noisy = budget is not None or "noise" in settings.wire or "local" in settings.wire
            values = {"method": variant.method, "set": settings.set | variant.set, "epsilon": budget}
            delta = settings.delta if noisy else None
            runs["-".join([variant.method, *marks])] = settings.model_copy(update=values | {"delta": delta})
    return runs


def plan_comparison(
    requested: Mapping[str, Settings], data: Data, path: Path, *, all_methods: bool, log: Log
) -> ComparisonPlan:
    """Prepare every run, and raise SettingError for every mistake that can be detected before training.

    With `all_methods` the runs that do not fit the data are left out, and those that equal an earlier run are copied.
    """
    task = make_task(next(iter(requested.values())), data)
    runs: dict[str, Prepared] = {}
    refused: dict[str, str] = {}
    for label, settings in requested.items():
        try:
            runs[label] = prepare(settings, data, task=task)
        except SettingError as error:
            if not all_methods:
                raise
            refused[label] = str(error)
            log(f"{label} is left out: {error}")
    return ComparisonPlan(path, task, runs, find_duplicates(runs) if all_methods else {}, refused)


def train_in_turn(plan: ComparisonPlan, train: TrainRun, log: Log) -> dict[str, str]:
    """Train one run after the other. Returns why runs have no result, by label: a run that diverges is left out."""
    failed: dict[str, str] = {}
    for label, prepared in plan.trained.items():
        try:
            train(label, plan.folder(label), prepared)
        except DivergedError as error:
            failed[label] = str(error)
            log(f"{label} is left out: {error}")
            if len(failed) == len(plan.trained):
                raise
    return failed


def train_in_parallel(
    plan: ComparisonPlan, command: Sequence[str], jobs: int, watch: ProgressListener, log: Log
) -> dict[str, str]:
    """Train `jobs` runs at a time, each by `command FOLDER`. Returns why runs have no result, by label."""
    failed: dict[str, str] = {}
    waiting, total = longest_first(plan.trained), len(plan.trained)
    watch.phase(f"runs, {jobs} at a time", total, 0)
    with tempfile.TemporaryDirectory() as logs:
        pool = WorkerPool(command, Path(logs))
        try:
            while waiting or pool.running:
                while waiting and len(pool.running) < jobs:
                    label = waiting.pop(0)
                    pool.start(label, plan.folder(label).path, plan.runs[label].settings.method)
                time.sleep(POLL_SECONDS)
                for label, problem in pool.collect():
                    if problem:
                        failed[label] = problem
                        log(f"{label} is left out: {problem}")
                    watch.round(total - len(waiting) - len(pool.running), None)
        except KeyboardInterrupt:
            folders = ", ".join(str(plan.folder(label).path) for label in [*pool.running, *waiting])
            raise RunError(f"Stopped. Nothing is lost: go on with `fedtaste resume` on each of {folders}.") from None
        finally:
            pool.stop()
    if not any(plan.folder(label).finished for label in plan.trained):
        raise RunError("None of the runs finished; the reasons are above.")
    return failed


class WorkerPool:
    """Processes that train one run each. Their standard input is a pipe: when it closes, they stop."""

    def __init__(self, command: Sequence[str], logs: Path) -> None:
        self.command, self.logs = command, logs
        self.running: dict[str, tuple[subprocess.Popen[bytes], Path]] = {}

    def start(self, label: str, folder: Path, method: str) -> None:
        """Start the process of one run; its messages go to a file. A method of the user's own is named again, since it
        is imported only then."""
        log = self.logs / folder.name
        own = ["--method", method] if ":" in method else []
        with open(log, "wb") as errors:
            process = subprocess.Popen(
                [*self.command, *own, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=errors
            )
        self.running[label] = process, log

    def collect(self) -> list[tuple[str, str]]:
        """Labels of the processes that have ended, each with what went wrong, or an empty text."""
        ended = [label for label, (process, _) in self.running.items() if process.poll() is not None]
        problems = []
        for label in ended:
            process, log = self.running.pop(label)
            with process:  # closes its standard input
                lines = log.read_text(errors="replace").strip().splitlines() or ["it ended without a message"]
            problems.append((label, lines[-1].removeprefix("error: ") if process.returncode else ""))
        return problems

    def stop(self) -> None:
        """Interrupt the processes that still run, and wait for them."""
        for process, _ in self.running.values():
            process.send_signal(signal.SIGINT)
        for process, _ in self.running.values():
            with process:  # closes its standard input afterwards
                process.wait()


def stop_with_parent() -> None:
    """In a worker process: interrupt it when the comparison that started it ends, which closes standard input."""

    def wait() -> None:
        while os.read(0, 64):  # not through sys.stdin, whose lock would be held when this process ends
            pass
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=wait, daemon=True).start()


def copy_duplicates(plan: ComparisonPlan) -> None:
    """Copy the folders of finished runs to those of their duplicates."""
    for label, original in plan.duplicates.items():
        if plan.folder(original).finished:
            copy_run(plan.folder(original), plan.folder(label), plan.runs[label])


def choose_jobs(runs: int, requested: int | None) -> int:
    """How many runs to train at a time: as requested, or one for few runs and one per core for many."""
    if requested is not None:
        return requested
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return 1 if runs < FEW_RUNS else min(cores, runs)


def longest_first(runs: Mapping[str, Prepared]) -> list[str]:
    """Labels, those of long runs first, so that no long run is left for the end, when other cores are idle."""

    def rounds(label: str) -> int:
        plan = runs[label].plan
        return plan.rounds if plan.method.fast.kernel is None else 0

    return sorted(runs, key=rounds, reverse=True)
