"""Write the report of a comparison (report.html, compare.json) with the trade-off between its runs."""

from __future__ import annotations

from pathlib import Path

from fedtaste.experiment.folder import RunFolder
from fedtaste.experiment.heterogeneity import heterogeneity
from fedtaste.experiment.result import Comparison, RunResult
from fedtaste.report.curves import DataShape
from fedtaste.report.html import write_report
from fedtaste.report.trade_off import Tradeoff, trade_off
from fedtaste.tasks.base import Task


def conclude(
    results: list[RunResult], task: Task, path: Path, seed: int, shape: DataShape | None, left_out: dict[str, str],
    axes: tuple[str, ...] = (),
) -> tuple[Path, Tradeoff | None]:  # fmt: skip
    """Write report.html and compare.json; returns (the path of the report, the trade-off between the results)."""
    measured = heterogeneity(task, seed)
    if any(result.privacy for result in results):  # measured without noise: readable by the owner only
        path.chmod(0o700)
    tradeoff, folders = trade_off(results, measured, axes), [Path(result.run) for result in results]
    report = write_report(results, path, data=shape, runs=folders, tradeoff=tradeoff)
    comparison = Comparison(runs=tuple(folder.name for folder in folders), heterogeneity=measured, left_out=left_out)
    RunFolder(path).write("compare.json", (comparison.model_copy(update={"axes": axes}) if axes else comparison).dump())
    return report, tradeoff
