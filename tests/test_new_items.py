"""New items: vectors from features by a ridge map, and the evaluation that holds out whole items."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import fedtaste
from fedtaste.data.interactions import Interactions
from fedtaste.data.item_features import item_features
from fedtaste.errors import SettingError
from fedtaste.experiment.result import RunResult
from fedtaste.experiment.settings import Settings
from fedtaste.experiment.train import make_task
from fedtaste.methods.new_items import new_item_vectors, predict, ridge_map
from fedtaste.report.tables import METRICS, columns
from fedtaste.tasks.new_items import hold_out_items
from support.command import fedtaste as command

rng = np.random.default_rng(0)
GROUPS, EACH, FANS = 4, 30, 25  # items of a genre, people who like one genre


def genre_world() -> Interactions:
    """Everybody takes a random two thirds of the items of one genre, and nothing else."""
    person, item = [], []
    for who in range(GROUPS * FANS):
        own = rng.choice(EACH, 20, replace=False) + EACH * (who % GROUPS)
        person += [who] * len(own)
        item += own.tolist()
    names = tuple(f"item {number}" for number in range(GROUPS * EACH))
    genres = tuple(f"genre {number // EACH}" for number in range(GROUPS * EACH))
    people = tuple(f"person {number}" for number in range(GROUPS * FANS))
    time = rng.permutation(len(item)).astype(float)
    return Interactions("genres", np.array(person), np.array(item), people, names, time=time, genres=genres)


WORLD = genre_world()


def test_a_map_recovers_linear_coefficients_exactly():
    features = rng.normal(size=(50, 3))
    targets = 2.0 + features @ np.array([[1.0, 0.0], [0.0, -3.0], [0.5, 0.5]])
    coefficients = ridge_map(features, targets, rng.uniform(1, 2, 50), ridge=0.0)
    assert coefficients == pytest.approx(np.array([[2, 2], [1, 0], [0, -3], [0.5, 0.5]]), abs=1e-9)
    assert predict(features, coefficients) == pytest.approx(targets)


def test_a_map_is_the_weighted_ridge_solution_without_penalty_on_the_intercept():
    features, targets, weights = rng.normal(size=(40, 2)), rng.normal(size=(40, 1)), rng.uniform(0.1, 3, 40)
    found = ridge_map(features, targets, weights, ridge=7.0)
    design = np.concatenate([np.ones((40, 1)), features], 1)
    gradient = design.T @ (weights[:, None] * (design @ found - targets)) + np.diag([0.0, 7.0, 7.0]) @ found
    assert gradient == pytest.approx(np.zeros((3, 1)), abs=1e-9)


def test_vectors_of_known_items_stay_and_an_infinite_ridge_gives_the_weighted_mean():
    item, features = rng.normal(size=(20, 4)), rng.normal(size=(20, 3))
    known = np.arange(20) < 15
    filled = new_item_vectors(item, known, features, weights=np.ones(20), ridge=1e12)
    assert np.array_equal(filled[known], item[known])
    mean = item[known].mean(0)
    for row in filled[~known]:  # the mean direction; lengths still follow the features
        assert row / np.linalg.norm(row) == pytest.approx(mean / np.linalg.norm(mean), abs=1e-6)


def test_nothing_is_learnt_from_items_without_a_vector():
    item, features = rng.normal(size=(20, 4)), rng.normal(size=(20, 3))
    known = np.arange(20) < 15
    with_zero = np.concatenate([item, np.zeros((1, 4))])
    extra = np.concatenate([features, [[50.0, -50.0, 9.0]]])
    filled = new_item_vectors(with_zero, np.append(known, True), extra)
    assert filled[15:20] == pytest.approx(new_item_vectors(item, known, features)[15:20])
    assert not new_item_vectors(np.zeros((3, 2)), np.ones(3, bool), np.ones((3, 1))).any()


def test_words_of_titles_are_features_only_where_there_is_nothing_else():
    titles = [f"red lamp {n}" for n in range(5)] + [f"blue chair {n}" for n in range(5)]
    table = item_features(titles, words=True)
    assert table.shape == (10, 4) and table[0].sum() == table[9].sum() == 2
    assert item_features(titles) is None and item_features(["a b"] * 4, words=True) is None
    genres = ["x"] * 5 + ["y"] * 5
    assert np.array_equal(item_features(titles, genres, words=True), item_features(titles, genres))


def test_held_out_items_are_in_no_training_and_all_their_interactions_are_tested():
    rest, new = hold_out_items(WORLD, 0.1, 10.0, seed=3)
    assert len(new.items) == 12 and not np.isin(rest.item, new.items).any()
    assert len(rest) + len(new.positives) == len(WORLD) and set(new.positives.items) == set(new.items)
    assert rest.items == WORLD.items and (~new.known).sum() == 12
    other = hold_out_items(WORLD, 0.1, 10.0, seed=4)[1]
    assert set(other.items) != set(new.items)
    task = make_task(Settings(new_items=0.1, seed=3), WORLD)
    for part in (task.final_train, task.test.positives):
        assert not np.isin(part.items, task.new_items.items).any()


def test_new_items_of_a_liked_genre_are_found():
    """The genre decides everything: with a small ridge a person's new items stand first, whatever their popularity."""
    result = fedtaste.evaluate("fedals", WORLD, new_items=0.25, new_item_ridge=1.0, k=8, seed=0)
    new = result.new_items
    assert isinstance(result, RunResult) and new.items == 30 and new.random_recall == pytest.approx(1 / 3, abs=1e-6)
    assert new.metrics["recall@10"] > 0.95 > 2 * new.popularity_recall
    low, high = new.intervals["recall@10"]
    assert low <= new.metrics["recall@10"] <= high
    assert result.metric("new_items.recall@10") == new.metrics["recall@10"]
    assert result.interval("new_items.recall@10") == (low, high)
    assert new.sentence() in result.notes
    assert [c.key for c in columns([result], METRICS) if c.key.startswith("new_items")]


@pytest.mark.parametrize("method", ["fedmf", "fedrecon", "fcf", "fedavg", "fedtrail"])
def test_other_methods_with_item_vectors_rank_new_items(method):
    result = fedtaste.evaluate(method, WORLD, new_items=0.25, seed=0, **({} if method == "fedtrail" else {"rounds": 2}))
    assert 0 <= result.new_items.metrics["recall@10"] <= 1 and result.new_items.people > 0


def test_a_run_without_new_items_has_no_such_field():
    result = fedtaste.evaluate("fedals", "synthetic:60x40x900", rounds=1)
    assert result.new_items is None and "new_items" not in result.dump()


def test_a_private_run_reports_no_popularity_of_exact_counts():
    result = fedtaste.evaluate("fedals", WORLD, new_items=0.25, rounds=1, epsilon=50.0, wire="clip=1.0")
    assert result.new_items.popularity_recall is None and "recall@10" in result.new_items.metrics


def test_what_is_impossible_is_refused():
    with pytest.raises(SettingError, match="local shares none"):
        fedtaste.evaluate("local", WORLD, new_items=0.1)
    with pytest.raises(SettingError, match="features of items"):
        fedtaste.evaluate("fedals", replace(WORLD, genres=()), new_items=0.1)
    with pytest.raises(SettingError, match="would change nothing for ratings"):
        fedtaste.evaluate("fedals", WORLD, new_items=0.1, task="ratings")
    with pytest.raises(SettingError, match="0 of 120 items"):
        fedtaste.evaluate("fedals", WORLD, new_items=0.001)


def test_the_command_line_reports_new_items(tmp_path):
    rows = [f"{WORLD.people[p]},{WORLD.items[i]},{WORLD.genres[i]}" for p, i in zip(WORLD.person, WORLD.item)]
    (tmp_path / "genres.csv").write_text("user,item,genres\n" + "\n".join(rows))
    options = ("--data", tmp_path / "genres.csv", "--new-items", "0.2", "--out", tmp_path / "run")
    shown = command("run", *options)
    assert "New items: recall@10" in shown.out
    assert "New items" in (tmp_path / "run" / "report.html").read_text()
