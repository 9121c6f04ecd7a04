"""The compiled kernels of FedALS against NumPy in double precision."""

from __future__ import annotations

import os
import subprocess
import sys

import numba
import numpy as np
import pytest

from fedtaste.kernels import als
from fedtaste.kernels.small_matrices import LANES, add_gram, padded, solve

SIZES = (1, 5, 8, 12, 16, 24, 33, 64, 65)
PRECISIONS = ((np.float32, 1e-5), (np.float64, 1e-12))
CODE = """
from fedtaste.kernels import als
import test_small_matrices
test_small_matrices.all_kernels(8)
kernels = (als.solve_people, als.by_item, als.sum_outer, als.solve_items)
misses = [sum(kernel.stats.cache_misses.values()) for kernel in kernels]
assert not any(misses), misses
"""


def system_of(features, targets, strength, kind):
    """A system as the kernels store it, and the rows it is made of."""
    n, p = features.shape
    rows = np.zeros((n, padded(p) + LANES), kind)
    rows[:, :p], rows[:, padded(p)] = features, targets
    system = np.zeros((padded(p) + 1, padded(p) + LANES), kind)
    np.fill_diagonal(system, strength)
    add_gram(system, rows, n)
    return system


@pytest.mark.parametrize("p", SIZES)
@pytest.mark.parametrize("kind, tolerance", PRECISIONS)
def test_gram_matrices_and_solutions_equal_numpy(p, kind, tolerance):
    rng = np.random.default_rng(p)
    features, targets = rng.normal(size=(70, p)).astype(kind), rng.normal(size=70).astype(kind)
    exact, exact_targets = features.astype(np.float64), targets.astype(np.float64)
    system, size = system_of(features, targets, 20.0, kind), padded(p)
    gram, vector = exact.T @ exact + 20 * np.eye(p), exact.T @ exact_targets
    assert np.allclose(np.triu(system[:p, :p]), np.triu(gram), rtol=tolerance, atol=tolerance * 70)
    assert np.allclose(system[size, :p], vector, rtol=tolerance, atol=tolerance * 70)
    assert solve(system)
    assert np.allclose(system[size, :p], np.linalg.solve(gram, vector), rtol=tolerance, atol=tolerance)
    assert not system[size, p:size].any()


@pytest.mark.parametrize("bad", (-1.0, 0.0, np.nan))
@pytest.mark.parametrize("place", (0, 6, 11))
def test_matrices_that_are_not_positive_are_not_solved(bad, place):
    system = system_of(np.zeros((1, 12)), np.zeros(1), 1.0, np.float64)
    system[place, place] = bad
    assert not solve(system)


def cohort(p, kind=np.float32):
    """Histories of nine people, one of them empty and two longer than a block, with targets and weights."""
    rng = np.random.default_rng(p)
    lengths = np.array([3, 0, 1, 64, 65, 150, 7, 8, 20])
    starts = np.concatenate([[0], lengths.cumsum()])
    items = rng.integers(0, 30, starts[-1]).astype(np.int32)
    targets, weights = rng.normal(size=(2, starts[-1])).astype(np.float32)
    return starts, items, targets, abs(weights), rng.normal(size=(30, p)).astype(kind)


def all_kernels(p):
    """One FedALS round of the cohort without targets and weights: (people's vectors, sums, items' vectors)."""
    starts, items, _, _, table = cohort(p)
    ones = np.zeros(0, np.float32)
    users, finite = als.solve_people(starts, items, ones, ones, table, table.T @ table, 0.1, 1.0)
    item_starts, people, entries = als.by_item(starts, items, len(table), finite, False)
    sums = np.zeros((len(table), p * (p + 1) // 2 + p + 1), np.float32)
    als.sum_outer(item_starts, people, entries, ones, users, sums)
    gram = (users.T @ users).astype(np.float64)
    return users, sums, als.solve_items(sums, np.ones(len(table)), gram)


@pytest.mark.parametrize("p", SIZES)
@pytest.mark.parametrize("flat", (True, False))
def test_people_equal_their_ridge_solutions(p, flat):
    starts, items, targets, weights, table = cohort(p)
    none = np.zeros(0, np.float32)
    given = (none, none) if flat else (targets, weights)
    users, finite = als.solve_people(starts, items, *given, table, table.T @ table, 0.5, 2.0)
    exact = table.astype(np.float64)
    for person in range(len(starts) - 1):
        own = slice(starts[person], starts[person + 1])
        f, t = exact[items[own]], targets[own].astype(np.float64)
        w = weights[own].astype(np.float64)
        if flat:
            t, w = np.ones(len(f)), np.ones(len(f))
        system = exact.T @ exact + (f.T * w) @ f + (0.5 * w.sum() + 2.0) * np.eye(p)
        assert np.allclose(users[person], np.linalg.solve(system, f.T @ (w * t)), atol=1e-5)
    assert finite.all() and not users[1].any()  # the person without items


@pytest.mark.parametrize("p", SIZES)
def test_items_equal_their_sums_and_ridge_solutions(p):
    users, sums, vectors = all_kernels(p)
    starts, items, _, _, table = cohort(p)
    x, owner = users.astype(np.float64), np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    for item in range(len(table)):
        own = x[owner[items == item]]
        square, vector = own.T @ own, own.sum(0)
        expected = np.concatenate([square[np.triu_indices(p)], vector, [len(own)]])
        assert np.allclose(sums[item], expected, rtol=1e-5, atol=1e-5)
        assert np.allclose(vectors[item], np.linalg.solve(square + x.T @ x + np.eye(p), vector), atol=1e-5)


def test_sums_with_residuals_and_in_double_precision():
    starts, items, targets, _, table = cohort(5)
    vectors = np.random.default_rng(0).normal(size=(9, 5))
    item_starts, people, entries = als.by_item(starts, items, 30, np.arange(9) != 3)
    sums = np.zeros((30, 15 + 5))
    als.sum_outer(item_starts, people, entries, targets, vectors, sums)
    owner = np.repeat(np.arange(9), np.diff(starts))
    chosen = (items == 4) & (owner != 3)
    expected = (vectors[owner[chosen]] * targets[chosen, None]).sum(0)
    assert np.allclose(sums[4, 15:], expected, rtol=0, atol=1e-12)


def test_long_sums_are_added_up_in_parts():
    """5,000 people have one item: more than one SUBTOTAL."""
    n, vectors = 5_000, np.random.default_rng(0).normal(size=(5_000, 9)).astype(np.float32)
    sums, none = np.zeros((1, 55), np.float32), np.zeros(0, np.float32)
    people = np.arange(n, dtype=np.int32)
    als.sum_outer(np.array([0, n]), people, np.zeros(0, np.int64), none, vectors, sums)
    square = vectors.T.astype(np.float64) @ vectors
    assert np.allclose(sums[0, :45], square[np.triu_indices(9)], rtol=1e-6, atol=1e-6 * n)
    assert sums[0, 54] == n


@pytest.mark.parametrize("bad", (np.nan, np.inf, -np.inf))
def test_people_with_numbers_that_are_not_finite_are_marked_and_change_nobody_else(bad):
    starts, items, _, _, table = cohort(12)
    none, gram = np.zeros(0, np.float32), np.eye(12, dtype=np.float32)
    expected, _ = als.solve_people(starts, items, none, none, table, gram, 0.1, 1.0)
    table[items[0], 3] = bad
    users, finite = als.solve_people(starts, items, none, none, table, gram, 0.1, 1.0)
    touched = [items[0] in items[starts[person] : starts[person + 1]] for person in range(9)]
    assert (finite == ~np.array(touched)).all() and touched[0] and not all(touched)
    assert np.array_equal(users[finite], expected[finite])


@pytest.mark.parametrize("p", (5, 12, 64))
def test_items_whose_sums_are_not_finite_change_no_other_item(p):
    _, sums, _ = all_kernels(p)
    gram, strength = np.eye(p), np.ones(len(sums))
    expected = als.solve_items(sums, strength, gram)
    sums[::3] = np.nan
    solved = als.solve_items(sums, strength, gram)
    others = np.arange(len(sums)) % 3 > 0
    assert np.isnan(solved[~others]).all() and np.array_equal(solved[others], expected[others])


@pytest.mark.skipif(numba.config.NUMBA_NUM_THREADS < 2, reason="this process has one thread")
@pytest.mark.parametrize("p", (8, 33))
def test_results_have_the_same_bytes_for_any_number_of_threads(p):
    before, results = numba.get_num_threads(), []
    try:
        for threads in (1, 2):
            numba.set_num_threads(threads)
            results.append([array.tobytes() for array in all_kernels(p)])
    finally:
        numba.set_num_threads(before)
    assert results[0] == results[1]


@pytest.mark.parametrize("chosen", [None, 1])
def test_kernels_do_not_change_the_threads_of_torch(chosen):
    """Numba's first parallel kernel sets the number of threads of OpenMP, which torch reads."""
    code = (
        "import test_small_matrices, torch; from fedtaste.experiment.resources import set_threads\n"
        f"torch.get_num_threads(); set_threads({chosen}); test_small_matrices.all_kernels(8)\n"
        "print(torch.get_num_threads())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd="tests", timeout=120,
        env=os.environ | {"NUMBA_NUM_THREADS": "2"},
    )  # fmt: skip
    assert (done.stdout.strip(), done.returncode) == ("1", 0), done.stderr


def test_a_second_process_compiles_nothing():
    all_kernels(8)  # compiled now, if they were not yet
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, cwd="tests", timeout=120)
    assert done.returncode == 0, done.stderr
