"""Read ratings as likes and dislikes, for a model that ranks; web/lists.js has the same rule for the page's import.

A rating below the middle of the scale of the file is a dislike, any other a like. The scale begins at 0 and ends at 1
where all ratings are 0 or 1, otherwise at the first of 5, 10 and 100 that no rating exceeds. On a scale that ends above
1 a rating of 0 is no opinion: services export it for what was not rated.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtaste.errors import DataError

TOPS = (5, 10, 100)


class Opinions(NamedTuple):
    """What ratings say, and the rule in words."""

    likes: NDArray[np.bool_]
    dislikes: NDArray[np.bool_]
    rule: str


def read_opinions(ratings: NDArray[np.floating]) -> Opinions:
    """Likes and dislikes by the rule of this module.

    >>> read_opinions(np.array([5.0, 2.5, 2.0, 0.5, 0.0])).likes.tolist()
    [True, True, False, False, False]
    """
    if np.isin(ratings, (0, 1)).all():
        return Opinions(ratings == 1, ratings == 0, "Ratings of 0 and 1: 1 is a like, 0 a dislike.")
    if ratings.min() < 0 or ratings.max() > TOPS[-1]:
        worst = ratings.min() if ratings.min() < 0 else ratings.max()
        raise DataError(
            f"Ratings must be from 0 to {TOPS[-1]} to be read as likes and dislikes, got {worst:g}. Leave the column "
            "out if the file holds only likes."
        )
    top = next(top for top in TOPS if ratings.max() <= top)
    rule = f"Ratings from 0 to {top}: from {top / 2:g} on a like, below that a dislike; 0 is no rating."
    return Opinions(ratings >= top / 2, (ratings < top / 2) & (ratings > 0), rule)
