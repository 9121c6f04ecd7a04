"""Run a federation on one machine: cut the data into shards, start SuperLink and nodes, follow the run to its result.

In the run folder:
    federation.json            the options of the federation, for `fedtaste resume`
    federation/nodes/node-0/   a node's shard and store: its people's data and private parameters
    federation/app/            the Flower app        federation/flower/   certificates, keys, logs, Flower's own files
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from pydantic import ValidationError

from fedtaste import __version__
from fedtaste.errors import RunError, SettingError
from fedtaste.experiment.folder import Data, RunFolder
from fedtaste.experiment.progress import ProgressListener
from fedtaste.experiment.result import RunResult
from fedtaste.experiment.settings import FederationSettings, Settings
from fedtaste.files.folders import inner_folder
from fedtaste.files.lock import lock_folder
from fedtaste.flower.certificates import LOOPBACK_HOSTS
from fedtaste.flower.cluster import Cluster
from fedtaste.flower.deploy import write_app
from fedtaste.flower.processes import Config, Log
from fedtaste.flower.shards import cut_shards
from fedtaste.flower.status import StatusReader
from fedtaste.flower.validation import refuse_unfit
from fedtaste.methods import known_method
from fedtaste.wire.parse import parse

SUBMISSIONS = 6  # of a run, if its server or the SuperLink dies
POLL_SECONDS = 0.3


def prepare_federation(path: Path, settings: Settings, data: Data, options: FederationSettings) -> RunFolder:
    """Create the run folder, with everybody's data in the folders of the nodes."""
    if options.host not in LOOPBACK_HOSTS:
        raise SettingError(
            f"--host must be 127.0.0.1, localhost or ::1 on one machine, got {options.host}: a SuperLink accepts apps "
            "without a password and runs them on every node. For other machines use --write-app DIR (docs/deploy.md)."
        )
    refuse_unfit(settings, options.nodes)
    shards = cut_shards(data, settings, options.nodes)
    folder = RunFolder.create(path, settings.model_dump(), data, __version__)
    inner_folder(path, "federation", 0o700)
    for number, shard in enumerate(shards):
        node = path / "federation" / "nodes" / f"node-{number}"
        node.mkdir(mode=0o700, parents=True, exist_ok=True)
        shard.save(node / "shard.safetensors")
    folder.write("federation.json", options.model_dump())
    return folder


def _read_options(folder: RunFolder) -> FederationSettings:
    try:
        return FederationSettings.model_validate(folder.read("federation.json"))
    except ValidationError as error:
        raise RunError(
            f"{folder.path}/federation.json is not valid for this fedtaste ({str(error).splitlines()[0]}). Restore it."
        ) from error


def run_federation(folder: RunFolder, watch: ProgressListener, log: Log, log_rounds: bool = False) -> RunResult:
    """Run, or continue, the federation of this folder on this machine; returns its result. `log_rounds`: log every
    round, where no progress bar is shown."""
    options, place = _read_options(folder), folder.path.resolve() / "federation"
    with lock_folder(place):
        if folder.finished:
            return folder.result()
        settings = folder.settings()
        secure = "secure" in dict(parse(settings.wire))  # then nodes take part in nothing else
        own: Config = {"method": settings.method} if ":" in settings.method else {}  # nodes and server import it
        known_method(settings.method)
        configs: list[Config] = []
        for number in range(options.nodes):
            node = place / "nodes" / f"node-{number}"
            shard = node / "shard.safetensors"
            if not shard.exists():
                raise RunError(f"{node} has no shard. Restore the run folder from a copy, or federate again.")
            configs.append(
                {"data": str(shard), "store": str(node / "store"), "name": node.name, "secure": secure, **own}
            )
        config = options.model_dump(include={"nodes", "deadline", "least"})
        config |= {"folder": str(folder.path.resolve()), "settings": "", "catalogue": "", **own}
        app = write_app(place / "app", config)
        log(f"Starting a SuperLink and {options.nodes} SuperNodes on {options.host}, with TLS and node keys.")
        cluster = Cluster(place / "flower", configs, host=options.host, port=options.port, log=log)
        with cluster:
            _follow(cluster, app, config, StatusReader(place, watch, log, log_rounds))
        result = folder.result()
        remove_keys(place / "flower")
        log(
            f"The keys of the federation were removed. Everybody's data and private parameters are still in "
            f"{place / 'nodes'}, cut for the nodes; nothing needs them any more. Remove them: rm -r {place / 'nodes'}"
        )
        return result


def remove_keys(flower: Path) -> None:
    """Remove the keys and certificates of a federation on one machine whose run is finished."""
    for name in ("authority", "server", "nodes"):
        if not (flower / name).is_symlink():
            shutil.rmtree(flower / name, ignore_errors=True)


def _follow(cluster: Cluster, app: Path, config: Config, status: StatusReader) -> None:
    """Submit the run to Flower and show its progress; submit it again if its server died, until it has ended."""
    for _ in range(SUBMISSIONS):
        status.forget()
        run = cluster.submit(app, config)
        while True:
            cluster.restart_ended()
            if status.finished():
                return
            state = cluster.state(run)
            if state in ("completed", "failed", "stopped") and not status.finished():
                break
            time.sleep(POLL_SECONDS)
        status.log(f"The server ended ({state}) before the run did; it continues from its last round.")
    raise RunError(
        f"The server app ended {SUBMISSIONS} times before the run did. Its log is {status.folder / 'server.log'}; the "
        f"end of the SuperLink's:\n{cluster.read_log('superlink')}\nThe last round is kept: "
        f"`{RunFolder(status.folder.parent).command('resume')}` continues it."
    )
