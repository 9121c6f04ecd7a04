"""Federations with something wrong in them, or somebody watching: `fedtaste federate`, with one part exchanged.

`held` runs a federation as the command does, and may give it another app (a node that lies, a server that writes down
what it receives), other settings of single nodes, no TLS, or a proxy between nodes and the SuperLink. A Proxy passes
bytes on; it may keep them, and it may change them.
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
Spoil = Callable[[bytes, bool], bytes]  # what goes on in place of these bytes; True: from a node to the SuperLink


@dataclass(eq=False)
class Stream:
    """What went through one connection."""

    up: bytearray = field(default_factory=bytearray)  # to the SuperLink
    down: bytearray = field(default_factory=bytearray)


class Proxy:
    """Passes connections to a port of this machine on, while the `with` lasts."""

    def __init__(self, *, keep: bool = False, spoil: Spoil | None = None) -> None:
        self.port = 0  # of the SuperLink; known when it has been started
        self.keep, self.spoil = keep, spoil
        self.streams: list[Stream] = []
        self.up_bytes = self.down_bytes = self.connections = 0
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()

    def __enter__(self) -> Proxy:
        self._door = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.address = f"127.0.0.1:{self._door.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._close(self._door)
        for one in list(self._open):
            self._close(one)

    def _accept(self) -> None:
        while True:
            try:
                guest, _ = self._door.accept()
            except OSError:
                return
            try:
                host = socket.create_connection(("127.0.0.1", self.port), timeout=5)
            except OSError:
                guest.close()
                continue
            host.settimeout(None)
            stream = Stream()
            with self._lock:
                self.connections += 1
                self._open |= {guest, host}
                if self.keep:
                    self.streams.append(stream)
            threading.Thread(target=self._pass, args=(guest, host, stream, True), daemon=True).start()
            threading.Thread(target=self._pass, args=(host, guest, stream, False), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, stream: Stream, up: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                with self._lock:
                    self.up_bytes += len(data) if up else 0
                    self.down_bytes += 0 if up else len(data)
                if self.keep:
                    (stream.up if up else stream.down).extend(data)
                target.sendall(self.spoil(data, up) if self.spoil else data)
        for one in (source, target):
            self._close(one)

    def _close(self, one: socket.socket) -> None:
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
        one.close()
        self._open.discard(one)


class Lab(Cluster):
    """A Cluster some of whose nodes (all, and the commands too, where `via` is None) speak through a proxy."""

    def __init__(
        self, *words: Any, proxy: Proxy | None = None, via: tuple[str, ...] | None = None,
        tick: Callable[[Any], None] | None = None, **more: Any,
    ) -> None:  # fmt: skip
        super().__init__(*words, **more)
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


def held(
    path: Path, words: dict[str, Any], nodes: int = 4, *, module: str = "", extras: Extras | None = None,
    deadline: float = 90.0, port: int | None = None, tls: bool = True, proxy: Proxy | None = None,
    via: tuple[str, ...] | None = None, tick: Callable[[Any], None] | None = None, say: Callable[[str], None] = print,
    kind: type[Lab] = Lab,
) -> dict[str, Any]:  # fmt: skip
    """The result of a federation in this folder. `module`: a file beside this one, in place of the app's; `extras`: by
    node, what more stands in its node-config; `tick` is called several times a second while the run lasts."""
    settings = Settings(**words)
    data = load(settings.data, seed=settings.seed, cache=cache())
    folder = command.prepare_federation(
        path, settings, data, FederationSettings(nodes=nodes, deadline=deadline, port=port)
    )

    def cluster(place: Path, configs: list[dict[str, Any]], **more: Any) -> Lab:
        own = [config | (extras or {}).get(str(config["name"]), {}) for config in configs]
        return kind(place, own, tls=tls, proxy=proxy, via=via, tick=tick, **more)

    def app(place: Path, config: dict[str, Any]) -> Path:
        made = write_app(place, config)
        if module:
            shutil.copy(Path(__file__).with_name(module), made / "federation.py")
        return made

    with patch.object(command, "Cluster", cluster), patch.object(command, "write_app", app):
        return command.run_federation(folder, Silent(), say)
