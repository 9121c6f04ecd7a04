"""Ditto, pFedMe and FedCLUP: a personal model that a proximal term holds near the shared one.

Ditto: Li et al., ICML 2021. pFedMe: Dinh et al., NeurIPS 2020. FedCLUP: Yu et al., ICML 2025.

    min over g and all v_i    sum_i p_i [ L_i(v_i) + lam/2 |v_i - g|^2 ]      lam 0: alone; lam large: one model
The person is served v_i. What is personal by nature (a recommender's user vector) is not in the proximal term. Of item
tables only rows that a person has named are stored (personal_rows.py).
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from fedtaste.core import Download, Examples, Fast, Method, Model, Params, Upload
from fedtaste.errors import SettingError
from fedtaste.methods.cohort_clients import CohortClient, Copy, Phase
from fedtaste.methods.descent import (
    Proximal,
    batch_gradient,
    change,
    curvature,
    descend,
    flat_examples,
    measure_once,
    parts,
)
from fedtaste.methods.personal_rows import PersonalRows
from fedtaste.methods.registry import define
from fedtaste.methods.search_space import DESCENT, Around, LogRange
from fedtaste.params import dot, select, split, square_distance
from fedtaste.signature import Count, NonNegative

LIKELIHOODS = ("cross_entropy", "bce")  # a gradient's variance is the curvature over the number of examples (Fisher)
PARTS = 8  # parts of a person's examples, whose gradients give the noise
LEAST = 1e-4  # least value of what is positive by nature, and may not be after a wire has added noise
WIDEST = 1e3  # lam="auto" stays within this factor of the typical curvature


@dataclass(frozen=True, eq=False)
class FedCLUP:
    """`passes` steps on v from where it was, with the proximal term; then g moves by `rate` x mean (v - g)."""

    model: Model
    _: KW_ONLY
    lam: NonNegative | Literal["auto"] = "auto"  # lambda, weight of the proximal term; auto: `_choose_lam`
    lr: NonNegative = 0.0  # learning rate of v; 0: 1 / (L + lam), with L measured on each person's own data
    passes: Count = 10  # local epochs
    rate: NonNegative = 0.0  # the server's learning rate; 0: 1 + lam / L

    @property
    def measures(self) -> bool:
        """Whether a person's curvature is needed."""
        return self.lam == "auto" or not (self.lr and self.rate)

    @cached_property
    def copies(self) -> PersonalRows:
        return PersonalRows(self.model, self.lam == "auto" or self.lam > 0, others=("bend",))

    def method(self) -> Method:
        if self.lam == "auto" and self.model.rows:
            raise SettingError("lam=auto needs a model without item tables. Give a number, as in --set lam=0.001.")
        fast = Fast()
        if not self.measures:
            copy = Copy(self.lr, self.passes, float(self.lam), rate=1.0)
            fast = CohortClient(self.model, copy=copy, reach=True).fast(self.model.private)
        return Method(self.init, self.client, self.server, self.personalize, rows=self.copies.rows, fast=fast)

    def init(self, params: Params) -> tuple[Params, Params]:
        shared, own = self.copies.init(params)
        own |= {"bend": torch.zeros(2)} if self.measures else {}  # the person's `curvature`, once it is known
        return shared | ({"lam": torch.zeros(())} if self.lam == "auto" else {}), own

    def client(self, download: Download, own: Params, examples: Examples) -> tuple[Upload, Params]:
        g, personal = _without_lam(download.params), self.copies.personal(own)
        lam = download.params["lam"] if self.lam == "auto" else torch.tensor(float(self.lam))
        params, bend = self.copies.load(g, own) | personal, torch.ones(2)
        if self.measures:
            bend = measure_once(own["bend"], lambda: curvature(self.model, params, examples, params))
        lr = self.lr or 1 / (bend[0] + lam)
        after = descend(self.model, params, examples, lr, params, self.passes, Proximal(lam, g))
        numbers = {} if self.rate else {"stiff": bend[0] / (bend[0] + lam)}
        numbers |= _measure_difference(self.model, g, after, examples, bend) if self.lam == "auto" else {}
        stored = self.copies.store(after, own, examples) | select(after, personal)
        return self.copies.upload(after, g, examples, numbers), stored | ({"bend": bend} if self.measures else {})

    def server(self, shared: Params, memory: Params, upload: Upload) -> tuple[Params, Params]:
        mean = self.copies.mean(upload)
        moved = self.copies.move(_without_lam(shared), mean, self.rate or 1 / mean["stiff"].clamp(min=LEAST))
        if self.lam != "auto":
            return moved, {}
        measured = select(mean, ("differ", "noise", "usual"))  # kept, so that the choice of lam can be examined
        return moved | {"lam": _choose_lam(mean, upload.total["each"])}, measured

    def personalize(self, shared: Params, own: Params, examples: Examples) -> Params:
        return self.copies.personalize(_without_lam(shared), own, examples)


fedclup = define(
    defaults={
        "ranking": {"rounds": 20, "lam": 0.1, "lr": 10.0, "passes": 3, "rate": 300.0},
        "ratings": {"lam": 0.1, "rate": 1.0, "passes": 3},
        "regression": {"lr": 0.0, "passes": 20},
        "labels": {"lr": 0.0},
        "pictures": {"lr": 0.1, "rate": 1.0, "lam": 0.1},
    },
    search={**DESCENT, "lam": Around(10), "passes": LogRange(1, 10), "rate": Around(10)},
)(FedCLUP)


@define(
    defaults={
        "ranking": {"rounds": 20, "lam": 0.1, "own_lr": 10.0, "passes": 3, "own_passes": 3},
        "ratings": {"lam": 0.1, "own_lr": 0.2},  # not searched, only reasoned: lam x lr is well below 1
        "regression": {"own_lr": 0.1},
        "labels": {"own_lr": 0.1, "own_passes": 10},
        "pictures": {"own_lr": 0.1, "own_passes": 1},
    },
    search={**DESCENT, "lam": Around(10), "own_lr": Around(10), "own_passes": LogRange(1, 10)},
)
def ditto(
    model: Model,
    *,
    lam: NonNegative = 0.1,  # lambda, weight of the proximal term
    lr: NonNegative = 1.0,  # learning rate of the shared model
    passes: Count = 1,  # local epochs of the shared model
    own_lr: NonNegative = 1.0,  # eta, learning rate of the personal model v
    own_passes: Count = 1,  # s, local epochs of v
) -> Method:
    """FedAvg for the shared model, as if nobody had a personal one; beside it v descends with the proximal term."""
    copies = PersonalRows(model, lam > 0)

    def init(params: Params) -> tuple[Params, Params]:
        shared, personal = split(params, model.private)
        return shared, personal | copies.copy(params)

    def client(download: Download, own: Params, examples: Examples) -> tuple[Upload, Params]:
        g, personal = download.params, copies.personal(own)
        w = descend(model, g | personal, examples, lr, [*g, *personal], passes)
        v = copies.load(g, own)
        v = descend(model, v, examples, own_lr, v, own_passes, Proximal(lam, g))
        return change(w, g, examples.mask.sum()), copies.store(v, own, examples) | select(w, personal)

    cohort = CohortClient(model, (Phase(lr, lr, passes=passes),), Copy(own_lr, own_passes, lam))
    return Method(init, client, personalize=copies.serve, rows=copies.rows, fast=cohort.fast(model.private))


@define(
    defaults={
        "ranking": {"rounds": 20, "lam": 0.1, "lr": 10.0, "passes": 3, "eta": 10.0, "beta": 300.0},
        "ratings": {"lam": 0.1, "passes": 3, "eta": 10.0},  # not searched, only reasoned
        "pictures": {"lam": 1.0, "passes": 3},
    },
    search={**DESCENT, "lam": Around(10), "passes": LogRange(1, 10), "eta": Around(10), "beta": Around(10)},
)
def pfedme(
    model: Model,
    *,
    lam: NonNegative = 1.0,  # lambda, weight of the proximal term
    lr: NonNegative = 0.1,  # learning rate of theta
    passes: Count = 5,  # K, local epochs of theta
    turns: Count = 1,  # R, how often theta and w move in turn
    eta: NonNegative = 1.0,  # eta, learning rate of w
    beta: NonNegative = 1.0,  # beta, the server's learning rate
) -> Method:
    """In each turn theta descends with the proximal term to w, and w moves towards it by `eta` x lam; the server moves
    by `beta` x the mean change of w. People are served theta."""
    copies = PersonalRows(model, lam > 0)

    def client(download: Download, own: Params, examples: Examples) -> tuple[Upload, Params]:
        g, personal = download.params, copies.personal(own)
        w, theta = g, copies.load(g, own) | personal
        for _ in range(turns):
            theta = descend(model, theta, examples, lr, theta, passes, Proximal(lam, w))
            w = copies.move(w, {name: theta[name] - value for name, value in w.items()}, eta * lam)
        return copies.upload(w, g, examples, {}), copies.store(theta, own, examples) | select(theta, personal)

    def server(shared: Params, memory: Params, upload: Upload) -> tuple[Params, Params]:
        return copies.move(shared, copies.mean(upload), beta), memory

    cohort = CohortClient(model, copy=Copy(lr, passes, lam, turns, eta * lam), reach=True)
    fast = cohort.fast(model.private)
    return Method(copies.init, client, server, copies.personalize, rows=copies.rows, fast=fast)


def _without_lam(shared: Params) -> Params:
    return split(shared, ["lam"])[0]


def _measure_difference(model: Model, g: Params, v: Params, examples: Examples, bend: Tensor) -> Params:
    """How a person's data differ from the others': the squared gradient at g; the part of it that is chance, given the
    examples they happen to have; the curvature of their loss. Chance is estimated at v from the gradients of PARTS of
    their data; where the loss is a likelihood it is the curvature, which also works for a v that fits every
    example."""
    flat = flat_examples(examples)
    gradient = batch_gradient(model, v | g, flat, g)[0]
    if model.loss_name in LIKELIHOODS:
        bend = curvature(model, v | g, examples, g, probes=1)
        noise = bend[1] * sum(value.numel() for value in gradient.values()) / examples.mask.sum()
    else:
        by_part = [batch_gradient(model, v, part, g)[0] for part in parts(flat, PARTS)]
        mean = {name: torch.stack([part[name] for part in by_part]).mean(0) for name in gradient}
        noise = torch.stack([square_distance(part, mean) for part in by_part]).sum() / (PARTS * (PARTS - 1))
    beyond = dot(gradient, gradient) - noise
    return {"differ": beyond, "squared": beyond**2, "noise": noise, "usual": bend[1], "each": 1 / examples.mask.sum()}


def _choose_lam(mean: Params, people: Tensor) -> Tensor:
    """The weight of the proximal term for which people lose least.

    Near the best g a person's gradient is curvature x (difference + error of an own fit). The squares add, and the best
    weight is curvature x error^2 / difference^2, as in James and Stein's shrinkage. A difference counts as far as it is
    beyond one standard error of its mean over people, so that chance does not pull models apart."""
    chance = ((mean["squared"] - mean["differ"] ** 2).clamp(min=0) / people.clamp(min=1)).sqrt()
    differ = (mean["differ"] - chance).clamp(min=1e-12)
    return mean["usual"].clamp(min=LEAST) * (mean["noise"].clamp(min=0) / differ).clamp(1 / WIDEST, WIDEST)
