"""FedEigen's client for whole cohorts, compiled by Numba: counts of items, and histories times their projections.

Memory grows with items x columns and not with people, because every person's vector is added to the rows of their items
as soon as it is known. Items that a history has twice count once. Sums of whole numbers are exact, and others are
divided over a fixed number of workers, so that results do not depend on the number of threads.
"""

from __future__ import annotations

import numpy as np
from numba import get_num_threads, njit, prange
from numpy.typing import NDArray

from fedtaste.kernels.als import WORKERS

MOST = 2**31 - 1  # the largest sum that fits 32 bits


@njit(cache=True, nogil=True)
def count_people(starts, items, catalogue):
    """How many people have each item, [catalogue]."""
    counts = np.zeros(catalogue, np.int64)
    last = np.full(catalogue, -1, np.int64)  # the last person with this item
    for person in range(len(starts) - 1):
        for at in range(starts[person], starts[person + 1]):
            if last[items[at]] != person:
                last[items[at]] = person
                counts[items[at]] += 1
    return counts


def sum_projections(
    starts: NDArray[np.int64], items: NDArray[np.int32], table: NDArray[np.float32], levels: int
) -> NDArray[np.float64]:
    """The sum over people of x h' [items, r]: x is the person's 0/1 history, and h the sum of the rows of `table`
    [items, r] over it. With `levels`, h is rounded to whole multiples of 1 / levels between -1 and 1, exclusive."""
    if not levels:
        out = np.zeros((WORKERS, *table.shape))
    else:
        kind = np.int32 if levels * (len(starts) - 1) <= MOST else np.int64
        out = np.zeros((min(get_num_threads(), WORKERS), *table.shape), kind)
    _add_projections(starts, items, table, levels, out)
    total: NDArray[np.float64] = (out[0] if len(out) == 1 else out.sum(0)) / max(levels, 1)
    return total


@njit(cache=True, nogil=True, parallel=True)
def _add_projections(starts, items, table, levels, out):
    """Add x h' of each person to the table of the worker, out [workers, items, r]."""
    (workers, catalogue, r), people = out.shape, len(starts) - 1
    for worker in prange(workers):
        total, marks = out[worker], np.full(catalogue, -1, np.int64)
        h, units = np.empty(r, np.float64), np.empty(r, out.dtype)
        for person in range(worker, people, workers):
            h[:] = 0.0
            for at in range(starts[person], starts[person + 1]):
                if marks[items[at]] != person:
                    marks[items[at]] = person
                    row = table[items[at]]
                    for i in range(r):
                        h[i] += row[i]
            for i in range(r):
                if levels:
                    h[i] = min(max(np.rint(h[i] * levels), 1.0 - levels), levels - 1.0)
                units[i] = h[i]
            for at in range(starts[person], starts[person + 1]):
                if marks[items[at]] == person:
                    marks[items[at]] = -1
                    sums = total[items[at]]
                    for i in range(r):
                        sums[i] += units[i]
