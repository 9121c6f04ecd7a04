"""Tables and a plot of several seeds and of paired differences between methods, for the terminal and the report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from fedtaste.experiment.result import Difference, SeedSummary
from fedtaste.report.numbers import decimals
from fedtaste.report.style import COLOURS, INK, MUTED, Plot, drawable, figure, finish, quiet_style
from fedtaste.report.tables import METRICS, Column
from fedtaste.text import count

TITLES = {column.key: column for column in METRICS}
KINDS = {"sampled": " (99)", "full": " full"}
MOST_DRAWN = 12  # differences in a plot


@dataclass(frozen=True, eq=False)
class Study:
    """What a comparison says beyond its rows: spread over seeds, and paired differences."""

    metric: str  # the key of the metric that is shown first
    reference: str  # the run to which others are compared in the terminal
    seeds: SeedSummary | None
    differences: tuple[Difference, ...]
    withheld: tuple[str, ...] = ()  # runs whose test figures are not shown

    @property
    def main(self) -> list[Difference]:
        """The differences in the metric that is shown first, those to the reference before others."""
        pairs = [pair for pair in self.differences if pair.metric == self.metric]
        return sorted(pairs, key=lambda pair: self.reference not in (pair.first, pair.second))

    def to_reference(self, most: int) -> list[Difference]:
        """The differences to the reference: in all metrics, or in the main one where these are more than `most`."""
        others = [pair for pair in self.differences if pair.metric != self.metric]
        known = [pair for pair in [*self.main, *others] if self.reference in (pair.first, pair.second)]
        return known if len(known) <= most else [pair for pair in known if pair.metric == self.metric]

    @property
    def seed_count(self) -> int:
        return len(self.seeds.seeds) if self.seeds else 1


NO_STUDY = Study("", "", None, ())


def title_of(key: str) -> str:
    """`NDCG@10 (99)`: a metric of seen people, for readers."""
    column: Column | None = TITLES.get(key)
    kind = key.split(".")[1] if key.count(".") > 1 else ""
    return (column.title if column else key.rpartition(".")[2]) + KINDS.get(kind, "")


def seed_rows(study: Study) -> list[tuple[str, str, str, str, str]]:
    """Rows of (method, metric, mean, standard deviation, range) of seen people."""
    rows = []
    for method in study.seeds.methods if study.seeds else ():
        for key, spread in method.metrics.items():
            if key.startswith("seen.") and method.name not in study.withheld:
                ends = f"{decimals(min(spread.values))}–{decimals(max(spread.values))}"
                rows.append((method.name, title_of(key), decimals(spread.mean), decimals(spread.sd), ends))
    return rows


def seed_text(study: Study) -> str:
    """What the seeds are."""
    if study.seeds is None:
        return ""
    return (
        f"Seeds {', '.join(map(str, study.seeds.seeds))}. A seed changes ties in the split, who is new, the initial "
        "parameters and the negatives; of generated data, also the data. The standard deviation is over seeds."
    )


def difference_rows(study: Study) -> list[tuple[str, str, str, str, str, str]]:
    """Rows of (methods, metric, difference, interval, p, corrected p)."""
    others = [pair for pair in study.differences if pair.metric != study.metric]
    return [
        (f"{pair.first} − {pair.second}", title_of(pair.metric), signed(pair.difference), interval_of(pair),
         p_text(pair.p), p_text(pair.p_holm))
        for pair in [*study.main, *others]
    ]  # fmt: skip


def difference_note(study: Study) -> str:
    """How differences were measured."""
    if not study.differences:
        return ""
    people, used = study.differences[0].people, len(study.differences[0].by_seed)
    which = f"all {used}" if used == study.seed_count else f"the {used}"
    that = "" if used == study.seed_count else " that all methods have"
    seeds = f" Every person keeps their scores of {which} seeds{that}." if used > 1 else ""
    if used == 1 < study.seed_count:
        seeds = " Scores are those of the only seed that all methods have."
    few = " So few say little." if people < 30 else ""
    return (
        f"Paired by person ({people:,} of them): both methods are measured on the same people and test items."
        f"{seeds}{few} Intervals are bootstraps over people, p values of a randomisation test over people, with Holm’s "
        f"correction for {count(len(study.main), 'pair')} of methods within each metric."
    )


def page_parts(study: Study) -> dict[str, object]:
    """The parts of the report's page."""
    return {
        "seeds": seed_rows(study), "seed_text": seed_text(study),
        "differences": difference_rows(study), "difference_note": difference_note(study),
    }  # fmt: skip


def signed(value: float) -> str:
    return f"{value:+.4f}".replace("-", "−")


def interval_of(pair: Difference) -> str:
    return f"{signed(pair.interval[0])} to {signed(pair.interval[1])}"


def p_text(p: float) -> str:
    """
    >>> p_text(0.0001), p_text(0.0423), p_text(1.0)
    ('< .001', '.042', '1.000')
    """
    return "< .001" if p < 0.001 else f"{p:.3f}".removeprefix("0")


def text_tables(study: Study) -> list[Table]:
    """The tables of the terminal: spread over seeds, and differences to the reference."""
    tables = []
    if rows := seed_rows(study):
        shown = [(name, metric, f"{mean} ± {sd}", ends) for name, metric, mean, sd, ends in rows]
        headings = ("method", "metric", "mean ± sd over seeds", "range")
        tables.append(_table(f"{count(study.seed_count, 'seed')}", headings, shown, seed_text(study)))
    if pairs := study.to_reference(MOST_DRAWN):
        cells = [
            (f"{pair.first} − {pair.second}", title_of(pair.metric), signed(pair.difference), interval_of(pair),
             p_text(pair.p_holm))
            for pair in pairs
        ]  # fmt: skip
        rest = len(study.differences) - len(pairs)
        more = f" {rest} more {'is' if rest == 1 else 'are'} in the report." if rest else ""
        names = ("methods", "metric", "difference", "95 % interval", "p (Holm)")
        tables.append(_table("Paired differences", names, cells, difference_note(study) + more))
    return tables


def _table(title: str, headings: tuple[str, ...], rows: Sequence[tuple[str, ...]], caption: str) -> Table:
    table = Table(box=SIMPLE_HEAD, show_edge=False, padding=0, title_style="bold", caption_style="dim")
    table.title, table.caption = Text(title), Text(caption)
    table.title_justify = table.caption_justify = "left"
    for at, heading in enumerate(headings):
        table.add_column(f"{heading} ", justify="left" if at == 0 else "right", overflow="fold")
    for row in rows:
        table.add_row(*(Text(f"{cell} ") for cell in row))
    return table


def draw_differences(study: Study) -> list[Plot]:
    """The differences to the reference with their intervals, one line each, around zero."""
    pairs = study.to_reference(MOST_DRAWN)[:MOST_DRAWN]
    if not pairs:
        return []
    with quiet_style():
        from matplotlib.ticker import MaxNLocator

        drawing, axes = figure("Paired differences", "difference, with its 95 % interval", "")
        axes.axvline(0, color=MUTED, lw=1.2, ls=":")
        for at, pair in enumerate(pairs):
            clear = not pair.interval[0] <= 0 <= pair.interval[1]
            axes.hlines(at, *pair.interval, color=COLOURS[0], lw=2.4)
            axes.plot(pair.by_seed, [at] * len(pair.by_seed), "|", color=MUTED, ms=11)
            axes.plot(pair.difference, at, "o", color=COLOURS[0] if clear else "white", mec=INK, ms=8)
        axes.set_yticks(range(len(pairs)), [_pair_label(pair) for pair in pairs], fontsize=8 if len(pairs) < 7 else 7)
        axes.set_ylim(len(pairs) - 0.5, -0.5)
        axes.xaxis.set_major_locator(MaxNLocator(5))
        caption = "Filled points: the interval does not hold 0."
        caption += " Grey marks: single seeds." if study.seed_count > 1 else ""
        caption += " All pairs are in the table." if len(study.differences) > len(pairs) else ""
        words = [_describe(pair) for pair in pairs]
        return [finish("differences", drawing, f"Differences, paired by person. {'; '.join(words)}.", caption)]


def _describe(pair: Difference) -> str:
    figures = f"{signed(pair.difference)} [{interval_of(pair)}]"
    return f"{title_of(pair.metric)}, {pair.first} minus {pair.second}: {figures}"


def _pair_label(pair: Difference) -> str:
    return f"{drawable(pair.first)} −\n{drawable(pair.second)}\n{title_of(pair.metric)}"
