"""`fedtaste report`: write the report of a finished run or comparison again."""

from __future__ import annotations

from fedtaste.cli.options import ReportOptions
from fedtaste.cli.output import emit, put
from fedtaste.cli.results import show_results
from fedtaste.cli.run import load_data
from fedtaste.errors import FedtasteError
from fedtaste.experiment.folder import RunFolder
from fedtaste.report.html import shape, write_report
from fedtaste.report.trade_off import trade_off
from fedtaste.report.tuning import write_tuning_report


def report(options: ReportOptions) -> None:
    """Write the HTML report again, and show its table."""
    path = options.path
    if (path / "settings.json").exists() and RunFolder.open(path).kind == "tune":
        page = write_tuning_report(RunFolder(path).tune_result(), path)
        emit({"report": str(page)}) if options.as_json else put(f"Report: {page}")
        return
    comparison = RunFolder(path).comparison() if (path / "compare.json").exists() else None
    runs = [path / name for name in comparison.runs] if comparison else [path]
    folders = [RunFolder.open(run) for run in runs]
    results = [folder.result() for folder in folders]
    try:
        data = shape(load_data(folders[0].settings()))
    except FedtasteError:
        if not folders[0].federated:
            raise
        data = None  # the nodes hold the data
    tradeoff = trade_off(results, comparison.heterogeneity, comparison.axes) if comparison else None
    page = write_report(results, path, data=data, runs=runs, tradeoff=tradeoff)
    if options.as_json:
        emit({"report": str(page)})
    else:
        show_results(results, page, tradeoff)
