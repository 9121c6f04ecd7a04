"""Seeded sampling: training examples with negatives, evaluation negatives, choices of people; padding into batches.

Every draw is a function of (seed, stream, round, person) through a counter-based generator (splitmix64). So a client is
deterministic, every backend sees the same draws, nobody's draws depend on who else takes part, and a resumed run needs
no generator state.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numba import njit, prange
from numpy.typing import NDArray

from fedtaste.core import Examples, People
from fedtaste.data.interactions import Floats, Histories, Ints, repeated, starts_of
from fedtaste.data.mixing import splitmix

# Streams: draws for one purpose are independent of draws for another.
TRAIN, VALID, TEST, COHORT, DROPOUT, SPLIT, SERVE = range(7)
GROUPS, SEQUENCE = 9, 10  # 7 and 8 were noise, which has secret streams of its own now (wire/rng.py)
Word = int | np.integer  # taken modulo 2^64
WORKERS = 8  # fixed, so that memory and work do not depend on the number of threads


@dataclass(frozen=True, eq=False)
class Ragged:
    """A cohort's examples, one person after the other, as ragged arrays.

    `batch` is the size of a batch, 0 for all of a person's examples. With `even` a person's batches differ in size by
    one at most: a last batch of two examples would undo what batch norm has learnt.
    """

    starts: NDArray[np.int64]  # [people + 1]
    inputs: NDArray[np.generic]  # [n] item numbers, or [n, features]
    targets: Floats  # [n]
    batch: int = 0
    even: bool = False

    @property
    def lengths(self) -> NDArray[np.int64]:
        return np.diff(self.starts)

    def pad(self, people: NDArray[np.integer] | slice = slice(None), *, extra: int = 0) -> Examples:
        """Examples of these people, [people, steps, batch, ...]; `extra` more columns of padding change nothing."""
        lengths = self.lengths[people]
        longest = max(int(lengths.max(initial=0)), 1)
        width = min(self.batch or longest, longest)
        steps = -(-longest // width)
        mask = np.arange(steps * width) < lengths[:, None]  # [people, steps * width]
        at = (np.arange(steps * width) + self.starts[:-1][people][:, None])[mask]
        if self.even and steps > 1:
            mask = self._even_mask(lengths, steps, width)

        def spread(values: NDArray[np.generic]) -> torch.Tensor:
            out = np.zeros((*mask.shape, *values.shape[1:]), np.int64 if values.dtype.kind == "i" else np.float32)
            out[mask] = values[at]
            out = out.reshape(len(lengths), steps, width, *values.shape[1:])
            gap = [(0, 0), (0, 0), (0, extra)] + [(0, 0)] * (out.ndim - 3)
            return torch.from_numpy(np.pad(out, gap) if extra else out)

        ones = np.ones(len(self.targets), np.float32)
        return Examples(spread(self.inputs), spread(self.targets), spread(ones))

    def _even_mask(self, lengths: NDArray[np.int64], steps: int, width: int) -> NDArray[np.bool_]:
        """Where each person's examples stand, in order, in batches of even size."""
        size = -(-lengths // np.maximum(-(-lengths // self.batch), 1))  # of a person's batches
        start = np.arange(steps)[:, None] * size[:, None, None]  # the first example of each batch
        column = np.arange(width)
        mask = (column < size[:, None, None]) & (start + column < lengths[:, None, None])
        return mask.reshape(len(lengths), -1)


@njit(cache=True, nogil=True)
def mix(a: Word, b: Word) -> np.uint64:
    """A well-mixed 64-bit number from two."""
    x = np.uint64(a) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(b) + np.uint64(0x632BE59BD9B4E019)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@njit(cache=True, nogil=True)
def below(key: np.uint64, counter: int, n: int) -> int:
    """A number in [0, n) from (key, counter)."""
    return np.int64((mix(key, counter) >> np.uint64(11)) % np.uint64(n))  # type: ignore[return-value]


@njit(cache=True, nogil=True)
def _mark(marks: Ints, stamp: int, starts: NDArray[np.int64], items: Ints, person: int) -> None:
    for at in range(starts[person], starts[person + 1]):
        marks[items[at]] = stamp


@njit(cache=True, nogil=True, parallel=True)
def _samples(
    people: People,
    out_starts: NDArray[np.int64],
    histories: tuple[NDArray[np.int64], Ints, Floats],
    forbidden: tuple[NDArray[np.int64], Ints],
    catalogue: int,
    negatives: int,
    key: np.uint64,
    numbers: People,
) -> tuple[Ints, Floats]:
    starts, items, values = histories
    forbidden_starts, forbidden_items = forbidden
    out_items = np.empty(out_starts[-1], np.int32)
    out_targets = np.empty(out_starts[-1], np.float32)
    for worker in prange(WORKERS):
        marks = np.full(catalogue, -1, np.int32)  # the place of the last person whose item it is: no clearing
        for place in range(worker, len(people), WORKERS):
            person = people[place]
            own = mix(key, numbers[place])
            first, count = starts[person], starts[person + 1] - starts[person]
            begin, end = out_starts[place], out_starts[place + 1]
            out_items[begin : begin + count] = items[first : first + count]
            if negatives > 0:
                out_targets[begin : begin + count] = 1.0
            else:
                out_targets[begin : begin + count] = values[first : first + count]
            if end > begin + count:
                _mark(marks, place, starts, items, person)
                _mark(marks, place, forbidden_starts, forbidden_items, person)
            out_targets[begin + count : end] = 0.0
            counter = _draw_unmarked(out_items, begin + count, end, marks, place, own, True)
            _shuffle(out_items, out_targets, begin, end, own, counter)
    return out_items, out_targets


@njit(cache=True, nogil=True)
def _draw_unmarked(items: Ints, at: int, end: int, marks: Ints, stamp: int, key: np.uint64, repeat: bool) -> int:
    """Fill items[at:end] with drawn items that do not have this mark; returns how many numbers were drawn."""
    counter = 0
    while at < end:
        item = below(key, counter, len(marks))
        counter += 1
        if marks[item] != stamp:
            items[at] = item
            at += 1
            if not repeat:
                marks[item] = stamp
    return counter


@njit(cache=True, nogil=True)
def _shuffle(items: Ints, targets: Floats, begin: int, end: int, key: np.uint64, counter: int) -> None:
    """Fisher-Yates within [begin, end)."""
    for at in range(end - begin - 1, 0, -1):
        other = below(key, counter, at + 1)
        counter += 1
        a, b = begin + at, begin + other
        items[a], items[b] = items[b], items[a]
        targets[a], targets[b] = targets[b], targets[a]


def key_of(seed: int, stream: int, round: int) -> np.uint64:
    """The key of all draws for one purpose in one round."""
    key = mix(np.uint64(seed % 2**64), np.uint64(stream))
    return np.uint64(mix(np.uint64(key), np.uint64(round % 2**64)))


def samples(
    histories: Histories,
    people: NDArray[np.integer],
    *,
    catalogue: int,
    negatives: int,
    batch: int,
    key: np.uint64,
    forbidden: Histories | None = None,
    alone: bool = False,
) -> Ragged:
    """Each person's items with `negatives` times as many drawn items, shuffled.

    The target of an own item is its value, or 1 where negatives are drawn; that of a negative is 0. Negatives come from
    outside the history and `forbidden`. People who have every item get no negatives. With `alone` everybody draws as
    person 0 does, so that a person's draws do not depend on their number.
    """
    chosen = np.asarray(people, np.int64)
    forbidden = forbidden or Histories.empty(histories.people)
    lengths = histories.lengths[chosen]
    full = lengths + forbidden.lengths[chosen] >= catalogue
    starts = starts_of(lengths * np.where(full, 1, 1 + negatives))
    values = np.zeros(0, np.float32) if negatives else np.ascontiguousarray(histories.values)
    own = (histories.starts, histories.items, values)
    out = (forbidden.starts, forbidden.items)
    numbers = np.zeros_like(chosen) if alone else chosen
    items, targets = _samples(chosen, starts, own, out, catalogue, negatives, key, numbers)
    return Ragged(starts, items, targets, batch)


@njit(cache=True, nogil=True, parallel=True)
def _distinct(
    people: People, out_starts: NDArray[np.int64], starts: NDArray[np.int64], items: Ints, catalogue: int,
    key: np.uint64,
) -> Ints:  # fmt: skip
    out = np.empty(out_starts[-1], np.int32)
    for worker in prange(WORKERS):
        marks = np.full(catalogue, -1, np.int32)
        for place in range(worker, len(people), WORKERS):
            person = people[place]
            own = mix(key, person)
            _mark(marks, person, starts, items, person)
            begin, end = out_starts[place], out_starts[place + 1]
            free = catalogue - (starts[person + 1] - starts[person])
            if 2 * (end - begin) < free:
                _draw_unmarked(out, begin, end, marks, person, own, False)
                continue
            left, seen = end - begin, 0  # nearly all free items are needed: walk over them instead of drawing
            for item in range(catalogue):
                if marks[item] != person:
                    if below(own, item, free - seen) < left:
                        out[end - left] = item
                        left -= 1
                    seen += 1
    return out


class DrawnNegatives(Histories):
    """Up to `count` different items for every person that the person never touched.

    They are drawn when they are read: of a million people only those who are evaluated need any. Everybody's draws are
    their own, so that `take` draws for these people what `items` holds for them.
    """

    def __init__(self, touched: Histories, catalogue: int, count: int, key: np.uint64) -> None:
        starts = starts_of(np.maximum(np.minimum(count, catalogue - touched.lengths), 0))
        self.__dict__.update(starts=starts, values=repeated(0.0, starts[-1]))
        self.__dict__.update(_touched=touched, _catalogue=catalogue, _key=key)

    @cached_property
    def items(self) -> Ints:
        """Everybody's, [n]."""
        return self._draw(np.arange(self.people), self.starts)

    def __len__(self) -> int:
        return int(self.starts[-1])

    def take(self, people: NDArray[np.integer]) -> Histories:
        """The negatives of these people, in this order."""
        chosen = np.asarray(people, np.int64)
        starts = starts_of(self.lengths[chosen])
        return Histories(starts, self._draw(chosen, starts), repeated(0.0, starts[-1]))

    def _draw(self, people: People, starts: NDArray[np.int64]) -> Ints:
        touched: Histories = self.__dict__["_touched"]
        items: Ints = _distinct(
            people, starts, touched.starts, touched.items, self.__dict__["_catalogue"], self.__dict__["_key"]
        )
        return items


def distinct_negatives(touched: Histories, catalogue: int, count: int, key: np.uint64) -> Histories:
    """Up to `count` different items for every person that the person never touched."""
    return DrawnNegatives(touched, catalogue, count, key)


def uniform(people: NDArray[np.integer], key: np.uint64) -> NDArray[np.float64]:
    """A number in [0, 1) for every person, or other number: a function of the key and the person alone."""
    shift = np.uint64((int(key) * 0x9E3779B97F4A7C15 + 0x632BE59BD9B4E019) % 2**64)
    mixed = splitmix(np.asarray(people, np.int64).astype(np.uint64) + shift)  # `mix` of the key and each person
    numbers: NDArray[np.float64] = (mixed >> np.uint64(11)) / 2.0**53
    return numbers


def some(people: NDArray[np.integer], most: int, key: np.uint64) -> People:
    """A seeded choice of at most `most` of these people, in order."""
    order = np.argsort(uniform(people, key), kind="stable")
    return np.sort(np.asarray(people, np.int64)[order[:most]])
