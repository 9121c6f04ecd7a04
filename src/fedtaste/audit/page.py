"""The HTML page of an audit: the result in sentences, as a table, as a plot and as one example, and its limits.

It is written for people who are responsible for privacy and do not read code. The template audit.html.jinja escapes
everything and uses the report's style. The page loads nothing.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import NamedTuple

from fedtaste.attacks.membership import ALL_ROUNDS, FINAL_MODEL, GAUSSIAN
from fedtaste.attacks.result import SumFigures
from fedtaste.audit.result import AuditResult, Example, refutations
from fedtaste.errors import RunError
from fedtaste.files.atomic import write_atomically
from fedtaste.files.folders import inner_folder
from fedtaste.report.numbers import NONE, plain
from fedtaste.report.page import render_page
from fedtaste.report.style import COLOURS, INK, MUTED, Plot, drawable, figure, finish, legend, quiet_style
from fedtaste.report.tables import method_name

CLOSE = 0.05  # F1 above popularity's that counts as hardly anything
MEANING = {
    "popularity": "The upload did not help: the best guess is popularity.",
    "read": "The message holds counts, and they are simply read.",
    "rows": "Rows of the table that the upload changes belong to items that the device has worked with.",
    "sign": "Items that a person has move one way, sampled negatives the other: the direction tells them apart.",
    "decay": "Every row shrinks by the same factor. It is estimated and removed; the rest reveals the items.",
    "lists": "The sum is taken apart by linear algebra into people’s lists; their lengths reveal whose they are.",
    "counts": "The counts of all sums of all rounds are equations in people’s lists, and they are solved.",
}
EXPOSED = 0.5  # share of canaries found at one false alarm in 1,000 that counts as exposed
SOURCES = {ALL_ROUNDS: "releases of all rounds", GAUSSIAN: "releases of all rounds", FINAL_MODEL: "final model"}
LIMITS = (
    "Other attacks. A better one may exist; these figures are a floor for what leaks, never a ceiling.",
    "Later rounds. Lists were guessed from the rounds named above. Whoever keeps the uploads of more rounds can "
    "combine them, and noise averages out; epsilon and the membership test count all planned rounds.",
    "Epsilon itself. The membership test bounds it from below. A bound below the printed epsilon does not prove "
    "that epsilon.",
    "Knowledge from elsewhere. An attacker may know some of a person’s items already, or when the device was online.",
    "A server that cheats. The server here follows the protocol and reads what it gets. One that sends made-up tables, "
    "or that invents the other people of a sum, can learn more.",
    "The length of a list. Attacks without a list of their own are told how many items a person has; that helps them.",
)


def write_audit(result: AuditResult, folder: Path) -> Path:
    """Write folder/audit.html, audit.json and plots/audit.png; return the path of the page."""
    plot = draw(result)
    page = render(result, plot)
    try:
        inner_folder(folder, "plots")
        write_atomically(folder / "plots" / "audit.png", plot.png)
        write_atomically(folder / "audit.json", json.dumps(result.dump(), allow_nan=False).encode())
        write_atomically(folder / "audit.html", page.encode())
    except OSError as error:
        raise RunError(f"The page cannot be written to {folder}: {error}. Choose another folder.") from error
    return folder / "audit.html"


def render(result: AuditResult, plot: Plot) -> str:
    """The page as text."""
    return render_page(
        "audit.html.jinja",
        title=title(result), subject=subject(result), result=result,
        headline=re.split(r"(\d+ of 100)", headline(result)),  # odd pieces: kept on one line
        verdict=verdict(result), tiles=tiles(result), plot=plot,
        f1=grid(result, "f1"), auc=grid(result, "auc"), matched=grid(result, "matched_auc"),
        attack=explain(result.attack), ratings=ratings_text(result), members=membership_text(result),
        examples=examples(result), limits=LIMITS, facts=facts(result), notes=result.notes,
    )  # fmt: skip


def title(result: AuditResult) -> str:
    """The title of the page."""
    uploads = f"{method_name(result.method)} on {result.data}" if result.method else "saved uploads"
    return f"What uploads give away: {uploads}"


def subject(result: AuditResult) -> str:
    """What was audited, in a line."""
    where = "as they were saved" if not result.rounds else rounds_text(result.rounds)
    return f"{result.people:,} people audited, {result.items:,} items; {where}; {result.stages}"


def rounds_text(rounds: int) -> str:
    """The attacked rounds in words.

    >>> rounds_text(1), rounds_text(6)
    ('round 1', 'rounds 1 to 6')
    """
    return "round 1" if rounds == 1 else f"rounds 1 to {rounds}"


def of_100(share: float) -> str:
    """A share in words.

    >>> of_100(0.94)
    '94 of 100'
    """
    return f"{100 * share:.0f} of 100"


def headline(result: AuditResult) -> str:
    """The result in one plain sentence: how many of 100 items of a person's list the server recovers."""
    popular = of_100(result.popularity_f1)
    if not result.sends:
        return (
            "Nothing is sent, so nobody learns anything from uploads. Knowing only what is popular, somebody gets "
            f"{popular} items of a person’s list."
        )
    many, rounds = result.in_sum, result.rounds or 1
    source = "one upload" if many == 1 else f"the sum of {many:,} people’s uploads"
    if rounds > 1:
        source = f"{'uploads' if many == 1 else f'sums of {many:,} people’s uploads'} of {rounds:,} rounds"
    if not result.helped:
        return f"From {source}, no attack learns more of a person’s list than popularity gives: {popular} items."
    return (
        f"From {source}, somebody who runs the server recovers {of_100(result.f1)} items of a person’s list (of the "
        f"most exposed person {of_100(result.worst_f1)}); knowing only what is popular they would get {popular}."
    )


def verdict(result: AuditResult) -> list[tuple[bool, str]]:
    """(whether it is good, what it means) of the configuration."""
    gap, member = result.f1 - result.popularity_f1, result.membership
    exposed = ((member.tpr_at_fpr if member else None) or 0.0) > EXPOSED
    if gap <= CLOSE and exposed:
        good, text = False, "Lists are not revealed, but who took part is: the noise is too small for a promise."
    elif gap <= CLOSE:
        good, text = True, "This reveals hardly more about a person than popularity does about everybody."
    elif result.f1 >= 0.6:
        good, text = False, "This gives people’s lists away: “only model updates are sent” does not protect them here."
    else:
        good, text = False, "This reveals more about a person than popularity does."
    return [*((False, text) for text in refutations(result.epsilon, member)), (good, text)]


def membership_text(result: AuditResult) -> str | None:
    """The membership test in words."""
    member = result.membership
    if not member:
        return None
    runs = f" in {member.runs} runs" if member.runs > 1 else ""
    return (
        f"{member.canaries:,} artificial people were added{runs}, each by a coin. An attacker who knows everything but "
        f"the coins made {member.guesses:,} guesses from the {SOURCES[member.by]}, and {member.correct:,} were right: "
        f"with {100 * member.confidence:.0f} % confidence epsilon is at least {member.epsilon_lower:.3g} (this many "
        f"guesses can show {member.largest:.3g} at most). With one false alarm in 1,000, "
        f"{100 * (member.tpr_at_fpr or 0):.1f} % of those who took part are found."
    )


def tiles(result: AuditResult) -> list[tuple[str, str, str]]:
    """(value, its name, small print) of the main numbers."""
    low, high = result.intervals["f1"]
    numbers = [
        (of_100(result.f1), "items recovered (F1)", f"95 % interval {100 * low:.0f} to {100 * high:.0f}"),
        (of_100(result.worst_f1), "of the most exposed person", ""),
        (of_100(result.popularity_f1), "by knowing what is popular", "no upload needed"),
        (of_100(result.random_f1), "by guessing blindly", ""),
    ]
    epsilon, member = result.epsilon, result.membership
    small = "no promise" if epsilon is None else f"for all {result.planned_rounds} rounds, delta {result.delta:.1g}"
    numbers.append((NONE if epsilon is None else f"{epsilon:.3g}", "epsilon of the run", small))
    if member:
        small = f"measured, {100 * member.confidence:.0f} % confidence"
        numbers.append((f"{member.epsilon_lower:.3g}", "epsilon is at least", small))
    return numbers


class Cell(NamedTuple):
    """A figure of the table, as text."""

    value: float
    text: str
    worst: str | None
    low: str
    high: str
    seen: bool
    main: bool  # the figure of the configuration


class FigureTable(NamedTuple):
    """A figure by stages (rows) and people in a sum (columns)."""

    sizes: list[str]
    rows: list[tuple[str, list[Cell | None]]]


def grid(result: AuditResult, kind: str) -> FigureTable:
    """The table of one figure: f1, auc or matched_auc."""
    sizes = sorted({row.in_sum for row in result.rows})
    rows = []
    for stage, figures in rows_by_stages(result).items():
        cells = {row.in_sum: _cell(row, kind, result) for row in figures}
        rows.append((stage, [cells.get(size) for size in sizes]))
    return FigureTable([f"{size:,}" for size in sizes], rows)


def rows_by_stages(result: AuditResult) -> dict[str, list[SumFigures]]:
    """The rows of the result by their stages, in order."""
    stages = dict.fromkeys(row.stages for row in result.rows)
    return {stage: [row for row in result.rows if row.stages == stage] for stage in stages}


def _cell(row: SumFigures, kind: str, result: AuditResult) -> Cell:
    value, (low, high) = getattr(row, kind), getattr(row, f"{kind}_interval")
    worst = f"{row.worst_f1:.3f}" if kind == "f1" else None
    main = row.stages == result.stages and row.in_sum == result.in_sum
    return Cell(value, f"{value:.3f}", worst, f"{low:.2f}", f"{high:.2f}", row.seen, main)


def explain(attack: str) -> list[tuple[str, str]]:
    """(the attack, how it works) for each attack that is named in `attack`."""
    popularity = " Popularity decides where the upload is unclear."
    names = attack.split(" / ")
    return [(name, MEANING.get(name.split()[0], "") + (popularity if "+" in name else "")) for name in names]


def ratings_text(result: AuditResult) -> str | None:
    """How well the ratings themselves are recovered."""
    if result.task != "ratings":
        return None
    if result.in_sum > 1:
        return f"From sums of {result.in_sum:,} people no attack on single ratings is known here."
    if not result.ratings:
        return "No attack on the ratings themselves is known here."
    low, high = result.ratings.interval
    return (
        f"The ratings themselves are recovered with an error of {result.ratings.rmse:.2f} [{low:.2f} to {high:.2f}] "
        f"(RMSE, of items that the attacker knows were rated); guessing every item’s mean is off by "
        f"{result.item_mean_rmse:.2f}."
    )


def examples(result: AuditResult) -> list[tuple[str, Example, str, int]]:
    """(stages, the example, its source, the number of right guesses) of every example."""
    rows = []
    for stages, example in result.example.items():
        if example.guessed:
            source = "one upload" if example.in_sum == 1 else f"a sum of {example.in_sum:,}"
            rows.append((stages, example, source, sum(item.hit for item in example.guessed)))
    return rows


def facts(result: AuditResult) -> list[tuple[str, str]]:
    """The configuration, as names and values."""
    names = ("data", "task", "method", "wire", "rounds", "planned_rounds", "people", "items", "delta", "seed",
             "settings", "seconds")  # fmt: skip
    return [(name, plain(getattr(result, name))) for name in names if getattr(result, name) not in (None, "", {})]


def draw(result: AuditResult) -> Plot:
    """F1 by people in a sum, a bar for every step of stages; popularity and a blind guess as lines."""
    sizes, by_stages = sorted({row.in_sum for row in result.rows}), rows_by_stages(result)
    with quiet_style():
        drawing, axes = figure("Items recovered", "people whose uploads are added up", "F1")
        width = 0.8 / len(by_stages)
        for i, (stage, rows) in enumerate(by_stages.items()):
            places = [sizes.index(row.in_sum) + (i - (len(by_stages) - 1) / 2) * width for row in rows]
            colour, name = COLOURS[i % len(COLOURS)], f"+ {stage.split(' + ')[-1]}" if i > 1 else stage
            axes.bar([0], [0], width, color=colour, label=drawable(name))  # for the legend: never pale
            for bar, row in zip(axes.bar(places, [row.f1 for row in rows], 0.92 * width, color=colour), rows):
                bar.set_alpha(1.0 if row.seen else 0.25)
        axes.axhline(result.popularity_f1, color=INK, ls="--", lw=1.6, label="popularity")
        axes.axhline(result.random_f1, color=MUTED, ls=":", lw=1.6, label="blind guess")
        axes.set(ylim=(0, 1.03), xticks=range(len(sizes)), xticklabels=[f"{size:,}" for size in sizes])
        axes.grid(axis="x", visible=False)
        legend(drawing, axes)
        caption = "The dashed line is what popularity alone gives, the dotted one a blind guess."
        caption += " Pale: sums that the server never sees." if any(not row.seen for row in result.rows) else ""
        return finish("audit", drawing, alternative_text(result), caption)


def alternative_text(result: AuditResult) -> str:
    """The plot in words."""
    parts = [
        f"{stage}: " + ", ".join(f"{row.f1:.2f} from {row.in_sum}" for row in rows)
        for stage, rows in rows_by_stages(result).items()
    ]
    return f"Bars of F1. {'; '.join(parts)}. Popularity {result.popularity_f1:.2f}, blind {result.random_f1:.2f}."
