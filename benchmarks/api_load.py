"""Load on the API: 50 clients at once for 60 seconds, this version and an earlier one on the same machine in one run.

    python benchmarks/api_load.py                                    60 s for each version, docs/evidence/api_load.json
    python benchmarks/api_load.py --seconds 5 --slices 1 --out -     a short one, printed only

Both versions train FedALS on ML-100K and serve it with `serve --api` on the loopback address. The load alternates
between them in slices, so that whatever else the machine does meets both. Every client has one connection and sends
POST /v1/recommend with titles that are drawn anew for every request, so that no cache can answer. The earlier version
comes from the history of this repository. Meanwhile bad clients connect to this version: slow ones, malformed ones and
too large ones; each must be refused.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import http.client
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
OLD = {"version": "0.6.0", "commit": "13b666c", "main": "from tacit.cli import main; main()"}
NOW = "from fedtaste.cli.main import main; main()"
CLIENTS, PROCESSES, PREPARED, MAX_REQUESTS, TIMEOUT = 50, 2, 2000, 2_000_000, 60.0
TRAIN = ("run", "--data", "ml-100k", "--rounds", "4", "--json")
BAD = {  # name -> bytes of a request that must be refused, and the status
    "malformed": (b"GET / HTTP/1.1\r\nHost : x\r\n\r\n", 400),
    "not http": (b"\x16\x03\x01\x02\x00\x01\xfc\x03", 400),
    "large head": (b"GET / HTTP/1.1\r\nA: " + b"x" * 20_000 + b"\r\n\r\n", 431),
    "large body": (b"POST /v1/recommend HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n", 413),
    "two lengths": (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
    "other host": (b"GET / HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n", 421),
    "slow": (b"GET / HT", 408),
}


class Served:
    """A server process of one version."""

    def __init__(self, name: str, code: str, source: Path, folder: Path) -> None:
        self.name = name
        self.environment = os.environ | {"PYTHONPATH": str(source)}
        run = folder / name
        words = [sys.executable, "-c", code]
        if not run.exists():
            train = [*words, *TRAIN, "--out", str(run)]
            subprocess.run(train, env=self.environment, check=True, capture_output=True, timeout=900)
        self.process = subprocess.Popen(
            [*words, "serve", str(run), "--api", "--port", "0", "--json"],
            env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        url = json.loads(self.process.stdout.readline())["url"]
        self.port = int(url.rstrip("/").rpartition(":")[2])
        self.latencies: list[float] = []
        self.statuses: Counter[str] = Counter()
        self.seconds = 0.0

    def titles(self) -> list[str]:
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        with contextlib.closing(link):
            titles: list[str] = []
            for start in (0, 1000):
                link.request("GET", f"/v1/items?limit=1000&start={start}")
                titles += [item["title"] for item in json.loads(link.getresponse().read())["items"]]
        return [title for title, number in Counter(titles).items() if number == 1]

    def cpu_seconds(self) -> float:
        """CPU time of the server and its children so far."""
        total = 0.0
        for pid in [self.process.pid, *children(self.process.pid)]:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return total

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def prepared_requests(server: Served, titles: list[str]) -> list[bytes]:
    """Requests with three to ten random titles each."""
    rng, requests = random.Random(0), []
    for _ in range(PREPARED):
        body = json.dumps({"likes": rng.sample(titles, rng.randint(3, 10)), "n": 10}).encode()
        lines = f"POST /v1/recommend HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nContent-Type: application/json\r\n"
        requests.append(f"{lines}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    return requests


@dataclass
class Heard:
    """What the clients of one process have heard."""

    latencies: list[float] = field(default_factory=list)
    statuses: Counter[str] = field(default_factory=Counter)


async def client(port: int, requests: list[bytes], number: int, until: float, heard: Heard) -> None:
    """One client: a request after the other on one connection, until the time is over."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    at = number * 37
    while time.perf_counter() < until and len(heard.latencies) < MAX_REQUESTS:
        at += 1
        began = time.perf_counter()
        try:
            async with asyncio.timeout(TIMEOUT):
                writer.write(requests[at % PREPARED])
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
                body = await reader.readexactly(length)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, ValueError) as error:
            heard.statuses[type(error).__name__] += 1
            writer.close()
            await asyncio.sleep(0.1)
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            continue
        heard.latencies.append(time.perf_counter() - began)
        valid = head.startswith(b"HTTP/1.1 200 ") and body.startswith(b'{"items"') and body.endswith(b"}")
        heard.statuses["200" if valid else head[9:12].decode("latin-1")] += 1
    writer.close()


def clients(port: int, requests: list[bytes], numbers: range, seconds: float) -> Heard:
    """These clients at once, in one process."""
    heard = Heard()

    async def everybody() -> None:
        until = time.perf_counter() + seconds
        await asyncio.gather(*(client(port, requests, number, until, heard) for number in numbers))

    asyncio.run(everybody())
    return heard


def load(server: Served, requests: list[bytes], seconds: float) -> None:
    """All clients at once on one server, in PROCESSES processes, so that the clients are not the slowest part."""
    began, parts = time.perf_counter(), [range(n, CLIENTS, PROCESSES) for n in range(PROCESSES)]
    with ProcessPoolExecutor(PROCESSES) as pool:
        jobs = [pool.submit(clients, server.port, requests, part, seconds) for part in parts]
        for heard in (job.result() for job in jobs):
            server.latencies += heard.latencies
            server.statuses += heard.statuses
    server.seconds += time.perf_counter() - began


def bad_client(port: int, name: str) -> str:
    """The status that a bad client gets."""
    request, _ = BAD[name]
    with socket.create_connection(("127.0.0.1", port), timeout=40) as link:
        link.sendall(request)
        with contextlib.suppress(ConnectionResetError):
            return link.recv(99)[9:12].decode("latin-1")
    return "reset"


@contextlib.contextmanager
def bad_clients(port: int, seconds: float) -> Iterator[dict[str, Counter[str]]]:
    """Bad clients of every kind, again and again while the block runs; at most 20 of each kind."""
    statuses: dict[str, Counter[str]] = {name: Counter() for name in BAD}
    end = threading.Event()

    def repeat(name: str) -> None:
        for _ in range(20):
            statuses[name][bad_client(port, name)] += 1
            if end.wait(max(seconds / 20, 0.2)):
                return

    threads = [threading.Thread(target=repeat, args=(name,), daemon=True) for name in BAD]
    for thread in threads:
        thread.start()
    yield statuses
    end.set()
    for thread in threads:
        thread.join(60)


def figures(server: Served, cpu: float) -> dict[str, Any]:
    times = sorted(server.latencies)
    share = {f"p{q}_ms": round(1000 * times[min(int(len(times) * q / 100), len(times) - 1)], 1) for q in (50, 95, 99)}
    return {
        "requests": len(times),
        "statuses": dict(server.statuses),
        "errors": sum(number for status, number in server.statuses.items() if status != "200"),
        "seconds": round(server.seconds, 1),
        "requests_per_second": round(len(times) / server.seconds, 1),
        **share,
        "slowest_ms": round(1000 * times[-1], 1),
        "server_cpu_ms_per_request": round(1000 * cpu / len(times), 3),
    }


def measure(seconds: float, slices: int, source: Path, folder: Path) -> dict[str, Any]:
    servers = [
        Served(OLD["version"], OLD["main"], source, folder),
        Served("now", NOW, ROOT / "src", folder),
    ]
    try:
        requests = {server.name: prepared_requests(server, server.titles()) for server in servers}
        for server in servers:  # first requests import and allocate
            load(server, requests[server.name], 1.0)
            server.latencies, server.statuses, server.seconds = [], Counter(), 0.0
        before = {server.name: server.cpu_seconds() for server in servers}
        with bad_clients(servers[1].port, seconds * 2) as refused:
            for _ in range(slices):
                for server in servers:
                    load(server, requests[server.name], seconds / slices)
        cpu = {server.name: server.cpu_seconds() - before[server.name] for server in servers}
    finally:
        codes = [server.stop() for server in servers]
    results = {server.name: figures(server, cpu[server.name]) for server in servers}
    wrong = {name: dict(got) for name, got in refused.items() if {*got} != {str(BAD[name][1])}}
    return {
        "clients": CLIENTS,
        "old": OLD,
        **results,
        "times_old": round(results["now"]["requests_per_second"] / results[OLD["version"]]["requests_per_second"], 2),
        "bad_clients": {name: dict(got) for name, got in refused.items()},
        "bad_clients_not_refused": wrong,
        "exit_codes": codes,
        "load_average": [round(number, 1) for number in os.getloadavg()],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="of load on each version, at most 600")
    parser.add_argument("--slices", type=int, default=6)
    parser.add_argument("--keep", type=Path, help="a folder with runs or bundles called 0.6.0 and now, or for them")
    parser.add_argument("--out", default=str(ROOT / "docs" / "evidence" / "api_load.json"), help="- prints only")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(["git", "archive", OLD["commit"], "src"], cwd=ROOT, check=True, capture_output=True)
        subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
        seconds, slices = min(options.seconds, 600.0), max(options.slices, 1)
        result = measure(seconds, slices, Path(folder) / "src", options.keep or Path(folder))
    text = json.dumps(result, indent=1)
    print(text)
    if options.out != "-":
        Path(options.out).write_text(text + "\n")
    if result["now"]["errors"] or result["bad_clients_not_refused"]:
        raise SystemExit("There were errors, or a bad client was not refused.")


if __name__ == "__main__":
    main()
