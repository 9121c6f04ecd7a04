"""`fedtaste resume`: resume an interrupted run, fit or comparison; comparisons start parallel runs with it."""

from __future__ import annotations

from fedtaste import __version__
from fedtaste.cli.continued import open_continued, prepare_continued
from fedtaste.cli.fit import prepare_model, show_fit, train_fit
from fedtaste.cli.options import ResumeOptions
from fedtaste.cli.output import say
from fedtaste.cli.own_methods import allow_method_of
from fedtaste.cli.parser import load_function
from fedtaste.cli.results import show_result
from fedtaste.cli.run import load_data, train_folder
from fedtaste.experiment.compare import stop_with_parent
from fedtaste.experiment.comparison_record import is_comparison
from fedtaste.experiment.folder import RunFolder
from fedtaste.experiment.progress_bars import Bars
from fedtaste.experiment.result import FitResult
from fedtaste.experiment.settings import Settings
from fedtaste.experiment.train import prepare


def resume(options: ResumeOptions) -> None:
    """Resume the run of a folder, or show the result of one that has finished."""
    if options.worker:
        stop_with_parent()
    if is_comparison(options.path):
        load_function("compare:resume_comparison")(options)
        return
    folder = RunFolder.open(options.path)
    allow_method_of(folder, options.method)
    if folder.kind == "tune":
        load_function("tune:resume_study")(folder, options)
        return
    settings, report = folder.settings(), options.path / "report.html"
    if folder.kind == "fit":
        show_fit(folder.fit_result() if folder.finished else resume_fit(folder, settings), options.as_json)
        return
    if folder.finished and report.exists():
        say(f"{options.path} had finished already.")
        result = folder.result()
    else:
        data = load_data(settings)
        prepared = None
        if folder.continues is not None:
            prepared = prepare_continued(open_continued(folder.continues, settings, data, resumed=True))
            data = prepared.data or data
        folder.require_same_data(data)
        folder.require_same_version(__version__)
        if (options.path / "federation.json").exists():
            load_function("federate:resume_federation")(folder, data, options.as_json)
            return
        with Bars() as bars:
            result = train_folder(folder, prepared or prepare(settings, data), data, bars, report=not options.worker)
    show_result(result, report, options.as_json)


def resume_fit(folder: RunFolder, settings: Settings) -> FitResult:
    """Resume a fit, or the update of a model, which must still be where it was."""
    prepared, before = prepare_model(settings, load_data(settings), folder.continues, resumed=True)
    assert prepared.data is not None
    folder.require_same_data(prepared.data)
    folder.require_same_version(__version__)
    return train_fit(folder, prepared, before)
