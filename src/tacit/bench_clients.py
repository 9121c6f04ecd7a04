"""`tacit bench` for clients with features: what one round of a hundred of them costs, one by one and at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .core import Method, Model
from .federation import Federation, of_arrays
from .methods import build
from .models import cnn, logistic

CLIENTS = 100
Timer = Callable[[Method, Model, Federation, str, int], float]
NETWORKS: dict[str, tuple[Model, tuple[int, ...], int, int, int]] = {  # model, shape, classes, batch, passes
    "logistic": (logistic(10, 2), (10,), 2, 0, 10),
    "cnn": (cnn((1, 8, 8), 10), (1, 8, 8), 10, 32, 1),
    "cnn-16": (cnn((3, 16, 16), 10), (3, 16, 16), 10, 32, 1),
}
METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "lgmix": {},
    "fedclup": {"lam": 0.1, "rate": 1.0},
}


def world(shape: tuple[int, ...], classes: int, batch: int, seed: int) -> Federation:
    """A hundred clients with 80 to 119 examples each."""
    rng = np.random.default_rng(seed)
    inputs = [rng.normal(size=(n, *shape)).astype(np.float32) for n in rng.integers(80, 120, CLIENTS)]
    return of_arrays(inputs, [rng.integers(0, classes, len(x)).astype(np.float32) for x in inputs], batch=batch)


def speed_of_clients(job: str, seed: int, timer: Timer, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """A row for every method: CPU seconds of a round by the loop and by vmap."""
    model, shape, classes, batch, passes = NETWORKS[job]
    federation, rows = world(shape, classes, batch, seed), []
    for name, settings in METHODS.items():
        say(f"{job}, {name}: one round of {CLIENTS} clients with loop and vmap")
        method = build(name, model, {"lr": 0.1, "passes": passes, **settings})
        vmap, loop = (timer(method, model, federation, backend, n) for backend, n in (("vmap", 3), ("loop", 2)))
        rows.append({
            "data": f"{job} on {' x '.join(map(str, shape))}", "people": CLIENTS, "method": name,
            "loop_cpu_seconds": round(loop, 5), "vmap_cpu_seconds": round(vmap, 5),
            "vmap_times_loop": round(loop / vmap, 1),
        })  # fmt: skip
    return rows
