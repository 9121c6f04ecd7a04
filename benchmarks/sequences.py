"""Figures of docs/sequences.md: validation of one setting of fedseq, and CPU seconds of a round by backend.

    python benchmarks/sequences.py validation --data ml-100k --set participations=48 --set hidden_dropout=0.3
    python benchmarks/sequences.py validation --data ml-100k --method fedtrail
    python benchmarks/sequences.py validation --method fedveil --wire clip=1 --epsilon 10
    python benchmarks/sequences.py study          all of STUDY, into docs/evidence/sequences.json
    python benchmarks/sequences.py table          test figures, from docs/evidence/fedseq.json of benchmarks/evidence.py
    python benchmarks/sequences.py speed --backends kernel,vmap
    python benchmarks/sequences.py speed --without avx512       the same, compiled without these instructions
    python benchmarks/sequences.py products       matrix products of kernels/products.py and of torch

`validation` trains on the training part and ranks everybody's validation item among 99 and among all items; test data
are not read. `study` does that for every configuration of STUDY; one that was stopped continues. `speed` trains on a
generated world of the size of a film set: 3,706 items, histories of 18 to 1,500.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import resource
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import llvmlite.binding
import numpy as np
import torch
from numpy.typing import NDArray

from fedtaste.data.interactions import Histories
from fedtaste.data.sampling import SERVE
from fedtaste.data.sources import load
from fedtaste.engine.run import run
from fedtaste.evaluation.protocol import RankingMetrics, rank_full, rank_sampled
from fedtaste.experiment.resources import set_threads
from fedtaste.experiment.settings import settings_from
from fedtaste.experiment.train import prepare
from fedtaste.federation import of_histories
from fedtaste.kernels.products import product
from fedtaste.methods import build
from fedtaste.models import factorization
from fedtaste.tasks.base import Served
from fedtaste.tasks.serve import personalise

ROOT = Path(__file__).parents[1]
OUT = ROOT / "docs" / "evidence" / "sequences.json"
TEST = ROOT / "docs" / "evidence" / "fedseq.json"
ITEMS, PEOPLE, REPEATS = 3_706, 640, 3
AMAZON, TWEETINGS = "../shared/data/amazon-video.csv.gz", "../shared/data/movietweetings.csv.gz"
STEPS = "--set server_lr=0.01 --set warmup=10"
STUDY = (  # options of `validation`
    "--data ml-100k --method fedtrail",
    *(f"--data ml-100k --set participations={n}" for n in (1, 2, 4, 8, 16, 32)),
    *(f"--data ml-100k --set network=gru --set participations={n}" for n in (4, 16)),
    *(f"--data ml-100k --set start={start}" for start in ("eigen", "als", "items")),
    "--data ml-100k --set trail=false", "--data ml-100k --set trail=false --set start=eigen",
    "--data ml-100k --set trail=false --set start=random", "--data ml-100k --set trail=false --set start=features",
    *(f"--data ml-100k --set bits=8 --set participations={n}" for n in (4, 16)),
    *(f"--data ml-100k --seed {seed} --method {method}" for seed in (1, 2) for method in ("fedtrail", "fedseq")),
    *(f"--data {data} {words}" for data in (AMAZON, TWEETINGS) for words in (
        "--method fedtrail", *(f"--set participations={n}" for n in (1, 4, 16)),
    )),
    *(f"--set trail=false --wire clip=1 {words}" for words in (
        "--cohort 256 --epsilon 10 --set start=random", "--cohort 256 --epsilon 10 --set start=features",
        f"--cohort 256 --epsilon 10 --set start=random {STEPS}",
        *(f"--cohort {cohort} --epsilon {epsilon} --set start=features {STEPS}" for cohort in (64, 128, 256)
          for epsilon in (10, 3)),
        *(f"--cohort 128 --epsilon {epsilon} --set start=features {STEPS} --set hidden_dropout=0"
          for epsilon in (10, 3)),
    )),
    *(f"--method {method} --wire clip=1 --epsilon {epsilon}" for method in ("fedveil", "popularity")
      for epsilon in (10, 3)),
)  # fmt: skip


def study() -> None:
    """Run what has no figures yet, each in a process of its own, and write them."""
    figures: dict[str, Any] = json.loads(OUT.read_text()) if OUT.exists() else {}
    for words in STUDY:
        files = [word for word in words.split() if word.startswith("..")]
        if words in figures or not all((ROOT / file).exists() for file in files):
            continue
        command = [sys.executable, __file__, "validation", *words.split(), "--json"]
        done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
        commit = subprocess.run(
            ["git", "log", "-1", "--format=%h", "--", "src"], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True
        )
        about = {"commit": commit.stdout.strip(), "date": datetime.date.today().isoformat()}
        figures[words] = json.loads(done.stdout.splitlines()[-1]) | about
        OUT.write_text(json.dumps(figures, indent=1) + "\n")
        print(f"{words}: {figures[words]}", flush=True)


def validation(data: str, method: str, seed: int, chosen: dict[str, Any]) -> dict[str, Any]:
    """HR@10 and NDCG@10 of validation at the end of training, with its CPU seconds, a person's uploads, and memory."""
    prepared = prepare(settings_from(method, data, {"seed": seed, "threads": 1, **chosen}), load(data, seed=seed))
    plan, task = prepared.plan, prepared.task
    federation = task.federation("search", plan.method, plan.sampling, None)
    began, sent = time.process_time(), 0
    for done in run(
        plan.method, plan.model, federation, rounds=plan.rounds, cohort=prepared.settings.cohort, seed=seed,
        wire=plan.wire.stage, noise_seed=seed,
    ):  # fmt: skip
        sent += done.up_bytes
        if done.number in (1, plan.rounds // 2):
            print(f"after {done.number} of {plan.rounds} rounds: {time.process_time() - began:.1f} CPU s", flush=True)
    seconds, people = time.process_time() - began, task.choosers
    served = Served(plan.method, plan.model, done.state, plan.sampling)
    ready = personalise(served, task._devices(task.train, plan.sampling, stream=SERVE), people, None)
    positives, negatives = (part.take(people) for part in (task.choosing.positives, task.choosing.negatives))
    full = rank_full(ready, task.train.take(people), positives, task.catalogue)[0]
    values = RankingMetrics.of_ranks(rank_sampled(ready, positives, negatives), full).values
    return {
        "people": len(federation.members),
        "choosers": len(people),
        **{kind: [round(values[kind][name], 4) for name in ("hr@10", "ndcg@10")] for kind in ("sampled", "full")},
        "rounds": plan.rounds,
        "upload_mb": round(sent / len(federation.members) / 1e6, 2),
        "cpu_seconds": round(seconds),
        "gigabytes": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, 1),
    }


def table() -> None:
    """Print the means of three seeds, with the standard deviation of NDCG@10, and fedseq's paired differences."""
    for entry in json.loads(TEST.read_text())["evidence"]:
        result, data = entry["result"], entry["command"].partition("--data ")[2].split()[0]
        if "seeds" not in result:
            continue
        runs: dict[str, list[dict[str, Any]]] = {}
        for each in result["results"]:
            runs.setdefault(each["method"], []).append(each["seconds"])
        for method, seconds in zip(result["seeds"]["methods"], runs.values()):
            values = {name: (v["mean"], v["sd"]) for name, v in method["metrics"].items()}
            cells = [method["name"] + (" parts=trail+als" if "trail+als" in entry["command"] else "")]
            for name in ("seen.sampled", "seen.full", "new.sampled"):
                (hr, _), (ndcg, deviation) = values[f"{name}.hr@10"], values[f"{name}.ndcg@10"]
                cells.append(f"{hr:.3f} / {ndcg:.3f} (+-{deviation:.3f})")
            print(" | ".join([data, *cells, f"{np.mean([each['train_cpu'] for each in seconds]):.1f} CPU s"]))
        for each in result["differences"]:
            if each["second"] == "FedSeq" and "ndcg" in each["metric"]:
                low, high = each["interval"]
                gain = f"{-each['difference']:+.3f} ({-high:.3f} to {-low:.3f})"
                print(f"  fedseq less {each['first']}, {each['metric']}: {gain}")


def speed(backends: list[str], rounds: int) -> None:
    """Print the mean CPU seconds of a round of 32 people with k 64, each round as its fastest repeat."""
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(4.56, 0.95, PEOPLE), 18, 1500).astype(int)
    chance = 1 / (np.arange(ITEMS) + 30.0)
    items = np.concatenate([rng.choice(ITEMS, n, replace=False, p=chance / chance.sum()) for n in lengths])
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    data = Histories(starts, items.astype(np.int32), np.ones(len(items), np.float32))
    model = factorization(ITEMS, k=64)
    method, federation = build("fedseq", model, {}), of_histories(data, ITEMS)
    counted = next(run(method, model, federation, rounds=1, seed=1)).state
    fastest: dict[str, NDArray[np.float64]] = {}
    for _ in range(REPEATS):  # of the same rounds, from the same state; other processes disturb some of them
        trainings = {
            backend: run(method, model, federation, rounds=3 + rounds, backend=backend, seed=1, state=counted)
            for backend in backends
        }
        seconds = np.zeros((len(backends), 2 + rounds))
        for number in range(2 + rounds):
            for row, training in zip(seconds, trainings.values()):
                began = time.process_time()
                next(training)
                row[number] = time.process_time() - began
        # Before round 2 kernels are compiled, and fixed tables are looked at.
        for backend, row in zip(backends, seconds[:, 2:]):
            fastest[backend] = np.minimum(fastest.get(backend, np.inf), row)
    means = {backend: float(row.mean()) for backend, row in fastest.items()}
    for backend, mean in means.items():
        print(f"{backend}: {mean:.3f} CPU s a round, {mean / means[backends[0]]:.1f} x {backends[0]}")


def compare_products() -> None:
    """Print the rates of the products of a round, [rows, steps] by [steps, columns], of one person or of a cohort."""
    rng = np.random.default_rng(0)
    for rows, steps, columns in ((90, 64, 768), (90, 768, 64), (2900, 64, 192), (2900, 128, 64), (2900, 64, 64)):
        a, b = (rng.standard_normal(shape, np.float32) for shape in ((rows, steps), (steps, columns)))
        out = np.empty((rows, columns), np.float32)
        left, right, result = (torch.from_numpy(array) for array in (a, b, out))
        rates = []
        for compute in (partial(product, a, b, out, False), partial(torch.mm, left, right, out=result)):
            seconds = []
            for _ in range(20):
                began = time.process_time()
                for _ in range(20):
                    compute()
                seconds.append((time.process_time() - began) / 20)
            rates.append(2e-9 * rows * steps * columns / min(seconds))
        print(f"{rows} x {steps} x {columns}: {rates[0]:.0f} billion operations a second, torch {rates[1]:.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["validation", "study", "table", "speed", "products"])
    parser.add_argument("--data", default="ml-100k")
    parser.add_argument("--method", default="fedseq")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--wire")
    parser.add_argument("--cohort", type=int)
    parser.add_argument("--epsilon", type=float)
    parser.add_argument("--backends", default="kernel,vmap")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--without", help="compile kernels without the processor's features of this name")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.without and "NUMBA_CPU_FEATURES" not in os.environ:  # which is read when Numba is imported
        features = (
            llvmlite.binding.get_host_cpu_features().flatten().replace(f"+{options.without}", f"-{options.without}")
        )
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | {"NUMBA_CPU_FEATURES": features})
    set_threads(1)
    if options.what == "speed":
        speed(options.backends.split(","), options.rounds)
    elif options.what != "validation":
        {"study": study, "table": table, "products": compare_products}[options.what]()
    else:
        chosen: dict[str, Any] = dict(pair.split("=", 1) for pair in options.set)
        private = {"wire": options.wire, "cohort": options.cohort, "epsilon": options.epsilon}
        chosen |= {name: value for name, value in private.items() if value is not None}
        figures = validation(options.data, options.method, options.seed, chosen)
        print(json.dumps(figures) if options.json else "\n".join(f"{name}: {value}" for name, value in figures.items()))


if __name__ == "__main__":
    main()
