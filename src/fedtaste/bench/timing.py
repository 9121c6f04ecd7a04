"""Measure CPU time: of any function, and of one training round; on one thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import numba
import torch

from fedtaste.core import Method, Model
from fedtaste.engine.run import State, begin, run
from fedtaste.federation import Federation

T = TypeVar("T")


def fastest(repeats: int, prepare: Callable[[], T], work: Callable[[T], object]) -> float:
    """CPU seconds of the fastest of several calls of `work`. `prepare` makes its argument and is not measured."""
    seconds = []
    for _ in range(repeats):
        argument = prepare()
        before = time.process_time()
        work(argument)
        seconds.append(time.process_time() - before)
    return min(seconds)


def one_round(method: Method, model: Model, federation: Federation, backend: str, repeats: int) -> float:
    """CPU seconds of one whole round: examples, clients, validation, sum, server."""

    def train(state: State) -> None:
        next(run(method, model, federation, rounds=1, backend=backend, state=state))

    return fastest(repeats, lambda: begin(method, model, federation), train)


@contextmanager
def single_thread() -> Iterator[None]:
    """Run torch and numba on one thread."""
    threads = torch.get_num_threads(), numba.get_num_threads()
    torch.set_num_threads(1)
    numba.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads[0])
        numba.set_num_threads(threads[1])
