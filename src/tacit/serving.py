"""The server of `tacit serve`: the files of a bundle, and the API where asked for, on this machine's loopback address.

Everything is in memory before the first request, and an address is looked up as it is written: there is no path on a
disk that a request could name. Nothing about a request is written down.
"""

from __future__ import annotations

import contextlib
import errno
import gzip
import hashlib
import os
import re
import socketserver
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import PurePath
from typing import Any, NamedTuple

from .api import Api, Refused, cut
from .errors import SettingError
from .serving_http import JSON, TEXT, Connection, Reply, Request, busy, kind_for, of_api, refusal, rendered, takes_gzip

PARALLEL, PATIENCE = 256, 10.0  # requests in work at once; seconds that a request may take to arrive
KINDS = {
    ".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8",
    ".json": JSON, ".svg": "image/svg+xml", ".md": TEXT, ".txt": TEXT,
}  # fmt: skip


class File(NamedTuple):
    """A file as it is sent: whole, and packed where that is shorter."""

    kind: str
    body: bytes
    packed: bytes | None
    tag: str


def in_memory(files: Mapping[str, bytes]) -> dict[str, File]:
    """address -> file."""
    made = {}
    for name, body in files.items():
        kind = KINDS.get(PurePath(name).suffix)
        packed = gzip.compress(body, 9, mtime=0) if kind else b""
        tag = hashlib.sha256(body).hexdigest()[:32]
        made[f"/{name}"] = File(
            kind or "application/octet-stream", body, packed if 0 < len(packed) < len(body) else None, tag
        )
    return made | {"/": made["/index.html"]}


def checked_host(name: str) -> str:
    """A name for --allow-host, in lower case."""
    if not re.fullmatch(r"([A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?", name):
        raise SettingError(
            f"--allow-host {cut(name)!r} was got; it takes the name that browsers ask for, as in films.example or "
            "films.example:8443, without https:// and without *."
        )
    return name.lower()


class Server(socketserver.ThreadingTCPServer):
    """Listens once made; `serve_forever` answers."""

    daemon_threads, block_on_close = True, False
    allow_reuse_address = os.name != "nt"
    request_queue_size = 256

    def __init__(
        self, files: Mapping[str, bytes], *, port: int = 0, api: Api | None = None, hosts: Iterable[str] = (),
        parallel: int = PARALLEL, patience: float = PATIENCE, told: Callable[[str], None] = lambda _: None,
    ) -> None:  # fmt: skip
        allowed = [checked_host(name) for name in hosts]
        self.files, self.api, self.patience, self.told = in_memory(files), api, patience, told
        self.work, self.seats = threading.Semaphore(parallel), threading.Semaphore(2 * parallel)
        try:
            super().__init__(("127.0.0.1", port), Connection)
        except OverflowError:
            raise SettingError(f"--port {port} was got; a number from 0 to 65535 is expected.") from None
        except OSError as error:
            why = "another program listens there" if error.errno == errno.EADDRINUSE else (error.strerror or "").lower()
            raise SettingError(
                f"Port {port} cannot be used: {why}. Choose another with --port, or --port 0 for a free one."
            ) from None
        self.port = int(self.server_address[1])
        self.url = f"http://127.0.0.1:{self.port}/"
        own = ("127.0.0.1", "localhost", "[::1]")
        self.hosts = {*allowed, *(f"{name}:{self.port}" for name in own), *(own if self.port == 80 else ())}

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self.seats.acquire(blocking=False):
            request.setblocking(False)
            with contextlib.suppress(OSError):
                request.send(rendered(busy(JSON), close=True))
            return self.shutdown_request(request)
        try:
            super().process_request(request, client_address)
        except BaseException:
            self.seats.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.seats.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        error = sys.exc_info()[1]
        if error is not None and not isinstance(error, OSError):
            self._bug(error)

    def _bug(self, error: BaseException) -> None:
        """Say where, and not what: the text of an error may hold what was sent."""
        self.told(f"A bug in tacit, at {place(error)}: {type(error).__name__}. Please report it.")

    def reply(self, asked: Request) -> Reply:
        if not self.work.acquire(blocking=False):
            return busy(kind_for(asked.target))
        try:
            self._own_name(asked.headers.get("host", ""))
            if not asked.target.startswith("/v1/"):
                return self._file(asked)
            if self.api is None:
                raise Refused(404, "There is no API here. Start it with `tacit serve --api`.")
            return of_api(self.api.answer(asked.method, asked.target, asked.headers.get("content-type"), asked.body))
        except Refused as no:
            return refusal(no, kind_for(asked.target))
        except Exception as error:  # noqa: BLE001 (the last door)
            self._bug(error)
            return refusal(Refused(500, "This is a bug in tacit. Please report what was sent."), kind_for(asked.target))
        finally:
            self.work.release()

    def _own_name(self, host: str) -> None:
        """Another site may not reach this one by a name of its own that points to this machine."""
        host = host.lower()
        if host not in self.hosts and re.sub(r":[0-9]+$", "", host) not in self.hosts:
            raise Refused(
                421,
                f"The Host {cut(host)!r} is not one that this server answers for: it is 127.0.0.1:{self.port} or "
                f"localhost:{self.port}. If the name is yours, start with --allow-host NAME.",
                "Host",
            )

    def _file(self, asked: Request) -> Reply:
        path = asked.target.partition("?")[0]
        found = self.files.get(path)
        if found is None:
            raise Refused(404, f"There is no {cut(path)} here. The page is at /.")
        if asked.method not in ("GET", "HEAD"):
            raise Refused(405, f"{asked.method} was got; a file takes GET or HEAD.", Allow="GET, HEAD")
        packed = found.packed if takes_gzip(asked.headers.get("accept-encoding", "")) else None
        tag = f'"{found.tag}{"-gzip" if packed else ""}"'
        headers = {"Content-Type": found.kind, "Cache-Control": "no-cache", "ETag": tag}
        headers |= {"Vary": "Accept-Encoding"} if found.packed else {}
        known = [part.strip().removeprefix("W/") for part in asked.headers.get("if-none-match", "").split(",")]
        if tag in known or "*" in known:
            return Reply(304, b"", headers)
        return Reply(200, packed or found.body, headers | ({"Content-Encoding": "gzip"} if packed else {}))


def place(error: BaseException) -> str:
    """Where an error was raised, without what it says."""
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    return f"{PurePath(at.tb_frame.f_code.co_filename).name}:{at.tb_lineno}" if at else "?"
