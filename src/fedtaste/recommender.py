"""Recommender: one object for the whole job. Fit, recommend, find similar items, evaluate, update, save, load, export.

    model = Recommender("fedals", seed=0).fit(data)

Users and items are text, as in the data: "7" for the number 7. This module does not import torch, so that a process
which only serves a bundle starts fast; what needs torch is imported when it is called (`_operations`).
"""

from __future__ import annotations

import importlib
import math
import shutil
import sys
import tempfile
import weakref
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from fedtaste.errors import RunError, SettingError, keyword_errors
from fedtaste.serving.bundle_recommender import BundleRecommender
from fedtaste.serving.item_lists import Filter, OnUnknown, TasteArguments
from fedtaste.serving.recommendation import Recommendations, SimilarItems
from fedtaste.text import did_you_mean

if TYPE_CHECKING:
    import types

    from fedtaste.core import Method
    from fedtaste.experiment.privacy_ledger import LedgerChoice
    from fedtaste.experiment.progress import ProgressListener
    from fedtaste.experiment.result import FitResult, RunResult
    from fedtaste.experiment.tune_result import TuneResult
    from fedtaste.serving.folder_recommender import PersonalModel
    from fedtaste.serving.open_model import OpenModel

NOT_FITTED = "This Recommender is not fitted. Call fit(data) first, or Recommender.load(path)."
BUNDLE = "holds nobody's data and cannot {what}. Load the run folder or the saved model that it was exported from."


class Recommender:
    """A recommender that learns from everybody's data by federated rounds and serves each person.

    Settings are those of `fedtaste run` (rounds, cohort, wire, epsilon, task, ...) and of the method (k, lam, ...). A
    private training is entered into the privacy ledger of the data, as on the command line, before it begins; `ledger`
    names another file. With ledger=False it is in no ledger, and nobody adds its epsilon to that of other trainings.

    >>> import fedtaste
    >>> data = fedtaste.load("synthetic:60x40x900")
    >>> model = fedtaste.Recommender("fedals", k=8).fit(data, progress=False)
    >>> model.recommend(["1", "2"], n=3).columns
    ['user', 'item', 'rank', 'score']
    >>> len(model.recommend_for(likes=[data.titles[3]], n=2).items)
    2
    """

    def __init__(
        self, method: str | Callable[..., Method] = "fedals", *, seed: int = 0, ledger: LedgerChoice = None,
        **settings: object,
    ) -> None:  # fmt: skip
        self._method, self._ledger = method, ledger
        self._settings: dict[str, object] = {"seed": seed, **settings}
        self._tuned: dict[str, object] = {}  # what `tune` chose; apart, so that the next one searches it again
        self._model: OpenModel | BundleRecommender | None = None
        self.tuning: TuneResult | None = None  # of the last `tune`

    def __repr__(self) -> str:
        arguments = ", ".join([repr(self._method), *(f"{name}={value!r}" for name, value in self._values.items())])
        return f"Recommender({arguments}){'' if self._model is not None else ', not fitted'}"

    # Training

    @keyword_errors()
    def fit(self, data: object, *, progress: bool | None = None) -> Recommender:
        """Learn from everything and everybody. `data` are Interactions, a frame, or the name or path of data.

        The number of rounds is chosen on validation (everybody's newest item) unless `rounds` is a setting. `progress`
        shows a bar; it is shown on terminals when it is left out.
        """
        work = _operations()
        interactions = work.as_interactions(data, options=work.read_options(self._values))
        settings = work.settings_of_fit(self._method, interactions.name, self._values)
        self._keep(lambda path, bars: work.fit_model(settings, interactions, path, bars, self._ledger), progress)
        return self

    @keyword_errors()
    def tune(
        self, data: object, trials: int = 30, *, space: Mapping[str, object] | None = None,
        minutes: float | None = None, path: Path | str | None = None, progress: bool | None = None,
    ) -> Recommender:  # fmt: skip
        """Search the settings of the method by so many trials on validation data, and keep the best ones for `fit`.

        `space` names values to try in place of the method's own: {"lam": (0.001, 0.1), "k": [16, 32, 64]}, a range or a
        list. `path` keeps the study, its report and run.toml; a study that is there is continued. The result is
        `tuning`. A second `tune` searches again. With noise, `fit` refuses the data that the settings were tuned on.
        Needs Optuna (pip install 'fedtaste[tune]').
        """
        _check_search(trials, space, minutes)
        work = _operations()
        interactions = work.as_interactions(data, options=work.read_options(self._settings))
        settings = work.settings_of_fit(self._method, interactions.name, self._settings)
        with _bars(progress) as bars:
            self.tuning, self._tuned = work.tune_settings(
                settings, interactions, {name: _space_text(values) for name, values in (space or {}).items()},
                {"trials": trials, "minutes": minutes}, None if path is None else Path(path), bars,
            )  # fmt: skip
        return self

    @keyword_errors()
    def update(self, data: object, *, progress: bool | None = None, **changes: object) -> Recommender:
        """Continue from the present state with further data: new interactions, people and items.

        A third of the rounds of the first training is run unless `rounds` says otherwise. In a private model every
        update spends an epsilon, and `result.privacy` adds them up.
        """
        work, model = _operations(), self._trained("be updated")
        settings = self._changed(changes)
        self._keep(lambda path, bars: work.update_model(model, data, settings, path, bars, self._ledger), progress)
        return self

    def forget(self, users: Iterable[object]) -> Recommender:
        """Delete the histories of these people, and subtract what they contributed from the model. For popularity and
        fedtrail the result equals a training without them; other methods raise an error, as they must be trained
        again."""
        work, model = _operations(), self._trained("forget people")
        self._keep(lambda path, bars: work.forget_people(model, users, path), progress=False)
        return self

    @keyword_errors()
    def evaluate(self, *, progress: bool | None = None) -> RunResult:
        """Measure these settings on the data of the model under the clean protocol: accuracy for people in training and
        for new people, with intervals, traffic and epsilon. Trains again, with test items held out."""
        work, model = _operations(), self._trained("be evaluated")
        with _bars(progress) as bars:
            result: RunResult = work.evaluate_model(model, bars, self._ledger)
        return result

    @property
    def result(self) -> FitResult | RunResult:
        """What the training measured: rounds, traffic, privacy, times, notes."""
        return self._trained("tell").result

    # Recommendations

    def recommend(
        self, users: Iterable[object] | None = None, n: int = 10, *, only: Iterable[object] | None = None,
        exclude: Iterable[object] = (), on_unknown: OnUnknown = "raise", include_history: bool = False,
    ) -> object:  # fmt: skip
        """The n best items of each of these people of the data, or of everybody: a frame with the columns user, item,
        rank and score, of the library that the data came from (polars, or pandas).

        `only` and `exclude` name items by name or title. `on_unknown` says what happens to unknown users and items:
        raise an error, warn, or ignore them. Items of a person's history are left out unless `include_history`.
        """
        work, model = _operations(), self._trained("recommend to people of the data")
        filter = Filter(only, exclude, on_unknown=on_unknown)
        table = work.recommend_table(model, users, n, filter, repeat=include_history)
        frame: object = work.to_library(table, model.data.frame_library)
        return frame

    def recommend_for(
        self, likes: Iterable[object] = (), dislikes: Iterable[object] = (), *, n: int = 10,
        ratings: Mapping[str, float] | None = None, only: Iterable[object] | None = None,
        exclude: Iterable[object] = (), timed: bool = False,
    ) -> Recommendations:  # fmt: skip
        """The n best items for somebody new, who likes these items (oldest first, where `timed`), with reasons."""
        taste: TasteArguments = {"likes": likes, "dislikes": dislikes, "ratings": ratings, "timed": timed}
        if isinstance(self._model, BundleRecommender):
            return self._model.recommend(**taste, n=n, filter=Filter(only, exclude))
        model, filter = self._trained("recommend"), Filter(only, exclude)
        answer: Recommendations = _operations().recommend_person(model, taste, n, filter)
        return answer

    def similar_items(self, item: object, n: int = 10) -> SimilarItems:
        """The n items whose vectors are most nearly parallel to this item's; the score is the cosine."""
        if isinstance(self._model, BundleRecommender):
            return self._model.similar(item, n)
        answer: SimilarItems = _operations().similar_items(self._trained("compare items"), item, n)
        return answer

    def personal(self, history: Iterable[object], *, timed: bool = True) -> PersonalModel:
        """What one device computes from what it receives: the federated view. `history` are items, oldest first."""
        answer: PersonalModel = _operations().personal_model(self._trained("be personalised"), history, timed)
        return answer

    # Files

    def save(self, path: Path | str, *, people: bool = True) -> None:
        """Write the model into a folder. With `people` it holds everybody's history and private parameters, readable by
        its owner only, so that `recommend` works after `load`; without, only what everybody shares."""
        _operations().save_model(self._trained("be saved"), Path(path), people)

    @staticmethod
    def load(path: Path | str) -> Recommender:
        """Read a saved model, a run folder or an exported bundle."""
        path = Path(path)
        out = Recommender()
        if (path / "manifest.json").exists():
            out._model = BundleRecommender.load(path)
            out._method, out._settings = out._model.bundle.manifest.method, {}
            return out
        if not path.exists():
            raise RunError(f"{path} does not exist, so there is no model. Give a saved model, a run or a bundle.")
        if not (path / "settings.json").exists():
            raise RunError(
                f"{path} is no model: it has no settings.json (a saved model or a run folder) and no manifest.json (a "
                "bundle). Give a folder that save, `fedtaste fit`, `fedtaste run` or `fedtaste export` made."
            )
        module = importlib.import_module("fedtaste.serving.open_model")
        out._model = module.OpenModel.open(path)
        settings = out._trained("load").settings
        out._method = settings.method
        out._settings = settings.model_dump(exclude_defaults=True, exclude={"set", "data", "method"}) | settings.set
        return out

    def export(self, path: Path | str, *, float32: bool = False) -> None:
        """Write a static folder with a page that recommends in the browser, for any web server."""
        model = self._trained("be exported again")
        importlib.import_module("fedtaste.serving.export").export(model.folder.path, Path(path), float32=float32)

    # Inside

    @property
    def _values(self) -> dict[str, object]:
        """The settings of a training: the user's, and what `tune` chose."""
        return self._settings | self._tuned

    def _trained(self, what: str) -> OpenModel:
        if self._model is None:
            raise SettingError(NOT_FITTED)
        if isinstance(self._model, BundleRecommender):
            raise SettingError(f"A bundle {BUNDLE.format(what=what)}")
        return self._model

    def _changed(self, changes: Mapping[str, object]) -> dict[str, object]:
        """The settings of an update that differ from those of the model."""
        known = {"rounds", "cohort", "epsilon", "delta", "seed", "threads", "wire", "noise_seed"}
        for name in changes:
            if name not in known:
                raise SettingError(did_you_mean(name, sorted(known), "setting"))
        return dict(changes)

    def _keep(self, train: Callable[[Path, ProgressListener | None], OpenModel], progress: bool | None) -> None:
        """Train in a new temporary folder and keep the model; the one before is kept where that fails."""
        folder = tempfile.mkdtemp(prefix="fedtaste-")
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        with _bars(progress) as bars:
            self._model = train(Path(folder) / "model", bars)


def _operations() -> types.ModuleType:
    return importlib.import_module("fedtaste.serving.folder_recommender")


def _check_search(trials: object, space: object, minutes: object) -> None:
    """Raise SettingError for arguments of `tune` that name no search."""
    if not isinstance(trials, int) or trials < 1:
        raise SettingError(f"trials must be a whole number of at least 1, got {trials}.")
    if minutes is not None and not (isinstance(minutes, int | float) and 0 < minutes < math.inf):
        raise SettingError(f"minutes must be a number above 0, got {minutes!r}. Leave it out for no limit.")
    if space is not None and not (isinstance(space, Mapping) and all(isinstance(name, str) for name in space)):
        raise SettingError(
            'space must be a dictionary of settings and the values to try, as in {"lam": (0.001, 0.1)}, got '
            f"{space!r}."
        )


def _space_text(values: object) -> str:
    """Values to try as `--space` has them."""
    if isinstance(values, tuple) and len(values) == 2:
        return f"{values[0]}..{values[1]}"
    return ",".join(map(str, values)) if isinstance(values, list | tuple) else str(values)


def _bars(progress: bool | None) -> ProgressBars:
    return ProgressBars(sys.stderr.isatty() if progress is None else progress)


class ProgressBars:
    """A progress bar, or nothing, as a context."""

    def __init__(self, shown: bool) -> None:
        self._bars = importlib.import_module("fedtaste.experiment.progress_bars").Bars() if shown else None

    def __enter__(self) -> ProgressListener | None:
        listener: ProgressListener | None = self._bars.__enter__() if self._bars else None
        return listener

    def __exit__(self, *error: object) -> None:
        if self._bars:
            self._bars.__exit__(*error)
