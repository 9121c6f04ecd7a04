"""`fedtaste fit`: a model for production, which learns from everything and everybody; or the update of one."""

from __future__ import annotations

from pathlib import Path

from fedtaste import __version__
from fedtaste.cli.continued import open_continued, read_alike
from fedtaste.cli.options import FitOptions
from fedtaste.cli.output import emit, put, say
from fedtaste.cli.own_methods import allow_method
from fedtaste.cli.run import announce_privacy, check_ledger, enter_ledger, load_data, name_ledger, new_folder
from fedtaste.errors import RunError, SettingError, was_interrupted
from fedtaste.experiment.fit import fit as fit_folder
from fedtaste.experiment.fit import prepare_fit
from fedtaste.experiment.folder import Data, RunFolder
from fedtaste.experiment.privacy import adds_noise
from fedtaste.experiment.progress_bars import Bars
from fedtaste.experiment.result import FitResult
from fedtaste.experiment.settings import Settings
from fedtaste.experiment.tracking import TrackedRun, remember_tracking, require_tracker
from fedtaste.experiment.train import Prepared
from fedtaste.text import count


def fit(settings: Settings, options: FitOptions) -> None:
    """Learn from everything and everybody, or continue a fitted model with new data."""
    if options.like is not None:
        settings = settings_like(options.like, settings)
    allow_method(settings.method)
    if options.from_model is not None:
        settings = read_alike(options.from_model, settings)
    data: Data = load_data(settings)
    path = options.out or new_folder("model", data.name, settings.method)
    prepared, before = prepare_model(settings, data, options.from_model)
    private = adds_noise(prepared.settings) or (before is not None and before.privacy is not None)
    require_tracker(options.track, options.track_to, private)
    check_ledger(options.ledger, [prepared], prepared.data or data)
    announce_privacy(prepared)
    folder = RunFolder.create(path, prepared.settings.model_dump(), prepared.data or data, __version__, "fit")
    if options.from_model is not None:
        folder.continue_model(options.from_model)
    name_ledger(folder, options.ledger)
    remember_tracking(folder, options.track, options.track_to)
    show_fit(train_fit(folder, prepared, before), options.as_json)


def prepare_model(
    settings: Settings, data: Data, from_model: Path | None, *, resumed: bool = False
) -> tuple[Prepared, FitResult | None]:
    """(the prepared fit, the result of the model that it continues)."""
    if from_model is None:
        return prepare_fit(settings, data), None
    continued = open_continued(from_model, settings, data, resumed=resumed)
    if continued.before is None:
        raise SettingError(f"{from_model} is an evaluated run. Use `fedtaste run --from`, or fit a model first.")
    return prepare_fit(continued.settings, continued.data, continued.start), continued.before


def settings_like(path: Path, settings: Settings) -> Settings:
    """The settings of an evaluated run, with as many rounds as its validation chose."""
    folder = RunFolder.open(path)
    result, chosen = folder.result(), folder.settings()
    others = sorted(settings.model_fields_set - {"data", "threads", "backend"})
    if others:
        raise SettingError(f"--like takes the settings of {path}; leave out {', '.join(others)}.")
    changes: dict[str, object] = {"rounds": result.rounds, "new_people": None, "protocol": "clean"}
    changes |= {name: getattr(settings, name) for name in settings.model_fields_set}
    return chosen.model_copy(update=changes | {"split": "leave-one-out"})


def train_fit(folder: RunFolder, prepared: Prepared, before: FitResult | None = None) -> FitResult:
    """Train, or resume training, in this folder."""
    try:
        enter_ledger(folder, prepared)
        with Bars() as bars:
            tracked = TrackedRun(folder, bars, {"method": prepared.settings.method} | prepared.plan.settings)
            result = fit_folder(prepared, folder, tracked, before=before)
            tracked.finish(result)
            return result
    except (KeyboardInterrupt, SystemError) as error:
        if not was_interrupted(error):
            raise
        raise RunError(f"Stopped. Nothing is lost: go on with `{folder.command('resume')}`.") from None


def show_fit(result: FitResult, as_json: bool) -> None:
    """Print the result of a fit, and what to do next."""
    if as_json:
        emit(result.dump())
        return
    chosen = "a fixed number" if result.valid is None else "chosen on everybody's newest item"
    people, items = f"{result.members:,} people", f"{result.items:,} items"
    put(f"{result.method}: learnt from {people} and {items} in {count(result.rounds, 'round')} ({chosen}).")
    if result.valid:
        put("Validation before the last training: " + ", ".join(f"{n} {v:.3f}" for n, v in result.valid.items()))
    put(f"Sent up by a person in each round: {result.traffic.up_bytes_per_person_round:,} bytes.")
    for note in result.notes:
        say(note)
    put(f"Model: {result.run}")
    put(f"Next: {RunFolder(Path(result.run)).command('recommend', '--all', '--out', 'recommendations.parquet')}")
