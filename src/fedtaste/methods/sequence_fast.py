"""The loss of sequence_loss.py for a cohort: compiled trail features and a softmax that holds one array of scores.

The plain functions are `negative_trail`, `target_trail` and `sampled_softmax`; these give the same numbers.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import FunctionCtx
from torch.nn import functional

from fedtaste.core import Params
from fedtaste.kernels import trail as kernels
from fedtaste.methods.sequence_loss import (
    ALPHA,
    EMBEDDED,
    FADE,
    FAST,
    MIX,
    SLOW,
    WINDOW,
    Context,
    Window,
)
from fedtaste.models.sequence import Network, network_states

POWERS = FADE ** np.arange(WINDOW, dtype=np.float32)
SPEEDS = (np.float32(MIX), np.float32(FAST), np.float32(SLOW))


def compiled_trail(fixed: Params, window: Window, negatives: Tensor, places: Tensor) -> Tensor:
    """`negative_trail` for windows [people, T]."""
    out = torch.zeros(*window.mask.shape, len(negatives))
    kernels.negative_trail(
        *_tables(fixed), window.items.numpy(), window.mask.sum(1).long().numpy(), window.first.numpy(),
        negatives.numpy(), places.numpy(), POWERS, SPEEDS, out.numpy(),
    )  # fmt: skip
    return out


def compiled_target_trail(fixed: Params, window: Window) -> Tensor:
    """`target_trail` for windows [people, T]."""
    out = torch.zeros(window.mask.shape)
    lengths = window.mask.sum(1).long().numpy()
    kernels.target_trail(*_tables(fixed), window.items.numpy(), lengths, POWERS, SPEEDS, out.numpy())
    return out


def _tables(fixed: Params) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
    return fixed["trail"].numpy(), fixed["from_scale"].numpy(), fixed["to_scale"].numpy()


def fused_softmax(network: Network, params: Params, context: Context) -> Tensor:
    """`sampled_softmax` for windows [people, T]."""
    window, negatives = context.window, context.negatives
    embedded = functional.embedding(window.items, params["item"])  # [people, T + 1, d]
    x = embedded[:, :-1] * (EMBEDDED * network.width**0.5)
    h = network_states(network, params, x, context.keep)
    bias, trail = params["bias"], context.negative
    positive = (h * embedded[:, 1:]).sum(-1) + bias[window.items[:, 1:]]
    alpha = ALPHA * params["theta"] if trail is not None else torch.zeros(())
    if context.target is not None:
        positive = positive + alpha * context.target
    offset = bias[negatives.items] - negatives.correction
    total: Tensor = _LogSum.apply(  # type: ignore[no-untyped-call]
        h.flatten(0, 1), functional.embedding(negatives.items, params["item"]), offset, alpha, positive.flatten(),
        None if trail is None else trail.flatten(0, 1), (context.places.numpy(), window.first.numpy()),
    )  # fmt: skip
    loss: Tensor = ((total.reshape(positive.shape) - positive) * window.mask).sum(1)
    return loss


class _LogSum(torch.autograd.Function):
    """log(e^positive + sum_j e^(h.table_j + offset_j + alpha trail_j)) by row of h [n, d]. Negatives that are the
    next item or in the history so far do not count; `taken` = (places, firsts) as `mask_taken` has them."""

    @staticmethod
    def forward(
        ctx: FunctionCtx, h: Tensor, table: Tensor, offset: Tensor, alpha: Tensor, positive: Tensor,
        trail: Tensor | None, taken: tuple[NDArray[np.int64], NDArray[np.int64]],
    ) -> Tensor:  # fmt: skip
        scores = torch.addmm(offset, h, table.T)
        if trail is not None:
            scores.add_(trail, alpha=float(alpha))
        kernels.mask_taken(scores.numpy(), *taken)
        largest = torch.maximum(scores.amax(1), positive)
        powers = scores.sub_(largest[:, None]).exp_()
        total = powers.sum(1) + (positive - largest).exp()
        result = total.log() + largest
        features = torch.zeros(0) if trail is None else trail
        ctx.save_for_backward(h, table, total, (positive - result).exp(), powers, features)
        return result

    @staticmethod
    def backward(ctx: FunctionCtx, slope: Tensor) -> tuple[Tensor | None, ...]:
        h, table, total, share, powers, trail = ctx.saved_tensors  # type: ignore[attr-defined]
        slopes = powers.mul_((slope / total)[:, None])  # by scores; in place, as there is one backward pass
        alpha = torch.dot(slopes.flatten(), trail.flatten()) if len(trail) else None
        return slopes @ table, slopes.T @ h, slopes.sum(0), alpha, slope * share, None, None
