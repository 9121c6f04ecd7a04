"""Federated evaluation: metrics of several nodes from their sums, so that no person's own figures leave a node.

    tally(evaluation)   what a node reports of its people: counts and sums, plain numbers
    Tallied([...])      the reports of several nodes as one Evaluation: the same values as from everybody's figures, and
                        95 % intervals from the sums of squares (a normal approximation; others are bootstrapped)
Sums: of a metric over people (sum, sum of squares); of errors over ratings, with the moments of each person's own sums,
as the errors of a person are correlated; of labels also the variance that the clients' test examples give. Of top-10
lists `tally` has sums, too (list_metrics.py), under "lists"; `withhold_groups` removes those of few people.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtaste.evaluation.metrics import interval_around, share_variance
from fedtaste.evaluation.protocol import MANY, ClientMetrics, Evaluation, PredictionErrors, RankingMetrics
from fedtaste.result_part import JsonObject

Sums = dict[str, list[float]]


def tally(evaluation: Evaluation) -> JsonObject:
    """{"kind", "people", "sums"} of these people; `sums` by the metric's name, with a dot where it has a group."""
    if isinstance(evaluation, PredictionErrors):
        return _error_sums(np.array(evaluation.errors), np.array(evaluation.owners), evaluation.stars)
    if isinstance(evaluation, ClientMetrics):
        return _client_sums(evaluation.metrics, np.array(evaluation.examples, float))
    assert isinstance(evaluation, RankingMetrics)
    sums = {f"{kind}.{n}": _moments(v) for kind, metrics in evaluation.kinds.items() for n, v in metrics.items()}
    lists = {"lists": evaluation.lists.sums(evaluation.full)} if evaluation.lists else {}
    return {"kind": "ranking", "people": evaluation.people, "sums": sums, **lists}


def withhold_groups(part: JsonObject, least: int) -> JsonObject:
    """The same sums without the parts of "lists" that cover fewer than `least` people. If one group has fewer, all
    groups are left out: otherwise its sums would follow from those of the others and of everybody."""
    lists = dict(part.get("lists", {}))
    sizes = {"diversity": [lists["diversity"][1]], "groups": [group[0] for group in lists["groups"]]} if lists else {}
    kept = {name: lists[name] for name, people in sizes.items() if any(people) and all(n >= least for n in people if n)}
    return {name: value for name, value in part.items() if name != "lists"} | ({"lists": kept} if kept else {})


def _client_sums(metrics: dict[str, list[float]], examples: NDArray[np.float64]) -> JsonObject:
    sums = {name: _moments(values) for name, values in metrics.items()}
    for name, values in metrics.items():
        if name.endswith("accuracy"):
            sums[name].append(share_variance(np.array(values), examples))
    return {"kind": "clients", "people": len(examples), "sums": sums}


def _moments(values: Sequence[float]) -> list[float]:
    array = np.asarray(values, float)
    return [float(array.sum()), float((array**2).sum())]


def _error_sums(errors: NDArray[np.float64], owners: NDArray[np.generic], stars: bool) -> JsonObject:
    names, person = np.unique(owners, return_inverse=True)
    size = np.bincount(person, minlength=len(names)).astype(float)
    sums: Sums = {}
    for name, each in (("rmse", errors**2), ("accuracy", (np.abs(errors) <= 0.5).astype(float))):
        own = np.bincount(person, weights=each, minlength=len(names))
        sums[name] = [float(x) for x in (own.sum(), size.sum(), (own**2).sum(), (own * size).sum(), (size**2).sum())]
    return {"kind": "ratings" if stars else "numbers", "people": len(names), "sums": sums}


@dataclass(frozen=True)
class Tallied:
    """The reports of several nodes as one Evaluation."""

    parts: list[JsonObject]

    @property
    def people(self) -> int:
        return sum(part["people"] for part in self.parts)

    @property
    def sums(self) -> Sums:
        first = {n: v for n, v in self.parts[0]["sums"].items() if all(n in part["sums"] for part in self.parts)}
        return {
            name: [math.fsum(part["sums"][name][at] for part in self.parts) for at in range(len(values))]
            for name, values in first.items()
        }

    def exact(self) -> dict[str, float]:
        """Metrics by name, without the group, not rounded: what chooses the best round."""
        return {name.rsplit(".", 1)[-1]: self._value(name, sums) for name, sums in self.sums.items()}

    @property
    def values(self) -> JsonObject:
        return {"people": self.people, **self._shown(lambda name, sums: round(self._value(name, sums), 6))}

    @property
    def intervals(self) -> JsonObject:
        clients = self.parts[0]["kind"] == "clients"
        sums = {name: values for name, values in self.sums.items() if not clients or name.endswith("accuracy")}
        return self._shown(self._interval, sums)

    def _shown(self, of: Callable[[str, list[float]], object], sums: Sums | None = None) -> JsonObject:
        out: JsonObject = {}
        for name, value in (self.sums if sums is None else sums).items():
            if self.parts[0]["kind"] == "numbers" and name != "rmse":  # "within half a star" means something for stars
                continue
            group, _, last = name.rpartition(".")
            (out.setdefault(group, {}) if group else out)[last] = of(name, value)
        return out

    def _value(self, name: str, sums: list[float]) -> float:
        if self.parts[0]["kind"] in ("ratings", "numbers"):
            mean = sums[0] / max(sums[1], 1)
            return math.sqrt(mean) if name == "rmse" else mean
        return sums[0] / max(self.people, 1)

    def _interval(self, name: str, sums: list[float]) -> list[float]:
        people, middle = max(self.people, 1), self._value(name, sums)
        if self.parts[0]["kind"] in ("ratings", "numbers"):
            ratio = sums[0] / max(sums[1], 1)  # of people's sums: the error of a ratio, by its linear part
            spread = math.sqrt(max(sums[2] - 2 * ratio * sums[3] + ratio**2 * sums[4], 0.0)) / max(sums[1], 1)
            error = 1.96 * (spread / (2 * middle) if name == "rmse" and middle else spread)
            return interval_around(middle, error, highest=math.inf)
        if len(sums) == 3 and people < MANY:
            error = 1.96 * math.sqrt(sums[2]) / people
        else:
            error = 1.96 * math.sqrt(max(sums[1] / people - (sums[0] / people) ** 2, 0.0) / people)
        return interval_around(middle, error)
