"""Separate one sum of FedALS uploads into the item lists of the people behind it, by tensor decomposition.

A person with the vector u adds upper(u u') to the row of every item that they have, so the row of item j is a matrix
M_j = sum over people of x_pj u_p u_p'. With no more people than factors the u_p are linearly independent, and two
weighted sums of rows, A = U diag(a) U' and B = U diag(b) U', have them as their common directions: whitening by B makes
A symmetric with eigenvectors that belong to one person each (Jennrich's algorithm). Every row is then a least-squares
problem for x_pj, whose solution is 0 or 1 / (items of that person). One round is enough; names are not recovered.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
SMALL = 1e-6  # eigenvalues below this share of the largest are rounding
CLEAR = 1e-4  # mean distance of a solution to 0 or 1 at which no other weights are tried
TRIES = 4  # random weights; the solution nearest to 0 and 1 wins


def factor_count(width: int) -> int:
    """The number of factors p of a table with p (p + 1) / 2 + p numbers a row, with or without a count; 0 for others.

    >>> factor_count(32 * 33 // 2 + 32 + 1), factor_count(32 * 33 // 2 + 32), factor_count(7)
    (32, 32, 0)
    """
    for rest in (0, 1):
        p = int((np.sqrt(9 + 8 * (width - rest)) - 3) / 2 + 0.5)
        if p > 1 and p * (p + 3) // 2 + rest == width:
            return p
    return 0


def has_count(width: int) -> bool:
    """Whether such a table has a count in its last column, which FedALS may send in the first round only.

    >>> has_count(32 * 33 // 2 + 32 + 1), has_count(32 * 33 // 2 + 32)
    (True, False)
    """
    p = factor_count(width)
    return p > 0 and p * (p + 3) // 2 < width


def _symmetric(flat: Array, p: int) -> Array:
    """[n, p (p + 1) / 2] -> symmetric [n, p, p]."""
    i, j = np.triu_indices(p)
    out = np.zeros((len(flat), p, p))
    out[:, i, j] = flat
    out[:, j, i] = flat
    return out


def separate_lists(sums: Array, seed: int = 0) -> NDArray[np.bool_]:
    """[people, items]: the lists of the people in a sum; [0, items] where nothing can be separated."""
    p = factor_count(sums.shape[1])
    outer = np.asarray(sums[:, : p * (p + 1) // 2], np.float64)
    i, j = np.triu_indices(p)
    values, vectors = np.linalg.eigh(_symmetric(outer.sum(0)[None], p)[0])
    used = values > SMALL * max(float(values[-1]), 0.0)
    if not used.any() or not np.isfinite(outer).all():
        return np.zeros((0, len(sums)), bool)
    root = np.sqrt(values[used])
    white, back = vectors[:, used] / root, vectors[:, used] * root
    best, least = np.zeros((int(used.sum()), len(sums)), bool), np.inf
    for weights in np.random.default_rng(seed).standard_normal((TRIES, len(sums))):
        other = _symmetric((weights @ outer)[None], p)[0]
        people = back @ np.linalg.eigh(white.T @ other @ white)[1]  # [p, people], up to length
        lifted = people[i] * people[j]  # [p (p + 1) / 2, people]
        shares = np.linalg.pinv(lifted) @ outer.T
        units = shares / np.maximum(shares.max(1, keepdims=True), 1e-300)
        misfit = float(np.minimum(np.abs(units), np.abs(units - 1)).mean())
        if misfit < least:
            best, least = units > 0.5, misfit
        if least < CLEAR:
            break
    return best
