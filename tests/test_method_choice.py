"""`compare --methods auto`: candidates by task, the choice by validation and bytes, the budget."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedtaste.cli import compare_auto
from fedtaste.cli import run as run_command
from fedtaste.errors import SettingError
from fedtaste.experiment.method_choice import candidates, choose, require_budget
from fedtaste.experiment.result import MethodChoice, MethodTrial
from fedtaste.experiment.seeds import FinishedRun
from fedtaste.experiment.settings import Settings
from fedtaste.methods import METHODS
from fedtaste.report.comparison import compare_runs
from fedtaste.tasks.base import Facts
from support.command import WORLD, fedtaste, timeless
from support.reports import Page, make_result

TASKS = {
    "ranking": (
        Facts("ranking", items=50, timed=True),
        ["popularity", "fedals", "fedeigen", "fedtrail", "fedrecon", "fedmf", "fedseq"],
    ),
    "no time": (
        Facts("ranking", items=50, timed=False),
        ["popularity", "fedals", "fedeigen", "fedtrail", "fedrecon", "fedmf"],
    ),
    "many items": (Facts("ranking", items=30_000), ["popularity", "fedals", "fedeigen", "fedrecon", "fedmf"]),
    "ratings": (Facts("ratings", items=50), ["popularity", "fedals", "fedrecon", "fedmf"]),
    "labels": (Facts("labels", shape=(4,), classes=2), ["local", "fedavg", "ditto", "fedclup"]),
    "pictures": (Facts("labels", shape=(1, 8, 8), classes=2), ["local", "fedavg", "fedbn", "fedrep"]),
}


@pytest.mark.parametrize("name", TASKS)
def test_every_method_is_tried_or_has_a_reason_why_not(name):
    facts, expected = TASKS[name]
    tried, left_out = candidates(facts)
    assert list(tried) == expected
    assert tried.keys() | left_out.keys() == METHODS.keys() and not tried.keys() & left_out.keys()


def trial(method: str, valid: float, size: int) -> MethodTrial:
    flags = {"private": (), "trains_new_people": False, "secure": True, "page": True}
    return MethodTrial(method=method, why="", valid=valid, bytes_per_person=size, run=method, **flags)


@pytest.mark.parametrize(
    ("figures", "sign", "take", "says"),
    [
        (((0.2, 10), (0.49, 100), (0.5, 1200)), 1, "b", "c is 0.010 better on validation but sends 12 times the bytes"),
        (((0.2, 10), (0.4, 100), (0.5, 1200)), 1, "c", "No other method that was tried is better"),
        (((0.2, 10), (0.1, 100), (0.2, 5)), 1, "a", "no method that was tried is better on validation"),
        (((1.0, 10), (0.9, 100), (0.95, 20)), -1, "b", "rmse 0.900"),
    ],
)
def test_the_cheapest_of_those_that_keep_the_gain_is_taken(monkeypatch, figures, sign, take, says):
    trials = {name: trial(name, *pair) for name, pair in zip("abc", figures)}
    monkeypatch.setattr("fedtaste.experiment.method_choice._trial", lambda plan, result, metric: trials[result])
    task = SimpleNamespace(selection=("ndcg@10" if sign > 0 else "rmse", sign))
    choice = choose(SimpleNamespace(task=task, left_out={}), list("abc"), 5.0)
    assert choice.take == take and says in choice.sentence


def test_auto_advises_by_validation_and_stays_in_its_budget(tmp_path: Path, monkeypatch):
    seconds = {"popularity": 1.0, "fedals": 1.0, "fedtrail": 1.0}  # others would take an hour
    monkeypatch.setattr(compare_auto, "estimate_seconds", lambda p: seconds.get(p.settings.method, 3600.0))
    result = fedtaste("compare", *WORLD, "--methods", "auto", "--json", "--out", tmp_path / "auto").json
    choice = result["choice"]
    assert [t["method"] for t in choice["trials"]] == list(seconds) == [r["method"] for r in result["results"]]
    for tried, run in zip(choice["trials"], result["results"]):
        best = run["curve"][run["best_round"] - 1]
        assert tried["valid"] == round(best["valid"]["ndcg@10"], 6)
        sent = run["traffic"]["up_bytes"] + run["traffic"]["down_bytes"]
        assert tried["bytes_per_person"] == round(sent / run["members"])
    assert choice["take"] in seconds and choice["sentence"].startswith(f"Take {choice['take']}: ")
    assert "minutes are left" in choice["left_out"]["fedmf"] and result["left_out"] == choice["left_out"]
    assert result["tradeoff"]["advice"] == choice["sentence"]
    assert result["tradeoff"]["choice"].lower() == choice["take"]
    for _ in range(2):  # as it was written, and as `fedtaste report` writes it again
        text = " ".join(Page((tmp_path / "auto/report.html").read_text()).text.split())
        assert choice["sentence"] in text and "Choose " not in text
        fedtaste("report", tmp_path / "auto")
    again = fedtaste("resume", tmp_path / "auto", "--json")
    assert "had finished already" in again.err and timeless(again.json) == timeless(result)


def test_auto_that_was_interrupted_is_resumed_as_a_whole(tmp_path: Path, monkeypatch):
    """Candidates with a result are not trained again, what they took counts, and the choice is the same."""
    seconds = {"popularity": 1.0, "fedals": 1.0, "fedtrail": 1.0, "fedrecon": 12.5}  # others would take an hour
    monkeypatch.setattr(compare_auto, "estimate_seconds", lambda p: seconds.get(p.settings.method, 3600.0))
    command, train = ("compare", *WORLD, "--methods", "auto", "--minutes", 2), run_command.execute
    whole = fedtaste(*command, "--json", "--out", tmp_path / "whole").json

    def execute(prepared, *rest):
        if prepared.settings.method == "fedals":
            raise KeyboardInterrupt
        return train(prepared, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(run_command, "execute", execute)
        fedtaste(*command, "--out", tmp_path / "part").refused(f"go on with `fedtaste resume {tmp_path / 'part'}`")
    fedtaste(*command, "--out", tmp_path / "part").refused("holds an unfinished comparison")
    assert "have not finished" in fedtaste("report", tmp_path / "part").err
    begun = (tmp_path / "part/popularity/result.json").stat().st_mtime_ns
    resumed = fedtaste("resume", tmp_path / "part", "--json").json
    assert (tmp_path / "part/popularity/result.json").stat().st_mtime_ns == begun
    for comparison in (resumed, whole):
        for tried in comparison["choice"]["trials"]:
            tried["run"] = Path(tried["run"]).name
        for reasons in (comparison["left_out"], comparison["choice"]["left_out"]):
            for method, reason in reasons.items():  # how much of the time is left differs
                reasons[method] = re.sub(r"and .* of 2 minutes are left", "and too little is left", reason)
    assert timeless(resumed) == timeless(whole)

    edited = json.loads((tmp_path / "part/popularity/result.json").read_text())
    edited["seconds"]["train"] = 110.0  # of the 120 seconds that all candidates may take
    (tmp_path / "part/popularity/result.json").write_text(json.dumps(edited))
    (tmp_path / "part/compare.json").unlink()
    shutil.rmtree(tmp_path / "part/fedrecon")
    left = fedtaste("resume", tmp_path / "part", "--json").json["left_out"]["fedrecon"]
    assert "of 2 minutes are left" in left


def test_the_command_after_auto_reads_the_same_file(tmp_path: Path):
    typed = {"data": "my shop.csv", "columns": {"user": "kunde", "item": "artikel nr"}, "separator": ";",
             "decimal": ",", "drop_missing": True, "seed": 3, "protocol": "published"}  # fmt: skip
    command = compare_auto.command_of_fit(Settings(**typed), "fedtrail")
    words = ["fedtaste", "fit", "--data", "my shop.csv", "--columns", "user=kunde,item=artikel nr", "--separator", ";",
             "--decimal", ",", "--drop-missing", "--method", "fedtrail", "--seed", "3"]  # fmt: skip
    assert shlex.split(command) == words  # fit has no --protocol
    assert compare_auto.command_of_fit(Settings(), "fedals") == "fedtaste fit --data ml-100k --method fedals"


def test_the_report_of_auto_shows_its_choice_rather_than_the_best_validation():
    """The cheaper method is taken; the advice of the trade-off would be the other one."""
    runs = [make_result(method=m, seen={"sampled": {"ndcg@10": v}}, valid={"ndcg@10": v}, run=m)
            for m, v in (("fedtrail", 0.4), ("fedmf", 0.5))]  # fmt: skip
    compared = compare_runs([FinishedRun(r.method, Path(r.method), r, "") for r in runs])
    assert compared.tradeoff.choice == 1
    choice = MethodChoice(take="fedtrail", sentence="Take it.", metric="ndcg@10", minutes=1.0, trials=(), left_out={})
    advised = compared.advised(choice)
    assert (advised.tradeoff.choice, advised.tradeoff.advice) == (0, "Take it.")
    assert advised.study.reference == "FedTrail"


def test_a_budget_too_small_for_the_least_comparison_is_refused(tmp_path: Path):
    with pytest.raises(SettingError, match=r"--minutes 0.5 is too little for popularity and fedals"):
        require_budget({"popularity": 10.0, "fedals": 30.0}, 0.5)
    require_budget({"popularity": 10.0, "fedals": 20.0}, 0.5)
    refused = fedtaste("compare", *WORLD, "--methods", "auto", "--minutes", "1e-9", "--out", tmp_path / "auto")
    refused.refused("--minutes 1e-09 is too little for popularity and fedals", "Give at least --minutes")
    assert not (tmp_path / "auto").exists()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--methods", "auto", "--wire", "clip=1,noise=1"), "--methods popularity,fedveil"),
        (("--methods", "auto", "--protocol", "published"), "--protocol published chooses the round on the test data"),
        (("--methods", "auto", "--set", "k=8"), "--set does not go with --methods auto"),
        (("--methods", "fedals", "--minutes", "3"), "--minutes is the budget of --methods auto"),
        (("--methods", "auto", "--minutes", "0"), "minutes"),
    ],
)
def test_options_that_auto_cannot_use_are_refused(tmp_path: Path, options, says):
    fedtaste("compare", *WORLD, *options, "--out", tmp_path / "auto").refused(says)
