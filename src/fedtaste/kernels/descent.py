"""SGD on a factorisation for many people at once, compiled by Numba; methods/descent.py has the readable equivalent.

    score_j = <item_j, user> + bias;   e = (sigmoid(score) - target) / n, or 2 (score - target) / n;
    d user = sum e item_j;   d bias = sum e;   d item_j = e user + lam (item_j - centre_j)

All parameters of a step move from where they were before it. A batch of pure padding changes nothing. Every person is
computed by one thread in a fixed order, so the bytes do not depend on the number of threads.
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange
from numpy.typing import NDArray

Floats = NDArray[np.float32]
FAST = {"contract", "reassoc", "nsz", "arcp"}  # NaN and infinity keep their meaning
ONE, TWO = np.float32(1), np.float32(2)  # a bare 1 would make everything double


@njit(cache=True, nogil=True, parallel=True, fastmath=FAST, error_model="numpy")
def descend(
    item: Floats,  # [people, rows, k]
    user: Floats,  # [people, k]
    bias: Floats,  # [people]
    centre: Floats,  # [people, rows, k], or empty without a proximal term
    rates: Floats,  # [people, 3]: learning rate of user and bias, of item, weight of the proximal term
    inputs: NDArray[np.int64],  # [people, steps, batch]
    targets: Floats,
    mask: Floats,
    passes: int,
    moves: tuple[bool, bool, bool],  # whether item, user and bias move
    in_turn: bool,  # user and bias move first, and item after a fresh forward pass
    squared: bool,  # the loss is squared, otherwise binary cross-entropy
) -> None:
    """Descend in place, `passes` times over the batches."""
    people, steps, width = inputs.shape
    for person in prange(people):
        table, vector = item[person], user[person]
        error, towards = np.empty(width, np.float32), np.empty(len(vector), np.float32)
        lr, table_lr, lam = rates[person]
        for turn in range(passes * steps * (2 if in_turn else 1)):
            first, second = not in_turn or turn % 2 == 0, not in_turn or turn % 2 == 1
            at = (turn // 2 if in_turn else turn) % steps
            rows, real = inputs[person, at], mask[person, at]
            if real.sum() <= 0:
                continue
            db = _errors(table, vector, bias[person], rows, targets[person, at], real, squared, error, towards)
            if moves[0] and second:
                if centre.size:
                    pull = table_lr * lam
                    for row in range(len(table)):
                        for c in range(len(vector)):
                            table[row, c] -= pull * (table[row, c] - centre[person, row, c])
                for i in range(width):
                    if real[i] != 0:
                        step, row = table_lr * error[i], rows[i]
                        for c in range(len(vector)):
                            table[row, c] -= step * vector[c]
            if moves[1] and first:
                for c in range(len(vector)):
                    vector[c] -= lr * towards[c]
            if moves[2] and first:
                bias[person] -= lr * db


@njit(cache=True, nogil=True, parallel=True, fastmath=FAST, error_model="numpy")
def add_gradients(
    item: Floats, user: Floats, bias: Floats, inputs: NDArray[np.int64], targets: Floats, mask: Floats, squared: bool,
    d_item: Floats, d_user: Floats, d_bias: Floats,
) -> None:  # fmt: skip
    """Write the gradients of one batch [people, batch] by item, user and bias into arrays of zeros."""
    people, width = inputs.shape
    for person in prange(people):
        rows, real, error = inputs[person], mask[person], np.empty(width, np.float32)
        d_bias[person] = _errors(
            item[person], user[person], bias[person], rows, targets[person], real, squared, error, d_user[person]
        )
        for i in range(width):
            if real[i] != 0:
                for c in range(user.shape[1]):
                    d_item[person, rows[i], c] += error[i] * user[person, c]


@njit(cache=True, nogil=True, fastmath=FAST, error_model="numpy")
def _errors(
    table: Floats, vector: Floats, bias: np.float32, rows: NDArray[np.int64], targets: Floats, real: Floats,
    squared: bool, error: Floats, towards: Floats,
) -> np.float32:  # fmt: skip
    """Write the errors of a batch and the gradient of the vector; returns the gradient of the bias."""
    scale, total = ONE / max(real.sum(), ONE), np.float32(0)
    towards[:] = np.float32(0)
    for i in range(len(rows)):
        if real[i] == 0:
            continue
        row, score = rows[i], bias
        for c in range(len(vector)):
            score += table[row, c] * vector[c]
        slope = TWO * (score - targets[i]) if squared else ONE / (ONE + np.exp(-score)) - targets[i]
        error[i] = slope * real[i] * scale
        total += error[i]
        for c in range(len(vector)):
            towards[c] += error[i] * table[row, c]
    return total
