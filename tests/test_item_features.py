"""Item features from titles and genres: exact tables of small catalogues."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedtaste.data.item_features import KNOTS, LABELS, item_features, years
from fedtaste.data.synthetic import synthetic
from fedtaste.tasks.base import Facts
from fedtaste.tasks.ranking import ranking_task


def test_genres_are_columns_in_alphabetical_order():
    table = item_features(["a", "b", "c", "d"], ["War", "Drama, War", "Drama|Animation; War", ""])
    assert table.dtype == np.float32
    assert table.tolist() == [[0, 0, 1], [0, 1, 1], [1, 1, 1], [0, 0, 0]]  # Animation, Drama, War


def test_a_genre_counts_once_and_one_that_all_items_have_is_left_out():
    assert item_features(["a", "b"], ["Film, War, War", "Film"]).tolist() == [[1], [0]]
    assert item_features(["a", "b"], ["Film", "Film"]) is None


def test_years_are_interpolated_between_quantiles():
    catalogue = [f"Film {year} ({year})" for year in range(1900, 2000)]  # the knots are 1905, 1915, ...
    table = item_features(catalogue)
    knots = 1905 + 10 * np.arange(KNOTS)
    assert table.shape == (100, KNOTS) and np.allclose(table.sum(1), 1)
    assert np.allclose(table[5:96] @ knots, np.arange(1905, 1996), atol=1e-3)
    assert (np.count_nonzero(table, axis=1) <= 2).all()
    assert table[0].tolist() == [1] + [0] * 9 and table[99].tolist() == [0] * 9 + [1]  # beyond the outer knots


def test_equal_quantiles_are_one_knot_and_unknown_years_are_zeros():
    table = item_features(["A (1990)"] * 5 + ["B (2000) "] * 5 + ["C", "D (1995) again", "E (95)"])
    assert table.tolist() == [[1, 0]] * 5 + [[0, 1]] * 5 + [[0, 0]] * 3
    assert item_features(["A (1990)", "B (1990)", "C"]) is None  # one year distinguishes nothing


def test_the_year_is_in_brackets_at_the_end_of_the_title():
    values = years(["2001: A Space Odyssey (1968)", "Il Postino (Postman, The) (1994)", "1984", "X (1990) (V)"])
    assert np.array_equal(values, [1968, 1994, np.nan, np.nan], equal_nan=True)


def test_genres_and_years_are_columns_of_one_table():
    table = item_features(["A (1990)", "B (2000)"] * 5, ["Drama", "War"] * 5)
    assert table.tolist() == [[1, 0, 1, 0], [0, 1, 0, 1]] * 5


def test_only_the_most_common_genres_have_a_column():
    genres = [f"g{i:03}" + (", top" if i % 2 else "") for i in range(LABELS + 50)]
    table = item_features([""] * len(genres), genres)
    assert table.shape == (len(genres), LABELS)
    assert table[:, -1].tolist() == [i % 2 for i in range(len(genres))]  # "top", and then by name
    assert not table[LABELS - 1 :, :-1].any()


@pytest.mark.parametrize("genres", [(), [""] * 2])
def test_a_catalogue_without_genres_and_years_has_no_features(genres):
    assert item_features(["1", "2"], genres) is None
    assert Facts("ranking", 2).described(["1", "2"], genres) == Facts("ranking", 2)


def test_facts_hold_the_table_and_dump_only_its_width():
    data = synthetic(30, 20, 300)
    facts = ranking_task(data, protocol_name="clean", split_name="leave-one-out", new_people=0.1, seed=0).facts
    assert torch.equal(facts.features, torch.from_numpy(item_features(data.titles, data.genres)))
    words = json.loads(json.dumps(facts.words()))
    assert words["feature_count"] == facts.features.shape[1] and "features" not in words
    assert facts == replace(facts, features=None) and "tensor" not in repr(facts)
