"""Real SuperLinks and SuperNodes: what issue 6 asks to be shown. Writes docs/evidence/federation.json.

`python benchmarks/federation.py [part ...]` runs all parts or some, on this machine, over loopback; minutes each:

    parity    `fedtaste federate` against `fedtaste run`: ml-100k, and other methods at small size
    tls       plain text, an unregistered key, and a byte changed on the way
    deaths    kill -9 of a node, of the SuperLink and of the server app; a node that is away for a round
    hostile   a node that lies, another lie every round
    secure    SecAgg+: the sum, and what the server received
    capture   a whole run through a proxy without TLS, searched for what must not be in it
    scale     1, 2 and 4 nodes with the same people: seconds, CPU, bytes, memory; a thousand nodes, computed
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
    found: Callable[[Path], dict[str, Any]] = getattr(import_module(module), function)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*")
    parser.add_argument("--keep", type=Path, help="leave the run folders here")
    asked = parser.parse_args()
    if unknown := set(asked.parts) - set(PARTS):
        parser.error(f"{', '.join(sorted(unknown))}: expected {', '.join(PARTS)}")
    for name in asked.parts or PARTS:
        print(f"{name} ...", flush=True)
        began, load = time.perf_counter(), os.getloadavg()[0]
        with tempfile.TemporaryDirectory(prefix="fedtaste-") as folder:
            place = (asked.keep or Path(folder)) / name
            place.mkdir(parents=True, exist_ok=True)
            found = part(name)(place)
        took = {"took_seconds": round(time.perf_counter() - began), "load_of_the_machine_before": round(load, 1)}
        print(json.dumps({name: found | took}), flush=True)
        stamp = {"command": f"python benchmarks/federation.py {name}", "date": datetime.date.today().isoformat()}
        kept = json.loads(OUT.read_text()) if OUT.exists() else {}  # others may have been at work on other parts
        OUT.write_text(
            json.dumps(dict(sorted((kept | {name: stamp | {"machine": machine()} | took | found}).items())), indent=1)
            + "\n"
        )


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
