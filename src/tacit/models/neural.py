"""Models that are not factorisations. Here: linear regression, the worked example of federated learning."""

from __future__ import annotations

import torch
from torch import Tensor

from ..core import Examples, Model, Params


def linear(features: int, *, bias: bool = False) -> Model:
    """target = <weight, x> (+ bias), squared loss; starts from zero."""

    def init(generator: torch.Generator) -> Params:
        return {"weight": torch.zeros(features)} | ({"bias": torch.zeros(())} if bias else {})

    def score(params: Params, inputs: Tensor) -> Tensor:
        return inputs @ params["weight"] + (params["bias"] if bias else 0.0)

    def loss(params: Params, batch: Examples) -> Tensor:
        each = (score(params, batch.inputs) - batch.targets) ** 2
        return (each * batch.mask).sum() / batch.mask.sum().clamp(min=1)

    return Model(init, loss, score, loss_name="squared")
