"""The task of ratings: how many stars? (tasks.py has what tasks have in common, and ranking.)"""

from __future__ import annotations

import numpy as np

from .core import Method, Model
from .data import splits
from .data.importing import BroughtSplit
from .data.interactions import Histories, Interactions
from .data.sampling import SERVE
from .engine.run import State
from .errors import DataError
from .evaluation import protocol
from .evaluation.metrics import rating_metrics
from .evaluation.protocol import Judged
from .federation import Federation, of_histories, pooled
from .tasks import Facts, Parts, People, Sampling, Task, learning, serve

LARGEST = 1e9  # of ratings: what is beyond is a mistake in the file
HELD = ("train", "asked", "support", "query", "half", "other")


def ratings(data: Interactions | BroughtSplit, *, new_people: float, seed: int) -> Task:
    """How many stars? Seen people: a tenth of everybody's ratings is held out (or the test file). New people: half of
    their ratings, drawn at random, is what they bring; the other half is what they are judged on."""
    return ratings_of(ratings_parts(data, seed), new_people=new_people, seed=seed)


def ratings_parts(data: Interactions | BroughtSplit, seed: int) -> Parts:
    """What is learnt from and what is asked, of seen people, of new ones and of those who choose the round."""
    whole = data.train if isinstance(data, BroughtSplit) else data
    whole.require()
    if whole.value is None:
        raise DataError(f"{whole.name} has no ratings. Bring a rating column, or use --task ranking.")
    if not float(np.abs(whole.value).max(initial=0.0)) <= LARGEST:
        largest = float(np.abs(whole.value).max())
        raise DataError(
            f"{whole.name} has a rating of size {largest:g}, and at most {LARGEST:g} is possible. Correct it."
        )
    if isinstance(data, BroughtSplit):
        train, asked = whole.histories(seed), data.test.histories(seed)
        train = train if data.valid is None else train.then(data.valid.histories(seed))
        support, query = train, asked
    else:
        histories = whole.histories(seed)
        train, asked = splits.support_query(histories, 0.9, seed=seed)
        support, query = splits.support_query(histories, 0.5, seed=seed)
    half, other = splits.support_query(train, 0.5, seed=seed)  # what choosers bring, and are asked
    values = np.concatenate([train.values, query.values])
    own = isinstance(data, BroughtSplit)
    notes = whole.notes + (("The split was brought by the user and is used as it is.",) if own else ())
    held = dict(zip(HELD, (train, asked, support, query, half, other)))
    scale = (float(values.min()), float(values.max()))
    return Parts("ratings", whole.name, len(whole.items), whole.time is not None, held, scale, notes)


def ratings_of(parts: Parts, *, new_people: float, seed: int) -> Task:
    """The task of people who hold this."""
    train, asked, support, query, half, other = (parts.histories[name] for name in HELD)
    catalogue, scale, everyone = parts.items, parts.scale, np.arange(train.people)
    draw = splits.folds(len(everyone), 10, seed + 1)
    newcomers = np.flatnonzero(splits.held_out_people(len(everyone), new_people, seed))
    choosers = np.setdiff1d(np.flatnonzero((draw == 0) & (query.lengths > 0) & (support.lengths > 0)), newcomers)

    def federation(phase: str, method: Method, sampling: Sampling, without: People | None) -> Federation:
        left_out = newcomers if without is None else without
        members = np.setdiff1d(everyone, np.union1d(left_out, choosers) if phase == "search" else left_out)
        made = of_histories(
            train,
            catalogue,
            examples=method.examples,
            negatives=0,
            batch=sampling.batch,
            seed=seed,
            members=members,
        )
        return pooled(made) if method.pooled else made

    def errors(
        method: Method,
        model: Model,
        state: State,
        sampling: Sampling,
        people: People,
        passes: int | None,
        brings: Histories,
        asks: Histories,
    ):
        home = of_histories(
            brings,
            catalogue,
            examples=method.examples,
            negatives=0,
            batch=sampling.batch,
            seed=seed,
            stream=SERVE,
        )
        store, numbers, held = serve(method, state.shared, state.private, home, people, passes)
        return protocol.rating_errors(method, model, state.shared, store, numbers, held, asks.take(people), scale)

    def chosen(method: Method, model: Model, state: State, sampling: Sampling) -> Judged:
        return protocol.judge_ratings(
            *errors(method, model, state, sampling, choosers, min(state.round, 20), half, other)
        )

    def validate(method: Method, model: Model, state: State, sampling: Sampling) -> dict[str, float]:
        return rating_metrics(np.array(chosen(method, model, state, sampling).raw["errors"]))

    def judge(
        method: Method, model: Model, state: State, sampling: Sampling, people: People, passes: int | None
    ) -> Judged:
        brings, asks = (train, asked) if passes is None else (support, query)
        people = people[(asks.lengths[people] > 0) & (brings.lengths[people] > 0)]
        return protocol.judge_ratings(*errors(method, model, state, sampling, people, passes, brings, asks))

    total = len(train) + len(asked)
    judged = np.flatnonzero((query.lengths > 0) & (support.lengths > 0))
    if not len(judged):
        raise DataError(
            f"Nobody in {parts.name} can be judged: a person needs a rating to learn from and one to be asked (in a "
            "split of your own: rows in train.csv and in test.csv). Bring more ratings."
        )
    return Task(
        Facts("ratings", catalogue, parts.timed, scale, people=learning(train, newcomers)),
        len(everyone), total, parts.notes, federation, validate if len(choosers) else None, judge, judged,
        np.intersect1d(newcomers, judged), lambda: None, ("rmse", -1), chosen=chosen,
    )  # fmt: skip
