"""Progress (curve, counts and times in a checkpoint), and the protocols of progress listeners and remote clients."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from fedtaste.core import Stage
from fedtaste.engine.run import Clients, Round
from fedtaste.result_part import JsonObject


class ProgressListener(Protocol):
    """Is called at every phase and round, such as the progress bars of the command line."""

    def phase(self, name: str, rounds: int, done: int) -> None: ...
    def round(self, number: int, metrics: dict[str, float] | None) -> None: ...


class Silent:
    """A ProgressListener that does nothing."""

    def phase(self, name: str, rounds: int, done: int) -> None: ...
    def round(self, number: int, metrics: dict[str, float] | None) -> None: ...


class RemoteClients(Protocol):
    """Clients that are not in this process (flower/server.py)."""

    def clients(self, phase: str) -> Clients: ...  # which run a round of this phase
    def wire(self, stage: Stage) -> Stage: ...  # the server's part of a wire
    def note(self) -> JsonObject: ...  # for the checkpoint
    def recall(self, saved: JsonObject) -> None: ...  # restores what `note` returned


@dataclass
class Progress:
    """The part of a checkpoint beside the state of the model; all of it is plain JSON."""

    phase: str = "search"
    curve: list[JsonObject] = field(default_factory=list)
    best_round: int = 0
    stopped: str = ""
    traffic: dict[str, int] = field(default_factory=lambda: {"up_bytes": 0, "down_bytes": 0, "uploads": 0})
    rejected: dict[str, int] = field(default_factory=dict)
    folds: list[JsonObject] = field(default_factory=list)
    train_seconds: float = 0.0
    train_cpu: float = 0.0  # CPU seconds, which a busy machine does not change
    laps: list[float] = field(default_factory=list)  # seconds of every round trained, in all phases
    privacy: JsonObject | None = None  # the privacy statement, where there is noise
    fleet: JsonObject = field(default_factory=dict)  # of remote clients

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Add the time that is spent inside to the training time."""
        wall, cpu = time.perf_counter(), time.process_time()
        try:
            yield
        finally:
            self.train_seconds += time.perf_counter() - wall
            self.train_cpu += time.process_time() - cpu

    def add_round(self, done: Round, metrics: dict[str, float] | None, on_curve: bool, expected: int | None) -> None:
        """Add a round to the counts, and to the curve where this phase is drawn (`on_curve`).

        Traffic is counted in the final phase: the search before it and the folds after it belong to the experiment and
        not to training the model. In a private run (`expected` people a round) no figure may reveal how many people
        were requested or answered: traffic is that of the expected number.
        """
        self.rejected = dict(Counter(self.rejected) + done.rejected)
        traffic, answered = {"up_bytes": done.up_bytes, "down_bytes": done.down_bytes}, done.answered
        if expected is not None:
            traffic, answered = self._expected_traffic(done, expected), expected if done.answered else 0
        if self.phase == "final":
            for name, value in {**traffic, "uploads": answered}.items():
                self.traffic[name] += value
        if on_curve:
            last = self.curve[-1] if self.curve else {"up_bytes": 0, "down_bytes": 0}
            point = {
                "round": done.number,
                "change": done.change if math.isfinite(done.change) else None,
                "loss": done.loss,
                "answered": done.answered if expected is None else None,
                "zeros": done.zeros,
                "valid": metrics,
            }
            self.curve.append(point | {name: last[name] + value for name, value in traffic.items()})

    def _expected_traffic(self, done: Round, expected: int) -> dict[str, int]:
        """Bytes of a round in which the expected number of people was requested and answered. Where nobody was, the
        bytes of the round before stand in, so that no figure reveals how many people were drawn."""
        if done.senders and done.requested:
            each = {"up_bytes": done.up_bytes // done.senders, "down_bytes": done.down_bytes // done.requested}
            return {name: value * expected for name, value in each.items()}
        before = [{"up_bytes": 0, "down_bytes": 0}, {"up_bytes": 0, "down_bytes": 0}, *self.curve][-2:]
        return {name: before[1][name] - before[0][name] for name in ("up_bytes", "down_bytes")}
