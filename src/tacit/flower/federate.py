"""A whole federation on one machine: data dealt out, certificates, processes, the run, the result; and nothing left.

In the run folder:
    federation.json            how many nodes, which deadline: what `tacit resume` needs
    federation/nodes/node-0/   a node's shard and store: its people's data and private parameters
    federation/app/            the Flower app        federation/flower/   certificates, keys, logs, Flower's own files
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from .. import __version__
from ..errors import RunError, SettingError
from ..experiment import Data
from ..lock import alone
from ..progress import Watch
from ..runs import RunFolder
from ..settings import Settings
from ..wire.plan import parse
from .appfiles import write_app
from .checks import refuse_unfit
from .cluster import Cluster
from .messages import line as line_of
from .processes import require_flower
from .roll import Say
from .shards import cut

SUBMITS = 6  # times that a run is given to Flower, where its server or the SuperLink died


class Federation(BaseModel):
    """What was asked for beside the settings of the run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    nodes: int = Field(4, ge=1, le=1000)
    deadline: float = Field(120.0, gt=0, le=86_400)
    least: float = Field(0.5, gt=0, le=1)
    host: str = "127.0.0.1"
    port: int | None = Field(None, ge=1, le=65535)


def prepare(path: Path, settings: Settings, data: Data, asked: Federation) -> RunFolder:
    """The run folder, with everybody's data dealt out to the nodes' folders."""
    require_flower()
    if asked.host not in ("127.0.0.1", "localhost", "::1"):
        raise SettingError(
            f"--host {asked.host} was got. On one machine a federation stays on 127.0.0.1: Flower asks nobody for a "
            "password who submits apps, which run on every node. For other machines: --write-app DIR (docs/deploy.md)."
        )
    refuse_unfit(settings, asked.nodes)
    shards = cut(data, settings, asked.nodes)
    folder = RunFolder.create(path, settings.model_dump(), data, __version__)
    place = path / "federation"
    place.mkdir(mode=0o700, exist_ok=True)
    for number, shard in enumerate(shards):
        node = place / "nodes" / f"node-{number}"
        node.mkdir(mode=0o700, parents=True, exist_ok=True)
        shard.save(node / "shard.safetensors")
    folder.write("federation.json", asked.model_dump())
    return folder


def asked_of(folder: RunFolder) -> Federation:
    try:
        found = folder.read("federation.json")
        if set(found) != set(Federation.model_fields):
            raise TypeError(f"it has {', '.join(sorted(found)) or 'nothing'}")
        return Federation(**found)
    except (ValidationError, TypeError) as error:
        raise RunError(
            f"{folder.path}/federation.json is not one of this tacit ({str(error).splitlines()[0]}). Restore it."
        ) from error


def federate(folder: RunFolder, watch: Watch, say: Say, lines: bool = False) -> dict[str, Any]:
    """Run, or go on with, the federation of this folder on this machine; its result. `lines`: say every round, where
    nobody sees a bar."""
    require_flower()
    asked, place = asked_of(folder), folder.path.resolve() / "federation"
    with alone(place):
        if folder.finished:
            return folder.result()
        nodes = [place / "nodes" / f"node-{number}" for number in range(asked.nodes)]
        for node in nodes:
            if not (node / "shard.safetensors").exists():
                raise RunError(f"{node} has no shard. Restore the run folder from a copy, or federate again.")
        secure = "secure" in dict(parse(folder.settings().wire))  # then nodes answer nothing else
        configs: list[dict[str, str | int | float | bool]] = [
            {"data": str(node / "shard.safetensors"), "store": str(node / "store"), "name": node.name, "secure": secure}
            for node in nodes
        ]
        config = {
            "folder": str(folder.path.resolve()), "nodes": asked.nodes, "deadline": asked.deadline,
            "least": asked.least, "settings": "", "catalogue": "",
        }  # fmt: skip
        app = write_app(place / "app", config)
        say(f"Starting a SuperLink and {asked.nodes} SuperNodes on {asked.host}, with TLS and node keys.")
        with _threads(asked.nodes), Cluster(
            place / "flower", configs, host=asked.host, port=asked.port, say=say
        ) as cluster:  # fmt: skip
            _follow(cluster, app, config, Shown(place, watch, say, lines), say)
        return folder.result()


def _follow(cluster: Cluster, app: Path, config: dict[str, Any], shown: Shown, say: Say) -> None:
    """Give the run to Flower, tell how far it is, and give it again where its server died, until it has an end."""
    place = shown.place
    for _ in range(SUBMITS):
        (place / "outcome.json").unlink(missing_ok=True)
        run = cluster.submit(app, config)
        while True:
            cluster.tend()
            shown.look()
            outcome = _read(place / "outcome.json")
            if outcome.get("done"):
                return
            if "error" in outcome:
                raise RunError(outcome["error"])
            if "bug" in outcome:
                raise RuntimeError(f"the server app stopped: {outcome['bug']} (see {place / 'server.log'})")
            state = cluster.state(run)
            if state in ("completed", "failed", "stopped") and not _read(place / "outcome.json"):
                break
            time.sleep(0.3)
        say(f"The server ended ({state}) before the run did; it goes on from its last round.")
    raise RunError(
        f"The server app ended {SUBMITS} times before the run did. Its log is {place / 'server.log'}; the end of the "
        f"SuperLink's:\n{cluster.log('superlink')}\nThe last round is kept: `tacit resume {place.parent}` goes on."
    )


class Shown:
    """What the server wrote, on this terminal."""

    def __init__(self, place: Path, watch: Watch, say: Say, lines: bool) -> None:
        self.place, self.watch, self.say, self.lines = place, watch, say, lines
        self.at: dict[str, Any] = {}
        log = place / "server.log"
        self.read = log.stat().st_size if log.exists() else 0

    def look(self) -> None:
        at = _read(self.place / "progress.json")
        if at and at != self.at:
            if at.get("phase") != self.at.get("phase"):
                self.watch.phase(at["phase"], at["rounds"], at["done"])
            if at.get("done"):
                self.watch.round(at["done"], at.get("metrics"))
            self.at = at
        with contextlib.suppress(OSError), open(self.place / "server.log", "rb") as log:
            log.seek(self.read)
            text = log.read()
            self.read += len(text)
            for told in text.decode(errors="replace").splitlines():
                words = told.partition(" ")[2]
                if self.lines or not re.match(r"(search|final): round \d+ of |error: |bug: ", words):
                    self.say(line_of(words))


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


@contextlib.contextmanager
def _threads(nodes: int) -> Any:
    """Nodes of one machine share its cores: each has its part of them, or they would wait for each other."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    own = {"NUMBA_NUM_THREADS": str(max(1, cores // nodes)), "OMP_NUM_THREADS": "1"}
    before = {name: os.environ.get(name) for name in own}
    os.environ.update({name: value for name, value in own.items() if name not in os.environ})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
