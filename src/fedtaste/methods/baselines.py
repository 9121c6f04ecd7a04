"""Baselines that bound every method: popularity (no taste), local (no federation), centralised (no privacy)."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

import torch
from torch import Tensor

from fedtaste.core import Download, Examples, Fast, Method, Model, Params, Upload, step_by_mean
from fedtaste.errors import SettingError
from fedtaste.methods.descent import change, descend, flat_examples
from fedtaste.methods.fedals import fedals, unread_by_solver
from fedtaste.methods.registry import define, not_read
from fedtaste.methods.server_optimizers import SERVER
from fedtaste.methods.shrinkage import shrunk
from fedtaste.params import split
from fedtaste.signature import Count, NonNegative, Share, Values


@dataclass(frozen=True, eq=False)
class Popularity:
    """No taste at all: an item's score is how many people have it, or its mean rating. One round.

    `shrink` is a number of imaginary ratings that draw an item's mean towards everybody's. Where the wire adds `noise`
    x `clip` to the sum and items have public `features` [items, columns], counts are shrunk towards their fit on the
    features (ranking only)."""

    model: Model
    _: KW_ONLY
    shrink: NonNegative = 5.0
    noise: NonNegative = 0.0
    clip: NonNegative = 1.0
    features: Tensor | None = None

    @property
    def ratings(self) -> bool:
        return self.model.kind == "rating_factorization"

    def method(self) -> Method:
        if not self.model.catalogue:
            raise SettingError("popularity needs items. Use local or centralised as bounds for this data.")
        if self.model.design is None:
            raise SettingError("popularity has no factors to choose a model for. Leave model out.")
        rows = (*self.model.rows, "count", "stars")
        return Method(self.init, self.client, self.server, self.personalize, "history", rows)

    def init(self, params: Params) -> tuple[Params, Params]:
        return split(params, self.model.private)[0] | {"count": torch.zeros(self.model.catalogue)}, {}

    def client(self, download: Download, own: Params, examples: Examples) -> tuple[Upload, Params]:
        flat, rows = flat_examples(examples), torch.zeros(download.params["item"].shape[0])
        total = {"count": rows.index_add(0, flat.inputs, flat.mask)}
        if self.ratings:  # in a ranking values are not read, and sending them would double what must be hidden
            total["stars"] = rows.index_add(0, flat.inputs, flat.mask * flat.targets)
        return Upload(total, torch.ones(())), {}

    def server(self, shared: Params, memory: Params, upload: Upload) -> tuple[Params, Params]:
        count, item = upload.total["count"], torch.zeros_like(shared["item"])
        if not self.ratings:
            if self.features is not None and self.noise:
                count = shrunk(count, self.features, self.noise * self.clip).float()
            item[:, 0] = (count + self.shrink) / (upload.weight + self.shrink)
            return {"item": item, "count": count}, memory
        stars = upload.total["stars"]
        mean = stars.sum() / count.sum()
        bias = (stars - count * mean) / (count + self.shrink)
        return {"item": item, "item_bias": bias, "mean": mean, "count": count}, memory

    def personalize(self, shared: Params, own: Params, examples: Examples) -> Params:
        width = shared["item"].shape[1] + self.ratings
        return shared | {"user": torch.eye(width)[0]}  # reads the first column, or nothing but the biases


def _unread_by_popularity(task: str, values: Values) -> dict[str, str]:
    unread = not_read(("model", "k", "spread", "loss"), "popularity has no factors")
    return unread | ({"shrink": "it does not change an order"} if task == "ranking" else {})


popularity = define(
    defaults={"ranking": {"rounds": 1}, "ratings": {"rounds": 1}},
    unread=_unread_by_popularity,
)(Popularity)


@define(
    defaults={"ranking": {"rounds": 3, "lr": 1.0}},
    unread=lambda task, values: not_read(tuple(SERVER), "local sends nothing, so its server has nothing to do"),
)
def local(model: Model, *, lr: NonNegative = 1.0, passes: Count = 5) -> Method:
    """Everybody learns from their own data alone, by `passes` epochs of SGD at rate `lr` a round; nothing is sent."""

    def client(download: Download, own: Params, examples: Examples) -> tuple[Upload, Params]:
        return Upload({}, examples.mask.sum()), descend(model, own, examples, lr, own, passes)

    return Method(lambda params: ({}, params), client, rows=model.rows)


def _unread_by_centralised(task: str, values: Values) -> dict[str, str]:
    if task in ("ranking", "ratings"):
        return unread_by_solver(task, values) | not_read(("lr", "passes"), f"centralised does not read it for {task}")
    reason = f"centralised does not read it for {'labels' if task == 'pictures' else task}"
    return not_read(("lam", "alpha0", "recency", "floor"), reason)


@define(
    defaults={
        "ranking": {"rounds": 8, "patience": 0},
        "ratings": {"rounds": 12, "lam": 0.1, "recency": 1.0, "patience": 0},
    },
    unread=_unread_by_centralised,
)
def centralised(
    model: Model,
    *,
    lam: NonNegative = 0.01,
    alpha0: NonNegative = 0.3,
    recency: Share = 0.75,
    floor: Share = 0.02,
    lr: NonNegative = 0.1,
    passes: Count = 1,
) -> Method:
    """One place holds everybody's data. A factorisation alternates exact solves over the pooled table, with FedALS's
    objective and its way of serving (`lam`, `alpha0`, `recency`, `floor`); any other model descends over everybody's
    examples at rate `lr`, `passes` times a round."""
    if model.design is not None:
        served = fedals(model, lam=lam, alpha0=alpha0, recency=recency, floor=floor)
        client = PooledALS(model, lam, alpha0).client
        return served.replace(client=client, server=step_by_mean, rows=(), fast=Fast(), pooled=True)
    if model.catalogue:
        raise SettingError("centralised needs model=factorization where there are items. Leave model out.")

    def descent(download: Download, own: Params, examples: Examples) -> tuple[Upload, Params]:
        params = descend(model, download.params, examples, lr, download.params, passes)
        return change(params, download.params, torch.ones(())), {}

    return Method(lambda params: (params, {}), descent, pooled=True)


@dataclass(frozen=True, eq=False)
class PooledALS:
    """One sweep of alternating least squares over the pooled examples, whose inputs are pairs (person, item)."""

    model: Model
    lam: float
    alpha0: float

    @property
    def ratings(self) -> bool:
        return self.model.kind == "rating_factorization"

    def solve_side(self, table: Tensor, to: Tensor, at: Tensor, targets: Tensor, n: int) -> Tensor:
        """The exact rows of one side [n, p], given the other side's `table` and the pairs (to, at)."""
        order = to.argsort(stable=True)
        groups = torch.split(order, torch.bincount(to, minlength=n).tolist())
        extra = 0 if self.ratings else self.alpha0 * table.T @ table
        size = table.shape[1]
        system, right = torch.zeros(n, size, size, dtype=torch.float64), torch.zeros(n, size, dtype=torch.float64)
        for row, pairs in enumerate(groups):
            x = table[at[pairs]]
            system[row], right[row] = x.T @ x, x.T @ targets[pairs]
        count = torch.tensor([len(pairs) for pairs in groups], dtype=torch.float64)
        strength = self.lam * (count if self.ratings else count + self.alpha0 * len(table))
        strength[strength == 0] = 1.0  # a row without pairs is zero, whatever regularises it
        rows: Tensor = torch.linalg.solve(
            system + extra + strength[:, None, None] * torch.eye(size, dtype=torch.float64), right
        )
        return rows

    def client(self, download: Download, own: Params, examples: Examples) -> tuple[Upload, Params]:
        person, item = examples.inputs.reshape(-1, 2).T
        person = torch.unique(person, return_inverse=True)[1]
        p = {name: value.double() for name, value in download.params.items()}
        n, items = int(person.max()) + 1, self.model.catalogue
        if self.ratings:
            target, one = examples.targets.flatten().double(), torch.ones(items, 1, dtype=torch.float64)
            table = torch.cat([p["item"], one], 1)
            users = self.solve_side(table, person, item, target - p["item_bias"][item] - p["mean"], n)
            residual = target - users[person, -1] - p["mean"]
            table = torch.cat([users[:, :-1], one[:1].expand(n, 1)], 1)
            both = self.solve_side(table, item, person, residual, items)
            after = {"item": both[:, :-1], "item_bias": both[:, -1], "mean": p["mean"]}
        else:
            target = torch.ones(len(item), dtype=torch.float64)
            users = self.solve_side(p["item"], person, item, target, n)
            after = {"item": self.solve_side(users, item, person, target, items)}
            after["gram"] = after["item"].T @ after["item"]
        return Upload({name: (value - p[name]).float() for name, value in after.items()}, torch.ones(())), {}
