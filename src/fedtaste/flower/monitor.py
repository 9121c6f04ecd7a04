"""/health and /metrics of a federation: of its server, from the run folder, or of a node, from its store.

Both are read from files that the server app and the node write anyway, so watching starts and stops without them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from pydantic import BaseModel, ValidationError

from fedtaste import __version__
from fedtaste.errors import RunError
from fedtaste.event_log import EventLog
from fedtaste.flower.counters import NAME, Counters, read_counters
from fedtaste.flower.status import Status
from fedtaste.serving.api import Refused
from fedtaste.serving.http import Reply, Request

STORE_FILES = (NAME, "secret", "secure_rounds.json")
STATES = ("waiting", "running", "done", "error", "bug")


class FederationHealth(BaseModel):
    """The answer of /health."""

    status: str  # ok, or error if the run ended with one
    fedtaste: str = __version__
    kind: str  # server or node
    state: str = ""  # of the run: waiting, running, done, error or bug
    phase: str = ""
    round: int = 0
    rounds: int = 0
    updated: str = ""  # when the state was written, in UTC


class Monitor:
    """The Site of a folder that a federation's server or node writes."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.folder, self.kind = folder, kind

    def reply(self, request: Request) -> Reply:
        raise Refused(404, "There are /health and /metrics here, and nothing else.")

    def refresh(self, log: EventLog) -> None:
        """Everything is read when it is asked for."""

    def address(self, target: str) -> str:
        return "other"

    def status(self) -> Status | None:
        """The state of the run; None before it has begun."""
        try:
            return Status.model_validate_json((self.folder / "status.json").read_bytes())
        except (OSError, ValidationError):
            return None

    def health(self) -> bytes:
        if self.kind == "node":
            return FederationHealth(status="ok", kind="node").model_dump_json().encode()
        known = self.status()
        status = known or Status(time=time.time())
        health = FederationHealth(
            status="error" if status.state in ("error", "bug") else "ok",
            kind=self.kind,
            state=status.state if known else "waiting",
            phase=status.phase,
            round=status.done,
            rounds=status.rounds,
            updated=f"{datetime.fromtimestamp(status.time, UTC):%Y-%m-%dT%H:%M:%SZ}",
        )
        return health.model_dump_json().encode()

    def metrics(self) -> Iterable[Metric]:
        yield from counter_metrics(read_counters(self.folder), self.kind)
        if self.kind == "server":
            yield from state_metrics(self.status())


def counter_metrics(counters: Counters, kind: str) -> Iterable[Metric]:
    """The counts as metrics whose names begin with fedtaste_server_ or fedtaste_node_."""
    name = f"fedtaste_{kind}"
    yield CounterMetricFamily(f"{name}_rounds", "Rounds.", counters.rounds)
    yield CounterMetricFamily(f"{name}_people", "People whose uploads counted, over rounds.", counters.people)
    yield CounterMetricFamily(f"{name}_up_bytes", "Bytes from nodes to the server.", counters.up_bytes)
    yield CounterMetricFamily(f"{name}_down_bytes", "Bytes from the server to nodes.", counters.down_bytes)
    yield CounterMetricFamily(f"{name}_work_seconds", "Seconds of rounds, or of a node's answers.", counters.seconds)
    refused = CounterMetricFamily(f"{name}_refused", "Refusals by reason.", labels=["reason"])
    for reason, number in sorted(counters.refused.items()):
        refused.add_metric([reason], number)
    yield refused
    if kind == "node":
        orders = CounterMetricFamily(f"{name}_orders", "Orders of the server by kind.", labels=["kind"])
        for order, number in sorted(counters.orders.items()):
            orders.add_metric([order], number)
        yield orders


def state_metrics(status: Status | None) -> Iterable[Metric]:
    """How far the run is. The last validation metrics are in status.json, and not here."""
    states = GaugeMetricFamily("fedtaste_server_state", "1 for the state of the run.", labels=["state"])
    now = status.state if status else "waiting"
    for state in STATES:
        states.add_metric([state], float(state == now))
    yield states
    if status:
        done = GaugeMetricFamily("fedtaste_server_round", "The last round of the phase.", labels=["phase"])
        done.add_metric([status.phase], status.done)
        yield done
        planned = GaugeMetricFamily("fedtaste_server_planned_rounds", "Rounds of the phase.", labels=["phase"])
        planned.add_metric([status.phase], status.rounds)
        yield planned
        yield GaugeMetricFamily("fedtaste_server_updated_timestamp_seconds", "When the state was written.", status.time)


def open_monitor(path: Path) -> Monitor:
    """The monitor of a run folder of a federation, or of a node's store."""
    if (path / "federation").is_dir():
        return Monitor(path / "federation", "server")
    known = any((path / name).exists() for name in STORE_FILES) or any(path.glob("catalogue-*.json"))
    if path.is_dir() and (known or not any(path.iterdir())):
        return Monitor(path, "node")
    raise RunError(
        f"{path} is neither the run folder of a federation nor a node's store: it has no folder federation, and none "
        f"of {', '.join(STORE_FILES)}. Give the folder that run.sh or node.toml names."
    )
