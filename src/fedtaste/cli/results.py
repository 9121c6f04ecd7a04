"""Print the results of runs and comparisons, for several commands: table, trade-off, notes, warnings; or JSON."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedtaste.cli.output import emit, out, put
from fedtaste.experiment.folder import RunFolder
from fedtaste.experiment.result import RunResult
from fedtaste.report.differences import Study, text_tables
from fedtaste.report.html import warnings
from fedtaste.report.tables import list_table, rounds_text, text_table
from fedtaste.report.trade_off import Tradeoff


def show_result(result: RunResult, report: Path, as_json: bool) -> None:
    """Print the result of one run, and what to do next."""
    if as_json:
        emit(result.dump())
        return
    show_results([result], report)
    if result.items:
        put(f"Next: {RunFolder(report.parent).command('recommend', '--likes', 'TITLE')}")


def show_results(
    results: Sequence[RunResult], report: Path, trade_off: Tradeoff | None = None, study: Study | None = None
) -> None:
    """Print a table of results, seeds and differences, their trade-off, notes and warnings, and where the report is."""
    out.print(text_table(results, trade_off, out.width))
    for table in text_tables(study) if study else ():
        out.print(table)
    if lists := list_table(results):
        out.print(lists)
    if trade_off:
        out.print(trade_off.advice, style="bold", markup=False)
    for note in dict.fromkeys(note for result in results for note in result.notes):
        out.print(note, style="dim", markup=False)
    for warning in warnings(results):
        out.print(warning, style="bold red", markup=False)
    for result in results:
        if len(results) == 1 or "stopped after" in result.stopped.reason:
            rounds = rounds_text(result, study.seed_count if study else 1)
            out.print(f"{result.method}: {rounds}", style="dim", markup=False)
    put(f"Report: {report}")
