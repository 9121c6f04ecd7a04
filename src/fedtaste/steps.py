"""Report how far a long step has come, such as loading, splitting or evaluating, to whoever listens in this process.

A step is reported from deep inside the data and evaluation code; a listener in every signature on the way would be
noise. Nothing is printed and nothing depends on it where nobody listens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

StepListener = Callable[[str, int, int], None]  # the name of the step, how much is done, of how much
T = TypeVar("T")
_listener: ContextVar[StepListener | None] = ContextVar("step_listener", default=None)


@contextmanager
def listening(listener: StepListener) -> Iterator[None]:
    """Call `listener` with every report that is made inside."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def report(step: str, done: int, total: int) -> None:
    """Tell the listener, where there is one, that `done` of `total` parts of a step are done."""
    if (listener := _listener.get()) is not None:
        listener(step, done, total)


def blocks(step: str, parts: Sequence[T]) -> Iterator[T]:
    """The parts one by one, with a report before the first and after each.

    >>> seen = []
    >>> with listening(lambda *report: seen.append(report)):
    ...     list(blocks("adding", [10, 20]))
    [10, 20]
    >>> seen
    [('adding', 0, 2), ('adding', 1, 2), ('adding', 2, 2)]
    """
    report(step, 0, len(parts))
    for number, part in enumerate(parts, 1):
        yield part
        report(step, number, len(parts))
