"""`fedtaste run`: train one method; and what training commands share: load data, create folders, ledger, train."""

from __future__ import annotations

import re
import time
from pathlib import Path

from fedtaste import __version__
from fedtaste.cli.continued import open_continued, prepare_continued, read_alike
from fedtaste.cli.options import RunOptions
from fedtaste.cli.output import cache, say
from fedtaste.cli.own_methods import allow_method
from fedtaste.cli.parser import load_function
from fedtaste.cli.results import show_result
from fedtaste.data.sources import load
from fedtaste.errors import RunError, SettingError, was_interrupted
from fedtaste.experiment.comparison_record import is_comparison, resume_command
from fedtaste.experiment.folder import Data, RunFolder, fingerprint, next_folder
from fedtaste.experiment.privacy import adds_noise
from fedtaste.experiment.privacy_ledger import LedgerFolder, write_note
from fedtaste.experiment.progress_bars import Bars
from fedtaste.experiment.result import RunResult
from fedtaste.experiment.settings import Settings
from fedtaste.experiment.tracking import TrackedRun, remember_tracking, require_tracker
from fedtaste.experiment.train import Prepared, execute, prepare
from fedtaste.report.html import shape, write_report
from fedtaste.text import count
from fedtaste.wire.accounting import epsilons


def run(settings: Settings, options: RunOptions) -> None:
    """Train one method on one data set."""
    if options.seeds > 1:
        if options.from_model is not None:
            raise SettingError("--seeds and --from cannot stand together: a model is continued once. Leave one out.")
        if options.tune is not None:
            raise SettingError(
                "--seeds and --tune cannot stand together: settings are searched for one seed. Use `fedtaste tune`, "
                "and then `fedtaste run --seeds` with --config STUDY/run.toml."
            )
        load_function("compare:run_seeds")(settings, options)
        return
    began = time.perf_counter()
    if options.tune is not None:
        load_function("tune:run_tuned")(settings, options)
        return
    allow_method(settings.method)
    require_tracker(options.track, options.track_to, adds_noise(settings))
    if adds_noise(settings):
        say("Loading the data and working out the noise.")
    if options.from_model is not None:
        settings = read_alike(options.from_model, settings)
    data = load_data(settings)
    path = options.out or new_folder(data.name, settings.method)
    if options.from_model is None:
        with Bars():
            prepared = prepare(settings, data, strict=True, began=began)
    else:
        prepared = prepare_continued(open_continued(options.from_model, settings, data))
        data = prepared.data or data
    check_ledger(options.ledger, [prepared], data)
    announce_privacy(prepared)
    folder = create_folder(path, prepared, data, options.ledger)
    if options.from_model is not None:
        folder.continue_model(options.from_model)
    remember_tracking(folder, options.track, options.track_to)
    with Bars() as bars:
        result = train_folder(folder, prepared, data, bars)
    show_result(result, path / "report.html", options.as_json)


def load_data(settings: Settings) -> Data:
    """Load the data of these settings, through the user's cache."""
    with Bars():
        return load(settings.data, seed=settings.seed, cache=cache(), log=say, options=settings.read_options)


def new_folder(*names: str) -> Path:
    """A new folder under runs/, named after the data and the method, in characters that no terminal or shell reads as
    anything else."""
    return next_folder(Path("runs"), re.sub(r"[^A-Za-z0-9._-]", "-", "-".join(names)))


def require_new(path: Path) -> None:
    """Refuse a folder for a comparison that exists already; one that was interrupted can be resumed."""
    if is_comparison(path) and not (path / "compare.json").exists():
        raise RunError(
            f"{path} holds an unfinished comparison. Go on with `{resume_command(path)}`, or choose another --out."
        )
    if path.exists():
        raise RunError(f"{path} is there already. Choose another --out.")


def create_folder(path: Path, prepared: Prepared, data: Data, ledger: Path | None) -> RunFolder:
    """Create the run folder; a ledger other than the default is remembered in it."""
    folder = RunFolder.create(path, prepared.settings.model_dump(), data, __version__)
    name_ledger(folder, ledger)
    return folder


def train_folder(
    folder: RunFolder, prepared: Prepared, data: Data, bars: Bars, *, report: bool = True, whole: Path | None = None
) -> RunResult:
    """Start or resume the run of a folder, write its report, and return its result. `whole` is the folder of the
    comparison that it belongs to."""
    try:
        enter_ledger(folder, prepared)
        tracked = TrackedRun(folder, bars, {"method": prepared.settings.method} | prepared.plan.settings)
        result = execute(prepared, folder, tracked)
        if report:
            write_report([result], folder.path, data=shape(data), runs=[folder.path])
        tracked.finish(result)
    except (KeyboardInterrupt, SystemError) as error:
        if not was_interrupted(error):
            raise
        raise RunError(f"Stopped. Nothing is lost: go on with `{resume_command(whole or folder.path)}`.") from None
    return result


def enter_ledger(folder: RunFolder, prepared: Prepared) -> None:
    """Enter a private run into its ledger before it is trained."""
    LedgerFolder.default().enter({folder: prepared}, say)


def check_ledger(file: Path | None, runs: list[Prepared], data: Data) -> None:
    """Verify the ledger before a run folder is made. Refuse --ledger where nothing would be written to it."""
    if any(prepared.plan.wire.mechanism for prepared in runs):
        LedgerFolder.default().open(file, fingerprint(data))
    elif file is not None:
        raise SettingError(
            "--ledger would change nothing: no run has noise and a bound. Add --epsilon, or leave it out."
        )


def name_ledger(folder: RunFolder, file: Path | None) -> None:
    """Remember a ledger other than the default with the run, for `fedtaste resume`."""
    if file is not None:
        write_note(folder, str(file.resolve()))


def announce_privacy(prepared: Prepared) -> None:
    """Print before a run with noise which epsilon it will promise, and what its method predicts."""
    plan = prepared.plan
    if plan.wire.mechanism is None:
        return
    epsilon = epsilons(plan.wire.mechanism, plan.rounds, plan.delta).epsilon
    promise = f"epsilon {epsilon:.3g}, delta {plan.delta:.2g} after {count(plan.rounds, 'round')}"
    if prepared.settings.noise_seed is not None:
        promise = f"no epsilon is promised, since the noise is repeatable (with secret noise: {promise})"
    say(f"Noise {plan.wire.mechanism.noise:.3g} x the bound: {promise}.")
    if plan.predictor:
        say(str(plan.predictor["advice"]))
    elif prepared.task.facts.kind == "ranking" and prepared.settings.method != "popularity":
        say("Noise suits few methods. fedveil and popularity lose less to it on ML-100K than others (docs/privacy.md).")
