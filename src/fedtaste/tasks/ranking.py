"""The ranking task: which item does a person take next? Splits, training data, validation and test by HR and NDCG."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedtaste.core import Method, People
from fedtaste.data import splits
from fedtaste.data.interactions import Histories, Interactions, repeated
from fedtaste.data.item_features import genre_bits
from fedtaste.data.ragged import count_numbers
from fedtaste.data.sampling import SERVE, SPLIT, TRAIN, key_of, some
from fedtaste.data.user_files import UserSplit
from fedtaste.errors import DataError
from fedtaste.evaluation import protocol
from fedtaste.evaluation.list_metrics import BeyondAccuracy, ListMetrics, Lists
from fedtaste.evaluation.protocol import Evaluation, HeldOut, RankingMetrics, rank_full, rank_sampled
from fedtaste.federation import Federation, of_histories, pooled
from fedtaste.result_part import JsonObject
from fedtaste.steps import report
from fedtaste.tasks.base import Facts, Sampling, Served, Task, TaskData, all_histories, count_learners
from fedtaste.tasks.new_items import NewItems
from fedtaste.tasks.serve import personalise
from fedtaste.text import count

MOST_EVALUATED = 20_000  # people: ranking whole catalogues for everybody would be people x items
MOST_VALIDATED = 5_000  # people who choose the round: enough for a third digit, whatever the size of the data
MEMORY_CURVE = (1, 2, 5, 10, 20, 30, 50, 100)  # rounds after which the leak detector (memoriser) is measured
MEMORY_ROUND = 50  # the one of them that a result reports


class Ranking(Task):
    """Rank items by how likely a person takes them next. Histories count as taken or not; values are not used.

    clean       trains on the training part, chooses the round on validation, then trains on both
    published   trains on the training part, and chooses the round on the test part (evaluation/protocol.py)
    production  as clean, but nothing is held out for a test and nobody is evaluated (`production_task`)
    """

    selection = ("ndcg@10", 1)
    new_items: NewItems | None = None  # held out of the histories

    def __init__(self, data: TaskData, *, protocol_name: str, new_people: float, seed: int) -> None:
        parts = data.histories
        self.seed, self.catalogue, self.published = seed, data.items, protocol_name == "published"
        self.train, self.valid = parts["train"], parts["valid"]
        self.test = HeldOut(parts["test"], parts["test_negatives"])
        self.choosing = self.test if self.published else HeldOut(self.valid, parts["valid_negatives"])
        self.final_train = self.train if self.published else self.train.then(self.valid)
        self.forbidden = self.valid.then(parts["test"]) if self.published else None
        self.genres, self.groups = genre_bits(data.genres), data.groups
        self.people = self.train.people
        self.left_out = np.flatnonzero(splits.held_out_people(self.people, new_people, seed))
        self.evaluated = some(np.flatnonzero(parts["test"].lengths), MOST_EVALUATED, key_of(seed, SPLIT, 6))
        if not len(self.evaluated) and protocol_name != "production":
            raise DataError(
                f"Nobody in {data.name} has two interactions or more, so nothing can be held out. Bring longer "
                "histories."
            )
        self.newcomers = np.intersect1d(self.left_out, self.evaluated)
        choosers = np.setdiff1d(np.flatnonzero(self.choosing.positives.lengths), self.left_out)
        self.choosers = some(choosers, MOST_VALIDATED, key_of(seed, SPLIT, 5))
        self.validates = bool(len(self.choosers))
        self.interactions = len(self.train) + len(self.valid) + len(parts["test"])
        self.facts = Facts("ranking", data.items, data.timed, people=count_learners(self.final_train, self.left_out))
        self.notes = data.notes + self._describe_limits(data.name)

    def federation(self, phase: str, method: Method, sampling: Sampling, without: People | None) -> Federation:
        members = np.setdiff1d(np.arange(self.people), self.left_out if without is None else without)
        federation = self._devices(self.train if phase == "search" else self.final_train, sampling, members=members)
        return pooled(federation) if method.pooled else federation

    def _devices(
        self, histories: Histories, sampling: Sampling, *, members: People | None = None, stream: int = TRAIN
    ) -> Federation:
        return of_histories(
            histories, self.catalogue, negatives=sampling.negatives, batch=sampling.batch, seed=self.seed,
            members=members, forbidden=self.forbidden, stream=stream,
        )  # fmt: skip

    def validation(self, served: Served) -> RankingMetrics:
        devices = self._devices(self.train, served.sampling, stream=SERVE)
        ready = personalise(served, devices, self.choosers, None)
        positives, negatives = self.choosing.positives.take(self.choosers), self.choosing.negatives.take(self.choosers)
        return RankingMetrics.of_ranks(rank_sampled(ready, positives, negatives))

    def evaluate(self, served: Served, people: People, passes: int | None) -> RankingMetrics:
        devices = self._devices(self.final_train, served.sampling, stream=SERVE)
        ready = personalise(served, devices, people, passes)
        positives = self.test.positives.take(people)
        sampled = rank_sampled(ready, positives, self.test.negatives.take(people))
        history = self.final_train.take(people)
        full, top = rank_full(ready, history, positives, self.catalogue)
        labels = [self.groups.labels[person] for person in people] if self.groups else ()
        lists = Lists.of(top, self.catalogue, self.genres, history.lengths, labels)
        return RankingMetrics.of_ranks(sampled, full, lists)

    def item_counts(self) -> NDArray[np.int64]:
        """How many people have each item in their history, [items]."""
        return count_numbers(self.final_train.distinct().items, self.catalogue)

    def _entry_counts(self) -> NDArray[np.int64]:
        """How many entries of histories each item has, [items]."""
        return count_numbers(self.final_train.items, self.catalogue)

    def beyond(self, seen: Evaluation, new: Evaluation | None) -> BeyondAccuracy:
        taken = self.item_counts()

        def metrics(group: Evaluation | None) -> ListMetrics | None:
            if not isinstance(group, RankingMetrics) or group.lists is None:
                return None
            return group.lists.metrics(taken, self.people, group.full, self.groups.column if self.groups else "")

        return BeyondAccuracy(seen=metrics(seen), new=metrics(new))

    def new_item_metrics(self, served: Served) -> JsonObject | None:
        if self.new_items is None:
            return None
        devices = self._devices(self.final_train, served.sampling, stream=SERVE)
        return self.new_items.evaluate(served, devices, self.seen, self._entry_counts())

    def leak(self) -> JsonObject:
        rounds = MEMORY_CURVE if self.published else (MEMORY_ROUND,)  # the curve matters only where something leaks
        curve = protocol.memoriser(
            self.final_train, self.forbidden, self.test, self.catalogue, self.seed, rounds=rounds
        )
        memory = dict(curve)[MEMORY_ROUND]
        popular = protocol.popularity_hr(self._entry_counts(), self.test, self.evaluated)
        guessing = protocol.guessing_hr(self.test, self.evaluated)  # better than popularity among few candidates
        return {
            "memoriser_hr@10": round(memory, 6),
            "popularity_hr@10": round(popular, 6),
            "leaks": protocol.beyond_chance(memory, max(popular, guessing), len(self.evaluated)),
            **({"memoriser_curve": [[n, round(hr, 6)] for n, hr in curve]} if self.published else {}),
        }

    def _describe_limits(self, name: str) -> tuple[str, ...]:
        """Notes about people for whom training or evaluation is not what one expects."""
        tested, trained = self.test.positives.lengths > 0, self.final_train.lengths
        notes: tuple[str, ...] = ()
        if unknown := int(((trained == 0) & tested).sum()):
            notes += (f"{count(unknown, 'person has', 'people have')} test items but no history to learn from.",)
        untouched = self.catalogue - trained - (self.forbidden.lengths if self.forbidden else 0)
        if without := int(((untouched <= 0) & (trained > 0)).sum()):
            people = count(without, "person", "people")
            notes += (f"For {people} no item is left to draw as a negative: they train without negatives.",)
        certain = int(((self.test.negatives.lengths == 0) & tested).sum())
        if certain and certain == int(tested.sum()):
            raise DataError(
                f"{name}: {count(certain, 'person', 'people')} can be evaluated, with items to hold out, who left none "
                f"of the {self.catalogue:,} items untouched, so a held-out item has nothing to be ranked against. "
                "Bring a larger catalogue or more people, or use --task ratings."
            )
        if certain:
            people = count(certain, "person has", "people have")
            notes += (f"{people} touched every item, so that a held-out item is a certain hit.",)
        if len(self.evaluated) == MOST_EVALUATED:
            notes += (f"{MOST_EVALUATED:,} of the people are evaluated, a seeded choice.",)
        if len(self.choosers) == MOST_VALIDATED:
            notes += (f"The round is chosen on {MOST_VALIDATED:,} of the people.",)
        return notes


def ranking_task(
    data: Interactions | UserSplit, *, protocol_name: str, split_name: str, new_people: float, seed: int
) -> Ranking:
    """The ranking task of a data set, with the public item features that its titles and genres give."""
    report(splits.SPLITTING, 0, 4)
    parts = split_for_ranking(data, protocol_name, split_name, seed)
    task = Ranking(parts, protocol_name=protocol_name, new_people=new_people, seed=seed)
    task.facts = task.facts.described(data.table.titles, data.table.genres)
    report(splits.SPLITTING, 4, 4)
    return task


def production_task(data: Interactions | UserSplit, *, seed: int, search: bool) -> Ranking:
    """The ranking task of a model for production: its final phase learns from everything and everybody. With `search`
    the newest item of each person chooses the number of rounds before that."""
    table = data.table.require()
    histories = all_histories(data, seed)
    ones = replace(histories, values=repeated(1.0, len(histories)))
    split = splits.for_production(ones, len(table.items), seed, search=search)
    parts = {"train": split.train, "valid": split.valid, "test": split.test}
    parts |= {"valid_negatives": split.valid_negatives, "test_negatives": split.test_negatives}
    timed = table.time is not None
    parts_of_task = TaskData("ranking", table.name, len(table.items), timed, parts, notes=data.notes)
    task = Ranking(parts_of_task, protocol_name="production", new_people=0.0, seed=seed)
    task.facts = task.facts.described(table.titles, table.genres)
    return task


def split_for_ranking(data: Interactions | UserSplit, protocol_name: str, split_name: str, seed: int) -> TaskData:
    """The histories to train on, to choose the round by and to evaluate on; ratings count as 1."""
    table = data.table.require()
    catalogue, timed = len(table.items), table.time is not None
    if isinstance(data, Interactions):
        data = replace(data, value=None)
    if isinstance(data, UserSplit):
        split = splits.supplied(data, seed)
    elif split_name == "temporal":
        split = splits.temporal(data, seed)
    elif split_name == "random":
        split = splits.random_share(data.histories(seed), catalogue, seed)
    else:
        shared, histories = protocol_name == "published", data.histories(seed)
        report(splits.SPLITTING, 1, 4)
        split = splits.leave_one_out(histories, catalogue, seed, shared_negatives=shared, timed=timed)
    parts = {"train": split.train, "valid": split.valid, "test": split.test}
    parts = {name: replace(part, values=repeated(1.0, len(part))) for name, part in parts.items()}
    parts |= {"valid_negatives": split.valid_negatives, "test_negatives": split.test_negatives}
    notes = data.notes + split.notes
    return TaskData(
        "ranking", table.name, catalogue, timed, parts, notes=notes, genres=table.genres, groups=table.groups
    )
