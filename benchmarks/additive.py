"""Does additive personalisation (item = common + own) pay under the clean protocol? Writes docs/evidence/additive.json.

python benchmarks/additive.py [--quick] [--amazon FILE] [--out FILE]      --quick: a smoke test, writes only to --out

FedRAP common + own against common alone, each tuned; then private additions on top of FedALS's shared factors. Every
choice is made on validation; each finalist's test is read once. What it found is in docs/additive.md.
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
    asked = {n: str(v).lower() for n, v in trial.items() if n not in unread} | {"parts": parts}
    made = plan(Settings(data=name, method="fedrap", new_people=0.0, set=asked), task.facts)
    model = made.model
    if trial.get("own_zero") and parts == "both":
        model = replace(model, init=lambda g: (p := made.model.init(g)) | {"own": torch.zeros_like(p["own"])})
    return made.method, model, made.sampling


def search(task, built, state, rounds, patience):
    """(best validation NDCG@10, after which round), the state's own included."""
    method, model, sampling = built
    federation = task.federation("search", method, sampling, None)
    first = state.round if state else 0
    best = (task.validation(Served(method, model, state, sampling)).exact()["ndcg@10"], first) if state else (0.0, 1)
    try:
        for done in run(method, model, federation, rounds=first + rounds, state=state):
            best = max(
                best, (task.validation(Served(method, model, done.state, sampling)).exact()["ndcg@10"], done.number)
            )
            if done.number - best[1] >= patience:
                break
    except FedtasteError:  # diverged: what came before counts
        pass
    return best


def warmed(built, state):
    """Somebody's common model as the start of `built`: own rows (where it has any) are zero."""
    method, model, _ = built
    start = begin(method, model, type("People", (), {"people": state.private.people})())
    start.private.stacked |= {n: v.clone() for n, v in state.private.stacked.items() if n != "scale"}
    return State({n: v.clone() for n, v in state.shared.items()}, {}, start.private, state.round)


def judged(task, built, state) -> Pair:
    method, model, sampling = built
    raw = task.evaluate(Served(method, model, state, sampling), task.evaluated, None).kinds
    return {"ndcg": np.array(raw["sampled"]["ndcg@10"]), "hr_full": np.array(raw["full"]["hr@10"])}


def study_fedrap(data, name, draws, rounds, seeds):
    task = make_task(Settings(data=name, method="fedrap", new_people=0.0), data)
    chance = random.Random(1)
    trials = [RELEASED] + [{n: chance.choice(v) for n, v in SPACE.items()} for _ in range(draws)]
    found, tests, tuned = {}, {}, {}
    for parts in ("common", "both", "own"):
        mine = trials if parts != "own" else trials[: 1 + draws // 3]
        scores = [search(task, fedrap(name, task, parts, t), None, rounds, 6) for t in mine]
        for label, at in (("released", 0), ("tuned", max(range(len(mine)), key=lambda i: scores[i]))):
            built = fedrap(name, task, parts, mine[at])
            states = [train(task, built, "final", scores[at][1], s) for s in range(seeds)]
            tests[f"{label} {parts}"] = average([judged(task, built, s) for s in states])
            tuned[parts] = (built, scores[at][1], states)
            found[f"{label} {parts}"] = {
                "trials": len(mine), "settings": mine[at], "rounds": scores[at][1], "valid_ndcg": scores[at][0],
            }  # fmt: skip
    base, done, states = tuned["common"]  # own rows added to the tuned common model, against going on without them
    for parts in ("common", "both"):
        options = []
        for table_lr in (1.0, 10.0, 100.0):
            trial = {"table_lr": table_lr, "lr": 0.1, "passes": 3, "lam": 0.0, "mu": 0.0, "released": False}
            built = fedrap(name, task, parts, trial | {"own_zero": True})
            start = warmed(built, train(task, base, "search", done, 0))
            options.append((search(task, built, start, 10, 5), trial, built))
        (score, last), trial, built = max(options, key=lambda o: o[0])
        found[f"warm {parts}"] = {"trials": 3, "settings": trial, "rounds": last - done, "valid_ndcg": score}
        ends = [train(task, built, "final", last, s, warmed(built, state)) for s, state in enumerate(states)]
        tests[f"warm {parts}"] = average([judged(task, built, end) for end in ends])
    for label in ("released", "tuned", "warm"):
        found[f"{label} both - common"] = difference(tests[f"{label} both"], tests[f"{label} common"], data)
    for label, pair in tests.items():
        found[label]["test"] = {n: round(float(v.mean()), 4) for n, v in pair.items()}
    return found


def name_of(name):
    return name if name in SHAPES else "amazon-video"


def main() -> None:
    ask = argparse.ArgumentParser()
    ask.add_argument("--quick", action="store_true")
    ask.add_argument("--amazon", default=AMAZON)
    ask.add_argument("--out")
    asked, began = ask.parse_args(), time.perf_counter()
    set_threads(1)
    out = asked.out or (None if asked.quick else ROOT / "docs" / "evidence" / "additive.json")
    draws, rounds = (3, 8) if asked.quick else (15, 40)
    seeds = {"ml-100k": 1, "amazon-video": 1} if asked.quick else {"ml-100k": 3, "amazon-video": 2}
    command = "python benchmarks/additive.py" + " --quick" * asked.quick
    page = {"date": datetime.date.today().isoformat(), "command": command}
    page |= {"seeds": seeds, "fedrap": {"space": SPACE, "draws": draws, "rounds": rounds, "patience": 6}, "data": {}}
    for name in ("ml-100k", asked.amazon):
        if name not in SHAPES and not Path(name).exists():
            print("SKIPPED: Amazon Video is not here; say where with --amazon.", flush=True)
            continue
        data = fedtaste.load(name)
        found = {"people": len(data.people), "items": len(data.items), "interactions": len(data)}
        found["fedrap"] = study_fedrap(data, name, draws, rounds, seeds[name_of(name)])
        print(name_of(name), "FedRAP", round(time.perf_counter() - began), "s", flush=True)
        found["factors"] = study_factors(data, name, seeds[name_of(name)])
        print(name_of(name), "factors", round(time.perf_counter() - began), "s", flush=True)
        page["data"][name_of(name)] = found
        page["minutes"] = round((time.perf_counter() - began) / 60, 1)
        if out:
            Path(out).write_text(json.dumps(page, indent=1) + "\n")


if __name__ == "__main__":
    main()
