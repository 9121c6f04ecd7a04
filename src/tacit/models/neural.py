"""Models that are not factorisations: linear regression, the worked example of federated learning; NeuMF."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from ..core import Examples, Model, Params
from ..local import widest


def linear(features: int, *, bias: bool = False) -> Model:
    """target = <weight, x> (+ bias), squared loss; starts from zero."""

    def init(generator: torch.Generator) -> Params:
        return {"weight": torch.zeros(features)} | ({"bias": torch.zeros(())} if bias else {})

    def score(params: Params, inputs: Tensor) -> Tensor:
        return inputs @ params["weight"] + (params["bias"] if bias else 0.0)

    def loss(params: Params, batch: Examples) -> Tensor:
        each = (score(params, batch.inputs) - batch.targets) ** 2
        return (each * batch.mask).sum() / batch.mask.sum().clamp(min=1)

    return Model(
        init,
        loss,
        score,
        loss_name="squared",
        features=lambda params, inputs: inputs,
        bound=lambda batch: 2 * (widest(batch) + (1.0 if bias else 0.0)),
    )


def ncf(items: int, *, k: int = 32) -> Model:
    """NeuMF (He et al., WWW 2017), as FedNCF uses it: k factors multiplied, and k others that meet the item's in layers
    of 4k, 2k, k, k/2, k/4; what is the person's is private, item tables and layers are shared."""
    sizes = [2 * k, 4 * k, 2 * k, k, max(1, k // 2), max(1, k // 4)]

    def init(generator: torch.Generator) -> Params:
        def normal(*shape: int, scale: float) -> Tensor:
            return scale * torch.randn(*shape, generator=generator)

        names = {"item_gmf": (items, k), "item_mlp": (items, k), "user_gmf": (k,), "user_mlp": (k,)}
        params = {name: normal(*shape, scale=0.1) for name, shape in names.items()}
        for layer, (wide, narrow) in enumerate(zip(sizes, sizes[1:])):
            params[f"layer{layer}.weight"] = normal(narrow, wide, scale=(2 / wide) ** 0.5)  # ReLU keeps the scale
            params[f"layer{layer}.bias"] = torch.zeros(narrow)
        last = k + sizes[-1]
        return params | {"head.weight": normal(last, scale=last**-0.5), "head.bias": torch.zeros(())}

    def last(params: Params, inputs: Tensor) -> Tensor:
        gmf, seen = params["item_gmf"][inputs] * params["user_gmf"], params["item_mlp"][inputs]
        mine, theirs = params["layer0.weight"].split(k, 1)  # the person's part is the same for every item
        met = torch.relu(seen @ theirs.T + (mine @ params["user_mlp"] + params["layer0.bias"]))
        for layer in range(1, len(sizes) - 1):
            met = torch.relu(met @ params[f"layer{layer}.weight"].T + params[f"layer{layer}.bias"])
        return torch.cat([gmf, met], -1)

    def score(params: Params, inputs: Tensor) -> Tensor:
        return last(params, inputs) @ params["head.weight"] + params["head.bias"]

    def loss(params: Params, batch: Examples) -> Tensor:
        each = functional.binary_cross_entropy_with_logits(score(params, batch.inputs), batch.targets, reduction="none")
        return (each * batch.mask).sum() / batch.mask.sum().clamp(min=1)

    return Model(init, loss, score, ("item_gmf", "item_mlp"), ("user_*",), None, "bce", items, last)
