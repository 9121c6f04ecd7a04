"""The processes of a federation on one machine: a SuperLink and a SuperNode for every node, with TLS and node keys.

    with Cluster(folder, [{"name": "a"}, {"name": "b"}], log=print) as cluster:
        run = cluster.submit(app, {"rounds": 5})
        while cluster.state(run) in ("pending", "running"):
            cluster.restart_ended()
            time.sleep(1)

`folder` holds everything: authority/ and nodes/ (certificate authority and node keys, kept from one start to the next),
server/ (a new certificate at every start), flower/ (Flower's settings and its copies of the app), superlink.db
(registrations, runs, messages; new at every start) and logs/. Runs are submitted with Flower's own command; frequent
queries go over the SuperLink's API from this process.

Two things that Flower 1.41 does not do: a SuperNode that was killed cannot return for a minute, because the SuperLink
counts it as connected (so we deactivate it with its own key); a run whose ServerApp was killed stays "running" for a
minute (so we look for the process).
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import ssl
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from fedtaste.errors import RunError, SettingError
from fedtaste.files.atomic import write_atomically
from fedtaste.flower import certificates, processes
from fedtaste.flower.certificates import private_folder
from fedtaste.flower.processes import Config, Guard, Log, Process, kill_marked, program, tail, to_toml
from fedtaste.flower.superlink_client import SuperLinkClient, Unreachable

CONNECTION = "fedtaste"  # name in Flower's settings
LINK = "superlink"
LINK_SECONDS, NODE_SECONDS = 120, 240  # to start, on a busy machine
SUBMIT_SECONDS, STOP_SECONDS = 120, 6
TRIES = 5  # of ports, and of restarts in a row
STEADY_SECONDS = 60  # after which earlier restarts do not count
UNDER_WAY = ("pending", "running")


class Cluster:
    """The processes of a federation, for the duration of a `with` block. The folder becomes private."""

    def __init__(
        self, folder: Path, configs: Sequence[Config], *, host: str = "127.0.0.1", port: int | None = None,
        tls: bool = True, log: Log,
    ) -> None:  # fmt: skip
        self.folder, self.host, self.port, self.tls = Path(folder).resolve(), host, port or 0, tls
        self.token = secrets.token_hex(16)
        self._configs, self._log, self._port_is_fixed = configs, log, port is not None
        logs = self.folder / "logs"
        self._link = Process(LINK, logs / f"{LINK}.log")
        self._nodes = [Process(f"node-{number}", logs / f"node-{number}.log") for number in range(len(configs))]
        self.node_ids: dict[str, int] = {}  # Flower's, by name; empty without TLS, where nodes have no keys
        self._states: dict[int, str] = {}  # by run: the last known state
        self._guard: Guard | None = None
        self._context: ssl.SSLContext | None = None

    def __enter__(self) -> Cluster:
        processes.require_flower()
        self._prepare()
        self._guard = Guard(self.token)
        try:
            self._start_link()
            for node in self._nodes if self.tls else ():
                key = certificates.load_node_key(self.folder / "nodes" / node.name)
                self.node_ids[node.name] = self.client.register_node(node.name, key)
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
        self._remove_database()
        if left:
            self._log(f"These processes could not be ended: {left}.")

    @property
    def address(self) -> str:
        """Where nodes and commands of this machine reach the SuperLink."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def client(self) -> SuperLinkClient:
        return SuperLinkClient(self.address, self._context)

    @property
    def processes(self) -> dict[str, int]:
        """Process ids of what runs now, by name: superlink, node-0, node-1, ..."""
        running = [process for process in (self._link, *self._nodes) if process.alive()]
        return {process.name: process.pid for process in running}

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
            certificates.make_authority(self.folder / "authority")
            names = tuple(dict.fromkeys((*certificates.LOOPBACK, self.host)))
            server = certificates.issue_server(self.folder / "authority", self.folder / "server", names)
            self._context = ssl.create_default_context(cafile=str(server.authority))
            for node in self._nodes:
                certificates.make_node_key(self.folder / "nodes", node.name)
        for node, config in zip(self._nodes, self._configs, strict=True):
            write_atomically(self.folder / "nodes" / f"{node.name}.toml", to_toml(config).encode(), 0o600)

    def _remove_database(self) -> None:
        """Remove what the SuperLink knew, with the messages that were under way."""
        for file in self.folder.glob(f"{LINK}.db*"):
            file.unlink(missing_ok=True)

    # Start and restart

    def _start_link(self) -> None:
        """Start the SuperLink and wait until it answers; on another port if the chosen one was taken meanwhile."""
        for _ in range(TRIES):
            if not self._port_is_fixed:
                self.port = processes.free_port()
            elif why := processes.port_problem(self.host, self.port):
                raise SettingError(
                    f"Port {self.port} of {self.host} cannot be used ({why}). Stop the program that listens there, "
                    "choose another port with --port, or leave --port out to use a free one."
                )
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
        tls = ["--ssl-ca-certfile", str(server / "ca.crt"), "--ssl-certfile", str(server / "server.crt")]
        tls += ["--ssl-keyfile", str(server / "server.key"), "--enable-supernode-auth"]
        self._link.start(command + (tls if self.tls else ["--insecure"]), self._environment(LINK))
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
        """The environment of a process. Unless ours says otherwise, each node gets its share of the cores."""
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        threads = {"NUMBA_NUM_THREADS": str(max(1, cores // len(self._nodes))), "OMP_NUM_THREADS": "1"}
        return threads | processes.environment(self.folder / "flower", f"{self.token}:{part}")

    def _start_node(self, node: Process) -> None:
        key = self.folder / "nodes" / node.name
        if node.name in self.node_ids:
            self.client.deactivate_node(self.node_ids[node.name], certificates.load_node_key(key))
        command = [program("flower-supernode"), "--superlink", self.address, "--host", "127.0.0.1"]
        command += ["--port", str(processes.free_port()), "--node-config", f"{key}.toml"]
        tls = ["--root-certificates", str(self.folder / "server" / "ca.crt"), "--auth-supernode-private-key", str(key)]
        node.start(command + (tls if self.tls else ["--insecure"]), self._environment(node.name))

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

    def _restart(self, family: Sequence[Process]) -> None:
        """Restart those that have ended, with a growing delay and a limited number of times."""
        for process in family:
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
            process.restarts += 1
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
        command = [program("flwr"), "run", str(app), CONNECTION, "--run-config", str(settings), "--format", "json"]
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                env=self._environment("command"), cwd=self.folder / "flower", timeout=SUBMIT_SECONDS,
            )  # fmt: skip
            reply = done.stdout.decode(errors="replace")
            answer = json.loads(reply[reply.index("{") :])
            reply = answer.get("error-message", reply)
            run = int(answer["run-id"])
        except subprocess.TimeoutExpired:
            raise RunError(f"`flwr run` did not end within {SUBMIT_SECONDS} s. Look at the SuperLink's log.") from None
        except (ValueError, KeyError, TypeError, AttributeError):
            raise RunError(f"The run could not be submitted. Flower says: {reply.strip()}") from None
        self._states[run] = "pending"
        return run

    def state(self, run: int) -> str:
        """pending, running, completed, failed or stopped; the last known state if the SuperLink does not answer."""
        if self._states.setdefault(run, "pending") in UNDER_WAY:
            with contextlib.suppress(Unreachable):
                if self._query(run) == "running" and self._server_app_gone() and self._query(run) == "running":
                    self._abandon(run)
        return self._states[run]

    def _query(self, run: int) -> str:
        self._states[run] = self.client.run_state(run)
        return self._states[run]

    def _server_app_gone(self) -> bool:
        """Whether no ServerApp runs. One that ended normally has told the SuperLink before."""
        commands = [command for _, command in processes.find_marked(f"{self.token}:{LINK}")]
        return processes.can_list_processes() and not any("flwr-serverapp" in command for command in commands)

    def _abandon_runs(self) -> None:
        """Abandon the runs whose ServerApps ended with the SuperLink; it would wait a minute for them."""
        with contextlib.suppress(Unreachable):  # gone again: the next restart comes back here
            for run, state in list(self._states.items()):
                if state in UNDER_WAY and self._query(run) in UNDER_WAY:
                    self._abandon(run)

    def _abandon(self, run: int) -> None:
        """Count a run as failed, whatever the SuperLink says: its ServerApp is gone."""
        self._states[run] = "failed"
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
