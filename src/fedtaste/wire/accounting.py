"""Differential-privacy accounting: epsilon of a run, the noise that a given epsilon needs, and PrivacyStatement.

Epsilon is computed by the dp-accounting package and protects a whole person. A release is a sum of uploads, none of
them longer than a bound C, plus discrete Gaussian noise of standard deviation `multiplier` x C on every number
(wire/noise.py shows why Gaussian events bound it, and how rounding is part of C). Neighbouring data sets:
    central noise    two federations that differ in one person's taking part
    secure=N         two federations in which one person sends zeros or not: one person more would change the groups
    local noise      two uploads of one person, which are up to 2 C apart, so the multiplier is halved
Where each person is in a round's cohort by a secret coin of their own (Poisson sampling), the sampling counts against
those who do not see the coins. The server sees the cohort: against it the sampling rate is 1. Where a round has several
groups, each group's sum has all of the noise, so the promise holds for every one of them.
dp-accounting is imported inside functions, because it is slow to import and runs without noise do not need it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from fedtaste.errors import SettingError
from fedtaste.result_part import Count, ResultPart
from fedtaste.wire.loss_accountant import loss_accountant

if TYPE_CHECKING:
    import dp_accounting

MEANINGLESS = 100.0  # an epsilon that promises nothing
NO_BOUND = (
    "noise without clipping has no finite epsilon, because nothing bounds the length of one person's upload. Add clip, "
    "as in --wire clip=1,noise=1"
)
REPEATABLE = (
    "the noise is repeatable: whoever knows --noise-seed can compute it and subtract it. Leave --noise-seed out for a "
    "promise"
)
COVERED = ("the shared model after every round", "whatever is computed from it without people's data")
NOT_COVERED = (
    "the number of people and the settings, which are treated as public",
    "the catalogue of items and the rating scale, which are read from the data and treated as public",
    "accuracy and other figures that are measured on people's data (result.json, report.html, the terminal): they are "
    "for the owner of the run folder",
    "other runs on the same people: `fedtaste privacy ledger` adds them up",
)


@dataclass(frozen=True)
class Mechanism:
    """What a run releases, round by round. The field names are part of the format of privacy ledgers."""

    noise: float  # the multiplier of a round that has the whole budget
    rate: float = 1.0  # the chance of being in a round's cohort
    shares: tuple[float, ...] = ()  # of the budget, by round, where rounds differ; they add to 1
    local: bool = False
    sealed: bool = False  # secure sums: devices add the noise, and nobody sees a sum without it
    grouped: bool = False  # secure sums of groups of people, and not of the whole cohort

    def deviation(self, round: int) -> float:
        """The noise's standard deviation, as a multiple of the bound on one upload, in this round (from 0)."""
        return self.noise / math.sqrt(self.shares[min(round, len(self.shares) - 1)]) if self.shares else self.noise

    def multiplier(self, round: int) -> float:
        """The noise's standard deviation, as a multiple of how far one person can move the release."""
        return self.deviation(round) / (2 if self.local else 1)

    def event(self, rounds: int) -> dp_accounting.DpEvent:
        """The releases of the first `rounds` rounds, for an accountant."""
        import dp_accounting

        rate = 1.0 if self.local else self.rate

        def release(round: int) -> dp_accounting.DpEvent:
            plain = dp_accounting.GaussianDpEvent(self.multiplier(round))
            return plain if rate >= 1 else dp_accounting.PoissonSampledDpEvent(rate, plain)

        if self.shares:
            return dp_accounting.ComposedDpEvent([release(round) for round in range(rounds)])
        return dp_accounting.SelfComposedDpEvent(release(0), rounds)


class Epsilons(NamedTuple):
    """Two upper bounds of epsilon: by privacy loss distributions, and by Renyi divergences."""

    epsilon: float
    epsilon_rdp: float


def epsilons(mechanism: Mechanism, rounds: int, delta: float) -> Epsilons:
    """Epsilon of the first `rounds` rounds at this delta. Who adds the noise does not change it."""
    return _epsilons(replace(mechanism, sealed=False, grouped=False), rounds, delta)


@lru_cache(256)
def _epsilons(mechanism: Mechanism, rounds: int, delta: float) -> Epsilons:
    from dp_accounting import rdp

    if not rounds:
        return Epsilons(0.0, 0.0)
    event = mechanism.event(rounds)
    with _quiet():
        by_rdp = float(rdp.RdpAccountant().compose(event).get_epsilon(delta))
        if by_rdp > 2 * MEANINGLESS:  # the exact figure would take gigabytes, and means nothing
            return Epsilons(by_rdp, by_rdp)
        return Epsilons(float(loss_accountant()().compose(event).get_epsilon(delta)), by_rdp)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence warnings about orders of the Renyi divergence that do not converge: leaving them out is sound."""
    logger = logging.getLogger("absl")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


@lru_cache(256)
def solve(epsilon: float, delta: float, rounds: int, rate: float = 1.0, local: bool = False) -> float:
    """The smallest noise multiplier, to one in a thousand, with which `rounds` rounds cost no more than epsilon. With
    shares of a budget, which add to 1, it is that of one round."""
    import dp_accounting
    from dp_accounting import rdp

    def calibrate(accountant: Callable[[], object], low: float, guess: float, tolerance: float) -> float:
        bracket = dp_accounting.LowerEndpointAndGuess(low, guess)
        with _quiet():
            multiplier = dp_accounting.calibrate_dp_mechanism(
                accountant, lambda noise: Mechanism(noise, rate).event(rounds), epsilon, delta, bracket, tol=tolerance
            )
        return float(multiplier)

    if rate >= 1 or local:
        noise = float(dp_accounting.get_sigma_gaussian(epsilon, delta) * math.sqrt(rounds) * (2 if local else 1))
    else:  # Renyi divergences are quick and ask for a little too much; the exact answer is just below
        enough = calibrate(rdp.RdpAccountant, 0.05, 1.0, 0.01)
        noise = calibrate(loss_accountant(), 0.75 * enough, enough, 2e-3 * enough)
    # The accountant's grid is coarse, so the solution may be just too small.
    while epsilons(Mechanism(noise, rate, (), local), rounds, delta).epsilon > epsilon:
        noise *= 1.0005
    return noise


def default_delta(people: int) -> float:
    """The default delta: smaller than one in `people`, and never above one in a million."""
    return float(min(max(people, 1) ** -1.1, 1e-6))


def check_budget(epsilon: float | None, delta: float | None) -> None:
    """Refuse values of --epsilon and --delta that are out of range."""
    if epsilon is not None and not 1e-3 <= epsilon <= MEANINGLESS:
        raise SettingError(
            f"--epsilon must be from 0.001 to {MEANINGLESS:g}, got {epsilon:g}: less cannot be reached, and more "
            "promises nothing. Give a number such as 3."
        )
    if delta is not None and not 1e-15 <= delta < 1:
        raise SettingError(f"--delta must be from 1e-15 to below 1, got {delta:g}. Give a number such as 1e-6.")


class PrivacyStatement(ResultPart):
    """What a run's noise promises over all planned rounds, against whom, and what it covers. `epsilon` is None where
    nothing is promised, and `why` gives the reason; without a bound on uploads nothing else is stated."""

    epsilon: float | None
    epsilon_rdp: float | None = None
    repeatable_epsilon: float | None = None
    """What would be promised if the noise were secret."""
    why: str | None = None
    delta: float | None
    noise: float | None = None
    """Standard deviation of the noise, as a multiple of the bound on one upload."""
    rate: float | None = None
    """The chance of being in a round's cohort."""
    rounds: Count | None = None
    against: str | None = None
    server_epsilon: float | None = None
    """Epsilon against the server, which knows the cohorts; None where it sees sums or uploads without noise."""
    adjacency: str | None = None
    covered: tuple[str, ...] | None = None
    not_covered: tuple[str, ...] | None = None


def statement(mechanism: Mechanism | None, rounds: int, delta: float, repeatable: bool = False) -> PrivacyStatement:
    """The privacy statement of `rounds` planned rounds; None as the mechanism: there is noise without a bound."""
    if mechanism is None:
        return PrivacyStatement(epsilon=None, delta=None, why=NO_BOUND)
    bound, server = epsilons(mechanism, rounds, delta), None
    if (mechanism.local or mechanism.sealed) and not repeatable:  # the server knows the cohort: its rate is 1
        server = epsilons(replace(mechanism, rate=1.0), rounds, delta).epsilon
    promise: dict[str, object] = {**bound._asdict(), "repeatable_epsilon": None}
    if repeatable:
        promise = {"epsilon": None, "epsilon_rdp": None, "repeatable_epsilon": bound.epsilon, "why": REPEATABLE}
    return PrivacyStatement.model_validate(
        promise
        | {"delta": delta, "noise": mechanism.noise, "rate": mechanism.rate, "rounds": rounds}
        | {"against": against(mechanism), "server_epsilon": server, "adjacency": _adjacency(mechanism)}
        | {"covered": COVERED, "not_covered": NOT_COVERED}
    )


def against(mechanism: Mechanism) -> str:
    """The attacker whom the promise holds against. The server knows the cohort, so sampling hides nobody from it."""
    if mechanism.local:
        return "whoever sees an upload"
    return "whoever sees the model" + (", the server too" if mechanism.sealed and mechanism.rate >= 1 else "")


def _adjacency(mechanism: Mechanism) -> str:
    """The neighbouring data sets that the promise is about."""
    if mechanism.local:
        return "one person's data are replaced by any other data"
    return "one person sends zeros or not" if mechanism.grouped else "one person takes part or not"
