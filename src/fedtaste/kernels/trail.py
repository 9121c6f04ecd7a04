"""FedSeq's sampled softmax and its trail features for one person, compiled by Numba.

methods/sequence_loss.py has the formulas and the readable equivalents (`negative_trail`, `target_trail`,
`sampled_softmax`). Exponentials and logarithms are polynomials (Cephes, single precision), so that LLVM computes
eight at once; calls of the mathematical library would be one after the other.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

F = np.float32
FAST = {"contract", "reassoc", "nsz"}  # sums may be reordered to fill vector registers; NaN and infinity keep meaning
LARGEST = FAST | {"nnan"}  # a maximum is computed eight at once only where there are no NaN
NEVER = F(-1e30)  # a score that does not count


@intrinsic
def _bits(typing, number):
    """The bits of a number of single precision."""

    def emit(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.IntType(32))

    return types.int32(types.float32), emit


@intrinsic
def _number(typing, bits):
    """The number of single precision that has these bits."""

    def emit(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.int32), emit


@njit(nogil=True, fastmath=FAST, error_model="numpy", inline="always")
def power(x):
    """e^x for x <= 0."""
    x = max(x, F(-87.0))
    n = np.int32(x * F(1.44269504) - F(0.5))
    r = x - n * F(0.693359375) + n * F(2.12194440e-4)
    y = F(1.9875691500e-4) * r + F(1.3981999507e-3)
    y = ((y * r + F(8.3334519073e-3)) * r + F(4.1665795894e-2)) * r + F(1.6666665459e-1)
    y = (y * r + F(5.0000001201e-1)) * r * r + r + F(1.0)
    return y * _number(np.int32((n + np.int32(127)) << np.int32(23)))


@njit(nogil=True, fastmath=FAST, error_model="numpy", inline="always")
def logarithm(x):
    """log x for x > 0."""
    bits = _bits(x)
    e = np.int32((bits - np.int32(0x3F3504F3)) >> np.int32(23))
    f = _number(np.int32(bits - (e << np.int32(23)))) - F(1.0)
    z = f * f
    y = F(7.0376836292e-2) * f - F(1.1514610310e-1)
    y = ((y * f + F(1.1676998740e-1)) * f - F(1.2420140846e-1)) * f + F(1.4249322787e-1)
    y = ((y * f - F(1.6668057665e-1)) * f + F(2.0000714765e-1)) * f - F(2.4999993993e-1)
    y = (y * f + F(3.3333331174e-1)) * f * z
    return f + (y - F(2.12194440e-4) * e - F(0.5) * z) + F(0.693359375) * e


@njit(cache=True, nogil=True, error_model="numpy")
def gather_pairs(table, from_scale, to_scale, items, first, negatives, places, powers, out):
    """Fill out [T, J] with N[item, negative] for one person's window `items` [T + 1], which starts at entry `first` of
    the history, without the counts that this person has sent. `places` [J] are the first entries of the negatives in
    the history."""
    steps, count = len(items) - 1, len(negatives)
    for step in range(steps):
        row = table[items[step]]
        for j in range(count):
            out[step, j] = row[negatives[j]]
    for j in range(count):
        last = places[j] - first  # its place in the window, or beyond it
        if 0 < last < steps + len(powers):
            for step in range(max(0, last - len(powers)), min(steps, last)):
                own = powers[last - step - 1] * from_scale[items[step]] * to_scale[negatives[j]]
                out[step, j] = max(out[step, j] - own, F(0))


@njit(cache=True, nogil=True, fastmath=FAST, error_model="numpy")
def trail_logarithms(pairs, speeds, eps):
    """Change pairs [T, J] of `gather_pairs` into log(t_q + eps) by position; `speeds` = (mix, fast, slow)."""
    mix, fast, slow = speeds
    rest, count = F(1.0) - mix, pairs.shape[1]
    near, far = np.zeros(count, F), np.zeros(count, F)
    for step in range(len(pairs)):
        row = pairs[step]
        for j in range(count):
            near[j] = fast * near[j] + row[j]
            far[j] = slow * far[j] + row[j]
            row[j] = logarithm(mix * near[j] + rest * far[j] + eps)


@njit(cache=True, nogil=True, fastmath=LARGEST, error_model="numpy")
def largest_scores(scores, places, first, out):
    """Raise out [T] to the largest of scores [T, J], where those of negatives that are the next item or in the history
    so far become NEVER. `places` [J] are their first entries in the history, `first` is that of the window."""
    for step in range(len(scores)):
        row, reached, largest = scores[step], np.int32(first + step + 1), out[step]
        for j in range(len(row)):
            row[j] = row[j] if places[j] > reached else NEVER
            largest = max(largest, row[j])
        out[step] = largest


@njit(cache=True, nogil=True, fastmath=FAST, error_model="numpy")
def softmax(scores, largest, positive, sums, totals):
    """Change scores [T, J] into shares of a softmax that also has `positive` [T]; add the shares to `sums` [J], and
    fill totals [T] with the logarithms of the sums of powers."""
    for step in range(len(scores)):
        row, most = scores[step], largest[step]
        total = power(positive[step] - most)
        for j in range(len(row)):
            row[j] = power(row[j] - most) if row[j] > NEVER else F(0)
            total += row[j]
        scale = F(1) / total
        for j in range(len(row)):
            row[j] *= scale
            sums[j] += row[j]
        totals[step] = np.log(total) + most


@njit(cache=True, nogil=True, error_model="numpy")
def target_trail(table, from_scale, to_scale, items, powers, speeds, out):
    """Fill out [T] for the next items of one person's window `items` [T + 1]."""
    mix, fast, slow = speeds
    rest = F(1.0) - mix
    for step in range(len(out)):
        target, total = items[step + 1], F(0)
        near, far = mix, rest
        for back in range(step + 1):
            item = items[step - back]
            value = table[item, target]
            if back < len(powers):
                value = max(value - powers[back] * from_scale[item] * to_scale[target], F(0))
            total += (near + far) * value
            near *= fast
            far *= slow
        out[step] = total
