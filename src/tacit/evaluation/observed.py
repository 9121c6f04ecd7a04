"""A training run as an attacker observes it: the releases of every round, group by group.

`rounds_of` runs the engine's own loop with a callback in place of its devices (`engine.run.run(clients=...)`). The
callback computes the sum of every group of people whose sum the server sees, hands it to an observer, and returns the
total, so that training goes on exactly as without an audit. Where devices add shares of the noise (sealed sums), the
noise of every group is drawn here by the wire's own `share`, and the server adds none (`Outcome.noise`).

What an audit knows of noise and of number formats stands here, each in one function: `noise_seed_of`, `deviation`,
`group_noise`, `groups_of`, `in_units`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..core import Method, Model, Params, Stage, Upload
from ..engine.backends import Call, Outcome, choose, collect
from ..engine.run import Round, State, begin, run
from ..federation import Federation
from ..wire.rng import derive, device_keys

People = NDArray[np.int64]
Answer = Callable[[Call], Outcome]


def noise_seed_of(seed: int, noise_seed: int | None) -> int:
    """The seed from which the audited run draws its noise."""
    return seed if noise_seed is None else noise_seed


def deviation(stages: Mapping[str, float | None], method: Method, round: int) -> float:
    """Standard deviation of the noise on one release of this round (from 0), as the configuration states it; 0 where
    there is none. `stages` are the wire's names and values with the noise written out (`wire.plan.parse`).

    >>> deviation({"clip": 2.0, "noise": 1.5}, Method(lambda p: ({}, p), lambda d, o, h: None), 0)
    3.0
    """
    multiplier = stages.get("noise") or stages.get("local") or 0.0
    if method.release:
        bound, share = method.release[min(round, len(method.release) - 1)]
        return multiplier * bound / math.sqrt(share)
    return multiplier * (stages.get("clip") or 1.0)


def groups_of(call: Call) -> list[People]:
    """The people of every sum that the server sees in this round, those who answered only: the groups of secure sums,
    or everybody in one. (Without secure sums the server sees single uploads; that is not asked here.)"""
    if call.wire.seal is None or call.asked is None:
        return [call.people]
    groups = call.wire.seal.groups(call.asked, call.seat)  # type: ignore[attr-defined]
    parts = [call.people[np.isin(call.people, np.array(group.people, np.int64))] for group in groups]
    return [part for part in parts if len(part)]


def group_noise(call: Call, people: People, like: Params) -> tuple[Params, float]:
    """(the noise that these people's devices add to their group's sum, the sum of their shares of the variance)."""
    shares = sum(call.parts.get(who, 0.0) for who in people.tolist())
    if call.wire.share is None or not shares:
        return {}, 0.0
    key = derive(device_keys(call.seat.key, people[:1])[0], "noise")
    zeros = {name: torch.zeros(value.shape, dtype=torch.int64) for name, value in like.items()}
    seat = call.seat._replace(key=key, shares=shares)
    return call.wire.share(Upload(zeros, torch.ones(())), seat).total, shares


def in_units(total: Params, wire: Stage, round: int) -> Params:
    """Whole numbers of the grid as numbers in the unit of the release, in double precision; others as they are."""
    step = wire.grid(round) if wire.grid else 1.0
    return {n: v if v.is_floating_point() else v.double() * step for n, v in total.items()}


def enlarged(wire: Stage, people: int) -> Stage:
    """The same wire for more people than it was planned for: sums of whole numbers must not wrap."""
    if wire.seal is None or getattr(wire.seal, "most", people) >= people:
        return wire
    return replace(wire, seal=replace(wire.seal, most=people))  # type: ignore[type-var]


@dataclass(eq=False)
class Released:
    """Keeps what the server's method receives: the sum after all stages."""

    last: Params

    def recording(self, wire: Stage) -> Stage:
        def server(upload: Upload, seat: Any) -> Upload:
            upload = wire.server(upload, seat) if wire.server else upload
            self.last = upload.total
            return upload

        return replace(wire, server=server)


def rounds_of(
    method: Method, model: Model, federation: Federation, wire: Stage, rounds: int, answer: Callable[[Call, State],
    Outcome], *, seed: int, noise_seed: int, cohort: int | float | None = None, dropout: float = 0.0,
) -> Iterator[Round]:  # fmt: skip
    """The engine's rounds; `answer` gets each round's call and the state whose private parameters it may advance."""
    state = begin(method, model, federation, seed)
    yield from run(
        method, model, federation, rounds=rounds, cohort=cohort, dropout=dropout, seed=seed, wire=wire,
        noise_seed=noise_seed, state=state, clients=lambda call: answer(call, state),
    )  # fmt: skip


def summed(method: Method, federation: Federation, call: Call, people: People, state: State) -> Outcome:
    """What these people upload in sum, after the stages on their devices; their private parameters advance."""
    held = federation.examples(people, call.seat.round)
    part = replace(call, people=people, examples=held, parts={})
    return collect(choose("auto", method, call.wire), method, part, state.private)
