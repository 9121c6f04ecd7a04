"""The plot of a reproduced paper: our figures beside the published ones."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from fedtaste.experiment.papers import Reproduction
from fedtaste.report.style import COLOURS, Plot, finish, legend, quiet_style
from fedtaste.report.style import figure as new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BY_ROUND = re.compile(r"(.*), round (\d+)")


def draw_reproduction(found: Reproduction, axis: str) -> Plot:
    """Lines over rounds where the column `axis` is given for several rounds; otherwise bars by case."""
    with quiet_style():
        drawing, axes = new_figure(found.title.partition(":")[0] + ": ours and theirs", "", axis)
        rounds = [int(match[2]) for name in found.rows[0].ours if (match := BY_ROUND.match(name)) and match[1] == axis]
        if rounds:
            _draw_lines(axes, found, axis, rounds)
        else:
            _draw_bars(axes, found, next(n for n in found.rows[0].ours if n.startswith(axis)))
        legend(drawing, axes)
        alt = f"{found.title}: our figures beside the published ones"
        return finish("reproduction", drawing, alt, "Ours beside the published figures.")


def _draw_lines(axes: Axes, found: Reproduction, axis: str, rounds: list[int]) -> None:
    for number, row in enumerate(found.rows):
        for whose, values, style in (("ours", row.ours, "-o"), ("theirs", row.published, ":x")):
            points = [(at, value) for at in rounds if (value := values.get(f"{axis}, round {at}")) is not None]
            if points:
                axes.plot(*zip(*points), style, color=COLOURS[number], label=f"{row.label}, {whose}")
    axes.set_xlabel("round")


def _draw_bars(axes: Axes, found: Reproduction, column: str) -> None:
    for number, (whose, offset) in enumerate((("ours", -0.2), ("theirs", 0.2))):
        values = [(row.ours if whose == "ours" else row.published).get(column) for row in found.rows]
        places = [place + offset for place in range(len(values))]
        axes.barh(places, [value or 0.0 for value in values], 0.4, color=COLOURS[number], label=whose)
    axes.set_yticks(range(len(found.rows)), [row.label for row in found.rows])
    axes.invert_yaxis()
    axes.set(xlabel=column, ylabel="")
