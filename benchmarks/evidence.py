"""`make evidence`: slow figures, written to docs/evidence/ with the command and the date. Minutes, not seconds.

python benchmarks/evidence.py [name ...]      all, or some of JOBS
"""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
OUT = ROOT / "docs" / "evidence"
COMPARE = "popularity,local,fedavg,fedrecon,fedals,centralised"
JOBS = {  # name -> commands, each of which prints one JSON object
    "main": ["run", "run --set recency=1"],
    "folds": ["run --new-people folds"],
    "seeds": [f"run --seed {seed}" for seed in range(1, 6)],
    "ratings": [
        "run --task ratings --method fedrecon --set solver=exact",
        "run --task ratings --method fedrecon",
        "run --task ratings --method fedals",
        *(f"run --task ratings --method fedrecon --set solver=exact --seed {seed}" for seed in range(1, 6)),
    ],
    "linear": ["run --data linear --method fedsgd"],
    "published": ["run --protocol published", "run --protocol published --method fedavg"],
    "compare": [f"compare --methods {COMPARE}"],
    "bench": ["bench"],
}
DROPPED = ("curve", "run", "peak_rss_mb")  # long, or of one machine


def slim(value: object) -> object:
    if isinstance(value, dict):
        return {k: slim(v) for k, v in value.items() if k not in DROPPED and not (k == "report" and isinstance(v, str))}
    return [slim(v) for v in value] if isinstance(value, list) else value


def main(names: list[str]) -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    for name in names or JOBS:
        found = []
        for command in JOBS[name]:
            print(f"tacit {command} --json", flush=True)
            with tempfile.TemporaryDirectory() as folder:
                line = [sys.executable, "-m", "tacit.cli", *command.split(), "--json"]
                done = subprocess.run(line, cwd=folder, capture_output=True, text=True)
            if done.returncode:
                raise SystemExit(f"failed: {done.stderr}")
            found.append({"command": f"tacit {command} --json", "result": slim(json.loads(done.stdout))})
        page = {"date": datetime.date.today().isoformat(), "evidence": found}
        (OUT / f"{name}.json").write_text(json.dumps(page, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
