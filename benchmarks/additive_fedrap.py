"""FedRAP with its own tables and without them, for benchmarks/additive.py.

Trials on validation: the default settings without an own part (`common`), and with an own part (`both`) of several
strengths. Two choices follow: the strength that is best over all data sets (default), and the best one of each data set
(tuned). The test of each choice is read once. The released settings are a study of their own.
"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from functools import cache
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

EVERY, PATIENCE, SEEDS = 2, 20, 1
BASE = {
    "lr": 10.0, "table_lr": 10.0, "passes": 1, "server_lr": 0.3, "start": 0.02, "weights": "examples", "mu": 1.0,
    "lam": 0.0, "own_rate": 0.03,
}  # fmt: skip
STRENGTHS = [{"own_rate": 0.01}, {"own_rate": 0.03}]
FIXED = {"released": False, "schedule": "fixed", "penalty": "l2", "own_start": 0.0, "server": "adagrad", "batch": 0}
PUBLISHED = {name: value for name, value in RELEASED.items() if name not in ("rounds", "patience")}
LABELS = {"released": "as released", "default": "one setting for all data", "tuned": "own part tuned on the data"}
Trial = dict[str, object]
Tried = tuple[Trial, float, int]  # settings, best validation NDCG@10, its round


def trials_of(parts: str) -> list[Trial]:
    return [BASE | strength for strength in (STRENGTHS if parts == "both" else [{}])]


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


@cache
def open_task(name: str):
    set_threads(1)
    data = fedtaste.load(name)
    return data, make_task(Settings(data=name, method="fedrap", new_people=0.0), data)


def try_out(name: str, parts: str, trial: Trial, rounds: int) -> Tried:
    """One trial on the validation of one data set."""
    _, task = open_task(name)
    tried = (trial, *search(task, build(name, task, parts, trial), rounds))
    print(name[-24:], parts, *tried, flush=True)
    return tried


def choose(tried: list[list[Tried]]) -> int:
    """The strength with the highest mean, over data sets, of validation NDCG@10 relative to the best strength."""
    scores = np.array([[score for _, score, _ in one] for one in tried])
    return int((scores / scores.max(1, keepdims=True)).mean(0).argmax())


def evaluate(task, built, state) -> Pair:
    method, model, sampling = built
    raw = task.evaluate(Served(method, model, state, sampling), task.evaluated, None).kinds
    return {
        "ndcg": np.array(raw["sampled"]["ndcg@10"]), "hr": np.array(raw["sampled"]["hr@10"]),
        "hr_full": np.array(raw["full"]["hr@10"]),
    }  # fmt: skip


def test(name: str, parts: str, choice: Tried | None, rounds: int) -> tuple[Tried, Pair]:
    """A choice, or else the released settings, trained again on train + validation: its test, by person."""
    _, task = open_task(name)
    choice = choice or (PUBLISHED, *search(task, build(name, task, parts, PUBLISHED), rounds))
    built = build(name, task, parts, choice[0])
    ends = [train(task, built, "final", choice[2], seed) for seed in range(SEEDS)]
    pair = average([evaluate(task, built, end) for end in ends])
    print(name[-24:], "test", parts, *choice, {n: round(float(v.mean()), 4) for n, v in pair.items()}, flush=True)
    return choice, pair


def summary(name: str, tests: dict[tuple[str, str], tuple[Tried, Pair]], trials: dict[str, int]) -> dict:
    results: dict[str, dict] = {}
    for (label, parts), ((trial, score, last), pair) in tests.items():
        results[f"{label} {parts}"] = {
            "trials": trials[parts] if label == "tuned" else 1, "settings": trial, "rounds": last, "valid_ndcg": score,
            "test": {n: round(float(v.mean()), 4) for n, v in pair.items()},
        }  # fmt: skip
    for label in dict.fromkeys(label for label, _ in tests):
        pairs = [tests[label, parts][1] for parts in ("both", "common")]
        results[f"{label} both - common"] = difference(*pairs, open_task(name)[0])
    return results


def study_fedrap(names: list[str], rounds: int) -> dict[str, dict]:
    """The default settings with and without the own part, by data set; two trials run side by side."""
    jobs = [(name, parts, trial) for name in names for parts in ("common", "both") for trial in trials_of(parts)]
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        done = list(pool.map(try_out, *zip(*jobs), [rounds] * len(jobs)))
        tried = {
            (name, parts): [one for one, job in zip(done, jobs) if job[:2] == (name, parts)]
            for name in names for parts in ("common", "both")
        }  # fmt: skip
        chosen = choose([tried[name, "both"] for name in names])
        choices = {}
        for (name, parts), one in tried.items():
            choices[name, "default", parts] = one[chosen if parts == "both" else 0]
            choices[name, "tuned", parts] = max(one, key=lambda t: t[1])
        different = {str((name, parts, choice)): (name, parts, choice) for (name, _, parts), choice in choices.items()}
        futures = {key: pool.submit(test, *job, rounds) for key, job in different.items()}
        tests = {key: futures[str((key[0], key[2], choice))].result() for key, choice in choices.items()}
    figures = {}
    for name in names:
        by_parts = {parts: tried[name, parts] for parts in ("common", "both")}
        lengths = {parts: len(one) for parts, one in by_parts.items()}
        results = summary(name, {key[1:]: value for key, value in tests.items() if key[0] == name}, lengths)
        validation = {
            parts: [{"settings": t, "ndcg": round(s, 4), "round": r} for t, s, r in one]
            for parts, one in by_parts.items()
        }
        figures[name] = {"chosen strength": STRENGTHS[chosen], "validation": validation, "results": results}
    return figures


def study_released(names: list[str], rounds: int) -> dict[str, dict]:
    """The released settings with and without the own part, by data set."""
    jobs = [(name, parts) for name in names for parts in ("common", "both")]
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        tests = dict(zip(jobs, pool.map(test, *zip(*jobs), [None] * len(jobs), [rounds] * len(jobs))))
    return {
        name: {"results": summary(name, {("released", p): tests[name, p] for p in ("common", "both")}, {})}
        for name in names
    }  # fmt: skip
