"""The mask graph of a secure sum: who shares masks with whom, and how many may drop out (Bell et al. 2020, SecAgg+).

A small group is complete. In a large one people stand on a ring in a random order and share masks with their `degree`
nearest neighbours: the fewest that make it unlikely (RISK) that anybody loses half of them at a drop-out of LOST.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

LOST, RISK = 0.3, 0.01  # share of people who drop out, share of rounds that are abandoned then


@lru_cache(maxsize=1024)
def degree(people: int) -> int:
    """Neighbours of each person on a ring of `people`; grows like the logarithm."""
    from scipy.stats import binom  # takes half a second, which every node would spend on every message

    width = 4
    while width < people - 1 and people * binom.sf(width // 2 - 1, width + 1, LOST) > RISK:
        width += 2
    return width


def share_threshold(width: int) -> int:
    """How many of width + 1 shares rebuild a secret. More than half, so that no two sets of holders give both secrets
    of one person; and one more, because a ring falls into pieces with separate sums only where half of the neighbours
    drop out in a row, and then the person in their middle has too few left."""
    return width // 2 + 2


@dataclass(frozen=True)
class Group:
    """People whose vectors are summed together, in the order of the ring."""

    people: tuple[int, ...]
    degree: int  # neighbours of each: an even number, or everybody else
    threshold: int  # shares that rebuild a secret, of degree + 1
    least: int  # people whose vectors a sum must contain
    round: int = 0

    @property
    def complete(self) -> bool:
        return self.degree >= len(self.people) - 1

    def holders(self, person: int) -> list[int]:
        """Who has a share of this person's secrets, including the person; a share's number is its place here + 1."""
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

    def shortfall(self, alive: Collection[int]) -> str | None:
        """Why the sum cannot be recovered from these people alone, or None."""
        here = np.isin(np.array(self.people), np.array(sorted(alive), np.int64))
        if here.sum() < self.least:
            return f"{here.sum()} of {len(here)} people are left and {self.least} are needed"
        if self.complete:
            return None
        half = self.degree // 2
        around = np.concatenate([here[-half:], here, here[:half]])
        fewest = int(np.lib.stride_tricks.sliding_window_view(around, self.degree + 1).sum(1).min())
        if fewest < self.threshold:
            return f"somebody has {fewest} of {self.degree + 1} holders of shares left and {self.threshold} are needed"
        return None
