"""What a person sees: progress and messages on standard error, tables and JSON on standard output."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

out, err = Console(highlight=False), Console(stderr=True, highlight=False)


class Bars:
    """Progress on standard error; a phase that is over in a blink leaves nothing behind."""

    def __init__(self) -> None:
        columns = (
            TextColumn("{task.description:28}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[metric]}"),
            TimeElapsedColumn(),
        )
        self.progress = Progress(*columns, console=err, transient=True, refresh_per_second=4)
        self.label = ""
        self.task: TaskID | None = None

    def __enter__(self) -> Bars:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def phase(self, name: str, rounds: int, done: int) -> None:
        names = {"search": "choosing the round", "final": "training"}
        if self.task is not None:
            self.progress.remove_task(self.task)
        self.task = self.progress.add_task(
            f"{self.label}{names.get(name, name)}", total=rounds, completed=done, metric=""
        )

    def round(self, number: int, metrics: dict[str, float] | None) -> None:
        assert self.task is not None
        self.progress.update(self.task, completed=number)
        if metrics:
            name, value = next(iter(metrics.items()))
            self.progress.update(self.task, metric=f"{name} {value:.3f}")


def say(text: str) -> None:
    err.print(text, style="dim", markup=False, soft_wrap=True)


def cache() -> Path | None:
    return Path(os.environ["TACIT_CACHE"]) if os.environ.get("TACIT_CACHE") else None


def ledgers() -> Path:
    """The folder of privacy ledgers: TACIT_LEDGERS, or `privacy` in the cache folder."""
    from .data.archives import default_cache

    return Path(os.environ.get("TACIT_LEDGERS") or (cache() or default_cache()) / "privacy")


def emit(value: Any) -> None:
    sys.stdout.write(json.dumps(value, allow_nan=False) + "\n")
    sys.stdout.flush()


def show(results: list[dict[str, Any]], report: Path, weighed: Any = None) -> None:
    from .report import warnings
    from .tables import text_table

    out.print(text_table(results, weighed))
    if weighed:
        out.print(weighed.advice, style="bold", markup=False)
    for note in dict.fromkeys(note for result in results for note in result["notes"]):
        out.print(note, style="dim", markup=False)
    for warning in warnings(results):
        out.print(warning, style="bold red", markup=False)
    for result in results:
        if len(results) == 1 or "stopped after" in result["stopped"]["reason"]:
            out.print(f"{result['method']}: {result['stopped']['reason']}", style="dim", markup=False)
    out.print(f"Report: {report}", markup=False, soft_wrap=True)
