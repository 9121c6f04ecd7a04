"""`fedtaste tune`: trials on validation data, pruned and resumed; what is refused; run.toml, run --tune, the report."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import numpy as np
import pytest

from fedtaste import Recommender, __version__, load
from fedtaste.errors import DivergedError, SettingError
from fedtaste.evaluation.protocol import RankingMetrics
from fedtaste.experiment.folder import RunFolder
from fedtaste.experiment.optuna_study import JOURNAL, Pruned, TrialQueue, remove_half_line
from fedtaste.experiment.progress import Silent
from fedtaste.experiment.scores import PersonScores, save_scores
from fedtaste.experiment.settings import Settings
from fedtaste.experiment.train import Training, prepare
from fedtaste.experiment.tune import (
    begin_study,
    best_settings,
    choose,
    gain_over_defaults,
    prepare_tuning,
    scores_of,
    tune,
)
from fedtaste.experiment.tune_result import StudyHeader, TuneResult, TuneTrial
from fedtaste.methods import METHODS
from fedtaste.methods.search_space import Around, Choice, LogRange, Range, parse_space, resolve
from fedtaste.tasks.ranking import Ranking
from support.command import fedtaste

DATA = "synthetic:60x50x900"
WORLD = ("--data", DATA, "--rounds", "3", "--threads", "1")
QUICK = (*WORLD, "--set", "k=4", "--json")
TUNED = ["fedals", "fedtrail", "fedrecon", "fedmf", "fedrap", "pfedrec", "fedavg", "fedprox", "ditto", "fedclup", "fcf"]
TUNED += ["fedveil"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def data():
    return load(DATA)


@pytest.fixture(scope="module")
def small_plan(data):
    """fedals with k = 4 and three rounds; lam, alpha0 and recency are searched."""
    settings = Settings(data=DATA, method="fedals", set={"k": "4"}, rounds=3, threads=1)
    return prepare_tuning(settings, data, {})


def search(plan, path: str, trials: int, listener=None) -> TuneResult:
    header = StudyHeader(space=plan.words(), own_space={}, trials=trials, minutes=None, final=None)
    return tune(plan, begin_study(Path(path), plan, header, __version__), listener or Silent())


def figures(trials: tuple[TuneTrial, ...]) -> list[dict]:
    """Everything about trials but their times."""
    return [trial.model_dump(exclude={"seconds"}) for trial in trials]


# Search spaces


@pytest.mark.parametrize("method", METHODS)
def test_the_default_space_of_a_method_holds_its_defaults(method, data):
    settings = Settings(data=DATA, method=method, threads=1)
    if method in ("popularity", "fedbn"):
        with pytest.raises(SettingError, match="nothing to tune|batch norm"):
            prepare_tuning(settings, data, {})
        return
    plan = prepare_tuning(settings, data, {})
    assert all(plan.defaults[name] in space for name, space in plan.space.items())
    assert plan.defaults == {name: prepare(settings, data).plan.settings[name] for name in plan.space}
    assert len(plan.space) >= (3 if method in TUNED else 1)


def test_a_space_follows_the_default_and_stays_within_limits():
    assert resolve(Around(10), 0.3) == LogRange(0.03, 3.0)
    assert resolve(Around(4), 10) == LogRange(3, 40)  # whole numbers
    assert resolve(Around(10), 0.0) is None and resolve(Around(10), "auto") is None
    assert resolve(LogRange(16, 64), 32, most=20) == LogRange(16, 20)
    assert resolve(Range(0.5, 0.8), 0.9) == Range(0.5, 0.9)
    assert resolve(Choice(("a", "b")), "c") == Choice(("c", "a", "b"))
    assert parse_space("lam", "0.001..0.1") == LogRange(0.001, 0.1)
    assert parse_space("mix", "0..1") == Range(0, 1)


def test_data_without_time_have_no_recency_to_tune(data):
    from dataclasses import replace

    plan = prepare_tuning(Settings(data=DATA, threads=1), replace(data, time=None), {})
    assert sorted(plan.space) == ["alpha0", "k", "lam"]


# Trials


def test_trial_0_is_the_search_of_a_run_with_the_defaults(small_plan):
    result = search(small_plan, "study", 2)
    run = fedtaste("run", *QUICK, "--out", "run").json
    best = max(point["valid"]["ndcg@10"] for point in run["curve"])
    first = result.trials[0]
    assert (first.settings, first.valid, first.best_round) == ({}, best, run["best_round"])
    assert result.valid_of_defaults == best
    assert (first.up_bytes, first.rounds) == (run["curve"][-1]["up_bytes"], 3)
    other = result.trials[1]
    chosen = [option for name, value in other.settings.items() for option in ("--set", f"{name}={value}")]
    again = fedtaste("run", *QUICK, *chosen, "--out", "other").json
    assert other.valid == max(point["valid"]["ndcg@10"] for point in again["curve"])


def test_trials_do_not_read_the_test_data(small_plan, monkeypatch):
    monkeypatch.setattr(Ranking, "evaluate", lambda *_: pytest.fail("test data were read"))
    assert len(search(small_plan, "study", 3).trials) == 3


def test_the_best_complete_trial_is_chosen_and_costs_add_up(small_plan):
    result = search(small_plan, "study", 10)
    complete = [trial.valid for trial in result.trials if trial.state == "complete"]
    assert result.valid == max(complete) == result.trials[result.best].valid > result.valid_of_defaults
    assert result.cost.rounds == sum(trial.rounds for trial in result.trials)
    assert result.cost.up_bytes == sum(trial.up_bytes for trial in result.trials) > 0
    assert result.settings == result.defaults | result.trials[result.best].settings
    assert set(result.importances) == set(result.space)
    assert sum(result.importances.values()) == pytest.approx(1, abs=0.001)


class StopAfter:
    """A progress listener that interrupts a study when so many trials have ended."""

    def __init__(self, trials: int) -> None:
        self.trials = trials

    def phase(self, name: str, rounds: int, done: int) -> None: ...

    def round(self, number: int, metrics: dict[str, float] | None) -> None:
        if number == self.trials:
            raise KeyboardInterrupt


def test_the_same_seed_gives_the_same_trials_also_when_interrupted(small_plan, monkeypatch):
    whole = search(small_plan, "whole", 11)
    with pytest.raises(KeyboardInterrupt):
        search(small_plan, "parts", 11, StopAfter(3))
    train = Training.search
    with monkeypatch.context() as patch:  # interrupted within a trial, after its settings were drawn
        patch.setattr(Training, "search", lambda training: (train(training), (_ for _ in ()).throw(KeyboardInterrupt)))
        with pytest.raises(KeyboardInterrupt):
            search(small_plan, "parts", 11)
    with Path("parts", JOURNAL).open("ab") as journal:
        journal.write(b'{"op_code":6,"wor')  # a line that was half written
    assert figures(search(small_plan, "parts", 11).trials) == figures(whole.trials)
    more = search(small_plan, "whole", 12)  # a finished study can be continued
    assert figures(more.trials)[:11] == figures(whole.trials) and len(more.trials) == 12


def test_a_killed_study_loses_no_trial(small_plan):
    options = ("tune", *QUICK, "--trials", "400", "--jobs", "2", "--out", "study")
    process = subprocess.Popen([sys.executable, "-m", "fedtaste", *options], stdout=subprocess.DEVNULL)
    journal = Path("study", JOURNAL)
    try:
        until = time.monotonic() + 300  # a busy machine starts processes slowly
        while not journal.exists() or journal.read_bytes().count(b'"record"') < 4:
            assert process.poll() is None and time.monotonic() < until
            time.sleep(0.05)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    size = -1
    while size != (size := journal.stat().st_size):  # the processes that it started end, too
        time.sleep(0.7)
    queue = small_plan.queue(RunFolder(Path("study")))
    before = queue.finished()
    assert len(before) >= 4
    result = search(small_plan, "study", len(before) + 3)
    assert [trial.number for trial in result.trials] == list(range(len(before) + 3))
    after = [{k: v for k, v in trial.items() if k != "number"} for trial in figures(result.trials)]
    assert all({k: v for k, v in trial.items() if k != "number"} in after for trial in figures(before))
    assert fedtaste("resume", "study", "--json").json["trials"] == result.dump()["trials"]


def test_a_trial_that_is_worse_than_the_median_is_pruned_but_never_the_defaults(tmp_path):
    queue = TrialQueue(tmp_path, {"lam": Range(0.0, 1.0)}, {"lam": 0.5}, seed=0, rounds=6)
    queue.recover()
    record = TuneTrial(
        number=0, settings={}, state="complete", valid=1.0, best_round=1, rounds=6, up_bytes=0, down_bytes=0, seconds=0
    )
    for score in (0.0, 1.0, 1.0, 1.0, 1.0):
        trial = queue.next_trial(9)
        for number in range(1, 7):
            trial.report(number, score)  # the defaults are the worst
        queue.finish(trial, record, score)
    trial = queue.next_trial(9)
    trial.report(1, 0.5)  # too early to tell
    trial.report(6, 0.5)  # nothing is left to save
    with pytest.raises(Pruned):
        trial.report(4, 0.5)
    assert queue.next_trial(6) is None  # six have been begun


def test_a_trial_that_diverges_fails_and_the_study_goes_on(small_plan, monkeypatch):
    train, calls = Training.search, []

    def diverge(training):
        calls.append(training)
        if len(calls) == 2:
            raise DivergedError("round 1 is not finite")
        return train(training)

    monkeypatch.setattr(Training, "search", diverge)
    result = search(small_plan, "study", 4)
    assert [trial.state for trial in result.trials] == ["complete", "failed", "complete", "complete"]
    assert result.trials[1].valid is None and result.trials[1].reason == "round 1 is not finite"


def test_settings_that_were_tried_already_are_not_trained_again(data):
    settings = Settings(data=DATA, method="fedals", set={"k": "4", "lam": "0.01", "alpha0": "0.3"}, rounds=2, threads=1)
    plan = prepare_tuning(settings, data, {"recency": "0.5,1.0"})
    result = search(plan, "study", 8)
    assert sum(trial.rounds > 0 for trial in result.trials) <= 3  # the defaults, 0.5 and 1.0
    assert {trial.settings.get("recency") for trial in result.trials} == {None, 0.5, 1.0}


def test_a_method_whose_rounds_are_fixed_is_judged_by_its_last_round(data):
    plan = prepare_tuning(Settings(data=DATA, method="fedveil", threads=1), data, {})
    result = search(plan, "study", 2)
    assert [trial.best_round for trial in result.trials] == [trial.rounds for trial in result.trials]


def test_a_half_written_line_is_removed(tmp_path):
    journal = tmp_path / JOURNAL
    journal.write_bytes(b'{"a":1}\n{"b"')
    remove_half_line(journal)
    assert journal.read_bytes() == b'{"a":1}\n'


# Commands


def test_tune_writes_a_study_whose_best_settings_run_reads():
    options = (*QUICK, "--space", "lam=0.001..0.5", "--trials", "6")
    result = fedtaste("tune", *options, "--final", "--out", "study").json
    content = tomllib.loads(Path("study/run.toml").read_text())
    assert content["method"] == "fedals" and content["rounds"] == 3
    best = result["trials"][result["best"]]["settings"]
    assert content["set"] == {"k": "4"} | {name: str(value) for name, value in best.items()}
    final = json.loads(Path("study/final/result.json").read_text())
    run = fedtaste("run", "--config", "study/run.toml", "--json", "--out", "run").json
    assert {name: run["settings"][name] for name in result["settings"]} == result["settings"]
    assert (run["seen"], run["traffic"]) == (final["seen"], final["traffic"])
    assert final["tuning"]["cost"] == result["cost"] and "tuning" not in run
    assert any("6 trials on validation data" in note for note in final["notes"])
    assert Path("study/report.html").exists() and result["final"] == str(Path("study/final").resolve())
    fitted = fedtaste("fit", "--config", "study/run.toml", "--json", "--out", "model").json
    assert {name: fitted["settings"][name] for name in result["settings"]} == result["settings"]
    fedtaste("recommend", "study", "--likes", "x").refused("study")
    assert fedtaste("report", "study").code == 0


def test_run_with_tune_states_the_cost_of_the_search_apart_from_its_traffic():
    run = fedtaste("run", *QUICK, "--tune", "3", "--out", "run").json
    study = RunFolder(Path("run-study")).tune_result()
    assert run["tuning"]["cost"]["rounds"] == study.cost.rounds == sum(trial.rounds for trial in study.trials)
    assert run["tuning"]["settings"] == (study.settings if study.best else {})
    plain = fedtaste("run", "--config", "run-study/run.toml", "--json", "--out", "plain").json
    assert run["traffic"] == plain["traffic"] and run["traffic"]["up_bytes"] < study.cost.up_bytes
    assert any(str(study.cost.up_bytes) in note.replace(",", "") for note in run["notes"])
    again = fedtaste("resume", "run-study", "--json").json
    assert again["trials"] == study.dump()["trials"]
    fedtaste("run", *QUICK, "--tune", "3", "--out", "run").refused("holds a run already")


def test_the_table_shows_defaults_and_best_settings():
    shown = fedtaste("tune", *WORLD, "--set", "k=4", "--trials", "2", "--out", "study")
    assert shown.code == 0
    for words in ("setting", "default", "best", "alpha0", "Validation ndcg@10", "The search took 6 rounds", "run.toml"):
        assert words in shown.out


def test_ctrl_c_says_how_to_go_on(monkeypatch):
    def interrupt(training):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Training, "search", interrupt)
        fedtaste("tune", *QUICK, "--trials", "2", "--out", "study").refused("Stopped", "`fedtaste resume study`")
    assert fedtaste("resume", "study", "--json").json["cost"]["trials"] == 2


WRONG = {
    "unknown setting": (["--space", "lamm=0.1..1"], '"lamm" is not a setting', 'Did you mean "lam"?'),
    "changes nothing": (["--space", "loss=bce,squared"], "loss would change nothing"),
    "another method's": (["--space", "mu=0.1..1"], '"mu" is not a setting'),
    "an option": (["--space", "rounds=1..5"], '"rounds" is not a setting', "--rounds"),
    "fixed and searched": (["--space", "k=4,8"], "--set k", "--space k"),
    "no range": (["--space", "lam=1"], "--space lam", "0.001..0.1", "--set"),
    "a range in words": (["--space", "lam=low..high"], "--space lam", "two numbers"),
    "a range backwards": (["--space", "lam=1..0.1"], "smaller number", "1..0.1"),
    "beyond the bounds": (["--space", "recency=0.5..2"], "recency must be from 0 to 1, got 2"),
    "words in a range": (["--space", "model=1..2"], "model"),
    "no pair": (["--space", "lam"], "--space must be key=value", "lam=0.001..0.1"),
    "no trials": (["--trials", "0"], "--trials", "at least 1, got 0"),
    "no minutes": (["--minutes", "0"], "--minutes", "above 0"),
    "nothing to tune": (["--method", "popularity"], "popularity has nothing to tune", "--space"),
    "published": (["--protocol", "published"], "--protocol published", "test data"),
    "epsilon": (["--epsilon", "3", "--method", "fedmf"], "cannot be tuned with noise", "public data"),
    "noise": (["--wire", "clip=1,noise=1", "--method", "fedmf"], "cannot be tuned with noise"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_options_are_refused_and_no_file_is_written(case):
    args, *parts = WRONG[case]
    options = [option for option in QUICK if "--method" not in args or option not in ("--set", "k=4")]
    fedtaste("tune", *options, *args).refused(*parts)
    assert not any(Path().iterdir())


def test_too_few_minutes_for_one_trial_are_refused():
    fedtaste("tune", *QUICK, "--minutes", "0.00001", "--out", "study").refused("too short for one trial", "at least")
    assert fedtaste("tune", *QUICK, "--minutes", "9", "--trials", "1", "--out", "study").json["cost"]["trials"] == 1


def test_a_study_is_not_continued_with_other_data_or_settings():
    rows = [f"u{u},i{(u * 7 + j * 5) % 12},{u * 10 + j}" for u in range(12) for j in range(5)]
    Path("a.csv").write_text("\n".join(["user,item,timestamp", *rows]) + "\n")
    options = ("--rounds", "2", "--threads", "1", "--set", "k=4", "--trials", "1", "--json", "--out", "study")
    assert fedtaste("tune", "--data", "a.csv", *options).code == 0
    fedtaste("tune", "--data", "a.csv", *options, "--seed", "1").refused("other values of seed", "fedtaste resume")
    fedtaste("tune", "--data", "a.csv", *options, "--method", "fedtrail").refused("other values of", "method")
    fedtaste("tune", "--data", "a.csv", *options, "--space", "lam=0.1..0.2").refused("other values of space")
    Path("a.csv").write_text("\n".join(["user,item,timestamp", *rows[:-1]]) + "\n")
    fedtaste("tune", "--data", "a.csv", *options).refused("data have changed")
    fedtaste("resume", "study").refused("data have changed")


def test_a_damaged_journal_is_refused():
    assert fedtaste("tune", *QUICK, "--trials", "1", "--out", "study").code == 0
    Path("study", JOURNAL).write_text("no json\n" * 3)
    fedtaste("resume", "study").refused(JOURNAL, "damaged")


def test_settings_that_were_tuned_without_noise_have_no_epsilon_on_the_same_people(data):
    options = ("--data", DATA, "--method", "fedmf", "--rounds", "2", "--threads", "1", "--set", "k=4", "--json")
    assert fedtaste("tune", *options, "--trials", "1", "--out", "study").code == 0
    private = ("--config", "study/run.toml", "--epsilon", "5", "--wire", "clip=1", "--json")
    fedtaste("run", *private, "--out", "run").refused("without noise", "tuned_on", "public data")
    fedtaste("fit", *private, "--out", "model").refused("without noise")
    other = fedtaste("run", *private, "--data", "synthetic:60x50x901", "--out", "run", "--ledger", "ledger.json")
    assert other.json["privacy"]["epsilon"] == pytest.approx(5, rel=0.01)
    fedtaste("run", *options, "--tune", "3", "--epsilon", "5").refused("cannot be tuned with noise")


def test_without_optuna_the_error_names_the_extra(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "optuna" else find(name, *rest)
    )
    fedtaste("tune", *QUICK).refused("pip install 'fedtaste[tune]'")
    fedtaste("run", *QUICK, "--tune", "3").refused("pip install 'fedtaste[tune]'")
    with pytest.raises(SettingError, match="fedtaste\\[tune\\]"):
        Recommender("fedals").tune(DATA, trials=1, progress=False)


# The library


def test_a_recommender_keeps_the_settings_that_were_chosen(data, small_plan):
    model = Recommender("fedals", k=4, rounds=3, threads=1)
    assert model.tune(data, trials=6, progress=False) is model
    expected = search(small_plan, "study", 6)
    assert figures(model.tuning.trials) == figures(expected.trials) and model.tuning.study == ""
    fitted = model.fit(data, progress=False).result
    assert {name: fitted.settings[name] for name in expected.settings} == expected.settings


def test_a_recommender_searches_the_values_that_it_is_given_and_continues_a_study(data):
    settings = {"rounds": 2, "threads": 1, "lam": 0.01, "alpha0": 0.3}
    model = Recommender("fedals", **settings)
    model.tune(data, 3, space={"k": [4, 8], "recency": (0.5, 0.9)}, path="study", progress=False)
    assert model.tuning.space == {"k": "4, 8", "recency": "0.5..0.9"} and Path("study/report.html").exists()
    assert all(trial.settings["k"] in (4, 8) for trial in model.tuning.trials[1:])
    first = figures(model.tuning.trials)
    again = Recommender("fedals", **settings)
    again.tune(data, 4, space={"k": [4, 8], "recency": (0.5, 0.9)}, path="study", progress=False)
    assert figures(again.tuning.trials)[:3] == first
    with pytest.raises(SettingError, match="at least 1, got 0"):
        Recommender("fedals").tune(data, trials=0)
    with pytest.raises(SettingError, match="cannot be tuned with noise"):
        Recommender("fedmf", epsilon=1.0, wire="clip=1").tune(data, trials=1)


def test_the_code_of_the_page_runs():
    text = (Path(__file__).parents[1] / "docs" / "tuning.md").read_text("utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    exec(compile(block, "docs/tuning.md", "exec"), {})


def test_the_best_settings_are_those_of_the_best_trial(small_plan):
    result = search(small_plan, "study", 6)
    settings = best_settings(small_plan, result)
    chosen = {name: float(settings.set[name]) for name in result.trials[result.best].settings}
    assert chosen == result.trials[result.best].settings and settings.tuned_on


def keep_scores(number, scores):
    """Store the validation scores of a trial as the study does; returns the trial."""
    path = scores_of(RunFolder(Path()), number)
    path.mkdir(parents=True)
    save_scores(path, {"seen": (np.arange(len(scores)), RankingMetrics({"ndcg@10": scores.tolist()}))})
    return TuneTrial(
        number=number, settings={"lam": 0.1} if number else {}, state="complete", valid=float(scores.mean()),
        best_round=1, rounds=1, up_bytes=0, down_bytes=0, seconds=0.0,
    )  # fmt: skip


def test_the_defaults_are_kept_unless_a_trial_is_better_by_more_than_the_standard_error(small_plan):
    """Both trials are .01 better; people's differences have standard deviations of .3 and .03, so standard errors of
    .03 and .003."""
    draws = np.random.default_rng(0)
    defaults, spread = draws.random(100), draws.normal(size=100)
    spread = (spread - spread.mean()) / spread.std()
    first = keep_scores(0, defaults)
    unsure = keep_scores(1, defaults + 0.01 + 0.3 * spread)
    sure = keep_scores(2, defaults + 0.01 + 0.03 * spread)
    folder = RunFolder(Path())
    assert gain_over_defaults(folder, 1, "ndcg@10") == pytest.approx((0.01, 0.03), rel=0.1)
    chosen, (note,) = choose(small_plan, folder, [first, unsure])
    assert chosen is first and "the defaults are kept" in note
    assert choose(small_plan, folder, [first, sure]) == (sure, ())


def test_the_scores_of_a_trial_are_those_of_its_best_round(small_plan):
    result = search(small_plan, "study", 2)
    for trial in result.trials:
        scores = PersonScores.read(scores_of(RunFolder(Path("study")), trial.number))
        assert scores.columns["seen.sampled.ndcg@10"].mean() == pytest.approx(trial.valid)
