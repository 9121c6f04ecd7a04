"""FedSeq's training loss: a sampled softmax over all positions of a window of a person's history.

Every function takes one person, or people along leading axes. Symbols: i_1..i_n the history, oldest first; N [m, m] the
trail table of FedTrail; n_q how many people have item q; L the length of the network; d its width.
    window     everything where n <= L + 1; otherwise half the time the newest L + 1 items, else a uniform start
    negatives  the same for everybody in a round: item q is among them with probability pi_q = min(1, c (n_q + 1)^.5)
    trail      t_q at position t = sum_a (MIX FAST^a + (1 - MIX) SLOW^a) N[i_(t-a), q]
    logit      h_t.E_q + b_q + alpha log(t_q + eps), alpha = 10 theta
    loss       log(e^s_next + sum over negatives of e^(s_q - log pi_q)) - s_next, summed over positions
Negatives that are the next item or in the history so far are masked. N contains the person's own counts, which would
tell the next item: for the next item, and for negatives that the person takes later, they are subtracted.
Everything random follows from the run's key, the round and the person's own history, so that a client is a function.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from fedtaste.core import Params
from fedtaste.data.sampling import SEQUENCE, key_of, uniform
from fedtaste.models.sequence import Network, network_states

FROM_POWER, TO_POWER, SHRINK = 0.6, 0.3, 5.0  # of FedTrail's normalisation
MIX, FAST, SLOW = 0.7, 0.6, 0.93  # weights of items by age
WINDOW, FADE = 60, 0.85  # of FedTrail's counts
POWER = 0.5  # of an item's popularity in its chance to be a negative
EMBEDDED = 0.5  # factor of sqrt(d) for embeddings that enter the network
ALPHA = 10.0  # alpha = ALPHA theta, so that one learning rate fits all parameters
NEVER = 2**30  # the place of an item that is not in a history


class Negatives(NamedTuple):
    """The negatives that everybody shares in a round."""

    items: Tensor  # [J]
    correction: Tensor  # [J] log pi of each


class Window(NamedTuple):
    """A part of a history."""

    items: Tensor  # [..., T + 1]
    mask: Tensor  # [..., T] 1 where there is a next item
    first: Tensor  # [...] the place of its first item in the history


def inclusion(counts: NDArray[np.float64], number: int) -> NDArray[np.float64]:
    """pi [m] with sum `number` (all 1 where there are no more items than that).

    >>> inclusion(np.array([0.0, 0.0, 3.0]), 2).tolist()
    [0.5, 0.5, 1.0]
    """
    weight = (np.maximum(counts, 0) + 1) ** POWER
    if number >= len(weight):
        return np.ones(len(weight))
    order = np.sort(weight)[::-1]
    left = np.cumsum(order[::-1])[::-1]  # of the items that are not certain, where the first k are
    scale = (number - np.arange(len(order))) / left
    chance: NDArray[np.float64] = np.minimum(1.0, weight * scale[int(np.argmax(scale * order <= 1 + 1e-12))])
    return chance


def shared_negatives(counts: Tensor, number: int, key: int, round: int) -> Negatives:
    """The negatives of a round, drawn from public numbers alone."""
    chance = inclusion(counts.double().numpy(), number)
    drawn = np.flatnonzero(uniform(np.arange(len(chance)), key_of(key, SEQUENCE, round)) < chance)
    drawn = drawn if len(drawn) else np.array([int(np.argmax(chance))])  # a softmax needs one at least
    return Negatives(torch.from_numpy(drawn), torch.from_numpy(np.log(chance[drawn]).astype(np.float32)))


def generate(seed: int, count: int) -> NDArray[np.uint8]:
    """Random bytes; the first ones do not depend on `count`."""
    words = np.random.Philox(key=seed % 2**64).random_raw(-(-count // 8))
    return words.astype("<u8", copy=False).view(np.uint8)[:count]


class _RandomBytes(torch.autograd.Function):
    """Random bytes from seeds, for one person in `forward` and for many in `vmap`. There is no backward pass."""

    @staticmethod
    def forward(seeds: Tensor, count: int) -> Tensor:
        rows = [generate(seed, count) for seed in seeds.flatten().tolist()]
        return torch.from_numpy(np.stack(rows).reshape(*seeds.shape, count))

    @staticmethod
    def setup_context(ctx: object, inputs: object, output: object) -> None:
        return

    @staticmethod
    def vmap(info: object, in_dims: tuple[int | None, ...], seeds: Tensor, count: int) -> tuple[Tensor, int]:
        return random_bytes(seeds.movedim(in_dims[0] or 0, 0), count), 0


def random_bytes(seeds: Tensor, count: int) -> Tensor:
    """Bytes [..., count] for seeds [...]; the first ones do not depend on `count`."""
    drawn: Tensor = _RandomBytes.apply(seeds, count)  # type: ignore[no-untyped-call]
    return drawn


def person_seeds(inputs: Tensor, mask: Tensor, key: int, round: int) -> Tensor:
    """[...]: a number from the run's key, the round and the history [..., n]."""
    place = torch.arange(1, inputs.shape[-1] + 1)
    x = (inputs + 1) * 0x1E3779B97F4A7C15 + place * 0x3F58476D1CE4E5B9
    x = (x ^ (x >> 29)) * 0x14D049BB133111EB
    x = ((x ^ (x >> 32)) * mask.long()).sum(-1)
    base = int(key_of(key, SEQUENCE, round)) >> 1
    x = (x ^ base) * 0x1F51AFD7ED558CCD
    return x ^ (x >> 33)


def draw_window(inputs: Tensor, mask: Tensor, length: int, drawn: Tensor) -> Window:
    """A window of at most `length` + 1 items of a history [..., n]; `drawn` are four random bytes or more."""
    inputs, mask = (functional.pad(array, (0, max(0, 2 - array.shape[-1]))) for array in (inputs, mask))
    size = mask.sum(-1).long()
    spare = (size - length - 1).clamp(min=0)  # the start of the newest window
    number = (drawn[..., 1].long() * 256 + drawn[..., 2]) * 256 + drawn[..., 3]
    first = torch.where(drawn[..., 0] < 128, spare, number * (spare + 1) >> 24)
    at = first[..., None] + torch.arange(min(inputs.shape[-1], length + 1))
    real = at < size[..., None]
    items = inputs.gather(-1, at.clamp(max=inputs.shape[-1] - 1)) * real
    return Window(items, real[..., 1:].float(), first)


def newest(inputs: Tensor, mask: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """(the newest items [..., T] of a history [..., n], at most `length`; the place of the last real one [...])."""
    size = mask.sum(-1).long()
    at = (size - length).clamp(min=0)[..., None] + torch.arange(min(inputs.shape[-1], length))
    real = at < size[..., None]
    return inputs.gather(-1, at.clamp(max=inputs.shape[-1] - 1)) * real, (size.clamp(max=length) - 1).clamp(min=0)


def first_places(inputs: Tensor, mask: Tensor, catalogue: int) -> Tensor:
    """[..., m]: the first place of every item in a history, NEVER where it is not in it."""
    place = torch.where(mask > 0, torch.arange(inputs.shape[-1]), NEVER)
    start = torch.full((*inputs.shape[:-1], catalogue), NEVER)
    return start.scatter_reduce(-1, inputs, place, "amin")


def keep_factors(drawn: Tensor, network: Network, dropped: int) -> Tensor:
    """[..., T, sites, d] from bytes [..., T x sites x d]: 0 where a number is dropped, with probability `dropped` /
    256, otherwise the factor that keeps the mean."""
    factors: Tensor = (drawn >= dropped) * (256 / (256 - dropped))
    return factors.reshape(*drawn.shape[:-1], -1, network.sites, network.width)


def age_weights(steps: int) -> Tensor:
    """[T, T]: the weight of the item at s for the trail at t, 0 where s > t."""
    age = (torch.arange(steps)[:, None] - torch.arange(steps)).float()
    return torch.where(age >= 0, MIX * FAST**age + (1 - MIX) * SLOW**age, 0.0)


def _without_own(fixed: Params, items: Tensor, candidates: Tensor, distance: Tensor) -> Tensor:
    """N[item, candidate] without the own counts of a pair at this distance, for arrays that broadcast."""
    own = torch.where((distance > 0) & (distance <= WINDOW), FADE ** (distance.clamp(1, WINDOW) - 1).float(), 0.0)
    own = own * fixed["from_scale"][items] * fixed["to_scale"][candidates]
    return (fixed["trail"][items, candidates] - own).clamp(min=0)


def negative_trail(fixed: Params, window: Window, negatives: Tensor, places: Tensor) -> Tensor:
    """t_q [..., T, J] of the negatives, whose first places in the history are `places` [..., J]."""
    items = window.items[..., :-1, None]
    at = window.first[..., None] + torch.arange(items.shape[-2])
    rows = _without_own(fixed, items, negatives, places[..., None, :] - at[..., None])
    return age_weights(items.shape[-2]) @ rows


def target_trail(fixed: Params, window: Window) -> Tensor:
    """t_q [..., T] of the next items."""
    steps = torch.arange(window.mask.shape[-1])
    distance = steps[:, None] + 1 - steps  # [t, s]: from the item at s to the one after t
    rows = _without_own(fixed, window.items[..., None, :-1], window.items[..., 1:, None], distance)
    return (age_weights(len(steps)) * rows).sum(-1)


class Context(NamedTuple):
    """All of a person's (or people's) input to the loss that no parameter enters."""

    window: Window
    keep: Tensor | None  # [..., T, sites, d]
    negatives: Negatives
    places: Tensor  # [..., J] the first places of the negatives in the history
    target: Tensor | None  # [..., T] log(t + eps) of the next items, where the logit has the trail
    negative: Tensor | None  # [..., T, J] the same of the negatives


def sampled_softmax(network: Network, params: Params, context: Context) -> Tensor:
    """The loss [...] of a window, summed over its positions."""
    window, negatives = context.window, context.negatives
    embedded = functional.embedding(window.items, params["item"])  # [..., T + 1, d]
    x = embedded[..., :-1, :] * (EMBEDDED * network.width**0.5)
    h = network_states(network, params, x, context.keep)
    bias = params["bias"]
    positive = (h * embedded[..., 1:, :]).sum(-1) + bias[window.items[..., 1:]]
    scores = h @ params["item"][negatives.items].T + (bias[negatives.items] - negatives.correction)
    if context.target is not None and context.negative is not None:
        positive = positive + ALPHA * params["theta"] * context.target
        scores = scores + ALPHA * params["theta"] * context.negative
    reached = window.first[..., None] + 1 + torch.arange(window.mask.shape[-1])  # [..., T] the place of the next item
    scores = scores.masked_fill(context.places[..., None, :] <= reached[..., None], -torch.inf)
    total = torch.cat([positive[..., None], scores], -1).logsumexp(-1)
    return ((total - positive) * window.mask).sum(-1)
