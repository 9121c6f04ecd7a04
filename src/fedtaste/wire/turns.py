"""Turns: in a round a person sends a part of the catalogue's rows only, which everybody can compute beforehand.

    turns=0.2          every person sends rows of their own in a round, a fifth of the catalogue
    common_turns=0.2   everybody sends the same rows in a round, a fifth of the catalogue
The rows are placed on a ring in a public random order. A turn is a stretch of the ring, and the next round's turn
begins where it ends, so after 1 / share rounds a person has sent every row once. With `turns` people begin at public
random places of their own. Which rows are sent depends on the seed, the round and the person's number, and not on data:
it reveals nothing. It protects nobody either, since every row is sent in the end; it saves bytes.

What the server does. q_j is the share of the people whose turn has row j: the share q with `turns`, and 0 or 1 with
`common_turns`. What was sent of row j, divided by q_j, is an unbiased estimate of everybody's sum (Horvitz and Thompson
1952); a row that nobody sent has the sum zero and stays as it is. A method whose server computes rows anew from the
sums of a round (`Method.sums`, FedALS) would forget what was sent before. With `turns` it reads a moving average of
these estimates, with the correction of its beginning that Adam has:
    average = (1 - q) average + q estimate,  seen = (1 - q) seen + q,  the server reads average / seen
With a share of 1 this is the plain server.

Sums of several people can be seen only where all of them send the same rows: secure sums, sums of nodes and rules that
compare people need `common_turns`. Sums over parts of the people that change from round to round could be solved for
single people, too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedtaste.core import Method, Params, People, Stage, StageContext, Upload
from fedtaste.params import split
from fedtaste.wire.rng import coins, seeded_key, words

MEMORY = ("turns.*",)  # names in the server's memory


@dataclass(frozen=True)
class Turns:
    """Which rows of the tables `names` a person sends in a round; `common`: everybody sends the same."""

    share: float
    common: bool
    names: tuple[str, ...]  # leaves of an upload whose first axis is the catalogue
    catalogue: int
    seed: int = 0

    @property
    def length(self) -> int:
        """Rows in a turn."""
        return min(math.ceil(self.share * self.catalogue - 1e-9), self.catalogue)

    @cached_property
    def places(self) -> NDArray[np.int64]:
        """The place of every row on the ring, [items]."""
        draws = words(seeded_key(self.seed, "order of rows"), self.catalogue)
        return np.argsort(np.argsort(draws, kind="stable"), kind="stable")

    def begins(self, people: People, round: int) -> NDArray[np.int64]:
        """The place at which each person's turn begins."""
        own = np.zeros(len(people)) if self.common else coins(seeded_key(self.seed, "first turns"), people)
        return (np.floor(own * self.catalogue).astype(np.int64) + round * self.length) % self.catalogue

    def sent(self, people: People, round: int, rows: NDArray[np.int64] | None = None) -> NDArray[np.bool_]:
        """Which rows each person sends, [people, r]; `rows` are their numbers [people, r] (default: all)."""
        places = self.places[None] if rows is None else self.places[rows]
        return (places - self.begins(people, round)[:, None]) % self.catalogue < self.length

    def entries(
        self, people: People, starts: NDArray[np.int64], items: NDArray[np.int32], round: int
    ) -> NDArray[np.bool_]:
        """Which of a cohort's examples are of rows that their person sends, [n]; `starts` as in CohortExamples."""
        begins = np.repeat(self.begins(people, round), np.diff(starts))
        return (self.places[items] - begins) % self.catalogue < self.length

    def mask(self, uploads: Upload, people: People, round: int, rows: Tensor | None = None) -> Upload:
        """Stacked uploads with zeros in the rows that are not sent; `rows` as in engine.backends.Compact."""
        numbers = None if rows is None else rows.clamp(min=0).numpy()
        sent = torch.from_numpy(self.sent(people, round, numbers))
        total = {n: v * _column(sent, v) if n in self.names else v for n, v in uploads.total.items()}
        return Upload(total, uploads.weight)

    def _own_rows(self, person: int, round: int) -> Tensor:
        """The numbers of the rows that this person sends, in rising order."""
        return torch.from_numpy(np.flatnonzero(self.sent(np.array([person]), round)[0]))

    def cut(self, upload: Upload, person: int, round: int) -> Upload:
        """The upload as it is written into a message: the rows that are sent, in the order of the catalogue."""
        at = self._own_rows(person, round)
        return Upload({n: v[at] if n in self.names else v for n, v in upload.total.items()}, upload.weight)

    def restore(self, upload: Upload, person: int, round: int) -> Upload:
        """The inverse of `cut`: whole tables, with zeros in the rows that were not sent."""
        at, total = self._own_rows(person, round), dict(upload.total)
        for name in self.names:
            value = total[name]
            total[name] = value.new_zeros(self.catalogue, *value.shape[1:]).index_copy(0, at, value)
        return Upload(total, upload.weight)

    def shares(self, round: int) -> Tensor:
        """q: for every row the share of the people who send it, [items]."""
        if self.common:
            return torch.from_numpy(self.sent(np.zeros(1, np.int64), round)[0]).float()
        return torch.full((self.catalogue,), self.length / self.catalogue)

    def message_layout(self, total: Params) -> Params:
        """Tensors of the shapes in a message."""
        return {n: v[: self.length] if n in self.names else v for n, v in total.items()}


def take_turns(method: Method, turns: Turns) -> tuple[Method, Stage]:
    """(the method, with a server that averages its sums over rounds where it needs that, the stage)."""

    def scaled(upload: Upload, context: StageContext) -> Upload:
        share = turns.shares(context.round)
        inverse = torch.where(share > 0, 1 / share, 0.0)
        total = {n: v * _column(inverse, v) if n in turns.names else v for n, v in upload.total.items()}
        return Upload(total, upload.weight)

    def server(shared: Params, memory: Params, upload: Upload) -> tuple[Params, Params]:
        own, kept = split(memory, MEMORY)
        share = turns.length / turns.catalogue
        seen = (1 - share) * kept.get("turns.seen", torch.zeros((), dtype=torch.float64)) + share
        kept = {"turns.seen": seen} | {
            f"turns.{name}": (1 - share) * kept.get(f"turns.{name}", 0.0) + share * upload.total[name].double()
            for name in turns.names
        }
        estimates = {name: (kept[f"turns.{name}"] / seen).float() for name in turns.names}
        shared, own = method.server(shared, own, Upload(upload.total | estimates, upload.weight))
        return shared, own | kept

    averaged = method.replace(server=server, server_with=None) if method.sums and not turns.common else method
    return averaged, Stage(server=scaled, turns=turns, message_layout=turns.message_layout)


def _column(marks: Tensor, table: Tensor) -> Tensor:
    """Marks of rows, shaped so that they multiply tables."""
    return marks.reshape(*marks.shape, *[1] * (table.ndim - marks.ndim)).to(table.dtype)
