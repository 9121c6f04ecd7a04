"""Statistics of membership inference: lower bounds of epsilon from guessed coins, and checks of the noise.

`epsilon_lower` turns the number of correct guesses about canaries into the largest epsilon that they refute, whatever
the noise is (Steinke, Nasr and Jagielski, "Privacy Auditing with One (1) Training Run", NeurIPS 2023,
arXiv:2305.08846). `gaussian_lower` assumes that the noise is Gaussian, as the run claims, guesses about all canaries,
and reaches much larger epsilons. `on_grid` and `noise_ratio` check released numbers against what the run states.
"""

from __future__ import annotations

import math
import secrets

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import optimize, stats

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]
GUESSED, FEWEST_GUESSES = 0.05, 20  # of the canaries at each end, and at least so many where there are enough
ERROR = 0.05  # probability that a bound is too large
FPR = 0.001
ROUNDING = 1e-6  # the largest distance to a whole number that double precision explains


def p_value(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """The probability, under (epsilon, delta)-differential privacy, of at least `correct` correct guesses among
    `guesses` about `canaries` fair coins: at most f(v) + 2 m delta max_i (f(v - i) - f(v)) / i with
    f(v) = P[Binomial(r, e^epsilon / (1 + e^epsilon)) >= v] (Corollary 5.4 and Appendix D of the paper).

    >>> round(p_value(100, 100, 75, math.log(3), 0.0), 3)
    0.553
    """
    if not 0 <= correct <= guesses <= canaries or epsilon < 0 or not 0 <= delta <= 1:
        raise ValueError(
            f"expected 0 <= correct <= guesses <= canaries, epsilon >= 0 and 0 <= delta <= 1, got correct={correct}, "
            f"guesses={guesses}, canaries={canaries}, epsilon={epsilon}, delta={delta}"
        )
    q = 1 / (1 + math.exp(-epsilon))
    tail = float(stats.binom.sf(correct - 1, guesses, q))
    below = np.cumsum(stats.binom.pmf(np.arange(correct - 1, -1, -1), guesses, q))  # P[v > W >= v - i], i from 1
    slope = float((below / np.arange(1, correct + 1)).max(initial=0.0))
    return min(tail + 2 * canaries * delta * slope, 1.0)


def epsilon_lower(canaries: int, guesses: int, correct: int, delta: float, error: float = ERROR) -> float:
    """The largest epsilon that these guesses refute at this error probability, from below; 0 where they refute none.

    >>> round(epsilon_lower(1000, 100, 100, 0.0), 3)
    3.493
    """

    def refuted(epsilon: float) -> bool:
        return p_value(canaries, guesses, correct, epsilon, delta) < error

    if not refuted(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while refuted(high):
        low, high = high, 2 * high
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def guess_coins(scores: Array, inside: Bools, share: float = GUESSED) -> tuple[int, int]:
    """(guesses, correct ones): the highest `share` of the scores is guessed as in, the lowest as out. The number of
    guesses does not depend on the scores, and ties are broken by place, which no coin influences."""
    each = max(round(share * len(scores)), min(FEWEST_GUESSES, len(scores) // 4), 1)
    order = np.argsort(scores, kind="stable")
    return 2 * each, int((~inside[order[:each]]).sum() + inside[order[-each:]].sum())


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Epsilon at this delta of a mechanism that is mu-Gaussian differentially private, as Gaussian noise is (Dong, Roth
    and Su 2022, Corollary 2.13): delta(epsilon) = Phi(-epsilon/mu + mu/2) - e^epsilon Phi(-epsilon/mu - mu/2).

    >>> round(gaussian_epsilon(1.0, 1e-5), 2), gaussian_epsilon(0.0, 1e-5)
    (4.38, 0.0)
    """

    def excess(epsilon: float) -> float:
        first = float(stats.norm.cdf(-epsilon / mu + mu / 2))
        second = math.exp(epsilon + float(stats.norm.logcdf(-epsilon / mu - mu / 2)))
        return first - second - delta

    if mu <= 0 or excess(0.0) <= 0:
        return 0.0
    return float(optimize.brentq(excess, 0.0, mu * mu / 2 + 40 * mu + 10))


def gaussian_lower(scores: Array, inside: Bools, delta: float, error: float = ERROR) -> tuple[float, int]:
    """(a lower bound of epsilon, correct guesses) where the noise is Gaussian, as the run claims, and the scores are
    log likelihood ratios. A canary is guessed as in where its ratio is above 0. No test of a mu-Gaussian mechanism has
    Phi^-1(true positives) - Phi^-1(false positives) above mu; Clopper and Pearson's intervals of both rates bound it
    from below (Nasr et al. 2023, "Tight Auditing of Differentially Private Machine Learning"). It reaches far larger
    epsilons than `epsilon_lower`, and holds for canaries whose scores are independent, as with uploads that do not
    overlap."""
    hits, alarms = int((scores[inside] > 0).sum()), int((scores[~inside] > 0).sum())
    n_in, n_out = int(inside.sum()), int((~inside).sum())
    if not n_in or not n_out:
        return 0.0, 0
    true_low = float(stats.beta.ppf(error / 2, hits, n_in - hits + 1)) if hits else 0.0
    false_high = float(stats.beta.ppf(1 - error / 2, alarms + 1, n_out - alarms)) if alarms < n_out else 1.0
    correct = hits + n_out - alarms
    if true_low == 0 or false_high == 1:
        return 0.0, correct
    return gaussian_epsilon(float(stats.norm.ppf(true_low) - stats.norm.ppf(false_high)), delta), correct


def tpr_at(scores: Array, inside: Bools, rate: float = FPR) -> float | None:
    """The share of canaries that were in and whose score is above a threshold which at most `rate` of the scores of
    canaries that were out exceed. Empirical, without a Gaussian fit. With fewer than 1 / rate canaries that were out,
    the threshold is the largest of their scores, so the figure is that of a smaller false positive rate, and too low.
    """
    outside = np.sort(scores[~inside])
    if not inside.any() or not len(outside):
        return None
    threshold = outside[len(outside) - 1 - math.floor(rate * len(outside))]
    return float((scores[inside] > threshold).mean())


def flip_coins(count: int, seed: int | None = None) -> Bools:
    """Fair coins from the operating system, or from a seed for tests."""
    if seed is not None:
        return np.random.default_rng(seed).random(count) < 0.5
    return np.unpackbits(np.frombuffer(secrets.token_bytes(-(-count // 8)), np.uint8))[:count].astype(bool)


def on_grid(values: ArrayLike, step: float) -> bool:
    """Whether all values are whole multiples of `step`, exactly where `step` is a power of two.

    >>> on_grid([0.5, -1.25, 3.0], 0.25), on_grid([0.5, 0.3], 0.25)
    (True, False)
    """
    if not step > 0:
        raise ValueError(f"step must be positive, got {step}")
    units = np.asarray(values, np.float64).ravel() / step
    if not np.isfinite(units).all():
        return False
    exact = math.frexp(step)[0] == 0.5
    gap = np.abs(units - np.rint(units))
    return bool((gap == 0).all() if exact else (gap <= ROUNDING * np.maximum(np.abs(units), 1)).all())


def noise_ratio(square: float, count: int) -> tuple[float, float, float]:
    """(measured deviation over the stated one, and the ends of its 95 % interval) from the sum of the squares of
    `count` noise numbers, each divided by its stated deviation. The interval assumes independent Gaussian numbers.

    >>> [round(x, 2) for x in noise_ratio(1000.0, 1000)]
    [1.0, 0.96, 1.05]
    """
    low, high = (math.sqrt(square / float(stats.chi2.ppf(at, count))) for at in (0.975, 0.025))
    return math.sqrt(square / count), low, high
