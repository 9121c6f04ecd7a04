"""Checks of released numbers that need no statistics of a whole audit: is the noise what it claims to be?

on_grid       every released number is a whole multiple of the public step
attainable    the values that can occur do not depend on the data. Version 0.6.0 released float32(v + float32(s g)):
              where v = 0 only the values float32(s g) occur, and any other value proves that v is not 0
predicted     the noise equals that of a generator whose seed is known
noise_ratio   the measured standard deviation of the noise over the stated one
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
WHOLE = 1e-6  # the largest distance to a whole number that double precision explains


def on_grid(values: ArrayLike, step: float) -> bool:
    """Whether all values are whole multiples of `step`, exactly where `step` is a power of two.

    >>> on_grid([0.5, -1.25, 3.0], 0.25), on_grid([0.5, 0.3], 0.25)
    (True, False)
    """
    if not step > 0:
        raise ValueError(f"step must be positive, got {step}")
    units = np.asarray(values, np.float64).ravel() / step
    if not np.isfinite(units).all():
        return False
    exact = math.frexp(step)[0] == 0.5
    gap = np.abs(units - np.rint(units))
    return bool((gap == 0).all() if exact else (gap <= WHOLE * np.maximum(np.abs(units), 1)).all())


def attainable(release: Callable[[float, int], ArrayLike], values: ArrayLike, step: float, draws: int = 200) -> bool:
    """Whether the set of values that can be released is the same for all data: `release(value, draw)` gives noisy
    numbers for a true value, and for every one of `values` and every draw they must be on the grid of `step`. A value
    off the grid distinguishes data from other data with certainty, whatever the noise."""
    return all(on_grid(release(float(v), d), step) for v in np.ravel(np.asarray(values, float)) for d in range(draws))


def predicted(noise: ArrayLike, generator: Callable[[int, tuple[int, ...]], ArrayLike], seeds: ArrayLike) -> int | None:
    """The one of `seeds` from which `generator(seed, shape)` gives this noise to six digits, or None. An attacker who
    finds it removes the noise."""
    noise = np.asarray(noise, np.float64)
    size = float(np.abs(noise).max(initial=0.0))
    for seed in np.ravel(np.asarray(seeds)).tolist():
        if np.allclose(np.asarray(generator(seed, noise.shape), np.float64), noise, rtol=1e-6, atol=1e-6 * size):
            return int(seed)
    return None


def noise_ratio(square: float, count: int) -> tuple[float, float, float]:
    """(measured deviation over the stated one, and the ends of its 95 % interval) from the sum of the squares of
    `count` noise numbers, each divided by its stated deviation. The interval assumes independent Gaussian numbers.

    >>> [round(x, 2) for x in noise_ratio(1000.0, 1000)]
    [1.0, 0.96, 1.05]
    """
    from scipy.stats import chi2

    low, high = (math.sqrt(square / float(chi2.ppf(at, count))) for at in (0.975, 0.025))
    return math.sqrt(square / count), low, high
