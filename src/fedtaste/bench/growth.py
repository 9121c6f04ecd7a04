"""`fedtaste bench --growth`: how the CPU time of a FedALS round grows with the interactions, with a fitted exponent.

People and items grow along with the interactions, so that a cost of people x items would show.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from rich.table import Table

from fedtaste.bench.result import BenchResult, Fit, Growth, GrowthPoint
from fedtaste.bench.timing import one_round, single_thread
from fedtaste.data.synthetic import synthetic
from fedtaste.errors import SettingError
from fedtaste.federation import of_histories
from fedtaste.methods import build
from fedtaste.models import factorization

SMALLEST = 100_000
LARGEST = (1_000_000, 10_000_000, 100_000_000)
K = 32
REPEATS = 3
ONCE = 100_000_000  # interactions from which on a round is measured once


def world_size(interactions: int) -> tuple[int, int]:
    """(people, items) of a world with so many interactions.

    >>> world_size(100_000), world_size(100_000_000)
    ((1000, 500), (1000000, 63095))
    """
    return interactions // 100, max(500, int((interactions / 100) ** 0.8))


def fit_growth(points: Sequence[GrowthPoint]) -> Fit:
    """The line through (interactions, seconds), and the slope of the line through their logarithms.

    >>> points = [GrowthPoint(interactions=n, people=1, items=1, cpu_seconds=n / 1e6) for n in (10, 100, 1000)]
    >>> fit = fit_growth(points)
    >>> fit.exponent, fit.r_squared, fit.microseconds_per_interaction
    (1.0, 1.0, 1.0)
    """
    x, y = np.array([(point.interactions, point.cpu_seconds) for point in points], float).T
    slope, start = np.polyfit(x, y, 1, w=1 / y)  # every size counts alike
    exponent, factor = np.polyfit(np.log(x), np.log(y), 1)
    left = np.log(y) - exponent * np.log(x) - factor
    return Fit(
        microseconds_per_interaction=round(1e6 * slope, 4),
        largest_deviation=round(float(np.abs(y / (start + slope * x) - 1).max()), 3),
        exponent=round(float(exponent), 3),
        r_squared=round(1 - float(left @ left) / float(np.sum((np.log(y) - np.log(y).mean()) ** 2)), 4),
    )


def measure_growth(largest: int, *, seed: int, log: Callable[[str], None]) -> BenchResult:
    """One round of FedALS with its kernel on worlds of 100,000 interactions, ten times as many, up to `largest`."""
    if largest not in LARGEST:
        shown = ", ".join(str(size) for size in LARGEST)
        raise SettingError(f"--largest must be one of {shown}, got {largest}.")
    with single_thread():
        sizes = [SMALLEST]
        while sizes[-1] < largest:
            sizes.append(10 * sizes[-1])
        _round_seconds(1_000, 40, 30, seed, 1)  # compiles
        points = []
        for size in sizes:
            people, items = world_size(size)
            log(f"fedals: {size:,} interactions of {people:,} people with {items:,} items")
            cpu = round(_round_seconds(size, items, people, seed, 1 if size >= ONCE else REPEATS), 5)
            points.append(GrowthPoint(interactions=size, people=people, items=items, cpu_seconds=cpu))
    growth = Growth(method="fedals", points=tuple(points), fit=fit_growth(points))
    return BenchResult(k=K, threads=1, speed=(), growth=(growth,))


def _round_seconds(interactions: int, items: int, people: int, seed: int, repeats: int) -> float:
    """CPU seconds of one round on a world of this size."""
    histories = synthetic(people, items, min(interactions, people * items // 2), seed=seed).histories()
    model = factorization(items, k=K)
    return one_round(build("fedals", model, {}), model, of_histories(histories, items), "kernel", repeats)


def table(result: BenchResult) -> Table:
    """The result as a table for the terminal."""
    (growth,) = result.growth
    fit = growth.fit
    caption = f"CPU seconds ~ interactions ^ {fit.exponent} (R^2 {fit.r_squared} on logarithms)"
    title = f"One round of FedALS, k {result.k}, one thread"
    rows = Table("interactions", "people", "items", "CPU s", "µs/interaction", title=title, caption=caption)
    for point in growth.points:
        sizes = (f"{n:,}" for n in (point.interactions, point.people, point.items))
        each = 1e6 * point.cpu_seconds / point.interactions
        rows.add_row(*sizes, f"{point.cpu_seconds:.3f}", f"{each:.3f}")
    return rows
