"""The report's plots, each drawn once and saved twice: PNG for a folder, SVG for a page.

Figures are built through matplotlib's object interface, so no global figure or backend is touched. Text of the user
reaches a plot only as a legend entry, cut to what the bundled font can draw. Colours are Okabe and Ito's.
"""

from __future__ import annotations

import io
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .tables import Result, at, decimals, human_bytes, labels, number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STYLES = ("-", "--", ":")
INK, MUTED, GRID = "#1f2329", "#575f6b", "#d5dae1"
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9", INK)
MARKERS = "osD^vPX"
DARK = {INK: "#e9ecf1", MUTED: "#aab2bf", GRID: "#3a424e", COLOURS[0]: "#4aa8e0"}  # the same SVG on a dark page
CURVE_METRICS = {
    "hr@10": "HR@10",
    "rmse": "RMSE",
    "accuracy": "accuracy",
    "ndcg@10": "NDCG@10",
    "weights_error": "weights’ error",
    "loss": "loss",
}


@dataclass(frozen=True)
class Plot:
    """A finished plot: `name`.png for the folder, two SVGs for the page, words for those who do not see it."""

    name: str
    png: bytes
    light: bytes
    dark: bytes
    alt: str
    caption: str


@dataclass(frozen=True)
class Curve:
    label: str
    rounds: list[float]
    sent: list[float]  # bytes up and down, all rounds so far, per person in training
    values: list[float]
    best_round: float | None


def draw(results: Sequence[Result], data: dict[str, Any] | None = None) -> list[Plot]:
    """All plots for which there is something to draw."""
    metric, found = curves(results)
    plots = []
    with _quiet_style():
        drawable = sum(len(curve.rounds) for curve in found) > 1  # a single dot tells nothing
        if drawable:
            plots.append(convergence(metric, found))
        if drawable and any(curve.sent for curve in found):
            plots.append(accuracy_by_bytes(metric, found))
        for name, one, many in (("activity", "person", "people"), ("popularity", "item", "items")):
            counts = np.asarray((data or {}).get(name, ()), dtype=float)
            if (counts > 0).sum() > 1:
                plots.append(ranks(name, counts[counts > 0], one, many))
    return plots


def curves(results: Sequence[Result]) -> tuple[str, list[Curve]]:
    """The metric that most results followed by round, and each result's curve of it."""

    def value(point: dict[str, Any], metric: str) -> float | None:
        return number(point.get("loss")) if metric == "loss" else number(at(point, "valid", metric))

    points = [[p for p in at(result, "curve") or () if number(at(p, "round")) is not None] for result in results]
    having = {key: sum(any(value(p, key) is not None for p in path) for path in points) for key in CURVE_METRICS}
    loss = having.pop("loss")
    metric = max(having, key=lambda key: having[key])  # the first in order among equals
    if loss and not having[metric]:  # nothing was validated
        metric = "loss"
    found = []
    for result, label, path in zip(results, labels(results), points):
        path = [p for p in path if value(p, metric) is not None]
        if path:
            people = number(at(result, "seen", "people")) or number(at(result, "people")) or 1
            sent = [((number(p.get("up_bytes")) or 0) + (number(p.get("down_bytes")) or 0)) / people for p in path]
            told = any(number(p.get("up_bytes")) is not None for p in path)
            rounds, values = [float(p["round"]) for p in path], [float(value(p, metric) or 0) for p in path]
            found.append(Curve(label, rounds, sent if told else [], values, number(at(result, "best_round"))))
    return metric, found


def convergence(metric: str, found: Sequence[Curve]) -> Plot:
    from matplotlib.ticker import MaxNLocator

    name = _metric_name(metric)
    figure, axes = _figure(f"{name} by round", "round", name)
    for i, curve in enumerate(found):
        _line(axes, i, curve.label, curve.rounds, curve.values)
        if curve.best_round in curve.rounds:
            y = curve.values[curve.rounds.index(curve.best_round)]
            axes.plot(curve.best_round, y, "*", ms=15, color=COLOURS[i % 7], mec=INK, mew=0.8, zorder=5)
    axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    if len({x for curve in found for x in curve.rounds}) == 1:  # one round only: no ticks at fractions of it
        axes.set_xlim(found[0].rounds[0] - 1, found[0].rounds[0] + 1)
    _legend(figure, axes, found)
    told = (
        f"{c.label}: {decimals(c.values[0])} after round {c.rounds[0]:.0f}, {decimals(c.values[-1])} after round "
        f"{c.rounds[-1]:.0f}" + (f", best round {c.best_round:.0f}" if c.best_round is not None else "")
        for c in found
    )
    caption = f"The {name} after each round."
    if any(curve.best_round in curve.rounds for curve in found):
        caption += " The star is the round that was kept."
    return _finish("convergence", figure, f"Line plot of {name} by round. " + "; ".join(told) + ".", caption)


def accuracy_by_bytes(metric: str, found: Sequence[Curve]) -> Plot:
    name = _metric_name(metric)
    figure, axes = _figure(f"{name} against bytes sent", "up and down per person, all rounds so far", name)
    told, seen = [], []
    for i, curve in enumerate(found):
        path = [(x, y) for x, y in zip(curve.sent, curve.values) if x > 0]
        seen += [x for x, _ in path]
        if path:
            _line(axes, i, curve.label, *zip(*path), ms=9, markevery=[-1], mec=INK, mew=0.8)
            told.append(f"{curve.label} ends at {human_bytes(path[-1][0])} with {decimals(path[-1][1])}")
        elif curve.sent:  # nothing sent has no place on a logarithmic axis: a level to reach instead
            axes.axhline(curve.values[-1], color=COLOURS[i % 7], ls=(0, (1, 1.5)), lw=2, label=_drawable(curve.label))
            told.append(f"{curve.label} sends nothing and has {decimals(curve.values[-1])}")
    if seen:
        _log_axis(axes, "x", min(seen), max(seen), lambda n: human_bytes(n).replace(".0 ", " "))
    else:
        axes.set_xticks([])
    _legend(figure, axes, found)
    caption = f"What {name} costs in traffic. The marker is the last round."
    if any(curve.sent and not any(curve.sent) for curve in found):
        caption += " A dotted level is a method that sends nothing."
    return _finish("bytes", figure, f"Line plot of {name} by bytes per person. " + "; ".join(told) + ".", caption)


def ranks(name: str, counts: np.ndarray, one: str, many: str) -> Plot:
    """Counts by rank on two logarithmic axes: a power law is a straight line."""
    counts = np.sort(counts)[::-1]
    title, unit = ("Activity", "interactions") if name == "activity" else ("Popularity", "people")
    figure, axes = _figure(f"{title}: {unit} per {one}", f"{many}, by rank", f"{unit} of the {one}")
    # 60,000 items would make a heavy page; ranks evenly spaced on the axis look the same
    shown = np.unique(np.geomspace(1, len(counts), 300).round().astype(int)) - 1
    axes.plot(shown + 1, counts[shown], color=COLOURS[0], lw=2.4)
    axes.fill_between(shown + 1, counts[shown], counts[-1], color=COLOURS[0], alpha=0.15, lw=0)
    middle = float(np.median(counts))
    axes.axhline(middle, color=MUTED, lw=1.2, ls=(0, (4, 3)))
    axes.annotate(f"median {middle:,.0f}", (1, middle), (4, 4), textcoords="offset points", color=MUTED, fontsize=10)
    _log_axis(axes, "x", 1, len(counts), _short)
    _log_axis(axes, "y", counts[-1], counts[0], _short)
    top = counts[: max(1, round(len(counts) / 10))].sum() / counts.sum()
    most = "most active tenth" if name == "activity" else "most popular tenth"
    caption = f"{len(counts):,} {many}; the {most} hold {100 * top:.0f}\u00a0% of all interactions."
    spread = f"from {counts[0]:,.0f} down to {counts[-1]:,.0f}, median {middle:,.0f}"
    return _finish(name, figure, f"Log-log plot of {unit} per {one} by rank: {spread}.", caption)


def _metric_name(metric: str) -> str:
    return "training loss" if metric == "loss" else f"validation {CURVE_METRICS[metric]}"


def _short(n: float) -> str:
    return f"{n:g}" if n < 1000 else f"{n / 1000:g}k" if n < 1e6 else f"{n / 1e6:g}M"


def _drawable(label: str) -> str:
    """A legend entry: printable Latin-1, which the bundled font has; short; no leading underscore, which hides it."""
    text = "".join(c if c.isprintable() and ord(c) < 256 else "?" for c in label).lstrip("_") or "?"
    return text if len(text) <= 28 else text[:27] + "…"


@contextmanager
def _quiet_style() -> Iterator[None]:
    """Our look, whatever the user's matplotlibrc says; and no word about font caches."""
    log = logging.getLogger("matplotlib")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        import matplotlib as mpl

        with mpl.rc_context():
            mpl.rcdefaults()
            mpl.rcParams.update(
                {
                    "svg.hashsalt": "tacit",  # ids from content, not from chance
                    "text.parse_math": False,  # a $ in a label is a $
                    "font.family": "DejaVu Sans",  # comes with matplotlib
                    "font.size": 11,
                    "text.color": INK,
                    "axes.labelcolor": MUTED,
                    "xtick.color": MUTED,
                    "ytick.color": MUTED,
                    "axes.edgecolor": MUTED,
                    "axes.titlesize": 12.5,
                    "axes.titleweight": "bold",
                    "axes.titlelocation": "left",
                    "axes.titlepad": 10,
                    "axes.spines.top": False,
                    "axes.spines.right": False,
                    "axes.grid": True,
                    "axes.axisbelow": True,
                    "grid.color": GRID,
                    "legend.frameon": False,
                }
            )
            yield
    finally:
        log.setLevel(level)


def _figure(title: str, x: str, y: str) -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.2, 4.2), layout="constrained", facecolor="white")
    axes = figure.add_subplot(facecolor="none", title=title[0].upper() + title[1:], xlabel=x, ylabel=y)
    return figure, axes


def _line(axes: Axes, i: int, label: str, x: Sequence[float], y: Sequence[float], **look: Any) -> None:
    """Colour, marker and dash all tell methods apart, for eyes that do not tell colours."""
    look = {"ms": 6, "markevery": max(1, len(x) // 12), **look}
    style, colour, marker = STYLES[i // 7 % 3], COLOURS[i % 7], MARKERS[(i + i // 7) % 7]
    axes.plot(x, y, style, color=colour, marker=marker, lw=2.2, label=_drawable(label), **look)


def _legend(figure: Figure, axes: Axes, found: Sequence[Curve]) -> None:
    if len(found) > 1:
        handles, names = axes.get_legend_handles_labels()
        wide = max(map(len, names), default=0)
        columns = 3 if wide <= 14 else 2 if wide <= 24 else 1
        figure.legend(handles, names, loc="outside lower left", ncols=columns, fontsize=10, handlelength=1.8)


def _log_axis(axes: Axes, which: str, low: float, high: float, write: Callable[[float], str]) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    # our own ticks: matplotlib's may be one or none where all values lie within a decade
    low, high = (low / 1.5, high * 1.5) if high < 2 * low else (low, high)
    decades = math.log10(high / low)
    steps = (1,) if decades > 3 else (1, 3) if decades > 1.5 else (1, 2, 5) if decades > 0.7 else (1, 1.5, 2, 3, 5, 7)
    powers = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 2)
    axis = getattr(axes, f"{which}axis")
    getattr(axes, f"set_{which}scale")("log")
    pad = (high / low) ** 0.06
    low, high = low / pad, high * pad
    axis.set_major_locator(FixedLocator([t for p in powers for s in steps if low <= (t := s * 10.0**p) <= high]))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda n, _: write(n)))
    getattr(axes, f"set_{which}lim")(low, high)


def _finish(name: str, figure: Figure, alt: str, caption: str) -> Plot:
    png, svg = io.BytesIO(), io.BytesIO()
    figure.savefig(png, format="png", dpi=160, metadata={"Software": None})
    figure.set_layout_engine("none")  # placed by the first drawing; the second need not do it again
    figure.savefig(svg, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    light = svg.getvalue()
    dark = light
    for ours, theirs in DARK.items():
        dark = dark.replace(ours.encode(), theirs.encode())
    return Plot(name, png.getvalue(), light, dark, alt, caption)
