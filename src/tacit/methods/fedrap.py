"""FedRAP: Federated Recommendation with Additive Personalization (Li, Long, Zhou; ICLR 2024).

A person sees every item as common + own: score_j = <u, C_j + D_j> + b. C is shared; u, b and D stay with the person. A
batch of B examples costs, with means over its rows (so with multiplicity, and only over rows that were drawn),
    mean BCE - lam_a mean (D_j - C_j)^2 + mu_a mean |C_j|        lam_a, mu_a: lam, mu x schedule(round a)
The released code never reads its schedule, decays every entry of u, b, D and C at every step, and shrinks its learning
rates by the step and by the round; `released` runs it that way. Without it the schedule is real and nothing decays.

Where we depart: the term in lam is concave, so own - common would grow for ever; a row whose mean square difference has
passed `bound` is not pushed on. Decay by one factor for all rows is kept as one number a person (own rows
are stored as D / scale) and one in the upload, so that nothing but touched rows is ever computed. `prox` is a soft
threshold on the server: exact zeros, which the paper's penalty alone never gives.
Somebody who meets C without a D of their own (a page, `recipe`) has u and b rebuilt against C as it stands.
Central training is `passes=1, batch=0`: people meet in C only, so everybody's one step is a step of central descent.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.func import grad_and_value
from torch.nn import functional

from ..core import Download, Examples, Method, Model, Params, Upload
from ..engine import tiles
from ..errors import SettingError
from ..local import Meter
from ..recipes import Recipe

SCHEDULES = {  # of the round a = 0, 1, ...; square and frac are our reading of the paper's ablations
    "tanh": lambda a: torch.tanh(a / 10),
    "sin": lambda a: torch.sin(a / 10),
    "square": lambda a: 1 - torch.floor(a / 10) % 2,  # ten rounds on, ten rounds off
    "frac": lambda a: 1 / (a + 1),
    "fixed": torch.ones_like,
}


def fedrap(
    model: Model,
    *,
    lr: float = 0.5,
    table_lr: float = 200.0,
    passes: int = 10,
    lam: float = 0.1,
    mu: float = 0.1,
    penalty: Literal["l1", "l2", "none"] = "l1",
    schedule: Literal["tanh", "sin", "square", "frac", "fixed"] = "tanh",
    released: bool = True,
    weight_decay: float = 1e-4,
    step_decay: float = 0.95,
    round_decay: float = 0.97,
    parts: Literal["both", "common", "own"] = "both",
    prox: float = 0.0,
    bound: float = 100.0,
) -> Method:
    """`lr` moves u and b, `table_lr` C and D. `parts`: common + own, only common (no D), or only own (nothing is sent).
    `weight_decay`, `step_decay` and `round_decay` are the released code's; `schedule` is the paper's."""
    if "own" not in model.rows:
        raise SettingError(
            "fedrap ranks with model=additive (common and own items). Leave model and task out, or use fedavg."
        )
    if released and max(lr, table_lr) * weight_decay >= 1:
        raise SettingError(
            f"weight_decay={weight_decay:g} with a learning rate of {max(lr, table_lr):g} would turn every number "
            "around in one step; their product must be below 1. Lower one of them."
        )
    both, shared_part, own_part = parts == "both", parts != "own", parts != "common"

    def init(params: Params) -> tuple[Params, Params]:
        own = {"user": params["user"], "bias": params["bias"], "scale": torch.ones(())}
        return ({"item": params["item"]} if shared_part else {}), own | ({"own": params["own"]} if own_part else {})

    def rates(round: Tensor) -> tuple[Tensor, Tensor]:
        """(what the penalties are multiplied by, what the learning rates are) in this round."""
        return (torch.ones(()), round_decay**round) if released else (SCHEDULES[schedule](round), torch.ones(()))

    def cost(moving: Params, batch: Examples, strength: Tensor) -> Tensor:
        rows = {name: moving[name][batch.inputs] for name in ("common", "own") if name in moving}
        logits = sum(rows.values(), torch.zeros(())) @ moving["user"] + moving["bias"]
        each = functional.binary_cross_entropy_with_logits(logits, batch.targets, reduction="none")
        if both:
            apart = ((rows["own"] - rows["common"]) ** 2).mean(1)
            each = each - strength * lam * torch.where(apart < bound, apart, 0.0)
        if shared_part and penalty != "none":
            each = each + strength * mu * (rows["common"].abs() if penalty == "l1" else rows["common"] ** 2).mean(1)
        return (each * batch.mask).sum() / batch.mask.sum().clamp(min=1)

    def client(down: Download, own: Params, held: Examples) -> tuple[Upload, Params]:
        strength, rate = rates(down.round)
        shrink, fade = (weight_decay, step_decay) if released else (0.0, 1.0)
        tables = ({"common": down.params["item"]} if shared_part else {}) | ({"own": own["own"]} if own_part else {})
        sizes, vector = {"common": torch.ones(()), "own": own["scale"]}, {n: own[n] for n in ("user", "bias")}
        loss, speed = torch.zeros(()), rate
        for step in range(passes * held.mask.shape[0]):
            at = step % held.mask.shape[0]
            batch = Examples(held.inputs[at], held.targets[at], held.mask[at])
            moving = {name: sizes[name] * table for name, table in tables.items()} | vector
            Meter.gradients += 1
            slope, value = grad_and_value(cost)(moving, batch, strength)
            live = (batch.mask.sum() > 0).float()  # a batch of pure padding is no step
            fast, slow = live * speed * table_lr, live * speed * lr
            sizes = {name: size * (1 - fast * shrink) for name, size in sizes.items()}
            tables = {name: table - fast * slope[name] / sizes[name] for name, table in tables.items()}
            vector = {name: (1 - slow * shrink) * v - slow * slope[name] for name, v in vector.items()}
            loss, speed = loss + value * batch.mask.sum() / (passes * held.mask.sum()), speed * fade**live
        private = vector | {"scale": sizes["own"]} | ({"own": tables["own"]} if own_part else {})
        if not shared_part:
            return Upload({}, torch.ones(())), private
        kept = sizes["common"]
        total = {"item": kept * (tables["common"] - down.params["item"]), "decay": kept - 1, "loss": loss}
        return Upload(total, torch.ones(())), private

    def server(shared: Params, memory: Params, upload: Upload) -> tuple[Params, Params]:
        if not shared_part:
            return shared, memory
        mean = upload.mean()
        item = (1 + mean["decay"]) * shared["item"] + mean["item"]
        return {"item": item.sign() * (item.abs() - prox).clamp(min=0) if prox else item}, memory

    def personalize(shared: Params, own: Params, held: Examples) -> Params:
        table = own["scale"] * own["own"] if own_part else torch.zeros_like(shared["item"])
        return {"item": shared.get("item", torch.zeros_like(table)), "own": table} | {
            n: own[n] for n in ("user", "bias")
        }

    def kernel(down: Download, store: object, people: object, held: object) -> tuple[Upload, dict[str, int]]:
        strength, rate = (float(x) for x in rates(down.round))
        return tiles.clients(
            down.params.get("item"), store, people, held, parts=parts, passes=passes, lr=lr * rate,
            table_lr=table_lr * rate, lam=lam * strength, mu=mu * strength if penalty != "none" else 0.0,
            square=penalty == "l2", shrink=weight_decay if released else 0.0,
            step_decay=step_decay if released else 1.0, bound=bound,
        )  # fmt: skip

    def scores(shared: Params, store: object, people: object, candidates: object) -> np.ndarray:
        return tiles.scores(shared.get("item"), store, people, candidates)

    shrink, fade, cool = (weight_decay, step_decay, round_decay) if released else (0.0, 1.0, 1.0)
    recipe = Recipe(
        "descent", loss="bce", lr=lr, passes=passes, first=1, step_decay=fade, round_decay=cool, shrink=shrink
    )
    return Method(
        init,
        client,
        server,
        personalize,
        rows=("item", "own"),
        kernel=kernel,
        scores=scores,
        recipe=recipe if shared_part else None,
        told=("loss",),
    )
