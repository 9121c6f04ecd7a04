"""FedALS: federated alternating least squares (iALS). Equals central training; the server needs only sums of uploads.

Ranking (Hu et al. 2008, regularised as Rendle et al. 2021), with m items, n people, histories H_i:
    person  u_i = [a0 V'V + sum_{j in H_i} w v_j v_j' + lam (sum w + a0 m) I]^-1 sum w v_j
    uploads for its items j: [u u', u, 1], and u u' once                    (training weights w are flat)
    server  v_j = [a0 U'U + sum u u' + lam (n_j + a0 n) I]^-1 sum u
The 1s, from which n_j is counted, are the same in every round. Where everybody takes part in every round they are sent
in the first round only (`counts_once`), because a constant that is sent in sums of different people can be solved for.
Serving weights a person's own history by age a, w_a = floor + (1 - floor) recency^a, on the device only: recent items
say most about the next one, and nobody else needs to know the order.
Blocks (iALS++, Rendle et al. 2021): with block = d a round solves d of the k columns B, the next round the next d. A
device uploads [u_B u_B', (1 - u'v_j) u_B, 1] for its items, d (d + 1) / 2 + d + 1 numbers an item, and the server adds
    [a0 U'U + sum u u' + lam (n_j + a0 n) I]_BB^-1 [sum (1 - u'v_j) u_B - a0 (U'U v_j)_B - lam (n_j + a0 n) v_jB]
to v_jB. A sweep over all columns is k / d rounds and takes (d + 3) / (k + 3) of the bytes of a whole round.
Ratings (a model with biases): the same with a0 = 0, x = [u, 1] against [v_j, b_j], and the residual as target.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedtaste.core import Cohort, CohortExamples, Download, Examples, Fast, Method, Model, Params, Release, Upload
from fedtaste.errors import SettingError
from fedtaste.kernels import als as kernels
from fedtaste.methods.descent import flat_examples, item_counts, recency_weights, ridge
from fedtaste.methods.registry import PublicFacts, define
from fedtaste.methods.search_space import SOLVES
from fedtaste.params import split
from fedtaste.recipe import Recipe
from fedtaste.signature import CountOrNone, NonNegative, Share, Values

ALL_ONE = np.zeros(0, np.float32)  # what compiled code takes for targets or weights that are all 1
PIECE = 1_000_000  # examples that are scored at once
MANY_ITEMS = 31_000  # from which on an upload with k = 64 would pass 256 MiB


@dataclass(frozen=True, eq=False)
class FedALS:
    """Federated alternating least squares; symbols are those of Rendle et al. 2021."""

    model: Model
    _: KW_ONLY
    lam: NonNegative = 0.01  # lambda, the regularisation, multiplied by how many observations a row has
    alpha0: NonNegative = 0.3  # alpha0 (a0), weight of every item that a person did not take
    recency: Share = 0.75  # weight of a person's own items by age, when they are served; 1 turns that off
    floor: Share = 0.02  # least weight of old items
    block: CountOrNone = 0  # d, columns of the items that a round solves, for smaller uploads and more rounds; 0: all
    counts_once: bool = False  # everybody takes part in every round, so counts are sent in the first one only

    @property
    def ratings(self) -> bool:
        """Whether targets are ratings (a model with biases) rather than the items of a history."""
        return self.model.kind == "rating_factorization"

    def method(self) -> Method:
        if self.model.design is None:
            raise SettingError("fedals needs a factorisation. Use fedavg, fedsgd or fedrep for this data or model.")
        if self.block:
            self._check_block(self.size(self.model.init(torch.Generator())))
        return Method(
            self.init,
            self.client,
            self.server,
            self.personalize,
            examples="history",
            rows=(*self.model.rows, "sums"),
            fast=Fast(self.kernel, partial(self.kernel, wide=True), users=self.users, turns=True),
            sums=True,
            takes_turns=() if self.block else ("turns", "common_turns"),  # sums of different columns have no average
            privacy=Release(constant=not self.counts_once),
            recipe=self.recipe,
        )

    @property
    def recipe(self) -> Recipe:
        """How a bundle serves somebody."""
        alpha0 = 0.0 if self.ratings else self.alpha0
        return Recipe("ridge", self.lam, alpha0 * self.model.catalogue, alpha0, self.recency, self.floor)

    def init(self, params: Params) -> tuple[Params, Params]:
        shared, _ = split(params, self.model.private)
        block = {"block": torch.zeros((), dtype=torch.int64)} if self.block else {}  # rounds that were solved
        return shared | ({} if self.ratings else {"gram": shared["item"].T @ shared["item"]}) | block, {}

    def _check_block(self, size: int) -> None:
        if self.block > size:
            raise SettingError(f"block must be from 1 to {size} (k), or 0 for all, got {self.block}.")

    def size(self, shared: Params) -> int:
        """p, the numbers that are solved for each item: k and, for ratings, the bias."""
        return shared["item"].shape[1] + self.ratings

    def columns(self, shared: Params) -> Tensor:
        """The columns that this round solves, [p] or, with blocks, [d]."""
        size = self.size(shared)
        first = int(shared["block"]) * self.block if self.block else 0
        return (first + torch.arange(self.block or size)) % size

    def solve(self, shared: Params, examples: Examples, weights: Tensor) -> Tensor:
        """The person's exact vector, given the items; `examples` are flat [n], `weights` [n]."""
        assert self.model.design is not None
        features, offset = self.model.design(shared, examples.inputs)
        if self.ratings:
            size = features.shape[-1]
            strength = self.lam * weights.sum()
            return ridge(features, examples.targets - offset, weights, torch.zeros(size, size), strength)
        strength = self.lam * (weights.sum() + self.alpha0 * self.model.catalogue)
        return ridge(features, torch.ones_like(weights), weights, self.alpha0 * shared["gram"], strength)

    def sends_counts(self, download: Download) -> bool:
        return not self.counts_once or float(download.round) == 0

    def client(self, download: Download, own: Params, examples: Examples) -> tuple[Upload, Params]:
        flat, shared = flat_examples(examples), download.params
        user = self.solve(shared, flat, flat.mask)
        count = target = item_counts(flat, shared["item"].shape[0])
        if self.ratings:
            residual = flat.targets - user[-1] - shared["mean"]
            target = item_counts(flat._replace(mask=flat.mask * residual), len(count))
            user = torch.cat([user[:-1], torch.ones(1)])  # an item's bias multiplies 1
        square = part = _upper(user[:, None] * user)
        if self.block:
            target = target - count * (self._whole(shared) @ user)
            user = user[self.columns(shared)]
            part = _upper(user[:, None] * user)
        counts = (count[:, None],) if self.sends_counts(download) else ()
        sums = torch.cat((count[:, None] * part, target[:, None] * user, *counts), 1)
        return Upload({"sums": sums} | ({} if self.ratings else {"square": square}), torch.ones(())), {}

    def _whole(self, shared: Params) -> Tensor:
        """What multiplies a person's x: an item's vector and, for ratings, its bias."""
        return torch.cat([shared["item"], shared["item_bias"][:, None]], 1) if self.ratings else shared["item"]

    def server(self, shared: Params, memory: Params, upload: Upload) -> tuple[Params, Params]:
        size, columns = self.size(shared), self.columns(shared)
        sums = upload.total["sums"].contiguous()
        width = len(columns) * (len(columns) + 1) // 2 + len(columns)  # of x x' and r x; behind them counts, if sent
        count = sums[:, width] if sums.shape[1] > width else memory["count"]
        gram, people = np.zeros((size, size)), 0.0
        if not self.ratings:
            gram = self.alpha0 * _full(upload.total["square"], size).double().numpy()
            people = self.alpha0 * float(upload.weight)
        strength = self.lam * (count.double().clamp(min=0) + people)  # noise may have made a count negative
        strength[strength == 0] = 1.0  # nobody has this item: any positive number gives its exact answer, zero
        old = self._whole(shared)
        if self.block:
            pull = old.double() @ torch.from_numpy(gram)[:, columns] + strength[:, None] * old[:, columns]
            sums = sums.clone()
            sums[:, width - len(columns) : width] -= pull
            part = gram[np.ix_(columns.numpy(), columns.numpy())]
            item = old.index_add(1, columns, _solve_items(sums, width, strength, part))
        else:
            item = _solve_items(sums, width, strength, gram)
        if memory:  # a cohort without anybody who has the item says nothing about it, except in the first round
            item = torch.where((count > 0)[:, None], item, old)
        memory = {"begun": torch.ones(())} | ({"count": count} if self.counts_once else {})
        block = {"block": shared["block"] + 1} if self.block else {}
        if self.ratings:
            return shared | {"item": item[:, :-1].contiguous(), "item_bias": item[:, -1].contiguous()} | block, memory
        return {"item": item, "gram": item.T @ item} | block, memory

    def personalize(self, shared: Params, own: Params, examples: Examples) -> Params:
        flat = flat_examples(examples)
        weights = recency_weights(flat.mask, self.recency, self.floor)
        return shared | {"user": self.solve(shared, flat, weights)}

    def users(self, shared: Params, examples: CohortExamples) -> NDArray[np.float32]:
        """The vector `user` of `personalize` for many people, [people, p]."""
        ends = np.repeat(examples.starts[1:], examples.lengths)
        age = ends - 1 - np.arange(len(examples.inputs))
        weights = (self.floor + (1 - self.floor) * self.recency**age).astype(np.float32)
        table, targets, gram, prior = self._systems(shared, examples)
        users: NDArray[np.float32]
        users, _ = kernels.solve_people(
            examples.starts, examples.inputs, targets, weights, table, gram, self.lam, prior
        )
        return users

    def _systems(
        self, params: Params, examples: CohortExamples
    ) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32], float]:
        """(features of the items, targets of the examples, alpha0 V'V, lam alpha0 m) of people's linear systems."""
        item = params["item"].numpy()
        if not self.ratings:
            gram = (self.alpha0 * params["gram"]).numpy()
            return item, ALL_ONE, gram, self.lam * self.alpha0 * self.model.catalogue
        table = np.concatenate([item, np.ones((len(item), 1), np.float32)], 1)
        targets = examples.targets - params["item_bias"].numpy()[examples.inputs] - params["mean"].numpy()
        return table, targets, np.zeros((table.shape[1], table.shape[1]), np.float32), 0.0

    def kernel(self, download: Download, cohort: Cohort, wide: bool = False) -> tuple[Upload, dict[str, int]]:
        """`client` for a cohort, compiled; `wide` as in `cohort_sums`."""
        total, finite = self.cohort_sums(
            download.params, cohort.examples, wide, self.sends_counts(download), cohort.sent
        )
        return Upload(total, torch.tensor(float(finite.sum()))), {"non-finite": int((~finite).sum())}

    def cohort_sums(
        self, params: Params, examples: CohortExamples, wide: bool = False, counts: bool = True,
        sent: NDArray[np.bool_] | None = None,
    ) -> tuple[Params, NDArray[np.bool_]]:  # fmt: skip
        """(the sum of a cohort's uploads, whose vectors were finite: the others are left out). `wide`: in double
        precision, for sums of several cohorts that are added up elsewhere, since the next solve amplifies rounding. One
        cohort is added up in double precision, too, so that nodes and a simulation agree, and then rounded.
        `sent` as in Cohort."""
        table, targets, gram, prior = self._systems(params, examples)
        m, p = table.shape
        users, finite = kernels.solve_people(
            examples.starts, examples.inputs, targets, ALL_ONE, table, gram, self.lam, prior
        )
        residuals = ALL_ONE
        if self.ratings:
            bias = np.repeat(users[:, -1], examples.lengths)
            residuals = (examples.targets - bias - params["mean"].numpy()).astype(np.float32)
            users[:, -1] = 1.0
        solved = users
        if self.block:
            residuals = (residuals if self.ratings else 1) - _scores(self._whole(params).numpy(), users, examples)
            solved = np.ascontiguousarray(users[:, self.columns(params).numpy()])
            p = self.block
        sums = np.zeros((m, p * (p + 1) // 2 + p + counts), np.float64 if wide else np.float32)
        starts, items = examples.starts, examples.inputs
        if sent is not None:  # a person's vector follows from all of their items, and is sent for some
            starts, items = np.append(0, np.cumsum(sent))[starts], items[sent]
            residuals = residuals[sent] if len(residuals) else residuals
        starts, people, entries = kernels.by_item(starts, items, m, finite, len(residuals) > 0)
        kernels.sum_outer(starts, people, entries, residuals, solved.astype(np.float64), sums)
        total = {"sums": torch.from_numpy(sums)}
        if not self.ratings:
            usable = torch.from_numpy(users[finite]).double()
            square = _upper(usable.T @ usable)
            total["square"] = square if wide else square.float()
        return total, finite


def unread_by_solver(task: str, values: Values) -> dict[str, str]:
    """Settings that methods with FedALS's exact solves do not read."""
    unread = {"loss": "its solves are exact for the squared loss"}
    if task == "ratings":
        unread["alpha0"] = "items without a rating say nothing about ratings"
    return unread


def ranking_defaults(facts: PublicFacts) -> Values:
    """k, alpha0 and lam by the number of items, chosen on validation of several data sets (docs/defaults.md).

    Every item that a person did not take pulls with weight alpha0. The more items there are, the more this outweighs
    the few that the person has taken, so alpha0 falls. Large catalogues also have more kinds of taste than k = 32
    holds; but an upload grows with items x k^2 / 2, so that k is 32 again where 64 would make it larger than 256 MiB.
    lam is smaller in the middle, where a larger k meets catalogues of which much is known about every item.
    """
    if facts.items < 2_500:
        return {"k": 32, "alpha0": 0.2, "lam": 0.02}
    if facts.items < 6_000:
        return {"k": 64, "alpha0": 0.1, "lam": 0.01}
    return {"k": 64 if facts.items < MANY_ITEMS else 32, "alpha0": 0.05, "lam": 0.02}


DEFAULTS: dict[str, Values] = {
    "ranking": {"rounds": 8, "alpha0": 0.2, "lam": 0.02, "patience": 0},
    "ratings": {"rounds": 12, "lam": 0.1, "recency": 1.0, "patience": 0},
}
fedals = define(
    defaults=DEFAULTS,
    scaled={"ranking": ranking_defaults},
    unread=unread_by_solver,
    search=SOLVES,
)(FedALS)


def _upper(square: Tensor) -> Tensor:
    """[p, p] -> its upper triangle by rows, [p (p + 1) / 2]."""
    i, j = torch.triu_indices(*square.shape)
    return square[i, j]


def _full(upper: Tensor, size: int) -> Tensor:
    """The inverse of `_upper`."""
    i, j = torch.triu_indices(size, size)
    out = torch.zeros(size, size)
    out[i, j] = upper
    out[j, i] = upper
    return out


def _scores(table: NDArray[np.float32], users: NDArray[np.float32], examples: CohortExamples) -> NDArray[np.float32]:
    """Everybody's scores of their own items, [n], in pieces so that memory does not grow with n k."""
    owners, items = np.repeat(np.arange(len(users)), examples.lengths), examples.inputs
    out = np.empty(len(items), np.float32)
    for begin in range(0, len(items), PIECE):
        at = slice(begin, begin + PIECE)
        out[at] = np.einsum("ij,ij->i", users[owners[at]], table[items[at]])
    return out


def _solve_items(sums: Tensor, width: int, strength: Tensor, gram: NDArray[np.float64]) -> Tensor:
    """Every item's exact vector, of `sums` [items, width or more]. Noise can leave a system without an inverse: its
    eigenvalues are then clamped to 0, so that no direction is less certain than `strength` says and what is only noise
    stays small."""
    item = torch.from_numpy(kernels.solve_items(sums.numpy(), strength.numpy(), gram))
    unsolved = ~torch.isfinite(item).all(1)
    if unsolved.any():
        unsolved &= torch.isfinite(sums[:, :width]).all(1)
    if unsolved.any():
        outer, vector = sums[unsolved, : width - len(gram)], sums[unsolved, width - len(gram) : width]
        systems = torch.stack([_full(row, len(gram)) for row in outer]).double() + torch.from_numpy(gram)
        values, vectors = torch.linalg.eigh(systems)
        values = values.clamp(min=0) + strength[unsolved][:, None]
        solution = vectors @ ((vectors.mT @ vector.double()[..., None]) / values[..., None])
        item[unsolved] = solution[..., 0].float()
    return item
