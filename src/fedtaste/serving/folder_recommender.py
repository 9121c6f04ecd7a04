"""Recommender's work on a model in a folder: fit, recommend, personalise, evaluate, update, forget and save.

Names in, names out; numbers of people and items stay inside. `fedtaste.recommender` has the public class, which imports
this module when it is needed, so that a process which only serves a bundle does not wait for torch.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, TypedDict, cast

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from fedtaste import __version__
from fedtaste.core import Download, Examples, People
from fedtaste.data.interactions import Histories, Interactions
from fedtaste.data.read_options import DEFAULTS, ReadOptions
from fedtaste.data.sources import load
from fedtaste.data.supervised import Supervised
from fedtaste.data.user_files import UserSplit
from fedtaste.engine.removal import remove_people
from fedtaste.engine.run import State
from fedtaste.engine.store import Store
from fedtaste.errors import DataError, SettingError
from fedtaste.evaluation.ranking import rank_items
from fedtaste.experiment.continuation import continue_from, join, shortened, without_people
from fedtaste.experiment.evaluate_method import measure
from fedtaste.experiment.fit import fit, prepare_fit
from fedtaste.experiment.folder import RunFolder
from fedtaste.experiment.privacy_ledger import LedgerChoice, enter_run
from fedtaste.experiment.progress import ProgressListener, Silent
from fedtaste.experiment.result import FitResult, RunResult
from fedtaste.experiment.settings import ReadSettings, Settings, changed_settings, settings_from
from fedtaste.experiment.stored_interactions import INTERACTIONS, joined, save_interactions
from fedtaste.experiment.tune_result import StudyHeader, TuneResult
from fedtaste.files.folders import check_replaceable, replace_folder
from fedtaste.methods import name_method
from fedtaste.methods.own import Factory
from fedtaste.report.tuning import write_tuning_report
from fedtaste.serving.bundle_recommender import REASONS
from fedtaste.serving.item_lists import (
    Filter,
    OnUnknown,
    TasteArguments,
    allowed_items,
    as_list,
    check_count,
    describe,
    find_items,
    find_taste,
    nothing_left,
)
from fedtaste.serving.open_model import OpenModel
from fedtaste.serving.rebuild import (
    Tables,
    Taste,
    like_shares,
    person_scores,
    rebuild,
    strongest_likes,
)
from fedtaste.serving.recommendation import Recommendation, Recommendations, SimilarItem, SimilarItems
from fedtaste.serving.similar import similar_items as nearest_items
from fedtaste.serving.titles import Titles
from fedtaste.tasks.serve import serve
from fedtaste.wire.messages import encode


class TuneLimits(TypedDict):
    """How long to search."""

    trials: int
    minutes: float | None


SAVED = ("settings.json", "facts.json", "plan.json", "items.json", "result.json", "model.safetensors")
OF_PEOPLE = (INTERACTIONS, "final.safetensors")
NOTHING = np.zeros(0, np.int64)


def as_interactions(
    data: object, like: Interactions | None = None, options: ReadOptions = DEFAULTS
) -> Interactions | UserSplit:
    """The data of a fit or an update: Interactions, a frame, or the name or path of data. A file is read as `options`
    say, a frame of an update with the keywords of the first one (`like`)."""
    if options != DEFAULTS and not isinstance(data, str | os.PathLike):
        raise SettingError(
            "columns, separator, decimal, date_format, drop_missing and max_gib are for files, and these data are not "
            "the path of one. Leave them out; Interactions.from_frame has the keywords of a frame."
        )
    if like is not None and like.frame_keywords and hasattr(data, "columns"):
        keywords = cast("dict[str, Any]", dict(like.frame_keywords))
        return Interactions.from_frame(data, name=like.name, **keywords)
    loaded = data if isinstance(data, Interactions | UserSplit) else load(data, options=options)
    if isinstance(loaded, Supervised):
        raise DataError(f"{loaded.name} has clients with features; a Recommender needs people and items.")
    return loaded


def read_options(values: Mapping[str, object]) -> ReadOptions:
    """How a file is read, from the arguments of a Recommender."""
    read = {name: value for name, value in values.items() if name in ReadSettings.model_fields}
    return settings_from("fedals", "file", read).read_options


def settings_of_fit(method: str | Factory, data: str, values: Mapping[str, object]) -> Settings:
    """Settings from the arguments of a Recommender; the method may be a function of the user's own."""
    return settings_from(name_method(method), data, values)


def fit_model(
    settings: Settings, data: Interactions | UserSplit, path: Path, listener: ProgressListener | None,
    ledger: LedgerChoice = None,
) -> OpenModel:  # fmt: skip
    """Fit a model to all data, in a new folder. A private fit is entered into the ledger first."""
    settings = settings.model_copy(update={"data": data.name})
    prepared = prepare_fit(settings, data)
    folder = RunFolder.create(path, settings.model_dump(), data, __version__, "fit")
    enter_run(folder, prepared, ledger)
    fit(prepared, folder, listener)
    return OpenModel.open(path)


def tune_settings(
    settings: Settings, data: Interactions | UserSplit, spaces: Mapping[str, str], limits: TuneLimits,
    path: Path | None, listener: ProgressListener | None,
) -> tuple[TuneResult, dict[str, object]]:  # fmt: skip
    """Search the settings on validation data; (the result, the chosen values with `tuned_on`). The study is kept in
    `path`, and continued if it is there already; without a path it is removed."""
    import_module("fedtaste.experiment.optuna_extra").require_optuna()
    work = import_module("fedtaste.experiment.tune")
    settings = settings.model_copy(update={"data": data.name})
    plan = work.prepare_tuning(settings, data, spaces)
    header = StudyHeader(
        space=plan.words(), own_space=dict(spaces), trials=limits["trials"], minutes=limits["minutes"], final=None
    )
    with tempfile.TemporaryDirectory(prefix="fedtaste-") as temporary:
        folder = work.begin_study(path or Path(temporary) / "study", plan, header, __version__)
        result: TuneResult = work.tune(plan, folder, listener or Silent())
        if path is not None:
            write_tuning_report(result, path)
        else:
            result = result.model_copy(update={"study": "", "config": ""})
    chosen = work.best_settings(plan, result)
    values = {name: value for name, value in result.settings.items() if name in chosen.set}
    return result, values | {"tuned_on": chosen.tuned_on}


def update_model(
    model: OpenModel, new: object, changes: Mapping[str, object], path: Path, listener: ProgressListener | None,
    ledger: LedgerChoice = None,
) -> OpenModel:  # fmt: skip
    """A model of the old and the new data together, which continues from the state of this one, in a new folder."""
    result = model.result
    if not isinstance(result, FitResult):
        raise SettingError(
            f"{model.folder.path} is an evaluated run, whose test items would be learnt. Update a model that was "
            "fitted, or use `fedtaste run --from`."
        )
    from_file = isinstance(new, str | os.PathLike)  # is read as the first one was
    options = read_options(model.settings.model_dump() | dict(changes)) if from_file else DEFAULTS
    data = join(model.data, joined(as_interactions(new, model.data, options)))
    settings = changed_settings(shortened(model.lasting_settings, result.settings, result.rounds, changes), changes)
    prepared = prepare_fit(settings, data, continue_from(model.trained_state(), model.facts.items, len(data.items)))
    folder = RunFolder.create(path, settings.model_dump(), data, __version__, "fit")
    enter_run(folder, prepared, ledger)
    fit(prepared, folder, listener, before=result)
    return OpenModel.open(path)


def forget_people(model: OpenModel, names: Iterable[object], path: Path) -> OpenModel:
    """A model in a new folder, as if these people had never taken part. Exact, for methods whose state is a sum over
    people; SettingError for others."""
    result = model.result
    if not isinstance(result, FitResult):
        raise SettingError("People are removed from a fitted model. This is an evaluated run: train it without them.")
    if result.privacy is not None:
        raise SettingError(
            "People cannot be removed from a model with noise: the difference of the models before and after would be "
            "exactly what these people sent. Train again without them."
        )
    leaving = np.unique([model.person(str(name)) for name in as_list(names, "users")]).astype(np.int64)
    staying = np.setdiff1d(np.arange(len(model.data.people)), leaving)
    current, timed = model.plan(model.facts.timed), model.facts.timed
    state = remove_people(
        current.method, current.model, model.trained_state(), model.devices(model.histories, timed), leaving
    )
    data = without_people(model.data, leaving)
    store = Store.fresh(state.private.initial, len(staying), current.method.rows)
    store.unpack_part(np.arange(len(staying)), state.private.part(staying))
    folder = RunFolder.create(path, model.lasting_settings.model_dump(), data, __version__, "fit")
    folder.require_same_plan(current.settings, replace(model.facts, people=len(staying)))
    save_interactions(path / INTERACTIONS, data, model.settings.seed)
    folder.save_final(State(state.shared, state.memory, store, state.round))
    changes = {"people": len(staying), "members": len(staying), "interactions": len(data), "run": str(path)}
    folder.write("result.json", result.model_copy(update=changes).dump())
    return OpenModel.open(path)


def evaluate_model(model: OpenModel, listener: ProgressListener | None, ledger: LedgerChoice = None) -> RunResult:
    """The clean protocol on the data of the model, with its settings: part of the data is held out and not learnt."""
    if isinstance(model.result, RunResult):
        return model.result
    return measure(model.lasting_settings, model.data, listener, ledger)


def save_model(model: OpenModel, out: Path, people: bool) -> None:
    """Write the model into a folder of its own: all of it or nothing. Without `people`, nobody's history and nobody's
    private parameters are in it."""
    check_replaceable(out, "a model that save wrote", _model_files)
    names = [*SAVED, *(OF_PEOPLE if people else ())]

    def fill(folder: Path) -> None:
        folder.chmod(0o700)
        for name in names:
            if (model.folder.path / name).exists():
                shutil.copy2(model.folder.path / name, folder / name)

    replace_folder(out, fill)


def _model_files(out: Path) -> set[str]:
    """The files of a saved model in this folder; none where it is no model."""
    return {*SAVED, *OF_PEOPLE} if (out / "settings.json").exists() and RunFolder.open(out).kind == "fit" else set()


# Recommendations


def recommend_table(
    model: OpenModel, users: Iterable[object] | None, n: int, filter: Filter, *, repeat: bool = False
) -> pl.DataFrame:
    """The n best items of these people of the data, or of everybody: a frame with user, item, rank and score. Of
    unknown people the filter says what happens."""
    check_count(n)
    allowed = allowed_mask(model.titles, filter)
    numbers = _find_people(model, users, filter.on_unknown)
    histories = model.histories.take(numbers)
    best = model.top(histories, n, timed=model.data.time is not None, members=numbers, allowed=allowed, repeat=repeat)
    left = (best.items >= 0).sum(1)
    if not left.any() and len(numbers):
        raise SettingError("Nothing is left to recommend: the filters and the histories leave no item for anybody.")
    if (left == 0).any():
        empty = [model.data.people[number] for number in numbers[left == 0]]
        warnings.warn(f"{describe(empty)} without a row: no item is left for them.", stacklevel=3)
    row, rank = np.nonzero(best.items >= 0)
    columns = {
        "user": pl.Series(model.data.people, dtype=pl.String).gather(numbers[row]),
        "item": pl.Series(model.items["names"], dtype=pl.String).gather(best.items[row, rank]),
        "rank": pl.Series((rank + 1).astype(np.int64)),
        "score": pl.Series(best.scores[row, rank].astype(np.float64)),
    }
    return pl.DataFrame(columns)


def _find_people(model: OpenModel, users: Iterable[object] | None, on_unknown: OnUnknown) -> People:
    """The numbers of these people, or of everybody who has a history."""
    lengths = model.histories.lengths
    if users is None:
        return np.flatnonzero(lengths)
    names = [str(user) for user in as_list(users, "users")]
    unknown = [name for name in names if name not in model.numbers or not lengths[model.numbers[name]]]
    if unknown and on_unknown == "raise":
        model.person(unknown[0])
        raise DataError(f'"{unknown[0]}" has no history. Say what they like with recommend_for.')
    if unknown and on_unknown == "warn":
        warnings.warn(f"users: {describe(unknown)} not in the data and left out.", stacklevel=3)
    missing = set(unknown)
    return np.array([model.numbers[name] for name in names if name not in missing], np.int64)


def to_library(frame: pl.DataFrame, library: str) -> object:
    """The frame in the library that the data came from."""
    if library != "pandas":
        return frame
    pandas: Any = import_module("pandas")
    return pandas.DataFrame({name: frame[name].to_list() for name in frame.columns})


def history_of(taste: Taste) -> Histories:
    """The likes of one person as their history."""
    return Histories(np.array([0, len(taste.likes)]), taste.likes.astype(np.int32), taste.values.astype(np.float32))


def recommend_person(model: OpenModel, person: TasteArguments, n: int, filter: Filter) -> Recommendations:
    """The n best items for somebody new, with reasons where the method has a recipe."""
    check_count(n)
    taste = find_taste(model.titles, person, model.facts.kind, model.facts.scale)
    if not len(taste.likes):
        raise SettingError("likes names no items. Give at least one, as in likes=['Toy Story (1995)'].")
    items, scores, because = _ranked(model, taste, n, allowed_mask(model.titles, filter, taste.dislikes))
    if not len(items):
        raise nothing_left(filter, model.facts.items)
    titles = model.items["titles"]
    return Recommendations(
        items=recommended_items(model, items, scores, because),
        history=tuple(titles[at] for at in taste.likes),
        disliked=tuple(titles[at] for at in taste.dislikes),
    )


def allowed_mask(titles: Titles, filter: Filter, dislikes: NDArray[np.integer] = NOTHING) -> NDArray[np.bool_]:
    """Which items may be recommended, [m]: those that pass the filter and have no disliked title."""
    allowed = np.ones(len(titles.titles), bool)
    if (items := allowed_items(titles, filter)) is not None:
        allowed = np.isin(np.arange(len(allowed)), items)
    return allowed & ~np.isin(titles.groups, titles.groups[dislikes])


def _ranked(
    model: OpenModel, taste: Taste, n: int, allowed: NDArray[np.bool_]
) -> tuple[NDArray[np.integer], NDArray[np.floating], list[list[int]]]:
    """(items, scores, reasons) of a new person. Dislikes change scores where the method has a recipe, which counts them
    as examples; elsewhere they are only left out. Without them scores are those of `recommend`."""
    parts = model.rebuild_parts
    person = rebuild(parts.recipe, parts.tables, parts.gram, taste) if parts else None
    if parts is None or person is None or not len(taste.dislikes) or not parts.recipe.reads_dislikes:
        best = model.top(history_of(taste), n, timed=taste.timed, allowed=allowed)
        items, scores = best.items[0][best.items[0] >= 0], best.scores[0]
    else:
        scores = person_scores(parts.tables, taste, person)
        excluded = np.concatenate([taste.likes, taste.dislikes])
        items = rank_items(scores, excluded, model.titles.groups, np.flatnonzero(allowed), n).astype(np.int32)
        scores = scores[items]
    if parts is None or person is None:
        return items, scores, []
    shares = like_shares(parts.tables, taste, person, items.astype(np.int64))
    return items, scores, strongest_likes(shares, taste, model.facts.scale, REASONS)


def similar_items(model: OpenModel, item: object, n: int) -> SimilarItems:
    """The items whose vectors point most nearly in the direction of this item's."""
    check_count(n)
    parts, table = model.rebuild_parts, model.shared.get("item")
    vectors = parts.item if parts else table.numpy() if table is not None and table.ndim == 2 else np.zeros((0, 0))
    if vectors.shape[1] < 2 or not (vectors[:, 1:] != 0).any():
        raise SettingError(f"{model.settings.method} has no item vectors, so similar items are not known to it.")
    (number,) = find_items(model.titles, [item], "item")
    tables = Tables(vectors.astype(np.float64), None, False)
    names, titles = model.items["names"], model.items["titles"]
    near = zip(*nearest_items(tables, number, n, model.titles.groups))
    items = (SimilarItem(item=names[at], title=titles[at], score=round(float(cosine), 6)) for at, cosine in near)
    return SimilarItems(item=names[number], title=titles[number], items=tuple(items))


def recommended_items(
    model: OpenModel, items: NDArray[np.integer], scores: NDArray[np.floating], because: Sequence[Sequence[int]] = ()
) -> tuple[Recommendation, ...]:
    """Items with their scores and the likes that they are recommended for."""
    names, titles = model.items["names"], model.items["titles"]
    rows = (
        Recommendation(item=names[at], title=titles[at], score=round(float(score), 6))
        for at, score in zip(items, scores)
    )
    if not because:
        return tuple(rows)
    reasons = (tuple(titles[i] for i in likes) for likes in because)
    return tuple(row.model_copy(update={"because": likes}) for row, likes in zip(rows, reasons))


# One device


@dataclass(frozen=True, eq=False)
class PersonalModel:
    """What one device computes from what it receives; none of it is sent."""

    history: tuple[str, ...]
    """The titles that it was computed from, oldest first."""
    received_bytes: int
    """The size of the download: the shared parameters."""
    parameters: dict[str, NDArray[np.generic]]
    """The parameters of this person alone: rebuilt from the history, or private."""
    scores: object
    """A frame with every item and its score for this person, best first."""


def personal_model(model: OpenModel, likes: Iterable[object], timed: bool) -> PersonalModel:
    """Personalise one person on this machine as their own device would."""
    items = np.array(find_items(model.titles, likes, "history"), np.int64)
    history = history_of(Taste(items, np.full(len(items), model.facts.scale[1]), items[:0], timed))
    if not len(history):
        raise SettingError("history names no items. Give what the person took, oldest first.")
    current, shared = model.plan(timed), model.shared
    devices, alone = model.devices(history, timed), np.zeros(1, np.int64)
    store, numbers, examples = serve(current.method, shared, model.newcomer_store(), devices, alone, model.passes)
    own = {name: value[0] for name, value in store.gather(numbers).items()}
    params = current.method.personalize(shared, own, Examples(*(x[0] for x in examples.pad())))
    personal = {n: v.detach().numpy() for n, v in params.items() if n not in shared or v is not shared[n]}
    ((_, scores),) = model.scores(history, timed=timed)
    frame = pl.DataFrame({"item": model.items["names"], "score": scores[0].astype(np.float64)})
    titles = tuple(model.items["titles"][at] for at in history.items)
    size = len(encode(Download(shared, torch.zeros(()))))
    library = model.data.frame_library if model.has_people else "polars"
    return PersonalModel(titles, size, personal, to_library(frame.sort("score", descending=True), library))
