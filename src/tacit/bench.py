"""`tacit bench`: what one round for all people costs, by backend, and how it grows. CPU seconds, one thread, best of
repeats, all in one run: the only figures that survive a shared machine are ratios of those."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numba
import numpy as np
import torch
from rich.table import Table

from .bench_clients import NETWORKS, speed_of_clients
from .core import Download, Examples, Method, Model
from .data.interactions import Histories, Interactions
from .data.sampling import distinct_negatives, key_of
from .data.sources import load
from .data.splits import leave_last
from .data.synthetic import synthetic
from .engine.run import begin, run
from .errors import SettingError, did_you_mean
from .evaluation.protocol import rank_sampled
from .federation import Federation, of_histories
from .methods import build
from .models import additive, factorization
from .wire.ledger import decode, encode

K = 32
JOBS: dict[str, tuple[str, dict[str, Any], str]] = {  # what is measured: method, settings, task
    "fedals": ("fedals", {}, "ranking"),
    "fedrecon": ("fedrecon", {"solver": "exact", "lam": 0.1, "lr": 0.2}, "ratings"),
    "fedrap": ("fedrap", {}, "negatives"),  # as released: 4 negatives, batches of 2,048, 10 passes
}
SAMPLE = 1_000  # people of the loop where everybody would take long: its time grows with their examples
LATER = 5  # a round in which people have rows of their own from before
REPEATS = {"loop": 1, "vmap": 3, "kernel": 5}


def make(job: str, histories: Histories, items: int) -> tuple[Method, Model, Federation]:
    name, settings, task = JOBS[job]
    if task == "negatives":
        deep = additive(items, k=K)
        return build(name, deep, settings), deep, of_histories(histories, items, negatives=4, batch=2048)
    ratings = task == "ratings"
    model = factorization(
        items, k=K, loss="squared" if ratings else "bce", biases=ratings, mean=3.0 if ratings else 0.0
    )
    method = build(name, model, settings)
    return method, model, of_histories(histories, items, examples=method.examples, negatives=0, batch=16)


def one_round(method: Method, model: Model, federation: Federation, backend: str, repeats: int) -> float:
    """CPU seconds of one whole round: examples, clients, admission, sum, server."""
    best = float("inf")
    for _ in range(repeats):
        state = begin(method, model, federation)
        before = time.process_time()
        next(run(method, model, federation, rounds=1, backend=backend, state=state))
        best = min(best, time.process_time() - before)
    return best


def sampled_loop(method: Method, model: Model, federation: Federation) -> tuple[float, int]:
    """(CPU seconds of the loop's round, people it was measured on): all of them, or every n-th, scaled by examples."""
    every = -(-len(federation.members) // SAMPLE) if method.examples == "samples" and model.rows[-1] == "own" else 1
    some = replace(federation, members=federation.members[::every])
    whole, part = (f.examples(f.members, 0).lengths.sum() for f in (federation, some))
    return one_round(method, model, some, "loop", 1) * float(whole / part), len(some.members)


def later_round(method: Method, model: Model, federation: Federation) -> float:
    """CPU seconds of the kernel's round number LATER."""
    best = float("inf")
    for _ in range(3):
        *_, done = run(method, model, federation, rounds=LATER - 1, backend="kernel")
        before = time.process_time()
        next(run(method, model, federation, rounds=LATER, backend="kernel", state=done.state))
        best = min(best, time.process_time() - before)
    return best


def judging(method: Method, model: Model, federation: Federation, histories: Histories) -> float:
    """CPU seconds of ranking one item of everybody against 99 others, after one round."""
    state = next(run(method, model, federation, rounds=1, backend="kernel")).state
    people = federation.members
    held, negatives = (
        federation.examples(people, 0),
        distinct_negatives(histories, model.catalogue, 99, key_of(0, 1, 0)),
    )
    positives = leave_last(histories)[1]
    best = float("inf")
    for _ in range(3):
        before = time.process_time()
        rank_sampled(
            method, model, state.shared, state.private, people, held, positives.take(people), negatives.take(people)
        )
        best = min(best, time.process_time() - before)
    return best


def messages(method: Method, model: Model, federation: Federation) -> float:
    """Which part of a loop's round goes into messages: every upload is really encoded, and read back by the server."""
    done = next(run(method, model, federation, rounds=1, backend="vmap", cohort=1))
    held = federation.examples(federation.members[:1], 0).pad()
    own = {name: value[0] for name, value in done.state.private.gather(federation.members[:1]).items()}
    upload, _ = method.client(Download(done.state.shared, torch.tensor(0.0)), own, Examples(*(x[0] for x in held)))
    before = time.process_time()
    for _ in range(20):
        decode(encode(upload))
    return (time.process_time() - before) / 20 * len(federation.members)


def warm(job: str) -> float:
    """Compile and load everything, on a tiny world. Seconds until the first round with the kernel was done: what a
    person waits for, once a process, where the compiled code is on disk already."""
    tiny = make(job, synthetic(30, 40, 300).histories(), 40)
    before = time.perf_counter()
    one_round(*tiny, "kernel", 1)
    first = time.perf_counter() - before
    for backend in REPEATS:
        one_round(*tiny, backend, 2)
    return first


def measure(
    method: str | None = None, *, quick: bool, seed: int, say: Callable[[str], None], cache: Path | None
) -> dict[str, Any]:
    """Ratios of backends on ML-100K's size and on 6,040 x 3,706, and CPU time against interactions with a fit."""
    known = (*JOBS, *NETWORKS)
    if method not in (None, *known):
        raise SettingError(did_you_mean(str(method), known, "thing that is measured"))
    jobs, networks = ([job for job in jobs if method in (None, job)] for jobs in (JOBS, NETWORKS))
    threads = torch.get_num_threads(), numba.get_num_threads()
    torch.set_num_threads(1)
    numba.set_num_threads(1)
    try:
        clients = [row for job in networks for row in speed_of_clients(job, seed, one_round, say)]
        if not jobs:
            return {"threads": 1, "speed": clients, "growth": []}
        worlds: list[Interactions] = []
        first = load("ml-100k", cache=cache, say=say)
        assert isinstance(first, Interactions)
        worlds.append(first)
        if not quick:
            say("making a world of 6,040 people x 3,706 items x 1,000,000 interactions")
            worlds.append(synthetic(6_040, 3_706, 1_000_000, seed=seed))
        rows = [speed(job, data, say) for data in worlds for job in jobs] + clients
        return {"k": K, "threads": 1, "speed": rows, "growth": [growth(job, quick, seed, say) for job in jobs]}
    finally:
        torch.set_num_threads(threads[0])
        numba.set_num_threads(threads[1])


def speed(job: str, data: Interactions, say: Callable[[str], None]) -> dict[str, Any]:
    first = warm(job)
    made = make(job, data.histories(), len(data.items))
    row: dict[str, Any] = {
        "data": data.name,
        "people": len(data.people),
        "items": len(data.items),
        "interactions": len(data),
        "method": job,
        "first_call_seconds": round(first, 3),
    }
    for backend, repeats in REPEATS.items():
        say(f"{job} on {len(data.people):,} people: one round with {backend}")
        if backend == "loop":
            row["loop_cpu_seconds"], row["loop_people"] = sampled_loop(*made)
        else:
            again = repeats if backend == "kernel" or len(data.people) < 2_000 else 1
            row[f"{backend}_cpu_seconds"] = round(one_round(*made, backend, again), 5)
    row["loop_messages_cpu_seconds"] = round(messages(*made), 5)
    if job == "fedrap":
        row[f"kernel_round_{LATER}_cpu_seconds"] = round(later_round(*made), 5)
        row["evaluate_cpu_seconds"] = round(judging(*made, data.histories()), 5)
    for backend in ("vmap", "kernel"):
        row[f"{backend}_times_loop"] = round(row["loop_cpu_seconds"] / row[f"{backend}_cpu_seconds"], 1)
    return row


def growth(job: str, quick: bool, seed: int, say: Callable[[str], None]) -> dict[str, Any]:
    """CPU time of a kernel round over worlds of growing size: seconds = a + b x interactions, and the slope of the
    logs. People and items grow along, so that a cost of people x items would show."""
    points = []
    sizes = (100_000, 300_000, 1_000_000, 3_000_000, 10_000_000)
    for size in sizes[:3] if quick else sizes[:4] if job == "fedrap" else sizes:  # fedrap has five examples for each
        people, items = size // 100, max(500, int((size / 100) ** 0.8))
        say(f"{job}: {size:,} interactions of {people:,} people with {items:,} items")
        made = make(job, synthetic(people, items, size, seed=seed).histories(), items)
        points.append(
            {
                "interactions": size,
                "people": people,
                "items": items,
                "cpu_seconds": round(one_round(*made, "kernel", 3), 5),
            }
        )
    x, y = (np.array([point[name] for point in points], float) for name in ("interactions", "cpu_seconds"))
    slope, start = np.polyfit(x, y, 1, w=1 / y)  # every size counts alike
    off = y / (start + slope * x) - 1
    log_slope = np.polyfit(np.log(x), np.log(y), 1)[0]
    fit = {
        "microseconds_per_interaction": round(1e6 * slope, 4),
        "largest_deviation": round(float(np.abs(off).max()), 3),
    }
    return {"method": job, "points": points, "fit": fit | {"exponent": round(float(log_slope), 3)}}


def table(found: dict[str, Any]) -> Table:
    shown = Table(
        "data",
        "method",
        "loop",
        "vmap",
        "kernel",
        "vmap",
        "kernel",
        title="CPU seconds of one round for all people, one thread; then times as fast as loop",
    )
    for row in found["speed"]:
        cells = [f"{row[f'{b}_cpu_seconds']:.3f}" if f"{b}_cpu_seconds" in row else "" for b in REPEATS]
        cells += [f"{row[name]} x" if (name := f"{b}_times_loop") in row else "" for b in ("vmap", "kernel")]
        size = f"{row['people']:,} x {row['items']:,}" if "items" in row else f"{row['people']} x {row['data']}"
        shown.add_row(size, row["method"], *cells)
    for line in found["growth"]:
        fit, ends = line["fit"], (line["points"][0], line["points"][-1])
        sizes = " to ".join(f"{p['interactions']:,}" for p in ends)
        shown.add_row(
            sizes,
            line["method"],
            "",
            "",
            f"{ends[0]['cpu_seconds']:.3f} to {ends[1]['cpu_seconds']:.3f}",
            "",
            f"exponent {fit['exponent']}",
        )
    return shown
