"""Compiled operations on columns and ragged arrays of interactions: linear in their number, and in little memory.

NumPy's `unique`, `lexsort`, `bincount` and fancy indices take 8 to 40 bytes an interaction for a while, and sort all of
them at once. These take one pass each, or sort one person's history at a time.
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange
from numpy.typing import NDArray

WORKERS = 8  # fixed, so that memory and work do not depend on the number of threads
Ints = NDArray[np.int32]
Floats = NDArray[np.float32]
Starts = NDArray[np.int64]
Bools = NDArray[np.bool_]


@njit(cache=True, nogil=True)
def count_numbers(numbers: NDArray[np.integer], size: int) -> NDArray[np.int64]:
    """How often each of 0, ..., size - 1 occurs, as `np.bincount` counts, which copies `numbers` as int64."""
    counts = np.zeros(size, np.int64)
    for number in numbers:
        counts[number] += 1
    return counts


@njit(cache=True, nogil=True)
def count_kept(starts: Starts, keep: Bools) -> NDArray[np.int64]:
    """How many entries of each person are kept, [people]."""
    counts = np.zeros(len(starts) - 1, np.int64)
    for person in range(len(counts)):
        for at in range(starts[person], starts[person + 1]):
            counts[person] += keep[at]
    return counts


@njit(cache=True, nogil=True)
def first_entries(starts: Starts, items: Ints, catalogue: int) -> Bools:
    """Which entries are the first of their item in a person's history, [n]."""
    first = np.zeros(len(items), np.bool_)
    owner = np.full(catalogue, -1, np.int32)  # the last person who has the item
    for person in range(len(starts) - 1):
        for at in range(starts[person], starts[person + 1]):
            if owner[items[at]] != person:
                owner[items[at]] = person
                first[at] = True
    return first


@njit(cache=True, nogil=True)
def copy_parts(
    begins: NDArray[np.int64], starts: Starts, values: NDArray[np.generic], out: NDArray[np.generic]
) -> None:
    """Fill the part of `out` from starts[i] to starts[i + 1] with as many values from begins[i] on, for every i."""
    for part in range(len(begins)):
        begin, to = begins[part], starts[part]
        for at in range(starts[part + 1] - to):
            out[to + at] = values[begin + at]


@njit(cache=True, nogil=True)
def join_people(
    starts: Starts, values: NDArray[np.generic], later_starts: Starts, later: NDArray[np.generic],
    out: NDArray[np.generic],
) -> None:  # fmt: skip
    """Fill `out` with each person's entries of `values`, followed by their entries of `later`."""
    to = 0
    for person in range(len(starts) - 1):
        for at in range(starts[person], starts[person + 1]):
            out[to] = values[at]
            to += 1
        for at in range(later_starts[person], later_starts[person + 1]):
            out[to] = later[at]
            to += 1


@njit(cache=True, nogil=True)
def is_in_order(person: Ints, time: NDArray[np.float64]) -> bool:
    """Whether rows stand by person, and each person's in strictly increasing time."""
    for row in range(1, len(person)):
        if person[row] < person[row - 1] or (person[row] == person[row - 1] and not time[row] > time[row - 1]):
            return False
    return True


@njit(cache=True, nogil=True)
def group_rows(person: Ints, starts: Starts, rows: NDArray[np.integer]) -> None:
    """Fill `rows` [n] with the numbers of the rows by person, each person's in the order in which they stand."""
    place = starts[:-1].copy()
    for row in range(len(person)):
        rows[place[person[row]]] = row
        place[person[row]] += 1


@njit(cache=True, nogil=True)
def pair_hash(a: int, b: int, shift: np.uint64) -> np.uint64:
    """`interactions.hash_pairs` of one pair."""
    x = (np.uint64(a) * np.uint64(0x9E3779B97F4A7C15)) ^ (np.uint64(b) + shift)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@njit(cache=True, nogil=True)
def _sort_by_ties(
    rows: NDArray[np.integer], begin: int, end: int, person: int, item: Ints, given: NDArray[np.uint64],
    shift: np.uint64,
) -> None:  # fmt: skip
    """Sort rows[begin:end] of one person by their ties, as `sort_histories` has them."""
    keys = np.empty(end - begin, np.uint64)
    for at in range(begin, end):
        keys[at - begin] = given[rows[at]] if len(given) else pair_hash(person, item[rows[at]], shift)
    rows[begin:end] = rows[begin:end][np.argsort(keys, kind="mergesort")]


@njit(cache=True, nogil=True, parallel=True)
def sort_histories(
    rows: NDArray[np.integer], starts: Starts, item: Ints, time: NDArray[np.float64], given: NDArray[np.uint64],
    shift: np.uint64,
) -> None:  # fmt: skip
    """Sort each person's `rows` by (time, tie), in place. An empty `time` is no time, and an empty `given` stands for
    ties that are hashes of (person, item) with this shift."""
    for worker in prange(WORKERS):
        for person in range(worker, len(starts) - 1, WORKERS):
            begin, end = starts[person], starts[person + 1]
            if end - begin < 2:
                continue
            if not len(time):
                _sort_by_ties(rows, begin, end, person, item, given, shift)
                continue
            moments = np.empty(end - begin, np.float64)
            ordered = True
            for at in range(begin, end):
                moments[at - begin] = time[rows[at]]
                ordered = ordered and (at == begin or moments[at - begin] > moments[at - begin - 1])
            if ordered:
                continue
            order = np.argsort(moments, kind="mergesort")
            rows[begin:end] = rows[begin:end][order]
            run = begin
            for at in range(begin + 1, end + 1):
                if at == end or moments[order[at - begin]] != moments[order[run - begin]]:
                    if at - run > 1:
                        _sort_by_ties(rows, run, at, person, item, given, shift)
                    run = at


@njit(cache=True, nogil=True)
def newest_rows(
    rows: NDArray[np.integer], starts: Starts, item: Ints, time: NDArray[np.float64], catalogue: int
) -> tuple[Bools, int]:
    """(which rows to keep, pairs that stand more than once): of rows with one person and item the newest, and of
    equally new ones the last. `rows` as `group_rows` gives them; an empty `time` makes all equally new."""
    keep = np.ones(len(rows), np.bool_)
    owner, kept = np.full(catalogue, -1, np.int32), np.zeros(catalogue, np.int64)
    twice = np.full(catalogue, -1, np.int32)  # the last person who has the item more than once
    repeated = 0
    for person in range(len(starts) - 1):
        for at in range(starts[person], starts[person + 1]):
            row = rows[at]
            which = item[row]
            if owner[which] == person:
                if twice[which] != person:
                    twice[which] = person
                    repeated += 1
                older = kept[which]
                if len(time) and time[row] < time[older]:
                    keep[row] = False
                    continue
                keep[older] = False
            owner[which], kept[which] = person, row
    return keep, repeated


@njit(cache=True, nogil=True)
def compact(values: NDArray[np.generic], keep: Bools) -> int:
    """Move the values that are kept to the front, in order; returns how many there are."""
    to = 0
    for at in range(len(values)):
        if keep[at]:
            values[to] = values[at]
            to += 1
    return to
