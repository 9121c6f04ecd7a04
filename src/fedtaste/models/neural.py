"""Linear regression (`linear`), and NeuMF, neural collaborative filtering (`ncf`)."""

from __future__ import annotations

import torch
from torch import Tensor

from fedtaste.core import Model, Params
from fedtaste.models.losses import batch_loss, largest_eigenvalue
from fedtaste.signature import Count


def linear(features: int, *, bias: bool = False) -> Model:
    """target = <weight, x> (+ bias), squared loss; starts from zero."""

    def init(generator: torch.Generator) -> Params:
        return {"weight": torch.zeros(features)} | ({"bias": torch.zeros(())} if bias else {})

    def score(params: Params, inputs: Tensor) -> Tensor:
        return inputs @ params["weight"] + (params["bias"] if bias else 0.0)

    return Model(
        init,
        batch_loss(score, "squared"),
        score,
        loss_name="squared",
        features=lambda params, inputs: inputs,
        bound=lambda batch: 2 * (largest_eigenvalue(batch) + (1.0 if bias else 0.0)),
        kind="linear",
    )


def ncf(items: int, *, k: Count = 32) -> Model:
    """NeuMF (He et al., WWW 2017), as FedNCF uses it: `k` factors of person and item are multiplied, `k` others go
    through layers of 4k, 2k, k, k/2, k/4. The person's factors are private; item tables and layers are shared."""
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

    def last_inputs(params: Params, inputs: Tensor) -> Tensor:
        product = params["item_gmf"][inputs] * params["user_gmf"]
        of_user, of_item = torch.split(params["layer0.weight"], k, 1)
        user = of_user @ params["user_mlp"] + params["layer0.bias"]  # the same for every item
        hidden = torch.relu(params["item_mlp"][inputs] @ of_item.T + user)
        for layer in range(1, len(sizes) - 1):
            hidden = torch.relu(hidden @ params[f"layer{layer}.weight"].T + params[f"layer{layer}.bias"])
        return torch.cat([product, hidden], -1)

    def score(params: Params, inputs: Tensor) -> Tensor:
        return last_inputs(params, inputs) @ params["head.weight"] + params["head.bias"]

    rows = ("item_gmf", "item_mlp")
    loss = batch_loss(score, "bce")
    return Model(init, loss, score, rows, ("user_*",), None, "bce", items, last_inputs, kind="ncf")
