"""FedAvg and its relatives: FedSGD, FedProx, FedMF, FedNCF; with private parameters FedPer, FedRep, FedBN.

FedSGD and FedAvg: McMahan et al., AISTATS 2017. FedProx: Li et al., MLSys 2020. FedAvg of a factorisation is what the
literature calls FedMF (Chai et al. 2020); FedAvg of NeuMF is FedNCF (Perifanis et al. 2022). FedPer: Arivazhagan et
al. 2019. FedRep: Collins et al., ICML 2021. FedBN: Li et al., ICLR 2021.

Parameters that are personal by nature (a person's vector) stay private; everything else is shared. Settings:
    lr       the clients' learning rate (eta)
    passes   local epochs (E)
    mu       FedProx's weight of the proximal term (mu)
    private  globs of parameters that stay with the person: in fedsgd, fedavg and fedprox in place of those that are
             personal by nature; in fedper and fedrep beside them, a head (`head.*`) where the model has one
    private_lr, private_passes   FedRep's first phase, in which only private parameters move (alpha, tau)
"""

from __future__ import annotations

from dataclasses import replace

import torch

from fedtaste.core import Download, Examples, Fast, Method, Model, Params, Upload, recipe_loss
from fedtaste.errors import SettingError
from fedtaste.methods.cohort_clients import CohortClient, Phase
from fedtaste.methods.descent import Proximal, change, descend, flat_examples
from fedtaste.methods.neumf_step import neumf_kernel
from fedtaste.methods.one_step import mean_losses, one_step_kernel
from fedtaste.methods.registry import define
from fedtaste.methods.search_space import DESCENT, Around, LogRange
from fedtaste.params import select, split
from fedtaste.recipe import Recipe
from fedtaste.signature import Count, NonNegative


@define(search={**DESCENT, "passes": LogRange(1, 5)})
def fedavg(model: Model, *, lr: NonNegative = 1.0, passes: Count = 1, private: tuple[str, ...] | None = None) -> Method:
    """`passes` epochs of SGD from the shared parameters; the server adds the mean change.

    >>> from fedtaste.models import factorization
    >>> fedavg(factorization(50, k=8), lr=0.5).examples
    'samples'
    """
    return fedprox(model, lr=lr, passes=passes, mu=0.0, private=private)


@define(search={**DESCENT, "passes": LogRange(1, 5), "mu": Around(100)})
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
        shared, penalty = download.params, Proximal(mu, download.params) if mu else None
        params = descend(model, shared | own, examples, lr, [*shared, *own], passes, penalty)
        return change(params, shared, examples.mask.sum()), select(params, own)

    recipe, fast = None, Fast()
    if passes == 1 and not mu and not model.buffers and not set(split_names(model, globs)) & set(model.rows):
        of_ncf = model.kind == "ncf" and globs == model.private
        kernel = neumf_kernel(lr) if of_ncf else one_step_kernel(mean_losses(model), lr, tuple)
        fast = Fast(kernel, one_batch=True)
    if model.design is not None and not mu and globs == model.private:  # a device that takes part and sends nothing
        recipe = Recipe("descent", loss=recipe_loss(model), lr=lr, passes=passes, first=1, moves=True)
    cohort = CohortClient(model, (Phase(lr, lr, mu, passes),)).fast(globs)
    fast = cohort if cohort.kernel else fast
    return Method(lambda params: split(params, globs), client, rows=model.rows, recipe=recipe, fast=fast)


def split_names(model: Model, globs: tuple[str, ...]) -> list[str]:
    """Names of the parameters that match these globs."""
    return list(split(model.init(torch.Generator()), globs)[1])


@define(search=DESCENT)
def fedsgd(model: Model, *, lr: NonNegative = 1.0, private: tuple[str, ...] | None = None) -> Method:
    """One gradient step per round, over all of a client's examples at once."""
    method = fedavg(model, lr=lr, private=private)

    def client(download: Download, own: Params, examples: Examples) -> tuple[Upload, Params]:
        return method.client(download, own, Examples(*(array[None] for array in flat_examples(examples))))

    fast = CohortClient(model, (Phase(lr, lr),), one_batch=True).fast(model.private if private is None else private)
    fast = fast if fast.kernel else replace(method.fast, one_batch=False)
    return method.replace(client=client, recipe=None, fast=fast)


@define(search={**DESCENT, "passes": LogRange(1, 5)})
def fedmf(model: Model, *, lr: NonNegative = 1.0, passes: Count = 1) -> Method:
    """FedAvg of a factorisation."""
    if model.design is None:
        raise SettingError("fedmf needs a factorisation. Leave model out, or use fedavg for this model.")
    return fedavg(model, lr=lr, passes=passes)


@define(
    defaults={"ranking": {"model": "ncf", "k": 16, "lr": 100.0, "server": "adam", "server_lr": 0.02, "tau": 1e-6}},
    search=DESCENT,
)
def fedncf(model: Model, *, lr: NonNegative = 1.0, passes: Count = 1) -> Method:
    """FedAvg of NeuMF."""
    if model.kind != "ncf":
        raise SettingError(
            "fedncf ranks with model=ncf and does nothing else. Leave model and task out, or use fedavg."
        )
    return fedavg(model, lr=lr, passes=passes)


@define(search={**DESCENT, "passes": LogRange(1, 5)})
def fedper(model: Model, *, lr: NonNegative = 1.0, passes: Count = 1, private: tuple[str, ...] = ("head.*",)) -> Method:
    """FedAvg of everything but the head; private and shared parameters descend together."""
    return fedavg(model, lr=lr, passes=passes, private=(*model.private, *private))


@define(
    defaults={
        "ranking": {"private_lr": 10.0, "private_passes": 1},
        "ratings": {"private_lr": 0.1},
        "labels": {"private_lr": 0.1},
        "pictures": {"private_lr": 0.1, "private_passes": 1},
    },
    search={**DESCENT, "private_lr": Around(10), "private_passes": LogRange(1, 10)},
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

    globs = (*model.private, *private)
    cohort = CohortClient(model, (Phase(private_lr, 0.0, passes=private_passes), Phase(0.0, lr, passes=passes)))
    return Method(lambda params: split(params, globs), client, rows=model.rows, fast=cohort.fast(globs))


@define(search={**DESCENT, "passes": LogRange(1, 5)})
def fedbn(model: Model, *, lr: NonNegative = 1.0, passes: Count = 1) -> Method:
    """FedAvg of everything but batch norm, whose weights and statistics stay with the person."""
    norms = tuple(dict.fromkeys(f"{name.rpartition('.')[0]}.*" for name in model.buffers))
    if not norms:
        raise SettingError("fedbn keeps batch norm with the person, and this model has none. Use fedavg, or model=cnn.")
    return fedavg(model, lr=lr, passes=passes, private=(*model.private, *norms))
