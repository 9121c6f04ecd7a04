"""FedRAP: Federated Recommendation with Additive Personalization (Li, Long, Zhou; ICLR 2024).

A person sees every item as common + own: score_j = <u, C_j + D_j> + b. C is shared; u, b and D stay with the person. A
batch of B examples costs, with means over its rows (so with multiplicity, and only over rows that were drawn),
    mean BCE - lam_a mean (D_j - C_j)^2 + mu_a mean |C_j|        lam_a, mu_a: lam, mu x schedule(round a)
The released code never reads its schedule, decays every entry of u, b, D and C at every step, and shrinks its learning
rates by the step and by the round; `released` runs it that way. Without it the schedule is real and nothing decays.

Where we depart: the term in lam is concave, so own - common would grow for ever; a row whose mean square difference has
passed `bound` is not pushed on. Decay by one factor for all rows is kept as one number per person (own rows
are stored as D / scale) and one in the upload, so that nothing but touched rows is ever computed. `prox` is a soft
threshold on the server: exact zeros, which the paper's penalty alone never gives.
A person who meets C without a D of their own (on a page, by `recipe`) has u and b rebuilt against C as it stands.
Central training is `passes=1, batch=0`: people meet in C only, so everybody's one step is a step of central descent.

The released settings were chosen with the test items in sight and rank below popularity without them. The defaults of a
clean run are ours, chosen on validation (benchmarks/additive.py): one such step per round, people weighted by examples
and an adaptive server, as in FedMF; the penalty of C in its l2 form; and a D that starts at zero and learns slowly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Literal, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from fedtaste.core import (
    Cohort,
    Download,
    Examples,
    Fast,
    Method,
    Model,
    Params,
    People,
    PrivateStore,
    Release,
    ServerStep,
    Upload,
    step_by_mean,
)
from fedtaste.errors import SettingError
from fedtaste.kernels import fedrap as kernels
from fedtaste.kernels.row_pages import PagedStore
from fedtaste.methods.descent import Meter, batches
from fedtaste.methods.gradients import gradient_and_value
from fedtaste.methods.registry import RunContext, define
from fedtaste.methods.search_space import DESCENT, Around
from fedtaste.params import select
from fedtaste.recipe import Recipe
from fedtaste.signature import Count, NonNegative, Share, Values

SCHEDULES: dict[str, Callable[[Tensor], Tensor]] = {
    # of the round a = 0, 1, ...; square and frac are our reading of the paper's ablations
    "tanh": lambda a: torch.tanh(a / 10),
    "sin": lambda a: torch.sin(a / 10),
    "square": lambda a: 1 - torch.floor(a / 10) % 2,  # ten rounds on, ten rounds off
    "frac": lambda a: 1 / (a + 1),
    "fixed": torch.ones_like,
}


class Decays(NamedTuple):
    """The three decays of the released code, or none of them."""

    weight: float = 0.0
    step: float = 1.0
    round: float = 1.0


@dataclass(frozen=True, eq=False)
class FedRAP:
    """Additive personalisation; symbols are the paper's."""

    model: Model
    _: KW_ONLY
    lr: NonNegative = 0.5  # eta, learning rate of u and b
    table_lr: NonNegative = 200.0  # eta, learning rate of C and D
    passes: Count = 10  # local epochs
    lam: NonNegative = 0.1  # lambda, weight of the term that pushes own and common apart
    mu: NonNegative = 0.1  # mu, weight of the penalty on C
    penalty: Literal["l1", "l2", "none"] = "l1"
    schedule: Literal["tanh", "sin", "square", "frac", "fixed"] = "tanh"  # of the round; multiplies lam and mu
    released: bool = True  # decays as in the released code, which never reads the schedule
    weight_decay: NonNegative = 1e-4
    step_decay: Share = 0.95  # factor of the learning rates after each step
    round_decay: Share = 0.97  # factor of the learning rates after each round
    parts: Literal["both", "common", "own"] = "both"  # common: there is no D; own: nothing is sent
    prox: NonNegative = 0.0  # the server's soft threshold on C
    bound: NonNegative = 100.0  # mean square of D_j - C_j from which a row is not pushed on
    start: NonNegative = 1.0  # standard deviation of C's numbers at the start
    own_start: NonNegative = 1.0  # standard deviation of D's numbers at the start; 0: the own part starts as nothing
    own_rate: NonNegative = 1.0  # learning rate of D as a multiple of table_lr
    weights: Literal["equal", "examples"] = "equal"  # of people in the server's mean: 1, or how many examples they have

    @property
    def has_common(self) -> bool:
        return self.parts != "own"

    @property
    def has_own(self) -> bool:
        return self.parts != "common"

    @property
    def own_lr(self) -> float:
        return self.table_lr * self.own_rate

    @property
    def decays(self) -> Decays:
        return Decays(self.weight_decay, self.step_decay, self.round_decay) if self.released else Decays()

    def method(self) -> Method:
        if self.model.kind != "additive":
            raise SettingError(
                "fedrap ranks with model=additive (common and own items). Leave model and task out, or use fedavg."
            )
        fastest, decays = max(self.lr, self.table_lr, self.own_lr), self.decays
        if fastest * decays.weight >= 1:
            raise SettingError(
                f"weight_decay={self.weight_decay:g} with a learning rate of {fastest:g} would flip the sign of every "
                "number in one step: their product must be below 1. Lower one of them."
            )
        recipe = Recipe(
            "descent", loss="bce", lr=self.lr, passes=self.passes, first=1, step_decay=decays.step,
            round_decay=decays.round, shrink=decays.weight,
        )  # fmt: skip
        return Method(
            self.init,
            self.client,
            self.server_with(step_by_mean),
            self.personalize,
            rows=("item", "own"),
            fast=Fast(self.kernel, scores=self.scores),
            privacy=Release(curve_only=("loss",)),
            recipe=recipe if self.has_common else None,
            server_with=self.server_with if self.has_common else None,
            takes_turns=("turns",),  # every row decays in every round, also in those in which nobody sends it
        )

    def init(self, params: Params) -> tuple[Params, Params]:
        shared = {"item": self.start * params["item"]} if self.has_common else {}
        private = {"user": params["user"], "bias": params["bias"], "scale": torch.ones(())}
        return shared, private | ({"own": self.own_start * params["own"]} if self.has_own else {})

    def strengths(self, round: Tensor) -> tuple[Tensor, Tensor]:
        """(factor of the penalties, factor of the learning rates) in this round."""
        if self.released:
            return torch.ones(()), self.round_decay**round
        return SCHEDULES[self.schedule](round), torch.ones(())

    def cost(self, moving: Params, batch: Examples, strength: Tensor) -> Tensor:
        """The objective of one batch."""
        rows = {name: moving[name][batch.inputs] for name in ("common", "own") if name in moving}
        logits = sum(rows.values(), torch.zeros(())) @ moving["user"] + moving["bias"]
        each = functional.binary_cross_entropy_with_logits(logits, batch.targets, reduction="none")
        if self.parts == "both":
            apart = ((rows["own"] - rows["common"]) ** 2).mean(1)
            each = each - strength * self.lam * torch.where(apart < self.bound, apart, 0.0)
        if self.has_common and self.penalty != "none":
            size = rows["common"].abs() if self.penalty == "l1" else rows["common"] ** 2
            each = each + strength * self.mu * size.mean(1)
        return (each * batch.mask).sum() / batch.mask.sum().clamp(min=1)

    def client(self, download: Download, private: Params, examples: Examples) -> tuple[Upload, Params]:
        strength, speed = self.strengths(download.round)
        shrink, fade, _ = self.decays
        tables = {"common": download.params["item"]} if self.has_common else {}
        tables |= {"own": private["own"]} if self.has_own else {}
        sizes, vector = {"common": torch.ones(()), "own": private["scale"]}, select(private, ("user", "bias"))
        loss = torch.zeros(())
        for batch in batches(examples, self.passes):
            moving = {name: sizes[name] * table for name, table in tables.items()} | vector
            Meter.gradients += 1
            gradient, value = gradient_and_value(partial(self.cost, batch=batch, strength=strength), moving)
            live = (batch.mask.sum() > 0).float()  # a batch of pure padding is no step
            slow = live * speed * self.lr
            fast = {"common": live * speed * self.table_lr, "own": live * speed * self.own_lr}
            sizes = {name: size * (1 - fast[name] * shrink) for name, size in sizes.items()}
            tables = {name: table - fast[name] * gradient[name] / sizes[name] for name, table in tables.items()}
            vector = {name: (1 - slow * shrink) * v - slow * gradient[name] for name, v in vector.items()}
            loss = loss + value * batch.mask.sum() / (self.passes * examples.mask.sum())
            speed = speed * fade**live
        private = vector | {"scale": sizes["own"]} | ({"own": tables["own"]} if self.has_own else {})
        if not self.has_common:
            return Upload({}, torch.ones(())), private
        scale = sizes["common"]
        total = {"item": scale * (tables["common"] - download.params["item"]), "decay": scale - 1, "loss": loss}
        weight = examples.mask.sum() if self.weights == "examples" else torch.ones(())
        return Upload({name: weight * value for name, value in total.items()}, weight), private

    def server_with(self, step: ServerStep) -> ServerStep:
        """The server that takes `step` with the mean change of C, decay included, and thresholds the result."""

        def server(shared: Params, memory: Params, upload: Upload) -> tuple[Params, Params]:
            if not self.has_common:
                return shared, memory
            mean = upload.mean()
            change = Upload({"item": mean["item"] + mean["decay"] * shared["item"]}, torch.ones(()))
            moved, memory = step(shared, memory, change)
            item = moved["item"]
            return {"item": item.sign() * (item.abs() - self.prox).clamp(min=0) if self.prox else item}, memory

        return server

    def personalize(self, shared: Params, private: Params, examples: Examples) -> Params:
        table = private["scale"] * private["own"] if self.has_own else torch.zeros_like(shared["item"])
        tables = {"item": shared.get("item", torch.zeros_like(table)), "own": table}
        return tables | select(private, ("user", "bias"))

    def kernel(self, download: Download, cohort: Cohort) -> tuple[Upload, dict[str, int]]:
        """`client` for a cohort, compiled."""
        strength, rate = (float(x) for x in self.strengths(download.round))
        return kernels.clients(
            download.params.get("item"), cast(PagedStore, cohort.private), cohort.people, cohort.examples,
            parts=self.parts, passes=self.passes, lr=self.lr * rate, table_lr=self.table_lr * rate,
            own_lr=self.own_lr * rate, lam=self.lam * strength,
            mu=self.mu * strength if self.penalty != "none" else 0.0,
            square=self.penalty == "l2", shrink=self.decays.weight, step_decay=self.decays.step, bound=self.bound,
            by_examples=self.weights == "examples",
        )  # fmt: skip

    def scores(
        self, shared: Params, store: PrivateStore, people: People, candidates: NDArray[np.int64]
    ) -> NDArray[np.float32]:
        """`personalize` and the model's score for many people, compiled."""
        return kernels.scores(shared.get("item"), cast(PagedStore, store), people, candidates)


def _unread(task: str, values: Values) -> dict[str, str]:
    released, parts = bool(values["released"]), values["parts"]
    others = ("schedule",) if released else ("weight_decay", "step_decay", "round_decay")
    unread = dict.fromkeys(others, f"released={str(released).lower()} does not read it")
    if not values["lam"]:
        unread["bound"] = "lam=0 pushes nothing apart"
    if not values["mu"]:
        unread["penalty"] = "mu=0 gives the penalty no weight"
    if parts == "common":
        unread |= dict.fromkeys(("own_start", "own_rate"), "parts=common has no own table")
    if parts != "both":
        unread |= dict.fromkeys(("lam", "bound"), f"parts={parts} has nothing to keep apart")
    if parts == "own":
        unread |= dict.fromkeys(("mu", "penalty", "prox", "start", "weights"), "parts=own has no common table")
    if values["penalty"] == "none":
        unread["mu"] = "penalty=none does not read it"
    if not any(values[name] for name in ("lam", "mu") if name not in unread):
        unread.setdefault("schedule", "no term with lam or mu is left that it would multiply")
    return unread


def _notes(context: RunContext) -> tuple[str, ...]:
    if not context.values["released"] or context.preset or {"lr", "table_lr"} & context.chosen:
        return ()
    return ("FedRAP's rates are the paper's for ML-100K; other data may want another table_lr and lr.",)


# The settings of the released code: for --protocol published, where presets of data sets add to them, and for
# released=true under the clean protocol.
RELEASED = {
    "rounds": 100, "patience": 0, "batch": 2048, "lr": 0.5, "table_lr": 200.0, "passes": 10, "lam": 0.1, "mu": 0.1,
    "penalty": "l1", "released": True, "weight_decay": 1e-4, "start": 1.0, "own_start": 1.0, "own_rate": 1.0,
    "weights": "equal", "server": "sgd", "server_lr": 1.0,
}  # fmt: skip

fedrap = define(
    defaults={
        "ranking": {
            "model": "additive", "rounds": 80, "lr": 10.0, "table_lr": 10.0, "passes": 1, "lam": 0.0,
            "mu": 1.0, "penalty": "l2", "schedule": "fixed", "released": False, "start": 0.02, "own_start": 0.0,
            "own_rate": 0.01, "weights": "examples",
        }
    },
    variants={"released=True": RELEASED},
    presets={
        ("ranking", ""): RELEASED,
        ("ranking", "ml-100k"): {"lr": 0.5, "table_lr": 200.0, "weight_decay": 1e-4, "lam": 0.1, "mu": 0.1},
        ("ranking", "ml-1m"): {"lr": 0.5, "table_lr": 1000.0, "weight_decay": 1e-4, "lam": 0.01, "mu": 0.01},
        ("ranking", "lastfm"): {"lr": 0.01, "table_lr": 100.0, "weight_decay": 1e-4, "lam": 0.1, "mu": 1.0},
    },
    unread=_unread,
    notes=_notes,
    search={**DESCENT, "table_lr": Around(10), "own_rate": Around(10), "lam": Around(10), "mu": Around(10)},
)(FedRAP)  # fmt: skip
