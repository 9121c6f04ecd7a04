"""Item embeddings with a private linear scorer: the models of PFedRec and FedRAP.

    score_j = <item_j, user> + bias                 `scorer`: one embedding table for everybody
    score_j = <item_j + own_j, user> + bias         `additive`: a common table plus a table of one's own

Embeddings start as N(0, 1), the scorer as U(-1/sqrt k, 1/sqrt k), because the papers' step sizes are tuned for these.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedtaste.core import Model, ModelKind, Params
from fedtaste.models.losses import batch_loss
from fedtaste.signature import Count


def scorer(items: int, *, k: Count = 32) -> Model:
    """A shared embedding of `k` numbers per item, read by everybody's own scorer."""
    return _embedding(items, k, own=False)


def additive(items: int, *, k: Count = 32) -> Model:
    """As `scorer`, where everybody adds an embedding table of their own to the common one."""
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

    rows = ("item", "own") if own else ("item",)
    private = ("user", "bias", "own")
    kind: ModelKind = "additive" if own else "scorer"
    return Model(init, batch_loss(score, "bce"), score, rows, private, None, "bce", items, table, kind=kind)
