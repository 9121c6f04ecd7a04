"""All plots of a report (`draw`); here: metrics by round, bytes, gradients and seconds; activity and popularity."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fedtaste.experiment.result import CurvePoint, RunResult
from fedtaste.report.federation_plot import nodes_plot
from fedtaste.report.group_plot import group_plots
from fedtaste.report.item_scatter import Plane, item_plot
from fedtaste.report.numbers import decimals, digits, human_bytes, human_seconds
from fedtaste.report.style import (
    COLOURS,
    INK,
    MUTED,
    Plot,
    drawable,
    figure,
    finish,
    legend,
    line,
    log_axis,
    quiet_style,
    short,
    short_bytes,
)
from fedtaste.report.tables import labels, protocols
from fedtaste.report.trade_off import Tradeoff
from fedtaste.report.trade_off_plots import front_plot, surface_plot, sweep_plot
from fedtaste.result_part import JsonObject

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CURVE_METRICS = {
    "hr@10": "HR@10", "rmse": "RMSE", "accuracy": "accuracy", "ndcg@10": "NDCG@10",
    "weights_error": "weights’ error", "loss": "loss",
}  # fmt: skip
Memory = Sequence[tuple[int, float]]  # (round, HR@10) of the leak detector
MARK_LAST: JsonObject = {"ms": 9, "markevery": [-1], "mec": INK, "mew": 0.8}  # a marker on the last point only


@dataclass(frozen=True)
class DataShape:
    """How active people are (`activity`: interactions of each) and how popular items (`popularity`: people of each)."""

    activity: Sequence[int] = ()
    popularity: Sequence[int] = ()


@dataclass(frozen=True)
class Curve:
    """One value of a result in the rounds that have it."""

    place: int  # index of the result, which decides the colour in all plots
    label: str
    points: tuple[CurvePoint, ...]
    values: list[float]
    best_round: int
    people: int  # over whom bytes are averaged
    round_seconds: float | None  # of the median round

    @property
    def rounds(self) -> list[int]:
        return [point.round for point in self.points]

    @property
    def sent(self) -> list[float]:
        """Bytes up and down per person, in all rounds so far."""
        return [(point.up_bytes + point.down_bytes) / self.people for point in self.points]

    @property
    def seconds(self) -> list[float]:
        """Seconds of training so far, as rounds times the median round: compiling a kernel is no cost of a method."""
        return [n * self.round_seconds for n in self.rounds] if self.round_seconds else []

    @property
    def gradients(self) -> list[float]:
        """A person's gradient evaluations in all rounds so far; empty where they are not known of every round."""
        known = [point.gradients for point in self.points if point.gradients]
        return known if len(known) == len(self.points) else []


def draw(
    results: Sequence[RunResult],
    data: DataShape | None = None,
    planes: Sequence[Plane | None] = (),
    tradeoff: Tradeoff | None = None,
) -> list[Plot]:
    """All plots for which there is something to draw; `planes` are the results' item rows, in the same order."""
    metric, lines = curves(results)
    name = _metric_name(metric, results)
    with quiet_style():
        plots: list[Plot | None] = []
        if tradeoff:
            plots += [surface_plot(tradeoff, results), front_plot(tradeoff), sweep_plot(tradeoff, results)]
        if _has_line(lines):
            plots.append(convergence(name, lines, memories(results) if metric == "hr@10" else []))
            plots.append(accuracy_by_bytes(name, lines))
            if len(results) > 1:
                plots += [accuracy_by_gradients(name, lines), accuracy_by_seconds(name, lines)]
        plots += [*_other_plots(results, metric), *group_plots(results), nodes_plot(results)]
        shown = [(label, plane) for label, plane in zip(labels(results), planes) if plane is not None]
        plots.append(item_plot(shown) if shown else None)
        data = data or DataShape()
        plots += [_ranks("activity", data.activity), _ranks("popularity", data.popularity)]
    return [plot for plot in plots if plot]


def _has_line(lines: Sequence[Curve]) -> bool:
    return sum(len(curve.points) for curve in lines) > 1  # a single dot tells nothing


def curves(results: Sequence[RunResult]) -> tuple[str, list[Curve]]:
    """The metric that most results measured by round, and each result's curve of it."""

    def value(point: CurvePoint, metric: str) -> float | None:
        return point.loss if metric == "loss" else (point.valid or {}).get(metric)

    counts = {key: sum(any(value(p, key) is not None for p in r.curve) for r in results) for key in CURVE_METRICS}
    losses = counts.pop("loss")
    metric = max(counts, key=counts.__getitem__)  # the first in order among equals
    if losses and not counts[metric]:  # nothing was validated
        metric = "loss"
    return metric, follow(results, lambda point: value(point, metric))


def follow(results: Sequence[RunResult], value: Callable[[CurvePoint], float | None]) -> list[Curve]:
    """The curve of a value for every result that has it in some round."""
    lines = []
    for place, (result, label) in enumerate(zip(results, labels(results))):
        path = [(point, y) for point in result.curve if (y := value(point)) is not None]
        if path:
            points, values = zip(*path)
            people = result.seen.people or result.people or 1
            lines.append(Curve(place, label, points, list(values), result.best_round, people, result.seconds.round))
    return lines


def memories(results: Sequence[RunResult]) -> list[Memory]:
    """The leak detector's (round, HR@10); once where runs share it."""
    paths = [result.leak.memoriser_curve for result in results if result.leak and result.leak.memoriser_curve]
    return list(dict.fromkeys(paths))


def convergence(name: str, lines: Sequence[Curve], memory: Sequence[Memory] = ()) -> Plot:
    """The metric by round, with a star at the round that was kept."""
    drawing, axes = _draw_by_round(name, lines)
    starred = [curve for curve in lines if curve.best_round in curve.rounds]
    for curve in starred:
        y, colour = curve.values[curve.rounds.index(curve.best_round)], COLOURS[curve.place % 7]
        axes.plot(curve.best_round, y, "*", ms=15, color=colour, mec=INK, mew=0.8, zorder=5)
    words = [f"{_ends(curve)}, best round {curve.best_round}" for curve in lines]
    caption = f"The {name} after each round." + (" The star is the round that was kept." if starred else "")
    if remembered := _draw_memory(axes, memory, max(curve.rounds[-1] for curve in lines)):
        words += remembered
        caption += " Grey, dashed: a memory of the negatives drawn in training, which learns nothing."
    legend(drawing, axes)
    return finish("convergence", drawing, f"Line plot of {name} by round. " + "; ".join(words) + ".", caption)


def _draw_by_round(title: str, lines: Sequence[Curve]) -> tuple[Figure, Axes]:
    """A figure of these curves by round."""
    from matplotlib.ticker import MaxNLocator

    drawing, axes = figure(f"{title} by round", "round", title)
    for curve in lines:
        line(axes, curve.place, curve.label, curve.rounds, curve.values)
    axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    rounds = {x for curve in lines for x in curve.rounds}
    if len(rounds) == 1:  # no ticks at fractions of the only round
        axes.set_xlim(min(rounds) - 1, max(rounds) + 1)
    return drawing, axes


def _draw_memory(axes: Axes, memory: Sequence[Memory], last: int) -> list[str]:
    """Draw what memory without learning reaches, up to the last round of the methods; return it in words."""
    words: list[str] = []
    for path in memory:
        rounds, values = zip(*path)
        end = min(last, rounds[-1])
        if end > rounds[0]:
            x = [n for n in rounds if n < end] + [end]
            y = np.interp(x, rounds, values).tolist()
            axes.plot(x, y, color=MUTED, ls=(0, (4, 3)), lw=1.8, label="" if words else "memory, no learning")
            words.append(f"a memory that learns nothing: {decimals(y[-1])} after round {end}")
    return words


def _ends(curve: Curve, write: Callable[[float], str] = decimals) -> str:
    first, last = (f"{write(curve.values[i])} after round {curve.rounds[i]}" for i in (0, -1))
    return f"{curve.label}: {first}, {last}"


def accuracy_by_bytes(name: str, lines: Sequence[Curve]) -> Plot:
    """The metric by bytes sent."""
    caption = f"What {name} costs in traffic. The marker is the last round."
    if not all(any(curve.sent) for curve in lines):
        caption += " A dotted level is a method that sends nothing."
    cost = Cost("bytes", "bytes sent", "up and down per person", "bytes per person", human_bytes, short_bytes)
    return _by_cost(name, cost, [(curve, curve.sent) for curve in lines], caption)


def accuracy_by_gradients(name: str, lines: Sequence[Curve]) -> Plot | None:
    """The metric by computation, unless all methods take the same number of gradients in a round, which the plot by
    round shows already."""
    paces = [n / of for curve in lines for n, of in zip(curve.gradients, curve.rounds) if of]
    if not paces or max(paces) <= min(paces) * (1 + 1e-6):
        return None
    caption = f"What {name} costs in computation: one evaluation is one pass over a person’s own data."
    unit = "gradient evaluations per person"
    counted = [(curve, curve.gradients) for curve in lines if curve.gradients]
    return _by_cost(name, Cost("gradients", "computation", unit, unit, digits), counted, caption)


def accuracy_by_seconds(name: str, lines: Sequence[Curve]) -> Plot | None:
    """The metric by training time."""
    timed = [(curve, curve.seconds) for curve in lines if curve.seconds]
    if not timed:
        return None
    laps = ", ".join(f"{curve.label} {human_seconds(curve.round_seconds)}".replace(" ", "\u00a0") for curve, _ in timed)
    caption = f"What {name} costs in time, as rounds times the median round (compiling left out). A round: {laps}."
    cost = Cost("seconds", "training time", "seconds of training", "seconds", human_seconds)
    return _by_cost(name, cost, timed, caption)


class Cost(NamedTuple):
    """What a person pays in a round."""

    plot: str  # the name of the plot
    title: str
    axis: str
    alt: str  # in the description for readers who do not see the plot
    write: Callable[[float], str]
    tick: Callable[[float], str] = short


def _by_cost(name: str, cost: Cost, paths: Sequence[tuple[Curve, list[float]]], caption: str) -> Plot:
    """The metric by what a person has paid in all rounds so far. A method that pays nothing has no place on a
    logarithmic axis: it is drawn as a level."""
    drawing, axes = figure(f"{name} against {cost.title}", f"{cost.axis}, all rounds so far", name)
    words, all_paid = [], []
    for curve, paid in paths:
        path = [(x, y) for x, y in zip(paid, curve.values) if x > 0]
        all_paid += [x for x, _ in path]
        if path:
            x, y = zip(*path)
            line(axes, curve.place, curve.label, x, y, **MARK_LAST)
            words.append(f"{curve.label} ends at {cost.write(x[-1])} with {decimals(y[-1])}")
        else:
            level, colour = curve.values[-1], COLOURS[curve.place % 7]
            axes.axhline(level, color=colour, ls=(0, (1, 1.5)), lw=2, label=drawable(curve.label))
            words.append(f"{curve.label} sends nothing and has {decimals(level)}")
    if all_paid:
        log_axis(axes, "x", min(all_paid), max(all_paid), cost.tick)
    else:
        axes.set_xticks([])
    legend(drawing, axes)
    return finish(cost.plot, drawing, f"Line plot of {name} by {cost.alt}. {'; '.join(words)}.", caption)


def _other_plots(results: Sequence[RunResult], metric: str) -> Iterable[Plot]:
    """Training loss by round and, where the shared parameters have zeros, their share and the size of a download."""
    loss = follow(results, lambda point: point.loss)
    if metric != "loss" and _has_line(loss):
        caption = "People’s own training loss in each round, the method’s penalties included."
        yield by_round("loss", "training loss", loss, decimals, caption)
    zeros = follow(results, lambda point: point.zeros)
    if _has_line(zeros) and any(value for curve in zeros for value in curve.values):
        caption = "The share of exact zeros among the shared numbers after each round."
        yield by_round("zeros", "zeros in the shared part", zeros, lambda n: f"{100 * n:.3g} %", caption)
        caption = "What a person downloads in a round, on average over all people; less where zeros are not sent."
        yield by_round("down", "download per person", downloads(results), human_bytes, caption)


def downloads(results: Sequence[RunResult]) -> list[Curve]:
    """Bytes down per person in each round, from sums over the rounds so far."""
    lines = []
    for curve in follow(results, lambda point: point.down_bytes):
        per_person = np.diff(curve.values, prepend=0) / np.diff(curve.rounds, prepend=0) / curve.people
        lines.append(replace(curve, values=per_person.tolist()))
    return lines


def by_round(name: str, title: str, lines: Sequence[Curve], write: Callable[[float], str], caption: str) -> Plot:
    """A plot of one value by round."""
    from matplotlib.ticker import FuncFormatter

    drawing, axes = _draw_by_round(title, lines)
    if write is not decimals:  # shares and bytes begin at nothing; a loss may be below
        top = max(y for curve in lines for y in curve.values) or 1
        axes.set_ylim(-0.03 * top, 1.08 * top)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda n, _: write(n).replace(".0 ", " ")))
    legend(drawing, axes)
    words = "; ".join(_ends(curve, write) for curve in lines)
    return finish(name, drawing, f"Line plot of {title} by round. {words}.", caption)


def _ranks(name: str, counts: Sequence[int]) -> Plot | None:
    """Counts by rank on two logarithmic axes: a power law is a straight line."""
    ordered = np.sort(np.asarray(counts, float))[::-1]
    ordered = ordered[ordered > 0]
    if len(ordered) < 2:
        return None
    title, unit, one, many, most = {
        "activity": ("Activity", "interactions", "person", "people", "most active tenth"),
        "popularity": ("Popularity", "people", "item", "items", "most popular tenth"),
    }[name]
    drawing, axes = figure(f"{title}: {unit} per {one}", f"{many}, by rank", f"{unit} of the {one}")
    # 60,000 items would make a heavy page; ranks evenly spaced on the axis look the same
    shown = np.unique(np.geomspace(1, len(ordered), 300).round().astype(int)) - 1
    axes.plot(shown + 1, ordered[shown], color=COLOURS[0], lw=2.4)
    axes.fill_between(shown + 1, ordered[shown], ordered[-1], color=COLOURS[0], alpha=0.15, lw=0)
    middle = float(np.median(ordered))
    axes.axhline(middle, color=MUTED, lw=1.2, ls=(0, (4, 3)))
    axes.annotate(f"median {middle:,.0f}", (1, middle), (4, 4), textcoords="offset points", color=MUTED, fontsize=10)
    log_axis(axes, "x", 1, len(ordered), short)
    log_axis(axes, "y", ordered[-1], ordered[0], short)
    top = ordered[: max(1, round(len(ordered) / 10))].sum() / ordered.sum()
    caption = f"{len(ordered):,} {many}; the {most} hold {100 * top:.0f}\u00a0% of all interactions."
    spread = f"from {ordered[0]:,.0f} down to {ordered[-1]:,.0f}, median {middle:,.0f}"
    return finish(name, drawing, f"Log-log plot of {unit} per {one} by rank: {spread}.", caption)


def _metric_name(metric: str, results: Sequence[RunResult]) -> str:
    """The published protocol chooses its round on test, and then that is what the curve shows."""
    if metric == "loss":
        return "training loss"
    where = "test" if protocols(results) == ["published"] else "validation"
    return f"{where} {CURVE_METRICS[metric]}"
