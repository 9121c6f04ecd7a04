"""Compute a person's vector from shared parameters and their likes (Recipe), by arithmetic that a browser can do.

    features f_j = [v_j, 1?]     score_j = f_j . u + o_j          v: the item table, o: offsets (ratings), u: the person

    ridge      u = [alpha0 V'V + sum w f f' + lam (sum w + prior) I]^-1 sum w f (target - o)
    descent    `rounds` times `passes` over the examples in batches, u -= lr gradient; with `moves` the rows of the
               examples move along and are thrown away, as on a device that takes part and sends nothing

    sequence   u = the last state of a network over the likes in their order (sequence_state.py)

    trail      score_j += sum over likes i of w_i N[i, j]     N: the trail table, w: weights by age, or all 1
               beside a solved vector both parts are z-scores over the catalogue: (score - mean) / spread
               beside a sequence the sum t_j enters as alpha log(t_j + eps)

A method whose people can be rebuilt in this way has a Recipe. `rebuild` computes it in Python, web/worker.js in
JavaScript; both use double precision and draw the same negatives. A dislike is one more example, with target 0 and the
weight of a like; in the trail and in a sequence it counts nothing. This module needs no torch.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtaste.data.mixing import splitmix
from fedtaste.recipe import Recipe, SequenceRecipe, TrailRecipe
from fedtaste.serving.sequence_state import Weights, last_state, sigmoid

Floats = NDArray[np.float64]
Items = NDArray[np.int64]
SERVE = 6  # the stream of draws for serving, of data/sampling.py, which is not imported as it needs torch
LEAN = 0.5  # exponent of the popularity rank where `adventurous` is 1


class TrailTable(NamedTuple):
    """The trail table N by rows, with the largest entries of every row."""

    at: Items  # [m, width] column numbers, each at most once in a row
    values: Floats  # [m, width]

    def scores(self, likes: Items, weights: Floats) -> Floats:
        """The sum of weights[i] N[likes[i]] over the likes, for the whole catalogue."""
        sums = np.bincount(self.at[likes].ravel(), (weights[:, None] * self.values[likes]).ravel(), len(self.at))
        return sums.astype(np.float64)

    def entries(self, items: Items, likes: Items) -> Floats:
        """N[like, item] for [items, likes]."""
        rows = [(self.values[likes] * (self.at[likes] == item)).sum(1) for item in items]
        return np.array(rows).reshape(len(items), len(likes))


class Tables(NamedTuple):
    """The shared parameters that a person is rebuilt from."""

    item: Floats  # [m, k]
    offset: Floats | None  # [m]
    ones: bool  # a constant 1 is a feature too
    trail: TrailTable | None = None
    network: Weights | None = None  # the parameters of a sequence network, by name

    def features(self, items: Items) -> Floats:
        rows = self.item[items]
        return np.concatenate([rows, np.ones((len(rows), 1))], 1) if self.ones else rows

    def offsets(self, items: Items) -> Floats:
        return np.zeros(len(items)) if self.offset is None else self.offset[items]

    def scores(self, user: Floats) -> Floats:
        """Scores of the whole catalogue, without the trail."""
        out = self.item @ user[: self.item.shape[1]]
        out = out + user[-1] if self.ones else out
        return out if self.offset is None else out + self.offset


class Taste(NamedTuple):
    """The items that a person likes (or rates), oldest first, each once; and the items that they dislike. A sequence
    network reads likes in this order whether it is one of time or not."""

    likes: Items
    values: Floats
    dislikes: Items
    timed: bool = False  # whether the likes are in order of time


class Person(NamedTuple):
    """A rebuilt person. Like i has the share pulls[i] . f_j + weights[i] N[i, j] in the score of item j.

    Of a sequence nobody knows the share of a like in the network's part. There the share is the like's in the trail, or
    without a trail the cosine of the two item vectors (times the length of one).
    """

    user: Floats
    pulls: Floats  # [likes, p]
    weights: Floats | None = None  # [likes] of the rows of the trail table
    level: float = 0.0  # subtracted from every score, so that z-scores have mean 0
    sequence: SequenceRecipe | None = None


def gram_matrix(recipe: Recipe, tables: Tables) -> Floats | None:
    """alpha0 V'V, computed once for all people."""
    return recipe.alpha0 * tables.item.T @ tables.item if recipe.alpha0 else None


def rebuild(recipe: Recipe, tables: Tables, gram: Floats | None, taste: Taste) -> Person | None:
    """The person, or None where there are no likes or the arithmetic fails."""
    if not len(taste.likes):
        return None
    if recipe.sequence is not None:
        return _read_sequence(recipe.sequence, recipe.trail, tables, taste)
    if recipe.solver == "none":
        width = tables.item.shape[1]
        person: Person | None = Person(np.zeros(width), np.zeros((len(taste.likes), width)))
    else:
        person = _ridge(recipe, tables, gram, taste) if recipe.solver == "ridge" else _descent(recipe, tables, taste)
    if person is None or not np.isfinite(person.user).all():
        return None
    return _with_trail(recipe, recipe.trail, tables, taste, person) if recipe.trail else person


def person_scores(tables: Tables, taste: Taste, person: Person) -> Floats:
    """A person's scores of the whole catalogue."""
    scores = tables.scores(person.user)
    if tables.trail is None or person.weights is None:
        return scores
    trail = tables.trail.scores(taste.likes, person.weights)
    if person.sequence is not None:
        return scores + person.sequence.alpha * np.log(trail + person.sequence.eps)
    return scores + trail - person.level


def like_shares(tables: Tables, taste: Taste, person: Person, items: Items) -> Floats:
    """The share of each like in the scores of these items, [items, likes]."""
    shares = tables.features(items) @ person.pulls.T
    if tables.trail is None or person.weights is None:
        return shares
    return shares + tables.trail.entries(items, taste.likes) * person.weights


def strongest_likes(shares: Floats, taste: Taste, scale: tuple[float, float], most: int) -> list[list[int]]:
    """For each item of `shares` [items, likes] the likes that add most to its score; of ratings, only good ones."""
    good = taste.values > sum(scale) / 2
    positive = np.where(good & (shares > 0), shares, 0.0)
    order = np.argsort(-positive, axis=1, kind="stable")[:, :most]
    counted = np.take_along_axis(positive, order, axis=1) > 0
    return [
        [like for like, counts in zip(*row) if counts] for row in zip(taste.likes[order].tolist(), counted.tolist())
    ]


def _with_trail(recipe: Recipe, trail: TrailRecipe, tables: Tables, taste: Taste, person: Person) -> Person:
    """The person with weights of the likes' rows in the trail table; beside a vector, both parts are z-scores.

    A z-score is linear in the score, so dividing a part by its spread divides the share of every like by it.
    """
    assert tables.trail is not None
    weights = _weights_by_age(trail, len(taste.likes)) if taste.timed else np.ones(len(taste.likes))
    if recipe.solver == "none":
        return person._replace(weights=weights)
    parts = tables.scores(person.user), tables.trail.scores(taste.likes, weights)
    first, second = (float(part.std()) or 1.0 for part in parts)
    level = float(parts[0].mean() / first + parts[1].mean() / second)
    return Person(person.user / first, person.pulls / first, weights / second, level)


def _weights_by_age(trail: TrailRecipe, likes: int) -> Floats:
    """The weights of so many likes in the trail, oldest first."""
    ages = np.arange(likes)[::-1]
    weights: Floats = trail.mix * trail.fast**ages + (1 - trail.mix) * trail.slow**ages
    weights[ages >= (trail.reach or likes)] = 0.0
    return weights


def _read_sequence(sequence: SequenceRecipe, trail: TrailRecipe | None, tables: Tables, taste: Taste) -> Person | None:
    """The person as the last state of a sequence network."""
    assert tables.network is not None
    x = sequence.embedded * tables.item[taste.likes[-sequence.length :]]
    user, rows = last_state(sequence, tables.network, x), tables.item[taste.likes]
    if not np.isfinite(user).all():
        return None
    if trail is not None:
        weights = _weights_by_age(trail, len(taste.likes))
        return Person(user, np.zeros_like(rows), weights, sequence=sequence)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return Person(user, rows / np.where(lengths > 0, lengths, 1.0), sequence=sequence)


def _ridge(recipe: Recipe, tables: Tables, gram: Floats | None, taste: Taste) -> Person | None:
    items, targets = _examples(recipe, tables, taste, recipe.first)
    weights = np.ones(len(items))
    if taste.timed and recipe.examples == "history":
        ages = np.arange(len(taste.likes))[::-1]
        weights[: len(ages)] = recipe.floor + (1 - recipe.floor) * recipe.recency**ages
    f = tables.features(items)
    least = recipe.lam * (weights.sum() + recipe.prior)  # eigenvalue, where weights and alpha0 are not negative
    system = (f * weights[:, None]).T @ f
    system.ravel()[:: f.shape[1] + 1] += least  # the diagonal
    system = system if gram is None else system + gram
    right = weights * (targets - tables.offsets(items))
    if taste.timed or recipe.alpha0 < 0 or not least > 1e-9 * system.trace():
        try:
            np.linalg.cholesky(system)  # fails if the system is not positive definite
        except np.linalg.LinAlgError:
            return None
    solved = np.linalg.solve(system, f.T)  # [p, examples]
    return Person(solved @ right, _rows_of_likes(items, (solved * right).T, taste))


def _descent(recipe: Recipe, tables: Tables, taste: Taste) -> Person:
    user, k = np.array(recipe.start), tables.item.shape[1]
    slopes = np.zeros(len(tables.item))  # how far each item has moved the person, along its own features
    for round in range(recipe.rounds):
        items, targets = _examples(recipe, tables, taste, recipe.first + round)
        rows, at = np.unique(items, return_inverse=True)
        f, o, common, speed = tables.features(rows), tables.offsets(rows), 0.0, recipe.round_decay**round
        batch = recipe.batch or len(items)
        for begin in [*range(0, len(items), batch)] * recipe.passes:
            here, target = at[begin : begin + batch], targets[begin : begin + batch]
            score = f[here] @ user + o[here] + common
            error = sigmoid(score) - target if recipe.loss == "bce" else 2 * (score - target)
            by_row = np.bincount(here, error / len(here), len(rows))
            step = recipe.lr * speed
            keep = 1 - step * recipe.shrink
            moved = keep * user - step * (by_row @ f)
            slopes *= keep
            slopes[rows] -= step * by_row
            if recipe.moves:
                f[:, :k] -= step * by_row[:, None] * user[:k]
            if recipe.moves and tables.offset is not None:
                o, common = o - step * by_row, common - step * by_row.sum()
            user, speed = moved, speed * recipe.step_decay
    return Person(user, slopes[taste.likes][:, None] * tables.features(taste.likes))


def _examples(recipe: Recipe, tables: Tables, taste: Taste, draw: int) -> tuple[Items, Floats]:
    """(items, targets) that a device computes with; every dislike last, with target 0."""
    items, targets = taste.likes, taste.values
    if recipe.examples == "samples":
        items, targets = _samples(recipe, len(tables.item), taste, draw)
    return np.concatenate([items, taste.dislikes]), np.concatenate([targets, np.zeros(len(taste.dislikes))])


def _samples(recipe: Recipe, catalogue: int, taste: Taste, draw: int) -> tuple[Items, Floats]:
    """The likes and drawn negatives, shuffled: `samples` of data/sampling.py for one person, without compiled code."""
    key = _mix(_mix(_mix(int(recipe.seed), SERVE), draw), 0)
    mentioned = np.concatenate([taste.likes, taste.dislikes])
    missing = 0 if len(mentioned) >= catalogue else recipe.negatives * len(taste.likes)
    marked = np.zeros(catalogue, bool)
    marked[mentioned] = True
    parts, counter = [taste.likes], 0
    while missing:
        numbers = _numbers(key, counter, 2 * missing + 16) % np.uint64(catalogue)
        free = np.flatnonzero(~marked[numbers])[:missing]
        parts.append(numbers[free].astype(np.int64))
        missing -= len(free)
        counter += len(numbers) if missing else int(free[-1]) + 1
    items = np.concatenate(parts)
    targets = np.zeros(len(items))
    targets[: len(taste.likes)] = 1.0 if recipe.negatives else taste.values.astype(np.float32)
    places = np.arange(len(items) - 1, 0, -1)
    others = _numbers(key, counter, len(places)) % (places + 1).astype(np.uint64)
    order = list(range(len(items)))
    for place, other in zip(places.tolist(), others.tolist()):
        order[place], order[other] = order[other], order[place]
    return items[order], targets[order]


def _numbers(key: int, first: int, count: int) -> NDArray[np.uint64]:
    """The upper 53 bits of mix(key, counter) for so many counters, as in data/sampling.py."""
    base = np.uint64((key * 0x9E3779B97F4A7C15 + 0x632BE59BD9B4E019 + first) % 2**64)
    return splitmix(np.arange(count, dtype=np.uint64) + base) >> np.uint64(11)


def _mix(a: int, b: int) -> int:
    return int(splitmix(np.array([(a * 0x9E3779B97F4A7C15 + b + 0x632BE59BD9B4E019) % 2**64], np.uint64))[0])


def _rows_of_likes(items: Items, by_example: Floats, taste: Taste) -> Floats:
    """The rows of the likes, in their order; no item is an example and a dislike."""
    if np.array_equal(items[: len(taste.likes)], taste.likes):  # the history itself, which was not shuffled
        return by_example[: len(taste.likes)]
    order = np.argsort(items, kind="stable")
    return by_example[order[np.searchsorted(items[order], taste.likes)]]


def lean(scores: Floats, popularity: Floats, adventurous: float) -> Floats:
    """Scores leant towards (below 0) or away from (above 0) popular items.

    The distance of a score from the median of the catalogue is multiplied by rank^(LEAN adventurous), where the most
    popular item has rank 1 and equally popular items share a rank. An item below the median stays below it, so no lean
    recommends what does not suit the person. A rank tells the best-known items apart, which a popularity on a
    logarithmic scale hardly does: with that, the lists of people who like well-known titles stayed well-known.
    """
    if not adventurous:
        return scores
    rank = np.searchsorted(np.sort(-popularity), -popularity) + 1.0
    median = np.median(scores)
    leant: Floats = median + (scores - median) * rank ** (LEAN * adventurous)
    return leant


def densest_point(points: Floats) -> tuple[float, float]:
    """The one of these points [n, 2] around which the smallest circle holds more than half of them.

    A mean or a median of points may lie between two groups of them. Of equal points the first is taken; squared
    distances of whole numbers are exact, so that the page chooses the same point.
    """
    distances = ((points[:, None] - points[None]) ** 2).sum(2)
    x, y = points[np.argmin(np.sort(distances, axis=1)[:, len(points) // 2])]
    return float(x), float(y)
