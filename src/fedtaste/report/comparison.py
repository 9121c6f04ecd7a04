"""What a comparison found: rows, trade-off, seeds and differences; and its report (report.html, compare.json)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedtaste.experiment.folder import RunFolder
from fedtaste.experiment.result import Comparison, ComparisonResult, Heterogeneity, RunResult
from fedtaste.experiment.seeds import FinishedRun, configurations, differences, seed_summary
from fedtaste.report.curves import DataShape
from fedtaste.report.differences import Study
from fedtaste.report.html import write_report
from fedtaste.report.tables import columns, labels, withhold
from fedtaste.report.trade_off import QUALITIES, Tradeoff, trade_off


@dataclass(frozen=True, eq=False)
class Compared:
    """The findings of a comparison. A row is a run, or the mean of the runs of several seeds; it has no test figures
    where validation chose another setting of the same method."""

    results: tuple[RunResult, ...]  # of all runs, complete
    rows: list[RunResult]
    folders: list[Path]  # of the rows: the first seed's
    tradeoff: Tradeoff | None
    study: Study

    def write_report(self, path: Path, shape: DataShape | None) -> Path:
        """Write report.html and its plots into a folder."""
        return write_report(
            self.rows, path, data=shape, runs=self.folders, tradeoff=self.tradeoff, study=self.study
        )  # fmt: skip

    def result(self, report: Path, left_out: dict[str, str]) -> ComparisonResult:
        """What `--json` prints."""
        summary = self.tradeoff.summary() if self.tradeoff else None
        result = ComparisonResult(results=self.results, report=str(report), tradeoff=summary, left_out=left_out)
        changes = {"seeds": self.study.seeds} if self.study.seeds else {}
        return result.model_copy(update=changes | {"differences": self.study.differences})


def compare_runs(
    runs: Sequence[FinishedRun],
    heterogeneity: Heterogeneity | None = None,
    axes: tuple[str, ...] = (),
    *,
    sweeps: bool = True,
) -> Compared:
    """Compare finished runs of the same data; `sweeps` as in `trade_off`."""
    parts = configurations(runs)
    rows = [part.mean_result() for part in parts]
    names = labels(rows)
    tradeoff = trade_off(rows, heterogeneity, axes, sweeps=sweeps)
    withheld = tradeoff.withheld if tradeoff else frozenset()
    shown = [i for i in range(len(rows)) if i not in withheld]
    choice = tradeoff.choice if tradeoff and tradeoff.choice in shown else 0
    paired = differences([parts[i] for i in shown], [names[i] for i in shown])
    known = columns(rows, QUALITIES)
    metric = tradeoff.quality.key if tradeoff else known[0].key if known else ""
    hidden = tuple(names[i] for i in withheld)
    study = Study(metric, names[choice or 0], seed_summary(parts, names), paired, hidden)
    folders = [part.runs[0].folder for part in parts]
    return Compared(tuple(run.result for run in runs), withhold(rows, withheld), folders, tradeoff, study)


def write_comparison(
    compared: Compared,
    path: Path,
    shape: DataShape | None,
    heterogeneity: Heterogeneity | None,
    left_out: dict[str, str],
    axes: tuple[str, ...] = (),
) -> Path:
    """Write report.html and compare.json; returns the path of the report."""
    if any(result.privacy for result in compared.results):  # measured without noise: readable by the owner only
        path.chmod(0o700)
    report = compared.write_report(path, shape)
    names = tuple(Path(result.run).name for result in compared.results)
    comparison = Comparison(runs=names, heterogeneity=heterogeneity, left_out=left_out)
    RunFolder(path).write("compare.json", (comparison.model_copy(update={"axes": axes}) if axes else comparison).dump())
    return report
