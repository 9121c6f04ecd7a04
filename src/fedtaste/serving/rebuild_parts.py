"""RebuildParts: the recipe and the tables of a trained model, with which anybody's vector is computed (rebuild.py)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedtaste.recipe import Recipe
from fedtaste.serving.rebuild import Floats, Tables, TrailTable, gram_matrix

TRAIL_KEPT = 200  # largest entries of a row of the trail table; fewer cost NDCG@10 (benchmarks/page.py int8)
SEQUENCE_KEPT = 280  # the same where the trail enters as a logarithm, which tells small entries apart


@dataclass(frozen=True, eq=False)
class RebuildParts:
    """A recipe with the tables that it is computed with."""

    recipe: Recipe
    item: NDArray[np.float32]  # [m, k]
    offset: NDArray[np.float32] | None  # [m]
    ones: bool  # a constant 1 is a feature too
    trail: NDArray[np.float32] | None  # [m, m]
    network: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)  # of a sequence network, by name

    @cached_property
    def tables(self) -> Tables:
        """The tables in double precision; of the trail table the largest entries of every row."""
        offset = None if self.offset is None else self.offset.astype(np.float64)
        trail = None
        if self.trail is not None:
            at = widest_entries(self.trail, min(trail_kept(self.recipe), len(self.trail)))
            trail = TrailTable(at, np.take_along_axis(self.trail, at, axis=1).astype(np.float64))
        network = {name: value.astype(np.float64) for name, value in self.network.items()}
        return Tables(self.item.astype(np.float64), offset, self.ones, trail, network)

    @cached_property
    def gram(self) -> Floats | None:
        """alpha0 V'V, where the recipe needs it."""
        return gram_matrix(self.recipe, self.tables)


def trail_kept(recipe: Recipe) -> int:
    """How many entries of every row of the trail table are kept where it is stored in bytes."""
    return SEQUENCE_KEPT if recipe.sequence else TRAIL_KEPT


def widest_entries(table: NDArray[np.float32], width: int) -> NDArray[np.int64]:
    """The columns of the `width` largest entries of every row, in order, [m, width]."""
    columns: NDArray[np.int64] = np.sort(np.argpartition(-table, width - 1, axis=1)[:, :width], axis=1)
    return columns
