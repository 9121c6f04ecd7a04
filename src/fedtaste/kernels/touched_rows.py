"""The item rows that each person's examples name: what kernels for whole cohorts gather, work on and scatter."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numba import njit, prange
from numpy.typing import NDArray

from fedtaste.core import CohortExamples, People
from fedtaste.kernels.row_pages import WORKERS

CHUNK = 4_000_000  # examples at once: bounds the memory beside the tables


def blocks(starts: NDArray[np.int64], size: int | None = None) -> Iterator[tuple[int, int]]:
    """(first, last) of runs of people with at most `size` examples together (CHUNK when left out), or of one
    person with more."""
    size = size or CHUNK
    begin = 0
    while begin < len(starts) - 1:
        end = max(begin + 1, int(np.searchsorted(starts, starts[begin] + size, "right")) - 1)
        yield begin, end
        begin = end


class RowBlock(NamedTuple):
    """The examples of some people and the different items that they name, both ragged by person."""

    people: NDArray[np.int64]
    starts: NDArray[np.int64]  # of examples
    local: NDArray[np.int32]  # every example's place among the items of its person
    targets: NDArray[np.float32]  # of examples
    firsts: NDArray[np.int64]  # of items
    items: NDArray[np.int32]


def row_blocks(people: People, examples: CohortExamples, catalogue: int) -> Iterator[RowBlock]:
    """A cohort in blocks of about CHUNK examples."""
    people = np.asarray(people, np.int64)
    for begin, end in blocks(examples.starts):
        first, last = examples.starts[begin], examples.starts[end]
        starts = examples.starts[begin : end + 1] - first
        local, items, counts = distinct(starts, examples.inputs[first:last], catalogue)
        firsts = np.append(0, np.cumsum(counts))
        yield RowBlock(people[begin:end], starts, local, examples.targets[first:last], firsts, items)


@njit(cache=True, nogil=True, parallel=True)
def distinct(starts, inputs, catalogue):
    """Every example's place among the different items of its person; those items, ragged by person; how many."""
    people = len(starts) - 1
    local = np.empty(len(inputs), np.int32)
    items = np.empty(len(inputs), np.int32)
    counts = np.zeros(people, np.int64)
    for worker in prange(WORKERS):
        mark = np.full(catalogue, -1, np.int64)  # by item: the example where the current person has it first
        for person in range(worker, people, WORKERS):
            begin, used = starts[person], 0
            for at in range(begin, starts[person + 1]):
                item = inputs[at]
                if mark[item] < begin:
                    mark[item] = begin + used
                    items[begin + used] = item
                    used += 1
                local[at] = mark[item] - begin
            counts[person] = used
    firsts = np.zeros(people + 1, np.int64)
    firsts[1:] = np.cumsum(counts)
    wanted = np.empty(firsts[-1], np.int32)
    for person in range(people):
        wanted[firsts[person] : firsts[person + 1]] = items[starts[person] : starts[person] + counts[person]]
    return local, wanted, counts
