"""The HTML report of a run or a comparison: one file that needs nothing else, and its plots as PNG beside it.

The words are composed here and set by the template report.html.jinja, which escapes all of them: titles, paths and
names come from outside. The page loads nothing, and its Content-Security-Policy forbids it to.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import zip_longest
from pathlib import Path

import jinja2
import numpy as np

from fedtaste.data.interactions import Interactions
from fedtaste.data.supervised import Supervised
from fedtaste.data.user_files import UserSplit
from fedtaste.errors import RunError, SettingError
from fedtaste.experiment.result import RunResult
from fedtaste.files.atomic import write_atomically
from fedtaste.report import curves as plots
from fedtaste.report.curves import DataShape
from fedtaste.report.item_scatter import read_plane
from fedtaste.report.numbers import NONE, decimals, digits, human_bytes, human_seconds, interval_text
from fedtaste.report.privacy_statement import statement_rows
from fedtaste.report.style import Plot
from fedtaste.report.tables import (
    METRICS,
    Column,
    by_client,
    columns,
    labels,
    leaks,
    method_name,
    protocols,
    settings_table,
    subject,
)
from fedtaste.report.trade_off import Tradeoff
from fedtaste.result_part import Interval

MOST_WEIGHTS = 60  # rows of the table of weights; more is not read
PLOTS = (
    "privacy", "tradeoff", "sweep", "convergence", "bytes", "gradients", "seconds", "loss", "zeros", "down", "nodes",
    "items", "activity", "popularity",
)  # fmt: skip
WHOSE = (("seen", "people seen in training"), ("new", "people it has never seen"))


def write_report(
    results: Sequence[RunResult], folder: Path, *, data: DataShape | None = None, runs: Sequence[Path] = (),
    title: str | None = None, tradeoff: Tradeoff | None = None,
) -> Path:  # fmt: skip
    """Write folder/report.html and folder/plots/*.png; return the path of the page.

    `data` (see `shape`) is plotted by rank. `runs` are the results' run folders, in the same order, for what is drawn
    from trained weights. `tradeoff` is the `trade_off` of the same results: its advice, fronts and plots.
    """
    if not results:
        raise SettingError("A report needs at least one result, as in write_report([result], folder).")
    private = any(result.privacy for result in results)
    data = None if private else data  # no promise covers exact counts of people and items
    drawn = plots.draw(results, data, [read_plane(run, result.items) for run, result in zip(runs, results)], tradeoff)
    page = render(results, drawn, title=title, tradeoff=tradeoff)
    folder, mode = Path(folder), 0o600 if private else None
    try:
        (folder / "plots").mkdir(mode=0o700 if private else 0o777, parents=True, exist_ok=True)
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
    return DataShape(np.bincount(table.person).tolist(), np.bincount(table.item).tolist())


def render(
    results: Sequence[RunResult], drawn: Sequence[Plot] = (), *, title: str | None = None,
    tradeoff: Tradeoff | None = None,
) -> str:  # fmt: skip
    """The page as text."""
    names = labels(results)
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    environment.lstrip_blocks = environment.keep_trailing_newline = True
    template = environment.from_string(
        resources.files("fedtaste.report").joinpath("templates", "report.html.jinja").read_text("utf-8")
    )
    return template.render(
        title=title or default_title(results),
        subject=subject(results),
        headline=re.split(r"(\d+ %(?: \[.*?\])?)", headline(results)),  # odd pieces: kept on one line
        advice=re.split(r"(?<=\.) |$", tradeoff.advice, maxsplit=1) if tradeoff else [],  # the choice, the reasons
        chosen=tradeoff.choice if tradeoff else None,
        fronts=[tradeoff.on_front(i) for i in range(len(results))] if tradeoff else [],
        quality=tradeoff.quality.title if tradeoff else "",
        warnings=warnings(results),
        leak=leak_notes(results),
        tiles=tiles(results[0]) if len(results) == 1 else [],
        table=result_table(results),
        plots=[(plot, _data_uri(plot.light), _data_uri(plot.dark)) for plot in drawn],
        names=names,
        clients=by_client(results),
        settings=settings_table(results),
        weights=[(name, rows) for name, result in zip(names, results) if (rows := weight_rows(result))],
        runs=[(name, run_facts(result)) for name, result in zip(names, results)],
        promises=[(name, statement_rows(result.privacy)) for name, result in zip(names, results) if result.privacy],
        notes=notes(results),
    )


def _data_uri(svg: bytes) -> str:
    return "data:image/svg+xml;base64," + base64.b64encode(svg).decode()


def default_title(results: Sequence[RunResult]) -> str:
    data = ", ".join(dict.fromkeys(result.data for result in results))
    methods = [method_name(result.method) for result in results]
    many = f"{len(results)} {'methods' if len(set(methods)) == len(results) else 'runs'}"
    return f"{methods[0] if len(results) == 1 else many} on {data}"


def headline(results: Sequence[RunResult]) -> str:
    """The finding in one sentence; of several results, the best one's."""
    shown = columns(results, METRICS)
    if not shown:
        return f"{', '.join(labels(results))}: no results on held-out data."
    best = shown[0].best(results)
    i = next(i for i, r in enumerate(results) if shown[0].value(r) is not None and best in (None, shown[0].value(r)))
    result = results[i]
    rounds = f"{result.rounds:,} round{'' if result.rounds == 1 else 's'}"
    start = f"Best of {len(results)}: " if best is not None else ""
    return f"{start}{labels(results)[i]}, {rounds}, {result.protocol} protocol: {_finding(result)}."


def _finding(result: RunResult) -> str:
    for kind, among in (("sampled", "a hundred"), ("full", "all items")):
        clauses = [f"{text} of {people}" for who, people in WHOSE if (text := _percent(result, f"{who}.{kind}.hr@10"))]
        if clauses:
            return f"a held-out item is among the first ten of {among} for " + ", and ".join(clauses)
    clauses = []
    for who, people in WHOSE:
        error, far = result.metric(f"{who}.rmse"), result.metric(f"{who}.weights_error")
        right, interval = _percent(result, f"{who}.accuracy"), result.interval(f"{who}.rmse")
        off = "" if error is None else f"predictions are off by {decimals(error)}"
        off += f" [{interval_text(interval)}]" if off and interval else ""
        right = right and f"{right} {'are within half a point' if off else 'of predictions are right'}"
        weights = "" if far is None else f"the learnt weights are {decimals(far)} from the true ones"
        if parts := [part for part in (off, right, weights) if part]:
            clauses.append(f"for {people}, " + " and ".join(parts))
    return "; ".join(clauses) or "no results on held-out data"


def _percent(result: RunResult, key: str) -> str:
    """`74 % [71–77]`, or nothing."""
    value, interval = result.metric(key), result.interval(key)
    if value is None:
        return ""
    return f"{100 * value:.0f} %" + (f" [{100 * interval[0]:.0f}–{100 * interval[1]:.0f}]" if interval else "")


def leak_notes(results: Sequence[RunResult]) -> dict[str, bool]:
    """The verdict of the leak detector in words, and whether it is a leak: a memory of the drawn negatives, with no learning, must
    not beat popularity."""
    verdicts: dict[str, bool] = {}
    for result in results:
        if result.leak:
            text = (
                f"The {result.protocol} protocol {'leaks' if result.leak.leaks else 'does not leak'}: a memory of the "
                "negatives drawn in training, which learns nothing, finds "
                f"{100 * result.leak.memoriser_hr:.0f}\u00a0% of held-out items among the first ten; popularity finds "
                f"{100 * result.leak.popularity_hr:.0f}\u00a0%."
            )
            verdicts[text] = result.leak.leaks
    return verdicts


def warnings(results: Sequence[RunResult]) -> list[str]:
    """Why the numbers mislead, or do not compare."""
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
    return texts


def tiles(result: RunResult) -> list[tuple[str, str, str]]:
    """Up to four numbers to see first: value, what it is, small print."""
    shown = []
    for who in ("seen", "new"):
        for column in [column for column in columns([result], METRICS) if column.key.startswith(f"{who}.")][:1]:
            interval = column.interval(result)
            small = f"95 % interval {interval_text(interval)}" if interval else ""
            shown.append((column.write(column.value(result) or 0), f"{column.title}, {column.group.lower()}", small))
    shown.append((human_bytes(result.traffic.up_bytes_per_person_round), "sent up per person and round", ""))
    return [*shown, (human_seconds(result.seconds.train), "training", "")]


@dataclass(frozen=True)
class Cell:
    """One number of the page's table."""

    key: str
    value: float | None
    text: str
    ends: Interval | None
    best: bool

    @property
    def interval(self) -> str:
        return re.sub(r"\b0\.", ".", interval_text(self.ends)) if self.ends else ""  # short: the table is wide


@dataclass(frozen=True)
class ResultTable:
    """The page's table: heads in two levels (groups with their widths, then titles), and rows by the runs' names."""

    groups: list[tuple[str, int]]
    titles: list[str]
    rows: list[tuple[str, list[Cell]]]
    new: bool  # whether it has figures of new people


def result_table(results: Sequence[RunResult]) -> ResultTable:
    shown = columns(results)
    widths: dict[str, int] = {}
    for column in shown:
        widths[column.group] = widths.get(column.group, 0) + 1
    best = [column.best(results) for column in shown]
    rows = [[_cell(column, result, top) for column, top in zip(shown, best)] for result in results]
    new = any(column.key.startswith("new.") for column in shown)
    return ResultTable(list(widths.items()), [column.title for column in shown], list(zip(labels(results), rows)), new)


def _cell(column: Column, result: RunResult, best: float | None) -> Cell:
    value = column.value(result)
    text = NONE if value is None else column.write(value)
    return Cell(column.key, value, text, column.interval(result), value is not None and value == best)


def run_facts(result: RunResult) -> list[tuple[str, str]]:
    """How the run went, as (name, words); what the result does not tell is left out."""

    def listed(write: Callable[[float], str], **parts: float | None) -> str:
        return ", ".join(f"{write(n)} {name.replace('_', ' ')}" for name, n in parts.items() if n is not None)

    traffic, seconds, gradients, privacy = result.traffic, result.seconds, result.gradients, result.privacy
    facts = {
        "people judged": listed("{:,}".format, seen=result.seen.people, new=result.new.people if result.new else None),
        "stopped": f"after round {result.stopped.round}: {result.stopped.reason}" if result.stopped.reason else "",
        "best round": str(result.best_round),
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
    return [(name, words) for name, words in facts.items() if words]


def notes(results: Sequence[RunResult]) -> list[str]:
    """Every note once; with the runs' names where not all runs have it."""
    owners: dict[str, list[str]] = {}
    for result, label in zip(results, labels(results)):
        for note in dict.fromkeys(result.notes):
            owners.setdefault(note, []).append(label)
    return [note if len(who) == len(results) else f"{', '.join(who)}: {note}" for note, who in owners.items()]


def weight_rows(result: RunResult) -> list[tuple[str, str, str]]:
    """Rows of (name, learnt, true) of a regression's weights."""
    if result.weights is None or result.true_weights is None:
        return []

    def write(value: float | None) -> str:
        return NONE if value is None else f"{value:.4f}"

    both = enumerate(zip_longest(result.weights, result.true_weights))
    return [(f"w{i}", write(learnt), write(true)) for i, (learnt, true) in both][:MOST_WEIGHTS]
