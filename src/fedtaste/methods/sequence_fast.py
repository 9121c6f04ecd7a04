"""The loss of sequence_loss.py for a cohort, without padding: positions of all windows are the rows of one array.

    products       of packed rows [n, d] and matrices, n the positions of all windows (kernels/products.py)
    between them   layer norm, GELU and dropout, one compiled pass over the rows each (kernels/network_rows.py)
    attention      one person and head after the other, compiled (kernels/attention.py)
    softmax        one person after the other, so that scores [T, J] stay in the cache; its gradient is computed at
                   once, while they are there (`_SampledSoftmax`)
Gradients are written out, because torch would keep and read an array for every operation. A GRU has none of its own:
`network_states` computes it on padded windows.
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
from fedtaste.kernels import attention, network_rows, products
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
from fedtaste.models.sequence import Network, network_states

Array = NDArray[np.float32]
POWERS = FADE ** np.arange(WINDOW, dtype=np.float32)
SPEEDS: tuple[np.float32, ...] = (np.float32(MIX), np.float32(FAST), np.float32(SLOW))


class Dropout(NamedTuple):
    """Which numbers of packed rows are kept: those whose random byte is at least `dropped`."""

    drawn: Tensor  # bytes [n, sites x d]; no rows where everything is kept
    dropped: int

    @property
    def scale(self) -> float:
        """The factor of numbers that are kept, so that the mean stays."""
        return 256 / (256 - self.dropped)

    def factors(self, network: Network) -> Tensor | None:
        """[n, sites, d]"""
        return keep_factors(self.drawn.flatten(), network, self.dropped) if len(self.drawn) else None

    def arrays(self, site: int, width: int) -> tuple[NDArray[np.uint8], int, np.uint8, np.float32]:
        """What kernels read: the bytes, the first column of a site, the limit and the scale."""
        return self.drawn.numpy(), site * width, np.uint8(self.dropped), np.float32(self.scale)


class Batch(NamedTuple):
    """The windows of a cohort, and all of the input to their loss that no parameter enters."""

    window: Window  # [people, T + 1]
    dropout: Dropout
    negatives: Negatives
    places: Tensor  # [people, J] the first places of the negatives in the histories

    @property
    def lengths(self) -> list[int]:
        """The positions of each window."""
        lengths: list[int] = self.window.mask.sum(1).long().tolist()
        return lengths

    @property
    def starts(self) -> NDArray[np.int64]:
        """[people + 1] the first packed row of each window, and the number of all."""
        return np.cumsum([0, *self.lengths])


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


def cohort_losses(network: Network, params: Params, batch: Batch) -> Tensor:
    """`sampled_softmax` [people] of windows. Only the gradient of their sum can be computed."""
    windows, lengths = batch.window.items, batch.lengths
    items = windows[:, :-1][batch.window.mask > 0]
    x = functional.embedding(items, params["item"]) * (EMBEDDED * network.width**0.5)
    if not len(x):  # nobody has a position, and there is no step of a GRU
        return (0 * params["item"].sum()).expand(len(lengths))
    if network.kind == "gru":
        rows = Rows.of(lengths)
        keep = batch.dropout.factors(network)
        h = rows.pack(network_states(network, params, rows.pad(x), None if keep is None else rows.pad(keep)))
    else:
        parts = {name: value for name, value in params.items() if name.startswith(("block", "norm."))}
        h = _AttentionNetwork.apply(x, network, batch, list(parts), *parts.values())  # type: ignore
    theta = params.get("theta", torch.zeros(()))
    return _SampledSoftmax.apply(h, params["item"], params["bias"], theta, params, batch)  # type: ignore


def packed_dropout(seeds: Tensor, skip: int, window: Window, network: Network, dropped: int) -> Dropout:
    """The dropout of windows, from the bytes of each person's generator after `skip`."""
    width = network.sites * network.width
    if not dropped:
        return Dropout(torch.empty(0, width, dtype=torch.uint8), 0)
    sizes = (window.mask.sum(1).long() * width).tolist()
    drawn = [generate(seed, skip + size)[skip:] for seed, size in zip(seeds.tolist(), sizes)]
    return Dropout(torch.from_numpy(np.concatenate(drawn)).reshape(-1, width), dropped)


class _AttentionNetwork(torch.autograd.Function):
    """`network_states` of an attention network for packed rows x [n, d], with its gradient written out."""

    @staticmethod
    def forward(
        ctx: FunctionCtx, x: Tensor, network: Network, batch: Batch, names: list[str], *values: Tensor
    ) -> Tensor:
        blocks = _Blocks(network, dict(zip(names, values)), batch.dropout, batch.starts)
        ctx.blocks = blocks  # type: ignore[attr-defined]
        return blocks.states(x)

    @staticmethod
    def backward(ctx: FunctionCtx, slope: Tensor) -> tuple[Tensor | None, ...]:
        by_x, by_params = ctx.blocks.back(slope.contiguous())  # type: ignore[attr-defined]
        return by_x, None, None, None, *by_params.values()


class _Blocks:
    """The blocks of an attention network on packed rows: states forwards, and gradients backwards."""

    def __init__(self, network: Network, params: Params, dropout: Dropout, starts: NDArray[np.int64]) -> None:
        self.network, self.dropout, self.starts = network, dropout, starts
        self.params = {name: value.contiguous() for name, value in params.items()}  # as kernels read them
        self.by_params = {name: torch.zeros_like(value) for name, value in params.items()}
        self.kept: list[tuple[Tensor, ...]] = []  # of every layer, what its gradient needs

    def states(self, x: Tensor) -> Tensor:
        """h [n, d] from the embeddings x [n, d]."""
        x = self.keep(x, 0, torch.zeros(self.network.width))
        for layer in range(self.network.layers):
            normed, stats = self.norm(x, f"block{layer}.norm1")
            qkv = product(normed, self.params[f"block{layer}.qkv"])
            rel = self.params[f"block{layer}.rel"]
            mixed, shares = torch.empty_like(x), x.new_empty(len(rel) * attention.padded_squares(self.starts))
            attention.attend(qkv.numpy(), self.starts, rel.numpy(), shares.numpy(), mixed.numpy())
            self.kept.append((x, stats, normed, qkv, shares, mixed))
            x = self.add(x, product(mixed, self.params[f"block{layer}.o"]), torch.zeros(x.shape[1]), 1 + 2 * layer)
            normed, stats = self.norm(x, f"block{layer}.norm2")
            before = product(normed, self.params[f"block{layer}.f1"])
            hidden = torch.empty_like(before)
            network_rows.gelu(before.numpy(), self.params[f"block{layer}.f1_bias"].numpy(), hidden.numpy())
            self.kept.append((x, stats, normed, before, hidden))
            branch = product(hidden, self.params[f"block{layer}.f2"])
            x = self.add(x, branch, self.params[f"block{layer}.f2_bias"], 2 + 2 * layer)
        h, stats = self.norm(x, "norm")
        self.kept.append((x, stats))
        return h

    def back(self, slope: Tensor) -> tuple[Tensor, Params]:
        """(gradient of the embeddings, gradients of the parameters) from the slope of h."""
        by_x, (x, stats) = torch.zeros_like(slope), self.kept.pop()
        self.norm_back(slope, "norm", x, stats, by_x)
        for layer in reversed(range(self.network.layers)):
            x, stats, normed, before, hidden = self.kept.pop()
            by_branch = self.keep(by_x, 2 + 2 * layer, self.by_params[f"block{layer}.f2_bias"])
            by_hidden = self.product_back(hidden, f"block{layer}.f2", by_branch)
            by_bias = self.by_params[f"block{layer}.f1_bias"]
            network_rows.gelu_back(before.numpy(), by_hidden.numpy(), by_bias.numpy())
            by_normed = self.product_back(normed, f"block{layer}.f1", by_hidden)
            self.norm_back(by_normed, f"block{layer}.norm2", x, stats, by_x)
            x, stats, normed, qkv, shares, mixed = self.kept.pop()
            by_branch = self.keep(by_x, 1 + 2 * layer, torch.zeros(x.shape[1]))
            by_mixed, by_qkv = self.product_back(mixed, f"block{layer}.o", by_branch), torch.empty_like(qkv)
            arrays = (shares, by_mixed, by_qkv, self.by_params[f"block{layer}.rel"])
            attention.attend_back(qkv.numpy(), self.starts, *(array.numpy() for array in arrays))
            by_normed = self.product_back(normed, f"block{layer}.qkv", by_qkv)
            self.norm_back(by_normed, f"block{layer}.norm1", x, stats, by_x)
        return self.keep(by_x, 0, torch.zeros(by_x.shape[1])), self.by_params

    def norm(self, x: Tensor, name: str) -> tuple[Tensor, Tensor]:
        """(the layer norm of rows, the mean and 1 / the standard deviation of each)."""
        out, stats = torch.empty_like(x), x.new_empty(len(x), 2)
        arrays = (x, self.params[f"{name}.weight"], self.params[f"{name}.bias"], out, stats)
        network_rows.norm(*(array.numpy() for array in arrays))
        return out, stats

    def norm_back(self, slope: Tensor, name: str, x: Tensor, stats: Tensor, by_x: Tensor) -> None:
        """Add the slope of the rows x of a layer norm to by_x; those of its parameters are written."""
        by_weight, by_bias = self.by_params[f"{name}.weight"], self.by_params[f"{name}.bias"]
        arrays = (slope, x, self.params[f"{name}.weight"], stats, by_x, by_weight, by_bias)
        network_rows.norm_back(*(array.numpy() for array in arrays))

    def add(self, x: Tensor, branch: Tensor, bias: Tensor, site: int) -> Tensor:
        """x + what dropout keeps of branch + bias."""
        out = torch.empty_like(x)
        dropout = self.dropout.arrays(site, x.shape[1])
        network_rows.add_kept(x.numpy(), branch.numpy(), bias.numpy(), *dropout, out.numpy())
        return out

    def keep(self, x: Tensor, site: int, sums: Tensor) -> Tensor:
        """What dropout keeps of x; its sum over the rows is added to `sums` [d]."""
        out = torch.empty_like(x)
        network_rows.keep(x.numpy(), *self.dropout.arrays(site, x.shape[1]), out.numpy(), sums.numpy())
        return out

    def product_back(self, left: Tensor, name: str, slope: Tensor) -> Tensor:
        """The slope of `left` in left @ params[name]; that of the parameter is written."""
        self.by_params[name] = product(left.T, slope)
        return product(slope, self.params[name].T.contiguous())


def product(a: Tensor, b: Tensor) -> Tensor:
    """a [m, k] b [k, n] in single precision, where b has contiguous rows. The kernel tests nothing."""
    if a.shape[1] != b.shape[0] or b.stride(1) != 1 or {a.dtype, b.dtype} != {torch.float32}:
        raise ValueError(f"no product of {a.shape} {a.dtype} and {b.shape} {b.dtype} with strides {b.stride()}")
    out = a.new_empty(a.shape[0], b.shape[1])
    products.product(a.numpy(), b.numpy(), out.numpy(), False)
    return out


class _SampledSoftmax(torch.autograd.Function):
    """The losses [people] from states h [n, d], and the gradient of their sum."""

    @staticmethod
    def forward(
        ctx: FunctionCtx, h: Tensor, item: Tensor, bias: Tensor, theta: Tensor, fixed: Params, batch: Batch
    ) -> Tensor:
        drawn, next_items = batch.negatives.items, batch.window.items[:, 1:][batch.window.mask > 0]
        following, embedded = item[next_items], item[drawn]  # [n, d], [J, d]
        offset = bias[drawn] - batch.negatives.correction
        positive = (h * following).sum(1) + bias[next_items]
        features, totals, by_h = torch.empty_like(positive), torch.empty_like(positive), torch.empty_like(h)
        by_embedded, by_offset = torch.zeros_like(embedded), torch.zeros_like(offset)
        windows = batch.window.items.numpy(), batch.window.first.numpy()
        negatives = (embedded, embedded.T.contiguous(), offset, drawn, batch.places)
        outputs = (positive, features, totals, by_h, by_embedded, by_offset)
        by_alpha = kernels.sampled_softmax(
            h.numpy(), batch.starts, windows, tuple(array.numpy() for array in negatives),
            _trail(fixed), np.float32(ALPHA * theta), tuple(array.numpy() for array in outputs),
        )  # fmt: skip
        by_positive = (positive - totals).exp() - 1
        by_h.addcmul_(following, by_positive[:, None])
        by_item = torch.zeros_like(item).index_add_(0, drawn, by_embedded)
        by_item.index_add_(0, next_items, by_positive[:, None] * h)
        by_bias = torch.zeros_like(bias).index_add_(0, drawn, by_offset).index_add_(0, next_items, by_positive)
        ctx.save_for_backward(by_h, by_item, by_bias, ALPHA * (by_alpha + torch.dot(by_positive, features)))
        return torch.stack([part.sum() for part in torch.split(totals - positive, batch.lengths)])

    @staticmethod
    def backward(ctx: FunctionCtx, slope: Tensor) -> tuple[Tensor | None, ...]:
        return *ctx.saved_tensors, None, None  # type: ignore[attr-defined]


def _trail(fixed: Params) -> tuple[Array, Array, Array, Array, tuple[np.float32, ...], np.float32]:
    """What the kernel reads of the trail; tables without rows where there is none."""
    none = torch.zeros(0)
    from_scale, to_scale = (fixed.get(name, none).numpy() for name in ("from_scale", "to_scale"))
    table = fixed.get("trail", none[:, None]).numpy()
    return table, from_scale, to_scale, POWERS, SPEEDS, np.float32(fixed.get("eps", 0))
