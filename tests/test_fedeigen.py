"""FedEigen against exact eigenvectors and FedTrail's factors; its rounding, secure sums and the size of messages."""

from __future__ import annotations

import numba
import numpy as np
import pytest
import torch

from fedtaste.core import Download, Examples
from fedtaste.engine.run import run
from fedtaste.errors import SettingError
from fedtaste.experiment.plan import plan
from fedtaste.experiment.settings import Settings
from fedtaste.federation import of_histories
from fedtaste.kernels import subspace as kernels
from fedtaste.methods import build
from fedtaste.models import factorization, linear
from fedtaste.tasks.base import Facts
from fedtaste.tasks.serve import top_items
from fedtaste.wire.secure_sums import SecureSum
from support.states import assert_close
from support.worlds import ITEMS, PEOPLE, K, checkerboard, histories, world

RANKING = Facts("ranking", ITEMS, timed=True, people=PEOPLE)


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


@pytest.mark.parametrize("bits", [4, 8, 16, 32])
def test_a_number_of_a_table_takes_its_bits_and_an_item_of_the_first_round_one(bits):
    def upload_bytes(extra):
        method, model, federation = world("fedeigen", {"extra": extra, "bits": bits}, "ranking")
        return [done.up_bytes // PEOPLE for done in run(method, model, federation, rounds=2)]

    few, many = upload_bytes(2), upload_bytes(10)
    assert abs(many[1] - few[1] - 8 * ITEMS * bits / 8) < 16  # shapes are written as text
    assert few[0] == many[0] and few[1] - few[0] - ((K + 2) * bits - (1 if bits < 32 else 32)) * ITEMS / 8 < 16


@pytest.mark.parametrize("bits", [4, 8, 16])
def test_numbers_of_an_upload_are_few_multiples_of_a_public_step_and_rows_of_other_items_are_zero(bits):
    method, model, federation = world("fedeigen", {"bits": bits}, "ranking")
    state = list(run(method, model, federation, rounds=2))[-1].state
    examples = federation.examples(np.arange(PEOPLE), 0, "history")
    padded = examples.pad()
    for person in range(PEOPLE):
        upload, _ = method.client(Download(state.shared, torch.tensor(1.0)), {}, Examples(*(x[person] for x in padded)))
        table = upload.total["table"] * 2 ** (bits - 1)
        own = examples.inputs[examples.starts[person] : examples.starts[person + 1]]
        assert torch.equal(table, table.round()) and int(table.abs().max()) < 2 ** (bits - 1)
        assert set(table.any(1).nonzero()[:, 0].tolist()) == set(own.tolist())
        assert bool((table[own.astype(np.int64)] == table[int(own[0])]).all())


def test_rounding_changes_the_factors_the_less_the_more_bits_there_are():
    def product(bits):
        item = train({"bits": bits}, rounds=3)[2].shared["item"]
        return item @ item.T

    exact = product(32)
    errors = [float((product(bits) - exact).norm() / exact.norm()) for bits in (16, 8, 4)]
    assert 0 < errors[0] < 1e-3 < errors[1] < 0.02 < errors[2] < 0.3  # 24 people; errors average out over people


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("other", ["loop", "vmap", "secure loop", "secure vmap", "order", "half of the threads"])
def test_rounded_sums_are_equal_in_all_bits(bits, other):
    """Sums are of whole numbers: neither the backend, nor secure sums, nor the order of people change a bit."""
    data, settings = histories(), {"bits": bits}
    state, options = train(settings, rounds=3, backend="kernel")[2], {}
    if "loop" in other or "vmap" in other:
        options["backend"] = other.removeprefix("secure ")
    if "secure" in other:
        wire = plan(Settings(method="fedeigen", wire="secure", set={"bits": str(bits)}), RANKING).wire
        assert wire.stage.secure_sum.bits == 16 and wire.stage.bound == 1.0
        options["wire"] = wire.stage
    threads = numba.get_num_threads()
    try:
        numba.set_num_threads(max(1, threads // 2) if "threads" in other else threads)
        data = data.take(np.arange(PEOPLE)[::-1]) if other == "order" else data
        again = train(settings, data, rounds=3, **options)[2]
    finally:
        numba.set_num_threads(threads)
    for name, value in state.shared.items():
        assert torch.equal(value, again.shared[name]), name


@pytest.mark.parametrize("levels", [0, 8, 128])
def test_the_kernel_equals_dense_algebra_and_counts_repeated_items_once(levels):
    rng = np.random.default_rng(3)
    items = rng.integers(0, 9, 60).astype(np.int32)  # many repetitions
    starts = np.array([0, 0, 7, 30, 31, 60])
    x = np.zeros((5, 9))
    x[np.repeat(np.arange(5), np.diff(starts)), items] = 1
    table = (rng.integers(-(2**20), 2**20, (9, 4)) * 2.0**-24).astype(np.float32)
    h = x @ table.astype(np.float64)
    if levels:
        h = np.clip(np.rint(h * levels), 1 - levels, levels - 1) / levels
    assert np.array_equal(kernels.sum_projections(starts, items, table, levels), x.T @ h)
    assert np.array_equal(kernels.count_people(starts, items, 9), x.sum(0))


def test_counts_alone_serve_what_is_popular():
    method, model, state = train({}, rounds=1)
    counts = np.bincount(histories().items, minlength=ITEMS)
    listed = top_items(method, model, state, likes=[0], n=5)
    assert counts[listed].tolist() == sorted(np.delete(counts, 0), reverse=True)[:5]


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


def test_stages_of_the_user_replace_the_methods_own():
    def stage(wire, **settings):
        return plan(Settings(method="fedeigen", wire=wire, set=settings), RANKING).wire.stage

    like = {"table": torch.zeros(ITEMS, K)}
    assert stage("").message_layout(like)["table"].numel() == ITEMS * K / 2
    assert stage("quantise=8").message_layout(like)["table"].dtype == torch.int8
    assert stage("clip=1.0").message_layout is None  # scaled numbers are not multiples of the step
    assert stage("clip=1.0,noise=1").message_layout(like)["table"].shape == (ITEMS, K)
    assert stage("", bits="32").message_layout is None


def test_secure_sums_have_words_as_short_as_the_people_allow():
    """A sum of n numbers up to 1 in steps of 1/8 or 1/128 must fit."""

    def bits(people, step):
        return SecureSum(clip=1.0, most=people, unit=step).bits

    assert [bits(4_000, 1 / 8), bits(4_200, 1 / 8), bits(250, 1 / 128), bits(260, 1 / 128)] == [16, 32, 16, 32]
    assert SecureSum(clip=1.0, most=10).bits == 32  # not of whole numbers


def test_only_a_factorisation_can_be_trained():
    with pytest.raises(SettingError, match="model=factorization"):
        build("fedeigen", linear(3), {})
