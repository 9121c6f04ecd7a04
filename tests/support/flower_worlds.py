"""Federations in one process, for tests: nodes of tiny worlds, and of data sets as `fedtaste federate` deals them out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

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
from fedtaste.flower.messages import Order
from fedtaste.flower.node import Node, NodeData
from fedtaste.flower.server import FlowerClients, federation_facts, serve
from fedtaste.tasks.base import Facts, Sampling, Task
from fedtaste.wire.parse import Wire
from support.flower_grid import LocalGrid, new_context

NODES = (11, 12, 13)  # Flower's ids
WORDS = {"run": 7, "settings": Settings().model_dump(), "catalogue": "none"}


def facts_of(task: str, federation: Federation, width: int = 6) -> Facts:
    shapes = {"numbers": (width,), "labels": (width,), "pictures": (1, 4, 4)}
    kind = {"numbers": "regression", "pictures": "labels"}.get(task, task)
    return Facts(kind, federation.catalogue, shape=shapes.get(task, ()), people=len(federation.members))


class TrainOnly(Task):
    """A task of which there is only the training data."""

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
    """Nodes with an equal part of the people each, over the same method and model; every message goes through bytes.
    `more` stands in every node's configuration."""
    words = wire or Wire(method, Stage(), None, False)
    made = Plan(model, method, Sampling(), 9, 1, 0.0, 0, 1, {}, (), words, 1e-6)  # seed 1
    apps, nodes = {}, {}
    for number, own in zip(ids, np.array_split(np.arange(federation.people), len(ids))):
        here = TrainOnly(federation, replace(facts, people=len(own)))
        load_data = lambda node, order, own=own, here=here: NodeData(here, own, made)
        config = {"store": str(folder / f"node-{number}"), "name": f"node-{number}", **more}
        apps[number] = (client_app(load_data), new_context(number, **config))
        nodes[number] = Node(config, load_data)
    return LocalGrid(apps), made, nodes


def clients_of(grid: LocalGrid, made: Plan, deadline: float = 5.0, log: Any = print, wanted: int = 1) -> FlowerClients:
    """The clients of a server that has waited for so many nodes."""
    membership = Membership(grid, WORDS, b"", made.model.catalogue, deadline, log)
    membership.gather(wanted)
    return FlowerClients(membership, federation_facts(membership), made)


def over_flower(clients: FlowerClients, made: Plan, rounds: int = 3, seed: int = 1, **more: Any) -> State:
    """The state after so many rounds; private parameters are with the nodes."""
    federation = clients.federation("final")
    for done in run(
        made.method, made.model, federation, rounds=rounds, seed=seed, run_id=WORDS["run"],
        wire=clients.wire(made.wire.stage), clients=clients.clients("final"), **more,
    ):  # fmt: skip
        state = done.state
    return state


def private_of(made: Plan, nodes: dict[int, Node], federation: Federation, base: int) -> dict[str, Any]:
    """Everybody's private parameters, gathered from the nodes' disks."""
    whole = begin(made.method, made.model, federation, made.seed).private
    for node in nodes.values():
        order = Order(action="train", version=fedtaste.__version__, phase="final", base=base, **WORDS)
        data = node.load(node, order)
        store = node.load_private(order, data, whole.initial, made.method.rows)
        whole.put(data.own, store.gather(data.own))
    return whole.gather(np.arange(federation.people))


def dealt(folder: Path, nodes: int = 3, **words: Any) -> tuple[RunFolder, LocalGrid]:
    """A run folder as `fedtaste federate` makes it, and its nodes in this process."""
    settings = Settings(**words)
    made = prepare_federation(
        folder, settings, load(settings.data, seed=settings.seed), FederationSettings(nodes=nodes)
    )
    apps = {}
    for number in range(nodes):
        place = folder / "federation" / "nodes" / f"node-{number}"
        config = {"data": str(place / "shard.safetensors"), "store": str(place / "store"), "name": f"node-{number}"}
        apps[11 + number] = (client_app(), new_context(11 + number, **config))
    return made, LocalGrid(apps)


def served(folder: RunFolder, grid: LocalGrid, nodes: int = 3, **config: Any) -> dict[str, Any] | None:
    result = serve(grid, {"folder": str(folder.path.resolve()), "nodes": nodes, "deadline": 5.0, **config})
    return result.dump() if result else None
