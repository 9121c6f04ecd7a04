"""Compiled products of matrices: exact answers on whole numbers, for vectors of sixteen and of eight numbers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import llvmlite.binding
import numpy as np
import pytest

from fedtaste.kernels.products import CHUNK, COLUMNS, ROWS, product

SIZES = (  # rows, steps, columns: parts of blocks, whole blocks, and sums of more than one chunk
    (1, 1, 1), (7, 5, COLUMNS + 1), (ROWS, 0, 40), (2 * ROWS, CHUNK + 3, 2 * COLUMNS), (15, 2 * CHUNK, 70), (8, 3, 31),
)  # fmt: skip
EIGHT = """
import sys, pytest
from fedtaste.kernels.products import WIDE
assert WIDE == 8
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", *sys.argv[1:]]))
"""


@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_products_of_whole_numbers_are_exact(sizes, turned, add):
    rows, steps, columns = sizes
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, shape).astype(np.float32) for shape in ((rows, steps), (steps, columns)))
    out = np.ones((rows + 1, columns), np.float32)
    product(np.ascontiguousarray(a.T).T if turned else a, b, out[:rows], add)
    np.testing.assert_array_equal(out[:rows], a @ b + add)
    assert (out[rows] == 1).all()  # nothing is written beyond


def test_processors_without_wide_vectors_compute_the_same(tmp_path):
    loss = f"{Path(__file__).parent}/test_fedseq.py::test_loss_equals_the_formula_by_loops[kernel]"
    command = [sys.executable, "-c", EIGHT, f"{__file__}::{test_products_of_whole_numbers_are_exact.__name__}", loss]
    features = llvmlite.binding.get_host_cpu_features().flatten().replace("+avx512", "-avx512")
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path), "NUMBA_CPU_FEATURES": features}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
