"""A strict HTTP/1.1 reader and writer for `fedtaste serve`: requests are limited in size and in time.

A malformed request is refused with a reason and the connection is closed, so that a proxy and this server cannot read
the same bytes as different requests.
"""

from __future__ import annotations

import json
import re
import socket
import socketserver
import time
from email.utils import formatdate
from http import HTTPStatus
from typing import NamedTuple

from fedtaste.serving.api import MAX_BODY, Answer, Refused, cut, too_large

MAX_HEAD, MAX_CHUNKS, PIECE = 16 * 1024, 4096, 64 * 1024
TEXT, JSON = "text/plain; charset=utf-8", "application/json"
CONTENT_SECURITY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "worker-src 'self' blob:; manifest-src 'self'; base-uri 'none'; form-action 'none'; "
    "require-trusted-types-for 'script'; trusted-types fedtaste; frame-ancestors 'none'; "
    "sandbox allow-scripts allow-same-origin allow-downloads allow-forms"
)
DENIED = (
    "accelerometer", "autoplay", "browsing-topics", "camera", "clipboard-read", "display-capture", "encrypted-media",
    "fullscreen", "geolocation", "gyroscope", "hid", "idle-detection", "local-fonts", "magnetometer", "microphone",
    "midi", "payment", "picture-in-picture", "publickey-credentials-get", "screen-wake-lock", "serial", "sync-xhr",
    "usb", "window-management", "xr-spatial-tracking",
)  # fmt: skip
ALL_REPLIES = {
    "Content-Security-Policy": CONTENT_SECURITY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": ", ".join(f"{feature}=()" for feature in DENIED),
}


class Request(NamedTuple):
    method: str
    target: str
    headers: dict[str, str]  # names in lower case
    body: bytes
    stays: bool  # whether another request may follow on the connection


class Reply(NamedTuple):
    status: int
    body: bytes
    headers: dict[str, str]


class Connection(socketserver.BaseRequestHandler):
    """One client's connection: requests are answered in turn, and each must arrive within `patience` seconds."""

    def handle(self) -> None:
        self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffer, self.patience = bytearray(), float(self.server.patience)  # type: ignore[attr-defined]
        try:
            while self._answer_one():
                pass
            self._linger()
        except OSError:
            return

    def _answer_one(self) -> bool:
        """Read and answer one request; whether another may follow."""
        self.until, self.kind, method, stays = time.monotonic() + self.patience, TEXT, "", False
        try:
            request = self._read()
            method, stays = request.method, request.stays
            reply = self.server.reply(request)  # type: ignore[attr-defined]
        except Refused as refused:
            reply = refusal(refused, self.kind)
        except TimeoutError:
            if not self.buffer and not self.begun:
                return False
            message = f"The request was not complete after {self.patience:g} s. Send it again."
            reply = refusal(Refused(408, message), self.kind)
        data = memoryview(render(reply, close=not stays, bare=method == "HEAD"))
        self.request.settimeout(self.patience)
        for at in range(0, len(data), PIECE):
            self.request.sendall(data[at : at + PIECE])
        return stays

    def _read(self) -> Request:
        self.begun = False
        while (end := self.buffer.find(b"\r\n\r\n", 0, MAX_HEAD + 4)) < 0:
            self.kind = content_type(self._target())
            if self.buffer and not self.buffer[:1].isalpha():
                raise Refused(400, "This is not HTTP. Use an address that begins with http://, not https://.")
            if len(self.buffer) > MAX_HEAD:
                raise Refused(431, f"The head of the request has more than {MAX_HEAD:,} bytes. Send less.")
            self._more()
        self.kind = content_type(self._target())
        method, target, version, headers = parse_head(self._take(end + 4)[:-4])
        self.begun = True
        options = {word.strip().lower() for word in headers.get("connection", "").split(",")}
        stays = version == "1.1" and "close" not in options
        return Request(method, target, headers, self._body(method, headers), stays)

    def _target(self) -> str:
        """The first characters of the address, as far as they have arrived; the rest may be malformed."""
        return self.buffer[:40].decode("latin-1").partition(" ")[2]

    def _body(self, method: str, headers: dict[str, str]) -> bytes:
        coding, length = headers.get("transfer-encoding"), headers.get("content-length")
        if coding is None and length is None:
            if method == "POST":
                raise Refused(411, "A POST needs a Content-Length. Say how long the body is.", "Content-Length")
            return b""
        if coding is not None and (length is not None or coding.lower() != "chunked"):
            raise Refused(400, "Send a body either with Content-Length or with Transfer-Encoding: chunked.")
        if length is not None and not re.fullmatch(r"[0-9]{1,18}", length):
            raise Refused(400, f"Content-Length is {cut(length)!r}; it must be a whole number.", "Content-Length")
        if length is not None and int(length) > MAX_BODY:
            raise too_large(int(length))
        if headers.get("expect", "").lower() == "100-continue":
            self.request.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        return self._chunks() if length is None else self._take(int(length))

    def _chunks(self) -> bytes:
        body = bytearray()
        for _ in range(MAX_CHUNKS):
            size = re.fullmatch(rb"([0-9A-Fa-f]{1,8})[ \t]*(;.*)?", self._line())
            if size is None:
                break
            length = int(size[1], 16)
            if len(body) + length > MAX_BODY:
                raise too_large(None)
            body += self._take(length)
            if self._line():
                break
            if not length:
                return bytes(body)
        raise Refused(
            400, f"The body is not in at most {MAX_CHUNKS:,} chunks of size, line, content, line; or has trailers."
        )

    def _take(self, size: int) -> bytes:
        while len(self.buffer) < size:
            self._more()
        data = bytes(self.buffer[:size])
        del self.buffer[:size]
        return data

    def _line(self) -> bytes:
        while (end := self.buffer.find(b"\r\n", 0, 1000)) < 0:
            if len(self.buffer) >= 1000:
                raise Refused(400, "A chunk of the body does not begin with its size.", "Transfer-Encoding")
            self._more()
        return self._take(end + 2)[:-2]

    def _more(self) -> None:
        left = self.until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self.request.settimeout(left)
        data = self.request.recv(PIECE)
        if not data:
            raise ConnectionAbortedError
        self.buffer += data

    def _linger(self) -> None:
        """Read what is still being sent, for a moment: closing the connection at once would lose the reply."""
        self.request.shutdown(socket.SHUT_WR)
        self.until = time.monotonic() + min(2.0, self.patience)
        while True:
            self._more()
            self.buffer.clear()


def parse_head(head: bytes) -> tuple[str, str, str, dict[str, str]]:
    """(method, target, version, headers) of a request's head, read strictly."""
    first, *lines = head.decode("latin-1").split("\r\n")
    request = re.fullmatch(r"([A-Z]{1,20}) (/[!-~]*) HTTP/(1\.[01])", first)
    if not request:
        raise Refused(400, f"{cut(first)!r} is not a request line. Send one such as GET / HTTP/1.1.")
    headers: dict[str, str] = {}
    for line in lines:
        header = re.fullmatch(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):([^\x00-\x08\x0a-\x1f\x7f]*)", line)
        if not header:
            raise Refused(400, f"{cut(line)!r} is not a header line. Send one such as Accept: */*.")
        name, value = header[1].lower(), header[2].strip(" \t")
        if name in headers and name in ("host", "content-length", "transfer-encoding", "content-type"):
            raise Refused(400, f"{header[1]} is there twice; send it once.", header[1])
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return request[1], request[2], request[3], headers


def accepts_gzip(accepted: str) -> bool:
    gzip = r"gzip\s*(;\s*q=(1(\.0*)?|0\.0*[1-9]\d*))?"
    return any(re.fullmatch(gzip, part.strip()) for part in accepted.lower().split(","))


def content_type(target: str) -> str:
    """The content type of a refusal: JSON from the API, text from everything else."""
    return JSON if target.startswith("/v1/") else TEXT


def api_reply(answer: Answer) -> Reply:
    body = json.dumps(answer.body, allow_nan=False).encode()
    return Reply(answer.status, body, {"Content-Type": JSON, "Cache-Control": "no-store", **answer.headers})


def refusal(refused: Refused, kind: str) -> Reply:
    reply = api_reply(refused.answer())
    body = reply.body if kind == JSON else f"{refused}\n".encode()
    return Reply(refused.status, body, reply.headers | {"Content-Type": kind})


def busy(kind: str) -> Reply:
    message = "Too many requests at once. Try again in a second."
    return refusal(Refused(503, message, None, **{"Retry-After": "1"}), kind)


def render(reply: Reply, *, close: bool, bare: bool = False) -> bytes:
    """The bytes of a reply; `bare` leaves out the body, for HEAD."""
    headers = {"Date": formatdate(usegmt=True), **ALL_REPLIES, **reply.headers}
    headers |= {} if reply.status == 304 else {"Content-Length": str(len(reply.body))}
    headers |= {"Connection": "close"} if close else {}
    lines = [f"HTTP/1.1 {reply.status} {HTTPStatus(reply.status).phrase}", *(f"{k}: {v}" for k, v in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + (b"" if bare else reply.body)
