"""Counts compiled by Numba: FedTrail's item pairs (in sequence, and in one history), and how often items were drawn.

One worker counts a row, in a fixed order, so that results do not depend on the number of threads.
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from fedtaste.kernels.als import WORKERS


@njit(cache=True, nogil=True, parallel=True)
def count_pairs(starts, items, fresh, item_starts, people, entries, powers):
    """[catalogue, catalogue]: for every item what followed it in histories, `powers[d]` for an item that came d + 1
    places later. A pair counts where its later item is new: at entry `fresh[person]` or after it. `item_starts`,
    `people` and `entries` come from `by_item`."""
    catalogue = len(item_starts) - 1
    out = np.zeros((catalogue, catalogue), np.float32)
    for worker in prange(WORKERS):
        for item in range(worker, catalogue, WORKERS):
            for at in range(item_starts[item], item_starts[item + 1]):
                after = entries[at] + 1
                for step in range(max(0, fresh[people[at]] - after), min(len(powers), starts[people[at] + 1] - after)):
                    out[item, items[after + step]] += powers[step]
    return out


@njit(cache=True, nogil=True, parallel=True)
def count_both(starts, items, fresh, item_starts, people, entries):
    """For every pair of items how many people have both, one of them at entry `fresh[person]` or after it: the upper
    triangle by rows, [m (m + 1) / 2]."""
    catalogue = len(item_starts) - 1
    out = np.zeros(catalogue * (catalogue + 1) // 2, np.float32)
    for worker in prange(WORKERS):
        for item in range(worker, catalogue, WORKERS):
            begin = item * catalogue - item * (item - 1) // 2 - item
            for at in range(item_starts[item], item_starts[item + 1]):
                new = entries[at] >= fresh[people[at]]
                for entry in range(starts[people[at]] if new else fresh[people[at]], starts[people[at] + 1]):
                    if items[entry] >= item:
                        out[begin + items[entry]] += 1.0
    return out


@njit(cache=True, nogil=True)
def count_drawn(starts, items, targets, column_starts, column_items, catalogue, draws):
    """Add to `draws`, one number for every column of a person, how often that person drew the column's item as a
    negative (target 0). `starts`, `items`, `targets` are the people's examples, in the same order as the columns."""
    place = np.full(catalogue, -1, np.int64)  # the last column with this item; one of another person does not count
    for person in range(len(column_starts) - 1):
        first, last = column_starts[person], column_starts[person + 1]
        for column in range(last - 1, first - 1, -1):
            place[column_items[column]] = column
        for at in range(starts[person], starts[person + 1]):
            column = place[items[at]]
            if targets[at] == 0 and first <= column < last:
                draws[column] += 1
