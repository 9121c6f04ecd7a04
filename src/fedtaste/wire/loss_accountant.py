"""An accountant of Gaussian releases by privacy loss distributions: dp-accounting's, with arrays and a cache.

PLDAccountant of dp-accounting inverts the privacy loss at hundreds of thousands of points of its grid, one by one, and
does it again for every release that it composes. Here the points are one array, and the distribution of a release is
kept. Grid, truncation, rounding and composition are those of dp-accounting, so the epsilons are the same.
dp-accounting is imported inside functions, because it is slow to import and runs without noise do not need it.
"""

from __future__ import annotations

import math
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from dp_accounting.pld import PLDAccountant
    from dp_accounting.pld.pld_pmf import PLDPmf
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

INTERVAL = 1e-4  # between two values of the privacy loss; dp-accounting's default
KEPT = 32  # distributions, of at most a few MB each


@cache
def loss_accountant() -> type[PLDAccountant]:
    """The class of the accountant. It composes Gaussian releases, with or without Poisson sampling."""
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    class LossAccountant(PLDAccountant):  # type: ignore[misc]
        _pld: PrivacyLossDistribution

        def _maybe_compose(self, event: dp_accounting.DpEvent, count: int, do_compose: bool) -> Any:
            sampled = isinstance(event, dp_accounting.PoissonSampledDpEvent)
            release = event.event if sampled else event
            gaussian = isinstance(release, dp_accounting.GaussianDpEvent) and release.noise_multiplier > 0
            if not do_compose or not gaussian:
                return super()._maybe_compose(event, count, do_compose)
            if sampled:
                losses = loss_distribution(release.noise_multiplier, event.sampling_probability).self_compose(count)
            else:
                losses = loss_distribution(release.noise_multiplier / math.sqrt(count))
            self._pld = self._pld.compose(losses)
            return None

    return LossAccountant


@lru_cache(KEPT)
def loss_distribution(noise: float, rate: float = 1.0) -> PrivacyLossDistribution:
    """The privacy loss distribution of one Gaussian release with this noise multiplier, and of a cohort into which each
    person comes with the chance `rate`."""
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

    one_less = _discretised(noise, rate, "REMOVE")
    return PrivacyLossDistribution(one_less, None if rate == 1 else _discretised(noise, rate, "ADD"))


def _discretised(noise: float, rate: float, adjacency: str) -> PLDPmf:
    """The distribution on the grid, by dp-accounting's algorithm "connect the dots"."""
    from dp_accounting.pld.pld_pmf import create_pmf_pessimistic_connect_dots_fixed_gap
    from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, GaussianPrivacyLoss

    release = GaussianPrivacyLoss(noise, sampling_prob=rate, adjacency_type=AdjacencyType[adjacency])
    bounds = release.connect_dots_bounds()
    low, high = math.floor(bounds.epsilon_lower / INTERVAL), math.ceil(bounds.epsilon_upper / INTERVAL)
    losses = np.arange(low, high + 1) * INTERVAL
    deltas = np.where(losses >= 0, 0.0, -np.expm1(losses))  # where one of the two densities is larger everywhere
    inside = np.full(len(losses), True)
    if rate < 1:
        inside = losses > math.log1p(-rate) if adjacency == "REMOVE" else losses < -math.log1p(-rate)
    cut = _inverse_loss(losses[inside], noise, rate, 1 if adjacency == "REMOVE" else -1)
    deltas[inside] = release.mu_upper_cdf(cut) - np.exp(losses[inside] + release.mu_lower_log_cdf(cut))
    return create_pmf_pessimistic_connect_dots_fixed_gap(INTERVAL, low, high, np.clip(deltas, 0, 1))


def _inverse_loss(losses: NDArray[np.float64], noise: float, rate: float, sign: int) -> NDArray[np.float64]:
    """The outcomes with these privacy losses. `sign` is 1 where one person is removed, -1 where one is added."""
    if rate < 1:  # the losses without sampling, sign log(1 + (exp(sign losses) - 1) / rate)
        scaled, limit = sign * losses - math.log(rate), math.log(1 / rate - 1)
        at_limit = np.isclose(sign * losses, math.log(1 - rate), rtol=1e-9, atol=0)
        scaled[at_limit] = np.inf
        losses = sign * np.where(at_limit, -np.inf, scaled + np.log1p(-np.exp(limit - scaled)))
    outcomes: NDArray[np.float64] = -sign / 2 - losses * noise**2
    return outcomes
