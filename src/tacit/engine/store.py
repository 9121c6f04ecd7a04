"""Private parameters: what stays with each person between rounds.

Small leaves (a person's vector) are stacked, one row a person. Leaves that follow the catalogue (a person's own item
table) hold touched rows only: people x items would be terabytes on real catalogues.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core import Params

People = NDArray[np.int64]


@dataclass(eq=False)
class Store:
    initial: Params  # what a person starts from
    people: int
    rows: frozenset[str] = frozenset()  # which leaves follow the catalogue
    stacked: Params = field(default_factory=dict)  # [people, ...]
    touched: dict[str, dict[int, tuple[Tensor, Tensor]]] = field(default_factory=dict)  # name -> person -> (ids, rows)

    @staticmethod
    def fresh(initial: Params, people: int, rows: Iterable[str]) -> Store:
        follow = frozenset(rows) & initial.keys()
        stacked = {n: v.expand(people, *v.shape).clone() for n, v in initial.items() if n not in follow}
        return Store(initial, people, follow, stacked, {name: {} for name in follow})

    def gather(self, people: People, rows: Tensor | None = None) -> Params:
        """These people's parameters, stacked. Catalogue leaves: rows [people, r] (-1: padding), or whole tables."""
        index = torch.from_numpy(np.asarray(people, np.int64))
        out = {name: value[index] for name, value in self.stacked.items()}
        for name in self.rows:
            start = self.initial[name]
            tables = start.expand(len(people), *start.shape).clone() if rows is None else start[rows]
            for place, person in enumerate(people.tolist()):
                if person not in self.touched[name]:
                    continue
                ids, values = self.touched[name][person]
                if rows is None:
                    tables[place, ids] = values
                else:
                    at = torch.searchsorted(ids, rows[place]).clamp(max=len(ids) - 1)
                    hit = ids[at] == rows[place]
                    tables[place, hit] = values[at[hit]]
            out[name] = tables
        return out

    def put(self, people: People, params: Params, rows: Tensor | None = None) -> None:
        """Keep what these people's clients returned; rows [people, r], -1 on padding, or None for whole tables."""
        index = torch.from_numpy(np.asarray(people, np.int64))
        for name in self.stacked:
            self.stacked[name][index] = params[name].detach()
        for name in self.rows:
            for place, person in enumerate(people.tolist()):
                new = params[name][place].detach()
                base = self.initial[name] if rows is None else self.initial[name][rows[place]]
                moved = (
                    (new != base).flatten(1).any(1).nonzero()[:, 0] if new.ndim > 1 else (new != base).nonzero()[:, 0]
                )
                if rows is not None:
                    moved = moved[rows[place][moved] >= 0]
                self._merge(name, person, moved if rows is None else rows[place][moved], new[moved])

    def _merge(self, name: str, person: int, ids: Tensor, values: Tensor) -> None:
        if person in self.touched[name] and len(ids):
            old_ids, old_values = self.touched[name][person]
            kept = ~torch.isin(old_ids, ids)
            ids, values = torch.cat([old_ids[kept], ids]), torch.cat([old_values[kept], values])
            order = ids.argsort()
            ids, values = ids[order], values[order]
        if len(ids):
            self.touched[name][person] = (ids.clone(), values.clone())

    def pack(self) -> Params:
        """As flat tensors, for a checkpoint."""
        out = {f"stacked/{name}": value for name, value in self.stacked.items()}
        for name, held in self.touched.items():
            people = sorted(held)
            out[f"touched/{name}/people"] = torch.tensor(people, dtype=torch.int64)
            out[f"touched/{name}/lengths"] = torch.tensor([len(held[p][0]) for p in people], dtype=torch.int64)
            out[f"touched/{name}/ids"] = torch.cat([held[p][0] for p in people] or [torch.zeros(0, dtype=torch.int64)])
            empty = self.initial[name][:0]
            out[f"touched/{name}/rows"] = torch.cat([held[p][1] for p in people] or [empty])
        return out

    def unpack(self, packed: Params) -> None:
        """Take back what `pack` gave."""
        for name in self.stacked:
            self.stacked[name] = packed[f"stacked/{name}"]
        for name in self.rows:
            people, lengths, ids, rows = (
                packed[f"touched/{name}/{part}"] for part in ("people", "lengths", "ids", "rows")
            )
            parts = zip(
                people.tolist(), torch.split(ids, lengths.tolist()), torch.split(rows, lengths.tolist()), strict=True
            )
            self.touched[name] = {person: (own_ids.clone(), own_rows.clone()) for person, own_ids, own_rows in parts}
