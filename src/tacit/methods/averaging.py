"""FedSGD and FedAvg (McMahan et al., AISTATS 2017), FedProx (Li et al., MLSys 2020).

Parameters that are personal by nature (a person's vector) stay private; everything else is shared. With a
factorisation, FedAvg is what the literature calls FedMF (Chai et al. 2020), with NeuMF FedNCF (Perifanis et al. 2022).
"""

from __future__ import annotations

from ..core import Download, Examples, Method, Model, Params, Upload
from ..errors import SettingError
from ..local import change, descend, like, split, square_distance, whole
from ..recipes import Recipe, cost


def fedavg(model: Model, *, lr: float = 1.0, passes: int = 1, private: tuple[str, ...] | None = None) -> Method:
    """`passes` epochs of SGD from the shared parameters; the mean of what changed."""
    return fedprox(model, lr=lr, passes=passes, mu=0.0, private=private)


def fedprox(
    model: Model, *, lr: float = 1.0, passes: int = 1, mu: float = 0.01, private: tuple[str, ...] | None = None
) -> Method:
    """FedAvg with a spring mu/2 |w - g|^2 to the shared parameters."""
    globs = model.private if private is None else private

    def client(down: Download, own: Params, held: Examples) -> tuple[Upload, Params]:
        pull = (lambda params: mu / 2 * square_distance(params, down.params)) if mu else None
        params = descend(model, down.params | own, held, lr, [*down.params, *own], passes, pull)
        return change(params, down.params, held.mask.sum()), like(params, own)

    recipe = None
    if model.design is not None and not mu and globs == model.private:  # a device that takes part and sends nothing
        recipe = Recipe("descent", loss=cost(model), lr=lr, passes=passes, first=1, moves=True)
    return Method(lambda params: split(params, globs), client, rows=model.rows, recipe=recipe)


def fedsgd(model: Model, *, lr: float = 1.0, private: tuple[str, ...] | None = None) -> Method:
    """One full-batch gradient step a round."""
    method = fedavg(model, lr=lr, private=private)
    client = lambda down, own, held: method.client(down, own, whole(held))
    return method.but(client=client, recipe=None)


def fedmf(model: Model, *, lr: float = 1.0, passes: int = 1) -> Method:
    """FedAvg of a factorisation."""
    if model.design is None:
        raise SettingError("fedmf needs a factorisation. Leave model out, or use fedavg for this model.")
    return fedavg(model, lr=lr, passes=passes)


def fedncf(model: Model, *, lr: float = 1.0, passes: int = 1) -> Method:
    """FedAvg of NeuMF."""
    if "item_mlp" not in model.rows:
        raise SettingError(
            "fedncf ranks with model=ncf and does nothing else. Leave model and task out, or use fedavg."
        )
    return fedavg(model, lr=lr, passes=passes)
