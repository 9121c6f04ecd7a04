"""Clients with features, from data to result: who learns from what, what is judged and counted; and the command."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fedtaste.data.generated import least_squares, logistic
from fedtaste.engine.checkpoint import load_params, same_bytes
from fedtaste.engine.run import run
from fedtaste.experiment.folder import RunFolder
from fedtaste.experiment.heterogeneity import heterogeneity
from fedtaste.experiment.settings import Settings
from fedtaste.experiment.train import execute, prepare
from fedtaste.federation import of_arrays
from fedtaste.methods import METHODS, build
from fedtaste.models import logistic as softmax
from fedtaste.tasks.base import Sampling, Served
from fedtaste.tasks.clients import Clients, _search_mask, predict
from support.command import CONTRACT, fedtaste

pytestmark = pytest.mark.usefixtures("here")

DATA = logistic(clients=4, examples=43, seed=3)
PASSING = ("seconds", "peak_rss_mb", "run")


def ran(data, path, method="fedavg", rounds=3, **settings):
    """(result, everything of the final state by name)."""
    asked = Settings(data=data.name, method=method, rounds=rounds, set={n: str(v) for n, v in settings.items()})
    result = execute(prepare(asked, data), RunFolder.create(Path(path), asked.model_dump(), data, "0"))
    return result, load_params(Path(path) / "final.safetensors")[0]


def shares(weights, inputs, targets):
    """The share of right answers of each client's weights [classes, d], in plain numpy."""
    return [float(np.mean((x.astype(float) @ w.T).argmax(1) == y)) for w, x, y in zip(weights, inputs, targets)]


# Who learns from what


@pytest.mark.parametrize("examples", [1, 4, 5, 43, 200])
def test_four_fifths_are_learnt_from_and_the_rest_chooses(examples):
    kept = _search_mask(examples, 2, seed=5)
    assert (~kept).sum() == examples // 5
    assert (kept == _search_mask(examples, 2, seed=5)).all()
    if examples > 40:
        assert (kept != _search_mask(examples, 3, seed=5)).any() and (kept != _search_mask(examples, 2, seed=6)).any()


def test_the_search_learns_from_the_kept_and_is_judged_on_the_others():
    task, model = Clients(DATA, seed=5), softmax(10, 2)
    method = METHODS["fedavg"](model, lr=0.5)
    kept = [_search_mask(len(y), client, 5) for client, y in enumerate(DATA.targets)]
    search = task.federation("search", method, Sampling(), None)
    for client in range(4):
        one = search.examples(np.array([client]), 0, "samples")
        assert (one.inputs == DATA.features[client][kept[client]]).all()
        assert (one.targets == DATA.targets[client][kept[client]]).all()
        final = task.federation("final", method, Sampling(), None).examples(np.array([client]), 0, "samples")
        assert (final.inputs == DATA.features[client]).all()
    state = list(run(method, model, search, rounds=3))[-1].state
    rest = [[x[~k] for x, k in zip(part, kept)] for part in (DATA.features, DATA.targets)]
    expected = np.mean(shares([state.shared["weight"].numpy()] * 4, *rest))
    assert task.validation(Served(method, model, state)).exact()["accuracy"] == pytest.approx(expected, abs=1e-6)


def test_the_test_examples_change_nothing_but_the_judgement(tmp_path):
    poisoned = replace(
        DATA, test_features=tuple(9 - 3 * x for x in DATA.test_features),
        test_targets=tuple(1 - y for y in DATA.test_targets),
    )  # fmt: skip
    (clean, one), (spoilt, two) = (ran(d, tmp_path / n, "ditto") for d, n in ((DATA, "a"), (poisoned, "b")))
    assert same_bytes(one, two) and clean.curve == spoilt.curve and clean.best_round == spoilt.best_round
    assert clean.metric("seen.accuracy") != spoilt.metric("seen.accuracy")


# What is judged


@pytest.mark.parametrize("method, settings", [("fedavg", {}), ("fedclup", {"lam": 0.3}), ("ditto", {"lam": 0.3})])
def test_personal_and_global_accuracy_by_hand(method, settings, tmp_path):
    result, state = ran(DATA, tmp_path / "run", method, **settings)
    everybody = [state["shared.weight"].numpy()] * 4
    mine = everybody if method == "fedavg" else state["private.stacked.own.weight"].numpy()
    personal, common = (shares(weights, DATA.test_features, DATA.test_targets) for weights in (mine, everybody))
    assert result.metric("seen.accuracy") == pytest.approx(np.mean(personal), abs=1e-6)
    assert result.metric("seen.global_accuracy") == pytest.approx(np.mean(common), abs=1e-6)
    assert [row.accuracy for row in result.by_client] == pytest.approx(personal, abs=1e-6)
    assert [row.global_accuracy for row in result.by_client] == pytest.approx(common, abs=1e-6)
    assert (method == "fedavg") == np.allclose(mine, everybody, atol=1e-3)
    scores = [x @ w.T for x, w in zip(DATA.test_features, mine)]
    odds = [np.log(np.exp(s).sum(1)) - s[np.arange(len(s)), y.astype(int)] for s, y in zip(scores, DATA.test_targets)]
    assert result.metric("seen.loss") == pytest.approx(np.mean([o.mean() for o in odds]), abs=1e-5)
    for name, (low, high) in result.intervals.seen.items():
        assert 0 <= low < result.metric(f"seen.{name}") <= high <= 1 and high - low < 0.3


def test_intervals_narrow_with_more_test_examples(tmp_path):
    few = replace(DATA, test_features=tuple(x[:8] for x in DATA.test_features),
                  test_targets=tuple(y[:8] for y in DATA.test_targets))  # fmt: skip
    wide, narrow = (ran(d, tmp_path / n)[0].interval("seen.accuracy") for d, n in ((few, "a"), (DATA, "b")))
    assert wide[1] - wide[0] > 1.5 * (narrow[1] - narrow[0])


def test_clients_of_one_class_are_told_at_once_by_a_model_of_their_own(tmp_path):
    ones = tuple(np.full_like(y, client % 2) for client, y in enumerate(DATA.targets))
    x = tuple(np.abs(x) + 1 for x in DATA.features)
    data = replace(DATA, features=x, targets=ones, test_features=x, test_targets=ones, truth=None, scales=None)
    assert ran(data, tmp_path / "a", "local")[0].metric("seen.accuracy") == 1
    assert ran(data, tmp_path / "b", "fedavg")[0].metric("seen.accuracy") < 0.8


@pytest.mark.parametrize("method, settings", [("fedavg", {}), ("fedclup", {"lam": 0.3}), ("local", {})])
def test_distances_from_the_truth_by_hand(method, settings, tmp_path):
    data = least_squares(clients=5, examples=20, features=3, seed=1)
    result, state = ran(data, tmp_path / "run", method, **settings)
    name = {"fedclup": "private.stacked.own.weight", "local": "private.stacked.weight"}.get(method)
    mine = [state["shared.weight"].numpy()] * 5 if name is None else state[name].numpy()
    gaps = np.linalg.norm(mine - data.truth, axis=1)
    assert result.metric("seen.personal_error") == pytest.approx(gaps.mean(), rel=1e-5)
    errors = np.concatenate([x @ w - y for x, w, y in zip(data.test_features, mine, data.test_targets)])
    assert result.metric("seen.rmse") == pytest.approx(np.sqrt(np.mean(errors**2)), rel=1e-4)
    if method == "local":
        assert result.metric("seen.global_error") is None
    else:
        gap = np.linalg.norm(state["shared.weight"].numpy() - data.truth.mean(0))
        assert result.metric("seen.global_error") == pytest.approx(gap, rel=1e-5)


def test_weights_of_scaled_features_are_compared_in_the_units_of_the_truth(tmp_path):
    result, state = ran(DATA, tmp_path / "run", "local", lr=0.5)
    mine = state["private.stacked.weight"].numpy() / np.stack(DATA.scales)[:, None]
    gaps = np.linalg.norm((mine - DATA.truth).reshape(4, -1), axis=1)
    assert result.metric("seen.personal_error") == pytest.approx(gaps.mean(), rel=1e-5)


@pytest.mark.parametrize("method", ["fedavg", "fedclup", "ditto", "apfl", "lgmix"])
def test_a_client_without_examples_is_served_the_shared_model(method, tmp_path):
    x, y = DATA.features, DATA.targets
    data = replace(DATA, features=(*x[:3], x[3][:0]), targets=(*y[:3], y[3][:0]), truth=None, scales=None)
    result, state = ran(data, tmp_path / "run", method)
    assert any("1 client has no examples and cannot take part in training: 3." in note for note in result.notes)
    last = result.by_client[3]
    expected = shares([state["shared.weight"].numpy()], DATA.test_features[3:], DATA.test_targets[3:])[0]
    assert last.accuracy == last.global_accuracy == pytest.approx(expected, abs=1e-6)
    assert last.examples == 0 and all(torch.isfinite(v).all() for v in state.values())


def test_prediction_does_not_depend_on_who_is_asked_beside():
    model = softmax(10, 2)
    method = build("fedclup", model, {"lam": 0.3})
    home = (DATA.features, DATA.targets)
    inputs = tuple(x[: 3 + 9 * i] for i, x in enumerate(DATA.test_features))
    state = list(run(method, model, of_arrays(*home), rounds=2))[-1].state
    ask = lambda people: predict(Served(method, model, state), people, home, inputs)
    together, apart = ask(np.array([2, 0, 3])), [ask(np.array([person]))[0] for person in (2, 0, 3)]
    assert [len(out) for out in together] == [21, 3, 30]
    assert all(np.allclose(one, two, atol=1e-6) for one, two in zip(together, apart))


# What is counted


@pytest.mark.parametrize(
    "method, settings, each",
    [
        ("fedavg", {"passes": 3}, 3),
        ("fedavg", {"passes": 3, "batch": 8}, 3),
        ("local", {"passes": 2}, 2),
        ("fedclup", {"lam": 0.3, "lr": 0.1, "rate": 1.0, "passes": 4}, 4),
        ("ditto", {"passes": 2, "own_passes": 5}, 7),
        ("pfedme", {"passes": 2, "turns": 3}, 6),
        ("apfl", {"passes": 2}, 4),
    ],
)
def test_gradients_are_counted(method, settings, each, tmp_path):
    result, _ = ran(DATA, tmp_path / "run", method, **settings)
    assert result.gradients.dump() == {"per_person_round": each, "total": each * result.rounds}
    assert [point.gradients for point in result.curve] == [each, 2 * each, 3 * each]


def test_measuring_the_curvature_costs_something_once(tmp_path):
    result, _ = ran(DATA, tmp_path / "run", "fedclup", lam=0.3, passes=4)
    first, second, third = (point.gradients for point in result.curve)
    assert third - second == second - first == result.gradients.per_person_round == 4
    assert first > 4


def test_the_same_seed_gives_the_same_result(tmp_path):
    one, two = (ran(DATA, tmp_path / name, "fedclup", batch=16)[0].dump() for name in "ab")
    for result in (one, two):
        for name in PASSING:
            del result[name]
    assert json.dumps(one, sort_keys=True) == json.dumps(two, sort_keys=True)


@pytest.mark.parametrize("spread", [3.0, 1.0])
def test_heterogeneity_is_what_was_planted(spread):
    found = heterogeneity(Clients(least_squares(spread=spread), seed=0))
    assert pytest.approx(spread, rel=0.25) == found.R and found.noise < found.R
    assert (found.n, found.clients) == (40, 50)


def test_heterogeneity_below_the_noise_is_told_as_such():
    """A fit of 10 numbers from 40 examples with noise 1 is off by about sqrt(10 / 40)."""
    found = heterogeneity(Clients(least_squares(spread=0.1), seed=0))
    assert found.R < found.noise == pytest.approx(0.5, rel=0.25)


def test_one_client_has_no_heterogeneity():
    data = logistic(clients=1)
    assert heterogeneity(Clients(data, seed=0)) is None


# The command

TINY = "logistic:clients=3,examples=30"
NEED_ITEMS = ["popularity", "fedveil", "fedals", "fedrap", "fedtrail", "fcf", "fedmf", "fedncf", "pfedrec"]


@pytest.mark.parametrize(
    "data, method, metrics",
    [
        (TINY, "fedclup", {"accuracy", "global_accuracy", "personal_error", "global_error"}),
        ("digits:clients=3", "apfl", {"accuracy", "loss"}),
        ("linear", "fedclup", {"rmse", "weights_error"}),
    ],
)
def test_json_of_data_with_features(data, method, metrics):
    result = fedtaste("run", "--data", data, "--method", method, "--rounds", 2, "--threads", 1, "--json").json
    assert result.keys() >= CONTRACT | {"gradients", "curve"} and result["seen"].keys() >= metrics
    assert result["new"] is None and result["gradients"]["total"] > 0 and result["traffic"]["up_bytes"] > 0


@pytest.mark.parametrize("method", NEED_ITEMS)
def test_methods_of_items_are_refused(method):
    said = fedtaste("run", "--data", TINY, "--method", method).refused(method)
    assert any(other in said.err.lower() for other in ("use fedavg", "use fedals", "use local")), said.err
    assert not Path("runs").exists()


def test_all_methods_leave_out_those_of_items_with_the_reason():
    said = fedtaste(
        "compare", "--methods", "all", "--data", TINY, "--rounds", 1, "--threads", 1, "--jobs", 1, "--out", "all",
        "--json",
    )  # fmt: skip
    names = {result["method"] for result in said.json["results"]}
    assert names == set(METHODS) - {*NEED_ITEMS, "fedbn"}
    for name in (*NEED_ITEMS, "fedbn"):
        assert f"{name} is left out: " in said.err and name in said.json["left_out"]


@pytest.mark.parametrize(
    "data, rounds, who",
    [
        (TINY, 9, ["In round 3", "client 0"]),
        (TINY, 1, ["client 0's in round 1"]),
        ("shifted-digits:examples=20", 5, ["In round 3", 'client 0 ("plain")']),
    ],
)
def test_a_run_that_diverges_names_the_client_the_round_and_the_setting(data, rounds, who):
    said = fedtaste(
        "run",
        "--data",
        data,
        "--method",
        "fedavg",
        "--set",
        "lr=1e9",
        "--rounds",
        rounds,
        "--threads",
        1,
        "--out",
        "bad",
    )
    said.refused(*who, "learning rate (lr", "a tenth of it")
    params, about = load_params(Path("bad/state.safetensors"))  # refuses what is not finite
    assert params and about["progress"]["rejected"] and not Path("bad/result.json").exists()


def test_a_comparison_keeps_the_runs_that_do_not_diverge():
    sweep = ("--method", "fedavg", "--sweep", "lr=0.1,1e9", "--methods", "local")
    said = fedtaste("compare", *sweep, "--data", TINY, "--rounds", 4, "--threads", 1, "--out", "some", "--json")
    assert [Path(result["run"]).name for result in said.json["results"]] == ["fedavg-lr=0.1", "local"]
    assert "fedavg-lr=1e9 is left out: In round 3" in said.err
    assert fedtaste("report", "some", "--json").code == 0
    lost = ("--method", "fedavg", "--sweep", "lr=1e9,1e10")
    fedtaste("compare", *lost, "--data", TINY, "--rounds", 4, "--threads", 1, "--out", "none").refused("In round 3")


def test_names_of_clients_stand_in_their_lines(tmp_path):
    names = ("a", "b", "c", "d")
    rows = ran(replace(DATA, clients=names), tmp_path / "run")[0].by_client
    assert tuple(row.client for row in rows) == names


def test_batches_of_features_are_of_one_size():
    """A hundred in batches of at most 32 are four of 25, in order, also beside somebody with fewer."""
    inputs = [np.arange(n, dtype=np.float32)[:, None] for n in (100, 96, 5)]
    both = of_arrays(inputs, [x[:, 0] for x in inputs], batch=32)
    together = both.examples(np.arange(3), 0, "samples").pad()
    assert together.mask.sum(2).int().tolist() == [[25, 25, 25, 25], [32, 32, 32, 0], [5, 0, 0, 0]]
    for person in range(3):
        alone = both.examples(np.array([person]), 0, "samples").pad()
        real = alone.mask[0] > 0
        assert sorted(alone.inputs[0][real][:, 0].tolist()) == list(range(len(inputs[person])))
        for step in range(alone.mask.shape[1]):
            mine, theirs = (e.inputs[i, step][e.mask[i, step] > 0] for e, i in ((alone, 0), (together, person)))
            assert torch.equal(mine, theirs)


def test_runs_side_by_side_are_the_runs_one_by_one():
    """Every process comes to a good end, and what it learnt is what one process would have."""
    words = ("compare", "--methods", "fedavg,ditto", "--data", TINY, "--rounds", 2, "--threads", 1, "--json")
    one, two = (fedtaste(*words, "--jobs", jobs, "--out", f"jobs{jobs}") for jobs in (1, 2))
    assert one.json["left_out"] == two.json["left_out"] == {} and "left out" not in two.err
    for a, b in zip(one.json["results"], two.json["results"]):
        assert a["seen"] == b["seen"] and a["method"] == b["method"] and a["gradients"] == b["gradients"]
