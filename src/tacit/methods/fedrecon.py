"""FedRecon: Federated Reconstruction (Singhal et al., NeurIPS 2021).

Nothing private is stored. Every round a person rebuilds their own part from the support half of their data
with the shared part frozen, then improves the shared part on the query half. People who never trained are served alike.
Where we depart: support and query are split by example, never by batch (the released code leaves a person with one
batch without a query); the fresh private start is drawn once, the same for everybody and every round, so that a client
is a deterministic function; `solver="exact"` rebuilds by one ridge solve in place of gradient steps.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch

from ..core import Download, Examples, Method, Model, Params, Upload
from ..engine import kernels
from ..errors import SettingError
from ..local import change, descend, halves, nest, ridge, split, unnest, whole
from ..recipes import Recipe, cost


def fedrecon(
    model: Model,
    *,
    solver: Literal["gradient", "exact"] = "gradient",
    lr: float = 1.0,
    passes: int = 1,
    recon_lr: float = 1.0,
    recon_passes: int = 5,
    lam: float = 0.05,
    prior: float = 1.0,
    support: float = 0.5,
    joint: bool = False,
) -> Method:
    """Rebuild the private part on `support` of the examples, step the shared part on the others.

    `recon_lr` and `recon_passes` are the gradient solver's; the exact one's ridge is `lam` x (examples + `prior`), so
    that a short history counts for less; `joint` lets the private part move along in the second phase.
    """
    exact = solver == "exact"
    if exact and (model.design is None or model.loss_name != "squared"):
        raise SettingError(
            f"solver=exact needs a factorisation with squared loss; this model's loss is {model.loss_name!r}. "
            "Add --set loss=squared, or use solver=gradient."
        )

    def init(params: Params) -> tuple[Params, Params]:
        shared, own = split(params, model.private)
        return shared | ({} if exact else nest("start", own)), {}  # everybody rebuilds from the same start

    def personalize(shared: Params, own: Params, held: Examples) -> Params:
        if not exact:
            start = unnest("start", shared)
            return descend(model, shared | start, held, recon_lr, start, recon_passes)
        one = whole(held)
        mask = one.mask[0]
        features, offset = model.design(shared, one.inputs[0])  # type: ignore[misc]
        size = features.shape[-1]
        strength = lam * (mask.sum() + prior)
        return shared | {"user": ridge(features, one.targets[0] - offset, mask, torch.zeros(size, size), strength)}

    def client(down: Download, own: Params, held: Examples) -> tuple[Upload, Params]:
        rebuild, query = halves(held, support)
        params = personalize(down.params, own, rebuild)
        learnt = {name: value for name, value in down.params.items() if not name.startswith("start.")}
        personal = [name for name in params if name not in down.params] if joint else []
        params = descend(model, params, query, lr, [*learnt, *personal], passes)
        return change(params, learnt, query.mask.sum()), {}

    def kernel(down: Download, store: object, people: object, held: object) -> tuple[Upload, dict[str, int]]:
        return _fedrecon_kernel(down, held, model, exact, (support, lam, prior, recon_lr, recon_passes, lr, passes))

    steps = Recipe("descent", loss=cost(model), lr=recon_lr, passes=recon_passes)
    recipe = Recipe("ridge", lam, prior) if exact else steps
    fast = kernel if model.design is not None and not joint else None
    return Method(
        init, client, personalize=personalize, rows=model.rows, kernel=fast, recipe=recipe if model.design else None
    )


def _fedrecon_kernel(down, held, model, exact, settings):
    support, lam, prior, recon_lr, recon_passes, lr, passes = settings
    item = down.params["item"].numpy()
    biased = "item_bias" in down.params
    table = np.concatenate([item, np.ones((len(item), 1), np.float32)], 1) if biased else item
    offsets = (down.params["item_bias"] + down.params["mean"]).numpy() if biased else np.zeros(len(item), np.float32)
    start = down.params["start.user"] if not exact else torch.zeros(table.shape[1])
    d_item, d_bias, d_mean, weight, refused, empty = kernels.reconstruct(
        held.starts, held.inputs, held.targets, held.batch, table, offsets.astype(np.float64), start.double().numpy(),
        support, model.loss_name == "bce", exact, lam, prior, recon_lr, recon_passes, lr, passes, item.shape[1], biased,
    )  # fmt: skip
    total = {"item": torch.from_numpy(d_item.sum(0))}
    if biased:
        total |= {"item_bias": torch.from_numpy(d_bias.sum(0)), "mean": torch.tensor(d_mean.sum(), dtype=torch.float32)}
    upload = Upload(total, torch.tensor(weight.sum(), dtype=torch.float32))
    return upload, {"non-finite": int(refused.sum()), "weight": int(empty.sum())}
