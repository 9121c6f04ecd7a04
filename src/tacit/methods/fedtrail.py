"""FedTrail: one round is enough. Everybody sends counts once; everybody is then served from their own recent items.

A history i_1..i_L, oldest first; age a = 0 for the newest; m items; n_i people have item i. A device sends, once,
    pairs  C[p, q] = sum over positions x < y <= x + window of fade^(y-x-1), i_x = p and i_y = q     m m numbers
    both   x x', x its 0/1 item vector: the upper half                                               m (m + 1) / 2
    items  x                                                                                         m
The server normalises the sums, and what is served is computed on the device:
    T trail    N[p, q] = C[p, q] / ((n_p + shrink)^from_power (n_q + shrink)^to_power)
               s_q = sum_{a < reach} (mix fast^a + (1 - mix) slow^a) N[i_{L-a}, q]
    P factors  V = E sqrt(e), the top k eigenpairs of S G S with S = diag((n + 10)^-1/2), mean squared row norm 1; then
               FedALS's way of serving (own vector solved exactly, own recency)
    I als      FedALS itself, which goes on for its rounds; the counts are sent in the first one only
Two parts are added as z-scores over the catalogue. Messages are dense, since sparse ones would tell the history: on
ML-100K 11 MB (pairs) and 6 MB (both) a person, once. N is as large; the ledger counts it in every round's download,
though with FedALS nobody reads it before the last.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from scipy.sparse.linalg import eigsh
from torch import Tensor

from ..core import Download, Examples, Method, Model, Params, Upload
from ..engine import counting, kernels
from ..errors import SettingError
from ..local import ages, nest, unnest, whole
from ..wire.packing import int8
from .fedals import fedals, sums_of

MOST = 31_622  # items: beyond, a table of items x items passes 4 GB
SOFT = 10.0  # imaginary people of every item, so that rare items do not rule the eigenvectors
COUNTS = ("pairs", "both", "items")


def fedtrail(
    model: Model,
    *,
    parts: Literal["trail", "factors", "trail+factors", "trail+als"] = "trail+factors",
    window: int = 5,
    fade: float = 0.85,
    from_power: float = 0.6,
    to_power: float = 0.3,
    shrink: float = 5.0,
    mix: float = 0.7,
    fast: float = 0.6,
    slow: float = 0.93,
    reach: int = 100,
    lam: float = 0.01,
    alpha0: float = 0.3,
    recency: float = 0.75,
    floor: float = 0.02,
    keep: int = 0,
    bits: Literal[32, 8] = 32,
) -> Method:
    """`keep` downloads only that many largest entries of a row of N (0: all); `bits` 8 downloads N and V as bytes with
    one scale a row, and the device computes with what it decodes. A person's counts are sent once: `told` stays with
    the person and makes later ones zero (`trail+als` sends none after the first round)."""
    if model.design is None or "item_bias" in model.rows:
        raise SettingError(
            "fedtrail ranks with model=factorization. Leave model out, or use fedals for ratings, fedsgd for features."
        )
    m = model.catalogue
    if m > MOST:
        raise SettingError(
            f"fedtrail counts items x items, and {m:,} items would take {4e-9 * m * m:.0f} GB; at most {MOST:,} are "
            "possible. Use fedals, or leave rare items out of the data."
        )
    if not 0 <= keep <= m:
        raise SettingError(f"keep={keep} was asked for; a row has {m:,} entries. Give 1 to {m:,}, or 0 for all.")
    trail, als, factors = "trail" in parts, "als" in parts, "factors" in parts
    inner = fedals(model, lam=lam, alpha0=alpha0, recency=recency, floor=floor)
    powers = fade ** np.arange(window, dtype=np.float32)

    def init(params: Params) -> tuple[Params, Params]:
        shared = inner.init(params)[0] if als else {}
        if factors:
            width = params["item"].shape[1]
            shared |= _packed("item", torch.zeros(m, width), 0, bits) | {"gram": torch.zeros(width, width)}
        return shared | (_packed("trail", torch.zeros(m, m), keep, bits) if trail else {}), _told(als, 0.0)

    def client(down: Download, own: Params, held: Examples) -> tuple[Upload, Params]:
        total = inner.client(down, {}, held)[0].total if als else {}
        if not als or float(down.round) == 0:
            new = 1 - own["told"] if own else torch.ones(())
            items, _, mask = (x[0] for x in whole(held))
            total["items"] = torch.zeros(m).index_add(0, items, new * mask)
            if trail:
                total["pairs"] = _pairs(items, new * mask, powers, m)
            if factors:
                total["both"] = _both(items, new * mask, m)
        return Upload(total, torch.ones(())), _told(als, 1.0)

    def server(shared: Params, memory: Params, upload: Upload) -> tuple[Params, Params]:
        after, counts = dict(shared), {n: v for n, v in memory.items() if n in COUNTS}
        if als:
            sums = Upload({n: v for n, v in upload.total.items() if n not in COUNTS}, upload.weight)
            learnt, begun = inner.server(shared, unnest("als", memory), sums)
            after, memory = after | learnt, nest("als", begun)
        if "items" not in upload.total or not upload.total["items"].any():  # nobody told anything new
            return after, memory | counts
        counts = {n: v + counts.get(n, 0.0) for n, v in upload.total.items() if n in COUNTS}
        if trail:
            after |= _packed("trail", _normalised(counts, from_power, to_power, shrink), keep, bits)
        if factors:
            after |= _packed("item", _eigenfactors(counts, shared["gram"].shape[0]), 0, bits)
            table = _table("item", after)
            after["gram"] = table.T @ table
        return after, memory | counts

    def personalize(shared: Params, own: Params, held: Examples) -> Params:
        scores = []
        if trail:
            items, _, mask = (x[0] for x in whole(held))
            age = ages(mask)
            weight = mask * (age < reach) * (mix * fast**age + (1 - mix) * slow**age)
            scores.append(torch.zeros(m).index_add(0, items, weight) @ _table("trail", shared, m))
        if factors or als:
            table = _table("item", shared)
            scores.append(table @ inner.personalize({"item": table, "gram": shared["gram"]}, {}, held)["user"])
        blend = scores[0] if len(scores) == 1 else _z(scores[0]) + _z(scores[1])
        return {"item": blend[:, None], "user": torch.ones(1)}  # what the model multiplies is the score itself

    def kernel(down: Download, store: Any, people: Any, held: Any, wide: bool = False) -> tuple[Upload, dict[str, int]]:
        good = np.ones(len(people), bool)
        total: Params = {}
        if als:
            total, good = sums_of(down, held, m, lam, alpha0, wide)
        if not als or float(down.round) == 0:
            new = good if als else store.gather(people)["told"].numpy() == 0
            starts, who, entries = kernels.by_item(held.starts, held.inputs, m, new)
            total["items"] = torch.from_numpy(np.diff(starts).astype(np.float32))
            if trail:
                pairs = counting.count_pairs(held.starts, held.inputs, starts, who, entries, powers)
                total["pairs"] = torch.from_numpy(pairs)
            if factors:
                total["both"] = torch.from_numpy(counting.count_both(held.starts, held.inputs, starts, who))
        store.put(people, {n: v.expand(len(people)) for n, v in _told(als, 1.0).items()})
        return Upload(total, torch.tensor(float(good.sum()))), {"non-finite": int((~good).sum())}

    exact = partial(kernel, wide=True)
    return Method(init, client, server, personalize, "history", kernel=kernel, bulk=m * m, exact=exact)


def _told(als: bool, value: float) -> Params:
    """What stays with a person: whether their counts were sent. FedALS's rounds have the number of the round for it."""
    return {} if als else {"told": torch.tensor(value)}


def _pairs(items: Tensor, mask: Tensor, powers: np.ndarray, m: int) -> Tensor:
    """C of one person, [m, m]."""
    at, weight = [items[:0]], [mask[:0]]
    for step in range(min(len(powers), len(items) - 1)):
        early, late = slice(None, len(items) - 1 - step), slice(step + 1, None)
        at.append(items[early] * m + items[late])
        weight.append(float(powers[step]) * mask[early] * (mask[late] > 0))
    return torch.zeros(m * m).index_add(0, torch.cat(at), torch.cat(weight)).reshape(m, m)


def _both(items: Tensor, mask: Tensor, m: int) -> Tensor:
    """The upper half of x x' by rows, [m (m + 1) / 2]."""
    a, b = items[:, None], items[None]
    place = a * m - a * (a - 1) // 2 + b - a
    return torch.zeros(m * (m + 1) // 2).index_add(
        0, place.flatten(), (mask[:, None] * (mask > 0) * (a <= b)).flatten()
    )


def _normalised(counts: Params, from_power: float, to_power: float, shrink: float) -> Tensor:
    """N [m, m]: how often q follows p, beyond how often either is taken."""
    people = counts["items"].clamp(min=0) + shrink  # noise may have made it negative
    size = (people**from_power)[:, None] * people**to_power
    return torch.where(counts["pairs"] > 0, counts["pairs"] / size, 0.0)


def _eigenfactors(counts: Params, k: int) -> Tensor:
    """V [m, k], from the upper half of the Gram matrix of everybody's items."""
    scale = (counts["items"].double().clamp(min=0) + SOFT).rsqrt()
    m = len(scale)
    upper = torch.zeros(m, m, dtype=torch.float64)
    upper[torch.ones(m, m, dtype=torch.bool).triu()] = counts["both"].double()
    square = (upper + upper.triu(1).T) * scale * scale[:, None]
    if m > 4 * k + 400:  # a few of many: iterate, from a fixed start
        found = eigsh(square.numpy(), k, v0=np.ones(m), which="LA")
        values, vectors = torch.from_numpy(found[0]), torch.from_numpy(found[1])
    else:
        values, vectors = torch.linalg.eigh(square)
    factors = vectors[:, -k:] * values[-k:].clamp(min=0).sqrt()
    size = (factors**2).sum(1).mean().sqrt()
    return (factors / torch.where(size > 0, size, 1.0)).float()


def _packed(name: str, table: Tensor, keep: int, bits: int) -> Params:
    """A table [m, p] as it is downloaded: all of it or the `keep` largest entries a row, as numbers or as bytes."""
    out: Params = {}
    if keep:
        at = table.topk(keep).indices.sort().values
        table, out = table.gather(1, at), {f"{name}.at": at.short()}
    if bits == 8:
        written = int8(table)
        out[f"{name}.scale"], table = written["scale"], written["values"]
    return out | {name: table}


def _table(name: str, shared: Params, width: int = 0) -> Tensor:
    """What `_packed` put there, decoded; entries that were not kept are zero."""
    table = shared[name]
    if f"{name}.scale" in shared:
        table = table * shared[f"{name}.scale"][:, None]
    if f"{name}.at" not in shared:
        return table
    return torch.zeros(len(table), width).scatter(1, shared[f"{name}.at"].long(), table)


def _z(scores: Tensor) -> Tensor:
    """Scores [m] with mean 0 and spread 1, so that two kinds can be added; scores that are all alike are 0."""
    spread = scores.std(correction=0)
    return (scores - scores.mean()) / torch.where(spread > 0, spread, 1.0)
