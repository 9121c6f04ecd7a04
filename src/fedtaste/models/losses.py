"""Binary cross-entropy and squared loss of a padded batch; the eigenvalue that bounds a linear model's curvature."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from fedtaste.core import Examples, Params

Score = Callable[[Params, Tensor], Tensor]


def masked_mean(each: Tensor, mask: Tensor) -> Tensor:
    """The mean over real examples; 0 for a batch of pure padding."""
    return (each * mask).sum() / mask.sum().clamp(min=1)


def batch_loss(score: Score, name: Literal["bce", "squared"]) -> Callable[[Params, Examples], Tensor]:
    """Binary cross-entropy of scores as logits, or their squared error."""

    def loss(params: Params, batch: Examples) -> Tensor:
        scores = score(params, batch.inputs)
        if name == "bce":
            each = functional.binary_cross_entropy_with_logits(scores, batch.targets, reduction="none")
        else:
            each = (scores - batch.targets) ** 2
        return masked_mean(each, batch.mask)

    return loss


def largest_eigenvalue(batch: Examples) -> Tensor:
    """The largest eigenvalue of the mean of x x' over the real examples of a batch."""
    x = batch.inputs.flatten(1) * batch.mask[:, None] / batch.mask.sum().clamp(min=1).sqrt()
    values: Tensor = torch.linalg.eigvalsh(x.T @ x if x.shape[1] <= x.shape[0] else x @ x.T)
    return values[-1]
