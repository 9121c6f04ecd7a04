"""Compute the uploads that are attacked, and their targets: the true item lists and ratings of the people.

A configuration is a list of steps, from no stages to all of them. For each step the method is trained up to the round
before, its clients run for a sample of people, and their uploads pass the step's stages. attacks/measure.py scores the
attacks against the truth.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import vmap

from fedtaste.attacks.list_recovery import Array, Knowledge
from fedtaste.attacks.scoring import popularity_neighbours
from fedtaste.core import Download, Examples, Method, Params, People, Stage, StageContext, Upload
from fedtaste.data.sampling import GROUPS, key_of, uniform
from fedtaste.engine.backends import Compact, admitted, chunks, compacted, expanded, one_of, stacked, staged, wide
from fedtaste.engine.run import State
from fedtaste.engine.store import Store
from fedtaste.federation import Federation
from fedtaste.wire.rng import derive, device_keys, seeded_key

SIZES = (1, 2, 5, 10, 100)  # people whose uploads are added up
BLOCK_BYTES = 256e6  # uploads that are in memory at once
ORDER = 71  # of the draws for the order in which people are added up


@dataclass(frozen=True, eq=False)
class Step:
    """A configuration up to one of its stages."""

    label: str
    wire: Stage = field(default_factory=Stage)
    group: int = 1  # people in the sums that the server sees
    method: Method | None = None  # None: the uploads were saved

    def on_device(self, who: int, upload: Upload, context: StageContext) -> Upload:
        """The upload as it leaves this person's device; the context is the round's. Integers where there is noise."""
        key = device_keys(context.key, np.array([who]))[0]
        upload = wide(one_of(staged(self.wire, context, stacked([upload]), [key], np.array([who]))))
        if self.wire.local and self.wire.device_noise:
            upload = self.wire.device_noise(upload, context._replace(key=derive(key, "noise")))
        return upload

    def on_server(self, total: Upload, context: StageContext, noise: bool) -> Upload:
        """A sum, or one upload, as the server's method reads it, with the server's noise or without."""
        if self.wire.server is None or not total.total:
            return total
        return self.wire.server(total, context._replace(shares=1.0 if noise and not self.wire.local else 0.0))


@dataclass(frozen=True, eq=False)
class Targets:
    """The people who are attacked, and the truth about them."""

    people: People  # in the order in which their uploads are added up
    lists: list[NDArray[np.int64]]  # their items, in the same order
    ratings: list[Array] | None  # their ratings, where the task is about ratings
    knowledge: Knowledge

    @cached_property
    def neighbours(self) -> list[NDArray[np.int64]]:
        """Neighbours by popularity of their items."""
        return [popularity_neighbours(truth, self.knowledge.popularity) for truth in self.lists]

    @cached_property
    def example(self) -> int:
        """The place of somebody with a list of usual length, for an example."""
        lengths = np.array([len(truth) for truth in self.lists])
        return int(np.argmin(np.abs(lengths - np.median(lengths))))


class Watch(Protocol):
    """Receives progress."""

    def phase(self, name: str, rounds: int, done: int) -> None: ...
    def round(self, number: int, metrics: dict[str, float] | None) -> None: ...


def shuffle(people: People, seed: int) -> People:
    """People in a seeded order, which depends on their numbers alone."""
    return np.asarray(people, np.int64)[np.argsort(uniform(people, key_of(seed, GROUPS, ORDER)), kind="stable")]


class Holdings(NamedTuple):
    """Which person has which item, each pair once, with the rating where the task is about ratings."""

    person: People
    item: NDArray[np.int64]
    rating: Array | None = None


def holdings_of(federation: Federation, kind: str, round: int) -> Holdings:
    """What everybody holds in this round (from 0)."""
    examples = federation.examples(federation.members, round, "history")
    positive = np.ones(len(examples.targets), bool) if kind == "ratings" else examples.targets > 0
    owner = np.repeat(np.arange(len(federation.members)), examples.lengths)[positive].astype(np.int64)
    item = examples.inputs[positive].astype(np.int64)
    pairs, first = np.unique(owner * federation.catalogue + item, return_index=True)
    ratings = examples.targets[positive][first].astype(np.float64) if kind == "ratings" else None
    return Holdings(federation.members[pairs // federation.catalogue], pairs % federation.catalogue, ratings)


def make_targets(holdings: Holdings, people: People, items: int, shared: Params) -> Targets:
    """The targets `people`. Popularity and mean ratings, of everybody, and the download `shared` are known to the
    attacker."""
    order = np.argsort(holdings.person, kind="stable")
    person, item = holdings.person[order], holdings.item[order]
    ends = list(zip(np.searchsorted(person, people), np.searchsorted(person, people, side="right")))
    popularity = np.bincount(item, minlength=items).astype(np.float64)
    public = {name: value.numpy() for name, value in shared.items()}
    lists = [item[a:b].astype(np.int64) for a, b in ends]
    if holdings.rating is None:
        return Targets(people, lists, None, Knowledge(items, popularity, public))
    rating = holdings.rating[order]
    means = (np.bincount(item, rating, items) + 5 * rating.mean()) / (popularity + 5)  # shrunk where ratings are few
    scale = (float(rating.min()), float(rating.max()))
    step = next((step for step in (1.0, 0.5) if not ((rating - scale[0]) % step).any()), 0.0)
    knowledge = Knowledge(items, popularity, public, means, float(np.std(rating - means[item])), scale, step)
    return Targets(people, lists, [rating[a:b] for a, b in ends], knowledge)


def produce_uploads(
    method: Method, federation: Federation, state: State, people: People
) -> Iterator[tuple[int, Upload]]:
    """(person, upload) in this order: what each device sends in the state's next round before any stage, with whole
    tables. Uploads that the server would refuse are left out."""
    size, at = 1, 0
    while at < len(people):
        part = people[at : at + size]
        at += size
        block = _block(method, federation, state, part)
        for who in part.tolist():
            if who in block:
                yield who, block[who]
                each = sum(v.numel() * v.element_size() for v in block[who].total.values())
                size = int(np.clip(BLOCK_BYTES / max(each, 1), 1, 100))


def run_clients(
    method: Method, down: Download, store: Store, people: People, examples: Examples, catalogue: int, compact: bool
) -> tuple[Upload, Tensor | None]:
    """(these people's uploads, stacked; with `compact`, the rows of the catalogue that each device holds)."""
    params, rows = down.params, None
    if compact:
        examples, rows = compacted(examples, catalogue)
        params = {n: v[rows] if n in method.rows else v for n, v in params.items()}
    dims = {n: 0 if compact and n in method.rows else None for n in params}
    client = vmap(method.client, in_dims=(Download(dims, None), 0, 0))  # type: ignore[arg-type]
    uploads, _ = client(Download(params, down.round), store.gather(people, rows), examples)
    return uploads, rows


def _block(method: Method, federation: Federation, state: State, people: People) -> dict[int, Upload]:
    """Uploads by person, computed as engine.backends.BatchedClients does, but kept apart."""
    store, catalogue, uploads = state.private, federation.catalogue, {}
    examples = federation.examples(people, state.round, method.examples)
    download = Download(state.shared, torch.tensor(float(state.round)))
    compact = any(name in method.rows for name in state.shared) or bool(store.rows)
    for chunk in chunks(examples, 128, max(method.fast.bulk, 40_000)):
        uploaded, rows = run_clients(method, download, store, people[chunk], examples.pad(chunk), catalogue, compact)
        sound, _ = admitted(uploaded, torch.ones((), dtype=torch.bool))
        dense = expanded(uploaded, sound, Compact(rows, method.rows, catalogue))
        for place, who in enumerate(people[chunk][sound.numpy()].tolist()):
            uploads[who] = Upload({n: v[place].detach() for n, v in dense.total.items()}, dense.weight[place])
    return uploads


def stage_context(seed: int, purpose: str, round: int, people: int) -> StageContext:
    """The context of a round whose random numbers follow from the seed and the purpose."""
    return StageContext(derive(seeded_key(seed), purpose, round), round, float(people))
