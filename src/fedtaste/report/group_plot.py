"""Plot NDCG@10 of groups of people by the length of their history: bars with intervals, beside those of other runs."""

from __future__ import annotations

from collections.abc import Sequence

from fedtaste.experiment.result import RunResult
from fedtaste.report.numbers import decimals
from fedtaste.report.style import COLOURS, INK, Plot, drawable, figure, finish, legend
from fedtaste.report.tables import labels

METRIC = "ndcg@10"
HATCHES = ("", "//", "..")  # runs beyond the seventh repeat a colour


def group_plot(results: Sequence[RunResult]) -> Plot | None:
    """The groups of seen people; None where no result has groups. Runs with other groups, of other data, are left
    out."""
    groups = {
        place: result.beyond.seen.groups.groups
        for place, result in enumerate(results)
        if result.beyond and result.beyond.seen and result.beyond.seen.groups
    }
    if not groups:
        return None
    names = [group.name for group in next(iter(groups.values()))]
    groups = {place: parts for place, parts in groups.items() if [group.name for group in parts] == names}
    title = "NDCG@10 by length of history"
    drawing, axes = figure(title, "interactions in a person’s history", "NDCG@10 of all items")
    width, words = 0.8 / len(groups), []
    for number, (place, parts) in enumerate(groups.items()):
        values, ends = [group.metrics[METRIC] for group in parts], [group.intervals[METRIC] for group in parts]
        errors = [[max(y - e[0], 0) for y, e in zip(values, ends)], [max(e[1] - y, 0) for y, e in zip(values, ends)]]
        at = [group + (number + 0.5) * width - 0.4 for group in range(len(names))]
        axes.bar(
            at, values, 0.9 * width, color=COLOURS[place % 7], hatch=HATCHES[place // 7 % 3], yerr=errors,
            label=drawable(labels(results)[place]), error_kw={"ecolor": INK, "elinewidth": 1.2, "capsize": 3 * width},
        )  # fmt: skip
        each = ", ".join(f"{decimals(y)} with {name} interactions" for name, y in zip(names, values))
        words.append(f"{labels(results)[place]}: {each}")
    axes.set_xticks(range(len(names)), names)
    axes.grid(visible=False, axis="x")
    legend(drawing, axes)
    caption = "NDCG@10 in the whole catalogue, of people seen in training in groups by the length of their history."
    caption += " Lines are 95\u00a0% intervals."
    return finish("groups", drawing, f"Bar plot of {title}. {'; '.join(words)}.", caption)
