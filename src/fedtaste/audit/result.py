"""The typed result of `fedtaste audit`: its dump is what `--json` prints and audit.json holds."""

from __future__ import annotations

from pydantic import Field

from fedtaste.attacks.result import BaselineFigures, Figures, MembershipResult, RatingError, SumFigures
from fedtaste.result_part import Count, Interval, ResultPart


class GuessedItem(ResultPart):
    """An item that an attack guessed, and whether the person has it."""

    title: str
    hit: bool


class Example(ResultPart):
    """The first guesses about one person; empty where no sum has that person."""

    list_length: Count = Field(default=0, serialization_alias="list")
    in_sum: Count = 1
    attack: str = ""
    guessed: tuple[GuessedItem, ...] = ()


class ListRecovery(Figures, BaselineFigures):
    """What attacks recover of people's lists. The figures are of the sums that the server sees with all stages; `rows`
    has all steps and sizes of sums."""

    stages: str
    people: Count
    items: Count
    in_sum: Count
    attack: str
    sends: bool
    """Whether uploads hold anything to attack."""
    helped: bool
    """Whether an attack beats popularity."""
    intervals: dict[str, Interval]
    ratings: RatingError | None
    rows: tuple[SumFigures, ...]
    sums: dict[str, Figures]
    """By people in a sum, with all stages."""
    example: dict[str, Example]
    """By stages: of none, and of all of them."""
    notes: tuple[str, ...]


class AuditResult(ListRecovery):
    """The audit of a configuration, or of saved uploads (`method` is None then)."""

    data: str | None
    task: str
    method: str | None
    settings: dict[str, object]
    wire: str
    rounds: Count | None
    planned_rounds: Count | None
    seed: Count
    epsilon: float | None
    epsilon_lower: float | None
    delta: float | None
    tpr_at_fpr: float | None = Field(serialization_alias="tpr_at_fpr_0.001")
    membership: MembershipResult | None
    seconds: float
    command: str = ""
    report: str = ""
