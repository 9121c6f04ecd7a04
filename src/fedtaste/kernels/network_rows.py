"""Layer norm, GELU, dropout and residual sums of rows, and their gradients, compiled by Numba.

They are the parts of models/sequence.py between its matrix products: one pass over the rows each, where torch takes one
for every operation. A number is kept with the factor `scale` where its random byte is at least `dropped`; an array
`drawn` without rows keeps everything as it is.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from fedtaste.kernels.trail import FAST, power

F = np.float32
EPS = F(1e-5)  # of torch's layer_norm
SLOPE, CUBIC = F(0.7978845608028654), F(0.044715)  # of GELU's tanh


@njit(cache=True, nogil=True, fastmath=FAST, error_model="numpy")
def norm(x, weight, bias, out, stats):
    """Layer norm of rows x [n, d]; stats [n, 2] are the mean and 1 / the standard deviation of each."""
    width = F(x.shape[1])
    for t in range(len(x)):
        row, target, mean, square = x[t], out[t], F(0), F(0)
        for c in range(len(row)):
            mean += row[c]
        mean /= width
        for c in range(len(row)):
            square += (row[c] - mean) * (row[c] - mean)
        rate = F(1) / np.sqrt(square / width + EPS) + square * F(0)  # NaN where the square is infinite
        for c in range(len(row)):
            target[c] = (row[c] - mean) * rate * weight[c] + bias[c]
        stats[t, 0], stats[t, 1] = mean, rate


@njit(cache=True, nogil=True, fastmath=FAST, error_model="numpy")
def norm_back(slope, x, weight, stats, by_x, by_weight, by_bias):
    """Add the gradient of `norm` to by_x [n, d], by_weight [d] and by_bias [d]."""
    width = F(x.shape[1])
    for t in range(len(x)):
        row, given, target, first, second = x[t], slope[t], by_x[t], F(0), F(0)
        mean, rate = stats[t, 0], stats[t, 1]
        for c in range(len(row)):
            each, part = (row[c] - mean) * rate, given[c] * weight[c]
            by_weight[c] += given[c] * each
            by_bias[c] += given[c]
            first += part
            second += part * each
        first /= width
        second /= width
        for c in range(len(row)):
            each = (row[c] - mean) * rate
            target[c] += rate * (given[c] * weight[c] - first - each * second)


@njit(nogil=True, fastmath=FAST, error_model="numpy", inline="always")
def _tanh(x):
    small = power(F(-2) * abs(x))
    size = (F(1) - small) / (F(1) + small)
    return size if x > F(0) else -size


@njit(cache=True, nogil=True, fastmath=FAST, error_model="numpy")
def gelu(x, bias, out):
    """Add `bias` to the rows x [n, d], and fill `out` with their GELU in the form with tanh."""
    for t in range(len(x)):
        row, target = x[t], out[t]
        for c in range(len(row)):
            row[c] += bias[c]
            value = row[c]
            target[c] = F(0.5) * value * (F(1) + _tanh(SLOPE * (value + CUBIC * value * value * value)))


@njit(cache=True, nogil=True, fastmath=FAST, error_model="numpy")
def gelu_back(x, slope, by_bias):
    """Change slopes of GELU(x) into slopes of x [n, d], and add them to by_bias [d]."""
    for t in range(len(x)):
        row, given = x[t], slope[t]
        for c in range(len(row)):
            value = row[c]
            tanh = _tanh(SLOPE * (value + CUBIC * value * value * value))
            inner = SLOPE * (F(1) + F(3) * CUBIC * value * value)
            given[c] *= F(0.5) * (F(1) + tanh + value * (F(1) - tanh * tanh) * inner)
            by_bias[c] += given[c]


@njit(cache=True, nogil=True, fastmath=FAST, error_model="numpy")
def add_kept(x, branch, bias, drawn, column, dropped, scale, out):
    """out = x + what is kept of (branch + bias), for rows [n, d]. `drawn` has the random bytes from this column on."""
    width = x.shape[1]
    for t in range(len(x)):
        row, part, target = x[t], branch[t], out[t]
        if len(drawn):
            chance = drawn[t, column : column + width]
            for c in range(width):
                target[c] = row[c] + (scale * (part[c] + bias[c]) if chance[c] >= dropped else F(0))
        else:
            for c in range(width):
                target[c] = row[c] + part[c] + bias[c]


@njit(cache=True, nogil=True, fastmath=FAST, error_model="numpy")
def keep(x, drawn, column, dropped, scale, out, sums):
    """out = what is kept of x, for rows [n, d]; the sums over the rows are added to sums [d]."""
    width = x.shape[1]
    for t in range(len(x)):
        row, target = x[t], out[t]
        if len(drawn):
            chance = drawn[t, column : column + width]
            for c in range(width):
                target[c] = scale * row[c] if chance[c] >= dropped else F(0)
        else:
            target[:] = row
        for c in range(width):
            sums[c] += target[c]
