"""Do sketches of FedTrail's directed counts pay beside FedEigen's factors? NDCG@10 on validation, against bytes.

    python benchmarks/trail_sketch.py [--worlds ml-100k ...]

C[p, q] counts how often q followed p (FedTrail), N is C normalised, r are the columns of FedEigen's tables. Scores of
FedEigen and of the trail are added as z-scores, the trail's times a weight. Bytes are those of 4 bits a number; the
rounding of FedEigen's own tables is in the figures, that of the sketches is not.
    exact     N itself                                              items x items numbers, as FedTrail sends them
    signs     (N R) R', R [items, r] of random signs                one more table
    count     the same, R a count sketch: one sign in every row     one more table
    basis     (N Q) Q', Q FedEigen's last basis                     one more table
    two       W W'N, W an orthonormal basis of N Q                  two more tables
docs/fedeigen.md has the figures of 2026-11 and what was concluded.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from defaults import WORLDS, load, settings_of, task_of
from numpy.typing import NDArray
from scipy import sparse

from fedtaste.core import CohortExamples
from fedtaste.engine.run import run
from fedtaste.experiment.plan import plan
from fedtaste.methods.fedeigen import FedEigen
from fedtaste.methods.fedtrail import FedTrail
from fedtaste.methods.subspaces import basis
from fedtaste.tasks.ranking import Ranking

Table = NDArray[np.float64]
WEIGHTS = (0.25, 0.5, 1.0)


def directed_counts(histories: CohortExamples, trail: FedTrail, counts: Table) -> sparse.csr_matrix:
    """N of FedTrail, sparse."""
    items, m = histories.inputs, len(counts)
    left = np.repeat(histories.starts[1:], histories.lengths) - 1 - np.arange(len(items))  # items that follow
    total = sparse.csr_matrix((m, m))
    for step, power in enumerate(trail.powers):
        at = np.flatnonzero(left > step)
        total += sparse.csr_matrix((np.full(len(at), power, np.float64), (items[at], items[at + step + 1])), (m, m))
    people = counts + trail.shrink
    return (sparse.diags(people**-trail.from_power) @ total @ sparse.diags(people**-trail.to_power)).tocsr()


def sketches(n: sparse.csr_matrix, q: Table) -> dict[str, tuple[int, Table, Table]]:
    """name -> (further tables, A, B) with N near A B'."""
    rng, (m, r) = np.random.default_rng(1), q.shape
    signs = rng.choice([-1.0, 1.0], (m, r)) / np.sqrt(r)
    count = np.zeros((m, r))
    count[np.arange(m), rng.integers(0, r, m)] = rng.choice([-1.0, 1.0], m)
    after = n @ q
    w = basis(torch.from_numpy(after)).double().numpy()
    return {
        "signs": (1, n @ signs, signs),
        "count": (1, n @ count, count),
        "basis": (1, after, q),
        "two": (2, w, n.T @ w),
    }


def z_scores(scores: Table) -> Table:
    result: Table = (scores - scores.mean(1, keepdims=True)) / np.maximum(scores.std(1, keepdims=True), 1e-30)
    return result


def study(name: str) -> None:
    """Print the figures of one data set."""
    task = task_of(name)
    assert isinstance(task, Ranking)
    current = plan(settings_of(name, "fedeigen", {}).model_copy(update={"rounds": None}), task.facts)
    values = {key: current.settings[key] for key in ("extra", "bits", "lam", "alpha0", "recency", "floor")}
    eigen, trail = FedEigen(current.model, **values), FedTrail(current.model)  # type: ignore[arg-type]
    members = task.federation("search", current.method, current.sampling, None)
    *_, done = run(current.method, current.model, members, rounds=current.rounds)
    histories = members.examples(members.members, 0, "history")
    counts = np.bincount(histories.inputs, minlength=task.catalogue).astype(np.float64)
    n = directed_counts(histories, trail, counts)
    served = members.examples(task.choosers, 0, "history")
    age = np.repeat(served.starts[1:], served.lengths) - 1 - np.arange(len(served.inputs))
    weight = np.where(age < trail.reach, trail.mix * trail.fast**age + (1 - trail.mix) * trail.slow**age, 0.0)
    recent = sparse.csr_matrix((weight, served.inputs.copy(), served.starts), (len(task.choosers), task.catalogue))
    factors = z_scores(eigen.users(done.state.shared, served) @ done.state.shared["item"].numpy().T)
    tables, bytes_of_one = current.rounds - 1, done.state.memory["basis"].numel() * 0.5
    q = done.state.memory["basis"].double().numpy()
    print(f"{name}: {len(members.members):,} people, {task.catalogue:,} items, {q.shape[1]} columns")
    print(f"  {'factors':8} {tables * bytes_of_one / 1e6:6.2f} MB  {judge(task, factors)}")
    print_blends("exact", 4 * task.catalogue**2, task, factors, (recent @ n).toarray())
    for label, (more, a, b) in sketches(n, q).items():
        print_blends(label, (tables + more) * bytes_of_one, task, factors, (recent @ a) @ b.T)


def print_blends(label: str, size: float, task: Ranking, factors: Table, trail: Table) -> None:
    blends = (f"{weight:g}: {judge(task, factors + weight * z_scores(trail))}" for weight in WEIGHTS)
    print(f"  {label:8} {size / 1e6:6.2f} MB  {'   '.join(blends)}", flush=True)


def judge(task: Ranking, scores: Table) -> str:
    """HR@10 / NDCG@10 on validation."""
    rows = np.arange(len(task.choosers))
    positives = task.choosing.positives.take(task.choosers).items
    others = task.choosing.negatives.take(task.choosers).items.reshape(len(rows), -1)
    rank = (scores[rows[:, None], others] >= scores[rows, positives][:, None]).sum(1)
    hit = rank < 10
    return f"{hit.mean():.3f} / {(hit / np.log2(rank + 2)).mean():.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--worlds", nargs="+", default=["ml-100k", "movietweetings", "amazon"], choices=list(WORLDS))
    for name in (world for world in parser.parse_args().worlds if load(world) is not None):
        study(name)


if __name__ == "__main__":
    main()
