"""Record the results of ten commands and compare two records, to show that a change of structure changed no result.

    python benchmarks/behaviour.py record FILE [--command fedtaste]    run the ten commands and write their results
    python benchmarks/behaviour.py compare BEFORE AFTER                list every difference; exit 1 if there is one

A record holds the hash of every tensor in every model.safetensors and the whole JSON result, without the fields that
depend on the machine (seconds, memory) or on the place (paths).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file

COMMANDS = {
    "fedals": "run --data ml-100k --method fedals",
    "fedrecon-gradient": "run --data ml-100k --method fedrecon --rounds 6 --set solver=gradient",
    "fedrecon-exact": "run --data ml-100k --method fedrecon --rounds 6 --set solver=exact --set loss=squared",
    "fedrap-published": "run --data ml-100k --method fedrap --protocol published --rounds 10",
    "fedtrail": "run --data ml-100k --method fedtrail",
    "pfedrec": "run --data ml-100k --method pfedrec --rounds 3",
    "fedclup-logistic": "run --data logistic --method fedclup --rounds 10",
    "lgmix-shifted-digits": "run --data shifted-digits --method lgmix --rounds 4",
    "fedsgd-linear": "run --data linear --method fedsgd",
    "compare": "compare --data synthetic --methods popularity,fedals,fedmf --rounds 4 --jobs 1",
}
MACHINE = {"seconds", "peak_rss_mb", "run", "report"}


def without_machine(value: Any) -> Any:
    """The same JSON value without the fields that depend on the machine."""
    if isinstance(value, dict):
        return {name: without_machine(part) for name, part in value.items() if name not in MACHINE}
    return [without_machine(part) for part in value] if isinstance(value, list) else value


def tensor_hashes(folder: Path) -> dict[str, dict[str, str]]:
    """The hash of every tensor, by model file and name."""
    return {
        str(path.relative_to(folder)): {
            name: hashlib.sha256(f"{value.dtype}{value.shape}".encode() + value.tobytes()).hexdigest()
            for name, value in sorted(load_file(path).items())
        }
        for path in sorted(folder.rglob("model.safetensors"))
    }


def record(command: str) -> dict[str, Any]:
    """Run every command once, each in an empty folder, with one thread."""
    records = {}
    for name, arguments in COMMANDS.items():
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "run"
            line = [*command.split(), *arguments.split(), "--threads", "1", "--out", str(out), "--json"]
            process = subprocess.run(line, capture_output=True, text=True, check=False, env={**os.environ})
            if process.returncode:
                sys.exit(f"{name} failed with {process.returncode}: {process.stderr}")
            records[name] = {"result": without_machine(json.loads(process.stdout)), "models": tensor_hashes(out)}
            print(f"{name}: recorded", flush=True)
    return records


def differences(before: Any, after: Any, place: str = "") -> list[str]:
    """Every place at which two JSON values differ."""
    if isinstance(before, dict) and isinstance(after, dict):
        lines = [f"{place}/{name}: only in one" for name in sorted(before.keys() ^ after.keys())]
        return lines + [
            line
            for name in before.keys() & after.keys()
            for line in differences(before[name], after[name], f"{place}/{name}")
        ]
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        return [
            line for index, pair in enumerate(zip(before, after)) for line in differences(*pair, f"{place}/{index}")
        ]
    return [] if before == after else [f"{place}: {before!r} became {after!r}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    actions = parser.add_subparsers(dest="action", required=True)
    record_parser = actions.add_parser("record")
    record_parser.add_argument("file", type=Path)
    record_parser.add_argument("--command", default=f"{sys.executable} -m fedtaste")
    compare_parser = actions.add_parser("compare")
    compare_parser.add_argument("before", type=Path)
    compare_parser.add_argument("after", type=Path)
    arguments = parser.parse_args()
    if arguments.action == "record":
        arguments.file.write_text(json.dumps(record(arguments.command), indent=1) + "\n")
        return
    lines = differences(json.loads(arguments.before.read_text()), json.loads(arguments.after.read_text()))
    print("\n".join(lines) or f"All {len(COMMANDS)} commands gave the same results.")
    sys.exit(bool(lines))


if __name__ == "__main__":
    main()
