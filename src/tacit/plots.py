"""The report's plots of results by round, by bytes, by seconds, and of the data: each drawn once (canvas.py)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from .axes import surface_plot
from .canvas import COLOURS, INK, MUTED, Plot, drawable, figure, finish, legend, line, log_axis, quiet_style, short
from .clouds import Plane, clouds
from .federation_plot import nodes_plot
from .tables import Result, at, decimals, digits, human_bytes, human_seconds, labels, number, pair, protocols
from .tradeoff import Tradeoff
from .tradeoff_plots import front_plot, sweep_plot

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CURVE_METRICS = {
    "hr@10": "HR@10",
    "rmse": "RMSE",
    "accuracy": "accuracy",
    "ndcg@10": "NDCG@10",
    "weights_error": "weights’ error",
    "loss": "loss",
}
Point = dict[str, Any]


@dataclass(frozen=True)
class Curve:
    place: int  # which result it is of: its colour, the same in all plots
    label: str
    rounds: list[float]
    sent: list[float]  # bytes up and down, all rounds so far, per person in training
    seconds: list[float]  # of training, all rounds so far
    values: list[float]
    best_round: float | None
    gradients: list[float]  # a person's passes over their own data, all rounds so far; empty if a round does not tell


def draw(
    results: Sequence[Result], data: dict[str, Any] | None = None, planes: Sequence[Plane | None] = (),
    weighed: Tradeoff | None = None,
) -> list[Plot]:  # fmt: skip
    """All plots for which there is something to draw; `planes` are the results' item rows, in the same order."""
    metric, found = curves(results)
    name = _metric_name(metric, results)
    with quiet_style():
        weighing = (f(weighed, results) for f in (surface_plot, front_plot, sweep_plot)) if weighed else ()
        plots = [plot for plot in weighing if plot]
        if _tells(found):
            plots.append(convergence(name, found, memories(results) if metric == "hr@10" else []))
            if any(curve.sent for curve in found):
                plots.append(accuracy_by_bytes(name, found))
            if len(results) > 1 and _own_pace(found):
                plots.append(accuracy_by_gradients(name, found))
            if len(results) > 1 and any(curve.seconds for curve in found):
                plots.append(accuracy_by_seconds(name, found))
        plots += _small(results, metric)
        plots += [plot for plot in [nodes_plot(results)] if plot]
        shown = [(label, plane) for label, plane in zip(labels(results), planes) if plane is not None]
        if shown:
            plots.append(clouds(shown))
        for name, one, many in (("activity", "person", "people"), ("popularity", "item", "items")):
            counts = np.asarray((data or {}).get(name, ()), dtype=float)
            if (counts > 0).sum() > 1:
                plots.append(ranks(name, counts[counts > 0], one, many))
    return plots


def _tells(found: Sequence[Curve]) -> bool:
    return sum(len(curve.rounds) for curve in found) > 1  # a single dot tells nothing


def curves(results: Sequence[Result]) -> tuple[str, list[Curve]]:
    """The metric that most results followed by round, and each result's curve of it."""

    def value(point: Point, metric: str) -> float | None:
        return number(point.get("loss")) if metric == "loss" else number(at(point, "valid", metric))

    paths = [_points(result) for result in results]
    having = {key: sum(any(value(p, key) is not None for p in path) for path in paths) for key in CURVE_METRICS}
    loss = having.pop("loss")
    metric = max(having, key=lambda key: having[key])  # the first in order among equals
    if loss and not having[metric]:  # nothing was validated
        metric = "loss"
    return metric, follow(results, lambda point: value(point, metric))


def follow(results: Sequence[Result], value: Callable[[Point], float | None]) -> list[Curve]:
    """The curve of a value for every result that has it in some round."""
    found = []
    for place, (result, label) in enumerate(zip(results, labels(results))):
        path = [(p, y) for p in _points(result) if (y := value(p)) is not None]
        if path:
            people, lap = _people(result), number(at(result, "seconds", "round"))
            sent = [((number(p.get("up_bytes")) or 0) + (number(p.get("down_bytes")) or 0)) / people for p, _ in path]
            told = any(number(p.get("up_bytes")) is not None for p, _ in path)
            rounds, values = [float(p["round"]) for p, _ in path], [float(y) for _, y in path]
            seconds = [n * lap for n in rounds] if lap else []
            best = number(at(result, "best_round"))
            passes = [number(p.get("gradients")) for p, _ in path]
            gradients = [n for n in passes if n is not None and n > 0]
            gradients = gradients if len(gradients) == len(path) else []
            found.append(Curve(place, label, rounds, sent if told else [], seconds, values, best, gradients))
    return found


def _own_pace(found: Sequence[Curve]) -> bool:
    """Whether gradients are more than rounds times one number for all, which the plot by round shows already."""
    paces = [n / of for curve in found for n, of in zip(curve.gradients, curve.rounds) if of]
    return bool(paces) and max(paces) > min(paces) * (1 + 1e-6)


def _points(result: Result) -> list[Point]:
    return [p for p in at(result, "curve") or () if number(at(p, "round")) is not None]


def _people(result: Result) -> float:
    return number(at(result, "seen", "people")) or number(at(result, "people")) or 1


def memories(results: Sequence[Result]) -> list[list[tuple[float, float]]]:
    """The leak detector's (round, HR@10); once where runs share it."""
    told = [tuple(filter(None, map(pair, at(result, "leak", "memoriser_curve") or ()))) for result in results]
    return [list(path) for path in dict.fromkeys(told) if path]


def convergence(name: str, found: Sequence[Curve], memory: Sequence[Sequence[tuple[float, float]]] = ()) -> Plot:
    drawing, axes = figure(f"{name} by round", "round", name)
    for curve in found:
        line(axes, curve.place, curve.label, curve.rounds, curve.values)
        if curve.best_round in curve.rounds:
            y, colour = curve.values[curve.rounds.index(curve.best_round)], COLOURS[curve.place % 7]
            axes.plot(curve.best_round, y, "*", ms=15, color=colour, mec=INK, mew=0.8, zorder=5)
    told, last = [_ends(curve) for curve in found], max(curve.rounds[-1] for curve in found)
    caption = f"The {name} after each round."
    if any(curve.best_round in curve.rounds for curve in found):
        caption += " The star is the round that was kept."
    if remembered := _memory(axes, memory, last):
        told += remembered
        caption += " Grey, dashed: a memory of the negatives drawn in training, which learns nothing."
    _whole_rounds(axes, found)
    legend(drawing, axes)
    return finish("convergence", drawing, f"Line plot of {name} by round. " + "; ".join(told) + ".", caption)


def _memory(axes: Axes, memory: Sequence[Sequence[tuple[float, float]]], last: float) -> list[str]:
    """Draw what remembering alone reaches, up to the last round of the methods, and tell it."""
    told: list[str] = []
    for path in memory:
        rounds, values = zip(*path)
        end = min(last, rounds[-1])
        if end > rounds[0]:
            x = [n for n in rounds if n < end] + [end]
            y = np.interp(x, rounds, values).tolist()
            axes.plot(x, y, color=MUTED, ls=(0, (4, 3)), lw=1.8, label="" if told else "memory, no learning")
            told.append(f"a memory that learns nothing: {decimals(y[-1])} after round {end:.0f}")
    return told


def _ends(curve: Curve, write: Callable[[float], str] = decimals) -> str:
    best = f", best round {curve.best_round:.0f}" if curve.best_round is not None else ""
    first, last = (f"{write(curve.values[i])} after round {curve.rounds[i]:.0f}" for i in (0, -1))
    return f"{curve.label}: {first}, {last}{best}"


def _whole_rounds(axes: Axes, found: Sequence[Curve]) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    if len({x for curve in found for x in curve.rounds}) == 1:  # one round only: no ticks at fractions of it
        axes.set_xlim(found[0].rounds[0] - 1, found[0].rounds[0] + 1)


def accuracy_by_bytes(name: str, found: Sequence[Curve]) -> Plot:
    drawing, axes = figure(f"{name} against bytes sent", "up and down per person, all rounds so far", name)
    told, seen = [], []
    for curve in found:
        path = [(x, y) for x, y in zip(curve.sent, curve.values) if x > 0]
        seen += [x for x, _ in path]
        if path:
            line(axes, curve.place, curve.label, *zip(*path), ms=9, markevery=[-1], mec=INK, mew=0.8)
            told.append(f"{curve.label} ends at {human_bytes(path[-1][0])} with {decimals(path[-1][1])}")
        elif curve.sent:  # nothing sent has no place on a logarithmic axis: a level to reach instead
            colour, name_shown = COLOURS[curve.place % 7], drawable(curve.label)
            axes.axhline(curve.values[-1], color=colour, ls=(0, (1, 1.5)), lw=2, label=name_shown)
            told.append(f"{curve.label} sends nothing and has {decimals(curve.values[-1])}")
    if seen:
        log_axis(axes, "x", min(seen), max(seen), lambda n: human_bytes(n).replace(".0 ", " "))
    else:
        axes.set_xticks([])
    legend(drawing, axes)
    caption = f"What {name} costs in traffic. The marker is the last round."
    if any(curve.sent and not any(curve.sent) for curve in found):
        caption += " A dotted level is a method that sends nothing."
    return finish("bytes", drawing, f"Line plot of {name} by bytes per person. " + "; ".join(told) + ".", caption)


def accuracy_by_gradients(name: str, found: Sequence[Curve]) -> Plot:
    drawing, axes = figure(f"{name} against computation", "gradient evaluations per person, all rounds so far", name)
    known = [curve for curve in found if curve.gradients]
    for curve in known:
        line(axes, curve.place, curve.label, curve.gradients, curve.values, ms=9, markevery=[-1], mec=INK, mew=0.8)
    seen = [x for curve in known for x in curve.gradients]
    log_axis(axes, "x", min(seen), max(seen), short)
    legend(drawing, axes)
    told = [f"{c.label} ends at {digits(c.gradients[-1])} with {decimals(c.values[-1])}" for c in known]
    caption = f"What {name} costs in computation: one evaluation is one pass over a person’s own data."
    alt = f"Line plot of {name} by gradient evaluations per person. " + "; ".join(told) + "."
    return finish("gradients", drawing, alt, caption)


def accuracy_by_seconds(name: str, found: Sequence[Curve]) -> Plot:
    """Rounds are laid out by the median round: compiling a kernel in the first one is no cost of the method."""
    drawing, axes = figure(f"{name} against training time", "seconds of training, all rounds so far", name)
    timed = [curve for curve in found if curve.seconds]
    for curve in timed:
        line(axes, curve.place, curve.label, curve.seconds, curve.values, ms=9, markevery=[-1], mec=INK, mew=0.8)
    seen = [x for curve in timed for x in curve.seconds]
    log_axis(axes, "x", min(seen), max(seen), short)
    legend(drawing, axes)
    told = [f"{c.label} ends at {human_seconds(c.seconds[-1])} with {decimals(c.values[-1])}" for c in timed]
    laps = ", ".join(f"{c.label} {human_seconds(c.seconds[0] / c.rounds[0])}".replace(" ", "\u00a0") for c in timed)
    caption = f"What {name} costs in time, as rounds times the median round (compiling left out). A round: {laps}."
    return finish("seconds", drawing, f"Line plot of {name} by seconds. " + "; ".join(told) + ".", caption)


def _small(results: Sequence[Result], metric: str) -> list[Plot]:
    """By round what is not accuracy: training loss; and where the shared part has zeros, how many, and what a download
    then weighs."""
    plots = []
    loss = follow(results, lambda point: number(point.get("loss")))
    if metric != "loss" and _tells(loss):
        said = "People’s own training loss in each round, the method’s penalties included."
        plots.append(by_round("loss", "training loss", loss, decimals, said))
    zeros = follow(results, lambda point: number(point.get("zeros")))
    if _tells(zeros) and any(value for curve in zeros for value in curve.values):
        said = "The share of exact zeros among the shared numbers after each round."
        plots.append(by_round("zeros", "zeros in the shared part", zeros, lambda n: f"{100 * n:.3g} %", said))
        said = "What a person downloads in a round, on average over all people; less where zeros are not sent."
        if down := downloads(results):
            plots.append(by_round("down", "download per person", down, human_bytes, said))
    return plots


def downloads(results: Sequence[Result]) -> list[Curve]:
    """Bytes down per person in each round, from sums over the rounds so far."""
    found = []
    for curve in follow(results, lambda point: number(point.get("down_bytes"))):
        gaps = np.diff(curve.values, prepend=0) / np.diff(curve.rounds, prepend=0) / _people(results[curve.place])
        found.append(replace(curve, values=gaps.tolist()))
    return found


def by_round(name: str, title: str, found: Sequence[Curve], write: Callable[[float], str], caption: str) -> Plot:
    from matplotlib.ticker import FuncFormatter

    drawing, axes = figure(f"{title} by round", "round", title)
    for curve in found:
        line(axes, curve.place, curve.label, curve.rounds, curve.values)
    if write is not decimals:  # shares and bytes begin at nothing; a loss may be below
        top = max(y for curve in found for y in curve.values) or 1
        axes.set_ylim(-0.03 * top, 1.08 * top)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda n, _: write(n).replace(".0 ", " ")))
    _whole_rounds(axes, found)
    legend(drawing, axes)
    told = "; ".join(_ends(replace(curve, best_round=None), write) for curve in found)
    return finish(name, drawing, f"Line plot of {title} by round. {told}.", caption)


def ranks(name: str, counts: np.ndarray, one: str, many: str) -> Plot:
    """Counts by rank on two logarithmic axes: a power law is a straight line."""
    counts = np.sort(counts)[::-1]
    title, unit = ("Activity", "interactions") if name == "activity" else ("Popularity", "people")
    drawing, axes = figure(f"{title}: {unit} per {one}", f"{many}, by rank", f"{unit} of the {one}")
    # 60,000 items would make a heavy page; ranks evenly spaced on the axis look the same
    shown = np.unique(np.geomspace(1, len(counts), 300).round().astype(int)) - 1
    axes.plot(shown + 1, counts[shown], color=COLOURS[0], lw=2.4)
    axes.fill_between(shown + 1, counts[shown], counts[-1], color=COLOURS[0], alpha=0.15, lw=0)
    middle = float(np.median(counts))
    axes.axhline(middle, color=MUTED, lw=1.2, ls=(0, (4, 3)))
    axes.annotate(f"median {middle:,.0f}", (1, middle), (4, 4), textcoords="offset points", color=MUTED, fontsize=10)
    log_axis(axes, "x", 1, len(counts), short)
    log_axis(axes, "y", counts[-1], counts[0], short)
    top = counts[: max(1, round(len(counts) / 10))].sum() / counts.sum()
    most = "most active tenth" if name == "activity" else "most popular tenth"
    caption = f"{len(counts):,} {many}; the {most} hold {100 * top:.0f}\u00a0% of all interactions."
    spread = f"from {counts[0]:,.0f} down to {counts[-1]:,.0f}, median {middle:,.0f}"
    return finish(name, drawing, f"Log-log plot of {unit} per {one} by rank: {spread}.", caption)


def _metric_name(metric: str, results: Sequence[Result]) -> str:
    """The published protocol chooses its round on test, and then that is what the curve shows."""
    if metric == "loss":
        return "training loss"
    where = "test" if protocols(results) == ["published"] else "validation"
    return f"{where} {CURVE_METRICS[metric]}"
