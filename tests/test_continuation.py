"""Continuing a model with new data: joined tables, and states for more people and items."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedtaste.data.interactions import Interactions
from fedtaste.engine.run import State
from fedtaste.engine.store import Store
from fedtaste.errors import DataError
from fedtaste.experiment.continuation import continue_from, join


def table(rows, people, items, **columns) -> Interactions:
    person, item = (np.array(column, np.int32) for column in zip(*rows))
    return Interactions("shop", person, item, people, items, **columns)


def test_names_keep_their_numbers_and_new_ones_follow():
    old = table([(0, 0), (1, 1)], ("ann", "bob"), ("tea", "jam"), time=np.array([1.0, 2.0]), titles=("Tea", "Jam"))
    new = table(
        [(0, 0), (1, 1)], ("cleo", "bob"), ("ham", "tea"), time=np.array([3.0, 4.0]), titles=("Ham", "Green tea")
    )
    both = join(old, new)
    assert both.people == ("ann", "bob", "cleo") and both.items == ("tea", "jam", "ham")
    assert both.titles == ("Tea", "Jam", "Ham")
    pairs = list(zip(both.person.tolist(), both.item.tolist(), both.time.tolist()))
    assert pairs == [(0, 0, 1.0), (1, 1, 2.0), (2, 2, 3.0), (1, 0, 4.0)]


def test_of_a_repeated_pair_the_newest_counts():
    old = table(
        [(0, 0), (0, 1)], ("ann",), ("tea", "jam"), time=np.array([5.0, 2.0]), value=np.array([1.0, 2.0], np.float32)
    )
    new = table(
        [(0, 0), (0, 1)], ("ann",), ("tea", "jam"), time=np.array([4.0, 3.0]), value=np.array([3.0, 4.0], np.float32)
    )
    both = join(old, new)
    assert dict(zip(both.item.tolist(), both.value.tolist())) == {0: 1.0, 1: 4.0}


def test_new_data_must_have_what_the_old_have():
    old = table([(0, 0)], ("ann",), ("tea",), time=np.array([5.0]))
    with pytest.raises(DataError, match="times"):
        join(old, table([(0, 0)], ("ann",), ("tea",)))
    assert join(table([(0, 0)], ("ann",), ("tea",)), old).time is None, "what the model does not know is not needed"


def test_a_state_grows_and_keeps_what_was_learnt():
    shared = {"item": torch.arange(6.0).reshape(3, 2), "gram": torch.ones(2, 2)}
    memory = {"count": torch.tensor([1.0, 2, 3]), "sum.item": torch.full((3, 2), 7.0), "pairs": torch.ones(3, 3)}
    memory["both"] = torch.tensor([11.0, 12, 13, 22, 23, 33])  # the upper triangle by rows
    store = Store.fresh({"user": torch.zeros(2)}, 2, ())
    store.stacked["user"] = torch.tensor([[1.0, 2], [3, 4]])
    fresh_shared = {"item": torch.full((5, 2), -1.0), "gram": torch.zeros(2, 2)}
    fresh = State(fresh_shared, {}, Store.fresh({"user": torch.zeros(2)}, 4, ()))
    state = continue_from(State(shared, memory, store, round=4), 3, 5)(fresh)
    assert state.round == 0
    assert state.shared["item"].tolist() == [[0, 1], [2, 3], [4, 5], [-1, -1], [-1, -1]]
    assert torch.equal(state.shared["gram"], shared["gram"])
    assert state.memory["count"].tolist() == [1, 2, 3, 0, 0]
    assert state.memory["sum.item"].tolist() == [[7, 7]] * 3 + [[0, 0]] * 2
    assert state.memory["pairs"].sum() == 9 and state.memory["pairs"].shape == (5, 5)
    assert state.memory["both"].tolist() == [11, 12, 13, 0, 0, 22, 23, 0, 0, 33, 0, 0, 0, 0, 0]
    assert state.private.gather(np.arange(4))["user"].tolist() == [[1, 2], [3, 4], [0, 0], [0, 0]]
