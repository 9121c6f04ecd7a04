"""FedSeq's sampled softmax with its trail features and its gradient, compiled by Numba.

methods/sequence_loss.py has the formulas and the readable equivalents (`negative_trail`, `target_trail`,
`sampled_softmax`). Exponentials and logarithms are polynomials (Cephes, single precision), so that LLVM computes
eight at once; calls of the mathematical library would be one after the other.

Functions of one kernel are inlined. Otherwise a process that compiles a kernel would call their own compiled code, and
one that loads the kernel from Numba's cache the copies inside it, which may round otherwise.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from fedtaste.kernels.lanes import LANES, largest, load, spread, where_less
from fedtaste.kernels.products import product

F = np.float32
FAST = {"contract", "reassoc", "nsz"}  # sums may be reordered to fill vector registers; NaN and infinity keep meaning
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
    whole = F(n)  # Numba multiplies int32 and float32 in double precision
    r = x - whole * F(0.693359375) + whole * F(2.12194440e-4)
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
    whole = F(e)
    return f + (y - F(2.12194440e-4) * whole - F(0.5) * z) + F(0.693359375) * whole


@njit(nogil=True, fastmath=FAST, error_model="numpy", inline="always")
def _fold(near, far, line, speeds, eps):
    """Add the pairs of an item to the two fading sums of its trail, and change them into log(t + eps)."""
    mix, fast, slow = speeds
    rest = F(1.0) - mix
    for j in range(len(line)):
        near[j] = fast * near[j] + line[j]
        far[j] = slow * far[j] + line[j]
        line[j] = logarithm(mix * near[j] + rest * far[j] + eps)


@njit(nogil=True, fastmath=FAST, error_model="numpy", inline="always")
def _trail_features(table, from_scale, to_scale, items, first, negatives, places, powers, speeds, eps, targets, out):
    """Fill out [T, J] with log(t_q + eps) of the negatives and targets [T] with that of the next items, for one
    person's window `items` [T + 1], which starts at entry `first` of the history, without the counts that this person
    has sent. `places` [J] are the first entries of the negatives in the history; `speeds` = (mix, fast, slow)."""
    steps, count, longest = len(items) - 1, len(negatives), len(powers)
    mix, fast, slow = speeds
    rest = F(1.0) - mix
    later, number = np.empty(count, np.int32), 0  # negatives whose counts this person has sent
    for j in range(count):
        if 0 < places[j] - first < steps + longest:
            later[number] = j
            number += 1
    weights, fades, near_weight, far_weight = np.empty(steps, F), np.zeros(steps, F), mix, rest
    for age in range(steps):
        weights[age] = near_weight + far_weight
        near_weight *= fast
        far_weight *= slow
    fades[:longest] = powers[:steps]
    next_items, next_scales = items[1:], to_scale[items[1:]]
    near, far = np.zeros(count, F), np.zeros(count, F)
    targets[:] = F(0)
    for step in range(steps):
        row, line, own = table[items[step]], out[step], from_scale[items[step]]
        for j in range(count):
            line[j] = row[np.uint32(negatives[j])]  # no test of a place that counts from the end
        for at in range(number):
            j = later[at]
            distance = places[j] - first - step
            if 0 < distance <= longest:
                line[j] = max(line[j] - powers[distance - 1] * own * to_scale[negatives[j]], F(0))
        _fold(near, far, line, speeds, eps)
        ahead, taken, scales = targets[step:], next_items[step:], next_scales[step:]
        for age in range(steps - step):
            value = row[taken[age]] - fades[age] * own * scales[age]
            ahead[age] += weights[age] * (F(0) if value < F(0) else value)
    for step in range(steps):
        targets[step] = logarithm(targets[step] + eps)


@njit(nogil=True, error_model="numpy")
def largest_of(row, most):
    """The largest of `most` and the numbers of a row that are not NaN. Numba does not vectorise a maximum."""
    whole, found = len(row) // LANES * LANES, spread(most)
    for j in range(0, whole, LANES):
        numbers = load(row, j)
        found = where_less(found, numbers, numbers, found)
    most = largest(found)
    for j in range(whole, len(row)):
        most = max(most, row[j])
    return most


@njit(nogil=True, fastmath=FAST, error_model="numpy", inline="always")
def _softmax(scores, offset, features, alpha, places, first, positive, sums, totals):
    """Change products scores [T, J] into shares of a softmax over scores + offset + alpha features and `positive` [T].
    Add the shares to sums [J], fill totals [T] with the logarithms of the sums of powers, and return the sum of shares
    x features. `features` may have no rows. Negatives that are the next item or in the history so far have no share:
    `places` [J] are their first entries in the history, `first` is that of the window."""
    by_alpha, count = 0.0, len(offset)
    for step in range(len(scores)):
        row, slope, invalid = scores[step], F(0), F(0)
        if len(features):
            line = features[step]
            for j in range(count):
                row[j] += alpha * line[j]
        reached = np.int32(first + step + 1)
        for j in range(count):
            row[j] = row[j] + offset[j] if places[j] > reached else NEVER
            invalid += row[j] * F(0)  # NaN where the score is NaN or infinite
        most = largest_of(row, positive[step])
        total = power(positive[step] - most)
        for j in range(count):
            row[j] = power(row[j] - most) if row[j] > NEVER else F(0)
            total += row[j]
        scale = F(1) / total
        for j in range(count):
            row[j] *= scale
            sums[j] += row[j]
        if len(features):
            line = features[step]
            for j in range(count):
                slope += row[j] * line[j]
            by_alpha += slope
        totals[step] = np.log(total) + most + invalid
    return by_alpha


@njit(cache=True, nogil=True, fastmath=FAST, error_model="numpy")
def sampled_softmax(h, starts, windows, negatives, trail, alpha, outputs):
    """The sums of the softmax of all positions, and their gradient; the return value is the slope of alpha.

    h, starts   states [n, d] of all positions; person p has rows starts[p] to starts[p + 1]
    windows     items [people, T + 1], and the place of the first one in each history
    negatives   embeddings [J, d], the same transposed, numbers [J] that are added to scores, items [J], and their
                first places [people, J] in the histories
    trail       table, scales of own counts, powers, speeds and eps of `_trail_features`; no trail if it has no rows
    outputs     scores [n] of the next items, which receive alpha x their features; filled are features [n], totals
                [n] of `_softmax` and the gradient of h; to those of the embeddings and the numbers is added
    """
    embedded, turned, offset, drawn, places = negatives
    table, from_scale, to_scale, powers, speeds, eps = trail
    positive, features, totals, by_h, by_embedded, by_offset = outputs
    items, firsts = windows
    longest, by_alpha = np.max(starts[1:] - starts[:-1]), 0.0
    scores_buffer = np.empty((longest, len(offset)), F)
    lines_buffer = np.empty((longest if len(table) else 0, len(offset)), F)
    features[:] = F(0)
    for person in range(len(firsts)):
        begin, end, first, place = starts[person], starts[person + 1], firsts[person], places[person]
        own, positives, targets = h[begin:end], positive[begin:end], features[begin:end]
        scores, lines = scores_buffer[: end - begin], lines_buffer[: end - begin]
        if len(table):
            window = items[person, : end - begin + 1]
            _trail_features(
                table, from_scale, to_scale, window, first, drawn, place, powers, speeds, eps, targets, lines
            )
            for t in range(end - begin):
                positives[t] += alpha * targets[t]
        product(own, turned, scores, False)
        by_alpha += _softmax(scores, offset, lines, alpha, place, first, positives, by_offset, totals[begin:end])
        product(scores, embedded, by_h[begin:end], False)
        product(scores.T, own, by_embedded, True)
    return by_alpha
