"""Recipe: the settings from which serving/rebuild.py, or a browser, computes one person's vector.

A method has a recipe where plain arithmetic on its shared parameters is enough to personalise somebody. This module
imports no torch, so that a process that only serves starts fast.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le
from pydantic import StringConstraints

from fedtaste.signature import CountOrNone, NonNegative, Share

Repeats = Annotated[int, Ge(1), Le(1000)]


@dataclass(frozen=True)
class TrailRecipe:
    """The weight of a like by its age: mix fast^age + (1 - mix) slow^age, and 0 from age `reach` on. In a list without
    order of time every like has weight 1."""

    mix: Share
    fast: Share
    slow: Share
    reach: CountOrNone  # 0: every like counts


@dataclass(frozen=True)
class SequenceRecipe:
    """A sequence network (models/sequence.py) that reads the newest likes in their order: the person is its last state.
    Likes have an order, of time or of typing, and TrailRecipe weights them by age. The trail's score t of an item
    enters as alpha log(t + eps)."""

    network: Literal["attention", "gru"]
    layers: Annotated[int, Ge(1), Le(100)]  # attention: blocks
    heads: Annotated[int, Ge(1), Le(1000)]  # attention: heads of each block, which divide the width
    length: Annotated[int, Ge(1), Le(10_000)]  # newest likes that the network reads
    embedded: Annotated[float, Ge(0), Le(1000)]  # factor of the item vectors that enter the network
    alpha: Annotated[float, Ge(-1e6), Le(1e6)] = 0.0  # learnt, as eps is: filled in at export
    eps: Annotated[float, Gt(0), Le(1e6)] = 1.0


@dataclass(frozen=True)
class Recipe:
    """The numbers of a rebuild. What a method does not know (examples, seed, start) is filled in at export."""

    solver: Literal["ridge", "descent", "sequence", "none"]  # none: no vector, and scores come from the trail alone
    lam: NonNegative = 0.0
    prior: NonNegative = 0.0  # ridge: imaginary examples, so that the regularisation is lam (examples + prior)
    alpha0: NonNegative = 0.0  # ridge: weight of every item that the person did not take
    recency: Share = 1.0  # of an ordered list: the weight of a like is floor + (1 - floor) recency^age
    floor: Share = 0.0
    loss: Literal["bce", "squared"] = "squared"
    lr: Annotated[float, Ge(0), Le(1e6)] = 0.0
    passes: Repeats = 1
    rounds: Repeats = 1
    first: Annotated[int, Ge(0), Le(1)] = 0  # the round number whose draws (negatives, order) come first
    moves: bool = False  # descent: the rows of the person's items move along with the person's vector
    step_decay: Share = 1.0  # factor of the learning rate after each step
    round_decay: Share = 1.0  # factor of the learning rate after each round
    shrink: Share = 0.0  # weight decay
    examples: Literal["history", "samples"] = "history"
    negatives: Annotated[int, Ge(0), Le(100)] = 0
    batch: CountOrNone = 0
    seed: Annotated[str, StringConstraints(pattern="^[0-9]{1,20}$")] = "0"  # as text: numbers of JavaScript end at 2^53
    start: tuple[float, ...] = ()
    trail: TrailRecipe | None = None  # for models with a trail table; beside a solved vector, both are z-scores
    sequence: SequenceRecipe | None = None  # for solver "sequence"

    @property
    def reads_dislikes(self) -> bool:
        """Whether dislikes change scores; otherwise they are only left out of lists."""
        return self.solver in ("ridge", "descent")
