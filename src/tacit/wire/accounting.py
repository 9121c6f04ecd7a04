"""The privacy budget of a run: epsilon, computed by the dp-accounting package.

The promise is to a whole person. A release is a sum of uploads, none of them longer than a bound C, plus discrete
Gaussian noise of standard deviation `multiplier` x C on every number (wire/noise.py says why Gaussian events bound it,
and how rounding is part of C).
    central noise    two federations that differ in one person's taking part
    secure=N         two federations in which one person sends zeros or not: one person more would deal other groups
    local noise      two uploads of one person, which are up to 2 C apart, so the multiplier is halved
Where a round asks a part of the people, everybody by a secret coin of their own, the sampling counts (Poisson) against
those who do not see the coins. The server does see whom it asks: against it the sampling rate is 1. Of several groups
each sum has all of the noise, so the promise holds for every one of them.
The accountants are imported when they are needed: a run without noise does not wait for them.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ..errors import SettingError

if TYPE_CHECKING:
    import dp_accounting

MEANINGLESS = 100.0  # an epsilon that promises nothing
NO_BOUND = (
    "noise without clipping has no finite epsilon: one person's upload may be as long as it likes, and no noise covers "
    "that. Add clip, as in --wire clip=1,noise=1"
)


@dataclass(frozen=True)
class Mechanism:
    """What is released, round by round."""

    noise: float  # the multiplier of a round that has the whole budget
    rate: float = 1.0  # the chance of being asked in a round
    shares: tuple[float, ...] = ()  # of the budget, by round, where rounds differ; they add to 1
    local: bool = False
    sealed: bool = False  # devices add the noise, and nobody sees a sum without it
    grouped: bool = False  # secure sums of groups of people, and not of the whole cohort

    def deviation(self, round: int) -> float:
        """The noise's standard deviation, as a multiple of the bound on one upload, in this round (from 0)."""
        return self.noise / math.sqrt(self.shares[min(round, len(self.shares) - 1)]) if self.shares else self.noise

    def multiplier(self, round: int) -> float:
        """The same, as a multiple of how far one person can move the release."""
        return self.deviation(round) / (2 if self.local else 1)

    def event(self, rounds: int) -> dp_accounting.DpEvent:
        """The releases of the first so many rounds, for an accountant."""
        import dp_accounting

        rate = 1.0 if self.local else self.rate

        def one(round: int) -> dp_accounting.DpEvent:
            plain = dp_accounting.GaussianDpEvent(self.multiplier(round))
            return plain if rate >= 1 else dp_accounting.PoissonSampledDpEvent(rate, plain)

        if self.shares:
            return dp_accounting.ComposedDpEvent([one(round) for round in range(rounds)])
        return dp_accounting.SelfComposedDpEvent(one(0), rounds)


@lru_cache(256)
def epsilons(mechanism: Mechanism, rounds: int, delta: float) -> dict[str, float]:
    """{"epsilon": by privacy loss distributions, "epsilon_rdp": by Renyi divergences}: both are upper bounds."""
    from dp_accounting import pld, rdp

    if not rounds:
        return {"epsilon": 0.0, "epsilon_rdp": 0.0}
    found: dict[str, float] = {}
    with _quiet():
        for name, make in (("epsilon_rdp", rdp.RdpAccountant), ("epsilon", pld.PLDAccountant)):
            if found.get("epsilon_rdp", 0.0) > 2 * MEANINGLESS:  # exact figures would take gigabytes, and mean nothing
                found[name] = found["epsilon_rdp"]
                continue
            accountant = make()
            accountant.compose(mechanism.event(rounds))
            found[name] = float(accountant.get_epsilon(delta))
    return {name: found[name] for name in ("epsilon", "epsilon_rdp")}


@contextmanager
def _quiet() -> Iterator[None]:
    """Orders of the Renyi divergence that do not converge are left out, which is sound and needs no words."""
    logger = logging.getLogger("absl")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _calibrate(
    accountant: Any, epsilon: float, delta: float, rounds: int, rate: float, guess: tuple[float, float], tol: float
) -> float:
    import dp_accounting

    with _quiet():
        return float(
            dp_accounting.calibrate_dp_mechanism(
                accountant, lambda noise: Mechanism(noise, rate).event(rounds), epsilon, delta,
                dp_accounting.LowerEndpointAndGuess(*guess), tol=tol,
            )
        )  # fmt: skip


@lru_cache(256)
def solve(epsilon: float, delta: float, rounds: int, rate: float = 1.0, local: bool = False) -> float:
    """The smallest noise multiplier, to one in a thousand, with which so many rounds cost no more than epsilon. With
    shares of a budget, which add to 1, it is that of one round."""
    import dp_accounting
    from dp_accounting import pld, rdp

    if rate >= 1 or local:
        noise = dp_accounting.get_sigma_gaussian(epsilon, delta) * math.sqrt(rounds) * (2 if local else 1)
    else:  # Renyi divergences are quick and ask for a little too much; the exact answer is just below
        enough = _calibrate(rdp.RdpAccountant, epsilon, delta, rounds, rate, (0.05, 1.0), 0.01)
        noise = _calibrate(pld.PLDAccountant, epsilon, delta, rounds, rate, (0.75 * enough, enough), 2e-3 * enough)
    while epsilons(Mechanism(float(noise), rate, (), local), rounds, delta)["epsilon"] > epsilon:  # its grid is coarse
        noise *= 1.0005
    return float(noise)


def default_delta(people: int) -> float:
    """Smaller than one in so many people, and never above one in a million."""
    return float(min(max(people, 1) ** -1.1, 1e-6))


def check(epsilon: float | None, delta: float | None) -> None:
    if epsilon is not None and not 1e-3 <= epsilon <= MEANINGLESS:
        raise SettingError(
            f"--epsilon {epsilon:g} was got; a positive number from 0.001 to {MEANINGLESS:g} is expected, such as 3: "
            "less cannot be reached, and more promises nothing."
        )
    if delta is not None and not 1e-15 <= delta < 1:
        raise SettingError(
            f"--delta {delta:g} was got; a number between 0 and 1 is expected, such as 1e-6 (1e-15: least)."
        )


REPEATABLE = (
    "the noise is repeatable: whoever knows --noise-seed can compute it and take it off. Leave --noise-seed out for a "
    "promise"
)
COVERED = ("the shared model after every round", "whatever is computed from it without people's data")
PUBLIC = (
    "the number of people and the settings, which are treated as public",
    "the catalogue of items and the rating scale, which are read from the data and treated as public",
    "accuracy and other figures that are measured on people's data (result.json, report.html, the terminal): they are "
    "for the owner of the run folder",
    "other runs on the same people: `tacit privacy ledger` adds them up",
)


def statement(mechanism: Mechanism | None, rounds: int, delta: float, repeatable: bool = False) -> dict[str, Any]:
    """`privacy` of a result or a checkpoint: what so many planned rounds promise, against whom, and what is covered.
    `epsilon` is None where nothing is promised; `why` says why."""
    if mechanism is None:
        return {"epsilon": None, "delta": None, "why": NO_BOUND}
    found = epsilons(mechanism, rounds, delta)
    server = _server_epsilon(mechanism, rounds, delta)
    kept: dict[str, Any] = (
        {"epsilon": None, "epsilon_rdp": None, "repeatable_epsilon": found["epsilon"], "why": REPEATABLE}
        if repeatable
        else {**found, "repeatable_epsilon": None}
    )
    return {
        **kept,
        "delta": delta,
        "noise": mechanism.noise,
        "rate": mechanism.rate,
        "rounds": rounds,
        "against": _whom(mechanism),
        "server_epsilon": None if repeatable else server,
        "adjacency": _adjacency(mechanism),
        "covered": list(COVERED),
        "not_covered": list(PUBLIC),
    }


def _server_epsilon(mechanism: Mechanism, rounds: int, delta: float) -> float | None:
    """Epsilon against the server, which knows whom it asked; None where it sees sums or uploads without noise."""
    if not (mechanism.local or mechanism.sealed):
        return None
    return epsilons(replace(mechanism, rate=1.0), rounds, delta)["epsilon"]


def _whom(mechanism: Mechanism) -> str:
    """Whoever the promise is against. A server knows whom it asked, so sampling hides nobody from it."""
    if mechanism.local:
        return "whoever sees an upload"
    return "whoever sees the model" + (", the server too" if mechanism.sealed and mechanism.rate >= 1 else "")


def _adjacency(mechanism: Mechanism) -> str:
    if mechanism.local:
        return "one person's data are replaced by any other data"
    return "one person sends zeros or not" if mechanism.grouped else "one person takes part or not"
