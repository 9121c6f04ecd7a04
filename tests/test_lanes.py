"""Vectors inside compiled functions: exact answers on small whole numbers."""

from __future__ import annotations

import numpy as np
from numba import njit

from fedtaste.kernels.lanes import LANES, load, signed, spread, store, total, transpose, where_less

TWO = np.float32(2)


@njit
def compute(a, b, out):
    x, y = load(a, 0), load(b, 0)
    place = 0
    for value in (x + y, x - y, x * y, x / y, TWO * x - y * TWO, where_less(x, y, x, y), signed(y, x), spread(TWO)):
        store(out, place, value)
        place += LANES
    sums = spread(np.float32(0))
    for at in range(0, len(a), LANES):
        sums += load(a, at)
    return total(sums)


def test_arithmetic_is_that_of_numpy():
    a = np.array([-4, -2, -0.5, 1, 2, 4, np.nan, 8] * 2, np.float32)
    b = np.array([1, 2, 4, 8, 2, 1, 2, 4] * 2, np.float32)
    out = np.zeros((8, LANES), np.float32)
    compute(a, b, out)
    x, y = a[:LANES], b[:LANES]
    expected = [x + y, x - y, x * y, x / y, 2 * x - 2 * y, np.where(x < y, x, y), np.copysign(y, x), np.full(8, 2)]
    np.testing.assert_array_equal(out, np.array(expected, np.float32))
    assert compute(b, b, out) == b.sum()


@njit
def turn(source, target):
    transpose(source, 3, 11, target, 1, 9)


def test_a_block_is_transposed_between_arrays_of_other_widths():
    source, target = np.arange(100, dtype=np.float32), np.zeros(80, np.float32)
    turn(source, target)
    expected = np.zeros(80, np.float32)
    for i in range(8):
        for j in range(8):
            expected[1 + j * 9 + i] = source[3 + i * 11 + j]
    np.testing.assert_array_equal(target, expected)
