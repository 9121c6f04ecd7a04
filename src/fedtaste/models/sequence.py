"""Sequence networks as plain functions: causal attention with relative positions, and a GRU.

Both map the embeddings of a history x [..., T, d], oldest item first, to states h [..., T, d], where h_t depends on the
items up to t alone; leading axes are people. Parameters are flat and named. Padding must follow the last real item.

    attention   `layers` pre-norm blocks (Vaswani et al. 2017; as in SASRec, Kang and McAuley 2018):
                    x += drop(softmax(q.k / sqrt(d / heads) + rel[head, t - s]) v o)      over s <= t
                    x += drop(gelu(norm(x) f1) f2)
                and a final layer norm. There are no absolute positions; `rel` has one learned number for every head and
                distance, and starts as a slope: the first head looks at the last few items, the last one further back.
    gru         a gated recurrent unit (Cho et al. 2014) with 2 d units, mapped back to d, and a final layer norm.
`keep` [..., T, sites, d] multiplies the input and every residual branch: 0, or 1 / (1 - dropout); None keeps all.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from fedtaste.core import Params
from fedtaste.params import nest, unnest

SLOPES = (0.3, 0.04)  # of the relative position of the first and the last head, at the start


class Network(NamedTuple):
    """The kind and the sizes of a sequence network."""

    kind: Literal["attention", "gru"]
    width: int  # d
    layers: int  # attention: blocks
    heads: int  # attention: heads of each block, which divide d
    length: int  # L, the newest items that it sees

    @property
    def sites(self) -> int:
        """Places at which numbers are dropped."""
        return 1 + 2 * self.layers if self.kind == "attention" else 2


def network_params(network: Network, generator: torch.Generator) -> Params:
    """The parameters at the start."""

    def normal(spread: float, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).mul(spread / math.sqrt(network.width))

    d, params = network.width, _norm_params("norm", network.width)
    if network.kind == "gru":
        params |= {"gru.input": normal(0.5, d, 6 * d), "gru.state": normal(0.5, 2 * d, 6 * d)}
        params |= {"gru.input_bias": torch.zeros(6 * d), "gru.state_bias": torch.zeros(6 * d)}
        return params | {"gru.output": normal(0.5, 2 * d, d), "gru.output_bias": torch.zeros(d)}
    slopes = torch.from_numpy(np.geomspace(*SLOPES, network.heads).astype(np.float32))
    for layer in range(network.layers):
        block = {"qkv": normal(0.5, d, 3 * d), "o": normal(0.2, d, d)}
        block |= {"f1": normal(0.5, d, 2 * d), "f1_bias": torch.zeros(2 * d)}
        block |= {"f2": normal(0.2, 2 * d, d), "f2_bias": torch.zeros(d)}
        block |= {"rel": -slopes[:, None] * torch.arange(network.length)}
        params |= nest(f"block{layer}", block | _norm_params("norm1", d) | _norm_params("norm2", d))
    return params


def network_states(network: Network, params: Params, x: Tensor, keep: Tensor | None = None) -> Tensor:
    """h [..., T, d] from embeddings x [..., T, d]."""

    def drop(branch: Tensor, site: int) -> Tensor:
        return branch if keep is None else branch * keep[..., site, :]

    x = drop(x, 0)
    if network.kind == "gru":
        return _norm(unnest("norm", params), drop(_recur(unnest("gru", params), x), 1))
    for layer in range(network.layers):
        block = unnest(f"block{layer}", params)
        x = x + drop(_attend(block, _norm(unnest("norm1", block), x), network.heads), 1 + 2 * layer)
        x = x + drop(_feed_forward(block, _norm(unnest("norm2", block), x)), 2 + 2 * layer)
    return _norm(unnest("norm", params), x)


def _norm_params(name: str, width: int) -> Params:
    return nest(name, {"weight": torch.ones(width), "bias": torch.zeros(width)})


def _norm(params: Params, x: Tensor) -> Tensor:
    return functional.layer_norm(x, x.shape[-1:], params["weight"], params["bias"])


def _attend(block: Params, x: Tensor, heads: int) -> Tensor:
    """Causal attention with relative positions."""
    steps, width = x.shape[-2:]
    parts = (x @ block["qkv"]).chunk(3, -1)
    shape = (*x.shape[:-1], heads, width // heads)
    q, k, v = (part.reshape(shape).transpose(-3, -2) for part in parts)  # [..., heads, T, d_h]
    weights = (q @ k.mT * (width // heads) ** -0.5 + _distance_bias(block["rel"], steps)).softmax(-1)
    mixed: Tensor = (weights @ v).transpose(-3, -2).flatten(-2)
    return mixed @ block["o"]


def _distance_bias(rel: Tensor, steps: int) -> Tensor:
    """[heads, T, T]: the number of the distance t - s, and -inf where s > t."""
    back = torch.arange(steps)[:, None] - torch.arange(steps)
    return rel[:, back.clamp(min=0)].masked_fill(back < 0, -torch.inf)


def _feed_forward(block: Params, x: Tensor) -> Tensor:
    hidden = functional.gelu(x @ block["f1"] + block["f1_bias"], approximate="tanh")
    return hidden @ block["f2"] + block["f2_bias"]


def _recur(gru: Params, x: Tensor) -> Tensor:
    """The states of a GRU, step by step, mapped to the width of x."""
    inputs = x @ gru["input"] + gru["input_bias"]  # [..., T, 6 d]: reset, update, new
    state = torch.zeros_like(inputs[..., 0, : gru["state"].shape[0]])
    states = []
    for step in range(x.shape[-2]):
        reset, update, new = inputs[..., step, :].chunk(3, -1)
        from_reset, from_update, from_new = (state @ gru["state"] + gru["state_bias"]).chunk(3, -1)
        blend = (update + from_update).sigmoid()
        state = blend * state + (1 - blend) * (new + (reset + from_reset).sigmoid() * from_new).tanh()
        states.append(state)
    return torch.stack(states, -2) @ gru["output"] + gru["output_bias"]
