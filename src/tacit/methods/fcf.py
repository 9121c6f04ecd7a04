"""FCF: federated collaborative filtering (Ammad-ud-din et al. 2019). People are solved exactly, items descend.

The objective is that of FedALS. A device sends the slope of its own items,
    sum over its items j of  (<v_j, u> - 1) u + lam v_j,
and u u' once, from which the server adds what everything not taken contributes, alpha0 (V U'U + lam n V): the same
sum as if every device had sent a slope for the whole catalogue. The server steps by Adam, as the paper does.
"""

from __future__ import annotations

import torch

from ..core import Download, Examples, Method, Model, Params, Upload
from ..errors import SettingError
from ..local import whole
from .fedals import fedals
from .servers import server_step

TAU = 1e-6  # the mean slope of an item that few people have is small


def fcf(model: Model, *, lam: float = 0.01, alpha0: float = 0.3, lr: float = 0.05) -> Method:
    """`lr` is the server's; `lam` and `alpha0` are as in FedALS."""
    if model.design is None or "item_bias" in model.rows:
        raise SettingError(
            "fcf ranks with model=factorization. Leave model out, or use fedals for ratings, fedavg for features."
        )
    exact = fedals(model, lam=lam, alpha0=alpha0, recency=1.0)
    step = server_step("adam", lr=lr, tau=TAU)

    def client(down: Download, own: Params, held: Examples) -> tuple[Upload, Params]:
        user, item = exact.personalize(down.params, own, held)["user"], down.params["item"]
        one = whole(held)
        taken = torch.zeros(item.shape[0]).index_add(0, one.inputs[0], one.mask[0])
        slope = taken[:, None] * ((item @ user - 1)[:, None] * user + lam * item)
        return Upload({"item": slope, "square": user[:, None] * user}, torch.ones(())), {}

    def server(shared: Params, memory: Params, upload: Upload) -> tuple[Params, Params]:
        item, square = shared["item"], upload.total["square"]
        slope = upload.total["item"] + alpha0 * (item @ square + lam * upload.weight * item)
        moved, memory = step({"item": item}, memory, Upload({"item": -slope}, upload.weight))
        return moved | {"gram": moved["item"].T @ moved["item"]}, memory

    return exact.but(client=client, server=server, rows=model.rows, kernel=None)
