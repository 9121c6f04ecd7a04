"""Tasks: what a data set is used for, and so what is learnt from, what chooses the round, and what judges.

A Task hides the difference between ranking, ratings (rating_tasks.py), regression and labels (client_tasks.py):
    federation(phase, method)    "search" learns without validation data, "final" with it
    validate(...)                a dict of metrics; `better` says how to compare them
    judge(...)                   metrics and intervals of seen or of new people
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from .core import Download, Method, Model, Params, Seat, Stage
from .data import splits
from .data.importing import BroughtSplit
from .data.interactions import Histories, Interactions, count
from .data.item_features import item_features
from .data.sampling import SERVE, SPLIT, key_of, some
from .engine.backends import Call, choose, collect
from .engine.run import State
from .engine.store import Store
from .errors import DataError
from .evaluation import protocol
from .evaluation.metrics import ranking_metrics
from .evaluation.protocol import Judged
from .federation import Federation, of_histories, pooled

People = NDArray[np.int64]
JUDGED = 20_000  # people who are judged, at most: ranking whole catalogues for everybody would be people x items
VALIDATED = 5_000  # people who choose the round, at most: enough for a third digit, whatever the size of the data
MEMORY, REMEMBERED = (1, 2, 5, 10, 20, 30, 50, 100), 50  # rounds of remembering: the curve, and what is told of it


@dataclass(frozen=True)
class Sampling:
    """How histories become examples."""

    negatives: int = 4
    batch: int = 0


@dataclass(frozen=True)
class Facts:
    """What a model and a method must know of a task; small enough to be kept with a run."""

    kind: str  # ranking, ratings, regression, labels
    items: int = 0
    timed: bool = False
    scale: tuple[float, float] = (0.0, 1.0)  # of ratings
    width: int = 0  # features, where inputs are not items
    shape: tuple[int, ...] = ()  # of an example with features: (d,), or (channels, height, width)
    classes: int = 0
    people: int = 0  # who learn: a public number
    feature_count: int = 0  # columns of the public item features (data/item_features.py); 0 where there are none
    features: torch.Tensor | None = field(
        default=None, compare=False, repr=False
    )  # [items, feature_count], public; only
    # a server step reads it, so it stays in the process that has it, and other processes go by feature_count

    def words(self) -> dict[str, Any]:
        """Everything but the features, as JSON."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "features"}

    def described(self, titles: Sequence[str], genres: Sequence[str]) -> Facts:
        """The same facts with the features that these titles and genres give."""
        table = item_features(titles, genres)
        if table is None:
            return self
        return replace(self, feature_count=table.shape[1], features=torch.from_numpy(table))


@dataclass(frozen=True, eq=False)
class Task:
    facts: Facts
    people: int
    interactions: int
    notes: tuple[str, ...]
    federation: Callable[[str, Method, Sampling, People | None], Federation]  # phase, ..., people left out
    validate: Callable[[Method, Model, State, Sampling], dict[str, float]] | None
    judge: Callable[..., Judged]  # method, model, state, sampling, people, new: passes or None
    everybody: People  # who is judged
    newcomers: People  # who takes no part in training
    leak: Callable[[], dict[str, Any] | None]
    better: tuple[str, int]  # the metric that chooses, and 1 or -1
    extra: Callable[[Method, Model, State], dict[str, Any]] = lambda method, model, state: {}
    chosen: Callable[..., Judged] | None = None  # what `validate` is computed from, person by person
    taken: Callable[..., tuple[float, float] | None] | None = None  # gradients, where devices are elsewhere (costs.py)

    @property
    def seen(self) -> People:
        return np.setdiff1d(self.everybody, self.newcomers)


def serve(
    method: Method, shared: Params, store: Store, base: Federation, people: People, passes: int | None
) -> tuple[Store, People, Any]:
    """(private parameters, their numbers, examples) with which these people are personalised.

    Newcomers (`passes` given) start as everybody did: the device runs the client's own code on its own examples
    `passes` times, keeps what is private and sends nothing. Methods without private parameters need none of that.
    """
    held = base.examples(people, 0)
    if passes is None:
        return store, people, held
    backend = choose("auto", method, Stage())
    fresh, numbers = Store.fresh(store.initial, len(people), method.rows), np.arange(len(people))
    for step in range(passes if store.initial else 0):
        again = base.examples(people, step + 1)
        alone = Seat(b"", step, float(len(people)))
        collect(backend, method, Call(Download(shared, torch.tensor(float(step))), numbers, again, alone), fresh)
    return fresh, numbers, held


@dataclass(frozen=True, eq=False)
class Parts:
    """What people hold, by what it is for; a task is made of it. A part of the people is Parts too (`of`)."""

    kind: str  # ranking or ratings
    name: str
    items: int
    timed: bool
    histories: dict[str, Histories]
    scale: tuple[float, float] = (0.0, 1.0)
    notes: tuple[str, ...] = ()

    def of(self, people: People) -> Parts:
        """These people's; the others keep their numbers and hold nothing."""
        kept = {}
        for name, whole in self.histories.items():
            mine = np.zeros(whole.people, bool)
            mine[people] = True
            kept[name] = whole.where(mine[whole.owners])
        return replace(self, histories=kept, notes=())


def ranking(
    data: Interactions | BroughtSplit, *, protocol_name: str, split_name: str, new_people: float, seed: int
) -> Task:
    """Which item next? Histories count as taken or not; values are not used."""
    parts = ranking_parts(data, protocol_name, split_name, seed)
    task = ranking_of(parts, protocol_name=protocol_name, new_people=new_people, seed=seed)
    about = data.train if isinstance(data, BroughtSplit) else data
    return replace(task, facts=task.facts.described(about.titles, about.genres))


def ranking_parts(data: Interactions | BroughtSplit, protocol_name: str, split_name: str, seed: int) -> Parts:
    """What is learnt from, what chooses and what judges."""
    split, timed, about = _ranking_split(data, protocol_name, split_name, seed)
    flat = {"train": _flat(split.train), "valid": _flat(split.valid), "test": _flat(split.test)}
    drawn = {"valid_negatives": split.valid_negatives, "test_negatives": split.test_negatives}
    return Parts("ranking", about.name, len(about.items), timed, flat | drawn, notes=about.notes + split.notes)


def ranking_of(parts: Parts, *, protocol_name: str, new_people: float, seed: int) -> Task:
    """The task of people who hold this."""
    held, timed = parts.histories, parts.timed
    split = splits.Split(held["train"], held["valid"], held["test"], held["valid_negatives"], held["test_negatives"])
    catalogue, published = parts.items, protocol_name == "published"
    both = split.train if published else split.train.then(split.valid)
    forbidden = split.valid.then(split.test) if published else None
    newcomers = np.flatnonzero(splits.held_out_people(split.train.people, new_people, seed))
    judged = some(np.flatnonzero(split.test.lengths), JUDGED, key_of(seed, SPLIT, 6))
    if not len(judged):
        raise DataError(
            f"Nobody in {parts.name} has two interactions or more, so nothing can be held out. Bring longer histories."
        )

    def federation(phase: str, method: Method, sampling: Sampling, without: People | None) -> Federation:
        members = np.setdiff1d(np.arange(split.train.people), newcomers if without is None else without)
        histories = split.train if phase == "search" else both
        made = of_histories(
            histories, catalogue, examples=method.examples, negatives=sampling.negatives, batch=sampling.batch,
            seed=seed, members=members, forbidden=forbidden,
        )  # fmt: skip
        return pooled(made) if method.pooled else made

    def at_home(histories: Histories, method: Method, sampling: Sampling) -> Federation:
        return of_histories(
            histories, catalogue, examples=method.examples, negatives=sampling.negatives, batch=sampling.batch,
            seed=seed, forbidden=forbidden, stream=SERVE,
        )  # fmt: skip

    chooses = split.test if published else split.valid
    choosers = some(np.setdiff1d(np.flatnonzero(chooses.lengths), newcomers), VALIDATED, key_of(seed, SPLIT, 5))

    def chosen(method: Method, model: Model, state: State, sampling: Sampling) -> Judged:
        store, numbers, held = serve(
            method, state.shared, state.private, at_home(split.train, method, sampling), choosers, None
        )
        negatives = split.test_negatives if published else split.valid_negatives
        ranked = protocol.rank_sampled(
            method, model, state.shared, store, numbers, held, chooses.take(choosers), negatives.take(choosers)
        )
        return Judged({"sampled": ranking_metrics(*ranked)})

    def validate(method: Method, model: Model, state: State, sampling: Sampling) -> dict[str, float]:
        return {k: float(v.mean()) for k, v in chosen(method, model, state, sampling).raw["sampled"].items()}

    def judge(
        method: Method, model: Model, state: State, sampling: Sampling, people: People, passes: int | None
    ) -> Judged:
        home = at_home(both, method, sampling)
        store, numbers, held = serve(method, state.shared, state.private, home, people, passes)
        common = (method, model, state.shared, store, numbers, held)
        sampled = protocol.rank_sampled(*common, split.test.take(people), split.test_negatives.take(people))
        full = protocol.rank_full(*common, both.take(people), split.test.take(people), catalogue)
        return protocol.judge_ranking(sampled, full)

    def leak() -> dict[str, Any]:
        rounds = MEMORY if published else (REMEMBERED,)  # where nothing leaks, how it grows is of no interest
        path = protocol.memoriser(both, forbidden, split.test, split.test_negatives, catalogue, seed, rounds=rounds)
        memory = dict(path)[REMEMBERED]
        popular = protocol.popularity_hr(np.bincount(both.items, minlength=catalogue), split.test, split.test_negatives)
        return {
            "memoriser_hr@10": round(memory, 6),
            "popularity_hr@10": round(popular, 6),
            "leaks": protocol.beyond_chance(memory, popular, len(judged)),
            **({"memoriser_curve": [[n, round(hr, 6)] for n, hr in path]} if published else {}),
        }

    total = len(split.train) + len(split.valid) + len(split.test)
    notes = parts.notes
    strangers = int(((both.lengths == 0) & (split.test.lengths > 0)).sum())
    if strangers:
        notes += (f"{count(strangers, 'person has', 'people have')} test items but no history: nothing to go by.",)
    room = catalogue - both.lengths - (forbidden.lengths if forbidden else 0)
    stuck = int(((room <= 0) & (both.lengths > 0)).sum())
    if stuck:
        notes += (f"For {count(stuck, 'person', 'people')} no item is left to draw as a negative: they learn without.",)
    alone = int(((split.test_negatives.lengths == 0) & (split.test.lengths > 0)).sum())
    if alone == int((split.test.lengths > 0).sum()):
        raise DataError(
            f"Everybody in {parts.name} has touched every item, so a held-out item has nothing to be ranked against. "
            "Bring a larger catalogue, or use --task ratings."
        )
    if alone:
        notes += (
            f"{count(alone, 'person has', 'people have')} touched every item: nothing to rank against, a sure hit.",
        )
    if len(judged) == JUDGED:
        notes += (f"{JUDGED:,} of the people are judged, a seeded choice.",)
    if len(choosers) == VALIDATED:
        notes += (f"The round is chosen on {VALIDATED:,} of the people.",)
    return Task(
        Facts("ranking", catalogue, timed, people=learning(both, newcomers)), split.train.people, total, notes,
        federation,
        validate if len(choosers) else None, judge, judged, np.intersect1d(newcomers, judged), leak, ("ndcg@10", 1),
        chosen=chosen,
    )  # fmt: skip


def learning(histories: Histories, newcomers: People) -> int:
    """How many take part in training: with a history, and not kept out."""
    return int((np.delete(histories.lengths, newcomers) > 0).sum())


def _flat(histories: Histories) -> Histories:
    return replace(histories, values=np.ones(len(histories), np.float32))


def _ranking_split(
    data: Interactions | BroughtSplit, protocol_name: str, split_name: str, seed: int
) -> tuple[splits.Split, bool, Interactions]:
    if isinstance(data, BroughtSplit):
        timed = data.train.time is not None
        about = data.train.require().noted(*data.notes, *(() if timed else ("No time in the data: recency is off.",)))
        return splits.brought(data, seed), timed, about
    data.require()
    timed = data.time is not None
    histories, catalogue = data.histories(seed), len(data.items)
    if split_name == "temporal":
        return splits.temporal(data, seed), timed, data
    if split_name == "random":
        return splits.random_share(histories, catalogue, seed), timed, data
    published = protocol_name == "published"
    return splits.leave_one_out(histories, catalogue, seed, shared_negatives=published, timed=timed), timed, data
