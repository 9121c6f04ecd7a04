"""What hostile people achieve on ML-100K, with a plain sum and with robust ones, into docs/evidence/poisoning.json.

python benchmarks/poisoning.py [name ...]      all, or some of JOBS; the simulator is that of `fedtaste poison`

The settings of `bound` were chosen on seed 0 and its first target, by these same measures; so everything here is on
other seeds: other hostile people, other targets, another split. Every seed that was run is here. `crude` is an attack
out of all proportion, `adaptive` one that knows the rule and sends a row as long as its own longest honest one. Rounds
are fixed, before and for all.
"""

from __future__ import annotations

import datetime
import json
import sys
import time
from pathlib import Path
from typing import Any

import fedtaste
from fedtaste.experiment.settings import Settings
from fedtaste.poisoning.simulate import AttackSettings, simulate

OUT = Path(__file__).parents[1] / "docs" / "evidence" / "poisoning.json"
ROUNDS = 40
OTHERS = ["trim=0.05", "median", "krum=0.05"]
JOBS: dict[str, dict[str, Any]] = {
    **{f"crude-{seed}": {"attack": "promote", "wires": ["bound"], "targets": 3} for seed in (1, 2, 3)},
    "adaptive": {"attack": "promote", "size": 1.0, "wires": ["bound"], "targets": 3},
    "profiles": {"attack": "profiles", "wires": ["bound"], "targets": 3},
    "crude-others": {"attack": "promote", "wires": OTHERS, "targets": 1},
    "adaptive-others": {"attack": "promote", "size": 1.0, "wires": OTHERS, "targets": 1},
    "random": {"attack": "random", "wires": ["bound", "median"]},
    "flip": {"attack": "flip", "wires": ["bound", "median"]},
    "fedals-crude": {"attack": "promote", "size": 10.0, "wires": ["bound", "krum=0.05"], "targets": 3},
    "fedals-adaptive": {"attack": "promote", "size": 3.0, "wires": ["bound", "krum=0.05"], "targets": 3},
}


def settings(name: str) -> Settings:
    seed = int(name[-1]) if name[-1].isdigit() else 1
    if name.startswith("fedals"):  # k=8: a robust sum holds everybody's sums, which grow with k squared
        return Settings(method="fedals", set={"k": "8"}, new_people=0.0, seed=seed)
    return Settings(method="fedmf", rounds=ROUNDS, new_people=0.0, seed=seed)


def main(names: list[str]) -> None:
    data = fedtaste.load("ml-100k")
    for name in names or JOBS:
        began = time.process_time()
        found = simulate(settings(name), data, AttackSettings(hostile=0.05, **JOBS[name])).dump()
        rows = found["rows"]
        for row in rows:  # the figure that is asked for: exposure below twice clean, at most 2 % of NDCG lost
            row["reaches"] = row["exposure"] < 2 * max(rows[0]["exposure"], found["unpopular"]["exposure"]) and (
                row["ndcg_loss"] <= 0.02
            )
            print(
                name, row["row"], row["wire"] or "plain", row["exposures"], row["ndcg@10"], row["reaches"], flush=True
            )
        kept = json.loads(OUT.read_text()) if OUT.exists() else {}
        found["cpu_seconds"] = round(time.process_time() - began, 1)
        kept[name] = {
            "command": f"python benchmarks/poisoning.py {name}", "date": datetime.date.today().isoformat(),
            "result": found,
        }  # fmt: skip
        OUT.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
