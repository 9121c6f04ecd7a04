"""A federation over Flower messages gives the same run as one machine, also with faults, invalid messages and restarts.

The grid is in this process (flower_grid.py) and every message is bytes. test_federate.py starts real SuperLinks and
SuperNodes.
"""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Message, RecordDict

import fedtaste
from fedtaste.core import Download, Upload
from fedtaste.data.sources import load
from fedtaste.engine.checkpoint import load_params
from fedtaste.engine.run import begin, run
from fedtaste.errors import RunError, SettingError
from fedtaste.evaluation.metric_sums import Tallied, tally
from fedtaste.evaluation.protocol import ClientMetrics, PredictionErrors, RankingMetrics
from fedtaste.experiment.folder import RunFolder
from fedtaste.experiment.settings import FederationSettings, Settings
from fedtaste.experiment.train import execute, prepare
from fedtaste.flower import client_app
from fedtaste.flower.federate import prepare_federation
from fedtaste.flower.messages import MetricReport, Order, unpack_content
from fedtaste.flower.node import Node
from fedtaste.flower.server import FlowerClients, serve
from fedtaste.flower.shards import cut_shards, load_shard, shard_from_file
from fedtaste.flower.validation import refuse_unfit, valid_metrics
from fedtaste.wire.messages import Head, decode, encode
from support.flower_grid import LocalGrid, new_context, transmit, unavailable
from support.flower_worlds import (
    COMMON_FIELDS,
    TINY,
    Killed,
    clients_of,
    facts_of,
    federation_in_process,
    nodes_of,
    order_of,
    over_flower,
    place_of,
    private_of,
    serve_run,
    serve_to_the_end,
)
from support.states import assert_close
from support.worlds import world

METHOD = ("fedrap", {"lr": 0.1, "table_lr": 5.0, "passes": 2, "weight_decay": 0.01}, "ranking")


def on_one_machine(folder, **fields):
    """Result and model of the run with these settings in the simulator."""
    settings = Settings(**{"data": TINY} | fields)
    data = load(settings.data, seed=settings.seed)
    folder_of_run = RunFolder.create(folder, settings.model_dump(), data, fedtaste.__version__)
    return execute(prepare(settings, data), folder_of_run).dump(), load_params(folder / "model.safetensors")[0]


SAME = [
    {"method": "fedals", "rounds": 3},
    {"method": "fedavg", "rounds": 2},
    {"method": "fedrap", "rounds": 2},
    {"method": "fedrecon", "rounds": 2, "task": "ratings"},
    {"method": "fedals", "rounds": 2, "task": "ratings"},
    {"method": "popularity", "split": "random"},
    {"method": "local", "rounds": 2},
    {"method": "fedclup", "rounds": 2, "data": "linear"},
    {"method": "fedavg", "rounds": 2, "data": "logistic"},
    {"method": "fedmf", "rounds": 2, "cohort": 0.5, "dropout": 0.2},
    {"method": "fedmf", "rounds": 2, "wire": "clip=0.5", "cohort": 0.5},
    {"method": "fedmf", "rounds": 2, "wire": "sparsify=0.2,quantise=8"},
    {"method": "fedmf", "rounds": 2, "download": "int8"},
]
PRIVATE = [
    {"method": "fedmf", "rounds": 2, "wire": "clip=0.5,noise=5", "cohort": 0.8},
    {"method": "fedmf", "rounds": 2, "wire": "clip=1.0,local=0.5"},
    {"method": "fedveil", "wire": "noise=0.3"},
    {"method": "fedveil", "epsilon": 3.0},
    {"method": "fedmf", "rounds": 2, "wire": "clip=1.0,secure", "epsilon": 5.0},
]


@pytest.mark.parametrize("fields", SAME, ids=lambda fields: "-".join(str(v) for v in fields.values()))
def test_a_federated_run_equals_the_run_on_one_machine(fields, tmp_path):
    """Search, choice of the round, final training and evaluation: parameters, metrics and JSON keys agree."""
    expected, model = on_one_machine(tmp_path / "one", **fields)
    folder, grid = federation_in_process(tmp_path / "many", **fields)
    result = serve_to_the_end(folder, grid)
    assert_close(load_params(folder.path / "model.safetensors")[0], model, 1e-6)
    for part in ("rounds", "best_round", "people", "members", "items", "interactions", "settings", "gradients"):
        assert result[part] == expected[part], part
    if fields["method"] == "fedveil":  # the server has titles and genres in items.json, and nodes have neither
        assert result["settings"]["route"] == "features" and result["feature_count"] == expected["feature_count"] > 0
    for part in ("seen", "new"):
        metrics, expected_metrics = _flat(result[part]), _flat(expected[part])
        # Only the simulator knows the true weights of synthetic data.
        expected_metrics = {n: v for n, v in expected_metrics.items() if not n.endswith("_error")}
        assert metrics == pytest.approx(expected_metrics, abs=5e-5), part
        intervals = _flat(result["intervals"][part])
        for name, (low, high) in intervals.items():
            assert low <= metrics[name] + 1e-6 and metrics[name] - 1e-6 <= high, name
    assert set(expected) - set(result) <= {"weights", "true_weights", "by_client"}
    assert set(result) - set(expected) == {"federation"}
    searched = len(expected["curve"]) if any(point["valid"] for point in expected["curve"]) else 0
    assert [(e["phase"], e["round"]) for e in result["federation"]["history"]] == [
        *(("search", n + 1) for n in range(searched)),
        *(("final", n + 1) for n in range(expected["rounds"])),
    ]  # fmt: skip


@pytest.mark.parametrize("fields", PRIVATE, ids=lambda fields: "-".join(str(v) for v in fields.values()))
def test_a_private_federated_run_has_the_same_epsilon_and_its_own_noise(fields, tmp_path):
    """The privacy statement is the same. The noise is not, because every party draws it from its own key."""
    expected, model = on_one_machine(tmp_path / "one", **fields)
    folder, grid = federation_in_process(tmp_path / "many", **fields)
    result = serve_to_the_end(folder, grid)
    assert result["privacy"] == expected["privacy"] and result["privacy"]["epsilon"] > 0
    for part in ("rounds", "people", "members", "items", "interactions", "settings"):
        assert result[part] == expected[part], part
    noisy = load_params(folder.path / "model.safetensors")[0]
    assert {name: value.shape for name, value in noisy.items()} == {name: value.shape for name, value in model.items()}
    assert not any(torch.equal(noisy[name], model[name]) for name in model if model[name].numel() > 1)
    assert {name for entry in result["federation"]["history"] for name in entry} == {"phase", "round", "seconds"}
    assert result["rejected_updates"] == {} and set(result) - set(expected) == {"federation"}


def _flat(metrics, front=""):
    """Nested metrics as one dict, with dotted names."""
    out = {}
    for name, value in (metrics or {}).items():
        out |= _flat(value, f"{front}{name}.") if isinstance(value, dict) else {f"{front}{name}": value}
    return out


def test_metrics_merged_from_nodes_equal_those_of_all_people():
    rng = np.random.default_rng(0)
    ranks, owners = rng.integers(1, 40, 300), np.repeat(np.arange(100), 3)
    errors = rng.normal(size=300)
    accuracy = {"accuracy": rng.uniform(size=40).tolist(), "loss": rng.uniform(size=40).tolist()}
    complete = [
        RankingMetrics.of_ranks((ranks, owners), (ranks, owners)), PredictionErrors(errors.tolist(), owners.tolist()),
        ClientMetrics(accuracy, rng.integers(5, 50, 40).tolist()),
    ]  # fmt: skip
    third = owners % 3
    parts = [
        [RankingMetrics.of_ranks(*[(ranks[third == n], owners[third == n])] * 2) for n in range(3)],
        [PredictionErrors(errors[third == n].tolist(), owners[third == n].tolist()) for n in range(3)],
        [ClientMetrics({k: v[n::3] for k, v in accuracy.items()}, complete[2].examples[n::3]) for n in range(3)],
    ]  # fmt: skip
    for metrics, partial in zip(complete, parts):
        tallies = json.loads(json.dumps([tally(part) for part in partial]))
        merged = Tallied(tallies)
        assert _flat(merged.values) == pytest.approx(_flat(metrics.values), abs=1e-6)
        expected, intervals = _flat(metrics.intervals), _flat(merged.intervals)
        assert intervals.keys() == expected.keys()
        for name, (low, high) in expected.items():
            assert intervals[name] == pytest.approx([low, high], abs=0.35 * (high - low))


# Faults


def three_nodes(tmp_path, hook=None, deadline=0.6):
    """(clients, grid, plan, nodes, federation) of three nodes, with a method that has private parameters."""
    method, model, federation = world(*METHOD)
    grid, plan, nodes = nodes_of(method, model, federation, facts_of("ranking", federation), tmp_path)
    clients = clients_of(grid, plan, deadline)
    grid.hook = hook
    return clients, grid, plan, nodes, federation


def simulated(plan, federation, missing, rounds=4):
    """The state after simulating all people; `missing` names the nodes without an answer, by round (from 1)."""
    thirds = dict(zip(("node-11", "node-12", "node-13"), np.array_split(np.arange(federation.people), 3)))
    cohort_of_round = federation.cohort

    def cohort(round, **more):
        everybody, answering = cohort_of_round(round, **more)
        missing_people = [person for name in missing.get(round + 1, ()) for person in thirds[name]]
        return everybody, np.setdiff1d(answering, missing_people)

    federation.cohort = cohort
    return list(run(plan.method, plan.model, federation, rounds=rounds, seed=1))[-1].state


def check_equal(state, plan, nodes, federation, missing):
    """The state after four rounds equals that of the simulation, and so do the private parameters of nodes."""
    expected = simulated(plan, federation, missing)
    assert_close(state.shared, expected.shared, 1e-6)
    private = private_of(plan, nodes, federation, base=4)
    assert_close(private, expected.private.gather(np.arange(federation.people)), 1e-5)


def test_a_node_that_misses_a_round_counts_as_dropped_out(tmp_path):
    """Its private parameters too: changes from a round that was not counted are undone."""
    lost = lambda ask, reply: None if place_of(ask) == ("train", 1, 12) else reply
    clients, grid, plan, nodes, federation = three_nodes(tmp_path, hook=lost)
    state = over_flower(clients, plan, 4)
    check_equal(state, plan, nodes, federation, {2: ["node-12"]})
    assert [entry["nodes"] for entry in clients.history][1] == ["node-11", "node-13"]


def test_a_late_reply_is_refused_and_counted(tmp_path):
    """The reply arrives during the next round."""
    delayed = {}

    def late(ask, reply):
        if place_of(ask) == ("train", 1, 12):
            delayed[ask.metadata.message_id] = reply
            return None
        if place_of(ask) == ("train", 2, 11):
            for name, message in delayed.items():
                grid._waiting[name].append((0.0, transmit(message)[0]))
        return reply

    clients, grid, plan, nodes, federation = three_nodes(tmp_path, hook=late, deadline=0.6)
    check_equal(over_flower(clients, plan, 4), plan, nodes, federation, {2: ["node-12"]})
    assert [entry["refused"] for entry in clients.history] == [{}, {}, {"late": 1}, {}]


def test_a_node_that_dies_before_it_replies_is_asked_again_when_it_is_back(tmp_path):
    clients, grid, plan, nodes, federation = three_nodes(tmp_path)
    died = []

    def lost(ask, reply):
        if place_of(ask) == ("train", 1, 12) and not died:
            died.append(1)
            return unavailable(ask)
        return reply

    grid.hook = lost
    check_equal(over_flower(clients, plan, 4), plan, nodes, federation, {})
    assert died and all(len(entry["nodes"]) == 3 for entry in clients.history)


def test_a_node_that_is_offline_for_some_rounds_takes_part_again(tmp_path):
    clients, grid, plan, nodes, federation = three_nodes(tmp_path)
    rounds = []

    def watch(ask, reply):
        rounds.append(order_of(ask)["round"])
        grid.offline = {13} if max(rounds) in (0, 1) else set()
        return reply

    grid.hook = watch
    state = over_flower(clients, plan, 4)
    away = [entry["round"] for entry in clients.history if "node-13" not in entry["nodes"]]
    assert away and len(away) < 4
    check_equal(state, plan, nodes, federation, {n: ["node-13"] for n in away})


def test_a_node_that_joins_later_is_asked_from_the_next_round_on(tmp_path):
    clients, grid, plan, nodes, federation = three_nodes(tmp_path)
    app, context = grid.apps.pop(13), grid.context(13)
    late = clients_of(grid, plan, 0.6)

    def join(ask, reply):
        if place_of(ask)[:2] == ("train", 1) and 13 not in grid.apps:
            grid.join(13, app, context)
        return reply

    grid.hook = join
    state = over_flower(late, plan, 4)
    first = [entry["round"] for entry in late.history if "node-13" in entry["nodes"]]
    assert first == [3, 4] or first == [4]
    missing = {n: ["node-13"] for n in range(1, 5) if n not in first}
    expected = simulated(plan, federation, missing)
    assert_close(state.shared, expected.shared, 1e-6)


def test_too_few_nodes_end_the_run_with_an_error_and_it_can_go_on(tmp_path):
    clients, grid, plan, nodes, federation = three_nodes(tmp_path, deadline=0.2)
    grid.dead = {11, 12}
    with pytest.raises(RunError, match="start the missing nodes"):
        over_flower(clients, plan, 4)
    grid.dead = set()
    assert over_flower(clients, plan, 4).round == 4


@pytest.mark.parametrize("phase, when", [("search", 2), ("final", 1), ("final", 2)])
def test_a_killed_server_resumes_from_its_last_round(tmp_path, phase, when):
    """The server is killed after the nodes have computed a round and before it was saved. The round is requested again
    and counted once, and private parameters are those of an uninterrupted run."""
    fields = {"method": "fedrap", "rounds": 3, "set": {"released": "true"}}  # whose best round is the last
    expected, model = on_one_machine(tmp_path / "one", **fields)
    folder, grid = federation_in_process(tmp_path / "many", **fields)

    def kill(ask, reply):
        if place_of(ask) == ("train", when - 1, 13) and order_of(ask)["phase"] == phase and not killed:
            killed.append(1)
            raise Killed
        return reply

    killed = []
    grid.hook = kill
    with pytest.raises(Killed):
        serve_run(folder, grid)
    result = serve_to_the_end(folder, grid)
    assert killed
    assert_close(load_params(folder.path / "model.safetensors")[0], model, 1e-6)
    assert _flat(result["seen"]) == pytest.approx(_flat(expected["seen"]), abs=5e-5)
    rounds = [(entry["phase"], entry["round"]) for entry in result["federation"]["history"]]
    finals = [number for name, number in rounds if name == "final"]
    assert finals == list(range(1, expected["rounds"] + 1)) and len(set(rounds)) == len(rounds)
    private = load_params(tmp_path / "one" / "final.safetensors")[0]
    number = expected["rounds"]
    for place in range(3):
        path = next((folder.path / "federation" / "nodes" / f"node-{place}" / "store").glob(f"*/final-{number}.safe*"))
        stored, about = load_params(path)
        people = torch.tensor(about["people"])
        for name in stored:
            if name.startswith("stacked."):
                assert torch.allclose(stored[name], private[f"private.{name}"][people], atol=1e-5), name


# Invalid messages from nodes


def change_upload(change):
    """A hook that changes the uploads of node 13."""

    def hook(ask, reply):
        order = order_of(ask)
        if order["action"] != "train" or ask.metadata.dst_node_id != 13:
            return reply
        report, blob = unpack_content(reply)
        upload, head = decode(blob)
        changed = change(upload, head)
        blob = changed if isinstance(changed, bytes) else encode(*changed)
        return Message(RecordDict({"fedtaste": ConfigRecord({"json": report, "blob": blob})}), reply_to=ask)

    return hook


def with_number(value):
    return lambda up, head: (
        Upload({n: torch.where(torch.ones_like(v) > 0, value, v) for n, v in up.total.items()}, up.weight),
        head,
    )


def with_weight(value):
    return lambda up, head: (Upload(up.total, torch.tensor(value)), head)


LIES = {
    "NaN": (with_number(float("nan")), "non-finite"),
    "inf": (with_number(float("inf")), "non-finite"),
    "1e9": (with_number(1e9), "too large"),
    "weight 0": (with_weight(0.0), "weight"),
    "weight -1": (with_weight(-1.0), "weight"),
    "weight 1e12": (with_weight(1e12), "weight"),
    "weight NaN": (with_weight(float("nan")), "non-finite"),
    "shape": (lambda up, head: (Upload({n: v[None] for n, v in up.total.items()}, up.weight), head), "shape"),
    "names": (lambda up, head: (Upload(up.total | {"more": torch.zeros(1)}, up.weight), head), "names"),
    "dtype": (lambda up, head: (Upload({n: v.to(torch.int32) for n, v in up.total.items()}, up.weight), head), "dtype"),
    "oversized": (lambda up, head: encode(Upload(up.total | {"x": torch.zeros(10**5)}, up.weight), head), "oversized"),
    "garbage": (lambda up, head: b"\0" * 50, "not a message"),
    "of an earlier round": (lambda up, head: (up, head._replace(round=head.round - 1)), "late"),
    "of a later round": (lambda up, head: (up, head._replace(round=head.round + 1)), "early"),
    "of another run": (lambda up, head: (up, head._replace(run=8)), "other run"),
    "in another's name": (lambda up, head: (up, head._replace(person=0)), "not asked"),
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
def test_an_invalid_upload_is_refused_with_its_reason_and_changes_no_result(lie, tmp_path):
    change, reason = LIES[lie]
    clients, grid, plan, nodes, federation = three_nodes(tmp_path, hook=change_upload(change))
    state = over_flower(clients, plan, 3)
    assert [entry["refused"].get(reason) for entry in clients.history] == [1, 1, 1], clients.history
    assert all("node-13" not in entry["nodes"] for entry in clients.history)
    expected = simulated(plan, federation, {n: ["node-13"] for n in (1, 2, 3)}, 3)
    assert_close(state.shared, expected.shared, 1e-6)


def test_a_duplicate_reply_counts_once(tmp_path):
    clients, _, plan, nodes, federation = three_nodes(tmp_path, hook=lambda ask, reply: [reply, reply])
    check_equal(over_flower(clients, plan, 4), plan, nodes, federation, {})


@pytest.mark.parametrize(
    "report",
    [
        "", "{", "[]", '{"answered": -1}', '{"answered": 10000}', '{"answered": "many"}',
        '{"answered": 8, "refused": {"made up": 1}}',
    ],
)  # fmt: skip
def test_an_invalid_report_of_a_node_is_refused(report, tmp_path):
    def lie(ask, reply):
        if order_of(ask)["action"] != "train" or ask.metadata.dst_node_id != 13:
            return reply
        blob = unpack_content(reply)[1]
        return Message(RecordDict({"fedtaste": ConfigRecord({"json": report, "blob": blob})}), reply_to=ask)

    clients, grid, plan, nodes, federation = three_nodes(tmp_path, hook=lie)
    over_flower(clients, plan, 2)
    assert [entry["refused"] for entry in clients.history] == [{"not a message": 1}] * 2


# Secure sums


@pytest.mark.parametrize("wire", ["secure", "clip=1.0,secure"])
def test_a_secure_sum_equals_the_plain_sum_within_its_rounding_step(wire, tmp_path):
    fields = {"method": "fedmf", "rounds": 2}
    folder, grid = federation_in_process(tmp_path / "plain", 4, wire=wire.replace("secure", "").strip(","), **fields)
    plain_result = serve_to_the_end(folder, grid, 4)
    secure_folder, grid = federation_in_process(tmp_path / "secure", 4, wire=wire, **fields)
    result = serve_to_the_end(secure_folder, grid, 4)
    a, b = (load_params(f.path / "model.safetensors")[0] for f in (folder, secure_folder))
    assert_close(b, a, 1e-6)
    assert _flat(result["seen"]) == pytest.approx(_flat(plain_result["seen"]), abs=2e-3)
    sent_bytes = b"".join(map(bytes_of, grid.replies))
    assert b"params/item" not in sent_bytes  # no node sent its upload unmasked
    assert b"params/person_hashes" in sent_bytes  # this search finds unmasked parameters


def test_noise_is_added_by_the_nodes_where_sums_are_secure(tmp_path):
    fields = {"method": "fedmf", "rounds": 2, "wire": "clip=1.0,noise=1.0,secure"}
    folder, grid = federation_in_process(tmp_path / "secure", 4, **fields)
    result = serve_to_the_end(folder, grid, 4)
    assert result["privacy"]["epsilon"] > 0 and "server" in result["privacy"]["against"]
    quiet, grid = federation_in_process(tmp_path / "quiet", 4, **(fields | {"wire": "clip=1.0,secure"}))
    assert serve_run(quiet, grid, 4)
    a, b = (load_params(f.path / "model.safetensors")[0]["item"] for f in (folder, quiet))
    assert float((a - b).abs().max()) > 1e-4


def test_a_node_refuses_to_send_an_unmasked_upload_in_a_secure_run(tmp_path):
    folder, grid = federation_in_process(tmp_path / "secure", 4, method="fedmf", rounds=1, wire="secure")
    node = Node(grid.context(11).node_config)
    order = Order(
        action="train", version=fedtaste.__version__, **(COMMON_FIELDS | {"settings": folder.settings().model_dump()})
    )
    answer, blob = node.answer(order, b"")
    assert "secure sums only" in answer.error and not blob


def test_a_secure_round_is_not_answered_again_after_the_server_died(tmp_path, monkeypatch):
    """The server dies after it opened the sum and before it saved it. The round is lost, so that nobody can compute the
    difference of two sums."""
    folder, grid = federation_in_process(tmp_path / "secure", 4, method="fedmf", rounds=3, wire="secure")

    def die(self, *_):
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(FlowerClients, "_add", die)
        serve_run(folder, grid, 4)
    result = serve_to_the_end(folder, grid, 4)
    assert result["rejected_updates"].get("abandoned")
    first, *others = result["federation"]["history"]
    assert first["round"] == 1 and first["nodes"] == [] and all(len(entry["nodes"]) == 4 for entry in others)


# Nodes that are refused when they join


def error_of(folder):
    status = json.loads((folder.path / "federation" / "status.json").read_text())
    assert status["state"] == "error"
    return status["reason"]


def test_two_nodes_that_claim_the_same_people_are_refused(tmp_path):
    folder, grid = federation_in_process(tmp_path / "run", rounds=1)
    config = grid.context(11).node_config | {"name": "copy", "store": str(tmp_path / "s")}
    grid.join(14, client_app(), new_context(14, **config))
    assert serve_run(folder, grid, 4) is None
    assert "both claim 20 people" in error_of(folder)


def test_a_node_of_another_version_is_refused_on_both_sides(tmp_path, monkeypatch):
    folder, grid = federation_in_process(tmp_path / "run", rounds=1)
    monkeypatch.setattr("fedtaste.flower.node.__version__", "9.9")
    assert serve_run(folder, grid) is None
    assert "fedtaste 9.9" in error_of(folder) and "Install the same version" in error_of(folder)


def test_a_node_with_a_different_catalogue_is_refused(tmp_path):
    folder, grid = federation_in_process(tmp_path / "run", rounds=1)
    other, _ = federation_in_process(tmp_path / "other", data="synthetic:60x41x900", rounds=1)
    strange = str(other.path / "federation" / "nodes" / "node-0" / "shard.safetensors")
    grid.join(11, client_app(), new_context(11, **(grid.context(11).node_config | {"data": strange})))
    assert serve_run(folder, grid) is None
    assert "another catalogue" in error_of(folder)


@pytest.mark.parametrize(
    "config, reason",
    [
        ({"data": ""}, "has no data"),
        ({"data": "/nowhere/people.csv"}, "does not exist"),
        ({"store": ""}, "has no store"),
        ({"data": "empty.csv"}, "empty.csv"),
        ({"data": "strange.csv"}, "not in the federation's catalogue"),
    ],
)
def test_a_node_that_cannot_take_part_reports_the_reason(config, reason, tmp_path):
    (tmp_path / "empty.csv").write_text("user,item\n")
    (tmp_path / "strange.csv").write_text("user,item\nanna,no such thing\nanna,other\nbert,other\n")
    folder, grid = federation_in_process(tmp_path / "run", rounds=1)
    config = {k: str(tmp_path / v) if v.endswith(".csv") and "/" not in v else v for k, v in config.items()}
    grid.join(11, client_app(), new_context(11, **(grid.context(11).node_config | config)))
    assert serve_run(folder, grid) is None
    assert reason in error_of(folder), error_of(folder)


def test_the_server_stops_waiting_for_missing_nodes_at_the_deadline(tmp_path):
    folder, grid = federation_in_process(tmp_path / "run", rounds=1)
    assert serve_run(folder, grid, 5, deadline=0.5) is None
    assert "3 nodes of 5 said hello" in error_of(folder)


def test_nodes_train_on_their_own_files(tmp_path):
    """No party has the whole data set: the server has a catalogue, and every node has a CSV of its people."""
    items = [f"item {n}" for n in range(30)]
    rng = np.random.default_rng(0)
    apps = {}
    for node in range(3):
        lines = ["user,item,rating,timestamp"]
        for person in range(12):
            lines += [
                f"p{node}-{person},{items[i]},{rng.integers(1, 6)},{t}" for t, i in enumerate(rng.permutation(30)[:9])
            ]
        (tmp_path / f"{node}.csv").write_text("\n".join(lines))
        config = {"data": str(tmp_path / f"{node}.csv"), "store": str(tmp_path / f"s{node}"), "name": f"shop-{node}"}
        apps[21 + node] = (client_app(), new_context(21 + node, **config))
    (tmp_path / "catalogue.json").write_text(json.dumps({"names": items, "titles": items}))

    settings = Settings(data="shops", method="fedrap", rounds=2, cohort=0.5)
    result = serve(LocalGrid(apps), {
        "folder": str(tmp_path / "run"), "nodes": 3, "deadline": 5, "settings": json.dumps(settings.model_dump()),
        "catalogue": str(tmp_path / "catalogue.json"),
    })  # fmt: skip
    assert result is not None, (tmp_path / "run" / "federation" / "server.log").read_text()
    assert result.people == 36 and result.items == 30 and 1 <= result.federation.history[0].people <= 36
    assert "p0-" not in (tmp_path / "run" / "settings.json").read_text()


# Files of nodes, and contents of messages


def test_a_shard_file_holds_only_its_own_people(tmp_path):
    settings = Settings(data=TINY)
    data = load(TINY)
    parts = cut_shards(data, settings, 4)
    assert sorted(np.concatenate([part.own for part in parts]).tolist()) == list(range(60))
    for part in parts:
        part.save(tmp_path / "shard.safetensors")
        loaded = load_shard(tmp_path / "shard.safetensors")
        for name, histories in loaded.data.histories.items():
            assert set(np.flatnonzero(histories.lengths)) <= set(part.own.tolist()), name
            assert np.array_equal(histories.items, part.data.histories[name].items)
    assert (tmp_path / "shard.safetensors").stat().st_mode & 0o77 == 0
    with pytest.raises(SettingError, match="must be 1 to 60"):
        cut_shards(data, settings, 61)


def test_person_hashes_are_stable_within_a_run_and_differ_between_runs(tmp_path):
    (tmp_path / "a.csv").write_text("user,item\nanna,x\nanna,y\nbert,x\n")
    shard = shard_from_file(tmp_path / "a.csv", Settings(), ("x", "y", "z"))
    assert shard.person_hashes(1).tolist() == shard.person_hashes(1).tolist() != shard.person_hashes(2).tolist()
    assert len(set(shard.person_hashes(1).tolist())) == 2 and "anna" not in str(shard.person_hashes(1))


def test_a_node_that_lost_its_store_is_left_out_and_reported(tmp_path):
    clients, grid, plan, nodes, federation = three_nodes(tmp_path, deadline=0.3)
    over_flower(clients, plan, 2)
    for path in (tmp_path / "node-12").glob("*/final-*.safetensors"):
        path.unlink()
    log = []
    clients.membership.log = log.append
    state = begin(plan.method, plan.model, clients.federation("final"), plan.seed)
    state.round = 2
    list(run(plan.method, plan.model, clients._federations["final"], rounds=3, seed=1, run_id=7,
             clients=clients.clients("final"), state=state))  # fmt: skip
    assert any("Restore the store" in line for line in log)
    assert clients.history[-1]["nodes"] == ["node-11", "node-13"]


@pytest.mark.parametrize(
    "fields, reason",
    [
        ({"wire": "trim=0.1"}, "trim needs single"),
        ({"wire": "secure=10"}, "Use secure alone"),
        ({"new_people": "folds"}, "ten more times"),
        ({"protocol": "published"}, "reads the test items"),
    ],
)
def test_settings_that_a_federation_cannot_run_are_refused(fields, reason):
    with pytest.raises(SettingError, match=reason):
        refuse_unfit(Settings(**fields))


def test_a_centralised_method_is_refused(tmp_path):
    with pytest.raises(SettingError, match="no federation can run it"):
        federation_in_process(tmp_path / "run", method="centralised", rounds=1)
    assert not (tmp_path / "run").exists()


def test_messages_contain_no_name_no_rating_and_no_private_parameter(tmp_path):
    """Marked values are planted in the data and searched for in the bytes of all messages from nodes."""
    items = [f"item {n}" for n in range(30)]
    lines = ["user,item,rating,timestamp"]
    rng = np.random.default_rng(1)
    for person in range(30):
        for time, item in enumerate(rng.permutation(30)[:9]):
            lines.append(f"secret-name-{person},{items[item]},{1.0 + 3.1415927 * (person == 3)},{time}")
    (tmp_path / "data.csv").write_text("\n".join(lines))
    folder, grid = federation_in_process(tmp_path / "run", data=str(tmp_path / "data.csv"), method="fedrap", rounds=2)
    assert serve_run(folder, grid)
    sent_bytes = b"".join(bytes_of(reply) for reply in grid.replies)
    assert len(sent_bytes) > 10_000 and b"params/item" in sent_bytes
    planted = [b"secret-name", np.float32(4.1415927).tobytes(), np.float64(1.0 + 3.1415927).tobytes(), b"4.14159"]
    for path in folder.path.glob("federation/nodes/*/store/*/final-*.safetensors"):
        stored, _ = load_params(path)
        user = stored["stacked.user"].numpy()
        planted += [row.tobytes() for row in user]
    for node in range(3):
        shard = load_shard(folder.path / "federation" / "nodes" / f"node-{node}" / "shard.safetensors")
        train = shard.data.histories["train"]
        planted += [train.of(person).tobytes() for person in shard.own if len(train.of(person)) > 2]
    assert len(planted) > 60 and not [value for value in planted if value in sent_bytes]


def bytes_of(message):
    """The contents of a message."""
    out = b""
    for record in message.content.config_records.values():
        for value in record.values():
            out += value if isinstance(value, bytes) else str(value).encode()
    return out


def test_flower_apps_can_be_created_twice_and_import_no_torch():
    """Every process of a node loads both apps. In version 0.8.0 the first use put a module in a function's place."""
    lines = ["import sys", "from fedtaste.flower import client_app, server_app", "client_app(), server_app()"]
    lines += [lines[1], lines[2], "assert 'torch' not in sys.modules"]
    process = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, timeout=120)
    assert process.returncode == 0, process.stderr


def test_message_headers_carry_the_number_of_the_node(tmp_path):
    clients, grid, plan, nodes, federation = three_nodes(tmp_path)
    over_flower(clients, plan, 1)
    heads = [decode(unpack_content(reply)[1])[1] for reply in grid.replies if reply.metadata.message_type == "train"]
    assert sorted(heads) == [Head(7, 0, place) for place in range(3)]


# Validation of orders, hellos and metrics


@pytest.mark.parametrize(
    "fields",
    [
        {"phase": "../../etc/x"}, {"catalogue": "../x"}, {"run": -1}, {"round": -1}, {"base": 2**40}, {"passes": 10**9},
        {"action": "delete"}, {"more": 1}, {"cohort": ["x"]}, {"settings": "none"}, {"cohort": [10**30]},
        {"cohort": [-1]}, {"key": 10**30}, {"key": "ab"}, {"noise_share": 2}, {"noise_share": -1},
        {"noise_share": float("nan")}, {"people": -1}, {"people": float("inf")},
    ],
    ids=str,
)  # fmt: skip
def test_a_node_refuses_invalid_orders(fields, tmp_path):
    order = {"action": "train", "version": fedtaste.__version__, **COMMON_FIELDS, **fields}
    app, context = client_app(), new_context(11, data="x", store=str(tmp_path / "s"), name="node-0")
    message = Message(RecordDict({"fedtaste": ConfigRecord({"json": json.dumps(order), "blob": b""})}), 11, "train")
    reply = app(message, context)
    assert "does not know" in json.loads(unpack_content(reply)[0])["error"]
    assert not (tmp_path / "s").exists()


def hello_with(**changes):
    """A hook that changes the hello of node 13."""

    def hook(ask, reply):
        if order_of(ask)["action"] != "hello" or ask.metadata.dst_node_id != 13:
            return reply
        text, blob = unpack_content(reply)
        hello = json.loads(text)
        upload, head = decode(blob)
        total = dict(upload.total)
        for name, value in changes.items():
            if name in total:
                total[name] = value
            else:
                hello[name] = (hello[name] | value if value else {}) if isinstance(value, dict) else value
        record = ConfigRecord({"json": json.dumps(hello), "blob": encode(Upload(total, upload.weight), head)})
        return Message(RecordDict({"fedtaste": record}), reply_to=ask)

    return hook


@pytest.mark.parametrize(
    "changes, reason",
    [
        ({"people": -3}, "no valid hello"), ({"people": 10**12}, "no valid hello"), ({"people": 9}, "number of people"),
        ({"final": torch.arange(8)}, "same numbers"), ({"final": torch.arange(-8, 0)}, "who learns"),
        ({"final": torch.zeros(8, dtype=torch.int64)}, "who learns"),
        ({"person_hashes": torch.zeros(8, dtype=torch.int64)}, "number of people"),
        ({"facts": {}}, "not valid"), ({"facts": {"kind": "\x1b[31mX"}}, "not valid"),
        ({"facts": {"people": "x"}}, "not valid"), ({"facts": {"people": None}}, "not valid"),
        ({"facts": {"scale": ["a", "b"]}}, "not valid"), ({"facts": {"scale": []}}, "not valid"),
        ({"facts": {"scale": [float("nan"), 1.0]}}, "not valid"), ({"facts": {"more": 1}}, "not valid"),
        ({"facts": {"shape": [10**6, 10**6]}}, "not valid"), ({"facts": {"width": 10**12}}, "not valid"),
        ({"version": "0.0.1"}, "0.0.1"), ({"own": True}, "Use one kind"), ({"name": "\x1b[2Jnode"}, ""),
    ],
    ids=str,
)  # fmt: skip
def test_the_server_refuses_an_invalid_hello(changes, reason, tmp_path):
    method, model, federation = world(*METHOD)
    grid, plan, nodes = nodes_of(method, model, federation, facts_of("ranking", federation), tmp_path)
    grid.hook = hello_with(**changes)
    log = []
    if reason:
        with pytest.raises(fedtaste.DataError, match=reason):
            clients_of(grid, plan, 0.3, log.append, 3)
    else:
        clients_of(grid, plan, 0.3, log.append, 3)
    assert not any("\x1b" in text for text in log)


TALLY = {"kind": "ranking", "people": 20, "sums": {"sampled.hr@10": [5.0, 5.0]}}


@pytest.mark.parametrize(
    "lie",
    [
        {"people": 10**9}, {"people": -1}, {"people": 1.5}, {"kind": "numbers"}, {"kind": "x"}, {"sums": {}},
        {"sums": {"x": [1.0, 1.0]}}, {"sums": {"sampled.hr@10": [21.0, 5.0]}},
        {"sums": {"sampled.hr@10": [10**400, 5.0]}},
        {"sums": {"sampled.hr@10": [float("nan"), 5.0]}}, {"sums": {"sampled.hr@10": ["a", 5.0]}}, {"sums": 3},
        {"sums": {"sampled.hr@10": [1.0]}},
    ],
    ids=lambda lie: str(lie)[:40],
)  # fmt: skip
def test_invalid_metrics_of_a_node_are_left_out(lie):
    assert valid_metrics(MetricReport(seen=TALLY), "ranking", 20, 0)
    assert not valid_metrics(MetricReport(seen=TALLY | lie), "ranking", 20, 0)
    assert not valid_metrics(MetricReport(new=TALLY), "ranking", 20, 0)


def test_a_node_refuses_a_cohort_smaller_than_its_setting_fewest(tmp_path):
    method, model, federation = world(*METHOD)
    grid, plan, nodes = nodes_of(method, model, federation, facts_of("ranking", federation), tmp_path)
    node = Node({**nodes[11].config, "fewest": 3}, nodes[11].load)
    download = encode(Download(begin(method, model, federation, 1).shared, torch.tensor(0.0)))
    order = Order(action="train", version=fedtaste.__version__, phase="final", cohort=[1, 2], **COMMON_FIELDS)
    assert "3 people or more" in node.answer(order, download)[0].error
    assert node.answer(order.model_copy(update={"cohort": [1, 2, 3]}), download)[0].answered == 3


def test_a_federation_on_one_machine_listens_on_loopback_only(tmp_path):
    with pytest.raises(SettingError, match="--host must be 127.0.0.1"):
        prepare_federation(tmp_path / "run", Settings(data=TINY), load(TINY), FederationSettings(host="0.0.0.0"))
