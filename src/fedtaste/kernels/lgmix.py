"""LG-Mix's client and scores on a factorisation for a whole cohort, compiled by Numba; methods/mixing.py has the
readable equivalents.

A person's rows own, seen and last are gathered once and mixed with the shared rows g,
    w = own + ratio last + (1 - ratio) (g - seen)
all local steps run in cache, and w, g and the own change are stored. The spread of rows is over examples. Sums are by
eight fixed workers, as in cohort_descent.py.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit, prange
from numpy.typing import NDArray

from fedtaste.core import People
from fedtaste.kernels.cohort_descent import ADMITTED, FAST, NON_FINITE, ONE, WEIGHT, ZERO, _count, _descend, _judge
from fedtaste.kernels.row_pages import PAGE, WORKERS, PagedStore
from fedtaste.wire.validation import LIMIT

LEAST = np.float32(1e-12)
TABLES = ("own.item", "seen.item", "last.item")


class Rule(NamedTuple):
    """How a client descends and chooses its share."""

    lr: np.float32
    passes: int
    batch: int
    squared: bool  # the loss is squared, otherwise binary cross-entropy
    measured: bool  # the share is measured by spreads
    centred: bool  # a spread is around the mean, otherwise around zero


@njit(cache=True, nogil=True, parallel=True)
def run_clients(block, table, vectors, leaves, rule, moved, weights, refused):
    """Run everybody's local steps; adds to `moved`, `weights` and `refused` by worker, and writes the private
    parameters of admitted people.

    block: a RowBlock. vectors: (users, ratios, turns) of everybody. leaves: the pages' rows of own, seen and last, then
    the slots of the block's items in each.
    """
    for worker in prange(WORKERS):
        _run_worker(np.int64(worker), block, table, vectors, leaves, rule, moved, weights, refused)


@njit(cache=True, nogil=True, fastmath=FAST, error_model="numpy")
def _run_worker(worker, block, table, vectors, leaves, rule, moved, weights, refused):
    """`run_clients` for every eighth person."""
    people, starts, local, targets, firsts, wanted = block
    users, ratios, turns = vectors
    own, seen, last, own_slots, seen_slots, last_slots = leaves
    lr, passes, batch, squared, measured, centred = rule
    k, widest, longest = table.shape[1], 1, 1
    for person in range(len(people)):
        widest = max(widest, firsts[person + 1] - firsts[person])
        longest = max(longest, starts[person + 1] - starts[person])
    w, x = np.empty((widest, k), np.float32), np.empty((widest, k), np.float32)
    u, du, centre = np.empty(k, np.float32), np.empty(k, np.float32), np.empty(k, np.float32)
    stamps, straight = np.empty(widest, np.int64), np.arange(widest).astype(np.int32)
    error = np.empty(widest, np.float32)
    entries, entry_starts = np.empty(longest, np.int32), np.empty(longest + 1, np.int64)
    counts, sums = np.empty(longest, np.float32), np.empty(longest, np.float32)
    for place in range(worker, len(people), WORKERS):
        who, first, begin = people[place], firsts[place], starts[place]
        used, n = firsts[place + 1] - first, starts[place + 1] - begin
        if n == 0:
            refused[worker, WEIGHT] += 1
            continue
        weight, share, items = np.float32(n), ratios[who], wanted[first : first + used]
        rest = ONE - share
        for row in range(used):
            mine, far = own[own_slots[first + row]], last[last_slots[first + row]]
            common, known = table[items[row]], seen[seen_slots[first + row]]
            for c in range(k):
                w[row, c] = mine[c] + share * far[c] + rest * (common[c] - known[c])
                x[row, c] = w[row, c]
        for c in range(k):
            u[c] = users[who, c]
        steps = _count(local[begin : begin + n], targets[begin : begin + n], batch, stamps[:used], entries,
                       entry_starts, counts, sums)  # fmt: skip
        lists = (entries, entry_starts[: steps + 1], counts, sums)
        _descend(x[:used], u, ZERO, lists, (lr, lr, ZERO, ZERO), table, items, passes, ZERO, squared, du, error)
        if measured:
            ending = entry_starts[steps]
            own_spread = _spread(x, straight, entries, counts, ending, weight, centred, centre)
            shared_spread = _spread(table, items, entries, counts, ending, weight, centred, centre)
            current = own_spread / max(own_spread + shared_spread, LEAST)
            share = (turns[who] * share + current) / (turns[who] + ONE)
        total, private = ZERO, abs(share)
        for c in range(k):
            private += abs(u[c])
        for row in range(used):
            common = table[items[row]]
            for c in range(k):
                total += abs(weight * (x[row, c] - w[row, c]))
                private += abs(w[row, c]) + abs(common[c])
        verdict = ADMITTED if total <= LIMIT else _judge(x[:used], w, straight, weight)
        if not np.isfinite(private):
            verdict = NON_FINITE
        if verdict != ADMITTED:
            refused[worker, verdict] += 1
            continue
        for row in range(used):
            mine, far = own[own_slots[first + row]], last[last_slots[first + row]]
            common, known = table[items[row]], seen[seen_slots[first + row]]
            out = moved[worker, items[row]]
            for c in range(k):
                step = x[row, c] - w[row, c]
                out[c] += weight * step
                mine[c], known[c], far[c] = w[row, c], common[c], step
        for c in range(k):
            users[who, c] = u[c]
        ratios[who] = share
        turns[who] += ONE
        weights[worker] += weight


@njit(cache=True, nogil=True, fastmath=FAST, error_model="numpy")
def _spread(rows, places, entries, counts, ending, weight, centred, centre):
    """The mean squared distance of the examples' rows from their mean, or from zero."""
    k = len(centre)
    for c in range(k):
        centre[c] = ZERO
    if centred:
        for at in range(ending):
            row, part = rows[places[entries[at]]], counts[at] / weight
            for c in range(k):
                centre[c] += part * row[c]
    total = ZERO
    for at in range(ending):
        row, distance = rows[places[entries[at]]], ZERO
        for c in range(k):
            distance += (row[c] - centre[c]) * (row[c] - centre[c])
        total += counts[at] / weight * distance
    return total


def scores(
    table: NDArray[np.float32], store: PagedStore, people: People, candidates: NDArray[np.int64]
) -> NDArray[np.float32]:
    """<u, w> of every candidate; candidates [people, c], or [c] for all alike."""
    wide = np.broadcast_to(candidates, (len(people), candidates.shape[-1]))
    leaves = tuple(
        array
        for pages in (store.touched[name] for name in TABLES)
        for array in (pages.initial, pages.rows, pages.used, pages.first, pages.follows, pages.ids)
    )
    out = np.empty(wide.shape, np.float32)
    vectors = store.stacked["user"].numpy(), store.stacked["ratio"].numpy()
    _scores(np.asarray(people, np.int64), wide, table, leaves, vectors, out)
    return out


@njit(cache=True, nogil=True, parallel=True)
def _scores(people, candidates, table, leaves, vectors, out):
    for worker in prange(WORKERS):
        _score_people(np.int64(worker), people, candidates, table, leaves, vectors, out)


@njit(cache=True, nogil=True, fastmath=FAST, error_model="numpy")
def _score_people(worker, people, candidates, table, leaves, vectors, out):
    """`scores` of every eighth person."""
    users, ratios = vectors
    own, seen, last = leaves[0:6], leaves[6:12], leaves[12:18]
    slots = np.empty((3, len(table)), np.int64)  # by item: where the current person's row is stored
    for place in range(worker, len(people), WORKERS):
        who = people[place]
        u, share, rest = users[who], ratios[who], ONE - ratios[who]
        _mark(slots[0], own, who)
        _mark(slots[1], seen, who)
        _mark(slots[2], last, who)
        for at in range(candidates.shape[1]):
            item = candidates[place, at]
            mine, known = _row(slots[0], own, item), _row(slots[1], seen, item)
            far, common, total = _row(slots[2], last, item), table[item], ZERO
            for c in range(len(u)):
                total += u[c] * (mine[c] + share * far[c] + rest * (common[c] - known[c]))
            out[place, at] = total


@njit(cache=True, nogil=True)
def _mark(slots, pages, who):
    """Write by item where this person's rows are stored, -1 where they are not."""
    _, _, used, first, follows, ids = pages
    slots[:] = -1
    page = first[who]
    for row in range(used[who]):
        if row and row % PAGE == 0:
            page = follows[page]
        slots[ids[page, row % PAGE]] = np.int64(page) * PAGE + row % PAGE


@njit(cache=True, nogil=True, inline="always")
def _row(slots, pages, item):
    return pages[1][slots[item]] if slots[item] >= 0 else pages[0][item]
