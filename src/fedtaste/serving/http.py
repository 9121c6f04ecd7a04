"""Requests from bytes and bytes from replies, for `fedtaste serve`: HTTP/1.1 read by h11, within limits of size.

h11 reads leniently in a few places (bare line feeds, folded lines, control characters, repeated lengths). Those are
refused here first, so that a proxy and this server cannot read the same bytes as different requests. A malformed
request is refused with a reason, and its connection is closed.
"""

from __future__ import annotations

import re
import time
from email.utils import formatdate
from http import HTTPStatus
from typing import NamedTuple

import h11

from fedtaste.serving.api import MAX_BODY, Answer, Refused, too_large
from fedtaste.text import cut

MAX_HEAD, MAX_HEADERS, MAX_CHUNKS = 16 * 1024, 100, 4096
TEXT, JSON = "text/plain; charset=utf-8", "application/json"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
ONCE = ("host", "transfer-encoding", "content-type")  # headers that must not be repeated
# What h11 accepts in a head and we do not: a bare line feed or carriage return, control characters, folded lines.
LENIENT = re.compile(rb"(?<!\r)\n|\r(?!\n)|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|\r\n[ \t]")
BYTES = re.compile(r"bytearray\(b(['\"].*?['\"])\)")  # as a message of h11 shows a line
LENGTHS = re.compile(rb"\r\ncontent-length:[ \t]*([^\r]*)", re.IGNORECASE)
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
COMMON_HEAD = "".join(f"{name}: {value}\r\n" for name, value in ALL_REPLIES.items())


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


class RequestReader:
    """The requests of one connection, from its bytes as they arrive."""

    def __init__(self) -> None:
        self.buffer = bytearray()  # bytes of a head, and whatever follows a request
        self.kind, self.continues = TEXT, False  # content type of a refusal; whether the client waits for 100 Continue
        self._request: Request | None = None  # whose head has been read
        self._length = 0  # of its body
        self._chunked: h11.Connection | None = None  # of a body in chunks
        self._body, self._chunks = bytearray(), 0

    @property
    def begun(self) -> bool:
        """Whether a part of a request has arrived."""
        return self._request is not None or bool(self.buffer)

    @property
    def held_bytes(self) -> int:
        return len(self.buffer) + len(self._body)

    def feed(self, data: bytes) -> None:
        if self._chunked is None:
            self.buffer += data
        else:
            self._chunked.receive_data(data)

    def next(self) -> Request | None:
        """The next request, or None until more bytes have arrived. Refused: the connection must be closed."""
        try:
            if self._request is None and not self._read_head():
                return None
            return self._read_length() if self._chunked is None else self._read_chunks(self._chunked)
        except h11.RemoteProtocolError as error:
            reason = BYTES.sub(r"\1", str(error))
            raise Refused(400, f"This is not a valid HTTP/1.1 request: {cut(reason)}.") from None

    def _read_head(self) -> bool:
        """Read the head of a request; whether it has arrived."""
        end = self.buffer.find(b"\r\n\r\n", 0, MAX_HEAD + 4)
        self.kind = content_type(self.buffer[:40].decode("latin-1").partition(" ")[2])
        if self.buffer and not self.buffer[:1].isalpha():
            raise Refused(400, "This is not HTTP. Use an address that begins with http://, not https://.")
        if end < 0 and len(self.buffer) > MAX_HEAD:
            raise Refused(431, f"The head of the request has more than {MAX_HEAD:,} bytes. Send less.")
        if end < 0:
            if self.buffer.count(b"\n") > self.buffer.count(b"\r\n"):  # its end may never be seen
                check_head(bytes(self.buffer))
            return False
        head = bytes(self.buffer[: end + 4])
        check_head(head[:-2])
        message = h11.Connection(h11.SERVER)
        message.receive_data(head)
        event = message.next_event()
        assert isinstance(event, h11.Request)
        request = self._request = parse_head(event)
        del self.buffer[: end + 4]
        self.continues = message.they_are_waiting_for_100_continue
        self._length = int(request.headers.get("content-length", 0))
        if "transfer-encoding" in request.headers:
            self._chunked, self._body, self._chunks = message, bytearray(), 0
            message.receive_data(bytes(self.buffer))
            self.buffer.clear()
        return True

    def _read_length(self) -> Request | None:
        """The request with a body of known length, once it has arrived."""
        request = self._request
        assert request is not None
        if len(self.buffer) < self._length:
            return None
        body = bytes(self.buffer[: self._length])
        del self.buffer[: self._length]
        self._request = None
        return request._replace(body=body) if body else request

    def _read_chunks(self, message: h11.Connection) -> Request | None:
        request = self._request
        assert request is not None
        while True:
            event = message.next_event()
            if event is h11.NEED_DATA:
                return None
            if isinstance(event, h11.Data):
                self._body += event.data
                self._chunks += event.chunk_start
                if len(self._body) > MAX_BODY:
                    raise too_large(None)
                if self._chunks > MAX_CHUNKS:
                    raise Refused(400, f"The body has more than {MAX_CHUNKS:,} chunks. Send larger ones.", "body")
            elif isinstance(event, h11.EndOfMessage):
                if list(event.headers):
                    raise Refused(400, "The body has trailers. Send headers before the body only.", "Trailer")
                self.buffer, self._chunked, self._request = bytearray(message.trailing_data[0]), None, None
                return request._replace(body=bytes(self._body))
            else:  # the client has closed its side
                return None


def check_head(head: bytes) -> None:
    """Refuse what h11 would accept although other programs read it differently."""
    found = LENIENT.search(head)
    if found:
        message = f"The head of the request has {cut(repr(found[0])[1:])}, which HTTP/1.1 forbids in it. Leave it out."
        raise Refused(400, message)
    lengths = LENGTHS.findall(head)
    if len(lengths) > 1:
        raise Refused(400, "Content-Length is there twice; send it once.", "Content-Length")
    if lengths and not re.fullmatch(rb"[0-9]{1,18}", lengths[0].rstrip(b" \t")):
        got = cut(lengths[0].decode("latin-1"))
        raise Refused(400, f"Content-Length is {got!r}; it must be a whole number.", "Content-Length")
    if head.count(b"\r\n") > MAX_HEADERS + 1:
        raise Refused(431, f"The head of the request has more than {MAX_HEADERS} headers. Send fewer.")


def parse_head(head: h11.Request) -> Request:
    """The request of a head that h11 has read, without its body; 411 and 413 are answered before a body is sent."""
    method, target = head.method.decode("ascii"), head.target.decode("ascii")
    if not re.fullmatch(r"[A-Z]{1,20}", method) or not target.startswith("/"):
        raise Refused(400, f"{cut(f'{method} {target}')!r} is not a request line. Send one such as GET / HTTP/1.1.")
    if head.http_version not in (b"1.0", b"1.1"):
        raise Refused(400, f"HTTP/{head.http_version.decode('ascii')} is not read here; send HTTP/1.1.")
    headers: dict[str, str] = {}
    for raw_name, raw_value in head.headers:
        name, value = raw_name.decode("ascii"), raw_value.decode("latin-1")
        if name in headers and name in ONCE:
            raise Refused(400, f"{name.title()} is there twice; send it once.", name.title())
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    coding, length = headers.get("transfer-encoding"), headers.get("content-length")
    if method == "POST" and coding is None and length is None:
        raise Refused(411, "A POST needs a Content-Length. Say how long the body is.", "Content-Length")
    if coding is not None and length is not None:
        raise Refused(400, "Send a body either with Content-Length or with Transfer-Encoding: chunked.")
    if length is not None and int(length) > MAX_BODY:
        raise too_large(int(length))
    options = {word.strip().lower() for word in headers.get("connection", "").split(",")}
    return Request(method, target, headers, b"", head.http_version == b"1.1" and "close" not in options)


def accepts_gzip(accepted: str) -> bool:
    gzip = r"gzip\s*(;\s*q=(1(\.0*)?|0\.0*[1-9]\d*))?"
    return any(re.fullmatch(gzip, part.strip()) for part in accepted.lower().split(","))


def content_type(target: str) -> str:
    """The content type of a refusal: JSON from the API, text from everything else."""
    return JSON if target.startswith("/v1/") else TEXT


def api_reply(answer: Answer) -> Reply:
    headers = {"Content-Type": JSON, "Cache-Control": "no-store", **answer.headers}
    return Reply(answer.status, answer.content, headers)


def refusal(refused: Refused, kind: str) -> Reply:
    reply = api_reply(refused.answer())
    body = reply.body if kind == JSON else f"{refused}\n".encode()
    return Reply(refused.status, body, reply.headers | {"Content-Type": kind})


def busy(kind: str) -> Reply:
    message = "Too many requests at once. Try again in a second."
    return refusal(Refused(503, message, None, **{"Retry-After": "1"}), kind)


_date = [0, ""]  # the second, and the Date header of it


def _date_line() -> str:
    now = int(time.time())
    if _date[0] != now:
        _date[:] = now, f"Date: {formatdate(now, usegmt=True)}\r\n"
    return str(_date[1])


def render(reply: Reply, *, close: bool, bare: bool = False) -> bytes:
    """The bytes of a reply; `bare` leaves out the body, for HEAD."""
    headers = reply.headers if reply.status == 304 else reply.headers | {"Content-Length": str(len(reply.body))}
    own = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    first = f"HTTP/1.1 {reply.status} {HTTPStatus(reply.status).phrase}\r\n"
    head = f"{first}{_date_line()}{COMMON_HEAD}{own}" + ("Connection: close\r\n\r\n" if close else "\r\n")
    return head.encode("latin-1") + (b"" if bare else reply.body)
