"""Metrics: HR, NDCG, recall and MRR from ranks; RMSE and accuracy of ratings; and their 95 % intervals.

A rank is one positive's: 1 + how many candidates beat or tie it, the person's other positives not counted. With several
positives p_1 <= p_2 <= ... (ranks sorted), the i-th stands at place p_i + i - 1 of the person's list.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
DRAWS = 1000  # bootstrap resamples
AT_ONCE = 100_000  # numbers that are drawn at once


def ranking_metrics(ranks: NDArray[np.integer], owners: NDArray[np.integer], k: int = 10) -> dict[str, Array]:
    """Per person with at least one positive: hr@k (any hit), recall@k, ndcg@k, mrr@k.

    >>> m = ranking_metrics(np.array([1, 3, 50]), np.array([0, 0, 1]))
    >>> m["hr@10"].tolist(), m["recall@10"].tolist(), m["mrr@10"].tolist()
    ([1.0, 0.0], [1.0, 0.0], [1.0, 0.0])
    """
    order = np.lexsort((ranks, owners))
    ranks, owners = np.asarray(ranks)[order], np.asarray(owners)[order]
    _, first, counts = np.unique(owners, return_index=True, return_counts=True)
    person = np.repeat(np.arange(len(first)), counts)
    nth = np.arange(len(ranks)) - np.repeat(first, counts)
    places = ranks + nth
    hit = places <= k

    def per_person(values: Array) -> Array:
        return np.bincount(person, weights=values, minlength=len(first)).astype(np.float64)

    hits = per_person(hit.astype(float))
    gain = per_person(np.where(hit, 1 / np.log2(places + 1.0), 0.0))
    ideal = np.cumsum(1 / np.log2(np.arange(2, k + 2)))[np.minimum(counts, k) - 1]
    reciprocal: Array = np.where(places[first] <= k, 1 / places[first], 0.0) if len(first) else np.zeros(0)
    return {
        f"hr@{k}": (hits > 0).astype(float),
        f"ndcg@{k}": gain / ideal,
        f"recall@{k}": hits / counts,
        f"mrr@{k}": reciprocal,
    }


def rating_metrics(errors: Array) -> dict[str, float]:
    """RMSE, and accuracy: the share of ratings predicted to within half a star."""
    return {"rmse": float(np.sqrt(np.mean(errors**2))), "accuracy": float(np.mean(np.abs(errors) <= 0.5))}


def means(values: Mapping[str, Array | list[float]]) -> dict[str, float]:
    """The mean of each metric over people, rounded to six digits."""
    return {name: round(float(np.mean(v)), 6) for name, v in values.items()}


def interval(values: Array) -> list[float]:
    """95 % bootstrap interval of the mean over people."""
    return bounds(resample(len(values)) @ values / len(values))


def intervals(values: Mapping[str, Array | list[float]]) -> dict[str, list[float]]:
    """The `interval` of each metric; people are drawn once for all metrics."""
    return {name: bounds(sample) for name, sample in bootstrap_means(values, seed=0).items()}


def bootstrap_means(values: Mapping[str, Array | list[float]], seed: int) -> dict[str, Array]:
    """The mean over people of each metric in each bootstrap resample, [DRAWS]; all metrics of the same people."""
    people = len(next(iter(values.values())))
    weights = resample(people, seed)
    return {name: weights @ np.asarray(value, float) / people for name, value in values.items()}


def stratified(shares: Array, examples: Array) -> list[float]:
    """95 % interval of the mean of clients' shares, for these clients and other examples of theirs."""
    error = 1.96 * float(np.sqrt(share_variance(shares, examples))) / len(shares)
    return interval_around(float(np.mean(shares)), error)


def share_variance(shares: Array, examples: Array) -> float:
    """The variance of the sum of clients' shares over their examples; a share of 0 or 1 is taken as if two more
    examples had come out one each way (Agresti and Coull)."""
    smoothed = (shares * examples + 1) / (examples + 2)
    return float(np.sum(smoothed * (1 - smoothed) / np.maximum(examples, 1)))


def interval_around(middle: float, error: float, highest: float = 1.0) -> list[float]:
    """The interval of this half-width, cut off at 0 and at the highest possible value."""
    return [round(max(middle - error, 0.0), 6), round(min(middle + error, highest), 6)]


def rating_intervals(errors: Array, owners: NDArray[np.integer]) -> dict[str, list[float]]:
    """95 % bootstrap intervals over people (not over ratings: a person's errors go together)."""
    _, person = np.unique(owners, return_inverse=True)
    size = np.bincount(person).astype(float)
    square = np.bincount(person, weights=errors**2)
    close = np.bincount(person, weights=(np.abs(errors) <= 0.5).astype(float))
    weights = resample(len(size))
    mass = weights @ size
    return {"rmse": bounds(np.sqrt(weights @ square / mass)), "accuracy": bounds(weights @ close / mass)}


def resample(people: int, seed: int = 0) -> Array:
    """How often each person is drawn in each bootstrap resample, [DRAWS, people]."""
    generator, counts = np.random.default_rng(seed), np.empty((DRAWS, people))
    rows = max(1, AT_ONCE // max(people, 1))
    for begin in range(0, DRAWS, rows):  # the same draws whatever the number of rows at once
        block = counts[begin : begin + rows]
        draws = generator.integers(0, people, block.shape) + people * np.arange(len(block))[:, None]
        block[:] = np.bincount(draws.ravel(), minlength=block.size).reshape(block.shape)
    return counts


def bounds(sample: Array) -> list[float]:
    """The ends of the 95 % interval of a bootstrap sample."""
    low, high = np.quantile(sample, [0.025, 0.975])
    return [round(float(low), 6), round(float(high), 6)]
