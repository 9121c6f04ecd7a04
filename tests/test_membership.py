"""The membership audit: its theorem against direct computations, exact scores, and detection of too little noise."""

from __future__ import annotations

import math
from functools import cache

import dp_accounting
import numpy as np
import pytest
import torch

from fedtaste.attacks.canaries import canary_histories
from fedtaste.attacks.membership import Evidence
from fedtaste.attacks.membership_statistics import (
    epsilon_lower,
    flip_coins,
    gaussian_epsilon,
    gaussian_lower,
    guess_coins,
    noise_ratio,
    on_grid,
    p_value,
    tpr_at,
)
from fedtaste.attacks.observed_run import noise_deviation
from fedtaste.audit.run import AuditScope, audit
from fedtaste.core import Release
from fedtaste.data.sources import load
from fedtaste.experiment.plan import plan
from fedtaste.experiment.settings import Settings
from fedtaste.experiment.train import make_task
from fedtaste.wire import noise
from support.noise_of_version_060 import server_noise

WIDE = "synthetic:30x1500x900"  # many items: a canary for each
NARROW = "synthetic:30x400x900"  # for large uploads; the audit repeats the run until it had as many canaries


@pytest.fixture
def quiet_noise(monkeypatch):
    """Replace the sampler by one that draws a quarter of the stated deviation."""
    exact = noise.discrete_gaussian
    monkeypatch.setattr(noise, "discrete_gaussian", lambda sigma, *args: exact(sigma / 4, *args))


@cache
def task_of(data: str, method: str):
    loaded = load(data)
    return make_task(Settings(data=data, method=method), loaded), loaded.titles


def audit_result(method: str, wire: str = "", epsilon: float | None = None, data: str = WIDE, **values):
    settings = Settings(data=data, method=method, wire=wire, epsilon=epsilon, **values)
    return audit(settings, *task_of(data, method), AuditScope(people=4, coin_seed=1))


# The theorem


def tail(guesses: int, correct: int, q: float) -> float:
    """P[Binomial(guesses, q) >= correct], as a sum."""
    return sum(math.comb(guesses, i) * q**i * (1 - q) ** (guesses - i) for i in range(correct, guesses + 1))


@pytest.mark.parametrize("m,r,v", [(100, 100, 75), (1000, 100, 75), (50, 20, 20), (50, 20, 0), (30, 10, 6)])
@pytest.mark.parametrize("epsilon,delta", [(0.0, 0.0), (1.0, 1e-4), (2.5, 1e-3), (0.3, 0.01)])
def test_the_p_value_equals_a_direct_computation(m, r, v, epsilon, delta):
    q = math.exp(epsilon) / (1 + math.exp(epsilon))
    slope = max((tail(r, max(v - i, 0), q) - tail(r, v, q)) / i for i in range(1, m + 1))
    expected = min(1.0, tail(r, v, q) + 2 * m * delta * slope)
    assert p_value(m, r, v, epsilon, delta) == pytest.approx(expected, rel=1e-9)


def test_the_bound_is_the_largest_refuted_epsilon():
    bound = epsilon_lower(1000, 100, 90, 1e-5)
    assert p_value(1000, 100, 90, bound - 1e-6, 1e-5) < 0.05 <= p_value(1000, 100, 90, bound + 1e-6, 1e-5)
    assert epsilon_lower(1000, 100, 50, 1e-5) == 0.0
    assert epsilon_lower(1000, 100, 90, 1e-5) < epsilon_lower(1000, 100, 90, 0.0) < epsilon_lower(1000, 100, 95, 0.0)
    # all correct and no delta: q^r = error
    q = 0.05 ** (1 / 100)
    assert epsilon_lower(100, 100, 100, 0.0) == pytest.approx(math.log(q / (1 - q)), abs=1e-6)
    with pytest.raises(ValueError, match="correct=11"):
        p_value(10, 10, 11, 1.0, 0.0)


def test_the_bound_exceeds_epsilon_of_randomised_response_in_at_most_five_percent():
    """The theorem is tight for this mechanism: it reports every coin correctly with probability e / (1 + e), epsilon 1.
    The error probability is exact; of 400 simulated audits 20 may fail by chance, and 34 once in a thousand times."""
    q = math.e / (1 + math.e)
    least = next(v for v in range(301) if epsilon_lower(300, 300, v, 0.0) > 1.0)
    assert 0.03 < tail(300, least, q) <= 0.05
    right = (np.random.default_rng(0).random((400, 300)) < q).sum(1)
    assert (right >= least).sum() <= 34


CANARIES = 1000
GRAM = np.eye(CANARIES) / 1.6**2
bound_of_simulation = cache(lambda guesses, correct: epsilon_lower(CANARIES, guesses, correct, 1e-6))


def simulated_audit(sigma: float, rng: np.random.Generator) -> float:
    """One audit of a sum of orthogonal unit vectors with noise of deviation `sigma`, stated as 1.6 (epsilon 3)."""
    inside = rng.random(CANARIES) < 0.5
    z = inside - 0.5 + sigma * rng.standard_normal(CANARIES)
    evidence = Evidence(z / 1.6**2, GRAM)
    guesses, correct = guess_coins(evidence.ratios(), inside)
    return bound_of_simulation(guesses, correct)


def test_full_gaussian_noise_is_not_refuted_and_a_quarter_of_it_is():
    rng = np.random.default_rng(1)
    assert sum(simulated_audit(1.6, rng) > 3.0 for _ in range(400)) <= 20
    assert sum(simulated_audit(0.4, rng) > 3.0 for _ in range(40)) >= 20


# Scores


def test_scores_of_uploads_that_do_not_overlap_are_exact_log_likelihood_ratios():
    """For two rounds with different deviations: the sum of (<release - rest, u> - |u|^2 / 2) / s^2."""
    rng = np.random.default_rng(2)
    lengths, releases, expected = rng.random((2, 5)) + 0.5, rng.standard_normal((2, 5)), np.zeros(5)
    evidence = Evidence.none(5)
    for u, z, s in zip(lengths, releases, (0.7, 1.3)):
        expected += (z * u - u**2 / 2) / s**2
        evidence.along += (z - u / 2) * u / s**2
        evidence.gram += np.diag(u**2) / s**2
    assert evidence.ratios() == pytest.approx(expected)


def test_overlapping_uploads_are_decorrelated():
    rng = np.random.default_rng(3)
    u = rng.standard_normal((40, 60)) + 2.0  # far from orthogonal
    inside = rng.random(40) < 0.5
    z = (inside - 0.5) @ u + 0.1 * rng.standard_normal(60)
    joint, single = Evidence(u @ z / 0.01, u @ u.T / 0.01).ratios(), u @ z
    assert ((joint > 0) == inside).all() and not ((single > 0) == inside).all()


def test_membership_guesses_and_true_positive_rates_equal_known_values():
    scores = np.array([5.0, 4, 3, 2, 1, 0, -1, -2])
    inside = np.array([True, False, True, True, False, False, True, False])
    assert guess_coins(scores, inside, 0.25) == (4, 2)
    assert tpr_at(scores, inside) == 0.25  # above the largest score of people outside
    assert tpr_at(scores, inside, 0.25) == 0.75  # one of four may be above
    assert tpr_at(scores, np.ones(8, bool)) is None
    assert flip_coins(64).dtype == bool and (flip_coins(50, 1) == flip_coins(50, 1)).all()
    assert [h.tolist() for h in canary_histories(np.array([1.0, 3, 2]), 2)] == [[1], [2]]


@pytest.mark.parametrize("mu, delta", [(0.2, 1e-6), (1.0, 1e-5), (7.0, 1e-6)])
def test_epsilon_of_gaussian_noise_is_that_of_dp_accounting(mu, delta):
    assert gaussian_epsilon(mu, delta) == pytest.approx(dp_accounting.get_epsilon_gaussian(1 / mu, delta), rel=1e-3)


def test_the_gaussian_bound_holds_and_detects_a_quarter_of_the_noise():
    """400 audits of 600 canaries at mu = 1: the bound is above the truth in at most 5 %, and with four times the
    separation always far above it."""
    rng, truth, above, bounds_of_weak_noise = np.random.default_rng(0), gaussian_epsilon(1.0, 1e-6), 0, []
    for trial in range(400):
        inside = rng.random(600) < 0.5
        for mu in (1.0, 4.0) if trial < 20 else (1.0,):
            scores = mu * (rng.standard_normal(600) + mu * (inside - 0.5))
            bound = gaussian_lower(scores, inside, 1e-6)[0]
            above += mu == 1.0 and bound > truth
            bounds_of_weak_noise += [bound] if mu == 4.0 else []
    assert above <= 20 and min(bounds_of_weak_noise) > 2 * truth


# Configurations


CLAIMS = [
    ("popularity", "clip=1.0", 1.0, {}),
    ("fedveil", "", 3.0, {"data": NARROW}),  # at more epsilons in benchmarks/membership.py
    ("fedmf", "clip=1.0", 3.0, {"rounds": 3}),
]


@pytest.mark.parametrize("method,wire,epsilon,values", CLAIMS)
def test_an_honest_epsilon_is_not_refuted(method, wire, epsilon, values):
    result = audit_result(method, wire, epsilon, **values)
    assert result.epsilon == pytest.approx(epsilon, rel=0.01)
    assert 0 < result.epsilon_lower <= result.epsilon
    assert result.membership.on_grid
    low, high = result.membership.noise_ratio[1:]
    assert low < 1.02 and high > 0.98
    assert not any("refuted" in note for note in result.notes)


@pytest.mark.parametrize("method,wire,epsilon,values", CLAIMS)
def test_a_quarter_of_the_noise_is_refuted(method, wire, epsilon, values, quiet_noise):
    result = audit_result(method, wire, epsilon, **values)
    assert result.epsilon_lower > result.epsilon
    assert result.membership.noise_ratio[0] == pytest.approx(0.25, rel=0.05)
    assert any("refuted" in note for note in result.notes) and any("0.25" in note for note in result.notes)


def test_local_noise_and_noise_of_secure_groups_are_audited(quiet_noise):
    for wire in ("clip=1.0,local", "clip=1.0,secure=10", "clip=1.0,secure"):
        member = audit_result("popularity", wire, 3.0).membership
        assert member.noise_ratio[0] == pytest.approx(0.25, rel=0.05), wire
        assert member.epsilon_lower > 1.0, wire


def test_without_noise_the_audit_guesses_every_membership_correctly():
    result = audit_result("fedmf", "secure=10")
    member = result.membership
    assert result.epsilon is None and member.noise_ratio is None
    assert member.correct == member.guesses and result.epsilon_lower == member.largest > 3
    assert result.tpr_at_fpr == 1.0


def test_methods_without_uploads_or_sums_have_no_bound():
    for method, wire in (("local", ""), ("centralised", ""), ("fedmf", "median")):
        result = audit_result(method, wire, data="synthetic:60x80x900")
        assert result.epsilon_lower is result.membership is result.tpr_at_fpr is None


def test_the_lower_epsilon_with_secret_cohorts_is_not_refuted():
    result = audit_result("popularity", "clip=1.0,noise=0.9", cohort=0.2, data="synthetic:300x1500x9000")
    assert result.membership.epsilon_lower <= result.epsilon


def test_the_stated_deviation_equals_that_of_the_accountant():
    method = plan(Settings(data=NARROW, method="fedveil", epsilon=3.0), task_of(NARROW, "fedveil")[0].facts).method
    (bound, share), noise = method.privacy.bounds[1], 1.7
    assert noise_deviation({"noise": noise}, method, 1) == pytest.approx(noise * bound / math.sqrt(share))
    assert noise_deviation({"clip": 0.5}, method.replace(privacy=Release()), 0) == 0.0
    assert noise_deviation({"clip": 0.5, "local": 2.0}, method.replace(privacy=Release()), 7) == 1.0


# The noise itself


def test_on_grid_distinguishes_integer_steps_from_real_values():
    """Version 0.6.0 released float32(v + float32(s g)): a value off the grid of float32(s g) names who has an item."""
    rng = np.random.default_rng(4)
    assert on_grid(rng.integers(-1000, 1000, 100) * 2.0**-12, 2.0**-12)
    assert not on_grid(rng.standard_normal(10).astype(np.float32), 2.0**-12)
    assert on_grid(np.arange(5) * 0.1, 0.1) and not on_grid([math.inf], 0.5)
    with pytest.raises(ValueError, match="positive"):
        on_grid([1.0], 0.0)
    integers = lambda v, d: np.rint(v * 64) / 64 + np.random.default_rng(d).integers(-99, 99, 20) / 64
    real = lambda v, d: v + np.random.default_rng(d).standard_normal(20)
    assert all(on_grid(integers(v, d), 1 / 64) for v in (0.0, 0.3, 1.0) for d in range(200))
    assert not any(on_grid(real(v, d), 1 / 64) for v in (0.0, 0.3) for d in range(200))


def test_noise_from_a_guessable_seed_is_recognised():
    """Version 0.6.0 drew its noise from the seed of the run, which anybody can try."""
    noise = server_noise(7, "item", 20)
    assert [seed for seed in range(10) if np.allclose(server_noise(seed, "item", 20), noise, rtol=1e-6)] == [7]


def test_noise_ratio_measures_a_quarter_of_the_noise():
    noise = torch.randn(20_000, generator=torch.Generator().manual_seed(0)).double() / 4
    assert noise_ratio(float((noise**2).sum()), len(noise))[0] == pytest.approx(0.25, rel=0.02)
