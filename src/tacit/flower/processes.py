"""Processes of a federation on one machine: started with a mark, found by it, and none left behind.

Flower's programs start others (SuperExec, one process for every ClientApp and ServerApp) that may outlive them. So
every process carries a mark in its environment, which its children inherit, and the end is a look through /proc for
that mark. A guard does the same when this process is killed: it waits for the end of a pipe that only we hold.
The guard runs this file by its path, so nothing heavy is imported at the top.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from tacit.errors import RunError, SettingError

MARK = "TACIT_FEDERATION"
Config = Mapping[str, str | int | float | bool]
QUIET = {  # nobody is told of runs; nothing is fetched from the network
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
POLL = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.25"}  # seconds; 1 unless told: how long a message waits for a process


def require_flower() -> None:
    """Say which extra is missing."""
    if importlib.util.find_spec("flwr") is None:
        raise SettingError("A federation of processes needs Flower. Install it: pip install 'tacit[flower]'.")
    for name in (
        "flower-superlink",
        "flower-supernode",
        "flower-superexec",
        "flwr",
        "flwr-serverapp",
        "flwr-clientapp",
    ):
        program(name)


def program(name: str) -> str:
    """Path of one of Flower's programs: beside this interpreter, else wherever programs are."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if os.access(beside, os.X_OK) else shutil.which(name)
    if found is None:
        raise SettingError(
            f"A federation of processes needs Flower's program {name}, which is neither beside {sys.executable} nor on "
            "the PATH. Install it: pip install 'tacit[flower]'."
        )
    return found


def environment(home: Path, mark: str) -> dict[str, str]:
    """For a process of Flower. It finds the programs it starts on the PATH; calls to this machine pass no proxy."""
    kept = dict(os.environ)
    path = os.pathsep.join([str(Path(sys.executable).parent), kept.get("PATH", os.defpath)])
    direct = ",".join(filter(None, [kept.get("NO_PROXY") or kept.get("no_proxy"), "127.0.0.1", "localhost"]))
    own = {"PATH": path, "NO_PROXY": direct, "no_proxy": direct, "FLWR_HOME": str(home), MARK: mark}
    return POLL | kept | QUIET | own | {"PYTHONUNBUFFERED": "1"}


def why_taken(host: str, port: int) -> str | None:
    """Why a server cannot listen there, or None."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: an old connection is no hindrance
        try:
            trial.bind((host, port))
            trial.listen()
        except OSError as error:
            return os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
    return None


def free_port() -> int:
    """A port of this machine that nobody listens on at this moment. Another may come first: try again then."""
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        return int(trial.getsockname()[1])


def tail(path: Path, lines: int = 15) -> str:
    """The last lines of a log."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, path.stat().st_size - 400 * lines))
            text = file.read().decode(errors="replace")
    except OSError:
        return "(no log)"
    return "\n".join(text.splitlines()[-lines:]) or "(the log is empty)"


def can_find() -> bool:
    """Whether this system tells what runs (Linux does)."""
    return os.path.isdir("/proc/self")


def marked(mark: str) -> list[tuple[int, str]]:
    """(process id, command) of everything that carries this mark, or a mark that begins with it and a colon."""
    found = []
    whole, begun = f"{MARK}={mark}".encode(), f"{MARK}={mark}:".encode()
    for entry in os.scandir("/proc") if can_find() else ():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):  # gone meanwhile, or somebody else's
                words = Path(entry.path, "environ").read_bytes().split(b"\0")
                if any(word == whole or word.startswith(begun) for word in words):
                    command = Path(entry.path, "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    found.append((int(entry.name), command.strip()))
    return found


def sweep(mark: str, seconds: float = 10) -> list[tuple[int, str]]:
    """End everything that carries the mark, and wait until it is gone. What is left after that time."""
    until = time.monotonic() + seconds
    while left := marked(mark):
        for process, _ in left:
            with contextlib.suppress(OSError):
                os.kill(process, signal.SIGKILL)
        if time.monotonic() > until:
            break
        time.sleep(0.05)
    return left


def toml(values: Config) -> str:
    """Settings as Flower reads them from a file ending in .toml."""
    lines = []
    for name, value in values.items():
        if not re.fullmatch(r"[A-Za-z0-9_-]+", name):
            raise SettingError(f'"{name}" is not the name of a setting of Flower. Use letters, digits, - and _.')
        if isinstance(value, bool):
            lines.append(f"{name} = {str(value).lower()}")
        elif isinstance(value, int | float):
            lines.append(f"{name} = {value!r}")
        else:
            lines.append(f"{name} = {json.dumps(str(value), ensure_ascii=False)}".replace("\x7f", "\\u007f"))
    return "\n".join(lines) + "\n"


def command(home: Path, mark: str, *words: str, seconds: float = 120) -> str:
    """What `flwr` with these words prints."""
    try:
        done = subprocess.run(
            [program("flwr"), *words], env=environment(home, mark), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, timeout=seconds, cwd=home,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise RunError(f"`flwr {words[0]}` did not end within {seconds:g} s. Look at the SuperLink's log.") from None
    return done.stdout.decode(errors="replace")


class Process:
    """One program, its log, and how often it had to be started again."""

    def __init__(self, name: str, log: Path) -> None:
        self.name, self.log = name, log
        self.restarts = 0  # in a row
        self.began = self.ended = 0.0
        self._popen: subprocess.Popen[bytes] | None = None

    def start(self, command: list[str], env: dict[str, str]) -> None:
        """In a session of its own, so that Ctrl-C in a terminal reaches only us, and we end it in order."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with open(self.log, "ab") as log:
            log.write(f"--- start {time.strftime('%Y-%m-%d %H:%M:%S')}\n".encode())
            log.flush()
            self._popen = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env, start_new_session=True,
                cwd=self.log.parent, umask=0o077,
            )  # fmt: skip
        self.began, self.ended = time.monotonic(), 0.0

    @property
    def pid(self) -> int | None:
        return self._popen.pid if self._popen else None

    @property
    def code(self) -> int | None:
        return self._popen.returncode if self._popen else None

    def alive(self) -> bool:
        """Whether it runs; one that has ended is taken off the system's list."""
        if self._popen is None or self._popen.poll() is not None:
            self.ended = self.ended or time.monotonic()
            return False
        return True

    def terminate(self) -> None:
        if self._popen and self.alive():
            with contextlib.suppress(OSError):
                self._popen.terminate()

    def wait(self, seconds: float) -> None:
        """Until it is gone; it is killed when that takes longer."""
        if self._popen:
            try:
                self._popen.wait(max(0.0, seconds))
            except subprocess.TimeoutExpired:
                self._popen.kill()
                self._popen.wait()


class Guard:
    """Ends everything with the mark when this process is gone, however it went."""

    def __init__(self, mark: str) -> None:
        env = {name: value for name, value in os.environ.items() if name != MARK}
        self._popen = subprocess.Popen(
            [sys.executable, "-P", str(Path(__file__).resolve()), mark], env=env, stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip

    @property
    def pid(self) -> int:
        return self._popen.pid

    def alive(self) -> bool:
        return self._popen.poll() is None

    def dismiss(self) -> None:
        """It looks once more and ends."""
        if self._popen.stdin:
            with contextlib.suppress(OSError):
                self._popen.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(15)


def _guard(mark: str) -> None:
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    while os.read(0, 64):
        pass
    sweep(mark)


if __name__ == "__main__":
    _guard(sys.argv[1])
