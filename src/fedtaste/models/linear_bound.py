"""Curvature bound of linear models: the largest eigenvalue of a client's second-moment matrix."""

from __future__ import annotations

import torch
from torch import Tensor

from fedtaste.core import Examples


def largest_eigenvalue(batch: Examples) -> Tensor:
    """The largest eigenvalue of the mean of x x' over the real examples of a batch."""
    x = batch.inputs.flatten(1) * batch.mask[:, None] / batch.mask.sum().clamp(min=1).sqrt()
    values: Tensor = torch.linalg.eigvalsh(x.T @ x if x.shape[1] <= x.shape[0] else x @ x.T)
    return values[-1]
