"""Baselines to compare methods with: popularity (not personal), local (not federated), centralised (pooled data)."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

import torch
from torch import Tensor

from fedtaste.core import Download, Examples, Fast, Method, Model, Params, Upload, step_by_mean
from fedtaste.errors import SettingError
from fedtaste.methods.descent import change, descend, flat_examples, item_counts, unsent
from fedtaste.methods.fedals import DEFAULTS, FedALS, ranking_defaults, unread_by_solver
from fedtaste.methods.registry import define
from fedtaste.methods.search_space import SOLVES, Around, LogRange
from fedtaste.methods.server_optimizers import SERVER
from fedtaste.methods.shrinkage import shrunk
from fedtaste.params import split
from fedtaste.signature import Count, NonNegative, Share, Values


@dataclass(frozen=True, eq=False)
class Popularity:
    """The same scores for everybody: an item's score is how many people have it, relative to the most popular item, or
    its mean rating. Every device sends its items once, and later only those that are new, so one round is enough. In a
    ranking with noise and public item features, counts are shrunk towards their fit on the features."""

    model: Model
    _: KW_ONLY
    shrink: NonNegative = 5.0  # imaginary ratings that draw an item's mean towards everybody's
    noise: NonNegative = 0.0  # the wire adds noise of deviation `noise` x `clip` to the sum
    clip: NonNegative = 1.0
    features: Tensor | None = None  # [items, columns]

    @property
    def ratings(self) -> bool:
        return self.model.kind == "rating_factorization"

    def method(self) -> Method:
        if not self.model.catalogue:
            raise SettingError("popularity needs items. Use local or centralised as bounds for this data.")
        if self.model.design is None:
            raise SettingError("popularity has no factors to choose a model for. Leave model out.")
        rows = (*self.model.rows, "count", "stars")
        return Method(
            self.init, self.client, self.server, self.personalize, "history", rows, removal=self.removal, takes_turns=()
        )  # every row is sent once

    def init(self, params: Params) -> tuple[Params, Params]:
        shared = split(params, self.model.private)[0] | {"count": torch.zeros(self.model.catalogue)}
        shared["item"] = torch.zeros(self.model.catalogue, 1)  # one score for each item, and no factors
        return shared, {"sent": torch.zeros(())}  # private: how many items of the history have been counted

    def count(self, history: Examples, items: int) -> Params:
        counts = {"count": item_counts(history, items)}
        if self.ratings:  # in a ranking values are not read, and sending them would double what must be hidden
            counts["stars"] = item_counts(history._replace(mask=history.mask * history.targets), items)
        return counts

    def client(self, download: Download, own: Params, examples: Examples) -> tuple[Upload, Params]:
        history = flat_examples(examples)
        new = history._replace(mask=unsent(history.mask, own["sent"]))
        total = self.count(new, download.params["item"].shape[0])
        return Upload(total, torch.ones(())), {"sent": torch.maximum(own["sent"], history.mask.sum())}

    def removal(self, download: Download, own: Params, examples: Examples) -> tuple[Upload, Params]:
        """A client that takes back what this device has sent: the counts of the first `sent` items, with a minus."""
        history = flat_examples(examples)
        counted = history._replace(mask=history.mask - unsent(history.mask, own["sent"]))
        total = self.count(counted, download.params["item"].shape[0])
        return Upload({name: -value for name, value in total.items()}, torch.ones(())), {"sent": torch.zeros(())}

    def server(self, shared: Params, memory: Params, upload: Upload) -> tuple[Params, Params]:
        memory = {name: value + memory.get(name, 0.0) for name, value in upload.total.items()} | {
            "sums": memory.get("sums", torch.zeros(())) + 1
        }
        count, item = memory["count"], torch.zeros_like(shared["item"])
        if not self.ratings:
            if self.features is not None and self.noise:
                deviation = self.noise * self.clip * float(memory["sums"]) ** 0.5  # every sum brings its own noise
                count = shrunk(count, self.features, deviation).float()
            item[:, 0] = (count + self.shrink) / (count.max().clamp(min=1) + self.shrink)
            return {"item": item, "count": count}, memory
        mean = memory["stars"].sum() / count.sum().clamp(min=1)
        bias = (memory["stars"] - count * mean) / (count + self.shrink)
        return {"item": item, "item_bias": bias, "mean": mean, "count": count}, memory

    def personalize(self, shared: Params, own: Params, examples: Examples) -> Params:
        width = shared["item"].shape[1] + self.ratings
        return shared | {"user": torch.eye(width)[0]}  # reads the first column, or nothing but the biases


def _unread_by_popularity(task: str, values: Values) -> dict[str, str]:
    unread = dict.fromkeys(("model", "k", "spread", "loss"), "popularity has no factors")
    return unread | ({"shrink": "it does not change an order"} if task == "ranking" else {})


popularity = define(
    defaults={"ranking": {"rounds": 1}, "ratings": {"rounds": 1}},
    unread=_unread_by_popularity,
)(Popularity)


@define(
    defaults={"ranking": {"rounds": 3, "lr": 1.0}},
    unread=lambda task, values: dict.fromkeys(SERVER, "local sends nothing, so its server has nothing to do"),
    search={"k": Around(2), "negatives": LogRange(1, 16), "lr": Around(10), "passes": LogRange(1, 20)},
)
def local(model: Model, *, lr: NonNegative = 1.0, passes: Count = 5) -> Method:
    """Everybody learns from their own data alone, by `passes` epochs of SGD at rate `lr` a round; nothing is sent."""

    def client(download: Download, own: Params, examples: Examples) -> tuple[Upload, Params]:
        return Upload({}, examples.mask.sum()), descend(model, own, examples, lr, own, passes)

    return Method(lambda params: ({}, params), client, rows=model.rows)


def _unread_by_centralised(task: str, values: Values) -> dict[str, str]:
    if task in ("ranking", "ratings"):
        return unread_by_solver(task, values) | dict.fromkeys(
            ("lr", "passes"), f"centralised does not read it for {task}"
        )
    reason = f"centralised does not read it for {'labels' if task == 'pictures' else task}"
    return dict.fromkeys(("lam", "alpha0", "recency", "floor"), reason)


@define(
    defaults=DEFAULTS,
    scaled={"ranking": ranking_defaults},
    unread=_unread_by_centralised,
    search={**SOLVES, "lr": Around(10)},
)
def centralised(
    model: Model,
    *,
    lam: NonNegative = 0.01,  # lambda, the regularisation of FedALS
    alpha0: NonNegative = 0.3,  # alpha0, weight of items that a person did not take, as in FedALS
    recency: Share = 0.75,  # a person's own items are weighted by age, as in FedALS
    floor: Share = 0.02,
    lr: NonNegative = 0.1,  # learning rate of models that are no factorisation
    passes: Count = 1,  # epochs per round, likewise
) -> Method:
    """One place holds everybody's data. A factorisation alternates exact solves over the pooled table, with FedALS's
    objective and its way of serving; any other model descends over everybody's examples."""
    if model.design is not None:
        method = PooledALS(model, lam=lam, alpha0=alpha0, recency=recency, floor=floor).method()
        return method.replace(server=step_by_mean, rows=(), fast=Fast(), pooled=True)
    if model.catalogue:
        raise SettingError("centralised needs model=factorization where there are items. Leave model out.")

    def descent(download: Download, own: Params, examples: Examples) -> tuple[Upload, Params]:
        params = descend(model, download.params, examples, lr, download.params, passes)
        return change(params, download.params, torch.ones(())), {}

    return Method(lambda params: (params, {}), descent, pooled=True)


class PooledALS(FedALS):
    """FedALS whose one client holds everybody's examples: inputs are pairs (person, item), and a round is one sweep of
    alternating least squares."""

    def solve_side(self, table: Tensor, here: Tensor, there: Tensor, targets: Tensor, n: int) -> Tensor:
        """The exact rows of one side [n, p], from the other side's `table` and pairs of row numbers (here, there)."""
        count = torch.bincount(here, minlength=n)
        groups = torch.split(here.argsort(stable=True), count.tolist())
        extra = 0 if self.ratings else self.alpha0 * table.T @ table
        size = table.shape[1]
        system, right = torch.zeros(n, size, size, dtype=torch.float64), torch.zeros(n, size, dtype=torch.float64)
        for row, pairs in enumerate(groups):
            x = table[there[pairs]]
            system[row], right[row] = x.T @ x, x.T @ targets[pairs]
        strength = self.lam * (count.double() + (0 if self.ratings else self.alpha0 * len(table)))
        strength[strength == 0] = 1.0  # a row without pairs is zero, whatever regularises it
        ridge = strength[:, None, None] * torch.eye(size, dtype=torch.float64)
        rows: Tensor = torch.linalg.solve(system + extra + ridge, right)
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
