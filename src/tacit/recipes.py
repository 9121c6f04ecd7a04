"""Recipes: how one person is rebuilt from the shared parameters by arithmetic that a browser does as well.

    features f_j = [v_j, 1?]     score_j = f_j . u + o_j          v: the item table, o: offsets (ratings), u: the person

    ridge      u = [alpha0 V'V + sum w f f' + lam (sum w + prior) I]^-1 sum w f (target - o)
    descent    `rounds` times `passes` over the examples in batches, u -= lr slope; with `moves` the touched rows move
               along and are thrown away, as on a device that takes part and sends nothing

A method that can be rebuilt so names its Recipe. `rebuild` is what it means in Python, web/worker.js in JavaScript;
both are in double precision and draw the same negatives. A dislike is one more example, with target 0 and the weight
of a like. No torch is needed here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import numpy as np
from annotated_types import Ge, Le
from numpy.typing import NDArray
from pydantic import StringConstraints

if TYPE_CHECKING:
    from .core import Model

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Share = Annotated[float, Ge(0), Le(1)]
Count = Annotated[int, Ge(1), Le(1000)]


@dataclass(frozen=True)
class Recipe:
    """The numbers of a rebuild. What a method does not know (examples, seed, start) is filled in at export."""

    solver: Literal["ridge", "descent"]
    lam: Annotated[float, Ge(0)] = 0.0
    prior: Annotated[float, Ge(0)] = 0.0
    alpha0: Annotated[float, Ge(0)] = 0.0
    recency: Share = 1.0  # of an ordered list: the weight of a like is floor + (1 - floor) recency^age
    floor: Share = 0.0
    loss: Literal["bce", "squared"] = "squared"
    lr: Annotated[float, Ge(0), Le(1e6)] = 0.0
    passes: Count = 1
    rounds: Count = 1
    first: Annotated[int, Ge(0), Le(1)] = 0  # the number of the first draw
    moves: bool = False
    step_decay: Share = 1.0
    round_decay: Share = 1.0
    shrink: Share = 0.0
    examples: Literal["history", "samples"] = "history"
    negatives: Annotated[int, Ge(0), Le(100)] = 0
    batch: Annotated[int, Ge(0)] = 0
    seed: Annotated[str, StringConstraints(pattern="^[0-9]{1,20}$")] = "0"  # as text: numbers of JavaScript end at 2^53
    start: tuple[float, ...] = ()


def cost(model: Model) -> Literal["bce", "squared"]:
    """The loss of a factorisation."""
    return "bce" if model.loss_name == "bce" else "squared"


class Tables(NamedTuple):
    """The shared parameters that a person is rebuilt from."""

    item: Floats  # [m, k]
    offset: Floats | None  # [m]
    ones: bool  # a constant 1 is a feature too

    def features(self, at: Ints) -> Floats:
        rows = self.item[at]
        return np.concatenate([rows, np.ones((len(rows), 1))], 1) if self.ones else rows

    def offsets(self, at: Ints) -> Floats:
        return np.zeros(len(at)) if self.offset is None else self.offset[at]

    def scores(self, user: Floats) -> Floats:
        """Of the whole catalogue."""
        out = self.item @ user[: self.item.shape[1]]
        out = out + user[-1] if self.ones else out
        return out if self.offset is None else out + self.offset


class Taste(NamedTuple):
    """What a person says: items they like (or rate), oldest first, each once; and items they dislike."""

    likes: Ints
    values: Floats
    dislikes: Ints
    timed: bool = False  # whether the order is one of time


class Rebuilt(NamedTuple):
    """A person, and how each like pulled: like i has the share pulls[i] . f_j in the score of item j."""

    user: Floats
    pulls: Floats  # [likes, p]


def gram_of(recipe: Recipe, tables: Tables) -> Floats | None:
    """alpha0 V'V, once for all people."""
    return recipe.alpha0 * tables.item.T @ tables.item if recipe.alpha0 else None


def rebuild(recipe: Recipe, tables: Tables, gram: Floats | None, taste: Taste) -> Rebuilt | None:
    """The person, or None where there is nothing to go by."""
    if not len(taste.likes):
        return None
    made = _ridge(recipe, tables, gram, taste) if recipe.solver == "ridge" else _descent(recipe, tables, taste)
    return made if made is not None and np.isfinite(made.user).all() else None


def _ridge(recipe: Recipe, tables: Tables, gram: Floats | None, taste: Taste) -> Rebuilt | None:
    items, targets = _examples(recipe, tables, taste, recipe.first)
    weights = np.ones(len(items))
    if taste.timed and recipe.examples == "history":
        ages = np.arange(len(taste.likes))[::-1]
        weights[: len(ages)] = recipe.floor + (1 - recipe.floor) * recipe.recency**ages
    f = tables.features(items)
    system = (f * weights[:, None]).T @ f + recipe.lam * (weights.sum() + recipe.prior) * np.eye(f.shape[1])
    system = system if gram is None else system + gram
    right = weights * (targets - tables.offsets(items))
    try:
        np.linalg.cholesky(system)
    except np.linalg.LinAlgError:
        return None
    solved = np.linalg.solve(system, f.T)  # [p, examples]
    return Rebuilt(solved @ right, _of_likes(items, (solved * right).T, taste))


def _descent(recipe: Recipe, tables: Tables, taste: Taste) -> Rebuilt:
    user, k = np.array(recipe.start), tables.item.shape[1]
    slopes = np.zeros(len(tables.item))  # how far each item has moved the person, along its own features
    for turn in range(recipe.rounds):
        items, targets = _examples(recipe, tables, taste, recipe.first + turn)
        rows, at = np.unique(items, return_inverse=True)
        f, o, common, speed = tables.features(rows), tables.offsets(rows), 0.0, recipe.round_decay**turn
        batch = recipe.batch or len(items)
        for begin in [*range(0, len(items), batch)] * recipe.passes:
            here = at[begin : begin + batch]
            score = f[here] @ user + o[here] + common
            wrong = _sigmoid(score) - targets[begin : begin + batch] if recipe.loss == "bce" else None
            wrong = 2 * (score - targets[begin : begin + batch]) if wrong is None else wrong
            by_row = np.bincount(here, wrong / len(here), len(rows))
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
    return Rebuilt(user, slopes[taste.likes][:, None] * tables.features(taste.likes))


def _examples(recipe: Recipe, tables: Tables, taste: Taste, draw: int) -> tuple[Ints, Floats]:
    """(items, targets): what a device computes with; every dislike last, with target 0."""
    items, targets = taste.likes, taste.values
    if recipe.examples == "samples":
        from .data.interactions import Histories
        from .data.sampling import SERVE, key_of, samples

        def alone(of: Ints, values: Floats) -> Histories:
            return Histories(np.array([0, len(of)]), of.astype(np.int32), values.astype(np.float32))

        drawn = samples(
            alone(taste.likes, taste.values), np.zeros(1, np.int64), catalogue=len(tables.item),
            negatives=recipe.negatives, batch=0, key=key_of(int(recipe.seed), SERVE, draw),
            forbidden=alone(taste.dislikes, np.zeros(len(taste.dislikes))),
        )  # fmt: skip
        items, targets = drawn.inputs.astype(np.int64), drawn.targets.astype(np.float64)
    return np.concatenate([items, taste.dislikes]), np.concatenate([targets, np.zeros(len(taste.dislikes))])


def _of_likes(items: Ints, pulls: Floats, taste: Taste) -> Floats:
    """The rows of the likes, in their order, of what is by example; no item is an example and a dislike."""
    order = np.argsort(items, kind="stable")
    return pulls[order[np.searchsorted(items[order], taste.likes)]]


def _sigmoid(x: Floats) -> Floats:
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e))


class Ranked(NamedTuple):
    items: Ints
    scores: Floats  # of these items, as ranked
    popular: bool  # nothing to go by: what most people take
    because: list[list[int]]  # for every item, the likes that speak for it most
    you: tuple[float, float] | None  # where the person is on the map
    left: int  # how many could be listed


BEST, REASONS, TURNS, LEAN = 20, 2, 30, 0.7


def order_of(scores: Floats, popularity: Floats, adventurous: float) -> Floats:
    """Scores leant towards (below 0) or away from (above 0) what is popular: what stands out from the middle of the
    catalogue stands out more or less by e^(-LEAN adventurous z). What does not stand out stays where it is, so that no
    lean recommends what nobody like this person would take."""
    spread, base = popularity.std(), np.median(scores)
    if not adventurous or not spread:
        return scores
    return base + (scores - base) * np.exp(-LEAN * adventurous * (popularity - popularity.mean()) / spread)


def passed_over(taste: Taste, group: Ints) -> NDArray[np.bool_]:
    """Items that carry a title that the person has said something about; `group` numbers equal titles alike."""
    said = np.zeros(int(group.max(initial=-1)) + 1, bool)
    said[group[np.concatenate([taste.likes, taste.dislikes])]] = True
    return said[group]


def best_of(final: Floats, out: NDArray[np.bool_], group: Ints, n: int) -> Ints:
    """The n best items, each title once; the catalogue's order breaks ties."""
    order = np.argsort(np.where(out, np.inf, -final), kind="stable")[: len(final) - int(out.sum())]
    _, first = np.unique(group[order], return_index=True)
    return order[np.sort(first)][:n]


def middle(points: Floats) -> tuple[float, float]:
    """The geometric median of points [n, 2]: it stands among most of them, where the mean may stand between."""
    at = points.mean(0)
    for _ in range(TURNS):
        near = 1 / np.maximum(np.hypot(*(points - at).T), 1e-9)
        at = (near[:, None] * points).sum(0) / near.sum()
    return float(at[0]), float(at[1])
