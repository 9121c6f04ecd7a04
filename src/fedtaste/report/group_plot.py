"""Plot NDCG@10 of groups of people, by history or by a column: bars with intervals, beside those of other runs."""

from __future__ import annotations

from collections.abc import Sequence

from fedtaste.evaluation.list_metrics import Group
from fedtaste.experiment.result import RunResult
from fedtaste.report.numbers import decimals
from fedtaste.report.style import COLOURS, INK, Plot, drawable, figure, finish, legend
from fedtaste.report.tables import labels

METRIC = "ndcg@10"
HATCHES = ("", "//", "..")  # runs beyond the seventh repeat a colour


def group_plots(results: Sequence[RunResult]) -> list[Plot]:
    """Seen people in groups by the length of their history, and by the column of the data that labels people."""
    lists = {place: r.beyond.seen for place, r in enumerate(results) if r.beyond and r.beyond.seen}
    by_history = {place: seen.groups.groups for place, seen in lists.items() if seen.groups}
    labelled = {place: seen.column_groups for place, seen in lists.items() if seen.column_groups}
    plots = []
    if by_history:
        plots.append(_plot("groups", results, by_history, "length of history", "interactions in a person’s history"))
    if labelled:
        column = next(iter(labelled.values())).column
        same = {place: groups.groups for place, groups in labelled.items() if groups.column == column}
        plots.append(_plot("column-groups", results, same, drawable(column), drawable(column)))
    return plots


def _plot(name: str, results: Sequence[RunResult], groups: dict[int, tuple[Group, ...]], by: str, axis: str) -> Plot:
    """Bars of these groups, by the place of the run. Runs with other groups, of other data, are left out."""
    names = [group.name for group in next(iter(groups.values()))]
    groups = {place: parts for place, parts in groups.items() if [group.name for group in parts] == names}
    title = f"NDCG@10 by {by}"
    drawing, axes = figure(title, axis, "NDCG@10 of all items")
    width, words = 0.8 / len(groups), []
    for number, (place, parts) in enumerate(groups.items()):
        values, ends = [group.metrics[METRIC] for group in parts], [group.intervals[METRIC] for group in parts]
        errors = [[max(y - e[0], 0) for y, e in zip(values, ends)], [max(e[1] - y, 0) for y, e in zip(values, ends)]]
        at = [group + (number + 0.5) * width - 0.4 for group in range(len(names))]
        axes.bar(
            at, values, 0.9 * width, color=COLOURS[place % 7], hatch=HATCHES[place // 7 % 3], yerr=errors,
            label=drawable(labels(results)[place]), error_kw={"ecolor": INK, "elinewidth": 1.2, "capsize": 3 * width},
        )  # fmt: skip
        each = ", ".join(f"{decimals(y)} for {group}" for group, y in zip(names, values))
        words.append(f"{labels(results)[place]}: {each}")
    axes.set_xticks(range(len(names)), [drawable(group[:16]) for group in names])
    axes.grid(visible=False, axis="x")
    legend(drawing, axes)
    caption = f"NDCG@10 in the whole catalogue, of people seen in training in groups by {by}."
    caption += " Lines are 95\u00a0% intervals."
    return finish(name, drawing, f"Bar plot of {title}. {'; '.join(words)}.", caption)
