"""The compiled top-n of many people: equal to `rank_items` for every person."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedtaste.data.interactions import starts_of
from fedtaste.evaluation.ranking import rank_items
from fedtaste.kernels.top_items import top_items


def expected(scores, history, allowed, groups, n):
    order = rank_items(
        scores, np.concatenate([history, np.zeros(0, np.int64)]).astype(np.int64), groups, np.flatnonzero(allowed)
    )
    return order[:n].tolist()


@given(st.integers(0, 2**32 - 1), st.integers(1, 12), st.sampled_from([np.float32, np.float64]))
def test_every_row_is_ranked_as_by_rank_items(seed, n, dtype):
    rng = np.random.default_rng(seed)
    people, m = 5, 12
    scores = rng.integers(-2, 3, (people, m)).astype(dtype)  # many ties
    scores[rng.random((people, m)) < 0.1] = np.nan
    lengths = rng.integers(0, 5, people)
    items = np.concatenate([rng.choice(m, length, replace=False) for length in lengths]).astype(np.int32)
    starts, allowed = starts_of(lengths), rng.random(m) < 0.8
    groups = np.arange(m)
    groups[rng.integers(0, m, 4)] = rng.integers(0, m)
    _, first = np.unique(groups, return_index=True)
    groups = np.array([first[np.searchsorted(np.unique(groups), g)] for g in groups])
    best, values = top_items(scores, starts, items, allowed, groups, n)
    for person in range(people):
        row = np.nan_to_num(scores[person], nan=-np.inf)
        mine = items[starts[person] : starts[person + 1]]
        found = best[person][best[person] >= 0].tolist()
        assert found == expected(row, mine, allowed, groups, n)
        assert values[person][: len(found)].tolist() == row[found].tolist()


def test_a_hand_made_example():
    scores = np.array([[0.5, 0.9, 0.5, 0.1], [np.nan, 1.0, 2.0, 3.0]])
    everything, apart = np.ones(4, bool), np.arange(4)
    best, _ = top_items(scores, np.array([0, 1, 1]), np.array([1], np.int32), everything, apart, 3)
    assert best.tolist() == [[0, 2, 3], [3, 2, 1]]
    same_title = np.array([0, 1, 0, 1])  # items 0 and 2, 1 and 3 have the same titles
    best, _ = top_items(scores, np.array([0, 1, 1]), np.array([1], np.int32), everything, same_title, 3)
    assert best.tolist() == [[0, -1, -1], [3, 2, -1]]


@pytest.mark.parametrize("n", [1, 4])
def test_nothing_is_listed_where_nothing_is_allowed(n):
    best, values = top_items(
        np.ones((2, 4)), np.zeros(3, np.int64), np.zeros(0, np.int32), np.zeros(4, bool), np.arange(4), n
    )
    assert (best == -1).all() and np.isneginf(values).all()
