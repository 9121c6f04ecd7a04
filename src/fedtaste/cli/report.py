"""`fedtaste report`: write the report of a finished run or comparison again."""

from __future__ import annotations

from pathlib import Path

from fedtaste.cli.options import ReportOptions
from fedtaste.cli.output import emit, put, say
from fedtaste.cli.results import show_results
from fedtaste.cli.run import load_data
from fedtaste.errors import FedtasteError, RunError
from fedtaste.experiment.compare import finished_runs
from fedtaste.experiment.comparison_record import is_comparison, read_record, resume_command
from fedtaste.experiment.folder import RunFolder
from fedtaste.experiment.result import Comparison, MethodChoice
from fedtaste.experiment.seeds import FinishedRun
from fedtaste.report.comparison import compare_runs
from fedtaste.report.curves import DataShape
from fedtaste.report.html import shape, write_report
from fedtaste.report.tuning import write_tuning_report


def report(options: ReportOptions) -> None:
    """Write the HTML report again, and show its table."""
    path = options.path
    if is_comparison(path) or (path / "compare.json").exists():
        report_comparison(options)
        return
    folder = RunFolder.open(path)
    if folder.kind == "tune":
        page = write_tuning_report(folder.tune_result(), path)
        emit({"report": str(page)}) if options.as_json else put(f"Report: {page}")
        return
    result = folder.result()
    page = write_report([result], path, data=data_shape(folder), runs=[path])
    if options.as_json:
        emit({"report": str(page)})
    else:
        show_results([result], page)


def report_comparison(options: ReportOptions) -> None:
    """Write the report of a comparison again: of the runs that have finished."""
    path = options.path
    found = RunFolder(path).comparison() if (path / "compare.json").exists() else None
    runs = runs_of(path, found)
    compared = compare_runs(
        runs, found.heterogeneity if found else None, found.axes if found else read_record(path).axes
    )
    if (path / "choice.json").exists():  # of --methods auto
        compared = compared.advised(RunFolder(path).validated("choice.json", MethodChoice))
    page = compared.write_report(path, data_shape(RunFolder.open(runs[0].folder)))
    if options.as_json:
        emit({"report": str(page)})
    else:
        show_results(compared.rows, page, compared.tradeoff, compared.study)


def runs_of(path: Path, found: Comparison | None) -> list[FinishedRun]:
    """The finished runs of a comparison; of one that an earlier version made, those that compare.json lists."""
    if not is_comparison(path):
        folders = [RunFolder.open(path / name) for name in found.runs] if found else []
        return [FinishedRun(folder.path.name, folder.path, folder.result(), "") for folder in folders]
    record = read_record(path)
    runs = finished_runs(path, record)
    if not runs:
        raise RunError(f"No run of {path} has finished. Go on with `{resume_command(path)}`.")
    left_out = found.left_out if found else {}
    missing = [label for label, run in record.runs.items()
               if label not in left_out and not RunFolder(path / run.folder).finished]  # fmt: skip
    if missing:
        verb = "has" if len(missing) == 1 else "have"
        say(f"{', '.join(missing)} {verb} not finished: `{resume_command(path)}`.")
    return runs


def data_shape(folder: RunFolder) -> DataShape | None:
    """The shape of the data of a run; None where nodes hold them."""
    try:
        return shape(load_data(folder.settings()))
    except FedtasteError:
        if not folder.federated:
            raise
        return None
