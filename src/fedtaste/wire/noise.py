"""Exact integer noise: uploads and sums on a public grid, their L2 sensitivity, and discrete Gaussian noise on them.

A person's upload is clipped to an L2 norm C and rounded to whole multiples of a public step. The released numbers are
whole multiples of that step too, whatever the data are: the sum of integers, plus discrete Gaussian noise of standard
deviation sigma = multiplier x sensitivity / sqrt(share of the budget). No floating-point number occurs in between, so
the attack of Mironov (2012) on the set of attainable values does not apply.

Sensitivity, in steps, d numbers in an upload:
    uploads that are rounded one by one     C / step + sqrt(d) / 2            rounding moves each number by at most 1/2
    a sum in double precision, rounded once C / step (1 + 8 n^2 2^-53) + sqrt(d)     rounding changes by less than 1 for
        each number; 8 n^2 2^-53 C bounds the L2 rounding error of adding n vectors of length C in any order
    local noise                             twice that of uploads (one upload in place of another); see accounting

Accounting: the noise is at least as private as continuous Gaussian noise of standard deviation multiplier x
sensitivity. The discrete Gaussian N_Z(v, sigma^2) is, up to a factor exp(+-t) on every probability, what one gets by
adding continuous noise N(0, sigma^2 - s^2) to v and then rounding at random with N_Z(., s^2), which is post-processing
(Peikert 2010, Theorem 3.1; by Poisson summation t <= 5 exp(-2 pi^2 s^2)). SMOOTHING is s: t is below 10^-136 for every
number, and sigma^2 is larger by s^2 so that the continuous part has all of the promised noise. Sums of the shares
of n devices are within t' = 10 sum over k < n of exp(-2 pi^2 sigma_share^2 k / (k + 1)) of one discrete Gaussian with
the summed variance (Kairouz, Liu, Steinke 2021, "The Distributed Discrete Gaussian Mechanism for Federated Learning
with Secure Aggregation"); with sigma_share >= SMOOTHING t' is below n 10^-67. Both factors are far below the resolution
of the accountant, so its Gaussian events bound what is drawn, with Poisson sampling and composition.
Independently, the Renyi divergences of the discrete Gaussian are never above those of the continuous one (Canonne,
Kamath, Steinke 2020, Theorem 4), on which `epsilon_rdp` rests.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedtaste.core import Params
from fedtaste.errors import SettingError
from fedtaste.wire.discrete_gaussian import discrete_gaussian
from fedtaste.wire.rng import derive

SMOOTHING = 4.0  # steps
FINE = 24  # bits between the bound and the step, where the sum has 64 bits
SAFE = 1 - 2.0**-18  # a norm in double precision, and a product in single precision, are off by less
MAX_INVERSE_WEIGHT = 1e6  # the inverse of a weight: no honest weight is smaller, and squares stay far from underflow
TAIL = 12.0  # standard deviations that noise never exceeds in practice: the chance is below 10^-31
WORST_SUM = 8 * 2.0**-53  # relative L2 error of adding n vectors in double precision, divided by n^2


@dataclass(frozen=True)
class IntegerNoise:
    """Grid, sensitivity and noise of every round. `releases` has (bound C, share of the budget) for each round; the
    last one holds for all later rounds. `step` is the grid's where a modulus needs a coarser one. `sums`: the numbers
    may come as a sum in double precision that was not rounded before. `local`: every device adds all of the noise.
    `clipped` False: nothing bounds an upload, so the noise protects nobody and nothing is promised."""

    multiplier: float
    releases: tuple[tuple[float, float], ...] = ((1.0, 1.0),)
    step: float | None = None
    sums: bool = False
    local: bool = False
    clipped: bool = True

    def release(self, round: int) -> tuple[float, float]:
        """(bound, share of the budget) of this round."""
        return self.releases[min(round, len(self.releases) - 1)]

    def grid(self, round: int) -> float:
        """The step of this round's grid: a power of two, so that multiples of it are exact floating-point numbers."""
        return self.step or fine_step(self.release(round)[0], self.multiplier if self.local else 0.0)

    def sensitivity(self, round: int, size: int, people: float) -> float:
        """How far one person can move the sum, in steps, where an upload has `size` numbers."""
        steps = self.release(round)[0] / self.grid(round)
        if self.sums:
            return steps * (1 + WORST_SUM * people**2) + math.sqrt(size)
        return steps + math.sqrt(size) / 2

    def sigma(self, round: int, size: int, people: float, part: float = 1.0) -> float:
        """The discrete Gaussian's parameter, in steps, for this part of the variance."""
        share = self.release(round)[1]
        variance = (self.multiplier * self.sensitivity(round, size, people)) ** 2 / share + SMOOTHING**2
        sigma = math.sqrt(variance * part)
        if part < 1 and sigma < SMOOTHING:
            raise SettingError(
                f"Each device's share of the noise must be at least {SMOOTHING:g} steps of the grid for the promise to "
                f"hold, got {sigma:.2g}. Use more noise, or smaller groups."
            )
        return sigma

    def to_grid(self, total: Params, weight: Tensor, round: int) -> tuple[Params, Tensor]:
        """Clip one person's change, total / weight, to the bound and round it to whole steps (int32), with weight 1.
        Runs under vmap. A change that is not finite, or has an absurdly small weight, becomes zeros with a weight of
        NaN, which the server refuses: nothing is ever longer than the sensitivity."""
        inverse = torch.where(weight > 0, 1 / weight, 0.0).double()
        total = {n: v if v.dtype in (torch.float32, torch.float64) else v.float() for n, v in total.items()}
        step = self.grid(round)
        if not self.clipped:
            steps = {name: torch.round(value.double() * (inverse / step)) for name, value in total.items()}
            valid = torch.stack([torch.isfinite(value).all() for value in steps.values()]).all()
            return {n: torch.where(valid, v, 0.0).long() for n, v in steps.items()}, torch.where(valid, 1.0, torch.nan)
        # single precision for the squares and double for their sum: off by less than SAFE allows
        squares = ((value * value).sum(dtype=torch.float64) for value in total.values())
        norm = inverse * torch.sqrt(sum(squares, torch.zeros((), dtype=torch.float64)))
        valid = torch.isfinite(norm) & (inverse <= MAX_INVERSE_WEIGHT)
        scale = inverse * (self.release(round)[0] * SAFE / norm.clamp(min=1e-300)).clamp(max=1.0) / step
        rounded = {n: torch.where(valid, torch.round(v * scale.to(v.dtype)), 0.0).int() for n, v in total.items()}
        return rounded, torch.where(valid, 1.0, torch.nan)

    def add(self, total: Params, round: int, people: float, key: bytes, part: float = 1.0) -> Params:
        """The integers of a sum, or of one device, with `part` of the noise's variance: int64."""
        step, size = self.grid(round), sum(value.numel() for value in total.values())
        sigma = self.sigma(round, size, people, part) if part else 0.0
        out = {}
        for name, value in total.items():
            out[name] = (torch.round(value.double() / step) if value.is_floating_point() else value).long()
            if sigma:
                noise = discrete_gaussian(sigma, tuple(value.shape), derive(key, name))
                out[name] = out[name] + torch.from_numpy(noise)
        return out

    def to_floats(self, total: Params, round: int) -> Params:
        """The numbers that these multiples of the step stand for."""
        return {name: (value.double() * self.grid(round)).float() for name, value in total.items()}


def fine_step(bound: float, multiplier: float = 0.0) -> float:
    """The finest step such that the bound has at most 2^(FINE + 1) of them, and one upload fits into 32 bits together
    with the noise that its device adds."""
    return max(
        2.0 ** (math.floor(math.log2(bound)) - FINE),
        2.0 ** math.ceil(math.log2(1.01 * (1 + TAIL * multiplier) * bound / 2**31)),
    )


def modular_step(bound: float, multiplier: float, people: int, least: int, bits: int) -> float:
    """The smallest step at which a sum of `people` uploads, each with its share of the noise, does not wrap modulo
    2^bits. `least`: people who together add all of the noise."""
    noise = TAIL * 1.1 * multiplier * bound * math.sqrt(people / least)
    return 2.0 ** math.ceil(math.log2(1.01 * (people * bound + noise) / 2 ** (bits - 1)))


def rounding_cost(bound: float, step: float, size: int) -> float:
    """The share by which rounding to the grid raises the sensitivity."""
    return math.sqrt(size) / 2 * step / bound
