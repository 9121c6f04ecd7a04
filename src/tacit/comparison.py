"""Several runs on the same data under the same protocol: run, weighed, and put into one report.

A few runs are made one after the other in this process. Many are made side by side, one process for each core: every
run has a folder that holds all it needs, so a process is told to go on with a run that has not begun.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .errors import DivergedError, RunError
from .heterogeneity import heterogeneity
from .report import write_report
from .runs import RunFolder
from .settings import plan
from .tasks import Task
from .tradeoff import Tradeoff, weigh

WORKER = "TACIT_WORKER"  # set in the environment of a process that makes one run of a comparison
FEW = 6  # runs that are not worth the start of further processes
Say = Callable[[str], None]
Run = Callable[[str, Any, Path], dict[str, Any]]


def one_by_one(wanted: dict[str, Any], folders: dict[str, Path], run: Run, say: Say) -> dict[str, str]:
    """Why runs are left out, by name: those whose numbers are lost. The others are not lost with them."""
    lost: dict[str, str] = {}
    for label, settings in wanted.items():
        try:
            run(label, settings, folders[label])
        except DivergedError as error:
            lost[label] = str(error)
            say(f"{label} is left out: {error}")
            if len(lost) == len(wanted):
                raise
    return lost


def side_by_side(folders: dict[str, Path], jobs: int, done: Callable[[int], None], say: Say) -> dict[str, str]:
    """Make the runs that were prepared in these folders, `jobs` at a time. Why some are left out, by name."""
    lost: dict[str, str] = {}
    waiting = list(folders)
    running: dict[str, tuple[subprocess.Popen[bytes], str]] = {}
    with tempfile.TemporaryDirectory() as words:
        try:
            while waiting or running:
                while waiting and len(running) < jobs:
                    label = waiting.pop(0)
                    with open(Path(words) / str(len(waiting)), "w+") as told:
                        command = [sys.executable, "-m", "tacit.cli", "resume", str(folders[label]), "--json"]
                        process = subprocess.Popen(
                            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=told,
                            env=os.environ | {WORKER: "1"},
                        )  # fmt: skip
                        running[label] = process, told.name
                time.sleep(0.3)
                for label in [name for name, (process, _) in running.items() if process.poll() is not None]:
                    process, told_in = running.pop(label)
                    _ended(process)
                    if process.returncode:
                        lost[label] = _reason(told_in)
                        say(f"{label} is left out: {lost[label]}")
                    done(len(folders) - len(waiting) - len(running))
        except KeyboardInterrupt:
            begun = ", ".join(str(folders[label]) for label in [*running, *waiting])
            raise RunError(f"Stopped. Nothing is lost: go on with `tacit resume` on each of {begun}.") from None
        finally:
            for process, _ in running.values():
                process.send_signal(signal.SIGINT)
            for process, _ in running.values():
                _ended(process)
    if not any(RunFolder(folder).finished for folder in folders.values()):
        raise RunError("None of the runs came to an end; the reasons are above.")
    return lost


def end_with_parent() -> None:
    """In a process that was started for one run: stop when the comparison is gone, however it went. Its end of the
    pipe is closed then."""

    def wait() -> None:
        while os.read(0, 64):  # not through sys.stdin, whose lock would be held when this process ends
            pass
        os.kill(os.getpid(), signal.SIGINT)

    if os.environ.get(WORKER):
        threading.Thread(target=wait, daemon=True).start()


def _ended(process: subprocess.Popen[bytes]) -> None:
    process.wait()
    if process.stdin:
        process.stdin.close()


def _reason(path: str) -> str:
    lines = Path(path).read_text(errors="replace").strip().splitlines()
    return lines[-1].removeprefix("error: ") if lines else "it ended without a word"


def jobs_for(runs: int, asked: int | None) -> int:
    """How many at a time: as asked, or one for few runs and one for each core for many."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return asked if asked is not None else 1 if runs < FEW else min(cores, runs)


def longest_first(wanted: dict[str, Any], task: Task) -> list[str]:
    """Names of runs, those that are likely long before the others: the last one should not keep one core alone."""

    def rounds(label: str) -> int:
        made = plan(wanted[label], task.facts)
        return made.rounds if made.method.kernel is None else 0

    return sorted(wanted, key=rounds, reverse=True)


def conclude(
    results: list[dict[str, Any]], task: Task, path: Path, seed: int, shape: dict[str, Any] | None,
    lost: dict[str, str], axes: tuple[str, ...] = (),
) -> tuple[Path, Tradeoff | None]:  # fmt: skip
    """(the report's path, what the results weigh)."""
    measured = heterogeneity(task, seed)
    if any(result.get("privacy") for result in results):  # what is measured without noise is for the owner alone
        path.chmod(0o700)
    weighed, folders = weigh(results, measured, axes), [Path(result["run"]) for result in results]
    report = write_report(results, path, data=shape, runs=folders, weighed=weighed)
    names = [folder.name for folder in folders]
    kept = {"runs": names, "heterogeneity": measured, "left_out": lost}
    RunFolder(path).write("compare.json", kept | ({"axes": axes} if axes else {}))
    return report, weighed
