"""FedRecon: Federated Reconstruction of private parameters in every round (Singhal et al., NeurIPS 2021).

Nothing private is stored. Every round a person rebuilds their own part from the support half of their data with the
shared part frozen, then improves the shared part on the query half. People who never trained are served the same way.
Where we depart: support and query are split by example, never by batch (the released code leaves a person with one
batch without a query); the private part starts from one draw, the same for everybody and every round, so that a client
is a deterministic function; `solver="exact"` rebuilds by one ridge solve in place of gradient steps.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Literal

import numpy as np
import torch

from fedtaste.core import Cohort, Download, Examples, Fast, Method, Model, Params, Upload, recipe_loss
from fedtaste.errors import SettingError
from fedtaste.kernels import als as kernels
from fedtaste.methods.descent import change, descend, flat_examples, ridge, split_support_query
from fedtaste.methods.registry import define
from fedtaste.methods.search_space import DESCENT, Around
from fedtaste.params import nest, split, unnest
from fedtaste.recipe import Recipe
from fedtaste.signature import Count, NonNegative, Share, Values


@dataclass(frozen=True, eq=False)
class FedRecon:
    """Rebuild the private part from the support half, then improve the shared part on the query half."""

    model: Model
    _: KW_ONLY
    solver: Literal["gradient", "exact"] = "gradient"  # how the private part is rebuilt: by steps, or by a ridge solve
    lr: NonNegative = 1.0  # eta_u, learning rate of the shared part
    passes: Count = 1  # k_u, epochs of the shared part
    recon_lr: NonNegative = 1.0  # eta_r, learning rate of the rebuilt private part
    recon_passes: Count = 5  # k_r, epochs of the rebuilt private part
    lam: NonNegative = 0.05  # solver=exact: the regularisation is lam x (examples + prior)
    prior: NonNegative = 1.0  # imaginary examples, so that a short history counts for less
    support: Share = 0.5  # share of the examples that rebuild
    joint: bool = False  # the private part moves along with the shared one

    @property
    def exact(self) -> bool:
        return self.solver == "exact"

    def method(self) -> Method:
        method = Method(self.init, self.client, personalize=self.personalize, rows=self.model.rows)
        linear = self.model.design is not None
        if self.exact and not (linear and self.model.loss_name == "squared"):
            raise SettingError(
                f"solver=exact needs a factorisation with squared loss; this model's loss is {self.model.loss_name!r}. "
                "Add --set loss=squared, or use solver=gradient."
            )
        if not linear:
            return method
        recipe = Recipe("descent", loss=recipe_loss(self.model), lr=self.recon_lr, passes=self.recon_passes)
        if self.exact:
            recipe = Recipe("ridge", self.lam, self.prior)
        return method.replace(recipe=recipe, fast=Fast() if self.joint else Fast(self.kernel))

    def init(self, params: Params) -> tuple[Params, Params]:
        shared, own = split(params, self.model.private)
        return shared | ({} if self.exact else nest("start", own)), {}  # everybody rebuilds from the same start

    def personalize(self, shared: Params, own: Params, examples: Examples) -> Params:
        if not self.exact:
            start = unnest("start", shared)
            return descend(self.model, shared | start, examples, self.recon_lr, start, self.recon_passes)
        assert self.model.design is not None
        flat = flat_examples(examples)
        features, offset = self.model.design(shared, flat.inputs)
        size, strength = features.shape[-1], self.lam * (flat.mask.sum() + self.prior)
        return shared | {"user": ridge(features, flat.targets - offset, flat.mask, torch.zeros(size, size), strength)}

    def client(self, download: Download, own: Params, examples: Examples) -> tuple[Upload, Params]:
        support, query = split_support_query(examples, self.support)
        params = self.personalize(download.params, own, support)
        shared = {name: value for name, value in download.params.items() if not name.startswith("start.")}
        personal = [name for name in params if name not in download.params] if self.joint else []
        params = descend(self.model, params, query, self.lr, [*shared, *personal], self.passes)
        return change(params, shared, query.mask.sum()), {}

    def kernel(self, download: Download, cohort: Cohort) -> tuple[Upload, dict[str, int]]:
        """`client` for a cohort, compiled."""
        shared, examples = download.params, cohort.examples
        item, table = shared["item"].numpy(), shared["item"].numpy()
        offsets, biased = np.zeros(len(item), np.float32), self.model.kind == "rating_factorization"
        if biased:
            table = np.concatenate([item, np.ones((len(item), 1), np.float32)], 1)
            offsets = (shared["item_bias"] + shared["mean"]).numpy()
        start = torch.zeros(table.shape[1]) if self.exact else shared["start.user"]
        d_item, d_bias, d_mean, weight, rejected, empty = kernels.reconstruct(
            examples.starts, examples.inputs, examples.targets, examples.batch, table, offsets.astype(np.float64),
            start.double().numpy(), self.support, self.model.loss_name == "bce", self.exact, self.lam, self.prior,
            self.recon_lr, self.recon_passes, self.lr, self.passes, item.shape[1], biased,
        )  # fmt: skip
        total = {"item": torch.from_numpy(d_item.sum(0))}
        if biased:
            total["item_bias"] = torch.from_numpy(d_bias.sum(0))
            total["mean"] = torch.tensor(d_mean.sum(), dtype=torch.float32)
        upload = Upload(total, torch.tensor(weight.sum(), dtype=torch.float32))
        return upload, {"non-finite": int(rejected.sum()), "weight": int(empty.sum())}


def _unread(task: str, values: Values) -> dict[str, str]:
    names = ("recon_lr", "recon_passes") if values["solver"] == "exact" else ("lam", "prior")
    return dict.fromkeys(names, f"solver={values['solver']} does not read it")


fedrecon = define(
    defaults={
        "ranking": {"recon_lr": 20.0, "recon_passes": 10, "lam": 0.001},
        "ratings": {"lam": 0.1, "prior": 20.0, "recon_lr": 0.1, "recon_passes": 10},
        "pictures": {"recon_lr": 0.1},
    },
    unread=_unread,
    search={**DESCENT, "recon_lr": Around(10), "recon_passes": Around(4), "lam": Around(10), "prior": Around(10)},
)(FedRecon)
