"""The ratings task: how many stars does a person give an item? Splits, training data, validation and test by RMSE."""

from __future__ import annotations

import numpy as np

from fedtaste.core import Method, People
from fedtaste.data import splits
from fedtaste.data.interactions import Histories, Interactions
from fedtaste.data.sampling import SERVE, TRAIN
from fedtaste.data.user_files import UserSplit
from fedtaste.errors import DataError
from fedtaste.evaluation.protocol import PredictionErrors, rating_errors
from fedtaste.federation import Federation, of_histories, pooled
from fedtaste.tasks.base import Facts, Sampling, Served, Task, TaskData, all_histories, count_learners
from fedtaste.tasks.serve import personalise

LARGEST = 1e9  # of ratings: what is beyond is a mistake in the file
CHOOSER_PASSES = 20  # at most, of people who choose the round and are treated as newcomers


class Ratings(Task):
    """Predict ratings. Seen people: a tenth of everybody's ratings is held out (or the test file). New people bring a
    random half of their ratings and are evaluated on the other half; so are the people who choose the best round, a
    tenth of all."""

    selection = ("rmse", -1)

    def __init__(self, data: TaskData, *, new_people: float, seed: int) -> None:
        parts = data.histories
        self.seed, self.catalogue, self.scale = seed, data.items, data.scale
        self.train, self.test = parts["train"], parts["asked"]  # of seen people; "asked" is a name in files of shards
        self.support, self.query = parts["support"], parts["query"]  # of new people
        self.half, self.other = parts["half"], parts["other"]  # of people who choose the round
        self.people = self.train.people
        possible = (self.query.lengths > 0) & (self.support.lengths > 0)
        self.left_out = np.flatnonzero(splits.held_out_people(self.people, new_people, seed))
        fold = splits.folds(self.people, 10, seed + 1)
        self.choosers = np.setdiff1d(np.flatnonzero((fold == 0) & possible), self.left_out)
        self.validates = bool(len(self.choosers))
        self.evaluated = np.flatnonzero(possible)
        if not len(self.evaluated):
            raise DataError(
                f"Nobody in {data.name} can be evaluated: a person needs a rating to learn from and one to test on (in "
                "a split of your own: rows in train.csv and in test.csv). Bring more ratings."
            )
        self.newcomers = np.intersect1d(self.left_out, self.evaluated)
        self.interactions = len(self.train) + len(self.test)
        learners = count_learners(self.train, self.left_out)
        self.facts = Facts("ratings", data.items, data.timed, data.scale, people=learners)
        self.notes = data.notes

    def federation(self, phase: str, method: Method, sampling: Sampling, without: People | None) -> Federation:
        left_out = self.left_out if without is None else without
        left_out = np.union1d(left_out, self.choosers) if phase == "search" else left_out
        members = np.setdiff1d(np.arange(self.people), left_out)
        federation = self._devices(self.train, sampling, members=members)
        return pooled(federation) if method.pooled else federation

    def _devices(
        self, histories: Histories, sampling: Sampling, *, members: People | None = None, stream: int = TRAIN
    ) -> Federation:
        return of_histories(
            histories, self.catalogue, negatives=0, batch=sampling.batch, seed=self.seed, members=members, stream=stream
        )

    def validation(self, served: Served) -> PredictionErrors:
        devices = self._devices(self.half, served.sampling, stream=SERVE)
        people = personalise(served, devices, self.choosers, min(served.state.round, CHOOSER_PASSES))
        return rating_errors(people, self.other.take(self.choosers), self.scale)

    def measurable(self, people: People, passes: int | None) -> People:
        train, test = (self.train, self.test) if passes is None else (self.support, self.query)
        return people[(test.lengths[people] > 0) & (train.lengths[people] > 0)]

    def evaluate(self, served: Served, people: People, passes: int | None) -> PredictionErrors:
        train, test = (self.train, self.test) if passes is None else (self.support, self.query)
        people = self.measurable(people, passes)
        ready = personalise(served, self._devices(train, served.sampling, stream=SERVE), people, passes)
        return rating_errors(ready, test.take(people), self.scale)


def production_task(data: Interactions | UserSplit, *, seed: int, search: bool) -> Ratings:
    """The ratings task of a model for production: its final phase learns from everything and everybody. With `search` a
    tenth of the people choose the number of rounds before that."""
    table = _checked_ratings(data)
    histories = all_histories(data, seed)
    half, other = splits.support_query(histories, 0.5, seed)
    nothing, scale = Histories.empty(histories.people), (float(histories.values.min()), float(histories.values.max()))
    parts = {"train": histories, "asked": nothing, "support": half, "query": other, "half": half, "other": other}
    whole = TaskData("ratings", table.name, len(table.items), table.time is not None, parts, scale, data.notes)
    task = Ratings(whole, new_people=0.0, seed=seed)
    task.validates = task.validates and search
    return task


def _checked_ratings(data: Interactions | UserSplit) -> Interactions:
    """The table of the data; refuses data without ratings, and absurd ones."""
    table = data.table.require()
    if table.value is None:
        raise DataError(f"{table.name} has no ratings. Bring a rating column, or use --task ranking.")
    largest = float(np.abs(table.value).max(initial=0.0))
    if not largest <= LARGEST:
        raise DataError(f"Ratings must be at most {LARGEST:g}, got {largest:g} in {table.name}. Correct it.")
    return table


def split_for_ratings(data: Interactions | UserSplit, seed: int) -> TaskData:
    """The ratings to learn from and to evaluate on: of seen people, of new ones and of those who choose the round."""
    table = _checked_ratings(data)
    notes, histories = data.notes, table.histories(seed)
    if isinstance(data, UserSplit):
        train = histories if data.valid is None else histories.then(data.valid.histories(seed))
        test = data.test.histories(seed)
        support, query = train, test
        notes += (splits.SUPPLIED,)
    else:
        train, test = splits.support_query(histories, 0.9, seed)
        support, query = splits.support_query(histories, 0.5, seed)
    half, other = splits.support_query(train, 0.5, seed)
    values = np.concatenate([train.values, query.values])
    parts = {"train": train, "asked": test, "support": support, "query": query, "half": half, "other": other}
    scale = (float(values.min()), float(values.max()))
    return TaskData("ratings", table.name, len(table.items), table.time is not None, parts, scale, notes)
