"""A federation on one machine: one SuperLink and a SuperNode for every node, with TLS and node keys.

    with Cluster(folder, [{"people": "0-99"}, {"people": "100-199"}], say=print) as cluster:
        run = cluster.submit(app, {"rounds": 5})
        while cluster.state(run) in ("pending", "running"):
            cluster.tend()
            time.sleep(1)

Everything is in `folder`: authority/ server/ nodes/ (certificates and keys, kept from one time to the next), flower/
(Flower's settings and its copies of the app), superlink.db (who is registered, runs, messages under way; fresh every
time) and logs/. Runs are submitted with Flower's own command. What is asked often (the state of a run, who is there)
goes over the SuperLink's control API from this process, since every call of the command costs a second of work.

What Flower 1.41 does not do by itself and is done here: a SuperNode that was killed may not come back for a minute,
because the SuperLink believes it is still there (so we sign it off with its own key); a run whose ServerApp was killed
stays "running" for a minute (so we look for the process).
"""

from __future__ import annotations

import contextlib
import json
import secrets
import ssl
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec

from ..errors import RunError, SettingError
from .certificates import (
    LOOPBACK,
    load_node_key,
    make_authority,
    make_node_key,
    private_folder,
    server_for,
    write_private,
)
from .link import Link, Unreachable
from .processes import (
    Config,
    Guard,
    Process,
    can_find,
    command,
    environment,
    free_port,
    marked,
    program,
    require_flower,
    sweep,
    tail,
    toml,
    why_taken,
)

__all__ = ["Cluster", "require_flower"]

CONNECTION = "tacit"  # name in Flower's settings
LINK = "superlink"
LINK_SECONDS, NODE_SECONDS = 120, 240  # a machine that is busy is slow
STOP_SECONDS = 6
TRIES = 5  # ports; restarts in a row
STEADY = 60  # seconds after which a restart is forgotten


class Cluster:
    """The processes of a federation, while the `with` lasts. The folder should be their own: it is made private."""

    def __init__(
        self, folder: Path, configs: Sequence[Config], *, host: str = "127.0.0.1", port: int | None = None,
        tls: bool = True, say: Callable[[str], None],
    ) -> None:  # fmt: skip
        if not configs:
            raise SettingError("A federation of 0 nodes was asked for; expected 1 or more.")
        if port is not None and not 1 <= port <= 65535:
            raise SettingError(f"Port {port} was asked for; expected 1 to 65535.")
        self.folder, self.host, self.port, self.tls = Path(folder).resolve(), host, port, tls
        self.token = secrets.token_hex(16)
        self.restarts = 0  # of all processes together
        self._configs, self._say, self._given = list(configs), say, port is not None
        self._logs = self.folder / "logs"
        self._link = Process(LINK, self._logs / f"{LINK}.log")
        self._nodes = [Process(f"node-{number}", self._logs / f"node-{number}.log") for number in range(len(configs))]
        self._ids: dict[str, int] = {}
        self._lost: set[int] = set()
        self._states: dict[int, str] = {}
        self._reasons: dict[int, str] = {}
        self._guard: Guard | None = None
        self._context: ssl.SSLContext | None = None

    def __enter__(self) -> Cluster:
        require_flower()
        self._prepare()
        self._guard = Guard(self.token)
        try:
            self._start_link()
            if self.tls:
                for node in self._nodes:
                    self._ids[node.name] = self._control.register(node.name, self._key(node.name))
            for node in self._nodes:
                self._start_node(node)
            self._await_nodes()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        everything = [*self._nodes, self._link]
        for process in everything:
            process.terminate()
        until = time.monotonic() + STOP_SECONDS
        for process in everything:
            process.wait(until - time.monotonic())
        left = sweep(self.token)
        if self._guard:
            self._guard.dismiss()
            self._guard = None
        self._forget()
        if left:
            self._say(f"These processes could not be ended: {left}.")

    @property
    def address(self) -> str:
        """Where nodes and commands of this machine reach the SuperLink."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"

    @property
    def _control(self) -> Link:
        return Link(self.address, self._context)

    def _key(self, name: str) -> ec.EllipticCurvePrivateKey:
        return load_node_key(self.folder / "nodes" / name)

    @property
    def processes(self) -> list[tuple[str, int]]:
        """(name, process id) of what runs now: superlink, node-0, node-1, ..."""
        return [(one.name, one.pid) for one in (self._link, *self._nodes) if one.alive() and one.pid is not None]

    @property
    def everything(self) -> list[tuple[int, str]]:
        """(process id, command) of what runs now, with all that Flower started."""
        return marked(self.token)

    @property
    def node_ids(self) -> dict[str, int]:
        """Flower's number of every node, by name. Empty without TLS: nodes then choose a new key every time."""
        return dict(self._ids)

    def log(self, name: str, lines: int = 30) -> str:
        """The last lines of superlink, node-0, ..."""
        return tail(self._logs / f"{name}.log", lines)

    def _prepare(self) -> None:
        """Folders, certificates, keys and settings."""
        private_folder(self.folder)
        for name in ("logs", "flower", "nodes"):
            private_folder(self.folder / name)
        self._forget()  # runs of an earlier time would be taken up again beside ours
        if self.tls:
            names = dict.fromkeys((*LOOPBACK, *(() if self.host in ("0.0.0.0", "::") else (self.host,))))
            make_authority(self.folder / "authority")
            server = server_for(self.folder / "authority", self.folder / "server", tuple(names))
            self._context = ssl.create_default_context(cafile=str(server.authority))
            for node in self._nodes:
                make_node_key(self.folder / "nodes", node.name)
        for node, config in zip(self._nodes, self._configs, strict=True):
            write_private(self.folder / "nodes" / f"{node.name}.toml", toml(config).encode())

    def _forget(self) -> None:
        """What the SuperLink knew; messages that were under way are in it."""
        for file in self.folder.glob(f"{LINK}.db*"):
            file.unlink(missing_ok=True)

    def _start_link(self) -> None:
        """Start and wait until it answers; on another port where the one we chose was taken meanwhile."""
        for attempt in range(TRIES):
            if self.port is None or (attempt and not self._given):
                self.port = free_port()
            if why := why_taken(self.host, self.port):
                if self._given:
                    raise SettingError(
                        f"Port {self.port} of {self.host} cannot be used ({why}). Stop what listens there, choose "
                        "another one with --port, or leave it out: a free one is found."
                    )
                continue
            if self._launch_link():
                return
            if "address already in use" not in self.log(LINK).lower():
                break
        raise RunError(f"The SuperLink ended while it started. The end of its log:\n{self.log(LINK)}")

    def _link_command(self) -> list[str]:
        server = self.folder / "server"
        secure = [
            "--ssl-ca-certfile", str(server / "ca.crt"), "--ssl-certfile", str(server / "server.crt"),
            "--ssl-keyfile", str(server / "server.key"), "--enable-supernode-auth",
        ]  # fmt: skip
        return [
            program("flower-superlink"), "--host", self.host, "--port", str(self.port),
            "--database", str(self.folder / f"{LINK}.db"), "--disable-runtime-dependency-installation",
            *(secure if self.tls else ["--insecure"]),
        ]  # fmt: skip

    def _launch_link(self) -> bool:
        """Whether it answers; False when it ended."""
        self._write_connection()
        self._link.start(self._link_command(), environment(self.folder / "flower", f"{self.token}:{LINK}"))
        until = time.monotonic() + LINK_SECONDS
        while self._link.alive():
            with contextlib.suppress(Unreachable):
                self._control.health()
                return True
            if time.monotonic() > until:
                raise RunError(f"The SuperLink does not answer after {LINK_SECONDS} s. Its log:\n{self.log(LINK)}")
            time.sleep(0.2)
        return False

    def _start_node(self, node: Process) -> None:
        if node.name in self._ids:
            self._control.sign_off(self._ids[node.name], self._key(node.name))
        key = self.folder / "nodes" / node.name
        secure = [
            "--root-certificates", str(self.folder / "server" / "ca.crt"), "--auth-supernode-private-key", str(key),
        ]  # fmt: skip
        words = [
            program("flower-supernode"), "--superlink", self.address, "--host", "127.0.0.1", "--port",
            str(free_port()), "--node-config", f"{key}.toml", *(secure if self.tls else ["--insecure"]),
        ]  # fmt: skip
        node.start(words, environment(self.folder / "flower", f"{self.token}:{node.name}"))

    def _await_nodes(self) -> None:
        """Until all are connected. One that ends is started again a few times: its port may have been taken."""
        until = time.monotonic() + NODE_SECONDS
        while (there := self._control.online()) < len(self._nodes):
            self._revive(self._nodes)
            if time.monotonic() > until:
                logs = "\n".join(f"{node.name}:\n{tail(node.log, 6)}" for node in self._nodes)
                raise RunError(f"{there} of {len(self._nodes)} nodes are there after {NODE_SECONDS} s. Logs:\n{logs}")
            time.sleep(0.3)

    def tend(self) -> None:
        """Start again what has ended. Call it every second or so."""
        if self._guard and not self._guard.alive():
            self._guard.dismiss()
            self._guard = Guard(self.token)
        if not self._link.alive():
            self._revive([self._link])
        if self._link.alive():
            self._revive(self._nodes)

    def _revive(self, processes: Sequence[Process]) -> None:
        """A little later each time in a row; not for ever."""
        for process in processes:
            if process.alive():
                if process.restarts and time.monotonic() - process.began > STEADY:
                    process.restarts = 0
                continue
            if process.restarts >= TRIES:
                raise RunError(
                    f"{process.name} ended {process.restarts + 1} times in a row (the last time with code "
                    f"{process.code}). The end of its log:\n{tail(process.log)}"
                )
            if time.monotonic() < process.ended + 2**process.restarts - 1:
                continue
            process.restarts, self.restarts = process.restarts + 1, self.restarts + 1
            self._say(f"{process.name} ended (code {process.code}) and is started again.")
            sweep(f"{self.token}:{process.name}")  # what it had started, which would speak to nobody
            if process is not self._link:
                self._start_node(process)
            elif self._launch_link():  # on the port that the nodes know
                self._give_up_runs()

    def submit(self, app: Path, config: Config) -> int:
        """Start a run of the Flower app in this folder; its number."""
        settings = self.folder / "run.toml"
        write_private(settings, toml(config).encode())
        told = self._flwr("run", str(app), CONNECTION, "--run-config", str(settings), "--format", "json")
        try:
            answer = json.loads(told[told.index("{") :])
            told = answer.get("error-message", told)
            run = int(answer["run-id"])
        except (ValueError, KeyError, TypeError, AttributeError):
            raise RunError(f"The run could not be submitted. Flower says: {told.strip()}") from None
        self._states[run] = "pending"
        return run

    def state(self, run: int) -> str:
        """pending, running, completed, failed or stopped. While the SuperLink is away: what it was before."""
        if run in self._lost:
            return "failed"
        with contextlib.suppress(Unreachable):
            state = self._looked(run)
            if state == "running" and self._bereft() and self._looked(run) == "running":
                self._give_up(run, "Its ServerApp process is gone.")
                state = "failed"
            self._states[run] = state
        return self._states.get(run, "pending")

    def reason(self, run: int) -> str:
        """Why a run failed, in Flower's words."""
        return self._reasons.get(run, "")

    def stop_run(self, run: int) -> None:
        """Nothing happens where it has ended already."""
        self._control.stop(run)

    def server_log(self, run: int, lines: int = 60) -> str:
        """What the ServerApp of a run has printed, the last lines."""
        return "\n".join(self._flwr("log", str(run), CONNECTION, "--show").splitlines()[-lines:])

    def _flwr(self, *words: str) -> str:
        return command(self.folder / "flower", f"{self.token}:command", *words)

    def _looked(self, run: int) -> str:
        state, reason = self._control.run(run)
        if reason:
            self._reasons[run] = reason
        return state

    def _bereft(self) -> bool:
        """Whether no ServerApp is left. One that has ended well has told the SuperLink before."""
        return can_find() and not any("flwr-serverapp" in words for _, words in marked(f"{self.token}:{LINK}"))

    def _give_up_runs(self) -> None:
        """Their ServerApps ended with the SuperLink; it would wait a minute for them."""
        under_way = ("pending", "running")
        with contextlib.suppress(Unreachable):  # gone again: the next time, then
            for run in [run for run, state in self._states.items() if state in under_way and run not in self._lost]:
                if self._looked(run) in under_way:
                    self._give_up(run, "The SuperLink ended while it ran.")

    def _give_up(self, run: int, why: str) -> None:
        self._lost.add(run)
        self._reasons[run] = why
        self._control.stop(run)
        for node in self._nodes:  # one that was just receiving would be an answer behind from then on (flwr 1.41)
            if node.alive():
                sweep(f"{self.token}:{node.name}")
                self._start_node(node)

    def _write_connection(self) -> None:
        check: Config = {"root-certificates": str(self.folder / "server/ca.crt")} if self.tls else {"insecure": True}
        about = toml({"address": self.address, **check})
        text = f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\n{about}'
        write_private(self.folder / "flower" / "config.toml", text.encode())
