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
) -> Items:
    """All items but the excluded ones, best first; equal scores stand in catalogue order, undefined scores last.

    Where `allowed` is given, only these items are listed.

    `groups` numbers the items that readers take for one, such as a film that the data holds twice under one title: only
    the best item of a group is listed, and a group with an excluded item is left out.

    >>> rank_items(np.array([0.5, 0.9, 0.5, 0.1]), excluded=[1]).tolist()
    [0, 2, 3]
    >>> rank_items(np.array([0.5, 0.9, 0.5, 0.1]), excluded=[1], groups=np.array([0, 1, 0, 1])).tolist()
    [0]
    >>> rank_items(np.array([0.5, 0.9, 0.5, 0.1]), excluded=[1], allowed=[3, 2, 1]).tolist()
    [2, 3]
    """
    out = np.zeros(len(scores), bool)
    out[np.asarray(excluded, np.int64)] = True
    if groups is not None:
        out = np.isin(groups, groups[out])
    if allowed is not None:
        out |= ~np.isin(np.arange(len(scores)), np.asarray(allowed, np.int64))
    left = np.flatnonzero(~out)
    order = left[np.argsort(-scores[left], kind="stable")]
    if groups is not None:
        order = order[np.sort(np.unique(groups[order], return_index=True)[1])]
    return order
