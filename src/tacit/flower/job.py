"""The server's ServerApp: opens the run folder, waits for nodes, runs the experiment, leaves the result there.

Flower keeps nothing of a ServerApp that a person could read later, so all is in the run folder:
    federation/progress.json   how far it is, for whoever watches
    federation/outcome.json    {"done": true}, or {"error": ...} in words
    federation/server.log      what was said, with the time
"""

from __future__ import annotations

import json
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from .. import __version__
from ..data.interactions import Interactions
from ..errors import RunError, SettingError, TacitError
from ..experiment import execute
from ..lock import alone
from ..runs import RunFolder
from ..settings import Settings
from ..wholefile import write_atomically
from .checks import common, refuse_unfit
from .roll import Roll
from .server import Fleet
from .shards import catalogue_hash


def run_app() -> ServerApp:
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        serve(grid, dict(context.run_config))

    return app


def serve(grid: Grid, config: dict[str, Any]) -> dict[str, Any] | None:
    """Run, or go on with, the run of this folder; None where it ended in an error, which is then in outcome.json."""
    folder = Path(str(config.get("folder") or "")).expanduser()
    if not folder.is_absolute():
        raise SettingError(f'folder="{config.get("folder")}" was got in the run-config; expected an absolute path.')
    desk = Desk()
    try:
        made = open_or_make(folder, config)
        desk.move_in(folder / "federation")
        return _serve(grid, config, made, desk)
    except TacitError as error:
        desk.say(f"error: {error}")
        desk.outcome({"error": str(error)})
    except Exception as error:
        desk.say(f"bug: {type(error).__name__}: {error}")
        desk.outcome({"bug": f"{type(error).__name__}: {error}"})
        raise
    return None


def _serve(grid: Grid, config: dict[str, Any], folder: RunFolder, desk: Desk) -> dict[str, Any]:
    settings, catalogue = folder.settings(), folder.read("items.json")
    items = catalogue["names"]
    refuse_unfit(settings)
    folder.same_version(__version__)
    deadline, nodes = _number(config, "deadline", 600.0), int(_number(config, "nodes", 1))
    roll = Roll(
        grid, common(settings, folder.number, catalogue_hash(items)), json.dumps(items).encode(), len(items), deadline,
        desk.say,
    )  # fmt: skip
    fleet = Fleet(roll, settings, _number(config, "least", 0.5))
    with alone(folder.path):
        noted = _noted(folder)
    roll.offsets = {key: (int(a), int(b)) for key, (a, b) in noted.get("offsets", {}).items()}
    desk.say(f"Waiting for {nodes} nodes.")
    roll.gather(nodes)
    task = fleet.task(noted.get("facts"), items=catalogue)
    result = execute(settings, None, folder, desk, task, fleet=fleet)
    desk.outcome({"done": True})
    return result


def open_or_make(path: Path, config: dict[str, Any]) -> RunFolder:
    """The run folder: the one that is there, or a new one from the settings and the catalogue that were brought."""
    if (path / "settings.json").exists():
        return RunFolder.open(path)
    try:
        words = json.loads(str(config.get("settings") or "{}"))
        settings = Settings(**words)
        names = json.loads(Path(str(config.get("catalogue"))).expanduser().read_text("utf-8"))
        items, titles = (tuple(map(str, names.get(part) or ())) for part in ("names", "titles"))
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise SettingError(
            f"{path} is no run folder yet, and settings and catalogue of the run-config do not make one "
            f"({str(error).splitlines()[0]}). Write the app again with `tacit federate --write-app`."
        ) from error
    nobody = np.zeros(0, np.int32)
    empty = Interactions(
        settings.data, nobody, nobody, (), items, titles=titles, genres=tuple(names.get("genres") or ())
    )
    return RunFolder.create(path, settings.model_dump(), empty, __version__)


def _noted(folder: RunFolder) -> dict[str, Any]:
    """What the server before this one knew of its nodes."""
    from ..engine.checkpoint import load_params

    path = folder.path / "state.safetensors"
    if not path.exists():
        return {}
    found = load_params(path)[1].get("progress", {}).get("fleet", {})
    return found if isinstance(found, dict) else {}


def _number(config: dict[str, Any], name: str, usual: float) -> float:
    try:
        value = float(config.get(name, usual) or usual)
    except (TypeError, ValueError):
        value = -1.0
    if not 0 < value < 1e9:
        raise SettingError(f"{name}={config.get(name)} was got in the run-config; expected a positive number.")
    return value


class Desk:
    """What the server tells whoever watches its folder; only Flower's log of the run before there is one."""

    def __init__(self) -> None:
        self.folder: Path | None = None
        self.at: dict[str, Any] = {}

    def move_in(self, folder: Path) -> None:
        self.folder = folder
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            (folder / "outcome.json").unlink(missing_ok=True)
        except OSError as error:
            raise RunError(f"{folder} cannot be written ({error.strerror}). Choose another folder.") from error

    def say(self, text: str) -> None:
        if self.folder:
            with open(self.folder / "server.log", "a", encoding="utf-8") as log:
                log.write(f"{datetime.now().isoformat(timespec='seconds')} {text}\n")
        print(text, flush=True)  # noqa: T201 (Flower's log of the run)

    def outcome(self, words: dict[str, Any]) -> None:
        if self.folder:
            write_atomically(self.folder / "outcome.json", json.dumps(words).encode())

    def phase(self, name: str, rounds: int, done: int) -> None:
        self.at = {"phase": name, "rounds": rounds, "done": done, "metrics": None}
        self._show()

    def round(self, number: int, metrics: dict[str, float] | None) -> None:
        self.at |= {"done": number, "metrics": metrics or self.at.get("metrics")}
        told = f" ({next(iter(metrics))} {next(iter(metrics.values())):.4f})" if metrics else ""
        self.say(f"{self.at['phase']}: round {number} of {self.at['rounds']}{told}")
        self._show()

    def _show(self) -> None:
        if self.folder:
            words = json.dumps(self.at | {"time": time.time()})
            write_atomically(self.folder / "progress.json", words.encode())
