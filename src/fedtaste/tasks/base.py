"""The Task protocol, and the types that every task uses: Facts, Sampling, TaskData and Served.

A task says what a data set is used for. Ranking, Ratings and Clients implement it, and so does the server of remote
clients (flower/server.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import reduce
from typing import Protocol

import numpy as np
import torch

from fedtaste.core import Download, Examples, Method, Model, People
from fedtaste.data.interactions import Histories, Interactions
from fedtaste.data.item_features import item_features
from fedtaste.data.user_files import UserSplit
from fedtaste.data.vocabulary import PeopleGroups
from fedtaste.engine.run import State, begin
from fedtaste.evaluation.list_metrics import BeyondAccuracy
from fedtaste.evaluation.protocol import Evaluation
from fedtaste.federation import Federation
from fedtaste.methods.descent import Meter
from fedtaste.result_part import JsonObject


@dataclass(frozen=True)
class Sampling:
    """How histories become examples."""

    negatives: int = 4  # drawn for every item of a person's history
    batch: int = 0  # 0: all of a person's examples at once


@dataclass(frozen=True)
class Facts:
    """The sizes and kinds of a task's data that a model and a method need; small enough to be stored with a run."""

    kind: str  # ranking, ratings, regression, labels
    items: int = 0
    timed: bool = False
    scale: tuple[float, float] = (0.0, 1.0)  # of ratings
    width: int = 0  # features, where inputs are not items
    shape: tuple[int, ...] = ()  # of an example with features: (d,), or (channels, height, width)
    classes: int = 0
    people: int = 0  # who learn: a public number
    feature_count: int = 0  # columns of the public item features (data/item_features.py); 0 where there are none
    features: torch.Tensor | None = field(default=None, compare=False, repr=False)
    # [items, feature_count], public; only a server step reads it, so it stays in the process that has it, and other
    # processes go by feature_count

    def words(self) -> JsonObject:
        """Everything but the features, as JSON."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "features"}

    def described(self, titles: Sequence[str], genres: Sequence[str]) -> Facts:
        """The same facts with the features that these titles and genres give."""
        table = item_features(titles, genres)
        if table is None:
            return self
        return replace(self, feature_count=table.shape[1], features=torch.from_numpy(table))


@dataclass(frozen=True, eq=False)
class Served:
    """A trained method that people are served with, or evaluated by."""

    method: Method
    model: Model
    state: State
    sampling: Sampling = Sampling()


class Task(Protocol):
    """The training data, the validation data that choose the best round, and the test data of one data set."""

    facts: Facts
    people: int
    interactions: int
    notes: tuple[str, ...]
    evaluated: People  # whose metrics are in the result
    newcomers: People  # those of them who take no part in training
    validates: bool  # whether there are data that choose the best round
    selection: tuple[str, int]  # the metric that chooses the best round, and 1 where more is better, or -1

    @property
    def seen(self) -> People:
        """The evaluated people who take part in training."""
        return np.setdiff1d(self.evaluated, self.newcomers)

    def federation(self, phase: str, method: Method, sampling: Sampling, without: People | None) -> Federation:
        """The training data: "search" leaves the validation data out, "final" does not. People of `without` (the
        newcomers by default) take no part."""

    def validation(self, served: Served) -> Evaluation:
        """Metrics on the validation data."""

    def evaluate(self, served: Served, people: People, passes: int | None) -> Evaluation:
        """Metrics of these people on the test data; `passes` of newcomers as in tasks.serve.serve, None for others."""

    def measurable(self, people: People, passes: int | None) -> People:
        """Those of these people for whom `evaluate` has a figure, in its order."""
        return people

    def leak(self) -> JsonObject | None:
        """The metrics of a recommender that only remembers training negatives, for protocols that may leak."""
        return None

    def beyond(self, seen: Evaluation, new: Evaluation | None) -> BeyondAccuracy | None:
        """Metrics of the lists behind these evaluations; None where people are not recommended items."""
        return None

    def extra(self, served: Served) -> JsonObject:
        """Further fields of the result; those under "seen" are added to the metrics of seen people."""
        return {}

    def new_item_metrics(self, served: Served) -> JsonObject | None:
        """Metrics of held-out items (NewItemScores of experiment/result.py), for a task that holds some out."""
        return None

    def gradients(self, served: Served, seed: int) -> tuple[float, float] | None:
        """Gradients that one person takes in the first round and in a later one, each over all of their data. Counted
        by running the first person's client; None where nothing is descended on a device."""
        method = served.method
        if method.pooled or method.examples == "history":
            return None
        federation = self.federation("final", method, served.sampling, None)
        person = federation.members[:1]
        examples = Examples(*(x[0] for x in federation.examples(person, 0, method.examples).pad()))
        counts = []
        for state in (begin(method, served.model, federation, seed), served.state):
            own = {name: value[0] for name, value in state.private.gather(person).items()}
            before = Meter.gradients
            method.client(Download(state.shared, torch.tensor(float(state.round))), own, examples)
            counts.append((Meter.gradients - before) / examples.mask.shape[0])
        return (counts[0], counts[1]) if any(counts) else None


@dataclass(frozen=True, eq=False)
class TaskData:
    """Histories by purpose (train, valid, test, ...), from which a ranking or ratings task is built."""

    kind: str  # ranking or ratings
    name: str
    items: int
    timed: bool
    histories: dict[str, Histories]
    scale: tuple[float, float] = (0.0, 1.0)
    notes: tuple[str, ...] = ()
    genres: tuple[str, ...] = ()  # by item; empty where the data have none
    groups: PeopleGroups | None = None  # of people, where the data have a column for it

    def restricted_to(self, people: People) -> TaskData:
        """The data of these people; the others keep their numbers and hold nothing."""
        parts = {name: part.where(np.isin(part.owners, people)) for name, part in self.histories.items()}
        return replace(self, histories=parts, notes=())


def count_learners(histories: Histories, newcomers: People) -> int:
    """How many people have a history and are not newcomers."""
    return int((np.delete(histories.lengths, newcomers) > 0).sum())


def all_histories(data: Interactions | UserSplit, seed: int) -> Histories:
    """Everybody's whole history; of a split that the user supplies, all of its parts."""
    if isinstance(data, Interactions):
        return data.histories(seed)
    parts = [part.histories(seed) for part in (data.train, data.valid, data.test) if part is not None]
    return reduce(Histories.then, parts).distinct()
