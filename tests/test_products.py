"""Compiled products of matrices: exact answers on whole numbers, for vectors of sixteen and of eight numbers."""

from __future__ import annotations

import os
import subprocess
import sys

import llvmlite.binding
import numpy as np
import pytest
import torch

from fedtaste.kernels.products import CHUNK, COLUMNS, ROWS, product
from support.states import assert_close

SIZES = (  # rows, steps, columns: parts of blocks, whole blocks, and sums of more than one chunk
    (1, 1, 1), (7, 5, COLUMNS + 1), (ROWS, 0, 40), (2 * ROWS, CHUNK + 3, 2 * COLUMNS), (15, 2 * CHUNK, 70), (8, 3, 31),
)  # fmt: skip
TRAINING = """
import sys
import numpy as np
import fedtaste as ft
data = ft.load("synthetic:40x300x3000")
model = ft.factorization(300, k=64)
method = ft.fedseq(model, length=40, negatives=200)
*_, last = ft.run(method, model, ft.of_histories(data.histories(), 300), rounds=4, backend="kernel")
np.savez(sys.argv[1], **{name: value.numpy() for name, value in last.state.shared.items()})
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


def test_kernels_compute_the_same_when_compiled_from_the_cache_and_without_wide_vectors(tmp_path):
    narrow = llvmlite.binding.get_host_cpu_features().flatten().replace("+avx512", "-avx512")
    new = {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    ends = []
    for name, environment in (("compiled", new), ("cached", new), ("narrow", new | {"NUMBA_CPU_FEATURES": narrow})):
        path = tmp_path / f"{name}.npz"
        subprocess.run([sys.executable, "-c", TRAINING, path], env=os.environ | environment, check=True)
        with np.load(path) as file:
            ends.append({key: torch.from_numpy(file[key]) for key in file})
    compiled, cached, without = ends
    assert all(torch.equal(compiled[name], cached[name]) for name in compiled)  # so that a run can be resumed
    assert_close(compiled, without)
