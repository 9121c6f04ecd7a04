"""The HTTP server of `fedtaste serve`: the files of a bundle, and on request the API, on the loopback address.

All files are in memory before the first request, and an address is a key of a dictionary: no request can name a path on
the disk. Nothing about a request is logged.
"""

from __future__ import annotations

import asyncio
import errno
import gzip
import hashlib
import os
import re
import socket
import threading
import traceback
from collections.abc import Callable, Iterable, Mapping
from pathlib import PurePath
from queue import SimpleQueue
from typing import NamedTuple

from fedtaste.errors import SettingError
from fedtaste.serving.api import Api, Refused, cut
from fedtaste.serving.connections import Connection
from fedtaste.serving.http import (
    JSON,
    TEXT,
    Reply,
    Request,
    accepts_gzip,
    api_reply,
    busy,
    content_type,
    refusal,
)

PARALLEL = 256  # requests in work at once; as many more connections may wait
PATIENCE = 10.0  # seconds that a request may take to arrive
BACKLOG = 256  # connections that the operating system holds
CONTENT_TYPES = {
    ".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8",
    ".json": JSON, ".svg": "image/svg+xml", ".md": TEXT, ".txt": TEXT,
}  # fmt: skip


class File(NamedTuple):
    """A file with its content type and its tag for caches, and compressed where that is shorter."""

    kind: str
    body: bytes
    packed: bytes | None
    tag: str


def files_by_address(files: Mapping[str, bytes]) -> dict[str, File]:
    """The files as they are sent, by their address; text is compressed here once."""
    by_address = {}
    for name, body in files.items():
        kind = CONTENT_TYPES.get(PurePath(name).suffix)
        packed = gzip.compress(body, 9, mtime=0) if kind else body
        tag = hashlib.sha256(body).hexdigest()[:32]
        smaller = packed if len(packed) < len(body) else None
        by_address[f"/{name}"] = File(kind or "application/octet-stream", body, smaller, tag)
    return by_address | {"/": by_address["/index.html"]}


def check_host(name: str) -> str:
    """A value of --allow-host in lower case; refuses what is no host name."""
    if not re.fullmatch(r"([A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?", name):
        raise SettingError(
            "--allow-host must be the name that browsers ask for, as in films.example or films.example:8443, without "
            f"https:// and without *, got {cut(name)!r}."
        )
    return name.lower()


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        if os.name != "nt":
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OverflowError:
        listener.close()
        raise SettingError(f"--port must be a number from 0 to 65535, got {port}.") from None
    except OSError as error:
        listener.close()
        why = "another program listens there" if error.errno == errno.EADDRINUSE else (error.strerror or "").lower()
        raise SettingError(
            f"Port {port} cannot be used: {why}. Choose another with --port, or --port 0 for a free one."
        ) from None
    return listener


class Server:
    """Listens once constructed; `serve_forever` answers, until `shutdown` is called from another thread."""

    def __init__(
        self,
        files: Mapping[str, bytes],
        *,
        port: int = 0,
        api: Api | None = None,
        hosts: Iterable[str] = (),
        parallel: int = PARALLEL,
        patience: float = PATIENCE,
        log: Callable[[str], None] = lambda _: None,
    ) -> None:
        allowed = [check_host(name) for name in hosts]
        self.files, self.api, self.patience, self.log = files_by_address(files), api, patience, log
        self.parallel, self.in_work, self.connections = parallel, 0, 0
        self.socket = listen("127.0.0.1", port)
        self.port = int(self.socket.getsockname()[1])
        self.url = f"http://127.0.0.1:{self.port}/"
        loopback = ("127.0.0.1", "localhost", "[::1]")
        self.hosts = {*allowed, *(f"{name}:{self.port}" for name in loopback), *(loopback if self.port == 80 else ())}
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop = threading.Event()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def serve_forever(self) -> None:
        asyncio.run(self._serve())

    def shutdown(self) -> None:
        """Stop answering; may be called from any thread."""
        self._stop.set()
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._stopped.set)

    async def _serve(self) -> None:
        self._loop, self._stopped = asyncio.get_running_loop(), asyncio.Event()
        import os

        for _ in range(min(int(os.environ.get("W", "4")), self.parallel)):
            threading.Thread(target=self._work, daemon=True).start()
        server = await self._loop.create_server(lambda: Connection(self), sock=self.socket, backlog=BACKLOG)
        async with server:
            if not self._stop.is_set():
                await self._stopped.wait()
        self._loop = None

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()

    def admit(self, connection: Connection) -> bool:
        if self.connections >= 2 * self.parallel:
            return False
        self.connections += 1
        return True

    def release(self, connection: Connection) -> None:
        self.connections -= 1

    def replied(self, reply: Reply, target: str, seconds: float) -> None:
        pass

    def answer(self, request: Request, peer: str, reply: Callable[[Reply], None]) -> None:
        if self.in_work >= self.parallel:
            reply(busy(content_type(request.target)))
            return
        import os

        if request.method != "POST" or os.environ.get("W") == "0":
            reply(self.reply(request))
            return
        self.in_work += 1
        loop = self._loop

        def done(found: Reply) -> None:
            self.in_work -= 1
            reply(found)

        self._jobs.put(lambda: loop.call_soon_threadsafe(done, self.reply(request)))

    def log_bug(self, error: BaseException) -> None:
        """Log where an error was raised, and not its text, which may hold what was sent."""
        *_, last = traceback.extract_tb(error.__traceback__)
        place = f"{PurePath(last.filename).name}:{last.lineno}"
        self.log(f"A bug in fedtaste, at {place}: {type(error).__name__}. Please report it.")

    def reply(self, request: Request) -> Reply:
        kind = content_type(request.target)
        try:
            self._check_host_header(request.headers.get("host", ""))
            if not request.target.startswith("/v1/"):
                return self._file(request)
            if self.api is None:
                raise Refused(404, "There is no API here. Start it with `fedtaste serve --api`.")
            headers = request.headers
            return api_reply(self.api.answer(request.method, request.target, headers.get("content-type"), request.body))
        except Refused as refused:
            return refusal(refused, kind)
        except Exception as error:  # noqa: BLE001 (a bug must not end the server)
            self.log_bug(error)
            return refusal(Refused(500, "This is a bug in fedtaste. Please report what was sent."), kind)

    def _check_host_header(self, host: str) -> None:
        """Refuse other names, so that no site can reach this server by a name that it points at this machine."""
        host = host.lower()
        if host not in self.hosts and re.sub(r":[0-9]+$", "", host) not in self.hosts:
            raise Refused(
                421,
                f"The Host {cut(host)!r} is not one that this server answers for: those are 127.0.0.1:{self.port} and "
                f"localhost:{self.port}. If the name is yours, start with --allow-host NAME.",
                "Host",
            )

    def _file(self, request: Request) -> Reply:
        path = request.target.partition("?")[0]
        file = self.files.get(path)
        if file is None:
            raise Refused(404, f"There is no {cut(path)} here. The page is at /.")
        if request.method not in ("GET", "HEAD"):
            raise Refused(405, f"A file takes GET or HEAD, got {request.method}.", Allow="GET, HEAD")
        packed = file.packed if accepts_gzip(request.headers.get("accept-encoding", "")) else None
        tag = f'"{file.tag}{"-gzip" if packed else ""}"'
        headers = {"Content-Type": file.kind, "Cache-Control": "no-cache", "ETag": tag}
        headers |= {"Vary": "Accept-Encoding"} if file.packed else {}
        tags = [part.strip().removeprefix("W/") for part in request.headers.get("if-none-match", "").split(",")]
        if tag in tags or "*" in tags:
            return Reply(304, b"", headers)
        return Reply(200, packed or file.body, headers | ({"Content-Encoding": "gzip"} if packed else {}))
