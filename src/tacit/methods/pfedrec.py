"""PFedRec: dual personalisation (Zhang et al., IJCAI 2023). Items are shared, the way they are scored is one's own.

Per batch one step on the private scorer, then, after a fresh forward, one on the item table; the server takes the mean
of everybody's tables. People are served by a table of their own: the shared one after one more local pass. It is made
when it is needed and never kept, so that only the scorer is stored.
"""

from __future__ import annotations

import torch

from ..core import Download, Examples, Method, Model, Params, Upload, merge
from ..errors import SettingError
from ..local import change, descend, like, split


def pfedrec(model: Model, *, lr: float = 0.1, item_scale: float = 80.0, passes: int = 1, tuned: bool = True) -> Method:
    """`lr` is the scorer's. An item is in few batches and in few people's, so the table's step is, as in the released
    code, lr x items x `item_scale`. `tuned=False` serves people by the shared table."""
    if model.rows != ("item",) or model.design is not None:
        raise SettingError(
            "pfedrec ranks with model=scorer and does nothing else. Leave model and task out, or use fedavg."
        )
    item_lr = lr * model.catalogue * item_scale

    def learn(shared: Params, own: Params, held: Examples) -> Params:
        params = shared | own
        for step in list(range(held.mask.shape[0])) * passes:
            batch = Examples(*(x[step : step + 1] for x in held))
            params = descend(model, params, batch, lr, own)
            params = descend(model, params, batch, item_lr, shared)
        return params

    def client(down: Download, own: Params, held: Examples) -> tuple[Upload, Params]:
        params = learn(down.params, own, held)
        return change(params, down.params, torch.ones(())), like(params, own)

    def init(params: Params) -> tuple[Params, Params]:
        return split(params, model.private)

    return Method(init, client, personalize=learn if tuned else merge, rows=model.rows)
