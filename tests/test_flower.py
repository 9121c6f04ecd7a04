"""A federation over messages: the same run as on one machine, through faults, liars and restarts. The grid is in this
process (flower_grid.py), every message is bytes; test_federate.py has real SuperLinks and SuperNodes."""

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
from fedtaste.flower.shards import cut_shards, load_shard, shard_from_file
from fedtaste.flower.validation import refuse_unfit, valid_metrics
from fedtaste.wire.messages import Head, decode, encode
from support.flower_grid import new_context, wired
from support.flower_worlds import WORDS, clients_of, dealt, facts_of, nodes_of, over_flower, private_of, served
from support.states import assert_close
from support.worlds import world

TINY = "synthetic:60x40x900"
METHOD = ("fedrap", {"lr": 0.1, "table_lr": 5.0, "passes": 2, "weight_decay": 0.01}, "ranking")


def on_one_machine(folder, **words):
    settings = Settings(**words)
    data = load(settings.data, seed=settings.seed)
    made = RunFolder.create(folder, settings.model_dump(), data, fedtaste.__version__)
    return execute(prepare(settings, data), made).dump(), load_params(folder / "model.safetensors")[0]


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


@pytest.mark.parametrize("words", SAME, ids=lambda words: "-".join(str(v) for v in words.values()))
def test_a_whole_run_is_the_same(words, tmp_path):
    """Search, choice of the round, final training, judgement: parameters, accuracy and the JSON's keys."""
    words = {"data": TINY} | words
    expected, model = on_one_machine(tmp_path / "one", **words)
    folder, grid = dealt(tmp_path / "many", **words)
    got = served(folder, grid)
    assert got is not None, (folder.path / "federation" / "server.log").read_text()
    assert_close(load_params(folder.path / "model.safetensors")[0], model, 1e-6)
    for part in ("rounds", "best_round", "people", "members", "items", "interactions", "settings", "gradients"):
        assert got[part] == expected[part], part
    if words["method"] == "fedveil":  # the server has titles and genres in items.json, and nodes have neither
        assert got["settings"]["route"] == "features" and got["feature_count"] == expected["feature_count"] > 0
    for part in ("seen", "new"):
        found, wanted = _flat(got[part]), _flat(expected[part])
        wanted = {n: v for n, v in wanted.items() if not n.endswith("_error")}  # made data's truth
        assert found == pytest.approx(wanted, abs=5e-5), part
        spread = _flat(got["intervals"][part])
        for name, (low, high) in spread.items():
            assert low <= found[name] + 1e-6 and found[name] - 1e-6 <= high, name
    assert set(expected) - set(got) <= {"weights", "true_weights", "by_client"}
    assert set(got) - set(expected) == {"federation"}
    searched = len(expected["curve"]) if any(point["valid"] for point in expected["curve"]) else 0
    assert [(e["phase"], e["round"]) for e in got["federation"]["history"]] == [
        *(("search", n + 1) for n in range(searched)),
        *(("final", n + 1) for n in range(expected["rounds"])),
    ]  # fmt: skip


@pytest.mark.parametrize("words", PRIVATE, ids=lambda words: "-".join(str(v) for v in words.values()))
def test_a_private_run_promises_the_same_with_noise_of_its_own(words, tmp_path):
    """Epsilon, delta, against whom; never the same numbers, as everybody draws from keys of their own."""
    words = {"data": TINY} | words
    expected, model = on_one_machine(tmp_path / "one", **words)
    folder, grid = dealt(tmp_path / "many", **words)
    got = served(folder, grid)
    assert got is not None, (folder.path / "federation" / "server.log").read_text()
    assert got["privacy"] == expected["privacy"] and got["privacy"]["epsilon"] > 0
    for part in ("rounds", "people", "members", "items", "interactions", "settings"):
        assert got[part] == expected[part], part
    found = load_params(folder.path / "model.safetensors")[0]
    assert {name: value.shape for name, value in found.items()} == {name: value.shape for name, value in model.items()}
    assert not any(torch.equal(found[name], model[name]) for name in model if model[name].numel() > 1)
    assert {name for entry in got["federation"]["history"] for name in entry} == {"phase", "round", "seconds"}
    assert got["rejected_updates"] == {} and set(got) - set(expected) == {"federation"}


def _flat(found, front=""):
    out = {}
    for name, value in (found or {}).items():
        out |= _flat(value, f"{front}{name}.") if isinstance(value, dict) else {f"{front}{name}": value}
    return out


def test_tallies_are_what_everybodys_figures_give():
    rng = np.random.default_rng(0)
    ranks, owners = rng.integers(1, 40, 300), np.repeat(np.arange(100), 3)
    errors = rng.normal(size=300)
    accuracy = {"accuracy": rng.uniform(size=40).tolist(), "loss": rng.uniform(size=40).tolist()}
    whole = [
        RankingMetrics.of_ranks((ranks, owners), (ranks, owners)), PredictionErrors(errors.tolist(), owners.tolist()),
        ClientMetrics(accuracy, rng.integers(5, 50, 40).tolist()),
    ]  # fmt: skip
    third = owners % 3
    parts = [
        [RankingMetrics.of_ranks(*[(ranks[third == n], owners[third == n])] * 2) for n in range(3)],
        [PredictionErrors(errors[third == n].tolist(), owners[third == n].tolist()) for n in range(3)],
        [ClientMetrics({k: v[n::3] for k, v in accuracy.items()}, whole[2].examples[n::3]) for n in range(3)],
    ]  # fmt: skip
    for one, several in zip(whole, parts):
        words = json.loads(json.dumps([tally(part) for part in several]))
        merged = Tallied(words)
        assert _flat(merged.values) == pytest.approx(_flat(one.values), abs=1e-6)
        wanted, found = _flat(one.intervals), _flat(merged.intervals)
        assert found.keys() == wanted.keys()
        for name, (low, high) in wanted.items():
            assert found[name] == pytest.approx([low, high], abs=0.35 * (high - low))


# Faults


def small(tmp_path, hook=None, deadline=0.6):
    """(clients, grid, plan, nodes, federation) of three nodes with a method that has private parameters."""
    method, model, federation = world(*METHOD)
    grid, made, nodes = nodes_of(method, model, federation, facts_of("ranking", federation), tmp_path)
    clients = clients_of(grid, made, deadline)
    grid.hook = hook
    return clients, grid, made, nodes, federation


def simulated(made, federation, missing, rounds=4):
    """Everybody on one machine, where in some rounds (from 1) some nodes' people do not answer."""
    thirds = dict(zip(("node-11", "node-12", "node-13"), np.array_split(np.arange(federation.people), 3)))
    asked = federation.cohort

    def cohort(round, **more):
        everybody, answering = asked(round, **more)
        out = [person for name in missing.get(round + 1, ()) for person in thirds[name]]
        return everybody, np.setdiff1d(answering, out)

    federation.cohort = cohort
    return list(run(made.method, made.model, federation, rounds=rounds, seed=1))[-1].state


def told(ask):
    return json.loads(unpack_content(ask)[0])


def check_equal(got, made, nodes, federation, missing, base=4):
    expected = simulated(made, federation, missing)
    assert_close(got.shared, expected.shared, 1e-6)
    if base:
        everyone = np.arange(federation.people)
        assert_close(private_of(made, nodes, federation, base), expected.private.gather(everyone), 1e-5)


def test_a_node_that_misses_a_round_is_as_if_it_had_dropped_out(tmp_path):
    """Its private parameters too: what it computed for a round that was not counted is undone."""

    def lost(ask, reply):
        order = told(ask)
        return None if order["action"] == "train" and order["round"] == 1 and ask.metadata.dst_node_id == 12 else reply

    clients, grid, made, nodes, federation = small(tmp_path, hook=lost)
    got = over_flower(clients, made, 4)
    check_equal(got, made, nodes, federation, {2: ["node-12"]})
    assert [entry["nodes"] for entry in clients.history][1] == ["node-11", "node-13"]


def test_a_late_answer_is_refused_and_counted(tmp_path):
    """It arrives while the next round is under way."""
    held = {}

    def late(ask, reply):
        here = told(ask)["action"], told(ask)["round"], ask.metadata.dst_node_id
        if here == ("train", 1, 12):
            held[ask.metadata.message_id] = reply
            return None
        if here == ("train", 2, 11):
            for name, message in held.items():
                grid._waiting[name].append((0.0, wired(message)[0]))
        return reply

    clients, grid, made, nodes, federation = small(tmp_path, hook=late, deadline=0.6)
    check_equal(over_flower(clients, made, 4), made, nodes, federation, {2: ["node-12"]})
    assert [entry["refused"] for entry in clients.history] == [{}, {}, {"late": 1}, {}]


def test_a_node_that_dies_with_the_question_is_asked_again_when_it_is_back(tmp_path):
    clients, grid, made, nodes, federation = small(tmp_path)
    died = []

    def lost(ask, reply):
        if told(ask)["action"] == "train" and told(ask)["round"] == 1 and ask.metadata.dst_node_id == 12 and not died:
            died.append(1)
            from support.flower_grid import _unavailable

            return _unavailable(ask)
        return reply

    grid.hook = lost
    check_equal(over_flower(clients, made, 4), made, nodes, federation, {})
    assert died and all(len(entry["nodes"]) == 3 for entry in clients.history)


def test_a_node_that_is_away_and_comes_back(tmp_path):
    clients, grid, made, nodes, federation = small(tmp_path)
    asked = []

    def watch(ask, reply):
        asked.append(told(ask)["round"])
        grid.offline = {13} if max(asked) in (0, 1) else set()
        return reply

    grid.hook = watch
    got = over_flower(clients, made, 4)
    away = [entry["round"] for entry in clients.history if "node-13" not in entry["nodes"]]
    assert away and len(away) < 4
    check_equal(got, made, nodes, federation, {n: ["node-13"] for n in away})


def test_a_node_that_joins_later_is_asked_from_the_next_round_on(tmp_path):
    clients, grid, made, nodes, federation = small(tmp_path)
    app, context = grid.apps.pop(13), grid.context(13)
    late = clients_of(grid, made, 0.6)

    def join(ask, reply):
        if told(ask)["action"] == "train" and told(ask)["round"] == 1 and 13 not in grid.apps:
            grid.join(13, app, context)
        return reply

    grid.hook = join
    got = over_flower(late, made, 4)
    first = [entry["round"] for entry in late.history if "node-13" in entry["nodes"]]
    assert first == [3, 4] or first == [4]
    missing = {n: ["node-13"] for n in range(1, 5) if n not in first}
    expected = simulated(made, federation, missing)
    assert_close(got.shared, expected.shared, 1e-6)


def test_too_few_nodes_end_the_run_with_what_to_do(tmp_path):
    clients, grid, made, nodes, federation = small(tmp_path, deadline=0.2)
    grid.dead = {11, 12}
    with pytest.raises(RunError, match="start the missing nodes"):
        over_flower(clients, made, 4)
    grid.dead = set()
    assert over_flower(clients, made, 4).round == 4


@pytest.mark.parametrize("when", [1, 2])
def test_a_server_that_dies_goes_on_from_its_last_round(tmp_path, when):
    """Killed after the nodes have computed a round and before it was kept: the round is asked for again and counted
    once, and private parameters are those of a run without the death."""
    words = {"data": TINY, "method": "fedrap", "rounds": 3}
    expected, model = on_one_machine(tmp_path / "one", **words)
    folder, grid = dealt(tmp_path / "many", **words)

    class Killed(BaseException):
        pass

    def kill(ask, reply):
        order = told(ask)
        here = (order["action"], order["phase"], order["round"], ask.metadata.dst_node_id)
        if here == ("train", "final", when - 1, 13) and not killed:
            killed.append(1)
            raise Killed
        return reply

    killed = []
    grid.hook = kill
    with pytest.raises(Killed):
        served(folder, grid)
    got = served(folder, grid)
    assert killed and got is not None
    assert_close(load_params(folder.path / "model.safetensors")[0], model, 1e-6)
    assert _flat(got["seen"]) == pytest.approx(_flat(expected["seen"]), abs=5e-5)
    finals = [entry["round"] for entry in got["federation"]["history"] if entry["phase"] == "final"]
    assert finals == list(range(1, expected["rounds"] + 1))
    private = load_params(tmp_path / "one" / "final.safetensors")[0]
    number = expected["rounds"]
    for place in range(3):
        path = next((folder.path / "federation" / "nodes" / f"node-{place}" / "store").glob(f"*/final-{number}.safe*"))
        kept, about = load_params(path)
        own = torch.tensor(about["people"])
        for name in kept:
            if name.startswith("stacked."):
                assert torch.allclose(kept[name], private[f"private.{name}"][own], atol=1e-5), name


# Liars


def twisted(how):
    """A node's upload, changed."""

    def hook(ask, reply):
        order = told(ask)
        if order["action"] != "train" or ask.metadata.dst_node_id != 13:
            return reply
        words, blob = unpack_content(reply)
        upload, head = decode(blob)
        changed = how(upload, head)
        blob = changed if isinstance(changed, bytes) else encode(*changed)
        return Message(RecordDict({"fedtaste": ConfigRecord({"json": words, "blob": blob})}), reply_to=ask)

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
def test_a_liar_is_refused_by_reason_and_the_honest_result_is_unchanged(lie, tmp_path):
    how, reason = LIES[lie]
    clients, grid, made, nodes, federation = small(tmp_path, hook=twisted(how))
    got = over_flower(clients, made, 3)
    assert [entry["refused"].get(reason) for entry in clients.history] == [1, 1, 1], clients.history
    assert all("node-13" not in entry["nodes"] for entry in clients.history)
    expected = simulated(made, federation, {n: ["node-13"] for n in (1, 2, 3)}, 3)
    assert_close(got.shared, expected.shared, 1e-6)


def test_an_answer_that_comes_twice_counts_once(tmp_path):
    clients, grid, made, nodes, federation = small(tmp_path, hook=lambda ask, reply: [reply, reply])
    check_equal(over_flower(clients, made, 4), made, nodes, federation, {})


@pytest.mark.parametrize(
    "words",
    [
        "",
        "{",
        "[]",
        '{"answered": -1}',
        '{"answered": 10000}',
        '{"answered": 8, "refused": {"made up": 1}}',
        '{"answered": "many"}',
    ],
)
def test_words_that_cannot_be_true_are_refused(words, tmp_path):
    def lie(ask, reply):
        if told(ask)["action"] != "train" or ask.metadata.dst_node_id != 13:
            return reply
        blob = unpack_content(reply)[1]
        return Message(RecordDict({"fedtaste": ConfigRecord({"json": words, "blob": blob})}), reply_to=ask)

    clients, grid, made, nodes, federation = small(tmp_path, hook=lie)
    over_flower(clients, made, 2)
    assert [entry["refused"] for entry in clients.history] == [{"not a message": 1}] * 2


# Secure sums


@pytest.mark.parametrize("wire", ["secure", "clip=1.0,secure"])
def test_a_secure_sum_is_the_plain_sum_within_its_step(wire, tmp_path):
    words = {"data": TINY, "method": "fedmf", "rounds": 2}
    folder, grid = dealt(tmp_path / "plain", 4, wire=wire.replace("secure", "").strip(","), **words)
    plain = served(folder, grid, 4)
    hidden, grid = dealt(tmp_path / "secure", 4, wire=wire, **words)
    got = served(hidden, grid, 4)
    assert plain and got, (hidden.path / "federation" / "server.log").read_text()
    a, b = (load_params(f.path / "model.safetensors")[0] for f in (folder, hidden))
    assert_close(b, a, 1e-6)
    assert _flat(got["seen"]) == pytest.approx(_flat(plain["seen"]), abs=2e-3)
    assert not any(b"params/item" in _bytes(reply) for reply in grid.replies)  # in clear no node sent its upload
    assert any(
        b"params/person_hashes" in _bytes(reply) for reply in grid.replies
    )  # and what is in clear would be found


def test_noise_is_added_by_the_nodes_where_sums_are_secure(tmp_path):
    words = {"data": TINY, "method": "fedmf", "rounds": 2, "wire": "clip=1.0,noise=1.0,secure"}
    folder, grid = dealt(tmp_path / "secure", 4, **words)
    got = served(folder, grid, 4)
    assert got, (folder.path / "federation" / "server.log").read_text()
    assert got["privacy"]["epsilon"] > 0 and "server" in got["privacy"]["against"]
    quiet, grid = dealt(tmp_path / "quiet", 4, **(words | {"wire": "clip=1.0,secure"}))
    assert served(quiet, grid, 4)
    a, b = (load_params(f.path / "model.safetensors")[0]["item"] for f in (folder, quiet))
    assert float((a - b).abs().max()) > 1e-4


def test_a_node_refuses_to_say_in_clear_what_was_to_be_hidden(tmp_path):
    folder, grid = dealt(tmp_path / "secure", 4, data=TINY, method="fedmf", rounds=1, wire="secure")
    node = Node(grid.context(11).node_config)
    order = Order(
        action="train", version=fedtaste.__version__, **(WORDS | {"settings": folder.settings().model_dump()})
    )
    answer, blob = node.answer(order, b"")
    assert "secure sums only" in answer.error and not blob


def test_a_secure_round_that_may_have_been_opened_is_not_answered_twice(tmp_path):
    """The server dies after the sum and before it kept it: the round is lost, and nobody's difference is had."""
    words = {"data": TINY, "method": "fedmf", "rounds": 3, "wire": "secure"}
    folder, grid = dealt(tmp_path / "secure", 4, **words)

    class Killed(BaseException):
        pass

    from fedtaste.flower import server

    whole, killed = server.FlowerClients._add, []

    def dies(self, *more):
        if not killed:
            killed.append(1)
            raise Killed
        return whole(self, *more)

    server.FlowerClients._add = dies
    try:
        with pytest.raises(Killed):
            served(folder, grid, 4)
    finally:
        server.FlowerClients._add = whole
    got = served(folder, grid, 4)
    assert got and got["rejected_updates"].get("abandoned")
    first = got["federation"]["history"][0]
    assert (
        first["round"] == 1
        and first["nodes"] == []
        and all(len(e["nodes"]) == 4 for e in got["federation"]["history"][1:])
    )


# Who is here


def error_of(folder):
    status = json.loads((folder.path / "federation" / "status.json").read_text())
    assert status["state"] == "error"
    return status["reason"]


def test_two_nodes_that_claim_the_same_people_are_refused(tmp_path):
    folder, grid = dealt(tmp_path / "run", data=TINY, rounds=1)
    grid.join(
        14,
        client_app(),
        new_context(14, **(grid.context(11).node_config | {"name": "copy", "store": str(tmp_path / "s")})),
    )
    assert served(folder, grid, 4) is None
    assert "both claim 20 people" in error_of(folder)


def test_a_node_of_another_version_is_refused_on_both_sides(tmp_path, monkeypatch):
    folder, grid = dealt(tmp_path / "run", data=TINY, rounds=1)
    monkeypatch.setattr("fedtaste.flower.node.__version__", "9.9")
    assert served(folder, grid) is None
    assert "fedtaste 9.9" in error_of(folder) and "Install the same version" in error_of(folder)


def test_a_node_with_another_catalogue_is_refused(tmp_path):
    folder, grid = dealt(tmp_path / "run", data=TINY, rounds=1)
    other, _ = dealt(tmp_path / "other", data="synthetic:60x41x900", rounds=1)
    strange = str(other.path / "federation" / "nodes" / "node-0" / "shard.safetensors")
    grid.join(11, client_app(), new_context(11, **(grid.context(11).node_config | {"data": strange})))
    assert served(folder, grid) is None
    assert "another catalogue" in error_of(folder)


@pytest.mark.parametrize(
    "config, words",
    [
        ({"data": ""}, "has no data"),
        ({"data": "/nowhere/people.csv"}, "does not exist"),
        ({"store": ""}, "has no store"),
        ({"data": "empty.csv"}, "empty.csv"),
        ({"data": "strange.csv"}, "not in the federation's catalogue"),
    ],
)
def test_a_node_that_cannot_take_part_says_why(config, words, tmp_path):
    (tmp_path / "empty.csv").write_text("user,item\n")
    (tmp_path / "strange.csv").write_text("user,item\nanna,no such thing\nanna,other\nbert,other\n")
    folder, grid = dealt(tmp_path / "run", data=TINY, rounds=1)
    config = {k: str(tmp_path / v) if v.endswith(".csv") and "/" not in v else v for k, v in config.items()}
    grid.join(11, client_app(), new_context(11, **(grid.context(11).node_config | config)))
    assert served(folder, grid) is None
    assert words in error_of(folder), error_of(folder)


def test_nodes_that_never_come_end_the_wait(tmp_path):
    folder, grid = dealt(tmp_path / "run", data=TINY, rounds=1)
    assert served(folder, grid, 5, deadline=0.5) is None
    assert "3 nodes of 5 said hello" in error_of(folder)


def test_nodes_bring_files_of_their_own(tmp_path):
    """Nobody has the whole data set: a catalogue on the server, a CSV on every node, people who only meet as sums."""
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
    from fedtaste.flower.server import serve
    from support.flower_grid import LocalGrid

    settings = Settings(data="shops", method="fedrap", rounds=2, cohort=0.5)
    result = serve(LocalGrid(apps), {
        "folder": str(tmp_path / "run"), "nodes": 3, "deadline": 5, "settings": json.dumps(settings.model_dump()),
        "catalogue": str(tmp_path / "catalogue.json"),
    })  # fmt: skip
    assert result is not None, (tmp_path / "run" / "federation" / "server.log").read_text()
    assert result.people == 36 and result.items == 30 and 1 <= result.federation.history[0].people <= 36
    assert "p0-" not in (tmp_path / "run" / "settings.json").read_text()


# What is on disk, and what is said


def test_a_shard_holds_its_own_people_and_nobody_else(tmp_path):
    settings = Settings(data=TINY)
    data = load(TINY)
    parts = cut_shards(data, settings, 4)
    assert sorted(np.concatenate([part.own for part in parts]).tolist()) == list(range(60))
    for part in parts:
        part.save(tmp_path / "shard.safetensors")
        back = load_shard(tmp_path / "shard.safetensors")
        for name, held in back.data.histories.items():
            assert set(np.flatnonzero(held.lengths)) <= set(part.own.tolist()), name
            assert np.array_equal(held.items, part.data.histories[name].items)
    assert (tmp_path / "shard.safetensors").stat().st_mode & 0o77 == 0
    with pytest.raises(SettingError, match="must be 1 to 60"):
        cut_shards(data, settings, 61)


def test_marks_tell_the_same_person_and_two_runs_apart(tmp_path):
    (tmp_path / "a.csv").write_text("user,item\nanna,x\nanna,y\nbert,x\n")
    shard = shard_from_file(tmp_path / "a.csv", Settings(), ("x", "y", "z"))
    assert shard.person_hashes(1).tolist() == shard.person_hashes(1).tolist() != shard.person_hashes(2).tolist()
    assert len(set(shard.person_hashes(1).tolist())) == 2 and "anna" not in str(shard.person_hashes(1))


def test_a_store_that_was_lost_is_told_and_nothing_is_made_up(tmp_path):
    clients, grid, made, nodes, federation = small(tmp_path, deadline=0.3)
    over_flower(clients, made, 2)
    for path in (tmp_path / "node-12").glob("*/final-*.safetensors"):
        path.unlink()
    said = []
    clients.membership.log = said.append
    state = begin(made.method, made.model, clients.federation("final"), made.seed)
    state.round = 2
    list(run(made.method, made.model, clients._federations["final"], rounds=3, seed=1, run_id=7,
             clients=clients.clients("final"), state=state))  # fmt: skip
    assert any("Restore the store" in words for words in said)
    assert clients.history[-1]["nodes"] == ["node-11", "node-13"]


@pytest.mark.parametrize(
    "words, said",
    [
        ({"wire": "trim=0.1"}, "trim needs single"),
        ({"wire": "secure=10"}, "Use secure alone"),
        ({"new_people": "folds"}, "ten more times"),
        ({"protocol": "published"}, "reads the test items"),
    ],
)
def test_what_nodes_elsewhere_cannot_do_is_refused(words, said):
    with pytest.raises(SettingError, match=said):
        refuse_unfit(Settings(**words))


def test_a_method_that_holds_everybodys_data_is_refused(tmp_path):
    with pytest.raises(SettingError, match="no federation can run it"):
        dealt(tmp_path / "run", data=TINY, method="centralised", rounds=1)
    assert not (tmp_path / "run").exists()


def test_no_rating_no_name_and_no_private_number_is_in_any_message(tmp_path):
    """Planted values, searched for in the bytes of everything that nodes sent."""
    items = [f"item {n}" for n in range(30)]
    lines = ["user,item,rating,timestamp"]
    rng = np.random.default_rng(1)
    for person in range(30):
        for time, item in enumerate(rng.permutation(30)[:9]):
            lines.append(f"secret-name-{person},{items[item]},{1.0 + 3.1415927 * (person == 3)},{time}")
    (tmp_path / "data.csv").write_text("\n".join(lines))
    folder, grid = dealt(tmp_path / "run", data=str(tmp_path / "data.csv"), method="fedrap", rounds=2)
    assert served(folder, grid)
    sent = b"".join(_bytes(reply) for reply in grid.replies)
    assert len(sent) > 10_000 and b"params/item" in sent
    planted = [b"secret-name", np.float32(4.1415927).tobytes(), np.float64(1.0 + 3.1415927).tobytes(), b"4.14159"]
    for path in folder.path.glob("federation/nodes/*/store/*/final-*.safetensors"):
        kept, _ = load_params(path)
        user = kept["stacked.user"].numpy()
        planted += [row.tobytes() for row in user]
    for node in range(3):
        shard = load_shard(folder.path / "federation" / "nodes" / f"node-{node}" / "shard.safetensors")
        train = shard.data.histories["train"]
        planted += [train.of(person).tobytes() for person in shard.own if len(train.of(person)) > 2]
    assert len(planted) > 60 and not [value for value in planted if value in sent]


def _bytes(message):
    out = b""
    for record in message.content.config_records.values():
        for value in record.values():
            out += value if isinstance(value, bytes) else str(value).encode()
    return out


def test_the_apps_of_a_federation_import_no_torch_and_can_be_made_again():
    """Every process of a node loads both apps. In version 0.8.0 the first use put a module in a function's place."""
    lines = ["import sys", "from fedtaste.flower import client_app, server_app", "client_app(), server_app()"]
    lines += [lines[1], lines[2], "assert 'torch' not in sys.modules"]
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_heads_bear_the_place_of_the_node(tmp_path):
    clients, grid, made, nodes, federation = small(tmp_path)
    over_flower(clients, made, 1)
    heads = [decode(unpack_content(reply)[1])[1] for reply in grid.replies if reply.metadata.message_type == "train"]
    assert sorted(heads) == [Head(7, 0, place) for place in range(3)]


# What the other side may not say


@pytest.mark.parametrize(
    "words",
    [
        {"phase": "../../etc/x"}, {"catalogue": "../x"}, {"run": -1}, {"round": -1}, {"base": 2**40}, {"passes": 10**9},
        {"action": "delete"}, {"more": 1}, {"cohort": ["x"]}, {"settings": "none"}, {"cohort": [10**30]}, {"cohort": [-1]},
        {"key": 10**30}, {"key": "ab"}, {"noise_share": 2}, {"noise_share": -1}, {"noise_share": float("nan")}, {"people": -1},
        {"people": float("inf")},
    ],
    ids=str,
)  # fmt: skip
def test_orders_that_no_server_of_ours_gives_are_refused(words, tmp_path):
    order = {"action": "train", "version": fedtaste.__version__, **WORDS, **words}
    app, context = client_app(), new_context(11, data="x", store=str(tmp_path / "s"), name="node-0")
    message = Message(RecordDict({"fedtaste": ConfigRecord({"json": json.dumps(order), "blob": b""})}), 11, "train")
    reply = app(message, context)
    assert "does not know" in json.loads(unpack_content(reply)[0])["error"]
    assert not (tmp_path / "s").exists()


def hello_with(**changes):
    """A node's hello, changed."""

    def hook(ask, reply):
        if told(ask)["action"] != "hello" or ask.metadata.dst_node_id != 13:
            return reply
        words, blob = unpack_content(reply)
        found = json.loads(words)
        upload, head = decode(blob)
        total = dict(upload.total)
        for name, value in changes.items():
            if name in total:
                total[name] = value
            else:
                found[name] = (found[name] | value if value else {}) if isinstance(value, dict) else value
        record = ConfigRecord({"json": json.dumps(found), "blob": encode(Upload(total, upload.weight), head)})
        return Message(RecordDict({"fedtaste": record}), reply_to=ask)

    return hook


@pytest.mark.parametrize(
    "changes, said",
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
def test_a_hello_that_cannot_be_true_is_turned_away(changes, said, tmp_path):
    method, model, federation = world(*METHOD)
    grid, made, nodes = nodes_of(method, model, federation, facts_of("ranking", federation), tmp_path)
    grid.hook = hello_with(**changes)
    heard = []
    if said:
        with pytest.raises(fedtaste.DataError, match=said):
            clients_of(grid, made, 0.3, heard.append, 3)
    else:
        clients_of(grid, made, 0.3, heard.append, 3)
    assert not any("\x1b" in text for text in heard)


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
def test_figures_that_cannot_be_true_are_left_out(lie):
    assert valid_metrics(MetricReport(seen=TALLY), "ranking", 20, 0)
    assert not valid_metrics(MetricReport(seen=TALLY | lie), "ranking", 20, 0)
    assert not valid_metrics(MetricReport(new=TALLY), "ranking", 20, 0)


def test_a_node_answers_for_as_many_people_as_it_wants_at_least(tmp_path):
    method, model, federation = world(*METHOD)
    grid, made, nodes = nodes_of(method, model, federation, facts_of("ranking", federation), tmp_path)
    node = Node({**nodes[11].config, "fewest": 3}, nodes[11].load)
    download = encode(Download(begin(method, model, federation, 1).shared, torch.tensor(0.0)))
    order = Order(action="train", version=fedtaste.__version__, phase="final", cohort=[1, 2], **WORDS)
    assert "3 people or more" in node.answer(order, download)[0].error
    assert node.answer(order.model_copy(update={"cohort": [1, 2, 3]}), download)[0].answered == 3


def test_a_federation_on_one_machine_stays_on_it(tmp_path):
    with pytest.raises(SettingError, match="--host must be 127.0.0.1"):
        prepare_federation(tmp_path / "run", Settings(data=TINY), load(TINY), FederationSettings(host="0.0.0.0"))
