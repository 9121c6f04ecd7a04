"""Counts of a federation's server or node for its operator, in counters.json; `fedtaste monitor` shows them.

Flower starts a process for every message to a node, so the counts are on disk. They hold sums over people and no
person. In a run with noise neither people nor refused updates are counted, because no epsilon covers such counts.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from pathlib import Path

from pydantic import BaseModel, Field, NonNegativeFloat, NonNegativeInt, ValidationError

from fedtaste.errors import FedtasteError
from fedtaste.files.atomic import write_atomically
from fedtaste.files.lock import lock_file

NAME = "counters.json"


class Counters(BaseModel):
    """What was counted; two of them can be added."""

    rounds: NonNegativeInt = 0  # that were completed (server), or trained (node)
    orders: dict[str, NonNegativeInt] = Field(default_factory=dict)  # that a node received, by kind
    people: NonNegativeInt = 0  # whose uploads counted, summed over rounds
    refused: dict[str, NonNegativeInt] = Field(default_factory=dict)  # by reason
    up_bytes: NonNegativeInt = 0  # from nodes to the server
    down_bytes: NonNegativeInt = 0
    seconds: NonNegativeFloat = 0.0  # of rounds (server), or of answers (node)

    def __add__(self, other: Counters) -> Counters:
        return Counters(
            rounds=self.rounds + other.rounds,
            orders=dict(Counter(self.orders) + Counter(other.orders)),
            people=self.people + other.people,
            refused=dict(Counter(self.refused) + Counter(other.refused)),
            up_bytes=self.up_bytes + other.up_bytes,
            down_bytes=self.down_bytes + other.down_bytes,
            seconds=round(self.seconds + other.seconds, 3),
        )


def read_counters(folder: Path) -> Counters:
    """The counts in a folder; zero where there are none that can be read."""
    try:
        return Counters.model_validate_json((folder / NAME).read_bytes())
    except (OSError, ValidationError):
        return Counters()


def add_counters(folder: Path, counted: Counters) -> None:
    """Add to the counts in a folder. A count that cannot be written is lost, and the work goes on."""
    with contextlib.suppress(OSError, FedtasteError), lock_file(folder / f".{NAME}.lock"):
        total = read_counters(folder) + counted
        write_atomically(folder / NAME, total.model_dump_json().encode(), 0o600)
