"""NeuMF's clients that take one step, as a `Fast.kernel`: one forward and backward pass by hand for a whole cohort.

All clients step from the same shared parameters, so the first layer splits into a part of the item and a part of the
person, each computed once:

    hidden_0 = relu(item_layer[item] + user_layer[person]);   hidden_l = relu(hidden_(l-1) W_l' + b_l)
    score = <item_gmf[item], head * user_gmf[person]> + <hidden_last, head> + bias

Examples of a person that name the same item share a score. With c their count and q the sum of their targets the
derivative of the summed loss by the score is c sigmoid(score) - q. `one_step.py` is the readable equivalent.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedtaste.core import Cohort, Download, Kernel, Params, Upload
from fedtaste.kernels import neumf as kernels
from fedtaste.kernels.touched_rows import RowBlock, blocks, row_blocks

AT_ONCE = 4096  # rows that go through the layers together: their numbers should stay in the cache


class Rows(NamedTuple):
    """The different items of some people, one person after the other."""

    items: NDArray[np.int32]
    owners: NDArray[np.int64]  # the places of the people
    counts: Tensor  # how many examples name the item
    sums: Tensor  # of their targets

    def between(self, begin: int, end: int) -> Rows:
        return Rows(self.items[begin:end], self.owners[begin:end], self.counts[begin:end], self.sums[begin:end])

    def where(self, chosen: NDArray[np.bool_]) -> Rows:
        index = torch.from_numpy(np.flatnonzero(chosen))
        return Rows(self.items[chosen], self.owners[chosen], self.counts[index], self.sums[index])


def neumf_kernel(lr: float) -> Kernel:
    """The kernel of a client that takes one step of rate `lr` on its mean loss and uploads weight x change."""

    def kernel(download: Download, cohort: Cohort) -> tuple[Upload, dict[str, int]]:
        shared, store = download.params, cohort.private
        total = {name: torch.zeros_like(value) for name, value in shared.items()}
        weight, refused = torch.zeros(()), {"non-finite": 0, "weight": 0}
        for block in row_blocks(cohort.people, cohort.examples, len(shared["item_gmf"])):
            own, lengths = store.gather(block.people), np.diff(block.starts)
            step = CohortStep(shared, own)
            for rows in _pieces(block):
                step.add(rows)
            gradient, slopes = step.gradients()
            for name, value in gradient.items():
                total[name] -= lr * value
            refused["non-finite"] += int(step.refused.sum())
            refused["weight"] += int((lengths == 0).sum())
            kept = np.flatnonzero(~step.refused & (lengths > 0))
            each = torch.from_numpy(lengths[kept]).float()
            weight = weight + each.sum()
            after = {name: own[name][kept] - lr / each[:, None] * slopes[name][kept] for name in own}
            store.put(block.people[kept], after)
        return Upload(total, weight), refused

    return kernel


def _pieces(block: RowBlock) -> list[Rows]:
    """The rows of a block in pieces of whole people, with about AT_ONCE rows each."""
    firsts, items, numbers = block.firsts, block.items, np.diff(block.firsts)
    place = block.local + np.repeat(firsts[:-1], np.diff(block.starts))
    counts, sums = np.bincount(place, minlength=len(items)), np.bincount(place, block.targets, len(items))
    both = (torch.from_numpy(values.astype(np.float32)) for values in (counts, sums))
    whole = Rows(items, np.repeat(np.arange(len(numbers)), numbers), *both)
    return [whole.between(firsts[a], firsts[b]) for a, b in blocks(firsts, AT_ONCE)]


class CohortStep:
    """The gradient of the summed loss of some people, by shared and private parameters."""

    def __init__(self, shared: Params, own: Params) -> None:
        self.shared, self.own = shared, own
        self.depth = sum(name.startswith("layer") and name.endswith("weight") for name in shared)
        self.weights = [shared[f"layer{layer}.weight"] for layer in range(self.depth)]
        k = own["user_mlp"].shape[1]
        self.of_user, self.of_item = torch.split(self.weights[0], k, 1)
        self.head, self.last_head = torch.split(shared["head.weight"], [k, len(shared["head.weight"]) - k])
        user_layer = own["user_mlp"] @ self.of_user.T + shared["layer0.bias"]
        self.tables = (  # as kernels.read_tables reads them
            shared["item_mlp"] @ self.of_item.T, user_layer, shared["item_gmf"], own["user_gmf"] * self.head,
        )  # fmt: skip
        self.slopes = tuple(torch.zeros_like(table) for table in self.tables)
        self.layers = {n: torch.zeros_like(v) for n, v in shared.items() if n.startswith(("layer", "head"))}
        self.refused = np.zeros(len(user_layer), np.bool_)
        self.buffers: list[Tensor] = []

    def add(self, rows: Rows) -> None:
        """Add the gradients of these rows. People with a score that is not finite are refused."""
        if not len(rows.items):
            return
        hidden, scores = self._forward(rows)
        if not torch.isfinite(scores).all():  # again without them: a sum with NaN is NaN
            self.refused[rows.owners[~torch.isfinite(scores).numpy()]] = True
            self.add(rows.where(~self.refused[rows.owners]))
            return
        error = torch.sigmoid(scores) * rows.counts - rows.sums
        self._backward(rows, hidden, error)

    def _forward(self, rows: Rows) -> tuple[list[Tensor], Tensor]:
        """(the outputs of every layer, scores)."""
        hidden, scores = self._room(len(rows.items), 0), torch.empty(len(rows.items))
        arrays = (*self.tables, hidden[0], scores)
        kernels.read_tables(rows.items, rows.owners, *(array.numpy() for array in arrays))
        for layer in range(1, self.depth):
            bias = self.shared[f"layer{layer}.bias"]
            torch.addmm(bias, hidden[layer - 1], self.weights[layer].T, out=hidden[layer]).relu_()
        return hidden, scores.addmv_(hidden[-1], self.last_head).add_(self.shared["head.bias"])

    def _backward(self, rows: Rows, hidden: list[Tensor], error: Tensor) -> None:
        slopes, k = self._room(len(rows.items), 1), len(self.head)
        self.layers["head.weight"][k:].addmv_(hidden[-1].T, error)
        self.layers["head.bias"] += error.sum()
        torch.outer(error, self.last_head, out=slopes[-1])
        for layer in range(self.depth - 1, 0, -1):
            slope = torch.ops.aten.threshold_backward(slopes[layer], hidden[layer], 0)
            self.layers[f"layer{layer}.weight"].addmm_(slope.T, hidden[layer - 1])
            self.layers[f"layer{layer}.bias"] += slope.sum(0)
            torch.mm(slope, self.weights[layer], out=slopes[layer - 1])
        arrays = (error, hidden[0], slopes[0], *self.tables[2:], *self.slopes)
        kernels.add_gradients(rows.items, rows.owners, *(array.numpy() for array in arrays))

    def _room(self, rows: int, part: int) -> list[Tensor]:
        """Arrays for the outputs (`part` 0) or their gradients (1) of every layer, used again for the next rows."""
        if not self.buffers or len(self.buffers[0]) < rows:
            self.buffers = [torch.empty(max(rows, AT_ONCE), len(w)) for _ in range(2) for w in self.weights]
        return [buffer[:rows] for buffer in self.buffers[part * self.depth : (part + 1) * self.depth]]

    def gradients(self) -> tuple[Params, Params]:
        """(by the shared parameters, by these people's private ones)."""
        item_layer, user_layer, item_factors, user_factors = self.slopes
        own = {n: v.masked_fill(torch.from_numpy(self.refused)[:, None], 0.0) for n, v in self.own.items()}
        of_weight = torch.cat([user_layer.T @ own["user_mlp"], item_layer.T @ self.shared["item_mlp"]], 1)
        shared = self.layers | {"item_gmf": item_factors, "item_mlp": item_layer @ self.of_item}
        shared |= {"layer0.weight": of_weight, "layer0.bias": user_layer.sum(0)}
        shared["head.weight"][: len(self.head)] = (user_factors * own["user_gmf"]).sum(0)
        return shared, {"user_gmf": user_factors * self.head, "user_mlp": user_layer @ self.of_user}
