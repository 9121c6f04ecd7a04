"""Bars: the progress of an experiment on the terminal, for the command line and for Recommender."""

from __future__ import annotations

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

err = Console(stderr=True, highlight=False)
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
            TextColumn("left"),
            TimeRemainingColumn(),
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
