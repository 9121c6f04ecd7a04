"""The loss of sequence_loss.py for a cohort, without padding: positions of all windows are the rows of one array.

    embeddings, norms, products    on packed rows [n, d], n the positions of all windows
    attention                      on windows padded to the longest, with its gradient written out (`_Attention`)
    softmax                        one person after the other, so that scores [T, J] stay in the cache; its gradient is
                                   computed at once, while they are there (`_SampledSoftmax`)
The plain functions are `network_states`, `negative_trail`, `target_trail` and `sampled_softmax`; these give the same
numbers.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import FunctionCtx
from torch.nn import functional

from fedtaste.core import Params
from fedtaste.kernels import trail as kernels
from fedtaste.methods.sequence_loss import (
    ALPHA,
    EMBEDDED,
    FADE,
    FAST,
    MIX,
    SLOW,
    WINDOW,
    Negatives,
    Window,
    generate,
    keep_factors,
)
from fedtaste.models.sequence import Network, distance_bias, network_states

AT_ONCE = 2**17  # numbers of attention that are computed at once, so that they stay in the cache
POWERS = FADE ** np.arange(WINDOW, dtype=np.float32)
SPEEDS = (np.float32(MIX), np.float32(FAST), np.float32(SLOW))


class Batch(NamedTuple):
    """The windows of a cohort, and all of the input to their loss that no parameter enters."""

    window: Window  # [people, T + 1]
    keep: Tensor | None  # [n, sites, d] factors of dropout
    negatives: Negatives
    places: Tensor  # [people, J] the first places of the negatives in the histories

    @property
    def lengths(self) -> list[int]:
        """The positions of each window."""
        lengths: list[int] = self.window.mask.sum(1).long().tolist()
        return lengths


class Rows(NamedTuple):
    """Where packed rows are in padded windows."""

    people: int
    steps: int
    places: Tensor  # [n] in [people x steps]

    @classmethod
    def of(cls, lengths: list[int]) -> Rows:
        steps = max(lengths)
        real = torch.arange(steps) < torch.tensor(lengths)[:, None]
        return cls(len(lengths), steps, real.flatten().nonzero()[:, 0])

    def pad(self, packed: Tensor) -> Tensor:
        """[people, steps, ...] with zeros after the last row of each."""
        if len(packed) == self.people * self.steps:
            return packed.reshape(self.people, self.steps, *packed.shape[1:])
        out = packed.new_zeros(self.people * self.steps, *packed.shape[1:])
        return out.index_copy_(0, self.places, packed).reshape(self.people, self.steps, *packed.shape[1:])

    def pack(self, padded: Tensor) -> Tensor:
        flat = padded.flatten(0, 1)
        return flat if len(flat) == len(self.places) else flat.index_select(0, self.places)


def chunks(lengths: list[int], size: int) -> list[Rows]:
    """The windows in groups, in their order, whose attention has at most `size` numbers for each head."""
    groups: list[list[int]] = [[]]
    for length in lengths:
        if groups[-1] and (len(groups[-1]) + 1) * max(length, *groups[-1]) ** 2 > size:
            groups.append([])
        groups[-1].append(length)
    return [Rows.of(group) for group in groups]


def cohort_losses(network: Network, params: Params, batch: Batch) -> Tensor:
    """`sampled_softmax` [people] of windows. Only the gradient of their sum can be computed."""
    windows, lengths = batch.window.items, batch.lengths
    items = windows[:, :-1][batch.window.mask > 0]
    x = functional.embedding(items, params["item"]) * (EMBEDDED * network.width**0.5)
    if network.kind == "gru":
        rows = Rows.of(lengths)
        keep = None if batch.keep is None else rows.pad(batch.keep)
        h = rows.pack(network_states(network, params, rows.pad(x), keep))
    else:
        groups = chunks(lengths, AT_ONCE // network.heads)
        h = network_states(network, params, x, batch.keep, lambda *part: _attend(groups, *part))
    theta = params.get("theta", torch.zeros(()))
    return _SampledSoftmax.apply(h, params["item"], params["bias"], theta, params, batch)  # type: ignore


def packed_factors(seeds: Tensor, skip: int, window: Window, network: Network, dropped: int) -> Tensor:
    """`keep_factors` [n, sites, d] of windows, from the bytes of each person's generator after `skip`."""
    sizes = (window.mask.sum(1).long() * network.sites * network.width).tolist()
    drawn = [generate(seed, skip + size)[skip:] for seed, size in zip(seeds.tolist(), sizes)]
    return keep_factors(torch.from_numpy(np.concatenate(drawn)), network, dropped)


def _attend(groups: list[Rows], block: Params, x: Tensor, heads: int) -> Tensor:
    """Causal attention of packed rows."""
    mixed: Tensor = _Attention.apply(x @ block["qkv"], block["rel"], heads, groups)  # type: ignore[no-untyped-call]
    return mixed @ block["o"]


class _Attention(torch.autograd.Function):
    """Attention from queries, keys and values [n, 3 d] and relative positions [heads, L], with its gradient."""

    @staticmethod
    def forward(ctx: FunctionCtx, qkv: Tensor, rel: Tensor, heads: int, groups: list[Rows]) -> Tensor:
        saved, mixed = [], []
        bias = distance_bias(rel, max(rows.steps for rows in groups))
        for rows, part in zip(groups, torch.split(qkv, [len(rows.places) for rows in groups])):
            q, k, v = _by_head(part, 3, heads, rows)
            q = q * q.shape[-1] ** -0.5
            scores = torch.bmm(q, k.mT)
            scores.view(rows.people, heads, rows.steps, rows.steps).add_(bias[:, : rows.steps, : rows.steps])
            weights = scores.softmax(-1)
            mixed.append(_by_row(torch.bmm(weights, v)[None], heads, rows))
            saved += [q, k, v, weights]
        ctx.save_for_backward(rel, *saved)
        ctx.groups = groups  # type: ignore[attr-defined]
        return torch.cat(mixed)

    @staticmethod
    def backward(ctx: FunctionCtx, slope: Tensor) -> tuple[Tensor | None, ...]:
        rel, *saved = ctx.saved_tensors  # type: ignore[attr-defined]
        groups: list[Rows] = ctx.groups  # type: ignore[attr-defined]
        heads, longest, by_qkv = len(rel), max(rows.steps for rows in groups), []
        pairs = rel.new_zeros(heads, longest, longest)  # zero where s > t
        for number, (rows, part) in enumerate(zip(groups, torch.split(slope, [len(rows.places) for rows in groups]))):
            q, k, v, weights = saved[4 * number : 4 * number + 4]
            (out,) = _by_head(part, 1, heads, rows)
            inner = torch.ops.aten._softmax_backward_data(torch.bmm(out, v.mT), weights, -1, weights.dtype)
            by_q = torch.bmm(inner, k).mul_(q.shape[-1] ** -0.5)
            slopes = torch.stack([by_q, torch.bmm(inner.mT, q), torch.bmm(weights.mT, out)])
            by_qkv.append(_by_row(slopes, heads, rows))
            pairs[:, : rows.steps, : rows.steps] += inner.view(rows.people, heads, rows.steps, rows.steps).sum(0)
        back = (torch.arange(longest)[:, None] - torch.arange(longest)).clamp(min=0)
        by_rel = torch.zeros_like(rel).index_add_(1, back.flatten(), pairs.flatten(1))
        return torch.cat(by_qkv), by_rel, None, None


def _by_head(packed: Tensor, parts: int, heads: int, rows: Rows) -> Tensor:
    """[parts, people x heads, T, d / heads] from packed rows [n, parts x d]."""
    each = packed.shape[1] // (parts * heads)
    split = rows.pad(packed).view(rows.people, rows.steps, parts, heads, each)
    return split.permute(2, 0, 3, 1, 4).reshape(parts, rows.people * heads, rows.steps, each)


def _by_row(parted: Tensor, heads: int, rows: Rows) -> Tensor:
    """The reverse of `_by_head`."""
    parts, each = len(parted), parted.shape[-1]
    split = parted.view(parts, rows.people, heads, rows.steps, each).permute(1, 3, 0, 2, 4)
    return rows.pack(split.reshape(rows.people, rows.steps, parts * heads * each))


class _SampledSoftmax(torch.autograd.Function):
    """The losses [people] from states h [n, d], and the gradient of their sum."""

    @staticmethod
    def forward(
        ctx: FunctionCtx, h: Tensor, item: Tensor, bias: Tensor, theta: Tensor, fixed: Params, batch: Batch
    ) -> Tensor:
        trail, drawn, lengths = _Trail.of(fixed), batch.negatives.items, batch.lengths
        next_items = batch.window.items[:, 1:][batch.window.mask > 0]  # [n]
        alpha, embedded = ALPHA * theta, item[next_items]
        positive, features = (h * embedded).sum(1) + bias[next_items], trail.targets(batch)
        positive += alpha * features
        table, offset = item[drawn], bias[drawn] - batch.negatives.correction
        totals, by_h, by_table, by_offset = torch.empty_like(positive), torch.empty_like(h), 0 * table, 0 * offset
        by_alpha = torch.zeros(())
        for person, part in enumerate(_slices(lengths)):
            own = trail.negatives(batch, person, lengths[person])
            scores = torch.addmm(offset, h[part], table.T)
            if own is not None:
                scores.add_(own, alpha=float(alpha))
            largest, first = positive[part].clone(), int(batch.window.first[person])
            kernels.largest_scores(scores.numpy(), batch.places[person].numpy(), first, largest.numpy())
            arrays = (scores, largest, positive[part], by_offset, totals[part])
            kernels.softmax(*(array.numpy() for array in arrays))
            torch.mm(scores, table, out=by_h[part])
            by_table.addmm_(scores.T, h[part])
            if own is not None:
                by_alpha += torch.dot(scores.flatten(), own.flatten())
        by_positive = (positive - totals).exp() - 1
        by_h.addcmul_(embedded, by_positive[:, None])
        by_item = torch.zeros_like(item).index_add_(0, drawn, by_table)
        by_item.index_add_(0, next_items, by_positive[:, None] * h)
        by_bias = torch.zeros_like(bias).index_add_(0, drawn, by_offset).index_add_(0, next_items, by_positive)
        ctx.save_for_backward(by_h, by_item, by_bias, ALPHA * (by_alpha + torch.dot(by_positive, features)))
        return torch.stack([part.sum() for part in torch.split(totals - positive, lengths)])

    @staticmethod
    def backward(ctx: FunctionCtx, slope: Tensor) -> tuple[Tensor | None, ...]:
        return *ctx.saved_tensors, None, None  # type: ignore[attr-defined]


class _Trail(NamedTuple):
    tables: tuple[NDArray[np.float32], ...]  # the trail table and the scales of own counts; nothing without the trail
    eps: float

    @classmethod
    def of(cls, fixed: Params) -> _Trail:
        if "trail" not in fixed:
            return cls((), 0.0)
        return cls(tuple(fixed[n].numpy() for n in ("trail", "from_scale", "to_scale")), float(fixed["eps"]))

    def targets(self, batch: Batch) -> Tensor:
        """log(t + eps) [n] of the next items."""
        out = torch.zeros(sum(batch.lengths))
        if not self.tables:
            return out
        table, from_scale, to_scale = self.tables
        for person, part in enumerate(_slices(batch.lengths)):
            items = batch.window.items[person, : part.stop - part.start + 1].numpy()
            kernels.target_trail(table, from_scale, to_scale, items, POWERS, SPEEDS, out[part].numpy())
        return out.add_(self.eps).log_()

    def negatives(self, batch: Batch, person: int, length: int) -> Tensor | None:
        """log(t + eps) [T, J] of the negatives."""
        if not self.tables:
            return None
        out = torch.empty(length, len(batch.negatives.items))
        pairs, items = out.numpy(), batch.window.items[person, : length + 1].numpy()
        drawn, places = batch.negatives.items.numpy(), batch.places[person].numpy()
        table, from_scale, to_scale = self.tables
        first = int(batch.window.first[person])
        kernels.gather_pairs(table, from_scale, to_scale, items, first, drawn, places, POWERS, pairs)
        kernels.trail_logarithms(pairs, SPEEDS, np.float32(self.eps))
        return out


def _slices(lengths: list[int]) -> list[slice]:
    ends = np.cumsum([0, *lengths]).tolist()
    return [slice(begin, end) for begin, end in zip(ends, ends[1:])]
