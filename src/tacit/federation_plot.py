"""The report's plot of a federation: which nodes were counted in which round, and how long it took."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .canvas import COLOURS, GRID, MUTED, Plot, drawable, figure, finish
from .tables import Result, at, human_seconds

MOST = 24  # nodes that have a row of their own
PHASES = {"search": "choosing the round", "final": "training"}


def nodes_plot(results: Sequence[Result]) -> Plot | None:
    """Of the one run that was a federation; None where there is none, or nothing to tell."""
    history = at(results[0], "federation", "history") if len(results) == 1 else None
    if not isinstance(history, list) or len(history) < 2:
        return None
    entries = [entry for entry in history if isinstance(entry, dict) and isinstance(entry.get("nodes"), list)]
    names = sorted({str(name) for entry in entries for name in entry["nodes"]}, key=_order)
    if not names:
        return None
    drawing, axes = figure("Which nodes were counted", "round", "")
    shown = names if len(names) <= MOST else []
    for x, entry in enumerate(entries):
        counted = set(map(str, entry["nodes"]))
        if shown:
            for y, name in enumerate(shown):
                there = name in counted
                axes.plot(x, y, "s", ms=9, color=COLOURS[0] if there else "none", mec=COLOURS[0] if there else MUTED)
        else:
            axes.bar(x, len(counted), color=COLOURS[0])
    axes.set_xticks(range(len(entries)), [str(entry.get("round")) for entry in entries], fontsize=9)
    for x in range(1, len(entries)):
        if entries[x].get("phase") != entries[x - 1].get("phase"):
            axes.axvline(x - 0.5, color=GRID, lw=2)
    if shown:
        axes.set_yticks(range(len(shown)), [drawable(name) for name in shown], fontsize=9)
        axes.set_ylim(len(shown) - 0.4, -0.6)
    else:
        axes.set_ylabel("nodes")
    axes.grid(False)
    return finish("nodes", drawing, f"Grid of nodes by round. {_missing(entries, names)}", _caption(entries, names))


def _order(name: str) -> tuple[str, int]:
    """node-2 before node-10."""
    stem, _, number = name.rpartition("-")
    return (stem, int(number)) if number.isdigit() and len(number) < 10 else (name, 0)


def _missing(entries: list[dict[str, Any]], names: list[str]) -> str:
    lost = [
        f"{name} in round {entry.get('round')} of {PHASES.get(str(entry.get('phase')), 'a phase')}"
        for entry in entries for name in names if name not in set(map(str, entry["nodes"]))
    ]  # fmt: skip
    if not lost:
        return f"All {len(names)} were counted in every round."
    more = f", and {len(lost) - 6} more" if len(lost) > 6 else ""
    return f"Not counted: {', '.join(lost[:6])}{more}."


def _caption(entries: list[dict[str, Any]], names: list[str]) -> str:
    took = sorted(float(entry.get("seconds") or 0) for entry in entries)
    phases = list(dict.fromkeys(PHASES.get(str(entry.get("phase")), "") for entry in entries))
    line = f" The line parts {' and '.join(phases)}." if len(phases) > 1 else ""
    return f"{_missing(entries, names)}{line} A round took {human_seconds(took[len(took) // 2])} in the median."
