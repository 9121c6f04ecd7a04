"""`fedtaste fit`: a model for production, which learns from everything and everybody; or the update of one."""

from __future__ import annotations

from pathlib import Path

from fedtaste import __version__
from fedtaste.cli.options import FitOptions
from fedtaste.cli.output import emit, put, say
from fedtaste.cli.run import announce_privacy, check_ledger, enter_ledger, load_data, name_ledger, new_folder
from fedtaste.data.supervised import Supervised
from fedtaste.errors import RunError, SettingError, was_interrupted
from fedtaste.experiment.continuation import continue_from, join, rounds_of_update
from fedtaste.experiment.fit import fit as fit_folder
from fedtaste.experiment.fit import prepare_fit
from fedtaste.experiment.folder import Data, RunFolder
from fedtaste.experiment.progress_bars import Bars
from fedtaste.experiment.result import FitResult
from fedtaste.experiment.settings import Settings
from fedtaste.experiment.stored_interactions import joined
from fedtaste.experiment.train import Prepared
from fedtaste.serving.open_model import OpenModel


def fit(settings: Settings, options: FitOptions) -> None:
    """Learn from everything and everybody, or continue a fitted model with new data."""
    if options.like is not None:
        settings = settings_like(options.like, settings)
    data: Data = load_data(settings)
    path = options.out or new_folder("model", data.name, settings.method)
    before = None
    if options.from_model is not None:
        model = fitted_model(options.from_model)
        assert isinstance(model.result, FitResult)
        before, state = model.result, model.trained_state()
        if isinstance(data, Supervised):
            raise SettingError(f"{data.name} has clients with features; a model continues with people and items.")
        data = join(model.data, joined(data))
        settings = continued_settings(model.settings, settings, before)
        prepared = prepare_fit(settings, data, continue_from(state.shared, state.memory, state.store))
    else:
        prepared = prepare_fit(settings, data)
    check_ledger(options.ledger, [prepared], data)
    announce_privacy(prepared)
    folder = RunFolder.create(path, prepared.settings.model_dump(), data, __version__, "fit")
    name_ledger(folder, options.ledger)
    show_fit(train_fit(folder, prepared, before), options.as_json)


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


def fitted_model(path: Path) -> OpenModel:
    """A model that was fitted and saved with people."""
    model = OpenModel.open(path)
    if not isinstance(model.result, FitResult):
        raise SettingError(
            f"{path} is an evaluated run. --from continues a model of `fedtaste fit`; an evaluation of an update is "
            "not possible from it, since it may have learnt the new test items."
        )
    return model


def continued_settings(old: Settings, given: Settings, before: FitResult) -> Settings:
    """The settings of the old model, with the new data, and what was given on the command line."""
    changes: dict[str, object] = {"rounds": rounds_of_update(before)}
    changes |= {name: getattr(given, name) for name in given.model_fields_set if name != "set"}
    if given.set or "method" in given.model_fields_set and given.method != old.method:
        raise SettingError("--from continues a model with its own method and settings. Leave --method and --set out.")
    return old.model_copy(update=changes)


def train_fit(folder: RunFolder, prepared: Prepared, before: FitResult | None = None) -> FitResult:
    """Train, or resume training, in this folder."""
    try:
        enter_ledger(folder, prepared)
        with Bars() as bars:
            return fit_folder(prepared, folder, bars, before=before)
    except (KeyboardInterrupt, SystemError) as error:
        if not was_interrupted(error):
            raise
        hint = "fit again" if before else f"go on with `fedtaste resume {folder.path}`"
        raise RunError(f"Stopped. Nothing is lost: {hint}.") from None


def show_fit(result: FitResult, as_json: bool) -> None:
    """Print the result of a fit, and what to do next."""
    if as_json:
        emit(result.dump())
        return
    chosen = "as many as were asked for" if result.valid is None else "chosen on everybody's newest item"
    people, items = f"{result.members:,} people", f"{result.items:,} items"
    put(f"{result.method}: learnt from {people} and {items} in {result.rounds} rounds ({chosen}).")
    if result.valid:
        put("Validation before the last training: " + ", ".join(f"{n} {v:.3f}" for n, v in result.valid.items()))
    put(f"Sent up by a person in each round: {result.traffic.up_bytes_per_person_round:,} bytes.")
    for note in result.notes:
        say(note)
    put(f"Model: {result.run}")
    put(f"Next: fedtaste recommend {result.run} --all --out recommendations.parquet")
