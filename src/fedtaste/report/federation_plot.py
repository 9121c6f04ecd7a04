"""The report's plot of a federation: which nodes were counted in which round, and how long it took."""

from __future__ import annotations

from collections.abc import Sequence

from fedtaste.experiment.result import FederationRound, RunResult
from fedtaste.report.numbers import human_seconds
from fedtaste.report.style import COLOURS, GRID, MUTED, Plot, drawable, figure, finish

MAX_ROWS = 24  # nodes that have a row of their own
PHASES = {"search": "choosing the round", "final": "training"}


def nodes_plot(results: Sequence[RunResult]) -> Plot | None:
    """The plot of a single run over a federation; None for other results, or where the run does not name its nodes."""
    history = results[0].federation.history if len(results) == 1 and results[0].federation else ()
    rounds = [entry for entry in history if entry.nodes is not None]
    names = sorted({name for entry in rounds for name in entry.nodes or ()}, key=_order)
    if len(history) < 2 or not names:
        return None
    drawing, axes = figure("Which nodes were counted", "round", "")
    shown = names if len(names) <= MAX_ROWS else []
    for x, entry in enumerate(rounds):
        counted = set(entry.nodes or ())
        for y, name in enumerate(shown):
            fill, rim = (COLOURS[0], COLOURS[0]) if name in counted else ("none", MUTED)
            axes.plot(x, y, "s", ms=9, color=fill, mec=rim)
        if not shown:
            axes.bar(x, len(counted), color=COLOURS[0])
    axes.set_xticks(range(len(rounds)), [str(entry.round) for entry in rounds], fontsize=9)
    for x in range(1, len(rounds)):
        if rounds[x].phase != rounds[x - 1].phase:
            axes.axvline(x - 0.5, color=GRID, lw=2)
    if shown:
        axes.set_yticks(range(len(shown)), [drawable(name) for name in shown], fontsize=9)
        axes.set_ylim(len(shown) - 0.4, -0.6)
    else:
        axes.set_ylabel("nodes")
    axes.grid(False)
    return finish("nodes", drawing, f"Grid of nodes by round. {_missing(rounds, names)}", _caption(rounds, names))


def _order(name: str) -> tuple[str, int]:
    """A sort key that puts node-2 before node-10."""
    stem, _, number = name.rpartition("-")
    return (stem, int(number)) if number.isdigit() and len(number) < 10 else (name, 0)


def _missing(rounds: list[FederationRound], names: list[str]) -> str:
    missing = [
        f"{name} in round {entry.round} of {PHASES.get(entry.phase, 'a phase')}"
        for entry in rounds
        for name in names
        if name not in (entry.nodes or ())
    ]
    if not missing:
        return f"All {len(names)} were counted in every round."
    more = f", and {len(missing) - 6} more" if len(missing) > 6 else ""
    return f"Not counted: {', '.join(missing[:6])}{more}."


def _caption(rounds: list[FederationRound], names: list[str]) -> str:
    seconds = sorted(entry.seconds for entry in rounds)
    phases = list(dict.fromkeys(PHASES.get(entry.phase, "") for entry in rounds))
    line = f" The line parts {' and '.join(phases)}." if len(phases) > 1 else ""
    return f"{_missing(rounds, names)}{line} A round took {human_seconds(seconds[len(seconds) // 2])} in the median."
