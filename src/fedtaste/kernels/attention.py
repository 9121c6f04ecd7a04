"""Causal attention of packed rows, and its gradient, for one person and head after the other. Compiled by Numba.

models/sequence.py has the formula (`_attend`). Rows [n, 3 d] hold the queries, keys and values of all positions of all
people, one person after the other. Products are computed in blocks that stay in registers (kernels/products.py), and
only where the past is: half of the products of full matrices. Rows of a person and head are copied into buffers whose
sizes are multiples of the blocks; what is beyond the person's positions is zero. Functions are inlined for the reason
in kernels/trail.py.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from fedtaste.kernels.lanes import LANES, transpose
from fedtaste.kernels.products import ROWS, WIDE, block_of
from fedtaste.kernels.trail import FAST, NEVER, largest_of, power

F = np.float32
COLUMNS = 16  # of a block of kernels/products.py, which has half as many rows as a vector has numbers
_block = block_of(ROWS, COLUMNS // WIDE)


@njit(inline="always")
def padded(number):
    """The next multiple of COLUMNS."""
    return (number + COLUMNS - 1) // COLUMNS * COLUMNS


def padded_squares(starts: NDArray[np.int64]) -> int:
    """How many numbers `shares` of `attend` has for each head."""
    lengths = starts[1:] - starts[:-1]
    return int(np.sum(((lengths + COLUMNS - 1) // COLUMNS * COLUMNS) ** 2))


@njit(nogil=True, error_model="numpy", inline="always")
def _by_keys(rows, columns, width, size, out):
    """out[t, s] = sum over c of rows[t, c] columns[c, s] for s up to the block of t."""
    for t in range(0, size, ROWS):
        for s in range(0, t + 1, COLUMNS):
            _block(rows, t * width, width, 1, columns, s, size, width, out, t * size + s, size, False)


@njit(nogil=True, error_model="numpy", inline="always")
def _of_past(pairs, rows, width, size, out):
    """out[t, c] = sum over s <= t of pairs[t, s] rows[s, c]."""
    for t in range(0, size, ROWS):
        for c in range(0, width, COLUMNS):
            _block(pairs, t * size, size, 1, rows, c, width, t + ROWS, out, t * width + c, width, False)


@njit(nogil=True, error_model="numpy", inline="always")
def _of_future(pairs, rows, width, size, out):
    """out[s, c] = sum over t >= s of pairs[t, s] rows[t, c]."""
    for s in range(0, size, ROWS):
        for c in range(0, width, COLUMNS):
            at = s * size + s
            _block(pairs, at, 1, size, rows, s * width + c, width, size - s, out, s * width + c, width, False)


@njit(nogil=True, error_model="numpy", inline="always")
def _copy(source, column, each, factor, out, width, size):
    """out [size, width] = factor x the columns from `column` of all rows of `source`; zero elsewhere."""
    for t in range(len(source)):
        row, target = source[t, column : column + each], out[t * width : t * width + each]
        for c in range(each):
            target[c] = factor * row[c]
        out[t * width + each : (t + 1) * width] = F(0)
    out[len(source) * width : size * width] = F(0)


@njit(nogil=True, error_model="numpy", inline="always")
def _turn(rows, width, size, out):
    """out [width, size] from rows [size, width]."""
    for t in range(0, size, LANES):
        for c in range(0, width, LANES):
            transpose(rows, t * width + c, width, out, c * size + t, size)


@njit(nogil=True, error_model="numpy", inline="always")
def _write(source, width, each, factor, out, column):
    """Write factor x source [., width] into the columns from `column` of `out`."""
    for t in range(len(out)):
        row, target = source[t * width : t * width + each], out[t, column : column + each]
        for c in range(each):
            target[c] = factor * row[c]


@njit(nogil=True, fastmath=FAST, error_model="numpy", inline="always")
def _softmax(pairs, count, size, bias):
    """Change the scores of rows [count, size] up to the diagonal into shares; zero after it. `bias` has the number of
    distance 0 at `last`, and NEVER after it, so that all rows have whole blocks."""
    last = len(bias) - COLUMNS
    for t in range(count):
        whole = padded(t + 1)
        row, near = pairs[t * size : t * size + whole], bias[last - t : last - t + whole]
        for s in range(whole):
            row[s] += near[s]
        most = largest_of(row, NEVER)
        total = F(0)
        for s in range(whole):
            total += row[s] * F(0)  # NaN where a score is NaN or infinite
            row[s] = power(row[s] - most)
            total += row[s]
        row[t + 1 :] = F(0)  # before they are scaled to denormal numbers, which are slow
        scale = F(1) / total
        for s in range(whole):
            row[s] *= scale
    pairs[count * size : size * size] = F(0)


@njit(nogil=True, fastmath=FAST, error_model="numpy", inline="always")
def _softmax_slopes(slopes, shares, count, size, by_bias):
    """Change slopes of shares into slopes of scores, and add them to those of the distances."""
    last = len(by_bias) - COLUMNS
    for t in range(count):
        whole, at = padded(t + 1), t * size
        row, share, near = slopes[at : at + whole], shares[at : at + whole], by_bias[last - t : last - t + whole]
        mean = F(0)
        for s in range(whole):
            mean += row[s] * share[s]
        for s in range(whole):
            row[s] = (row[s] - mean) * share[s]
            near[s] += row[s]
    slopes[count * size : size * size] = F(0)


@njit(cache=True, nogil=True, fastmath=FAST, error_model="numpy")
def attend(rows, starts, rel, shares, out):
    """Fill out [n, d] with the attention of rows [n, 3 d]; person p has rows starts[p] to starts[p + 1], and rel
    [heads, L] are the numbers of distances. `shares` receives the softmax of every person and head, [T, T] with padded
    T, one after the other."""
    heads, d = len(rel), out.shape[1]
    each, longest = d // heads, padded(np.max(starts[1:] - starts[:-1]))
    width, scale = padded(each), F((d // heads) ** -0.5)
    buffers = np.empty((5, longest * width), F)
    q, k, keys, v, mixed = buffers[0], buffers[1], buffers[2], buffers[3], buffers[4]
    bias = np.full((heads, rel.shape[1] + COLUMNS - 1), NEVER, F)
    bias[:, : rel.shape[1]] = rel[:, ::-1]
    at = 0
    for person in range(len(starts) - 1):
        own, mine = rows[starts[person] : starts[person + 1]], out[starts[person] : starts[person + 1]]
        size = padded(len(own))
        for head in range(heads):
            pairs, column = shares[at : at + size * size], head * each
            at += size * size
            _copy(own, column, each, scale, q, width, size)
            _copy(own, d + column, each, F(1), k, width, size)
            _copy(own, 2 * d + column, each, F(1), v, width, size)
            _turn(k, width, size, keys)
            _by_keys(q, keys, width, size, pairs)
            _softmax(pairs, len(own), size, bias[head])
            _of_past(pairs, v, width, size, mixed)
            _write(mixed, width, each, F(1), mine, column)


@njit(cache=True, nogil=True, fastmath=FAST, error_model="numpy")
def attend_back(rows, starts, shares, slope, by_rows, by_rel):
    """The gradient: fill by_rows [n, 3 d] and by_rel [heads, L] from slope [n, d] and the shares of `attend`."""
    heads, d = len(by_rel), slope.shape[1]
    each, longest = d // heads, padded(np.max(starts[1:] - starts[:-1]))
    width, scale = padded(each), F((d // heads) ** -0.5)
    buffers = np.empty((6, longest * width), F)
    q, k, v, values, above, below = buffers[0], buffers[1], buffers[2], buffers[3], buffers[4], buffers[5]
    slopes, by_bias = np.empty(longest * longest, F), np.zeros((heads, by_rel.shape[1] + COLUMNS - 1), F)
    at = 0
    for person in range(len(starts) - 1):
        own, mine = rows[starts[person] : starts[person + 1]], by_rows[starts[person] : starts[person + 1]]
        size, given = padded(len(own)), slope[starts[person] : starts[person + 1]]
        for head in range(heads):
            pairs, column = shares[at : at + size * size], head * each
            at += size * size
            _copy(own, column, each, scale, q, width, size)
            _copy(own, d + column, each, F(1), k, width, size)
            _copy(own, 2 * d + column, each, F(1), v, width, size)
            _copy(given, column, each, F(1), above, width, size)
            _of_future(pairs, above, width, size, below)
            _write(below, width, each, F(1), mine, 2 * d + column)
            _turn(v, width, size, values)
            _by_keys(above, values, width, size, slopes)
            _softmax_slopes(slopes, pairs, len(own), size, by_bias[head])
            _of_future(slopes, q, width, size, below)
            _write(below, width, each, F(1), mine, d + column)
            _of_past(slopes, k, width, size, below)
            _write(below, width, each, scale, mine, column)
    by_rel[:] = by_bias[:, : by_rel.shape[1]][:, ::-1]
