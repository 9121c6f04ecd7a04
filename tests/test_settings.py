"""The plan of a run: which value of a setting is used, and which models a method accepts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedtaste.engine.run import run
from fedtaste.errors import SettingError
from fedtaste.experiment.plan import plan
from fedtaste.experiment.settings import Settings
from fedtaste.federation import of_histories
from fedtaste.methods import METHODS
from fedtaste.tasks.base import Facts
from support.worlds import ITEMS, histories

RANKING, RATINGS = Facts("ranking", ITEMS), Facts("ratings", ITEMS, scale=(1.0, 5.0))


def test_a_preset_overrides_defaults_and_set_overrides_a_preset(monkeypatch):
    spec = replace(METHODS["fedavg"], presets={("ranking", "ml-100k"): {"lr": 3.0, "rounds": 7}})
    monkeypatch.setitem(METHODS, "fedavg", spec)
    preset = plan(Settings(method="fedavg", data="ml-100k"), RANKING)
    assert (preset.settings["lr"], preset.rounds, preset.settings["server"]) == (3.0, 7, "adagrad")
    assert plan(Settings(method="fedavg", data="ml-100k", set={"lr": "2"}), RANKING).settings["lr"] == 2.0
    for others in ({"data": "mine.csv"}, {"method": "fedprox"}):
        assert plan(Settings(**{"method": "fedavg", **others}), RANKING).settings["lr"] == 10.0
    assert plan(Settings(method="fedavg", data="ml-100k"), RATINGS).settings["lr"] == 0.2


NO_OTHER_MODEL = {"fedbn", "fedveil", "popularity", "centralised", "fcf", "fedals", "fedmf", "fedtrail"}


@pytest.mark.parametrize(
    ("model", "refusing"),
    [
        ("scorer", NO_OTHER_MODEL | {"fedncf", "fedrap"}),
        ("additive", NO_OTHER_MODEL | {"fedncf", "pfedrec"}),
        ("ncf", NO_OTHER_MODEL | {"fedrap", "pfedrec"}),
    ],
)
def test_every_method_runs_with_a_model_or_names_the_models_it_needs(model, refusing):
    data, errors = histories(), {}
    for name in METHODS:
        try:
            result = plan(Settings(method=name, set={"model": model, "k": "4"}), RANKING)
        except SettingError as error:
            errors[name] = str(error)
            continue
        federation = of_histories(data, ITEMS, negatives=2)
        assert next(run(result.method, result.model, federation, rounds=1)).answered == data.people
    assert set(errors) == refusing and all("model" in error for error in errors.values())


def test_an_exact_solver_refuses_a_neural_model():
    with pytest.raises(SettingError, match="solver=exact needs a factorisation"):
        plan(Settings(method="fedrecon", set={"model": "ncf", "solver": "exact"}), RANKING)


@pytest.mark.parametrize("name", ["pfedrec", "fedncf"])
def test_methods_with_a_model_of_their_own_refuse_other_tasks_than_ranking(name):
    for facts in (RATINGS, Facts("regression", width=3)):
        with pytest.raises(SettingError, match="ranks with model="):
            plan(Settings(method=name), facts)
