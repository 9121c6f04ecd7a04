"""Measure additive personalisation (item = common + own) under the clean protocol; write docs/evidence/additive.json.

python benchmarks/additive.py [--quick] [--amazon FILE] [--out FILE]      --quick: a smoke test, writes only to --out

The study compares FedRAP with common + own tables and with the common table alone, each tuned, and then private
additions to FedALS's shared factors. Every choice is made on validation; the test of each choice is read once.
docs/additive.md has the results.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import random
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from additive_factors import SHAPES, Pair, average, difference, study_factors, train

import fedtaste
from fedtaste.engine.run import State, begin, run
from fedtaste.errors import FedtasteError
from fedtaste.experiment.plan import plan
from fedtaste.experiment.resources import set_threads
from fedtaste.experiment.settings import Settings
from fedtaste.experiment.train import make_task
from fedtaste.tasks.base import Served

ROOT = Path(__file__).parents[1]
AMAZON = os.environ.get("FEDTASTE_AMAZON", str(ROOT.parent / "shared" / "data" / "amazon-video.csv.gz"))
RELEASED = {"table_lr": 200, "lr": 0.5, "passes": 10, "lam": 0.1, "mu": 0.1, "weight_decay": 1e-4, "released": True}
SPACE = {
    "table_lr": [100, 500, 2500], "lr": [0.02, 0.1, 0.5, 2.0], "passes": [1, 3, 10], "lam": [0.0, 0.01, 0.1],
    "mu": [0.0, 0.01, 0.1], "weight_decay": [1e-5, 1e-4, 3e-4], "released": [True, False], "own_zero": [True, False],
}  # fmt: skip


def fedrap(name, task, parts, trial):
    """(method, model, sampling) of one trial; `own_zero` starts own rows at zero and not at N(0, 1)."""
    unread = {"own_zero"} | ({"lam"} if parts != "both" else set()) | ({"mu"} if parts == "own" else set())
    unread |= set() if trial["released"] else {"weight_decay"}
    values = {n: str(v).lower() for n, v in trial.items() if n not in unread} | {"parts": parts}
    run_plan = plan(Settings(data=name, method="fedrap", new_people=0.0, set=values), task.facts)
    model = run_plan.model
    if trial.get("own_zero") and parts == "both":
        model = replace(model, init=lambda g: (p := run_plan.model.init(g)) | {"own": torch.zeros_like(p["own"])})
    return run_plan.method, model, run_plan.sampling


def search(task, built, state, rounds, patience):
    """(best validation NDCG@10, its round); a given state counts as a round."""
    method, model, sampling = built
    federation = task.federation("search", method, sampling, None)
    first = state.round if state else 0
    best = (task.validation(Served(method, model, state, sampling)).exact()["ndcg@10"], first) if state else (0.0, 1)
    try:
        for result in run(method, model, federation, rounds=first + rounds, state=state):
            validation = task.validation(Served(method, model, result.state, sampling))
            best = max(best, (validation.exact()["ndcg@10"], result.number))
            if result.number - best[1] >= patience:
                break
    except FedtasteError:  # the training diverged: the rounds before count
        pass
    return best


def warm_start(built, state):
    """A trained common model as the start of `built`; its own rows, if it has any, are zero."""
    method, model, _ = built
    start = begin(method, model, type("People", (), {"people": state.private.people})())
    start.private.stacked |= {n: v.clone() for n, v in state.private.stacked.items() if n != "scale"}
    return State({n: v.clone() for n, v in state.shared.items()}, {}, start.private, state.round)


def evaluate(task, built, state) -> Pair:
    method, model, sampling = built
    raw = task.evaluate(Served(method, model, state, sampling), task.evaluated, None).kinds
    return {"ndcg": np.array(raw["sampled"]["ndcg@10"]), "hr_full": np.array(raw["full"]["hr@10"])}


def study_fedrap(data, name, draws, rounds, seeds):
    task = make_task(Settings(data=name, method="fedrap", new_people=0.0), data)
    chance = random.Random(1)
    trials = [RELEASED] + [{n: chance.choice(v) for n, v in SPACE.items()} for _ in range(draws)]
    results, tests, tuned = {}, {}, {}
    for parts in ("common", "both", "own"):
        tried = trials if parts != "own" else trials[: 1 + draws // 3]
        scores = [search(task, fedrap(name, task, parts, t), None, rounds, 6) for t in tried]
        for label, at in (("released", 0), ("tuned", max(range(len(tried)), key=lambda i: scores[i]))):
            built = fedrap(name, task, parts, tried[at])
            states = [train(task, built, "final", scores[at][1], s) for s in range(seeds)]
            tests[f"{label} {parts}"] = average([evaluate(task, built, s) for s in states])
            tuned[parts] = (built, scores[at][1], states)
            results[f"{label} {parts}"] = {
                "trials": len(tried), "settings": tried[at], "rounds": scores[at][1], "valid_ndcg": scores[at][0],
            }  # fmt: skip
    base, base_rounds, states = tuned[
        "common"
    ]  # own rows added to the tuned common model, compared with further training without them
    for parts in ("common", "both"):
        options = []
        for table_lr in (1.0, 10.0, 100.0):
            trial = {"table_lr": table_lr, "lr": 0.1, "passes": 3, "lam": 0.0, "mu": 0.0, "released": False}
            built = fedrap(name, task, parts, trial | {"own_zero": True})
            start = warm_start(built, train(task, base, "search", base_rounds, 0))
            options.append((search(task, built, start, 10, 5), trial, built))
        (score, last), trial, built = max(options, key=lambda o: o[0])
        results[f"warm {parts}"] = {"trials": 3, "settings": trial, "rounds": last - base_rounds, "valid_ndcg": score}
        ends = [train(task, built, "final", last, s, warm_start(built, state)) for s, state in enumerate(states)]
        tests[f"warm {parts}"] = average([evaluate(task, built, end) for end in ends])
    for label in ("released", "tuned", "warm"):
        results[f"{label} both - common"] = difference(tests[f"{label} both"], tests[f"{label} common"], data)
    for label, pair in tests.items():
        results[label]["test"] = {n: round(float(v.mean()), 4) for n, v in pair.items()}
    return results


def name_of(name):
    return name if name in SHAPES else "amazon-video"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--amazon", default=AMAZON)
    parser.add_argument("--out")
    arguments, start = parser.parse_args(), time.perf_counter()
    set_threads(1)
    out = arguments.out or (None if arguments.quick else ROOT / "docs" / "evidence" / "additive.json")
    draws, rounds = (3, 8) if arguments.quick else (15, 40)
    seeds = {"ml-100k": 1, "amazon-video": 1} if arguments.quick else {"ml-100k": 3, "amazon-video": 2}
    command = "python benchmarks/additive.py" + " --quick" * arguments.quick
    page = {"date": datetime.date.today().isoformat(), "command": command}
    page |= {"seeds": seeds, "fedrap": {"space": SPACE, "draws": draws, "rounds": rounds, "patience": 6}, "data": {}}
    for name in ("ml-100k", arguments.amazon):
        if name not in SHAPES and not Path(name).exists():
            print("SKIPPED: Amazon Video was not found; name its file with --amazon.", flush=True)
            continue
        data = fedtaste.load(name)
        results = {"people": len(data.people), "items": len(data.items), "interactions": len(data)}
        results["fedrap"] = study_fedrap(data, name, draws, rounds, seeds[name_of(name)])
        print(name_of(name), "FedRAP", round(time.perf_counter() - start), "s", flush=True)
        results["factors"] = study_factors(data, name, seeds[name_of(name)])
        print(name_of(name), "factors", round(time.perf_counter() - start), "s", flush=True)
        page["data"][name_of(name)] = results
        page["minutes"] = round((time.perf_counter() - start) / 60, 1)
        if out:
            Path(out).write_text(json.dumps(page, indent=1) + "\n")


if __name__ == "__main__":
    main()
