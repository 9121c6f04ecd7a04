"""The one home of training randomness: negatives, shuffles, evaluation negatives; and padding.

Everything drawn is a function of (seed, stream, round, person) through a counter-based generator (splitmix64). So a
client is deterministic, every backend sees the same draws, nobody's draws depend on who else takes part, and a resumed
run needs no generator state.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numba import njit, prange
from numpy.typing import NDArray

from ..core import Examples
from .interactions import Histories

# Streams: draws for one purpose say nothing of another's
TRAIN, VALID, TEST, COHORT, DROPOUT, SPLIT, SERVE = range(7)
GROUPS = 9  # 7 and 8 were noise, which has secret streams of its own now (wire/rng.py)


@dataclass(frozen=True, eq=False)
class Ragged:
    """A cohort's examples, one person after the other; `batch` 0 means all of a person's at once. `even`: a person's
    batches are of one size, as near as can be, and at most `batch`; a last one of two examples would undo what batch
    norm has learnt."""

    starts: NDArray[np.int64]  # [people + 1]
    inputs: NDArray  # [n] item numbers, or [n, features]
    targets: NDArray[np.float32]  # [n]
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
            mask = self._evenly(lengths, steps, width)

        def spread(values: NDArray) -> torch.Tensor:
            out = np.zeros((*mask.shape, *values.shape[1:]), np.int64 if values.dtype.kind == "i" else np.float32)
            out[mask] = values[at]
            out = out.reshape(len(lengths), steps, width, *values.shape[1:])
            gap = [(0, 0), (0, 0), (0, extra)] + [(0, 0)] * (out.ndim - 3)
            return torch.from_numpy(np.pad(out, gap) if extra else out)

        ones = np.ones(len(self.targets), np.float32)
        return Examples(spread(self.inputs), spread(self.targets), spread(ones))

    def _evenly(self, lengths: NDArray[np.int64], steps: int, width: int) -> NDArray[np.bool_]:
        """Where each person's examples stand, in order, when they are dealt into batches of one size."""
        size = -(-lengths // np.maximum(-(-lengths // self.batch), 1))  # of a person's batches
        start = np.arange(steps)[:, None] * size[:, None, None]  # the first example of each batch
        column = np.arange(width)
        return ((column < size[:, None, None]) & (start + column < lengths[:, None, None])).reshape(len(lengths), -1)


@njit(cache=True, nogil=True)
def mix(a, b):
    """A well-mixed 64-bit number from two."""
    x = np.uint64(a) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(b) + np.uint64(0x632BE59BD9B4E019)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@njit(cache=True, nogil=True)
def below(key, counter, n):
    """A number in [0, n) from (key, counter)."""
    return np.int64((mix(key, counter) >> np.uint64(11)) % np.uint64(n))


@njit(cache=True, nogil=True)
def _mark(marks, stamp, starts, items, person):
    for at in range(starts[person], starts[person + 1]):
        marks[items[at]] = stamp


WORKERS = 8  # fixed, so that memory and work do not depend on the number of threads


@njit(cache=True, nogil=True, parallel=True)
def _samples(
    people, out_starts, starts, items, values, forbid_starts, forbid_items, catalogue, negatives, shuffle, key
):
    out_items = np.empty(out_starts[-1], np.int32)
    out_targets = np.empty(out_starts[-1], np.float32)
    for worker in prange(WORKERS):
        marks = np.full(catalogue, -1, np.int32)  # the place of the last person whose item it is: no clearing
        for place in range(worker, len(people), WORKERS):
            person = people[place]
            own = mix(key, person)
            first, count = starts[person], starts[person + 1] - starts[person]
            begin, end = out_starts[place], out_starts[place + 1]
            out_items[begin : begin + count] = items[first : first + count]
            out_targets[begin : begin + count] = values[first : first + count]
            if negatives > 0:
                out_targets[begin : begin + count] = 1.0
            counter = 0
            if end > begin + count:
                _mark(marks, place, starts, items, person)
                _mark(marks, place, forbid_starts, forbid_items, person)
                for at in range(begin + count, end):
                    item = below(own, counter, catalogue)
                    counter += 1
                    while marks[item] == place:
                        item = below(own, counter, catalogue)
                        counter += 1
                    out_items[at] = item
                    out_targets[at] = 0.0
            if shuffle:
                for at in range(end - begin - 1, 0, -1):
                    other = below(own, counter, at + 1)
                    counter += 1
                    a, b = begin + at, begin + other
                    out_items[a], out_items[b] = out_items[b], out_items[a]
                    out_targets[a], out_targets[b] = out_targets[b], out_targets[a]
    return out_items, out_targets


def key_of(seed: int, stream: int, round: int) -> np.uint64:
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
) -> Ragged:
    """Each person's items (target: the value, or 1 where negatives are drawn) and `negatives` x as many items from
    outside the history and `forbidden` (target 0), shuffled. Who has every item gets no negatives."""
    people = np.asarray(people, np.int64)
    forbidden = forbidden or Histories.empty(histories.people)
    lengths = histories.lengths[people]
    full = lengths + forbidden.lengths[people] >= catalogue
    starts = np.concatenate([[0], np.cumsum(lengths * np.where(full, 1, 1 + negatives))]).astype(np.int64)
    items, targets = _samples(
        people, starts, histories.starts, histories.items, histories.values, forbidden.starts, forbidden.items,
        catalogue, negatives, True, key,
    )  # fmt: skip
    return Ragged(starts, items, targets, batch)


@njit(cache=True, nogil=True, parallel=True)
def _distinct(people, out_starts, starts, items, catalogue, key):
    out = np.empty(out_starts[-1], np.int32)
    for worker in prange(WORKERS):
        marks = np.full(catalogue, -1, np.int32)
        for place in range(worker, len(people), WORKERS):
            own = mix(key, people[place])
            _mark(marks, place, starts, items, people[place])
            begin, end = out_starts[place], out_starts[place + 1]
            free = catalogue - (starts[people[place] + 1] - starts[people[place]])
            if 2 * (end - begin) >= free:  # nearly everything that is left: walk, do not draw
                left, seen = end - begin, 0
                for item in range(catalogue):
                    if marks[item] != place:
                        if below(own, item, free - seen) < left:
                            out[end - left] = item
                            left -= 1
                        seen += 1
                continue
            counter = 0
            for at in range(begin, end):
                item = below(own, counter, catalogue)
                counter += 1
                while marks[item] == place:
                    item = below(own, counter, catalogue)
                    counter += 1
                marks[item] = place
                out[at] = item
    return out


def distinct_negatives(touched: Histories, catalogue: int, count: int, key: np.uint64) -> Histories:
    """Up to `count` different items for every person that the person never touched."""
    people = np.arange(touched.people)
    room = np.minimum(count, catalogue - touched.lengths)
    starts = np.concatenate([[0], np.cumsum(np.maximum(room, 0))]).astype(np.int64)
    items = _distinct(people, starts, touched.starts, touched.items, catalogue, key)
    return Histories(starts, items, np.zeros(len(items), np.float32))


def uniform(people: NDArray[np.integer], key: np.uint64) -> NDArray[np.float64]:
    """A number in [0, 1) for every person: a function of key and person alone."""
    return _uniform(np.asarray(people, np.int64), key)


def some(people: NDArray[np.integer], most: int, key: np.uint64) -> NDArray[np.int64]:
    """At most so many of these people, a seeded choice, in order."""
    order = np.argsort(uniform(people, key), kind="stable")
    return np.sort(np.asarray(people, np.int64)[order[:most]])


@njit(cache=True, nogil=True)
def _uniform(people, key):
    out = np.empty(len(people), np.float64)
    for place in range(len(people)):
        out[place] = (mix(key, people[place]) >> np.uint64(11)) / 9007199254740992.0
    return out
