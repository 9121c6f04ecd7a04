"""`fedtaste resume`: resume an interrupted run, fit or comparison; comparisons start parallel runs with it."""

from __future__ import annotations

from pathlib import Path

from fedtaste import __version__
from fedtaste.cli.continued import open_continued, prepare_continued
from fedtaste.cli.fit import prepare_model, show_fit, train_fit
from fedtaste.cli.options import ResumeOptions
from fedtaste.cli.output import emit, say
from fedtaste.cli.own_methods import allow_method_of
from fedtaste.cli.parser import load_function
from fedtaste.cli.results import show_result
from fedtaste.cli.run import load_data, train_folder
from fedtaste.experiment.compare import requested_runs
from fedtaste.experiment.comparison_record import is_comparison
from fedtaste.experiment.folder import Data, RunFolder
from fedtaste.experiment.progress_bars import Bars
from fedtaste.experiment.result import FitResult
from fedtaste.experiment.settings import DataSettings, ReadSettings, Settings
from fedtaste.experiment.train import prepare
from fedtaste.result_part import JsonObject


def resume(options: ResumeOptions) -> None:
    """Resume the run of a folder, or show the result of one that has finished. A worker of a comparison trains further
    runs after it, which often have the same data."""
    loaded = LoadedData()
    if not options.worker:
        resume_folder(options, loaded)
        return
    folders = requested_runs()
    path: Path | None = options.path
    while path is not None:
        resume_folder(options.model_copy(update={"path": path}), loaded)
        if is_comparison(path) or RunFolder.open(path).kind != "run":
            return
        emit({"finished": str(path)})
        path = folders.get()


def resume_folder(options: ResumeOptions, loaded: LoadedData) -> None:
    """As `resume`, for one folder."""
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
        data = loaded.of(settings)
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
    if not options.worker:
        show_result(result, report, options.as_json)


class LoadedData:
    """The data of the last run of this process."""

    def __init__(self) -> None:
        self._part: JsonObject = {}  # the settings that say which data they are
        self._data: Data | None = None

    def of(self, settings: Settings) -> Data:
        """The data of these settings, loaded unless the last run had the same."""
        part = settings.model_dump(include={*DataSettings.model_fields, *ReadSettings.model_fields, "seed"})
        if self._data is None or part != self._part:
            self._part, self._data = part, load_data(settings)
        return self._data


def resume_fit(folder: RunFolder, settings: Settings) -> FitResult:
    """Resume a fit, or the update of a model, which must still be where it was."""
    prepared, before = prepare_model(settings, load_data(settings), folder.continues, resumed=True)
    assert prepared.data is not None
    folder.require_same_data(prepared.data)
    folder.require_same_version(__version__)
    return train_fit(folder, prepared, before)
