"""Membership audit with one training run: a lower bound of epsilon (Steinke, Nasr and Jagielski, "Privacy Auditing with
One (1) Training Run", NeurIPS 2023, arXiv:2305.08846).

Canaries are extra people whom the audit adds to the federation, each with a history that is easy to detect. A fair coin
decides for each whether they take part. The attacker then guesses the coins. It is the strongest that differential
privacy allows: it knows everybody's data, every round's release and the final model; it does not know the coins.
    all rounds    z = release - sum of the real people - half of all canaries' uploads, u = the upload of one canary.
                  With Gaussian noise of deviation s and orthogonal uploads, the sum over rounds of <z, u> / s^2 is the
                  exact log likelihood ratio of "in" against "out". Uploads that overlap are decorrelated (`ratios`).
    final model   the score of the canary's own items in the final model, less what their popularity explains
The highest scores are guessed as in, the lowest as out, a fixed share at each end, and the attacker abstains on the
rest. `epsilon_lower` turns the number of correct guesses into the largest epsilon that they refute, whatever the noise
is. `gaussian_lower` takes the run at its word that the noise is Gaussian, guesses about all canaries, and reaches much
larger epsilons. These are three tests, so each has a third of the error probability (Bonferroni).
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, sparse, stats

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]
GUESSED, FEWEST = 0.05, 20  # of the canaries at each end, and at least so many where there are enough
ERROR = 0.05  # probability that a bound is too large
FPR = 0.001
HELD = 60_000_000  # numbers of canaries' uploads that are kept at once; beyond that overlaps are not computed
PRIOR = 4.0  # 1 / the variance of a fair coin


# The theorem


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


def guessed(scores: Array, inside: Bools, share: float = GUESSED) -> tuple[int, int]:
    """(guesses, correct ones): the highest `share` of the scores as in, the lowest as out. The number of guesses does
    not depend on the scores, and ties are broken by place, which no coin influences."""
    each = max(round(share * len(scores)), min(FEWEST, len(scores) // 4), 1)
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
    """(a lower bound of epsilon, correct guesses) where the noise is Gaussian and the scores are log likelihood ratios,
    as the run claims. Every canary is guessed as in where its ratio is above 0. No test of a mu-Gaussian mechanism has
    Phi^-1(true positives) - Phi^-1(false positives) above mu; Clopper and Pearson's intervals of both rates bound it
    from below (Nasr et al. 2023, "Tight Auditing of Differentially Private Machine Learning"). It reaches far larger
    epsilons than `epsilon_lower`, and holds for canaries whose scores are independent, as with uploads that do not
    overlap."""
    hits, alarms = int((scores[inside] > 0).sum()), int((scores[~inside] > 0).sum())
    many, others = int(inside.sum()), int((~inside).sum())
    if not many or not others:
        return 0.0, 0
    true_low = float(stats.beta.ppf(error / 2, hits, many - hits + 1)) if hits else 0.0
    false_high = float(stats.beta.ppf(1 - error / 2, alarms + 1, others - alarms)) if alarms < others else 1.0
    if true_low == 0 or false_high == 1:
        return 0.0, hits + others - alarms
    mu = float(stats.norm.ppf(true_low) - stats.norm.ppf(false_high))
    return gaussian_epsilon(mu, delta), hits + others - alarms


def tpr_at(scores: Array, inside: Bools, rate: float = FPR, others: Sequence[float] = ()) -> float | None:
    """The share of canaries that were in and whose score is above a threshold which at most `rate` of the scores of
    canaries that were out exceed. Empirical, without a Gaussian fit. `others` are scores of further people who were
    certainly out, which join the null. With fewer than 1 / rate out scores the threshold is the largest of them, so
    the figure is then that of a smaller false positive rate, which it understates."""
    null = np.sort(np.concatenate([scores[~inside], np.asarray(others, np.float64)]))
    if not inside.any() or not len(null):
        return None
    threshold = null[len(null) - 1 - math.floor(rate * len(null))]
    return float((scores[inside] > threshold).mean())


def coins(count: int, seed: int | None = None) -> Bools:
    """Fair coins: of the operating system, or of a seed for tests."""
    if seed is not None:
        return np.random.default_rng(seed).random(count) < 0.5
    return np.unpackbits(np.frombuffer(secrets.token_bytes(-(-count // 8)), np.uint8))[:count].astype(bool)


# Scores


@dataclass(eq=False)
class Evidence:
    """Sums over rounds of <u, z> / s^2 [canaries] and of <u, u'> / s^2 [canaries, canaries]."""

    along: Array
    gram: Array
    square: float = 0.0  # of the noise over its stated deviation
    count: int = 0
    on_grid: bool = True  # every released number is a whole multiple of the public step
    plain: Array | None = None  # log likelihood ratios that do not add up to a linear score (secret sampling)

    @staticmethod
    def none(many: int) -> Evidence:
        return Evidence(np.zeros(many), np.zeros((many, many)))

    def noise(self, parts: Mapping[str, Array], variance: float) -> None:
        """Numbers that are noise, with its stated variance; 0: there is none."""
        if variance:
            self.square += sum(float((value**2).sum()) for value in parts.values()) / variance
            self.count += sum(value.size for value in parts.values())

    def ratios(self) -> Array:
        """Log likelihood ratios of in against out, one for every canary, given all releases. Other canaries' coins are
        unknown; they are treated as Gaussian with a coin's mean and variance, which makes the solution linear:
        [(G + 4)^-1 y]_i / [(G + 4)^-1]_ii. With orthogonal uploads that is y_i, which is exact."""
        if self.plain is not None:
            return self.plain
        if not (self.gram - np.diag(np.diag(self.gram))).any():
            return self.along
        inverse = np.linalg.inv(self.gram + PRIOR * np.eye(len(self.along)))
        return np.asarray((inverse @ self.along) / np.diag(inverse))


def overlaps(u: Mapping[str, Any], same: Array | None) -> Array:
    """<u, u'> for all pairs of canaries; `same` tells whose uploads are in one sum. Where the uploads are too many
    numbers, of each with itself only."""
    many = next(iter(u.values())).shape[0]
    total = np.zeros((many, many))
    for value in u.values():
        if sparse.issparse(value):
            total += (value @ value.T).toarray()
            continue
        used = np.flatnonzero((value != 0).any(1))
        part = value[used]
        if part.size > HELD:
            total[used, used] += np.einsum("ij,ij->i", part, part, dtype=np.float64)
        else:
            total[np.ix_(used, used)] += part @ part.T
    return total if same is None else total * (same[:, None] == same)


def inner(u: Mapping[str, Any], z: Mapping[str, Array]) -> Array:
    """<u_i, z> for all canaries."""
    return np.asarray(sum(value @ z[name].astype(value.dtype) for name, value in u.items()), np.float64)


def combined(u: Mapping[str, Any], weights: Array) -> dict[str, Array]:
    """The sum of the canaries' uploads with these weights, by name."""
    return {name: np.asarray(value.T @ weights.astype(value.dtype), np.float64) for name, value in u.items()}
