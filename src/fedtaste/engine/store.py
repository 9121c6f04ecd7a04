"""The store of private parameters: what stays with each person between rounds.

Small parameters (a person's vector) are stacked, one row for each person. Tables that follow the catalogue (a person's
own item table) hold touched rows only, in pages: people x items would be terabytes on real catalogues.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedtaste.core import Params, People
from fedtaste.data.interactions import starts_of
from fedtaste.errors import RunError
from fedtaste.kernels.row_pages import Pages
from fedtaste.params import nest, unnest


@dataclass(eq=False)
class Store:
    """Everybody's private parameters. Training changes them in place; `version` counts the rounds that did."""

    initial: Params  # what a person starts from
    people: int
    stacked: Params = field(default_factory=dict)  # [people, ...]
    touched: dict[str, Pages] = field(default_factory=dict)  # tables that follow the catalogue
    version: int = 0

    @staticmethod
    def fresh(initial: Params, people: int, rows: Iterable[str], folder: Path | None = None) -> Store:
        """A store in which everybody has the initial parameters; with a `folder`, pages are there and not in memory."""
        follow = sorted(frozenset(rows) & initial.keys())
        stacked = {n: v.expand(people, *v.shape).clone() for n, v in initial.items() if n not in follow}
        flat = {n: initial[n].reshape(len(initial[n]), -1).contiguous().numpy() for n in follow}
        return Store(initial, people, stacked, {n: Pages(flat[n], people, folder) for n in follow})

    def copy(self) -> Store:
        """A copy in memory that training does not change."""
        copy = Store.fresh(self.initial, self.people, self.touched)
        copy.unpack({name: value.clone() for name, value in self.pack().items()})
        return copy

    @property
    def rows(self) -> frozenset[str]:
        """Names of the tables that follow the catalogue."""
        return frozenset(self.touched)

    def gather(self, people: People, rows: Tensor | None = None) -> Params:
        """These people's parameters, stacked; of tables, `rows` [people, r] (-1: padding) or, with None, all rows."""
        people = np.asarray(people, np.int64)
        out = {name: value[torch.from_numpy(people)] for name, value in self.stacked.items()}
        for name, pages in self.touched.items():
            every = _every(pages, people) if rows is None else rows
            tables = self.initial[name][every]
            real, starts, items = _ragged(every)
            slots = pages.find(people, starts, items)
            flat = tables.numpy().reshape(every.numel(), pages.initial.shape[1])  # a view
            flat[np.flatnonzero(real)[slots >= 0]] = pages.rows[slots[slots >= 0]]
            out[name] = tables
        return out

    def put(self, people: People, params: Params, rows: Tensor | None = None) -> None:
        """Store what these people's clients returned; `rows` as in `gather`."""
        people = np.asarray(people, np.int64)
        for name in self.stacked:
            self.stacked[name][torch.from_numpy(people)] = params[name].detach()
        for name, pages in self.touched.items():
            real, starts, items = _ragged(_every(pages, people) if rows is None else rows)
            new = params[name].detach().reshape(*real.shape, pages.initial.shape[1]).numpy()[real]
            changed = (new != pages.initial[items]).any(1) | (pages.find(people, starts, items) >= 0)
            slots = pages.place(people, np.append(0, np.cumsum(changed))[starts], items[changed])
            pages.rows[slots] = new[changed]

    def pack(self) -> Params:
        """The content as flat tensors, for a checkpoint; pages are not copied."""
        out = nest("stacked", self.stacked)
        for name, pages in self.touched.items():
            out |= nest(f"touched.{name}", {n: torch.from_numpy(p) for n, p in pages.pack().items()})
        return out

    def part(self, people: People) -> Params:
        """As `pack`, for these people only; nobody else in the store may have touched anything."""
        index = torch.from_numpy(people)
        return {name: value[index] if _by_person(name) else value for name, value in self.pack().items()}

    def unpack_part(self, people: People, packed: Params) -> None:
        """Restore what `part` gave for these people; the others have their initial parameters."""
        by_person = {name: value for name, value in self.pack().items() if _by_person(name)}
        if {n: v.shape[0] for n, v in packed.items() if _by_person(n)} != dict.fromkeys(by_person, len(people)):
            raise RunError("The private part belongs to other people than these. Restore it from a copy, or run again.")
        for name, initial in by_person.items():
            packed[name] = initial.clone().index_copy(0, torch.from_numpy(people), packed[name].to(initial.dtype))
        self.unpack(packed)

    def unpack(self, packed: Params) -> None:
        """Restore what `pack` gave; raises RunError where it is of other parameters or people."""
        kinds, expected = ({n: (v.dtype, v.shape[1:]) for n, v in p.items()} for p in (packed, self.pack()))
        if kinds != expected or any(len(packed[f"stacked.{n}"]) != self.people for n in self.stacked):
            raise RunError(
                "The private part does not fit the settings of this run. Restore it from a copy, or run again."
            )
        self.stacked = {name: packed[f"stacked.{name}"] for name in self.stacked}
        for name, pages in self.touched.items():
            pages.unpack({n: p.numpy() for n, p in unnest(f"touched.{name}", packed).items()})


def _by_person(name: str) -> bool:
    """Whether the rows of this tensor of `pack` are people (those of others are pages)."""
    return name.startswith("stacked.") or name.rsplit(".", 1)[-1] in ("first", "last", "used")


def _every(pages: Pages, people: People) -> Tensor:
    return torch.arange(len(pages.initial)).expand(len(people), -1)


def _ragged(rows: Tensor) -> tuple[NDArray[np.bool_], NDArray[np.int64], NDArray[np.int32]]:
    """(which are real, starts, the real ones) of rows [people, r] with -1 as padding."""
    plain = rows.numpy()
    real = plain >= 0
    return real, starts_of(real.sum(1)), plain[real].astype(np.int32)
