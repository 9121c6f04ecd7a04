"""Figures of docs/sequences.md: validation of one setting of fedseq, and CPU seconds of a round by backend.

    python benchmarks/sequences.py validation --data ml-100k --set participations=48 --set hidden_dropout=0.3
    python benchmarks/sequences.py validation --data ml-100k --method fedtrail
    python benchmarks/sequences.py speed --backends kernel,vmap

`validation` trains on the training part and ranks everybody's validation item among 99 and among all items; test data
are not read. `speed` trains on a generated world of the size of a film set: 3,706 items, histories of 18 to 1,500.
"""

from __future__ import annotations

import argparse
import resource
import time

import numpy as np
import torch

from fedtaste.data.interactions import Histories
from fedtaste.data.sampling import SERVE
from fedtaste.data.sources import load
from fedtaste.engine.run import run
from fedtaste.evaluation.protocol import RankingMetrics, rank_full, rank_sampled
from fedtaste.experiment.settings import settings_from
from fedtaste.experiment.train import prepare
from fedtaste.federation import of_histories
from fedtaste.methods import build
from fedtaste.models import factorization
from fedtaste.tasks.base import Served
from fedtaste.tasks.serve import personalise

ITEMS, PEOPLE = 3_706, 640


def validation(data: str, method: str, seed: int, chosen: dict[str, str]) -> None:
    """Print HR@10 and NDCG@10 of validation at the end of training, with the CPU seconds of training and the memory."""
    prepared = prepare(settings_from(method, data, {"seed": seed, "threads": 1, **chosen}), load(data, seed=seed))
    plan, task = prepared.plan, prepared.task
    federation = task.federation("search", plan.method, plan.sampling, None)
    began = time.process_time()
    for done in run(
        plan.method, plan.model, federation, rounds=plan.rounds, cohort=prepared.settings.cohort, seed=seed
    ):
        if done.number in (1, plan.rounds // 2):
            print(f"after {done.number} of {plan.rounds} rounds: {time.process_time() - began:.1f} CPU s", flush=True)
    seconds, people = time.process_time() - began, task.choosers
    served = Served(plan.method, plan.model, done.state, plan.sampling)
    ready = personalise(served, task._devices(task.train, plan.sampling, stream=SERVE), people, None)
    positives, negatives = (part.take(people) for part in (task.choosing.positives, task.choosing.negatives))
    full = rank_full(ready, task.train.take(people), positives, task.catalogue)[0]
    values = RankingMetrics.of_ranks(rank_sampled(ready, positives, negatives), full).values
    figures = [f"{kind} {values[kind]['hr@10']:.3f}/{values[kind]['ndcg@10']:.3f}" for kind in ("sampled", "full")]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"{data} {method} {chosen} seed {seed}: {', '.join(figures)}")
    print(f"{plan.rounds} rounds, {seconds:.0f} CPU s, {peak:.1f} GB")


def speed(backends: list[str], rounds: int) -> None:
    """Print the CPU seconds of a round of 32 people with k 64."""
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(4.56, 0.95, PEOPLE), 18, 1500).astype(int)
    chance = 1 / (np.arange(ITEMS) + 30.0)
    items = np.concatenate([rng.choice(ITEMS, n, replace=False, p=chance / chance.sum()) for n in lengths])
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    data = Histories(starts, items.astype(np.int32), np.ones(len(items), np.float32))
    model = factorization(ITEMS, k=64)
    method, federation = build("fedseq", model, {}), of_histories(data, ITEMS)
    counted = next(run(method, model, federation, rounds=1, seed=1)).state
    trainings = {
        backend: run(method, model, federation, rounds=3 + rounds, backend=backend, seed=1, state=counted)
        for backend in backends
    }
    seconds: dict[str, list[float]] = {backend: [] for backend in backends}
    for number in range(2 + rounds):  # one backend after the other in every round: other processes disturb both alike
        for backend, training in trainings.items():
            began = time.process_time()
            next(training)
            if number >= 2:  # before that it compiles, and computes facts of fixed tables
                seconds[backend].append(time.process_time() - began)
    medians = {backend: float(np.median(values)) for backend, values in seconds.items()}
    for backend, median in medians.items():
        print(f"{backend}: {median:.3f} CPU s a round (median), {median / medians[backends[0]]:.1f} x {backends[0]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["validation", "speed"])
    parser.add_argument("--data", default="ml-100k")
    parser.add_argument("--method", default="fedseq")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--backends", default="kernel,vmap")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.what == "speed":
        speed(options.backends.split(","), options.rounds)
    else:
        chosen = dict(pair.split("=", 1) for pair in options.set)
        validation(options.data, options.method, options.seed, chosen)


if __name__ == "__main__":
    main()
