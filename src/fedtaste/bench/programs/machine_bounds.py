"""What one core of this machine can do: multiplications of large matrices, and copies of memory."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from fedtaste.bench.programs.runner import Measurement, Task

SIZE = 1024  # rows and columns of the matrices
FLOATS = 2**26  # 256 MiB, far more than a cache


def measure(task: Task) -> Measurement:
    """The better of numpy's and torch's matrix product, and of a copy (bytes read and bytes written)."""
    torch.set_num_threads(1)
    square = np.random.default_rng(0).random((SIZE, SIZE), np.float32)
    out, tensor = np.empty_like(square), torch.from_numpy(square)
    products = (lambda _: np.matmul(square, square, out=out), lambda _: tensor @ tensor)
    product = min(task.fastest(lambda: None, work) for work in products)
    source, target = np.ones(FLOATS, np.float32), np.zeros(FLOATS, np.float32)
    copy = task.fastest(lambda: None, lambda _: np.copyto(target, source))
    figures = {"gflops": 2 * SIZE**3 / product / 1e9, "gigabytes": 2 * source.nbytes / copy / 1e9}
    return task.measurement(version("numpy"), {"product": product, "copy": copy}, figures=figures)
