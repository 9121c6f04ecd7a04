"""How far an experiment is: what a checkpoint remembers beside the state, who is told, and devices elsewhere."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Protocol

from .core import Stage
from .engine.run import Clients


class Watch(Protocol):
    """Who is told how it goes: the command line's progress, or nobody."""

    def phase(self, name: str, rounds: int, done: int) -> None: ...
    def round(self, number: int, metrics: dict[str, float] | None) -> None: ...


class Elsewhere(Protocol):
    """Devices that are not here (flower/server.py): how a round reaches them, and what a checkpoint must remember."""

    def clients(self, phase: str) -> Clients: ...
    def wire(self, stage: Stage) -> Stage: ...  # what of it is left for the server
    def note(self) -> dict[str, Any]: ...
    def recall(self, noted: dict[str, Any]) -> None: ...


class Silent:
    def phase(self, name: str, rounds: int, done: int) -> None: ...
    def round(self, number: int, metrics: dict[str, float] | None) -> None: ...


@dataclass
class Progress:
    """What a resumed run must remember beside the state itself; all of it is plain JSON."""

    phase: str = "search"
    curve: list[dict[str, Any]] = field(default_factory=list)
    best_round: int = 0
    stopped: str = ""
    traffic: dict[str, int] = field(default_factory=lambda: {"up_bytes": 0, "down_bytes": 0, "uploads": 0})
    rejected: dict[str, int] = field(default_factory=dict)
    folds: list[dict[str, Any]] = field(default_factory=list)
    train_seconds: float = 0.0
    train_cpu: float = 0.0  # CPU seconds: what survives a busy machine
    laps: list[float] = field(default_factory=list)  # seconds of every round trained, in all phases
    privacy: dict[str, Any] | None = None  # what was spent so far, where there is noise
    fleet: dict[str, Any] = field(default_factory=dict)  # of devices elsewhere


class Stopwatch:
    """Adds what training takes, by the clock and in CPU seconds, to the progress."""

    def __init__(self, progress: Progress) -> None:
        self.progress, self.wall, self.cpu = progress, time.perf_counter(), time.process_time()

    def stop(self) -> None:
        self.progress.train_seconds += time.perf_counter() - self.wall
        self.progress.train_cpu += time.process_time() - self.cpu
