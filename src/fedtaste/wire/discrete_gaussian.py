"""Exact sampler of the discrete Gaussian distribution (Canonne, Kamath, Steinke 2020), the noise of all private runs.

    P(X = x) = exp(-x^2 / (2 sigma^2)) / sum over all whole numbers k of exp(-k^2 / (2 sigma^2))

The samples are exact: no step of the algorithm rounds. It is the paper's rejection sampler, vectorised, with its two
trials merged into one. With t = floor(sigma) + 1, a proposal is x = u + t v with u uniform on 0..t-1 and
P(v >= k) = exp(-k), so it has a probability proportional to exp(-v). It is accepted with probability
exp(-gamma), gamma = x^2 / (2 sigma^2) - v + 1/2, which is never negative because t >= sigma. About 48 of 100 proposals
are accepted; a random sign follows, and minus zero is rejected. A trial with probability exp(-gamma) compares 64 random
bits with a floating-point value of exp(-gamma) that is known to a relative error below MARGIN. Where the comparison is
closer than that (about once in 10^12 trials) it is decided with more random bits and exact rational arithmetic.
"""

from __future__ import annotations

import math
from decimal import Context, Decimal
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from fedtaste.errors import SettingError
from fedtaste.wire.rng import derive, words

Integers = NDArray[np.int64]
CHUNK = 1 << 16  # samples that are drawn at once, so that arrays stay in the cache
MARGIN = 2.0**-44  # above the relative error of exp(-gamma) in double precision, divided by 1 + x^2 / (2 sigma^2)
LARGEST = 2.0**46  # of sigma: squares and multiples stay exact or well inside MARGIN


def _floor_exp(gamma: Fraction, bits: int) -> int:
    """floor(2^bits exp(-gamma)) for gamma > 0, exactly: the precision grows until both ends of the error bar agree."""
    digits = bits * 1233 // 4096 + 40
    while True:
        context = Context(prec=digits + int(gamma).bit_length())
        value = context.exp(context.divide(Decimal(-gamma.numerator), Decimal(gamma.denominator)))
        scaled = context.multiply(value, context.power(2, bits))
        error = Decimal(10) ** (bits * 1233 // 4096 + 10 - digits)  # shrinks with the precision, or it may never end
        low, high = int(context.subtract(scaled, error)), int(context.add(scaled, error))
        if low == high:
            return low
        digits *= 2


TAIL = 44  # exp(-TAIL) 2^64 is just above 1
THRESHOLDS = np.array([_floor_exp(Fraction(k), 64) for k in range(TAIL, 0, -1)], np.uint64)  # ascending


def discrete_gaussian(sigma: float, shape: tuple[int, ...], key: bytes) -> Integers:
    """Independent samples in this shape, as a function of the key. Use every key once.

    >>> discrete_gaussian(3.0, (2, 3), bytes(32)).shape
    (2, 3)
    """
    if not 0 < sigma <= LARGEST:
        raise SettingError(
            f"The noise's standard deviation must be above 0 and at most {LARGEST:.0e} grid steps, got {sigma:g}. Use "
            "less noise, or a coarser grid."
        )
    size = math.prod(shape)
    out = np.empty(size, np.int64)
    for number, start in enumerate(range(0, size, CHUNK)):
        part = out[start : start + CHUNK]
        part[:] = _chunk(sigma, len(part), derive(key, "chunk", number))
    return out.reshape(shape)


def _chunk(sigma: float, size: int, key: bytes) -> Integers:
    """`size` samples: proposals are drawn until enough are accepted."""
    parts: list[Integers] = []
    missing = size
    while missing > 0:
        parts.append(_accepted(sigma, int(2.15 * missing) + 64, derive(key, len(parts))))
        missing -= len(parts[-1])
    return np.concatenate(parts)[:size]


def _accepted(sigma: float, proposals: int, key: bytes) -> Integers:
    """The accepted ones of this many proposals."""
    width = int(sigma) + 1
    first, second, third = words(key, 3 * proposals).reshape(3, proposals)
    negative, first = (first >> np.uint64(63)).astype(bool), first & np.uint64(2**63 - 1)
    fair = first < np.uint64(2**63 // width * width)  # the rest would favour small remainders
    above = np.searchsorted(THRESHOLDS, second, side="right")  # thresholds that are not larger
    tail = (TAIL - above).astype(np.int64)
    tie = (THRESHOLDS[np.maximum(above - 1, 0)] == second) | (above == 0)
    for place in np.flatnonzero(tie):
        tail[place] = _exact_tail(int(second[place]), derive(key, "tail", int(place)))
    x = (first % np.uint64(width)).astype(np.int64) + width * tail
    square = np.square(x / sigma) / 2
    chance = np.exp(tail - 0.5 - square)
    draw = third * 2.0**-64
    accepted = draw < chance
    close = np.abs(draw - chance) <= MARGIN * (1 + square) * chance + 2.0**-62
    for place in np.flatnonzero(close):
        gamma = Fraction(int(x[place])) ** 2 / (2 * Fraction(sigma) ** 2) - int(tail[place]) + Fraction(1, 2)
        accepted[place] = _exact_trial(gamma, int(third[place]), derive(key, "trial", int(place)))
    x[negative] = -x[negative]
    samples: Integers = x[accepted & fair & ~(negative & (x == 0))]
    return samples


def _exact_trial(gamma: Fraction, start: int, key: bytes) -> bool:
    """Whether a uniform number whose first 64 bits are `start` is below exp(-gamma); as many more bits are drawn as the
    decision needs."""
    if gamma == 0:
        return True
    draw, bits = start, 64
    while True:
        limit = _floor_exp(gamma, bits)
        if draw != limit:
            return draw < limit
        draw = (draw << 64) | int(words(derive(key, bits), 1)[0])
        bits += 64


def _exact_tail(start: int, key: bytes) -> int:
    """v with P(v >= k) = exp(-k) from a uniform number whose first 64 bits are `start`."""
    k = 0
    while _exact_trial(Fraction(k + 1), start, key):
        k += 1
    return k
