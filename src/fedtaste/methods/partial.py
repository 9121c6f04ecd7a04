"""Partial personalisation: FedPer (Arivazhagan et al. 2019), FedRep (Collins et al., ICML 2021), FedBN (Li et al., ICLR
2021).

Some named parameters stay with the person: those that are personal by nature, and those that match `private`, which is
a head (`head.*`) where the model has one. `lr` and `passes` are the learning rate and the local epochs; FedRep has
another pair for its first phase, `private_lr` and `private_passes` (tau in the paper).
"""

from __future__ import annotations

from fedtaste.core import Download, Examples, Method, Model, Params, Upload
from fedtaste.errors import SettingError
from fedtaste.methods.averaging import fedavg
from fedtaste.methods.descent import change, descend
from fedtaste.methods.registry import define
from fedtaste.params import select, split
from fedtaste.signature import Count, NonNegative


@define()
def fedper(model: Model, *, lr: NonNegative = 1.0, passes: Count = 1, private: tuple[str, ...] = ("head.*",)) -> Method:
    """Private and shared parameters descend together."""
    return fedavg(model, lr=lr, passes=passes, private=(*model.private, *private))


@define(
    defaults={
        "ranking": {"private_lr": 10.0, "private_passes": 1},
        "ratings": {"private_lr": 0.1},
        "labels": {"private_lr": 0.1},
        "pictures": {"private_lr": 0.1, "private_passes": 1},
    },
)
def fedrep(
    model: Model,
    *,
    lr: NonNegative = 1.0,
    private_lr: NonNegative = 1.0,
    private_passes: Count = 5,
    passes: Count = 1,
    private: tuple[str, ...] = ("head.*",),
) -> Method:
    """Private parameters descend first, with the shared ones frozen; then the other way round."""

    def client(download: Download, own: Params, examples: Examples) -> tuple[Upload, Params]:
        params = descend(model, download.params | own, examples, private_lr, own, private_passes)
        params = descend(model, params, examples, lr, download.params, passes)
        return change(params, download.params, examples.mask.sum()), select(params, own)

    return Method(lambda params: split(params, (*model.private, *private)), client, rows=model.rows)


@define()
def fedbn(model: Model, *, lr: NonNegative = 1.0, passes: Count = 1) -> Method:
    """FedAvg of everything but batch norm, whose weights and statistics stay with the person."""
    norms = tuple(dict.fromkeys(f"{name.rpartition('.')[0]}.*" for name in model.buffers))
    if not norms:
        raise SettingError("fedbn keeps batch norm with the person, and this model has none. Use fedavg, or model=cnn.")
    return fedavg(model, lr=lr, passes=passes, private=(*model.private, *norms))
