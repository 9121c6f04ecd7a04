"""The client of FedAvg in plain torch, as anybody would write it: SGD over the batches of one person."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits


def train(item: Tensor, user: Tensor, inputs: Tensor, targets: Tensor, batch: int, lr: float) -> Tensor:
    """The item table after one pass over a person's examples; the person's vector moves along."""
    item, user = item.clone().requires_grad_(), user.clone().requires_grad_()
    optimizer = torch.optim.SGD([item, user], lr=lr)
    for some, wanted in zip(inputs.split(batch), targets.split(batch)):
        optimizer.zero_grad()
        binary_cross_entropy_with_logits(item[some] @ user, wanted).backward()
        optimizer.step()
    return item.detach()
