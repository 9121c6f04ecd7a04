"""Bars: the progress of an experiment on the terminal, for the command line and for Recommender."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import ExitStack

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.segment import Segment

from fedtaste.steps import listening
from fedtaste.text import CONTROL, printable

PATIENCE = 1.0  # seconds after which a step gets a bar: most are over by then
PAUSE = 10.0  # seconds between two lines about a step, where standard error is no terminal


class SafeConsole(Console):
    """A console on which text of data cannot send control codes: they are removed from everything that is printed."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control or not CONTROL.search(segment.text.replace("\n", "")):
                yield segment
            else:
                yield Segment(printable(segment.text), segment.style)


err = SafeConsole(stderr=True, highlight=False)
PHASES = {"search": "choosing the round", "final": "training"}


class Bars:
    """Progress bars on standard error, which disappear at the end. A ProgressListener of experiments.

    Long steps outside the rounds (loading, splitting, evaluating) have a bar of their own. Where standard error is not
    a terminal, a line is written about them every ten seconds.
    """

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
        self.step_task: TaskID | None = None
        self.step_began = self.step_told = 0.0
        self.listening = ExitStack()

    def __enter__(self) -> Bars:
        if err.is_interactive:  # elsewhere rich would write an empty line at the end
            self.progress.start()
        self.listening.enter_context(listening(self.step))
        return self

    def __exit__(self, *_: object) -> None:
        self.listening.close()
        if err.is_interactive:
            self.progress.stop()

    def step(self, name: str, done: int, total: int) -> None:
        """Show how far a step is, once it has taken a while; remove its bar when it is over."""
        now = time.monotonic()
        if done == 0:
            self.step_began, self.step_told = now, now
        if not err.is_interactive:
            if 0 < done < total and now - self.step_told >= PAUSE:
                self.step_told = now
                err.print(f"{name}: {100 * done // total} %", style="dim", markup=False)
            return
        if self.step_task is not None and done in (0, total):
            self.progress.remove_task(self.step_task)
            self.step_task = None
        elif self.step_task is not None:
            self.progress.update(self.step_task, completed=done)
        elif 0 < done < total and now - self.step_began >= PATIENCE:
            self.step_task = self.progress.add_task(name, total=total, completed=done, metric="")

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
