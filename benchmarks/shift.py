"""Clients whose features differ: who gains from the others, on made and on real domains of digits.

`python benchmarks/shift.py` runs `fedtaste compare` for three seeds on the shifted digits, and once more on real
domains where they are at hand (../shared/data/digits: MNIST, USPS, MNIST-M; and scikit-learn's optdigits), and writes
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


def compared(data: str, seed: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        words = ["compare", "--data", data, "--methods", METHODS, "--seed", str(seed), "--json"]
        command = [sys.executable, "-m", "fedtaste", *words, "--out", f"{folder}/runs"]
        done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    found = json.loads(done.stdout)
    kept = ("method", "settings", "seed", "rounds", "seen", "intervals", "by_client", "traffic", "gradients", "seconds")
    results = [{key: result.get(key) for key in kept} for result in found["results"]]
    return {"command": "fedtaste " + " ".join(words), "results": results, "tradeoff": found["tradeoff"]}


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
        got = [result["seen"]["accuracy"] for result in results]
        ends = [result["intervals"]["seen"]["accuracy"] for result in results]
        half = mean([(high - low) / 2 for low, high in ends]) / len(got) ** 0.5
        gaps = [a - b for a, b in zip(got, base)]
        shared = [result["seen"].get("global_accuracy") for result in results]
        alone = f"{mean(shared):.3f}" if None not in shared else ""
        sent = mean([result["traffic"]["up_bytes_per_person_round"] for result in results])
        seeds = ", ".join(f"{value:.3f}" for value in got)
        rounds = ", ".join(str(result["rounds"]) for result in results)
        lines.append(
            f"| {method} | {mean(got):.3f} ± {half:.3f} | {seeds} | {mean(gaps):+.3f} ({min(gaps):+.3f} to "
            f"{max(gaps):+.3f}) | {alone} | {rounds} | {sent / 1000:.1f} kB |"
        )
    return "\n".join(lines)


def main() -> None:
    made: dict[str, Any] = {"command": "python benchmarks/shift.py", "date": str(datetime.date.today()), "data": {}}
    path = ROOT / "docs/evidence/shift.json"
    for data, words in DATA.items():
        if REAL in data and not (ROOT / REAL).is_dir():
            print(f"{data}: not at hand, left out")
            continue
        runs = [compared(data, seed) for seed in SEEDS]
        made["data"][data] = {"about": words, "runs": runs}
        path.write_text(json.dumps(made, indent=1) + "\n")
        print(f"\n{words}\n\n{table(runs)}", flush=True)
    write_page(made)


def write_page(made: dict[str, Any]) -> None:
    """The tables of docs/shift.md, between its marks; the words around them are a person's."""
    page = ROOT / "docs/shift.md"
    text = page.read_text()
    begin, end = "<!-- tables -->", "<!-- end -->"
    parts = []
    for part in made["data"].values():
        title = f"### {part['about']}\n\n`{part['runs'][0]['command']}`, seeds 0 to 2, {made['date']}"
        parts.append(f"{title}\n\n{table(part['runs'])}")
    head, rest = text.split(begin)[0], text.split(end)[1]
    page.write_text(head + begin + "\n" + "\n\n".join(parts) + "\n" + end + rest)


if __name__ == "__main__":
    main()
