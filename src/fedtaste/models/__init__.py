"""Models as pure functions of one person's parameters, and `ranker`, which builds a ranking model by its name."""

from __future__ import annotations

from typing import Literal

from fedtaste.core import Model
from fedtaste.models.additive import additive, scorer
from fedtaste.models.classifiers import classifier, cnn, digit_network, logistic
from fedtaste.models.factorization import factorization
from fedtaste.models.neural import linear, ncf
from fedtaste.models.torch_module import wrap
from fedtaste.signature import Count, NonNegative, Values

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
    "unread_settings",
    "wrap",
]


def ranker(
    items: int,
    *,
    model: Literal["factorization", "scorer", "additive", "ncf"] = "factorization",
    k: Count = 32,
    loss: Literal["bce", "squared"] = "bce",
    spread: NonNegative = 0.1,
) -> Model:
    """The model of a ranking, by its name; `loss` and `spread` are settings of the factorisation only."""
    if model == "factorization":
        return factorization(items, k=k, loss=loss, spread=spread)
    return {"scorer": scorer, "additive": additive, "ncf": ncf}[model](items, k=k)


def unread_settings(values: Values) -> dict[str, str]:
    """Settings that the chosen model (of `ranker` or `classifier`) does not read, each with the reason."""
    chosen = values.get("model")
    if chosen in ("scorer", "additive", "ncf"):
        return dict.fromkeys(("loss", "spread"), f"model={chosen} does not read it")
    return {"width": f"model={chosen} does not read it"} if chosen in ("logistic", "digits") else {}
