"""The HTTP server of `fedtaste serve` and `fedtaste monitor`: limits, host names, /health and /metrics.

An event loop reads requests and sends replies; a few threads compute. What is served is a Site: the page with its API
(site.py), or the state of a federation (flower/monitor.py). Nothing about a request is logged.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import os
import re
import socket
import threading
import traceback
from collections.abc import Callable, Iterable
from pathlib import PurePath
from queue import SimpleQueue
from typing import Protocol

from prometheus_client.core import Metric

from fedtaste.errors import SettingError
from fedtaste.event_log import Event, EventLog, ignore
from fedtaste.serving.api import Refused
from fedtaste.serving.connections import Connection
from fedtaste.serving.http import JSON, Reply, Request, busy, content_type, refusal
from fedtaste.serving.metrics import CONTENT_TYPE, Counts, exposition
from fedtaste.text import cut

PARALLEL = 256  # requests in work at once; as many more connections may wait
PATIENCE = 10.0  # seconds that a request may take to arrive
BACKLOG = 256  # connections that the operating system holds
THREADS = 2  # that compute; Python runs one at a time, and the second takes over while the first one waits
WATCH_SECONDS = 2.0
FORWARDED = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via")
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Site(Protocol):
    """What a server serves."""

    def reply(self, request: Request) -> Reply:
        """The reply to a request for anything but /health and /metrics; may raise Refused."""

    def health(self) -> bytes:
        """The JSON of /health."""

    def metrics(self) -> Iterable[Metric]:
        """What /metrics shows beside the counts of the server itself."""

    def refresh(self, log: EventLog) -> None:
        """Look for news; called in a thread every two seconds."""

    def address(self, target: str) -> str:
        """The name under which replies to this target are counted."""


def check_host(name: str) -> str:
    """A value of --allow-host in lower case; refuses what is no host name."""
    if not re.fullmatch(r"([A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?", name):
        raise SettingError(
            "--allow-host must be the name that browsers ask for, as in films.example or films.example:8443, without "
            f"https:// and without *, got {cut(name)!r}."
        )
    return name.lower()


def check_network(text: str) -> Network:
    """A value of --allow-metrics; refuses what is no address or network."""
    try:
        return ipaddress.ip_network(text)
    except ValueError as error:
        raise SettingError(
            "--allow-metrics must be an address or a network, as in 10.0.0.7 or 10.0.0.0/8, got "
            f"{cut(text)!r} ({error})."
        ) from None


def check_address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """A value of --host as an address; refuses names, which may stand for several addresses."""
    try:
        return ipaddress.ip_address("127.0.0.1" if host == "localhost" else host)
    except ValueError:
        raise SettingError(
            "--host must be an address of this machine, as in 127.0.0.1, or 0.0.0.0 for all of its addresses, got "
            f"{cut(host)!r}."
        ) from None


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens there."""
    address = check_address(host)
    listener = socket.socket(socket.AF_INET6 if address.version == 6 else socket.AF_INET, socket.SOCK_STREAM)
    try:
        if os.name != "nt":
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((str(address), port))
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OverflowError:
        listener.close()
        raise SettingError(f"--port must be a number from 0 to 65535, got {port}.") from None
    except OSError as error:
        listener.close()
        why = "another program listens there" if error.errno == errno.EADDRINUSE else (error.strerror or "").lower()
        raise SettingError(
            f"Port {port} of {address} cannot be used: {why}. Choose another with --port, or --port 0 for a free one."
        ) from None
    return listener


class Listener:
    """Where a server listens, for whom it answers, and its limits. It checks them and listens once constructed;
    connections wait until a Server answers."""

    def __init__(
        self, host: str = "127.0.0.1", port: int = 0, hosts: Iterable[str] = (), metrics_from: Iterable[str] = (),
        parallel: int = PARALLEL, patience: float = PATIENCE,
    ) -> None:  # fmt: skip
        """`hosts` are further host names to answer for, `metrics_from` further networks that may read /metrics."""
        self.parallel, self.patience = parallel, patience
        allowed = [check_host(name) for name in hosts]
        self.metrics_from = [check_network(text) for text in metrics_from]
        address = check_address(host)
        if address.is_unspecified and not allowed:
            raise SettingError(
                f"--host {host} needs --allow-host NAME, the name that browsers ask for: requests to other "
                "names are refused, so that no web site can reach the server by a name that it points at this machine."
            )
        self.socket = listen(host, port)
        self.port = int(self.socket.getsockname()[1])
        own = f"[{address}]" if address.version == 6 else str(address)
        names = LOOPBACK if address.is_unspecified else (*LOOPBACK, own)
        self.url = f"http://{allowed[0].partition(':')[0] if address.is_unspecified else own}:{self.port}/"
        self.own_hosts = {f"{name}:{self.port}" for name in names} | ({*names} if self.port == 80 else set())
        self.hosts = {*allowed, *self.own_hosts}

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()


class Server:
    """Answers for a site in `serve_forever`, until `shutdown` is called from another thread."""

    def __init__(self, site: Site, listener: Listener, log: EventLog = ignore, counts: Counts | None = None) -> None:
        self.site, self.listener, self.log = site, listener, log
        self.port, self.url = listener.port, listener.url
        self.patience, self.parallel = listener.patience, listener.parallel
        self.counts = counts or Counts()
        self.in_work, self.connections = 0, set[Connection]()
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._stopping = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.listener.socket.close()

    # The event loop

    def serve_forever(self) -> None:
        """Answer requests in this thread."""
        asyncio.run(self._serve())

    def shutdown(self) -> None:
        """Stop answering; may be called from any thread."""
        self._stopping.set()
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._stopped.set)

    async def _serve(self) -> None:
        self._stopped, loop = asyncio.Event(), asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: self._log_failure(context))
        self._loop = loop
        threads = [threading.Thread(target=self._work, daemon=True) for _ in range(min(THREADS, self.parallel))]
        threads.append(threading.Thread(target=self._watch, daemon=True))
        for thread in threads:
            thread.start()
        server = await loop.create_server(lambda: Connection(self), sock=self.listener.socket.dup(), backlog=BACKLOG)
        if not self._stopping.is_set():
            await self._stopped.wait()
        server.close()
        self._loop = None
        for connection in list(self.connections):
            connection.transport.abort()
        await asyncio.sleep(0)  # they close their sockets
        for _ in threads[:-1]:
            self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()

    def _watch(self) -> None:
        while not self._stopping.wait(WATCH_SECONDS):
            self.site.refresh(self.log)

    def _log_failure(self, context: dict[str, object]) -> None:
        error = context.get("exception")
        if isinstance(error, BaseException) and not isinstance(error, OSError):
            self.log_bug(error)

    def log_bug(self, error: BaseException) -> None:
        """Log where an error was raised, and not its text, which may hold what was sent."""
        *_, last = traceback.extract_tb(error.__traceback__)
        place = f"{PurePath(last.filename).name}:{last.lineno}"
        facts = {"place": place, "error": type(error).__name__}
        self.log(Event("bug", f"A bug in fedtaste, at {place}: {type(error).__name__}. Please report it.", {**facts}))

    # What connections call

    def admit(self, connection: Connection) -> bool:
        if len(self.connections) >= 2 * self.parallel:
            self.counts.count_refused_connection()
            return False
        self.connections.add(connection)
        return True

    def release(self, connection: Connection) -> None:
        self.connections.discard(connection)

    def replied(self, reply: Reply, target: str, seconds: float) -> None:
        path = target.partition("?")[0]
        address = path if path in ("/health", "/metrics") else self.site.address(path)
        self.counts.count_reply(address, reply.status, len(reply.body), seconds)

    def answer(self, request: Request, peer: str, reply: Callable[[Reply], None]) -> None:
        """Reply at once where nothing is computed, otherwise from a thread."""
        if self.in_work >= self.parallel:
            reply(busy(content_type(request.target)))
        elif request.method != "POST":
            reply(self.reply(request, peer))
        else:
            self.in_work += 1
            self._jobs.put(lambda: self._compute(request, peer, reply))

    def _compute(self, request: Request, peer: str, reply: Callable[[Reply], None]) -> None:
        found, loop = self.reply(request, peer), self._loop

        def finish() -> None:
            self.in_work -= 1
            reply(found)

        if loop is not None:
            loop.call_soon_threadsafe(finish)

    # Replies

    def reply(self, request: Request, peer: str) -> Reply:
        kind = content_type(request.target)
        try:
            self._check_host_header(request.headers.get("host", ""))
            path = request.target.partition("?")[0]
            if path not in ("/health", "/metrics"):
                return self.site.reply(request)
            if request.method not in ("GET", "HEAD"):
                raise Refused(405, f"{path} takes GET, got {request.method}.", Allow="GET, HEAD")
            headers = {"Content-Type": JSON, "Cache-Control": "no-store"}
            if path == "/health":
                return Reply(200, self.site.health(), headers)
            self._check_metrics_reader(request, peer)
            self.counts.set_load(len(self.connections), self.in_work)
            content = exposition([*self.counts.metrics(), *self.site.metrics()])
            return Reply(200, content, headers | {"Content-Type": CONTENT_TYPE})
        except Refused as refused:
            return refusal(refused, kind)
        except Exception as error:  # noqa: BLE001 (a bug must not end the server)
            self.log_bug(error)
            return refusal(Refused(500, "This is a bug in fedtaste. Please report what was sent."), kind)

    def _check_host_header(self, host: str) -> None:
        """Refuse other names, so that no site can reach this server by a name that it points at this machine."""
        host = host.lower()
        if host not in self.listener.hosts and re.sub(r":[0-9]+$", "", host) not in self.listener.hosts:
            raise Refused(
                421,
                f"The Host {cut(host)!r} is not one that this server answers for: those are 127.0.0.1:{self.port} and "
                f"localhost:{self.port}. If the name is yours, start with --allow-host NAME.",
                "Host",
            )

    def _check_metrics_reader(self, request: Request, peer: str) -> None:
        """Refuse readers of /metrics elsewhere than on this machine, also behind a proxy on it."""
        address = ipaddress.ip_address(peer.partition("%")[0])
        mapped = getattr(address, "ipv4_mapped", None)
        address = mapped or address
        if any(address in network for network in self.listener.metrics_from):
            return
        forwarded = any(name in request.headers for name in FORWARDED)
        if (
            not address.is_loopback
            or forwarded
            or request.headers.get("host", "").lower() not in self.listener.own_hosts
        ):
            raise Refused(
                403, "/metrics is for programs of this machine. Allow an address with --allow-metrics ADDRESS."
            )
