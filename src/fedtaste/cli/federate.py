"""`fedtaste federate`: train over Flower on this machine, or write the files of a deployment. Needs Flower."""

from __future__ import annotations

from fedtaste.cli.options import FederateOptions
from fedtaste.cli.output import emit, event_log, put, say
from fedtaste.cli.own_methods import allow_method
from fedtaste.cli.results import show_result
from fedtaste.cli.run import announce_privacy, check_ledger, load_data, name_ledger, new_folder
from fedtaste.errors import RunError, SettingError
from fedtaste.event_log import Event, EventLog, LogFormat
from fedtaste.experiment.folder import Data, RunFolder
from fedtaste.experiment.privacy import adds_noise
from fedtaste.experiment.privacy_ledger import LedgerFolder
from fedtaste.experiment.progress_bars import Bars, err
from fedtaste.experiment.result import RunResult
from fedtaste.experiment.settings import Settings
from fedtaste.experiment.train import prepare, refuse_tuned_noise
from fedtaste.flower.deploy import read_catalogue, write_deployment
from fedtaste.flower.federate import prepare_federation, run_federation
from fedtaste.flower.validation import refuse_unfit
from fedtaste.report.html import shape, write_report


def federate(settings: Settings, options: FederateOptions) -> None:
    """Train as a federation of processes on this machine, or write the app for real machines."""
    if options.catalogue is not None:
        if options.write_app is None:
            raise SettingError("--catalogue lists items but no people, so nothing can be trained. Add --write-app DIR.")
        settings = settings.model_copy(update={"data": str(options.catalogue)})
    refuse_unfit(settings)
    allow_method(settings.method)
    if options.write_app is not None:
        write_app(settings, options)
        return
    data = load_data(settings)
    prepared = prepare(settings, data, strict=True)
    check_ledger(options.ledger, [prepared], data)
    announce_privacy(prepared)
    del prepared  # the nodes hold the data: two copies may not fit into memory
    path = options.out or new_folder(data.name, settings.method)
    folder = prepare_federation(path, settings, data, options.federation)
    name_ledger(folder, options.ledger)
    resume_federation(folder, data, options.as_json, options.log)


def write_app(settings: Settings, options: FederateOptions) -> None:
    """Write the Flower app, keys and commands for real machines."""
    if options.ledger is not None:
        raise SettingError("--ledger would change nothing: --write-app runs nothing. Leave it out.")
    if options.catalogue is None:
        items = load_data(settings)
        refuse_tuned_noise(settings, items)
    else:
        items = read_catalogue(options.catalogue, settings.read_options)
    assert options.write_app is not None
    written = write_deployment(options.write_app, settings, items, options.federation)
    if options.as_json:
        emit(written)
    else:
        put(written["next"])


class RoundEvents:
    """The progress of a federation as events. A ProgressListener of experiments."""

    def __init__(self, log: EventLog) -> None:
        self.log, self.name, self.rounds = log, "", 0

    def phase(self, name: str, rounds: int, done: int) -> None:
        self.name, self.rounds = name, rounds
        facts: dict[str, object] = {"phase": name, "rounds": rounds, "done": done}
        self.log(Event("phase", f"{name}: {rounds} rounds.", facts))

    def round(self, number: int, metrics: dict[str, float] | None) -> None:
        facts: dict[str, object] = {"phase": self.name, "round": number, "rounds": self.rounds}
        text = f"{self.name}: round {number} of {self.rounds}."
        self.log(Event("round", text, facts | ({"metrics": metrics} if metrics else {})))


def run_logged(folder: RunFolder, log: LogFormat) -> RunResult:
    """Run a federation with a progress bar and sentences, or with lines of JSON."""
    if log == "json":
        events = event_log("json")
        return run_federation(folder, RoundEvents(events), lambda text: events(Event("federation", text)))
    with Bars() as bars:
        return run_federation(folder, bars, say, log_rounds=not err.is_terminal)


def resume_federation(folder: RunFolder, data: Data, as_json: bool, log: LogFormat = "text") -> None:
    """Start or resume the federation of a run folder, and show its result."""
    settings = folder.settings()
    if adds_noise(settings):
        LedgerFolder.default().enter({folder: prepare(settings, data)}, say)
    try:
        result = run_logged(folder, log)
    except KeyboardInterrupt:
        raise RunError(f"Stopped. Nothing is lost: go on with `{folder.command('resume')}`.") from None
    report = write_report([result], folder.path, data=shape(data), runs=[folder.path])
    show_result(result, report, as_json)
