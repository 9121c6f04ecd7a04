"""Train as the engine does while an attacker observes what the server sees: every group's sum, and the noise on it.

`ObservedRun.train` runs the engine's own loop with a callback in place of its devices (`engine.run.run(clients=...)`).
The callback computes the sum of every group whose sum the server sees, hands it to an observer, and returns the total,
so that training goes on exactly as without an audit. Where devices add shares of the noise (secure sums), the noise of
every group is drawn here by the wire's own `device_noise`, and the server adds none (`Outcome.noise`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch

from fedtaste.core import Method, Model, Params, People, Stage, Upload
from fedtaste.engine.backends import Call, Outcome, choose_backend, collect
from fedtaste.engine.run import Round, State, begin, run
from fedtaste.federation import Federation
from fedtaste.wire.rng import derive, device_keys
from fedtaste.wire.secure_sums import SecureSum


@dataclass(frozen=True, eq=False)
class ObservedRun:
    """A run that an attacker observes. `noise_seed` seeds the noise of the audited run."""

    method: Method
    model: Model
    federation: Federation
    wire: Stage
    rounds: int
    seed: int = 0
    noise_seed: int = 0
    cohort: int | float | None = None
    dropout: float = 0.0

    def train(self, answer: Callable[[Call, State], Outcome]) -> Iterator[Round]:
        """The engine's rounds. `answer` gets a round's call and the state, whose private parameters it may change."""
        latest = [begin(self.method, self.model, self.federation, self.seed)]  # the state before the round that is run
        for done in run(
            self.method, self.model, self.federation, rounds=self.rounds, cohort=self.cohort, dropout=self.dropout,
            seed=self.seed, wire=self.wire, noise_seed=self.noise_seed, state=latest[0],
            clients=lambda call: answer(call, latest[0]),
        ):  # fmt: skip
            latest[0] = done.state
            yield done

    def sum_of(self, call: Call, people: People, state: State) -> Outcome:
        """The sum of these people's uploads after the stages on their devices; their private parameters advance."""
        examples = self.federation.examples(people, call.context.round, self.method.examples)
        part = replace(call, people=people, examples=examples, noise_shares={})
        return collect(choose_backend("auto", self.method, call.wire), self.method, part, state.private)


def noise_deviation(stages: Mapping[str, float | None], method: Method, round: int) -> float:
    """Standard deviation of the noise on one release of this round (from 0), as the configuration states it; 0 where
    there is none. `stages` are the wire's names and values, with noise that was solved for (`wire.parse.parse`).

    >>> noise_deviation({"clip": 2.0, "noise": 1.5}, Method(lambda p: ({}, p), lambda d, o, h: None), 0)
    3.0
    """
    multiplier = stages.get("noise") or stages.get("local") or 0.0
    if method.privacy.bounds:
        bound, share = method.privacy.bounds[min(round, len(method.privacy.bounds) - 1)]
        return multiplier * bound / math.sqrt(share)
    return multiplier * (stages.get("clip") or 1.0)


def visible_groups(call: Call) -> list[People]:
    """The people of every sum that the server sees in this round, of those who answered: the groups of secure sums, or
    everybody in one. (Without secure sums the server sees single uploads, which attacks/measure.py covers.)"""
    if not isinstance(call.wire.secure_sum, SecureSum) or call.requested is None:
        return [call.people]
    groups = call.wire.secure_sum.groups(call.requested, call.context)
    parts = [call.people[np.isin(call.people, np.array(group.people, np.int64))] for group in groups]
    return [part for part in parts if len(part)]


def group_noise(call: Call, people: People, like: Params) -> tuple[Params, float]:
    """(the noise that these people's devices add to their group's sum, the sum of their shares of the variance)."""
    shares = sum(call.noise_shares.get(who, 0.0) for who in people.tolist())
    if call.wire.device_noise is None or not shares:
        return {}, 0.0
    key = derive(device_keys(call.context.key, people[:1])[0], "noise")
    zeros = {name: torch.zeros(value.shape, dtype=torch.int64) for name, value in like.items()}
    context = call.context._replace(key=key, shares=shares)
    return call.wire.device_noise(Upload(zeros, torch.ones(())), context).total, shares


def to_release_units(total: Params, wire: Stage, round: int) -> Params:
    """Integers of the grid as float64 numbers in the unit of the release; other numbers as they are."""
    step = wire.grid(round) if wire.grid else 1.0
    return {n: v if v.is_floating_point() else v.double() * step for n, v in total.items()}


def enlarge_cohort(wire: Stage, people: int) -> Stage:
    """The same wire for more people than it was planned for: sums of integers must not wrap."""
    secure_sum = wire.secure_sum
    if not isinstance(secure_sum, SecureSum):
        return wire
    training = secure_sum.training and replace(secure_sum.training, most=max(people, secure_sum.training.most))
    return replace(wire, secure_sum=replace(secure_sum, most=max(people, secure_sum.most), training=training))
