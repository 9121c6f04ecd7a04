"""Terminal output (progress bars, messages, JSON), and the folders of FEDTASTE_CACHE and FEDTASTE_LEDGERS."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from fedtaste.data.archives import default_cache

out, err = Console(highlight=False), Console(stderr=True, highlight=False)
PHASES = {"search": "choosing the round", "final": "training"}


class Bars:
    """Progress bars on standard error, which disappear at the end. A ProgressListener of experiments."""

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
        """Replace the bar by that of a new phase."""
        if self.task is not None:
            self.progress.remove_task(self.task)
        text = f"{self.label}{PHASES.get(name, name)}"
        self.task = self.progress.add_task(text, total=rounds, completed=done, metric="")

    def round(self, number: int, metrics: dict[str, float] | None) -> None:
        """Move the bar, and show the first metric where there are any."""
        assert self.task is not None
        self.progress.update(self.task, completed=number)
        if metrics:
            name, value = next(iter(metrics.items()))
            self.progress.update(self.task, metric=f"{name} {value:.3f}")


def say(text: str) -> None:
    """Print a message on standard error."""
    err.print(text, style="dim", markup=False, soft_wrap=True)


def put(text: str, style: str | None = None) -> None:
    """Print one line on standard output; text from outside is not read as markup."""
    out.print(text, style=style, markup=False, soft_wrap=True)


def emit(value: object) -> None:
    """Print a value as one line of JSON on standard output."""
    sys.stdout.write(json.dumps(value, allow_nan=False) + "\n")
    sys.stdout.flush()


def cache() -> Path | None:
    """The folder of fetched data that FEDTASTE_CACHE names, if it does."""
    return Path(os.environ["FEDTASTE_CACHE"]) if os.environ.get("FEDTASTE_CACHE") else None


def ledger_folder() -> Path:
    """The folder of privacy ledgers: FEDTASTE_LEDGERS, or `privacy` in the cache folder."""
    return Path(os.environ.get("FEDTASTE_LEDGERS") or (cache() or default_cache()) / "privacy")
