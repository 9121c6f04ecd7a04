"""Comparisons: plan several runs on the same data, and train them one after the other or in parallel processes.

The plan is stored in comparison.json before the first run, so that an interrupted comparison can be finished. Few runs
are trained in this process. Many are trained in parallel, one process per core: a run folder holds all that its run
needs, so a worker process is started as `fedtaste resume FOLDER` on a run that has not begun. It then waits for the
next one, because starting a process (the import of torch, the data, compiled code) takes as long as many a run.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedtaste import __version__
from fedtaste.errors import DivergedError, RunError, SettingError
from fedtaste.experiment.comparison_record import ComparisonRecord, RecordedRun, recorded_settings, resume_command
from fedtaste.experiment.duplicate_runs import copy_run, find_duplicates
from fedtaste.experiment.folder import Data, RunFolder, fingerprint
from fedtaste.experiment.progress import ProgressListener
from fedtaste.experiment.seeds import FinishedRun
from fedtaste.experiment.settings import MAX_SEED, Settings
from fedtaste.experiment.train import Prepared, make_task, prepare
from fedtaste.files.lock import lock_folder
from fedtaste.tasks.base import Task

FEW_RUNS = 6  # fewer runs than these are not worth starting processes
POLL_SECONDS = 0.3
WORKER_SECONDS = 20.0  # that processes of an interrupted comparison have to end
Log = Callable[[str], None]
TrainRun = Callable[[str, RunFolder, Prepared], object]


@dataclass(frozen=True)
class Variant:
    """One method of a comparison, with settings of its own (a value of a sweep)."""

    method: str
    set: dict[str, str]


@dataclass(frozen=True)
class RequestedRun:
    """A run that a comparison should have: its settings, and the label that it shares with other seeds."""

    settings: Settings
    configuration: str


@dataclass(frozen=True, eq=False)
class ComparisonPlan:
    """The runs of a comparison by label, and the folder that theirs are in."""

    path: Path
    record: ComparisonRecord
    tasks: dict[int, Task]  # by seed: the same for all runs of a seed
    data: dict[int, Data]  # by seed: the same for all of them, unless they are generated
    runs: dict[str, Prepared]  # those without a result

    @property
    def trained(self) -> dict[str, Prepared]:
        """The runs that are still to be trained."""
        return {label: prepared for label, prepared in self.runs.items() if label not in self.record.duplicates}

    def folder(self, label: str) -> RunFolder:
        """The run folder of a label."""
        return RunFolder(self.path / self.record.runs[label].folder)


def finished_runs(path: Path, record: ComparisonRecord) -> list[FinishedRun]:
    """The runs of a comparison that have finished, in the order of the plan; RunError where a folder holds another."""
    folders = [(run, record.require_own_folder(path, label)) for label, run in record.runs.items()]
    return [
        FinishedRun(run.configuration, folder.path, folder.result(), run.data_hash)
        for run, folder in folders
        if folder.finished
    ]


def label_runs(
    settings: Settings, variants: Sequence[Variant], budgets: Sequence[float | None], seeds: int = 1
) -> dict[str, RequestedRun]:
    """The settings of every variant with every privacy budget and seed, by a label such as `fedals-k=8-epsilon=3`."""
    if settings.seed + seeds - 1 > MAX_SEED:
        raise SettingError(f"--seed must be at most {MAX_SEED - seeds + 1} for {seeds} seeds, got {settings.seed}.")
    runs: dict[str, RequestedRun] = {}
    for variant in variants:
        if both := next((name for name in variant.set if name in settings.set), None):
            raise SettingError(f"--set {both} and --sweep {both} were both given. Leave one of them out.")
        for budget in budgets:
            marks = [f"{name}={value}" for name, value in variant.set.items()]
            if len(budgets) > 1:
                marks.append(f"epsilon={'none' if budget is None else f'{budget:g}'}")
            noisy = budget is not None or "noise" in settings.wire or "local" in settings.wire
            values = {"method": variant.method, "set": settings.set | variant.set, "epsilon": budget}
            values["delta"] = settings.delta if noisy else None
            configuration = "-".join([variant.method, *marks])
            for seed in range(settings.seed, settings.seed + seeds):
                label = configuration if seeds == 1 else f"{configuration}-seed={seed}"
                if folder_name(label) in map(folder_name, runs):
                    raise SettingError(f"Two runs would have the name {label}. Give values that differ more.")
                runs[label] = RequestedRun(settings.model_copy(update=values | {"seed": seed}), configuration)
    return runs


def folder_name(label: str) -> str:
    """The name of the folder of a run."""
    return label.replace("/", "-").replace(":", "-")


def plan_comparison(
    requested: Mapping[str, RequestedRun], data: Mapping[int, Data], path: Path, *, all_methods: bool, log: Log
) -> ComparisonPlan:
    """Prepare every run, and raise SettingError for every mistake that can be detected before training. `data` is by
    seed.

    With `all_methods` the runs that do not fit the data are left out, and those that equal an earlier run are copied.
    """
    tasks = make_tasks((run.settings for run in requested.values()), data)
    runs: dict[str, Prepared] = {}
    refused: dict[str, str] = {}
    for label, run in requested.items():
        seed = run.settings.seed
        try:
            runs[label] = prepare(run.settings, data[seed], task=tasks[seed])
        except SettingError as error:
            if not all_methods:
                raise
            refused[label] = str(error)
            log(f"{label} is left out: {error}")
    if not runs:
        raise SettingError(f"No method fits the data. {next(iter(refused.values()))}")
    hashes = {seed: fingerprint(part) for seed, part in data.items()}
    recorded = {
        label: RecordedRun(
            folder=folder_name(label), configuration=requested[label].configuration,
            settings=recorded_settings(prepared.settings), data_hash=hashes[prepared.settings.seed],
        )
        for label, prepared in runs.items()
    }  # fmt: skip
    duplicates = _duplicates(runs) if all_methods else {}
    record = ComparisonRecord(
        version=__version__, runs=recorded, duplicates=duplicates, refused=refused, axes=(), ledger=None, jobs=None
    )
    return ComparisonPlan(path, record, tasks, dict(data), runs)


def plan_rest(path: Path, record: ComparisonRecord, data: Mapping[int, Data]) -> ComparisonPlan:
    """The plan of what is left of a comparison; its data (by seed) must be those that it began with."""
    requested = {label: record.settings(label) for label in record.runs}
    hashes = {seed: fingerprint(part) for seed, part in data.items()}
    for label, settings in requested.items():
        record.require_same_data(path, label, hashes[settings.seed])
    tasks = make_tasks(requested.values(), data)
    left = {n: s for n, s in requested.items() if not record.require_own_folder(path, n).finished}
    if left:
        record.require_same_version(path, __version__)
    runs = {n: prepare(s, data[s.seed], task=tasks[s.seed]) for n, s in left.items()}
    return ComparisonPlan(path, record, tasks, dict(data), runs)


def make_tasks(requested: Iterable[Settings], data: Mapping[int, Data]) -> dict[int, Task]:
    """One task for every seed."""
    tasks: dict[int, Task] = {}
    for settings in requested:
        if settings.seed not in tasks:
            tasks[settings.seed] = make_task(settings, data[settings.seed])
    return tasks


def _duplicates(runs: Mapping[str, Prepared]) -> dict[str, str]:
    """Runs that equal an earlier one of the same seed."""
    by_seed: dict[int, dict[str, Prepared]] = {}
    for label, prepared in runs.items():
        by_seed.setdefault(prepared.settings.seed, {})[label] = prepared
    return {label: original for part in by_seed.values() for label, original in find_duplicates(part).items()}


def require_finished(plan: ComparisonPlan, failed: Mapping[str, str]) -> None:
    """Raise an error where no run of the comparison has a result."""
    if not any(plan.folder(label).finished for label in plan.record.runs):
        reasons = "; ".join(f"{label}: {why}" for label, why in failed.items())
        raise RunError(f"None of the runs finished. {reasons}")


def wait_for_workers(plan: ComparisonPlan) -> None:
    """Wait until no process of an earlier attempt works on a run: those end shortly after the process they served."""
    for label in plan.trained:
        until = time.monotonic() + WORKER_SECONDS
        while plan.folder(label).path.is_dir():
            try:
                with lock_folder(plan.folder(label).path):
                    break
            except RunError:
                if time.monotonic() > until:
                    raise
                time.sleep(POLL_SECONDS)


def train_in_turn(plan: ComparisonPlan, train: TrainRun, log: Log) -> dict[str, str]:
    """Train one run after the other. Returns why runs have no result, by label: a run that diverges is left out."""
    failed: dict[str, str] = {}
    for label, prepared in plan.trained.items():
        try:
            train(label, plan.folder(label), prepared)
        except DivergedError as error:
            failed[label] = str(error)
            log(f"{label} is left out: {error}")
    return failed


def train_in_parallel(
    plan: ComparisonPlan, command: Sequence[str], jobs: int, watch: ProgressListener, log: Log
) -> dict[str, str]:
    """Train `jobs` runs at a time, each by `command FOLDER`. Returns why runs have no result, by label."""
    failed: dict[str, str] = {}
    waiting, total = longest_first(plan.trained), len(plan.trained)
    watch.phase(f"runs, {jobs} at a time", total, 0)
    with tempfile.TemporaryDirectory() as logs:
        pool = WorkerPool(command, Path(logs), several_runs=True)
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
            raise RunError(f"Stopped. Nothing is lost: go on with `{resume_command(plan.path)}`.") from None
        finally:
            pool.stop()
    return failed


class WorkerPool:
    """Processes that train one run at a time. Their standard input is a pipe: when it closes, they stop. With
    `several_runs` a process that has finished its run writes a line, and trains the next one that it is sent."""

    def __init__(self, command: Sequence[str], logs: Path, *, several_runs: bool = False) -> None:
        self.command, self.logs, self.several_runs = command, logs, several_runs
        self.running: dict[str, tuple[subprocess.Popen[bytes], Path]] = {}
        self.idle: list[tuple[subprocess.Popen[bytes], Path]] = []

    def start(self, label: str, folder: Path, method: str) -> None:
        """Start one run in an idle process or a new one, whose messages go to a file. A method of the user's own is
        named again, since it is imported only then, and gets a process of its own."""
        own = ["--method", method] if ":" in method else []
        if self.idle and not own:
            self.running[label] = process, _ = self.idle.pop()
            assert process.stdin is not None
            process.stdin.write(json.dumps(str(folder)).encode() + b"\n")
            process.stdin.flush()
            return
        log = self.logs / folder.name
        with open(log, "wb") as errors:
            process = subprocess.Popen(
                [*self.command, *own, str(folder)], stdin=subprocess.PIPE, stderr=errors,
                stdout=subprocess.PIPE if self.several_runs else subprocess.DEVNULL,
            )  # fmt: skip
        if process.stdout is not None:
            os.set_blocking(process.stdout.fileno(), False)
        self.running[label] = process, log

    def collect(self) -> list[tuple[str, str]]:
        """Labels of the runs that have ended, each with what went wrong, or an empty text."""
        problems = []
        for label, (process, log) in list(self.running.items()):
            if process.poll() is not None:
                with process:  # closes its standard input
                    lines = log.read_text(errors="replace").strip().splitlines() or ["it ended without a message"]
                problems.append((label, lines[-1].removeprefix("error: ") if process.returncode else ""))
                del self.running[label]
            elif process.stdout is not None and process.stdout.read():
                problems.append((label, ""))
                self.idle.append(self.running.pop(label))
        return problems

    def stop(self) -> None:
        """Interrupt the runs that are not finished, end the processes, and wait for them."""
        for process, _ in self.running.values():
            process.send_signal(signal.SIGINT)
        for process, _ in (*self.running.values(), *self.idle):
            with process:  # closes its pipes afterwards
                if process.stdin is not None:
                    process.stdin.close()
                process.wait()


def requested_runs() -> queue.SimpleQueue[Path | None]:
    """In a worker process: the folders of further runs, which are lines of standard input. When it closes, the command
    that started the process has ended: the process is interrupted, and None ends the queue."""
    folders: queue.SimpleQueue[Path | None] = queue.SimpleQueue()

    def read() -> None:
        rest = b""
        while text := os.read(0, 4096):  # not through sys.stdin, whose lock would be held when this process ends
            *lines, rest = (rest + text).split(b"\n")
            for line in lines:
                folders.put(Path(json.loads(line)))
        folders.put(None)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=read, daemon=True).start()
    return folders


def copy_duplicates(plan: ComparisonPlan) -> None:
    """Copy the folders of finished runs to those of their duplicates."""
    for label, original in plan.record.duplicates.items():
        if plan.folder(original).finished and not plan.folder(label).finished:
            copy_run(plan.folder(original), plan.folder(label), plan.runs[label])


def choose_jobs(runs: int, requested: int | None) -> int:
    """How many runs to train at a time: as requested, or one for few runs and one per core for many."""
    if requested is not None:
        return requested
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return 1 if runs < FEW_RUNS else min(cores, runs)


def longest_first(runs: Mapping[str, Prepared]) -> list[str]:
    """Labels, those of long runs first, so that no long run is left for the end, when other cores are idle."""

    def length(label: str) -> tuple[bool, int]:
        plan = runs[label].plan
        return plan.method.fast.kernel is None, plan.rounds

    return sorted(runs, key=length, reverse=True)
