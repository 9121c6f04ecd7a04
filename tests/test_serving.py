"""`fedtaste serve` over real sockets: what it sends, what it refuses, and that it goes on whatever comes."""

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
from fedtaste.serving import http as serving_http
from fedtaste.serving.api import MAX_BODY, Api
from fedtaste.serving.http import MAX_HEAD
from fedtaste.serving.recommendation import Recommendations
from fedtaste.serving.recommender import Recommender
from fedtaste.serving.server import Server
from support.api_explorer import explore
from support.bundles import TITLES, small_bundle
from support.command import QUICK, fedtaste

CASES = 300  # of schemathesis, here; benchmarks/page_api.py asks for 2,000
POST, TYPE = "POST /v1/recommend HTTP/1.1", "Content-Type: application/json"
CHUNKED = "Transfer-Encoding: chunked"
SECRET = "What I like is nobody's business"


@contextlib.contextmanager
def running(recommender: Recommender, api: bool = True, **options: Any) -> Iterator[Server]:
    with Server(recommender.files, api=Api(recommender) if api else None, **options) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A bundle with a neighbour and a lodger that nobody may see."""
    path = small_bundle(tmp_path_factory.mktemp("site") / "bundle")
    for name in ("secret.txt", "../secret.txt", ".git"):
        (path / name).write_text(SECRET)
    return path


@pytest.fixture(scope="module")
def recommender(folder) -> Recommender:
    return Recommender.load(folder)


@pytest.fixture(scope="module")
def server(recommender) -> Iterator[Server]:
    with running(recommender, hosts=["Films.example", "other.example:8443"], patience=2.0) as server:
        yield server


@pytest.fixture(scope="module")
def strict(recommender) -> Iterator[tuple[Server, list[str]]]:
    """A server, and what it has said of its own bugs."""
    bugs: list[str] = []
    with running(recommender, log=bugs.append) as server:
        yield server, bugs


def ask(server: Server, target: str = "/", method: str = "GET", body: Any = None, **headers: str):
    """(status, headers, body) over a connection of its own."""
    link = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    with contextlib.closing(link):
        link.request(method, target, body, {name.replace("_", "-"): value for name, value in headers.items()})
        got = link.getresponse()
        return got.status, {name.lower(): value for name, value in got.getheaders()}, got.read()


def post(server: Server, body: Any, **headers: str) -> tuple[int, dict[str, Any]]:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    status, _, got = ask(server, "/v1/recommend", "POST", raw, **{"Content_Type": "application/json"} | headers)
    return status, json.loads(got)


def raw(server: Server, sent: bytes, wait: float = 10.0) -> bytes:
    """All that comes back until the server hangs up."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=wait) as link:
        link.sendall(sent)
        got = b""
        with contextlib.suppress(ConnectionResetError):
            while more := link.recv(65536):
                got += more
        return got


def head(server: Server, first: str = POST, *lines: str) -> bytes:
    own = [f"Host: localhost:{server.port}", "Connection: close"]
    return "\r\n".join([first, *own, *lines, "", ""]).encode("latin-1")


def status_of(reply: bytes) -> int:
    assert reply.startswith(b"HTTP/1.1 "), reply[:100]
    return int(reply[9:12])


# Files


def test_every_file_of_the_bundle_comes_as_it_is_and_is_named_rightly(server, recommender):
    kinds = {
        "html": "text/html",
        "js": "text/javascript",
        "css": "text/css",
        "json": "application/json",
        "md": "text/plain",
    }
    assert len(recommender.files) == 11
    for name, content in recommender.files.items():
        status, headers, got = ask(server, f"/{name}")
        assert (status, got, headers["content-length"]) == (200, content, str(len(content)))
        assert headers["content-type"].split(";")[0] == kinds.get(name.rpartition(".")[2], "application/octet-stream")
    assert ask(server, "/")[2] == ask(server, "/?x=1")[2] == recommender.files["index.html"]


def test_every_reply_carries_the_headers_that_keep_a_person_safe(server):
    answers = [ask(server), ask(server, "/nothing"), ask(server, "/", "PUT"), ask(server, Host="evil.example"),
               ask(server, "/v1/health"), ask(server, "/v1/x"), ask(server, "/v1/recommend", "POST", b"{"),
               ask(server, If_None_Match="*"), ask(server, "/item.f32", "HEAD")]  # fmt: skip
    assert [status for status, _, _ in answers] == [200, 404, 405, 421, 200, 404, 415, 304, 200]
    for _, headers, _ in answers:
        policy = headers["content-security-policy"].split("; ")
        assert {"default-src 'none'", "script-src 'self'", "frame-ancestors 'none'", "trusted-types fedtaste"} <= {
            *policy
        }
        assert headers["x-content-type-options"] == "nosniff" and headers["referrer-policy"] == "no-referrer"
        assert headers["cross-origin-opener-policy"] == headers["cross-origin-resource-policy"] == "same-origin"
        assert "geolocation=()" in headers["permissions-policy"] and "=*" not in headers["permissions-policy"]
        assert headers["cache-control"] in ("no-cache", "no-store")
        assert not {"set-cookie", "server"} & {*headers} and not any("access-control" in name for name in headers)


def test_a_copy_that_is_still_good_is_not_sent_again(server, recommender):
    for packed in ({}, {"Accept_Encoding": "gzip"}):
        _, headers, _ = ask(server, "/main.js", **packed)
        for known in (headers["etag"], f'"x", W/{headers["etag"]}', "*"):
            status, again, got = ask(server, "/main.js", If_None_Match=known, **packed)
            assert (status, got, again["etag"]) == (304, b"", headers["etag"]) and "content-length" not in again
    assert ask(server, "/main.js", If_None_Match='"old"')[0] == 200
    assert ask(server, "/main.js")[1]["etag"] != ask(server, "/main.js", Accept_Encoding="gzip")[1]["etag"]


def test_text_is_packed_for_those_who_take_it(server, recommender):
    for accepted, packs in [("gzip, br", True), ("br;q=1, GZIP;q=0.5", True), ("gzip;q=0", False), ("identity", False)]:
        _, headers, got = ask(server, "/main.js", Accept_Encoding=accepted)
        assert (headers.get("content-encoding") == "gzip") == packs and headers["vary"] == "Accept-Encoding"
        assert (gzip.decompress(got) if packs else got) == recommender.files["main.js"]
        assert int(headers["content-length"]) == len(got) and (len(got) < 100) == packs
    assert "content-encoding" not in ask(server, "/item.f32", Accept_Encoding="gzip")[1]


def test_head_is_get_without_the_body(server):
    for target in ("/", "/item.f32", "/v1/health"):
        whole, bare = ask(server, target), ask(server, target, "HEAD")
        assert bare[2] == b"" and bare[1] | {"date": 0} == whole[1] | {"date": 0}


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
def test_nothing_but_the_bundle_can_be_asked_for(server, target):
    for method in ("GET", "HEAD", "POST"):
        got = raw(server, head(server, f"{method} {target} HTTP/1.1", "Content-Length: 0"))
        assert status_of(got) in (400, 404) and SECRET.encode() not in got
        assert method == "HEAD" or got.endswith((b".\n", b"}"))


# Requests that are none


@pytest.mark.parametrize(
    "sent",
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
def test_garbage_gets_a_sentence(server, sent):
    got = raw(server, sent)
    assert status_of(got) == 400 and b"Connection: close" in got and got.endswith(b".\n")


WORDS = [
    b"GET", b"POST", b" ", b"/", b"/v1/recommend", b"HTTP/1.1", b"\r\n", b"\r\n\r\n", b"Host: localhost:%d", b"{}",
    b"Content-Length: 2", b"Transfer-Encoding: chunked", b"Expect: 100-continue", b"2\r\n{}\r\n", b":", b"0", b"\xff",
    b"POST /v1/recommend HTTP/1.1\r\nHost: localhost:%d\r\nContent-Type: application/json\r\n",
]  # fmt: skip


@settings(max_examples=300)
@given(sent=st.lists(st.sampled_from(WORDS) | st.binary(max_size=5), max_size=20).map(b"".join))
def test_whatever_is_sent_no_thread_fails(strict, sent):
    server, bugs = strict
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as link:
        link.sendall(sent.replace(b"%d", b"%d" % server.port))
        link.shutdown(socket.SHUT_WR)
        got = link.recv(99)
    assert bugs == [] and (not got or got.startswith((b"HTTP/1.1 2", b"HTTP/1.1 4", b"HTTP/1.1 100")))


def test_a_head_that_is_too_large_is_refused(server):
    fits = "x" * (MAX_HEAD - 500)
    assert status_of(raw(server, head(server, "GET / HTTP/1.1", f"A: {fits}"))) == 200
    for lines in ([f"A: {fits}{fits}"], [f"A{n}: {n}" for n in range(5000)]):
        assert status_of(raw(server, head(server, "GET / HTTP/1.1", *lines))) == 431
    assert status_of(raw(server, b"GET /" + b"a" * 1_000_000)) == 431


def test_only_its_own_names_are_answered_for(server):
    port = server.port
    for host in (f"127.0.0.1:{port}", f"localhost:{port}", f"LOCALHOST:{port}", f"[::1]:{port}", "films.example",
                 "FILMS.example:99", "other.example:8443"):  # fmt: skip
        assert ask(server, Host=host)[0] == 200, host
    for host in ("evil.example", f"evil.example:{port}", "127.0.0.1", "localhost:1", "other.example", "x.films.example",
                 f"127.0.0.1:{port}.evil.example", f"localhost:{port}@evil", "", f"localhost:{port}, x"):  # fmt: skip
        status, _, got = ask(server, Host=host)
        assert (status, b"--allow-host" in got) == (421, True), host
    status, _, got = ask(server, "/v1/health", Host="evil.example")
    assert status == 421 and json.loads(got)["field"] == "Host"
    assert status_of(raw(server, b"GET / HTTP/1.0\r\n\r\n")) == 421


@pytest.mark.parametrize("name", ["*", "https://films.example", "films.example/", "a b", "", "a:123456", "é.example"])
def test_names_that_cannot_be_hosts_are_refused(recommender, name):
    with pytest.raises(SettingError, match="--allow-host"):
        Server(recommender.files, hosts=[name])


# Bodies


def test_a_body_is_taken_whole_or_in_chunks(server):
    want = json.dumps({"likes": [TITLES[0]], "n": 3}).encode()
    answer = post(server, want)
    assert answer[0] == 200 and answer[1]["from"] == [TITLES[0]]
    for size in (1, 7, 1000):
        pieces = [want[at : at + size] for at in range(0, len(want), size)] + [b""]
        sent = b"".join(b"%x;a=b\r\n%s\r\n" % (len(piece), piece) for piece in pieces)
        got = raw(server, head(server, POST, TYPE, "Transfer-Encoding: chunked") + sent)
        assert (status_of(got), json.loads(got.split(b"\r\n\r\n", 1)[1])) == answer
    assert post(server, want.ljust(MAX_BODY)) == answer
    expecting = head(server, POST, TYPE, "Expect: 100-continue", f"Content-Length: {len(want)}")
    assert raw(server, expecting + want).startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK")


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
        (400, [CHUNKED], b"2\r\n{}xx\r\n0\r\n\r\n"), (400, [CHUNKED], b"x" * 2000),
        (400, [CHUNKED], b"0\r\nTrailer: x\r\n\r\n"), (413, [CHUNKED], b"ffffffff\r\n"),
        (413, [CHUNKED], b"8000\r\n%s\r\n8001\r\n" % (b" " * 0x8000)),
        (400, [CHUNKED], b"1\r\n \r\n" * 5000 + b"0\r\n\r\n"),
        (413, [f"Content-Length: {8 * MAX_BODY}"], b"x" * 8 * MAX_BODY), (408, ["Content-Length: 10"], b"{}"),
        (408, [CHUNKED], b"2\r\n{}"),
    ],
)  # fmt: skip
def test_bodies_that_cannot_be_taken(server, status, lines, body):
    got = raw(server, head(server, POST, TYPE, *lines) + body)
    answer = json.loads(got.split(b"\r\n\r\n", 1)[1])
    assert status_of(got) == status and {*answer} == {"error", "field"} and answer["error"].endswith(".")


def test_a_large_body_is_refused_before_it_is_sent(server):
    began = time.monotonic()
    assert status_of(raw(server, head(server, "POST / HTTP/1.1", "Content-Length: 70000") + b"x")) == 413
    assert time.monotonic() - began < 4
    whole = 32 * 2**20  # more than any buffer holds: whoever goes on sending still gets to read why
    assert status_of(raw(server, head(server, POST, f"Content-Length: {whole}") + bytes(whole))) == 413


def test_several_requests_on_one_connection_are_answered_in_turn(server):
    body = b'{"n": 1}'
    first = f"POST /v1/recommend HTTP/1.1\r\nHost: localhost:{server.port}\r\nContent-Type: application/json\r\n"
    one = first.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body
    got = raw(server, one * 3 + head(server, "GET /style.css HTTP/1.1"))
    assert got.count(b"HTTP/1.1 200 OK") == 4 and got.count(b'"popular": true') == 3 and got.endswith(b"}\n")


def test_without_api_there_is_none(recommender):
    with running(recommender, api=False) as server:
        for method in ("GET", "POST"):
            status, headers, got = ask(server, "/v1/recommend", method, b"{}")
            assert (status, headers["content-type"]) == (404, "application/json") and "--api" in json.loads(got)[
                "error"
            ]
        assert ask(server)[0] == 200


# Many, slow, and broken


def test_a_hundred_at_once_get_the_same_answer(server):
    barrier = threading.Barrier(100)

    def one(_: int) -> tuple[int, dict[str, Any]]:
        barrier.wait()
        return post(server, {"likes": TITLES[:5], "n": 20})

    with ThreadPoolExecutor(100) as pool:
        answers = list(pool.map(one, range(100)))
    assert {status for status, _ in answers} == {200}
    assert all(answer == answers[0] for answer in answers)


def test_slow_clients_hold_up_nobody_and_are_sent_away(recommender):
    with running(recommender, patience=2.0) as server, contextlib.ExitStack() as open_:
        slow = [open_.enter_context(socket.create_connection(("127.0.0.1", server.port), 10)) for _ in range(50)]
        for link in slow:
            link.sendall(b"GET / HT")
        began = time.monotonic()
        assert ask(server)[0] == 200 and post(server, {})[0] == 200
        assert time.monotonic() - began < 2
        while not select.select(slow[:1], [], [], 0.1)[0]:  # a byte now and then does not win time
            slow[0].sendall(b"T")
            assert time.monotonic() - began < 4
        assert all(link.recv(99).startswith(b"HTTP/1.1 408 ") for link in slow)
        assert time.monotonic() - began < 4


def test_beyond_what_it_can_take_it_says_when_to_come_back(recommender, monkeypatch):
    going, entered = threading.Event(), threading.Semaphore(0)

    def held(self, *args, **kwargs):
        entered.release()
        assert going.wait(20)
        return Recommendations(items=(), history=(), popular=True)

    with running(recommender, parallel=2) as server, ThreadPoolExecutor(2) as pool:
        monkeypatch.setattr(Recommender, "recommend", held)
        busy = [pool.submit(post, server, {}) for _ in range(2)]
        assert entered.acquire(timeout=10) and entered.acquire(timeout=10)
        status, headers, got = ask(server, "/v1/health")
        assert (status, headers["retry-after"]) == (503, "1") and "Too many" in json.loads(got)["error"]
        assert ask(server)[0] == 503
        going.set()
        assert [future.result()[0] for future in busy] == [200, 200]
        assert ask(server, "/v1/health")[0] == 200
        idle = [socket.create_connection(("127.0.0.1", server.port), 10) for _ in range(4)]
        end = time.monotonic() + 10
        while server.connections._value and time.monotonic() < end:  # until all four are accepted
            time.sleep(0.01)
        with socket.create_connection(("127.0.0.1", server.port), 10) as fifth:
            assert fifth.recv(99).startswith(b"HTTP/1.1 503 ")
        for link in idle:
            link.close()
        while server.connections._value < 4 and time.monotonic() < end:
            time.sleep(0.01)
        assert ask(server)[0] == 200


def test_a_bug_is_told_without_what_was_typed(recommender, monkeypatch):
    said: list[str] = []
    with running(recommender, log=said.append) as server:
        monkeypatch.setattr(Recommender, "recommend", lambda self, *args, **kwargs: {}[SECRET])
        status, answer = post(server, {})
        assert status == 500 and "bug" in answer["error"] and SECRET not in str(answer) + str(said)
        assert len(said) == 1 and "test_serving.py" in said[0] and "KeyError" in said[0]
        assert ask(server, "/v1/health")[0] == 200
        monkeypatch.setattr(serving_http, "parse_head", lambda head: {}[SECRET])
        assert raw(server, head(server)) == b""
        assert len(said) == 2 and SECRET not in said[1] and "KeyError" in said[1]


def test_a_client_that_goes_away_leaves_no_trace(server, capfd):
    for sent in (b"", b"GET", head(server)[:-2], head(server, "GET /item.f32 HTTP/1.1")):
        with socket.create_connection(("127.0.0.1", server.port)) as link:
            link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # a reset, not a goodbye
            link.sendall(sent)
    assert ask(server)[0] == 200
    assert capfd.readouterr() == ("", "")


def test_ports_that_cannot_be_had(server, recommender):
    with pytest.raises(SettingError, match=f"Port {server.port} .* another program listens there.*--port 0"):
        Server(recommender.files, port=server.port)
    for port in (-1, 65536):
        with pytest.raises(SettingError, match="0 to 65535"):
            Server(recommender.files, port=port)


# The description, held against the server


@pytest.mark.parametrize("task", ["ranking", "ratings"])
def test_schemathesis_finds_nothing(tmp_path, task):
    with running(Recommender.load(small_bundle(tmp_path, task))) as server:
        found = explore(server.url, CASES)
    assert found["wrong"] == []
    assert found["cases"] >= CASES and {200, 400, 405, 415, 422} <= {*found["statuses"]}
    assert not [status for status in found["statuses"] if status >= 500 or status == 0]


# The command


@contextlib.contextmanager
def command(*args: object) -> Iterator[subprocess.Popen[str]]:
    line = [sys.executable, "-m", "fedtaste", "serve", *map(str, args)]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_the_command_listens_answers_stops_and_tells_nothing(folder, stop):
    with command(folder, "--port", 0, "--api", "--json") as process:
        told = json.loads(process.stdout.readline())
        assert {*told} == {"url", "pid"} and told["pid"] == process.pid
        at = told["url"].removeprefix("http://").rstrip("/")
        with contextlib.closing(http.client.HTTPConnection(at, timeout=20)) as link:
            for target, body in (("/v1/recommend", {"likes": [SECRET]}), (f"/{SECRET.replace(' ', '+')}", SECRET)):
                link.request("POST", target, json.dumps(body), {"Content-Type": "application/json"})
                assert link.getresponse().read()
            process.send_signal(stop)  # while a connection is open
            out, err = process.communicate(timeout=20)
        assert (process.returncode, out, err) == (0, "", "")


def test_the_command_says_where_to_look(folder):
    with command(folder, "--port", 0) as process:
        line = process.stdout.readline()
        assert line.startswith("Open http://127.0.0.1:") and line.endswith("Ctrl-C stops.\n")
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0


def test_a_run_is_exported_first_and_leaves_nothing_behind(tmp_path, monkeypatch, capfd):
    assert fedtaste("run", *QUICK, "--out", tmp_path / "run").code == 0
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    made = load_recommender(tmp_path / "run")
    assert {"index.html", "sw.js", "manifest.json", "items.json"} <= {*made.files}
    assert "Exporting" in capfd.readouterr().err and not [*(tmp_path / "temporary").iterdir()]
    with running(made) as server:
        status, headers, page = ask(server)
        assert (status, page) == (200, made.files["index.html"])
        policy = re.search(r'"Content-Security-Policy" content="([^"]+)"', page.decode())[1]
        assert {*headers["content-security-policy"].split("; ")} == {
            *re.split(r";\s+", policy),
            "frame-ancestors 'none'",  # this and the next a page cannot say of itself
            "sandbox allow-scripts allow-same-origin allow-downloads allow-forms",
        }
        assert len(post(server, {"likes": [made.bundle.titles[0]]})[1]["items"]) == 10


@pytest.mark.parametrize("name", ["item.f32", "main.js", "items.json", "index.html", "sw.js", "manifest.json"])
@pytest.mark.parametrize("how", ["changed", "missing"])
def test_a_bundle_that_is_not_as_exported_is_refused(tmp_path, name, how):
    path = small_bundle(tmp_path / "bundle") / name
    content = path.read_bytes()
    path.unlink()
    if how == "changed":
        other = small_bundle(tmp_path / "other", "ratings") / name  # a page that belongs to another manifest
        path.write_bytes(other.read_bytes() if name in ("index.html", "sw.js") else content[:-50] + b"!" * 50)
    with pytest.raises(FedtasteError) as refused:
        Recommender.load(path.parent)
    assert name in str(refused.value) and "xport" in str(refused.value)


@pytest.mark.parametrize("what", ["nothing", "empty", "neither", "another version", "changed"])
def test_the_command_refuses_with_a_sentence(tmp_path, what):
    path = tmp_path / "site"
    if what != "nothing":
        path.mkdir()
    if what == "neither":
        (path / "notes.txt").write_text("x")
    if what == "changed":
        (small_bundle(path) / "main.js").write_text("send(everything)")
    if what == "another version":
        (small_bundle(path) / "manifest.json").write_text('{"format": "fedtaste-bundle-9", "fedtaste": "9.0"}')
    said = fedtaste("serve", path, "--port", 0)
    words = {"another version": "fedtaste-bundle-9", "changed": "main.js is not the file that was exported"}
    said.refused(str(path), words.get(what, "fedtaste export"))
