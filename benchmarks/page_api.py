"""Send 2,000 requests that schemathesis generates, and 100 at once, to `fedtaste serve --api`.

`python benchmarks/page_api.py [cases]` trains on ML-100K, serves it, and prints one JSON line: the counts of requests
by status, with 5xx and with an undocumented reply, and the seconds. tests/test_serving.py uses the same code.
"""

from __future__ import annotations

import http.client
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

AT_ONCE, IN_TURN = 100, 500
FEDTASTE = [sys.executable, "-m", "fedtaste"]
REQUEST = json.dumps({"likes": ["Toy Story", "Star Wars", "Fargo"], "n": 20})


def request(address: str) -> tuple[int, bytes, float]:
    """(status, body, milliseconds) of one request over a new connection."""
    link, start = http.client.HTTPConnection(address, timeout=60), time.perf_counter()
    link.request("POST", "/v1/recommend", REQUEST, {"Content-Type": "application/json"})
    reply = link.getresponse()
    body = reply.read()
    link.close()
    return reply.status, body, 1000 * (time.perf_counter() - start)


def simultaneous(address: str) -> list[tuple[int, bytes, float]]:
    ready = threading.Barrier(AT_ONCE)

    def one(_: int) -> tuple[int, bytes, float]:
        ready.wait()
        return request(address)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(one, range(AT_ONCE)))


def api(cases: int = 2000) -> dict[str, Any]:
    """Train, serve, send the requests, and return the counts."""
    from support.api_explorer import explore

    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        subprocess.run([*FEDTASTE, "run", "--rounds", "8", "--out", run, "--json"], check=True, capture_output=True)
        command = [*FEDTASTE, "serve", run, "--api", "--port", "0", "--json"]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            url = json.loads(server.stdout.readline())["url"]
            address = url.removeprefix("http://").rstrip("/")
            start = time.perf_counter()
            explored = explore(url, cases)
            seconds = time.perf_counter() - start
            parallel = simultaneous(address)
            sequential = [request(address)[2] for _ in range(IN_TURN)]
        finally:
            server.terminate()
            output = server.communicate(timeout=30)
    statuses = Counter(explored["statuses"])
    return {
        "cases": explored["cases"],
        "statuses": explored["statuses"],
        "5xx": sum(count for status, count in statuses.items() if status >= 500),
        "wrong": len(explored["wrong"]),
        "seconds": round(seconds, 1),
        "at_once": dict(Counter(status for status, _, _ in parallel)),
        "at_once_equal": len({body for _, body, _ in parallel}) == 1,
        "at_once_slowest_ms": round(max(ms for _, _, ms in parallel), 1),
        "in_turn_median_ms": round(statistics.median(sequential), 2),
        "exit_code": server.returncode,
        "typed_in_output": any(title in text for text in output for title in ("Toy Story", "Star Wars", "Fargo")),
    }


if __name__ == "__main__":
    print(json.dumps(api(*map(int, sys.argv[1:2]))))
