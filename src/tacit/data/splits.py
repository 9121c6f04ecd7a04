"""What is learnt from, what chooses, what judges. Every split is by person and never looks at the model."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError
from .importing import BroughtSplit
from .interactions import Histories, Interactions, count
from .sampling import SPLIT, TEST, VALID, distinct_negatives, key_of, uniform

NEGATIVES = 99


@dataclass(frozen=True, eq=False)
class Split:
    """Histories of the same people: train, then valid, then test. Negatives are candidates to rank against."""

    train: Histories
    valid: Histories
    test: Histories
    valid_negatives: Histories
    test_negatives: Histories
    notes: tuple[str, ...] = ()


def leave_one_out(
    histories: Histories, catalogue: int, seed: int, *, shared_negatives: bool = False, timed: bool = True
) -> Split:
    """The newest item of each person is test, the one before it validation. Who has two gives a test item only; who has
    one takes part in training and is not judged."""
    lengths = histories.lengths
    place = np.arange(len(histories)) - np.repeat(histories.starts[:-1], lengths)
    left = np.repeat(lengths, lengths) - place  # 1 for the newest
    test = (left == 1) & np.repeat(lengths >= 2, lengths)
    valid = (left == 2) & np.repeat(lengths >= 3, lengths)
    single = int((lengths == 1).sum())
    notes = []
    if single:
        notes.append(
            f"{count(single, 'person has', 'people have')} a single interaction: used in training, not judged."
        )
    if not timed:
        notes.append("No time in the data: held-out items are a seeded random choice, and recency is off.")
    return _with_negatives(
        histories,
        histories.where(~test & ~valid),
        histories.where(valid),
        histories.where(test),
        catalogue,
        seed,
        shared_negatives,
        notes,
    )


def temporal(interactions: Interactions, seed: int, shares: tuple[float, float] = (0.8, 0.1)) -> Split:
    """One cut in time for everybody: the first 80 % of all interactions, the next 10 %, the last 10 %."""
    if interactions.time is None:
        raise DataError(
            f"{interactions.name} has no time, so it cannot be split by time. Use --split random or leave-one-out."
        )
    first, second = np.quantile(interactions.time, [shares[0], sum(shares)])
    histories = interactions.histories(seed)
    times = interactions.time[np.lexsort((interactions.time, interactions.person))]
    train, valid = times <= first, (times > first) & (times <= second)
    return _with_negatives(
        histories,
        histories.where(train),
        histories.where(valid),
        histories.where(~train & ~valid),
        len(interactions.items),
        seed,
        False,
        [],
    )


def random_share(histories: Histories, catalogue: int, seed: int, shares: tuple[float, float] = (0.8, 0.1)) -> Split:
    """A seeded random 80/10/10 of each person's interactions."""
    draw = uniform(np.arange(len(histories)), key_of(seed, SPLIT, 1))
    train, valid = draw < shares[0], (draw >= shares[0]) & (draw < sum(shares))
    return _with_negatives(
        histories,
        histories.where(train),
        histories.where(valid),
        histories.where(~train & ~valid),
        catalogue,
        seed,
        False,
        [],
    )


def brought(data: BroughtSplit, seed: int) -> Split:
    """The user's own split, as it is; evaluation negatives too where they were brought."""
    train, test = data.train.histories(seed), data.test.histories(seed)
    valid = data.valid.histories(seed) if data.valid is not None else Histories.empty(train.people)
    split = _with_negatives(train.then(valid).then(test), train, valid, test, len(data.train.items), seed, False, [])
    notes: tuple[str, ...] = (*split.notes, "The split was brought by the user and is used as it is.")
    if data.valid is None:
        notes += ("No valid.csv: the last training item of each person chooses the round.",)
        inner = leave_last(train)
        split = Split(inner[0], inner[1], test, split.valid_negatives, split.test_negatives)
    negatives = split.test_negatives
    if data.negatives is not None:
        negatives, more = _brought_negatives(data.negatives, test, negatives)
        notes += more
    return Split(split.train, split.valid, split.test, split.valid_negatives, negatives, notes)


def _brought_negatives(brought: Histories, test: Histories, drawn: Histories) -> tuple[Histories, tuple[str, ...]]:
    """The user's negatives less the person's own test items; drawn ones for who was given none; and what to say."""
    kept = brought.distinct().without(test)
    usual = int(np.median(kept.lengths[test.lengths > 0]))
    notes = [f"Sampled ranks are against the negatives that were brought ({usual} for a person), not against 99."]
    if len(kept) < len(brought):
        lost = count(len(brought) - len(kept), "brought negative is", "brought negatives are")
        notes.append(f"{lost} left out: a test item of the same person, or named twice.")
    bare = (kept.lengths == 0) & (test.lengths > 0)
    if bare.any():
        notes.append(
            f"{count(int(bare.sum()), 'person has', 'people have')} no brought negatives: 99 were drawn for them."
        )
        kept = kept.then(drawn.where(bare[drawn.owners]))
    return kept, tuple(notes)


def leave_last(histories: Histories) -> tuple[Histories, Histories]:
    """(all but the newest, the newest) of everybody who has at least two."""
    last = np.zeros(len(histories), bool)
    last[histories.starts[1:][histories.lengths >= 2] - 1] = True
    return histories.where(~last), histories.where(last)


def _with_negatives(
    everything: Histories,
    train: Histories,
    valid: Histories,
    test: Histories,
    catalogue: int,
    seed: int,
    shared: bool,
    notes: list[str],
) -> Split:
    """Evaluation negatives: items the person never touched; drawn apart for validation and test unless `shared`."""
    everything = everything.distinct()  # a split that was brought may hold a pair twice
    on_test = distinct_negatives(everything, catalogue, NEGATIVES, key_of(seed, TEST, 0))
    on_valid = on_test if shared else distinct_negatives(everything, catalogue, NEGATIVES, key_of(seed, VALID, 0))
    short = int((on_test.lengths < NEGATIVES).sum())
    if short:
        notes.append(
            f"{count(short, 'person has', 'people have')} fewer than {NEGATIVES} untouched items: ranked against those."
        )
    return Split(train, valid, test, on_valid, on_test, tuple(notes))


def held_out_people(people: int, share: float, seed: int) -> NDArray[np.bool_]:
    """A seeded share of whole people."""
    order = np.argsort(uniform(np.arange(people), key_of(seed, SPLIT, 2)), kind="stable")
    mask = np.zeros(people, bool)
    mask[order[: round(share * people)]] = True
    return mask


def folds(people: int, number: int, seed: int) -> NDArray[np.int64]:
    """A fold for every person, sizes differing by one at most."""
    order = np.argsort(uniform(np.arange(people), key_of(seed, SPLIT, 2)), kind="stable")
    out = np.empty(people, np.int64)
    out[order] = np.arange(people) % number
    return out


def support_query(histories: Histories, share: float, *, seed: int | None = None) -> tuple[Histories, Histories]:
    """(support, query) of everybody: the older `share` of a history, or a seeded random share. Both non-empty from two
    interactions on."""
    lengths = histories.lengths
    place = np.arange(len(histories)) - np.repeat(histories.starts[:-1], lengths)
    if seed is not None:
        draw = uniform(np.arange(len(histories)), key_of(seed, SPLIT, 3))
        order = np.lexsort((draw, histories.owners))
        place = place.copy()
        place[order] = np.arange(len(histories)) - np.repeat(histories.starts[:-1], lengths)
    cut = np.clip(np.round(share * lengths), 1, np.maximum(lengths - 1, 1))
    early = place < np.repeat(cut, lengths)
    return histories.where(early), histories.where(~early)
