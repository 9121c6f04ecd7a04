"""The typed result of `fedtaste bench --peers`: its dump is what `--json` prints."""

from __future__ import annotations

from typing import Literal

from fedtaste.result_part import Count, ResultPart

Part = Literal["als", "fedavg"]


class PeerLine(ResultPart):
    """CPU seconds of one iteration or round of one program, on one core."""

    part: Part
    name: str
    ours: bool
    version: str
    cpu_seconds: float
    times_ours: float | None = None
    """CPU seconds divided by those of our method with the same work."""
    difference: float | None = None
    """Largest difference of the item table from ours after one iteration, relative to our largest value (als) or to our
    largest change (fedavg)."""


class MissingPeer(ResultPart):
    """A peer that was not measured, and why."""

    name: str
    reason: str


class PeerData(ResultPart):
    """The data of one comparison. `k` is the number of factors of the compared methods."""

    part: Part
    data: str
    people: Count
    items: Count
    interactions: Count
    k: Count


class MachineBounds(ResultPart):
    """What one core can do, and what one exact ALS round would need at that speed."""

    gflops: float
    """Products of large float32 matrices, 10^9 operations a second."""
    gigabytes_per_second: float
    """Copies of memory, bytes read and written."""
    als_gflop: float | None = None
    """10^9 operations of one exact ALS round, symmetric matrices by their halves."""
    als_arithmetic_seconds: float | None = None
    als_memory_seconds: float | None = None
    """If every row of factors that is gathered came from memory, and none from a cache."""


class PeersResult(ResultPart):
    """All measurements of `fedtaste bench --peers`."""

    threads: Count
    data: tuple[PeerData, ...]
    lines: tuple[PeerLine, ...]
    missing: tuple[MissingPeer, ...]
    bounds: MachineBounds
