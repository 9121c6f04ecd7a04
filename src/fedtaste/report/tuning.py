"""The HTML report of a study of settings (`fedtaste tune`): best settings, history, importances, trials, cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedtaste.errors import RunError
from fedtaste.experiment.tune_result import TuneResult, TuneTrial
from fedtaste.files.atomic import write_atomically
from fedtaste.report.numbers import NONE, decimals, digits, human_bytes, human_seconds, plain
from fedtaste.report.page import render_page
from fedtaste.report.style import COLOURS, GRID, INK, MUTED, Plot, blank, drawable, figure, finish, legend, quiet_style
from fedtaste.report.tables import method_name
from fedtaste.text import count

if TYPE_CHECKING:
    from matplotlib.axis import Axis

BEST_SHARE = 5  # one in so many complete trials is drawn in colour
MOST_AXES = 8  # of parallel coordinates; the most important settings


def write_tuning_report(result: TuneResult, folder: Path) -> Path:
    """Write folder/report.html and folder/plots/*.png; return the path of the page."""
    with quiet_style():
        makers: list[Callable[[TuneResult], Plot | None]] = [_history, _importances, _parallel, _cost]
        drawn = [plot for make in makers if (plot := make(result)) is not None]
    page = render_page(
        "tuning.html.jinja",
        title=f"Tuning {method_name(result.method)} on {result.data}",
        headline=_headline(result),
        tiles=_tiles(result),
        settings=comparison_rows(result),
        plots=drawn,
        trials=[_trial_row(result, trial) for trial in result.trials],
        names=list(result.space),
        metric=result.metric,
        facts=_facts(result),
        notes=result.notes,
    )
    try:
        for plot in drawn:
            write_atomically(folder / "plots" / f"{plot.name}.png", plot.png)
        write_atomically(folder / "report.html", page.encode("utf-8", "replace"))
    except OSError as error:
        raise RunError(f"The report cannot be written to {folder}: {error}. Choose another folder.") from error
    return folder / "report.html"


def comparison_rows(result: TuneResult) -> list[tuple[str, str, str, str, str]]:
    """Rows of (setting, default, best, what was searched, importance), the most important settings first."""
    order = [*result.importances, *(name for name in result.space if name not in result.importances)]
    return [
        (
            name,
            plain(result.defaults.get(name)),
            plain(result.settings.get(name)),
            result.space[name],
            f"{100 * result.importances[name]:.0f} %" if name in result.importances else NONE,
        )
        for name in order
    ]


def _headline(result: TuneResult) -> str:
    trials = count(result.cost.trials, "trial")
    if result.valid_of_defaults is None:
        return f"The best of {trials} has {result.metric} {decimals(result.valid)} on validation data."
    if result.best == 0:
        return f"None of {trials} was better than the defaults: {result.metric} {decimals(result.valid)}."
    return (
        f"The best of {trials} has {result.metric} {decimals(result.valid)} on validation data; the defaults have "
        f"{decimals(result.valid_of_defaults)}."
    )


def _tiles(result: TuneResult) -> list[tuple[str, str, str]]:
    cost = result.cost
    return [
        (decimals(result.valid), f"{result.metric} on validation data", f"trial {result.best}"),
        (
            NONE if result.valid_of_defaults is None else decimals(result.valid_of_defaults),
            f"{result.metric} of the defaults",
            "trial 0",
        ),
        (f"{cost.rounds:,}", "rounds of all trials", f"{count(cost.trials, 'trial')}"),
        (human_bytes(cost.up_bytes), "sent up by all people in all trials", f"{human_bytes(cost.down_bytes)} down"),
    ]


def _facts(result: TuneResult) -> list[tuple[str, str]]:
    pruned, failed = (sum(trial.state == state for trial in result.trials) for state in ("pruned", "failed"))
    reasons = "; ".join(dict.fromkeys(trial.reason for trial in result.trials if trial.reason))
    facts = {
        "trials": f"{result.cost.trials:,} of {result.requested:,} ({result.stopped})",
        "pruned by round": f"{pruned:,}",
        "failed": f"{failed:,}" + (f" ({reasons})" if reasons else ""),
        "rounds": f"{result.cost.rounds:,}",
        "sent": f"{human_bytes(result.cost.up_bytes)} up, {human_bytes(result.cost.down_bytes)} down",
        "CPU time of training": human_seconds(result.cost.seconds),
        "seed": str(result.seed),
        "study": result.study,
        "best settings": result.config,
    }
    return list(facts.items())


def _trial_row(result: TuneResult, trial: TuneTrial) -> tuple[list[str], bool]:
    """(cells of a trial, whether it is the best one)."""
    values = result.defaults | trial.settings
    valid = NONE if trial.valid is None else decimals(trial.valid)
    state = trial.state if trial.number else f"{trial.state}, defaults"
    settings = [plain(values.get(name)) for name in result.space]
    return [str(trial.number), valid, state, f"{trial.rounds:,}", *settings], trial.number == result.best


def _history(result: TuneResult) -> Plot:
    """The validation metric of every trial, and the best so far."""
    drawing, axes = figure("Optimisation history", "trial", f"{result.metric} on validation data")
    looks = {"complete": ("o", COLOURS[0], "complete"), "pruned": ("x", MUTED, "pruned")}
    for state, (marker, colour, label) in looks.items():
        points = [(t.number, t.valid) for t in result.trials if t.state == state and t.valid is not None]
        if points:
            axes.plot(*zip(*points), marker, color=colour, ms=6, label=label)
    best: list[float] = []
    complete = [(t.number, t.valid) for t in result.trials if t.state == "complete" and t.valid is not None]
    better = max if result.better == "higher" else min
    for _, value in complete:
        best.append(better(best[-1], value) if best else value)
    axes.step([n for n, _ in complete], best, where="post", color=COLOURS[1], lw=2.2, label="best so far")
    if result.valid_of_defaults is not None:
        axes.axhline(result.valid_of_defaults, color=INK, lw=1.2, ls="--", label="defaults")
    _whole_ticks(axes.xaxis)
    legend(drawing, axes)
    alt = f"Plot of {result.metric} by trial. The best, trial {result.best}, has {decimals(result.valid)}."
    return finish("history", drawing, alt, f"{result.metric} on validation data by trial. Trial 0 has the defaults.")


def _importances(result: TuneResult) -> Plot | None:
    """How much of the variation between trials each setting explains."""
    if not result.importances:
        return None
    names, shares = zip(*reversed(result.importances.items()))
    drawing, axes = figure("Importance of settings", "share of the variation between trials (%)", "")
    axes.barh([drawable(name) for name in names], [100 * share for share in shares], color=COLOURS[0])
    axes.grid(visible=False, axis="y")
    words = ", ".join(f"{name} {100 * share:.0f} %" for name, share in result.importances.items())
    caption = (
        "Shares of the variation of the metric between complete trials that settings explain (fANOVA). With few trials,"
    )
    return finish("importances", drawing, f"Bar plot of importances: {words}.", f"{caption} these are rough.")


def _parallel(result: TuneResult) -> Plot | None:
    """Parallel coordinates: one line per complete trial through its settings, the best ones in colour."""
    shown = [t for t in result.trials if t.state == "complete" and t.valid is not None]
    if len(shown) < 2:
        return None
    names = [*result.importances, *(name for name in result.space if name not in result.importances)][:MOST_AXES]
    columns: dict[str, list[object]] = {
        name: [(result.defaults | trial.settings).get(name) for trial in shown] for name in names
    }
    columns[result.metric] = [trial.valid for trial in shown]
    places = {name: _places(values, "(log)" in result.space.get(name, "")) for name, values in columns.items()}
    best_words = ", ".join(f"{name} {plain(result.settings.get(name))}" for name in names)
    names.append(result.metric)
    sign = 1 if result.better == "higher" else -1
    ranked = sorted(range(len(shown)), key=lambda i: sign * (shown[i].valid or 0.0))
    coloured = set(ranked[-max(1, len(shown) // BEST_SHARE) :])
    drawing = blank()
    axes = drawing.add_subplot(facecolor="none")
    axes.set_title("Settings of the trials", pad=26)
    for i in ranked:  # the best are drawn last
        heights, best = [places[name][i] for name in names], i == ranked[-1]
        colour = COLOURS[4] if best else COLOURS[0] if i in coloured else GRID
        axes.plot(range(len(names)), heights, color=colour, lw=2.6 if best else 1.5 if i in coloured else 1.0)
    for at, name in enumerate(names):
        axes.axvline(at, color=MUTED, lw=0.8)
        low, high = _ends(columns[name])
        axes.text(at, -0.04, low, ha="center", va="top", fontsize=9, color=MUTED)
        axes.text(at, 1.03, high, ha="center", va="bottom", fontsize=9, color=MUTED)
    axes.set_xticks(range(len(names)), [drawable(name) for name in names], rotation=30 if len(names) > 5 else 0)
    axes.tick_params(axis="x", pad=14, length=0)
    axes.set_yticks([])
    axes.set(ylim=(-0.02, 1.02), xlim=(-0.3, len(names) - 0.7))
    axes.grid(visible=False)
    axes.set_frame_on(False)
    caption = (
        "Each line is a complete trial through its settings and its figure, from the least value to the largest. "
        f"Thick: the best trial; in colour: the best {count(len(coloured), 'trial')}."
    )
    return finish("parallel", drawing, f"Parallel coordinates of the trials. The best has {best_words}.", caption)


def _whole_ticks(axis: Axis) -> None:
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(integer=True))


def _places(values: Sequence[object], log: bool) -> list[float]:
    """Heights from 0 to 1 of these values on an axis; values that are no numbers in the order of their names."""
    numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
    if len(numbers) < len(values):
        order = sorted({str(value) for value in values})
        return [order.index(str(value)) / max(len(order) - 1, 1) for value in values]
    scaled = [math.log(v) if log and min(numbers) > 0 else float(v) for v in numbers]
    low, high = min(scaled), max(scaled)
    return [(v - low) / (high - low) if high > low else 0.5 for v in scaled]


def _ends(values: Sequence[object]) -> tuple[str, str]:
    """The least and the largest value as text."""
    numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
    if len(numbers) < len(values):
        order = sorted({str(value) for value in values})
        return drawable(order[0]), drawable(order[-1])
    return digits(min(numbers)), digits(max(numbers))


def _cost(result: TuneResult) -> Plot:
    """Rounds of every trial, which pruning shortens."""
    drawing, axes = figure("Rounds of the trials", "trial", "rounds trained")
    for state, colour in (("complete", COLOURS[0]), ("pruned", MUTED), ("failed", COLOURS[4])):
        shown = [trial for trial in result.trials if trial.state == state]
        if shown:
            axes.bar([t.number for t in shown], [t.rounds for t in shown], color=colour, label=state)
    _whole_ticks(axes.xaxis)
    _whole_ticks(axes.yaxis)
    axes.grid(visible=False, axis="x")
    legend(drawing, axes)
    total = f"{result.cost.rounds:,} rounds and {human_bytes(result.cost.up_bytes)} up in all"
    return finish("cost", drawing, f"Bar plot of rounds by trial: {total}.", f"Rounds trained by trial: {total}.")
