"""Compare methods on clients whose features differ, on generated and on real domains of digits.

`python benchmarks/shift.py` runs `fedtaste compare` for three seeds on the shifted digits and, if the files exist, on
real domains (../shared/data/digits: MNIST, USPS, MNIST-M; and scikit-learn's optdigits). It writes
docs/evidence/shift.json and the tables of docs/shift.md.
"""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
METHODS = "local,fedavg,fedprox,fedbn,fedrep,ditto,apfl,fedclup,pfedme,lgmix,centralised"
REAL = "../shared/data/digits"
DATA = {
    "shifted-digits": "Five ways to see scikit-learn's digits, 96 training images each",
    f"domains:{REAL},size=16,examples=100,optdigits=true": "MNIST, USPS, MNIST-M and optdigits at 16 x 16, 100 each",
}
SEEDS = (0, 1, 2)


def compare(data: str, seed: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        words = ["compare", "--data", data, "--methods", METHODS, "--seed", str(seed), "--json"]
        command = [sys.executable, "-m", "fedtaste", *words, "--out", f"{folder}/runs"]
        process = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    result = json.loads(process.stdout)
    kept = ("method", "settings", "seed", "rounds", "seen", "intervals", "by_client", "traffic", "gradients", "seconds")
    results = [{key: run.get(key) for key in kept} for run in result["results"]]
    return {"command": "fedtaste " + " ".join(words), "results": results, "tradeoff": result["tradeoff"]}


def table(runs: list[dict[str, Any]]) -> str:
    """A row for every method: mean over seeds, half width from the test examples, every seed, the gap to FedAvg."""
    columns: dict[str, list[dict[str, Any]]] = {}
    for run in runs:
        for result in run["results"]:
            columns.setdefault(result["method"], []).append(result)
    base = [result["seen"]["accuracy"] for result in columns["fedavg"]]
    lines = ["| method | accuracy | by seed | less FedAvg | shared model | rounds | up, a client and round |"]
    lines.append("|---|---|---|---|---|---|---|")
    mean = lambda values: sum(values) / len(values)
    for method, results in sorted(columns.items(), key=lambda pair: -mean([r["seen"]["accuracy"] for r in pair[1]])):
        accuracy = [result["seen"]["accuracy"] for result in results]
        intervals = [result["intervals"]["seen"]["accuracy"] for result in results]
        half = mean([(high - low) / 2 for low, high in intervals]) / len(accuracy) ** 0.5
        gaps = [a - b for a, b in zip(accuracy, base)]
        shared = [result["seen"].get("global_accuracy") for result in results]
        shared_cell = f"{mean(shared):.3f}" if None not in shared else ""
        upload = mean([result["traffic"]["up_bytes_per_person_round"] for result in results])
        seeds = ", ".join(f"{value:.3f}" for value in accuracy)
        rounds = ", ".join(str(result["rounds"]) for result in results)
        lines.append(
            f"| {method} | {mean(accuracy):.3f} ± {half:.3f} | {seeds} | {mean(gaps):+.3f} ({min(gaps):+.3f} to "
            f"{max(gaps):+.3f}) | {shared_cell} | {rounds} | {upload / 1000:.1f} kB |"
        )
    return "\n".join(lines)


def main() -> None:
    evidence: dict[str, Any] = {"command": "python benchmarks/shift.py", "date": str(datetime.date.today()), "data": {}}
    path = ROOT / "docs/evidence/shift.json"
    for data, title in DATA.items():
        if REAL in data and not (ROOT / REAL).is_dir():
            print(f"{data}: skipped, the files do not exist")
            continue
        runs = [compare(data, seed) for seed in SEEDS]
        evidence["data"][data] = {"about": title, "runs": runs}
        path.write_text(json.dumps(evidence, indent=1) + "\n")
        print(f"\n{title}\n\n{table(runs)}", flush=True)
    write_page(evidence)


def write_page(evidence: dict[str, Any]) -> None:
    """Replace the tables of docs/shift.md between its marks; the prose around them is written by hand."""
    page = ROOT / "docs/shift.md"
    text = page.read_text()
    begin, end = "<!-- tables -->", "<!-- end -->"
    parts = []
    for part in evidence["data"].values():
        command = part["runs"][0]["command"].replace(REAL, Path(REAL).name)  # a folder that the page describes
        title = f"### {part['about']}\n\n`{command}`, seeds 0 to 2, {evidence['date']}"
        parts.append(f"{title}\n\n{table(part['runs'])}")
    head, rest = text.split(begin)[0], text.split(end)[1]
    page.write_text(head + begin + "\n" + "\n\n".join(parts) + "\n" + end + rest)


if __name__ == "__main__":
    main()
