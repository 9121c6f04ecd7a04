"""A map of the catalogue: items that the model takes as alike stand close together (t-SNE of their directions)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

MAPPED = 4_000  # items that are placed by t-SNE; the less popular stand with their nearest neighbours of these
REACH = 32_000  # of int16


def place(item: NDArray[np.float32], popularity: NDArray[np.uint8]) -> NDArray[np.int16]:
    """A place for every item, [m, 2]."""
    length = np.linalg.norm(item, axis=1)
    way = (item / np.maximum(length, 1e-12)[:, None]).astype(np.float32)
    by_fame = np.lexsort((np.arange(len(item)), -popularity.astype(int)))
    first, others = by_fame[:MAPPED], by_fame[MAPPED:]
    at = np.zeros((len(item), 2))
    at[first] = _tsne(way[first])
    for part in np.array_split(others, max(1, len(others) // 2_000)):
        near = np.argpartition(-(way[part] @ way[first].T), 2, axis=1)[:, :3] if len(part) else np.zeros((0, 3), int)
        at[part] = at[first][near].mean(1) + _jitter(part)
    middle = (at.min(0) + at.max(0)) / 2
    widest = np.abs(at - middle).max() or 1.0
    return ((at - middle) / widest * REACH).round().astype(np.int16)


def _tsne(way: NDArray[np.float32]) -> NDArray[np.float64]:
    """Two dimensions; one or two where there are too few items for more."""
    if len(way) < 5:
        return np.stack([np.arange(len(way)), np.zeros(len(way))], 1).astype(np.float64)
    from sklearn.manifold import TSNE

    calm = min(30.0, (len(way) - 1) / 3)
    init = "pca" if way.shape[1] > 1 else "random"
    made = TSNE(2, init=init, perplexity=calm, max_iter=750, random_state=0).fit_transform(_apart(way))
    return np.nan_to_num(made).astype(np.float64)


def _apart(way: NDArray[np.float32]) -> NDArray[np.float32]:
    """Equal rows (items that nobody took are all zero) a hair apart: t-SNE divides by distances."""
    return (way + 1e-4 * np.random.default_rng(0).normal(size=way.shape)).astype(np.float32)


def _jitter(part: NDArray[np.int64]) -> NDArray[np.float64]:
    """A small shift of its own for every item, so that no two dots hide each other."""
    turn = 2.399963 * part  # the golden angle
    return 0.3 * np.stack([np.cos(turn), np.sin(turn)], 1)
