"""The study of docs/degree.md on small data: figures of the released code, the choice of lambda, rounds by lambda."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import fedtaste

BENCHMARKS = str(Path(__file__).parents[1] / "benchmarks")


@pytest.fixture(scope="module")
def study():
    sys.path.insert(0, BENCHMARKS)
    try:
        yield importlib.import_module("degree"), importlib.import_module("degree_page")
    finally:
        sys.path.remove(BENCHMARKS)


def test_the_figures_of_the_released_code_are_reproduced(study):
    degree, page = study
    figures = degree.parity(("0.1",))  # all columns: benchmarks/degree.py
    for r, row in page.RELEASED.items():
        np.testing.assert_allclose(figures["0.1"][r], row["0.1"], rtol=0.01)


def test_error_of_lam_auto_is_within_ten_percent_of_the_best_lambda(study):
    study_result = study[0].spring((0.3, 1.0), (0,), (0.1, 0.3, 1.0, 3.0, 10.0, 30.0))
    assert study_result["off_closed_form"] < 1e-3
    assert [row["best"] for row in study_result["rows"]] == [10.0, 0.3]
    for row in study_result["rows"]:
        assert row["auto"]["worst_ratio"] <= 1.1
        assert row["auto"]["worst_ratio"] < row["released_rule"]["pilot"]["worst_ratio"]


def test_rounds_grow_with_lambda_and_gradients_do_not(study):
    rows = study[0].rounds((0.01, 1.0, 100.0), 1e-5)["rows"]
    few, some, many = (row["default"] for row in rows)
    assert few["rounds"] < some["rounds"] < many["rounds"] and many["rounds"] >= 10 * few["rounds"]
    gradients = [row["default"]["gradients"] for row in rows]
    assert max(gradients) <= 3 * min(gradients)


def test_federations_trained_together_equal_separate_ones(study):
    degree = study[0]
    worlds = [degree.logistic(clients=4, examples=30, seed=s) for s in range(3)]
    start = np.random.default_rng(0).normal(size=(3, 2, 10))
    joint = degree.two_classes(10, start)
    together = degree.side_by_side(fedtaste.fedclup(joint, lam=0.3, passes=5))
    _, g, v = degree.last(together, joint, degree.together(worlds), 3)
    for i, world in enumerate(worlds):
        model = degree.two_classes(10, start[i])
        federation = fedtaste.of_arrays(world.features, world.targets)
        _, g_alone, v_alone = degree.last(fedtaste.fedclup(model, lam=0.3, passes=5), model, federation, 3)
        np.testing.assert_allclose(g[i], g_alone, atol=1e-5)
        np.testing.assert_allclose(v[:, i], v_alone, atol=1e-5)


def test_the_model_two_classes_of_the_study_has_the_loss_of_logistic(study):
    ours, theirs = study[0].two_classes(10, np.zeros((2, 10))), fedtaste.logistic(10)
    generator = torch.Generator().manual_seed(0)
    weights = {"weight": torch.randn(2, 10, generator=generator)}
    batch = fedtaste.Examples(torch.randn(20, 10, generator=generator), (torch.arange(20) % 2).float(), torch.ones(20))
    torch.testing.assert_close(ours.loss(weights, batch), theirs.loss(weights, batch))
