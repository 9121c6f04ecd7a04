"""What a bundle says about itself: the model card, the licence notes, and the lines that the page shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .bundle import About
from .privacy_statement import statement_rows
from .recipes import Recipe
from .settings import Settings

REBUILT = {
    "ridge": "Your vector is solved exactly from what you pick (one small linear system).",
    "descent": "Your vector is rebuilt from what you pick by a few steps of gradient descent.",
}


def terms_of(data: str) -> tuple[str, str]:
    """(the data set's name, the terms under which it is offered)."""
    from .data.sources import SOURCES

    name = data.partition(":")[0].lower()
    if name in SOURCES:
        return SOURCES[name].about, SOURCES[name].terms
    return "data of the publisher's own", "The publisher's own data: ask the publisher for its terms."


def measured(result: dict[str, Any], overlap: float | None) -> list[tuple[str, str]]:
    """What was measured when the model was trained, in words. Of a private run nothing: such figures are computed from
    people's data without noise, so no promise covers them."""
    out: list[tuple[str, str]] = []
    if result.get("privacy"):
        return [] if overlap is None else [overlap_row(overlap)]
    for who, name in (("seen", "people who took part"), ("new", "people it had never seen")):
        found = result.get(who) or {}
        if "sampled" in found and "full" in found:
            sampled, full = found["sampled"], found["full"]
            few = f"in the first ten for {sampled['hr@10']:.1%} (NDCG {sampled['ndcg@10']:.3f})"
            all_of_them = f"in the first ten for {full['hr@10']:.1%}"
            out.append((f"{name}, the next item among 100", few))
            out.append((f"{name}, the next item among all {result['items']:,}", all_of_them))
        elif "rmse" in found:
            out.append((f"{name}, ratings", f"off by {found['rmse']:.2f} (root of the mean square)"))
    return out if overlap is None else [*out, overlap_row(overlap)]


def overlap_row(overlap: float) -> tuple[str, str]:
    return "a byte a number instead of four", f"{overlap:.1%} of a first twenty stay the same"


def promise_of(result: dict[str, Any]) -> tuple[str, list[str]]:
    """(what training promised its people, the whole statement line by line)."""
    privacy = result.get("privacy") or {}
    rows = [f"{name}: {'; '.join(lines)}" for name, lines in statement_rows(privacy)]
    if privacy.get("epsilon") is None:
        meaning = "No promise of differential privacy: that nothing of one person can be read out of it is not proven."
        return "Training made no promise of differential privacy.", [meaning, *rows]
    numbers = f"epsilon {privacy['epsilon']:.3g}, delta {privacy['delta']:.2g}"
    said = f"Training promised differential privacy to every person: {numbers}."
    return said, [said, *rows]


def about(settings: Settings, result: dict[str, Any], recipe: Recipe, overlap: float | None, name: str) -> About:
    """For the page."""
    source, terms = terms_of(settings.data)
    where = "over a real federation" if result.get("federation") else "on simulated devices"
    lines = [
        f"Learnt with {result['method']} from {result.get('members', result['people']):,} people, {where}.",
        f"It knows {result['items']:,} items. Source: {source}.",
        REBUILT[recipe.solver],
        promise_of(result)[0],
    ]
    licence = [f"Data: {terms}", "Page and program: tacit, MIT licence."]
    return About(title=name, lines=lines, licence=licence, measured=measured(result, overlap))


def model_card(settings: Settings, result: dict[str, Any], made: About, facts: dict[str, Any]) -> str:
    """MODEL_CARD.md."""
    rows = "\n".join(f"| {label} | {text} |" for label, text in made.measured)
    table = f"| what | result |\n|---|---|\n{rows}" if rows else "Nothing that may be published."
    if result.get("privacy"):
        table += (
            "\n\nAccuracy is not in this card: it was measured on people's data without noise, which no promise "
            "covers. It stands in the run folder, for its owner."
        )
    chosen = ", ".join(f"{name}={value}" for name, value in result.get("settings", {}).items())
    leaky = " **The published protocol leaks; read these figures as a memory test.**"
    leaky = leaky if settings.protocol == "published" else ""
    how = (
        f"Measured by `tacit run` on held-out items, under the {settings.protocol} protocol; the run's result.json\n"
        f"has more.{leaky} There a person's items stand in the order of time. What is picked on the page has no such\n"
        "order, which costs methods that weigh recent items something."
    )
    how = "" if result.get("privacy") else how
    return f"""# Model card: {made.title}

{chr(10).join(f"- {line}" for line in made.lines)}

## What it is for
Recommending items of this one catalogue to anybody, on that person's own device: the page rebuilds a person's vector
from what they pick and sends nothing. It is not meant for decisions about people.

## How it was made
tacit {facts["tacit"]}, method `{result["method"]}`, data `{Path(settings.data).name}`,
protocol {settings.protocol}, seed {settings.seed}, {result["rounds"]} rounds. Tables are {facts["precision"]}.

Settings: {chosen}.

## What was measured
{table}

{how}

## What this bundle tells
- One vector for each item, learnt from everybody. It holds no person's history or vector.
- {facts["popularity"]}

## Privacy
{chr(10).join(f"- {line}" for line in promise_of(result)[1])}

## Limits
- It knows what was popular with the people it learnt from, and no item that came later.
- "Because you liked" is the model's own arithmetic: the picks that add most to an item's score. It is not a cause.
- The map is a projection to two dimensions: near means alike, far means little.
"""


def licences(made: About) -> str:
    """LICENCES.md."""
    notes = "\n".join(f"- {line}" for line in made.licence)
    return f"""# Licence notes

{notes}

Titles and genres come from the data set, whose terms hold for them. Whoever publishes this folder must be allowed to.
"""
