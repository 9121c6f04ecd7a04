"""Run `fedtaste federate` with one part replaced, for tests of faults and of what is sent.

`run_lab` runs a federation as the command does, but it may use another app (a node that lies, a server that records
what it receives), other settings of single nodes, no TLS, or a proxy between nodes and the SuperLink. A Proxy forwards
bytes; it may also record or change them.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

from fedtaste.cli.output import cache
from fedtaste.data.sources import load
from fedtaste.experiment.progress import Silent
from fedtaste.experiment.settings import FederationSettings, Settings
from fedtaste.flower import federate as command
from fedtaste.flower.cluster import Cluster
from fedtaste.flower.deploy import write_app

Extras = dict[str, dict[str, Any]]
Spoil = Callable[[bytes, bool], bytes]  # (bytes, whether they go to the SuperLink) -> the bytes to forward


@dataclass(eq=False)
class Stream:
    """The bytes of one connection, by direction."""

    up: bytearray = field(default_factory=bytearray)  # to the SuperLink
    down: bytearray = field(default_factory=bytearray)


class Proxy:
    """Forwards connections to a port of this machine within a `with` block."""

    def __init__(self, *, keep: bool = False, spoil: Spoil | None = None) -> None:
        self.port = 0  # of the SuperLink; known when it has been started
        self.keep, self.spoil = keep, spoil
        self.streams: list[Stream] = []
        self.up_bytes = self.down_bytes = self.connections = 0
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()

    def __enter__(self) -> Proxy:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._close(self._listener)
        for connection in list(self._open):
            self._close(connection)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self.port), timeout=5)
            except OSError:
                client.close()
                continue
            server.settimeout(None)
            stream = Stream()
            with self._lock:
                self.connections += 1
                self._open |= {client, server}
                if self.keep:
                    self.streams.append(stream)
            threading.Thread(target=self._forward, args=(client, server, stream, True), daemon=True).start()
            threading.Thread(target=self._forward, args=(server, client, stream, False), daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket, stream: Stream, up: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                with self._lock:
                    self.up_bytes += len(data) if up else 0
                    self.down_bytes += 0 if up else len(data)
                if self.keep:
                    (stream.up if up else stream.down).extend(data)
                target.sendall(self.spoil(data, up) if self.spoil else data)
        for connection in (source, target):
            self._close(connection)

    def _close(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
        connection.close()
        self._open.discard(connection)


class Lab(Cluster):
    """A Cluster in which the nodes `via` (if None, all nodes and the commands) connect through a proxy."""

    def __init__(
        self, *arguments: Any, proxy: Proxy | None = None, via: tuple[str, ...] | None = None,
        tick: Callable[[Any], None] | None = None, **more: Any,
    ) -> None:  # fmt: skip
        super().__init__(*arguments, **more)
        self.proxy, self.via, self.tick = proxy, via, tick
        self._detour = False

    @property
    def address(self) -> str:
        if self.proxy and (self.via is None or self._detour):
            self.proxy.port = self.port or 0
            return self.proxy.address
        return super().address

    def _start_node(self, node: Any) -> None:
        self._detour = node.name in (self.via or ())
        try:
            super()._start_node(node)
        finally:
            self._detour = False

    def restart_ended(self) -> None:
        if self.tick:
            self.tick(self)
        super().restart_ended()


def run_lab(
    path: Path, options: dict[str, Any], nodes: int = 4, *, module: str = "", extras: Extras | None = None,
    deadline: float = 90.0, port: int | None = None, tls: bool = True, proxy: Proxy | None = None,
    via: tuple[str, ...] | None = None, tick: Callable[[Any], None] | None = None, say: Callable[[str], None] = print,
    kind: type[Lab] = Lab,
) -> dict[str, Any]:  # fmt: skip
    """The result of a federation in this folder. `module` is a file beside this one that replaces the app's module;
    `extras` are additions to the node-config by node; `tick` is called several times a second during the run."""
    settings = Settings(**options)
    data = load(settings.data, seed=settings.seed, cache=cache())
    folder = command.prepare_federation(
        path, settings, data, FederationSettings(nodes=nodes, deadline=deadline, port=port)
    )

    def cluster(place: Path, configs: list[dict[str, Any]], **more: Any) -> Lab:
        own = [config | (extras or {}).get(str(config["name"]), {}) for config in configs]
        return kind(place, own, tls=tls, proxy=proxy, via=via, tick=tick, **more)

    def app(place: Path, config: dict[str, Any]) -> Path:
        folder = write_app(place, config)
        if module:
            shutil.copy(Path(__file__).with_name(module), folder / "federation.py")
        return folder

    with patch.object(command, "Cluster", cluster), patch.object(command, "write_app", app):
        return command.run_federation(folder, Silent(), say).dump()
