"""Federations in one process, for tests: nodes of tiny worlds, or of data sets split as `fedtaste federate` does."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Message

import fedtaste
from fedtaste.core import Method, Model, Stage
from fedtaste.data.sources import load
from fedtaste.engine.run import State, begin, run
from fedtaste.experiment.folder import RunFolder
from fedtaste.experiment.plan import Plan
from fedtaste.experiment.settings import FederationSettings, Settings
from fedtaste.federation import Federation
from fedtaste.flower import client_app
from fedtaste.flower.federate import prepare_federation
from fedtaste.flower.membership import Membership
from fedtaste.flower.messages import Order, unpack_content
from fedtaste.flower.node import Node, NodeData
from fedtaste.flower.server import FlowerClients, federation_facts, serve
from fedtaste.tasks.base import Facts, Sampling, Task
from fedtaste.wire.parse import Wire
from support.flower_grid import LocalGrid, new_context

NODES = (11, 12, 13)  # Flower's ids
TINY = "synthetic:60x40x900"
COMMON_FIELDS = {"run": 7, "settings": Settings().model_dump(), "catalogue": "none"}  # of every order of a run


def facts_of(task: str, federation: Federation, width: int = 6) -> Facts:
    shapes = {"numbers": (width,), "labels": (width,), "pictures": (1, 4, 4)}
    kind = {"numbers": "regression", "pictures": "labels"}.get(task, task)
    return Facts(kind, federation.catalogue, shape=shapes.get(task, ()), people=len(federation.members))


class TrainOnly(Task):
    """A task that has training data only."""

    def __init__(self, federation: Federation, facts: Facts) -> None:
        self.facts, self.data, self.people, self.interactions, self.notes = facts, federation, federation.people, 0, ()
        self.evaluated = self.newcomers = np.zeros(0, np.int64)
        self.validates, self.selection = False, ("loss", -1)

    def federation(self, phase: str, method: Method, sampling: Sampling, without: Any) -> Federation:
        return self.data


def nodes_of(
    method: Method, model: Model, federation: Federation, facts: Facts, folder: Path, wire: Wire | None = None,
    ids: tuple[int, ...] = NODES, **more: Any,
) -> tuple[LocalGrid, Plan, dict[int, Node]]:  # fmt: skip
    """Nodes with an equal part of the people each, over the same method and model. Every message goes through bytes.
    `more` is added to every node's configuration."""
    stages = wire or Wire(method, Stage(), None, False)
    plan = Plan(model, method, Sampling(), 9, 1, 0.0, 0, 1, {}, (), stages, 1e-6)  # seed 1
    apps, nodes = {}, {}
    for number, own in zip(ids, np.array_split(np.arange(federation.people), len(ids))):
        task = TrainOnly(federation, replace(facts, people=len(own)))
        load_data = lambda node, order, own=own, task=task: NodeData(task, own, plan)
        config = {"store": str(folder / f"node-{number}"), "name": f"node-{number}", **more}
        apps[number] = (client_app(load_data), new_context(number, **config))
        nodes[number] = Node(config, load_data)
    return LocalGrid(apps), plan, nodes


def clients_of(grid: LocalGrid, plan: Plan, deadline: float = 5.0, log: Any = print, nodes: int = 1) -> FlowerClients:
    """The clients of a server that has waited for this number of nodes."""
    membership = Membership(grid, COMMON_FIELDS, b"", plan.model.catalogue, deadline, log)
    membership.gather(nodes)
    return FlowerClients(membership, federation_facts(membership), plan)


def over_flower(clients: FlowerClients, plan: Plan, rounds: int = 3, seed: int = 1, **more: Any) -> State:
    """The state after this number of rounds. Private parameters are with the nodes."""
    federation = clients.federation("final")
    for round_result in run(
        plan.method, plan.model, federation, rounds=rounds, seed=seed, run_id=COMMON_FIELDS["run"],
        wire=clients.wire(plan.wire.stage), clients=clients.clients("final"), **more,
    ):  # fmt: skip
        state = round_result.state
    return state


def private_of(plan: Plan, nodes: dict[int, Node], federation: Federation, base: int) -> dict[str, Any]:
    """Everybody's private parameters, gathered from the nodes' disks."""
    everybody = begin(plan.method, plan.model, federation, plan.seed).private
    for node in nodes.values():
        order = Order(action="train", version=fedtaste.__version__, phase="final", base=base, **COMMON_FIELDS)
        data = node.load(node, order)
        store = node.load_private(order, data, everybody.initial, plan.method.rows)
        everybody.put(data.own, store.gather(data.own))
    return everybody.gather(np.arange(federation.people))


def federation_in_process(folder: Path, nodes: int = 3, **settings_fields: Any) -> tuple[RunFolder, LocalGrid]:
    """A run folder as `fedtaste federate` creates it, and its nodes in this process."""
    settings = Settings(**{"data": TINY} | settings_fields)
    run_folder = prepare_federation(
        folder, settings, load(settings.data, seed=settings.seed), FederationSettings(nodes=nodes)
    )
    apps = {}
    for number in range(nodes):
        name = f"node-{number}"
        node_folder = folder / "federation" / "nodes" / name
        config = {"data": str(node_folder / "shard.safetensors"), "store": str(node_folder / "store"), "name": name}
        apps[11 + number] = (client_app(), new_context(11 + number, **config))
    return run_folder, LocalGrid(apps)


def serve_run(folder: RunFolder, grid: LocalGrid, nodes: int = 3, **config: Any) -> dict[str, Any] | None:
    """Run the server until it ends. The result, or None after an error."""
    result = serve(grid, {"folder": str(folder.path.resolve()), "nodes": nodes, "deadline": 5.0, **config})
    return result.dump() if result else None


def serve_to_the_end(folder: RunFolder, grid: LocalGrid, nodes: int = 3) -> dict[str, Any]:
    """The result of a run that must succeed."""
    result = serve_run(folder, grid, nodes)
    assert result is not None, (folder.path / "federation" / "server.log").read_text()
    return result


class Killed(BaseException):
    """Raised by a test's hook: the server's process dies."""


def order_of(message: Message) -> dict[str, Any]:
    """The order in a message from the server to a node."""
    return json.loads(unpack_content(message)[0])


def place_of(message: Message) -> tuple[str, int, int]:
    """Action, round and node of an order."""
    order = order_of(message)
    return order["action"], order["round"], message.metadata.dst_node_id
