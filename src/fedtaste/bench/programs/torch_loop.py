"""FedAvg of a factorisation in plain torch, one person at a time: the reference that needs no framework."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING

import torch
from torch_client import train

if TYPE_CHECKING:
    from fedtaste.bench.programs.runner import Measurement, Task


def measure(task: Task) -> Measurement:
    torch.set_num_threads(1)
    persons = [(torch.from_numpy(inputs).long(), torch.from_numpy(targets)) for inputs, targets in task.persons]
    item, user = torch.from_numpy(task["item"]), torch.from_numpy(task["user"])
    batch, lr = int(task.number("batch")), task.number("lr")
    result = {}

    def one_round(_: None) -> None:
        total, examples = torch.zeros_like(item), 0
        for inputs, targets in persons:
            total += len(targets) * (train(item, user, inputs, targets, batch, lr) - item)
            examples += len(targets)
        result["round"] = (item + total / examples).numpy()

    seconds = task.fastest(lambda: None, one_round)
    return task.measurement(version("torch"), {"round": seconds}, tables=result)
