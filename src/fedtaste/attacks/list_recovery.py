"""Attacks that recover item lists and ratings from one upload, or from a sum of a few.

An attack gives every item a score, larger where a person more likely has it, and perhaps a list of its own. It knows
what the server knows: the method's messages, what was downloaded, and how many people have each item.
    rows    a row that changed was touched: the length of every row's change
    sign    a factor model moves items that people have along +u and sampled negatives along -u: the first singular
            vector, oriented towards popular items, or towards the fewer
    decay   of a method that shrinks every row (FedRAP): the common factor is estimated, and the rest is attacked
    read    messages that are counts are read
    lists   FedALS's sums are separated into the lists of all people in a sum (fedals_separation.py)
Each is also tried together with popularity, which helps against noise and sums. No attack uses random numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtaste.attacks.fedals_separation import factor_count, has_count, separate_lists

Array = NDArray[np.float64]
Tensors = Mapping[str, NDArray[Any]]
POPULARITY, READ, LISTS = "popularity", "read", "lists"  # parts of the names of attacks
POPULARITY_WEIGHTS = (0.3, 1.0, 3.0)  # of popularity against the score from an upload, both as z-scores
CLEAR = 2.0  # standard errors by which popular items must be on one side
FAINT = 1e-3  # of the largest changes: what is smaller is rounding


@dataclass(frozen=True, eq=False)
class Knowledge:
    """What an attacker knows beside the upload."""

    items: int
    popularity: Array  # [items] people who have it
    shared: Tensors = field(default_factory=dict)  # what was downloaded
    means: Array | None = None  # [items] mean rating, where there are ratings
    spread: float = 1.0  # typical standard deviation of one person's ratings
    scale: tuple[float, float] = (0.0, 1.0)
    step: float = 0.0  # between two ratings that are possible; 0: any number is


class Guess(NamedTuple):
    """What an attack believes about a person, or about the people of a sum."""

    scores: Array  # [items]
    picks: NDArray[np.bool_] | None = None  # [items]: a list of its own; None: the best scores
    lists: NDArray[np.bool_] | None = None  # [people, items]: lists of the people of a sum, without names

    def for_length(self, items: int) -> Guess:
        """The guess about a person with this many items: of lists without names, the one of the nearest length."""
        if self.lists is None or not len(self.lists):
            return self
        nearest = self.lists[int(np.argmin(np.abs(self.lists.sum(1) - items)))]
        return Guess(nearest.astype(np.float64), nearest)


def guess_items(total: Tensors, knowledge: Knowledge) -> dict[str, Guess]:
    """The guess of every attack on one upload, or on a sum of several, by the attack's name."""
    guesses = {POPULARITY: Guess(knowledge.popularity)}
    prior = _z_scores(np.log1p(knowledge.popularity))
    for name, guess in _upload_attacks(total, knowledge):
        guesses[name] = guess
        if guess.picks is None:
            scores = _z_scores(guess.scores)
            guesses |= {f"{name} + {w:g} popularity": Guess(scores + w * prior) for w in POPULARITY_WEIGHTS}
    return guesses


class MergedGuesses:
    """Merges the guesses of several rounds about the same people. For each attack: the mean of its standardised scores
    over the rounds in which it applies, the items that at least half of its own lists name, and all lists without
    names."""

    def __init__(self) -> None:
        self.scores: dict[str, Array] = {}
        self.votes: dict[str, Array] = {}
        self.lists: dict[str, list[NDArray[np.bool_]]] = {}
        self.rounds: dict[str, int] = {}

    def add(self, guesses: Mapping[str, Guess]) -> None:
        for name, guess in guesses.items():
            self.scores[name] = self.scores.get(name, 0.0) + _z_scores(guess.scores)
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


def _upload_attacks(total: Tensors, knowledge: Knowledge) -> Iterator[tuple[str, Guess]]:
    tables = {name: np.asarray(value, np.float64) for name, value in total.items() if value.ndim}
    for name, value in tables.items():
        if (counts := _counts(name, value, knowledge.items)) is not None:
            yield f"{READ} {name}", Guess(counts)
        if name == "gram" and "popular" in knowledge.shared:
            yield f"sign of {name}", Guess(_popular_items(value, knowledge))
        if len(value) != knowledge.items or value.ndim < 2:
            continue
        flat = value.reshape(knowledge.items, -1)
        if name == "sums" and factor_count(flat.shape[1]):
            nothing = np.zeros(knowledge.items)
            yield f"{LISTS} of {name}", Guess(nothing, nothing > 0, separate_lists(flat))
        yield from _row_attacks(name, flat, knowledge)
        table = knowledge.shared.get(name)
        if table is not None and table.shape == value.shape:
            base = table.reshape(knowledge.items, -1).astype(np.float64)
            change = flat + float(total.get("decay", 0.0)) * base  # of the table as the server has it
            yield from _row_attacks(name, change - decay(change, base) * base, knowledge, "decay of ")


def _row_attacks(name: str, change: Array, knowledge: Knowledge, prefix: str = "") -> Iterator[tuple[str, Guess]]:
    length = np.sqrt((change**2).sum(1))
    if change.shape == (knowledge.items, knowledge.items):  # items x items: rows and columns are touched together
        length = length + np.sqrt((change**2).sum(0))
    yield f"{prefix}rows of {name}", Guess(length)
    touched = length > FAINT * np.sort(length)[-10:].mean()
    yield f"{prefix}rows of {name}, own list", Guess(length, touched)
    if name in knowledge.shared:
        along = sign(change, touched, knowledge.popularity)
        yield f"{prefix}sign of {name}", Guess(along)
        yield f"{prefix}sign of {name}, own list", Guess(along, touched & (along > 0))


def sign(change: Array, touched: NDArray[np.bool_], popularity: Array) -> Array:
    """The change [items, k] along its first singular vector, [items], oriented towards popular items, because sampled
    negatives are as popular as any item; where that is not clear, towards the direction that fewer items take."""
    along = change @ np.linalg.eigh(change.T @ change)[1][:, -1]
    moved, liked = along[touched], np.log1p(popularity[touched])
    spread = float(np.sqrt((moved**2).sum() * ((liked - liked.mean()) ** 2).sum())) if len(moved) else 0.0
    clear = float(moved @ (liked - liked.mean())) / spread * np.sqrt(len(moved)) if spread > 0 else 0.0
    if abs(clear) < CLEAR:
        clear = float((moved < 0).sum() - (moved > 0).sum())
    return np.asarray(-along if clear < 0 else along)


def decay(change: Array, table: Array) -> float:
    """The factor a of change = a x table + what was learnt, from the rows that nothing else moved: most rows give
    nearly the same a, so it is the median of the densest estimates."""
    square = (table**2).sum(1)
    each = np.sort(((change * table).sum(1) / np.where(square > 0, square, 1.0))[square > 0])
    if not len(each):
        return 0.0
    width = max(3, len(each) // 50)
    if len(each) <= width:
        return float(np.median(each))
    start = int(np.argmin(each[width - 1 :] - each[: len(each) - width + 1]))
    return float(np.median(each[start : start + width]))


def _counts(name: str, value: Array, items: int) -> Array | None:
    """How many people have each item, where the message holds that."""
    if value.shape == (items,):
        return value
    if name == "sums" and value.ndim == 2 and has_count(value.shape[1]):  # FedALS: the last column counts
        return value[:, -1]
    if value.shape == (items * (items + 1) // 2,) and items > 1:  # the upper half of x x': its diagonal
        return np.asarray(value[np.concatenate([[0], np.cumsum(np.arange(items, 1, -1))])])
    return None


def _popular_items(value: Array, knowledge: Knowledge) -> Array:
    """FedVeil's second message: the upper half of r r' over the most popular items, where r is above zero for what a
    person has. r is the first eigenvector."""
    size = int((np.sqrt(8 * len(value) + 1) - 1) / 2)
    square = np.zeros((size, size))
    square[np.triu_indices(size)] = value
    square = np.diag(np.diag(square)) + (np.triu(square, 1) + np.triu(square, 1).T) / np.sqrt(2)
    along = np.linalg.eigh(square)[1][:, -1]
    head = np.sort(np.argsort(-np.asarray(knowledge.shared["popular"], np.float64), kind="stable")[:size])
    out = np.full(knowledge.items, min(float(along.min()), -float(along.max())))
    out[head] = along if along.max() >= -along.min() else -along  # few items are far above, many a little below
    return out


def _z_scores(scores: Array) -> Array:
    """Scores with mean 0 and standard deviation 1; equal scores become 0."""
    spread = scores.std()
    return np.asarray((scores - scores.mean()) / (spread if spread > 0 else 1.0))


def guess_ratings(total: Tensors, knowledge: Knowledge) -> Array | None:
    """One person's ratings, [items]: NaN where the upload says nothing; None where no attack is known. Only the first
    attack knows the person's own mean; the others take the mean of the items."""
    value = {name: np.asarray(part, np.float64) for name, part in total.items()}
    if knowledge.means is None:
        return None
    if {"stars", "count"} <= value.keys():  # popularity: the ratings themselves
        rated = value["count"] > value["count"].max() / 2  # clipped or not
        ratings = np.where(rated, value["stars"] / np.where(rated, value["count"], 1.0), np.nan)
        return np.clip(ratings, *knowledge.scale)
    if "sums" in value and has_count(value["sums"].shape[1]):
        # FedALS: r x, where the last entry of x is 1, so that r is the residual of a rating
        product, count = value["sums"][:, -2], value["sums"][:, -1]
        rated = count > count.max() / 2
        return _shifted(product / np.where(rated, count, 1.0), rated, knowledge, knowledge.step)
    if {"item", "item_bias"} <= value.keys() & knowledge.shared.keys():
        return _ratings_from_biases(value["item"], value["item_bias"], knowledge)
    return None


def _ratings_from_biases(item: Array, bias: Array, knowledge: Knowledge) -> Array:
    """A step moves an item's bias by its residual and its row by residual x u. So u is known up to its size, with it
    the prediction, and a rating is prediction + residual. How far a residual moves a bias depends on the learning
    rates, so the scale is chosen to give the ratings the usual spread."""
    rated = np.abs(bias) > FAINT * np.sort(np.abs(bias))[-10:].mean()
    square = float((bias[rated] ** 2).sum())
    if square == 0 or rated.sum() < 2:
        return np.full(knowledge.items, np.nan)
    user = bias[rated] @ item[rated] / square
    predicted = knowledge.shared["item"].astype(np.float64) @ user + knowledge.shared["item_bias"]
    gap = bias / max(float(bias[rated].std()), 1e-30)
    sizes = np.geomspace(0.03, 3, 60) * knowledge.spread
    misfit = [abs(float((predicted + size * gap)[rated].std()) - knowledge.spread) for size in sizes]
    return _shifted(predicted + sizes[int(np.argmin(misfit))] * gap, rated, knowledge)


def _shifted(values: Array, rated: NDArray[np.bool_], knowledge: Knowledge, step: float = 0.0) -> Array:
    """Ratings that are known up to a constant. The constant gives them the mean of the items; where they are exact and
    only every `step` is possible, it is the nearest one with which all ratings are possible."""
    assert knowledge.means is not None
    if not rated.any():
        return np.full(len(values), np.nan)
    shift = float((knowledge.means[rated] - values[rated]).mean())
    if step:
        turn = np.exp(2j * np.pi * (values[rated] + shift - knowledge.scale[0]) / step).mean()
        shift -= float(np.angle(turn)) / (2 * np.pi) * step
        low, high = values[rated].min() + shift - knowledge.scale[0], knowledge.scale[1] - values[rated].max() - shift
        shift += step * (max(0, round(-low / step)) - max(0, round(-high / step)))
    return np.clip(np.where(rated, values + shift, np.nan), *knowledge.scale)
