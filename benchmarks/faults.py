"""Long tests of faults: killed processes, damaged bytes, and faulty rounds. Writes docs/evidence/faults.json.

`python benchmarks/faults.py [--quick] [part ...]` runs all parts or some:

    runs      200 times kill -9 at a random moment of a run or of its resumption; the final bytes must be the same
    runs-fedseq   20 times the same with fedseq
    saving    500 times kill -9 while checkpoints are written; no checkpoint may be incomplete
    machine   10,000 steps of the state machine of tests/support/rounds_machine.py
    fuzz-...  ten minutes of damaged bytes for each decoder: message, checkpoint, run-folder, text, parquet

`--quick` runs a fiftieth of each part and writes nothing. A finding is an exception that no caller expects, a process
that dies, or a case that takes more than 5 s of CPU or more than 500 MB of memory. The tests use the same code.
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
SLOW, HUGE, SILENT = 5.0, 500.0, 120.0  # seconds of CPU, MB, seconds without progress
sys.path.insert(0, str(ROOT / "tests"))


def kills(how: str, times: int, *method: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(ROOT / "tests" / "support" / "killing.py"), how, str(times), "1", folder]
        command += method
        return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def machine(steps: int) -> dict[str, Any]:
    """Run the state machine until it has taken this number of steps."""
    from support.rounds_machine import explore

    return explore(steps)


def fuzz(name: str, seconds: float) -> dict[str, Any]:
    """Feed a decoder in a process of its own, which is restarted when a case ends it."""
    until, next_case, findings, restarts = time.monotonic() + seconds, 0, [], 0
    with tempfile.TemporaryDirectory() as place:
        output, progress = Path(place) / "output", Path(place) / "at"
        while time.monotonic() < until:
            progress.write_text(str(next_case))
            remaining = until - time.monotonic()
            command = [sys.executable, __file__, "--worker", name, str(next_case), str(remaining), place]
            with output.open("a") as file:
                process = subprocess.Popen(command, stdout=file, stderr=subprocess.DEVNULL)
                while process.poll() is None and time.time() - progress.stat().st_mtime < SILENT:
                    time.sleep(0.2)
                hung = process.poll() is None
                process.kill()
                process.wait()
            next_case = int(progress.read_text()) + 1
            if process.returncode:
                restarts += 1
                findings.append(
                    {"case": next_case - 1, "what": "hangs" if hung else f"ends the process: {process.returncode}"}
                )
        findings += [json.loads(line) for line in output.read_text().splitlines()]
    kinds: dict[str, dict[str, Any]] = {}
    for finding in findings:
        kinds.setdefault(finding["what"], finding | {"times": 0})["times"] += 1
    return {"seconds": round(seconds), "cases": next_case, "findings": list(kinds.values()), "restarts": restarts}


def worker(name: str, first: int, seconds: float, place: Path) -> None:
    """Run cases from this number on, print findings, and write the number of each case to a file for the parent."""
    import warnings

    from support.fuzzing import TARGETS

    warnings.simplefilter("ignore")
    target, until, case = TARGETS[name], time.monotonic() + seconds, first
    trial = place / "trial"
    trial.mkdir(exist_ok=True)
    target.feed(target.seeds()[0], trial)  # so that compilation and imports do not count for a case
    while time.monotonic() < until:
        (place / "at").write_text(str(case))
        blob = target.case(case)
        _reset_peak()
        memory_before, start, what = _memory("VmRSS"), time.process_time(), ""
        try:
            target.feed(blob, trial)
        except BaseException as error:  # noqa: BLE001 (anything is a finding)
            if isinstance(error, KeyboardInterrupt):
                raise
            last = traceback.extract_tb(error.__traceback__)[-1]
            what = f"{type(error).__name__} in {Path(last.filename).name}:{last.lineno}: {error}"[:300]
        if time.process_time() - start > SLOW:
            what = what or "takes more than 5 s"
        if _memory("VmHWM") - memory_before > HUGE:
            what = what or "takes more than 500 MB"
        if what:
            print(json.dumps({"case": case, "what": what}), flush=True)
        case += 1


def _reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def _memory(which: str) -> float:
    """A field of /proc/self/status in MB."""
    return int(re.search(rf"{which}:\s+(\d+)", Path("/proc/self/status").read_text())[1]) / 1000  # type: ignore[index]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--worker", nargs=4)
    arguments = parser.parse_args()
    if arguments.worker:
        name, first, seconds, place = arguments.worker
        worker(name, int(first), float(seconds), Path(place))
        return
    divisor = 50 if arguments.quick else 1
    jobs: dict[str, Any] = {
        "runs": lambda: kills("runs", 50 // divisor),
        "runs-fedseq": lambda: kills("runs", max(20 // divisor, 1), "fedseq"),
        "saving": lambda: kills("saving", 500 // divisor),
        "machine": lambda: machine(10_000 // divisor),
    }
    for name in DECODERS:
        jobs[f"fuzz-{name.replace(' ', '-')}"] = lambda name=name: fuzz(name, 120 / divisor)
    if unknown := set(arguments.parts) - set(jobs):
        parser.error(f"{', '.join(sorted(unknown))}: expected {', '.join(jobs)}")
    for name in arguments.parts or jobs:
        start = time.perf_counter()
        result = jobs[name]() | {"took_seconds": round(time.perf_counter() - start)}
        print(json.dumps({name: result}), flush=True)
        if not arguments.quick:  # other processes may have written other parts meanwhile
            evidence = json.loads(OUT.read_text()) if OUT.exists() else {}
            stamp = {"command": f"python benchmarks/faults.py {name}", "date": datetime.date.today().isoformat()}
            OUT.write_text(json.dumps(dict(sorted((evidence | {name: stamp | result}).items())), indent=1) + "\n")


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
