"""Test FedCLUP's theory and reproduce its released figures with fedtaste's methods, for docs/degree.md.

python benchmarks/degree.py [spring] [rounds] [parity] [crossover] [sampled]      all parts, or some of them

Writes docs/evidence/degree.json, docs/degree.md and docs/degree.png. The reference is "Understanding the Accuracy-
Communication Trade-off in Personalized Federated Learning" (Yu, He, Sun, Xue, Li; ICML 2025).
"""

from __future__ import annotations

import datetime
import json
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import degree_page
import numpy as np
import torch
from degree_worlds import (
    Array,
    Quadratic,
    bends,
    errors,
    last,
    released,
    released_start,
    side_by_side,
    together,
    trained,
    two_classes,
)

import fedtaste
from fedtaste.data.generated import least_squares, logistic
from fedtaste.data.supervised import Supervised
from fedtaste.experiment.resources import set_threads
from fedtaste.federation import Federation
from fedtaste.methods import local

EVIDENCE = Path(__file__).parents[1] / "docs" / "evidence" / "degree.json"
SPREADS = (0.1, 0.3, 1.0, 3.0)
GRID = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
SEEDS = range(5)
LOGISTIC_SPREADS = tuple(float(r) for r in np.linspace(0.1, 3, 10)[[0, 4, 8]])  # .1, 1.389, 2.678
ONE_L = 9.13  # the curvature of one client, which the released code uses for all
Table = dict[str, Any]


# The best lambda by R


def spring(spreads: Sequence[float] = SPREADS, seeds: Sequence[int] = SEEDS, grid: Sequence[float] = GRID) -> Table:
    """Mean squared distance of v_i from w*_i on least squares, for every lambda and for lam="auto"."""
    keys = [(r, s) for r in spreads for s in seeds]
    worlds = [least_squares(spread=r, seed=s) for r, s in keys]
    fitted = {lam: _distances(worlds, lam)[0] for lam in grid}  # [worlds] each
    auto, chosen = _distances(worlds, "auto")
    rows = []
    for i, r in enumerate(spreads):
        here = slice(i * len(seeds), (i + 1) * len(seeds))
        table = np.array([fitted[lam][here] for lam in grid])  # [grid, seeds]
        ratio = auto[here] / table.min(0)
        rules = {name: _by_rule(worlds[here], rule) for name, rule in (("pilot", None), ("true R", r))}
        rows.append({
            "R": r, "error": dict(zip(map(str, grid), table.mean(1).tolist())),
            "best": grid[int(table.mean(1).argmin())],
            "auto": {"lam": [float(x) for x in chosen[here]], "error": float(auto[here].mean()),
                     "mean_ratio": float(ratio.mean()), "worst_ratio": float(ratio.max())},
            "released_rule": {name: {"lam": lam, "error": float(errors.mean()),
                                     "mean_ratio": float((errors / table.min(0)).mean()),
                                     "worst_ratio": float((errors / table.min(0)).max())}
                              for name, (lam, errors) in rules.items()},
        })  # fmt: skip
    exact = {lam: np.array([_exact(world, lam) for world in worlds]) for lam in grid}
    off = max(float(np.abs(fitted[lam] / exact[lam] - 1).max()) for lam in grid)
    return {"rows": rows, "grid": list(grid), "seeds": len(seeds), "off_closed_form": off}


def _distances(worlds: Sequence[Supervised], lam: Any, rounds: int = 15, passes: int = 20) -> tuple[Array, Array]:
    """(error, final lambda) of every data set."""
    model = fedtaste.linear(10)
    stacked = fedtaste.Model(lambda g: {"weight": torch.zeros(len(worlds), 10)}, model.loss, model.score)
    state, _, v = last(side_by_side(fedtaste.fedclup(model, lam=lam, passes=passes)), stacked, together(worlds), rounds)
    truth = np.stack([np.asarray(w.truth, np.float64) for w in worlds], 1)
    return ((v - truth) ** 2).sum(2).mean(0), state.shared.get("lam", torch.zeros(len(worlds))).numpy()


def _exact(world: Supervised, lam: float) -> float:
    return float(((Quadratic(world).best(lam)[1] - world.truth) ** 2).sum(1).mean())


def _by_rule(worlds: Sequence[Supervised], spread: float | None) -> tuple[list[float], Array]:
    """(lambdas of the released rule, their errors); R is `spread`, or measured on local models."""
    chosen = []
    for world in worlds:
        n, (g, v) = len(world.targets[0]), Quadratic(world).best(1e-6)
        distance = spread or float(np.linalg.norm(v - g, axis=1).mean())
        chosen.append(5 / (n * distance**2) if distance >= n**-0.5 else 5 / (n**0.5 * distance))
    return chosen, np.array([_exact(world, lam) for world, lam in zip(worlds, chosen)])


# Rounds and gradients by lambda


def rounds(springs: Sequence[float] = (0.01, 0.1, 1.0, 10.0, 100.0), target: float = 1e-8, most: int = 400) -> Table:
    """Rounds until the objective is within `target` of its minimum, and gradient evaluations until then."""
    data = least_squares(condition=11.0)
    problem = Quadratic(data)
    high, low = problem.most, problem.least
    rows = []
    for lam in springs:
        steps = math.ceil(2 * (lam + high) / (lam + low))
        row: Table = {"lam": lam, "steps": steps, "predicted": high / low * (lam + low) / (lam + high)}
        for name, rate in (("default", 0.0), ("theory", 1 + lam / high)):
            gaps = _gaps(data, problem, lam, steps, rate, target * 1e-3, most)
            reached = next((i + 1 for i, gap in enumerate(gaps) if gap < target), None)
            row[name] = {"rounds": reached, "gradients": reached and reached * steps, "slope": _slope(gaps, target)}
        rows.append(row)
    return {"L": high, "mu": low, "kappa": high / low, "target": target, "rows": rows}


def _gaps(
    data: Supervised, problem: Quadratic, lam: float, steps: int, rate: float, until: float, most: int
) -> list[float]:
    """The gap to the minimum after every round, in double precision."""
    least = problem.value(*problem.best(lam), lam)
    model = fedtaste.linear(10)
    method, gaps = fedtaste.fedclup(model, lam=lam, passes=steps, rate=rate), []
    for _, _, g, v in trained(method, model, fedtaste.of_arrays(data.features, data.targets), most):
        gaps.append(problem.value(g, v, lam) - least)
        if gaps[-1] < until:
            break
    return gaps


def _slope(gaps: Sequence[float], target: float) -> float:
    """The decrease of log(gap) per round, over the rounds in which it is steady."""
    points = [(i, math.log(gap)) for i, gap in enumerate(gaps) if target * 1e-3 < gap < 1e-2]
    return -float(np.polyfit(*zip(*points), 1)[0]) if len(points) > 1 else math.nan


# The released figures, and the best method with the intended server step


def parity(only: Sequence[str] = ("fedavg", "0.02", "0.1", "0.5", "local")) -> Table:
    """(global, local) error with the released code's settings, data, start and steps, by method and R."""
    data = released()
    federation = fedtaste.of_arrays(data.features, data.targets)
    results: Table = {"still": float(np.linalg.norm(released_start().mean(0)) * 2**0.5)}
    for name in only:
        g, v = _as_released(name, federation)
        results[name] = {f"{r:.3f}": errors(data, r, g, v) for r in LOGISTIC_SPREADS}
    return results


def _as_released(name: str, federation: Federation) -> tuple[Array, Array]:
    model = two_classes(10, released_start())
    if name == "local":
        _, g, v = last(local(model, lr=0.001, passes=150), model, federation, 250)
        return g, v
    if name == "fedavg":  # the clients are evaluated with their models before the last mean
        method = fedtaste.fedavg(model, lr=0.01, passes=150)
        before, after = [g for *_, g, _ in trained(method, model, federation, 50)][-2:]
        start = two_classes(10, before)
        return after, last(local(start, lr=0.01, passes=150), start, federation, 1)[2]
    lam = float(name)
    _, g, v = last(fedtaste.fedclup(model, lam=lam, lr=1 / (ONE_L + lam), rate=1.0, passes=150), model, federation, 50)
    return g, v


def crossover(seeds: Sequence[int] = SEEDS, rounds: int = 50, steps: int = 150) -> Table:
    """Local error with each client's own L and the intended server step, from weights of 0 and of N(0, 1)."""
    starts = ("0", "N(0, 1)")
    worlds = [logistic(spread=1.0, seed=s) for s in seeds]
    first = [np.random.default_rng(1000 + s).normal(size=(2, 10)) for s in seeds]
    start = np.stack([np.zeros((2, 10))] * len(seeds) + first)
    model = two_classes(10, start)
    federation = together(worlds * 2)
    bend = bends(model, federation, worlds=True)  # [clients, worlds, 2]
    methods = {
        "fedavg": (fedtaste.fedavg(model, lr=float(1 / bend[..., 0].max()), passes=steps), None),
        "0.02": (fedtaste.fedclup(model, lam=0.02, passes=steps), bend),
        "0.5": (fedtaste.fedclup(model, lam=0.5, passes=steps), bend),
        "local": (fedtaste.fedclup(model, lam=0.0, passes=steps), bend),  # lambda 0: local models
    }
    table: dict[str, list[Any]] = {}
    for name, (method, curvature) in methods.items():
        for number, _, g, v in trained(side_by_side(method), model, federation, rounds, bend=curvature):
            if number == rounds or (name == "local" and number == rounds // 10):
                key = name if number == rounds else f"local {number}"
                table[key] = [[errors(w, r, g[i], v[:, i]) for i, w in enumerate(worlds * 2)] for r in LOGISTIC_SPREADS]
    split = {name: np.array(t).reshape(len(LOGISTIC_SPREADS), 2, len(seeds), 2) for name, t in table.items()}
    results = {s: {n: t[:, i].tolist() for n, t in split.items()} for i, s in enumerate(starts)}
    return {"R": list(LOGISTIC_SPREADS), "rounds": rounds, "largest_L": float(bend[..., 0].max()), "errors": results}


# Many clients with small cohorts


def sampled(clients: int = 1000, rounds: int = 40, at: Sequence[int] = (1, 10, 40)) -> Table:
    """|g - mean W| at R = 1 with a tenth of the clients per round and lambda .5, by choice of L and server step."""
    data, lam = released(clients), 0.5
    federation = fedtaste.of_arrays(data.features, data.targets)
    model = two_classes(10, released_start())
    own = bends(model, federation)
    variants: dict[str, dict[str, float]] = {
        "L of one client": {"lr": 1 / (ONE_L + lam), "rate": 1 + lam / ONE_L},
        "L of one client, rate 1": {"lr": 1 / (ONE_L + lam), "rate": 1.0},
        "own L of each client, the default": {},
    }
    results: Table = {}
    for name, options in variants.items():
        method = fedtaste.fedclup(model, lam=lam, passes=150, **options)
        by_round = {n: errors(data, 1.0, g, v)[0] for n, _, g, v in trained(method, model, federation, rounds, 0.1)}
        results[name] = {str(n): by_round[n] for n in at}
    start = released_start()
    return {
        "error": results, "start": errors(data, 1.0, start, np.repeat(start[None], clients, 0))[0],
        "L": np.percentile(own[:, 0].numpy(), [5, 50, 95]).tolist(),
    }  # fmt: skip


PARTS: dict[str, Callable[[], Table]] = {
    "spring": spring, "rounds": rounds, "parity": parity, "crossover": crossover, "sampled": sampled,
}  # fmt: skip


def main(names: list[str]) -> None:
    """Run these parts, or all, and write the page; other parts keep their earlier results."""
    set_threads(1)
    page = json.loads(EVIDENCE.read_text()) if names and EVIDENCE.exists() else {"results": {}}
    for name in names or PARTS:
        print(f"{name} ...", flush=True)
        page["results"][name] = PARTS[name]()
        today = datetime.date.today().isoformat()
        page = {"command": "python benchmarks/degree.py", "date": today, "results": page["results"]}
        EVIDENCE.write_text(json.dumps(rounded(page), indent=1) + "\n")
    degree_page.write(rounded(page))


def rounded(value: Any) -> Any:
    """Round to six digits, which are the same on every machine."""
    if isinstance(value, dict):
        return {k: rounded(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(v) for v in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


if __name__ == "__main__":
    main(sys.argv[1:])
