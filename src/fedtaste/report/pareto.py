"""Pareto front over several axes at once (`fedtaste compare --axes accuracy,bytes,epsilon`), and its plot.

The epsilon of a run without noise is infinite; that of a run that sends nothing is 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedtaste.errors import SettingError
from fedtaste.experiment.result import RunResult, SurfacePoint, SurfaceSummary
from fedtaste.report.numbers import decimals, human_bytes
from fedtaste.report.style import COLOURS, INK, MARKERS, MUTED, Plot, drawable, figure, finish, legend, log_axis
from fedtaste.report.tables import method_name
from fedtaste.text import did_you_mean

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from fedtaste.report.trade_off import Tradeoff

AXES = ("accuracy", "bytes", "epsilon", "rounds", "gradients")


@dataclass(frozen=True)
class Surface:
    """The axes that were requested, where every run stands on them, and the runs on the front."""

    axes: tuple[str, ...]
    points: list[dict[str, float | None]]  # by result, a number an axis; None where it is not known
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
    """Which points no other beats in one coordinate without losing in another; less is better, equal points are all
    on the front, and a point with an unknown coordinate never is.

    >>> undominated([(1, 5), (2, 3), (2, 4), (None, 0)])
    [0, 1]
    """
    known = [(i, [x for x in point if x is not None]) for i, point in enumerate(points) if None not in point]

    def beaten(mine: list[float]) -> bool:
        return any(all(t <= m for t, m in zip(theirs, mine)) and theirs != mine for _, theirs in known)

    return [i for i, point in known if not beaten(point)]


def surface(axes: tuple[str, ...], tradeoff: Tradeoff, results: Sequence[RunResult]) -> Surface:
    """Where every run stands on the axes, and which runs no other beats in all of them."""
    costs = tradeoff.costs | {"epsilon": [epsilon_of(result) for result in results], "accuracy": tradeoff.values}
    points = [{axis: costs[axis][i] for axis in axes} for i in range(len(results))]
    sign = {axis: -tradeoff.quality.better if axis == "accuracy" else 1 for axis in axes}
    signed = [[None if v is None else sign[a] * v for a, v in point.items()] for point in points]
    return Surface(axes, points, undominated(signed))


@dataclass(frozen=True)
class EpsilonAxis:
    """Where a run stands on a logarithmic axis that has no place for 0 and for infinity, and how large its point is."""

    finite: list[float]
    sent: list[float]

    @property
    def end(self) -> float:
        """Where runs without a promise are drawn."""
        return max(self.finite) * 4

    def place(self, epsilon: float | None) -> float:
        return min(max(epsilon or 0.0, min(self.finite) / 1.5), self.end)

    def size(self, sent: float) -> float:
        """The marker of a run that sent so many bytes."""
        if not sent:
            return 7
        least = max(min(n for n in self.sent if n > 0), 1)
        return 6 + 3.2 * math.log10(1 + sent / least)


def surface_plot(tradeoff: Tradeoff, results: Sequence[RunResult]) -> Plot | None:
    """Accuracy by epsilon, one line per method; the larger a point, the more bytes."""
    surface = tradeoff.surface
    if surface is None or not {"accuracy", "epsilon"} <= set(surface.axes):
        return None
    title, finite = tradeoff.quality.title, [e for p in surface.points if (e := p["epsilon"]) and math.isfinite(e)]
    if not finite:
        return None
    axis = EpsilonAxis(finite, [point.get("bytes") or 0 for point in surface.points])
    drawing, axes = figure(f"Test {title} by privacy", "epsilon: smaller is more private", title)
    log_axis(axes, "x", min(finite), axis.end, lambda n: f"{n:g}")
    known = [i for i, value in enumerate(tradeoff.values) if value is not None]
    names = [method_name(result.method) for result in results]
    for place, name in enumerate(dict.fromkeys(names)):
        _method_line(axes, axis, tradeoff, [i for i in known if names[i] == name], (place, name))
    if any(math.isinf(p["epsilon"] or 0.0) for p in surface.points):
        axes.axvline(axis.end, color=MUTED, lw=1, ls=":")
        axes.annotate("no promise", (axis.end, axes.get_ylim()[0]), rotation=90, ha="right", va="bottom", color=MUTED)
    legend(drawing, axes)
    caption = (
        f"Test {title} by what a run may tell of a person. Larger points sent more bytes; dark rims: nothing beats "
        f"them in {', '.join(surface.axes)} at once. Bars are 95 % intervals."
    )
    words = "; ".join(_describe(tradeoff, surface, i) for i in known)
    return finish("privacy", drawing, f"Test {title} by epsilon. {words}.", caption)


def _method_line(axes: Axes, axis: EpsilonAxis, tradeoff: Tradeoff, runs: list[int], method: tuple[int, str]) -> None:
    """One method's runs, joined in the order of epsilon."""
    surface, (place, name) = tradeoff.surface, method
    assert surface is not None
    x = {i: axis.place(surface.points[i]["epsilon"]) for i in runs}
    runs = sorted(runs, key=x.__getitem__)
    colour, heights = COLOURS[place % 7], [tradeoff.values[i] or 0 for i in runs]
    axes.plot([x[i] for i in runs], heights, color=colour, lw=1.6, label=drawable(name))
    for i, height in zip(runs, heights):
        if interval := tradeoff.intervals[i]:
            axes.vlines(x[i], *interval, color=colour, lw=1.2, alpha=0.6)
        rim, width = (INK, 1.8) if i in surface.front else (MUTED, 0.6)
        size = axis.size(axis.sent[i])
        axes.plot(x[i], height, MARKERS[place % 7], color=colour, ms=size, mec=rim, mew=width)


def _describe(tradeoff: Tradeoff, surface: Surface, i: int) -> str:
    epsilon, sent = surface.points[i]["epsilon"] or 0.0, human_bytes(surface.points[i].get("bytes"))
    promise = "without a promise" if math.isinf(epsilon) else f"at epsilon {epsilon:.3g}"
    return f"{tradeoff.names[i]}: {decimals(tradeoff.values[i] or 0)} {promise}, {sent}"


def by_epsilon(tradeoff: Tradeoff, results: Sequence[RunResult]) -> str:
    """`With epsilon 1, FedVeil is best: 0.280; with 3, ...`, where runs differ in what they promise."""
    groups: dict[float, list[int]] = {}
    for i, result in enumerate(results):
        if result.epsilon is not None and tradeoff.values[i] is not None:
            groups.setdefault(float(f"{result.epsilon:.2g}"), []).append(i)
    if not groups:
        return ""
    words = []
    for epsilon, places in sorted(groups.items()):
        best = max(places, key=lambda i: tradeoff.quality.better * (tradeoff.values[i] or 0))
        words.append(f"{epsilon:g}, {method_name(results[best].method)} ({decimals(tradeoff.values[best] or 0)})")
    return "Best with epsilon " + "; with ".join(words) + "."
