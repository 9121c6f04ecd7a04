"""Own copies of shared parameters, kept without an item table for everybody.

Of item tables only the rows that a round's examples name move. A row that was never named is, exactly, the shared one:
it is neither stored nor sent. Which rows a person has named is itself private ("met"). A shared row moves by the mean
over those who named it ("reach" counts them), since the mean over everybody would hardly move what few people have.
"""

from __future__ import annotations

from fnmatch import fnmatch

import torch
from torch import Tensor

from ..core import Examples, Model, Params, Upload
from ..local import nest, pick, touched, unnest


class Rows:
    """How a method keeps, sends and averages own copies. `started`: rows not yet met begin as the shared ones are now;
    otherwise as they were at first."""

    def __init__(self, model: Model, started: bool = True) -> None:
        self.started = started
        self.tables = tuple(n for n in model.rows if not any(fnmatch(n, glob) for glob in model.private))
        self.rows = (*model.rows, *(f"own.{name}" for name in model.rows), "met", "reach") if model.rows else ()

    def init(self, params: Params) -> Params:
        met = {"met": torch.zeros(params[self.tables[0]].shape[0])} if self.tables else {}
        return nest("own", params) | met

    def warm(self, shared: Params, own: Params) -> Params:
        """The own copy where it was left."""
        mine = unnest("own", own)
        if not self.tables or not self.started:
            return mine
        met = {n: _column(own["met"], v) if n in self.tables else torch.ones(()) for n, v in mine.items()}
        return pick(met, mine, mine | shared)

    def served(self, shared: Params, own: Params, held: Examples) -> Params:
        """The own copy, as far as the examples at hand name it. Of other rows the spring's exact answer is the shared
        one; what was left there rounds ago, when they were drawn as negatives, would be stale."""
        mine = self.warm(shared, own)
        if not self.tables or not self.started:
            return mine
        return pick(touched(mine, self.tables, held), mine, mine | shared)

    def kept(self, mine: Params, own: Params, held: Examples) -> Params:
        """What is stored: of tables, the rows that these examples named, and what was there before."""
        before = unnest("own", own)
        reach = touched(before, self.tables, held)
        met = {"met": torch.maximum(own["met"], reach[self.tables[0]].flatten())} if self.tables else {}
        return nest("own", pick(reach, {name: mine[name] for name in before}, before)) | met

    def upload(self, after: Params, shared: Params, held: Examples, told: Params) -> Upload:
        """The difference from the shared parameters, of what these examples reached; `told` are numbers beside it."""
        weight, reach = held.mask.sum(), touched(shared, self.tables, held)
        total = {n: weight * reach[n] * (after[n] - v) for n, v in shared.items()}
        named = {"reach": weight * reach[self.tables[0]].flatten()} if self.tables else {}
        return Upload(total | named | {n: weight * v for n, v in told.items()}, weight)

    def mean(self, upload: Upload) -> Params:
        """The mean change; of a table's row, over those who named it."""
        mean = upload.mean()
        for name in self.tables:
            share = _column(upload.total["reach"], upload.total[name])
            mean[name] = torch.where(share > 0, upload.total[name] / share.clamp(min=1e-12), 0.0)
        return mean


def _column(marks: Tensor, table: Tensor) -> Tensor:
    return marks.reshape(-1, *[1] * (table.ndim - 1))
