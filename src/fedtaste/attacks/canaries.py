"""Canaries: artificial people whom a membership audit adds to a federation: their histories and uploads."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor

from fedtaste.attacks.membership_statistics import Array, Bools
from fedtaste.attacks.observed_run import to_release_units
from fedtaste.attacks.uploads import run_clients
from fedtaste.core import Method, Params, Stage, Upload
from fedtaste.data.interactions import starts_of
from fedtaste.data.sampling import Ragged
from fedtaste.engine.backends import Call, chunks, staged
from fedtaste.engine.store import Store
from fedtaste.wire.rng import device_keys

Matrices = dict[str, sparse.csr_matrix]  # by parameter: [canaries, numbers]; dense arrays where all rows are sent
LOUD = 4.0  # private parameters of a canary over those that everybody starts from


def released_matrices(uploads: Upload, wire: Stage, round: int) -> dict[str, Array]:
    """Stacked uploads of canaries as they count in the released sum: by name [canaries, numbers] in the unit of the
    release, as the floats that the server's method reads."""
    if wire.secure_sum is not None:
        uploads = wire.secure_sum.decode(wire.secure_sum.encode(uploads))
    units = to_release_units(uploads.total, wire, round)
    return {name: value.detach().reshape(len(value), -1).double().numpy() for name, value in units.items()}


def scatter_rows(flat: Array, rows: Tensor, catalogue: int) -> sparse.csr_matrix:
    """Compact rows of a table, [canaries, rows x width], as a sparse matrix of whole tables."""
    width = flat.shape[1] // rows.shape[1]
    column = (rows.numpy()[:, :, None] * width + np.arange(width)).reshape(len(flat), -1)
    real = np.repeat(rows.numpy() >= 0, width, axis=1)
    owner = np.broadcast_to(np.arange(len(flat))[:, None], flat.shape)
    return sparse.csr_matrix((flat[real], (owner[real], column[real])), (len(flat), catalogue * width))


def canary_histories(popularity: Array, most: int) -> list[NDArray[np.int64]]:
    """Histories of one item each, all different, the most popular items first, without sampled negatives: uploads of
    two canaries do not overlap, or hardly. Measured on ML-100K with a quarter of the stated noise: the bound for
    fedveil at epsilon 3 is 3.1, with pairs of popular items 1.4, with a popular and a rare item 1.4."""
    return [np.array([item]) for item in np.argsort(-popularity, kind="stable")[:most].tolist()]


def loud_parameters(initial: Params) -> Params:
    """Private parameters of a canary: LOUD times everybody's initial ones, so that its uploads reach the clip. (fedmf
    on ML-100K: a length of 1 in place of .64 at the start and .02 after 60 rounds of learning.)"""
    return {name: LOUD * value for name, value in initial.items()}


@dataclass(eq=False)
class Canaries:
    """People whom the audit adds; their numbers follow those of the federation."""

    histories: list[NDArray[np.int64]]
    inside: Bools
    first: int  # number of the first canary
    store: Store  # private parameters, by place
    value: float = 1.0  # target of every example: 1, or the rating
    examples: Ragged = field(init=False)

    def __post_init__(self) -> None:
        items = np.concatenate(self.histories).astype(np.int32)
        starts = starts_of(np.array([len(each) for each in self.histories]))
        self.examples = Ragged(starts, items, np.full(len(items), self.value, np.float32))

    @property
    def people(self) -> NDArray[np.int64]:
        return self.first + np.arange(len(self.histories))

    def uploads(self, method: Method, call: Call, wire: Stage, catalogue: int) -> tuple[Matrices, Array]:
        """(by name the contributions of all canaries, their weights), as if all took part. Private parameters do not
        advance: a canary that learnt its one item would soon have nothing more to send."""
        compact = (any(name in method.rows for name in call.down.params) or bool(self.store.rows)) and not wire.dense
        keys = device_keys(call.context.key, self.people)
        parts: list[tuple[NDArray[np.int64], Matrices]] = []  # places of a chunk's canaries, their uploads
        weight = np.zeros(len(self.histories))
        bulk = 0 if compact else method.fast.bulk or 2 * sum(v.numel() for v in call.down.params.values())
        for chunk in chunks(self.examples, 512, bulk):
            examples = self.examples.pad(chunk)
            uploads, rows = run_clients(method, call.down, self.store, chunk, examples, catalogue, compact)
            uploads = staged(wire, call.context, uploads, [keys[place] for place in chunk], self.people[chunk], rows)
            matrices: Matrices = {
                name: scatter_rows(flat, rows, catalogue) if rows is not None and name in method.rows else flat
                for name, flat in released_matrices(uploads, wire, call.context.round).items()
            }
            parts.append((chunk, matrices))
            weight[chunk] = uploads.weight.detach().double().numpy()
        return _in_order(parts), weight


def _in_order(parts: list[tuple[NDArray[np.int64], Matrices]]) -> Matrices:
    """The chunks' matrices together, with canaries in order. Dense ones are large, so each row is copied once."""
    places = np.concatenate([chunk for chunk, _ in parts])
    stacked = {}
    for name, first in parts[0][1].items():
        if len(parts) == 1:
            stacked[name] = first
        elif sparse.issparse(first):
            stacked[name] = sparse.vstack([matrices[name] for _, matrices in parts], "csr")[np.argsort(places)]
        else:
            stacked[name] = np.empty((len(places), first.shape[1]), first.dtype)
            for chunk, matrices in parts:
                stacked[name][chunk] = matrices[name]
    return stacked
