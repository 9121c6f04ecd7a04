"""Protocols: `clean` by default, `published` on request, and the detector that tells them apart.

clean      training negatives come from everything outside the person's own training items; the round is chosen on
           validation, then train + validation is learnt from and test is read once; validation and test have
           negatives of their own; seen and new people are reported apart.
published  the papers' rules: held-out items are never drawn as training negatives, validation and test share their
           negatives, and the best round is chosen on TEST. Needed to check parity; it leaks, and says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..core import Method, Model, Params
from ..data.interactions import Histories
from ..data.sampling import SPLIT, TRAIN, Ragged, key_of, samples, some
from ..engine.store import Store
from .metrics import interval, means, ranking_metrics, rating_intervals, rating_metrics, stratified
from .scoring import full_ranks, personal_scores, sampled_ranks

PROTOCOLS = ("clean", "published")
MANY = 30  # clients, from which on an interval is over clients and not over the examples of given ones


@dataclass(frozen=True, eq=False)
class Judged:
    """Some people's metrics. `raw` is what they are computed from, as plain lists: metrics by person for a ranking
    ({"sampled": {...}, "full": {...}}), {"errors": [...], "owners": [...], "stars": bool} for numbers, or {"metrics":
    {...}, "examples": [...]} by client for labels."""

    raw: dict[str, Any]

    @property
    def values(self) -> dict[str, Any]:
        if "metrics" in self.raw:
            return {"people": len(self.raw["examples"]), **means(self.raw["metrics"])}
        if "errors" in self.raw:
            found = self._numbers(rating_metrics(np.array(self.raw["errors"])))
            return {"people": len(set(self.raw["owners"])), **{n: round(v, 6) for n, v in found.items()}}
        people = len(next(iter(self.raw["sampled"].values())))
        return {"people": people, **{kind: means(metrics) for kind, metrics in self.raw.items()}}

    @property
    def intervals(self) -> dict[str, Any]:
        if "metrics" in self.raw:
            shares = {n: np.array(v) for n, v in self.raw["metrics"].items() if n.endswith("accuracy")}
            if len(self.raw["examples"]) >= MANY:
                return {name: interval(values) for name, values in shares.items()}
            return {name: stratified(values, np.array(self.raw["examples"])) for name, values in shares.items()}
        if "errors" in self.raw:
            return self._numbers(rating_intervals(np.array(self.raw["errors"]), np.array(self.raw["owners"])))
        return {kind: {n: interval(np.array(v)) for n, v in metrics.items()} for kind, metrics in self.raw.items()}

    def _numbers(self, found: dict[str, Any]) -> dict[str, Any]:
        """ "To within half a star" means something for stars only."""
        return found if self.raw["stars"] else {"rmse": found["rmse"]}

    @staticmethod
    def joined(parts: list[dict[str, Any]]) -> Judged:
        """Several groups of people as one."""
        if "errors" in parts[0]:
            owners = [f"{group}/{owner}" for group, part in enumerate(parts) for owner in part["owners"]]
            return Judged(
                {"errors": sum((part["errors"] for part in parts), []), "owners": owners, "stars": parts[0]["stars"]}
            )
        return Judged(
            {kind: {n: sum((p[kind][n] for p in parts), []) for n in names} for kind, names in parts[0].items()}
        )


def rank_sampled(
    method: Method, model: Model, shared: Params, store: Store, people: NDArray[np.int64], held: Ragged,
    positives: Histories, negatives: Histories,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:  # fmt: skip
    """(ranks, owners) of these people's positives against their negatives. `people` are their numbers in the store;
    `held`, `positives` and `negatives` are theirs, in the same order."""
    mine, both = positives, positives.then(negatives)
    width = max(int(both.lengths.max(initial=0)), 1)
    column = np.arange(width)
    candidates = np.zeros((len(people), width), np.int64)
    filled = column < both.lengths[:, None]
    candidates[filled] = both.items
    positive = column < mine.lengths[:, None]
    ranks, owners = [], []
    for part, scores in personal_scores(method, model, shared, store, people, held, torch.from_numpy(candidates)):
        ranks.append(sampled_ranks(scores, positive[part], (filled & ~positive)[part]))
        owners.append(np.repeat(part, mine.lengths[part]))
    return np.concatenate(ranks), np.concatenate(owners)


def rank_full(
    method: Method, model: Model, shared: Params, store: Store, people: NDArray[np.int64], held: Ragged,
    seen: Histories, positives: Histories, catalogue: int,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:  # fmt: skip
    """(ranks, owners) of these people's positives among everything they have not seen."""
    ranks, owners = [], []
    for part, scores in personal_scores(method, model, shared, store, people, held, torch.arange(catalogue)):
        ranks.append(full_ranks(scores, seen, positives, part))
        owners.append(np.repeat(part, positives.lengths[part]))
    return np.concatenate(ranks), np.concatenate(owners)


def judge_ranking(sampled: tuple[NDArray, NDArray], full: tuple[NDArray, NDArray], k: int = 10) -> Judged:
    kinds = {"sampled": ranking_metrics(*sampled, k), "full": ranking_metrics(*full, k)}
    return Judged({kind: {n: v.tolist() for n, v in metrics.items()} for kind, metrics in kinds.items()})


def judge_clients(metrics: dict[str, list[float]], examples: list[int]) -> Judged:
    return Judged({"metrics": metrics, "examples": examples})


def judge_ratings(errors: NDArray[np.float64], owners: NDArray[np.integer], *, stars: bool = True) -> Judged:
    return Judged({"errors": errors.tolist(), "owners": owners.tolist(), "stars": stars})


def rating_errors(
    method: Method, model: Model, shared: Params, store: Store, people: NDArray[np.int64], held: Ragged,
    query: Histories, scale: tuple[float, float],
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:  # fmt: skip
    """(predicted - told, owners) over these people's query ratings; predictions are kept on the rating scale."""
    width = max(int(query.lengths.max(initial=0)), 1)
    filled = np.arange(width) < query.lengths[:, None]
    items, told = np.zeros(filled.shape, np.int64), np.zeros(filled.shape)
    items[filled], told[filled] = query.items, query.values
    errors, owners = [], []
    for part, scores in personal_scores(method, model, shared, store, people, held, torch.from_numpy(items)):
        gap = np.clip(scores.double().numpy(), *scale) - told[part]
        errors.append(gap[filled[part]])
        owners.append(np.repeat(part, query.lengths[part]))
    return np.concatenate(errors), np.concatenate(owners)


def memoriser(
    train: Histories, forbidden: Histories | None, positives: Histories, negatives: Histories, catalogue: int,
    seed: int, *, rounds: Sequence[int] = (50,), drawn: int = 4, most: int = 2_000,
) -> list[tuple[int, float]]:  # fmt: skip
    """(round, HR@10) of a "recommender" that learns nothing: it remembers how often each item was drawn as a training
    negative, and likes the ones that were drawn least. Under an honest protocol it is worse than popularity."""
    people = some(np.flatnonzero(positives.lengths), most, key_of(seed, SPLIT, 4))  # of the rules, not of the people
    columns = positives.take(people).then(negatives.take(people))
    draws, found = np.zeros(len(columns), np.int64), []
    pairs = columns.owners.astype(np.int64) * catalogue + columns.items
    order = np.argsort(pairs, kind="stable")
    for number in range(1, max(rounds) + 1):
        key = key_of(seed, TRAIN, number - 1)
        round = samples(train, people, catalogue=catalogue, negatives=drawn, batch=0, key=key, forbidden=forbidden)
        who = np.repeat(np.arange(len(people)), round.lengths)
        shown = (who.astype(np.int64) * catalogue + round.inputs)[round.targets == 0]
        at = np.searchsorted(pairs[order], shown)
        hit = (at < len(pairs)) & (pairs[order][np.minimum(at, len(pairs) - 1)] == shown)
        np.add.at(draws, order[at[hit]], 1)
        if number in rounds:
            ranked = _rank_columns(-draws.astype(float), columns, positives.take(people).lengths)
            found.append((number, float(ranking_metrics(*ranked)["hr@10"].mean())))
    return found


def beyond_chance(memory: float, popular: float, people: int) -> bool:
    """Whether remembering beats popularity by more than three standard errors: on little data either may be ahead."""
    error = ((memory * (1 - memory) + popular * (1 - popular)) / max(min(people, 2_000), 1)) ** 0.5
    return memory - popular > 3 * error


def popularity_hr(counts: NDArray[np.integer], positives: Histories, negatives: Histories) -> float:
    """HR@10 of ranking by how many people have an item."""
    people = np.flatnonzero(positives.lengths)
    columns = positives.take(people).then(negatives.take(people))
    return float(
        ranking_metrics(*_rank_columns(counts[columns.items].astype(float), columns, positives.take(people).lengths))[
            "hr@10"
        ].mean()
    )


def _rank_columns(
    scores: NDArray[np.float64], columns: Histories, positives: NDArray[np.int64]
) -> tuple[NDArray, NDArray]:
    """Ranks where each person's first `positives` columns are the positives; ties count against them."""
    ranks = []
    for person in range(columns.people):
        own = scores[columns.starts[person] : columns.starts[person + 1]]
        n = positives[person]
        ranks.append(1 + (own[n:][None] >= own[:n][:, None]).sum(1))
    return np.concatenate(ranks), np.repeat(np.arange(columns.people), positives)
