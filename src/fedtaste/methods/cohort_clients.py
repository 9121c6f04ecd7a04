"""Compiled clients of whole cohorts for stepwise methods on factorisations, as a `Fast.kernel`.

A method describes its client by phases of descent on the shared item rows and by what a person's copy of them does;
kernels/cohort_descent.py runs it. The method's own `client` is the readable equivalent, and runs where a stage needs
single uploads.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray

from fedtaste.core import Cohort, Download, Fast, Model, Params, Upload
from fedtaste.kernels import cohort_descent as kernels
from fedtaste.kernels.row_pages import WORKERS, PagedStore
from fedtaste.kernels.touched_rows import row_blocks
from fedtaste.methods.compiled_descent import COMPILED

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
REFUSALS = ("non-finite", "too large", "weight")  # the reasons that kernels count, in their order


class Phase(NamedTuple):
    """SGD on the shared item rows and the person's vector; a learning rate of 0 keeps what it belongs to."""

    lr: float  # of the person's vector and bias
    row_lr: float  # of item rows
    lam: float = 0.0  # weight of the proximal term towards the shared rows
    passes: int = 1
    in_turn: bool = False  # each batch moves the vector first, and item rows after a fresh forward pass


class Copy(NamedTuple):
    """A person's copy of the item rows ("own.item", personal_rows.py)."""

    lr: float
    passes: int
    lam: float = 0.0  # weight of the proximal term towards the shared rows
    turns: int = 1
    rate: float = 0.0  # how far the shared rows follow the copy after each turn
    alpha_lr: float | None = None  # APFL: the copy learns in a mixture, and this is the learning rate of its share

    @property
    def follows_shared(self) -> bool:
        """As in PersonalRows."""
        return self.alpha_lr is not None or self.lam > 0


@dataclass(frozen=True, eq=False)
class CohortClient:
    """A stepwise client: the phases on the shared rows, then the copy's."""

    model: Model
    phases: tuple[Phase, ...] = ()
    copy: Copy | None = None
    one_batch: bool = False  # all examples of a person are one batch
    equal_weights: bool = False  # everybody's upload has weight 1; otherwise the number of examples
    reach: bool = False  # the upload counts who named a row

    def fast(self, private: Iterable[str]) -> Fast:
        """The kernel, where the model is one that it computes and the globs `private` match all parameters but the item
        table."""
        names = COMPILED.get(self.model.kind, ())
        shared = tuple(name for name in names if not any(fnmatch(name, glob) for glob in private))
        able = shared == ("item",) and (self.copy is None or "bias" not in names)
        return Fast(self.kernel) if able else Fast()

    def kernel(self, download: Download, cohort: Cohort) -> tuple[Upload, dict[str, int]]:
        """The method's `client` for a cohort."""
        store, examples, table = cast(PagedStore, cohort.private), cohort.examples, download.params["item"].numpy()
        moved = np.zeros((WORKERS, *table.shape), np.float32)
        reached = np.zeros((WORKERS if self.reach else 0, len(table)), np.float32)
        weights, refused = np.zeros(WORKERS), np.zeros((WORKERS, 3), np.int64)
        batch = 0 if self.one_batch else examples.batch
        for who, starts, local, targets, firsts, wanted in row_blocks(cohort.people, examples, len(table)):
            kernels.run_clients(
                who, (starts, local, targets, batch), (firsts, wanted), table, self._vectors(store.stacked),
                self._copies(store, who, firsts, wanted), *self._numbers(), self.equal_weights,
                self.model.loss_name == "squared", moved, reached, weights, refused,
            )  # fmt: skip
        total = {"item": torch.from_numpy(moved.sum(0))}
        total |= {"reach": torch.from_numpy(reached.sum(0))} if self.reach else {}
        upload = Upload(total, torch.tensor(weights.sum(), dtype=torch.float32))
        return upload, dict(zip(REFUSALS, refused.sum(0).tolist()))

    def _vectors(self, stacked: Params) -> tuple[Floats, Floats]:
        return stacked["user"].numpy(), stacked["bias"].numpy() if "bias" in stacked else np.zeros(0, np.float32)

    def _copies(
        self, store: PagedStore, people: Ints, firsts: Ints, wanted: NDArray[np.int32]
    ) -> tuple[Floats, Floats, Floats, Ints, Floats, Ints, bool]:
        """People's copies as the kernel wants them; rows that are stored for the first time get a place."""
        empty, table, none = np.zeros(0, np.float32), np.zeros((0, 0), np.float32), np.zeros(0, np.int64)
        if self.copy is None:
            return table, empty, table, none, table, none, False
        users, alphas = (store.stacked.get(name) for name in ("own.user", "alpha"))
        rows, met = store.touched["own.item"], store.touched["met"]
        slots, met_slots = (pages.place(people, firsts, wanted) for pages in (rows, met))
        return (
            table if users is None else users.numpy(), empty if alphas is None else alphas.numpy(), rows.rows, slots,
            met.rows, met_slots, self.copy.follows_shared,
        )  # fmt: skip

    def _numbers(self) -> tuple[Floats, int, Floats]:
        """(the phases, the kind of copy, its phase) as the kernel wants them."""
        phases = np.array(self.phases, np.float32).reshape(-1, len(Phase._fields))
        if self.copy is None:
            return phases, kernels.NO_COPY, np.zeros(5, np.float32)
        lr, passes, lam, turns, rate, alpha_lr = self.copy
        if alpha_lr is not None:
            return phases, kernels.MIXED, np.array([lr, 0, passes, 0, alpha_lr], np.float32)
        return phases, kernels.PROXIMAL, np.array([lr, lam, passes, turns, rate], np.float32)
