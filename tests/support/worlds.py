"""Small random data sets, models and federations that tests share."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from fedtaste.core import Method, Model
from fedtaste.data.interactions import Histories
from fedtaste.federation import Federation, of_arrays, of_histories, pooled
from fedtaste.methods import build
from fedtaste.models import cnn, factorization, linear, logistic, ranker

PEOPLE, ITEMS, K = 24, 40, 5
torch.set_num_threads(1)  # tests run in two processes
FEATURES = ("numbers", "labels", "pictures")  # tasks of clients with features; the other tasks have people and items
MODELS = {"pfedrec": "scorer", "fedrap": "additive", "fedncf": "ncf"}  # other methods use a factorisation


def histories(task: str = "ranking", people: int = PEOPLE, items: int = ITEMS, seed: int = 0) -> Histories:
    """Random histories of 3 to 20 items; stars for ratings."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(3, 20, people)
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    items_of_all = np.concatenate([rng.permutation(items)[:n] for n in lengths]).astype(np.int32)
    values = np.ones(len(items_of_all)) if task == "ranking" else rng.integers(1, 6, len(items_of_all))
    return Histories(starts, items_of_all, values.astype(np.float32))


def arrays(task: str, people: int = PEOPLE, seed: int = 0) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]]:
    """Clients with 3 to 19 examples: vectors and numbers, vectors and labels, or pictures and labels."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(12, 20, people) if task == "pictures" else rng.integers(3, 20, people)
    shape = (1, 4, 4) if task == "pictures" else (6,)
    inputs = tuple(rng.normal(size=(n, *shape)).astype(np.float32) for n in lengths)
    if task == "numbers":
        return inputs, tuple((x @ rng.normal(size=6) + rng.normal(size=len(x))).astype(np.float32) for x in inputs)
    return inputs, tuple(rng.integers(0, 3, n).astype(np.float32) for n in lengths)


def model_of(task: str, settings: dict, items: int = ITEMS, method: str = "") -> Model:
    """The smallest model of this task that the method can train."""
    if task in FEATURES:
        return {"numbers": linear(6), "labels": logistic(6, 3), "pictures": cnn((1, 4, 4), 3, width=2)}[task]
    if method in MODELS:
        return ranker(items, model=MODELS[method], k=K)
    loss = "squared" if task == "ratings" or settings.get("solver") == "exact" else "bce"
    return factorization(
        items, k=K, loss=loss, biases=task == "ratings", mean=3.0 if task == "ratings" else 0.0, spread=1.0
    )


def world(
    name: str, settings: dict, task: str, *, data: Histories | None = None, **options
) -> tuple[Method, Model, Federation]:
    """A method with these settings, a model that it can train, and a federation of this task."""
    model = model_of(task, settings, method=name)
    method = build(name, model, settings)
    if task in FEATURES:
        federation = of_arrays(*arrays(task), batch=0 if task == "pictures" else 8)  # batch norm needs many examples
        members = options.get("members")
        if members is not None:
            federation = replace(federation, members=np.asarray(members))
        return method, model, pooled(federation) if method.pooled else federation
    data = histories(task) if data is None else data
    negatives = 0 if task == "ratings" else 2
    federation = of_histories(data, ITEMS, negatives=negatives, batch=8, **options)
    return method, model, pooled(federation) if method.pooled else federation


def checkerboard(n: int) -> Histories:
    """Histories with a known answer: person u likes all items of u's parity except u, so item u must be recommended."""
    rows = [[item for item in range(n) if item != person and (item - person) % 2 == 0] for person in range(n)]
    starts = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    items = np.concatenate(rows).astype(np.int32)
    return Histories(starts, items, np.ones(len(items), np.float32))
