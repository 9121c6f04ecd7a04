"""Evaluate new items: hold out whole items, and rank them for people by vectors that come from features alone.

A seeded share of the items is removed from all histories before they are split (`--new-items 0.1`). After training,
their vectors are made from public features (methods/new_items.py). The positives of a person are all their held-out
items, and the candidates are all held-out items. Two baselines: a random order, and the order of the popularity that
the features predict, which is the same for everybody.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from fedtaste.core import Params, People
from fedtaste.data.interactions import Histories, Interactions
from fedtaste.data.item_features import item_features
from fedtaste.data.sampling import SPLIT, key_of, uniform
from fedtaste.errors import SettingError
from fedtaste.evaluation.metrics import interval, means, ranking_metrics
from fedtaste.evaluation.protocol import Ranks
from fedtaste.federation import Federation
from fedtaste.methods.new_items import LENGTH_RIDGE, fill_new_items, has_item_vectors, predict, ridge_map
from fedtaste.result_part import JsonObject
from fedtaste.tasks.base import Served
from fedtaste.tasks.serve import personalise

TOP = 10


@dataclass(frozen=True, eq=False)
class NewItems:
    """Items that are held out of training, and everybody's interactions with them."""

    items: NDArray[np.int64]  # their numbers, ascending
    positives: Histories
    features: NDArray[np.float32]  # [catalogue, columns]
    ridge: float

    @property
    def known(self) -> NDArray[np.bool_]:
        """Which items of the catalogue are not held out."""
        known = np.ones(len(self.features), bool)
        known[self.items] = False
        return known

    def evaluate(self, served: Served, devices: Federation, people: People, counts: NDArray[np.integer]) -> JsonObject:
        """Metrics of new items for those of these people who took some, with intervals and both baselines. `counts`:
        how many people have each item in training; a private run does not report the baseline that needs them."""
        who = np.intersect1d(people, np.flatnonzero(self.positives.lengths))
        if not len(who):
            raise SettingError("Nobody has taken a new item. Give a larger --new-items.")
        shared = fill_new_items(served.state.shared, self.known, self.features, self.ridge)
        filled = replace(served, state=replace(served.state, shared=shared))
        ready = personalise(filled, devices, who, None)
        metrics = ranking_metrics(*self._ranks(ready.scores(torch.from_numpy(self.items)), who))
        popular = np.tile(self._predicted_popularity(counts), (len(who), 1))
        baseline = ranking_metrics(*self._ranks(iter([(np.arange(len(who)), torch.from_numpy(popular))]), who))
        return {
            "items": len(self.items),
            "people": len(who),
            "metrics": means(metrics),
            "intervals": {name: interval(values) for name, values in metrics.items()},
            "random_recall": round(min(TOP / len(self.items), 1.0), 6),
            "popularity_recall": means(baseline)[f"recall@{TOP}"],
        }

    def _ranks(self, scores: Iterator[tuple[People, torch.Tensor]], who: People) -> Ranks:
        """(ranks, owners) of these people's positives among the new items; ties count against the positive."""
        mine = self.positives.take(who)
        ranks, owners = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for part, table in scores:
            for person, row in zip(part, np.nan_to_num(table.numpy(), nan=-np.inf)):
                at = np.searchsorted(self.items, mine.of(int(person)))
                rival = np.ones(len(row), bool)
                rival[at] = False
                ranks.append(1 + (row[rival][None] >= row[at][:, None]).sum(1))
                owners.append(np.full(len(at), person, np.int64))
        return np.concatenate(ranks), np.concatenate(owners)

    def _predicted_popularity(self, counts: NDArray[np.integer]) -> NDArray[np.float64]:
        """The logarithm of how many people take each new item, as its features predict it."""
        old = self.known & (counts > 0)
        logs = np.log1p(counts[old].astype(np.float64))[:, None]
        coefficients = ridge_map(self.features[old], logs, np.ones(len(logs)), LENGTH_RIDGE)
        return predict(self.features[self.items], coefficients)[:, 0]


def hold_out_items(data: Interactions, share: float, ridge: float, seed: int) -> tuple[Interactions, NewItems]:
    """(the data without a seeded share of the items, which stay in the catalogue; the held-out items)."""
    features = item_features(data.titles, data.genres, words=True)
    if features is None:
        raise SettingError(
            f"--new-items needs features of items, and {data.name} has no genres, no years and no words that several "
            "titles share. Add a column genres, or leave --new-items out."
        )
    number = round(share * len(data.items))
    if not 0 < number < len(data.items):
        raise SettingError(f"--new-items {share} leaves {number:,} of {len(data.items):,} items. Give another share.")
    draw = uniform(np.arange(len(data.items)), key_of(seed, SPLIT, 11))
    items = np.sort(np.argsort(draw, kind="stable")[:number])
    held = np.isin(data.item, items)
    everything = data.histories(seed)
    positives = everything.where(np.isin(everything.items, items))
    return data.rows(~held), NewItems(items, positives, features, ridge)


def require_item_vectors(shared: Params, method: str) -> None:
    """Refuse methods whose items have no vectors that features could be mapped to."""
    if not has_item_vectors(shared):
        raise SettingError(
            f"--new-items needs item vectors in plain numbers, and {method} shares none. Use fedals, fedrecon, fedmf, "
            "fcf, fedavg or fedtrail, or leave it out."
        )
