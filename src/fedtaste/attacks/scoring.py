"""Score guessed item lists against the truth: F1, AUC, and AUC against equally popular items."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtaste.attacks.list_recovery import Array, Guess


class RankedGuesses(NamedTuple):
    """Several guesses with the ranks of their scores."""

    names: list[str]
    rank: Array  # [attacks, items] from 1; ties have their mean rank
    sorted: Array  # the same, ascending
    picks: NDArray[np.bool_]  # [attacks, items]
    own: NDArray[np.bool_]  # [attacks]: whether the guess is `picks`

    @staticmethod
    def of(guesses: Mapping[str, Guess]) -> RankedGuesses:
        scores = np.stack([guess.scores for guess in guesses.values()])
        lists = [guess.picks for guess in guesses.values()]
        picks = np.stack([np.zeros(scores.shape[1], bool) if own is None else own for own in lists])
        rank = np.stack([mean_ranks(row) for row in scores])
        return RankedGuesses(list(guesses), rank, np.sort(rank, 1), picks, np.array([own is not None for own in lists]))


def mean_ranks(scores: Array) -> Array:
    """Ranks from 1 of one row of scores; ties have their mean rank. SciPy has it too, but takes a second to import.

    >>> mean_ranks(np.array([3.0, 1.0, 3.0])).tolist()
    [2.5, 1.0, 2.5]
    """
    _, places, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks: Array = (np.cumsum(counts) - (counts - 1) / 2)[places]
    return ranks


def score_guesses(
    guesses: Mapping[str, Guess], ranked: RankedGuesses, truth: NDArray[np.integer], near: NDArray[np.integer]
) -> Array:
    """As `score_ranked`, but of guesses with several lists the list that fits this person is scored."""
    values = score_ranked(ranked, truth, near)
    for place, guess in enumerate(guesses.values()):
        if guess.lists is not None:
            values[place] = score_ranked(RankedGuesses.of({"": guess.for_length(len(truth))}), truth, near)[0]
    return values


def score_ranked(guesses: RankedGuesses, truth: NDArray[np.integer], near: NDArray[np.integer]) -> Array:
    """[attacks, 3] against one person's list: F1; AUC of items they have against items they have not; AUC against
    equally popular items (`near`, by `popularity_neighbours`), where popularity alone gives one half."""
    rank, n = guesses.rank, len(truth)
    items = rank.shape[1]
    listed = 2 * guesses.picks[:, truth].sum(1) / (guesses.picks.sum(1) + n)
    f1 = np.where(guesses.own, listed, f1_of_best(guesses, truth))
    sums = rank[:, truth].sum(1) - n * (n + 1) / 2
    auc = sums / (n * (items - n)) if 0 < n < items else np.full(len(rank), 0.5)
    mine, above, below = (rank[:, near[:, side]] for side in range(3))
    wins = (np.sign(mine - above) + np.sign(mine - below)) / 4 + 0.5
    return np.stack([f1, auc, wins.mean(1) if len(near) else np.full(len(rank), 0.5)], 1)


def f1_of_best(guesses: RankedGuesses, truth: NDArray[np.integer]) -> Array:
    """[attacks]: F1 of the n items that rank best, n the length of the list. Where the last of them is one of several
    ties, the expectation over a fair draw."""
    n = len(truth)
    edge = guesses.sorted[:, -n, None]
    above, tied = (guesses.rank > edge).sum(1), (guesses.rank == edge).sum(1)
    mine = guesses.rank[:, truth]
    return np.asarray(((mine > edge).sum(1) + (n - above) / tied * (mine == edge).sum(1)) / n, np.float64)


def popularity_neighbours(truth: NDArray[np.integer], popularity: Array) -> NDArray[np.int64]:
    """[n, 3]: an item of the list, and the next more and the next less popular that are not on it, so that popularity
    is right as often as wrong. Items without two such neighbours are left out."""
    order = np.lexsort((np.arange(len(popularity)), popularity))
    owned = np.zeros(len(popularity), bool)
    owned[truth] = True
    free = np.flatnonzero(~owned[order])  # places in the order, ascending
    place = np.flatnonzero(owned[order])
    at = np.searchsorted(free, place)
    inside = (at > 0) & (at < len(free))
    at, place = at[inside], place[inside]
    return np.stack([order[place], order[free[at]], order[free[at - 1]]], 1) if len(at) else np.zeros((0, 3), np.int64)
