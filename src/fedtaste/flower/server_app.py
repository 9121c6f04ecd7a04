"""The Flower ServerApp: open the run folder, wait for nodes, run the experiment, leave the result in the folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedtaste import __version__
from fedtaste.data.interactions import Interactions
from fedtaste.engine.checkpoint import load_params
from fedtaste.errors import FedtasteError, SettingError
from fedtaste.experiment.folder import RunFolder
from fedtaste.experiment.plan import plan
from fedtaste.experiment.result import RunResult
from fedtaste.experiment.settings import Settings
from fedtaste.experiment.train import execute, prepare_remote
from fedtaste.files.lock import lock_folder
from fedtaste.flower.membership import Membership
from fedtaste.flower.server import FlowerClients, federation_facts
from fedtaste.flower.shards import catalogue_hash
from fedtaste.flower.status import StatusWriter
from fedtaste.flower.validation import common_fields, refuse_unfit
from fedtaste.result_part import JsonObject

RunConfig = Mapping[str, object]


def make_server_app() -> ServerApp:
    """The app of the server; see `fedtaste.flower.server_app`."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        serve(grid, context.run_config)

    return app


def serve(grid: Grid, config: RunConfig) -> RunResult | None:
    """Run, or continue, the run of `config["folder"]`. Returns the result, or None after an error that is in
    status.json."""
    folder = Path(str(config.get("folder") or "")).expanduser()
    if not folder.is_absolute():
        raise SettingError(f'folder in the run-config must be an absolute path, got "{config.get("folder")}".')
    status = StatusWriter()
    try:
        run = open_run(folder, config)
        status.open(folder / "federation")
        result = _serve(grid, config, run, status)
        status.end("done")
        return result
    except FedtasteError as error:
        status.end("error", str(error))
    except Exception as error:
        status.end("bug", f"{type(error).__name__}: {error}")
        raise
    return None


def _serve(grid: Grid, config: RunConfig, folder: RunFolder, status: StatusWriter) -> RunResult:
    settings, catalogue = folder.settings(), folder.read("items.json")
    names = catalogue["names"]
    refuse_unfit(settings)
    folder.require_same_version(__version__)
    nodes, least = int(_config_number(config, "nodes", 1)), _config_number(config, "least", 0.5)
    membership = Membership(
        grid,
        common_fields(settings, folder.run_id, catalogue_hash(names)),
        json.dumps(names).encode(),
        len(names),
        _config_number(config, "deadline", 600.0),
        status.log,
    )
    with lock_folder(folder.path):
        saved = _saved_membership(folder)
    membership.offsets = {key: (int(a), int(b)) for key, (a, b) in saved.get("offsets", {}).items()}
    status.log(f"Waiting for {nodes} nodes.")
    membership.gather(nodes)
    facts = federation_facts(
        membership, saved.get("facts"), catalogue.get("titles") or (), catalogue.get("genres") or ()
    )
    clients = FlowerClients(membership, facts, plan(settings, facts, elsewhere=True), least)
    return execute(prepare_remote(settings, clients.task()), folder, status, remote=clients)


def open_run(path: Path, config: RunConfig) -> RunFolder:
    """The run folder at this path, or a new one from `settings` and `catalogue` of the run-config."""
    if (path / "settings.json").exists():
        return RunFolder.open(path)
    try:
        settings = Settings(**json.loads(str(config.get("settings") or "{}")))
        catalogue = json.loads(Path(str(config.get("catalogue"))).expanduser().read_text("utf-8"))
        items, titles, genres = (tuple(map(str, catalogue.get(name) or ())) for name in ("names", "titles", "genres"))
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise SettingError(
            f"{path} is not a run folder yet, and settings and catalogue of the run-config do not describe one "
            f"({str(error).splitlines()[0]}). Write the app again with `fedtaste federate --write-app`."
        ) from error
    nobody = np.zeros(0, np.int32)
    data = Interactions(settings.data, nobody, nobody, (), items, titles=titles, genres=genres)
    return RunFolder.create(path, settings.model_dump(), data, __version__)


def _saved_membership(folder: RunFolder) -> JsonObject:
    """What the last checkpoint remembers of the nodes."""
    path = folder.path / "state.safetensors"
    saved = load_params(path)[1].get("progress", {}).get("fleet", {}) if path.exists() else {}
    return saved if isinstance(saved, dict) else {}


def _config_number(config: RunConfig, name: str, default: float) -> float:
    try:
        value = float(str(config.get(name, default) or default))
    except ValueError:
        value = -1.0
    if not 0 < value < 1e9:
        raise SettingError(f"{name} in the run-config must be a positive number, got {config.get(name)}.")
    return value
