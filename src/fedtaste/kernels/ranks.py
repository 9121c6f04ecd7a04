"""Ranks of held-out items among many scores, compiled; ties count against the held-out item."""

from __future__ import annotations

import numpy as np
from numba import njit, prange

WORKERS = 8  # fixed, so that memory does not depend on the number of threads


@njit(cache=True, nogil=True, parallel=True)
def full_ranks(scores, seen_starts, seen, starts, positives):
    """For every positive 1 + the items with at least its score, without the person's `seen` items and positives.

    scores [people, m] without NaN; `seen` and `positives` are ragged by person. Returns ranks [positives].
    """
    people, m = scores.shape
    ranks = np.empty(len(positives), np.int64)
    for worker in prange(WORKERS):
        taken = np.full(m, -1, np.int64)  # the last positive that left the item out
        for person in range(worker, people, WORKERS):
            row = scores[person]
            for place in range(starts[person], starts[person + 1]):
                score, rank = row[positives[place]], 1
                for item in range(m):
                    rank += row[item] >= score
                for at in range(seen_starts[person], seen_starts[person + 1]):
                    if taken[seen[at]] != place:
                        taken[seen[at]] = place
                        rank -= row[seen[at]] >= score
                for at in range(starts[person], starts[person + 1]):
                    if taken[positives[at]] != place:
                        taken[positives[at]] = place
                        rank -= row[positives[at]] >= score
                ranks[place] = rank
    return ranks


@njit(cache=True, nogil=True)
def column_ranks(scores, starts, positives):
    """For the first `positives[person]` columns of every person 1 + the person's other columns with at least their
    score. scores [columns], ragged by `starts` [people + 1]."""
    ranks, to = np.empty(positives.sum(), np.int64), 0
    for person in range(len(positives)):
        first, others, last = starts[person], starts[person] + positives[person], starts[person + 1]
        for column in range(first, others):
            rank = 1
            for other in range(others, last):
                rank += scores[other] >= scores[column]
            ranks[to] = rank
            to += 1
    return ranks
