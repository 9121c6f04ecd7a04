"""Protocols: `clean` by default, `published` on request, and the detector that tells them apart.

clean      training negatives come from everything outside the person's own training items; the round is chosen on
           validation, then train + validation is learnt from and test is read once; validation and test have negatives of
           their own; seen and new people are reported apart.
published  the papers' rules: held-out items are never drawn as training negatives, validation and test share their
           negatives, and the best round is chosen on TEST. Needed to check parity; it leaks, and says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..core import Method, Model, Params
from ..data.interactions import Histories
from ..data.sampling import TRAIN, Ragged, key_of, samples
from ..engine.store import Store
from .metrics import interval, means, ranking_metrics, rating_intervals, rating_metrics
from .scoring import full_ranks, personal_scores, sampled_ranks

PROTOCOLS = ("clean", "published")


@dataclass(frozen=True, eq=False)
class Judged:
    """Metrics of some people: what `--json` shows, and intervals."""

    values: dict[str, Any]
    intervals: dict[str, Any]


def rank_sampled(
    method: Method, model: Model, shared: Params, store: Store, people: NDArray[np.integer], held: Ragged,
    positives: Histories, negatives: Histories,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:  # fmt: skip
    """(ranks, owners) of these people's positives against their negatives; `held` is in the order of `people`."""
    mine, theirs = positives.take(people), negatives.take(people)
    both = mine.then(theirs)
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
    method: Method, model: Model, shared: Params, store: Store, people: NDArray[np.integer], held: Ragged,
    seen: Histories, positives: Histories, catalogue: int,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:  # fmt: skip
    """(ranks, owners) of these people's positives among everything they have not seen."""
    seen, mine = seen.take(people), positives.take(people)
    ranks, owners = [], []
    for part, scores in personal_scores(method, model, shared, store, people, held, torch.arange(catalogue)):
        ranks.append(full_ranks(scores, seen, mine, part))
        owners.append(np.repeat(part, mine.lengths[part]))
    return np.concatenate(ranks), np.concatenate(owners)


def judge_ranking(sampled: tuple[NDArray, NDArray], full: tuple[NDArray, NDArray], k: int = 10) -> Judged:
    per_person = {"sampled": ranking_metrics(*sampled, k), "full": ranking_metrics(*full, k)}
    values: dict[str, Any] = {"people": len(np.unique(sampled[1]))}
    values |= {kind: means(metrics) for kind, metrics in per_person.items()}
    return Judged(values, {kind: {n: interval(v) for n, v in metrics.items()} for kind, metrics in per_person.items()})


def judge_ratings(errors: NDArray[np.float64], owners: NDArray[np.integer]) -> Judged:
    values = {"people": len(np.unique(owners)), **{n: round(v, 6) for n, v in rating_metrics(errors).items()}}
    return Judged(values, rating_intervals(errors, owners))


def rating_errors(
    method: Method, model: Model, shared: Params, store: Store, people: NDArray[np.integer], held: Ragged,
    query: Histories, scale: tuple[float, float],
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:  # fmt: skip
    """(predicted - told, owners) over these people's query ratings; predictions are kept on the rating scale."""
    mine = query.take(people)
    width = max(int(mine.lengths.max(initial=0)), 1)
    filled = np.arange(width) < mine.lengths[:, None]
    items, told = np.zeros(filled.shape, np.int64), np.zeros(filled.shape)
    items[filled], told[filled] = mine.items, mine.values
    errors, owners = [], []
    for part, scores in personal_scores(method, model, shared, store, people, held, torch.from_numpy(items)):
        gap = np.clip(scores.double().numpy(), *scale) - told[part]
        errors.append(gap[filled[part]])
        owners.append(np.repeat(part, mine.lengths[part]))
    return np.concatenate(errors), np.concatenate(owners)


def memoriser(
    train: Histories, forbidden: Histories | None, positives: Histories, negatives: Histories, catalogue: int,
    seed: int, *, rounds: int = 50, drawn: int = 4,
) -> float:  # fmt: skip
    """HR@10 of a "recommender" that learns nothing: it remembers how often each item was drawn as a training negative,
    and likes the ones that were drawn least. Under an honest protocol it is worse than popularity."""
    people = np.flatnonzero(positives.lengths)
    columns = positives.take(people).then(negatives.take(people))
    owner = columns.owners
    draws = np.zeros(len(columns), np.int64)
    pairs = owner.astype(np.int64) * catalogue + columns.items
    order = np.argsort(pairs, kind="stable")
    for number in range(rounds):
        key = key_of(seed, TRAIN, number)
        round = samples(train, people, catalogue=catalogue, negatives=drawn, batch=0, key=key, forbidden=forbidden)
        who = np.repeat(np.arange(len(people)), round.lengths)
        shown = (who.astype(np.int64) * catalogue + round.inputs)[round.targets == 0]
        at = np.searchsorted(pairs[order], shown)
        hit = (at < len(pairs)) & (pairs[order][np.minimum(at, len(pairs) - 1)] == shown)
        np.add.at(draws, order[at[hit]], 1)
    return float(ranking_metrics(*_rank_columns(-draws.astype(float), columns, positives.take(people).lengths))["hr@10"].mean())


def popularity_hr(counts: NDArray[np.integer], positives: Histories, negatives: Histories) -> float:
    """HR@10 of ranking by how many people have an item."""
    people = np.flatnonzero(positives.lengths)
    columns = positives.take(people).then(negatives.take(people))
    return float(ranking_metrics(*_rank_columns(counts[columns.items].astype(float), columns, positives.take(people).lengths))["hr@10"].mean())


def _rank_columns(scores: NDArray[np.float64], columns: Histories, positives: NDArray[np.int64]) -> tuple[NDArray, NDArray]:
    """Ranks where each person's first `positives` columns are the positives; ties count against them."""
    ranks = []
    for person in range(columns.people):
        own = scores[columns.starts[person] : columns.starts[person + 1]]
        n = positives[person]
        ranks.append(1 + (own[n:][None] >= own[:n][:, None]).sum(1))
    return np.concatenate(ranks), np.repeat(np.arange(columns.people), positives)
