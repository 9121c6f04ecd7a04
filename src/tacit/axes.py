"""Accuracy, bytes and epsilon at once (`tacit compare --axes accuracy,bytes,epsilon`): the runs that nothing beats in
all of what was asked for, and one plot of it.

A run without noise promises nothing: its epsilon is infinite. One that sends nothing keeps everything: it is 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .canvas import COLOURS, INK, MARKERS, MUTED, Plot, drawable, figure, finish, legend, log_axis
from .errors import SettingError, did_you_mean
from .tables import Result, at, decimals, human_bytes, method_name, number

if TYPE_CHECKING:
    from .tradeoff import Tradeoff

AXES = ("accuracy", "bytes", "epsilon", "rounds", "gradients")


@dataclass(frozen=True)
class Surface:
    """What was asked for, and the runs on its front."""

    axes: tuple[str, ...]
    points: list[dict[str, float | None]]  # by result, a number an axis; None where it is not known
    front: list[int]

    def summary(self, names: Sequence[str]) -> dict[str, Any]:
        finite = lambda x: None if x is None or math.isinf(x) else x
        told = [{"run": n, **{a: finite(v) for a, v in point.items()}} for n, point in zip(names, self.points)]
        return {"axes": list(self.axes), "points": told, "front": [names[i] for i in self.front]}


def parse_axes(text: str | None) -> tuple[str, ...]:
    """`accuracy,bytes,epsilon` -> names; accuracy and at least one cost."""
    if text is None:
        return ()
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    for name in names:
        if name not in AXES:
            raise SettingError(did_you_mean(name, AXES, "axis").replace("Axiss", "Axes"))
    if "accuracy" not in names or len(names) < 2:
        raise SettingError(f"--axes {text} was got; accuracy and a cost are expected: --axes accuracy,bytes,epsilon.")
    return names


def epsilon_of(result: Result) -> float:
    """What a run promises: infinity where nothing."""
    if number(at(result, "traffic", "up_bytes")) == 0:
        return 0.0
    found = number(at(result, "privacy", "epsilon"))
    return math.inf if found is None else found


def surface(axes: tuple[str, ...], weighed: Tradeoff, results: Sequence[Result]) -> Surface:
    """Where every run stands, and which of them no other beats in one axis without losing in another."""
    costs = weighed.costs | {"epsilon": [epsilon_of(result) for result in results], "accuracy": weighed.values}
    points = [{axis: costs[axis][i] for axis in axes} for i in range(len(results))]
    sign = {axis: -weighed.quality.better if axis == "accuracy" else 1 for axis in axes}
    known = [(i, [sign[a] * v for a, v in p.items() if v is not None]) for i, p in enumerate(points)]
    known = [(i, values) for i, values in known if len(values) == len(axes)]
    beaten = lambda mine: any(all(t <= m for t, m in zip(theirs, mine)) and theirs != mine for _, theirs in known)
    return Surface(axes, points, [i for i, values in known if not beaten(values)])


def surface_plot(weighed: Tradeoff, results: Sequence[Result]) -> Plot | None:
    """Accuracy by epsilon, a line a method; the larger a point, the more bytes."""
    found = weighed.surface
    if found is None or not {"accuracy", "epsilon"} <= set(found.axes):
        return None
    title, finite = weighed.quality.title, [e for p in found.points if (e := p["epsilon"]) and math.isfinite(e)]
    if not finite:
        return None
    drawing, axes = figure(f"Test {title} by privacy", "epsilon: smaller is more private", title)
    log_axis(axes, "x", min(finite), max(finite) * 4, lambda n: f"{n:g}")
    none, least = max(finite) * 4, min(finite) / 1.5  # where what promises nothing, or sends nothing, is drawn
    sizes = [p.get("bytes") or 0 for p in found.points]
    scale = lambda n: 6 + 3.2 * math.log10(1 + n / max(min(s for s in sizes if s > 0), 1)) if n and any(sizes) else 7
    methods = list(dict.fromkeys(method_name(result) for result in results))
    for place, method in enumerate(methods):
        mine = [
            i for i, result in enumerate(results) if method_name(result) == method and weighed.values[i] is not None
        ]
        at_x = {i: min(max(found.points[i]["epsilon"] or 0.0, least), none) for i in mine}
        mine.sort(key=at_x.__getitem__)
        colour, heights = COLOURS[place % 7], [weighed.values[i] or 0 for i in mine]
        axes.plot([at_x[i] for i in mine], heights, color=colour, lw=1.6, label=drawable(method))
        for i, height in zip(mine, heights):
            if interval := weighed.intervals[i]:
                axes.vlines(at_x[i], *interval, color=colour, lw=1.2, alpha=0.6)
            edge = (INK, 1.8) if i in found.front else (MUTED, 0.6)
            axes.plot(at_x[i], height, MARKERS[place % 7], color=colour, ms=scale(sizes[i]), mec=edge[0], mew=edge[1])
    if any(math.isinf(p["epsilon"] or 0.0) for p in found.points):
        axes.axvline(none, color=MUTED, lw=1, ls=":")
        axes.annotate("no promise", (none, axes.get_ylim()[0]), rotation=90, ha="right", va="bottom", color=MUTED)
    legend(drawing, axes)
    told = [_told(weighed, found, i) for i in range(len(results)) if weighed.values[i] is not None]
    caption = (
        f"Test {title} by what a run may tell of a person. Larger points sent more bytes; dark rims: nothing beats"
    )
    caption += f" them in {', '.join(found.axes)} at once. Bars are 95 % intervals."
    return finish("privacy", drawing, f"Test {title} by epsilon. " + "; ".join(told) + ".", caption)


def _told(weighed: Tradeoff, found: Surface, i: int) -> str:
    epsilon, sent = found.points[i]["epsilon"] or 0.0, human_bytes(found.points[i].get("bytes"))
    promise = "without a promise" if math.isinf(epsilon) else f"at epsilon {epsilon:.3g}"
    return f"{weighed.names[i]}: {decimals(weighed.values[i] or 0)} {promise}, {sent}"


def by_epsilon(weighed: Tradeoff, results: Sequence[Result]) -> str:
    """`With epsilon 1, FedVeil is best: 0.280; with 3, ...`, where runs differ in what they promise."""
    groups: dict[float, list[int]] = {}
    for i, result in enumerate(results):
        promised = number(at(result, "privacy", "epsilon"))
        if promised is not None and weighed.values[i] is not None:
            groups.setdefault(float(f"{promised:.2g}"), []).append(i)
    if not groups:
        return ""
    told = []
    for epsilon, places in sorted(groups.items()):
        best = max(places, key=lambda i: weighed.quality.better * (weighed.values[i] or 0))
        told.append(f"{epsilon:g}, {method_name(results[best])} ({decimals(weighed.values[best] or 0)})")
    return "Best with epsilon " + "; with ".join(told) + "."
