"""Partial personalisation: FedPer (Arivazhagan et al. 2019) and FedRep (Collins et al., ICML 2021).

Some named parameters stay with the person: what is personal by nature, and a head (`head.*`) where the model has one.
"""

from __future__ import annotations

from ..core import Download, Examples, Method, Model, Params, Upload
from ..local import change, descend, like, split
from .averaging import fedavg


def fedper(model: Model, *, lr: float = 1.0, passes: int = 1, private: tuple[str, ...] = ("head.*",)) -> Method:
    """Private and shared parameters descend together."""
    return fedavg(model, lr=lr, passes=passes, private=(*model.private, *private))


def fedrep(
    model: Model, *, lr: float = 1.0, private_lr: float = 1.0, private_passes: int = 5, passes: int = 1,
    private: tuple[str, ...] = ("head.*",),
) -> Method:  # fmt: skip
    """Private parameters first, with the shared ones frozen; then the other way round."""

    def client(down: Download, own: Params, held: Examples) -> tuple[Upload, Params]:
        params = descend(model, down.params | own, held, private_lr, own, private_passes)
        params = descend(model, params, held, lr, down.params, passes)
        return change(params, down.params, held.mask.sum()), like(params, own)

    return Method(lambda params: split(params, (*model.private, *private)), client, rows=model.rows)
