"""Matrix factorisation: a person likes an item as much as their vectors agree.

    score_j = <item_j, user>                                      implicit feedback (`biases=False`)
    score_j = mean + item_bias_j + user_bias + <item_j, user>     ratings (`biases=True`)

The person's bias is the last entry of `user`, so that everything personal is one vector and is linear in the score:
`design` gives features and offset, and a person can be rebuilt by one ridge solve.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from ..core import Examples, Model, Params


def factorization(
    items: int,
    *,
    k: int = 32,
    loss: Literal["bce", "squared"] = "bce",
    biases: bool = False,
    spread: float = 0.1,
    mean: float = 0.0,
) -> Model:
    """k factors; `spread` is the standard deviation of a fresh vector's length; `mean` is where ratings start from."""

    def init(generator: torch.Generator) -> Params:
        scale = spread / k**0.5
        params = {
            "item": scale * torch.randn(items, k, generator=generator),
            "user": scale * torch.randn(k, generator=generator),
        }
        if biases:
            params["user"] = torch.cat([params["user"], torch.zeros(1)])
            params |= {"item_bias": torch.zeros(items), "mean": torch.tensor(float(mean))}
        return params

    def design(params: Params, inputs: Tensor) -> tuple[Tensor, Tensor]:
        features = params["item"][inputs]  # [n, k]
        if not biases:
            return features, torch.zeros(features.shape[:-1])
        ones = torch.ones_like(features[..., :1])
        return torch.cat([features, ones], -1), params["item_bias"][inputs] + params["mean"]

    def score(params: Params, inputs: Tensor) -> Tensor:
        features, offset = design(params, inputs)
        return features @ params["user"] + offset

    def batch_loss(params: Params, batch: Examples) -> Tensor:
        scores = score(params, batch.inputs)
        if loss == "bce":
            each = functional.binary_cross_entropy_with_logits(scores, batch.targets, reduction="none")
        else:
            each = (scores - batch.targets) ** 2
        return (each * batch.mask).sum() / batch.mask.sum().clamp(min=1)

    rows = ("item", "item_bias") if biases else ("item",)
    return Model(
        init, batch_loss, score, rows, ("user",), design, loss, items, lambda params, inputs: params["item"][inputs]
    )
