"""Who has masks with whom in a secure sum, and how many may drop out: Bell et al. 2020 (SecAgg+).

A small group is complete. People of a large one stand on a ring, in an order nobody chose, and have masks with their
`degree` neighbours: as few as make it unlikely (RISK) that anybody loses half of them at a drop-out of LOST.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

LOST, RISK = 0.3, 0.01  # at such a drop-out so many rounds of a ring are abandoned


@lru_cache(maxsize=1024)
def degree(people: int) -> int:
    """Neighbours on a ring of so many; grows like the logarithm."""
    width = 4
    from scipy.stats import binom  # half a second, which every node would spend on every message

    while width < people - 1 and people * binom.sf(width // 2 - 1, width + 1, LOST) > RISK:
        width += 2
    return width


def majority(width: int) -> int:
    """Shares that rebuild a secret, of width + 1. More than half, so that no two sets of holders give both secrets of
    one person; and one more: the ring falls into pieces, whose sums would be seen apart, only where half of the
    neighbours stand in a row and are gone, and then whoever stands in their middle has too few left."""
    return width // 2 + 2


@dataclass(frozen=True)
class Group:
    """People whose vectors are summed together, in the order of the ring."""

    people: tuple[int, ...]
    degree: int  # neighbours of each: an even number, or everybody else
    need: int  # shares that rebuild a secret, of degree + 1
    least: int  # people that a sum is of
    round: int = 0

    @property
    def complete(self) -> bool:
        return self.degree >= len(self.people) - 1

    def holders(self, person: int) -> list[int]:
        """Who has a share of this person's secrets, the person among them; a share's number is the place here + 1."""
        return self._holders[person]

    @cached_property
    def _holders(self) -> dict[int, list[int]]:
        many, half = len(self.people), self.degree // 2
        if self.complete:
            return dict.fromkeys(self.people, sorted(self.people))
        return {
            person: sorted(self.people[(at + by) % many] for by in range(-half, half + 1))
            for at, person in enumerate(self.people)
        }

    def neighbours(self, person: int) -> list[int]:
        return [other for other in self.holders(person) if other != person]

    def short(self, alive: Collection[int]) -> str | None:
        """Why nothing can be opened when only these people are left, or None."""
        here = np.isin(np.array(self.people), np.array(sorted(alive), np.int64))
        if here.sum() < self.least:
            return f"{here.sum()} of {len(here)} people are left and {self.least} are needed"
        if self.complete:
            return None
        half = self.degree // 2
        around = np.concatenate([here[-half:], here, here[:half]])
        fewest = int(np.lib.stride_tricks.sliding_window_view(around, self.degree + 1).sum(1).min())
        if fewest < self.need:
            return f"somebody has {fewest} of {self.degree + 1} holders of shares left and {self.need} are needed"
        return None
