"""FedEigen against exact eigenvectors, against FedTrail's factors, and the size of its messages."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedtaste.engine.run import run
from fedtaste.errors import SettingError
from fedtaste.experiment.plan import plan
from fedtaste.experiment.settings import Settings
from fedtaste.federation import of_histories
from fedtaste.methods import build
from fedtaste.models import factorization, linear
from fedtaste.tasks.base import Facts
from fedtaste.tasks.serve import top_items
from support.states import assert_close
from support.worlds import ITEMS, PEOPLE, K, checkerboard, histories, world

RANKING = Facts("ranking", ITEMS, timed=True)


def train(settings, data=None, rounds=2, **options):
    """(method, model, state) after so many rounds, the first of which counts items."""
    method, model, federation = world("fedeigen", settings, "ranking", data=data)
    return method, model, list(run(method, model, federation, rounds=rounds, **options))[-1].state


def largest_part(data, k):
    """E e E' of the k largest eigenpairs of S G S, scaled as the factors are, by dense numpy."""
    x = np.zeros((data.people, ITEMS))
    x[data.owners, data.items] = 1
    scale = (x.sum(0) + 10) ** -0.5
    values, vectors = np.linalg.eigh(scale[:, None] * (x.T @ x) * scale)
    part = (vectors[:, -k:] * values[-k:]) @ vectors[:, -k:].T
    return part / np.trace(part) * ITEMS


@pytest.mark.parametrize("backend", ["loop", "vmap", "kernel"])
def test_a_basis_of_the_whole_space_gives_the_exact_eigenvectors_in_one_table(backend):
    item = train({"extra": ITEMS, "bits": 32}, backend=backend)[2].shared["item"].double().numpy()
    assert np.allclose(item @ item.T, largest_part(histories(), K), atol=1e-4)


def test_a_small_basis_converges_to_the_exact_eigenvectors_with_the_rounds():
    exact = largest_part(histories(), K)

    def error(rounds):
        item = train({"extra": 1, "bits": 32}, rounds=rounds)[2].shared["item"].double().numpy()
        return np.abs(item @ item.T - exact).max()

    assert error(2) > 10 * error(40)
    assert error(40) < 1e-3


def test_the_limit_serves_the_same_scores_as_fedtrails_factors():
    data = histories()
    trail, model, federation = world("fedtrail", {"parts": "factors"}, "ranking")
    factors = list(run(trail, model, federation, rounds=1))[-1].state.shared
    method, _, state = train({"extra": ITEMS, "bits": 32})
    history = data.items[: data.lengths[0]].tolist()
    examples = of_histories(data, ITEMS).examples(np.array([0]), 0, "history").pad()
    first = type(examples)(*(part[0] for part in examples))
    ours, theirs = method.personalize(state.shared, {}, first), trail.personalize(factors, {}, first)
    assert len(history) > 1
    assert_close({"scores": ours["item"] @ ours["user"]}, {"scores": (theirs["item"] @ theirs["user"])}, 1e-4)


def test_a_number_of_an_upload_takes_one_byte():
    def upload_bytes(extra):
        method, model, federation = world("fedeigen", {"extra": extra}, "ranking")
        return [done.up_bytes // PEOPLE for done in run(method, model, federation, rounds=2)][-1]

    assert abs(upload_bytes(10) - upload_bytes(2) - 8 * ITEMS) < 16  # shapes are written as text


def test_rounding_to_eight_bits_changes_the_factors_a_little():
    exact = train({"bits": 32}, rounds=3)[2].shared["item"]
    rounded = train({"bits": 8}, rounds=3)[2].shared["item"]
    difference = (exact - rounded).norm() / exact.norm()
    assert 1e-5 < difference < 0.1


def test_everybody_gets_the_item_that_their_like_have():
    data = checkerboard(8)
    model = factorization(8, k=2)
    method = build("fedeigen", model, {"extra": 2, "recency": 1.0, "bits": 32})
    state = list(run(method, model, of_histories(data, 8), rounds=3))[-1].state
    for person in range(8):
        likes = data.items[data.starts[person] : data.starts[person + 1]].tolist()
        assert top_items(method, model, state, likes, n=1) == [person]


def test_a_catalogue_smaller_than_k_has_columns_of_zeros():
    model = factorization(8, k=12)
    method = build("fedeigen", model, {"bits": 32})
    state = list(run(method, model, of_histories(checkerboard(8), 8), rounds=2))[-1].state
    assert state.shared["item"].shape == (8, 12)
    assert torch.isfinite(state.shared["item"]).all()


def test_a_quantise_stage_of_the_user_replaces_the_methods_own():
    own = plan(Settings(method="fedeigen"), RANKING).wire.stage
    users = plan(Settings(method="fedeigen", wire="quantise=4"), RANKING).wire.stage
    like = {"table": torch.zeros(ITEMS, K)}
    assert own.message_layout(like)["table"].dtype == torch.int8
    assert len([name for name in users.message_layout(like) if name.endswith(".step")]) == 1
    assert plan(Settings(method="fedeigen", set={"bits": "32"}), RANKING).wire.stage.client is None


def test_only_a_factorisation_can_be_trained():
    with pytest.raises(SettingError, match="model=factorization"):
        build("fedeigen", linear(3), {})
