"""Write and read the progress of a federation's run: federation/status.json and federation/server.log.

The server app writes them, since Flower keeps nothing of a ServerApp that could be read later. `fedtaste federate` and
run.sh (docs/deploy.md) read them.
"""

from __future__ import annotations

import contextlib
import re
import time
from datetime import datetime
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ValidationError

from fedtaste.errors import RunError
from fedtaste.experiment.progress import ProgressListener
from fedtaste.files.atomic import no_links, write_atomically
from fedtaste.flower.messages import single_line
from fedtaste.flower.processes import Log
from fedtaste.text import printable


class Status(BaseModel):
    """The content of status.json."""

    state: Literal["running", "done", "error", "bug"] = "running"
    reason: str = ""  # of an error or a bug
    phase: str = ""  # search or final; empty before the first round
    rounds: int = 0
    done: int = 0
    metrics: dict[str, float] | None = None  # of the last validation
    time: float = 0.0  # when this was written


class StatusWriter:
    """Writes the files; before a folder is opened, only to Flower's log. A ProgressListener of experiments."""

    def __init__(self) -> None:
        self.folder: Path | None = None
        self.status = Status()

    def open(self, folder: Path) -> None:
        """Write into this folder from now on."""
        self.folder = folder
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"{folder} cannot be written ({error.strerror}). Choose another folder.") from error

    def log(self, text: str) -> None:
        text = printable(text)
        if self.folder:
            with open(self.folder / "server.log", "a", encoding="utf-8", opener=no_links) as log:
                log.write(f"{datetime.now().isoformat(timespec='seconds')} {text}\n")
        print(text, flush=True)  # noqa: T201 (Flower's log of the run)

    def end(self, state: Literal["done", "error", "bug"], reason: str = "") -> None:
        """Say how the run ended."""
        if reason:
            self.log(f"{state}: {reason}")
        self.status.state, self.status.reason = state, reason
        self._write()

    def phase(self, name: str, rounds: int, done: int) -> None:
        self.status = Status(phase=name, rounds=rounds, done=done)
        self._write()

    def round(self, number: int, metrics: dict[str, float] | None) -> None:
        status = self.status
        shown = f" ({next(iter(metrics))} {next(iter(metrics.values())):.4f})" if metrics else ""
        self.log(f"{status.phase}: round {number} of {status.rounds}{shown}")
        status.done, status.metrics = number, metrics or status.metrics
        self._write()

    def _write(self) -> None:
        if self.folder:
            self.status.time = time.time()
            write_atomically(self.folder / "status.json", self.status.model_dump_json().encode())


class StatusReader:
    """Reads the files and shows what is new on this terminal. `log_rounds`: show every round in the log, too."""

    def __init__(self, folder: Path, watch: ProgressListener, log: Log, log_rounds: bool) -> None:
        self.folder, self.watch, self.log, self.log_rounds = folder, watch, log, log_rounds
        self.shown = Status()
        server_log = folder / "server.log"
        self.log_bytes = server_log.stat().st_size if server_log.exists() else 0

    def forget(self) -> None:
        """Forget how an earlier attempt ended."""
        (self.folder / "status.json").unlink(missing_ok=True)

    def finished(self) -> bool:
        """Show what is new; returns whether the run is done, and raises the error that ended it."""
        try:
            status = Status.model_validate_json((self.folder / "status.json").read_bytes())
        except (OSError, ValidationError):  # not written yet
            status = Status()
        self._show_progress(status)
        self._show_log()
        if status.state == "error":
            raise RunError(status.reason)
        if status.state == "bug":
            raise RuntimeError(f"the server app failed: {status.reason} (see {self.folder / 'server.log'})")
        return status.state == "done"

    def _show_progress(self, status: Status) -> None:
        if not status.phase or status == self.shown:
            return
        if status.phase != self.shown.phase:
            self.watch.phase(status.phase, status.rounds, status.done)
        if status.done:
            self.watch.round(status.done, status.metrics)
        self.shown = status

    def _show_log(self) -> None:
        with contextlib.suppress(OSError), open(self.folder / "server.log", "rb") as file:
            file.seek(self.log_bytes)
            content = file.read()
            self.log_bytes += len(content)
            for line in content.decode(errors="replace").splitlines():
                text = line.partition(" ")[2]  # without the time
                if self.log_rounds or not re.match(r"(search|final): round \d+ of |error: |bug: ", text):
                    self.log(single_line(text))
