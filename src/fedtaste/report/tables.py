"""Result tables: columns and labels of runs, for the HTML report and the terminal, and the terminal's table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from fedtaste.experiment.result import ClientRow, Intervals, RunResult, Scores
from fedtaste.report.numbers import NONE, decimals, digits, human_bytes, human_seconds, plain, tight_interval
from fedtaste.result_part import Interval
from fedtaste.text import count

if TYPE_CHECKING:
    from fedtaste.report.trade_off import Tradeoff

SPELLINGS = """
Centralised Local Popularity FedSGD FedAvg FedProx FedPer FedRep FedBN FCF FedMF FedNCF FedRecon FedALS FedTrail FedVeil
FedEigen FedSeq FedRAP PFedRec Ditto pFedMe FedCLUP APFL LG-Mix
"""
NAMES = {name.lower().replace("-", ""): name for name in SPELLINGS.split()}


@dataclass(frozen=True)
class Column:
    """One number of a result: its key, its headings, how it is written and compared. `terminal` is its importance in
    a narrow terminal, where the columns with the smallest numbers are left out first; 0: never shown there."""

    key: str
    group: str
    title: str
    short: str  # heading in the terminal, two lines at most
    better: int  # 1: more is better, -1: less is better, 0: neither
    write: Callable[[float], str] = decimals
    terminal: int = 9
    read: Callable[[RunResult], float | None] | None = None  # None: the metric of this key

    def value(self, result: RunResult) -> float | None:
        return self.read(result) if self.read else result.metric(self.key)

    def interval(self, result: RunResult) -> Interval | None:
        return None if self.read else result.interval(self.key)

    def best(self, results: Sequence[RunResult]) -> float | None:
        """The value to mark; None if there is nothing to compare."""
        return best_of([self.value(result) for result in results], self.better)


def best_of(values: Sequence[float | None], better: int) -> float | None:
    """The largest (`better` = 1) or smallest (-1) value; None where no two values differ."""
    known = [value for value in values if value is not None]
    if not better or len(known) < 2 or min(known) == max(known):
        return None
    return max(known) if better > 0 else min(known)


OTHERS = (
    ("rmse", "RMSE", -1), ("accuracy", "accuracy", 1), ("loss", "loss", -1),
    ("global_rmse", "global RMSE", -1), ("global_accuracy", "global accuracy", 1), ("global_loss", "global loss", -1),
    ("weights_error", "weights’ error", -1), ("personal_error", "personal error", -1),
    ("global_error", "global error", -1),
)  # fmt: skip


def _metrics() -> Iterator[Column]:
    for who, name, tag in (("seen", "Seen people", ""), ("new", "New people", "new\n")):
        for kind, group, end in (("sampled", "of 100 sampled", "(99)"), ("full", "of all items", "full")):
            for key, title in (("hr@10", "HR@10"), ("ndcg@10", "NDCG@10")):
                short = f"{tag}{title}" if tag else f"{title}\n{end}"
                terminal = 9 if who == "seen" else 8 if (kind, key) == ("sampled", "hr@10") else 0
                yield Column(f"{who}.{kind}.{key}", f"{name}, {group}", title, short, 1, terminal=terminal)
        for key, title, better in OTHERS:
            short = f"{tag}{title}" if tag else title.replace(" ", "\n")
            shown = key != "global_loss" and (who == "seen" or key in ("rmse", "accuracy", "weights_error"))
            yield Column(f"{who}.{key}", name, title, short, better, terminal=(8 if tag else 9) if shown else 0)


def _list_metrics() -> Iterator[Column]:
    """Metrics beyond accuracy. None is marked as the best: random lists would be the most novel and diverse ones."""
    shown = (
        ("coverage", "coverage", "coverage", decimals), ("gini", "Gini", "Gini", decimals),
        ("popularity", "popularity (ARP)", "ARP", digits), ("popularity_bias", "popularity bias", "bias", decimals),
        ("novelty", "novelty (bits)", "novelty", decimals), ("diversity", "diversity", "diversity", decimals),
        ("gap.ndcg@10", "largest gap of NDCG@10", "largest gap\nof NDCG@10", decimals),
        ("column_gap.ndcg@10", "largest gap by label", "largest gap\nby label", decimals),
    )  # fmt: skip
    for who, group in (("seen", "Seen people"), ("new", "New people")):
        for key, title, short, write in shown:
            yield Column(f"beyond.{who}.{key}", group, title, short, 0, write, terminal=9 if who == "seen" else 0)


def _new_item_metrics() -> Iterator[Column]:
    for key, title in (("recall@10", "recall@10"), ("ndcg@10", "NDCG@10")):
        yield Column(f"new_items.{key}", "New items, of all new items", title, f"new items\n{title}", 1)


def _validation_metrics() -> Iterator[Column]:
    """Figures of the validation that chose the round; shown where it also chooses between settings."""
    for key, title in (("hr@10", "HR@10"), ("ndcg@10", "NDCG@10"), ("rmse", "RMSE"), ("accuracy", "accuracy")):

        def read(result: RunResult, key: str = key) -> float | None:
            return result.validation.get(key)

        better = -1 if key == "rmse" else 1
        yield Column(f"valid.{key}", "Validation", title, f"valid.\n{title}", better, read=read)


VALIDATION = list(_validation_metrics())
METRICS, LIST_METRICS = [*_metrics(), *_new_item_metrics()], list(_list_metrics())
COSTS = [
    Column("privacy.epsilon", "Privacy", "ε", "ε", -1, "{:.3g}".format, 10, lambda r: r.epsilon),
    Column("rounds", "Cost", "final rounds", "final\nrounds", 0, "{:,.0f}".format, 6, lambda r: r.rounds),
    Column("gradients.total", "Cost", "gradient evaluations", "gradients", -1, digits, 4,
           lambda r: r.gradients.total if r.gradients else None),
    Column("traffic.up_bytes_per_person_round", "Cost", "up/person /round", "up/person\n/round", -1, human_bytes, 7,
           lambda r: r.traffic.up_bytes_per_person_round),
    Column("traffic.up_bytes", "Cost", "total up", "", -1, human_bytes, 0, lambda r: r.traffic.up_bytes),
    Column("traffic.down_bytes", "Cost", "total down", "", -1, human_bytes, 0, lambda r: r.traffic.down_bytes),
    Column("seconds.train", "Cost", "training", "seconds", -1, human_seconds, 5, lambda r: r.seconds.train),
    Column("seconds.round", "Cost", "a round", "", -1, human_seconds, 0, lambda r: r.seconds.round),
]  # fmt: skip


ALL = (*METRICS, *COSTS)


def table_columns(results: Sequence[RunResult], tradeoff: Tradeoff | None) -> list[Column]:
    """The columns of the table of results: with validation figures where these chose between settings."""
    return columns(results, (*VALIDATION, *ALL) if tradeoff and tradeoff.withheld else ALL)


def withhold(results: Sequence[RunResult], withheld: frozenset[int]) -> list[RunResult]:
    """The results without the test figures of those that are `withheld` (indices), for tables and plots."""
    return [_without_test(result) if i in withheld else result for i, result in enumerate(results)]


def _without_test(result: RunResult) -> RunResult:
    nothing = dict.fromkeys(("new", "beyond", "new_items", "by_client", "weights", "true_weights"))
    told = (result.new_items.sentence(),) if result.new_items else ()
    scores, intervals = Scores(people=result.seen.people), Intervals(seen={}, new=None)
    notes = tuple(note for note in result.notes if note not in told)
    return result.model_copy(update=nothing | {"seen": scores, "intervals": intervals, "notes": notes})


def columns(results: Sequence[RunResult], kinds: Sequence[Column] = ALL) -> list[Column]:
    """The columns for which at least one result has a value."""
    return [column for column in kinds if any(column.value(result) is not None for result in results)]


def method_name(method: str) -> str:
    """The name of a method as its paper spells it."""
    return NAMES.get(method.lower().replace("-", "").replace("_", ""), method)


def labels(results: Sequence[RunResult]) -> list[str]:
    """One name per result, all different: the method, and the settings in which runs of the same method differ."""
    names = _labels_by_settings(results, without="rounds")  # which often follow from other settings
    if len(set(names)) < len(names):
        names = _labels_by_settings(results)
    turn = [names[: i + 1].count(name) for i, name in enumerate(names)]  # equal in all settings: numbered
    return [f"{name} #{n}" if names.count(name) > 1 else name for name, n in zip(names, turn)]


def _labels_by_settings(results: Sequence[RunResult], without: str = "") -> list[str]:
    runs = [(method_name(result.method), _settings(result)) for result in results]
    names = []
    for method, settings in runs:
        same = [others for other, others in runs if other == method]
        differing = [key for key in settings if key != without and len({plain(s.get(key)) for s in same}) > 1]
        names.append(" ".join([method, *(f"{key}={plain(settings[key])}" for key in differing)]))
    return names


def _settings(result: RunResult) -> dict[str, object]:
    """Everything in which two runs of a method may differ."""
    epsilon = "none" if result.epsilon is None else f"{result.epsilon:.2g}"
    head = {"data": result.data, "protocol": result.protocol, "rounds": result.rounds, "seed": result.seed}
    return {**head, "wire": result.wire, "epsilon": epsilon, **result.settings}


def rounds_text(result: RunResult, seeds: int = 1) -> str:
    """Which rounds were trained: `best round 2 of 8 (all 8 rounds were run), final training of 2 rounds`.

    Without validation there is no search: the only training ends as `stopped` says. The search of several seeds has no
    mean, so that the mean of their rounds is all that is said.
    """
    if seeds > 1:
        return f"trained for {count(result.rounds, 'round')} (mean of {seeds} seeds)"
    searched = any(point.valid for point in result.curve)
    if not searched:
        return result.stopped.reason
    why = f" ({result.stopped.reason})" if result.stopped.reason else ""
    final = count(result.rounds, "round")
    return f"best round {result.best_round:,} of {result.stopped.round:,}{why}, final training of {final}"


def settings_table(results: Sequence[RunResult]) -> list[tuple[str, list[str]]]:
    """Rows of (setting, its value in each result)."""
    wired = any(result.wire for result in results)
    settings: list[dict[str, object]] = [
        {"data": r.data, "protocol": r.protocol, "seed": r.seed, **({"wire": r.wire} if wired else {}), **r.settings}
        for r in results
    ]
    keys = dict.fromkeys(key for run in settings for key in run)
    return [(key, [plain(run.get(key)) for run in settings]) for key in keys]


def subject(results: Sequence[RunResult]) -> str:
    """`ml-100k: 943 people, 1,682 items, 100,000 interactions`."""
    names = list(dict.fromkeys(result.data for result in results))
    if len(names) > 1:
        return ", ".join(names)
    first = results[0]
    words = ("people", "items", "interactions") if first.items else ("clients", "", "examples")
    sizes = zip((first.people, first.items, first.interactions), words)
    text = ", ".join(f"{n:,.0f} {word}" for n, word in sizes if n)
    return f"{names[0]}: {text}" if text else names[0]


def protocols(results: Sequence[RunResult]) -> list[str]:
    return list(dict.fromkeys(result.protocol for result in results))


def leaks(results: Sequence[RunResult]) -> bool:
    """Whether any result was measured under a protocol that leaks."""
    return any(result.protocol == "published" or (result.leak and result.leak.leaks) for result in results)


@dataclass(frozen=True)
class ClientTable:
    """Accuracy by client (rows: name, examples, cells) and by run (`names`). A cell is (text, whether it is best)."""

    names: list[str]
    rows: list[tuple[str, str, list[tuple[str, bool]]]]


def by_client(results: Sequence[RunResult]) -> ClientTable | None:
    """The clients of the runs that have few of them; None if no run does."""
    runs = {name: {row.client: row for row in r.by_client} for name, r in zip(labels(results), results) if r.by_client}
    rows = []
    for client in dict.fromkeys(client for clients in runs.values() for client in clients):
        entries: list[ClientRow | None] = [clients.get(client) for clients in runs.values()]
        values = [row.accuracy if row else None for row in entries]
        best = best_of(values, 1)
        size = next(row.examples for row in entries if row)
        cells = [(NONE, False) if v is None else (decimals(v), v == best) for v in values]
        rows.append((client, f"{size:,}", cells))
    return ClientTable(list(runs), rows) if rows else None


def text_table(results: Sequence[RunResult], tradeoff: Tradeoff | None = None, width: int = 80) -> Table:
    """The terminal's table: one row per result, the 95 % interval dim under its number, the best of a column green;
    with a trade-off also the costs on whose front a run is. The least important columns are left out until it fits."""
    shown = [column for column in table_columns(results, tradeoff) if column.terminal]
    console = Console(width=10**4)
    while len(shown) > 1:
        unnamed = _table(results, shown, tradeoff, [""] * len(results))  # names are folded
        if Measurement.get(console, console.options, unnamed).minimum <= width:
            break
        shown.remove(min(reversed(shown), key=lambda column: column.terminal))
    table = _table(results, shown, tradeoff, labels(results))
    table.title = Text("; ".join([subject(results), *(f"{name} protocol" for name in protocols(results))]))
    table.caption = _caption(results, shown, tradeoff)
    return table


def list_table(results: Sequence[RunResult]) -> Table | None:
    """The terminal's table of metrics beyond accuracy; None if no result has them."""
    shown = [column for column in columns(results, LIST_METRICS) if column.terminal]
    if not shown:
        return None
    table = _table(results, shown, None, labels(results))
    table.title = Text("Beyond accuracy: the top-10 lists of seen people")
    return table


def _table(
    results: Sequence[RunResult], shown: Sequence[Column], tradeoff: Tradeoff | None, names: Sequence[str]
) -> Table:
    table = Table(box=SIMPLE_HEAD, show_edge=False, padding=0, title_style="bold", caption_style="dim")
    table.title_justify = table.caption_justify = "left"
    table.add_column("method", overflow="fold", min_width=10)
    for column in shown:
        table.add_column(Text(column.short, justify="right"), justify="right", no_wrap=True)
    if tradeoff:
        table.add_column("front" if len(shown) < 8 else "◆", no_wrap=True)
    best = [column.best(results) for column in shown]
    for i, (result, name) in enumerate(zip(results, names)):
        cells = [_cell(column, result, top) for column, top in zip(shown, best)]
        if tradeoff:
            cells.append(Text("".join(cost[0] if i in on else "·" for cost, on in tradeoff.fronts.items() if on)))
        table.add_row(Text(name, style="bold" if tradeoff and tradeoff.choice == i else ""), *cells)
    return table


def _cell(column: Column, result: RunResult, best: float | None) -> Text:
    value, interval = column.value(result), column.interval(result)
    if value is None:
        return Text(NONE, style="dim")
    text = f"{value:,.1f}" if column.key == "seconds.train" else column.write(value)  # its heading names the unit
    cell = Text(text, style="bold green" if value == best else "")
    if interval:
        cell.append(f"\n{tight_interval(*interval)}", style="not bold dim default")
    return cell


def _caption(results: Sequence[RunResult], shown: Sequence[Column], tradeoff: Tradeoff | None) -> Text:
    text = Text()
    if leaks(results):
        warning = "The protocol of these numbers leaks: do not compare them with clean ones.\n"
        text.append(warning, style="bold red not dim")
    if any(column.interval(result) for column in shown for result in results):
        text.append("Below a number: its 95 % interval. ")
    if any(column.key.startswith("seen.sampled") for column in shown):
        text.append("(99): ranked among 99 sampled items; full: among all. ")
    if tradeoff and any(tradeoff.fronts.values()):
        costs = ", ".join(f"{cost} ({cost[0]})" for cost, on in tradeoff.fronts.items() if on)
        mark = "front" if len(shown) < 8 else "◆"
        figure = f"{tradeoff.basis} {tradeoff.quality.title}"
        text.append(f"{mark}: Pareto-optimal in {figure} against {costs}. ")
    if tradeoff and tradeoff.withheld:
        text.append("Settings were chosen on validation (valid.); test figures are those of the chosen ones.")
    return text
