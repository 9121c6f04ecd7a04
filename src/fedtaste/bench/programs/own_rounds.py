"""fedtaste's own rounds for `fedtaste bench --peers`: the method of each comparison, and others on the same data."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fedtaste import __version__
from fedtaste.bench.timing import one_round, single_thread
from fedtaste.core import Method, Model
from fedtaste.data.interactions import Histories
from fedtaste.engine.run import begin, run
from fedtaste.federation import Federation, of_histories
from fedtaste.methods import build
from fedtaste.models import additive, factorization, scorer

if TYPE_CHECKING:
    from fedtaste.bench.programs.runner import Measurement, Task

MODELS = {"fedrap": additive, "pfedrec": scorer}  # all others: factorization
BATCHES = {"fedrap": 2048, "pfedrec": 256}  # as released; all others: a person's examples at once
SETTINGS: dict[str, dict[str, object]] = {  # the defaults of `fedtaste run`, where they say how much is computed
    "fedmf": {"lr": 10.0},
    "fedrecon": {"lr": 10.0, "recon_lr": 20.0, "recon_passes": 10, "lam": 0.001},
    "fedrap": {},
    "pfedrec": {},
}
WITHOUT_REGULARISATION = 1e-12  # for `lam`: exactly 0 would count every item as one that nobody has


class Line(NamedTuple):
    """One method on the data of a task."""

    method: Method
    model: Model
    federation: Federation


def line(task: Task, name: str, **settings: object) -> Line:
    """A method with its model and its examples; `settings` in place of SETTINGS."""
    histories = Histories(
        task["history_starts"], task["history_items"], np.ones(len(task["history_items"]), np.float32)
    )
    items, compared = len(task["item"]), name in ("fedals", "fedavg")
    k = task["item"].shape[1] if compared else int(task.number("k"))
    model = MODELS.get(name, factorization)(items, k=k)
    batch = int(task.number("batch")) if name == "fedavg" else BATCHES.get(name, 0)
    federation = of_histories(histories, items, negatives=int(task.number("negatives")), batch=batch)
    return Line(build(name, model, settings or SETTINGS[name]), model, federation)


def table_after_one_round(part: Line, start: NDArray[np.float32]) -> NDArray[np.float32]:
    """The item table after one round from `start`."""
    state = begin(part.method, part.model, part.federation)
    assert state.shared["item"].shape == start.shape
    params = part.model.init(torch.Generator().manual_seed(0)) | {"item": torch.from_numpy(start)}
    state.shared.update(part.method.init(params)[0])
    table: NDArray[np.float32] = (
        next(run(part.method, part.model, part.federation, rounds=1, state=state)).state.shared["item"].numpy()
    )
    return table


def measure(task: Task) -> Measurement:
    seconds, tables = {}, {}
    with single_thread():
        for name in map(str, task["lines"]):
            if name == "fedals":
                part = line(task, name, alpha0=task.number("alpha0"), lam=task.number("lam"))
                plain = line(task, name, alpha0=task.number("alpha0"), lam=WITHOUT_REGULARISATION)
                tables[name] = table_after_one_round(plain, task["item"])
            elif name == "fedavg":
                part = line(task, name, lr=task.number("lr"))
                tables[name] = table_after_one_round(part, task["item"])
            else:
                part = line(task, name)
            one_round(*part, "auto", 1)  # compiles
            seconds[name] = one_round(*part, "auto", max(3, task.repeats))
    return task.measurement(__version__, seconds, tables=tables)
