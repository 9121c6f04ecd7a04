"""FedTrail: next-item recommendation from counts of items and item pairs, which every device sends once.

A history i_1..i_L, oldest first; age a = 0 for the newest; m items; n_i people have item i. A device sends, once,
    pairs  C[p, q] = sum over positions x < y <= x + window of fade^(y-x-1), i_x = p and i_y = q     m m numbers
    both   x x', x its 0/1 item vector: the upper half                                               m (m + 1) / 2
    items  x                                                                                         m
A device whose history has grown at its end sends the counts of the new items only: pairs whose later item is new, and
entries of x x' with a new item. All that it sends adds up to the counts of its whole history, and `removal` takes that
back: the server subtracts it like any other upload.
The server normalises the sums, and the device computes what its person is served:
    T trail    N[p, q] = C[p, q] / ((n_p + shrink)^from_power (n_q + shrink)^to_power)
               s_q = sum_{a < reach} (mix fast^a + (1 - mix) slow^a) N[i_{L-a}, q]
    P factors  V = E sqrt(e), the top k eigenpairs of S G S with S = diag((n + 10)^-1/2), mean squared row norm 1; then
               FedALS's way of serving (own vector solved exactly, own recency)
    I als      FedALS itself, which goes on for its rounds; the counts are sent in the first round only
Two parts are added as z-scores over the catalogue. A list without order of time (titles that somebody names, picks on a
page) has flat weights, and all of its items count. Serving takes dislikes, too: for factors they are examples with
target 0; the trail counts what people took, and a dislike changes nothing in it.
Messages are dense, because sparse ones would reveal the history: on ML-100K 11 MB (pairs) and 6 MB (both) per person,
once. N is as large. The ledger counts it in every round's download, although with FedALS nobody reads it before the
last.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedtaste.core import Cohort, CohortExamples, Download, Examples, Fast, Method, Model, Params, Upload
from fedtaste.errors import SettingError
from fedtaste.kernels import als as kernels
from fedtaste.kernels import pair_counts
from fedtaste.methods.descent import ages, flat_examples, item_counts, unsent
from fedtaste.methods.fedals import FedALS
from fedtaste.methods.registry import PublicFacts, RunContext, define
from fedtaste.methods.search_space import SOLVES, Around, LogRange, Range
from fedtaste.params import nest, unnest
from fedtaste.recipe import Recipe, TrailRecipe
from fedtaste.signature import Count, CountOrNone, NonNegative, Share, Values
from fedtaste.wire.packing import int8

MOST_ITEMS = 31_622  # beyond, a table of items x items passes 4 GB
SOFT = 10.0  # imaginary people of every item, so that rare items do not dominate the eigenvectors
COUNTS = ("pairs", "both", "items")
PLACED = 32  # eigenvectors of N that place items on a page's map, where there are no factors


@dataclass(frozen=True, eq=False)
class FedTrail:
    """Recommendation from counts that everybody sends once; the module has the formulas."""

    model: Model
    _: KW_ONLY
    parts: Literal["trail", "factors", "trail+factors", "trail+als"] = "trail+factors"
    window: Count = 5  # counting: largest distance of a pair
    fade: Share = 0.85  # counting: factor of a pair's weight for every step of distance
    from_power: NonNegative = 0.6  # normalising: exponent of the earlier item's popularity
    to_power: NonNegative = 0.3  # normalising: exponent of the later item's popularity
    shrink: NonNegative = 5.0  # normalising: imaginary people of every item
    mix: Share = 0.7  # serving: weight of `fast` beside `slow`
    fast: Share = 0.6  # serving: an item's weight by age fades with two speeds
    slow: Share = 0.93
    reach: CountOrNone = 100  # serving: newest items that count; 0: all
    lam: NonNegative = 0.01  # lambda, the regularisation of factors, as in FedALS
    alpha0: NonNegative = 0.3  # weight of items that a person did not take, as in FedALS
    recency: Share = 0.75  # recency and floor weight a person's own items by age, as in FedALS
    floor: Share = 0.02
    keep: CountOrNone = 0  # download: only so many largest entries of every row of N; 0: all
    bits: Literal[32, 8] = 32  # download: 8 sends N and V as bytes with one scale per row

    def has(self, part: Literal["trail", "factors", "als"]) -> bool:
        """Whether scores are made of this part."""
        return part in self.parts

    @property
    def inner(self) -> FedALS:
        """FedALS, for its rounds and for its way of serving."""
        return FedALS(self.model, lam=self.lam, alpha0=self.alpha0, recency=self.recency, floor=self.floor)

    @property
    def powers(self) -> NDArray[np.float32]:
        """The weight of a pair by its distance, [window]."""
        return self.fade ** np.arange(self.window, dtype=np.float32)

    def method(self) -> Method:
        m = self.model.catalogue
        if self.model.kind != "factorization":
            raise SettingError(
                "fedtrail ranks with model=factorization. Leave model out, or use fedals for ratings, fedsgd for "
                "features."
            )
        if m > MOST_ITEMS:
            raise SettingError(
                f"fedtrail counts items x items, and {m:,} items would take {4e-9 * m * m:.0f} GB: at most "
                f"{MOST_ITEMS:,} are possible. Use fedals, or leave rare items out of the data."
            )
        if self.keep > m:
            raise SettingError(f"keep must be from 1 to {m:,} (the items), or 0 for all, got {self.keep}.")
        fast = Fast(self.kernel, partial(self.kernel, wide=True), bulk=m * m)
        removal = None if self.has("als") else self.removal
        return Method(
            self.init,
            self.client,
            self.server,
            self.personalize,
            "history",
            fast=fast,
            removal=removal,
            recipe=self.recipe,
            tables=self.tables,
        )

    @property
    def recipe(self) -> Recipe:
        """How a bundle serves somebody, from the tables that `tables` gives."""
        trail = TrailRecipe(self.mix, self.fast, self.slow, self.reach) if self.has("trail") else None
        if self.parts == "trail":
            return Recipe("none", trail=trail)
        return replace(self.inner.recipe, trail=trail)

    def tables(self, shared: Params) -> Params:
        """N as "trail" and V as "item". Without factors "item" holds eigenvectors of N + N', which score nothing: they
        say which items are alike, for a page's map."""
        tables = {"trail": _unpack("trail", shared, self.model.catalogue)} if self.has("trail") else {}
        if self.parts == "trail":
            square = tables["trail"].double() + tables["trail"].T
            return tables | {"item": _top_factors(square, min(PLACED, len(square)))}
        return tables | {"item": _unpack("item", shared)}

    def init(self, params: Params) -> tuple[Params, Params]:
        m, width = params["item"].shape
        shared = self.inner.init(params)[0] if self.has("als") else {}
        if self.has("factors"):
            shared |= _pack("item", torch.zeros(m, width), 0, self.bits) | {"gram": torch.zeros(width, width)}
        if self.has("trail"):
            shared |= _pack("trail", torch.zeros(m, m), self.keep, self.bits)
        # private: how many items of the history have been counted; with FedALS the number of the round says it
        return shared, {} if self.has("als") else {"sent": torch.zeros(())}

    def sends_counts(self, download: Download) -> bool:
        return not self.has("als") or float(download.round) == 0

    def client(self, download: Download, own: Params, examples: Examples) -> tuple[Upload, Params]:
        total = self.inner.client(download, {}, examples)[0].total if self.has("als") else {}
        if self.sends_counts(download):
            total |= self.count(flat_examples(examples), own.get("sent", torch.zeros(())))
        return Upload(total, torch.ones(())), {n: torch.maximum(v, examples.mask.sum()) for n, v in own.items()}

    def count(self, history: Examples, sent: Tensor) -> Params:
        """The counts of one person's history, without those of its first `sent` items."""
        items, _, mask = history
        m, new = self.model.catalogue, unsent(mask, sent)
        counts = {"items": item_counts(history._replace(mask=new), m)}
        if self.has("trail"):
            counts["pairs"] = _count_pairs(items, mask, new, self.powers, m)
        if self.has("factors"):
            counts["both"] = _count_both(items, mask, new, m)
        return counts

    def removal(self, download: Download, own: Params, examples: Examples) -> tuple[Upload, Params]:
        """A client that takes back what this device has sent: the counts of the first `sent` items, with a minus."""
        history = flat_examples(examples)
        counted = history._replace(mask=history.mask - unsent(history.mask, own["sent"]))
        total = {name: -value for name, value in self.count(counted, torch.zeros(())).items()}
        return Upload(total, torch.ones(())), {"sent": torch.zeros(())}

    def server(self, shared: Params, memory: Params, upload: Upload) -> tuple[Params, Params]:
        after, counts = dict(shared), {n: v for n, v in memory.items() if n in COUNTS}
        if self.has("als"):
            sums = Upload({n: v for n, v in upload.total.items() if n not in COUNTS}, upload.weight)
            factors, als_memory = self.inner.server(shared, unnest("als", memory), sums)
            after, memory = after | factors, nest("als", als_memory)
        if not any(v.any() for n, v in upload.total.items() if n in COUNTS):  # nobody sent anything new
            return after, memory | counts
        counts = {n: v + counts.get(n, 0.0) for n, v in upload.total.items() if n in COUNTS}
        if self.has("trail"):
            table = normalise(counts, self.from_power, self.to_power, self.shrink)
            after |= _pack("trail", table, self.keep, self.bits)
        if self.has("factors"):
            after |= _pack("item", eigenfactors(counts, shared["gram"].shape[0]), 0, self.bits)
            table = _unpack("item", after)
            after["gram"] = table.T @ table
        return after, memory | counts

    def personalize(self, shared: Params, own: Params, examples: Examples) -> Params:
        scores, m = [], self.model.catalogue
        if self.has("trail"):
            items, _, mask = flat_examples(examples)
            age = ages(mask)
            counted = mask * (age < self.reach) if self.reach else mask
            weight = counted * (self.mix * self.fast**age + (1 - self.mix) * self.slow**age)
            scores.append(torch.zeros(m).index_add(0, items, weight) @ _unpack("trail", shared, m))
        if self.has("factors") or self.has("als"):
            table = _unpack("item", shared)
            user = self.inner.personalize({"item": table, "gram": shared["gram"]}, {}, examples)["user"]
            scores.append(table @ user)
        blend = scores[0] if len(scores) == 1 else _z_scores(scores[0]) + _z_scores(scores[1])
        return {"item": blend[:, None], "user": torch.ones(1)}  # the model's product is the score itself

    def kernel(self, download: Download, cohort: Cohort, wide: bool = False) -> tuple[Upload, dict[str, int]]:
        """`client` for a cohort, compiled; `wide`: FedALS's sums in double precision."""
        people, examples, private = cohort.people, cohort.examples, cohort.private
        finite = np.ones(len(people), bool)
        total: Params = {}
        if self.has("als"):
            total, finite = self.inner.cohort_sums(download.params, examples, wide)
        if self.sends_counts(download):
            own = private.gather(people)
            sent = own.get("sent", torch.zeros(len(people))).numpy()
            total |= self.cohort_counts(examples, sent, finite)
            lengths = torch.from_numpy(examples.lengths).float()
            private.put(people, {name: torch.maximum(value, lengths) for name, value in own.items()})
        return Upload(total, torch.tensor(float(finite.sum()))), {"non-finite": int((~finite).sum())}

    def cohort_counts(self, examples: CohortExamples, sent: NDArray[np.float32], finite: NDArray[np.bool_]) -> Params:
        """The sum of `count` over those people of a cohort who are `finite`."""
        old = np.fmin(sent, examples.lengths).astype(np.int64)  # [people] items that were counted before
        fresh, good = examples.starts[:-1] + old, finite & (old < examples.lengths)
        histories = (examples.starts, examples.inputs, fresh)
        starts, who, entries = kernels.by_item(examples.starts, examples.inputs, self.model.catalogue, good)
        new = np.repeat(good, examples.lengths) & (
            np.arange(len(examples.inputs)) >= np.repeat(fresh, examples.lengths)
        )
        items = np.bincount(examples.inputs[new], minlength=self.model.catalogue)
        counts = {"items": torch.from_numpy(items.astype(np.float32))}
        if self.has("trail"):
            pairs = pair_counts.count_pairs(*histories, starts, who, entries, self.powers)
            counts["pairs"] = torch.from_numpy(pairs)
        if self.has("factors"):
            counts["both"] = torch.from_numpy(pair_counts.count_both(*histories, starts, who, entries))
        return counts


def _unread(task: str, values: Values) -> dict[str, str]:
    parts = str(values["parts"])
    unread = {"loss": "it counts and solves, and descends no loss"}
    if parts != "trail+als":
        unread["spread"] = "there is nothing to start from"
    if "trail" not in parts:
        trail = ("window", "fade", "from_power", "to_power", "shrink", "mix", "fast", "slow", "reach", "keep")
        unread |= dict.fromkeys(trail, f"parts={parts} has no trail")
    if parts == "trail":
        unread |= dict.fromkeys(("k", "lam", "alpha0", "recency", "floor"), "parts=trail has no factors")
    return unread


def _notes(context: RunContext) -> tuple[str, ...]:
    if context.values["parts"] != "trail+als" or context.everybody:
        return ()
    return ("Only the people who answer in the first round send counts: parts=trail+als asks for them once.",)


def ranking_defaults(facts: PublicFacts) -> Values:
    """k, alpha0 and lam of the factors, for FedALS's reasons, chosen on validation (docs/defaults.md). k adds no upload
    here: people send counts."""
    if facts.items < 6_000:
        return {"k": 32, "alpha0": 0.3, "lam": 0.01}
    return {"k": 64, "alpha0": 0.05, "lam": 0.02}


fedtrail = define(
    defaults={"ranking": {"rounds": 1, "patience": 0}},
    scaled={"ranking": ranking_defaults},
    variants={"parts=trail+als": {"rounds": 8}},
    unread=_unread,
    notes=_notes,
    search={
        **SOLVES, "window": LogRange(2, 20), "from_power": Range(0.0, 1.0), "to_power": Range(0.0, 1.0),
        "shrink": Around(10), "mix": Range(0.0, 1.0),
    },
)(FedTrail)  # fmt: skip


def _count_pairs(items: Tensor, mask: Tensor, new: Tensor, powers: NDArray[np.float32], m: int) -> Tensor:
    """C of one person, [m, m]: of pairs whose later item is `new`."""
    at, weight = [items[:0]], [mask[:0]]
    for step in range(min(len(powers), len(items) - 1)):
        early, late = slice(None, len(items) - 1 - step), slice(step + 1, None)
        at.append(items[early] * m + items[late])
        weight.append(float(powers[step]) * mask[early] * new[late])
    return torch.zeros(m * m).index_add(0, torch.cat(at), torch.cat(weight)).reshape(m, m)


def _count_both(items: Tensor, mask: Tensor, new: Tensor, m: int) -> Tensor:
    """The upper half of x x' by rows, [m (m + 1) / 2]: of pairs with a `new` item."""
    a, b = items[:, None], items[None]
    place = a * m - a * (a - 1) // 2 + b - a
    weight = (mask[:, None] * mask - (mask - new)[:, None] * (mask - new)) * (a <= b)
    return torch.zeros(m * (m + 1) // 2).index_add(0, place.flatten(), weight.flatten())


def normalise(counts: Params, from_power: float, to_power: float, shrink: float) -> Tensor:
    """N [m, m]: how often q follows p, beyond how often either is taken."""
    people = counts["items"].clamp(min=0) + shrink  # noise may have made it negative
    size = (people**from_power)[:, None] * people**to_power
    return torch.where(counts["pairs"] > 0, counts["pairs"] / size, 0.0)


def eigenfactors(counts: Params, k: int) -> Tensor:
    """V [m, k], from the upper half of the Gram matrix of everybody's items."""
    scale = (counts["items"].double().clamp(min=0) + SOFT).rsqrt()
    m = len(scale)
    upper = torch.zeros(m, m, dtype=torch.float64)
    upper[torch.ones(m, m, dtype=torch.bool).triu()] = counts["both"].double()
    return _top_factors((upper + upper.triu(1).T) * scale * scale[:, None], k)


def _top_factors(square: Tensor, k: int) -> Tensor:
    """E sqrt(e) [m, k] of the top k eigenpairs of a symmetric matrix, scaled so that the mean squared row norm is 1."""
    m = len(square)
    if m > 4 * k + 400:  # a few of many: iterate, from a fixed start
        from scipy.sparse.linalg import eigsh  # takes a third of a second, which every process would spend

        pairs = eigsh(square.numpy(), k, v0=np.ones(m), which="LA")
        values, vectors = torch.from_numpy(pairs[0]), torch.from_numpy(pairs[1])
    else:
        values, vectors = torch.linalg.eigh(square)
    factors = vectors[:, -k:] * values[-k:].clamp(min=0).sqrt()
    size = (factors**2).sum(1).mean().sqrt()
    return (factors / torch.where(size > 0, size, 1.0)).float()


def _pack(name: str, table: Tensor, keep: int, bits: int) -> Params:
    """A table [m, p] as it is downloaded: all of it or the `keep` largest entries per row, as numbers or as bytes."""
    out: Params = {}
    if keep:
        at = table.topk(keep).indices.sort().values
        table, out = table.gather(1, at), {f"{name}.at": at.short()}
    if bits == 8:
        encoded = int8(table)
        out[f"{name}.scale"], table = encoded["scale"], encoded["values"]
    return out | {name: table}


def _unpack(name: str, shared: Params, width: int = 0) -> Tensor:
    """The table that `_pack` encoded; entries that were not kept are zero."""
    table = shared[name]
    if f"{name}.scale" in shared:
        table = table * shared[f"{name}.scale"][:, None]
    if f"{name}.at" not in shared:
        return table
    return torch.zeros(len(table), width).scatter(1, shared[f"{name}.at"].long(), table)


def _z_scores(scores: Tensor) -> Tensor:
    """Scores [m] with mean 0 and spread 1, so that two kinds can be added; equal scores become 0."""
    spread = scores.std(correction=0)
    return (scores - scores.mean()) / torch.where(spread > 0, spread, 1.0)
