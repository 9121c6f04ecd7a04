"""The typed result of `fedtaste audit`: its dump is what `--json` prints and audit.json holds."""

from __future__ import annotations

from pydantic import Field

from fedtaste.attacks.result import BaselineFigures, Figures, MembershipResult, RatingError, SumFigures
from fedtaste.result_part import Count, Interval, ResultPart

WEAK_NOISE = 0.99  # of the stated standard deviation: noise that is certainly less is reported


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


def refutations(epsilon: float | None, member: MembershipResult | None) -> list[str]:
    """Notes where the membership test shows that the noise is not what the configuration states."""
    if member is None:
        return []
    notes = []
    if epsilon is not None and member.epsilon_lower > epsilon:
        notes.append(
            f"The printed epsilon {epsilon:.3g} is refuted: epsilon is at least {member.epsilon_lower:.3g} "
            f"({100 * member.confidence:.0f} % confidence)."
        )
    if member.noise_ratio and member.noise_ratio[2] < WEAK_NOISE:
        ratio = member.noise_ratio[0]
        notes.append(f"The noise that was really added has {ratio:.3g} times the stated standard deviation.")
    if member.on_grid is False:
        notes.append("Released numbers are not on the public grid: which values occur depends on the data.")
    return notes
