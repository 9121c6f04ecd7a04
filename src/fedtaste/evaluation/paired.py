"""Paired comparisons of methods on the same people: differences, bootstrap intervals, randomisation tests, Holm.

The unit is a person (or a client). Where a comparison has several seeds, everything that the seeds say about a person
stays together: people are resampled, and not pairs of person and seed. A seed changes ties in the split, who is new,
the initial parameters and the negatives; how much that matters is the spread over seeds, which is reported beside.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from fedtaste.evaluation.metrics import Array, bounds, resample

FLIPS = 9_999  # draws of a randomisation test: its smallest p is 1 / 10,000
AT_ONCE = 4_000_000  # signs that are drawn at once


@dataclass(frozen=True, eq=False)
class PersonSums:
    """One metric of one method: in every seed it is the sum over people divided by the count over people."""

    sums: Array  # [people, seeds]; 0 where a person is not evaluated
    counts: Array  # [people, seeds]
    root: bool = False  # the metric is the root of that ratio (RMSE)

    def by_seed(self, weights: Array | None = None) -> Array:
        """The metric in every seed, [draws, seeds], where people count as often as the rows of `weights` say."""
        weights = np.ones((1, len(self.sums))) if weights is None else weights
        counts = weights @ self.counts
        with np.errstate(invalid="ignore", divide="ignore"):  # a resample of few people may hold nobody of a seed
            ratios = (weights @ self.sums) / counts
        return np.sqrt(ratios) if self.root else ratios

    def contributions(self) -> Array:
        """What each person adds to the mean over seeds of the ratios, [people]."""
        added: Array = (self.sums / self.counts.sum(0)).mean(1)
        return added


@dataclass(frozen=True)
class PairedDifference:
    """The difference of two methods in one metric: the first minus the second."""

    first: int
    second: int
    by_seed: list[float]
    interval: list[float]  # 95 %, bootstrap over people
    p: float  # of a two-sided randomisation test
    p_holm: float  # corrected for the number of pairs

    @property
    def mean(self) -> float:
        return float(np.mean(self.by_seed))


def paired_differences(methods: Sequence[PersonSums]) -> list[PairedDifference]:
    """All pairs of methods whose rows are the same people. An interval is a bootstrap over people; a test exchanges the
    two methods' scores of random people (Fisher's randomisation test); p values are corrected by Holm's procedure."""
    pairs = list(combinations(range(len(methods)), 2))
    if not pairs:
        return []
    weights = resample(len(methods[0].sums))
    sampled = [np.nanmean(method.by_seed(weights), 1) for method in methods]
    values = [method.by_seed()[0] for method in methods]
    each = [method.contributions() for method in methods]
    p = randomisation_test(np.stack([each[a] - each[b] for a, b in pairs], 1))
    return [
        PairedDifference(a, b, (values[a] - values[b]).tolist(), bounds(sampled[a] - sampled[b]), raw, corrected)
        for (a, b), raw, corrected in zip(pairs, p, holm(p))
    ]


def mean_interval(method: PersonSums) -> list[float]:
    """95 % bootstrap interval over people of the mean over seeds."""
    return bounds(np.nanmean(method.by_seed(resample(len(method.sums))), 1))


def randomisation_test(differences: Array, seed: int = 0) -> list[float]:
    """Two-sided p values of the sums of the columns [people, tests], under random signs of people.

    >>> randomisation_test(np.ones((20, 1))), randomisation_test(np.zeros((5, 1)))
    ([0.0001], [1.0])
    """
    generator, people = np.random.default_rng(seed), len(differences)
    observed = np.abs(differences.sum(0))
    reached = np.zeros(differences.shape[1], np.int64)
    rows = max(1, AT_ONCE // max(people, 1))
    for begin in range(0, FLIPS, rows):
        signs = 1.0 - 2.0 * generator.integers(0, 2, (min(rows, FLIPS - begin), people))
        reached += (np.abs(signs @ differences) >= observed - 1e-12).sum(0)
    return [float((1 + n) / (1 + FLIPS)) for n in reached]


def holm(p: Sequence[float]) -> list[float]:
    """p values corrected by Holm's step-down procedure, which bounds the chance of any false claim.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    corrected, largest = [1.0] * len(p), 0.0
    for rank, at in enumerate(sorted(range(len(p)), key=p.__getitem__)):
        largest = max(largest, min(1.0, (len(p) - rank) * p[at]))
        corrected[at] = largest
    return corrected
