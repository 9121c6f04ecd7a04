"""2-D map of the catalogue: t-SNE of the item vectors' directions, so that items the model finds alike are close."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedtaste.evaluation.ranking import rank_items

MAPPED = 2_000  # most popular items, placed by t-SNE; the others are placed beside their nearest neighbours among them
REACH = 32_000  # largest coordinate, within int16
GOLDEN_ANGLE = 2.399963


def place(item: NDArray[np.float32], popularity: NDArray[np.uint8]) -> NDArray[np.int16]:
    """Place every item in the plane; coordinates [m, 2]."""
    length = np.linalg.norm(item, axis=1)
    direction = (item / np.maximum(length, 1e-12)[:, None]).astype(np.float32)
    order = rank_items(popularity.astype(np.float64))
    first, others = order[:MAPPED], order[MAPPED:]
    at = np.zeros((len(item), 2))
    at[first] = _tsne(direction[first])
    for part in np.array_split(others, max(1, len(others) // 2_000)):
        if len(part):
            near = np.argpartition(-(direction[part] @ direction[first].T), 2, axis=1)[:, :3]
            turn = GOLDEN_ANGLE * part  # small shifts in all directions, so that no two dots hide each other
            at[part] = at[first][near].mean(1) + 0.3 * np.stack([np.cos(turn), np.sin(turn)], 1)
    middle = (at.min(0) + at.max(0)) / 2
    widest = np.abs(at - middle).max() or 1.0
    places: NDArray[np.int16] = ((at - middle) / widest * REACH).round().astype(np.int16)
    return places


def _tsne(direction: NDArray[np.float32]) -> NDArray[np.float64]:
    """Coordinates by t-SNE; a line where there are too few items for it."""
    if len(direction) < 5:
        return np.stack([np.arange(len(direction)), np.zeros(len(direction))], 1).astype(np.float64)
    from sklearn.manifold import TSNE  # takes a second to import

    # Equal rows (items that nobody took are all zero) are moved a little apart: t-SNE divides by distances.
    apart = (direction + 1e-4 * np.random.default_rng(0).normal(size=direction.shape)).astype(np.float32)
    init = "pca" if direction.shape[1] > 1 else "random"
    tsne = TSNE(2, init=init, perplexity=min(30.0, (len(direction) - 1) / 3), max_iter=750, random_state=0)
    return np.nan_to_num(np.asarray(tsne.fit_transform(apart), np.float64))
