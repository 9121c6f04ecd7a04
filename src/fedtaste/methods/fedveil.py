"""FedVeil: differentially private recommendation from a few noisy sums. Everybody takes part once in each sum.

x is a person's 0/1 history, m items, n people (both public), z the noise multiplier of the whole run. Every sum is of
vectors no longer than C and gets a share f of the budget. The wire adds the noise, this method adds none: it draws
N(0, (C z / sqrt f)^2) for every number of the sum, and the run is then one Gaussian release at z. Uploads are computed
in double precision and multiplied by MARGIN, so that rounding never makes one longer than C.
    popular   x / |x|                                                    C = 1      p = s softplus(sum / s)
              item weights d = max(p, s, 1)^-alpha; common direction q = p d / |p d|
    gram      r r', r = d x on the head (most popular items), unit, less its q part, unit      C = 1: sent are G_ii and
              sqrt2 G_ij of the upper triangle. V: eigenvectors above the edge of pure noise, q removed, orthonormal
    table     t u', t = d x over all items, unit, less its q part, unit; u = V't, |u| <= c      C = c: Y [m, k]
              B = sym(V'Y), eigenvalues l > 2 s kept; Y B^-1 Y' = Q diag(t) Q'; gain t / (t + 8 n / m)
    served    score = [(y.q) q + strength Q gain Q'y_now] / d, y = unit(d x); in y_now items are weighted by age
Routes differ in where V comes from:
    features  V spans the public item features less q (the k directions with the largest singular values, where there
              are more), so there is no Gram and its budget goes to the others. Needs `features` where the server is.
    head      the Gram.
    iterate   V starts at random (and public), and `turns` tables follow each other, V = orth(Y), the shares growing
              1.3-fold.
    auto      features where `feature_count` and the noise make them worth it (`choose_route`), otherwise head.
Where there are features and noise, the sum of `popular` and the columns of Y, turned into eigenvectors of B, are shrunk
towards their ridge fits on the features (shrinkage.py), and all positive eigenvalues are kept.
r = z sqrt(m) / n says before a run whether it is worth it (`predictor`, `advice`).
V is kept as a partial isometry in a rotation that a public random table fixes: eigenvectors have arbitrary signs, and
turn freely where eigenvalues are close, while this is as stable as the space they span.
"""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from fedtaste.core import Cohort, Download, Examples, Fast, Method, Model, Params, Release, Upload, UtilityPredictor
from fedtaste.errors import SettingError
from fedtaste.methods.descent import flat_examples, item_counts, recency_weights
from fedtaste.methods.registry import PublicFacts, define
from fedtaste.methods.search_space import Around, Range
from fedtaste.methods.shrinkage import shrunk
from fedtaste.methods.subspaces import LEAST, basis, deflate, fold, next_basis, projector, public_table, span, unfold
from fedtaste.signature import Count, CountOrNone, NonNegative, Share, Values

if TYPE_CHECKING:
    from scipy import sparse

Route = Literal["auto", "features", "head", "iterate"]
CLIP = 0.25  # largest norm of u: nearly everybody's is that long, and nobody's is longer than 1
FIRST = 0.5  # popularity's largest share of the budget
FEATURES_FIRST = 0.6  # the same where V spans the features: nothing is left for a Gram
GRAM = 0.35  # the Gram's share of what popularity leaves
GROWTH = 1.3  # factor of the shares from table to table
PULL = 8.0  # imaginary people per item who have no taste at all
FEATURES_PULL = 2.0  # the same where V spans the features: their directions are less noisy
FEATURES_WIDTH = 32  # directions of the features that V spans, at most
FEWEST_FEATURES = 6  # columns below which head is better on validation of ML-100K (years alone have 7)
WORTH = 0.1  # route=auto takes the features from r x columns = 0.1 on; with less noise head learns better directions
MARGIN = 1 - 1e-6  # of every upload's length, for rounding
STRENGTH = 1.25  # weight of taste beside popularity
SPARSE, SPARSE_STRENGTH = 3, 0.5  # the same where there are more items than so many times the people
CHUNK = 2_000  # people whose heads the kernel holds as dense rows at once


class Constants(NamedTuple):
    """Constants that follow from public numbers, tuned on validation of ML-100K, ML-1M and a synthetic world."""

    first: float  # popularity's share of the budget
    head: int  # most popular items that the Gram is made of
    width: int  # directions of taste, at most
    alpha: float  # exponent of the item weights


class Public(NamedTuple):
    """What everybody computes from the noisy popularity."""

    weight: Tensor  # d [m]
    common: Tensor  # q [m]
    head: Tensor  # item numbers, ascending


def predictor(noise: float, items: int, people: int) -> float:
    """r = z sqrt(m) / n: the noise relative to the number of people.

    >>> round(predictor(2.0, 1600, 8000), 3)
    0.01
    """
    return noise * math.sqrt(items) / people if noise else 0.0


def advice(r: float, features: bool = False) -> str:
    """What to expect of a private run, before any of the budget is spent."""
    found = f"Noise x sqrt(items) / people is {r:.3g}"
    compare = "compare with --method popularity --wire clip=1 and the same --epsilon"
    if features and r >= 0.02:
        return (
            f"{found}. From 0.02 on, public item features (genres, years) carry most of the taste that survives the "
            f"noise: {compare}, above all where histories are shorter than 20 items."
        )
    if r < 0.02:
        return f"{found}. Below 0.02, private taste is useful for people with histories of 30 items and more."
    if r <= 0.1:
        return f"{found}. From 0.02 to 0.1, some taste survives the noise: {compare}."
    return (
        f"{found}. Above 0.1 there are too few people for this catalogue and epsilon, and private popularity is the "
        f"safe choice ({compare}). More people, fewer items or a larger epsilon change that."
    )


def constants(noise: float, items: int, people: int, features: bool = False) -> Constants:
    """The constants for this much noise; `features`: for route=features."""
    r = predictor(noise, items, people)
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
    r = predictor(noise, items, people)
    return "features" if feature_count >= FEWEST_FEATURES and r * feature_count >= WORTH else "head"


@dataclass(frozen=True, eq=False)
class FedVeil:
    """The module has the formulas. A round after the last release sends nothing."""

    model: Model
    _: KW_ONLY
    noise: NonNegative = 0.0  # z, the noise multiplier of the whole run
    people: CountOrNone = 0  # n, the public number of people; without noise people are counted
    features: Tensor | None = None  # [items, columns], public, read by the server step alone
    feature_count: CountOrNone = 0  # columns of `features`, for processes that do not have it
    route: Route = "auto"  # where V comes from
    turns: Count = 4  # route=iterate: tables that follow each other
    strength: NonNegative = STRENGTH  # weight of taste beside popularity; less where items are more than 3 x people
    recency: Share = 0.9  # served items weigh floor + (1 - floor) recency^age; 1 turns that off
    floor: Share = 0.1

    def method(self) -> Method:
        if self.model.kind != "factorization":
            raise SettingError("fedveil ranks with model=factorization. Leave model out, or use fedals for ratings.")
        if self.noise and not self.people:
            raise SettingError(
                f"noise={self.noise:g} needs the public number of people, got people=0. Example: noise=2.6, people=943."
            )
        m, columns, head, width = self.items, self.columns, self.constants.head, self.constants.width
        if self.features is not None and self.features.shape != (m, columns):
            raise SettingError(f"features must be a table of {m:,} x {columns}, got {tuple(self.features.shape)}.")
        return Method(
            self.init,
            self.client,
            self.server,
            self.personalize,
            examples="history",
            fast=Fast(self.kernel, bulk=max(m * width, head * head)),
            privacy=Release(self.releases, predictor=self.outlook),
            resolved={"route": self.used_route} if self.route == "auto" else {},
        )

    @property
    def outlook(self) -> UtilityPredictor | None:
        """How useful a model with this noise can be."""
        if not self.noise:
            return None
        r = predictor(self.noise, self.items, self.people)
        return {"r": r, "advice": advice(r, self.used_route == "features")}

    @property
    def items(self) -> int:
        return self.model.catalogue

    @property
    def columns(self) -> int:
        """Columns of the public item features."""
        return self.feature_count or (0 if self.features is None else self.features.shape[1])

    @cached_property
    def used_route(self) -> Route:
        """The route, with `auto` resolved."""
        return choose_route(self.route, self.noise, self.items, self.people, self.columns)

    @cached_property
    def constants(self) -> Constants:
        return constants(self.noise, self.items, self.people, self.used_route == "features")

    @cached_property
    def releases(self) -> tuple[tuple[float, float], ...]:
        """By round: (largest norm of an upload, share of the budget)."""
        rest = 1 - self.constants.first
        powers = GROWTH ** np.arange(self.turns) if self.used_route == "iterate" else np.ones(1)
        left = rest * (1 - GRAM) if self.used_route == "head" else rest
        tables = tuple((CLIP, float(left * share)) for share in powers / powers.sum())
        gram = ((1.0, rest * GRAM),) if self.used_route == "head" else ()
        return ((1.0, self.constants.first), *gram, *tables)

    def deviation(self, round: int) -> float:
        """s: the standard deviation of the noise on the sum of this round."""
        bound, share = self.releases[round]
        return bound * self.noise / math.sqrt(share)

    @property
    def first_table(self) -> int:
        """The round of the first table."""
        return 2 if self.used_route == "head" else 1

    def public(self, popular: Tensor) -> Public:
        popular = popular.double()
        weight = popular.clamp(min=max(self.deviation(0), 1.0)) ** -self.constants.alpha
        head = popular.argsort(descending=True, stable=True)[: self.constants.head].sort().values
        return Public(weight, _unit(popular * weight), head)

    def required_features(self) -> Tensor:
        if self.features is None:
            raise SettingError(
                "route=features needs public item features where the server is, and there are none: the catalogue has "
                "neither genres nor years in its titles. Use route=head."
            )
        return self.features

    def init(self, params: Params) -> tuple[Params, Params]:
        m, k = self.items, self.constants.width
        return {"popular": torch.zeros(m), "table": torch.zeros(m, k), "gain": torch.zeros(k, k)}, {}

    def client(self, download: Download, own: Params, examples: Examples) -> tuple[Upload, Params]:
        round, x = int(download.round), _history_vector(examples, self.items)
        if round >= len(self.releases):
            return Upload({}, torch.ones(())), {}
        if round == 0:
            return Upload({"popular": _bounded(_unit(x))}, torch.ones(())), {}
        weight, common, head = self.public(download.params["popular"])
        if round < self.first_table:
            residual = _residual((weight * x)[head], _unit(common[head]))
            return Upload({"gram": _bounded(fold(residual[:, None] * residual))}, torch.ones(())), {}
        residual = _residual(weight * x, common)
        taste = residual @ download.params["table"].double()
        taste = taste * (CLIP / taste.norm().clamp(min=CLIP))
        return Upload({"table": _bounded(residual[:, None] * taste)}, torch.ones(())), {}

    def server(self, shared: Params, memory: Params, upload: Upload) -> tuple[Params, Params]:
        total = upload.total
        if "popular" in total:
            return shared | self.learn_popularity(shared, total["popular"]), memory
        if "gram" in total:
            return shared | {"table": self.learn_directions(shared, total["gram"])}, memory
        if "table" not in total:
            return shared, memory
        turn = int(memory.get("turn", torch.zeros(())))
        common = self.public(shared["popular"]).common
        per_item = FEATURES_PULL if self.used_route == "features" else PULL
        pull = per_item * (self.people or float(upload.weight)) / self.items
        features = self.required_features() if self.used_route == "features" else self.features
        deviation = self.deviation(self.first_table + turn)
        table, gain = next_basis(total["table"], shared["table"], common, deviation, pull, features)
        return shared | {"table": table, "gain": gain}, {"turn": torch.tensor(turn + 1.0)}

    def learn_popularity(self, shared: Params, total: Tensor) -> Params:
        """Popularity, and the directions V that the tables start from."""
        popular = _positive(total.double(), self.features, self.deviation(0)).float()
        common, start = self.public(popular).common, shared["table"]
        random = public_table(self.items, self.constants.width)
        if self.used_route == "iterate":
            start = basis(deflate(common, random))
        if self.used_route == "features":
            start = basis(span(deflate(common, self.required_features().double()), random))
        return {"popular": popular, "table": start}

    def learn_directions(self, shared: Params, gram: Tensor) -> Tensor:
        """V from the Gram of the head."""
        m, h, k = self.items, self.constants.head, self.constants.width
        lifted = torch.zeros(m, k, dtype=torch.float64)
        _, common, head = self.public(shared["popular"])
        lifted[head] = projector(unfold(gram, h), self.deviation(1), k) @ public_table(m, k)[head]
        return basis(deflate(common, lifted))

    def personalize(self, shared: Params, own: Params, examples: Examples) -> Params:
        weight, common, _ = self.public(shared["popular"])
        weight, common = weight.float(), common.float()
        ever = _unit(weight * _history_vector(examples, self.items).float())
        now = _unit(weight * _history_vector(examples, self.items, self.recency, self.floor).float())
        taste = self.strength * shared["gain"] @ (now @ shared["table"])
        item = torch.cat([common[:, None], shared["table"]], 1) / weight[:, None]
        return {"item": item, "user": torch.cat([(ever @ common)[None], taste])}

    def kernel(self, download: Download, cohort: Cohort) -> tuple[Upload, dict[str, int]]:
        """`client` for a cohort by sparse algebra. The sum is in double precision; one person's is their upload, in
        single precision."""
        round, people = int(download.round), len(cohort.people)
        weight = torch.tensor(float(people))
        if round >= len(self.releases):
            return Upload({}, weight), {}
        name, total = self.cohort_sum(round, download.params, cohort)
        total = total * MARGIN
        return Upload({name: total.float() if people == 1 else total}, weight), {}

    def cohort_sum(self, round: int, params: Params, cohort: Cohort) -> tuple[str, Tensor]:
        """(name in the upload, sum over the cohort) of a round."""
        from scipy import sparse  # takes a third of a second, which every process would spend

        items, starts = cohort.examples.inputs, cohort.examples.starts
        x = sparse.csr_matrix((np.ones(len(items)), items, starts), (len(cohort.people), self.items))
        x.sum_duplicates()
        x.data[:] = 1.0
        if round == 0:
            return "popular", torch.as_tensor(np.asarray(_unit_rows(x).sum(0))[0])
        weight, common, head = (part.numpy() for part in self.public(params["popular"]))
        x = x @ sparse.diags(weight)
        if round < self.first_table:
            return "gram", fold(torch.from_numpy(_sum_heads(_unit_rows(x[:, head]), common[head])))
        return "table", torch.as_tensor(_sum_tables(_unit_rows(x), common, params["table"].numpy()))


def _unread(task: str, values: Values) -> dict[str, str]:
    unread = dict.fromkeys(("model", "k", "loss", "spread"), "its tables follow from the data and the noise")
    route = values["route"]
    return unread if route == "iterate" else unread | {"turns": f"route={route} has no turns"}


def ranking_defaults(facts: PublicFacts) -> Values:
    """Less taste where there are few people for the catalogue: directions of taste are seen less clearly there, without
    noise too. Chosen on validation of several data sets (docs/defaults.md)."""
    return {"strength": SPARSE_STRENGTH if facts.items > SPARSE * facts.people else STRENGTH}


fedveil = define(
    defaults={"ranking": {"rounds": 3, "patience": 0}},
    scaled={"ranking": ranking_defaults},
    unread=_unread,
    search={"strength": Around(5), "recency": Range(0.5, 1.0), "floor": Range(0.0, 0.5)},
)(FedVeil)


def _history_vector(examples: Examples, m: int, recency: float = 1.0, floor: float = 0.0) -> Tensor:
    """x [m]: 1 where the person has the item, or less by its age."""
    flat = flat_examples(examples)
    weighted = flat._replace(mask=recency_weights(flat.mask, recency, floor))
    return item_counts(weighted, m).clamp(max=1).double()


def _bounded(vector: Tensor) -> Tensor:
    """One person's upload: single precision, and not longer than its bound after rounding."""
    return (vector * MARGIN).float()


def _unit(vector: Tensor, least: float = 1e-30) -> Tensor:
    """The vector scaled to length 1; what is shorter than `least` stays short, and zero stays zero."""
    length: Tensor = vector.norm()
    return vector / length.clamp(min=least)


def _residual(vector: Tensor, common: Tensor) -> Tensor:
    """The part of a direction that is not common, of length 1."""
    vector = _unit(vector)
    return _unit(vector - (vector @ common) * common, LEAST)


def _positive(popular: Tensor, features: Tensor | None, deviation: float) -> Tensor:
    """Popularity from its noisy sum: shrunk towards the features where there are some, and made positive."""
    if not deviation:
        return popular.relu()
    return functional.softplus(popular if features is None else shrunk(popular, features, deviation), 1 / deviation)


def _unit_rows(x: sparse.csr_matrix) -> sparse.csr_matrix:
    """Rows of length 1; empty rows stay empty."""
    from scipy import sparse

    size = np.sqrt(np.asarray(x.multiply(x).sum(1))[:, 0])
    return (sparse.diags(1 / np.where(size > 0, size, 1.0)) @ x).tocsr()


def _sum_heads(x: sparse.csr_matrix, common: NDArray[np.float64]) -> NDArray[np.float64]:
    """The cohort's sum of r r' [h, h]."""
    common = common / max(float(np.linalg.norm(common)), 1e-30)
    total = np.zeros((len(common), len(common)))
    for start in range(0, x.shape[0], CHUNK):
        part = x[start : start + CHUNK].toarray()
        part -= np.outer(part @ common, common)
        part /= np.maximum(np.linalg.norm(part, axis=1, keepdims=True), LEAST)
        total += part.T @ part
    return total


def _sum_tables(x: sparse.csr_matrix, common: NDArray[np.float64], table: NDArray[np.float64]) -> NDArray[np.float64]:
    """The cohort's sum of t u' [m, k]; t = (x - c q) / size is never written out, as it is not sparse."""
    table = table.astype(np.float64)
    part = x @ common
    full = np.asarray(x.multiply(x).sum(1))[:, 0] > 0
    size = np.maximum(np.sqrt(np.maximum(full - part * part, 0.0)), LEAST)
    taste = (x @ table - np.outer(part, common @ table)) / size[:, None]
    taste *= CLIP / np.maximum(np.linalg.norm(taste, axis=1, keepdims=True), CLIP) / size[:, None]
    total: NDArray[np.float64] = x.T @ taste - np.outer(common, part @ taste)
    return total
