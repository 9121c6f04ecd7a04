"""FedAvg of a factorisation in pfl (Apple's pfl-research): FederatedAveraging on its SimulatedBackend with PyTorch.

pfl averages the person's vector along with the item table; what is compared is the table after the first round.
"""

from __future__ import annotations

import time
from importlib.metadata import version
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import MinimizeReuseUserSampler
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch.nn.functional import binary_cross_entropy_with_logits

if TYPE_CHECKING:
    from fedtaste.bench.programs.runner import Measurement, Task


class Factorization(torch.nn.Module):
    """Scores of items for the person whose device this is."""

    def __init__(self, item: torch.Tensor, user: torch.Tensor) -> None:
        super().__init__()
        self.item, self.user = torch.nn.Parameter(item.clone()), torch.nn.Parameter(user.clone())

    def loss(self, inputs: torch.Tensor, targets: torch.Tensor, is_training: bool = False) -> torch.Tensor:
        return binary_cross_entropy_with_logits(self.item[inputs.long()] @ self.user, targets)

    def metrics(self, inputs: torch.Tensor, targets: torch.Tensor) -> dict[str, object]:
        return {}


class Clock(TrainingProcessCallback):  # type: ignore[misc]
    """Records when central iterations end, and the item table after the first one."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.table: NDArray[np.float32] | None = None

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        self.times.append(time.process_time())
        if self.table is None:
            self.table = model.pytorch_model.item.detach().numpy().copy()
        return False, Metrics()


def measure(task: Task) -> Measurement:
    torch.set_num_threads(1)
    module = Factorization(torch.from_numpy(task["item"]), torch.from_numpy(task["user"]))
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    persons = [tuple(map(torch.from_numpy, person)) for person in task.persons]
    people = FederatedDataset(
        lambda i: Dataset(persons[i], user_id=str(i)), MinimizeReuseUserSampler(list(range(len(persons))))
    )
    backend = SimulatedBackend(people, people, postprocessors=[WeightByDatapoints()])
    params = NNAlgorithmParams(
        central_num_iterations=task.repeats + 1, evaluation_frequency=10**9, train_cohort_size=len(persons),
        val_cohort_size=0,
    )  # fmt: skip
    local = NNTrainHyperParams(
        local_num_epochs=1, local_learning_rate=task.number("lr"), local_batch_size=int(task.number("batch"))
    )
    clock = Clock()
    FederatedAveraging().run(params, backend, model, local, callbacks=[clock])
    seconds = {"round": float(np.diff(clock.times).min())}
    return task.measurement(version("pfl"), seconds, tables={"round": clock.table})
