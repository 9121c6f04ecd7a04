"""Connections of `fedtaste serve`: requests arrive in an event loop and are answered in turn, within limits of time.

A request must be complete `patience` seconds after the reply before it (or after the connection was made); otherwise it
gets a 408, or nothing if none had begun. A client that does not read its reply is disconnected when `patience` seconds
have passed without progress.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

from fedtaste.serving.api import Refused
from fedtaste.serving.http import CONTINUE, JSON, Reply, Request, RequestReader, busy, refusal, render

HELD = 256 * 1024  # bytes that a connection may send ahead
LINGER = 2.0  # seconds in which a refused client may go on sending
PIECE = 64 * 1024  # bytes of a reply that a client must read within `patience`


class Handler(Protocol):
    """What a connection needs of its server."""

    patience: float

    def admit(self, connection: Connection) -> bool:
        """Count a new connection; False if there are too many."""

    def release(self, connection: Connection) -> None:
        """A connection has ended."""

    def answer(self, request: Request, peer: str, reply: Callable[[Reply], None]) -> None:
        """Answer a request by calling `reply` in the event loop, now or later."""

    def replied(self, reply: Reply, target: str, seconds: float) -> None:
        """A reply was sent, for counts."""

    def log_bug(self, error: BaseException) -> None:
        """An error in fedtaste."""


class Connection(asyncio.Protocol):
    """One client's connection."""

    def __init__(self, handler: Handler) -> None:
        self.handler, self.reader = handler, RequestReader()
        self.loop = asyncio.get_running_loop()
        self.working = self.lingering = self.ended = self.admitted = False
        self.paused = self.write_paused = False
        self.began, self.unsent = 0.0, 0
        self.timer: asyncio.TimerHandle | None = None

    # Events

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.peer = str((transport.get_extra_info("peername") or ("",))[0])
        transport.set_write_buffer_limits(0)
        self.admitted = self.handler.admit(self)
        if not self.admitted:
            transport.write(render(busy(JSON), close=True))
            transport.close()
            return
        self._wait(self.handler.patience)

    def connection_lost(self, error: Exception | None) -> None:
        self.ended = True
        if self.timer:
            self.timer.cancel()
        if self.admitted:
            self.handler.release(self)

    def data_received(self, data: bytes) -> None:
        if self.lingering or not self.admitted:
            return
        self.reader.feed(data)
        if not self.working and not self.write_paused:
            self._advance()
        elif self.reader.held_bytes > HELD and not self.paused:
            self.paused = True
            self.transport.pause_reading()

    def eof_received(self) -> bool:
        """The client sends no more; what it has asked is still answered."""
        self.ended = True
        if self.lingering or not self.admitted:
            return False
        if not self.working and not self.write_paused:
            self.loop.call_soon(self._advance)
        return True

    def pause_writing(self) -> None:
        self.write_paused = True

    def resume_writing(self) -> None:
        self.write_paused = False
        if self.lingering:
            self._wait(min(LINGER, self.handler.patience))
        elif not self.working:
            self._advance()

    # Requests

    def _advance(self) -> None:
        """Answer the next request, if it has arrived."""
        if self.working or self.lingering or self.transport.is_closing():
            return
        try:
            request = self.reader.next()
            if request is not None:
                self.working, self.began = True, time.perf_counter()
                self.handler.answer(request, self.peer, lambda reply: self._reply(reply, request))
            elif self.reader.continues:
                self.reader.continues = False
                self.transport.write(CONTINUE)
            elif self.ended:
                self.transport.close()
        except Refused as refused:
            self._refuse(refused)
        except Exception as error:  # noqa: BLE001 (a bug must not end the server)
            self.handler.log_bug(error)
            self.transport.abort()

    def _reply(self, reply: Reply, request: Request) -> None:
        """Send a reply, then wait for the next request."""
        self.working = False
        if self.transport.is_closing():
            return
        self.handler.replied(reply, request.target, time.perf_counter() - self.began)
        self.transport.write(render(reply, close=not request.stays, bare=request.method == "HEAD"))
        if not request.stays:
            self._linger()
            return
        self._wait(self.handler.patience)
        if self.paused:
            self.paused = False
            self.transport.resume_reading()
        if not self.write_paused and (self.reader.begun or self.ended):
            self.loop.call_soon(self._advance)

    def _refuse(self, refused: Refused) -> None:
        reply = refusal(refused, self.reader.kind)
        self.handler.replied(reply, "", 0.0)
        self.transport.write(render(reply, close=True))
        self._linger()

    def _linger(self) -> None:
        """Read what is still being sent, for a moment: closing the connection at once would lose the reply."""
        self.lingering = True
        if self.paused:
            self.paused = False
            self.transport.resume_reading()
        if self.ended:
            self.transport.close()
        elif self.transport.can_write_eof():
            self.transport.write_eof()
        self._wait(self.handler.patience if self.write_paused else min(LINGER, self.handler.patience))

    # Time

    def _wait(self, seconds: float) -> None:
        """Call `_expired` in so many seconds, unless this is called again before. One timer serves many requests."""
        self.until, self.unsent = self.loop.time() + seconds, self.transport.get_write_buffer_size()
        if self.timer is None:
            self.timer = self.loop.call_at(self.until, self._expired)
        elif self.timer.when() > self.until:
            self.timer.cancel()
            self.timer = self.loop.call_at(self.until, self._expired)

    def _expired(self) -> None:
        self.timer = None
        if self.loop.time() < self.until - 0.001:
            self.timer = self.loop.call_at(self.until, self._expired)
        elif self.working:
            self._wait(self.handler.patience)
        elif self.transport.get_write_buffer_size():
            if self.transport.get_write_buffer_size() > self.unsent - PIECE:
                self.transport.abort()  # the client does not read
            else:
                self._wait(self.handler.patience)
        elif self.lingering or not self.reader.begun:
            self.transport.close()
        else:
            message = f"The request was not complete after {self.handler.patience:g} s. Send it again."
            self._refuse(Refused(408, message))
