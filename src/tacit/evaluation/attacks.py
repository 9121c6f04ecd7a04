"""Attacks on uploads: what somebody who reads one upload, or a sum of a few, learns about the people behind it.

An attack gives every item a number, larger where a person more likely has it, and perhaps a list of its own. It knows
what the server knows: the method's messages, what was downloaded, and how many people have each item.
    rows    what does not stay where it was was touched: the length of every row's change
    sign    a factor model moves what people have along +u and drawn negatives along -u: the first singular vector,
            turned the way of popular items, or of the fewer
    decay   of a method that shrinks every row (FedRAP): the common factor is estimated, and what is left is attacked
    read    of messages that are counts: they are read
    lists   of FedALS's sums: the lists of all people in a sum, separated (evaluation/separation.py)
Each is also tried together with popularity, which is what helps against noise and sums. Nothing here draws.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from .separation import counted, factors, separated

Array = NDArray[np.float64]
POPULARITY, LISTS = "popularity", "lists"
WITH = (0.3, 1.0, 3.0)  # how much popularity counts beside what an upload tells, both as z-scores
CLEAR = 2.0  # standard errors by which popular items must be on one side
FAINT = 1e-3  # of the largest changes: what is smaller is rounding


@dataclass(frozen=True, eq=False)
class Known:
    """What an attacker has beside the upload."""

    items: int
    popularity: Array  # [items] people who have it
    shared: Mapping[str, NDArray] = field(default_factory=dict)  # what was downloaded
    means: Array | None = None  # [items] mean rating, where there are ratings
    spread: float = 1.0  # of one person's ratings, usually
    scale: tuple[float, float] = (0.0, 1.0)
    step: float = 0.0  # between two ratings that are possible; 0: any number is


class Guess(NamedTuple):
    scores: Array  # [items]
    picks: NDArray[np.bool_] | None = None  # [items]: a list of its own; None: the best scores, as many as told
    lists: NDArray[np.bool_] | None = None  # [people, items]: lists of the people of a sum, without names

    def about(self, items: int) -> Guess:
        """The guess about a person with so many items: of lists without names, the one of the nearest length."""
        if self.lists is None or not len(self.lists):
            return self
        mine = self.lists[int(np.argmin(np.abs(self.lists.sum(1) - items)))]
        return Guess(mine.astype(np.float64), mine)


def attacks(total: Mapping[str, NDArray], known: Known) -> dict[str, Guess]:
    """Every attack on one upload, or on a sum of several, by name."""
    found = {POPULARITY: Guess(known.popularity)}
    prior = _z(np.log1p(known.popularity))
    for name, guess in _alone(total, known):
        found[name] = guess
        if guess.picks is None:
            found |= {f"{name} + {w:g} popularity": Guess(_z(guess.scores) + w * prior) for w in WITH}
    return found


class Merged:
    """The guesses of several rounds about the same people, one for each attack: the mean of its standardised scores
    over the rounds in which it applies, what at least half of its own lists name, and all lists without names."""

    def __init__(self) -> None:
        self.scores: dict[str, Array] = {}
        self.votes: dict[str, Array] = {}
        self.lists: dict[str, list[NDArray[np.bool_]]] = {}
        self.rounds: dict[str, int] = {}

    def add(self, guesses: Mapping[str, Guess]) -> None:
        for name, guess in guesses.items():
            self.scores[name] = self.scores.get(name, 0.0) + _z(guess.scores)
            self.rounds[name] = self.rounds.get(name, 0) + 1
            if guess.picks is not None:
                self.votes[name] = self.votes.get(name, 0.0) + guess.picks.astype(np.float64)
            if guess.lists is not None:
                self.lists.setdefault(name, []).append(guess.lists)

    def guesses(self) -> dict[str, Guess]:
        return {
            name: Guess(
                scores / self.rounds[name],
                self.votes[name] >= self.rounds[name] / 2 if name in self.votes else None,
                np.concatenate(self.lists[name]) if name in self.lists else None,
            )
            for name, scores in self.scores.items()
        }


def alone(name: str) -> bool:
    """Whether an attack reads nothing but the upload."""
    return POPULARITY not in name


def _alone(total: Mapping[str, NDArray], known: Known) -> Iterator[tuple[str, Guess]]:
    tables = {name: np.asarray(value, np.float64) for name, value in total.items() if value.ndim}
    for name, value in tables.items():
        if (read := _read(name, value, known.items)) is not None:
            yield f"read {name}", Guess(read)
        if name == "gram" and "popular" in known.shared:
            yield f"sign of {name}", Guess(_head(value, known))
        if len(value) != known.items or value.ndim < 2:
            continue
        flat = value.reshape(known.items, -1)
        if name == "sums" and factors(flat.shape[1]):
            yield f"{LISTS} of {name}", Guess(np.zeros(known.items), np.zeros(known.items, bool), separated(flat))
        yield from _of_rows(name, flat, known)
        table = known.shared.get(name)
        if table is not None and table.shape == value.shape:
            base = table.reshape(known.items, -1).astype(np.float64)
            whole = flat + float(total.get("decay", 0.0)) * base  # the table as the server has it
            yield from _of_rows(name, whole - decay(whole, base) * base, known, "decay of ")


def _of_rows(name: str, change: Array, known: Known, how: str = "") -> Iterator[tuple[str, Guess]]:
    length = np.sqrt((change**2).sum(1))
    if change.shape == (known.items, known.items):  # items x items: what is touched is touched both ways
        length = length + np.sqrt((change**2).sum(0))
    yield f"{how}rows of {name}", Guess(length)
    touched = length > FAINT * np.sort(length)[-10:].mean()
    yield f"{how}rows of {name}, own list", Guess(length, touched)
    if name in known.shared:
        along = sign(change, touched, known.popularity)
        yield f"{how}sign of {name}", Guess(along)
        yield f"{how}sign of {name}, own list", Guess(along, touched & (along > 0))


def sign(change: Array, touched: NDArray[np.bool_], popularity: Array) -> Array:
    """The change [items, k] along its first singular vector, [items]; turned the way that popular items take, as drawn
    negatives are as popular as anything; where that is not clear, the way that fewer take."""
    along = change @ np.linalg.eigh(change.T @ change)[1][:, -1]
    moved, liked = along[touched], np.log1p(popularity[touched])
    spread = float(np.sqrt((moved**2).sum() * ((liked - liked.mean()) ** 2).sum())) if len(moved) else 0.0
    clear = float(moved @ (liked - liked.mean())) / spread * np.sqrt(len(moved)) if spread > 0 else 0.0
    if abs(clear) < CLEAR:
        clear = float((moved < 0).sum() - (moved > 0).sum())
    return np.asarray(-along if clear < 0 else along)


def decay(change: Array, table: Array) -> float:
    """The factor a of change = a x table + what was learnt, from the rows that nothing else moved: most rows give
    nearly the same a, so it is the middle of the narrowest few of all estimates."""
    square = (table**2).sum(1)
    each = np.sort(((change * table).sum(1) / np.where(square > 0, square, 1.0))[square > 0])
    if not len(each):
        return 0.0
    width = max(3, len(each) // 50)
    if len(each) <= width:
        return float(np.median(each))
    start = int(np.argmin(each[width - 1 :] - each[: len(each) - width + 1]))
    return float(np.median(each[start : start + width]))


def _read(name: str, value: Array, items: int) -> Array | None:
    """How many people have each item, where a message says so."""
    if value.shape == (items,):
        return value
    if name == "sums" and value.ndim == 2 and counted(value.shape[1]):  # FedALS: the last column counts
        return value[:, -1]
    if value.shape == (items * (items + 1) // 2,) and items > 1:  # the upper half of x x': its diagonal
        return value[np.concatenate([[0], np.cumsum(np.arange(items, 1, -1))])]
    return None


def _head(value: Array, known: Known) -> Array:
    """FedVeil's second message: the upper half of r r' over the most popular items, where r is above zero for what a
    person has. r is the first eigenvector."""
    size = int((np.sqrt(8 * len(value) + 1) - 1) / 2)
    square = np.zeros((size, size))
    square[np.triu_indices(size)] = value
    square = np.diag(np.diag(square)) + (np.triu(square, 1) + np.triu(square, 1).T) / np.sqrt(2)
    along = np.linalg.eigh(square)[1][:, -1]
    head = np.sort(np.argsort(-np.asarray(known.shared["popular"], np.float64), kind="stable")[:size])
    out = np.full(known.items, min(float(along.min()), -float(along.max())))
    out[head] = along if along.max() >= -along.min() else -along  # few items are far above, many a little below
    return out


def _z(scores: Array) -> Array:
    spread = scores.std()
    return (scores - scores.mean()) / (spread if spread > 0 else 1.0)


def stars(total: Mapping[str, NDArray], known: Known) -> Array | None:
    """What one person rated, [items]: NaN where the upload is silent; None where no attack is known. The person's own
    mean is unknown to every attack but the first, and taken as that of the items."""
    value = {name: np.asarray(part, np.float64) for name, part in total.items()}
    if known.means is None:
        return None
    if {"stars", "count"} <= value.keys():  # popularity: the ratings themselves
        taken = value["count"] > value["count"].max() / 2  # clipped or not
        return _clipped(np.where(taken, value["stars"] / np.where(taken, value["count"], 1.0), np.nan), known)
    if "sums" in value and counted(value["sums"].shape[1]):
        # FedALS: r x, where the last entry of x is 1, so that r is what is left of a rating
        taken = value["sums"][:, -1] > value["sums"][:, -1].max() / 2
        left = value["sums"][:, -2] / np.where(taken, value["sums"][:, -1], 1.0)
        return _placed(left, taken, known, known.step)
    if {"item", "item_bias"} <= value.keys() & known.shared.keys():
        return _residuals(value["item"], value["item_bias"], known)
    return None


def _residuals(item: Array, bias: Array, known: Known) -> Array:
    """A step moves an item's bias by its residual and its row by residual x u. So u is known up to its size, with it
    what was predicted, and a rating is that + residual. How far a residual moves a bias depends on the rates: the
    ratings are given the usual spread."""
    taken = np.abs(bias) > FAINT * np.sort(np.abs(bias))[-10:].mean()
    square = float((bias[taken] ** 2).sum())
    if square == 0 or taken.sum() < 2:
        return np.full(known.items, np.nan)
    user = bias[taken] @ item[taken] / square
    told = known.shared["item"].astype(np.float64) @ user + known.shared["item_bias"]
    gap = bias / max(float(bias[taken].std()), 1e-30)
    sizes = np.geomspace(0.03, 3, 60) * known.spread
    misfit = [abs(float((told + size * gap)[taken].std()) - known.spread) for size in sizes]
    return _placed(told + sizes[int(np.argmin(misfit))] * gap, taken, known)


def _placed(values: Array, taken: NDArray[np.bool_], known: Known, step: float = 0.0) -> Array:
    """Ratings that are known but for a constant: it is such that their mean is that of the items. Where they are exact
    and only every `step` is possible, it is the nearest to that with which all are possible."""
    assert known.means is not None
    if not taken.any():
        return np.full(len(values), np.nan)
    shift = float((known.means[taken] - values[taken]).mean())
    if step:
        turn = np.exp(2j * np.pi * (values[taken] + shift - known.scale[0]) / step).mean()
        shift -= float(np.angle(turn)) / (2 * np.pi) * step
        low, high = values[taken].min() + shift - known.scale[0], known.scale[1] - values[taken].max() - shift
        shift += step * (max(0, round(-low / step)) - max(0, round(-high / step)))
    return _clipped(np.where(taken, values + shift, np.nan), known)


def _clipped(values: Array, known: Known) -> Array:
    return np.clip(values, *known.scale)


class Ranked(NamedTuple):
    """Several guesses, ready to be held against people's lists."""

    names: list[str]
    rank: Array  # [attacks, items] from 1, of ties the mean
    sorted: Array  # the same, ascending
    picks: NDArray[np.bool_]  # [attacks, items]
    own: NDArray[np.bool_]  # [attacks]: whether the guess is `picks`

    @staticmethod
    def of(guesses: Mapping[str, Guess]) -> Ranked:
        scores = np.stack([guess.scores for guess in guesses.values()])
        lists = [guess.picks for guess in guesses.values()]
        picks = np.stack([np.zeros(scores.shape[1], bool) if own is None else own for own in lists])
        rank = rankdata(scores, axis=1)
        return Ranked(list(guesses), rank, np.sort(rank, 1), picks, np.array([own is not None for own in lists]))


def judged(
    guesses: Mapping[str, Guess], ranked: Ranked, truth: NDArray[np.integer], near: NDArray[np.integer]
) -> Array:
    """As `judge`; `ranked` are the guesses, and those with lists of several people are made about this person."""
    values = judge(ranked, truth, near)
    for place, guess in enumerate(guesses.values()):
        if guess.lists is not None:
            values[place] = judge(Ranked.of({"": guess.about(len(truth))}), truth, near)[0]
    return values


def judge(guesses: Ranked, truth: NDArray[np.integer], near: NDArray[np.integer]) -> Array:
    """[attacks, 3] against one person's list: F1; AUC of what they have against what they have not; AUC against what is
    as popular (`near`, by `neighbours`), where popularity alone gives one half."""
    rank, n = guesses.rank, len(truth)
    items = rank.shape[1]
    listed = 2 * guesses.picks[:, truth].sum(1) / (guesses.picks.sum(1) + n)
    f1 = np.where(guesses.own, listed, best(guesses, truth))
    sums = rank[:, truth].sum(1) - n * (n + 1) / 2
    auc = sums / (n * (items - n)) if 0 < n < items else np.full(len(rank), 0.5)
    mine, above, below = (rank[:, near[:, side]] for side in range(3))
    wins = (np.sign(mine - above) + np.sign(mine - below)) / 4 + 0.5
    return np.stack([f1, auc, wins.mean(1) if len(near) else np.full(len(rank), 0.5)], 1)


def best(guesses: Ranked, truth: NDArray[np.integer]) -> Array:
    """[attacks]: F1 of the n items that rank best, n the length of the list; where the last of them is one of several
    equals, what a fair draw would give."""
    n = len(truth)
    edge = guesses.sorted[:, -n, None]
    above, tied = (guesses.rank > edge).sum(1), (guesses.rank == edge).sum(1)
    mine = guesses.rank[:, truth]
    return np.asarray(((mine > edge).sum(1) + (n - above) / tied * (mine == edge).sum(1)) / n, np.float64)


def neighbours(truth: NDArray[np.integer], popularity: Array) -> NDArray[np.int64]:
    """[n, 3]: an item of the list, and the next more and the next less popular that are not on it, so that popularity
    is right as often as wrong. What has no two such neighbours is left out."""
    order = np.lexsort((np.arange(len(popularity)), popularity))
    have = np.zeros(len(popularity), bool)
    have[truth] = True
    free = np.flatnonzero(~have[order])  # places in the order, ascending
    place = np.flatnonzero(have[order])
    at = np.searchsorted(free, place)
    inside = (at > 0) & (at < len(free))
    at, place = at[inside], place[inside]
    return np.stack([order[place], order[free[at]], order[free[at - 1]]], 1) if len(at) else np.zeros((0, 3), np.int64)
