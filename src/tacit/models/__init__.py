"""Models: pure functions of one person's parameters."""

from __future__ import annotations

from typing import Literal

from ..core import Model
from .additive import additive, scorer
from .classifiers import classifier, cnn, digit_network, logistic
from .factorization import factorization
from .neural import linear, ncf
from .wrapped import wrap

__all__ = [
    "additive",
    "classifier",
    "cnn",
    "digit_network",
    "factorization",
    "linear",
    "logistic",
    "ncf",
    "ranker",
    "scorer",
    "wrap",
]


def ranker(
    items: int,
    *,
    model: Literal["factorization", "scorer", "additive", "ncf"] = "factorization",
    k: int = 32,
    loss: Literal["bce", "squared"] = "bce",
    spread: float = 0.1,
) -> Model:
    """The model of a ranking, by its name; `loss` and `spread` are the factorisation's."""
    if model == "factorization":
        return factorization(items, k=k, loss=loss, spread=spread)
    return {"scorer": scorer, "additive": additive, "ncf": ncf}[model](items, k=k)
