"""Pareto fronts: the runs that no other dominates, over axes as in `compare --axes accuracy,bytes,epsilon`.

The epsilon of a run without noise is infinite; that of a run that sends nothing is 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedtaste.errors import SettingError
from fedtaste.experiment.result import AXES, RunResult, SurfacePoint, SurfaceSummary
from fedtaste.report.numbers import decimals
from fedtaste.report.tables import method_name
from fedtaste.text import did_you_mean

if TYPE_CHECKING:
    from fedtaste.report.trade_off import Tradeoff


@dataclass(frozen=True)
class Surface:
    """The requested axes, every run's numbers on them (None: not known), and which runs are on the front."""

    axes: tuple[str, ...]
    points: list[dict[str, float | None]]  # by run: axis -> number
    front: list[int]

    def summary(self, names: Sequence[str]) -> SurfaceSummary:
        finite = [{a: None if v is None or math.isinf(v) else v for a, v in point.items()} for point in self.points]
        points = tuple(SurfacePoint.model_validate({"run": n, **point}) for n, point in zip(names, finite))
        return SurfaceSummary(axes=self.axes, points=points, front=tuple(names[i] for i in self.front))


def parse_axes(text: str | None) -> tuple[str, ...]:
    """`accuracy,bytes,epsilon` -> names; accuracy and at least one cost."""
    if text is None:
        return ()
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    for name in names:
        if name not in AXES:
            raise SettingError(did_you_mean(name, AXES, "axis").replace("Axiss", "Axes"))
    if "accuracy" not in names or len(names) < 2:
        raise SettingError(f"--axes needs accuracy and a cost, as in --axes accuracy,bytes,epsilon; got {text}.")
    return names


def epsilon_of(result: RunResult) -> float:
    """The epsilon of a run: infinity where it promises nothing, 0 where nothing is sent."""
    if result.traffic.up_bytes == 0:
        return 0.0
    return math.inf if result.epsilon is None else result.epsilon


def undominated(points: Sequence[Sequence[float | None]]) -> list[int]:
    """The points that no other point beats: none is at most as large in all coordinates and smaller in one. Equal
    points are all on the front; a point with an unknown coordinate never is.

    >>> undominated([(1, 5), (2, 3), (2, 4), (None, 0)])
    [0, 1]
    """
    known = [(i, [x for x in point if x is not None]) for i, point in enumerate(points) if None not in point]

    def beaten(point: list[float]) -> bool:
        return any(other != point and all(a <= b for a, b in zip(other, point)) for _, other in known)

    return [i for i, point in known if not beaten(point)]


def surface(axes: tuple[str, ...], tradeoff: Tradeoff, results: Sequence[RunResult]) -> Surface:
    """Every run's numbers on the axes, and the runs that no other beats in all of them at once."""
    costs = tradeoff.costs | {"epsilon": [epsilon_of(result) for result in results], "accuracy": tradeoff.levels}
    points = [{axis: costs[axis][i] for axis in axes} for i in range(len(results))]
    sign = {axis: -tradeoff.quality.better if axis == "accuracy" else 1 for axis in axes}
    signed = [
        [None if v is None or i in tradeoff.undecided else sign[a] * v for a, v in point.items()]
        for i, point in enumerate(points)
    ]
    return Surface(axes, points, undominated(signed))


def by_epsilon(tradeoff: Tradeoff, results: Sequence[RunResult]) -> str:
    """The best test figure for every promised epsilon: `Highest test NDCG@10 with epsilon 1: FedVeil (0.280); ...`.
    Several settings of a method without validation figures take no part, and a sentence says so."""
    groups: dict[float, list[tuple[float, str]]] = {}
    better = tradeoff.quality.better
    for i, (result, value) in enumerate(zip(results, tradeoff.values)):
        if result.epsilon is not None and value is not None and i not in tradeoff.undecided:
            groups.setdefault(float(f"{result.epsilon:.2g}"), []).append((value, method_name(result.method)))
    best = {epsilon: max(runs, key=lambda run: better * run[0]) for epsilon, runs in sorted(groups.items())}
    words = [f"{epsilon:g}: {name} ({decimals(value)})" for epsilon, (value, name) in best.items()]
    figure = f"{'Highest' if better > 0 else 'Lowest'} test {tradeoff.quality.title}"
    best_figures = f"{figure} with epsilon {'; with '.join(words)}." if words else ""
    return " ".join(filter(None, [best_figures, _undecided_sentence(tradeoff, results)]))


def _undecided_sentence(tradeoff: Tradeoff, results: Sequence[RunResult]) -> str:
    """Which methods were tried with several settings that only test figures could choose between."""
    methods = dict.fromkeys(method_name(results[i].method) for i in sorted(tradeoff.undecided))
    if not methods:
        return ""
    return (
        f"Several settings of {', '.join(methods)} were tried without validation figures, so none of them is advised "
        "or on a front: their test figures must not choose between them."
    )
