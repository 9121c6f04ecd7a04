"""NeuMF's tables, read and changed by the examples of a cohort, compiled by Numba; methods/neumf_step.py has the layers
between.

An example is a row of a person: the item, the person, how often the person's examples name the item.
"""

from __future__ import annotations

import numpy as np
from numba import njit

FAST = {"contract", "reassoc", "nsz", "arcp"}  # NaN and infinity keep their meaning
ZERO = np.float32(0)


@njit(cache=True, nogil=True, fastmath=FAST, error_model="numpy")
def read_tables(items, owners, item_layer, user_layer, item_factors, user_factors, hidden, scores):
    """Write relu(item_layer + user_layer) into `hidden` and the product of the factors into `scores`, by row."""
    for row in range(len(items)):
        item, user, out = item_layer[items[row]], user_layer[owners[row]], hidden[row]
        for c in range(len(item)):
            total = item[c] + user[c]
            out[c] = ZERO if total <= ZERO else total  # NaN stays
        left, right, score = item_factors[items[row]], user_factors[owners[row]], ZERO
        for c in range(len(left)):
            score += left[c] * right[c]
        scores[row] = score


@njit(cache=True, nogil=True, fastmath=FAST, error_model="numpy")
def add_gradients(
    items, owners, error, hidden, d_hidden, item_factors, user_factors, d_item_layer, d_user_layer, d_item_factors,
    d_user_factors,
):  # fmt: skip
    """Add the gradients by the four tables of `read_tables`, for errors and gradients of `hidden` by row."""
    for row in range(len(items)):
        item, user, out, slope = d_item_layer[items[row]], d_user_layer[owners[row]], hidden[row], d_hidden[row]
        for c in range(len(item)):
            step = slope[c] if out[c] > ZERO else ZERO
            item[c] += step
            user[c] += step
        left, right, e = item_factors[items[row]], user_factors[owners[row]], error[row]
        d_left, d_right = d_item_factors[items[row]], d_user_factors[owners[row]]
        for c in range(len(left)):
            d_left[c] += e * right[c]
            d_right[c] += e * left[c]
