"""FedAvg of a factorisation in FedJAX: `for_each_client` with its default backend (jit).

FedJAX's own `tree_mean` does not run with the JAX of today (`jax.tree_map` is gone), so changes are added by a compiled
function of this module.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING

import fedjax
import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from fedtaste.bench.programs.runner import Measurement, Task

Params = dict[str, jax.Array]
Batch = dict[str, NDArray[np.generic]]


def loss(params: Params, batch: Batch) -> jax.Array:
    scores = params["item"][batch["inputs"]] @ params["user"]
    each = jnp.logaddexp(0.0, scores) - batch["targets"] * scores
    return (each * batch["mask"]).sum() / batch["mask"].sum()


def batches(inputs: NDArray[np.generic], targets: NDArray[np.generic], size: int) -> list[Batch]:
    """A person's batches; the last one is padded, so that all have one shape and are compiled once."""
    found = []
    for begin in range(0, len(inputs), size):
        part = {"inputs": inputs[begin : begin + size], "targets": targets[begin : begin + size]}
        part["mask"] = np.ones(len(part["inputs"]), np.float32)
        found.append({name: np.pad(value, (0, size - len(value))) for name, value in part.items()})
    return found


def measure(task: Task) -> Measurement:
    start, lr, result = {name: jnp.asarray(task[name]) for name in ("item", "user")}, task.number("lr"), {}

    def step(params: Params, batch: Batch) -> Params:
        gradient = jax.grad(loss)(params, batch)
        return {name: value - lr * gradient[name] for name, value in params.items()}

    train = fedjax.for_each_client(
        lambda shared, own: shared, step, lambda shared, params: params["item"] - shared["item"]
    )
    add = jax.jit(lambda total, change, weight: total + weight * change)
    size = int(task.number("batch"))
    clients = [(i, batches(*person, size), ()) for i, person in enumerate(task.persons)]
    examples = np.diff(task["starts"])

    def one_round(_: None) -> None:
        total = jnp.zeros_like(start["item"])
        for i, change in train(start, clients):
            total = add(total, change, float(examples[i]))
        result["round"] = np.asarray(start["item"] + total / float(examples.sum()))

    seconds = task.fastest(lambda: None, one_round)
    return task.measurement(version("fedjax"), {"round": seconds}, tables=result)
