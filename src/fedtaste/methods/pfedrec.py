"""PFedRec: dual personalisation (Zhang et al., IJCAI 2023). The item table is shared, the scoring function is private.

Each batch takes one step on the private scorer and then, after a fresh forward pass, one on the item table; the server
takes the mean of everybody's tables. A person is served by a table of their own: the shared one after one more local
pass. It is computed when it is needed and never kept, so that only the scorer is stored.
"""

from __future__ import annotations

import torch

from fedtaste.core import Download, Examples, Method, Model, Params, Upload, merge
from fedtaste.errors import SettingError
from fedtaste.methods.cohort_clients import CohortClient, Phase
from fedtaste.methods.descent import change, descend_in_turn
from fedtaste.methods.registry import define
from fedtaste.methods.search_space import DESCENT, Around
from fedtaste.params import select, split
from fedtaste.signature import Count, NonNegative


@define(
    defaults={
        "ranking": {"model": "scorer", "rounds": 100, "batch": 256, "lr": 0.1, "server": "sgd", "server_lr": 1.0},
    },
    search={**DESCENT, "item_scale": Around(10)},
)
def pfedrec(
    model: Model, *, lr: NonNegative = 0.1, item_scale: NonNegative = 80.0, passes: Count = 1, tuned: bool = True
) -> Method:
    """`lr` is the scorer's learning rate (eta) and `passes` the local epochs. An item is in few batches of few people,
    so the table's rate is lr x items x `item_scale`, as in the released code. `tuned=False` serves everybody by the
    shared table."""
    if model.kind != "scorer":
        raise SettingError(
            "pfedrec ranks with model=scorer and does nothing else. Leave model and task out, or use fedavg."
        )
    item_lr = lr * model.catalogue * item_scale

    def learn(shared: Params, own: Params, examples: Examples) -> Params:
        return descend_in_turn(model, shared | own, examples, (lr, own), (item_lr, shared), passes)

    def client(download: Download, own: Params, examples: Examples) -> tuple[Upload, Params]:
        params = learn(download.params, own, examples)
        return change(params, download.params, torch.ones(())), select(params, own)

    cohort = CohortClient(model, (Phase(lr, item_lr, passes=passes, in_turn=True),), equal_weights=True)
    return Method(
        lambda params: split(params, model.private), client, personalize=learn if tuned else merge, rows=model.rows,
        fast=cohort.fast(model.private),
    )  # fmt: skip
