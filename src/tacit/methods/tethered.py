"""A model of one's own on a spring to the shared one: Ditto (Li et al., ICML 2021), pFedMe (Dinh et al., NeurIPS 2020),
FedCLUP (Yu et al., ICML 2025).

    min over g and all v_i    sum_i p_i [ L_i(v_i) + lam/2 |v_i - g|^2 ]      lam 0: alone; lam large: one model
The person is served v_i. What is personal by nature (a recommender's user vector) is not on the spring. Of item tables
only rows that a person has named are stored (rows.py).
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from ..core import Download, Examples, Method, Model, Params, Upload
from ..errors import SettingError
from ..local import change, curvature, descend, dot, like, once, parts, slope, split, square_distance, whole
from .rows import Rows

LIKELIHOODS = ("cross_entropy", "bce")  # a slope's variance is the curvature over the number of examples (Fisher)
DEALT = 8  # parts of a person's examples, from whose gradients the noise is told
LEAST = 1e-4  # of what is positive by nature, and may not be after a wire has added noise
WIDEST = 1e3  # lam="auto" stays within this factor of the usual curvature


def fedclup(
    model: Model, *, lam: float | Literal["auto"] = "auto", lr: float = 0.0, passes: int = 10, rate: float = 0.0
) -> Method:
    """`passes` steps on v, from where it was, with the spring; then g moves by `rate` x mean (v - g).

    `lr` 0 is 1 / (L + lam), `rate` 0 is 1 + lam/L, both with L measured on each person's own data. lam="auto" takes the
    spring that people's data ask for: see `_measured`.
    """
    auto, fixed = lam == "auto", 0.0 if lam == "auto" else float(lam)
    measuring = auto or not (lr and rate)
    if auto and model.rows:
        raise SettingError("lam=auto measures whole models; with item tables say a number, as in --set lam=0.001.")
    keep = Rows(model, started=auto or fixed > 0)

    def init(params: Params) -> tuple[Params, Params]:
        shared, personal = split(params, model.private)
        own = personal | keep.init(shared) | ({"bend": torch.zeros(2)} if measuring else {})
        return shared | ({"lam": torch.zeros(())} if auto else {}), own

    def client(down: Download, own: Params, held: Examples) -> tuple[Upload, Params]:
        g = {name: value for name, value in down.params.items() if name != "lam"}
        spring = down.params["lam"] if auto else torch.tensor(fixed)
        personal = split(own, ("own.*", "met", "bend"))[0]
        params = keep.warm(g, own) | personal
        bend = once(own["bend"], lambda: curvature(model, params, held, params)) if measuring else torch.ones(2)
        rate_now = lr or 1 / (bend[0] + spring)
        after = descend(model, params, held, rate_now, params, passes, lambda p: spring / 2 * square_distance(p, g))
        told = {"stiff": bend[0] / (bend[0] + spring)} if not rate else {}
        told |= _measured(model, g, after, held, bend) if auto else {}  # (each is weighted as the upload is)
        kept = keep.kept(after, own, held) | like(after, personal) | ({"bend": bend} if measuring else {})
        return keep.upload(after, g, held, told), kept

    def server(shared: Params, memory: Params, upload: Upload) -> tuple[Params, Params]:
        mean = keep.mean(upload)
        speed = rate or 1 / mean["stiff"].clamp(min=LEAST)
        moved = {n: v + (1.0 if n in model.buffers else speed) * mean[n] for n, v in shared.items() if n != "lam"}
        told = like(mean, ("differ", "noise", "usual")) if auto else {}  # kept for whoever asks what was measured
        return moved | ({"lam": _chosen(mean, upload.total["each"])} if auto else {}), told

    def personalize(shared: Params, own: Params, held: Examples) -> Params:
        g = {name: value for name, value in shared.items() if name != "lam"}
        return keep.served(g, own, held) | split(own, ("own.*", "met", "bend"))[0]

    return Method(init, client, server, personalize, rows=keep.rows)


def ditto(
    model: Model, *, lam: float = 0.1, lr: float = 1.0, passes: int = 1, own_lr: float = 1.0, own_passes: int = 1
) -> Method:
    """FedAvg for the shared model, as if nobody had one of their own; beside it v descends on the spring to it."""
    keep = Rows(model, started=lam > 0)

    def init(params: Params) -> tuple[Params, Params]:
        shared, personal = split(params, model.private)
        return shared, personal | keep.init(params)

    def client(down: Download, own: Params, held: Examples) -> tuple[Upload, Params]:
        g, personal = down.params, split(own, ("own.*", "met"))[0]
        w = descend(model, g | personal, held, lr, [*g, *personal], passes)
        v = keep.warm(g, own)
        v = descend(model, v, held, own_lr, v, own_passes, lambda p: lam / 2 * square_distance(p, g))
        return change(w, g, held.mask.sum()), keep.kept(v, own, held) | like(w, personal)

    return Method(init, client, personalize=keep.served, rows=keep.rows)


def pfedme(
    model: Model, *, lam: float = 1.0, lr: float = 0.1, passes: int = 5, turns: int = 1, eta: float = 1.0,
    beta: float = 1.0,
) -> Method:  # fmt: skip
    """`turns` times: theta descends with a spring to w, and w moves towards it by `eta` x lam; the server moves by
    `beta` x the mean. People are served theta."""
    keep = Rows(model, started=lam > 0)

    def init(params: Params) -> tuple[Params, Params]:
        shared, personal = split(params, model.private)
        return shared, personal | keep.init(shared)

    def client(down: Download, own: Params, held: Examples) -> tuple[Upload, Params]:
        g, personal = down.params, split(own, ("own.*", "met"))[0]
        w, theta = g, keep.warm(g, own) | personal
        for _ in range(turns):
            spring = lambda p, w=w: lam / 2 * square_distance(p, w)  # noqa: B023 (bound now)
            theta = descend(model, theta, held, lr, theta, passes, spring)
            w = {n: v + (1.0 if n in model.buffers else eta * lam) * (theta[n] - v) for n, v in w.items()}
        return keep.upload(w, g, held, {}), keep.kept(theta, own, held) | like(theta, personal)

    def server(shared: Params, memory: Params, upload: Upload) -> tuple[Params, Params]:
        mean = keep.mean(upload)
        return {n: v + (1.0 if n in model.buffers else beta) * mean[n] for n, v in shared.items()}, memory

    def personalize(shared: Params, own: Params, held: Examples) -> Params:
        return keep.served(shared, own, held) | split(own, ("own.*", "met"))[0]

    return Method(init, client, server, personalize, rows=keep.rows)


def _measured(model: Model, g: Params, v: Params, held: Examples, bend: Tensor) -> Params:
    """What a person tells about how their data differ: the square of their gradient at g; what of it is the chance of
    which examples they have; how curved their loss is. Chance is told from the parts of their data, dealt out in turn,
    at v; where the loss is a likelihood it is the curvature, which a v that explains every example does not hide."""
    first = slope(model, v | g, Examples(*(x[0] for x in whole(held))), g)[0]
    if model.loss_name in LIKELIHOODS:
        bend = curvature(model, v | g, held, g, probes=1)
        noise = bend[1] * sum(value.numel() for value in first.values()) / held.mask.sum()
    else:
        dealt = [Examples(*(x[0] for x in part)) for part in parts(whole(held), DEALT)]
        slopes = [slope(model, v, part, g)[0] for part in dealt]
        mean = {name: torch.stack([s[name] for s in slopes]).mean(0) for name in first}
        noise = torch.stack([square_distance(s, mean) for s in slopes]).sum() / (DEALT * (DEALT - 1))
    beyond = dot(first, first) - noise
    return {"differ": beyond, "squared": beyond**2, "noise": noise, "usual": bend[1], "each": 1 / held.mask.sum()}


def _chosen(mean: Params, people: Tensor) -> Tensor:
    """Near the best g a person's gradient is curvature x (difference + error of an own fit). The squares add, and the
    spring that loses least is curvature x error^2 / difference^2, as in James and Stein's shrinkage. A difference
    counts as far as it is beyond one standard error of its mean over people: what may be chance is no reason to
    part."""
    chance = ((mean["squared"] - mean["differ"] ** 2).clamp(min=0) / people.clamp(min=1)).sqrt()
    differ = (mean["differ"] - chance).clamp(min=1e-12)
    return mean["usual"].clamp(min=LEAST) * (mean["noise"].clamp(min=0) / differ).clamp(1 / WIDEST, WIDEST)
