"""What differential privacy costs: fedveil, private popularity and DP-FedAvg at epsilon 1, 3, 10 and without noise.

`python benchmarks/privacy.py [part ...]` runs some of `ml-100k`, `fedavg`, `synthetic`, or all, prints a table and
writes docs/evidence/privacy.json. Central noise on the sum, neighbours differ in one whole person, delta = 1 / people;
clean protocol, a tenth of the people new; figures are means over three noise seeds of HR@10 / NDCG@10 against 99
negatives. Everything is chosen on validation in the search phase; test is read for the table alone. What is chosen so
is outside epsilon, for all three alike. DP-FedAvg's settings are searched for every epsilon by `GRID`, one after the
other, beginning with the choice for the next larger epsilon.
"""

from __future__ import annotations

import datetime
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import tacit
from tacit.core import Method, Model, Stage, chain
from tacit.engine.run import State, run
from tacit.experiment import passes
from tacit.methods import build
from tacit.methods.fedveil import advice, predictor
from tacit.models import factorization
from tacit.tasks import Sampling, Task, ranking
from tacit.wire import stages
from tacit.wire.accounting import solve

OUT = Path(__file__).parents[1] / "docs" / "evidence" / "privacy.json"
WORLD = "synthetic:100000x5000x10000000"  # 100 items a person on average, 42 in the median
EPSILONS = (10.0, 3.0, 1.0, None)
SEEDS = (0, 1, 2)
RECENCY = {"own recency": {}, "flat": {"recency": 1.0, "strength": 1.0}}  # the best strength of each on validation
ROUTES = {"fedveil head": {"route": "head"}, "fedveil iterate": {"route": "iterate"}}
START = {"rounds": 20, "rate": 1.0, "k": 16, "spread": 0.1, "lr": 300.0, "passes": 1, "clip": 0.3}
START |= {"server": "sgd", "server_lr": 30.0}  # from a dozen tries at epsilon 10, on validation too
GRID: list[list[dict[str, Any]]] = [  # numbers in lists multiply what stands, others take its place
    [{"server_lr": [2.0]}, {"server_lr": [0.5]}, {"server_lr": [0.25]}],
    [{"rounds": 10, "server_lr": [2.0]}, {"rounds": 40, "server_lr": [0.5]}],
    [{"clip": [1 / 3], "server_lr": [3.0]}, {"clip": [3.0], "server_lr": [1 / 3]}],
    [{"lr": [1 / 3], "clip": [1 / 3], "server_lr": [3.0]}, {"lr": [3.0], "clip": [3.0], "server_lr": [1 / 3]}],
    [{"rate": 0.3, "rounds": [3.0], "server_lr": [1 / 3]}],
    [{"k": 8}, {"k": 32}],
    [{"spread": 0.5}],
    [{"passes": 3, "lr": [1 / 3]}],
    [{"server": name, "server_lr": lr} for name, lr in (("adagrad", 0.1), ("adam", 0.1), ("adam", 0.03))],
    [{"server_lr": [1.5]}, {"server_lr": [0.67]}],
]
Trained = tuple[Method, Model, State]


def make_task(data: str) -> Task:
    return ranking(tacit.load(data), protocol_name="clean", split_name="leave-one-out", new_people=0.1, seed=0)


def last(
    method: Method, model: Model, task: Task, phase: str, rounds: int, wire: Stage, seed: int, rate: float
) -> State:
    federation = task.federation(phase, method, Sampling(), None)
    cohort = None if rate >= 1 else rate
    for done in run(method, model, federation, rounds=rounds, cohort=cohort, wire=wire, noise_seed=seed):
        state = done.state
    return state


def members(task: Task) -> int:
    return task.people - len(task.newcomers)


def noise_of(epsilon: float | None, task: Task, rounds: int = 1, rate: float = 1.0) -> float:
    return 0.0 if epsilon is None else solve(epsilon, 1 / task.people, rounds, rate)


def veil(task: Task, phase: str, epsilon: float | None, seed: int, settings: dict[str, Any]) -> Trained:
    z, model = noise_of(epsilon, task), factorization(task.facts.items)
    method = build("fedveil", model, {"noise": z, "people": members(task)} | settings)
    wire = stages.noise(z, release=method.release) if z else Stage()
    return method, model, last(method, model, task, phase, len(method.release), wire, seed, 1.0)


def popular(task: Task, phase: str, epsilon: float | None, seed: int) -> Trained:
    """Everybody's history at length 1, and the whole budget for one sum."""
    z, model = noise_of(epsilon, task), factorization(task.facts.items)
    method = build("popularity", model, {})
    wire = chain(stages.clip(1.0), stages.noise(z)) if z else stages.clip(1.0)
    return method, model, last(method, model, task, phase, 1, wire, seed, 1.0)


def averaged(task: Task, phase: str, epsilon: float | None, seed: int, settings: dict[str, Any]) -> Trained:
    """DP-FedAvg of a factorisation; people's own vectors stay with them."""
    model = factorization(task.facts.items, k=settings["k"], spread=settings["spread"])
    method = build("fedavg", model, {name: settings[name] for name in ("lr", "passes", "server", "server_lr")})
    wire = Stage()
    if epsilon is not None:
        z = noise_of(epsilon, task, settings["rounds"], settings["rate"])
        wire = chain(stages.clip(settings["clip"]), stages.noise(z, settings["clip"]))
    return method, model, last(method, model, task, phase, settings["rounds"], wire, seed, settings["rate"])


def validated(task: Task, epsilon: float, settings: dict[str, Any]) -> float:
    assert task.validate is not None
    return task.validate(*averaged(task, "search", epsilon, 0, settings), Sampling())["hr@10"]


def search(task: Task, epsilon: float, start: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """One pass over GRID: of every line what is best on validation is kept. -> the choice, all that was tried"""
    tried: list[dict[str, Any]] = []

    def hits(settings: dict[str, Any]) -> float:
        tried.append({"settings": settings, "hr@10": round(validated(task, epsilon, settings), 4)})
        print(f"  epsilon {epsilon:g}: {tried[-1]['hr@10']:.4f} {settings}", flush=True)
        return float(tried[-1]["hr@10"])

    chosen, best = start, hits(start)
    for line in GRID:
        for moved in [_moved(chosen, change) for change in line]:
            if moved not in [entry["settings"] for entry in tried] and (found := hits(moved)) > best:
                chosen, best = moved, found
    return chosen, tried


def _moved(settings: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    return settings | {
        n: type(settings[n])(f"{settings[n] * v[0]:.3g}") if isinstance(v, list) else v for n, v in change.items()
    }  # fmt: skip


def judged(task: Task, trained: list[Trained]) -> dict[str, Any]:
    """Means over noise seeds, and every seed."""
    out: dict[str, Any] = {}
    for whom, people in (("seen", task.seen), ("new", task.newcomers)):
        found = []
        for method, model, state in trained:
            some = None if whom == "seen" else passes(state)
            found.append(task.judge(method, model, state, Sampling(), people, some).values)
        for kind in ("sampled", "full"):
            means = {n: round(float(np.mean([f[kind][n] for f in found])), 4) for n in ("hr@10", "ndcg@10")}
            out[f"{whom} {kind}"] = means
        out[f"{whom} seeds"] = [f["sampled"]["hr@10"] for f in found]
    return out


def seeds(epsilon: float | None) -> tuple[int, ...]:
    return SEEDS if epsilon is not None else SEEDS[:1]


def row(name: str, epsilon: float | None, found: dict[str, Any]) -> dict[str, Any]:
    cells = [f"{found[w]['hr@10']:.3f} / {found[w]['ndcg@10']:.3f}" for w in ("seen sampled", "new sampled")]
    spread = ", ".join(f"{value:.3f}" for value in found["seen seeds"])
    shown = "no noise" if epsilon is None else f"epsilon {epsilon:g}"
    print(f"| {name} | {shown} | {' | '.join(cells)} | {spread} |", flush=True)
    return {"method": name, "epsilon": epsilon} | found


def compared(task: Task, epsilon: float | None) -> list[dict[str, Any]]:
    """Rows of private popularity and of fedveil; recency is of the serving alone, so it is trained once."""
    rows = [
        row("private popularity", epsilon, judged(task, [popular(task, "final", epsilon, s) for s in seeds(epsilon)]))
    ]
    for name, route in ROUTES.items():
        trained = [veil(task, "final", epsilon, seed, route) for seed in seeds(epsilon)]
        for words, settings in RECENCY.items():
            served = {"noise": noise_of(epsilon, task), "people": members(task)} | route | settings
            now = [(build("fedveil", model, served), model, state) for _, model, state in trained]
            rows.append(row(f"{name}, {words}", epsilon, judged(task, now)))
    return rows


def ml_100k() -> dict[str, Any]:
    task, rows = make_task("ml-100k"), []
    for epsilon in EPSILONS:
        if epsilon is not None:
            print(
                f"epsilon {epsilon:g}: " + advice(predictor(noise_of(epsilon, task), task.facts.items, members(task)))
            )
        rows += compared(task, epsilon)
    return {"data": "ml-100k", "people": members(task), "delta": 1 / task.people, "rows": rows}


def fedavg() -> dict[str, Any]:
    task, rows, chosen, tried = make_task("ml-100k"), [], START, {}
    plain = START | {"rounds": 60, "k": 32, "lr": 10.0, "server": "adagrad", "server_lr": 0.3}  # tacit's own defaults
    for epsilon in EPSILONS:
        if epsilon is not None:
            chosen, tried[f"{epsilon:g}"] = search(task, epsilon, chosen)
        settings = plain if epsilon is None else chosen
        found = judged(task, [averaged(task, "final", epsilon, seed, settings) for seed in seeds(epsilon)])
        rows.append(row("DP-FedAvg", epsilon, found) | {"settings": settings})
    return {"data": "ml-100k", "start": START, "grid": GRID, "rows": rows, "tried": tried}


def synthetic() -> dict[str, Any]:
    task = make_task(WORLD)
    return {"data": WORLD, "people": members(task), "delta": 1 / task.people, "rows": compared(task, 1.0)}


PARTS = {"ml-100k": ml_100k, "fedavg": fedavg, "synthetic": synthetic}


def main(names: list[str]) -> None:
    torch.set_num_threads(1)
    print("| method | noise | seen: HR / NDCG@10 | new: HR / NDCG@10 | seen HR by noise seed |\n|---|---|---|---|---|")
    for name in names or PARTS:
        began = time.perf_counter()
        found = PARTS[name]() | {"seconds": round(time.perf_counter() - began)}
        made = json.loads(OUT.read_text()) if OUT.exists() else {}
        made |= {"command": "python benchmarks/privacy.py", "date": str(datetime.date.today())}
        made["parts"] = made.get("parts", {}) | {name: found}
        OUT.write_text(json.dumps(made, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
