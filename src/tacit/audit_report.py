"""The page of an audit, for somebody who is responsible for privacy and not for code: what was found, in words, in a
table, in a plot, and in one example; and what it does not show.

The template audit.html.jinja escapes everything; its look is the report's. Nothing is loaded from anywhere.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2

from .canvas import COLOURS, INK, MUTED, Plot, drawable, figure, finish, legend, quiet_style
from .errors import RunError
from .tables import NONE, method_name, plain
from .wholefile import write_atomically

Result = dict[str, Any]
CLOSE = 0.05  # of F1 beyond popularity's: what is less is hardly anything
MEANING = {
    "popularity": "The upload did not help: the best guess is what is popular.",
    "read": "The message holds counts, and they are simply read.",
    "rows": "Rows of the table that the upload changes belong to items that the device has worked with.",
    "sign": "Items that a person has move one way, items drawn as counter-examples the other: the direction tells them "
    "apart.",
    "decay": "Every row shrinks by the same factor. It is estimated and taken out; what is left tells the items.",
    "lists": "The sum is taken apart by linear algebra into people’s lists; their lengths tell whose they are.",
    "counts": "The counts of all sums of all rounds are equations in people’s lists, and they are solved.",
}
FOUND = 0.5  # of the canaries at one false alarm in 1,000: then membership is no secret
SOURCES = {
    "all rounds": "releases of all rounds",
    "final model": "final model",
    "Gaussian noise": "releases of all rounds",
}
LIMITS = (
    "Other attacks. A better one may exist; these figures are a floor for what leaks, never a ceiling.",
    "Later rounds. Lists were guessed from the rounds named above. Who keeps uploads of more rounds can put them "
    "together, and noise averages out; epsilon and the membership test count all planned rounds.",
    "Epsilon itself. The membership test bounds it from below. A bound below the printed epsilon does not prove "
    "that epsilon.",
    "Knowledge from elsewhere. An attacker may know some of a person’s items already, or when the device was online.",
    "A server that cheats. The server here follows the protocol and reads what it gets. One that sends made-up tables, "
    "or that invents the other people of a sum, can learn more.",
    "The length of a list. Attacks without a list of their own are told how many items a person has; that helps them.",
)


def write_audit(result: Result, folder: Path) -> Path:
    """Write folder/audit.html, audit.json and plots/audit.png; return the path of the page."""
    drawn = draw(result)
    page = render(result, drawn)
    try:
        (folder / "plots").mkdir(parents=True, exist_ok=True)
        write_atomically(folder / "plots" / "audit.png", drawn.png)
        write_atomically(folder / "audit.json", json.dumps(result, allow_nan=False).encode())
        write_atomically(folder / "audit.html", page.encode())
    except OSError as error:
        raise RunError(f"The page cannot be written to {folder}: {error}. Choose another folder.") from error
    return folder / "audit.html"


def render(result: Result, plot: Plot) -> str:
    """The page as text."""
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    environment.lstrip_blocks = environment.keep_trailing_newline = True
    ours, look = (
        resources.files(__package__).joinpath(name).read_text("utf-8")
        for name in ("audit.html.jinja", "report.html.jinja")
    )
    style = re.search(r"<style>(.*?)</style>", look, re.S)
    assert style is not None
    return environment.from_string(ours).render(
        title=title(result), subject=subject(result), style=style[1], result=result,
        headline=re.split(r"(\d+ of 100)", headline(result)),  # odd pieces: kept on one line
        verdict=verdict(result), tiles=tiles(result), plot=(plot, _uri(plot.light), _uri(plot.dark)),
        f1=grid(result, "f1"), auc=grid(result, "auc"), matched=grid(result, "matched_auc"),
        attack=explain(result["attack"]), ratings=ratings(result), members=members(result), examples=examples(result),
        limits=LIMITS, facts=facts(result), notes=result["notes"],
    )  # fmt: skip


def _uri(svg: bytes) -> str:
    return "data:image/svg+xml;base64," + base64.b64encode(svg).decode()


def title(result: Result) -> str:
    what = f"{method_name(result)} on {result['data']}" if result["method"] else "saved uploads"
    return f"What uploads give away: {what}"


def subject(result: Result) -> str:
    where = "as they were saved" if not result["rounds"] else seen_rounds(result["rounds"])
    return f"{result['people']:,} people audited, {result['items']:,} items; {where}; {result['stages']}"


def seen_rounds(rounds: int) -> str:
    """
    >>> seen_rounds(1), seen_rounds(6)
    ('round 1', 'rounds 1 to 6')
    """
    return "round 1" if rounds == 1 else f"rounds 1 to {rounds}"


def of_100(share: float) -> str:
    return f"{100 * share:.0f} of 100"


def headline(result: Result) -> str:
    """The finding in plain words.

    >>> headline({"f1": 0.94, "worst_f1": 1.0, "popularity_f1": 0.34, "in_sum": 1, "sends": True, "helped": True,
    ...           "rounds": 1})
    'From one upload, somebody who runs the server recovers 94 of 100 items of a person’s list (of the most exposed \
person 100 of 100); knowing only what is popular they would get 34 of 100.'
    """
    if not result["sends"]:
        return (
            "Nothing is sent, so nobody learns anything from uploads. Knowing only what is popular, somebody gets "
            f"{of_100(result['popularity_f1'])} items of a person’s list."
        )
    many, rounds = result["in_sum"], result["rounds"] or 1
    source = "one upload" if many == 1 else f"the sum of {many:,} people’s uploads"
    if rounds > 1:
        source = f"{'uploads' if many == 1 else f'sums of {many:,} people’s uploads'} of {rounds:,} rounds"
    if not result["helped"]:
        return (
            f"From {source}, no attack learns more of a person’s list than what is popular tells: "
            f"{of_100(result['popularity_f1'])} items."
        )
    return (
        f"From {source}, somebody who runs the server recovers {of_100(result['f1'])} items of a person’s list (of the "
        f"most exposed person {of_100(result['worst_f1'])}); knowing only what is popular they would get "
        f"{of_100(result['popularity_f1'])}."
    )


def verdict(result: Result) -> list[tuple[bool, str]]:
    """(whether it is good, what it means) of the configuration."""
    gap, member = result["f1"] - result["popularity_f1"], result.get("membership")
    found = (member or {}).get("tpr_at_fpr_0.001") or 0.0
    return [
        *promise(result),
        (False, "Lists are not read from it, but who took part can be told: the noise is too small for a promise.")
        if gap <= CLOSE and found > FOUND
        else (True, "This tells hardly more about a person than what is popular tells about everybody.")
        if gap <= CLOSE
        else (False, "This gives people’s lists away: “only model updates are sent” does not protect them here.")
        if result["f1"] >= 0.6
        else (False, "This tells more about a person than what is popular does."),
    ]


def promise(result: Result) -> list[tuple[bool, str]]:
    """Whether the membership test refutes the printed epsilon or the stated noise, where it does."""
    member, epsilon = result["membership"], result["epsilon"]
    out = []
    if member and epsilon is not None and member["epsilon_lower"] > epsilon:
        out.append(
            (False, f"The printed epsilon {epsilon:.3g} is refuted: it is at least {member['epsilon_lower']:.3g}.")
        )
    if member and member["noise_ratio"] and member["noise_ratio"][2] < 0.99:
        out.append((False, f"The noise has {member['noise_ratio'][0]:.3g} times the stated standard deviation."))
    return out


def members(result: Result) -> str | None:
    """The membership test in words."""
    member = result["membership"]
    if not member:
        return None
    runs = f" in {member['runs']} runs" if member["runs"] > 1 else ""
    rate = member["tpr_at_fpr_0.001"]
    return (
        f"{member['canaries']:,} made-up people were added{runs}, each by a coin. Who knows everything but the coins "
        f"made {member['guesses']:,} guesses from the {SOURCES[member['by']]}, and {member['correct']:,} were "
        f"right: with {100 * member['confidence']:.0f} % confidence epsilon is at least {member['epsilon_lower']:.3g} "
        f"(so many guesses can show {member['largest']:.3g} at most). With one false alarm in 1,000, "
        f"{100 * (rate or 0):.1f} % of those who took part are found."
    )


def tiles(result: Result) -> list[tuple[str, str, str]]:
    """Value, what it is, small print."""
    low, high = result["intervals"]["f1"]
    found = [
        (of_100(result["f1"]), "items recovered (F1)", f"95 % interval {100 * low:.0f} to {100 * high:.0f}"),
        (of_100(result["worst_f1"]), "of the most exposed person", ""),
        (of_100(result["popularity_f1"]), "by knowing what is popular", "no upload needed"),
        (of_100(result["random_f1"]), "by guessing blindly", ""),
    ]
    epsilon, member = result["epsilon"], result["membership"]
    planned = result["planned_rounds"]
    small = f"for all {planned} rounds, delta {result['delta']:.1g}" if epsilon is not None else "no promise"
    found.append((NONE if epsilon is None else f"{epsilon:.3g}", "epsilon of the run", small))
    if member:
        small = f"measured, {100 * member['confidence']:.0f} % confidence"
        found.append((f"{member['epsilon_lower']:.3g}", "epsilon is at least", small))
    return found


def grid(result: Result, kind: str) -> dict[str, Any]:
    """A figure by stages (rows) and people in a sum (columns)."""
    sizes = sorted({row["in_sum"] for row in result["rows"]})
    stages = list(dict.fromkeys(row["stages"] for row in result["rows"]))
    rows = []
    for stage in stages:
        found = {row["in_sum"]: row for row in result["rows"] if row["stages"] == stage}
        cells = [_cell(found.get(size), kind, result) for size in sizes]
        rows.append((stage, cells))
    return {"sizes": [f"{size:,}" for size in sizes], "rows": rows}


def _cell(row: dict[str, Any] | None, kind: str, result: Result) -> dict[str, Any] | None:
    if row is None:
        return None
    low, high = row[f"{kind}_interval"]
    main = row["stages"] == result["stages"] and row["in_sum"] == result["in_sum"]
    return {
        "value": row[kind],
        "text": f"{row[kind]:.3f}",
        "worst": f"{row['worst_f1']:.3f}" if kind == "f1" else None,
        "low": f"{low:.2f}",
        "high": f"{high:.2f}",
        "seen": row["seen"],
        "main": main,
    }


def explain(attack: str) -> list[tuple[str, str]]:
    """(the attack, what it does) for each that was chosen."""
    found = []
    for name in attack.split(" / "):
        word = name.split()[0]
        also = " Popularity decides where the upload is unclear." if "+" in name else ""
        found.append((name, MEANING.get(word, "") + also))
    return found


def ratings(result: Result) -> str | None:
    """How well the ratings themselves can be told."""
    if result["task"] != "ratings":
        return None
    if result["in_sum"] > 1:
        return f"From sums of {result['in_sum']:,} people no attack on single ratings is known here."
    if not result["ratings"]:
        return "No attack on the ratings themselves is known here."
    low, high = result["ratings"]["interval"]
    return (
        f"The ratings themselves are told with an error of {result['ratings']['rmse']:.2f} [{low:.2f} to {high:.2f}] "
        f"(RMSE, of items that the attacker knows were rated); guessing every item’s mean is off by "
        f"{result['item_mean_rmse']:.2f}."
    )


def examples(result: Result) -> list[tuple[str, dict[str, Any]]]:
    found = []
    for stages, told in result["example"].items():
        if told:
            hits = sum(item["hit"] for item in told["guessed"])
            source = "one upload" if told["in_sum"] == 1 else f"a sum of {told['in_sum']:,}"
            found.append((stages, told | {"hits": hits, "source": source}))
    return found


def facts(result: Result) -> list[tuple[str, str]]:
    names = (
        "data",
        "task",
        "method",
        "wire",
        "rounds",
        "planned_rounds",
        "people",
        "items",
        "delta",
        "seed",
        "settings",
        "seconds",
    )
    return [(name, plain(result[name])) for name in (*names, "seconds") if result[name] not in (None, "", {})]


def draw(result: Result) -> Plot:
    """F1 by people in a sum, a bar for every step of stages; popularity and a blind guess as lines."""
    sizes = sorted({row["in_sum"] for row in result["rows"]})
    stages = list(dict.fromkeys(row["stages"] for row in result["rows"]))
    with quiet_style():
        drawing, axes = figure("Items recovered", "people whose uploads are added up", "F1")
        width = 0.8 / len(stages)
        for i, stage in enumerate(stages):
            mine = [row for row in result["rows"] if row["stages"] == stage]
            at = [sizes.index(row["in_sum"]) + (i - (len(stages) - 1) / 2) * width for row in mine]
            colour, name = COLOURS[i % len(COLOURS)], f"+ {stage.split(' + ')[-1]}" if i > 1 else stage
            axes.bar([0], [0], width, color=colour, label=drawable(name))  # for the legend: never pale
            for bar, row in zip(axes.bar(at, [row["f1"] for row in mine], 0.92 * width, color=colour), mine):
                bar.set_alpha(1.0 if row["seen"] else 0.25)
        axes.axhline(result["popularity_f1"], color=INK, ls="--", lw=1.6, label="popularity")
        axes.axhline(result["random_f1"], color=MUTED, ls=":", lw=1.6, label="blind guess")
        axes.set(ylim=(0, 1.03), xticks=range(len(sizes)), xticklabels=[f"{size:,}" for size in sizes])
        axes.grid(axis="x", visible=False)
        legend(drawing, axes)
        hidden = any(not row["seen"] for row in result["rows"])
        caption = "The dashed line is what popularity alone gives, the dotted one a blind guess."
        caption += " Pale: sums that the server never sees." if hidden else ""
        return finish("audit", drawing, alt(result, stages), caption)


def alt(result: Result, stages: Sequence[str]) -> str:
    told = []
    for stage in stages:
        mine = [row for row in result["rows"] if row["stages"] == stage]
        told.append(f"{stage}: " + ", ".join(f"{row['f1']:.2f} from {row['in_sum']}" for row in mine))
    return f"Bars of F1. {'; '.join(told)}. Popularity {result['popularity_f1']:.2f}, blind {result['random_f1']:.2f}."
