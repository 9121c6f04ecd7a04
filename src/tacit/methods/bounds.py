"""The bounds that every method should be read against: popularity, local only, centralised."""

from __future__ import annotations

import torch

from ..core import Download, Examples, Method, Model, Params, Upload, step_by_mean
from ..errors import SettingError
from ..local import change, descend, split, whole
from .fedals import fedals
from .shrinkage import shrunk


def popularity(
    model: Model,
    *,
    shrink: float = 5.0,
    noise: float = 0.0,
    clip: float = 1.0,
    features: torch.Tensor | None = None,
) -> Method:
    """No taste at all. Ranking: how many people have the item; ratings: its mean rating, drawn towards everybody's mean
    by `shrink` imaginary ratings. One round. Where the wire adds `noise` x `clip` to the sum and items have public
    `features` [items, columns], counts are shrunk towards their fit on the features (ranking only)."""
    if not model.catalogue:
        raise SettingError("popularity needs items. Use local or centralised as bounds for this data.")
    if model.design is None:
        raise SettingError("popularity has no factors to choose a model for. Leave model out.")
    ratings = "item_bias" in model.rows

    def init(params: Params) -> tuple[Params, Params]:
        return split(params, model.private)[0] | {"count": torch.zeros(model.catalogue)}, {}

    def client(down: Download, own: Params, held: Examples) -> tuple[Upload, Params]:
        held = Examples(*(x[0] for x in whole(held)))
        rows = torch.zeros(down.params["item"].shape[0])
        count = rows.index_add(0, held.inputs, held.mask)
        if not ratings:  # values are not read, and sending them would double what must be hidden
            return Upload({"count": count}, torch.ones(())), {}
        stars = rows.index_add(0, held.inputs, held.mask * held.targets)
        return Upload({"count": count, "stars": stars}, torch.ones(())), {}

    def server(shared: Params, memory: Params, upload: Upload) -> tuple[Params, Params]:
        count, flat = upload.total["count"], torch.zeros_like(shared["item"])
        if not ratings:
            if features is not None and noise:
                count = shrunk(count, features, noise * clip).float()
            flat[:, 0] = (count + shrink) / (upload.weight + shrink)
            return {"item": flat, "count": count}, memory
        stars = upload.total["stars"]
        mean = stars.sum() / count.sum()
        bias = (stars - count * mean) / (count + shrink)
        return {"item": flat, "item_bias": bias, "mean": mean, "count": count}, memory

    def personalize(shared: Params, own: Params, held: Examples) -> Params:
        width = shared["item"].shape[1] + ratings
        return shared | {"user": torch.eye(width)[0]}  # reads the first column, or nothing but the biases

    rows = (*model.rows, "count", "stars")
    return Method(init, client, server, personalize, "history", rows)


def local(model: Model, *, lr: float = 1.0, passes: int = 5) -> Method:
    """Everybody learns alone, from their own data and nothing else; nothing is sent."""

    def client(down: Download, own: Params, held: Examples) -> tuple[Upload, Params]:
        return Upload({}, held.mask.sum()), descend(model, own, held, lr, own, passes)

    return Method(lambda params: ({}, params), client, rows=model.rows)


def centralised(
    model: Model,
    *,
    lam: float = 0.01,
    alpha0: float = 0.3,
    recency: float = 0.75,
    floor: float = 0.02,
    lr: float = 0.1,
    passes: int = 1,
) -> Method:
    """One place holds everybody's data. A factorisation alternates exact solves over the pooled table, with FedALS's
    objective and its way of serving; any other model descends over everybody's examples, `passes` times a round."""
    if model.design is None and model.catalogue:
        raise SettingError("centralised needs model=factorization where there are items. Leave model out.")
    if model.design is None:

        def descent(down: Download, own: Params, held: Examples) -> tuple[Upload, Params]:
            params = descend(model, down.params, held, lr, down.params, passes)
            return change(params, down.params, torch.ones(())), {}

        return Method(lambda params: (params, {}), descent, pooled=True)
    explicit = "item_bias" in model.rows
    served = fedals(model, lam=lam, alpha0=alpha0, recency=recency, floor=floor)

    def side(table: torch.Tensor, to: torch.Tensor, at: torch.Tensor, targets: torch.Tensor, n: int) -> torch.Tensor:
        """The exact rows of one side [n, p], given the other side's `table` and the pairs (to, at)."""
        order = to.argsort(stable=True)
        groups = torch.split(order, torch.bincount(to, minlength=n).tolist())
        extra = 0 if explicit else alpha0 * table.T @ table
        size = table.shape[1]
        system, right = torch.zeros(n, size, size, dtype=torch.float64), torch.zeros(n, size, dtype=torch.float64)
        for row, pairs in enumerate(groups):
            x = table[at[pairs]]
            system[row], right[row] = x.T @ x, x.T @ targets[pairs]
        count = torch.tensor([len(pairs) for pairs in groups], dtype=torch.float64)
        strength = lam * (count if explicit else count + alpha0 * len(table))
        strength[strength == 0] = 1.0  # a row without pairs is zero, whatever holds it
        return torch.linalg.solve(
            system + extra + strength[:, None, None] * torch.eye(size, dtype=torch.float64), right
        )

    def client(down: Download, own: Params, held: Examples) -> tuple[Upload, Params]:
        person, item = held.inputs.reshape(-1, 2).T
        person = torch.unique(person, return_inverse=True)[1]
        p = {name: value.double() for name, value in down.params.items()}
        target = held.targets.flatten().double() if explicit else torch.ones(len(item), dtype=torch.float64)
        n = int(person.max()) + 1
        if not explicit:
            users = side(p["item"], person, item, target, n)
            after = {"item": side(users, item, person, target, model.catalogue)}
            after["gram"] = after["item"].T @ after["item"]
        else:
            one = torch.ones(model.catalogue, 1, dtype=torch.float64)
            users = side(torch.cat([p["item"], one], 1), person, item, target - p["item_bias"][item] - p["mean"], n)
            left = target - users[person, -1] - p["mean"]
            items = side(torch.cat([users[:, :-1], one[:1].expand(n, 1)], 1), item, person, left, model.catalogue)
            after = {"item": items[:, :-1], "item_bias": items[:, -1], "mean": p["mean"]}
        return Upload({name: (value - p[name]).float() for name, value in after.items()}, torch.ones(())), {}

    return served.but(client=client, server=step_by_mean, rows=(), kernel=None, pooled=True)
