"""Faults at length: kills, damaged bytes, and rounds in which everything goes wrong. Writes docs/evidence/faults.json.

`python benchmarks/faults.py [--quick] [part ...]` runs all parts or some:

    runs      200 times kill -9 at a random moment of a run and of its resumption; the end must be the same bytes
    saving    500 times kill -9 while checkpoints are written; none may be torn
    machine   10,000 steps of the state machine of tests/support/rounds_machine.py
    fuzz-...  ten minutes of damaged bytes for each decoder: message, checkpoint, run-folder, text, parquet

`--quick` takes a fiftieth of each, and writes nothing. A finding is an exception that no caller expects, a process that
dies, more than 5 s of CPU for one case, or more than 500 MB of memory for it. The code is that of the tests.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
OUT = ROOT / "docs" / "evidence" / "faults.json"
DECODERS = ("message", "checkpoint", "run folder", "text", "parquet")
SLOW, HUGE, SILENT = 5.0, 500.0, 120.0  # seconds of CPU, MB, seconds without a word from the process
sys.path.insert(0, str(ROOT / "tests"))


def kills(how: str, times: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(ROOT / "tests" / "support" / "killing.py"), how, str(times), "1", folder]
        return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def machine(steps: int) -> dict[str, Any]:
    """As many cases of the state machine as it takes, 50 steps at most in each."""
    from support.rounds_machine import explore

    return explore(steps)


def fuzz(name: str, seconds: float) -> dict[str, Any]:
    """Feed a decoder in a process of its own, which is begun again where a case ends it."""
    until, begun, found, restarts = time.monotonic() + seconds, 0, [], 0
    with tempfile.TemporaryDirectory() as place:
        words, at = Path(place) / "words", Path(place) / "at"
        while time.monotonic() < until:
            at.write_text(str(begun))
            left = until - time.monotonic()
            command = [sys.executable, __file__, "--worker", name, str(begun), str(left), place]
            with words.open("a") as told:
                process = subprocess.Popen(command, stdout=told, stderr=subprocess.DEVNULL)
                while process.poll() is None and time.time() - at.stat().st_mtime < SILENT:
                    time.sleep(0.2)
                hung = process.poll() is None
                process.kill()
                process.wait()
            begun = int(at.read_text()) + 1
            if process.returncode:
                restarts += 1
                found.append(
                    {"case": begun - 1, "what": "hangs" if hung else f"ends the process: {process.returncode}"}
                )
        found += [json.loads(line) for line in words.read_text().splitlines()]
    kinds: dict[str, dict[str, Any]] = {}
    for finding in found:
        kinds.setdefault(finding["what"], finding | {"times": 0})["times"] += 1
    return {"seconds": round(seconds), "cases": begun, "findings": list(kinds.values()), "restarts": restarts}


def worker(name: str, begun: int, seconds: float, place: Path) -> None:
    """Case after case; what is found is printed, and the number of the case is kept where the parent sees it."""
    import warnings

    from support.fuzzing import TARGETS

    warnings.simplefilter("ignore")
    target, until, case = TARGETS[name], time.monotonic() + seconds, begun
    trial = place / "trial"
    trial.mkdir(exist_ok=True)
    target.feed(target.seeds()[0], trial)  # what is compiled or imported is no case's cost
    while time.monotonic() < until:
        (place / "at").write_text(str(case))
        blob = target.case(case)
        _forget_peak()
        before, clock, what = _memory("VmRSS"), time.process_time(), ""
        try:
            target.feed(blob, trial)
        except BaseException as error:  # noqa: BLE001 (anything is a finding)
            if isinstance(error, KeyboardInterrupt):
                raise
            last = traceback.extract_tb(error.__traceback__)[-1]
            what = f"{type(error).__name__} in {Path(last.filename).name}:{last.lineno}: {error}"[:300]
        if time.process_time() - clock > SLOW:
            what = what or "takes more than 5 s"
        if _memory("VmHWM") - before > HUGE:
            what = what or "takes more than 500 MB"
        if what:
            print(json.dumps({"case": case, "what": what}), flush=True)
        case += 1


def _forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def _memory(which: str) -> float:
    """MB."""
    return int(re.search(rf"{which}:\s+(\d+)", Path("/proc/self/status").read_text())[1]) / 1000  # type: ignore[index]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--worker", nargs=4)
    asked = parser.parse_args()
    if asked.worker:
        name, begun, seconds, place = asked.worker
        worker(name, int(begun), float(seconds), Path(place))
        return
    part = 50 if asked.quick else 1
    jobs: dict[str, Any] = {
        "runs": lambda: kills("runs", 200 // part),
        "saving": lambda: kills("saving", 500 // part),
        "machine": lambda: machine(10_000 // part),
    }
    for name in DECODERS:
        jobs[f"fuzz-{name.replace(' ', '-')}"] = lambda name=name: fuzz(name, 600 / part)
    if unknown := set(asked.parts) - set(jobs):
        parser.error(f"{', '.join(sorted(unknown))}: expected {', '.join(jobs)}")
    for name in asked.parts or jobs:
        began = time.perf_counter()
        found = jobs[name]() | {"took_seconds": round(time.perf_counter() - began)}
        print(json.dumps({name: found}), flush=True)
        if not asked.quick:  # several may be at work on parts of it
            kept = json.loads(OUT.read_text()) if OUT.exists() else {}
            stamp = {"command": f"python benchmarks/faults.py {name}", "date": datetime.date.today().isoformat()}
            OUT.write_text(json.dumps(dict(sorted((kept | {name: stamp | found}).items())), indent=1) + "\n")


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
