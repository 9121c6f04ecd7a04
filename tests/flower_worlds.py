"""Federations in one process, for tests: nodes of tiny worlds, and of data sets as `tacit federate` deals them out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import tacit
from flower_grid import LocalGrid, new_context
from tacit.core import Method, Model, Stage
from tacit.data.sources import load
from tacit.engine.run import State, begin, run
from tacit.evaluation.protocol import Judged
from tacit.federation import Federation
from tacit.flower import client_app
from tacit.flower.federate import Federation as Asked
from tacit.flower.federate import prepare
from tacit.flower.job import serve
from tacit.flower.messages import Order
from tacit.flower.node import Home, Node
from tacit.flower.roll import Roll
from tacit.flower.server import Fleet
from tacit.runs import RunFolder
from tacit.settings import Plan, Settings
from tacit.tasks import Facts, Sampling, Task
from tacit.wire.plan import Wire

NODES = (11, 12, 13)  # Flower's ids
WORDS = {"run": 7, "settings": Settings().model_dump(), "catalogue": "none"}


def facts_of(task: str, federation: Federation, width: int = 6) -> Facts:
    shapes = {"numbers": (width,), "labels": (width,), "pictures": (1, 4, 4)}
    kind = {"numbers": "regression", "pictures": "labels"}.get(task, task)
    return Facts(kind, federation.catalogue, shape=shapes.get(task, ()), people=len(federation.members))


def nodes_of(
    method: Method, model: Model, federation: Federation, facts: Facts, folder: Path, wire: Wire | None = None,
    ids: tuple[int, ...] = NODES, **more: Any,
) -> tuple[LocalGrid, Plan, dict[int, Node]]:  # fmt: skip
    """Nodes with an equal part of the people each, over the same method and model; every message goes through bytes.
    `more` stands in every node's configuration."""
    words = wire or Wire(method, Stage(), None, False)
    made = Plan(model, method, Sampling(), 9, 1, 0.0, 0, 1, {}, (), words, 1e-6)  # seed 1
    nobody = np.zeros(0, np.int64)
    task = Task(
        facts, federation.people, 0, (), lambda phase, method, sampling, without: federation, None,
        lambda *_: Judged({}), nobody, nobody, lambda: None, ("loss", -1),
    )  # fmt: skip
    apps, nodes = {}, {}
    for number, own in zip(ids, np.array_split(np.arange(federation.people), len(ids))):
        here = replace(task, facts=replace(facts, people=len(own)))
        make = lambda node, order, own=own, here=here: Home(here, own, made)
        config = {"store": str(folder / f"node-{number}"), "name": f"node-{number}", **more}
        apps[number] = (client_app(make), new_context(number, **config))
        nodes[number] = Node(config, make)
    return LocalGrid(apps), made, nodes


def fleet_of(grid: LocalGrid, made: Plan, deadline: float = 5.0, say: Any = print, wanted: int = 1) -> Fleet:
    roll = Roll(grid, WORDS, b"", made.model.catalogue, deadline, say)
    fleet = Fleet(roll, Settings())
    roll.gather(wanted)
    fleet.task(made=made)
    return fleet


def over_flower(fleet: Fleet, made: Plan, rounds: int = 3, seed: int = 1, **more: Any) -> State:
    """The state after so many rounds; private parameters are with the nodes."""
    federation = fleet._federation("final", made.method, made.sampling, None)
    for done in run(
        made.method, made.model, federation, rounds=rounds, seed=seed, name=WORDS["run"],
        wire=fleet.wire(made.wire.stage), clients=fleet.clients("final"), **more,
    ):  # fmt: skip
        state = done.state
    return state


def private_of(made: Plan, nodes: dict[int, Node], federation: Federation, base: int) -> dict[str, Any]:
    """Everybody's private parameters, gathered from the nodes' disks."""
    whole = begin(made.method, made.model, federation, made.seed).private
    for node in nodes.values():
        order = Order(what="train", version=tacit.__version__, phase="final", base=base, **WORDS)
        home = node.make(node, order)
        store = node.private(order, home, whole.initial, made.method.rows)
        whole.put(home.own, store.gather(home.own))
    return whole.gather(np.arange(federation.people))


def dealt(folder: Path, nodes: int = 3, **words: Any) -> tuple[RunFolder, LocalGrid]:
    """A run folder as `tacit federate` makes it, and its nodes in this process."""
    settings = Settings(**words)
    made = prepare(folder, settings, load(settings.data, seed=settings.seed), Asked(nodes=nodes))
    apps = {}
    for number in range(nodes):
        place = folder / "federation" / "nodes" / f"node-{number}"
        config = {"data": str(place / "shard.safetensors"), "store": str(place / "store"), "name": f"node-{number}"}
        apps[11 + number] = (client_app(), new_context(11 + number, **config))
    return made, LocalGrid(apps)


def served(folder: RunFolder, grid: LocalGrid, nodes: int = 3, **config: Any) -> dict[str, Any] | None:
    return serve(grid, {"folder": str(folder.path.resolve()), "nodes": nodes, "deadline": 5.0, **config})
