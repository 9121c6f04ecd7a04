"""Partitions of one data set: every example goes to one client, and clients get what the rule says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtaste.data.partitions import apportion, by_label, dirichlet, partition
from fedtaste.errors import DataError
from support.errors import raises_with


@given(
    labels=st.lists(st.integers(0, 5), min_size=30, max_size=200),
    clients=st.integers(1, 12),
    each=st.integers(1, 6),
    seed=st.integers(0, 99),
)
@settings(max_examples=150, deadline=None)
def test_by_label_assigns_every_example_once_and_gives_every_client_its_number_of_classes(labels, clients, each, seed):
    targets = np.array([*range(6), *labels])
    sizes = np.bincount(targets)
    try:
        parts = by_label(targets, clients, each, seed)
    except DataError as error:
        assert "use fewer clients" in str(error) and sizes.min() < -(-clients * each // 6)
        return
    counts = np.array([np.bincount(targets[part], minlength=6) for part in parts])
    holders = (counts > 0).sum(0)
    assert ((counts > 0).sum(1) == each).all() and np.ptp(holders) <= 1
    assert len(np.unique(np.concatenate(parts))) == sum(len(part) for part in parts)
    assert (counts.sum(0) == sizes * (holders > 0)).all() and (clients * each < 6 or (holders > 0).all())
    for column in counts.T:
        assert not column.any() or np.ptp(column[column > 0]) <= 1
    assert all(np.array_equal(a, b) for a, b in zip(parts, by_label(targets, clients, each, seed)))


def test_by_label_gives_clients_equal_sizes_and_different_classes():
    targets = np.repeat(np.arange(10), 101)
    sizes = [len(part) for part in by_label(targets, clients=20, classes_each=3)]
    assert sum(sizes) == 1010 and np.ptp(sizes) <= 1
    assert len({tuple(np.unique(targets[part])) for part in by_label(targets, 20, 3)}) > 10


@given(
    labels=st.lists(st.integers(0, 4), min_size=60, max_size=200),
    clients=st.integers(1, 12),
    alpha=st.sampled_from([0.001, 0.1, 1.0, 1e6]),
    least=st.integers(0, 5),
    seed=st.integers(0, 99),
)
@settings(max_examples=100, deadline=None)
def test_dirichlet_assigns_every_example_once_and_at_least_the_minimum(labels, clients, alpha, least, seed):
    parts = dirichlet(np.array(labels), clients, alpha, seed, least)
    assert len(parts) == clients and min(len(part) for part in parts) >= least
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(labels)))
    assert all(np.array_equal(a, b) for a, b in zip(parts, dirichlet(np.array(labels), clients, alpha, seed, least)))


def test_dirichlet_is_even_for_a_large_alpha_and_skewed_for_a_small_one():
    targets = np.repeat(np.arange(10), 100)

    def largest_share(alpha: float) -> float:
        """The share of the commonest class, averaged over clients."""
        counts = [np.bincount(targets[part], minlength=10) for part in dirichlet(targets, 10, alpha)]
        return float(np.mean([c.max() / c.sum() for c in counts]))

    assert largest_share(1e6) < 0.12 < 0.2 < largest_share(1.0) < 0.4 < largest_share(0.05)


@given(n=st.integers(0, 500), shares=st.lists(st.floats(0.001, 1), min_size=1, max_size=20))
def test_apportion_is_within_one_of_the_exact_share(n, shares):
    shares = np.array(shares)
    counts = apportion(n, shares)
    assert counts.sum() == n and (np.abs(counts - n * shares / shares.sum()) < 1 + 1e-9).all()


@pytest.mark.parametrize(
    ("call", "parts"),
    [
        (lambda y: by_label(y, 0, 2), ["0 clients with 2 classes", "at least 1 client"]),
        (lambda y: by_label(y, 3, 6), ["6 classes each", "from 1 to 5 classes"]),
        (lambda y: by_label(y, 60, 2), ["Class ", " has 20 examples", "24 of 60 clients", "use fewer clients"]),
        (lambda y: by_label(y - 1, 3, 1), ["whole number from 0"]),
        (lambda y: by_label(y + 0.5, 3, 1), ["whole number from 0"]),
        (lambda y: by_label(y.astype(str), 3, 1), ["whole number from 0"]),
        (lambda y: by_label(y[:0], 3, 1), ["whole number from 0"]),
        (lambda y: dirichlet(y, 11, 1.0), ["11 clients cannot have 10 of 100", "at most 10 clients", "least=9"]),
        (lambda y: dirichlet(y, 5, 0.0), ["alpha 0 ", "from 0.001"]),
        (lambda y: dirichlet(y, 5, np.nan), ["alpha nan", "from 0.001"]),
        (lambda y: partition("x", y[:, None], y, by_label(y, 2, 2), test=1.0), ["between 0 and 1", "got 1"]),
    ],
)
def test_impossible_partitions_are_refused(call, parts):
    with raises_with(DataError, *parts):
        call(np.repeat(np.arange(5), 20))
