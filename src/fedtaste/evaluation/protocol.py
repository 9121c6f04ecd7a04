"""Evaluate people: ranks, errors and metrics for three kinds of tasks, and a detector of protocols that leak.

There are two protocols; tasks/ranking.py applies them.

clean      training negatives come from everything outside the person's own training items; the round is chosen on
           validation, then train + validation is learnt from and test is read once; validation and test have
           negatives of their own; seen and new people are reported apart.
published  the papers' rules: held-out items are never drawn as training negatives, validation and test share their
           negatives, and the best round is chosen on TEST. Needed to check parity with the papers; it leaks, and
           the result says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from fedtaste.core import People
from fedtaste.data.interactions import Histories
from fedtaste.data.sampling import SPLIT, TRAIN, key_of, samples, some
from fedtaste.evaluation.list_metrics import TOP, Lists
from fedtaste.evaluation.metrics import (
    interval,
    intervals,
    means,
    ranking_metrics,
    rating_intervals,
    rating_metrics,
    stratified,
)
from fedtaste.evaluation.scoring import Personalised, full_ranks, sampled_ranks, top_lists
from fedtaste.kernels.pair_counts import count_drawn
from fedtaste.kernels.ranks import column_ranks
from fedtaste.result_part import JsonObject
from fedtaste.steps import report

MANY = 30  # clients, from which on an interval is over clients and not over the examples of these clients
TESTED = 2_000  # people on whom a protocol is tested for leaks, at most
Ranks = tuple[NDArray[np.int64], NDArray[np.int64]]  # (ranks of positives, the people they belong to)


class Evaluation(Protocol):
    """Metrics of some people, rounded and exact, with intervals."""

    @property
    def values(self) -> JsonObject:
        """Metrics by name, rounded, and the number of people."""

    @property
    def intervals(self) -> JsonObject:
        """95 % intervals of the metrics."""

    def exact(self) -> dict[str, float]:
        """Metrics by name, by which the best round is chosen."""


@dataclass(frozen=True, eq=False)
class RankingMetrics:
    """Ranking metrics by person: among sampled negatives, and in the full catalogue."""

    sampled: dict[str, list[float]]
    full: dict[str, list[float]] = field(default_factory=dict)  # empty where only sampled negatives were ranked
    lists: Lists | None = None  # of the same people, where the full catalogue was ranked

    @staticmethod
    def of_ranks(sampled: Ranks, full: Ranks | None = None, lists: Lists | None = None) -> RankingMetrics:
        """The metrics of (ranks, owners) pairs."""
        parts = [{} if part is None else ranking_metrics(*part) for part in (sampled, full)]
        first, second = ({name: values.tolist() for name, values in part.items()} for part in parts)
        return RankingMetrics(first, second, lists)

    @property
    def kinds(self) -> dict[str, dict[str, list[float]]]:
        """The metrics by kind: sampled, and full where it was ranked."""
        return {"sampled": self.sampled} | ({"full": self.full} if self.full else {})

    @property
    def people(self) -> int:
        return len(next(iter(self.sampled.values())))

    @property
    def values(self) -> JsonObject:
        return {"people": self.people, **{kind: means(metrics) for kind, metrics in self.kinds.items()}}

    @property
    def intervals(self) -> JsonObject:
        return {kind: intervals(metrics) for kind, metrics in self.kinds.items()}

    def exact(self) -> dict[str, float]:
        return {name: float(np.mean(values)) for name, values in self.sampled.items()}


@dataclass(frozen=True, eq=False)
class PredictionErrors:
    """Errors of predicted numbers (ratings, regression) with the people they belong to."""

    errors: list[float]
    owners: list[int] | list[str]
    stars: bool = True  # whether numbers are ratings: "within half a star" means nothing for others

    @property
    def values(self) -> JsonObject:
        metrics = rating_metrics(np.array(self.errors))
        rounded = {name: round(value, 6) for name, value in metrics.items() if self.stars or name == "rmse"}
        return {"people": len(set(self.owners)), **rounded}

    @property
    def intervals(self) -> JsonObject:
        intervals = rating_intervals(np.array(self.errors), np.array(self.owners))
        return intervals if self.stars else {"rmse": intervals["rmse"]}

    def exact(self) -> dict[str, float]:
        return rating_metrics(np.array(self.errors))


@dataclass(frozen=True, eq=False)
class ClientMetrics:
    """Metrics of classifiers by client, with each client's number of test examples."""

    metrics: dict[str, list[float]]
    examples: list[int]

    @property
    def values(self) -> JsonObject:
        return {"people": len(self.examples), **means(self.metrics)}

    @property
    def intervals(self) -> JsonObject:
        """Over clients where they are many, otherwise over the test examples of these clients."""
        shares = {name: np.array(values) for name, values in self.metrics.items() if name.endswith("accuracy")}
        if len(self.examples) >= MANY:
            return {name: interval(values) for name, values in shares.items()}
        return {name: stratified(values, np.array(self.examples)) for name, values in shares.items()}

    def exact(self) -> dict[str, float]:
        return means(self.metrics)


def join_folds(folds: list[JsonObject]) -> RankingMetrics | PredictionErrors:
    """The evaluations of several groups of people as one; each is a dataclass as a dict, as a checkpoint holds it."""
    if "errors" in folds[0]:
        owners = [f"{group}/{owner}" for group, fold in enumerate(folds) for owner in fold["owners"]]
        return PredictionErrors(sum((fold["errors"] for fold in folds), []), owners, folds[0]["stars"])

    def join(kind: str) -> dict[str, list[float]]:
        return {name: sum((fold[kind][name] for fold in folds), []) for name in folds[0][kind]}

    lists = [part for fold in folds if (part := fold.get("lists"))]  # none in a checkpoint of an earlier version
    return RankingMetrics(join("sampled"), join("full"), Lists.join(lists) if len(lists) == len(folds) else None)


def rank_sampled(people: Personalised, positives: Histories, negatives: Histories) -> Ranks:
    """(ranks, owners) of these people's positives against their negatives, which stand in the same order."""
    candidates, filled = positives.then(negatives).padded()
    positive = np.arange(filled.shape[1]) < positives.lengths[:, None]
    ranks, owners = [], []
    for part, scores in people.scores(torch.from_numpy(candidates)):
        ranks.append(sampled_ranks(scores, positive[part], (filled & ~positive)[part]))
        owners.append(np.repeat(part, positives.lengths[part]))
    return np.concatenate(ranks), np.concatenate(owners)


def rank_full(
    people: Personalised, seen: Histories, positives: Histories, catalogue: int
) -> tuple[Ranks, NDArray[np.int64]]:
    """((ranks, owners) of these people's positives among everything that is not in their `seen` history, their top-10
    lists [people, TOP] as `top_lists` gives them)."""
    ranks, owners, top, done = [], [], np.empty((seen.people, TOP), np.int64), 0
    report("evaluating", 0, seen.people)
    for part, scores in people.scores(torch.arange(catalogue)):
        ranks.append(full_ranks(scores, seen, positives, part))
        owners.append(np.repeat(part, positives.lengths[part]))
        top[part] = top_lists(scores, seen, part, TOP)
        done += len(part)
        report("evaluating", done, seen.people)
    return (np.concatenate(ranks), np.concatenate(owners)), top


def rating_errors(people: Personalised, query: Histories, scale: tuple[float, float]) -> PredictionErrors:
    """Predicted minus true ratings over these people's query; predictions are kept on the rating scale."""
    items, filled = query.padded()
    ratings = np.zeros(filled.shape)
    ratings[filled] = query.values
    errors, owners = [], []
    for part, scores in people.scores(torch.from_numpy(items)):
        difference = np.clip(scores.double().numpy(), *scale) - ratings[part]
        errors.append(difference[filled[part]])
        owners.append(np.repeat(part, query.lengths[part]))
    return PredictionErrors(np.concatenate(errors).tolist(), np.concatenate(owners).tolist())


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Held-out items of everybody, and the negatives that they are ranked against."""

    positives: Histories
    negatives: Histories

    def columns(self, people: People) -> tuple[Histories, NDArray[np.int64]]:
        """(each person's candidates, positives first; how many of them are positives)."""
        positives = self.positives.take(people)
        return positives.then(self.negatives.take(people)), positives.lengths


def memoriser(
    train: Histories, forbidden: Histories | None, held_out: HeldOut, catalogue: int, seed: int, *,
    rounds: Sequence[int] = (50,),
) -> list[tuple[int, float]]:  # fmt: skip
    """(round, HR@10) of a "recommender" that learns nothing: it remembers how often each item was drawn as a training
    negative, and prefers items that were drawn least. Under an honest protocol it is worse than popularity."""
    people = some(np.flatnonzero(held_out.positives.lengths), TESTED, key_of(seed, SPLIT, 4))
    columns, positives = held_out.columns(people)
    draws, curve = np.zeros(len(columns), np.int64), []
    for number in range(1, max(rounds) + 1):
        key = key_of(seed, TRAIN, number - 1)
        round = samples(train, people, catalogue=catalogue, negatives=4, batch=0, key=key, forbidden=forbidden)
        count_drawn(round.starts, round.inputs, round.targets, columns.starts, columns.items, catalogue, draws)
        if number in rounds:
            ranks = _rank_columns(-draws.astype(float), columns, positives)
            curve.append((number, float(ranking_metrics(*ranks)["hr@10"].mean())))
    return curve


def beyond_chance(memory: float, popular: float, people: int) -> bool:
    """Whether the memoriser beats popularity, or guessing where that is better, by more than three standard errors; on
    few people it may by chance."""
    error = ((memory * (1 - memory) + popular * (1 - popular)) / max(min(people, TESTED), 1)) ** 0.5
    return bool(memory - popular > 3 * error)


def popularity_hr(counts: NDArray[np.integer], held_out: HeldOut, people: People) -> float:
    """HR@10 of these people, who have held-out items, where items are ranked by how many people have them."""
    columns, positives = held_out.columns(people)
    ranks = _rank_columns(counts[columns.items].astype(float), columns, positives)
    return float(ranking_metrics(*ranks)["hr@10"].mean())


def guessing_hr(held_out: HeldOut, people: People) -> float:
    """HR@10 of a random order of these people's candidates: 1 where there are ten or fewer."""
    candidates = (held_out.positives.lengths + held_out.negatives.lengths)[people]
    return float(np.minimum(1, 10 / np.maximum(candidates, 1)).mean())


def _rank_columns(scores: NDArray[np.float64], columns: Histories, positives: NDArray[np.int64]) -> Ranks:
    """Ranks where each person's first `positives` columns are the positives; ties count against them."""
    return column_ranks(scores, columns.starts, positives), np.repeat(np.arange(columns.people), positives)
