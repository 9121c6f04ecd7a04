"""Tests of federations with real SuperLinks and SuperNodes. Writes docs/evidence/federation.json.

`python benchmarks/federation.py [part ...]` runs all parts or some, on this machine, over loopback; each takes minutes:

    parity    `fedtaste federate` compared with `fedtaste run`: ml-100k, and other methods on small data
    tls       connections in plain text, an unregistered key, and bits changed in transit
    deaths    kill -9 of a node, of the SuperLink and of the server app; a node that misses a round
    hostile   a node that sends a different wrong message in every round
    secure    SecAgg+: the sum, and what the server received
    capture   the bytes of a run without TLS, searched for data that must not be sent
    scale     1, 2 and 4 nodes with the same people: seconds, CPU, bytes, memory; an estimate for a thousand nodes
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import tempfile
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
OUT = ROOT / "docs" / "evidence" / "federation.json"
PARTS = {  # name -> module and function
    "parity": "federation_same:parity",
    "tls": "federation_same:tls",
    "deaths": "federation_same:deaths",
    "hostile": "federation_trust:hostile",
    "secure": "federation_trust:secure",
    "capture": "federation_capture:capture",
    "scale": "federation_scale:scale",
}


def machine() -> str:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{len(os.sched_getaffinity(0))} cores, {memory:.0f} GB, {platform.system()} {platform.machine()}"


def part(name: str) -> Callable[[Path], dict[str, Any]]:
    module, _, function = PARTS[name].partition(":")
    run_part: Callable[[Path], dict[str, Any]] = getattr(import_module(module), function)
    return run_part


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*")
    parser.add_argument("--keep", type=Path, help="keep the run folders here")
    arguments = parser.parse_args()
    if unknown := set(arguments.parts) - set(PARTS):
        parser.error(f"{', '.join(sorted(unknown))}: expected {', '.join(PARTS)}")
    for name in arguments.parts or PARTS:
        print(f"{name} ...", flush=True)
        start, load = time.perf_counter(), os.getloadavg()[0]
        with tempfile.TemporaryDirectory(prefix="fedtaste-") as folder:
            place = (arguments.keep or Path(folder)) / name
            place.mkdir(parents=True, exist_ok=True)
            result = part(name)(place)
        took = {"took_seconds": round(time.perf_counter() - start), "load_of_the_machine_before": round(load, 1)}
        print(json.dumps({name: result | took}), flush=True)
        stamp = {"command": f"python benchmarks/federation.py {name}", "date": datetime.date.today().isoformat()}
        evidence = json.loads(OUT.read_text()) if OUT.exists() else {}  # other processes may have written other parts
        evidence[name] = stamp | {"machine": machine()} | took | result
        OUT.write_text(json.dumps(dict(sorted(evidence.items())), indent=1) + "\n")


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
