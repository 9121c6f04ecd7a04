"""`fedtaste serve` over real sockets: its replies, its refusals, and its robustness against any request."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import json
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtaste.cli.serve import load_recommender
from fedtaste.errors import FedtasteError, SettingError
from fedtaste.event_log import Event, EventLog, ignore
from fedtaste.serving import http as serving_http
from fedtaste.serving.api import MAX_BODY, Refused
from fedtaste.serving.bundle_recommender import BundleRecommender
from fedtaste.serving.http import MAX_HEAD, RequestReader
from fedtaste.serving.recommendation import Recommendations
from fedtaste.serving.server import Listener, Server
from fedtaste.serving.site import PageSite
from support import servers
from support.api_explorer import explore
from support.bundles import TITLES, small_bundle
from support.command import QUICK, fedtaste

CASES = 120  # of schemathesis; benchmarks/page_api.py runs 2,000
POST, TYPE = "POST /v1/recommend HTTP/1.1", "Content-Type: application/json"
CHUNKED = "Transfer-Encoding: chunked"
SECRET = "What I like is nobody's business"


def running(
    recommender: BundleRecommender, api: bool = True, log: EventLog = ignore, folder: Path | None = None, **options: Any
) -> contextlib.AbstractContextManager[Server]:
    """A server of this recommender, in a thread."""
    return servers.running(PageSite(recommender, api=api, folder=folder), log, **options)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A bundle, with secret files in its folder and beside it that must not be served."""
    path = small_bundle(tmp_path_factory.mktemp("site") / "bundle")
    for name in ("secret.txt", "../secret.txt", ".git"):
        (path / name).write_text(SECRET)
    return path


@pytest.fixture(scope="module")
def recommender(folder) -> BundleRecommender:
    return BundleRecommender.load(folder)


@pytest.fixture(scope="module")
def server(recommender) -> Iterator[Server]:
    with running(recommender, hosts=("Films.example", "other.example:8443"), patience=2.0) as server:
        yield server


@pytest.fixture(scope="module")
def strict(recommender) -> Iterator[tuple[Server, list[Event]]]:
    """A server, and its log of internal errors."""
    bugs: list[Event] = []
    with running(recommender, log=bugs.append) as server:
        yield server, bugs


def ask(server: Server, target: str = "/", method: str = "GET", body: Any = None, **headers: str):
    """(status, headers, body) of a request over a new connection."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    with contextlib.closing(connection):
        connection.request(method, target, body, {name.replace("_", "-"): value for name, value in headers.items()})
        response = connection.getresponse()
        return response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()


def post(server: Server, body: Any, **headers: str) -> tuple[int, dict[str, Any]]:
    encoded = body if isinstance(body, bytes) else json.dumps(body).encode()
    status, _, content = ask(server, "/v1/recommend", "POST", encoded, **{"Content_Type": "application/json"} | headers)
    return status, json.loads(content)


def raw(server: Server, request: bytes, wait: float = 10.0) -> bytes:
    """All bytes that the server sends until it closes the connection."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=wait) as connection:
        connection.sendall(request)
        received = b""
        with contextlib.suppress(ConnectionResetError):
            while chunk := connection.recv(65536):
                received += chunk
        return received


def head(server: Server, first: str = POST, *lines: str) -> bytes:
    common = [f"Host: localhost:{server.port}", "Connection: close"]
    return "\r\n".join([first, *common, *lines, "", ""]).encode("latin-1")


def status_of(reply: bytes) -> int:
    assert reply.startswith(b"HTTP/1.1 "), reply[:100]
    return int(reply[9:12])


# Files


def test_every_file_of_the_bundle_is_sent_unchanged_with_its_type(server, recommender):
    kinds = {"html": "text/html", "js": "text/javascript", "css": "text/css"}
    kinds |= {"json": "application/json", "md": "text/plain"}
    assert len(recommender.files) == 11
    for name, content in recommender.files.items():
        status, headers, body = ask(server, f"/{name}")
        assert (status, body, headers["content-length"]) == (200, content, str(len(content)))
        assert headers["content-type"].split(";")[0] == kinds.get(name.rpartition(".")[2], "application/octet-stream")
    assert ask(server, "/")[2] == ask(server, "/?x=1")[2] == recommender.files["index.html"]


def test_every_reply_has_the_security_headers(server):
    answers = [ask(server), ask(server, "/nothing"), ask(server, "/", "PUT"), ask(server, Host="evil.example"),
               ask(server, "/v1/health"), ask(server, "/v1/x"), ask(server, "/v1/recommend", "POST", b"{"),
               ask(server, If_None_Match="*"), ask(server, "/item.f32", "HEAD")]  # fmt: skip
    assert [status for status, _, _ in answers] == [200, 404, 405, 421, 200, 404, 415, 304, 200]
    for _, headers, _ in answers:
        policy = {*headers["content-security-policy"].split("; ")}
        assert {"default-src 'none'", "script-src 'self'", "frame-ancestors 'none'", "trusted-types fedtaste"} <= policy
        assert headers["x-content-type-options"] == "nosniff" and headers["referrer-policy"] == "no-referrer"
        assert headers["cross-origin-opener-policy"] == headers["cross-origin-resource-policy"] == "same-origin"
        assert "geolocation=()" in headers["permissions-policy"] and "=*" not in headers["permissions-policy"]
        assert headers["cache-control"] in ("no-cache", "no-store")
        assert not {"set-cookie", "server"} & {*headers} and not any("access-control" in name for name in headers)


def test_a_cached_file_is_not_sent_again(server, recommender):
    for encoding in ({}, {"Accept_Encoding": "gzip"}):
        _, headers, _ = ask(server, "/main.js", **encoding)
        for known in (headers["etag"], f'"x", W/{headers["etag"]}', "*"):
            status, others, body = ask(server, "/main.js", If_None_Match=known, **encoding)
            assert (status, body, others["etag"]) == (304, b"", headers["etag"]) and "content-length" not in others
    assert ask(server, "/main.js", If_None_Match='"old"')[0] == 200
    assert ask(server, "/main.js")[1]["etag"] != ask(server, "/main.js", Accept_Encoding="gzip")[1]["etag"]


def test_text_is_compressed_for_clients_that_accept_gzip(server, recommender):
    for accepted, compressed in [
        ("gzip, br", True),
        ("br;q=1, GZIP;q=0.5", True),
        ("gzip;q=0", False),
        ("identity", False),
    ]:
        _, headers, body = ask(server, "/main.js", Accept_Encoding=accepted)
        assert (headers.get("content-encoding") == "gzip") == compressed and headers["vary"] == "Accept-Encoding"
        assert (gzip.decompress(body) if compressed else body) == recommender.files["main.js"]
        assert int(headers["content-length"]) == len(body) and (len(body) < 100) == compressed
    assert "content-encoding" not in ask(server, "/item.f32", Accept_Encoding="gzip")[1]


def test_head_returns_the_headers_of_get(server):
    for target in ("/", "/item.f32", "/v1/health"):
        get_reply, head_reply = ask(server, target), ask(server, target, "HEAD")
        assert head_reply[2] == b"" and head_reply[1] | {"date": 0} == get_reply[1] | {"date": 0}


@pytest.mark.parametrize(
    "target",
    [
        "/secret.txt", "/.git", "/../secret.txt", "/../../secret.txt", "/./index.html", "//index.html",
        "/%2e%2e/secret.txt", "/..%2fsecret.txt", "/%2e%2e%2fsecret.txt", "/..%5csecret.txt", "/..\\secret.txt",
        "/main.js/../secret.txt",
        "/index.html%00", "/secret.txt%00.js", "/index.html\x00", "/main.js/", "/item%2Ef32", "/v1/../secret.txt",
        "http://localhost/secret.txt", "file:///secret.txt", "secret.txt", "*", "/%", "/%zz", "/\xff",
        "/" + "a/" * 4000,
    ],
)  # fmt: skip
def test_paths_outside_the_bundle_are_not_served(server, target):
    for method in ("GET", "HEAD", "POST"):
        reply = raw(server, head(server, f"{method} {target} HTTP/1.1", "Content-Length: 0"))
        assert status_of(reply) in (400, 404) and SECRET.encode() not in reply
        assert method == "HEAD" or reply.endswith((b".\n", b"}"))


# Malformed requests


@pytest.mark.parametrize(
    "payload",
    [
        b"GET\r\n\r\n", b"GET /\r\n\r\n", b"GET / HTTP/0.9\r\n\r\n", b"GET / HTTP/2\r\n\r\n", b"get / HTTP/1.1\r\n\r\n",
        b"GET  / HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1 \r\n\r\n", b"\x16\x03\x01\x02\x00\x01\xfc\x03", b"\r\n\r\n",
        b"\x00" * 100, b"G" * 100 + b" / HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost : x\r\n\r\n", b"GET / HTTP/1.1\r\nA: b\r\n folded\r\n\r\n",
        b"GET / HTTP/1.1\r\n: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nA: \x00\r\n\r\n", b"GET / HTTP/1.1\r\nA: b\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", b"GET / HTTP/1.1\rHost: a\r\n\r\n",
    ],
)  # fmt: skip
def test_malformed_requests_get_a_400_with_an_explanation(server, payload):
    reply = raw(server, payload)
    assert status_of(reply) == 400 and b"Connection: close" in reply and reply.endswith(b".\n")


@pytest.mark.parametrize("before", [b"GET /", b"GET / HTTP/1.1\r\nHost: localhost", b"GET / HTTP/1.1\r\nA: b\r\n"])
def test_a_bare_line_feed_is_refused_at_once(before):
    reader = RequestReader()
    for part in (before, b"\r\n"[: before.endswith(b"\n")]):  # half a line end, too, is waited for
        reader.feed(part)
        assert reader.next() is None
    reader.feed(b"x\n")
    with pytest.raises(Refused, match="forbids in it") as refused:
        reader.next()
    assert refused.value.status == 400


def test_the_request_line_is_repeated_as_text(server):
    assert raw(server, b"GET /\r\n\r\n").endswith(b"HTTP/1.1 request: illegal request line: 'GET /'.\n")


FRAGMENTS = [
    b"GET", b"POST", b" ", b"/", b"/v1/recommend", b"HTTP/1.1", b"\r\n", b"\r\n\r\n", b"Host: localhost:%d", b"{}",
    b"Content-Length: 2", b"Transfer-Encoding: chunked", b"Expect: 100-continue", b"2\r\n{}\r\n", b":", b"0", b"\xff",
    b"POST /v1/recommend HTTP/1.1\r\nHost: localhost:%d\r\nContent-Type: application/json\r\n",
]  # fmt: skip


@settings(max_examples=300)
@given(payload=st.lists(st.sampled_from(FRAGMENTS) | st.binary(max_size=5), max_size=20).map(b"".join))
def test_random_bytes_never_cause_an_internal_error(strict, payload):
    server, bugs = strict
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(payload.replace(b"%d", b"%d" % server.port))
        connection.shutdown(socket.SHUT_WR)
        reply = connection.recv(99)
    assert bugs == [] and (not reply or reply.startswith((b"HTTP/1.1 2", b"HTTP/1.1 4", b"HTTP/1.1 100")))


def test_request_headers_that_are_too_large_are_refused(server):
    fits = "x" * (MAX_HEAD - 500)
    assert status_of(raw(server, head(server, "GET / HTTP/1.1", f"A: {fits}"))) == 200
    for lines in ([f"A: {fits}{fits}"], [f"A{n}: {n}" for n in range(5000)]):
        assert status_of(raw(server, head(server, "GET / HTTP/1.1", *lines))) == 431
    assert status_of(raw(server, b"GET /" + b"a" * 1_000_000)) == 431


def test_only_requests_to_allowed_hosts_are_answered(server):
    port = server.port
    for host in (f"127.0.0.1:{port}", f"localhost:{port}", f"LOCALHOST:{port}", f"[::1]:{port}", "films.example",
                 "FILMS.example:99", "other.example:8443"):  # fmt: skip
        assert ask(server, Host=host)[0] == 200, host
    for host in ("evil.example", f"evil.example:{port}", "127.0.0.1", "localhost:1", "other.example", "x.films.example",
                 f"127.0.0.1:{port}.evil.example", f"localhost:{port}@evil", "", f"localhost:{port}, x"):  # fmt: skip
        status, _, body = ask(server, Host=host)
        assert (status, b"--allow-host" in body) == (421, True), host
    status, _, body = ask(server, "/v1/health", Host="evil.example")
    assert status == 421 and json.loads(body)["field"] == "Host"
    assert status_of(raw(server, b"GET / HTTP/1.0\r\n\r\n")) == 421


@pytest.mark.parametrize("name", ["*", "https://films.example", "films.example/", "a b", "", "a:123456", "é.example"])
def test_invalid_host_names_are_refused(recommender, name):
    with pytest.raises(SettingError, match="--allow-host"):
        Server(PageSite(recommender), Listener(hosts=(name,)))


# Bodies


def test_a_body_may_be_sent_at_once_or_in_chunks(server):
    body = json.dumps({"likes": [TITLES[0]], "n": 3}).encode()
    answer = post(server, body)
    assert answer[0] == 200 and answer[1]["from"] == [TITLES[0]]
    for size in (1, 7, 1000):
        pieces = [body[at : at + size] for at in range(0, len(body), size)] + [b""]
        chunks = b"".join(b"%x;a=b\r\n%s\r\n" % (len(piece), piece) for piece in pieces)
        reply = raw(server, head(server, POST, TYPE, "Transfer-Encoding: chunked") + chunks)
        assert (status_of(reply), json.loads(reply.split(b"\r\n\r\n", 1)[1])) == answer
    assert post(server, body.ljust(MAX_BODY)) == answer
    expecting = head(server, POST, TYPE, "Expect: 100-continue", f"Content-Length: {len(body)}")
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as link:
        link.sendall(expecting)
        assert link.recv(99) == b"HTTP/1.1 100 Continue\r\n\r\n"
        link.sendall(body)
        assert link.recv(15) == b"HTTP/1.1 200 OK"
    assert raw(server, expecting + body).startswith(b"HTTP/1.1 200 OK")  # nobody waits for the 100


@pytest.mark.parametrize(
    ("status", "lines", "body"),
    [
        (411, [], b"{}"), (413, [f"Content-Length: {MAX_BODY + 1}"], b""),
        (413, ["Content-Length: 999999999999999999"], b""),
        (413, ["Content-Length: 99999999", "Expect: 100-continue"], b""), (400, ["Content-Length: -1"], b""),
        (400, ["Content-Length: 1e3"], b""), (400, ["Content-Length: +2"], b"{}"),
        (400, ["Content-Length: 2, 2"], b"{}"),
        (400, ["Content-Length: 2", "Content-Length: 2"], b"{}"), (400, ["Content-Length: " + "9" * 50], b""),
        (400, ["Content-Length: 2", CHUNKED], b"{}"), (400, ["Transfer-Encoding: gzip"], b""),
        (400, ["Transfer-Encoding: gzip, chunked"], b""), (400, [CHUNKED], b"xyz\r\n"),
        (400, [CHUNKED], b"2\r\n{}xx\r\n0\r\n\r\n"),
        (400, [CHUNKED], b"x" * 2000 + b"\r\n"), (400, [CHUNKED], b"x" * 20_000),
        (400, [CHUNKED], b"0\r\nTrailer: x\r\n\r\n"), (408, [CHUNKED], b"ffffffff\r\n"),
        (413, [CHUNKED], b"ffffffff\r\n" + b" " * (MAX_BODY + 1)),
        (413, [CHUNKED], b"8000\r\n%s\r\n8001\r\n%s" % (b" " * 0x8000, b" " * 0x8001)),
        (400, [CHUNKED], b"1\r\n \r\n" * 5000 + b"0\r\n\r\n"),
        (413, [f"Content-Length: {8 * MAX_BODY}"], b"x" * 8 * MAX_BODY), (408, ["Content-Length: 10"], b"{}"),
        (408, [CHUNKED], b"2\r\n{}"),
    ],
)  # fmt: skip
def test_invalid_bodies_are_refused_with_their_status(server, status, lines, body):
    reply = raw(server, head(server, POST, TYPE, *lines) + body)
    answer = json.loads(reply.split(b"\r\n\r\n", 1)[1])
    assert status_of(reply) == status and {*answer} == {"error", "field"} and answer["error"].endswith(".")


def test_a_large_body_is_refused_before_it_is_sent(server):
    began = time.monotonic()
    assert status_of(raw(server, head(server, "POST / HTTP/1.1", "Content-Length: 70000") + b"x")) == 413
    assert time.monotonic() - began < 4
    size = 32 * 2**20  # more than any buffer holds: a client that goes on sending still receives the reply
    assert status_of(raw(server, head(server, POST, f"Content-Length: {size}") + bytes(size))) == 413


def test_several_requests_on_one_connection_are_answered_in_order(server):
    body = b'{"n": 1}'
    first = f"POST /v1/recommend HTTP/1.1\r\nHost: localhost:{server.port}\r\nContent-Type: application/json\r\n"
    request = first.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body
    replies = raw(server, request * 3 + head(server, "GET /style.css HTTP/1.1"))
    assert replies.count(b"HTTP/1.1 200 OK") == 4 and replies.count(b'"popular":true') == 3
    assert replies.endswith(b"}\n")


def test_without_the_api_option_its_paths_do_not_exist(recommender):
    with running(recommender, api=False) as server:
        for method in ("GET", "POST"):
            status, headers, body = ask(server, "/v1/recommend", method, b"{}")
            assert (status, headers["content-type"]) == (404, "application/json")
            assert "--api" in json.loads(body)["error"]
        assert ask(server)[0] == 200


# Parallel requests, slow clients and internal errors


def test_a_hundred_parallel_requests_get_the_same_answer(server):
    barrier = threading.Barrier(100)

    def request(_: int) -> tuple[int, dict[str, Any]]:
        barrier.wait()
        return post(server, {"likes": TITLES[:5], "n": 20})

    with ThreadPoolExecutor(100) as pool:
        answers = list(pool.map(request, range(100)))
    assert {status for status, _ in answers} == {200}
    assert all(answer == answers[0] for answer in answers)


def test_slow_clients_delay_nobody_and_time_out(recommender):
    with running(recommender, patience=2.0) as server, contextlib.ExitStack() as open_:
        slow = [open_.enter_context(socket.create_connection(("127.0.0.1", server.port), 10)) for _ in range(50)]
        for link in slow:
            link.sendall(b"GET / HT")
        began = time.monotonic()
        assert ask(server)[0] == 200 and post(server, {})[0] == 200
        assert time.monotonic() - began < 2
        while not select.select(slow[:1], [], [], 0.1)[0]:  # single bytes do not extend the time limit
            slow[0].sendall(b"T")
            assert time.monotonic() - began < 4
        assert all(link.recv(99).startswith(b"HTTP/1.1 408 ") for link in slow)
        assert time.monotonic() - began < 4


def test_requests_beyond_the_limit_get_503_with_retry_after(recommender, monkeypatch):
    released, entered = threading.Event(), threading.Semaphore(0)

    def wait(self, *args, **kwargs):
        entered.release()
        assert released.wait(20)
        return Recommendations(items=(), history=(), popular=True)

    with running(recommender, parallel=2) as server, ThreadPoolExecutor(2) as pool:
        monkeypatch.setattr(BundleRecommender, "recommend", wait)
        busy = [pool.submit(post, server, {}) for _ in range(2)]
        assert entered.acquire(timeout=10) and entered.acquire(timeout=10)
        status, headers, body = ask(server, "/v1/health")
        assert (status, headers["retry-after"]) == (503, "1") and "Too many" in json.loads(body)["error"]
        assert ask(server)[0] == 503
        released.set()
        assert [future.result()[0] for future in busy] == [200, 200]
        assert ask(server, "/v1/health")[0] == 200
        idle = [socket.create_connection(("127.0.0.1", server.port), 10) for _ in range(4)]
        end = time.monotonic() + 10
        while len(server.connections) < 4 and time.monotonic() < end:  # until all four are accepted
            time.sleep(0.01)
        with socket.create_connection(("127.0.0.1", server.port), 10) as fifth:
            assert fifth.recv(99).startswith(b"HTTP/1.1 503 ")
        for link in idle:
            link.close()
        while server.connections and time.monotonic() < end:
            time.sleep(0.01)
        assert ask(server)[0] == 200


def test_an_internal_error_is_logged_without_user_input(recommender, monkeypatch):
    log: list[Event] = []
    with running(recommender, log=log.append) as server:
        monkeypatch.setattr(BundleRecommender, "recommend", lambda self, *args, **kwargs: {}[SECRET])
        status, answer = post(server, {})
        assert status == 500 and "bug" in answer["error"] and SECRET not in str(answer) + str(log)
        assert len(log) == 1 and log[0].facts["error"] == "KeyError" and "test_serving.py" in log[0].text
        assert ask(server, "/v1/health")[0] == 200
        monkeypatch.setattr(serving_http, "parse_head", lambda head: {}[SECRET])
        assert raw(server, head(server)) == b""
        assert len(log) == 2 and SECRET not in str(log[1]) and "KeyError" in log[1].text


def test_a_disconnected_client_causes_no_output(server, capfd):
    for request in (b"", b"GET", head(server)[:-2], head(server, "GET /item.f32 HTTP/1.1")):
        with socket.create_connection(("127.0.0.1", server.port)) as link:
            link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # closing sends a reset
            link.sendall(request)
    assert ask(server)[0] == 200
    assert capfd.readouterr() == ("", "")


def test_used_and_invalid_ports_are_refused(server, recommender):
    with pytest.raises(SettingError, match=f"Port {server.port} .*--port 0"):
        Server(PageSite(recommender), Listener(port=server.port))
    for port in (-1, 65536):
        with pytest.raises(SettingError, match="0 to 65535"):
            Server(PageSite(recommender), Listener(port=port))


# The OpenAPI description


@pytest.mark.parametrize("task", ["ranking", "ratings"])
def test_the_server_conforms_to_its_openapi_description(tmp_path, task):
    with running(BundleRecommender.load(small_bundle(tmp_path, task))) as server:
        report = explore(server.url, CASES)
    assert report["wrong"] == []
    assert report["cases"] >= CASES and {200, 400, 405, 415, 422} <= {*report["statuses"]}
    assert not [status for status in report["statuses"] if status >= 500 or status == 0]


# The command


@contextlib.contextmanager
def command(*args: object) -> Iterator[subprocess.Popen[str]]:
    """`fedtaste serve` in its own process."""
    line = [sys.executable, "-m", "fedtaste", "serve", *map(str, args)]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_the_command_answers_requests_and_stops_on_a_signal_without_output(folder, stop):
    with command(folder, "--port", 0, "--api", "--json") as process:
        output = json.loads(process.stdout.readline())
        assert {*output} == {"url", "pid"} and output["pid"] == process.pid
        address = output["url"].removeprefix("http://").rstrip("/")
        with contextlib.closing(http.client.HTTPConnection(address, timeout=20)) as link:
            for target, body in (("/v1/recommend", {"likes": [SECRET]}), (f"/{SECRET.replace(' ', '+')}", SECRET)):
                link.request("POST", target, json.dumps(body), {"Content-Type": "application/json"})
                assert link.getresponse().read()
            process.send_signal(stop)  # while a connection is open
            out, err = process.communicate(timeout=20)
        assert (process.returncode, out, err) == (0, "", "")


def test_the_command_prints_the_address_to_open(folder):
    with command(folder, "--port", 0) as process:
        line = process.stdout.readline()
        assert line.startswith("Open http://127.0.0.1:") and line.endswith("Ctrl-C stops.\n")
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0


def test_a_run_is_exported_first_and_no_temporary_file_remains(tmp_path, monkeypatch, capfd):
    assert fedtaste("run", *QUICK, "--out", tmp_path / "run").code == 0
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    exported = load_recommender(tmp_path / "run")
    assert {"index.html", "sw.js", "manifest.json", "items.json"} <= {*exported.files}
    assert "Exporting" in capfd.readouterr().err and not [*(tmp_path / "temporary").iterdir()]
    with running(exported) as server:
        status, headers, page = ask(server)
        assert (status, page) == (200, exported.files["index.html"])
        policy = re.search(r'"Content-Security-Policy" content="([^"]+)"', page.decode())[1]
        assert {*headers["content-security-policy"].split("; ")} == {
            *re.split(r";\s+", policy),
            "frame-ancestors 'none'",  # a page cannot set this directive and the next one itself
            "sandbox allow-scripts allow-same-origin allow-downloads allow-forms",
        }
        assert len(post(server, {"likes": [exported.bundle.titles[0]]})[1]["items"]) == 10


@pytest.mark.parametrize("name", ["item.f32", "main.js", "items.json", "index.html", "sw.js", "manifest.json"])
@pytest.mark.parametrize("damage", ["changed", "missing"])
def test_a_bundle_with_a_changed_or_missing_file_is_refused(tmp_path, name, damage):
    path = small_bundle(tmp_path / "bundle") / name
    content = path.read_bytes()
    path.unlink()
    if damage == "changed":
        other = small_bundle(tmp_path / "other", "ratings") / name  # a page that belongs to another manifest
        path.write_bytes(other.read_bytes() if name in ("index.html", "sw.js") else content[:-50] + b"!" * 50)
    with pytest.raises(FedtasteError) as error:
        BundleRecommender.load(path.parent)
    assert name in str(error.value) and "xport" in str(error.value)


@pytest.mark.parametrize("content", ["nothing", "empty", "neither", "another version", "changed"])
def test_the_command_refuses_a_folder_without_a_valid_bundle(tmp_path, content):
    path = tmp_path / "site"
    if content != "nothing":
        path.mkdir()
    if content == "neither":
        (path / "notes.txt").write_text("x")
    if content == "changed":
        (small_bundle(path) / "main.js").write_text("send(everything)")
    if content == "another version":
        (small_bundle(path) / "manifest.json").write_text('{"format": "fedtaste-bundle-9", "fedtaste": "9.0"}')
    output = fedtaste("serve", path, "--port", 0)
    reasons = {"another version": "fedtaste-bundle-9", "changed": "main.js is not the file that was exported"}
    output.refused(str(path), reasons.get(content, "fedtaste export"))
