"""Private additions to FedALS's shared factors, for benchmarks/additive.py.

A family is a kind of private addition with several strengths. Validation chooses the strength; then the test is read
once and compared, person by person, with the same model without the private part.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import scipy.sparse as sp

from fedtaste.data.splits import leave_one_out
from fedtaste.engine.run import begin, run
from fedtaste.evaluation.metrics import interval
from fedtaste.experiment.plan import plan
from fedtaste.experiment.settings import Settings
from fedtaste.experiment.train import make_task

SHAPES = {  # k, alpha0, lam of FedALS
    "ml-100k": [(32, 0.3, 0.01), (32, 0.1, 0.01), (64, 0.3, 0.01)],
    "amazon-video": [(64, 0.1, 0.01), (32, 0.1, 0.01), (64, 0.1, 0.02)],
}
RECENCY, FLOOR, RHOS, WIDE = (0.6, 0.75, 0.85, 0.93), 0.02, (0.1, 0.3, 1.0, 3.0, 10.0), (10.0, 30.0, 100.0)
BLENDS, TRUST, CUTS = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0), (1.0, 5.0, 20.0), 3
Pair = dict[str, np.ndarray]  # by person: "ndcg" on 99 negatives, "hr_full"


@dataclass(eq=False)
class World:
    """Data of one phase: histories (oldest first), held-out items, their negatives and the shared factors; `own` are
    the pairs of each person that are subtracted from N."""

    h: list
    pos: np.ndarray
    neg: np.ndarray
    V: np.ndarray
    a0: float
    lam: float
    own: list | None = None

    def trail(self):
        """Compute FedTrail's N and everybody's own pairs in it."""
        n = np.bincount(np.concatenate(self.h), minlength=len(self.V)) + 5.0
        self.norm, self.pairs = (n**-0.6, n**-0.3), [own_pairs(h) for h in self.h]
        p, q, v = (np.concatenate(x) for x in zip(*self.pairs))
        counts = sp.csr_matrix((v, (p, q)), shape=(len(n), len(n)))
        self.N = sp.csr_matrix(sp.diags(self.norm[0]) @ counts @ sp.diags(self.norm[1]))
        x = sp.csr_matrix((np.ones(sum(map(len, self.h))), np.concatenate(self.h), np.cumsum([0, *map(len, self.h)])))
        x.resize(len(self.h), len(n))
        scale = sp.diags((n + 5) ** -0.5)
        self.gram = sp.csc_matrix(scale @ (x.T @ x) @ scale)
        return self

    def before(self, t):
        """The same people without their newest t items. The oldest of these is held out; own pairs are subtracted."""
        self.long = np.array([len(h) >= t + 3 for h in self.h])
        past = replace(self, h=[h[:-t] if ok else h for h, ok in zip(self.h, self.long)], own=self.pairs)
        past.pos, past.N, past.norm = np.array([h[-t] for h in self.h]), self.N, self.norm
        return past


def own_pairs(h):
    parts = [(h[:-s], h[s:], np.full(len(h) - s, 0.85 ** (s - 1))) for s in range(1, min(6, len(h)))]
    return tuple(np.concatenate(x) for x in zip(*parts))


def worlds(data, name, seed, shape):
    k, a0, lam = shape
    values = {"k": str(k), "alpha0": str(a0), "lam": str(lam)}
    settings = Settings(data=name, method="fedals", new_people=0.0, seed=seed, set=values)
    task = make_task(settings, data)
    run_plan, split = plan(settings, task.facts), leave_one_out(data.histories(seed), len(data.items), seed)
    for phase, past, held_out, negatives in (
        ("search", split.train, split.valid, split.valid_negatives),
        ("final", split.train.then(split.valid), split.test, split.test_negatives),
    ):
        V = (
            train(task, (run_plan.method, run_plan.model, run_plan.sampling), phase, 8, seed)
            .shared["item"]
            .double()
            .numpy()
        )
        h = [past.of(i).astype(np.int64) for i in range(past.people)]
        V = V @ np.linalg.eigh(V.T @ V)[1]  # the same model, in its principal axes
        yield World(h, held_out.items.astype(np.int64), negatives.items.reshape(len(h), -1), V, a0, lam)


def weights(h, recency):
    return FLOOR + (1 - FLOOR) * recency ** np.arange(len(h) - 1, -1, -1.0)


def als(w, recency, rho=np.inf, metric=0.0):
    """Scores of FedALS. `rho`: strength of own rows on own items; `metric`: a private prior by factor, from own u."""
    G, eye, users = w.a0 * w.V.T @ w.V, np.eye(w.V.shape[1]), []
    for h in w.h:
        F, c = w.V[h], weights(h, recency)
        reg = w.lam * (c.sum() + w.a0 * len(w.V))
        c = c * rho / (c + rho) if rho < np.inf else c
        A, b = G + (F.T * c) @ F, F.T @ c
        u = np.linalg.solve(A + reg * eye, b)
        for _ in range(3 if metric else 0):
            u = np.linalg.solve(A + reg * eye / (1 - metric + metric * u * u / np.mean(u * u)), b)
        users.append(u)
    return (np.stack(users) @ w.V.T).astype(np.float32)


def spread(w, recency, kernel, rhos):
    """s = V u + K a: deviations a of own items (the newest 60) change similar items through K; u and a are exact."""
    size = np.linalg.norm(w.V, axis=1, keepdims=True)
    unit, k, G = w.V / np.maximum(size, 1e-12), w.V.shape[1], w.a0 * w.V.T @ w.V
    out = [np.empty((len(w.h), len(w.V)), np.float32) for _ in rhos]
    for i, h in enumerate(w.h):
        c, H = weights(h, recency), h[-60:]
        K = w.gram[:, H].toarray() if kernel == "gram" else np.square(unit @ unit[H].T)
        K = K * size * size[H].T / np.mean(size**2) if kernel == "product" else K
        Z = np.hstack([w.V[h], K[h]])
        cross, square = w.a0 * w.V.T @ K, w.a0 * K.T @ K
        A = (Z.T * c) @ Z + np.block([[G + w.lam * (c.sum() + w.a0 * len(w.V)) * np.eye(k), cross], [cross.T, square]])
        for rho, S in zip(rhos, out):
            B = A.copy()
            B[k:, k:] += rho * K[H] + 1e-6 * np.eye(len(H))
            x = np.linalg.solve(B, Z.T @ c)
            S[i] = w.V @ x[:k] + K @ x[k:]
    return out


def trail(w):
    S = np.zeros((len(w.h), len(w.V)), np.float32)
    for i, h in enumerate(w.h):
        a = np.arange(len(h) - 1, -1, -1.0)
        by = np.bincount(h, 0.7 * 0.6**a + 0.3 * 0.93**a, minlength=len(w.V))
        S[i] = by[h] @ w.N[h]
        if w.own is not None:
            p, q, v = w.own[i]
            np.subtract.at(S[i], q, by[p] * v * w.norm[0][p] * w.norm[1][q])
    return S


def z(S):
    return (S - S.mean(1, keepdims=True)) / np.maximum(S.std(1, keepdims=True), 1e-12)


def groups(V, number):
    """k-means of the directions of V."""
    unit, draw = V / np.maximum(np.linalg.norm(V, axis=1, keepdims=True), 1e-12), np.random.default_rng(0)
    centre = unit[draw.choice(len(V), number, replace=False)]
    for _ in range(15):
        label = (unit @ centre.T).argmax(1)
        centre = np.stack([unit[label == i].sum(0) if (label == i).any() else centre[i] for i in range(number)])
        centre /= np.maximum(np.linalg.norm(centre, axis=1, keepdims=True), 1e-12)
    return label


def group_bias(w, number):
    """log(a person's share of a group / everybody's share), shrunk by 20 imaginary items."""
    label = groups(w.V, number)
    share = np.bincount(label[np.concatenate(w.h)], minlength=label.max() + 1) + 1.0
    share /= share.sum()
    own = np.stack([np.bincount(label[h], minlength=len(share)) for h in w.h])
    return np.log((own + 20 * share) / ((own.sum(1)[:, None] + 20) * share))[:, label]


def ranks(w, S):
    """Ranks of the held-out items among all items outside the history; ties count against them."""
    rows, S = np.arange(len(w.h)), S.copy()
    scores = S[rows, w.pos][:, None].copy()
    S[np.repeat(rows, [*map(len, w.h)]), np.concatenate(w.h)] = -np.inf
    S[rows, w.pos] = -np.inf
    return 1 + (scores <= S).sum(1)


def evaluate(w, S) -> Pair:
    rows = np.arange(len(w.h))
    rank = 1 + (S[rows[:, None], w.neg] >= S[rows, w.pos][:, None]).sum(1)
    return {"ndcg": np.where(rank <= 10, 1 / np.log2(rank + 1.0), 0.0), "hr_full": (ranks(w, S) <= 10) * 1.0}


def choose_privately(w, options):
    """Every person chooses one of several score tables by how high it ranks each of their newest CUTS items from the
    items before it. `options(world)` yields the tables. Returns one table for each trust: a person's own evidence +
    trust x the mean evidence."""
    fit = 0.0
    for t in range(1, CUTS + 1):
        past = w.before(t)
        fit = fit + np.stack([np.where(w.long, 1 / np.log2(1.0 + ranks(past, S)), 0) for S in options(past)])
    choices = [(fit + trust * fit.mean(1, keepdims=True)).argmax(0) for trust in TRUST]
    tables = [np.zeros((len(w.h), len(w.V)), np.float32) for _ in TRUST]
    for number, S in enumerate(options(w)):
        for choice, table in zip(choices, tables):
            table[choice == number] = S[choice == number]
    return tables


def blended(w, recency):
    a, b = z(als(w, recency)), z(trail(w))
    return (a + g * b for g in BLENDS)


def families(w, recency) -> list[tuple[str, str, dict[str, Callable[[], np.ndarray]]]]:
    """(name, name of the family to compare with, {setting: function that scores all items})."""
    base, t = als(w, recency), z(trail(w))
    wide, bias = cache(lambda k: dict(zip(WIDE, spread(w, recency, k, WIDE)))), cache(lambda n: group_bias(w, n))
    times = cache(lambda: dict(zip(TRUST, choose_privately(w, lambda x: (als(x, r) for r in (*RECENCY[:3], 1.0))))))
    blend = cache(lambda: dict(zip(TRUST, choose_privately(w, lambda x: blended(x, recency)))))
    mixed = lambda k, rho, g: z(wide(k)[rho]) + g * t
    kinds = [(k, rho) for k in ("cosine", "product", "gram") for rho in WIDE]
    mixes = [(*kind, g) for kind in kinds for g in BLENDS[1:4]]
    sizes = [(n, s) for n in (10, 30, 100) for s in (0.03, 0.1, 0.3)]
    return [
        ("flat", "", {"": lambda: als(w, 1.0)}),
        ("recency", "", {"": lambda: base}),
        ("own rows, flat", "flat", {f"{r}": lambda r=r: als(w, 1.0, r) for r in RHOS}),
        ("own rows", "recency", {f"{r}": lambda r=r: als(w, recency, r) for r in RHOS}),
        ("spread rows", "recency", {f"{k} {r}": lambda k=k, r=r: wide(k)[r] for k, r in kinds}),
        ("factor prior", "recency", {f"{s}": lambda s=s: als(w, recency, metric=s) for s in (0.1, 0.3, 0.6)}),
        ("group bias", "recency", {f"{n} {s}": lambda n=n, s=s: z(base) + s * bias(n) for n, s in sizes}),
        ("own recency", "recency", {f"{r}": lambda r=r: times()[r] for r in TRUST}),
        ("shared blend", "", {f"{g}": lambda g=g: z(base) + g * t for g in BLENDS}),
        ("own blend", "shared blend", {f"{r}": lambda r=r: blend()[r] for r in TRUST}),
        ("spread rows + trail", "shared blend", {f"{k} {r} {g}": lambda o=(k, r, g): mixed(*o) for k, r, g in mixes}),
    ]


def study_factors(data, name, seeds):
    chosen, tests = {}, {}
    for seed in range(seeds):
        options = []
        for shape in SHAPES.get(name, SHAPES["amazon-video"]):
            phases = worlds(data, name, seed, shape)
            search_world = next(phases)
            options += [(evaluate(search_world, als(search_world, r))["ndcg"].mean(), r, shape) for r in RECENCY]
            if max(options)[2] == shape:
                best_world, best_phases = search_world, phases
        _, recency, shape = max(options)
        chosen[f"seed {seed}"] = {"k, alpha0, lam": shape, "serving recency": recency, "trials": len(options)}
        picks = {}
        for label, _, tables in families(best_world.trail(), recency):
            scores = {s: float(evaluate(best_world, S())["ndcg"].mean()) for s, S in tables.items()}
            picks[label] = max(scores, key=scores.get)
            chosen[f"seed {seed}"][label] = {"trials": len(scores), "chosen": picks[label], "valid_ndcg": scores}
        final = next(best_phases)
        for label, against, tables in families(final.trail(), recency):
            tests.setdefault(label, (against, []))[1].append(evaluate(final, tables[picks[label]]()))
        if not seed:
            chosen["checks"] = checks(final, recency)
    mean = {label: average(pairs) for label, (_, pairs) in tests.items()}
    results = {label: {"test": {n: round(float(v.mean()), 4) for n, v in pair.items()}} for label, pair in mean.items()}
    for label, (against, _) in tests.items():
        if against:
            results[label] |= {"against": against} | difference(mean[label], mean[against], data)
    return {"chosen": chosen, "results": results}


def checks(w, recency, people=100, rho=1.0):
    """The largest relative gaps between solving own rows jointly with u and reducing the weights. linear: d_j in place
    of <u, D_j>, one system. product: <u, D_j>, by alternation; rho becomes rho / |u|^2, and the ridge is weaker."""
    gaps, k = {"linear": 0.0, "product": 0.0}, w.V.shape[1]
    for h in w.h[:people]:
        F, c = w.V[h], weights(h, recency)
        G = w.a0 * w.V.T @ w.V + w.lam * (c.sum() + w.a0 * len(w.V)) * np.eye(k)

        def damped(rho, F=F, c=c, G=G):
            d = c * rho / (c + rho)
            return np.linalg.solve(G + (F.T * d) @ F, F.T @ d)

        Z = np.hstack([F, np.eye(len(h))])
        ridge = np.block([[G, np.zeros(F.T.shape)], [np.zeros(F.shape), rho * np.eye(len(h))]])
        u = np.linalg.solve((Z.T * c) @ Z + ridge, Z.T @ c)[:k]
        gaps["linear"] = max(gaps["linear"], float(np.linalg.norm(u - damped(rho)) / np.linalg.norm(u)))
        X = F
        for _ in range(300):
            u = np.linalg.solve(G + (X.T * c) @ X, X.T @ c)
            own = c * (1 - F @ u) / (rho + c * (u @ u))
            X = F + own[:, None] * u
        loose = rho * np.sum(own**2)
        same = damped(rho / (u @ u), G=G - loose * np.eye(k))
        gaps["product"] = max(gaps["product"], float(np.linalg.norm(u - same) / np.linalg.norm(u)))
    return gaps


def train(task, built, phase, rounds, seed, state=None):
    method, model, sampling = built
    federation = task.federation(phase, method, sampling, None)
    state = state or begin(method, model, federation, seed)
    for result in run(method, model, federation, rounds=rounds, seed=seed, state=state):
        state = result.state
    return state


def average(pairs: list[Pair]) -> Pair:
    return {n: np.mean([p[n] for p in pairs], 0) for n in pairs[0]}


def difference(one: Pair, other: Pair, data) -> dict:
    """Mean over people of one - other with a paired 95 % bootstrap interval: everybody, and by quarter of length."""
    long = np.bincount(data.person, minlength=len(data.people))
    quarter = np.searchsorted(np.quantile(long, [0.25, 0.5, 0.75]), long, side="left")
    out = {}
    for n in one:
        gap = one[n] - other[n]
        parts = {"all": gap} | {f"quarter {q + 1}": gap[quarter == q] for q in range(4)}
        out[n] = {p: {"people": len(x), "mean": round(float(x.mean()), 4), "ci": interval(x)} for p, x in parts.items()}
    return {"difference": out}
