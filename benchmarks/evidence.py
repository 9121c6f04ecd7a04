"""`make evidence`: run the slow commands and scripts, and write their figures with command and date to docs/evidence/.

python benchmarks/evidence.py [name ...]      all of JOBS and SCRIPTS, or some
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
AMAZON = "../shared/data/amazon-video.csv.gz"  # from the project's root; jobs are skipped if it is missing
PROTOCOLS = ("published", "clean")
STUDY = "popularity,fedmf,fedncf,fcf,pfedrec,fedrap,fedrecon,fedals,fedtrail,centralised"
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
    "honest-ml-100k": [f"compare --methods {STUDY} --data ml-100k --protocol {p} --threads 1" for p in PROTOCOLS],
    "honest-amazon": [f"compare --methods {STUDY} --data {AMAZON} --protocol {p} --threads 1" for p in PROTOCOLS],
    "fedrap": [
        "run --method fedrap --protocol published --rounds 100",
        "run --method fedrap --set released=true --rounds 100",
        "run --method fedrap",
        "run --method pfedrec --protocol published --rounds 60",
    ],
    "fedtrail": [
        "run --method fedtrail",
        "run --method fedtrail --new-people folds",
        *(f"run --method fedtrail --set parts={parts}" for parts in ("trail", "factors", "trail+als")),
        "run --method fedtrail --set keep=300 --set bits=8",
    ],
    "sparsity": [
        f"run --method fedrap --protocol published --rounds {rounds} {form}"
        for rounds in (30, 100)
        for form in (
            "--download dense",
            "--set prox=0.003 --download sparse",
            "--set prox=0.003 --download rows",
            "--download int8",
        )
    ],
    "memory": [
        "run --data synthetic:6040x3706x1000000 --method fedrap --rounds 30 --threads 1",
        "run --data synthetic:24516x7455x266356 --method fedrap --rounds 20 --threads 1",
        "run --data synthetic:200000x60000x30000000 --method fedrap --rounds 1 --cohort 0.01 --threads 1",
    ],
    "bench": ["bench --method fedals", "bench --method fedrecon"],
    "bench-fedrap": ["bench --method fedrap"],
    "bench-clients": [f"bench --method {network}" for network in ("logistic", "cnn", "cnn-16")],
    "all": ["compare --methods all --data ml-100k"],
    "audit": [
        f"audit --data ml-100k {words} --canaries 0"
        for words in (
            *(f"--method {name}" for name in ("fedrap", "fedmf", "fedals", "fedrecon", "fedtrail")),
            "--method fedals --wire secure=10",
            "--method fedals --wire secure=10 --rounds 6",
            "--method fedmf --wire secure=10 --rounds 6",
            "--method fedrap --wire clip=1,secure=10 --epsilon 10",
            "--method fedrap --wire clip=1,secure --epsilon 10",
            "--method fedmf --wire clip=1,local=1",
            "--method fedmf --wire sparsify=0.1,quantise=8",
            "--task ratings --method fedals",
        )
    ],
    "three-way": [
        "compare --methods popularity,fedveil --wire clip=1 --epsilon 1,3,10,none "
        "--axes accuracy,bytes,epsilon --data ml-100k"
    ],
}
SCRIPTS = {
    "degree": "benchmarks/degree.py",
    "shift": "benchmarks/shift.py",
    "privacy": "benchmarks/privacy.py",
    "membership": "benchmarks/membership.py",
    "poisoning": "benchmarks/poisoning.py",
    "faults": "benchmarks/faults.py",
    "federation": "benchmarks/federation.py",
    "page": "benchmarks/page.py",
}  # programs that write their own evidence
DROPPED = ("run", "report", "scale")  # fields that depend on the machine or are not needed
THIN = 10  # of a curve, every tenth round and the first two are kept


def slim(value: object, name: str = "") -> object:
    """A result without the dropped fields and with short curves."""
    if isinstance(value, dict):
        fields = {k: v for k, v in value.items() if k not in DROPPED or not isinstance(v, str | list)}
        return {k: slim(v, k) for k, v in fields.items()}
    if isinstance(value, list) and name == "curve":
        value = [point for point in value if point["round"] <= 2 or point["round"] % THIN == 0]
    if isinstance(value, list) and name == "results":  # of a comparison: only the plotted part of its many curves
        for result in value:
            result["curve"] = [{"round": p["round"], "valid": p["valid"]} for p in result["curve"]]
    return [slim(v) for v in value] if isinstance(value, list) else value


def main(names: list[str]) -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    for name in names or [*JOBS, *SCRIPTS]:
        if name in SCRIPTS:
            print(f"python {SCRIPTS[name]}", flush=True)
            subprocess.run([sys.executable, SCRIPTS[name]], cwd=ROOT, check=True)
            continue
        results = []
        for command in JOBS[name]:
            print(f"fedtaste {command} --json", flush=True)
            if AMAZON in command and not (ROOT / AMAZON).exists():
                print(f"skipped: {AMAZON} does not exist", flush=True)
                continue
            with tempfile.TemporaryDirectory() as folder:
                out = [] if command.startswith("bench") else ["--out", f"{folder}/run"]
                line = [sys.executable, "-m", "fedtaste", *command.split(), "--json", *out]
                process = subprocess.run(line, cwd=ROOT, capture_output=True, text=True)
            if process.returncode:
                raise SystemExit(f"failed: {process.stderr}")
            results.append({"command": f"fedtaste {command} --json", "result": slim(json.loads(process.stdout))})
            evidence = {"date": datetime.date.today().isoformat(), "evidence": results}
            (OUT / f"{name}.json").write_text(json.dumps(evidence, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
