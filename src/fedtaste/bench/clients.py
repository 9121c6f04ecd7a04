"""`fedtaste bench` for clients with features: CPU time of a round of a hundred clients, by loop and by vmap."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from fedtaste.bench.result import SpeedRow
from fedtaste.bench.timing import one_round
from fedtaste.core import Model
from fedtaste.federation import Federation, of_arrays
from fedtaste.methods import build
from fedtaste.models import cnn, logistic

CLIENTS = 100


class Network(NamedTuple):
    """A model, the data it is measured on, and how it is trained."""

    model: Model
    shape: tuple[int, ...]
    classes: int
    batch: int
    passes: int

    def federation(self, seed: int) -> Federation:
        """A hundred clients with 80 to 119 examples each."""
        rng = np.random.default_rng(seed)
        inputs = [rng.normal(size=(n, *self.shape)).astype(np.float32) for n in rng.integers(80, 120, CLIENTS)]
        targets = [rng.integers(0, self.classes, len(x)).astype(np.float32) for x in inputs]
        return of_arrays(inputs, targets, batch=self.batch)


NETWORKS = {
    "logistic": Network(logistic(10, 2), (10,), 2, 0, 10),
    "cnn": Network(cnn((1, 8, 8), 10), (1, 8, 8), 10, 32, 1),
    "cnn-16": Network(cnn((3, 16, 16), 10), (3, 16, 16), 10, 32, 1),
}
METHODS: dict[str, dict[str, float]] = {"fedavg": {}, "lgmix": {}, "fedclup": {"lam": 0.1, "rate": 1.0}}


def measure_clients(job: str, seed: int, log: Callable[[str], None]) -> list[SpeedRow]:
    """Measure one round of every method on this network."""
    network, rows = NETWORKS[job], []
    federation = network.federation(seed)
    for name, settings in METHODS.items():
        log(f"{job}, {name}: one round of {CLIENTS} clients with loop and vmap")
        method = build(name, network.model, {"lr": 0.1, "passes": network.passes, **settings})
        vmap = one_round(method, network.model, federation, "vmap", repeats=3)
        loop = one_round(method, network.model, federation, "loop", repeats=2)
        rows.append(
            SpeedRow(
                data=f"{job} on {' x '.join(map(str, network.shape))}", people=CLIENTS, method=name,
                loop_cpu_seconds=round(loop, 5), vmap_cpu_seconds=round(vmap, 5),
                vmap_times_loop=round(loop / vmap, 1),
            )
        )  # fmt: skip
    return rows
