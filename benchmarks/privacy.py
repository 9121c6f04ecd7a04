"""Accuracy under differential privacy: fedveil, private popularity and DP-FedAvg at epsilon 1, 3, 10 and without noise.

`python benchmarks/privacy.py [part ...]` runs some of `choose`, `strength`, `ml-100k`, `integers`, `fedavg`,
`synthetic`, or all, prints tables and writes docs/evidence/privacy.json. Noise is added to the sum, epsilon is for a
whole person, and delta is the default of `--epsilon`. The protocol is the clean one with a tenth of the people new;
figures are HR@10 / NDCG@10 against 99 negatives, as means over three secret draws of the noise.

All settings are chosen on validation in the search phase; only the rows of `ml-100k`, `fedavg` and `synthetic` read the
test. The choice is outside epsilon, for all methods. `choose` prints the validation table of fedveil's constants: every
line changes one of them; `strength` prints that of the strength, on several data sets. DP-FedAvg's settings are
searched for every epsilon with `GRID`, one line after the other, starting from the choice for the next larger epsilon.
`integers` compares integers on the grid with floating-point numbers under the same draws of the noise. route=iterate is
only in `choose`, because it is never the best.
"""

from __future__ import annotations

import datetime
import importlib
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import fedtaste
from fedtaste.core import Method, Model, Stage, StageContext, Upload, chain
from fedtaste.data import item_features as item_features_module
from fedtaste.data.item_features import item_features, years
from fedtaste.engine.run import State, run
from fedtaste.experiment.resources import set_threads
from fedtaste.methods import build, shrinkage
from fedtaste.methods.fedveil import advice, predictor
from fedtaste.models import factorization
from fedtaste.tasks.base import Sampling, Served, Task
from fedtaste.tasks.ranking import ranking_task
from fedtaste.tasks.serve import passes
from fedtaste.wire import stages
from fedtaste.wire.accounting import default_delta, solve
from fedtaste.wire.noise import IntegerNoise
from fedtaste.wire.rng import fresh_key

OUT = Path(__file__).parents[1] / "docs" / "evidence" / "privacy.json"
WORLD = "synthetic:100000x5000x10000000"  # 100 items a person on average, 42 in the median
EPSILONS = (10.0, 3.0, 1.0, None)
DRAWS = (0, 1, 2)  # of the noise
CHOOSERS = tuple(range(8))  # draws of the noise for the validation table
RECENCY = {"own recency": {}, "flat": {"recency": 1.0, "strength": 1.0}}  # the best strength of each on validation
ROUTES = {"fedveil features": {"route": "features"}, "fedveil head": {"route": "head"}}
# Lines of the validation table: (constants of the modules, settings, features).
CHANGES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "as it is": ({}, {}, "all"),
    "route=head with features": ({}, {"route": "head"}, "all"),
    "route=head": ({}, {"route": "head"}, "none"),
    "route=iterate": ({}, {"route": "iterate"}, "none"),
    "genres alone": ({}, {}, "genres"),
    "years alone": ({}, {}, "years"),
    "years by fixed bumps": ({}, {}, "bumps"),
    "title words too": ({}, {}, "words"),
    "KNOTS 5": ({"KNOTS": 5}, {}, "all"),
    "KNOTS 20": ({"KNOTS": 20}, {}, "all"),
    "RIDGE 1": ({"RIDGE": 1.0}, {}, "all"),
    "RIDGE 10": ({"RIDGE": 10.0}, {}, "all"),
    "CLIP 0.15": ({"CLIP": 0.15}, {}, "all"),
    "CLIP 0.4": ({"CLIP": 0.4}, {}, "all"),
    "FEATURES_FIRST 0.4": ({"FEATURES_FIRST": 0.4}, {}, "all"),
    "FEATURES_FIRST 0.8": ({"FEATURES_FIRST": 0.8}, {}, "all"),
    "FEATURES_PULL 0.5": ({"FEATURES_PULL": 0.5}, {}, "all"),
    "FEATURES_PULL 8": ({"FEATURES_PULL": 8.0}, {}, "all"),
    "strength 1": ({}, {"strength": 1.0}, "all"),
    "strength 1.75": ({}, {"strength": 1.75}, "all"),
}
STRENGTHS = (0.0, 0.3, 0.5, 0.75, 1.25, 1.75, 2.5)
SHARED = "../shared/data/"  # from the project's root, from where this is run
STRENGTH_WORLDS = (
    "ml-100k", f"{SHARED}amazon-video.csv.gz", f"{SHARED}movietweetings.csv.gz", "synthetic:2905x800x60000",
    "synthetic:3000x3700x300000", "synthetic:2000x17000x93000", "synthetic:30000x3700x3000000",
)  # fmt: skip
# `fedtaste.methods.fedveil` is the function; its module has the same name.
MODULES = (importlib.import_module("fedtaste.methods.fedveil"), shrinkage, item_features_module)
BUMPS = ((1940, 12), (1960, 10), (1975, 8), (1985, 5), (1992, 2), (1995, 1.5), (1997, 1))  # year, deviation
START = {"rounds": 20, "rate": 1.0, "k": 16, "spread": 0.1, "lr": 300.0, "passes": 1, "clip": 0.3}
START |= {"server": "sgd", "server_lr": 30.0}  # from a dozen trials at epsilon 10, on validation
GRID: list[list[dict[str, Any]]] = [  # a number in a list multiplies the current value, others replace it
    [{"server_lr": [2.0]}, {"server_lr": [0.5]}, {"server_lr": [0.25]}],
    [{"rounds": 10, "server_lr": [2.0]}, {"rounds": 40, "server_lr": [0.5]}],
    [{"clip": [1 / 3], "server_lr": [3.0]}, {"clip": [3.0], "server_lr": [1 / 3]}],
    [{"lr": [1 / 3], "clip": [1 / 3], "server_lr": [3.0]}, {"lr": [3.0], "clip": [3.0], "server_lr": [1 / 3]}],
    [{"rate": 0.3, "rounds": [3.0], "server_lr": [1 / 3]}],
    [{"k": 8}, {"k": 32}],
    [{"spread": 0.5}],
    [{"passes": 3, "lr": [1 / 3]}],
    [{"server": name, "server_lr": lr} for name, lr in (("adagrad", 0.1), ("adam", 0.1), ("adam", 0.03))],
    [{"server_lr": [1.5]}, {"server_lr": [0.67]}],
]
Trained = tuple[Method, Model, State]


def make_task(data: str) -> Task:
    return ranking_task(fedtaste.load(data), protocol_name="clean", split_name="leave-one-out", new_people=0.1, seed=0)


def last(
    method: Method, model: Model, task: Task, phase: str, rounds: int, wire: Stage, seed: int, rate: float
) -> State:
    """The last state. The final phase draws secret noise; the search is repeatable."""
    federation = task.federation(phase, method, Sampling(), None)
    cohort, noise_seed = None if rate >= 1 else rate, None if phase == "final" else seed
    for result in run(method, model, federation, rounds=rounds, cohort=cohort, wire=wire, noise_seed=noise_seed):
        state = result.state
    return state


def members(task: Task) -> int:
    return task.facts.people


def delta_of(task: Task) -> float:
    return default_delta(members(task))


def noise_of(epsilon: float | None, task: Task, rounds: int = 1, rate: float = 1.0) -> float:
    return 0.0 if epsilon is None else solve(epsilon, delta_of(task), rounds, rate)


def veil(
    task: Task, phase: str, epsilon: float | None, draw: int, settings: dict[str, Any], features: Tensor | None
) -> Trained:
    z, model = noise_of(epsilon, task), factorization(task.facts.items)
    method = build("fedveil", model, {"noise": z, "people": members(task), "features": features} | settings)
    wire = stages.noise(z, releases=method.privacy.bounds) if z else Stage()
    return method, model, last(method, model, task, phase, len(method.privacy.bounds), wire, draw, 1.0)


def popular(task: Task, phase: str, epsilon: float | None, draw: int, features: Tensor | None) -> Trained:
    """Popularity from one sum of histories, each scaled to length 1."""
    z, model = noise_of(epsilon, task), factorization(task.facts.items)
    method = build("popularity", model, {"noise": z, "clip": 1.0, "features": features})
    wire = chain(stages.clip(1.0), stages.noise(z)) if z else stages.clip(1.0)
    return method, model, last(method, model, task, phase, 1, wire, draw, 1.0)


def averaged(task: Task, phase: str, epsilon: float | None, seed: int, settings: dict[str, Any]) -> Trained:
    """DP-FedAvg of a factorisation; the vectors of people are private."""
    model = factorization(task.facts.items, k=settings["k"], spread=settings["spread"])
    method = build("fedavg", model, {name: settings[name] for name in ("lr", "passes", "server", "server_lr")})
    wire = Stage()
    if epsilon is not None:
        z = noise_of(epsilon, task, settings["rounds"], settings["rate"])
        wire = chain(stages.clip(settings["clip"]), stages.noise(z, settings["clip"]))
    return method, model, last(method, model, task, phase, settings["rounds"], wire, seed, settings["rate"])


def validated(task: Task, epsilon: float, settings: dict[str, Any]) -> float:
    assert task.validates
    return task.validation(Served(*averaged(task, "search", epsilon, 0, settings))).exact()["hr@10"]


def search(task: Task, epsilon: float, start: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """One pass over GRID that keeps the best of every line on validation. Returns the choice and all trials."""
    trials: list[dict[str, Any]] = []

    def hits(settings: dict[str, Any]) -> float:
        trials.append({"settings": settings, "hr@10": round(validated(task, epsilon, settings), 4)})
        print(f"  epsilon {epsilon:g}: {trials[-1]['hr@10']:.4f} {settings}", flush=True)
        return float(trials[-1]["hr@10"])

    choice, best = start, hits(start)
    for line in GRID:
        for candidate in [_replaced(choice, change) for change in line]:
            if candidate not in [entry["settings"] for entry in trials] and (score := hits(candidate)) > best:
                choice, best = candidate, score
    return choice, trials


def _replaced(settings: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    return settings | {
        n: type(settings[n])(f"{settings[n] * v[0]:.3g}") if isinstance(v, list) else v for n, v in change.items()
    }  # fmt: skip


def evaluate(task: Task, trained: list[Trained]) -> dict[str, Any]:
    """Means over draws of the noise, and every draw."""
    out: dict[str, Any] = {}
    for whom, people in (("seen", task.seen), ("new", task.newcomers)):
        results = []
        for method, model, state in trained:
            rounds = None if whom == "seen" else passes(state)
            results.append(task.evaluate(Served(method, model, state), people, rounds).values)
        for kind in ("sampled", "full"):
            means = {n: round(float(np.mean([f[kind][n] for f in results])), 4) for n in ("hr@10", "ndcg@10")}
            out[f"{whom} {kind}"] = means
        out[f"{whom} draws"] = [f["sampled"]["hr@10"] for f in results]
    return out


def draws(epsilon: float | None) -> tuple[int, ...]:
    return DRAWS if epsilon is not None else DRAWS[:1]


def row(name: str, epsilon: float | None, figures: dict[str, Any]) -> dict[str, Any]:
    cells = [f"{figures[w]['hr@10']:.3f} / {figures[w]['ndcg@10']:.3f}" for w in ("seen sampled", "new sampled")]
    spread = ", ".join(f"{value:.3f}" for value in figures["seen draws"])
    noise = "no noise" if epsilon is None else f"epsilon {epsilon:g}"
    print(f"| {name} | {noise} | {' | '.join(cells)} | {spread} |", flush=True)
    return {"method": name, "epsilon": epsilon} | figures


def compare(task: Task, epsilon: float | None) -> list[dict[str, Any]]:
    """Rows of private popularity and of fedveil; recency only concerns serving, so each is trained once."""
    rows = []
    tables = {"private popularity": None, "private popularity with features": task.facts.features}
    for name, features in list(tables.items())[: None if epsilon else 1]:  # shrinkage needs noise
        trained = [popular(task, "final", epsilon, draw, features) for draw in draws(epsilon)]
        rows.append(row(name, epsilon, evaluate(task, trained)))
    for name, route in ROUTES.items():
        features = task.facts.features if route["route"] == "features" else None
        trained = [veil(task, "final", epsilon, draw, route, features) for draw in draws(epsilon)]
        for label, settings in RECENCY.items():
            served = {"noise": noise_of(epsilon, task), "people": members(task), "features": features}
            served |= route | settings
            served_models = [(build("fedveil", model, served), model, state) for _, model, state in trained]
            rows.append(row(f"{name}, {label}", epsilon, evaluate(task, served_models)))
    return rows


@contextmanager
def changed(values: dict[str, Any]) -> Iterator[None]:
    """Replace constants of fedveil, the shrinkage and the item features within a `with` block."""
    homes = {name: next(module for module in MODULES if hasattr(module, name)) for name in values}
    before = {name: getattr(home, name) for name, home in homes.items()}
    for name, home in homes.items():
        setattr(home, name, values[name])
    try:
        yield
    finally:
        for name, home in homes.items():
            setattr(home, name, before[name])


def table_of(kind: str, titles: tuple[str, ...], genres: tuple[str, ...]) -> Tensor | None:
    """Item features for a line of the validation table."""
    if kind == "none":
        return None
    parts = {
        "all": lambda: [item_features(titles, genres)],
        "genres": lambda: [item_features([""] * len(titles), genres)],
        "years": lambda: [item_features(titles)],
        "bumps": lambda: [item_features([""] * len(titles), genres), bumps(titles)],
        "words": lambda: [item_features(titles, genres), title_words(titles)],
    }[kind]()
    table = np.concatenate(parts, 1)
    return torch.from_numpy(table.astype(np.float32))


def bumps(titles: tuple[str, ...]) -> np.ndarray:
    year = years(titles)
    return np.stack([np.nan_to_num(np.exp(-0.5 * ((year - at) / width) ** 2)) for at, width in BUMPS], 1)


def title_words(titles: tuple[str, ...]) -> np.ndarray:
    """A column for every word of at least 5 titles."""
    words = [set(re.findall("[a-z]{3,}", title.lower())) for title in titles]
    count = Counter(word for title in words for word in title)
    common = sorted(word for word, times in count.items() if times >= 5)
    return np.array([[word in title for word in common] for title in words], np.float64)


def choose() -> dict[str, Any]:
    """HR@10 on validation by epsilon, as means over draws of the noise."""
    data, task, rows = fedtaste.load("ml-100k"), make_task("ml-100k"), []
    assert task.validates
    epsilons = sorted(filter(None, EPSILONS))

    def line(name: str, train: Callable[..., Trained]) -> None:
        means = []
        for epsilon in epsilons:
            hits = [task.validation(Served(*train(epsilon, draw))).exact()["hr@10"] for draw in CHOOSERS]
            means.append(round(float(np.mean(hits)), 4))
        rows.append({"line": name} | {f"{epsilon:g}": mean for epsilon, mean in zip(epsilons, means)})
        print(f"| {name} | {' | '.join(f'{mean:.3f}' for mean in means)} |", flush=True)

    print("| on validation | epsilon 1 | 3 | 10 |\n|---|---|---|---|")
    for name, features in (("private popularity", None), ("private popularity with features", task.facts.features)):
        line(name, partial(popular, task, "search", features=features))
    for name, (constants, settings, kind) in CHANGES.items():
        with changed(constants):
            features = table_of(kind, data.titles, data.genres)
            words = {"route": "features"} | settings
            line(name, partial(veil, task, "search", settings=words, features=features))
    return {"data": "ml-100k", "delta": delta_of(task), "draws": len(CHOOSERS), "rows": rows}


def strength() -> dict[str, Any]:
    """NDCG@10 on validation by the strength, which only concerns serving, on several data sets."""
    rows = []
    print("| data | items / people | noise | popularity |", " | ".join(f"{s:g}" for s in STRENGTHS), "|")
    for data in (world for world in STRENGTH_WORLDS if world.startswith(("ml", "synthetic")) or Path(world).exists()):
        task = make_task(data)
        assert task.validates
        for epsilon in EPSILONS:
            drawn = CHOOSERS[:4] if epsilon else CHOOSERS[:1]
            values = {"noise": noise_of(epsilon, task), "people": members(task), "features": task.facts.features}
            features = values["features"] if epsilon else None  # of popularity, whose shrinkage needs noise
            trained = [popular(task, "search", epsilon, draw, features) for draw in drawn]
            ndcg = {"popularity": _validated_ndcg(task, trained)}
            trained = [veil(task, "search", epsilon, draw, {}, values["features"]) for draw in drawn]
            for value in STRENGTHS:
                served = [(build("fedveil", m, values | {"strength": value}), m, state) for _, m, state in trained]
                ndcg[f"{value:g}"] = _validated_ndcg(task, served)
            sizes = {"items": task.facts.items, "people": members(task)}
            rows.append({"data": data, **sizes, "epsilon": epsilon, "draws": len(drawn), "ndcg@10": ndcg})
            ratio = f"{task.facts.items / members(task):.1f}"
            noise = "none" if epsilon is None else f"epsilon {epsilon:g}"
            print(f"| {data} | {ratio} | {noise} |", " | ".join(f"{v:.3f}" for v in ndcg.values()), "|", flush=True)
    return {"rows": rows}


def _validated_ndcg(task: Task, trained: list[Trained]) -> float:
    """The mean over draws of the noise."""
    assert task.validates
    return round(float(np.mean([task.validation(Served(*each)).exact()["ndcg@10"] for each in trained])), 4)


def ml_100k() -> dict[str, Any]:
    task, rows = make_task("ml-100k"), []
    for epsilon in EPSILONS:
        if epsilon is not None:
            print(
                f"epsilon {epsilon:g}: "
                + advice(predictor(noise_of(epsilon, task), task.facts.items, members(task)), True)
            )
        rows += compare(task, epsilon)
    return {"data": "ml-100k", "people": members(task), "delta": delta_of(task), "rows": rows}


def fedavg() -> dict[str, Any]:
    task, rows, choice, trials = make_task("ml-100k"), [], START, {}
    defaults = START | {"rounds": 60, "k": 32, "lr": 10.0, "server": "adagrad", "server_lr": 0.3}
    for epsilon in EPSILONS:
        if epsilon is not None:
            choice, trials[f"{epsilon:g}"] = search(task, epsilon, choice)
        settings = defaults if epsilon is None else choice
        figures = evaluate(task, [averaged(task, "final", epsilon, draw, settings) for draw in draws(epsilon)])
        rows.append(row("DP-FedAvg", epsilon, figures) | {"settings": settings})
    return {
        "data": "ml-100k", "delta": delta_of(task), "start": START, "grid": GRID, "rows": rows, "tried": trials,
    }  # fmt: skip


def synthetic() -> dict[str, Any]:
    task = make_task(WORLD)
    return {"data": WORLD, "people": members(task), "delta": delta_of(task), "rows": compare(task, 1.0)}


def on_floats(drawn: IntegerNoise) -> Stage:
    """The same noise on sums that were not rounded to the grid."""

    def server(upload: Upload, context: StageContext) -> Upload:
        zeros = {name: torch.zeros(value.shape, dtype=torch.int64) for name, value in upload.total.items()}
        noise = drawn.to_floats(drawn.add(zeros, context.round, context.people, context.key), context.round)
        total = {name: (value.double() + noise[name].double()).float() for name, value in upload.total.items()}
        return Upload(total, torch.tensor(context.people))

    return Stage(server=server, poisson=True)


def integers() -> dict[str, Any]:
    """HR@10 with integers minus HR@10 with floating-point numbers, under the same draws of the noise."""
    task, rows = make_task("ml-100k"), []
    model, features = factorization(task.facts.items), task.facts.features
    for epsilon in sorted(filter(None, EPSILONS)):
        z = noise_of(epsilon, task)
        options = {"noise": z, "features": features}
        veiled = build("fedveil", model, options | {"people": members(task), "route": "features"})
        popular = build("popularity", model, options | {"clip": 1.0})
        veil_noise = IntegerNoise(z, veiled.privacy.bounds, sums=True)
        wires = {
            "fedveil": (veiled, stages.noise(z, releases=veiled.privacy.bounds), on_floats(veil_noise)),
            "private popularity": (popular, stages.noise(z), chain(stages.clip(1.0), on_floats(IntegerNoise(z)))),
        }
        for name, (method, *pair) in wires.items():
            gaps = []
            for _ in range(10):
                key = fresh_key()
                rounded, floating = (hits(task, method, model, wire, key) for wire in pair)
                gaps.append(rounded - floating)
            mean, worst = float(np.mean(gaps)), float(np.abs(gaps).max())
            rows.append({"method": name, "epsilon": epsilon, "mean": mean, "worst": worst})
            print(f"| {name} | epsilon {epsilon:g} | mean {mean:+.5f} | worst {worst:.5f} |", flush=True)
    return {"data": "ml-100k", "draws": 10, "rows": rows}


def hits(task: Task, method: Method, model: Model, wire: Stage, key: bytes) -> float:
    federation = task.federation("final", method, Sampling(), None)
    *_, last_round = run(method, model, federation, rounds=len(method.privacy.bounds) or 1, wire=wire, noise_key=key)
    values = task.evaluate(Served(method, model, last_round.state), task.seen, None).values
    return float(values["sampled"]["hr@10"])


PARTS = {
    "choose": choose,
    "strength": strength,
    "ml-100k": ml_100k,
    "integers": integers,
    "fedavg": fedavg,
    "synthetic": synthetic,
}


def main(names: list[str]) -> None:
    set_threads(1)
    print(
        "| method | noise | seen: HR / NDCG@10 | new: HR / NDCG@10 | seen HR by draw of the noise |\n"
        "|---|---|---|---|---|"
    )
    for name in names or PARTS:
        start = time.perf_counter()
        result = PARTS[name]() | {"seconds": round(time.perf_counter() - start)}
        evidence = json.loads(OUT.read_text()) if OUT.exists() else {}
        evidence |= {"command": "python benchmarks/privacy.py", "date": str(datetime.date.today())}
        evidence["parts"] = evidence.get("parts", {}) | {name: result}
        OUT.write_text(json.dumps(evidence, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
