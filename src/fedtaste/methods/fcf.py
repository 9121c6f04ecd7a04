"""FCF: federated collaborative filtering (Ammad-ud-din et al. 2019). Exact user vectors; gradient steps on items.

The objective is that of FedALS. A device sends the gradient of its own items,
    sum over its items j of  (<v_j, u> - 1) u + lam v_j,
and u u' once, from which the server adds what all other items contribute, alpha0 (V U'U + lam n V): the same
sum as if every device had sent a gradient for the whole catalogue. The server steps by Adam, as the paper does.
"""

from __future__ import annotations

import torch

from fedtaste.core import Download, Examples, Fast, Method, Model, Params, Upload
from fedtaste.errors import SettingError
from fedtaste.methods.descent import item_counts
from fedtaste.methods.fedals import fedals, unread_by_solver
from fedtaste.methods.registry import define
from fedtaste.methods.search_space import SOLVES, Around
from fedtaste.methods.server_optimizers import server_step
from fedtaste.signature import NonNegative

TAU = 1e-6  # the mean gradient of an item that few people have is small


@define(defaults={"ranking": {"lr": 0.05}}, unread=unread_by_solver, search={**SOLVES, "lr": Around(10)})
def fcf(model: Model, *, lam: NonNegative = 0.01, alpha0: NonNegative = 0.3, lr: NonNegative = 0.05) -> Method:
    """`lr` is the server's learning rate (gamma); `lam` (lambda, the regularisation) and `alpha0` (the weight of items
    that a person did not take) are as in FedALS."""
    if model.kind != "factorization":
        raise SettingError(
            "fcf ranks with model=factorization. Leave model out, or use fedals for ratings, fedavg for features."
        )
    exact = fedals(model, lam=lam, alpha0=alpha0, recency=1.0)
    step = server_step("adam", lr=lr, tau=TAU)

    def client(download: Download, own: Params, examples: Examples) -> tuple[Upload, Params]:
        user, item = exact.personalize(download.params, own, examples)["user"], download.params["item"]
        count = item_counts(examples, item.shape[0])
        gradient = count[:, None] * ((item @ user - 1)[:, None] * user + lam * item)
        return Upload({"item": gradient, "square": user[:, None] * user}, torch.ones(())), {}

    def server(shared: Params, memory: Params, upload: Upload) -> tuple[Params, Params]:
        item, square = shared["item"], upload.total["square"]
        gradient = upload.total["item"] + alpha0 * (item @ square + lam * upload.weight * item)
        moved, memory = step({"item": item}, memory, Upload({"item": -gradient}, upload.weight))
        return moved | {"gram": moved["item"].T @ moved["item"]}, memory

    return exact.replace(client=client, server=server, rows=model.rows, fast=Fast(), sums=False, takes_turns=("turns",))
