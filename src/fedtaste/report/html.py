"""The HTML report of a run or a comparison: one file that needs nothing else, and its plots as PNG beside it.

This module composes the words; the template report.html.jinja has the layout. The page loads nothing, and its
Content-Security-Policy forbids it to.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import zip_longest
from pathlib import Path

from fedtaste.data.interactions import Interactions
from fedtaste.data.ragged import count_numbers
from fedtaste.data.supervised import Supervised
from fedtaste.data.user_files import UserSplit
from fedtaste.errors import RunError, SettingError
from fedtaste.experiment.result import RunResult
from fedtaste.files.atomic import write_atomically
from fedtaste.files.folders import inner_folder
from fedtaste.report import curves as plots
from fedtaste.report.curves import DataShape
from fedtaste.report.differences import NO_STUDY, Study, draw_differences, page_parts
from fedtaste.report.item_scatter import read_plane
from fedtaste.report.numbers import NONE, decimals, digits, human_bytes, human_seconds, interval_text, short_interval
from fedtaste.report.page import render_page
from fedtaste.report.privacy_statement import statement_rows
from fedtaste.report.style import Plot
from fedtaste.report.tables import (
    LIST_METRICS,
    METRICS,
    by_client,
    columns,
    labels,
    leaks,
    method_name,
    protocols,
    rounds_text,
    settings_table,
    subject,
    table_columns,
)
from fedtaste.report.trade_off import Tradeoff

CHANCE = 0.1  # HR@10 of a random order among 99 negatives and the item
MAX_WEIGHTS = 60  # rows of the table of weights; more is not read
PLOTS = (
    "differences", "privacy", "tradeoff", "sweep", "convergence", "bytes", "gradients", "seconds", "loss", "zeros",
    "down", "nodes", "items", "groups", "column-groups", "activity", "popularity",
)  # fmt: skip
GROUPS = (("seen", "people seen in training"), ("new", "people it has never seen"))


def write_report(
    results: Sequence[RunResult], folder: Path, *, data: DataShape | None = None, runs: Sequence[Path] = (),
    tradeoff: Tradeoff | None = None, study: Study | None = None,
) -> Path:  # fmt: skip
    """Write folder/report.html and folder/plots/*.png; return the path of the page.

    `data` (see `shape`) is plotted by rank. `runs` are the results' run folders, in the same order, for what is drawn
    from trained weights. `tradeoff` is the `trade_off` of the same results: its advice, fronts and plots. `study` has
    their spread over seeds and the differences between them.
    """
    if not results:
        raise SettingError("A report needs at least one result, as in write_report([result], folder).")
    private = any(result.privacy for result in results)
    data = None if private else data  # no promise covers exact counts of people and items
    drawn = plots.draw(results, data, [read_plane(run, result.items) for run, result in zip(runs, results)], tradeoff)
    drawn = [*draw_differences(study), *drawn] if study else drawn
    page = render(results, drawn, tradeoff, study)
    folder, mode = Path(folder), 0o600 if private else None
    try:
        inner_folder(folder, "plots", 0o700 if private else 0o777)
        for plot in drawn:
            write_atomically(folder / "plots" / f"{plot.name}.png", plot.png, mode)
        for name in set(PLOTS) - {plot.name for plot in drawn}:  # an earlier report's plot would mislead
            (folder / "plots" / f"{name}.png").unlink(missing_ok=True)
        write_atomically(folder / "report.html", page.encode("utf-8", "replace"), mode)  # a name may hold half a letter
        return folder / "report.html"
    except OSError as error:
        raise RunError(f"The report cannot be written to {folder}: {error}. Choose another folder.") from error


def shape(data: Interactions | UserSplit | Supervised) -> DataShape | None:
    """How active people are and how popular items are, for the plots; None for data without items."""
    if isinstance(data, Supervised):
        return None
    table = data.table
    people, items = count_numbers(table.person, len(table.people)), count_numbers(table.item, len(table.items))
    return DataShape(people.tolist(), items.tolist())


def render(
    results: Sequence[RunResult],
    drawn: Sequence[Plot] = (),
    tradeoff: Tradeoff | None = None,
    study: Study | None = None,
) -> str:
    """The page as text."""
    names, shown, lists = labels(results), table_columns(results, tradeoff), columns(results, LIST_METRICS)
    return render_page(
        "report.html.jinja",
        title=page_title(results),
        subject=subject(results),
        headline=re.split(r"(\d+ %(?: \[.*?\])?)", headline(results, tradeoff)),  # odd pieces: kept on one line
        advice=re.split(r"(?<=\.) |$", tradeoff.advice, maxsplit=1) if tradeoff else [],  # the choice, the reasons
        chosen=tradeoff.choice if tradeoff else None,
        fronts=[tradeoff.on_front(i) for i in range(len(results))] if tradeoff else [],
        quality=f"{tradeoff.basis} {tradeoff.quality.title}" if tradeoff else "",
        withheld=bool(tradeoff and tradeoff.withheld),
        study=page_parts(study or NO_STUDY),
        warnings=warnings(results),
        leak=leak_notes(results),
        tiles=tiles(results[0]) if len(results) == 1 else [],
        results=results,
        columns=shown,
        groups=Counter(column.group for column in shown),  # headings above those of the columns, with their widths
        list_columns=lists,
        list_groups=Counter(column.group for column in lists),
        best={column.key: column.best(results) for column in [*shown, *lists]},
        short_interval=short_interval,
        new_people=any(column.key.startswith("new.") for column in shown),
        plots=drawn,
        names=names,
        clients=by_client(results),
        settings=settings_table(results),
        weights=[(name, rows) for name, result in zip(names, results) if (rows := weight_rows(result))],
        runs=[(name, run_facts(result, (study or NO_STUDY).seed_count)) for name, result in zip(names, results)],
        promises=[(name, statement_rows(result.privacy)) for name, result in zip(names, results) if result.privacy],
        notes=notes(results),
    )


def page_title(results: Sequence[RunResult]) -> str:
    """`FedALS on ml-100k`, or `3 methods on ml-100k`."""
    data = ", ".join(dict.fromkeys(result.data for result in results))
    methods = [method_name(result.method) for result in results]
    many = f"{len(results)} {'methods' if len(set(methods)) == len(results) else 'runs'}"
    return f"{methods[0] if len(results) == 1 else many} on {data}"


def headline(results: Sequence[RunResult], tradeoff: Tradeoff | None = None) -> str:
    """The finding in one sentence; of several results the chosen one's, or the best one's where none is chosen."""
    shown = columns(results, METRICS)
    if not shown:
        return f"{', '.join(labels(results))}: no results on held-out data."
    if tradeoff and len(tradeoff.undecided) == len(results):
        return f"Of {len(results)} runs none is chosen: they have no validation figures to choose settings by."
    best = shown[0].best(results)
    i = next(i for i, r in enumerate(results) if shown[0].value(r) is not None and best in (None, shown[0].value(r)))
    start = f"Best of {len(results)}: " if best is not None else ""
    if tradeoff and tradeoff.choice is not None and shown[0].value(results[tradeoff.choice]) is not None:
        i, start = tradeoff.choice, f"Of {len(results)}, validation chose "
    result = results[i]
    rounds = f"{result.rounds:,} round{'' if result.rounds == 1 else 's'}"
    return f"{start}{labels(results)[i]}, {rounds}, {result.protocol} protocol: {_finding(result)}."


def _finding(result: RunResult) -> str:
    for kind, among in (("sampled", "a hundred"), ("full", "all items")):
        clauses = [f"{text} of {people}" for who, people in GROUPS if (text := _percent(result, f"{who}.{kind}.hr@10"))]
        if clauses:
            return f"a held-out item is among the first ten of {among} for " + ", and ".join(clauses)
    clauses = []
    for who, people in GROUPS:
        parts = []
        if (rmse := result.metric(f"{who}.rmse")) is not None:
            interval = result.interval(f"{who}.rmse")
            parts.append(
                f"predictions are off by {decimals(rmse)}" + (f" [{interval_text(interval)}]" if interval else "")
            )
        if accuracy := _percent(result, f"{who}.accuracy"):
            parts.append(f"{accuracy} {'are within half a point' if parts else 'of predictions are right'}")
        if (error := result.metric(f"{who}.weights_error")) is not None:
            parts.append(f"the learnt weights are {decimals(error)} from the true ones")
        if parts:
            clauses.append(f"for {people}, " + " and ".join(parts))
    return "; ".join(clauses) or "no results on held-out data"


def _percent(result: RunResult, key: str) -> str:
    """`74 % [71–77]`, or nothing."""
    value, interval = result.metric(key), result.interval(key)
    if value is None:
        return ""
    return f"{100 * value:.0f} %" + (f" [{100 * interval[0]:.0f}–{100 * interval[1]:.0f}]" if interval else "")


def leak_notes(results: Sequence[RunResult]) -> dict[str, bool]:
    """The verdicts of the leak detector, as {sentence: whether the protocol leaks}."""
    return {
        f"The {result.protocol} protocol {'leaks' if leak.leaks else 'does not leak'}: a memory of the negatives drawn "
        f"in training, which learns nothing, finds {100 * leak.memoriser_hr:.0f}\u00a0% of held-out items among the "
        f"first ten; popularity finds {100 * leak.popularity_hr:.0f}\u00a0%.": leak.leaks
        for result in results
        if (leak := result.leak)
    }


def warnings(results: Sequence[RunResult]) -> list[str]:
    """Reasons why the numbers mislead or cannot be compared."""
    texts = []
    if "published" in protocols(results):
        texts.append(
            "The published protocol leaks: held-out items are never drawn as training negatives, and the round is "
            "chosen on the test set. These numbers serve to check against papers; they do not tell accuracy."
        )
    elif leaks(results):
        texts.append("The protocol leaks: a memory that learns nothing beats popularity. These numbers mean little.")
    if len(names := {result.data for result in results}) > 1:
        texts.append(f"The runs are on different data ({', '.join(sorted(names))}); their numbers do not compare.")
    if len(ways := protocols(results)) > 1:
        texts.append(f"The runs follow different protocols ({', '.join(ways)}); their numbers do not compare.")
    return texts + [text for result, name in zip(results, labels(results)) if (text := lost_in_noise(result, name))]


def lost_in_noise(result: RunResult, name: str) -> str:
    """A warning where a run with noise ranks no better than a random order; otherwise nothing."""
    interval = result.interval("seen.sampled.hr@10")
    if result.privacy is None or interval is None or interval[0] > CHANCE:
        return ""
    hint = "a larger --epsilon" if result.method == "fedveil" else "--method fedveil, which is made for noise,"
    return (
        f"{name} is no better than a random order, which has HR@10 {CHANCE:.3f} among 99: the noise hides what it "
        f"should learn. Try {hint} or data of more people."
    )


def tiles(result: RunResult) -> list[tuple[str, str, str]]:
    """The main numbers of a run, at most four, as (value, what it is, small print)."""
    shown, measured = [], columns([result], METRICS)
    for who, _ in GROUPS:
        if column := next((column for column in measured if column.key.startswith(f"{who}.")), None):
            interval = column.interval(result)
            small = f"95 % interval {interval_text(interval)}" if interval else ""
            shown.append((column.write(column.value(result) or 0), f"{column.title}, {column.group.lower()}", small))
    shown.append((human_bytes(result.traffic.up_bytes_per_person_round), "sent up per person and round", ""))
    return [*shown, (human_seconds(result.seconds.train), "training", "")]


def run_facts(result: RunResult, seeds: int = 1) -> list[tuple[str, str]]:
    """How the run went, or the mean of several seeds, as (name, text); what the result does not hold is left out."""

    def listed(write: Callable[[float], str], **parts: float | None) -> str:
        return ", ".join(f"{write(n)} {name.replace('_', ' ')}" for name, n in parts.items() if n is not None)

    traffic, seconds, gradients, privacy = result.traffic, result.seconds, result.gradients, result.privacy
    facts = {
        "people evaluated": listed(
            "{:,}".format, seen=result.seen.people, new=result.new.people if result.new else None
        ),
        "rounds": rounds_text(result, seeds),
        "sent": listed(human_bytes, up=traffic.up_bytes, down=traffic.down_bytes),
        "sent by one person": f"{human_bytes(traffic.up_bytes_per_person_round)} up in a round",
        "gradient evaluations": gradients
        and listed(digits, in_all=gradients.total, per_person_and_round=gradients.per_person_round),
        "privacy": privacy
        and ", ".join(f"{sign} = {n:g}" for sign, n in (("ε", privacy.epsilon), ("δ", privacy.delta)) if n is not None),
        "rejected updates": ", ".join(f"{n} {why}" for why, n in result.rejected_updates.items()) or "none",
        "time": listed(human_seconds, setup=seconds.setup, train=seconds.train, evaluate=seconds.evaluate),
        "memory, at most": human_bytes(result.peak_rss_mb * 1e6),
        "seed": str(result.seed),
        "run folder": result.run,
    }
    return [(name, text) for name, text in facts.items() if text]


def notes(results: Sequence[RunResult]) -> list[str]:
    """Every note once; with the runs' names where not all runs have it."""
    runs: dict[str, list[str]] = {}
    for result, label in zip(results, labels(results)):
        for note in dict.fromkeys(result.notes):
            runs.setdefault(note, []).append(label)
    return [note if len(names) == len(results) else f"{', '.join(names)}: {note}" for note, names in runs.items()]


def weight_rows(result: RunResult) -> list[tuple[str, str, str]]:
    """Rows of (name, learnt, true) of a regression's weights."""
    if result.weights is None or result.true_weights is None:
        return []
    learnt, true = ([f"{weight:.4f}" for weight in weights] for weights in (result.weights, result.true_weights))
    pairs = zip_longest(learnt, true, fillvalue=NONE)
    return [(f"w{i}", *pair) for i, pair in enumerate(pairs)][:MAX_WEIGHTS]
