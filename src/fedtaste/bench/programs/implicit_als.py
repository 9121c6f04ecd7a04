"""implicit's ALS, one iteration: exact, and with its default of three conjugate-gradient steps.

It minimises sum_ij c_ij (p_ij - u_i v_j)^2 + regularization (|U|^2 + |V|^2), with c = 1 / alpha0 + 1 for what a person
took and 1 for all else.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib.metadata import version
from typing import TYPE_CHECKING

import numpy as np
from implicit.cpu.als import AlternatingLeastSquares
from scipy.sparse import csr_matrix

if TYPE_CHECKING:
    from fedtaste.bench.programs.runner import Measurement, Task


def fitted(
    task: Task, iterations: int, regularization: float, cg: bool, callback: Callable[..., None] | None = None
) -> AlternatingLeastSquares:
    """A model after some iterations from the item table of the task."""
    people, items = len(task["starts"]) - 1, len(task["item"])
    confidence = np.full(len(task["inputs"]), 1 / task.number("alpha0") + 1, np.float32)
    matrix = csr_matrix((confidence, task["inputs"], task["starts"]), shape=(people, items))
    k = task["item"].shape[1]
    model = AlternatingLeastSquares(
        factors=k, regularization=regularization, use_cg=cg, iterations=iterations, num_threads=1, random_state=0
    )
    model.item_factors = task["item"].copy()
    model.fit(matrix, show_progress=False, callback=callback)
    return model


def measure(task: Task) -> Measurement:
    seconds, tables = {}, {}
    for name, cg in (("exact", False), ("cg", True)):
        times: list[float] = []  # when iterations ended: differences leave out preparations
        record = lambda *_: times.append(time.process_time())  # noqa: B023
        fitted(task, task.repeats + 1, task.number("regularization"), cg, record)
        seconds[name] = float(np.diff(times).min())
        tables[name] = fitted(task, 1, 0.0, cg).item_factors
    return task.measurement(version("implicit"), seconds, tables=tables)
