"""FedVeil: a private recommender from a few noisy sums. Everybody takes part once in each; the rest is local.

x is a person's 0/1 history, m items, n people (both public), z the noise multiplier of the whole run. Every sum is of
vectors no longer than C and gets a share f of the budget: whoever adds the noise (a stage of the wire; this method adds
none) draws N(0, (C z / sqrt f)^2) for every number of the sum, and the run is then one Gaussian release at z. Uploads
are computed in double precision and multiplied by MARGIN, so that rounding never makes one longer than C.
    popular   x / |x|                                                    C = 1      p = s softplus(sum / s)
              item weights d = max(p, s, 1)^-alpha; common direction q = p d / |p d|
    gram      r r', r = d x on the head (most popular items), unit, less its q part, unit      C = 1: told are G_ii and
              sqrt2 G_ij of the upper triangle. V: eigenvectors above the edge of pure noise, q removed, orthonormal
    table     t u', t = d x over all items, unit, less its q part, unit; u = V't, |u| <= c      C = c: Y [m, k]
              B = sym(V'Y), eigenvalues l > 2 s kept; Y B^-1 Y' = Q diag(t) Q'; gain t / (t + 8 n / m)
    served    score = [(y.q) q + strength Q gain Q'y_now] / d, y = unit(d x); in y_now items weigh by their age
Routes differ in where V comes from:
    features  V spans the public item features less q (the k directions with the largest singular values, where there
              are more), so there is no Gram and its budget goes to the others. Needs `features` where the server is.
    head      the Gram.
    iterate   V starts at random (and public), and `turns` tables follow each other, V = orth(Y), the shares growing
              1.3-fold.
    auto      features where `feature_count` and the noise make them worth it (`choose_route`), otherwise head.
Where there are features and noise, the sum of `popular` and the columns of Y, turned into eigenvectors of B, are shrunk
towards their ridge fits on the features (shrinkage.py), and all positive eigenvalues are kept.
r = z sqrt(m) / n tells before a run whether it is worth it (`predictor`, `advice`).
V is kept as a partial isometry in a rotation that a public random table fixes: eigenvectors have arbitrary signs, and
turn freely where eigenvalues are close, while this is as stable as the space they span.
"""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from scipy import sparse
from torch import Tensor
from torch.nn import functional

from ..core import Download, Examples, Method, Model, Params, Upload
from ..errors import SettingError
from ..local import ages, whole
from .shrinkage import shrunk
from .subspaces import LEAST, basis, fold, learnt, omega, spanned, top, unfold, without

Route = Literal["auto", "features", "head", "iterate"]
CLIP = 0.25  # of u: nearly everybody is that long, and all would be at most 1
FIRST = 0.5  # popularity's share, at most
FEATURES_FIRST = 0.6  # the same where V spans the features: nothing is left for a Gram
GRAM = 0.35  # the Gram's share of what popularity leaves
GROWTH = 1.3  # of the shares from table to table
PULL = 8.0  # imaginary people an item, towards no taste at all
FEATURES_PULL = 2.0  # the same where V spans the features: their directions are less noisy
FEATURES_WIDTH = 32  # directions of the features that V spans, at most
FEWEST_FEATURES = 6  # columns below which head is better on validation of ML-100K (years alone have 7)
WORTH = 0.1  # route=auto takes the features from r x columns = 0.1 on; with less noise head learns better directions
MARGIN = 1 - 1e-6  # of every upload's length, for rounding
MANY = 2_000  # people whose heads are spread out at once by the kernel


class Constants(NamedTuple):
    """What follows from the public numbers, tuned on validation of ML-100K, ML-1M and a synthetic world."""

    first: float  # popularity's share
    head: int
    width: int  # directions of taste, at most
    alpha: float


class Public(NamedTuple):
    """What everybody derives from the noisy popularity."""

    weight: Tensor  # d [m]
    common: Tensor  # q [m]
    head: Tensor  # item numbers, ascending


def predictor(noise: float, items: int, people: int) -> float:
    """r = z sqrt(m) / n: the noise beside the people who drown it.

    >>> round(predictor(2.0, 1600, 8000), 3)
    0.01
    """
    return noise * math.sqrt(items) / people


def advice(r: float, features: bool = False) -> str:
    """What to expect of a private run, before it is paid for."""
    if features and r >= 0.02:
        return (
            f"r = {r:.3g}, from 0.02 on: public item features (genres, years) carry most of the taste that survives "
            "the noise. Compare with private popularity, above all where histories are shorter than 20 items."
        )
    if r < 0.02:
        return f"r = {r:.3g}, below 0.02: private taste is useful for people with histories of 30 items and more."
    if r <= 0.1:
        return f"r = {r:.3g}, from 0.02 to 0.1: some taste survives the noise. Compare with private popularity."
    return (
        f"r = {r:.3g}, above 0.1: too few people for this catalogue and epsilon. Private popularity (method popularity "
        "with the same epsilon) is the safe choice; more people, fewer items or a larger epsilon change that."
    )


def constants(noise: float, items: int, people: int, features: bool = False) -> Constants:
    """`features`: of route=features."""
    r = predictor(noise, items, people) if noise else 0.0
    head = 0.17 * (0.05 * people / noise) ** 2 if noise else math.inf
    return Constants(
        first=min(max(4 * r, 0.1), FEATURES_FIRST if features else FIRST),
        head=min(items, int(min(max(head, 100), 500))),
        width=min(items, FEATURES_WIDTH if features else 32 if r < 0.006 else 16),
        alpha=0.25 if r < 0.01 else 0.0,
    )


def choose_route(route: Route, noise: float, items: int, people: int, feature_count: int) -> Route:
    """route=auto resolved by public numbers alone, so that processes without the features resolve it alike.

    >>> choose_route("auto", 4.2, 1682, 849, 26), choose_route("auto", 4.2, 1682, 849, 0)
    ('features', 'head')
    """
    if route != "auto":
        return route
    r = predictor(noise, items, people) if noise else 0.0
    return "features" if feature_count >= FEWEST_FEATURES and r * feature_count >= WORTH else "head"


def fedveil(
    model: Model,
    *,
    noise: float = 0.0,
    people: int = 0,
    features: Tensor | None = None,
    feature_count: int = 0,
    route: Route = "auto",
    turns: int = 4,
    strength: float = 1.25,
    recency: float = 0.9,
    floor: float = 0.1,
) -> Method:
    """`noise` is z and `people` the public number of people, from which the constants follow; without noise people are
    counted. `features` [items, columns] is public and read by the server step alone; `feature_count` is its number of
    columns for processes that do not have it. `turns` is read by route=iterate. `recency` 1 turns the weighing by age
    off. A round after the last of `release` sends nothing."""
    if model.design is None or "item_bias" in model.rows:
        raise SettingError("fedveil ranks with model=factorization. Leave model out, or use fedals for ratings.")
    if noise < 0 or people < 0 or turns < 1 or (noise and not people):
        raise SettingError(
            f"noise={noise:g}, people={people} and turns={turns} were got; expected noise from 0, at least 1 turn, and "
            "with noise the public number of people (example: noise=2.6, people=943)."
        )
    m = model.catalogue
    if features is not None:
        feature_count = feature_count or features.shape[1]
        if features.shape != (m, feature_count):
            raise SettingError(f"features must be a table of {m:,} x {feature_count}, got {tuple(features.shape)}.")
    asked, route = route, choose_route(route, noise, m, people, feature_count)
    fixed = constants(noise, m, people, route == "features")
    h, k, rest = fixed.head, fixed.width, 1 - fixed.first
    powers = GROWTH ** np.arange(turns) if route == "iterate" else np.ones(1)
    left = rest * (1 - GRAM) if route == "head" else rest
    tables = tuple((CLIP, float(left * share)) for share in powers / powers.sum())
    release = ((1.0, fixed.first), *(((1.0, rest * GRAM),) if route == "head" else ()), *tables)
    sound = [bound * noise / math.sqrt(share) for bound, share in release]  # s, by round
    begin = len(release) - len(tables)  # the first table's round

    def public(popular: Tensor) -> Public:
        popular = popular.double()
        weight = popular.clamp(min=max(sound[0], 1.0)) ** -fixed.alpha
        return Public(weight, _unit(popular * weight), popular.argsort(descending=True, stable=True)[:h].sort().values)

    def needed() -> Tensor:
        if features is None:
            raise SettingError(
                "route=features needs public item features where the server is, and there are none: the catalogue has "
                "neither genres nor years in its titles. Use route=head."
            )
        return features

    def init(params: Params) -> tuple[Params, Params]:
        return {"popular": torch.zeros(m), "table": torch.zeros(m, k), "gain": torch.zeros(k, k)}, {}

    def client(down: Download, own: Params, held: Examples) -> tuple[Upload, Params]:
        number, x = int(down.round), _taken(held, m)
        if number >= len(release):
            return Upload({}, torch.ones(())), {}
        if number == 0:
            return Upload({"popular": _told(_unit(x))}, torch.ones(())), {}
        weight, common, head = public(down.params["popular"])
        if number < begin:
            seen = _residual((weight * x)[head], _unit(common[head]))
            return Upload({"gram": _told(fold(seen[:, None] * seen))}, torch.ones(())), {}
        seen = _residual(weight * x, common)
        taste = seen @ down.params["table"].double()
        taste = taste * (CLIP / taste.norm().clamp(min=CLIP))
        return Upload({"table": _told(seen[:, None] * taste)}, torch.ones(())), {}

    def server(shared: Params, memory: Params, upload: Upload) -> tuple[Params, Params]:
        told = upload.total
        turn = int(memory.get("turn", torch.zeros(())))
        if "popular" in told:
            popular = _positive(told["popular"].double(), features, sound[0]).float()
            common = public(popular).common
            start = shared["table"]
            if route == "iterate":
                start = basis(without(common, omega(m, k)))
            if route == "features":
                start = basis(spanned(without(common, needed().double()), omega(m, k)))
            return shared | {"popular": popular, "table": start}, memory
        if "gram" in told:
            spread = top(unfold(told["gram"], h), sound[1], k)  # a projector [h, h]
            lifted = torch.zeros(m, k, dtype=torch.float64)
            _, common, head = public(shared["popular"])
            lifted[head] = spread @ omega(m, k)[head]
            return shared | {"table": basis(without(common, lifted))}, memory
        if "table" in told:
            common = public(shared["popular"]).common
            pull = (FEATURES_PULL if route == "features" else PULL) * (people or float(upload.weight)) / m
            public_table = needed() if route == "features" else features
            table, gain = learnt(told["table"], shared["table"], common, sound[begin + turn], pull, public_table)
            return shared | {"table": table, "gain": gain}, {"turn": torch.tensor(turn + 1.0)}
        return shared, memory

    def personalize(shared: Params, own: Params, held: Examples) -> Params:
        weight, common, _ = public(shared["popular"])
        weight, common = weight.float(), common.float()
        ever, now = (_unit(weight * _taken(held, m, *by).float()) for by in ((), (recency, floor)))
        taste = strength * shared["gain"] @ (now @ shared["table"])
        item = torch.cat([common[:, None], shared["table"]], 1) / weight[:, None]
        return {"item": item, "user": torch.cat([(ever @ common)[None], taste])}

    def kernel(down: Download, store: Any, cohort: Any, held: Any) -> tuple[Upload, dict[str, int]]:
        number, count = int(down.round), torch.tensor(float(len(cohort)))
        if number >= len(release):
            return Upload({}, count), {}

        def told(total: Any) -> Tensor:
            """The sum in double precision; of one person it is their upload, in single precision."""
            total = torch.as_tensor(total) * MARGIN
            return total.float() if len(cohort) == 1 else total

        ones = np.ones(len(held.inputs))
        x = sparse.csr_matrix((ones, held.inputs, held.starts), (len(cohort), m))
        x.sum_duplicates()
        x.data[:] = 1.0
        if number == 0:
            return Upload({"popular": told(np.asarray(_units(x).sum(0))[0])}, count), {}
        weight, common, head = (part.numpy() for part in public(down.params["popular"]))
        x = x @ sparse.diags(weight)
        if number < begin:
            return Upload({"gram": told(fold(torch.from_numpy(_heads(_units(x[:, head]), common[head]))))}, count), {}
        return Upload({"table": told(_tables(_units(x), common, down.params["table"].numpy()))}, count), {}

    return Method(
        init, client, server, personalize, "history", kernel=kernel, bulk=max(m * k, h * h), release=release,
        resolved={"route": route} if asked == "auto" else {},
    )  # fmt: skip


def _taken(held: Examples, m: int, recency: float = 1.0, floor: float = 0.0) -> Tensor:
    """x [m]: 1 where the person has the item, or less by its age."""
    items, _, mask = (part[0] for part in whole(held))
    weight = mask * (floor + (1 - floor) * recency ** ages(mask))
    return torch.zeros(m).index_add(0, items, weight).clamp(max=1).double()


def _told(vector: Tensor) -> Tensor:
    """One person's upload: single precision, and not longer than its bound after rounding."""
    return (vector * MARGIN).float()


def _unit(vector: Tensor, least: float = 1e-30) -> Tensor:
    """Of length 1; what is shorter than `least` stays short, and nothing stays nothing."""
    return vector / vector.norm().clamp(min=least)


def _residual(vector: Tensor, common: Tensor) -> Tensor:
    """What of a direction is not common, of length 1."""
    vector = _unit(vector)
    return _unit(vector - (vector @ common) * common, LEAST)


def _positive(popular: Tensor, features: Tensor | None, sound: float) -> Tensor:
    """Popularity from its noisy sum: shrunk towards the features where there are some, and made positive."""
    if not sound:
        return popular.relu()
    return functional.softplus(popular if features is None else shrunk(popular, features, sound), 1 / sound)


def _units(x: sparse.csr_matrix) -> sparse.csr_matrix:
    """Rows of length 1; empty rows stay empty."""
    size = np.sqrt(np.asarray(x.multiply(x).sum(1))[:, 0])
    return (sparse.diags(1 / np.where(size > 0, size, 1.0)) @ x).tocsr()


def _heads(x: sparse.csr_matrix, common: np.ndarray) -> np.ndarray:
    """The cohort's sum of r r' [h, h]."""
    common = common / max(np.linalg.norm(common), 1e-30)
    total = np.zeros((len(common), len(common)))
    for start in range(0, x.shape[0], MANY):
        part = x[start : start + MANY].toarray()
        part -= np.outer(part @ common, common)
        part /= np.maximum(np.linalg.norm(part, axis=1, keepdims=True), LEAST)
        total += part.T @ part
    return total


def _tables(x: sparse.csr_matrix, common: np.ndarray, table: np.ndarray) -> np.ndarray:
    """The cohort's sum of t u' [m, k]; t = (x - c q) / size is never written out, as it is not sparse."""
    table = table.astype(np.float64)
    part = x @ common
    full = np.asarray(x.multiply(x).sum(1))[:, 0] > 0
    size = np.maximum(np.sqrt(np.maximum(full - part * part, 0.0)), LEAST)
    taste = (x @ table - np.outer(part, common @ table)) / size[:, None]
    taste *= CLIP / np.maximum(np.linalg.norm(taste, axis=1, keepdims=True), CLIP) / size[:, None]
    total: np.ndarray = x.T @ taste - np.outer(common, part @ taste)
    return total
