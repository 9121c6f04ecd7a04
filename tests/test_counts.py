"""Counts that people send in parts as their histories grow, and people who take back what they sent."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedtaste.data.interactions import Histories
from fedtaste.engine.removal import remove_people
from fedtaste.engine.run import begin, run
from fedtaste.errors import SettingError
from fedtaste.methods import METHODS
from support.states import assert_close
from support.worlds import PEOPLE, histories, world

CASES = [
    ("popularity", {}, "ranking"),
    ("popularity", {}, "ratings"),
    ("fedtrail", {}, "ranking"),
    ("fedtrail", {"parts": "trail", "window": 2}, "ranking"),
    ("fedtrail", {"parts": "factors"}, "ranking"),
]
BACKENDS = [(*case, backend) for case in CASES for backend in ("loop", "vmap", "kernel")
            if case[0] == "fedtrail" or backend != "kernel"]  # fmt: skip
SIXTY = 60


def first_items(data: Histories, lengths: np.ndarray) -> Histories:
    """The beginning of everybody's history, of these lengths."""
    kept = np.concatenate([np.arange(s, s + n) for s, n in zip(data.starts[:-1], lengths)])
    return Histories(np.append(0, np.cumsum(lengths)), data.items[kept], data.values[kept])


@pytest.mark.parametrize(("name", "settings", "task", "backend"), BACKENDS)
def test_histories_that_grow_in_three_parts_are_counted_like_whole_ones(name, settings, task, backend):
    """Some people have nothing in the first part, and some nothing new in the second."""
    data = histories(task, seed=3)
    rng = np.random.default_rng(0)
    second = rng.integers(1, data.lengths + 1)
    first = rng.integers(0, second + 1)
    assert (first == 0).any() and (first == second).any() and (second < data.lengths).any()
    method, model, whole = world(name, settings, task, data=data)
    state = begin(method, model, whole)
    for number, lengths in enumerate((first, second, data.lengths), 1):
        _, _, grown = world(name, settings, task, data=first_items(data, lengths))
        state = next(run(method, model, grown, rounds=number, state=state, backend=backend)).state
        assert state.private.stacked["sent"].tolist() == lengths.tolist()
    at_once = next(run(method, model, whole, rounds=1, backend=backend)).state
    assert_close(state.shared, at_once.shared, 1e-5)
    exact = [n for n in at_once.memory if n not in ("pairs", "sums")]  # counts are whole numbers
    assert exact and all(torch.equal(state.memory[n], at_once.memory[n]) for n in exact)
    if "pairs" in at_once.memory:
        assert_close({"pairs": state.memory["pairs"]}, {"pairs": at_once.memory["pairs"]}, 1e-6)


@pytest.mark.parametrize("backend", ["loop", "vmap", "kernel"])
def test_an_increment_has_only_the_counts_of_the_new_items(backend):
    """Ann had items 2, 0 and now has 2, 0, 1. With window 2, the pair (2, 1) counts half."""
    method, model, _ = world("fedtrail", {"window": 2, "fade": 0.5}, "ranking")
    before, after = (
        Histories(np.array([0, n]), np.array([2, 0, 1], np.int32)[:n], np.ones(n, np.float32)) for n in (2, 3)
    )
    _, _, ann = world("fedtrail", {}, "ranking", data=before)
    state = next(run(method, model, ann, rounds=1, backend=backend)).state
    old = {name: value.clone() for name, value in state.memory.items()}
    _, _, ann = world("fedtrail", {}, "ranking", data=after)
    new = next(run(method, model, ann, rounds=2, state=state, backend=backend)).state.memory
    gain = new["pairs"] - old["pairs"]
    assert gain[0, 1] == 1 and gain[2, 1] == 0.5 and gain.count_nonzero() == 2
    assert (new["items"] - old["items"]).nonzero().tolist() == [[1]]
    assert float((new["both"] - old["both"]).sum()) == 3  # (1, 1), (0, 1) and (1, 2)


@pytest.mark.parametrize("leaving", [[7], [0, 31, 59]])
@pytest.mark.parametrize(("name", "settings", "task"), CASES)
def test_removal_equals_training_without_the_person(name, settings, task, leaving):
    data = histories(task, people=SIXTY)
    method, model, everybody = world(name, settings, task, data=data)
    *_, done = run(method, model, everybody, rounds=3, cohort=40)  # some people answer twice, and some never
    trained = done.state
    kept = {name: value.clone() for name, value in trained.shared.items()}
    asked = np.unique(np.concatenate([everybody.cohort(r, size=40)[0] for r in range(3)]))
    after = remove_people(method, model, trained, everybody, leaving)
    stayed = np.setdiff1d(asked, leaving)
    expected = next(run(method, model, replace(everybody, members=stayed), rounds=1)).state
    assert_close(after.shared, expected.shared, 1e-5)
    assert any(not torch.allclose(after.shared[n], kept[n]) for n in kept), "a removal that changes nothing"
    assert all(torch.equal(trained.shared[n], kept[n]) for n in kept) and after.round == trained.round
    assert trained.private.stacked["sent"][leaving].any() and not after.private.stacked["sent"][leaving].any()
    again = remove_people(method, model, after, everybody, leaving)
    assert_close(again.shared, after.shared, 1e-6)


@pytest.mark.parametrize(("name", "settings", "task"), CASES)
def test_removal_of_people_who_never_sent_changes_nothing(name, settings, task):
    method, model, everybody = world(name, settings, task)
    some = replace(everybody, members=np.arange(5, PEOPLE))
    state = next(run(method, model, some, rounds=1)).state
    after = remove_people(method, model, state, everybody, [0, 3])
    assert_close(after.shared, state.shared, 1e-6)
    assert remove_people(method, model, state, everybody, []).shared.keys() == state.shared.keys()


def test_a_removed_person_can_return_with_a_longer_history():
    data = histories(seed=4)
    method, model, whole = world("fedtrail", {}, "ranking", data=data)
    short = np.where(np.arange(PEOPLE) == 3, 2, data.lengths)
    _, _, earlier = world("fedtrail", {}, "ranking", data=first_items(data, short))
    state = next(run(method, model, earlier, rounds=1)).state
    state = remove_people(method, model, state, whole, [3])  # its history has grown since it sent
    state = next(run(method, model, whole, rounds=2, state=state)).state
    assert_close(state.shared, next(run(method, model, whole, rounds=1)).state.shared, 1e-5)


@pytest.mark.parametrize("name", sorted({*METHODS} - {"popularity", "fedtrail", "fedbn", "centralised"}))
def test_other_methods_say_what_removal_needs(name):
    task = "numbers" if name == "fedclup" else "ranking"
    method, model, federation = world(name, {"heads": 1} if name == "fedseq" else {}, task)
    with pytest.raises(SettingError, match="Train again from the start without them"):
        remove_people(method, model, begin(method, model, federation), federation, [0])


def test_trail_with_als_and_unknown_people_are_refused():
    method, model, federation = world("fedtrail", {"parts": "trail+als"}, "ranking")
    with pytest.raises(SettingError, match="any parts but"):
        remove_people(method, model, begin(method, model, federation), federation, [0])
    method, model, federation = world("popularity", {}, "ranking")
    for nobody in (-1, PEOPLE):
        with pytest.raises(SettingError, match=f"no person {nobody}.* 0 to {PEOPLE - 1}"):
            remove_people(method, model, begin(method, model, federation), federation, [nobody])
