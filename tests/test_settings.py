"""The plan of a run: which value of a setting is used, and which models a method accepts."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedtaste.engine.run import run
from fedtaste.errors import SettingError
from fedtaste.experiment.plan import plan
from fedtaste.experiment.settings import Settings
from fedtaste.federation import of_histories
from fedtaste.methods import METHODS, build
from fedtaste.tasks.base import Facts
from support.worlds import ITEMS, histories

RANKING, RATINGS = Facts("ranking", ITEMS), Facts("ratings", ITEMS, scale=(1.0, 5.0))


def test_a_preset_overrides_defaults_and_set_overrides_a_preset(monkeypatch):
    presets = {("ranking", ""): {"k": 9}, ("ranking", "ml-100k"): {"lr": 3.0, "rounds": 7}}
    spec = replace(METHODS["fedavg"], presets=presets)
    monkeypatch.setitem(METHODS, "fedavg", spec)
    published = {"method": "fedavg", "data": "ml-100k", "protocol": "published"}
    preset = plan(Settings(**published), RANKING)
    assert (preset.settings["lr"], preset.rounds, preset.settings["server"]) == (3.0, 7, "adagrad")
    assert plan(Settings(**published, set={"lr": "2"}), RANKING).settings["lr"] == 2.0
    for others, k in (({"data": "mine.csv"}, 9), ({"method": "fedprox"}, 32), ({"protocol": "clean"}, 32)):
        settings = plan(Settings(**published | others), RANKING).settings
        assert (settings["lr"], settings["k"]) == (10.0, k)
    assert plan(Settings(**published), RATINGS).settings["lr"] == 0.2


def test_fedrap_has_its_released_settings_under_the_published_protocol_only():
    clean = plan(Settings(method="fedrap", data="ml-1m"), RANKING)
    assert not clean.notes and not clean.settings["released"]
    assert (clean.settings["server"], clean.settings["own_start"]) == ("adagrad", 0.0)
    released = plan(Settings(method="fedrap", set={"released": "true", "lr": "0.25"}), RANKING)
    published = plan(Settings(method="fedrap", protocol="published", set={"lr": "0.25"}), RANKING)
    assert released.settings == published.settings and released.rounds == published.rounds == 100
    for data, table_lr, notes in (("ml-100k", 200.0, 0), ("ml-1m", 1000.0, 0), ("mine.csv", 200.0, 1)):
        published = plan(Settings(method="fedrap", data=data, protocol="published"), RANKING)
        params, settings = published.model.init(torch.Generator()), published.settings
        start, released = published.method.init(params), build("fedrap", published.model, {}).init(params)
        assert all(torch.equal(a[name], b[name]) for a, b in zip(start, released) for name in a)
        assert (settings["server"], settings["server_lr"], settings["batch"]) == ("sgd", 1.0, 2048)
        assert (settings["passes"], settings["table_lr"], settings["own_rate"]) == (10, table_lr, 1.0)
        assert (published.rounds, published.patience, len(published.notes)) == (100, 0, notes)


@pytest.mark.parametrize(
    ("given", "unread"),
    [
        ({"mu": "0", "schedule": "sin"}, "schedule"), ({"mu": "0", "penalty": "l1"}, "penalty"),
        ({"lam": "0", "bound": "3"}, "bound"), ({"parts": "common", "own_rate": "2"}, "own_rate"),
        ({"parts": "own", "start": "2"}, "start"), ({"weight_decay": "0.01"}, "weight_decay"),
    ],
)  # fmt: skip
def test_settings_of_fedrap_that_would_change_nothing_are_refused(given, unread):
    with pytest.raises(SettingError, match=f"{unread} would change nothing here"):
        plan(Settings(method="fedrap", set=given), RANKING)


NO_OTHER_MODEL = {
    "fedbn",
    "fedeigen",
    "fedseq",
    "fedveil",
    "popularity",
    "centralised",
    "fcf",
    "fedals",
    "fedmf",
    "fedtrail",
}


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


def test_popularity_has_no_note_about_factors_that_it_has_not():
    notes = {name: plan(Settings(method=name), Facts("ranking", 23)).notes for name in ("popularity", "fedavg")}
    assert not any("k is" in note for note in notes["popularity"])
    assert "k is 23: the data have no more items." in notes["fedavg"]
