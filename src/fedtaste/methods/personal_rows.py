"""Personal copies of shared parameters that store only the item rows a person has touched.

Of item tables only the rows that a round's examples name move. A row that was never named equals the shared one
exactly: it is neither stored nor sent. Which rows a person has named is itself private ("met"). A shared row moves by
the mean over those who named it ("reach" counts them), since the mean over everybody would hardly move a rare item.
"""

from __future__ import annotations

from fnmatch import fnmatch

import torch
from torch import Tensor

from fedtaste.core import Examples, Model, Params, Upload
from fedtaste.methods.descent import touched
from fedtaste.params import nest, pick, split, unnest


class PersonalRows:
    """How a method keeps, sends and averages personal copies. `follow_shared`: rows that a person has not named yet
    equal the shared ones as they are now; otherwise as they were at first. `others`: names of the method's further
    private numbers."""

    def __init__(self, model: Model, follow_shared: bool = True, others: tuple[str, ...] = ()) -> None:
        self.model, self.globs = model, ("own.*", "met", *others)
        self.tables = tuple(n for n in model.rows if not any(fnmatch(n, glob) for glob in model.private))
        self.follow_shared = follow_shared and bool(self.tables)
        self.rows = (*model.rows, *(f"own.{name}" for name in model.rows), "met", "reach") if model.rows else ()

    def init(self, params: Params) -> tuple[Params, Params]:
        """(the shared parameters, those that are personal by nature and a copy of the shared ones)."""
        shared, personal = split(params, self.model.private)
        return shared, personal | self.copy(shared)

    def copy(self, params: Params) -> Params:
        """A personal copy of these parameters, as it is stored before the first round."""
        met = {"met": torch.zeros(params[self.tables[0]].shape[0])} if self.tables else {}
        return nest("own", params) | met

    def personal(self, own: Params) -> Params:
        """The private parameters that are personal by nature, without the copies and the method's other numbers."""
        return split(own, self.globs)[0]

    def load(self, shared: Params, own: Params) -> Params:
        """The personal copy as the last round left it."""
        copy = unnest("own", own)
        if not self.follow_shared:
            return copy
        met = {n: _column(own["met"], v) if n in self.tables else torch.ones(()) for n, v in copy.items()}
        return pick(met, copy, copy | shared)

    def serve(self, shared: Params, own: Params, examples: Examples) -> Params:
        """The personal copy, of the rows that these examples name. For other rows the proximal term's exact answer is
        the shared row; what was left there rounds ago, when they were drawn as negatives, would be stale."""
        copy = self.load(shared, own)
        return pick(touched(copy, self.tables, examples), copy, copy | shared) if self.follow_shared else copy

    def personalize(self, shared: Params, own: Params, examples: Examples) -> Params:
        """The personal copy and what is personal by nature."""
        return self.serve(shared, own, examples) | self.personal(own)

    def store(self, copy: Params, own: Params, examples: Examples) -> Params:
        """What is stored: of tables, the rows that these examples named, and what was there before."""
        before = unnest("own", own)
        reach = touched(before, self.tables, examples)
        met = {"met": torch.maximum(own["met"], reach[self.tables[0]].flatten())} if self.tables else {}
        return nest("own", pick(reach, {name: copy[name] for name in before}, before)) | met

    def upload(self, after: Params, shared: Params, examples: Examples, numbers: Params) -> Upload:
        """The difference from the shared parameters, of what these examples reached, and further `numbers`."""
        weight, reach = examples.mask.sum(), touched(shared, self.tables, examples)
        total = {n: weight * reach[n] * (after[n] - v) for n, v in shared.items()}
        reached = {"reach": weight * reach[self.tables[0]].flatten()} if self.tables else {}
        return Upload(total | reached | {n: weight * v for n, v in numbers.items()}, weight)

    def mean(self, upload: Upload) -> Params:
        """The mean change; of a table's row, over those who named it."""
        mean = upload.mean()
        for name in self.tables:
            share = _column(upload.total["reach"], upload.total[name])
            mean[name] = torch.where(share > 0, upload.total[name] / share.clamp(min=1e-12), 0.0)
        return mean

    def move(self, params: Params, towards: Params, rate: float | Tensor) -> Params:
        """params + rate x `towards`; batch norm's statistics take all of it."""
        return {n: v + (1.0 if n in self.model.buffers else rate) * towards[n] for n, v in params.items()}


def _column(marks: Tensor, table: Tensor) -> Tensor:
    return marks.reshape(-1, *[1] * (table.ndim - 1))
