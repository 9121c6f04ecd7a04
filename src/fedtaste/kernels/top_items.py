"""The best items of many people at once: `rank_items` of evaluation/ranking.py for a block of score rows, compiled."""

from __future__ import annotations

import numpy as np
from numba import njit, prange

WORKERS = 8  # fixed, so that memory does not depend on the number of threads


@njit(cache=True, nogil=True, parallel=True)
def top_items(scores, starts, items, allowed, groups, n):
    """The n best items of every row of `scores` [people, m]: best first, equal scores in catalogue order.

    Left out are items that are not `allowed` [m], and every item whose group (`groups` [m], below m) holds an item of
    the person's history (starts [people + 1], items [entries]). Of a group only its best item is listed. Undefined
    scores come last. Returns items [people, n] and their scores; -1 where fewer than n are left.
    """
    people, m = scores.shape
    best = np.full((people, n), -1, np.int32)
    values = np.full((people, n), -np.inf, scores.dtype)
    for worker in prange(WORKERS):
        taken = np.full(m, -1, np.int64)  # by group: the last person whose history holds it
        for person in range(worker, people, WORKERS):
            for at in range(starts[person], starts[person + 1]):
                taken[groups[items[at]]] = person
            size = 0
            for item in range(m):
                score = scores[person, item]
                if np.isnan(score):
                    score = -np.inf
                if size == n and not score > values[person, n - 1]:
                    continue
                if not allowed[item] or taken[groups[item]] == person:
                    continue
                size = insert(best[person], values[person], size, item, score, groups)
    return best, values


@njit(cache=True, nogil=True)
def insert(best, values, size, item, score, groups):
    """Put an item into a list of `size` items, best first; returns the new size. An item of the same group that is not
    worse keeps it out; one that is worse is replaced."""
    last = size
    for at in range(size):
        if groups[best[at]] == groups[item]:
            if not score > values[at]:
                return size
            last = at
            break
    if last == size and size == len(best):
        last = size - 1
    else:
        size = max(size, last + 1)
    at = last
    while at > 0 and values[at - 1] < score:
        best[at], values[at] = best[at - 1], values[at - 1]
        at -= 1
    best[at], values[at] = item, score
    return size
