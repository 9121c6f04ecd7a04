"""Typed results of attacks: figures of list recovery by size of a sum, of attacks over rounds, and of membership."""

from __future__ import annotations

from pydantic import Field

from fedtaste.result_part import Count, Interval, ResultPart


class RatingError(ResultPart):
    """How far guessed ratings are off (RMSE); the attack knows which items were rated."""

    rmse: float
    interval: Interval


class Figures(ResultPart):
    """The main figures of list recovery, each of the attack that was best on the other half of the people."""

    f1: float
    worst_f1: float
    """Of the most exposed person."""
    auc: float
    """How often an item that a person has scores above one that they have not."""
    matched_auc: float
    """The same against equally popular items."""
    upload_f1: float | None
    """Of attacks that do not use popularity."""


class SumFigures(Figures):
    """What attacks find in sums of `in_sum` people's uploads under the given stages."""

    stages: str
    in_sum: Count
    seen: bool
    """Whether the server sees sums as small as this."""
    people: Count
    f1_interval: Interval
    attack: str
    auc_interval: Interval
    auc_attack: str
    matched_auc_interval: Interval
    matched_auc_attack: str
    attacks: dict[str, float]
    """F1 by attack."""
    ratings: RatingError | None = None


class BaselineFigures(ResultPart):
    """What an attacker without any upload reaches: by popularity, or by a blind guess."""

    popularity_f1: float
    popularity_auc: float
    popularity_matched_auc: float
    random_f1: float
    random_auc: float
    item_mean_rmse: float | None = None
    """RMSE of guessing every item's mean rating."""


class Baselines(BaselineFigures):
    """The same with intervals."""

    popularity_f1_interval: Interval
    popularity_auc_interval: Interval


class CrossRoundResult(ResultPart):
    """What a server learns that keeps the secure sums of several rounds."""

    f1: float
    worst_f1: float
    attack: str
    attacks: dict[str, float]
    people: Count
    in_sum: Count
    rounds: Count
    popularity_f1: float


class MembershipTest(ResultPart):
    """One test of the membership audit: its guesses, and the lower bound of epsilon that follows."""

    guesses: Count
    correct: Count
    epsilon_lower: float
    tpr_at_fpr: float | None = Field(default=None, serialization_alias="tpr_at_fpr_0.001")


class MembershipResult(ResultPart):
    """The membership audit. `epsilon_lower` is the largest bound of all tests, `by` the name of that test."""

    canaries: Count
    inside: Count
    guesses: Count
    correct: Count
    confidence: float
    by: str
    delta: float
    epsilon_lower: float
    largest: float
    """The bound that the test would give if every guess were correct."""
    tpr_at_fpr: float | None = Field(serialization_alias="tpr_at_fpr_0.001")
    """The share of canaries in the run that are found with one false alarm in 1,000."""
    tests: dict[str, MembershipTest]
    runs: Count = 1
    noise_ratio: tuple[float, float, float] | None = None
    """Measured standard deviation of the noise over the stated one, and the ends of its 95 % interval."""
    on_grid: bool | None = None
    """Whether every released number is a whole multiple of the public step."""
