"""Partial personalisation: FedPer (Arivazhagan et al. 2019), FedRep (Collins et al., ICML 2021), FedBN (Li et al., ICLR
2021).

Some named parameters stay with the person: what is personal by nature, and a head (`head.*`) where the model has one.
"""

from __future__ import annotations

from ..core import Download, Examples, Method, Model, Params, Upload
from ..errors import SettingError
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


def fedbn(model: Model, *, lr: float = 1.0, passes: int = 1) -> Method:
    """FedAvg of everything but batch norm, whose weights and statistics stay with the person."""
    norms = tuple(dict.fromkeys(f"{name.rpartition('.')[0]}.*" for name in model.buffers))
    if not norms:
        raise SettingError("fedbn keeps batch norm with the person; this model has none. Use fedavg, or model=cnn.")
    return fedavg(model, lr=lr, passes=passes, private=(*model.private, *norms))
