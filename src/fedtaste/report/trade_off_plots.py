"""The plots of a trade-off: quality by bytes with its front, quality by a swept setting, quality by epsilon."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedtaste.experiment.result import RunResult
from fedtaste.report.numbers import decimals, human_bytes, interval_text
from fedtaste.report.style import (
    COLOURS,
    INK,
    MARKERS,
    MUTED,
    Plot,
    drawable,
    figure,
    finish,
    legend,
    line,
    log_axis,
    short,
    short_bytes,
)
from fedtaste.report.tables import method_name
from fedtaste.report.trade_off import BY_KEY, Sweep, Tradeoff, method_key
from fedtaste.result_part import Interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LEVELS = {"local": (0, (1, 1.5)), "fedavg": (0, (5, 2)), "centralised": (0, (5, 2, 1, 2))}  # dashes of the levels


def front_plot(tradeoff: Tradeoff) -> Plot | None:
    """Every run as a point with its interval; a step line through those that nothing beats."""
    paid, values = tradeoff.costs["bytes"], tradeoff.levels
    title = f"{tradeoff.basis} {tradeoff.quality.title}"
    places = [i for i, (cost, value) in enumerate(zip(paid, values)) if cost is not None and value is not None]
    sent = [cost for i in places if (cost := paid[i])]
    if len(places) < 2 or not sent:
        return None
    drawing, axes = figure(f"Trade-off: {title} against bytes", "bytes up and down, all people and rounds", title)
    log_axis(axes, "x", min(sent), max(sent), short_bytes)
    left, right = axes.get_xlim()
    front = sorted((paid[i] or left, value) for i in tradeoff.fronts["bytes"] if (value := values[i]) is not None)
    costs, levels = zip(*front, (right, front[-1][1]))
    axes.step(costs, levels, where="post", color=MUTED, lw=6, alpha=0.25, label="front", solid_capstyle="butt")
    for i in places:
        _point(axes, tradeoff, i, paid[i] or 0, values[i] or 0)
    words = [_describe(tradeoff, i, paid[i] or 0) for i in places]
    legend(drawing, axes)
    caption = f"The {title} and all traffic of every run. On the grey front, no run is as good for fewer bytes."
    caption += _bars(tradeoff, "Bars")
    caption += " A dotted level is a run that sends nothing." if len(sent) < len(places) else ""
    return finish("tradeoff", drawing, f"Scatter plot of {title} by bytes. " + "; ".join(words) + ".", caption)


def _bars(tradeoff: Tradeoff, what: str) -> str:
    """What the bars or bands of a plot are; validation has none."""
    return f" {what} are 95 % intervals." if any(tradeoff.intervals) and not tradeoff.withheld else ""


def _interval(tradeoff: Tradeoff, i: int) -> Interval | None:
    """The interval of a run's level; validation has none."""
    return None if tradeoff.withheld else tradeoff.intervals[i]


def _describe(tradeoff: Tradeoff, i: int, cost: float) -> str:
    interval = _interval(tradeoff, i)
    value = tradeoff.value_text(i) + (f" [{interval_text(interval)}]" if interval else "")
    where = f": {value} at {human_bytes(cost)}" if cost else f" sends nothing and has {value}"
    return f"{tradeoff.names[i]}{where}{', on the front' if i in tradeoff.fronts['bytes'] else ''}"


def _point(axes: Axes, tradeoff: Tradeoff, i: int, cost: float, value: float) -> None:
    colour, marker, interval = COLOURS[i % 7], MARKERS[(i + i // 7) % 7], _interval(tradeoff, i)
    name = drawable(tradeoff.names[i])
    if not cost:  # nothing sent has no place on a logarithmic axis
        axes.axhline(value, color=colour, ls=(0, (1, 1.5)), lw=2, label=name)
        return
    if interval:
        axes.vlines(cost, *interval, color=colour, lw=1.8)
    size = 12 if i == tradeoff.choice else 9
    axes.plot(cost, value, marker, color=colour, ms=size, mec=INK, mew=1.6 if i == tradeoff.choice else 0.8, label=name)


def sweep_plot(tradeoff: Tradeoff, results: Sequence[RunResult]) -> Plot | None:
    """Personal and shared model along the swept setting, and the levels of what has no such setting."""
    sweep, title = tradeoff.sweep, f"{tradeoff.basis} {tradeoff.quality.title}"
    if sweep is None or sum(tradeoff.levels[i] is not None for i in sweep.places) < 2:
        return None
    drawing, axes = figure(f"Sweep: {title} by {drawable(sweep.key)}", drawable(sweep.key), title)
    shared, intervals = _shared_levels(tradeoff, results)
    own = [_interval(tradeoff, i) for i in range(len(results))]
    _band(axes, sweep, tradeoff.levels, own, (0, "personal models" if shared else title))
    if shared:
        _band(axes, sweep, shared, intervals, (1, "shared model alone"))
    levels = [(i, v) for i, v in enumerate(tradeoff.levels) if v is not None and method_key(results[i]) in LEVELS]
    for i, level in levels:
        dash = LEVELS[method_key(results[i])]
        axes.axhline(level, color=MUTED, ls=dash, lw=1.8, label=drawable(method_name(results[i].method)))
    if sweep.values[0] > 0:
        log_axis(axes, "x", sweep.values[0], sweep.values[-1], short)
    legend(drawing, axes)
    words = []
    for i, x in zip(sweep.places, sweep.values):
        if (value := tradeoff.levels[i]) is not None:
            other = shared[i] if shared else None
            beside = f", shared model {decimals(other)}" if other else ""
            words.append(f"{sweep.key}={x:g}: {decimals(value)}{beside}")
    words += [f"{tradeoff.names[i]} {decimals(level)}" for i, level in levels]
    caption = f"The {title} for every {sweep.key} tried.{_bars(tradeoff, 'Bands')}"
    caption += f" The smaller {sweep.key}, the more personal." if sweep.degree else ""
    caption += f" Level lines: runs without {sweep.key}." if levels else ""
    return finish("sweep", drawing, f"Line plot of {title} by {sweep.key}. {'; '.join(words)}.", caption)


def _shared_levels(
    tradeoff: Tradeoff, results: Sequence[RunResult]
) -> tuple[list[float | None], list[Interval | None]]:
    """The figures of the shared model by itself and their intervals, by run; empty where no swept run has them."""
    stem, _, last = tradeoff.quality.key.rpartition(".")
    name, places = f"global_{last}", tradeoff.sweep.places if tradeoff.sweep else []
    column = BY_KEY.get(f"{stem}.{name}")
    intervals: list[Interval | None] = [None] * len(results)
    if tradeoff.withheld or column is None:
        levels = [result.validation.get(name) for result in results]
    else:
        levels, intervals = [column.value(r) for r in results], [column.interval(r) for r in results]
    return (levels, intervals) if any(levels[i] is not None for i in places) else ([], [])


def _band(
    axes: Axes, sweep: Sweep, levels: Sequence[float | None], intervals: Sequence[Interval | None],
    look: tuple[int, str],
) -> None:  # fmt: skip
    """A line with its intervals as a band; `look` is its colour and label."""
    colour, label = look
    known = [(x, y) for i, x in zip(sweep.places, sweep.values) if (y := levels[i]) is not None]
    line(axes, colour, label, [x for x, _ in known], [y for _, y in known], markevery=1)
    wide = [(x, *interval) for i, x in zip(sweep.places, sweep.values) if (interval := intervals[i])]
    if wide:
        x, low, high = zip(*wide)
        axes.fill_between(x, low, high, color=COLOURS[colour], alpha=0.15, lw=0)


def surface_plot(tradeoff: Tradeoff, results: Sequence[RunResult]) -> Plot | None:
    """Quality by epsilon, one line per method; the larger a point, the more bytes."""
    surface = tradeoff.surface
    if surface is None or not {"accuracy", "epsilon"} <= set(surface.axes):
        return None
    epsilons = [point["epsilon"] or 0.0 for point in surface.points]
    finite = [epsilon for epsilon in epsilons if 0 < epsilon < math.inf]
    if not finite:
        return None
    title = f"{tradeoff.basis} {tradeoff.quality.title}"
    start, end = min(finite) / 1.5, 4 * max(finite)  # places of 0 and of infinity
    sizes = _marker_sizes([point.get("bytes") or 0 for point in surface.points])
    drawing, axes = figure(f"{title} by privacy", "epsilon: smaller is more private", title)
    log_axis(axes, "x", min(finite), end, lambda n: f"{n:g}")
    known = [i for i, value in enumerate(tradeoff.levels) if value is not None]
    names = [method_name(result.method) for result in results]
    for colour, name in enumerate(dict.fromkeys(names)):
        x = {i: min(max(epsilons[i], start), end) for i in known if names[i] == name}
        _method_line(axes, tradeoff, x, sizes, (colour, name))
    if math.inf in epsilons:
        axes.axvline(end, color=MUTED, lw=1, ls=":")
        axes.annotate("no promise", (end, axes.get_ylim()[0]), rotation=90, ha="right", va="bottom", color=MUTED)
    legend(drawing, axes)
    caption = (
        f"The {title} by what a run may tell of a person. Larger points sent more bytes; dark rims: nothing beats "
        f"them in {', '.join(surface.axes)} at once.{_bars(tradeoff, 'Bars')}"
    )
    words = []
    for i in known:
        promise = "without a promise" if math.isinf(epsilons[i]) else f"at epsilon {epsilons[i]:.3g}"
        sent = human_bytes(surface.points[i].get("bytes"))
        words.append(f"{tradeoff.names[i]}: {tradeoff.value_text(i)} {promise}, {sent}")
    return finish("privacy", drawing, f"Plot of {title} by epsilon. {'; '.join(words)}.", caption)


def _marker_sizes(sent: list[float]) -> list[float]:
    """Sizes of markers that grow with the logarithm of the bytes sent."""
    least = max(min((n for n in sent if n > 0), default=1), 1)
    return [6 + 3.2 * math.log10(1 + n / least) if n else 7 for n in sent]


def _method_line(
    axes: Axes, tradeoff: Tradeoff, x: dict[int, float], sizes: list[float], method: tuple[int, str]
) -> None:
    """One method's runs (`x`: run -> place), joined in the order of epsilon."""
    place, name = method
    runs = sorted(x, key=x.__getitem__)
    front = tradeoff.surface.front if tradeoff.surface else []
    colour, heights = COLOURS[place % 7], [tradeoff.levels[i] or 0 for i in runs]
    axes.plot([x[i] for i in runs], heights, color=colour, lw=1.6, label=drawable(name))
    for i, height in zip(runs, heights):
        if interval := _interval(tradeoff, i):
            axes.vlines(x[i], *interval, color=colour, lw=1.2, alpha=0.6)
        rim, width = (INK, 1.8) if i in front else (MUTED, 0.6)
        axes.plot(x[i], height, MARKERS[place % 7], color=colour, ms=sizes[i], mec=rim, mew=width)
