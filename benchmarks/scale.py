"""CPU seconds and peak memory by phase of a run on large generated data, and of importing a large Parquet file.

    python benchmarks/scale.py 100000x20000x10000000           loading, splitting, hashing, a round, evaluating
    python benchmarks/scale.py 1000000x50000x100000000
    python benchmarks/scale.py --rows 100000000                a Parquet file in pieces, and as a world (3 GB of disk)

Prints one line of JSON per phase; the peak is that of the process so far, so that it never falls.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import numpy as np
import polars as pl

from fedtaste.data import worlds
from fedtaste.data.sources import load
from fedtaste.engine.run import begin, run
from fedtaste.experiment.folder import fingerprint
from fedtaste.experiment.settings import Settings
from fedtaste.experiment.train import prepare
from fedtaste.tasks.base import Served

PIECE = 4_000_000  # rows that are generated at once
T = TypeVar("T")


def measured(phase: str, work: Callable[[], T]) -> T:
    """The result of `work`; prints its CPU seconds and the peak memory."""
    before, children = time.process_time(), resource.getrusage(resource.RUSAGE_CHILDREN)
    result = work()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = time.process_time() - before + after.ru_utime - children.ru_utime
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(json.dumps({"phase": phase, "cpu_seconds": round(cpu, 2), "peak_gb": round(peak, 2)}), flush=True)
    return result


def measure_run(size: str) -> None:
    """The phases of `fedtaste run --data synthetic:SIZE --rounds 1`, with one of its two rounds."""
    settings = Settings(data=f"synthetic:{size}", method="fedals", rounds=1)
    data = measured("load", lambda: load(settings.data))
    prepared = measured("split", lambda: prepare(settings, data))
    measured("fingerprint", lambda: fingerprint(data))
    plan, task = prepared.plan, prepared.task
    federation = task.federation("final", plan.method, plan.sampling, None)
    state = begin(plan.method, plan.model, federation, plan.seed)
    rounds = run(plan.method, plan.model, federation, rounds=1, state=state, seed=plan.seed)
    done = measured("round", lambda: next(rounds))
    served = Served(plan.method, plan.model, done.state, plan.sampling)
    metrics = measured("evaluate", lambda: task.evaluate(served, task.seen, None))
    print(json.dumps(metrics.values))


def parts(rows: int) -> Iterator[pl.DataFrame]:
    """Random interactions, a hundred for each person, of 50,000 items; some pairs stand twice."""
    rng = np.random.default_rng(0)
    for begin_at in range(0, rows, PIECE):
        n = min(PIECE, rows - begin_at)
        yield pl.DataFrame(
            {
                "user": rng.integers(0, rows // 100, n),
                "item": np.minimum(50 * rng.pareto(0.8, n), 49_999).astype(np.int64),
                "rating": rng.integers(1, 6, n).astype(np.float32),
                "timestamp": 1_600_000_000 + rng.integers(0, 10**8, n),
            }
        )


def measure_import(rows: int) -> None:
    """Loading a Parquet file with so many rows, importing it as a world, and the histories of the world."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for number, part in enumerate(parts(rows)):
            part.write_parquet(folder / f"{number}.parquet")
        pl.scan_parquet(folder / "*.parquet").sink_parquet(folder / "rows.parquet")
        world = measured("import", lambda: worlds.import_world(folder / "rows.parquet", folder / "rows.world"))
        print(world)
        measured("histories", world.histories)
        measured("load", lambda: load(str(folder / "rows.parquet")))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("size", nargs="?", default="100000x20000x10000000")
    parser.add_argument("--rows", type=int)
    options = parser.parse_args()
    measure_run(options.size) if options.rows is None else measure_import(options.rows)
