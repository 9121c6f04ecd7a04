"""Items by embedding and a private linear scorer, as PFedRec and FedRAP write it.

    score_j = <item_j, user> + bias                 `scorer`: the embedding is everybody's
    score_j = <item_j + own_j, user> + bias         `additive`: common + own

Embeddings start as N(0, 1), the scorer as U(-1/sqrt k, 1/sqrt k): the papers' step sizes are made for these.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from ..core import Examples, Model, Params


def scorer(items: int, *, k: int = 32) -> Model:
    """A shared embedding of k numbers an item; everybody's own scorer reads it."""
    return _embedding(items, k, own=False)


def additive(items: int, *, k: int = 32) -> Model:
    """As `scorer`, where everybody also has an embedding of their own that is added to the common one."""
    return _embedding(items, k, own=True)


def _embedding(items: int, k: int, own: bool) -> Model:
    def init(generator: torch.Generator) -> Params:
        flat = (2 * torch.rand(k + 1, generator=generator) - 1) / k**0.5
        params = {"item": torch.randn(items, k, generator=generator), "user": flat[:k], "bias": flat[k]}
        return params | ({"own": torch.randn(items, k, generator=generator)} if own else {})

    def table(params: Params, inputs: Tensor) -> Tensor:
        return params["item"][inputs] + params["own"][inputs] if own else params["item"][inputs]

    def score(params: Params, inputs: Tensor) -> Tensor:
        return table(params, inputs) @ params["user"] + params["bias"]

    def loss(params: Params, batch: Examples) -> Tensor:
        each = functional.binary_cross_entropy_with_logits(score(params, batch.inputs), batch.targets, reduction="none")
        return (each * batch.mask).sum() / batch.mask.sum().clamp(min=1)

    rows = ("item", "own") if own else ("item",)
    return Model(init, loss, score, rows, ("user", "bias", "own"), None, "bce", items, table)
