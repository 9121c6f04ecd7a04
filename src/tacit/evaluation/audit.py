"""The uploads that a configuration really produces, and what is true of the people behind them.

A configuration is a list of steps, from no stages to all of them. For each step the method is trained up to the round
before, its clients run for a sample of people, and their uploads pass the step's stages. evaluation/findings.py holds
the attacks against the truth.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch.func import vmap

from ..core import Download, Method, Params, Seat, Stage, Upload
from ..data.sampling import GROUPS, key_of, uniform
from ..engine.backends import admitted, chunks, compacted, expanded, one_of, stacked, staged, wide
from ..engine.run import State
from ..federation import Federation
from ..wire.rng import derive, device_keys, seeded_key
from .attacks import Known, neighbours

Array = NDArray[np.float64]
People = NDArray[np.int64]
SIZES = (1, 2, 5, 10, 100)  # people whose uploads are added up
HELD = 256e6  # bytes of uploads that are held at once
ORDER = 71  # of the draws that say in which order people are added up


@dataclass(frozen=True, eq=False)
class Step:
    """A configuration up to one of its stages."""

    label: str
    wire: Stage = field(default_factory=Stage)
    group: int = 1  # how many people's uploads the server sees added up
    method: Method | None = None  # None: the uploads are at hand


@dataclass(frozen=True, eq=False)
class World:
    """Whom the audit is about, and what is true of them."""

    people: People  # in the order in which their uploads are added up
    lists: list[NDArray[np.int64]]  # their items, in the same order
    ratings: list[Array] | None  # what they said of them, where that is asked
    known: Known

    @cached_property
    def near(self) -> list[NDArray[np.int64]]:
        """Neighbours by popularity of their items."""
        return [neighbours(truth, self.known.popularity) for truth in self.lists]

    @cached_property
    def usual(self) -> int:
        """The place of somebody with a list of usual length, to be shown."""
        lengths = np.array([len(truth) for truth in self.lists])
        return int(np.argmin(np.abs(lengths - np.median(lengths))))


class Watch(Protocol):
    def phase(self, name: str, rounds: int, done: int) -> None: ...
    def round(self, number: int, metrics: dict[str, float] | None) -> None: ...


def order(people: People, seed: int) -> People:
    """A seeded order, by the people's numbers alone."""
    return np.asarray(people, np.int64)[np.argsort(uniform(people, key_of(seed, GROUPS, ORDER)), kind="stable")]


class Pairs(NamedTuple):
    """Who has which item, each pair once, and what they said of it, where that is asked."""

    who: People
    item: NDArray[np.int64]
    said: Array | None = None


def pairs(federation: Federation, kind: str, number: int) -> Pairs:
    """What everybody holds in this round (from 0)."""
    held = federation.examples(federation.members, number)
    keep = np.ones(len(held.targets), bool) if kind == "ratings" else held.targets > 0
    owner = np.repeat(np.arange(len(federation.members)), held.lengths)[keep].astype(np.int64)
    both, first = np.unique(owner * federation.catalogue + held.inputs[keep], return_index=True)
    said = held.targets[keep][first].astype(np.float64) if kind == "ratings" else None
    return Pairs(federation.members[both // federation.catalogue], both % federation.catalogue, said)


def world(truth: Pairs, people: People, items: int, shared: Params) -> World:
    """`people` are audited; everybody's pairs, and what was sent down, are what everybody knows."""
    sort = np.argsort(truth.who, kind="stable")
    who, item = truth.who[sort], truth.item[sort]
    ends = list(zip(np.searchsorted(who, people), np.searchsorted(who, people, side="right")))
    popularity = np.bincount(item, minlength=items).astype(np.float64)
    public = {name: value.numpy() for name, value in shared.items()}
    lists = [item[a:b].astype(np.int64) for a, b in ends]
    if truth.said is None:
        return World(people, lists, None, Known(items, popularity, public))
    said = truth.said[sort]
    means = (np.bincount(item, said, items) + 5 * said.mean()) / (popularity + 5)  # few ratings tell little
    scale = (float(said.min()), float(said.max()))
    step = next((step for step in (1.0, 0.5) if not ((said - scale[0]) % step).any()), 0.0)
    known = Known(items, popularity, public, means, float(np.std(said - means[item])), scale, step)
    return World(people, lists, [said[a:b] for a, b in ends], known)


def produce(method: Method, federation: Federation, state: State, people: People) -> Iterator[tuple[int, Upload]]:
    """(person, upload) in this order: what each of these devices sends in the state's next round before any stage, with
    whole tables. What the server's door would refuse is left out."""
    size, at = 1, 0
    while at < len(people):
        part = people[at : at + size]
        at += size
        made = _block(method, federation, state, part)
        for who in part.tolist():
            if who in made:
                yield who, made[who]
                each = sum(v.numel() * v.element_size() for v in made[who].total.values())
                size = int(np.clip(HELD / max(each, 1), 1, 100))


def _block(method: Method, federation: Federation, state: State, people: People) -> dict[int, Upload]:
    """As engine.backends.batched runs them, but each upload by itself."""
    number, store, catalogue = state.round, state.private, federation.catalogue
    held, out = federation.examples(people, number), {}
    follow = any(name in method.rows for name in state.shared) or bool(store.rows)
    for chunk in chunks(held, 128, max(method.bulk, 40_000)):
        examples, rows, params = held.pad(chunk), None, state.shared
        if follow:
            examples, rows = compacted(examples, catalogue)
            params = {n: v[rows] if n in method.rows else v for n, v in params.items()}
        dims = {n: 0 if follow and n in method.rows else None for n in params}
        one = vmap(method.client, in_dims=(Download(dims, None), 0, 0))  # type: ignore[arg-type]
        made, _ = one(Download(params, torch.tensor(float(number))), store.gather(people[chunk], rows), examples)
        good, _ = admitted(made, torch.ones((), dtype=torch.bool))
        whole = expanded(made, good, rows, method.rows, catalogue)
        for place, who in enumerate(people[chunk][good.numpy()].tolist()):
            out[who] = Upload({n: v[place].detach() for n, v in whole.total.items()}, whole.weight[place])
    return out


def sent(step: Step, who: int, upload: Upload, seat: Seat) -> Upload:
    """The upload as it leaves this person's device; the seat is the round's. Whole numbers where there is noise."""
    key = device_keys(seat.key, np.array([who]))[0]
    upload = wide(one_of(staged(step.wire, seat, stacked([upload]), [key])))
    if step.wire.local and step.wire.share:
        upload = step.wire.share(upload, seat._replace(key=derive(key, "noise")))
    return upload


def seen(step: Step, total: Upload, seat: Seat, noise: bool) -> Upload:
    """A sum, or one upload, as the numbers that somebody reads; with the server's noise on it, or without."""
    if step.wire.server is None or not total.total:
        return total
    return step.wire.server(total, seat._replace(shares=1.0 if noise and not step.wire.local else 0.0))


def seat_of(seed: int, purpose: str, number: int, people: int) -> Seat:
    return Seat(derive(seeded_key(seed), purpose, number), number, float(people))
