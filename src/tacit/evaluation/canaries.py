"""Canaries: extra people whom a membership audit adds to a federation, and what each of them uploads."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor
from torch.func import vmap

from ..core import Download, Method, Params, Stage, Upload
from ..data.sampling import Ragged
from ..engine.backends import Call, chunks, compacted, staged
from ..engine.store import Store
from ..wire.rng import device_keys
from .observed import in_units

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]
LOUD = 4.0  # private parameters of a canary over those that everybody starts from


def contribution(
    uploads: Upload, rows: Tensor | None, follow: tuple[str, ...], catalogue: int, wire: Stage, round: int
) -> dict:
    """Stacked uploads of canaries as they count in the released sum: by name a matrix [canaries, numbers] in the unit
    of the release, sparse where devices hold a few rows of a table. The only place that converts what a device sends
    into the floats that the server's method reads."""
    if wire.seal is not None:
        uploads = wire.seal.open(wire.seal.seal(uploads))
    out: dict[str, Any] = {}
    for name, value in in_units(uploads.total, wire, round).items():
        flat = value.detach().reshape(len(value), -1).double().numpy()
        if rows is None or name not in follow:
            out[name] = flat
            continue
        width = flat.shape[1] // rows.shape[1]
        column = (rows.numpy()[:, :, None] * width + np.arange(width)).reshape(len(flat), -1)
        real = np.repeat(rows.numpy() >= 0, width, axis=1)
        owner = np.broadcast_to(np.arange(len(flat))[:, None], flat.shape)
        shape = (len(flat), catalogue * width)
        out[name] = sparse.csr_matrix((flat[real], (owner[real], column[real])), shape)
    return out


def design(popularity: Array, most: int) -> list[NDArray[np.int64]]:
    """Histories of one item each, all different, the most popular items first, without drawn negatives: uploads of two
    canaries do not overlap, or hardly. Measured on ML-100K with a quarter of the stated noise: fedveil at epsilon 3 is
    bounded by 3.1, with pairs of popular items by 1.4, with a popular and a rare item by 1.4."""
    return [np.array([item]) for item in np.argsort(-popularity, kind="stable")[:most].tolist()]


@dataclass(eq=False)
class Canaries:
    """People whom the audit adds; their numbers follow those of the federation."""

    histories: list[NDArray[np.int64]]
    inside: Bools
    first: int  # number of the first canary
    store: Store  # private parameters, by place
    value: float = 1.0  # target of every example: taken, or the rating
    held: Ragged = field(init=False)

    def __post_init__(self) -> None:
        items = np.concatenate(self.histories).astype(np.int32)
        starts = np.concatenate([[0], np.cumsum([len(each) for each in self.histories])]).astype(np.int64)
        self.held = Ragged(starts, items, np.full(len(items), self.value, np.float32))

    @property
    def people(self) -> NDArray[np.int64]:
        return self.first + np.arange(len(self.histories))

    def uploads(self, method: Method, call: Call, wire: Stage, catalogue: int) -> tuple[dict[str, Any], Array]:
        """(by name the contributions of all canaries, their weights), as if everybody took part. Private parameters
        stay as they are: a canary that learnt its one item would soon have nothing more to send."""
        follow = [name for name in call.down.params if name in method.rows]
        compact = bool(follow or self.store.rows) and not wire.whole
        keys = device_keys(call.seat.key, self.people)
        found: list[tuple[NDArray[np.int64], dict[str, Any]]] = []
        weight = np.zeros(len(self.histories))
        bulk = 0 if compact else method.bulk or 2 * sum(v.numel() for v in call.down.params.values())
        for chunk in chunks(self.held, 512, bulk):
            held, rows, params = self.held.pad(chunk), None, call.down.params
            if compact:
                held, rows = compacted(held, catalogue)
                params = {n: v[rows] if n in method.rows else v for n, v in params.items()}
            dims = {n: 0 if compact and n in method.rows else None for n in params}
            one = vmap(method.client, in_dims=(Download(dims, None), 0, 0))  # type: ignore[arg-type]
            sent, _ = one(Download(params, call.down.round), self.store.gather(chunk, rows), held)
            sent = staged(wire, call.seat, sent, [keys[place] for place in chunk])
            found.append((chunk, contribution(sent, rows, method.rows, catalogue, wire, call.seat.round)))
            weight[chunk] = sent.weight.detach().double().numpy()
        return _in_order(found), weight


def loud(initial: Params) -> Params:
    """Private parameters of a canary: LOUD times those of everybody else at the start, so that its uploads reach the
    clip. (fedmf on ML-100K: a length of 1 in place of .64 at the start and .02 after 60 rounds of learning.)"""
    return {name: LOUD * value for name, value in initial.items()}


def _in_order(found: list[tuple[NDArray[np.int64], dict[str, Any]]]) -> dict[str, Any]:
    order = np.argsort(np.concatenate([chunk for chunk, _ in found]))
    stacked = {}
    for name in found[0][1]:
        parts = [part[name] for _, part in found]
        whole = sparse.vstack(parts, "csr") if sparse.issparse(parts[0]) else np.concatenate(parts)
        stacked[name] = whole[order] if len(parts) > 1 else whole
    return stacked
