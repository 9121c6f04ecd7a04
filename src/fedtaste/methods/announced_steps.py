"""Uploads of gradients in whole numbers of few bits, with one announced step for every tensor.

    device     sends clamp(floor(g / s + u), -l, l) for a gradient g, with the step s of its tensor, which the server
               announced, l = 2^(bits-1) - 1, and u uniform in [0, 1), so that the mean is right
    server     multiplies the sums by s, and announces s = b / l for the next round, b = max(FADE b, largest |sum|), but
               at most GROWTH x b
Nobody has a step of their own: numbers with different steps could not be added in a secure sum, and the largest number
of a gradient would tell something about its person. Single gradients are seldom larger than a cohort's sum; what is
larger is cut to b, and if b is too small for many, sums become larger than b, and b grows. That needs a cohort of some
people (SMALLEST). Sums that a cohort cannot have are cut, so that a false upload changes the steps little.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedtaste.core import Params
from fedtaste.methods.sequence_loss import random_bytes

FADE, GROWTH = 0.9, 2.0
SMALLEST = 8  # people in a cohort
START = 8.0  # b of the first round
OTHER_STREAM = 0x5DEECE66D  # separates the seeds of rounding from those of other draws


def first_steps(tensors: int, bits: int) -> Tensor:
    """The steps [tensors] of the first round, in the order of the tensors' names."""
    return torch.full((tensors,), START / levels(bits))


def levels(bits: int) -> int:
    """The largest whole number of an upload with so many bits."""
    return int(2 ** (bits - 1) - 1)


def to_whole_numbers(gradient: Params, steps: Tensor, bits: int, seed: Tensor) -> Params:
    """A person's gradient in multiples of the steps, rounded by draws that follow from `seed`."""
    names = sorted(gradient)
    sizes = [gradient[name].numel() for name in names]
    drawn = random_bytes(seed ^ OTHER_STREAM, 2 * sum(sizes)).reshape(-1, 2).to(steps.dtype)
    draws = torch.split((drawn[:, 0] + drawn[:, 1] / 256) / 256, sizes)
    most = levels(bits)
    return {
        name: torch.floor(gradient[name] / steps[at] + draws[at].reshape(gradient[name].shape)).clamp(-most, most)
        for at, name in enumerate(names)
    }


def from_whole_numbers(total: Params, steps: Tensor, bits: int, cohort: int) -> tuple[Params, Tensor]:
    """(sums of gradients, the steps of the next round) from sums of whole numbers of at most `cohort` people."""
    names, most = sorted(total), float(cohort * levels(bits))
    sums = {name: total[name].to(steps.dtype).clamp(-most, most) * steps[at] for at, name in enumerate(names)}
    largest = torch.stack([sums[name].abs().max() for name in names]) / levels(bits)
    return sums, torch.maximum(FADE * steps, torch.minimum(largest, GROWTH * steps))
