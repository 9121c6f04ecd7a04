"""Defaults that travel: try settings on several data sets, and compare a method's rule with the best on validation.

    python benchmarks/defaults.py [--methods fedals ...] [--worlds ml-100k ...] [--trials runs/defaults.jsonl]
                                  [--out docs/evidence/defaults.json]

A trial trains on the training part of a data set and reads validation (NDCG@10 and HR@10 among 99 others), seed 0. Each
one is a line of the file --trials; a script that was stopped continues there. The regret of a rule is the best NDCG@10
of the grid minus its own. At the end, for the rules of FedALS and FedEigen as they are in the code, test is read
once.
Data sets that are not here are left out. docs/defaults.md says what was looked at and what was chosen.
"""

from __future__ import annotations

import argparse
import datetime
import json
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from new_items import without_items

import fedtaste
from fedtaste.data.interactions import Interactions
from fedtaste.engine.run import run
from fedtaste.experiment.folder import RunFolder
from fedtaste.experiment.plan import Plan, plan
from fedtaste.experiment.settings import Settings
from fedtaste.experiment.train import execute, make_task, prepare
from fedtaste.result_part import JsonObject
from fedtaste.tasks.base import Served, Task

ROOT = Path(__file__).parents[1]
AMAZON, TWEETS = "../shared/data/amazon-video.csv.gz", "../shared/data/movietweetings.csv.gz"


class World(NamedTuple):
    """A data set, or a variant of one."""

    source: str
    timed: bool = True  # otherwise its times are dropped, and what is held out is a random choice
    half: bool = False  # only half of the items, a seeded choice


WORLDS = {
    "ml-100k": World("ml-100k"),
    "ml-100k, no time": World("ml-100k", timed=False),
    "ml-100k, half the items": World("ml-100k", half=True),
    "amazon": World(AMAZON),
    "amazon, no time": World(AMAZON, timed=False),
    "movietweetings": World(TWEETS),
    "movietweetings, no time": World(TWEETS, timed=False),
    "shop": World("synthetic:2905x800x60000"),
    "films": World("synthetic:3000x3700x300000"),
    "artists": World("synthetic:2000x17000x93000", timed=False),
    "short histories": World("synthetic:3000x30000x30000"),
}
TESTED = ("ml-100k", "amazon", "movietweetings", "short histories")  # variants of the same data are not read again
CHECKED = "short histories"  # is not tried, only tested: 30,000 items take minutes for every trial

Values = Mapping[str, object]
SMALL = 2_500  # items; grids have other points below, near those of the rules
FEDALS: list[Values] = [
    *({"k": 32, "alpha0": a, "lam": lam} for a, lam in ((0.3, 0.01), (0.1, 0.01), (0.1, 0.03), (0.03, 0.03))),
    {"k": 64, "alpha0": 0.1, "lam": 0.01},
]
FEDALS_SMALL: list[Values] = [
    {"k": 32, "alpha0": a, "lam": lam} for a, lam in ((0.1, 0.02), (0.2, 0.015), (0.2, 0.02), (0.2, 0.03))
]
FEDALS_LARGE: list[Values] = [{"k": k, "alpha0": 0.05, "lam": 0.02} for k in (32, 64)]
FEDEIGEN: list[Values] = [
    {"k": k, "extra": extra, "bits": bits, "alpha0": 0.2, "lam": 0.02}
    for k, extra, bits in ((32, 16, 4), (64, 16, 4), (64, 32, 4), (128, 16, 4), (64, 16, 8), (64, 16, 32))
]
FEDEIGEN_SMALL: list[Values] = [
    {"k": 64, "extra": 16, "bits": 4, "alpha0": a, "lam": lam} for a, lam in ((0.3, 0.01), (0.1, 0.01), (0.05, 0.03))
]
FEDEIGEN_LARGE: list[Values] = [
    {"k": k, "extra": extra, "bits": 4, "alpha0": 0.05, "lam": lam}
    for k, extra, lam in (
        (64, 32, 0.05), (64, 32, 0.1), (64, 32, 0.2), (64, 32, 0.4), (128, 16, 0.01), (128, 16, 0.2), (32, 16, 0.2),
    )
]  # fmt: skip
NEAR = {"fedals": (FEDALS_SMALL, FEDALS_LARGE), "fedeigen": (FEDEIGEN_SMALL, FEDEIGEN_LARGE)}
GRIDS: dict[str, list[Values]] = {
    "fedals": FEDALS,
    "fedeigen": FEDEIGEN,
    "fedtrail": [{"k": 32, "alpha0": 0.3, "lam": 0.01}, {"k": 64, "alpha0": 0.05, "lam": 0.02}],
    "fedrecon": [{}, {"solver": "exact", "loss": "squared"}],
    "fedmf": [{"server_lr": 0.3}, {"server_lr": 0.1}],
}
FEW = ("amazon", "shop")  # worlds of the other methods, whose trials take minutes
READ = {
    "fedals": (1, 2, 3, 4, 6, 8, 10),
    "fedeigen": (2, 3, 4, 5),
}  # rounds after which validation is read; others: every tenth, and the last


@cache
def load(name: str) -> Interactions | None:
    """The data of a world; None where the file is not on this machine."""
    world = WORLDS[name]
    path = str(ROOT / world.source) if world.source.endswith(".gz") else world.source
    if path.endswith(".gz") and not Path(path).exists():
        return None
    data = fedtaste.load(path)
    assert isinstance(data, Interactions)
    if world.half:
        data = without_items(data, np.flatnonzero(np.random.default_rng(0).random(len(data.items)) >= 0.5))
    return data if world.timed else replace(data, time=None, ties=None)


@cache
def task_of(name: str) -> Task:
    """The ranking task of a world, split as `fedtaste run` splits it."""
    data = load(name)
    assert data is not None
    return make_task(Settings(data=data.name), data)


def settings_of(name: str, method: str, values: Values) -> Settings:
    """Settings under a name of data that has no preset."""
    texts = {key: str(value) for key, value in values.items()}
    return Settings(data=f"{name}.csv", method=method, rounds=max(READ.get(method, (0,))) or None, set=texts, threads=1)


def identity(name: str, method: str, resolved: Values) -> str:
    """The name of a trial: its world, its method and the values of the settings that the grid varies."""
    varied = sorted({key for values in GRIDS[method] for key in values})
    return json.dumps([name, method, {key: resolved[key] for key in varied if key in resolved}])


def trial(name: str, method: str, current: Plan) -> JsonObject:
    """Train on the training part, and read validation as a search does."""
    task, began, curve = task_of(name), time.process_time(), []
    members = task.federation("search", current.method, current.sampling, None)
    for done in run(current.method, current.model, members, rounds=current.rounds, seed=current.seed):
        if done.number not in READ.get(method, (*range(10, current.rounds, 10), current.rounds)):
            continue
        metrics = task.validation(Served(current.method, current.model, done.state, current.sampling)).exact()
        curve.append([done.number, round(metrics["ndcg@10"], 4), round(metrics["hr@10"], 4)])
        if current.patience and done.number - max(curve, key=lambda point: point[1])[0] >= current.patience:
            break
    return {"curve": curve, "cpu_seconds": round(time.process_time() - began, 1)}


def best(result: JsonObject, rounds: int) -> tuple[float, float, int]:
    """(NDCG@10, HR@10, round) of the best of the first `rounds` rounds."""
    number, ndcg, hr = max((point for point in result["curve"] if point[0] <= rounds), key=lambda point: point[1])
    return ndcg, hr, number


def remember(trials: dict[str, JsonObject], file: Path, key: str, measure: Callable[[], JsonObject]) -> JsonObject:
    """The result of a trial, from the file where it is known; otherwise it is measured and added to the file."""
    if key not in trials:
        trials[key] = measure()
        with file.open("a") as lines:
            lines.write(json.dumps({"trial": json.loads(key), **trials[key]}) + "\n")
    return trials[key]


def study(name: str, method: str, trials: dict[str, JsonObject], file: Path) -> JsonObject:
    """All trials of a method on a world; returns the figures of the rule and of the best of the grid."""
    facts, rows = task_of(name).facts, []
    near = NEAR.get(method, ([], []))[facts.items >= SMALL]
    for values in [{}, *GRIDS[method], *near]:
        current = plan(settings_of(name, method, values), facts)
        key = identity(name, method, current.settings)
        remember(trials, file, key, lambda current=current: trial(name, method, current))
        default = plan(settings_of(name, method, {}).model_copy(update={"rounds": None}), facts).rounds
        ndcg, hr, number = best(trials[key], default)
        longer = best(trials[key], 10**9)[0]
        rows.append({"set": json.loads(key)[2], "ndcg@10": ndcg, "hr@10": hr, "round": number, "more_rounds": longer})
    chosen, top = rows[0], max(rows, key=lambda row: row["ndcg@10"])
    sizes = {"people": facts.people, "items": facts.items, "interactions": task_of(name).interactions}
    regret = round(top["ndcg@10"] - chosen["ndcg@10"], 4)
    return {"data": name, "method": method, **sizes, "rule": chosen, "best": top, "regret": regret, "trials": rows[1:]}


def read_test(name: str, method: str) -> JsonObject:
    """One run with defaults, as `fedtaste run` does it: the figures of people who took part, on test."""
    data = load(name)
    assert data is not None
    settings = Settings(data=f"{name}.csv", method=method, threads=1)
    with tempfile.TemporaryDirectory() as path:
        folder = RunFolder.create(Path(path) / "run", settings.model_dump(), data, fedtaste.__version__)
        result = execute(prepare(settings, data), folder).dump()
    return {"data": name, "method": method, "rounds": result["rounds"]} | {
        kind: {metric: result["seen"][kind][metric] for metric in ("hr@10", "ndcg@10")} for kind in ("sampled", "full")
    }


def print_study(found: JsonObject) -> None:
    """The trials of a method on a world as lines."""
    print(f"\n{found['method']} on {found['data']}: {found['people']:,} people, {found['items']:,} items")
    for row in found["trials"]:
        mark = "  <- rule" if row["set"] == found["rule"]["set"] else ""
        values = ", ".join(f"{key}={value}" for key, value in row["set"].items())
        print(f"  {row['ndcg@10']:.4f} {row['hr@10']:.4f}  round {row['round']:3}  {values}{mark}")
    print(f"  rule {found['rule']['ndcg@10']:.4f}, regret {found['regret']:.4f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--methods", nargs="+", default=list(GRIDS), choices=list(GRIDS))
    parser.add_argument("--worlds", nargs="+", default=list(WORLDS), choices=list(WORLDS))
    parser.add_argument("--only", choices=["validation", "test"], help="do one part only")
    parser.add_argument("--trials", type=Path, default=ROOT / "runs" / "defaults.jsonl")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "evidence" / "defaults.json")
    options = parser.parse_args()
    options.trials.parent.mkdir(parents=True, exist_ok=True)
    lines = options.trials.read_text().splitlines() if options.trials.exists() else []
    trials = {json.dumps(line.pop("trial")): line for line in map(json.loads, lines)}
    worlds = [name for name in options.worlds if load(name) is not None]
    studies, tests = [], []
    for name in (world for world in worlds if options.only != "test" and world != CHECKED):
        for method in (m for m in options.methods if m in NEAR or name in FEW):
            studies.append(study(name, method, trials, options.trials))
            print_study(studies[-1])
    for name in TESTED if options.only != "validation" else ():
        for method in ("popularity", *(m for m in NEAR if m in options.methods)) if name in worlds else ():
            values = plan(Settings(method=method, data="mine.csv"), task_of(name).facts).settings
            key = json.dumps([name, method, "test", values])
            tests.append(remember(trials, options.trials, key, lambda n=name, m=method: read_test(n, m)))
            print("test", json.dumps(tests[-1]), flush=True)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout
    evidence = {
        "command": shlex.join(["python", "benchmarks/defaults.py", *sys.argv[1:]]), "commit": commit.strip(),
        "date": datetime.date.today().isoformat(), "validation": studies, "test": tests,
    }  # fmt: skip
    options.out.write_text(json.dumps(evidence, indent=1) + "\n")


if __name__ == "__main__":
    main()
