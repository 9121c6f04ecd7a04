"""Metrics of many places as one, from sums: nobody's own figures leave the place where they are.

    tally(judged)       what a node says of its people: counts and sums, plain numbers
    Tallied([...])      several of these as one: the same values as from everybody's figures, and 95 % intervals from
                        the sums of squares (a normal approximation where `Judged` draws again)
Sums: of a metric over people (n, sum, sum of squares); of errors over ratings, with the moments of people's own sums,
as a person's errors go together; of labels also the variance that clients' examples give.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from .protocol import MANY, Judged

Sums = dict[str, list[float]]


def tally(judged: Judged) -> dict[str, Any]:
    """{"kind", "people", "sums"} of these people; `sums` by the metric's name, with a dot where it has a group."""
    raw = judged.raw
    if "errors" in raw:
        return _errors(np.asarray(raw["errors"], float), np.asarray(raw["owners"]), bool(raw["stars"]))
    if "metrics" in raw:
        examples = np.asarray(raw["examples"], float)
        sums = {name: _moments(values) for name, values in raw["metrics"].items()}
        for name, values in raw["metrics"].items():
            if name.endswith("accuracy"):
                near = (np.asarray(values, float) * examples + 1) / (examples + 2)
                sums[name].append(float(np.sum(near * (1 - near) / np.maximum(examples, 1))))
        return {"kind": "clients", "people": len(examples), "sums": sums}
    flat = {f"{group}.{name}": _moments(values) for group, found in raw.items() for name, values in found.items()}
    people = len(next(iter(next(iter(raw.values())).values())))
    return {"kind": "ranking", "people": people, "sums": flat}


def _moments(values: Any) -> list[float]:
    values = np.asarray(values, float)
    return [float(values.sum()), float((values**2).sum())]


def _errors(errors: np.ndarray, owners: np.ndarray, stars: bool) -> dict[str, Any]:
    names, person = np.unique(owners, return_inverse=True)
    size = np.bincount(person, minlength=len(names)).astype(float)
    sums: Sums = {}
    for name, each in (("rmse", errors**2), ("accuracy", (np.abs(errors) <= 0.5).astype(float))):
        own = np.bincount(person, weights=each, minlength=len(names))
        sums[name] = [float(x) for x in (own.sum(), size.sum(), (own**2).sum(), (own * size).sum(), (size**2).sum())]
    return {"kind": "ratings" if stars else "numbers", "people": len(names), "sums": sums}


@dataclass(frozen=True)
class Tallied:
    """Several tallies as one; stands where a `Judged` does."""

    parts: list[dict[str, Any]]

    @property
    def people(self) -> int:
        return sum(part["people"] for part in self.parts)

    @property
    def sums(self) -> Sums:
        first = {n: v for n, v in self.parts[0]["sums"].items() if all(n in part["sums"] for part in self.parts)}
        return {name: [math.fsum(part["sums"][name][at] for part in self.parts) for at in range(len(first[name]))]
                for name in first}  # fmt: skip

    def exact(self) -> dict[str, float]:
        """Metrics by name, without the group, not rounded: what chooses the round."""
        return {name.rsplit(".", 1)[-1]: self._value(name, sums) for name, sums in self.sums.items()}

    @property
    def values(self) -> dict[str, Any]:
        return {"people": self.people, **self._shown(lambda name, sums: round(self._value(name, sums), 6))}

    @property
    def intervals(self) -> dict[str, Any]:
        kept = {n: s for n, s in self.sums.items() if self.parts[0]["kind"] != "clients" or n.endswith("accuracy")}
        return self._shown(self._interval, kept)

    def _shown(self, of: Any, sums: Sums | None = None) -> dict[str, Any]:
        out: dict[str, Any] = {}
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
            return [round(max(middle - error, 0.0), 6), round(middle + error, 6)]
        if len(sums) == 3 and people < MANY:
            error = 1.96 * math.sqrt(sums[2]) / people
        else:
            error = 1.96 * math.sqrt(max(sums[1] / people - (sums[0] / people) ** 2, 0.0) / people)
        return [round(max(middle - error, 0.0), 6), round(min(middle + error, 1.0), 6)]
