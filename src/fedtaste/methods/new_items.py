"""Vectors for items that nobody has taken yet, from public features of the items, by a ridge map learnt from sums.

With vectors v_j of known items, features f_j (with a leading 1) and weights w_j:
    W = argmin sum_j w_j |v_j - f_j W|^2 + ridge |W|^2,   b = argmin sum_j (log|v_j| - f_j b)^2 + LENGTH_RIDGE |b|^2
    v_new = f_new W * exp(f_new b)     (the intercepts are not penalised)
Both need only sums over items: F'DF, F'DV, F'F and F' log|V|. The first factor is a mean of vectors, which a few
very popular items dominate. The second is a mean of logarithms, which they do not: lengths of vectors grow with how
often items are taken, and they decide the order of new items. A larger ridge gives every new item the mean direction:
then their order depends on the features' popularity alone. Features are public, so this is post-processing in a
private run; weights are by default the lengths of the vectors, so that no counts are needed.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from fedtaste.core import Params

Floats = NDArray[np.float64]
LENGTH_RIDGE = 100.0  # of the map of log lengths; chosen by hand on other draws of items (benchmarks/new_items.py)


def new_item_vectors(
    item: NDArray[np.floating],
    known: NDArray[np.bool_],
    features: NDArray[np.floating],
    weights: NDArray[np.floating] | None = None,
    ridge: float = 300.0,
) -> Floats:
    """`item` [m, k] with the rows that are not `known` [m] replaced by vectors from their `features` [m, c].

    >>> item, features = np.array([[2.0], [2.0], [4.0], [0.0]]), np.array([[0.0], [0.0], [1.0], [1.0]])
    >>> filled = new_item_vectors(item, np.array([True, True, True, False]), features, ridge=1e-6)
    >>> filled[:3].tolist(), bool(filled[3] > filled[0])
    ([[2.0], [2.0], [4.0]], True)
    """
    vectors = np.asarray(item, np.float64).copy()
    length: Floats = np.sqrt((vectors**2).sum(1))
    fitted = known & (length > 0)
    if not fitted.any():
        return vectors
    weight = length[fitted] if weights is None else np.asarray(weights, np.float64)[fitted]
    weight = weight / weight.mean()
    old, new = features[fitted], features[~known]
    mean_log = float(np.log(length[fitted]).mean())
    direction = ridge_map(old, vectors[fitted], weight, ridge)
    log_length = ridge_map(old, np.log(length[fitted])[:, None] - mean_log, np.ones(len(old)), LENGTH_RIDGE)
    vectors[~known] = predict(new, direction) * np.exp(predict(new, log_length))
    return vectors


def ridge_map(features: NDArray[np.floating], targets: Floats, weights: Floats, ridge: float) -> Floats:
    """[1 + c, k]: the intercept, which is not penalised, and the coefficients of the features."""
    design = _with_ones(features)
    weighted = design * weights[:, None]
    penalty = np.full(design.shape[1], ridge)
    penalty[0] = 0.0
    solution = np.linalg.lstsq(weighted.T @ design + np.diag(penalty), weighted.T @ targets, rcond=None)[0]
    return solution.astype(np.float64)


def predict(features: NDArray[np.floating], coefficients: Floats) -> Floats:
    """What a map gives for these features."""
    predicted: Floats = _with_ones(features) @ coefficients
    return predicted


def fill_new_items(shared: Params, known: NDArray[np.bool_], features: NDArray[np.floating], ridge: float) -> Params:
    """Shared parameters whose table `item` has vectors for items that are not known. Other tables stay as they are: of
    FedTrail, for example, new items have no counts of what follows what."""
    table = shared["item"]
    filled = new_item_vectors(table.numpy(), known, features, ridge=ridge)
    return shared | {"item": torch.from_numpy(filled).to(table.dtype)}


def has_item_vectors(shared: Params) -> bool:
    """Whether there is a shared table of item vectors in plain numbers (not packed as bytes)."""
    table = shared.get("item")
    return table is not None and table.ndim == 2 and table.is_floating_point()


def _with_ones(features: NDArray[np.floating]) -> Floats:
    return np.concatenate([np.ones((len(features), 1)), np.asarray(features, np.float64)], axis=1)
