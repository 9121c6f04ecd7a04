"""FedALS: alternating least squares from sums, exact on both sides. Equals central iALS; needs nothing but a sum.

Ranking (Hu et al. 2008, regularised as Rendle et al. 2021), with m items, n people, histories H_i:
    person  u_i = [a0 V'V + sum_{j in H_i} w v_j v_j' + lam (sum w + a0 m) I]^-1 sum w v_j
    uploads for its items j: [u u', u, 1], and u u' once                    (training weights w are flat)
    server  v_j = [a0 U'U + sum u u' + lam (n_j + a0 n) I]^-1 sum u
The 1s, from which n_j is counted, do not change from round to round. Where everybody takes part in every round they are
sent in the first one only (`counts_once`): what is sent again and again in sums of different people can be solved for.
Serving weighs a person's own history by age a, w_a = floor + (1 - floor) recency^a, on the device only: recent items
tell most about the next one, and nobody else needs to know the order.
Ratings (a model with biases): the same with a0 = 0, x = [u, 1] against [v_j, b_j], and the residual as target.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from torch import Tensor

from ..core import Download, Examples, Method, Model, Params, Upload
from ..engine import kernels
from ..errors import SettingError
from ..local import ages, ridge, split, whole
from ..recipes import Recipe


def fedals(
    model: Model,
    *,
    lam: float = 0.01,
    alpha0: float = 0.3,
    recency: float = 0.75,
    floor: float = 0.02,
    counts_once: bool = False,
) -> Method:
    """`alpha0` is the weight of everything a person did not take; `recency` 1 turns the weighing by age off.
    `counts_once`: everybody takes part in every round, so that counts are sent in the first round only."""
    if model.design is None:
        raise SettingError("fedals needs a factorisation. Use fedavg, fedsgd or fedrep for this data or model.")
    explicit = "item_bias" in model.rows

    def init(params: Params) -> tuple[Params, Params]:
        shared, _ = split(params, model.private)
        return shared | ({} if explicit else {"gram": shared["item"].T @ shared["item"]}), {}

    def solve(shared: Params, held: Examples, weights: Tensor) -> Tensor:
        features, offset = model.design(shared, held.inputs)  # type: ignore[misc]
        if explicit:
            size = features.shape[-1]
            return ridge(features, held.targets - offset, weights, torch.zeros(size, size), lam * weights.sum())
        strength = lam * (weights.sum() + alpha0 * model.catalogue)
        return ridge(features, torch.ones_like(weights), weights, alpha0 * shared["gram"], strength)

    def counted(down: Download) -> bool:
        return not counts_once or float(down.round) == 0

    def client(down: Download, own: Params, held: Examples) -> tuple[Upload, Params]:
        held = Examples(*(x[0] for x in whole(held)))
        user = solve(down.params, held, held.mask)
        x, left = _item_side(user, held, down.params, explicit)
        rows = torch.zeros(down.params["item"].shape[0])
        taken = rows.index_add(0, held.inputs, held.mask)
        told = rows.index_add(0, held.inputs, held.mask * left) if explicit else taken
        square = _upper(x[:, None] * x)
        counts = (taken[:, None],) if counted(down) else ()
        sums = torch.cat((taken[:, None] * square, told[:, None] * x, *counts), 1)
        return Upload({"sums": sums} | ({} if explicit else {"square": square}), torch.ones(())), {}

    def server(shared: Params, memory: Params, upload: Upload) -> tuple[Params, Params]:
        size = shared["item"].shape[1] + explicit
        outer, vector, count = _parts(upload.total["sums"], size)
        count = memory["count"] if count is None else count
        gram, people = np.zeros((size, size)), 0.0
        if not explicit:
            gram, people = alpha0 * _full(upload.total["square"], size).double().numpy(), alpha0 * float(upload.weight)
        strength = lam * (count.double().clamp(min=0) + people)  # noise may have made it negative
        strength[strength == 0] = 1.0  # nobody has this item: any positive number gives its exact answer, zero
        item = torch.from_numpy(kernels.solve_items(outer.numpy(), vector.numpy(), strength.numpy(), gram))
        lost = ~torch.isfinite(item).all(1) & torch.isfinite(outer).all(1) & torch.isfinite(vector).all(1)
        if lost.any():
            item[lost] = _nearest(outer[lost], vector[lost], strength[lost], torch.from_numpy(gram))
        if memory:  # a cohort that lacks an item says nothing of it, except in the first round
            old = torch.cat([shared["item"], shared["item_bias"][:, None]], 1) if explicit else shared["item"]
            item = torch.where((count > 0)[:, None], item, old)
        memory = {"begun": torch.ones(())} | ({"count": count} if counts_once else {})
        if explicit:
            return shared | {"item": item[:, :-1].contiguous(), "item_bias": item[:, -1].contiguous()}, memory
        return {"item": item, "gram": item.T @ item}, memory

    def personalize(shared: Params, own: Params, held: Examples) -> Params:
        held = Examples(*(x[0] for x in whole(held)))
        weights = held.mask * (floor + (1 - floor) * recency ** ages(held.mask))
        return shared | {"user": solve(shared, held, weights)}

    def kernel(
        down: Download, store: object, people: object, held: object, wide: bool = False
    ) -> tuple[Upload, dict[str, int]]:
        total, good = sums_of(down, held, model.catalogue, lam, 0.0 if explicit else alpha0, wide)
        if not counted(down):
            total["sums"] = total["sums"][:, :-1].contiguous()
        return Upload(total, torch.tensor(float(good.sum()))), {"non-finite": int((~good).sum())}

    prior = 0.0 if explicit else alpha0 * model.catalogue
    recipe = Recipe("ridge", lam, prior, 0.0 if explicit else alpha0, recency, floor)
    rows = (*model.rows, "sums")
    exact = partial(kernel, wide=True)
    return Method(
        init, client, server, personalize, "history", rows, kernel, exact=exact, recipe=recipe,
        constant=not counts_once,
    )  # fmt: skip


def _item_side(user: Tensor, held: Examples, shared: Params, explicit: bool) -> tuple[Tensor, Tensor]:
    """What a person is to an item: features x, and per example what is left to explain."""
    if not explicit:
        return user, torch.ones_like(held.mask)
    return torch.cat([user[:-1], torch.ones(1)]), held.targets - user[-1] - shared["mean"]


def _upper(square: Tensor) -> Tensor:
    """[p, p] -> its upper triangle by rows, [p (p + 1) / 2]."""
    i, j = torch.triu_indices(*square.shape)
    return square[i, j]


def _parts(sums: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor | None]:
    """Of every item's sums: x x' (upper triangle), r x, and how many people, where that is told."""
    triangle = size * (size + 1) // 2
    outer, vector, count = torch.split(sums, [triangle, size, sums.shape[1] - triangle - size], 1)
    return outer, vector, count[:, 0] if count.shape[1] else None


def _full(upper: Tensor, size: int) -> Tensor:
    """The inverse of `_upper`."""
    i, j = torch.triu_indices(size, size)
    out = torch.zeros(size, size)
    out[i, j] = upper
    out[j, i] = upper
    return out


def _nearest(outer: Tensor, vector: Tensor, strength: Tensor, gram: Tensor) -> Tensor:
    """Solves of systems that noise has left without an inverse: no direction is taken as less certain than `strength`
    says, so that what is only noise stays small."""
    size = gram.shape[0]
    systems = torch.stack([_full(row, size) for row in outer]).double() + gram
    values, turn = torch.linalg.eigh(systems)
    values = values.clamp(min=0) + strength[:, None]
    return ((turn @ ((turn.mT @ vector.double()[..., None]) / values[..., None]))[..., 0]).float()


def sums_of(down, held, catalogue, lam, alpha0, wide=False):
    """What a whole cohort uploads in sum, compiled, and whose vectors were finite: the others are left out. `wide`: in
    double precision. The next solves blow a last digit up, so who adds sums of several cohorts wants all digits."""
    shared = {name: value.numpy() for name, value in down.params.items()}
    explicit, item = "item_bias" in shared, shared["item"]
    ones = np.ones(len(held.inputs), np.float32)
    if explicit:
        table = np.concatenate([item, np.ones((len(item), 1), np.float32)], 1)
        targets = held.targets - shared["item_bias"][held.inputs] - shared["mean"]
        gram = np.zeros((table.shape[1],) * 2, np.float32)
    else:
        table, targets, gram = item, ones, alpha0 * shared["gram"]
    users, good = kernels.solve_people(
        held.starts, held.inputs, targets, ones, table, gram, lam, lam * alpha0 * catalogue
    )
    left = ones
    if explicit:
        left = (held.targets - np.repeat(users[:, -1], held.lengths) - shared["mean"]).astype(np.float32)
        users[:, -1] = 1.0
    p = users.shape[1]
    sums = np.zeros((len(item), p * (p + 1) // 2 + p + 1), np.float64 if wide else np.float32)
    kernels.sum_outer(*kernels.by_item(held.starts, held.inputs, len(item), good), left, users, sums)
    total = {"sums": torch.from_numpy(sums)}
    if not explicit:
        fine = torch.from_numpy(users[good]).double()
        square = _upper(fine.T @ fine)
        total["square"] = square if wide else square.float()
    return total, good
