"""The model card, the licence notes, and the lines about the model that the page of a bundle shows."""

from __future__ import annotations

from pathlib import Path

from fedtaste import __version__
from fedtaste.data.sources import SOURCES, Source
from fedtaste.experiment.result import FitResult, RunResult
from fedtaste.experiment.settings import Settings
from fedtaste.recipe import Recipe
from fedtaste.report.page import render_page
from fedtaste.report.privacy_statement import statement_rows
from fedtaste.serving.bundle import About, Precision

REBUILT = {
    "ridge": "Your vector is solved exactly from what you pick (one small linear system).",
    "descent": "Your vector is rebuilt from what you pick by a few steps of gradient descent.",
    "sequence": "A small network reads what you pick, in the order in which you picked it.",
    "none": "There is no vector of you.",
}
TRAIL = " What you pick is also looked up in a table of which items people took after which."


def public_source(settings: Settings) -> Source | None:
    """The public data set that a model was learnt from; None for data of the publisher's own."""
    return SOURCES.get(settings.data.partition(":")[0].lower())


def describe(
    settings: Settings, result: RunResult | FitResult, recipe: Recipe, overlap: float | None, name: str
) -> About:
    """What the page shows about the model."""
    source = public_source(settings)
    origin = source.about if source else "data of the publisher's own"
    terms = source.terms if source else "the publisher's own. Ask the publisher for its terms."
    remote = isinstance(result, RunResult) and result.federation
    where = "over a real federation" if remote else "on simulated devices"
    lines = [
        f"Learnt with {result.method} from {result.members:,} people, {where}.",
        f"It knows {result.items:,} items. Source: {origin}.",
        REBUILT[recipe.solver] + (TRAIL if recipe.trail else ""),
        _privacy_sentence(result),
    ]
    licence = [f"Data: {terms}", "Page and program: fedtaste, MIT licence."]
    smaller = "one byte per number instead of four" + (", and the largest entries of the table" if recipe.trail else "")
    return About(title=name, lines=lines, licence=licence, measured=_measured(result, overlap, smaller))


def _measured(result: RunResult | FitResult, overlap: float | None, smaller: str) -> list[tuple[str, str]]:
    """The results of evaluation in words. A private run tells no accuracy: it is computed from people's data without
    noise, so no promise of privacy covers it."""
    rows: list[tuple[str, str]] = []
    if isinstance(result, FitResult):
        chosen = result.valid if result.valid and not result.privacy else {}
        figures = ", ".join(f"{name} {value:.3f}" for name, value in chosen.items())
        rows += [("held-out newest items, before they were learnt too", figures)] if figures else []
    groups = (
        ((result.seen, "people who took part"), (result.new, "people it had never seen"))
        if isinstance(result, RunResult)
        else ()
    )
    for scores, who in () if result.privacy else groups:
        if scores and scores.sampled and scores.full:
            sampled, full = scores.sampled, scores.full
            few = f"in the first ten for {sampled['hr@10']:.1%} (NDCG {sampled['ndcg@10']:.3f})"
            rows.append((f"{who}, the next item among 100", few))
            rows.append(
                (f"{who}, the next item among all {result.items:,}", f"in the first ten for {full['hr@10']:.1%}")
            )
        elif scores and (rmse := scores.metric("rmse")) is not None:
            rows.append((f"{who}, ratings", f"off by {rmse:.2f} (root of the mean square)"))
    if overlap is not None:
        rows.append((smaller, f"{overlap:.1%} of a first twenty stay the same"))
    return rows


def _privacy_sentence(result: RunResult | FitResult) -> str:
    privacy = result.privacy
    if privacy is None or privacy.epsilon is None:
        return "Training made no promise of differential privacy."
    numbers = f"epsilon {privacy.epsilon:.3g}, delta {privacy.delta:.2g}"
    return f"Training promised differential privacy to every person: {numbers}."


def _privacy_lines(result: RunResult | FitResult) -> list[str]:
    """The whole privacy statement of a run, line by line."""
    privacy = result.privacy
    first = _privacy_sentence(result)
    if privacy is None or privacy.epsilon is None:
        first = "No promise of differential privacy: that nothing of one person can be read out of it is not proven."
    return [first, *(f"{name}: {'; '.join(lines)}" for name, lines in statement_rows(privacy))]


def model_card(
    settings: Settings,
    result: RunResult | FitResult,
    about: About,
    precision: Precision,
    origin: str,
    recipe: Recipe,
) -> str:
    """MODEL_CARD.md; `origin` says where the popularity of the items comes from."""
    return render_page(
        "model_card.md.jinja",
        settings=settings,
        result=result,
        evaluated=isinstance(result, RunResult),
        about=about,
        precision=precision,
        origin=origin,
        recipe=recipe,
        version=__version__,
        data=Path(settings.data).name,
        privacy=_privacy_lines(result),
    )


def licences(about: About) -> str:
    """LICENCES.md."""
    lines = "\n".join(f"- {line}" for line in about.licence)
    return f"""# Licence notes

{lines}

Titles and genres come from the data set, whose terms hold for them. Whoever publishes this folder must be allowed to.
"""
