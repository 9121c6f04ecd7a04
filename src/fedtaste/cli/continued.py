"""`--from MODEL` of fit and run: continue the state of a trained model with new data, people and items."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedtaste.cli.output import cache
from fedtaste.data.interactions import Interactions
from fedtaste.data.supervised import Supervised
from fedtaste.engine.run import State
from fedtaste.errors import SettingError
from fedtaste.experiment.continuation import continue_from, join, shortened
from fedtaste.experiment.folder import Data, RunFolder
from fedtaste.experiment.privacy import adds_noise
from fedtaste.experiment.result import FitResult
from fedtaste.experiment.settings import ReadSettings, Settings
from fedtaste.experiment.stored_interactions import joined
from fedtaste.experiment.train import Prepared, checked_plan, make_task
from fedtaste.serving.open_model import OpenModel
from fedtaste.tasks.ranking import Ranking
from fedtaste.text import count


class Continued(NamedTuple):
    """A training that continues a model: its settings, the old and the new data together, and its first state."""

    settings: Settings
    data: Interactions
    old: Interactions
    start: Callable[[State], State]
    before: FitResult | None  # the result of the model, where it was fitted
    private: bool  # whether the model was trained with noise


def read_alike(path: Path, settings: Settings) -> Settings:
    """The settings with the columns and formats with which the model's own file was read, where none are given."""
    before, given = RunFolder.open(path).settings(), settings.model_fields_set
    return settings.model_copy(
        update={name: getattr(before, name) for name in ReadSettings.model_fields if name not in given}
    )


def open_continued(path: Path, given: Settings, new: Data, *, resumed: bool = False) -> Continued:
    """Open the model and join its data with the new ones. The settings are those of the model, with the new data and
    what was given on the command line; `resumed` ones are complete already."""
    model = OpenModel.open(path, cache())
    if isinstance(new, Supervised):
        raise SettingError(f"{new.name} has clients with features; a model continues with people and items.")
    if not resumed and (given.set or "method" in given.model_fields_set and given.method != model.settings.method):
        raise SettingError("--from continues a model with its own method and settings. Leave --method and --set out.")
    data = join(model.data, joined(new))
    settings = given
    if not resumed:
        changes = {name: getattr(given, name) for name in given.model_fields_set}
        shorter = shortened(model.lasting_settings, model.result.settings, model.result.rounds, changes)
        settings = shorter.model_copy(update={"new_people": None} | changes)
    start = continue_from(model.trained_state(), model.facts.items, len(data.items))
    before = model.result if isinstance(model.result, FitResult) else None
    return Continued(settings, data, model.data, start, before, model.result.privacy is not None)


def prepare_continued(continued: Continued) -> Prepared:
    """Prepare an evaluated run that continues a model. Only people whose test item the model has not seen are
    evaluated; nobody is new to it, and the number of rounds is not searched for."""
    began, old, data = time.perf_counter(), continued.old, continued.data
    settings = continued.settings.model_copy(update={"new_people": 0.0})
    task = make_task(settings, data)
    if adds_noise(settings) or continued.private:
        raise SettingError(
            "run --from does not add up the epsilon of two trainings. Use `fedtaste fit --from`, which does, or leave "
            "the noise out."
        )
    if not isinstance(task, Ranking):
        raise SettingError("run --from evaluates rankings. Use `fedtaste fit --from` for ratings.")
    seen = old.person.astype(np.int64) * len(data.items) + old.item  # people and items keep their numbers
    test = task.test.positives
    known = np.isin(test.owners.astype(np.int64) * len(data.items) + test.items, seen)
    learnt = np.unique(test.owners[known])
    task.evaluated = np.setdiff1d(task.evaluated, learnt)
    if not len(task.evaluated):
        raise SettingError("Nobody can be evaluated: the model has learnt everybody's newest item. Bring newer data.")
    task.validates = False
    left_out = count(len(learnt), "person is", "people are")
    task.notes += (f"Continued from an earlier model. {left_out} not evaluated: it had learnt their newest item.",)
    plan = checked_plan(settings, task)
    return Prepared(settings, data, task, plan, time.perf_counter() - began, continued.start)
