"""The last state of a sequence network, in double precision and without torch: models/sequence.py for serving.

web/worker.js computes the same. A bundle stores the parameters by their names and shapes here, in this order.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from fedtaste.recipe import SequenceRecipe

Floats = NDArray[np.float64]
Weights = Mapping[str, Floats]
NORM_EPS = 1e-5  # of the layer norm, as in torch


def network_shapes(sequence: SequenceRecipe, d: int) -> dict[str, tuple[int, ...]]:
    """The shape of every parameter of a network of width d, by name."""
    shapes: dict[str, tuple[int, ...]] = {"norm.weight": (d,), "norm.bias": (d,)}
    if sequence.network == "gru":
        shapes |= {"gru.input": (d, 6 * d), "gru.input_bias": (6 * d,)}
        shapes |= {"gru.state": (2 * d, 6 * d), "gru.state_bias": (6 * d,)}
        return shapes | {"gru.output": (2 * d, d), "gru.output_bias": (d,)}
    block = {"norm1.weight": (d,), "norm1.bias": (d,), "qkv": (d, 3 * d), "o": (d, d)}
    block |= {"rel": (sequence.heads * sequence.length,), "norm2.weight": (d,), "norm2.bias": (d,)}
    block |= {"f1": (d, 2 * d), "f1_bias": (2 * d,), "f2": (2 * d, d), "f2_bias": (d,)}
    return shapes | {f"block{layer}.{name}": size for layer in range(sequence.layers) for name, size in block.items()}


def last_state(sequence: SequenceRecipe, weights: Weights, x: Floats) -> Floats:
    """h [d] after embeddings x [T, d], oldest first."""
    if sequence.network == "gru":
        return _norm(weights, "norm", _recur(weights, x))
    for layer in range(sequence.layers):
        block = f"block{layer}"
        x = x + _attend(sequence, weights, block, _norm(weights, f"{block}.norm1", x))
        normed = _norm(weights, f"{block}.norm2", x)
        hidden = _gelu(normed @ weights[f"{block}.f1"] + weights[f"{block}.f1_bias"])
        x = x + hidden @ weights[f"{block}.f2"] + weights[f"{block}.f2_bias"]
    return _norm(weights, "norm", x[-1])


def _norm(weights: Weights, name: str, x: Floats) -> Floats:
    apart = x - x.mean(-1, keepdims=True)
    normed: Floats = apart / np.sqrt((apart**2).mean(-1, keepdims=True) + NORM_EPS)
    return normed * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def _attend(sequence: SequenceRecipe, weights: Weights, block: str, x: Floats) -> Floats:
    """Causal attention with relative positions, [T, d]."""
    steps, width = x.shape
    parts = (x @ weights[f"{block}.qkv"]).reshape(steps, 3, sequence.heads, width // sequence.heads)
    q, k, v = parts.transpose(1, 2, 0, 3)  # [heads, T, d / heads]
    back = np.arange(steps)[:, None] - np.arange(steps)
    rel = weights[f"{block}.rel"].reshape(sequence.heads, -1)[:, np.maximum(back, 0)]
    logits = np.where(back < 0, -np.inf, q @ k.swapaxes(1, 2) / np.sqrt(width // sequence.heads) + rel)
    chances = np.exp(logits - logits.max(-1, keepdims=True))
    mixed = chances / chances.sum(-1, keepdims=True) @ v
    attended: Floats = mixed.swapaxes(0, 1).reshape(steps, width) @ weights[f"{block}.o"]
    return attended


def _gelu(x: Floats) -> Floats:
    curved: Floats = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    return curved


def _recur(weights: Weights, x: Floats) -> Floats:
    """The last state of a GRU, mapped to the width of x, [d]."""
    state = np.zeros(len(weights["gru.state"]))
    for inputs in x @ weights["gru.input"] + weights["gru.input_bias"]:
        reset, update, new = np.split(inputs, 3)
        from_reset, from_update, from_new = np.split(state @ weights["gru.state"] + weights["gru.state_bias"], 3)
        blend = sigmoid(update + from_update)
        state = blend * state + (1 - blend) * np.tanh(new + sigmoid(reset + from_reset) * from_new)
    return state @ weights["gru.output"] + weights["gru.output_bias"]


def sigmoid(x: Floats) -> Floats:
    """1 / (1 + exp(-x)), without overflow."""
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e))
