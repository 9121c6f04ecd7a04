"""The processes of a federation on one machine: a SuperLink and a SuperNode for every node, with TLS and node keys.

    with Cluster(folder, [{"name": "a"}, {"name": "b"}], log=print) as cluster:
        run = cluster.submit(app, {"rounds": 5})
        while cluster.state(run) in ("pending", "running"):
            cluster.restart_ended()
            time.sleep(1)

`folder` holds everything: authority/ and nodes/ (certificate authority and node keys, kept from one start to the next),
server/ (a new certificate at every start), flower/ (Flower's settings and its copies of the app), superlink.db
(registrations, runs, messages; new at every start) and logs/. Runs are submitted with Flower's own command; frequent queries go over the SuperLink's API from this process.

Two things that Flower 1.41 does not do: a SuperNode that was killed cannot return for a minute, because the SuperLink
counts it as connected (so we deactivate it with its own key); a run whose ServerApp was killed stays "running" for a
minute (so we look for the process).
"""

from __future__ import annotations

import contextlib
import json
import secrets
import ssl
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec

from fedtaste.errors import RunError, SettingError
from fedtaste.files.atomic import write_atomically
from fedtaste.flower.certificates import (
    LOOPBACK,
    issue_server,
    load_node_key,
    make_authority,
    make_node_key,
    private_folder,
)
from fedtaste.flower.processes import (
    Config,
    Guard,
    Log,
    Process,
    can_list_processes,
    environment,
    find_marked,
    free_port,
    kill_marked,
    port_problem,
    program,
    require_flower,
    run_flwr,
    tail,
    to_toml,
)
from fedtaste.flower.superlink_client import SuperLinkClient, Unreachable

CONNECTION = "fedtaste"  # name in Flower's settings
LINK = "superlink"
LINK_SECONDS, NODE_SECONDS = 120, 240  # to start, on a busy machine
STOP_SECONDS = 6
TRIES = 5  # of ports, and of restarts in a row
STEADY_SECONDS = 60  # after which earlier restarts do not count
UNDER_WAY = ("pending", "running")


@dataclass
class _Run:
    """What is known of a run."""

    state: str = "pending"
    reason: str = ""  # of a failure
    abandoned: bool = False  # its ServerApp is gone, whatever the SuperLink says


class Cluster:
    """The processes of a federation, for the duration of a `with` block. The folder becomes private."""

    def __init__(
        self,
        folder: Path,
        configs: Sequence[Config],
        *,
        host: str = "127.0.0.1",
        port: int | None = None,
        tls: bool = True,
        log: Log,
    ) -> None:
        if not configs:
            raise SettingError("A federation needs at least 1 node, got 0 nodes.")
        if port is not None and not 1 <= port <= 65535:
            raise SettingError(f"port must be 1 to 65535, got {port}.")
        self.folder, self.host, self.port, self.tls = Path(folder).resolve(), host, port, tls
        self.token = secrets.token_hex(16)
        self.restarts = 0  # of all processes together
        self._configs, self._log, self._port_is_fixed = list(configs), log, port is not None
        logs = self.folder / "logs"
        self._link = Process(LINK, logs / f"{LINK}.log")
        self._nodes = [Process(f"node-{number}", logs / f"node-{number}.log") for number in range(len(configs))]
        self.node_ids: dict[str, int] = {}  # Flower's, by name; empty without TLS, where nodes have no keys
        self._runs: dict[int, _Run] = {}
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
                    self.node_ids[node.name] = self.client.register_node(node.name, self._key(node.name))
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
        left = kill_marked(self.token)
        if self._guard:
            self._guard.dismiss()
            self._guard = None
        self._remove_database()
        if left:
            self._log(f"These processes could not be ended: {left}.")

    @property
    def address(self) -> str:
        """Where nodes and commands of this machine reach the SuperLink."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"

    @property
    def client(self) -> SuperLinkClient:
        return SuperLinkClient(self.address, self._context)

    def _key(self, name: str) -> ec.EllipticCurvePrivateKey:
        return load_node_key(self.folder / "nodes" / name)

    @property
    def processes(self) -> dict[str, int]:
        """Process ids of what runs now, by name: superlink, node-0, node-1, ..."""
        return {one.name: one.pid for one in (self._link, *self._nodes) if one.alive() and one.pid is not None}

    def read_log(self, name: str, lines: int = 30) -> str:
        """The last lines of the log of superlink, node-0, ..."""
        return tail(self.folder / "logs" / f"{name}.log", lines)

    def _prepare(self) -> None:
        """Create folders, certificates, keys and settings."""
        private_folder(self.folder)
        for name in ("logs", "flower", "nodes"):
            private_folder(self.folder / name)
        self._remove_database()  # Flower would continue runs of an earlier start beside ours
        if self.tls:
            names = dict.fromkeys((*LOOPBACK, *(() if self.host in ("0.0.0.0", "::") else (self.host,))))
            make_authority(self.folder / "authority")
            server = issue_server(self.folder / "authority", self.folder / "server", tuple(names))
            self._context = ssl.create_default_context(cafile=str(server.authority))
            for node in self._nodes:
                make_node_key(self.folder / "nodes", node.name)
        for node, config in zip(self._nodes, self._configs, strict=True):
            write_atomically(self.folder / "nodes" / f"{node.name}.toml", to_toml(config).encode(), 0o600)

    def _remove_database(self) -> None:
        """Remove what the SuperLink knew, with the messages that were under way."""
        for file in self.folder.glob(f"{LINK}.db*"):
            file.unlink(missing_ok=True)

    # Start and restart

    def _start_link(self) -> None:
        """Start the SuperLink and wait until it answers; on another port if the chosen one was taken meanwhile."""
        for attempt in range(TRIES):
            if self.port is None or (attempt and not self._port_is_fixed):
                self.port = free_port()
            if why := port_problem(self.host, self.port):
                if self._port_is_fixed:
                    raise SettingError(
                        f"Port {self.port} of {self.host} cannot be used ({why}). Stop the program that listens there, "
                        "choose another port with --port, or leave --port out to use a free one."
                    )
                continue
            if self._launch_link():
                return
            if "address already in use" not in self.read_log(LINK).lower():
                break
        raise RunError(f"The SuperLink ended while it started. The end of its log:\n{self.read_log(LINK)}")

    def _launch_link(self) -> bool:
        """Start the SuperLink; whether it answers (False if it ended)."""
        self._write_connection()
        server = self.folder / "server"
        command = [program("flower-superlink"), "--host", self.host, "--port", str(self.port)]
        command += ["--database", str(self.folder / f"{LINK}.db"), "--disable-runtime-dependency-installation"]
        if self.tls:
            command += ["--ssl-ca-certfile", str(server / "ca.crt"), "--ssl-certfile", str(server / "server.crt")]
            command += ["--ssl-keyfile", str(server / "server.key"), "--enable-supernode-auth"]
        self._link.start(command + ([] if self.tls else ["--insecure"]), self._environment(LINK))
        until = time.monotonic() + LINK_SECONDS
        while self._link.alive():
            with contextlib.suppress(Unreachable):
                self.client.check_health()
                return True
            if time.monotonic() > until:
                raise RunError(f"The SuperLink does not answer after {LINK_SECONDS} s. Its log:\n{self.read_log(LINK)}")
            time.sleep(0.2)
        return False

    def _environment(self, part: str) -> dict[str, str]:
        return environment(self.folder / "flower", f"{self.token}:{part}")

    def _start_node(self, node: Process) -> None:
        if node.name in self.node_ids:
            self.client.deactivate_node(self.node_ids[node.name], self._key(node.name))
        key = self.folder / "nodes" / node.name
        command = [program("flower-supernode"), "--superlink", self.address, "--host", "127.0.0.1"]
        command += ["--port", str(free_port()), "--node-config", f"{key}.toml"]
        if self.tls:
            root = self.folder / "server" / "ca.crt"
            command += ["--root-certificates", str(root), "--auth-supernode-private-key", str(key)]
        node.start(command + ([] if self.tls else ["--insecure"]), self._environment(node.name))

    def _await_nodes(self) -> None:
        """Wait until all nodes are connected. A node that ends is restarted a few times: its port may be taken."""
        until = time.monotonic() + NODE_SECONDS
        while (online := self.client.count_online()) < len(self._nodes):
            self._restart(self._nodes)
            if time.monotonic() > until:
                logs = "\n".join(f"{node.name}:\n{tail(node.log, 6)}" for node in self._nodes)
                raise RunError(
                    f"{online} of {len(self._nodes)} nodes are connected after {NODE_SECONDS} s. Logs:\n{logs}"
                )
            time.sleep(0.3)

    def restart_ended(self) -> None:
        """Restart the processes that have ended. Call it every second or so."""
        if self._guard and not self._guard.alive():
            self._guard.dismiss()
            self._guard = Guard(self.token)
        if not self._link.alive():
            self._restart([self._link])
        if self._link.alive():
            self._restart(self._nodes)

    def _restart(self, processes: Sequence[Process]) -> None:
        """Restart those that have ended, with a growing delay and a limited number of times."""
        for process in processes:
            if process.alive():
                if process.restarts and time.monotonic() - process.began > STEADY_SECONDS:
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
            self._log(f"{process.name} ended (code {process.code}) and is started again.")
            kill_marked(f"{self.token}:{process.name}")  # its children, which have lost their parent
            if process is not self._link:
                self._start_node(process)
            elif self._launch_link():  # on the port that the nodes know
                self._abandon_runs()

    # Runs

    def submit(self, app: Path, config: Config) -> int:
        """Start a run of the Flower app in this folder; returns its id."""
        settings = self.folder / "run.toml"
        write_atomically(settings, to_toml(config).encode(), 0o600)
        reply = self._flwr("run", str(app), CONNECTION, "--run-config", str(settings), "--format", "json")
        try:
            answer = json.loads(reply[reply.index("{") :])
            reply = answer.get("error-message", reply)
            run = int(answer["run-id"])
        except (ValueError, KeyError, TypeError, AttributeError):
            raise RunError(f"The run could not be submitted. Flower says: {reply.strip()}") from None
        self._runs[run] = _Run()
        return run

    def state(self, run: int) -> str:
        """pending, running, completed, failed or stopped; the last known state if the SuperLink does not answer."""
        info = self._runs.setdefault(run, _Run())
        if not info.abandoned:
            with contextlib.suppress(Unreachable):
                state = self._query(run)
                if state == "running" and self._server_app_gone() and self._query(run) == "running":
                    self._abandon(run, "Its ServerApp process is gone.")
        return self._runs[run].state

    def reason(self, run: int) -> str:
        """Why a run failed, in Flower's words."""
        return self._runs[run].reason

    def server_log(self, run: int, lines: int = 60) -> str:
        """The last lines that the ServerApp of a run has printed."""
        return "\n".join(self._flwr("log", str(run), CONNECTION, "--show").splitlines()[-lines:])

    def _flwr(self, *arguments: str) -> str:
        return run_flwr(self.folder / "flower", f"{self.token}:command", *arguments)

    def _query(self, run: int) -> str:
        info = self._runs[run]
        info.state, reason = self.client.run_state(run)
        info.reason = reason or info.reason
        return self._runs[run].state

    def _server_app_gone(self) -> bool:
        """Whether no ServerApp runs. One that ended normally has told the SuperLink before."""
        processes = find_marked(f"{self.token}:{LINK}")
        return can_list_processes() and not any("flwr-serverapp" in command for _, command in processes)

    def _abandon_runs(self) -> None:
        """Abandon the runs whose ServerApps ended with the SuperLink; it would wait a minute for them."""
        with contextlib.suppress(Unreachable):  # gone again: the next restart comes back here
            for run, info in self._runs.items():
                if info.state in UNDER_WAY and not info.abandoned and self._query(run) in UNDER_WAY:
                    self._abandon(run, "The SuperLink ended while it ran.")

    def _abandon(self, run: int, why: str) -> None:
        self._runs[run] = _Run("failed", why, abandoned=True)
        self.client.stop_run(run)
        for node in self._nodes:  # with flwr 1.41 a node that was receiving would stay one answer behind
            if node.alive():
                kill_marked(f"{self.token}:{node.name}")
                self._start_node(node)

    def _write_connection(self) -> None:
        check: Config = {"root-certificates": str(self.folder / "server/ca.crt")} if self.tls else {"insecure": True}
        about = to_toml({"address": self.address, **check})
        text = f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\n{about}'
        write_atomically(self.folder / "flower" / "config.toml", text.encode(), 0o600)
