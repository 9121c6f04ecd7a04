"""Membership audit of five private configurations on ML-100K, with the stated noise and with a quarter of it.

`python benchmarks/membership.py` writes docs/evidence/membership.json. The figures with the stated noise are those of
the command in the same row. For the others the sampler is replaced by one with a quarter of the standard deviation,
without the audit's knowledge: a lower bound above the printed epsilon shows that the audit detects it.
"""

from __future__ import annotations

import datetime
import json
import time
from pathlib import Path
from typing import Any
from unittest import mock

import fedtaste
from fedtaste.audit.run import AuditScope, audit
from fedtaste.experiment.resources import set_threads
from fedtaste.experiment.settings import Settings
from fedtaste.experiment.train import make_task
from fedtaste.wire import noise

OUT = Path(__file__).parents[1] / "docs" / "evidence" / "membership.json"
RUNS: tuple[dict[str, Any], ...] = (
    {"method": "popularity", "wire": "clip=1", "epsilon": 1.0},
    {"method": "fedveil", "epsilon": 1.0},
    {"method": "fedveil", "epsilon": 3.0},
    {"method": "fedveil", "epsilon": 10.0},
    {"method": "fedmf", "wire": "clip=1", "epsilon": 3.0},
)
KEPT = ("epsilon", "epsilon_lower", "delta", "tpr_at_fpr_0.001", "f1", "worst_f1", "popularity_f1", "planned_rounds")


def command(values: dict[str, Any]) -> str:
    return "fedtaste audit --data ml-100k " + " ".join(f"--{name} {value:g}" if isinstance(value, float) else
                                                    f"--{name} {value}" for name, value in values.items())  # fmt: skip


def figures(values: dict[str, Any]) -> dict[str, Any]:
    settings, data = Settings(data="ml-100k", **values), fedtaste.load("ml-100k")
    result = audit(settings, make_task(settings, data), data.titles, AuditScope(people=100)).dump()
    member = result["membership"]
    kept = ("canaries", "guesses", "correct", "runs", "by", "largest", "noise_ratio", "on_grid")
    return {name: result[name] for name in KEPT} | {name: member[name] for name in kept}


def main() -> None:
    set_threads(1)
    exact, rows = noise.discrete_gaussian, []
    for values in RUNS:
        start = time.perf_counter()
        honest = figures(values)
        with mock.patch.object(noise, "discrete_gaussian", lambda sigma, *rest: exact(sigma / 4, *rest)):
            quarter = figures(values)
        rows.append({"command": command(values) + " --json", "honest": honest, "quarter": quarter})
        stated = f"epsilon {honest['epsilon']:.3f}, at least {honest['epsilon_lower']:.3f}"
        reduced = f"with a quarter of the noise at least {quarter['epsilon_lower']:.3f}"
        print(f"{command(values)}: {stated}; {reduced} ({time.perf_counter() - start:.0f} s)", flush=True)
        page = {"command": "python benchmarks/membership.py", "date": str(datetime.date.today()), "rows": rows}
        OUT.write_text(json.dumps(page, indent=1) + "\n")


if __name__ == "__main__":
    main()
