"""FedSGD and FedAvg (McMahan et al., AISTATS 2017), FedProx (Li et al., MLSys 2020), FedMF and FedNCF.

Parameters that are personal by nature (a person's vector) stay private; everything else is shared. FedAvg of a
factorisation is what the literature calls FedMF (Chai et al. 2020); FedAvg of NeuMF is FedNCF (Perifanis et al. 2022).

Settings: `lr` is the clients' learning rate, `passes` the number of local epochs (E in the papers), `mu` FedProx's
proximal weight, `private` the globs of parameters that stay with the person (the model's own when left out).
"""

from __future__ import annotations

from fedtaste.core import Download, Examples, Method, Model, Params, Upload, recipe_loss
from fedtaste.errors import SettingError
from fedtaste.methods.descent import change, descend, one_batch
from fedtaste.methods.registry import define
from fedtaste.params import select, split, square_distance
from fedtaste.recipe import Recipe
from fedtaste.signature import Count, NonNegative


@define()
def fedavg(model: Model, *, lr: NonNegative = 1.0, passes: Count = 1, private: tuple[str, ...] | None = None) -> Method:
    """`passes` epochs of SGD from the shared parameters; the server adds the mean change.

    >>> from fedtaste.models import factorization
    >>> fedavg(factorization(50, k=8), lr=0.5).examples
    'samples'
    """
    return fedprox(model, lr=lr, passes=passes, mu=0.0, private=private)


@define()
def fedprox(
    model: Model,
    *,
    lr: NonNegative = 1.0,
    passes: Count = 1,
    mu: NonNegative = 0.01,
    private: tuple[str, ...] | None = None,
) -> Method:
    """FedAvg with the proximal term mu/2 |w - g|^2, which holds a client w near the shared parameters g."""
    globs = model.private if private is None else private

    def client(download: Download, own: Params, examples: Examples) -> tuple[Upload, Params]:
        pull = (lambda params: mu / 2 * square_distance(params, download.params)) if mu else None
        params = descend(model, download.params | own, examples, lr, [*download.params, *own], passes, pull)
        return change(params, download.params, examples.mask.sum()), select(params, own)

    recipe = None
    if model.design is not None and not mu and globs == model.private:  # a device that takes part and sends nothing
        recipe = Recipe("descent", loss=recipe_loss(model), lr=lr, passes=passes, first=1, moves=True)
    return Method(lambda params: split(params, globs), client, rows=model.rows, recipe=recipe)


@define()
def fedsgd(model: Model, *, lr: NonNegative = 1.0, private: tuple[str, ...] | None = None) -> Method:
    """One full-batch gradient step per round."""
    method = fedavg(model, lr=lr, private=private)

    def client(download: Download, own: Params, examples: Examples) -> tuple[Upload, Params]:
        return method.client(download, own, one_batch(examples))

    return method.replace(client=client, recipe=None)


@define()
def fedmf(model: Model, *, lr: NonNegative = 1.0, passes: Count = 1) -> Method:
    """FedAvg of a factorisation."""
    if model.design is None:
        raise SettingError("fedmf needs a factorisation. Leave model out, or use fedavg for this model.")
    return fedavg(model, lr=lr, passes=passes)


@define(
    defaults={"ranking": {"model": "ncf", "k": 16, "lr": 100.0, "server": "adam", "server_lr": 0.02, "tau": 1e-6}},
)
def fedncf(model: Model, *, lr: NonNegative = 1.0, passes: Count = 1) -> Method:
    """FedAvg of NeuMF."""
    if model.kind != "ncf":
        raise SettingError(
            "fedncf ranks with model=ncf and does nothing else. Leave model and task out, or use fedavg."
        )
    return fedavg(model, lr=lr, passes=passes)
