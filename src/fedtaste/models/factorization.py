"""Matrix factorisation: the score of an item is the inner product of its vector and the person's.

    score_j = <item_j, user>                                      implicit feedback (`biases=False`)
    score_j = mean + item_bias_j + user_bias + <item_j, user>     ratings (`biases=True`)

The person's bias is the last entry of `user`. So everything personal is one vector, in which the score is linear:
`design` gives features and offset, and one ridge solve rebuilds a person.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from fedtaste.core import Model, ModelKind, Params
from fedtaste.models.losses import Score, batch_loss
from fedtaste.signature import Count, NonNegative


def factorization(
    items: int,
    *,
    k: Count = 32,
    loss: Literal["bce", "squared"] = "bce",
    biases: bool = False,
    spread: NonNegative = 0.1,
    mean: float = 0.0,
) -> Model:
    """`k` factors per item and person; vectors start as N(0, spread^2 / k); `mean` is where ratings start from."""

    def init(generator: torch.Generator) -> Params:
        item, user = torch.randn(items, k, generator=generator), torch.randn(k, generator=generator)
        params = {"item": spread / k**0.5 * item, "user": spread / k**0.5 * user}
        if biases:
            params["user"] = torch.cat([params["user"], torch.zeros(1)])
            params |= {"item_bias": torch.zeros(items), "mean": torch.tensor(float(mean))}
        return params

    def design(params: Params, inputs: Tensor) -> tuple[Tensor, Tensor]:
        features = params["item"][inputs]  # [n, k]
        if not biases:
            return features, torch.zeros(features.shape[:-1])
        features = torch.cat([features, torch.ones_like(features[..., :1])], -1)
        return features, params["item_bias"][inputs] + params["mean"]

    def score(params: Params, inputs: Tensor) -> Tensor:
        features, offset = design(params, inputs)
        return features @ params["user"] + offset

    rows = ("item", "item_bias") if biases else ("item",)
    kind: ModelKind = "rating_factorization" if biases else "factorization"
    table: Score = lambda params, inputs: params["item"][inputs]
    return Model(init, batch_loss(score, loss), score, rows, ("user",), design, loss, items, table, kind=kind)
