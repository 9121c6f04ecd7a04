"""`fedtaste resume`: resume an interrupted run. Comparisons also start their parallel runs with it."""

from __future__ import annotations

from fedtaste import __version__
from fedtaste.cli.options import ResumeOptions
from fedtaste.cli.output import Bars, say
from fedtaste.cli.own_methods import allow_method_of
from fedtaste.cli.parser import load_function
from fedtaste.cli.results import show_result
from fedtaste.cli.run import load_data, train_folder
from fedtaste.experiment.compare import stop_with_parent
from fedtaste.experiment.folder import RunFolder
from fedtaste.experiment.train import prepare


def resume(options: ResumeOptions) -> None:
    """Resume the run of a folder, or show the result of one that has finished."""
    if options.worker:
        stop_with_parent()
    folder = RunFolder.open(options.path)
    allow_method_of(folder, options.method)
    settings, report = folder.settings(), options.path / "report.html"
    if folder.finished and report.exists():
        say(f"{options.path} had finished already.")
        result = folder.result()
    else:
        data = load_data(settings)
        folder.require_same_data(data)
        folder.require_same_version(__version__)
        if (options.path / "federation.json").exists():
            load_function("federate:resume_federation")(folder, data, options.as_json)
            return
        with Bars() as bars:
            result = train_folder(folder, prepare(settings, data), data, bars, report=not options.worker)
    show_result(result, report, options.as_json)
