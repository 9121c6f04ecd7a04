"""The HTML report of one run or of a comparison: one file that needs nothing else, and its plots as PNG beside it.

What is shown is put into words here and set by the template report.html.jinja, which escapes all of it: titles, paths
and names come from outside. Nothing is loaded from anywhere; the page forbids itself to (Content-Security-Policy).
"""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from importlib import resources
from itertools import zip_longest
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

from . import plots
from .canvas import Plot
from .clouds import plane
from .errors import RunError, SettingError
from .privacy_statement import statement_rows
from .tables import (
    METRICS,
    NONE,
    Column,
    Result,
    at,
    by_client,
    columns,
    decimals,
    digits,
    human_bytes,
    human_seconds,
    interval_text,
    labels,
    leaks,
    method_name,
    number,
    pair,
    plain,
    protocols,
    settings_table,
    subject,
)
from .tradeoff import Tradeoff
from .wholefile import write_atomically

MOST_WEIGHTS = 60  # rows of the table of weights; more is not read
PLOTS = (
    "privacy",
    "tradeoff",
    "sweep",
    "convergence",
    "bytes",
    "gradients",
    "seconds",
    "loss",
    "zeros",
    "down",
    "nodes",
    "items",
    "activity",
    "popularity",
)


def write_report(
    results: list[Result], folder: Path, *, data: dict[str, Any] | None = None, runs: Sequence[Path] = (),
    title: str | None = None, weighed: Tradeoff | None = None,
) -> Path:  # fmt: skip
    """Write folder/report.html and folder/plots/*.png; return the path of the page.

    `data` may hold "activity" (interactions per person) and "popularity" (people per item), both plotted by rank.
    `runs` are the results' run folders, in the same order, for what is drawn from trained weights.
    `weighed` is what `tradeoff.weigh` found in the same results: its advice, fronts and plots.
    """
    if not results:
        raise SettingError("A report was asked for no results; give at least one, e.g. [result].")
    private = any(at(result, "privacy") for result in results)
    data = None if private else data  # exact counts of people and items are outside every promise
    planes = [plane(run, int(number(at(result, "items")) or 0)) for run, result in zip(runs, results)]
    drawn = plots.draw(results, data, planes, weighed)
    page = render(results, drawn, title=title, weighed=weighed)
    folder = Path(folder)
    try:
        (folder / "plots").mkdir(mode=0o700 if private else 0o777, parents=True, exist_ok=True)
        mode = 0o600 if private else None
        for plot in drawn:
            write_atomically(folder / "plots" / f"{plot.name}.png", plot.png, mode)
        for name in set(PLOTS) - {plot.name for plot in drawn}:  # an earlier report's plot would mislead
            (folder / "plots" / f"{name}.png").unlink(missing_ok=True)
        write_atomically(folder / "report.html", page.encode("utf-8", "replace"), mode)  # a name may hold half a letter
        return folder / "report.html"
    except OSError as error:
        raise RunError(f"The report cannot be written to {folder}: {error}. Choose another folder.") from error


def shape(data: Any) -> dict[str, Any] | None:
    """How active people are and how popular items are, for the plots."""
    whole = getattr(data, "train", data)
    if not hasattr(whole, "person"):
        return None
    return {"activity": np.bincount(whole.person).tolist(), "popularity": np.bincount(whole.item).tolist()}


def render(
    results: list[Result], drawn: Sequence[Plot] = (), *, title: str | None = None, weighed: Tradeoff | None = None
) -> str:
    """The page as text."""
    names = labels(results)
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    environment.lstrip_blocks = environment.keep_trailing_newline = True
    template = environment.from_string(resources.files(__package__).joinpath("report.html.jinja").read_text("utf-8"))
    return template.render(
        title=title or default_title(results),
        subject=subject(results),
        headline=re.split(r"(\d+ %(?: \[.*?\])?)", headline(results)),  # odd pieces: kept on one line
        advice=re.split(r"(?<=\.) |$", weighed.advice, maxsplit=1) if weighed else [],  # the choice, the reasons
        chosen=weighed.choice if weighed else None,
        fronts=[weighed.on_front(i) for i in range(len(results))] if weighed else [],
        quality=weighed.quality.title if weighed else "",
        warnings=warnings(results),
        leak=leak_notes(results),
        tiles=tiles(results[0]) if len(results) == 1 else [],
        table=result_table(results),
        plots=[(plot, _data_uri(plot.light), _data_uri(plot.dark)) for plot in drawn],
        names=names,
        clients=by_client(results),
        settings=settings_table(results),
        weights=[(name, rows) for name, result in zip(names, results) if (rows := weight_rows(result))],
        runs=[(name, run_facts(result), at(result, "command")) for name, result in zip(names, results)],
        promises=[(n, lines) for n, result in zip(names, results) if (lines := statement_rows(at(result, "privacy")))],
        notes=notes(results),
    )


def _data_uri(svg: bytes) -> str:
    return "data:image/svg+xml;base64," + base64.b64encode(svg).decode()


def default_title(results: Sequence[Result]) -> str:
    data = ", ".join(dict.fromkeys(str(at(result, "data") or "unnamed data") for result in results))
    methods = dict.fromkeys(map(method_name, results))
    many = f"{len(results)} {'methods' if len(methods) == len(results) else 'runs'}"
    return f"{method_name(results[0]) if len(results) == 1 else many} on {data}"


def headline(results: Sequence[Result]) -> str:
    """The finding in one sentence; of several results, the best one's.

    >>> headline([{"method": "fedals", "rounds": 8, "seen": {"sampled": {"hr@10": 0.74}}}])
    'FedALS, 8 rounds: a held-out item is among the first ten of a hundred for 74 % of people seen in training.'
    """
    shown = columns(results, METRICS)
    if not shown:
        return f"{', '.join(labels(results))}: no results on held-out data."
    best = shown[0].best(results)
    i = next(i for i, r in enumerate(results) if shown[0].value(r) is not None and best in (None, shown[0].value(r)))
    result = results[i]
    rounds, protocol = number(at(result, "rounds")), at(result, "protocol")
    parts = [labels(results)[i]]
    if rounds is not None:
        parts.append(f"{rounds:,.0f} round{'' if rounds == 1 else 's'}")
    if protocol:
        parts.append(f"{protocol} protocol")
    start = f"Best of {len(results)}: " if best is not None else ""
    return f"{start}{', '.join(parts)}: {_finding(result)}."


def _finding(result: Result) -> str:
    whose = [("seen", "people seen in training"), ("new", "people it has never seen")]
    for kind, among in (("sampled", "a hundred"), ("full", "all items")):
        told = [f"{text} of {people}" for who, people in whose if (text := _percent(result, who, kind, "hr@10"))]
        if told:
            return f"a held-out item is among the first ten of {among} for " + ", and ".join(told)
    told = []
    for who, people in whose:
        error, far = number(at(result, who, "rmse")), number(at(result, who, "weights_error"))
        right, interval = _percent(result, who, "accuracy"), pair(at(result, "intervals", who, "rmse"))
        off = "" if error is None else f"predictions are off by {decimals(error)}"
        off += f" [{interval_text(interval)}]" if off and interval else ""
        right = right and f"{right} {'are within half a point' if off else 'of predictions are right'}"
        weights = "" if far is None else f"the learnt weights are {decimals(far)} from the true ones"
        if parts := [part for part in (off, right, weights) if part]:
            told.append(f"for {people}, " + " and ".join(parts))
    return "; ".join(told) or "no results on held-out data"


def _percent(result: Result, *path: str) -> str:
    """`74 % [71–77]`, or nothing."""
    value, interval = number(at(result, *path)), pair(at(result, "intervals", *path))
    if value is None:
        return ""
    return f"{100 * value:.0f} %" + (f" [{100 * interval[0]:.0f}–{100 * interval[1]:.0f}]" if interval else "")


def leak_notes(results: Sequence[Result]) -> list[dict[str, Any]]:
    """What the leak detector found: a memory of the drawn negatives, with no learning, must not beat popularity."""
    found: dict[str, bool] = {}
    for result in results:
        memory, popular = number(at(result, "leak", "memoriser_hr@10")), number(at(result, "leak", "popularity_hr@10"))
        told = at(result, "leak", "leaks")
        if memory is None or popular is None:
            continue
        leaking = memory > popular if told is None else bool(told)
        text = (
            f"The {at(result, 'protocol') or 'used'} protocol {'leaks' if leaking else 'does not leak'}: a memory of "
            f"the negatives drawn in training, which learns nothing, finds {100 * memory:.0f}\u00a0% of held-out items "
            f"among the first ten; popularity finds {100 * popular:.0f}\u00a0%."
        )
        found[text] = leaking
    return [{"text": text, "leaks": leaking} for text, leaking in found.items()]


def warnings(results: Sequence[Result]) -> list[str]:
    found = []
    if "published" in protocols(results):
        found.append(
            "The published protocol leaks: held-out items are never drawn as training negatives, and the round is "
            "chosen on the test set. These numbers serve to check against papers; they do not tell accuracy."
        )
    elif leaks(results):
        found.append("The protocol leaks: a memory that learns nothing beats popularity. These numbers mean little.")
    if len(names := {str(at(result, "data")) for result in results}) > 1:
        found.append(f"The runs are on different data ({', '.join(sorted(names))}); their numbers do not compare.")
    if len(ways := protocols(results)) > 1:
        found.append(f"The runs follow different protocols ({', '.join(ways)}); their numbers do not compare.")
    return found


def tiles(result: Result) -> list[tuple[str, str, str]]:
    """Up to four numbers to see first: value, what it is, small print."""
    found = []
    for who in ("seen", "new"):
        for column in [column for column in columns([result], METRICS) if column.path[0] == who][:1]:
            interval = column.interval(result)
            small = f"95 % interval {interval_text(interval)}" if interval else ""
            found.append((column.write(column.value(result) or 0), f"{column.title}, {column.group.lower()}", small))
    up, train = number(at(result, "traffic", "up_bytes_per_person_round")), number(at(result, "seconds", "train"))
    if up is not None:
        found.append((human_bytes(up), "sent up per person and round", ""))
    if train is not None:
        found.append((human_seconds(train), "training", ""))
    return found


def result_table(results: Sequence[Result]) -> dict[str, Any]:
    """Head in two levels (groups with their widths, then titles) and rows of cells."""
    shown = columns(results)
    groups: list[list[Any]] = []
    for column in shown:
        if groups and groups[-1][0] == column.group:
            groups[-1][1] += 1
        else:
            groups.append([column.group, 1])
    best = [column.best(results) for column in shown]
    rows = [[_cell(column, result, top) for column, top in zip(shown, best)] for result in results]
    new = any(column.path[0] == "new" for column in shown)
    titles, rows_by_name = [column.title for column in shown], list(zip(labels(results), rows))
    return {"groups": groups, "titles": titles, "rows": rows_by_name, "new": new}


def _cell(column: Column, result: Result, best: float | None) -> dict[str, Any]:
    value, interval = column.value(result), column.interval(result)
    return {
        "key": ".".join(column.path),
        "value": value,
        "text": NONE if value is None else column.write(value),
        "interval": re.sub(r"\b0\.", ".", interval_text(interval)) if interval else "",  # short: the table is wide
        "ends": interval,
        "best": value is not None and value == best,
    }


def run_facts(result: Result) -> list[tuple[str, str]]:
    """How the run went, as (name, words); what the result does not tell is left out."""

    def parts(path: str, keys: Sequence[str], write: Any) -> str:
        found = [(number(at(result, path, key)), key.removesuffix("_bytes")) for key in keys]
        return ", ".join(f"{write(n)} {key}" for n, key in found if n is not None)

    each, memory = number(at(result, "traffic", "up_bytes_per_person_round")), number(at(result, "peak_rss_mb"))
    passes, lap = (number(at(result, "gradients", key)) for key in ("total", "per_person_round"))
    epsilon, delta = (number(at(result, "privacy", key)) for key in ("epsilon", "delta"))
    judged = [(number(at(result, who, "people")), who) for who in ("seen", "new")]
    rejected, reason = at(result, "rejected_updates"), at(result, "stopped", "reason")
    if isinstance(rejected, dict):
        rejected = ", ".join(f"{plain(n)} {why}" for why, n in rejected.items()) or "none"
    facts = {
        "people judged": ", ".join(f"{n:,.0f} {who}" for n, who in judged if n is not None),
        "stopped": f"after round {plain(at(result, 'stopped', 'round'))}: {reason}" if reason else None,
        "best round": at(result, "best_round"),
        "sent": parts("traffic", ("up_bytes", "down_bytes"), human_bytes),
        "sent by one person": f"{human_bytes(each)} up in a round" if each is not None else None,
        "gradient evaluations": ", ".join(
            f"{digits(n)} {what}" for n, what in ((passes, "in all"), (lap, "per person and round")) if n is not None
        ),
        "privacy": ", ".join(f"{sign} = {n:g}" for sign, n in (("ε", epsilon), ("δ", delta)) if n is not None),
        "rejected updates": rejected,
        "time": parts("seconds", ("setup", "train", "evaluate"), human_seconds),
        "memory, at most": human_bytes(memory * 1e6) if memory is not None else None,
        "seed": at(result, "seed"),
        "versions": at(result, "versions"),
        "run folder": at(result, "run"),
    }
    return [(name, plain(value)) for name, value in facts.items() if value is not None and value != ""]


def notes(results: Sequence[Result]) -> list[str]:
    """Every note once; with the runs' names where not all runs have it."""
    owners: dict[str, list[str]] = {}
    for result, label in zip(results, labels(results)):
        for note in dict.fromkeys(map(str, at(result, "notes") or ())):
            owners.setdefault(note, []).append(label)
    return [note if len(who) == len(results) else f"{', '.join(who)}: {note}" for note, who in owners.items()]


def weight_rows(result: Result) -> list[tuple[str, str, str]]:
    """Rows of (name, learnt, true) of a regression's weights."""
    learnt, true = (at(result, key) for key in ("weights", "true_weights"))
    if learnt is None or true is None:
        return []
    names = list(dict.fromkeys([*learnt, *true])) if isinstance(learnt, dict) and isinstance(true, dict) else []
    if names:
        rows = [(str(name), number(learnt.get(name)), number(true.get(name))) for name in names]
    else:
        try:
            both = zip_longest(np.ravel(learnt).tolist(), np.ravel(true).tolist())
        except ValueError:  # no array
            return []
        rows = [(f"w{i}", number(a), number(b)) for i, (a, b) in enumerate(both)]
    write = lambda value: NONE if value is None else f"{value:.4f}"
    return [(name, write(a), write(b)) for name, a, b in rows[:MOST_WEIGHTS]]
