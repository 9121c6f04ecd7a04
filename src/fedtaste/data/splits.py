"""Split histories into training, validation and test parts; choose new people and folds; draw evaluation negatives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtaste.core import People
from fedtaste.data.interactions import Histories, Interactions
from fedtaste.data.sampling import SPLIT, TEST, VALID, distinct_negatives, key_of, uniform
from fedtaste.data.user_files import UserSplit
from fedtaste.errors import DataError
from fedtaste.steps import report
from fedtaste.text import count

NEGATIVES = 99  # drawn for each person, to rank held-out items against
SHARES = (0.8, 0.1)  # of training and of validation
SPLITTING = "splitting"  # the step: histories, test, validation, task
SUPPLIED = "The split is the user's own and is used as it is."


@dataclass(frozen=True, eq=False)
class Split:
    """Histories of the same people by purpose. Negatives are candidates to rank the held-out items against."""

    train: Histories
    valid: Histories
    test: Histories
    valid_negatives: Histories
    test_negatives: Histories
    notes: tuple[str, ...] = ()


def leave_one_out(
    histories: Histories, catalogue: int, seed: int, *, shared_negatives: bool = False, timed: bool = True
) -> Split:
    """The newest item of each person is for testing, the one before it for validation.

    People with two items have no validation item; people with one take part in training and are not evaluated.
    """
    older, test = leave_last(histories)
    report(SPLITTING, 2, 4)
    train, valid = leave_last(older)
    report(SPLITTING, 3, 4)
    negatives = _draw_negatives(histories, catalogue, seed, shared=shared_negatives)
    notes: tuple[str, ...] = ()
    if single := int((histories.lengths == 1).sum()):
        people = count(single, "person has", "people have")
        notes += (f"{people} a single interaction: used in training, not evaluated.",)
    if not timed:
        notes += ("No time in the data: held-out items are a seeded random choice, and recency is off.",)
    return Split(train, valid, test, negatives.valid, negatives.test, notes + negatives.notes)


def for_production(histories: Histories, catalogue: int, seed: int, *, search: bool) -> Split:
    """Nothing is for testing. With `search` the newest item of each person is for validation, to choose the rounds."""
    nothing = Histories.empty(histories.people)
    train, valid = leave_last(histories) if search else (histories, nothing)
    negatives = _draw_negatives(histories, catalogue, seed)
    return Split(train, valid, nothing, negatives.valid, nothing)


def temporal(interactions: Interactions, seed: int) -> Split:
    """One cut in time for everybody: the first 80 % of all interactions, the next 10 %, the last 10 %."""
    if interactions.time is None:
        raise DataError(
            f"{interactions.name} has no time, so it cannot be split by time. Use --split random or leave-one-out."
        )
    first, second = np.quantile(interactions.time, [SHARES[0], sum(SHARES)])
    histories = interactions.histories(seed)
    rows = interactions.history_rows(histories.starts, seed)
    times = interactions.time if rows is None else interactions.time[rows]
    return _cut(histories, times <= first, (times > first) & (times <= second), len(interactions.items), seed)


def random_share(histories: Histories, catalogue: int, seed: int) -> Split:
    """A seeded random 80/10/10 of each person's interactions."""
    draw = uniform(np.arange(len(histories)), key_of(seed, SPLIT, 1))
    train, valid = draw < SHARES[0], (draw >= SHARES[0]) & (draw < sum(SHARES))
    return _cut(histories, train, valid, catalogue, seed)


def supplied(data: UserSplit, seed: int) -> Split:
    """The split that the user supplies, as it is, with the user's negatives where there are any."""
    train, test = data.train.histories(seed), data.test.histories(seed)
    valid = data.valid.histories(seed) if data.valid is not None else Histories.empty(train.people)
    negatives = _draw_negatives(train.then(valid).then(test), len(data.train.items), seed)
    notes: tuple[str, ...] = (*negatives.notes, SUPPLIED)
    if data.train.time is None:
        notes += ("No time in the data: recency is off.",)
    if data.valid is None:
        notes += ("No valid.csv: the last training item of each person chooses the round.",)
        train, valid = leave_last(train)
    test_negatives = negatives.test
    if data.negatives is not None:
        test_negatives, negative_notes = _user_negatives(data.negatives, test, test_negatives)
        notes += negative_notes
    return Split(train, valid, test, negatives.valid, test_negatives, notes)


def _user_negatives(supplied: Histories, test: Histories, drawn: Histories) -> tuple[Histories, tuple[str, ...]]:
    """(negatives, notes): the user's, less the person's own test items; drawn ones for people without any."""
    negatives = supplied.distinct().without(test)
    usual = int(np.median(negatives.lengths[test.lengths > 0]))
    notes = [f"Sampled ranks are against the supplied negatives ({usual} for a person), not against 99."]
    if len(negatives) < len(supplied):
        lost = count(len(supplied) - len(negatives), "supplied negative is", "supplied negatives are")
        notes.append(f"{lost} left out: a test item of the same person, or named twice.")
    bare = (negatives.lengths == 0) & (test.lengths > 0)
    if bare.any():
        notes.append(
            f"{count(int(bare.sum()), 'person has', 'people have')} no supplied negatives: 99 were drawn for them."
        )
        negatives = negatives.then(drawn.where(bare[drawn.owners]))
    return negatives, tuple(notes)


def leave_last(histories: Histories) -> tuple[Histories, Histories]:
    """(all but the newest, the newest) of everybody who has at least two."""
    lengths, begins = histories.lengths, histories.starts[:-1]
    last = (lengths >= 2).astype(np.int64)
    return histories.parts(begins, lengths - last), histories.parts(begins + lengths - last, last)


class _Negatives(NamedTuple):
    valid: Histories
    test: Histories
    notes: tuple[str, ...]


def _draw_negatives(everything: Histories, catalogue: int, seed: int, *, shared: bool = False) -> _Negatives:
    """Items that the person never touched; drawn apart for validation and test unless `shared`."""
    everything = everything.distinct()  # the user's own split may hold a pair twice
    test = distinct_negatives(everything, catalogue, NEGATIVES, key_of(seed, TEST, 0))
    valid = test if shared else distinct_negatives(everything, catalogue, NEGATIVES, key_of(seed, VALID, 0))
    short = int((test.lengths < NEGATIVES).sum())
    people = count(short, "person has", "people have")
    note = f"{people} fewer than {NEGATIVES} untouched items: ranked against those."
    return _Negatives(valid, test, (note,) if short else ())


def _cut(histories: Histories, train: NDArray[np.bool_], valid: NDArray[np.bool_], catalogue: int, seed: int) -> Split:
    """A split by masks over the entries; the rest is for testing."""
    parts = histories.where(train), histories.where(valid), histories.where(~train & ~valid)
    return Split(*parts, *_draw_negatives(histories, catalogue, seed))


def held_out_people(people: int, share: float, seed: int) -> NDArray[np.bool_]:
    """A mask of a seeded share of the people."""
    mask = np.zeros(people, bool)
    mask[_shuffled(people, seed)[: round(share * people)]] = True
    return mask


def folds(people: int, number: int, seed: int) -> NDArray[np.int64]:
    """A fold for every person; the sizes of folds differ by one at most."""
    out = np.empty(people, np.int64)
    out[_shuffled(people, seed)] = np.arange(people) % number
    return out


def _shuffled(people: int, seed: int) -> People:
    return np.argsort(uniform(np.arange(people), key_of(seed, SPLIT, 2)), kind="stable")


def support_query(histories: Histories, share: float, seed: int) -> tuple[Histories, Histories]:
    """(support, query) of everybody: a random `share` of each history, and the rest. Both are non-empty for people with
    at least two interactions."""
    lengths, place = histories.lengths, np.arange(len(histories))
    draw = uniform(place, key_of(seed, SPLIT, 3))
    place[np.lexsort((draw, histories.owners))] = place - np.repeat(histories.starts[:-1], lengths)
    cut = np.clip(np.round(share * lengths), 1, np.maximum(lengths - 1, 1))
    early = place < np.repeat(cut, lengths)
    return histories.where(early), histories.where(~early)
