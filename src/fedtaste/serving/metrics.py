"""Counts of `fedtaste serve` for Prometheus: replies by address and status, bytes, seconds. Nothing about a request.

The numbers of several processes are in one block of shared memory: every process writes a row of its own, and /metrics
of any of them shows the sums.
"""

from __future__ import annotations

import mmap
from bisect import bisect_left
from collections.abc import Iterable

import numpy as np
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from fedtaste.serving.openapi import ROUTES

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
ADDRESSES = ("file", "/health", "/metrics", *ROUTES, "other")
STATUSES = (200, 304, 400, 403, 404, 405, 408, 411, 413, 415, 421, 422, 431, 500, 503)
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)  # seconds
REPLIES = len(ADDRESSES) * len(STATUSES)
WIDTH = len(BUCKETS) + 3  # of an address: buckets, above the last one, sum of seconds, bytes
OWN = REPLIES + len(ADDRESSES) * WIDTH  # then: connections, requests in work, refused connections
_ADDRESS = {name: at for at, name in enumerate(ADDRESSES)}
_STATUS = {status: at for at, status in enumerate(STATUSES)}


class Counts:
    """What the processes of one server have counted."""

    def __init__(self, processes: int = 1) -> None:
        self.shared = mmap.mmap(-1, 8 * processes * (OWN + 3))
        self.table = np.frombuffer(self.shared, np.float64).reshape(processes, OWN + 3)
        self.row = self.table[0]

    def use_row(self, process: int) -> None:
        """Count in the row of this process."""
        self.row = self.table[process]

    def count_reply(self, address: str, status: int, size: int, seconds: float) -> None:
        at = _ADDRESS.get(address, len(ADDRESSES) - 1)
        self.row[at * len(STATUSES) + _STATUS.get(status, _STATUS[500])] += 1
        first = REPLIES + at * WIDTH
        self.row[first + bisect_left(BUCKETS, seconds)] += 1
        self.row[first + WIDTH - 2] += seconds
        self.row[first + WIDTH - 1] += size

    def set_load(self, connections: int, in_work: int) -> None:
        self.row[OWN], self.row[OWN + 1] = connections, in_work

    def count_refused_connection(self) -> None:
        self.row[OWN + 2] += 1

    def metrics(self) -> Iterable[Metric]:
        """The sums over all processes."""
        total = self.table.sum(0)
        replies = CounterMetricFamily(
            "fedtaste_replies", "Replies by address and status.", labels=["address", "status"]
        )
        seconds = HistogramMetricFamily("fedtaste_reply_seconds", "Seconds from request to reply.", labels=["address"])
        sent = CounterMetricFamily("fedtaste_reply_bytes", "Bytes of bodies that were sent.", labels=["address"])
        for at, address in enumerate(ADDRESSES):
            for status, number in zip(STATUSES, total[at * len(STATUSES) :]):
                if number:
                    replies.add_metric([address, str(status)], float(number))
            own = total[REPLIES + at * WIDTH :][:WIDTH]
            if own[:-2].sum():
                below = np.cumsum(own[:-2]).tolist()
                seconds.add_metric([address], list(zip([*map(str, BUCKETS), "+Inf"], below)), float(own[-2]))
                sent.add_metric([address], float(own[-1]))
        yield from (replies, seconds, sent)
        yield GaugeMetricFamily("fedtaste_connections", "Connections that are open.", float(total[OWN]))
        yield GaugeMetricFamily("fedtaste_requests_in_work", "Requests in work.", float(total[OWN + 1]))
        refused = "Connections that were refused because there were too many."
        yield CounterMetricFamily("fedtaste_refused_connections", refused, float(total[OWN + 2]))


class _Once(Collector):
    def __init__(self, found: Iterable[Metric]) -> None:
        self.found = list(found)

    def collect(self) -> Iterable[Metric]:
        return self.found


def exposition(metrics: Iterable[Metric]) -> bytes:
    """Metrics in the text format of Prometheus."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Once(metrics))
    return generate_latest(registry)


def info(name: str, help: str, labels: dict[str, str], value: float = 1.0) -> Metric:
    """A gauge whose labels are the information."""
    gauge = GaugeMetricFamily(name, help, labels=list(labels))
    gauge.add_metric(list(labels.values()), value)
    return gauge
