"""A new method needs one function and one entry in METHODS: then all laws and all commands work with it.

No other file knows the toy method. It has no defaults and no unread settings, only its signature.
"""

from __future__ import annotations

import pytest

from fedtaste.core import Download, Examples, Method, Model, Params, Upload
from fedtaste.errors import SettingError
from fedtaste.experiment.plan import plan
from fedtaste.experiment.settings import Settings
from fedtaste.methods import METHODS, build
from fedtaste.methods.descent import change, descend
from fedtaste.params import select, split
from fedtaste.signature import Count, NonNegative
from fedtaste.tasks.base import Facts
from support.command import fedtaste
from support.flower_worlds import federation_in_process, serve_to_the_end
from support.laws import (
    FEDERATED_LAWS,
    LAWS,
    Row,
    row_changes_every_setting_that_the_method_reads,
    setting_changes_the_result,
)
from support.worlds import ITEMS, model_of

DATA = "synthetic:60x40x900"
ROW = Row("toy", {"lr": 0.1}, ["ranking", "ratings"], {"lr": 0.2, "turns": 2, "decay": 0.5})


def toy(model: Model, *, lr: NonNegative = 1.0, turns: Count = 1, decay: NonNegative = 0.0) -> Method:
    """`turns` epochs of SGD at rate `lr`; the private part shrinks by `decay` after each round."""

    def client(download: Download, own: Params, examples: Examples) -> tuple[Upload, Params]:
        params = descend(model, download.params | own, examples, lr, [*download.params, *own], turns)
        private = {name: value * (1 - decay) for name, value in select(params, own).items()}
        return change(params, download.params, examples.mask.sum()), private

    return Method(lambda params: split(params, model.private), client, rows=model.rows)


@pytest.fixture(autouse=True)
def registered_toy(monkeypatch):
    monkeypatch.setitem(METHODS, "toy", toy)


@pytest.mark.parametrize("task", ROW.tasks)
@pytest.mark.parametrize("law", [*LAWS, *FEDERATED_LAWS], ids=lambda law: law.__name__)
def test_a_new_method_obeys_every_law(law, task, tmp_path):
    law(ROW, task, tmp_path)


def test_every_setting_is_in_its_row_and_changes_the_result():
    row_changes_every_setting_that_the_method_reads(ROW)
    for key in ROW.others:
        setting_changes_the_result(ROW, key)


def test_the_settings_of_a_new_method_come_from_its_signature():
    ranking = Facts("ranking", ITEMS)
    settings = plan(Settings(method="toy", set={"turns": "2"}), ranking).settings
    assert settings["turns"] == 2 and settings["decay"] == 0.0
    assert settings["lr"] == 10.0 and settings["server"] == "adagrad"  # defaults of the task, not of the method
    for text, match in (("turns=0", "turns must be at least 1"), ("tuns=2", 'Did you mean "turns"')):
        name, _, value = text.partition("=")
        with pytest.raises(SettingError, match=match):
            plan(Settings(method="toy", set={name: value}), ranking)
    with pytest.raises(SettingError, match="decay"):
        build("toy", model_of("ranking", {}), {"decay": -1.0})


def test_a_new_method_can_be_run_and_compared(tmp_path):
    options = ("--data", DATA, "--rounds", "2", "--json", "--set", "lr=1")
    result = fedtaste("run", *options, "--method", "toy", "--out", tmp_path / "run").json
    assert result["method"] == "toy" and result["settings"]["turns"] == 1
    assert 0 < result["seen"]["sampled"]["hr@10"] <= 1
    comparison = fedtaste("compare", *options, "--methods", "toy,fedavg", "--out", tmp_path / "both").json
    assert [row["method"] for row in comparison["results"]] == ["toy", "fedavg"]


def test_a_new_method_gives_the_same_metrics_over_flower(tmp_path):
    folder, grid = federation_in_process(tmp_path / "run", data=DATA, method="toy", rounds=2, set={"lr": "1"})
    result = serve_to_the_end(folder, grid)
    options = ("--data", DATA, "--method", "toy", "--rounds", "2", "--set", "lr=1", "--json")
    simulation = fedtaste("run", *options, "--out", tmp_path / "simulation").json
    assert result["seen"]["sampled"] == pytest.approx(simulation["seen"]["sampled"], abs=1e-6)


def test_a_new_method_can_be_audited(tmp_path):
    options = ("--data", DATA, "--method", "toy", "--set", "lr=1", "--json")
    result = fedtaste("audit", *options, "--out", tmp_path / "audit").json
    assert result["method"] == "toy" and 0 <= result["f1"] <= 1 and result["sends"]
