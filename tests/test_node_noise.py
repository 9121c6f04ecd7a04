"""Noise of nodes over Flower: every node draws its own, the total is as promised, and too little noise is refused.

The fixture `one_key` restores the rule of version 0.6.0 (one key for all nodes, which the server knows), so that the
attacks that broke it can be tested.
"""

from __future__ import annotations

import json
import shutil
import stat

import numpy as np
import pytest
import torch

import fedtaste
from fedtaste.core import Download, Examples, Method, Model, StageContext, Upload
from fedtaste.data.interactions import Histories
from fedtaste.engine.backends import Outcome
from fedtaste.engine.checkpoint import load_params
from fedtaste.errors import DataError, RunError
from fedtaste.experiment.folder import RunFolder
from fedtaste.experiment.settings import Settings
from fedtaste.federation import of_histories
from fedtaste.flower import client_app
from fedtaste.flower.membership import Membership
from fedtaste.flower.messages import Order, Refusal, TrainReport, unpack_content
from fedtaste.flower.node import Node
from fedtaste.flower.node_noise import NodeNoise
from fedtaste.flower.server import FlowerClients, federation_facts, open_run
from fedtaste.tasks.base import Facts
from fedtaste.wire.messages import decode, encode
from fedtaste.wire.parse import assemble, parse
from fedtaste.wire.rng import derive, seeded_key
from support.flower_grid import LocalGrid, new_context
from support.flower_worlds import (
    COMMON_FIELDS,
    Killed,
    federation_in_process,
    nodes_of,
    order_of,
    over_flower,
    place_of,
    serve_run,
    serve_to_the_end,
)

PEOPLE, ITEMS, EACH = 24, 20_000, 4  # items that nobody has show the noise alone
CLIP = 4.0  # longer than any upload here (the square root of EACH), so that sums are exact
NODES = (11, 12, 13, 14)
CENTRAL, SECURE, LOCAL = "clip=4,noise=1", "clip=4,noise=1,secure", "clip=4,local=1"
SERVER_KEY = seeded_key(7, "what the server sends")


def likes(person: int) -> list[int]:
    return [EACH * person + place for place in range(EACH)]


def counting_method() -> tuple[Method, Model]:
    """A method in which every person sends a 1 for each of their items. The model is the released sum."""

    def client(down: Download, own: dict, examples: Examples) -> tuple[Upload, dict]:
        items, mask = examples.inputs.flatten(), examples.mask.flatten().float()
        return Upload({"item": torch.zeros(ITEMS).scatter_add(0, items, mask)}, torch.ones(())), own

    method = Method(
        lambda params: (params, {}), client,
        lambda shared, memory, upload: ({"item": upload.total["item"]}, memory), examples="history",
    )  # fmt: skip
    score = lambda params, items: params["item"][items]
    return method, Model(lambda _: {"item": torch.zeros(ITEMS)}, lambda *_: torch.zeros(()), score, catalogue=ITEMS)


class World:
    """Four nodes that count the items of their people, under a `--wire`."""

    def __init__(self, folder, wire, nodes=NODES, missing=(), log=print, **config):
        starts = EACH * np.arange(PEOPLE + 1, dtype=np.int64)
        items = np.array([item for person in range(PEOPLE) for item in likes(person)], np.int32)
        histories = Histories(starts, items, np.ones(len(items), np.float32))
        members = np.setdiff1d(np.arange(PEOPLE), missing)
        method, model = counting_method()
        federation = of_histories(histories, ITEMS, members=members)
        self.wire = assemble(parse(wire), method, [{"item": torch.zeros(ITEMS)}], everybody=PEOPLE)
        facts = Facts("ranking", ITEMS, people=PEOPLE)
        self.grid, self.plan, self.nodes = nodes_of(
            method, model, federation, facts, folder, self.wire, nodes, **config
        )
        self.fields = COMMON_FIELDS | {"settings": Settings(wire=wire).model_dump()}
        self.membership = Membership(self.grid, self.fields, b"", ITEMS, 2.0, log)
        self.clients = None

    def release(self, dead=(), **more) -> np.ndarray:
        """The released sum of one round. `dead` nodes said hello and do not reply to orders."""
        self.membership.gather(len(self.nodes))
        self.clients = FlowerClients(self.membership, federation_facts(self.membership), self.plan)
        self.grid.dead = set(dead)
        return over_flower(self.clients, self.plan, 1, **more).shared["item"].double().numpy()

    def order(self, **more) -> Order:
        noise = {"expected_people": PEOPLE, "noise_share": 1 / len(NODES), "nodes": len(NODES)}
        fields = self.fields | noise | {"phase": "final"} | more
        return Order(action="train", version=fedtaste.__version__, **fields)

    def answer(self, node, **more):
        download = encode(Download({"item": torch.zeros(ITEMS)}, torch.tensor(0.0)))
        return self.nodes[node].answer(self.order(**more), download)

    def sum_of(self, node, **more) -> np.ndarray:
        """The sum that a node sends, in whole steps of the grid."""
        report, blob = self.answer(node, **more)
        assert isinstance(report, TrainReport), report
        total = decode(blob)[0].total["item"]
        assert total.dtype == torch.int64
        return total.numpy()

    def truth(self, node=None, out=()) -> np.ndarray:
        """The sum without noise: of one node, in steps of the grid, or of all nodes except those in `out`."""
        groups = dict(zip(self.nodes, np.array_split(np.arange(PEOPLE), len(self.nodes))))
        people = groups[node] if node else np.setdiff1d(np.arange(PEOPLE), [p for n in out for p in groups[n]])
        counts = np.zeros(ITEMS)
        counts[[item for person in people for item in likes(person)]] = 1.0
        return (counts / self.wire.stage.grid(0)).astype(np.int64) if node else counts

    @property
    def promised(self) -> float:
        """The standard deviation of the release, in steps of the grid: the multiplier is 1."""
        return CLIP / self.wire.stage.grid(0)


@pytest.fixture
def one_key(monkeypatch):
    """The rule of version 0.6.0: every node draws from the key in the order."""
    rule = lambda node, order, plan, digest: StageContext(bytes.fromhex(order.key), order.round, order.expected_people)
    monkeypatch.setattr(NodeNoise, "context", rule)


# H2: noise from a key that the server knows


def noise_of_nodes(world: World) -> np.ndarray:
    return np.stack([world.sum_of(n, key=SERVER_KEY.hex()) - world.truth(n) for n in NODES])


def subtract_known_noise(world: World) -> np.ndarray:
    """The attack: the server computes every node's noise from the key that it sent, and subtracts it from the sum."""
    nothing = Upload({"item": torch.zeros(ITEMS, dtype=torch.int64)}, torch.zeros(()))
    seat = StageContext(derive(SERVER_KEY, "noise"), 0, float(PEOPLE), shares=1 / len(NODES))
    known = world.wire.stage.device_noise(nothing, seat).total["item"].numpy()
    return sum(world.sum_of(n, key=SERVER_KEY.hex()) for n in NODES) - len(NODES) * known


def test_with_one_key_all_nodes_add_the_same_noise_and_the_server_can_subtract_it(one_key, tmp_path):
    world = World(tmp_path, CENTRAL)
    each = noise_of_nodes(world)
    assert all(np.array_equal(each[0], other) for other in each[1:])
    assert each.sum(0).std() / world.promised == pytest.approx(2.0, rel=0.03)  # 4 / sqrt(4)
    assert np.array_equal(subtract_known_noise(world), sum(world.truth(n) for n in NODES))


def test_nodes_draw_their_own_noise_whatever_key_the_server_sends(tmp_path):
    world = World(tmp_path, CENTRAL)
    each = noise_of_nodes(world)
    for node, noise in zip(NODES, each):
        assert noise.std() / world.promised == pytest.approx(0.5, rel=0.03), node
        secret = tmp_path / f"node-{node}" / "secret"
        assert len(secret.read_bytes()) == 32 and stat.S_IMODE(secret.stat().st_mode) == 0o600
    assert np.abs(np.corrcoef(each) - np.eye(len(NODES))).max() < 0.05
    assert each.sum(0).std() / world.promised == pytest.approx(1.0, rel=0.03)
    remaining_noise = subtract_known_noise(world) - sum(world.truth(n) for n in NODES)
    assert remaining_noise.std() > world.promised  # the subtracted numbers add to the noise


def test_no_key_is_in_the_orders_of_a_private_run(tmp_path):
    world = World(tmp_path, CENTRAL)
    world.release()
    trained = [order for order in map(order_of, world.grid.asks) if order["action"] == "train"]
    assert len(trained) == 4 and {order["key"] for order in trained} == {""}
    assert {order["noise_share"] for order in trained} == {0.25}


# H3: two runs with equal noise


def difference_of_two_runs(tmp_path, **more) -> np.ndarray:
    """The release of a deployment, minus that of a second one which person 5 has left."""
    before = World(tmp_path / "before", CENTRAL).release(**more)
    return before - World(tmp_path / "after", CENTRAL, missing=[5]).release(**more)


def items_of(difference: np.ndarray) -> list[int]:
    """The items at which the difference is 1 rather than 0."""
    return np.flatnonzero(difference > 0.5).tolist()


def test_with_equal_noise_the_difference_of_two_runs_names_a_persons_items(one_key, tmp_path, monkeypatch):
    orders = FlowerClients._orders
    with_key = lambda order: order.model_copy(update={"key": SERVER_KEY.hex()})
    monkeypatch.setattr(
        FlowerClients, "_orders", lambda *more: {node: with_key(order) for node, order in orders(*more).items()}
    )
    difference = difference_of_two_runs(tmp_path, noise_key=seeded_key(0))
    assert items_of(difference) == likes(5) and np.abs(difference).max() < 1.001


def test_the_difference_of_two_runs_has_the_noise_of_both(tmp_path):
    difference = difference_of_two_runs(tmp_path)
    assert len(items_of(difference)) > ITEMS / 4
    assert difference.std() / CLIP == pytest.approx(np.sqrt(2), rel=0.03)


def test_the_same_nodes_draw_other_noise_in_another_run(tmp_path):
    world = World(tmp_path, CENTRAL)
    first, second = (world.sum_of(11, run=run) - world.truth(11) for run in (7, 8))
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.05


def test_two_deployments_with_equal_settings_are_two_runs(tmp_path):
    (tmp_path / "items.json").write_text(json.dumps({"names": ["a", "b"], "titles": ["A", "B"]}))
    settings = Settings(data="shops", method="fedmf", wire="clip=1,noise=1", rounds=1)
    config = {"settings": json.dumps(settings.model_dump()), "catalogue": str(tmp_path / "items.json")}
    first, second = (open_run(tmp_path / name, config) for name in "ab")
    assert first.run_id != second.run_id and first.noise_key() != second.noise_key()
    assert open_run(tmp_path / "a", config).run_id == first.run_id  # resumed
    for name in ("settings.json", "noise.key"):
        assert stat.S_IMODE((first.path / name).stat().st_mode) == 0o600


# A node answers one order per round


def test_two_orders_of_one_round_do_not_reveal_the_person_in_which_they_differ(tmp_path):
    """A server sends two orders for the same round, the second one without person 3."""
    world = World(tmp_path, CENTRAL)
    first = world.sum_of(11)
    assert np.array_equal(first, world.sum_of(11)), "the same order has the same answer"
    report, blob = world.answer(11, cohort=[0, 1, 2, 4, 5])
    assert isinstance(report, Refusal) and "answered before, to another order" in report.error and not blob
    (tmp_path / "node-11" / f"{7:016x}" / "answers.json").unlink()
    difference = first - world.sum_of(11, cohort=[0, 1, 2, 4, 5])  # where the record is lost, the noise still differs
    assert difference.std() / world.promised == pytest.approx(np.sqrt(0.5), rel=0.03)


@pytest.mark.parametrize("more", [{"noise_share": 0.5}, {"expected_people": 12}, {"base": 0, "cohort": [0]}], ids=str)
def test_a_second_order_of_a_round_is_refused_whatever_differs(more, tmp_path):
    world = World(tmp_path, LOCAL)
    world.sum_of(11)
    assert "to another order" in world.answer(11, **more)[0].error
    assert isinstance(world.answer(11, round=1)[0], TrainReport)


def test_a_round_that_cannot_be_answered_again_is_lost_and_the_run_goes_on(tmp_path):
    """A server that died asks other people than before. Nobody answers, and the sum of the round is zero."""
    world = World(tmp_path, CENTRAL)
    for node in NODES:
        world.sum_of(node, cohort=[6 * (node - 11)])
    assert np.array_equal(world.release(), np.zeros(ITEMS))
    assert world.clients.history[-1]["people"] == 0


@pytest.mark.parametrize("wire", ["clip=1,noise=1", "clip=1,local=1"])
def test_a_resumed_server_gets_the_same_replies(wire, tmp_path):
    """The server is killed after the nodes have answered round 2. The resumed run equals an uninterrupted one."""
    folder, grid = federation_in_process(tmp_path / "run", method="fedrap", rounds=3, wire=wire)
    for place in range(3):
        secret = folder.path / "federation" / "nodes" / f"node-{place}" / "store" / "secret"
        secret.parent.mkdir()
        secret.write_bytes(bytes([place] * 32))
    shutil.copytree(folder.path, tmp_path / "copy")
    copy = RunFolder(tmp_path / "copy")
    assert copy.run_id == folder.run_id
    configs = {
        node: {name: str(value).replace(str(folder.path), str(copy.path)) for name, value in config.items()}
        for node, config in ((node, grid.context(node).node_config) for node in grid.apps)
    }
    assert serve_run(copy, LocalGrid({n: (client_app(), new_context(n, **config)) for n, config in configs.items()}))
    killed = []

    def kill(ask, reply):
        if place_of(ask) == ("train", 1, 13) and not killed:
            killed.append(1)
            raise Killed
        return reply

    grid.hook = kill
    with pytest.raises(Killed):
        serve_run(folder, grid)
    assert serve_run(folder, grid) and killed
    resumed, uninterrupted = (load_params(run.path / "model.safetensors")[0] for run in (folder, copy))
    assert all(torch.equal(resumed[name], uninterrupted[name]) for name in resumed)


def test_a_truncated_secret_is_refused(tmp_path):
    world = World(tmp_path, CENTRAL)
    (tmp_path / "node-11").mkdir()
    (tmp_path / "node-11" / "secret").write_bytes(b"short")
    assert "holds 5 bytes, not 32" in world.answer(11)[0].error


# M2: the server cannot lower the noise of a node


def test_an_order_without_noise_in_a_private_run_is_refused(tmp_path):
    report, blob = World(tmp_path, CENTRAL).answer(11, noise_share=0.0)
    assert "asks this node for none. Nothing was sent." in report.error and not blob


@pytest.mark.parametrize(
    "wire, least, share, enough",
    [
        (CENTRAL, 0.5, 0.25, True), (CENTRAL, 0.5, 0.2499, False), (CENTRAL, 0.3, 0.09, True),
        (CENTRAL, 0, 1e-4, True), (CENTRAL, 1, 1.0, True), (CENTRAL, 1.001, 1.0, False),
        (LOCAL, 1.0, 0.25, True), (LOCAL, 1.01, 0.25, False), ("noise=1", 0.1, 1.0, False), ("clip=4", 0.1, 0.0, False),
        ("clip=4", 0, 0.0, True), ("clip=4", 0.0, 0.0, True),
    ],
)  # fmt: skip
def test_a_node_refuses_orders_with_less_noise_than_its_least_noise(wire, least, share, enough, tmp_path):
    report, blob = World(tmp_path, wire, least_noise=least).answer(11, noise_share=share)
    assert isinstance(report, TrainReport if enough else Refusal), report
    assert bool(blob) == enough
    if not enough:
        assert "least_noise" in report.error and "Nothing was sent." in report.error


def test_a_server_that_lies_about_how_many_nodes_there_are_gains_nothing(tmp_path):
    world = World(tmp_path, CENTRAL, least_noise=0.5)
    assert "asks it for 0.0316 x" in world.answer(11, nodes=1000, noise_share=1 / 1000)[0].error
    noise = world.sum_of(11, nodes=1000) - world.truth(11)
    assert noise.std() / world.promised == pytest.approx(0.5, rel=0.03)


@pytest.mark.parametrize("value", ["much", -1, -0.5, float("nan"), float("inf"), True, ""], ids=str)
@pytest.mark.parametrize("name", ["least_noise", "fewest"])
def test_a_node_refuses_settings_that_are_no_numbers(name, value, tmp_path):
    world = World(tmp_path, CENTRAL)
    node = world.nodes[11]
    world.nodes[11] = Node({**node.config, name: value}, node.load)
    report, blob = world.answer(11)
    assert f"{name} must be" in report.error and f"got {value!r}" in report.error and not blob


def test_a_run_without_noise_is_refused_when_the_node_says_hello(tmp_path, capsys):
    world = World(tmp_path, "clip=4", least_noise=0.5)
    with pytest.raises(DataError, match="least_noise"):
        world.release()
    log = capsys.readouterr().out
    assert "node-11: " in log and "at least 0.5 x" in log


@pytest.mark.parametrize("wire", [CENTRAL, SECURE])
def test_server_and_node_both_log_why_an_order_was_refused(wire, tmp_path, capsys):
    log = []
    world = World(tmp_path, wire, least_noise=0.9, log=log.append)
    with pytest.raises(RunError, match=r"0\.9 x .* 0\.\d+ x"):
        world.release()
    assert any("least_noise" in line for line in log)
    node_log = capsys.readouterr().out
    assert "node-11: " in node_log and "at least 0.9 x" in node_log


def test_where_one_node_refuses_the_others_add_the_promised_noise(tmp_path):
    world = World(tmp_path, CENTRAL)
    node = world.nodes[14]
    world.grid.join(14, client_app(node.load), new_context(14, **node.config, least_noise=0.6))
    noise = world.release() - world.truth(out=[14])
    assert noise.std() / CLIP == pytest.approx(1.0, rel=0.03)
    assert world.clients.history[-1]["nodes"] == ["node-11", "node-12", "node-13"]


# The total noise


@pytest.mark.parametrize(
    "wire, dead, deviation",
    [
        (CENTRAL, (), 1.0),
        (CENTRAL, (14,), 1.0),  # the server adds the missing share
        (SECURE, (), np.sqrt(4 / 3)),  # three must be left, and bring all of it
        (SECURE, (14,), 1.0),
        (LOCAL, (), np.sqrt(PEOPLE)),
        (LOCAL, (14,), np.sqrt(PEOPLE * 3 / 4)),
    ],
)
def test_the_sum_has_the_noise_that_is_promised(wire, dead, deviation, tmp_path):
    world = World(tmp_path, wire)
    if "secure" in wire and dead:
        world.grid.deliver = lambda ask: (
            ask.metadata.dst_node_id not in dead or "fedtaste" in ask.content.config_records
        )
        noise = world.release() - world.truth(out=dead)
    else:
        noise = world.release(dead) - world.truth(out=dead)
    assert noise.std() / CLIP == pytest.approx(deviation, rel=0.03)
    assert abs(noise.mean()) < 5 * CLIP * deviation / np.sqrt(ITEMS)


def test_the_server_adds_no_noise_for_a_rounding_error_in_the_sum_of_shares(tmp_path):
    """Ten times a tenth is not 1 in floating point: the remainder must not count as a missing share."""
    world = World(tmp_path, CENTRAL, nodes=tuple(range(11, 21)))
    noise = world.release() - world.truth()
    assert noise.std() / CLIP == pytest.approx(1.0, rel=0.03)


def test_a_node_whose_uploads_are_all_rejected_still_adds_its_noise(tmp_path, monkeypatch):
    """Under local noise the report does not reveal how many uploads were rejected."""
    world = World(tmp_path, LOCAL)
    refused = lambda *_: Outcome(None, {"non-finite": 6}, None, 0)
    monkeypatch.setattr("fedtaste.flower.node.collect", refused)
    report, blob = world.answer(11)
    assert report == TrainReport(answered=6)
    upload = decode(blob)[0]
    assert float(upload.weight) == 6
    assert upload.total["item"].numpy().std() / world.promised == pytest.approx(np.sqrt(6), rel=0.03)


# The privacy statement


@pytest.mark.parametrize(
    "fields, server",
    [
        ({"wire": "clip=1,noise=1,secure"}, True),
        ({"wire": "clip=1,noise=1"}, False),
        ({"wire": "clip=1,noise=5,secure", "cohort": 0.9}, False),  # the server knows the cohort
    ],
    ids=str,
)
def test_the_privacy_statement_names_the_server_only_where_it_protects_against_it(fields, server, tmp_path):
    folder, grid = federation_in_process(tmp_path / "run", 4, method="fedmf", rounds=1, **fields)
    result = serve_to_the_end(folder, grid, 4)
    assert ("the server too" in result["privacy"]["against"]) == server
    assert any("the server too" in note for note in result["notes"]) == server
    assert result["privacy"]["epsilon"] > 0
    assert {name for entry in result["federation"]["history"] for name in entry} == {"phase", "round", "seconds"}


def test_a_seed_for_noise_is_refused(tmp_path):
    with pytest.raises(fedtaste.SettingError, match="keys of their own"):
        federation_in_process(tmp_path / "run", method="fedmf", wire=CENTRAL, noise_seed=3, rounds=1)
    assert not (tmp_path / "run").exists()
    quiet = federation_in_process(tmp_path / "quiet", method="fedmf", wire="quantise=8", noise_seed=3)
    assert quiet[0].settings().noise_seed == 3  # for random rounding, which has no epsilon


# Metrics of few people


def evaluate_with_fewest(tmp_path, fewest, new_people=None):
    """The result of a run in which these nodes report metrics of at least `fewest` people."""
    folder, grid = federation_in_process(tmp_path / "run", method="fedals", rounds=1, new_people=new_people)
    for node, few in fewest.items():
        grid.join(node, client_app(), new_context(node, **grid.context(node).node_config, fewest=few))
    return serve_to_the_end(folder, grid)


def test_a_node_reports_no_metrics_of_too_few_people(tmp_path):
    """A node has 20 people: all train and are evaluated, or 4 of them are new. The notes name the nodes left out."""
    everybody = evaluate_with_fewest(tmp_path / "all", {})
    result = evaluate_with_fewest(tmp_path / "few", {13: 21})
    assert any("without node-2" in note for note in result["notes"])
    assert result["seen"] != everybody["seen"]
    result = evaluate_with_fewest(tmp_path / "new", {13: 15}, "0.2")
    assert any("new people" in note and "node-2" in note for note in result["notes"])
    assert not any("took part are without" in note for note in result["notes"])
    assert not any("without" in note for note in everybody["notes"])


def metric_report(tmp_path, action, fewest):
    """The reply of a node with this `fewest` to an order for metrics."""
    folder, grid = federation_in_process(tmp_path / "run", method="popularity")
    node = Node(grid.context(11).node_config | {"fewest": fewest})
    serve_run(folder, grid)
    orders = ((json.loads(text), blob) for text, blob in map(unpack_content, grid.asks))
    order, blob = next((order, blob) for order, blob in orders if order["action"] == "judge")
    return node.answer(Order(**(order | {"action": action})), blob)[0]


@pytest.mark.parametrize("action", ["judge", "validate"])
def test_a_node_refuses_to_report_metrics_where_all_its_groups_are_too_small(action, tmp_path):
    refusal = metric_report(tmp_path / "a", action, 50)
    assert isinstance(refusal, Refusal) and "50 people or more" in refusal.error
    report = metric_report(tmp_path / "b", action, 2)
    assert report.seen["people"] >= 2
