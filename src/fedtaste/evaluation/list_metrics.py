"""Metrics of top-10 lists beyond accuracy: coverage, Gini, popularity, novelty, diversity, gaps between groups.

docs/beyond_accuracy.md has the formulas. `Lists.metrics` computes them from everybody's figures, `metrics_of_sums` from
the sums of several nodes, so that no list of a person leaves a node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedtaste.evaluation.metrics import bootstrap_means, bounds, interval_around
from fedtaste.result_part import Count, Interval, JsonObject, ResultPart

TOP = 10  # items of a list
GROUP_METRICS = ("ndcg@10", "hr@10")  # that are compared between groups, in the full catalogue
BANDS = (10, 30, 100)  # public limits of the groups where people are elsewhere: their quartiles are not known
FEWEST = 10  # people of a group of a column: smaller groups are merged, so that nobody stands out
MOST_GROUPS = 12  # of a column; the smallest are merged
OTHER = "other"
BAND_NAMES = ("under 10", "10–29", "30–99", "100 or more")
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Group(ResultPart):
    """People with histories of similar length, or with the same label, and their metrics in the full catalogue."""

    name: str
    """Interactions in the history of a person, as in `20–41`; or the label, as in `DE`."""
    people: Count
    metrics: dict[str, float]
    """ndcg@10 and hr@10."""
    intervals: dict[str, Interval]


class Gap(ResultPart):
    """The largest difference of a metric between two groups, and the 95 % interval of the difference of these two."""

    best: str
    worst: str
    difference: float = Field(ge=0)
    interval: Interval


class Groups(ResultPart):
    """Groups of people by the length of their history, and the largest gap of each metric between two of them."""

    groups: tuple[Group, ...]
    gaps: dict[str, Gap]


class ColumnGroups(Groups):
    """Groups of people by a column of the data (`--columns group=NAME`), the largest first. Groups of fewer than ten
    people are merged into `other`."""

    column: str


class ListMetrics(ResultPart):
    """What the top-10 lists of some people are like (docs/beyond_accuracy.md). A field that could not be measured is
    None or is left out."""

    people: Count
    """Whose lists are counted."""
    coverage: float | None = None
    """The share of the catalogue that is in a list."""
    gini: float | None = None
    """How unequally items are recommended: 0 where all are equally often, nearly 1 where one item has all places."""
    popularity: float | None = None
    """ARP, the average recommendation popularity: people who have a recommended item, mean over all places."""
    history_popularity: float | None = None
    """The same mean over all entries of people's histories."""
    popularity_bias: float | None = None
    """log2(popularity / history_popularity): 0 where lists are as popular as histories, 1 where twice as popular."""
    novelty: float | None = None
    """Mean of -log2(share of the people who have the item) over all places, in bits."""
    diversity: float | None = None
    """Mean over lists of 1 - Jaccard similarity of the genres of two items of a list."""
    groups: Groups | None = None
    column_groups: ColumnGroups | None = None

    def gap(self, name: str) -> Gap | None:
        """The largest gap of a metric between two groups, as in `gap.ndcg@10` (by history) or `column_gap.ndcg@10`;
        None where there are no groups."""
        kind, _, metric = name.partition(".")
        groups = {"gap": self.groups, "column_gap": self.column_groups}.get(kind)
        return groups.gaps.get(metric) if groups else None

    def metric(self, name: str) -> float | None:
        """A metric by its name, as in `coverage` or `gap.ndcg@10`; None where it was not measured."""
        if gap := self.gap(name):
            return gap.difference
        return getattr(self, name) if name in METRIC_NAMES else None


METRIC_NAMES = (
    "coverage", "gini", "popularity", "history_popularity", "popularity_bias", "novelty", "diversity",
)  # fmt: skip


class BeyondAccuracy(ResultPart):
    """Metrics of the lists of people who took part in training (`seen`), and of `new` ones."""

    seen: ListMetrics | None
    new: ListMetrics | None

    def lists(self, key: str) -> tuple[ListMetrics | None, str]:
        """(the metrics of a group of people, the rest of the key), as of `seen.coverage`."""
        who, _, name = key.partition(".")
        return {"seen": self.seen, "new": self.new}.get(who), name


@dataclass(frozen=True)
class Lists:
    """What is kept of people's lists: plain numbers, so that a checkpoint can hold them."""

    recommended: list[int]  # [items]: in how many lists an item is
    diversity: list[float]  # of every list that has two items with known genres
    history: list[int]  # [people]: the length of a person's history
    labels: list[str] = field(default_factory=list)  # [people]: the group of a person; empty where there are none

    @staticmethod
    def of(
        top: Ints, catalogue: int, genres: Sequence[int], history: NDArray[np.integer], labels: Sequence[str] = ()
    ) -> Lists:
        """From lists [people, TOP], which end with -1 where they are shorter. `genres` are sets as bits of a number, by
        item, 0 where nothing is known; empty where the data have none."""
        recommended = np.bincount(top[top >= 0], minlength=catalogue)
        spread = [list_diversity([genres[item] for item in row if item >= 0]) for row in top] if genres else []
        diversity = [value for value in spread if value is not None]
        return Lists(recommended.tolist(), diversity, history.tolist(), list(labels))

    @staticmethod
    def join(parts: Sequence[JsonObject]) -> Lists:
        """The lists of several groups of people, each as a dict, as one."""
        recommended = np.sum([part["recommended"] for part in parts], axis=0).tolist()
        people = ([x for part in parts for x in part.get(name, ())] for name in ("diversity", "history", "labels"))
        return Lists(recommended, *people)

    def sums(self, accuracy: Mapping[str, Sequence[float]]) -> JsonObject:
        """Sums for `metrics_of_sums`: of diversity [sum, lists]; and for each group of BANDS [people, then the sum and
        the sum of squares of every metric of GROUP_METRICS]."""
        band = np.searchsorted(BANDS, self.history, side="right")
        values = [np.array(accuracy[metric]) ** power for metric in GROUP_METRICS for power in (1, 2)]
        columns = [np.bincount(band, weights, len(BAND_NAMES)) for weights in (np.ones(len(band)), *values)]
        groups = np.stack(columns, axis=1).tolist()
        return {"diversity": [float(np.sum(self.diversity)), len(self.diversity)], "groups": groups}

    def metrics(
        self, taken: NDArray[np.integer], people: int, accuracy: Mapping[str, Sequence[float]], column: str = ""
    ) -> ListMetrics:
        """The metrics of these lists. `taken`: how many of all `people` have an item; `accuracy`: metrics by person;
        `column`: that the labels are of."""
        fields: JsonObject = item_metrics(np.array(self.recommended), taken, people)
        if self.diversity:
            fields["diversity"] = round(float(np.mean(self.diversity)), 6)
        values = {metric: np.array(accuracy[metric]) for metric in GROUP_METRICS}
        label, names = quartiles(np.array(self.history))
        if len(names) > 1:
            fields["groups"] = compare_groups(values, label, names)
        label, names = merge_labels(self.labels)
        if len(names) > 1:
            fields["column_groups"] = {"column": column, **compare_groups(values, label, names).model_dump()}
        return ListMetrics(people=len(self.history), **fields)


def list_diversity(genres: Sequence[int]) -> float | None:
    """Mean of 1 - Jaccard similarity over all pairs of a list's items with known genres; None where there is no pair.

    >>> list_diversity([0b011, 0b110, 0b000]), list_diversity([0b1, 0b0])
    (0.6666666666666667, None)
    """
    pairs = list(combinations(filter(None, genres), 2))
    if not pairs:
        return None
    return 1 - sum((a & b).bit_count() / (a | b).bit_count() for a, b in pairs) / len(pairs)


def item_metrics(recommended: NDArray[np.integer], taken: NDArray[np.integer], people: int) -> dict[str, float]:
    """The metrics that follow from counts by item: in how many lists an item is, and how many of all `people` have it.
    For its novelty an item that nobody has counts as if one person had it."""
    places, entries = int(recommended.sum()), int(taken.sum())
    if not places or not entries:
        return {}
    popularity = float(recommended @ taken) / places
    history = float(taken @ taken) / entries
    bits = -np.log2(np.maximum(taken, 1) / people)
    values = {
        "coverage": float(np.mean(recommended > 0)),
        "gini": gini(recommended),
        "popularity": popularity,
        "history_popularity": history,
        **({"popularity_bias": float(np.log2(popularity / history))} if popularity else {}),
        "novelty": float(recommended @ bits) / places,
    }
    return {name: round(value, 6) for name, value in values.items()}


def gini(counts: NDArray[np.integer]) -> float:
    """The Gini coefficient: mean absolute difference of two counts, over twice their mean.

    >>> gini(np.array([2, 2, 2])), gini(np.array([0, 0, 0, 8]))
    (0.0, 0.75)
    """
    n = len(counts)
    return float((2 * np.arange(1, n + 1) - n - 1) @ np.sort(counts)) / (n * float(counts.sum()))


def quartiles(history: NDArray[np.integer]) -> tuple[Ints, list[str]]:
    """(group of each person, names of the groups): quartiles of the lengths. Equal lengths are in the same group, so
    there may be fewer than four.

    >>> quartiles(np.array([3, 9, 3, 5, 4, 8, 12, 40]))
    (array([0, 2, 0, 1, 1, 2, 3, 3]), ['3', '4–5', '8–9', '12–40'])
    """
    limits = np.quantile(history, [0.25, 0.5, 0.75], method="inverted_cdf")
    _, label = np.unique(np.searchsorted(limits, history), return_inverse=True)
    ends = [(history[label == group].min(), history[label == group].max()) for group in range(label.max() + 1)]
    return label, [f"{low}–{high}" if low < high else f"{low}" for low, high in ends]


def merge_labels(labels: Sequence[str]) -> tuple[Ints, list[str]]:
    """(group of each person, names of the groups, the largest first): groups of fewer than FEWEST people, and those
    after the largest MOST_GROUPS, become `other`; where that has fewer, too, it takes in the smallest group.

    >>> merge_labels(["DE"] * 30 + ["FR"] * 20 + ["US"] * 9 + ["IT"] * 2)[1]
    ['DE', 'FR', 'other']
    >>> merge_labels(["DE"] * 30 + ["FR"] * 20 + ["US"] * 9)[1]
    ['DE', 'other']
    """
    sizes = sorted(Counter(labels).items(), key=lambda pair: (-pair[1], pair[0]))
    kept = [name for name, size in sizes if size >= FEWEST and name != OTHER][:MOST_GROUPS]
    while kept and 0 < sum(size for name, size in sizes if name not in kept) < FEWEST:
        kept.pop()
    names = kept + [OTHER] * (len(kept) < len(sizes))
    number = {name: at for at, name in enumerate(kept)}
    return np.array([number.get(label, len(kept)) for label in labels], np.int64), names


def compare_groups(values: Mapping[str, Floats], label: Ints, names: Sequence[str]) -> Groups:
    """Groups with bootstrap intervals, from metrics by person; people are drawn within their group."""
    sizes = np.bincount(label)
    parts = [{metric: value[label == group] for metric, value in values.items()} for group in range(len(names))]
    draws = [bootstrap_means(part, seed=group) for group, part in enumerate(parts)]
    means = [{metric: float(value.mean()) for metric, value in part.items()} for part in parts]
    intervals = [{metric: bounds(sample) for metric, sample in draw.items()} for draw in draws]

    def between(metric: str, best: int, worst: int) -> list[float]:
        return bounds(draws[best][metric] - draws[worst][metric])

    return _groups(names, sizes.tolist(), means, intervals, between)


def metrics_of_sums(parts: Sequence[JsonObject], people: int, items: Mapping[str, float]) -> ListMetrics | None:
    """The metrics of several nodes' people from their `Lists.sums`, of which a node may withhold some, and from
    `item_metrics`; None where there are none."""
    fields: JsonObject = dict(items)
    spread = [part["diversity"] for part in parts if "diversity" in part]
    if lists := sum(number for _, number in spread):
        fields["diversity"] = round(sum(total for total, _ in spread) / lists, 6)
    sums = np.sum([part["groups"] for part in parts if "groups" in part] or np.zeros((1, 1, 1)), axis=0)
    if np.sum(sums[:, 0] > 0) > 1:
        fields["groups"] = _groups_of_sums(sums)
    return ListMetrics(people=people, **fields) if fields else None


def _groups_of_sums(sums: Floats) -> Groups:
    """Groups with normal intervals, from sums by group of BANDS; groups without people are left out."""
    names = [name for name, row in zip(BAND_NAMES, sums) if row[0]]
    sums = sums[sums[:, 0] > 0]
    sizes, mean, square = sums[:, 0], sums[:, 1::2] / sums[:, :1], sums[:, 2::2] / sums[:, :1]
    variance = np.maximum(square - mean**2, 0) / sizes[:, None]  # of the mean
    means, intervals = [], []
    for row, spread in zip(mean, variance):
        means.append(dict(zip(GROUP_METRICS, row.tolist())))
        errors = 1.96 * np.sqrt(spread)
        intervals.append({n: interval_around(m, e) for n, m, e in zip(GROUP_METRICS, row.tolist(), errors.tolist())})

    def between(metric: str, best: int, worst: int) -> list[float]:
        column = GROUP_METRICS.index(metric)
        middle = mean[best, column] - mean[worst, column]
        error = 1.96 * np.sqrt(variance[best, column] + variance[worst, column])
        return [round(float(middle - error), 6), round(float(middle + error), 6)]

    return _groups(names, sizes.astype(int).tolist(), means, intervals, between)


def _groups(
    names: Sequence[str], sizes: Sequence[int], means: Sequence[Mapping[str, float]],
    intervals: Sequence[Mapping[str, list[float]]], between: Callable[[str, int, int], list[float]],
) -> Groups:  # fmt: skip
    """The typed result; `between` gives the interval of the difference of a metric between two groups."""
    gaps: JsonObject = {}
    for metric in means[0]:
        order = sorted(range(len(names)), key=lambda group: means[group][metric])
        worst, best = order[0], order[-1]
        difference = round(means[best][metric] - means[worst][metric], 6)
        ends = between(metric, best, worst)
        gaps[metric] = {"best": names[best], "worst": names[worst], "difference": difference, "interval": ends}
    rounded = [{metric: round(value, 6) for metric, value in part.items()} for part in means]
    groups = [
        {"name": name, "people": people, "metrics": part, "intervals": ends}
        for name, people, part, ends in zip(names, sizes, rounded, intervals)
    ]
    return Groups.model_validate({"groups": groups, "gaps": gaps})
