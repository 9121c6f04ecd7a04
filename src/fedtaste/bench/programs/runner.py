"""Run one program of `fedtaste bench --peers` on one core: `python runner.py PROGRAM TASK.npz RESULT.npz`.

A program is a module of this folder with a function `measure(task)`, which returns a `Measurement`. This file imports
nothing but numpy and is started by its path, so that it runs in any environment.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T")
Arrays = dict[str, NDArray[np.generic]]


@dataclass
class Measurement:
    """What a program measured. `table` is the item table after one iteration, for the comparison of results."""

    version: str
    cpu_seconds: dict[str, float]  # of one iteration or round, the fastest, by the name of a line
    tables: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    figures: dict[str, float] = field(default_factory=dict)


class Task:
    """The arrays and numbers that a program computes with."""

    def __init__(self, path: str) -> None:
        with np.load(path) as file:
            self.arrays: Arrays = dict(file)
        self.path, self.repeats = path, int(self.number("repeats"))

    def __getitem__(self, name: str) -> NDArray[np.generic]:
        return self.arrays[name]

    def number(self, name: str) -> float:
        return float(self.arrays[name])

    @functools.cached_property
    def persons(self) -> list[tuple[NDArray[np.generic], NDArray[np.generic]]]:
        """(items, targets) of every person's examples."""
        ends = self["starts"][1:-1]
        return list(zip(np.split(self["inputs"], ends), np.split(self["targets"], ends)))

    @staticmethod
    def measurement(version: str, cpu_seconds: dict[str, float], **parts: dict[str, object]) -> Measurement:
        return Measurement(version, cpu_seconds, **parts)  # type: ignore[arg-type]

    def fastest(self, prepare: Callable[[], T], work: Callable[[T], object]) -> float:
        """CPU seconds of the fastest call of `work`, after one call that is not measured."""
        seconds = []
        for _ in range(self.repeats + 1):
            argument = prepare()
            before = time.process_time()
            work(argument)
            seconds.append(time.process_time() - before)
        return min(seconds[1:])


def main(program: str, task_path: str, result_path: str) -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    measured: Measurement = importlib.import_module(program).measure(Task(task_path))
    np.savez(result_path, **measured.tables)  # type: ignore[arg-type]
    facts = asdict(measured)
    del facts["tables"]
    with open(f"{result_path}.json", "w", encoding="utf-8") as file:
        json.dump(facts, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
