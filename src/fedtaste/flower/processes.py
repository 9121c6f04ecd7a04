"""Start Flower's programs, find all their processes again, and end them without leaving any behind.

Flower's programs start others (SuperExec, one process for every ClientApp and ServerApp) that may outlive them. So
every process carries a mark in its environment, which its children inherit, and at the end /proc is searched for that
mark. A guard process does the same if this process is killed: it waits for the end of a pipe that only we hold. The
guard runs this file by its path, so nothing heavy is imported at the top.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from fedtaste.errors import SettingError

MARK = "FEDTASTE_FEDERATION"
Config = Mapping[str, str | int | float | bool]
Log = Callable[[str], None]
PROGRAMS = ("flower-superlink", "flower-supernode", "flower-superexec", "flwr", "flwr-serverapp", "flwr-clientapp")
QUIET = {  # no telemetry, no downloads
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
POLL = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.25"}  # seconds that a message waits for a process; 1 by default


def require_flower() -> None:
    """Raise SettingError, with the extra to install, if Flower is missing."""
    if importlib.util.find_spec("flwr") is None:
        raise SettingError("A federation of processes needs Flower. Install it: pip install 'fedtaste[flower]'.")
    for name in PROGRAMS:
        program(name)


def program(name: str) -> str:
    """Path of one of Flower's programs: beside this interpreter, otherwise on the PATH."""
    beside = Path(sys.executable).parent / name
    path = str(beside) if os.access(beside, os.X_OK) else shutil.which(name)
    if path is None:
        raise SettingError(
            f"A federation of processes needs Flower's program {name}, which is neither beside {sys.executable} nor on "
            "the PATH. Install it: pip install 'fedtaste[flower]'."
        )
    return path


def environment(home: Path, mark: str) -> dict[str, str]:
    """Environment of a Flower process: it finds programs on the PATH, and calls to this machine use no proxy."""
    inherited = dict(os.environ)
    path = os.pathsep.join([str(Path(sys.executable).parent), inherited.get("PATH", os.defpath)])
    direct = ",".join(filter(None, [inherited.get("NO_PROXY") or inherited.get("no_proxy"), "127.0.0.1", "localhost"]))
    own = {"PATH": path, "NO_PROXY": direct, "no_proxy": direct, "FLWR_HOME": str(home), MARK: mark}
    return POLL | inherited | QUIET | own | {"PYTHONUNBUFFERED": "1"}


def port_problem(host: str, port: int) -> str | None:
    """Why a server cannot listen there, or None."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: old connections do not matter
        try:
            trial.bind((host, port))
            trial.listen()
        except OSError as error:
            return os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
    return None


def free_port() -> int:
    """A port of this machine that is free at this moment. Another program may take it first: then try again."""
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        return int(trial.getsockname()[1])


def tail(path: Path, lines: int = 15) -> str:
    """The last lines of a log."""
    try:
        text = path.read_text("utf-8", errors="replace")
    except OSError:
        return "(no log)"
    return "\n".join(text.splitlines()[-lines:]) or "(the log is empty)"


def can_list_processes() -> bool:
    """Whether this system lists processes in /proc, as Linux does."""
    return os.path.isdir("/proc/self")


def find_marked(mark: str) -> list[tuple[int, str]]:
    """(process id, command) of every process with this mark, or with a mark that begins with it and a colon."""
    processes = []
    exact, prefix = f"{MARK}={mark}".encode(), f"{MARK}={mark}:".encode()
    for entry in os.scandir("/proc") if can_list_processes() else ():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):  # ended meanwhile, or of another user
                variables = Path(entry.path, "environ").read_bytes().split(b"\0")
                if any(variable == exact or variable.startswith(prefix) for variable in variables):
                    command = Path(entry.path, "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    processes.append((int(entry.name), command.strip()))
    return processes


def kill_marked(mark: str, seconds: float = 10) -> list[tuple[int, str]]:
    """Kill every process with the mark and wait until they are gone; returns what is left after that time."""
    until = time.monotonic() + seconds
    while left := find_marked(mark):
        for process, _ in left:
            with contextlib.suppress(OSError):
                os.kill(process, signal.SIGKILL)
        if time.monotonic() > until:
            break
        time.sleep(0.05)
    return left


def to_toml(values: Config) -> str:
    """Settings as TOML, which Flower reads from a file with the ending .toml. Numbers, booleans and strings are written
    as in JSON."""
    lines = [f"{name} = {json.dumps(value, ensure_ascii=False)}\n" for name, value in values.items()]
    return "".join(lines).replace("\x7f", "\\u007f")  # which TOML does not allow in strings


class Process:
    """One program with its log, and how often it was restarted."""

    def __init__(self, name: str, log: Path) -> None:
        self.name, self.log = name, log
        self.restarts = 0  # in a row
        self.began = self.ended = 0.0
        self._popen: subprocess.Popen[bytes] | None = None

    def start(self, command: list[str], env: dict[str, str]) -> None:
        """Start the program in a new session, so that Ctrl-C in a terminal reaches only the Python process that called
        this, which then ends the others in order. An earlier process is reaped, and killed if it still runs."""
        self.wait(0)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with open(self.log, "ab") as log:
            log.write(f"--- start {time.strftime('%Y-%m-%d %H:%M:%S')}\n".encode())
            log.flush()
            self._popen = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env, cwd=self.log.parent,
                start_new_session=True, umask=0o077,
            )  # fmt: skip
        self.began, self.ended = time.monotonic(), 0.0

    @property
    def pid(self) -> int:
        """The process id; 0 before the first start."""
        return self._popen.pid if self._popen else 0

    @property
    def code(self) -> int | None:
        return self._popen.returncode if self._popen else None

    def alive(self) -> bool:
        """Whether it runs; a process that has ended is reaped."""
        if self._popen is None or self._popen.poll() is not None:
            self.ended = self.ended or time.monotonic()
            return False
        return True

    def terminate(self) -> None:
        if self._popen:
            self._popen.terminate()

    def wait(self, seconds: float) -> None:
        """Wait until it has ended; kill it if that takes longer."""
        if self._popen:
            try:
                self._popen.wait(max(0.0, seconds))
            except subprocess.TimeoutExpired:
                self._popen.kill()
                self._popen.wait()


class Guard:
    """A process that kills everything with the mark when this process ends, in whatever way."""

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
        """Let the guard search once more and end."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.communicate(timeout=15)  # closes the pipe


def _guard(mark: str) -> None:
    """The guard process: wait for the end of the pipe, then kill."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    while os.read(0, 64):
        pass
    kill_marked(mark)


if __name__ == "__main__":
    _guard(sys.argv[1])
