"""Rank the items of a catalogue by score: the one function behind every list of recommendations.

It needs NumPy only, so that a process that serves a bundle does not import torch.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Items = NDArray[np.int64]


def rank_items(
    scores: NDArray[np.floating],
    excluded: Sequence[int] | NDArray[np.integer] = (),
    groups: Items | None = None,
    allowed: Sequence[int] | NDArray[np.integer] | None = None,
    n: int | None = None,
) -> Items:
    """The n best items (None: all) but the excluded ones; equal scores stand in catalogue order, undefined scores last.

    Where `allowed` is given, only these items are listed.

    `groups` numbers the items that readers take for one, such as a film that the data holds twice under one title: only
    the best item of a group is listed, and a group with an excluded item is left out. The numbers are 0 or more.

    >>> rank_items(np.array([0.5, 0.9, 0.5, 0.1]), excluded=[1]).tolist()
    [0, 2, 3]
    >>> rank_items(np.array([0.5, 0.9, 0.5, 0.1]), excluded=[1], groups=np.array([0, 1, 0, 1])).tolist()
    [0]
    >>> rank_items(np.array([0.5, 0.9, 0.5, 0.1]), excluded=[1], allowed=[3, 2, 1]).tolist()
    [2, 3]
    >>> rank_items(np.array([0.5, 0.9, 0.5, 0.1]), n=2).tolist()
    [1, 0]
    """
    left = np.flatnonzero(listable(len(scores), excluded, groups, allowed))
    keys = -scores[left]
    if n is None or n >= len(left):
        return _one_of_each(left[np.argsort(keys, kind="stable")], groups)
    some = n
    while True:  # a group counts once, so that a few more items than n may be needed
        limit = np.partition(keys, some - 1)[some - 1]
        best = np.flatnonzero(keys <= limit) if limit == limit else np.arange(len(keys))  # noqa: PLR0124 (NaN)
        order = _one_of_each(left[best[np.argsort(keys[best], kind="stable")]], groups)
        if len(order) >= n or len(best) == len(left):
            return order[:n]
        some = min(2 * some, len(left))


def listable(
    size: int,
    excluded: Sequence[int] | NDArray[np.integer] = (),
    groups: Items | None = None,
    allowed: Sequence[int] | NDArray[np.integer] | None = None,
) -> NDArray[np.bool_]:
    """Which items of a catalogue of this size `rank_items` may list, [size]."""
    out = np.asarray(excluded, np.int64)
    if groups is None:
        left = np.ones(size, bool)
        left[out] = False
    else:
        of_groups = np.ones(int(groups.max(initial=0)) + 1, bool)
        of_groups[groups[out]] = False
        left = of_groups[groups]
    if allowed is not None:
        only = np.zeros(size, bool)
        only[np.asarray(allowed, np.int64)] = True
        left &= only
    return left


def _one_of_each(order: Items, groups: Items | None) -> Items:
    """The first item of every group, in order."""
    if groups is None:
        return order
    seen: dict[int, int] = {}
    for place, group in enumerate(groups[order].tolist()):
        seen.setdefault(group, place)
    return order if len(seen) == len(order) else order[list(seen.values())]
