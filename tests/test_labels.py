"""Clients with features: which examples are trained on, how metrics and gradients are computed, and the command."""

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
from support.command import CONTRACT, WorkerHere, fedtaste, without_times

pytestmark = pytest.mark.usefixtures("here")

DATA = logistic(clients=4, examples=43, seed=3)


def run_in(data, path, method="fedavg", rounds=3, **settings):
    """(result, parameters of the final state by name) of a run in the folder `path`."""
    run_settings = Settings(data=data.name, method=method, rounds=rounds, set={n: str(v) for n, v in settings.items()})
    result = execute(prepare(run_settings, data), RunFolder.create(Path(path), run_settings.model_dump(), data, "0"))
    return result, load_params(Path(path) / "final.safetensors")[0]


def shares(weights, inputs, targets):
    """The share of correct predictions with each client's weights [classes, d], in plain numpy."""
    return [float(np.mean((x.astype(float) @ w.T).argmax(1) == y)) for w, x, y in zip(weights, inputs, targets)]


# Examples for training and validation


@pytest.mark.parametrize("examples", [1, 4, 5, 43, 200])
def test_the_search_trains_on_four_fifths_of_the_examples(examples):
    mask = _search_mask(examples, 2, seed=5)
    assert (~mask).sum() == examples // 5
    assert (mask == _search_mask(examples, 2, seed=5)).all()
    if examples > 40:
        assert (mask != _search_mask(examples, 3, seed=5)).any() and (mask != _search_mask(examples, 2, seed=6)).any()


def test_the_search_validates_on_the_examples_it_does_not_train_on():
    task, model = Clients(DATA, seed=5), softmax(10, 2)
    method = METHODS["fedavg"](model, lr=0.5)
    masks = [_search_mask(len(y), client, 5) for client, y in enumerate(DATA.targets)]
    search = task.federation("search", method, Sampling(), None)
    for client in range(4):
        examples = search.examples(np.array([client]), 0, "samples")
        assert (examples.inputs == DATA.features[client][masks[client]]).all()
        assert (examples.targets == DATA.targets[client][masks[client]]).all()
        final = task.federation("final", method, Sampling(), None).examples(np.array([client]), 0, "samples")
        assert (final.inputs == DATA.features[client]).all()
    state = list(run(method, model, search, rounds=3))[-1].state
    rest = [[x[~k] for x, k in zip(part, masks)] for part in (DATA.features, DATA.targets)]
    expected = np.mean(shares([state.shared["weight"].numpy()] * 4, *rest))
    assert task.validation(Served(method, model, state)).exact()["accuracy"] == pytest.approx(expected, abs=1e-6)


def test_test_examples_change_only_the_test_metrics(tmp_path):
    poisoned = replace(
        DATA, test_features=tuple(9 - 3 * x for x in DATA.test_features),
        test_targets=tuple(1 - y for y in DATA.test_targets),
    )  # fmt: skip
    clean, clean_params = run_in(DATA, tmp_path / "a", "ditto")
    spoilt, params = run_in(poisoned, tmp_path / "b", "ditto")
    assert same_bytes(params, clean_params) and (spoilt.curve, spoilt.best_round) == (clean.curve, clean.best_round)
    assert clean.metric("seen.accuracy") != spoilt.metric("seen.accuracy")


# Metrics


@pytest.mark.parametrize("method, settings", [("fedavg", {}), ("fedclup", {"lam": 0.3}), ("ditto", {"lam": 0.3})])
def test_personal_and_global_accuracy_equal_a_computation_by_hand(method, settings, tmp_path):
    result, state = run_in(DATA, tmp_path / "run", method, **settings)
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
    wide, narrow = (run_in(d, tmp_path / n)[0].interval("seen.accuracy") for d, n in ((few, "a"), (DATA, "b")))
    assert wide[1] - wide[0] > 1.5 * (narrow[1] - narrow[0])


def test_local_models_classify_clients_of_one_class_perfectly(tmp_path):
    ones = tuple(np.full_like(y, client % 2) for client, y in enumerate(DATA.targets))
    x = tuple(np.abs(x) + 1 for x in DATA.features)
    data = replace(DATA, features=x, targets=ones, test_features=x, test_targets=ones, truth=None, scales=())
    assert run_in(data, tmp_path / "a", "local")[0].metric("seen.accuracy") == 1
    assert run_in(data, tmp_path / "b", "fedavg")[0].metric("seen.accuracy") < 0.8


@pytest.mark.parametrize("method, settings", [("fedavg", {}), ("fedclup", {"lam": 0.3}), ("local", {})])
def test_distances_from_the_true_weights_equal_a_computation_by_hand(method, settings, tmp_path):
    data = least_squares(clients=5, examples=20, features=3, seed=1)
    result, state = run_in(data, tmp_path / "run", method, **settings)
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
    result, state = run_in(DATA, tmp_path / "run", "local", lr=0.5)
    mine = state["private.stacked.weight"].numpy() / np.stack(DATA.scales)[:, None]
    gaps = np.linalg.norm((mine - DATA.truth).reshape(4, -1), axis=1)
    assert result.metric("seen.personal_error") == pytest.approx(gaps.mean(), rel=1e-5)


@pytest.mark.parametrize("method", ["fedavg", "fedclup", "ditto", "apfl", "lgmix"])
def test_a_client_without_examples_is_served_the_shared_model(method, tmp_path):
    x, y = DATA.features, DATA.targets
    data = replace(DATA, features=(*x[:3], x[3][:0]), targets=(*y[:3], y[3][:0]), truth=None, scales=())
    result, state = run_in(data, tmp_path / "run", method)
    assert any("1 client has no examples" in note and "3." in note for note in result.notes)
    last = result.by_client[3]
    expected = shares([state["shared.weight"].numpy()], DATA.test_features[3:], DATA.test_targets[3:])[0]
    assert last.accuracy == last.global_accuracy == pytest.approx(expected, abs=1e-6)
    assert last.examples == 0 and all(torch.isfinite(v).all() for v in state.values())


def test_predictions_do_not_depend_on_the_other_clients_of_a_call():
    model = softmax(10, 2)
    method = build("fedclup", model, {"lam": 0.3})
    home = (DATA.features, DATA.targets)
    inputs = tuple(x[: 3 + 9 * i] for i, x in enumerate(DATA.test_features))
    state = list(run(method, model, of_arrays(*home), rounds=2))[-1].state
    ask = lambda people: predict(Served(method, model, state), people, home, inputs)
    together, separate = ask(np.array([2, 0, 3])), [ask(np.array([person]))[0] for person in (2, 0, 3)]
    assert [len(out) for out in together] == [21, 3, 30]
    assert all(np.allclose(joint, single, atol=1e-6) for joint, single in zip(together, separate))


# Counts of gradients


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
    result, _ = run_in(DATA, tmp_path / "run", method, **settings)
    assert result.gradients.dump() == {"per_person_round": each, "total": each * result.rounds}
    assert [point.gradients for point in result.curve] == [each, 2 * each, 3 * each]


def test_the_curvature_is_measured_in_the_first_round_only(tmp_path):
    result, _ = run_in(DATA, tmp_path / "run", "fedclup", lam=0.3, passes=4)
    first, second, third = (point.gradients for point in result.curve)
    assert third - second == second - first == result.gradients.per_person_round == 4
    assert first > 4


def test_the_same_seed_gives_the_same_result(tmp_path):
    results = (run_in(DATA, tmp_path / name, "fedclup", batch=16)[0].dump() for name in "ab")
    first, second = (json.dumps(without_times(result), sort_keys=True) for result in results)
    assert first == second


@pytest.mark.parametrize("spread", [3.0, 1.0])
def test_heterogeneity_equals_the_spread_of_the_data(spread):
    measured = heterogeneity(Clients(least_squares(spread=spread), seed=0))
    assert pytest.approx(spread, rel=0.25) == measured.R and measured.noise < measured.R
    assert (measured.n, measured.clients) == (40, 50)


def test_heterogeneity_below_the_noise_is_reported_with_the_noise():
    """A fit of 10 numbers from 40 examples with noise 1 is off by about sqrt(10 / 40)."""
    measured = heterogeneity(Clients(least_squares(spread=0.1), seed=0))
    assert measured.R < measured.noise == pytest.approx(0.5, rel=0.25)


def test_one_client_has_no_heterogeneity():
    data = logistic(clients=1)
    assert heterogeneity(Clients(data, seed=0)) is None


# The command

TINY = "logistic:clients=3,examples=30"
NEED_ITEMS = [
    "popularity",
    "fedveil",
    "fedeigen",
    "fedals",
    "fedrap",
    "fedtrail",
    "fedseq",
    "fcf",
    "fedmf",
    "fedncf",
    "pfedrec",
]


@pytest.mark.parametrize(
    "data, method, metrics",
    [
        (TINY, "fedclup", {"accuracy", "global_accuracy", "personal_error", "global_error"}),
        ("digits:clients=3", "apfl", {"accuracy", "loss"}),
        ("linear", "fedclup", {"rmse", "weights_error"}),
    ],
)
def test_json_of_a_run_on_features_has_all_keys_and_the_metrics_of_its_task(data, method, metrics):
    result = fedtaste("run", "--data", data, "--method", method, "--rounds", 2, "--threads", 1, "--json").json
    assert result.keys() >= CONTRACT | {"gradients", "curve"} and result["seen"].keys() >= metrics
    assert result["new"] is None and result["gradients"]["total"] > 0 and result["traffic"]["up_bytes"] > 0


@pytest.mark.parametrize("method", NEED_ITEMS)
def test_methods_that_need_items_are_refused(method):
    output = fedtaste("run", "--data", TINY, "--method", method).refused(method)
    assert any(other in output.err.lower() for other in ("use fedavg", "use fedals", "use local")), output.err
    assert not Path("runs").exists()


def test_comparing_all_methods_omits_those_that_need_items_with_a_reason():
    output = fedtaste(
        "compare", "--methods", "all", "--data", TINY, "--rounds", 1, "--threads", 1, "--jobs", 1, "--out", "all",
        "--json",
    )  # fmt: skip
    names = {result["method"] for result in output.json["results"]}
    assert names == set(METHODS) - {*NEED_ITEMS, "fedbn"}
    for name in (*NEED_ITEMS, "fedbn"):
        assert f"{name} is left out: " in output.err and name in output.json["left_out"]


@pytest.mark.parametrize(
    "data, rounds, parts",
    [
        (TINY, 9, ["In round 3", "client 0"]),
        (TINY, 1, ["client 0's in round 1"]),
        ("shifted-digits:examples=20", 5, ["In round 3", 'client 0 ("plain")']),
    ],
)
def test_a_diverged_run_names_the_client_the_round_and_the_setting(data, rounds, parts):
    args = ("--data", data, "--method", "fedavg", "--set", "lr=1e9", "--rounds", rounds, "--threads", 1, "--out", "bad")
    fedtaste("run", *args).refused(*parts, "learning rate (lr", "a tenth of it")
    params, about = load_params(Path("bad/state.safetensors"))  # load_params refuses numbers that are not finite
    assert params and about["progress"]["rejected"] and not Path("bad/result.json").exists()


def test_a_comparison_omits_only_the_runs_that_diverge():
    sweep = ("--method", "fedavg", "--sweep", "lr=0.1,1e9", "--methods", "local")
    output = fedtaste("compare", *sweep, "--data", TINY, "--rounds", 4, "--threads", 1, "--out", "some", "--json")
    assert [Path(result["run"]).name for result in output.json["results"]] == ["fedavg-lr=0.1", "local"]
    assert "fedavg-lr=1e9 is left out: In round 3" in output.err
    assert fedtaste("report", "some", "--json").code == 0
    lost = ("--method", "fedavg", "--sweep", "lr=1e9,1e10")
    fedtaste("compare", *lost, "--data", TINY, "--rounds", 4, "--threads", 1, "--out", "none").refused("In round 3")


def test_results_by_client_carry_the_names_of_clients(tmp_path):
    names = ("a", "b", "c", "d")
    rows = run_in(replace(DATA, clients=names), tmp_path / "run")[0].by_client
    assert tuple(row.client for row in rows) == names


def test_batches_of_features_have_nearly_equal_sizes():
    """A hundred examples in batches of at most 32 are four batches of 25, also beside clients with fewer examples."""
    inputs = [np.arange(n, dtype=np.float32)[:, None] for n in (100, 96, 5)]
    federation = of_arrays(inputs, [x[:, 0] for x in inputs], batch=32)
    together = federation.examples(np.arange(3), 0, "samples").pad()
    assert together.mask.sum(2).int().tolist() == [[25, 25, 25, 25], [32, 32, 32, 0], [5, 0, 0, 0]]
    for person in range(3):
        single = federation.examples(np.array([person]), 0, "samples").pad()
        real = single.mask[0] > 0
        assert sorted(single.inputs[0][real][:, 0].tolist()) == list(range(len(inputs[person])))
        for step in range(single.mask.shape[1]):
            mine, theirs = (e.inputs[i, step][e.mask[i, step] > 0] for e, i in ((single, 0), (together, person)))
            assert torch.equal(mine, theirs)


def test_parallel_runs_equal_sequential_runs(monkeypatch):
    """Every worker succeeds, and its result equals that of a comparison without workers."""
    monkeypatch.setattr("fedtaste.experiment.compare.subprocess.Popen", WorkerHere)
    args = ("compare", "--methods", "fedavg,ditto", "--data", TINY, "--rounds", 2, "--threads", 1, "--json")
    sequential, parallel = (fedtaste(*args, "--jobs", jobs, "--out", f"jobs{jobs}") for jobs in (1, 2))
    assert sequential.json["left_out"] == parallel.json["left_out"] == {} and "left out" not in parallel.err
    for a, b in zip(sequential.json["results"], parallel.json["results"]):
        assert a["seen"] == b["seen"] and a["method"] == b["method"] and a["gradients"] == b["gradients"]
