"""One training run with canaries, and the figures of the membership audit that follow from it (`audit_membership`)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..core import Method, Model, Params, Stage, Upload
from ..engine.backends import Call, Outcome, one_of, stacked, staged
from ..engine.run import State
from ..engine.store import Store
from ..federation import Federation
from ..wire.rng import derive, device_keys
from .audit import Watch
from .canaries import Canaries, design, loud
from .membership import (
    ERROR,
    Evidence,
    coins,
    combined,
    epsilon_lower,
    gaussian_lower,
    guessed,
    inner,
    overlaps,
    tpr_at,
)
from .noise_checks import noise_ratio, on_grid
from .observed import Released, deviation, enlarged, group_noise, groups_of, in_units, rounds_of, summed
from .scoring import personal_scores

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]
MOST = 2000  # canaries
FEWEST = 20
SHORT, REPEATED = 5, 5000  # runs of at most so many rounds are repeated until there were so many canaries in all
WHOLE = 20_000_000  # numbers of canaries' uploads in a round with local noise: every one of them is drawn
EXACT = 1e-3  # of an upload's length: taken as the deviation where there is no noise


@dataclass(eq=False)
class Trial:
    """Answers in place of the devices and gathers evidence. `quiet` is the wire without noise on devices; `stages` are
    its names and values; `rate` is below 1 where the accountant counts secret sampling coins."""

    method: Method
    federation: Federation
    wire: Stage
    quiet: Stage
    stages: Mapping[str, float | None]
    canaries: Canaries
    rate: float
    released: Released
    evidence: Evidence = field(init=False)
    pending: tuple[dict[str, Any], Bools, Bools, Params] | None = None  # uploads, in the sum, asked, real people's sum

    def __post_init__(self) -> None:
        self.evidence = Evidence.none(len(self.canaries.histories))

    def answer(self, call: Call, state: State) -> Outcome:
        """The sum of the real people and of the canaries that are in."""
        people = call.people[call.people < self.canaries.first]
        real = summed(self.method, self.federation, call, people, state)
        present = np.isin(self.canaries.people, call.people)
        u, weights = self.canaries.uploads(self.method, call, self.quiet, self.federation.catalogue)
        if real.upload is None or not u:
            return real
        inside, like = self.canaries.inside & present, real.upload.total
        self.pending = None
        if "local" in self.stages:
            added = self._alone(call, u, inside, like)
        elif self.wire.seal is not None:
            added = self._grouped(call, u, inside, present, like)
        else:
            added, self.pending = combined(u, inside.astype(float)), (u, inside, present, like)
        total = {n: v + self._as_sent(added[n], v, call.seat.round) for n, v in like.items()}
        weight = real.upload.weight + float(weights[inside].sum())
        noise = float(bool(call.parts))  # devices have added it
        answered = real.answered + int(inside.sum())
        return Outcome(Upload(total, weight), Counter(real.refused), real.first, answered, noise=noise)

    def _as_sent(self, added: Array, like: torch.Tensor, round: int) -> torch.Tensor:
        """Numbers in the unit of the release as what the sum of uploads is made of."""
        value = torch.from_numpy(added.reshape(like.shape))
        if like.is_floating_point() or self.wire.grid is None:
            return value.to(like.dtype)
        return torch.round(value / self.wire.grid(round)).long()

    def scale(self, u: Mapping[str, Any], round: int, shares: float = 1.0) -> float:
        """Variance of the noise; a trifle where there is none."""
        variance = deviation(self.stages, self.method, round) ** 2 * shares
        if variance:
            return variance
        lengths = sum(float((value.multiply(value) if hasattr(value, "multiply") else value**2).sum()) for value in
                      u.values())  # fmt: skip
        return EXACT**2 * lengths / max(len(self.canaries.histories), 1) or 1.0

    def check_grid(self, round: int) -> None:
        """Self-test of the released numbers: which values can occur must not depend on the data."""
        if self.wire.grid is not None:
            values = self.released.last.values()
            self.evidence.on_grid &= all(on_grid(numbers(value), self.wire.grid(round)) for value in values)

    def observe(self, round: int) -> None:
        """Evidence of a sum that the server has seen after all stages."""
        if self.pending is None:
            return
        (u, inside, present, real), e = self.pending, self.evidence
        variance, secret = self.scale(u, round), self.rate < 1
        known = in_units(real, self.wire, round)
        z = {n: numbers(v) - numbers(known[n]) for n, v in self.released.last.items() if n in u}
        noise = {n: z[n] - part for n, part in combined(u, inside.astype(float)).items()}
        half = combined(u, np.full(len(inside), self.rate / 2) if secret else present.astype(float) / 2)
        z = {n: z[n] - half[n] for n in z}
        along, gram = inner(u, z) / variance, overlaps(u, None) / variance
        e.noise(noise, variance if deviation(self.stages, self.method, round) else 0.0)
        if secret:
            own = np.diag(gram)
            ratio = along + (self.rate / 2 - 0.5) * own  # the others at their mean, oneself out
            e.plain = (0 if e.plain is None else e.plain) + np.logaddexp(
                math.log1p(-self.rate), math.log(self.rate) + ratio
            )
        e.along += along * present
        e.gram += gram * np.outer(present, present)

    def _grouped(self, call: Call, u: dict[str, Any], inside: Bools, present: Bools, like: Params) -> dict[str, Array]:
        """Sealed sums: the server sees every group's sum with the noise of its devices."""
        e, total = self.evidence, combined(u, inside.astype(float))
        gram, coin = overlaps(u, None), inside - 0.5 * present
        for people in groups_of(call):
            mine = np.isin(self.canaries.people, people)
            noise, shares = group_noise(call, people, like)
            variance = self.scale(u, call.seat.round, shares or 1.0)
            flat = {n: numbers(v) for n, v in in_units(noise, self.wire, call.seat.round).items()}
            e.noise(flat, variance)
            for name, value in flat.items():
                total[name] += value
            at = np.flatnonzero(mine)
            if len(at):
                block = gram[np.ix_(at, at)]
                e.along[at] += block @ coin[at] / variance
                e.gram[np.ix_(at, at)] += block / variance
                if flat:
                    e.along[at] += inner({n: value[at] for n, value in u.items()}, flat) / variance
        return total

    def _alone(self, call: Call, u: dict[str, Any], inside: Bools, like: Params) -> dict[str, Array]:
        """Noise on devices: the server sees every canary's upload by itself. Who is out sends nothing but noise."""
        e, variance, wire = self.evidence, self.scale(u, call.seat.round), self.wire
        assert wire.share is not None
        real = in_units(
            group_noise(call, call.people[call.people < self.canaries.first], like)[0], wire, call.seat.round
        )
        total = {name: numbers(value) for name, value in real.items()}  # the noise of the real people's devices
        for place, key in enumerate(device_keys(call.seat.key, self.canaries.people)):
            plain = {n: v[[place]].toarray()[0] if hasattr(v, "toarray") else v[place] for n, v in u.items()}
            sent = {n: torch.from_numpy(inside[place] * v).reshape(like[n].shape) for n, v in plain.items()}
            whole = one_of(staged(wire, call.seat, stacked([Upload(sent, torch.ones(()))]), [key]))
            noisy = wire.share(whole, call.seat._replace(key=derive(key, "noise"), shares=1.0))
            seen = in_units(noisy.total, wire, call.seat.round)
            for name, value in plain.items():
                got = numbers(seen[name])
                e.along[place] += float((got - 0.5 * value) @ value) / variance
                e.gram[place, place] += float(value @ value) / variance
                e.noise({name: got - inside[place] * value}, variance)
                total[name] += got
        return total


def numbers(value: torch.Tensor) -> Array:
    """A parameter as a flat array of double precision."""
    return np.asarray(value.detach().double().numpy().ravel())


@dataclass(frozen=True, eq=False)
class Setup:
    """What is audited."""

    method: Method
    model: Model
    federation: Federation
    wire: Stage
    quiet: Stage  # without noise on devices
    stages: Mapping[str, float | None]  # names and values of the wire, the noise written out
    rounds: int
    popularity: Array  # people who have an item, among the real ones
    rate: float = 1.0  # below 1 where the accountant counts secret sampling
    value: float = 1.0  # target of a canary's examples
    cohort: int | float | None = None
    dropout: float = 0.0
    seed: int = 0


def audit_membership(
    setup: Setup, delta: float, *, most: int | None = None, noise_seed: int = 0, coin_seed: int | None = None,
    watch: Watch | None = None,
) -> dict[str, Any] | None:  # fmt: skip
    """The membership audit of a configuration; None where it does not apply: nothing is sent, everything is handed
    over, or uploads are not added. `most` canaries at most in a run. A run of few rounds is repeated with fresh noise
    and fresh coins, which gives more guesses; a canary is in one of the runs only, so the theorem holds for all
    canaries together."""
    if setup.method.pooled or setup.wire.combine is not None or most == 0:
        return None
    histories = design(setup.popularity, min(most or MOST, MOST))
    shared, private = setup.method.init(setup.model.init(torch.Generator().manual_seed(setup.seed)))
    if setup.wire.local:
        size = max(sum(value.numel() for value in shared.values()), 1)
        histories = histories[: max(FEWEST, WHOLE // size)]
    noisy = any(deviation(setup.stages, setup.method, round) for round in range(setup.rounds))
    if not noisy:  # the first round's exact sums tell every coin: later rounds and the final model add nothing
        setup = replace(setup, rounds=1)
    repeats = int(np.clip(round(REPEATED / len(histories)), 1, 20)) if noisy and setup.rounds <= SHORT else 1
    if watch:
        watch.phase("training with canaries", repeats * setup.rounds, 0)
    trials, finals = [], []
    for repeat in range(repeats):
        side = coins(len(histories), None if coin_seed is None else coin_seed + repeat)
        store = Store.fresh(loud(private), len(histories), setup.method.rows)
        canaries = Canaries(histories, side, setup.federation.people, store, setup.value)
        trial, state = one_run(setup, canaries, noise_seed + repeat, repeat * setup.rounds, watch)
        if state is None or not trial.evidence.gram.any():
            return None
        trials.append(trial)
        finals.append(final_scores(setup.method, setup.model, state, canaries, setup.popularity))
    scores = {"all rounds": np.concatenate([trial.evidence.ratios() for trial in trials])}
    if noisy:
        scores["final model"] = np.concatenate(finals)
    inside = np.concatenate([trial.canaries.inside for trial in trials])
    square, count = (sum(getattr(trial.evidence, name) for trial in trials) for name in ("square", "count"))
    ratio = [round(x, 6) for x in noise_ratio(square, int(count))] if count else None
    on_the_grid = all(trial.evidence.on_grid for trial in trials) if setup.wire.grid else None
    gaussian = noisy and all(trial.evidence.plain is None for trial in trials)  # sampling by secret coins is not
    return figures(scores, inside, delta, gaussian) | {"runs": repeats, "noise_ratio": ratio, "on_grid": on_the_grid}


def one_run(
    setup: Setup, canaries: Canaries, noise_seed: int, done: int, watch: Watch | None
) -> tuple[Trial, State | None]:
    """Train once with these canaries; `done` rounds are behind for the progress."""
    members = np.concatenate([setup.federation.members, canaries.people])
    everybody, released = replace(setup.federation, members=members), Released({})
    wire, quiet = (enlarged(stage, len(members)) for stage in (setup.wire, setup.quiet))
    trial = Trial(setup.method, setup.federation, wire, quiet, setup.stages, canaries, setup.rate, released)
    state: State | None = None
    for round in rounds_of(
        setup.method, setup.model, everybody, released.recording(wire), setup.rounds, trial.answer, seed=setup.seed,
        noise_seed=noise_seed, cohort=setup.cohort, dropout=setup.dropout,
    ):  # fmt: skip
        trial.check_grid(round.number - 1)
        trial.observe(round.number - 1)
        state = round.state
        if watch:
            watch.round(done + round.number, None)
    return trial, state


def figures(scores: dict[str, Array], inside: Bools, delta: float, gaussian: bool = False) -> dict[str, Any]:
    """The result: of every test, and of the one with the largest bound. `gaussian`: the noise is stated as Gaussian."""
    tests: dict[str, dict[str, Any]] = {}
    error = ERROR / (len(scores) + gaussian)
    for name, values in scores.items():
        guesses, correct = guessed(values, inside)
        bound = round(epsilon_lower(len(inside), guesses, correct, delta, error), 6)
        tests[name] = {"guesses": guesses, "correct": correct, "epsilon_lower": bound}
        tests[name]["tpr_at_fpr_0.001"] = tpr_at(values, inside)
    if gaussian:
        bound, correct = gaussian_lower(scores["all rounds"], inside, delta, error)
        tests["Gaussian noise"] = {"guesses": len(inside), "correct": correct, "epsilon_lower": round(bound, 6)}
    by = max(tests, key=lambda name: float(tests[name]["epsilon_lower"]))
    best = tests[by]
    return {
        "canaries": len(inside), "inside": int(inside.sum()), "guesses": best["guesses"], "correct": best["correct"],
        "confidence": 1 - ERROR, "by": by, "delta": delta, "epsilon_lower": best["epsilon_lower"],
        "largest": round(_largest(by, len(inside), best["guesses"], delta, error), 6),
        "tpr_at_fpr_0.001": tests["all rounds"]["tpr_at_fpr_0.001"], "tests": tests,
    }  # fmt: skip


def _largest(test: str, canaries: int, guesses: int, delta: float, error: float) -> float:
    """The bound that this test would have reached had every guess been correct."""
    if test != "Gaussian noise":
        return epsilon_lower(canaries, guesses, guesses, delta, error)
    half = np.arange(canaries) < canaries // 2
    return gaussian_lower(half.astype(np.float64) - 0.5, half, delta, error)[0]


def final_scores(method: Method, model: Model, state: State, canaries: Canaries, popularity: Array) -> Array:
    """The mean score of a canary's items in the final model with the canary's private parameters, less what the
    popularity of the items explains (a least-squares fit on their number of people and its logarithm)."""
    many = len(canaries.histories)
    width = min(len(history) for history in canaries.histories)
    items = np.stack([history[:width] for history in canaries.histories])
    scores = np.zeros(many)
    for part, values in personal_scores(
        method, model, state.shared, canaries.store, np.arange(many), canaries.held, torch.from_numpy(items)
    ):
        scores[part] = values.double().mean(1).numpy()
    scores = np.nan_to_num(scores)
    count = popularity[items].sum(1)
    known = np.stack([np.ones(many), count, np.log1p(count)], 1)
    rest = scores - known @ np.linalg.lstsq(known, scores, rcond=None)[0]
    return np.asarray(rest / max(float(rest.std()), 1e-300))
