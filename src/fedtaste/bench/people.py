"""`fedtaste bench`: measure one round by backend and by size of the data. `measure` runs all, also bench/clients.py.

All figures are CPU seconds on one thread, the best of several repeats, measured in one process: on a shared machine
only ratios of such figures are reliable.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from rich.table import Table

from fedtaste.bench.clients import NETWORKS, measure_clients
from fedtaste.bench.growth import fit_growth, world_size
from fedtaste.bench.result import BenchResult, Growth, GrowthPoint, SpeedRow
from fedtaste.bench.timing import fastest, one_round, single_thread
from fedtaste.core import Download, Examples, Method, Model
from fedtaste.data.interactions import Histories, Interactions
from fedtaste.data.sampling import distinct_negatives, key_of
from fedtaste.data.sources import load
from fedtaste.data.splits import leave_last
from fedtaste.data.synthetic import synthetic
from fedtaste.engine.run import State, run
from fedtaste.errors import SettingError
from fedtaste.evaluation.protocol import rank_sampled
from fedtaste.evaluation.scoring import Personalised
from fedtaste.federation import Federation, of_histories
from fedtaste.methods import build
from fedtaste.models import additive, factorization
from fedtaste.text import did_you_mean
from fedtaste.wire.messages import decode, encode

Log = Callable[[str], None]
K = 32
JOBS: dict[str, dict[str, object]] = {  # settings of the measured methods
    "fedals": {},
    "fedrecon": {"solver": "exact", "lam": 0.1, "lr": 0.2},  # on ratings
    "fedrap": {},  # as released: 4 negatives, batches of 2,048, 10 passes
}
SAMPLE = 1_000  # people of the loop where everybody would take long: its time grows with their examples
LATER = 5  # a round in which people have rows of their own from earlier rounds
REPEATS = {"loop": 1, "vmap": 3, "kernel": 5}


@dataclass(frozen=True, eq=False)
class Job:
    """A method on data of people and items."""

    name: str
    method: Method
    model: Model
    federation: Federation
    histories: Histories

    @staticmethod
    def of(name: str, histories: Histories, items: int) -> Job:
        """The method of this name with its model and its examples."""
        model, negatives, batch = factorization(items, k=K), 0, 16
        if name == "fedrap":
            model, negatives, batch = additive(items, k=K), 4, 2048
        elif name == "fedrecon":
            model = factorization(items, k=K, loss="squared", biases=True, mean=3.0)
        federation = of_histories(histories, items, negatives=negatives, batch=batch)
        return Job(name, build(name, model, JOBS[name]), model, federation, histories)

    def one_round(self, backend: str, repeats: int) -> float:
        """CPU seconds of one whole round."""
        return one_round(self.method, self.model, self.federation, backend, repeats)

    def sampled_loop(self) -> tuple[float, int]:
        """(CPU seconds of the loop's round, people it was measured on): all of them, or for fedrap, which is slow,
        every n-th, scaled by their examples."""
        members = self.federation.members
        every = -(-len(members) // SAMPLE) if self.name == "fedrap" else 1
        some = replace(self.federation, members=members[::every])
        full, part = (f.examples(f.members, 0, self.method.examples).lengths.sum() for f in (self.federation, some))
        return one_round(self.method, self.model, some, "loop", 1) * float(full / part), len(some.members)

    def later_round(self) -> float:
        """CPU seconds of the kernel's round number LATER."""

        def earlier_rounds() -> State:
            *_, last = run(self.method, self.model, self.federation, rounds=LATER - 1, backend="kernel")
            return last.state

        def train(state: State) -> None:
            next(run(self.method, self.model, self.federation, rounds=LATER, backend="kernel", state=state))

        return fastest(3, earlier_rounds, train)

    def evaluation(self) -> float:
        """CPU seconds of ranking one item of everybody against 99 others, after one round."""
        state = next(run(self.method, self.model, self.federation, rounds=1, backend="kernel")).state
        people = self.federation.members
        examples = self.federation.examples(people, 0, self.method.examples)
        negatives = distinct_negatives(self.histories, self.model.catalogue, 99, key_of(0, 1, 0)).take(people)
        positives = leave_last(self.histories)[1].take(people)

        def evaluate(state: State) -> None:
            personalised = Personalised(self.method, self.model, state.shared, state.private, people, examples)
            rank_sampled(personalised, positives, negatives)

        return fastest(3, lambda: state, evaluate)

    def messages(self) -> float:
        """CPU seconds of a loop's round that go into messages: every upload is encoded, and decoded by the server."""
        first = self.federation.members[:1]
        done = next(run(self.method, self.model, self.federation, rounds=1, backend="vmap", cohort=1))
        examples = Examples(*(x[0] for x in self.federation.examples(first, 0, self.method.examples).pad()))
        private = {name: value[0] for name, value in done.state.private.gather(first).items()}
        upload, _ = self.method.client(Download(done.state.shared, torch.tensor(0.0)), private, examples)
        before = time.process_time()
        for _ in range(20):
            decode(encode(upload))
        return (time.process_time() - before) / 20 * len(self.federation.members)


def warm_up(job: str) -> float:
    """Compile and load everything on tiny data. Returns the wall-clock seconds of the first round with the kernel,
    which a user waits for once in every process, also where the compiled code is on disk already."""
    tiny = Job.of(job, synthetic(30, 40, 300).histories(), 40)
    before = time.perf_counter()
    tiny.one_round("kernel", 1)
    first = time.perf_counter() - before
    for backend in REPEATS:
        tiny.one_round(backend, 2)
    return first


def measure(method: str | None = None, *, quick: bool, seed: int, log: Log, cache: Path | None) -> BenchResult:
    """Ratios of backends on ML-100K's size and on 6,040 x 3,706, and CPU time against interactions with a fit."""
    jobs = (*JOBS, *NETWORKS)
    if method not in (None, *jobs):
        raise SettingError(did_you_mean(str(method), jobs, "thing that is measured"))
    people, networks = ([job for job in part if method in (None, job)] for part in (JOBS, NETWORKS))
    with single_thread():
        rows = [row for job in networks for row in measure_clients(job, seed, log)]
        if not people:
            return BenchResult(threads=1, speed=tuple(rows), growth=())
        first = load("ml-100k", cache=cache, log=log)
        assert isinstance(first, Interactions)
        data = [first]
        if not quick:
            log("generating 6,040 people x 3,706 items x 1,000,000 interactions")
            data.append(synthetic(6_040, 3_706, 1_000_000, seed=seed))
        speed = [measure_speed(job, each, log) for each in data for job in people] + rows
        growth = [measure_growth(job, quick, seed, log) for job in people]
        return BenchResult(k=K, threads=1, speed=tuple(speed), growth=tuple(growth))


def measure_speed(name: str, data: Interactions, log: Log) -> SpeedRow:
    """One round by every backend."""
    first = warm_up(name)
    job, people = Job.of(name, data.histories(), len(data.items)), len(data.people)
    log(f"{name} on {people:,} people: one round with loop")
    loop, loop_people = job.sampled_loop()
    seconds = {}
    for backend in ("vmap", "kernel"):
        log(f"{name} on {people:,} people: one round with {backend}")
        repeats = REPEATS[backend] if backend == "kernel" or people < 2_000 else 1
        seconds[backend] = round(job.one_round(backend, repeats), 5)
    extra = {}
    if name == "fedrap":
        extra = {"kernel_round_5_cpu_seconds": round(job.later_round(), 5)}
        extra["evaluate_cpu_seconds"] = round(job.evaluation(), 5)
    return SpeedRow(
        data=data.name, people=people, items=len(data.items), interactions=len(data), method=name,
        first_call_seconds=round(first, 3), loop_cpu_seconds=loop, loop_people=loop_people,
        vmap_cpu_seconds=seconds["vmap"], kernel_cpu_seconds=seconds["kernel"],
        loop_messages_cpu_seconds=round(job.messages(), 5), vmap_times_loop=round(loop / seconds["vmap"], 1),
        kernel_times_loop=round(loop / seconds["kernel"], 1), **extra,
    )  # fmt: skip


def measure_growth(name: str, quick: bool, seed: int, log: Log) -> Growth:
    """CPU time of a kernel round on data of growing size: seconds = a + b x interactions, and the slope of the
    logarithms. People and items grow along, so that a cost of people x items would show."""
    points = []
    sizes = (100_000, 300_000, 1_000_000, 3_000_000, 10_000_000)
    for size in sizes[:3] if quick else sizes[:4] if name == "fedrap" else sizes:  # fedrap has five examples for each
        people, items = world_size(size)
        log(f"{name}: {size:,} interactions of {people:,} people with {items:,} items")
        job = Job.of(name, synthetic(people, items, size, seed=seed).histories(), items)
        cpu = round(job.one_round("kernel", 3), 5)
        points.append(GrowthPoint(interactions=size, people=people, items=items, cpu_seconds=cpu))
    return Growth(method=name, points=tuple(points), fit=fit_growth(points))


def table(result: BenchResult) -> Table:
    """The result as a table for the terminal."""
    title = "CPU seconds of one round for all people, one thread; then times as fast as loop"
    rows = Table("data", "method", "loop", "vmap", "kernel", "vmap", "kernel", title=title)
    for row in result.speed:
        seconds = (row.loop_cpu_seconds, row.vmap_cpu_seconds, row.kernel_cpu_seconds)
        times = (row.vmap_times_loop, row.kernel_times_loop)
        size = f"{row.people} x {row.data}" if row.items is None else f"{row.people:,} x {row.items:,}"
        cells = ["" if value is None else f"{value:.3f}" for value in seconds]
        rows.add_row(size, row.method, *cells, *("" if value is None else f"{value} x" for value in times))
    for growth in result.growth:
        first, last = growth.points[0], growth.points[-1]
        sizes = f"{first.interactions:,} to {last.interactions:,}"
        span = f"{first.cpu_seconds:.3f} to {last.cpu_seconds:.3f}"
        rows.add_row(sizes, growth.method, "", "", span, "", f"exponent {growth.fit.exponent}")
    return rows
