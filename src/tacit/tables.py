"""Results as rows and columns: what the terminal table and the HTML report have in common.

A result is the JSON object of one run (docs: the command line's --json). Any part of it may be missing or null, so
everything is read through `at`, and a column stands only where at least one result has a value for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from .tradeoff import Tradeoff

Result = dict[str, Any]
NONE = "–"  # shown where a result has no value

SPELLINGS = """
Centralised Local Popularity FedSGD FedAvg FedProx FedPer FedRep FedBN FCF FedMF FedNCF FedRecon FedALS FedTrail FedVeil
FedRAP PFedRec Ditto pFedMe FedCLUP APFL LG-Mix
"""
NAMES = {name.lower().replace("-", ""): name for name in SPELLINGS.split()}


def at(result: Result | None, *path: str) -> Any:
    """The value at a path of keys, or None if any part of it is missing."""
    value: Any = result
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def number(value: Any) -> float | None:
    """A finite number, or None."""
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return value if good else None


def pair(value: Any) -> tuple[float, float] | None:
    """An interval of two finite numbers, or None."""
    if not isinstance(value, (list, tuple)) or len(value) != 2:
        return None
    low, high = number(value[0]), number(value[1])
    return None if low is None or high is None else (low, high)


def human_bytes(n: float | None) -> str:
    """Bytes in decimal units, two digits or more.

    >>> human_bytes(999), human_bytes(3_800_000), human_bytes(999_960), human_bytes(28e9), human_bytes(None)
    ('999 B', '3.8 MB', '1.0 MB', '28 GB', '–')
    """
    if n is None:
        return NONE
    if n < 999.5:
        return f"{n:.0f} B"
    power = next((p for p in range(1, 5) if n < 999.5 * 1000**p), 5)
    n, unit = n / 1000**power, " kMGTP"[power] + "B"
    return f"{n:.1f} {unit}" if n < 9.95 else f"{n:,.0f} {unit}"


def human_seconds(seconds: float | None) -> str:
    """
    >>> human_seconds(0.034), human_seconds(0.34), human_seconds(3.4), human_seconds(75), human_seconds(7380)
    ('34 ms', '0.34 s', '3.4 s', '1 min 15 s', '2 h 3 min')
    """
    if seconds is None:
        return NONE
    if seconds < 0.0995:
        return f"{1000 * seconds:.2g} ms"
    if seconds < 59.5:
        return f"{seconds:.2f} s" if seconds < 0.95 else f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def plain(value: Any) -> str:
    """A setting as a reader would write it."""
    if value is None:
        return NONE
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(plain, value))
    if isinstance(value, dict):
        return ", ".join(f"{key} {plain(part)}" for key, part in value.items())
    return str(value)


def decimals(value: float) -> str:
    """Three decimals, more digits only for what would otherwise read as zero."""
    return f"{value:.3f}" if value == 0 or abs(value) >= 0.0005 else f"{value:.1e}"


def digits(n: float) -> str:
    """A count or a size in three digits or more, never in powers of ten unless tiny.

    >>> digits(0.4217), digits(12), digits(12.345), digits(1234.5), digits(2e6)
    ('0.422', '12', '12.3', '1,234', '2,000,000')
    """
    return f"{n:,.0f}" if abs(n) >= 999.5 else f"{n:.3g}"


def interval_text(interval: tuple[float, float]) -> str:
    return f"{decimals(interval[0])}–{decimals(interval[1])}"


@dataclass(frozen=True)
class Column:
    """One number of a result: where it stands, how it is headed, written and compared."""

    path: tuple[str, ...]
    group: str
    title: str
    short: str  # heading in the terminal, two lines at most
    better: int  # 1: more is better, -1: less is better, 0: neither
    write: Callable[[float], str] = decimals
    in_terminal: bool = True

    def value(self, result: Result) -> float | None:
        return number(at(result, *self.path))

    def interval(self, result: Result) -> tuple[float, float] | None:
        return pair(at(result, "intervals", *self.path))

    def best(self, results: Sequence[Result]) -> float | None:
        """The value to mark; None if there is nothing to compare."""
        values = [value for value in map(self.value, results) if value is not None]
        if not self.better or len(values) < 2 or min(values) == max(values):
            return None
        return max(values) if self.better > 0 else min(values)


OTHERS = (
    ("rmse", "RMSE", -1), ("accuracy", "accuracy", 1), ("loss", "loss", -1),
    ("global_rmse", "global RMSE", -1), ("global_accuracy", "global accuracy", 1), ("global_loss", "global loss", -1),
    ("weights_error", "weights’ error", -1), ("personal_error", "personal error", -1),
    ("global_error", "global error", -1),
)  # fmt: skip


def _metrics() -> list[Column]:
    found = []
    for who, name, tag in (("seen", "Seen people", ""), ("new", "New people", "new\n")):
        for kind, group, end in (("sampled", "of 100 sampled", "(99)"), ("full", "of all items", "full")):
            for key, title in (("hr@10", "HR@10"), ("ndcg@10", "NDCG@10")):
                short = f"{tag}{title}" if tag else f"{title}\n{end}"
                shown = who == "seen" or (kind, key) == ("sampled", "hr@10")
                found.append(Column((who, kind, key), f"{name}, {group}", title, short, 1, in_terminal=shown))
        for key, title, better in OTHERS:
            short = f"{tag}{title}" if tag else title.replace(" ", "\n")
            shown = key != "global_loss" and (who == "seen" or key in ("rmse", "accuracy", "weights_error"))
            found.append(Column((who, key), name, title, short, better, in_terminal=shown))
    return found


METRICS = _metrics()
COSTS = [
    Column(("privacy", "epsilon"), "Privacy", "ε", "ε", -1, lambda n: f"{n:.3g}"),
    Column(("rounds",), "Cost", "rounds", "rounds", 0, lambda n: f"{n:,.0f}"),
    Column(("gradients", "total"), "Cost", "gradient evaluations", "gradients", -1, digits),
    Column(("traffic", "up_bytes_per_person_round"), "Cost", "up/person /round", "up/person\n/round", -1, human_bytes),
    Column(("traffic", "up_bytes"), "Cost", "total up", "", -1, human_bytes, False),
    Column(("traffic", "down_bytes"), "Cost", "total down", "", -1, human_bytes, False),
    Column(("seconds", "train"), "Cost", "training", "seconds", -1, human_seconds),
    Column(("seconds", "round"), "Cost", "a round", "", -1, human_seconds, False),
]


def columns(results: Sequence[Result], kinds: Sequence[Column] = (*METRICS, *COSTS)) -> list[Column]:
    """The columns for which at least one result has a value."""
    return [column for column in kinds if any(column.value(result) is not None for result in results)]


def method_name(result: Result) -> str:
    """As the papers spell it."""
    method = str(at(result, "method") or "unnamed")
    return NAMES.get(method.lower().replace("-", "").replace("_", ""), method)


def labels(results: Sequence[Result]) -> list[str]:
    """One name per result, all different: the method, and what tells it from other runs of the same method."""
    found = _told_apart(results, without="rounds")  # which often follow from what is set
    if len(set(found)) < len(found):
        found = _told_apart(results)
    turn = [found[: i + 1].count(label) for i, label in enumerate(found)]  # equal in all of that: numbered
    return [f"{label} #{n}" if found.count(label) > 1 else label for label, n in zip(found, turn)]


def _told_apart(results: Sequence[Result], without: str = "") -> list[str]:
    names = [method_name(result) for result in results]
    found = []
    for result, name in zip(results, names):
        twins = [other for other, theirs in zip(results, names) if theirs == name]
        facts = {key: value for key, value in _facts(result).items() if key != without and _differs(key, twins)}
        found.append(" ".join([name, *(f"{key}={plain(value)}" for key, value in facts.items())]))
    return found


def _facts(result: Result) -> dict[str, Any]:
    facts = {key: at(result, key) for key in ("data", "protocol", "rounds", "seed", "wire")}
    epsilon = number(at(result, "privacy", "epsilon"))
    return {**facts, "epsilon": "none" if epsilon is None else f"{epsilon:.2g}", **(at(result, "settings") or {})}


def _differs(key: str, results: Sequence[Result]) -> bool:
    return len({plain(_facts(result).get(key)) for result in results}) > 1


def settings_table(results: Sequence[Result]) -> list[tuple[str, list[str]]]:
    """Rows of (setting, its value in each result)."""
    shown = ("data", "protocol", "seed", *(["wire"] if any(at(result, "wire") for result in results) else []))
    heads = [{key: at(result, key) for key in shown} for result in results]
    facts = [{**head, **(at(result, "settings") or {})} for head, result in zip(heads, results)]
    keys = dict.fromkeys(key for fact in facts for key in fact)
    return [(str(key), [plain(fact.get(key)) for fact in facts]) for key in keys]


def subject(results: Sequence[Result]) -> str:
    """`ml-100k: 943 people, 1,682 items, 100,000 interactions`."""
    names = list(dict.fromkeys(str(at(result, "data") or "unnamed data") for result in results))
    if len(names) > 1:
        return ", ".join(names)
    words = ("people", "items", "interactions") if number(at(results[0], "items")) else ("clients", "", "examples")
    sizes = zip((number(at(results[0], key)) for key in ("people", "items", "interactions")), words)
    text = ", ".join(f"{n:,.0f} {word}" for n, word in sizes if n)
    return f"{names[0]}: {text}" if text else names[0]


def protocols(results: Sequence[Result]) -> list[str]:
    return list(dict.fromkeys(str(found) for result in results if (found := at(result, "protocol"))))


def leaks(results: Sequence[Result]) -> bool:
    """Whether any number here was made under a protocol that leaks."""
    return any(at(result, "protocol") == "published" or at(result, "leak", "leaks") is True for result in results)


def by_client(results: Sequence[Result]) -> dict[str, Any] | None:
    """Rows of clients, columns of the runs that tell them; the best of a row is marked. None if no run does."""
    told = [(name, found) for name, result in zip(labels(results), results) if (found := _clients(result))]
    metric, better = next((m for m in (("accuracy", 1), ("rmse", -1)) if any(_has(m[0], c) for _, c in told)), ("", 0))
    rows = []
    for client in dict.fromkeys(client for _, found in told for client in found) if metric else ():
        here = [found.get(client) for _, found in told]
        values = [number(at(entry, metric)) for entry in here]
        known = [better * value for value in values if value is not None]
        top = better * max(known) if len(known) > 1 and min(known) < max(known) else None
        size = next((n for entry in here if (n := number(at(entry, "examples"))) is not None), None)
        cells = [{"text": NONE if v is None else decimals(v), "best": v is not None and v == top} for v in values]
        rows.append({"client": client, "examples": NONE if size is None else f"{size:,.0f}", "cells": cells})
    return {"metric": metric, "names": [name for name, _ in told], "rows": rows} if rows else None


def _clients(result: Result) -> dict[str, Result]:
    entries = at(result, "by_client")
    return {plain(at(entry, "client")): entry for entry in entries} if isinstance(entries, list) else {}


def _has(metric: str, clients: dict[str, Result]) -> bool:
    return any(number(at(entry, metric)) is not None for entry in clients.values())


def text_table(results: Sequence[Result], weighed: Tradeoff | None = None) -> Table:
    """The terminal's table: one row per result, the 95 % interval dim under its number, the best of a column green;
    of results that were weighed, also the costs on whose front they are."""
    shown = [column for column in columns(results) if column.in_terminal]
    if len(shown) > 8:  # 80 characters do not hold them all
        shown = [column for column in shown if column.path[0] != "gradients"]
    title = "; ".join([subject(results), *(f"{name} protocol" for name in protocols(results))])
    table = Table(box=SIMPLE_HEAD, show_edge=False, padding=0, title_style="bold", caption_style="dim")
    table.title, table.caption = Text(title), _caption(results, shown, weighed)
    table.title_justify = table.caption_justify = "left"
    table.add_column("method", overflow="fold", min_width=10)
    for column in shown:
        table.add_column(Text(column.short, justify="right"), justify="right", no_wrap=True)
    if weighed:
        table.add_column("front" if len(shown) < 8 else "◆", no_wrap=True)
    best = [column.best(results) for column in shown]
    for i, (result, label) in enumerate(zip(results, labels(results))):
        cells = [_cell(column, result, top) for column, top in zip(shown, best)]
        if weighed:
            cells.append(Text("".join(cost[0] if i in on else "·" for cost, on in weighed.fronts.items() if on)))
        table.add_row(Text(label, style="bold" if weighed and weighed.choice == i else ""), *cells)
    return table


def _cell(column: Column, result: Result, best: float | None) -> Text:
    value, interval = column.value(result), column.interval(result)
    if value is None:
        return Text(NONE, style="dim")
    written = f"{value:,.1f}" if column.path[0] == "seconds" else column.write(value)
    cell = Text(written, style="bold green" if value == best else "")
    if interval:
        cell.append(f"\n{_tight(*interval)}", style="not bold dim default")
    return cell


def _tight(low: float, high: float) -> str:
    """`.71–.77`: a leading zero says nothing, and nine columns must fit into 80 characters.

    >>> _tight(0.71, 0.77), _tight(0.98, 1.0), _tight(0.0271, 0.0293)
    ('.71–.77', '.98–1.00', '±.001')
    """
    ends = [f"{end:.2f}" for end in (low, high)]
    if ends[0] == ends[1]:
        return f"±{(high - low) / 2:.3f}".replace("±0.", "±.")
    return "–".join(end.removeprefix("0") for end in ends)


def _caption(results: Sequence[Result], shown: Sequence[Column], weighed: Tradeoff | None) -> Text:
    text = Text()
    if leaks(results):
        warning = "The protocol of these numbers leaks: do not compare them with clean ones.\n"
        text.append(warning, style="bold red not dim")
    if any(column.interval(result) for column in shown for result in results):
        text.append("Below a number: its 95 % interval. ")
    if any(column.path[:2] == ("seen", "sampled") for column in shown):
        text.append("(99): ranked among 99 sampled items; full: among all. ")
    if weighed and any(weighed.fronts.values()):
        costs = ", ".join(f"{cost} ({cost[0]})" for cost, on in weighed.fronts.items() if on)
        text.append(
            f"{'front' if len(shown) < 8 else '◆'}: no run has better {weighed.quality.title} for as little: {costs}."
        )
    return text
