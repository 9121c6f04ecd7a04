"""Integer noise: the discrete Gaussian against its probabilities, grids, sensitivities, and the epsilon accounted."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from fractions import Fraction

import dp_accounting
import numpy as np
import pytest
import torch
from dp_accounting import pld
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2

from fedtaste.core import Stage, StageContext, Upload
from fedtaste.engine.run import run
from fedtaste.errors import SettingError
from fedtaste.wire import discrete_gaussian as sampler
from fedtaste.wire import stages
from fedtaste.wire.accounting import Mechanism, epsilons, statement
from fedtaste.wire.discrete_gaussian import discrete_gaussian
from fedtaste.wire.noise import FINE, IntegerNoise, fine_step, modular_step
from fedtaste.wire.parse import assemble, parse, uploads_of
from fedtaste.wire.rng import fresh_key, seeded_key
from support.worlds import PEOPLE, world

ITEM = torch.zeros(1, 1, dtype=torch.int64)


def probabilities(sigma: float, reach: int) -> np.ndarray:
    """P(X = x) for |x| <= reach of a discrete Gaussian, by its definition."""
    x = np.arange(-reach, reach + 1)
    weights = np.exp(-((x / sigma) ** 2) / 2)
    return weights / weights.sum()


def convolved(single: np.ndarray, parties: int) -> np.ndarray:
    """The distribution of the sum of `parties` independent draws, by repeated squaring."""
    total, power = np.ones(1), single
    while parties:
        if parties & 1:
            total = np.convolve(total, power)
        power, parties = np.convolve(power, power), parties >> 1
        keep = power > 1e-18  # rarer values cannot be observed; both ends are symmetric
        power = power[int(np.argmax(keep)) : len(power) - int(np.argmax(keep[::-1]))]
    return total


def chi_square(draws: np.ndarray, probability: np.ndarray) -> float:
    """The p-value of integer draws against the probabilities of -r..r, in cells with at least 20 expected draws."""
    reach = len(probability) // 2
    assert np.abs(draws).max() <= reach
    expected = len(draws) * probability
    observed = np.bincount(draws + reach, minlength=len(probability))
    ends = np.searchsorted(np.cumsum(expected), np.arange(1, len(draws) // 20) * 20.0)
    cells = np.unique(np.concatenate([[0], np.minimum(ends + 1, len(probability))]))
    observed_cells, expected_cells = np.add.reduceat(observed, cells[:-1]), np.add.reduceat(expected, cells[:-1])
    statistic = ((observed_cells - expected_cells) ** 2 / expected_cells).sum()
    return float(chi2.sf(statistic, len(observed_cells) - 1))


@pytest.mark.parametrize("sigma", [0.5, 3.0, 50.0, 1e4])
def test_samples_have_the_exact_probabilities(sigma):
    draws = discrete_gaussian(sigma, (400_000,), seeded_key(1))  # a fixed key, so that the test never fails by chance
    assert chi_square(draws, probabilities(sigma, int(40 * sigma) + 10)) > 1e-3


def test_the_chi_square_rejects_a_wrong_deviation_and_a_rounded_gaussian():
    """The test above can fail: for noise that is 1 % too wide, and for rounded continuous noise."""
    wide = discrete_gaussian(3.03, (400_000,), seeded_key(3))
    assert chi_square(wide, probabilities(3.0, 130)) < 1e-4
    rounded = np.rint(np.random.default_rng(0).normal(0, 0.5, 400_000)).astype(np.int64)
    assert chi_square(rounded, probabilities(0.5, 30)) < 1e-4


@pytest.mark.parametrize("parties", [2, 10, 1000])
def test_sums_of_shares_have_the_exact_probabilities(parties):
    """They equal those of one discrete Gaussian up to the bound of Kairouz, Liu and Steinke, as is accounted."""
    sigma = 20.0
    share = sigma / math.sqrt(parties)
    sums = 300 if parties == 1000 else 200_000
    draws = discrete_gaussian(share, (parties, sums), seeded_key(2)).sum(0)
    exact = convolved(probabilities(share, max(int(14 * share), 12)), parties)
    reach = len(exact) // 2
    assert chi_square(draws, exact) > 1e-4
    single = probabilities(sigma, reach)
    likely = single > 1e-12
    bound = 10 * sum(math.exp(-2 * math.pi**2 * share**2 * k / (k + 1)) for k in range(1, parties))
    gap = np.abs(np.log(exact[likely] / single[likely])).max()
    assert gap <= bound + 1e-3


def test_sampling_in_rational_arithmetic_gives_the_same_samples_as_the_fast_path(monkeypatch):
    """With a huge margin rational arithmetic decides every trial and gives the same samples."""
    key = fresh_key()
    fast = discrete_gaussian(3.7, (300,), key)
    monkeypatch.setattr(sampler, "MARGIN", 1e9)
    assert (discrete_gaussian(3.7, (300,), key) == fast).all()
    for k in range(1, 6):
        start = int(math.exp(-k) * 2**64)
        assert sampler._exact_tail(start + 2**30, key) == k - 1 and sampler._exact_tail(start - 2**30, key) == k


@given(st.fractions(0, 40), st.integers(1, 200))
def test_exponentials_are_rounded_down_exactly(gamma, bits):
    if gamma == 0:
        return
    import mpmath

    with mpmath.workdps(150):
        expected = int(mpmath.floor(mpmath.exp(-mpmath.mpf(gamma.numerator) / gamma.denominator) * 2**bits))
    assert sampler._floor_exp(Fraction(gamma), bits) == expected


def test_an_exponential_just_below_a_power_of_two_terminates():
    assert sampler._floor_exp(Fraction(1, 10**60), 3) == 2**3 - 1


def test_a_million_numbers_take_less_than_a_second():
    key, times = fresh_key(), []
    for sigma in (0.5, 3.0, 1e4, 2.0**27):
        start = time.process_time()
        discrete_gaussian(sigma, (1_000_000,), key)
        times.append(time.process_time() - start)
    assert max(times) < 1.0, times


@pytest.mark.parametrize("sigma", [0.0, -1.0, math.nan, math.inf, 2.0**60])
def test_a_deviation_without_a_grid_is_refused(sigma):
    with pytest.raises(SettingError):
        discrete_gaussian(sigma, (3,), bytes(32))


# Grids and sensitivities


@given(st.floats(1e-6, 1e6), st.integers(0, 2**31), st.floats(1e-4, 1e4), st.sampled_from([None, 0.0, 40.0]))
def test_no_rounded_upload_is_longer_than_the_sensitivity(bound, seed, size, local):
    noise = IntegerNoise(1.0 if local is None else local, ((bound, 1.0),), local=local is not None)
    draw = np.random.default_rng(seed)
    change = {"a": torch.from_numpy(draw.normal(0, size, (40, 3))).float(), "b": torch.tensor(size).float()}
    steps, weight = noise.to_grid(change, torch.tensor(2.0), 0)
    assert weight == 1 and all(value.dtype == torch.int32 for value in steps.values())
    length = math.sqrt(sum(float((value.double() ** 2).sum()) for value in steps.values()))
    assert length <= noise.sensitivity(0, 121, 10.0)
    norm = math.sqrt(sum(float((v.double() ** 2).sum()) for v in change.values())) / 2
    if norm < bound:  # an upload within the bound changes by at most half a step
        for name, value in change.items():
            gap = (steps[name].double() * noise.grid(0) - value.double() / 2).abs().max()
            assert float(gap) <= noise.grid(0) * 0.5 + 1e-6 * norm


@pytest.mark.parametrize("clipped", [True, False])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 3e38])
def test_a_change_that_is_not_finite_sends_zeros_and_is_refused(bad, clipped):
    """Integers have no NaN: a number that cannot be clipped must not become a huge integer."""
    noise = IntegerNoise(1.0, clipped=clipped)
    change = {"a": torch.tensor([1.0, bad, 2.0]), "b": torch.tensor(0.5)}
    steps, weight = noise.to_grid(change, torch.tensor(1.0), 0)
    if bad == 3e38 and not clipped:
        assert weight == 1
        return
    assert torch.isnan(weight) and all(not bool(value.any()) for value in steps.values())
    tiny, weight = noise.to_grid({"a": torch.tensor([1e-9])}, torch.tensor(1e-12), 0)
    assert not clipped or (torch.isnan(weight) and not tiny["a"].any())
    none, weight = noise.to_grid({"a": torch.tensor([1.0])}, torch.tensor(0.0), 0)
    assert weight == 1 and not none["a"].any()


@pytest.mark.parametrize("backend", ["loop", "vmap"])
def test_a_client_that_diverges_is_refused_and_changes_nothing(backend):
    method, model, federation = world("fedmf", {"lr": 0.1}, "ranking")

    def client(down, own, examples):
        upload, own = method.client(down, own, examples)
        broken = examples.inputs.sum() % 3 == 0
        return Upload({n: torch.where(broken, torch.nan, v) for n, v in upload.total.items()}, upload.weight), own

    diverging = method.replace(client=client)
    *_, last = run(diverging, model, federation, rounds=1, wire=stages.noise(0.01, 1.0), backend=backend)
    assert 0 < last.rejected["non-finite"] < PEOPLE and last.answered == PEOPLE - last.rejected["non-finite"]
    assert float(last.state.shared["item"].abs().max()) < 10


def test_one_more_person_changes_a_rounded_sum_by_at_most_the_sensitivity():
    """As in FedVeil's kernel: one person more in a sum in double precision, added in another order."""
    noise, draw = IntegerNoise(1.0, ((1.0, 1.0),), sums=True), np.random.default_rng(0)
    people = draw.normal(0, 1, (300, 500))
    people /= np.linalg.norm(people, axis=1, keepdims=True)
    without_person, with_person = people[:-1].sum(0), people[::-1].sum(0)
    sums = [
        noise.add({"w": torch.from_numpy(total)}, 0, 300.0, b"", 0.0)["w"] for total in (without_person, with_person)
    ]
    distance = float((sums[1] - sums[0]).double().norm())
    assert 0.99 / noise.grid(0) < distance <= noise.sensitivity(0, 500, 300.0)


def test_grid_steps_are_small_powers_of_two_and_sums_do_not_overflow():
    for bound in (1.0, 0.3, 7.0, 1e-9):
        step = fine_step(bound)
        assert math.log2(step).is_integer() and 2**FINE <= bound / step < 2 ** (FINE + 1)
        assert fine_step(bound, 1000.0) * 2**31 > 12_000 * bound, "local noise fits into 32 bits"
    for people, bits in ((849, 32), (10, 32), (10**6, 64)):
        step = modular_step(1.0, 4.0, people, people // 2 + 1, bits)
        assert (people + 12 * 4 * 1.42) / step < 2 ** (bits - 1)


def recording(stage: Stage) -> tuple[Stage, list[Upload]]:
    """The stage, and a list to which its server appends every upload that it releases."""
    released: list[Upload] = []

    def server(upload: Upload, context: StageContext) -> Upload:
        released.append(stage.server(upload, context))
        return released[-1]

    return replace(stage, server=server), released


def test_every_released_number_is_on_the_public_grid():
    method, model, federation = world("fedmf", {"lr": 0.1}, "ranking")
    for text in ("clip=0.7,noise=1", "clip=0.7,local=3", "clip=0.7,noise=1,secure=6"):
        wire = assemble(parse(text), method, uploads_of(method, model, ITEM), everybody=PEOPLE)
        for backend in ("loop", "vmap"):
            stage, released = recording(wire.stage)
            list(run(method, model, federation, rounds=2, wire=stage, backend=backend))
            assert len(released) == 2
            for number, upload in enumerate(released):
                for value in upload.total.values():
                    steps = value.double() / wire.stage.grid(number)
                    assert bool((steps == steps.round()).all()) and float(steps.abs().max()) > 2**20


# The accountant


def drawn_deviation(text: str, name: str = "popularity") -> tuple[float, float]:
    """(standard deviation of the released numbers, in units of the sensitivity; the mechanism's multiplier)."""
    method, model, federation = world(name, {}, "ranking")
    wire = assemble(parse(text), method, uploads_of(method, model, ITEM), everybody=PEOPLE)
    assert wire.mechanism is not None and wire.stage.server is not None
    zeros = Upload({"count": torch.zeros(200_000, dtype=torch.int64)}, torch.ones(()))
    out = wire.stage.server(zeros, StageContext(fresh_key(), 0, float(PEOPLE)))
    return float(out.total["count"].std()), wire.mechanism.multiplier(0) * (2 if wire.mechanism.local else 1)


@pytest.mark.parametrize("text", ["clip=2,noise=3", "clip=2,local=3", "clip=2,noise=3,secure"])
def test_the_noise_has_the_deviation_that_the_accountant_assumes(text):
    deviation, multiplier = drawn_deviation(text)
    assert deviation >= 2 * multiplier * 0.995 and deviation <= 2 * multiplier * 1.02


def exact_epsilon(sigma: float, sensitivity: int, delta: float, releases: int = 1) -> float:
    """Epsilon of the discrete Gaussian in one dimension, from its probabilities, as dp-accounting computes it."""
    loss = pld.privacy_loss_distribution.from_discrete_gaussian_mechanism(sigma, sensitivity)
    return float(loss.self_compose(releases).get_epsilon_for_delta(delta))


@pytest.mark.parametrize("releases", [1, 5])
def test_epsilon_of_one_party_equals_that_of_the_discrete_gaussian(releases):
    """dp-accounting has this mechanism in one dimension, and both epsilons agree."""
    sensitivity, multiplier = 400, 1.5
    ours = epsilons(Mechanism(multiplier), releases, 1e-5).epsilon
    theirs = exact_epsilon(math.sqrt((multiplier * sensitivity) ** 2 + 16), sensitivity, 1e-5, releases)
    assert theirs * (1 - 1e-4) <= ours  # both computations round up
    assert ours == pytest.approx(theirs, rel=2e-3)


def test_epsilon_of_shares_is_within_the_published_bound():
    """Kairouz, Liu, Steinke 2021: sums of discrete Gaussians satisfy eps^2 / 2 concentrated privacy with
    eps = sqrt(D2^2 / (n s^2) + tau d / 2); the Renyi accountant's epsilon follows from it."""
    people, d, multiplier, delta = 20, 5000, 2.0, 1e-6
    noise = IntegerNoise(multiplier)
    reach = noise.sensitivity(0, d, people)
    share = noise.sigma(0, d, people, 1 / people)
    tau = 10 * sum(math.exp(-2 * math.pi**2 * share**2 * k / (k + 1)) for k in range(1, people))
    eps = math.sqrt(reach**2 / (people * share**2) + tau * d / 2)
    assert eps <= 1 / multiplier
    rho = eps**2 / 2
    orders = np.linspace(1.01, 300, 20_000)
    published = np.min(
        rho * orders + (np.log(1 / delta) + (orders - 1) * np.log1p(-1 / orders) - np.log(orders)) / (orders - 1)
    )
    bounds = epsilons(Mechanism(multiplier, sealed=True), 1, delta)
    assert bounds.epsilon <= published == pytest.approx(bounds.epsilon_rdp, rel=1e-2)


def test_epsilon_of_local_noise_has_a_sensitivity_of_twice_the_bound():
    event = dp_accounting.GaussianDpEvent(3.0 / 2)
    accountant = pld.PLDAccountant().compose(event, 4)
    assert epsilons(Mechanism(3.0, 0.1, (), True), 4, 1e-5).epsilon == pytest.approx(
        accountant.get_epsilon(1e-5), rel=1e-3
    )


def test_sampling_lowers_epsilon_against_others_but_not_against_the_server():
    event = dp_accounting.PoissonSampledDpEvent(0.1, dp_accounting.GaussianDpEvent(1.2))
    expected = pld.PLDAccountant().compose(event, 30).get_epsilon(1e-6)
    sampled = statement(Mechanism(1.2, 0.1, sealed=True), 30, 1e-6)
    assert sampled.epsilon == pytest.approx(expected, rel=1e-3) and "server" not in sampled.against
    assert sampled.server_epsilon == epsilons(Mechanism(1.2), 30, 1e-6).epsilon > 5 * sampled.epsilon
    whole = statement(Mechanism(1.2, 1.0, sealed=True), 30, 1e-6)
    assert whole.against.endswith("the server too") and whole.server_epsilon == whole.epsilon
    central = statement(Mechanism(1.2, 0.1), 30, 1e-6)
    assert central.server_epsilon is None and central.against == "whoever sees the model"


@pytest.mark.parametrize("text", ["clip=1,noise=1e6,secure", "clip=1,noise=3,secure=6"])
def test_the_modulus_of_secure_sums_is_wide_enough_for_the_noise(text):
    """Noise a million times the bound needs 64 bits, and the sum still has the expected deviation."""
    method, model, federation = world("popularity", {}, "ranking")
    wire = assemble(parse(text), method, uploads_of(method, model, ITEM), everybody=PEOPLE)
    *_, last = run(method, model, federation, rounds=1, wire=wire.stage, backend="loop")
    spread = float(last.state.shared["count"].std())
    parts = 1.5 if "=6" in text else PEOPLE / math.ceil(2 * PEOPLE / 3)
    groups = 4 if "=6" in text else 1
    assert spread == pytest.approx(wire.mechanism.noise * math.sqrt(parts * groups), rel=0.4)


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float64])
def test_uploads_of_half_and_double_precision_stay_within_the_sensitivity(kind):
    noise = IntegerNoise(1.0)
    for size in (0.0, 1e-3, 1.0, 3e4):
        steps, weight = noise.to_grid({"a": torch.full((50,), size, dtype=kind)}, torch.tensor(1.0), 0)
        assert weight == 1 and float(steps["a"].double().norm()) <= noise.sensitivity(0, 50, 1.0)
