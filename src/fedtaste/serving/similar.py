"""Similar items: the cosine of item vectors, in Python without torch; web/worker.js computes the same on the page."""

from __future__ import annotations

import numpy as np

from fedtaste.evaluation.ranking import rank_items
from fedtaste.serving.rebuild import Floats, Items, Tables

DECIMALS = 9  # of a cosine: equal vectors have equal cosines, in whatever order a program adds up


def similar_items(tables: Tables, item: int, n: int, groups: Items | None = None) -> tuple[Items, Floats]:
    """(the n items whose vectors point most nearly in the direction of this item's vector, their cosines).

    The item itself and the items of its group (rank_items) are left out, and so are items with a zero vector, of which
    the model knows nothing. Equal cosines stand in catalogue order. An item with a zero vector has no similar items.

    >>> table = np.array([[1.0, 0.0], [2.0, 0.2], [0.0, 0.0], [0.0, 3.0]])
    >>> similar_items(Tables(table, None, False), 0, n=3)
    (array([1, 3]), array([0.99503719, 0.        ]))
    """
    length = np.linalg.norm(tables.item, axis=1)
    known = np.flatnonzero(length)
    if not length[item]:
        return known[:0], length[:0]
    cosines = np.full(len(length), -1.0)
    cosines[known] = (tables.item[known] @ (tables.item[item] / length[item]) / length[known]).round(DECIMALS)
    best = rank_items(cosines, [item], groups, known, n)
    return best, cosines[best]
