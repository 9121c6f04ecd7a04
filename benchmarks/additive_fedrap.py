"""FedRAP with its own tables and without them, for benchmarks/additive.py.

The same draws of settings are tried for `common` and for `both`; then `both` is tried again with the best settings of
`common` and several rates of the own part. Validation chooses; the test of each choice is read once.
"""

from __future__ import annotations

import random
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
from additive_factors import Pair, average, difference, train

import fedtaste
from fedtaste.engine.run import run
from fedtaste.errors import FedtasteError
from fedtaste.experiment.plan import plan
from fedtaste.experiment.resources import set_threads
from fedtaste.experiment.settings import Settings
from fedtaste.experiment.train import make_task
from fedtaste.methods.fedrap import RELEASED
from fedtaste.tasks.base import Served

EVERY, PATIENCE, SEEDS = 2, 10, 2
RATES = (0.01, 0.03, 0.3)
SPACE = {
    "lr": [5.0, 10.0, 20.0], "table_lr": [5.0, 10.0, 20.0], "passes": [1, 3], "server_lr": [0.1, 0.3],
    "start": [0.01, 0.02, 0.05], "weights": ["equal", "examples"], "mu": [0.1, 0.3, 1.0], "lam": [0.0, 0.0, 0.1],
    "own_rate": [0.03, 0.1, 0.3],
}  # fmt: skip
FIXED = {"released": False, "schedule": "fixed", "penalty": "l2", "own_start": 0.0, "server": "adagrad", "batch": 0}
FIRST = {  # FedMF's settings with an own part
    "lr": 10.0, "table_lr": 10.0, "passes": 1, "server_lr": 0.3, "start": 0.02, "weights": "examples", "mu": 1.0,
    "lam": 0.0, "own_rate": 0.1,
}  # fmt: skip
PUBLISHED = {name: value for name, value in RELEASED.items() if name not in ("rounds", "patience")}
LABELS = {"released": "as released", "default": "one setting for all data", "tuned": "tuned on the data"}
Trial = dict[str, object]
Tried = tuple[Trial, float, int]  # settings, best validation NDCG@10, its round


def draw(draws: int) -> list[Trial]:
    chance = random.Random(1)
    return [FIRST] + [{n: chance.choice(v) for n, v in SPACE.items()} for _ in range(draws)]


def build(name: str, task, parts: str, trial: Trial):
    """(method, model, sampling); settings that change nothing in this trial are left out."""
    values = {**(FIXED if trial is not PUBLISHED else {}), **trial, "parts": parts}
    unread = {"common": {"lam", "own_start", "own_rate"}}
    dropped = set(unread.get(parts, ()))
    dropped |= set() if values["mu"] else {"penalty"}
    dropped |= set() if values["mu"] or values["lam"] and parts == "both" else {"schedule"}
    values = {n: str(v).lower() for n, v in values.items() if n not in dropped}
    run_plan = plan(Settings(data=name, method="fedrap", new_people=0.0, set=values), task.facts)
    return run_plan.method, run_plan.model, run_plan.sampling


def search(task, built, rounds: int) -> tuple[float, int]:
    """(best validation NDCG@10, its round)."""
    method, model, sampling = built
    federation, best = task.federation("search", method, sampling, None), (0.0, 1)
    try:
        for result in run(method, model, federation, rounds=rounds):
            if result.number % EVERY:
                continue
            validation = task.validation(Served(method, model, result.state, sampling))
            best = max(best, (validation.exact()["ndcg@10"], result.number))
            if result.number - best[1] >= PATIENCE:
                break
    except FedtasteError:  # the training diverged: the rounds before count
        pass
    return best


def open_task(name: str):
    data = fedtaste.load(name)
    return data, make_task(Settings(data=name, method="fedrap", new_people=0.0), data)


def search_all(name: str, parts: str, trials: list[Trial], rounds: int) -> list[Tried]:
    """Trials on the validation of one data set."""
    set_threads(1)
    _, task = open_task(name)
    tried = []
    for trial in trials:
        tried.append((trial, *search(task, build(name, task, parts, trial), rounds)))
        print(name[-24:], parts, *tried[-1], flush=True)
    return tried


def choose(tried: list[dict[str, list[Tried]]], draws: int) -> int:
    """The draw of `both` with the highest mean, over data sets, of validation NDCG@10 relative to the best draw."""
    scores = np.array([[score for _, score, _ in one["both"][: draws + 1]] for one in tried])
    return int((scores / scores.max(1, keepdims=True)).mean(0).argmax())


def evaluate(task, built, state) -> Pair:
    method, model, sampling = built
    raw = task.evaluate(Served(method, model, state, sampling), task.evaluated, None).kinds
    return {
        "ndcg": np.array(raw["sampled"]["ndcg@10"]), "hr": np.array(raw["sampled"]["hr@10"]),
        "hr_full": np.array(raw["full"]["hr@10"]),
    }  # fmt: skip


def test_all(name: str, tried, chosen: int, rounds: int) -> dict:
    """The test of one data set, each choice trained again on train + validation from SEEDS starts."""
    set_threads(1)
    data, task = open_task(name)
    results, tests = {}, {}
    for label in LABELS:
        for parts in ("common", "both"):
            searched = tried[parts]
            if label == "tuned":
                trial, score, last = max(searched, key=lambda t: t[1])
            elif label == "default":
                trial, score, last = searched[chosen]
            else:
                trial = PUBLISHED
                score, last = search(task, build(name, task, parts, trial), rounds)
            built = build(name, task, parts, trial)
            tests[label, parts] = average(
                [evaluate(task, built, train(task, built, "final", last, seed)) for seed in range(SEEDS)]
            )
            results[f"{label} {parts}"] = {
                "trials": len(searched) if label == "tuned" else 1, "settings": trial, "rounds": last,
                "valid_ndcg": score,
                "test": {n: round(float(v.mean()), 4) for n, v in tests[label, parts].items()},
            }  # fmt: skip
            print(name[-24:], label, parts, results[f"{label} {parts}"]["test"], flush=True)
        results[f"{label} both - common"] = difference(tests[label, "both"], tests[label, "common"], data)
    return results


def study_fedrap(names: list[str], draws: int, rounds: int) -> dict[str, dict]:
    """The study by data set; the data sets run side by side, and so do `common` and `both`."""
    jobs = [(name, parts) for name in names for parts in ("common", "both")]
    with ProcessPoolExecutor(len(jobs), get_context("spawn")) as pool:
        futures = {job: pool.submit(search_all, *job, draw(draws), rounds) for job in jobs}
        tried = {job: future.result() for job, future in futures.items()}
        best = {name: max(tried[name, "common"], key=lambda t: t[1])[0] for name in names}
        more = {
            name: pool.submit(search_all, name, "both", [best[name] | {"own_rate": r, "lam": 0.0} for r in RATES], rounds)
            for name in names
        }
        by_name = [{"common": tried[n, "common"], "both": tried[n, "both"] + more[n].result()} for n in names]
        chosen = choose(by_name, draws)
        tests = [pool.submit(test_all, name, one, chosen, rounds) for name, one in zip(names, by_name)]
        results = [future.result() for future in tests]
    trials = [{p: [(n, round(s, 4), r) for n, (_, s, r) in enumerate(t)] for p, t in one.items()} for one in by_name]
    settings = {"draws": draw(draws), "chosen for all": chosen}
    return {name: settings | {"validation": t, "results": r} for name, t, r in zip(names, trials, results)}
