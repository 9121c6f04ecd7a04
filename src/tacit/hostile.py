"""What hostile people hold and send: fake histories, flipped ones, crafted rows, noise. See poisoning.py for why.

A hostile device is told by a private number, so that an attack is a Method like any other and runs on every backend.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .core import Download, Examples, Method, Params, Upload
from .data.interactions import Histories
from .data.sampling import SPLIT, Ragged, distinct_negatives, key_of, uniform
from .federation import Federation
from .wire.admission import LIMIT

People = NDArray[np.int64]
MARK = "hostile"  # a private number: 0, or 1 + the hostile person's number


def _with(histories: Histories, people: People, lists: Sequence[NDArray[np.int32]]) -> Histories:
    """The same histories, but these people's are `lists`."""
    parts = [histories.of(person) for person in range(histories.people)]
    for person, items in zip(people, lists):
        parts[person] = items
    starts = np.concatenate([[0], np.cumsum([len(part) for part in parts])]).astype(np.int64)
    return Histories(starts, np.concatenate(parts).astype(np.int32), np.ones(starts[-1], np.float32))


def fake_profiles(histories: Histories, catalogue: int, hostile: People, target: int, seed: int) -> Histories:
    """Everybody's histories; hostile people's are as long as is usual: the target, and a seeded choice for each of
    the most popular items, one in two of them."""
    usual = max(2, int(np.median(histories.lengths[histories.lengths > 0])))
    counts = np.bincount(histories.items, minlength=catalogue)
    popular = np.argsort(-counts, kind="stable")[: min(2 * usual, catalogue)]
    popular, key = popular[popular != target], key_of(seed, SPLIT, 9)
    lists = []
    for person in hostile:
        draw = uniform(popular + catalogue * int(person), key)
        lists.append(np.append(target, popular[np.argsort(draw, kind="stable")[: usual - 1]]).astype(np.int32))
    return _with(histories, hostile, lists)


def flipped(histories: Histories, catalogue: int, hostile: People, seed: int) -> Histories:
    """Everybody's histories; hostile people have as many items that they did not take, and not those that they did."""
    mine = histories.take(hostile)
    other = distinct_negatives(mine, catalogue, int(mine.lengths.max(initial=1)), key_of(seed, SPLIT, 10))
    lists = [other.of(place)[: len(mine.of(place))] for place in range(len(hostile))]
    return _with(histories, hostile, lists)


def target_first(federation: Federation, hostile: People, target: int) -> Federation:
    """The same examples, but a hostile person's first one is the target: so its row is known to a device that holds
    touched rows only."""

    def held(people: People, round: int) -> Ragged:
        made = federation.examples(people, round)
        inputs, targets = made.inputs.copy(), made.targets.copy()
        for place in np.flatnonzero(np.isin(people, hostile)):
            begin, end = made.starts[place], made.starts[place + 1]
            at = begin + int(np.flatnonzero(inputs[begin:end] == target)[0])
            for array in (inputs, targets):
                array[[begin, at]] = array[[at, begin]]
        return replace(made, inputs=inputs, targets=targets)

    return replace(federation, examples=held)


def _length(rows: Tensor) -> Tensor:
    return (rows**2).reshape(rows.shape[0], -1).sum(1).sqrt()


def _promoted(upload: Upload, down: Download, held: Examples, rows: tuple[str, ...], size: float) -> Params:
    """A device's upload with the target's row (that of its first example) crafted."""
    first, total = held.inputs[0, :1], dict(upload.total)
    liked = (held.targets * held.mask).clone().flatten().index_fill(0, torch.zeros(1, dtype=torch.int64), 0.0)
    for name in [name for name in total if name in rows]:
        value = total[name]
        if name in down.params and down.params[name].shape == value.shape:
            middle = torch.tensordot(liked, down.params[name][held.inputs.flatten()], 1)
            longest = size * _length(value).amax()
            row = (middle / middle.norm().clamp(min=1e-12) * longest).clamp(-LIMIT / 2, LIMIT / 2)[None]
        else:
            row = (value[first] * _boost(value, down, size)).clamp(-LIMIT / 2, LIMIT / 2)
        total[name] = value.index_add(0, first, row - value[first])
    return total


def _boost(sums: Tensor, down: Download, size: float) -> Tensor:
    """Of FedALS's [x x', x, 1] only x is lengthened: an item's factors v solve (sum of x x') v = sum of x."""
    k = down.params["item"].shape[1]
    if sums.shape[1] != k * (k + 1) // 2 + k + 1:
        return torch.full((sums.shape[1],), size)
    return torch.cat([torch.ones(k * (k + 1) // 2), torch.full((k,), size), torch.ones(1)])


def _pseudo_normal(seed: Tensor, like: Tensor) -> Tensor:
    """Numbers that look normal, in the shape of `like`, from a hash that runs under vmap; nothing depends on their
    quality."""
    at = torch.arange(1, like.numel() + 1, dtype=torch.float64).reshape(like.shape)
    hashed = [torch.sin(at * 12.9898 + (seed + part) * 78.233) * 43758.5453 for part in (1, 2)]
    first, second = ((value - torch.floor(value)).clamp(min=1e-9) for value in hashed)
    return (torch.sqrt(-2 * torch.log(first)) * torch.cos(2 * torch.pi * second)).to(like.dtype)


def _noise(upload: Upload, down: Download, mark: Tensor, size: float) -> Params:
    out = {}
    for place, (name, value) in enumerate(sorted(upload.total.items())):
        drawn = _pseudo_normal(mark.long() * 1009 + down.round.long() * 31 + place, value)
        long = size * (value**2).sum().sqrt() / (drawn**2).sum().sqrt().clamp(min=1e-12)
        out[name] = (long * drawn).clamp(-LIMIT / 2, LIMIT / 2)
    return {name: out[name] for name in upload.total}


def hostile_method(method: Method, attack: str, size: float) -> Method:
    """The method on devices of which some are hostile: those whose private MARK is not 0."""

    def init(params: Params) -> tuple[Params, Params]:
        shared, own = method.init(params)
        return shared, own | {MARK: torch.zeros(())}

    def client(down: Download, own: Params, held: Examples) -> tuple[Upload, Params]:
        mark = own[MARK]
        upload, kept = method.client(down, {n: v for n, v in own.items() if n != MARK}, held)
        if attack == "promote":
            bad = _promoted(upload, down, held, method.rows, size)
        else:
            bad = _noise(upload, down, mark, size)
        total = {name: torch.where(mark > 0, bad[name], value) for name, value in upload.total.items()}
        return Upload(total, upload.weight), kept | {MARK: mark}

    def personalize(shared: Params, own: Params, held: Examples) -> Params:
        return method.personalize(shared, {n: v for n, v in own.items() if n != MARK}, held)

    return method.but(init=init, client=client, personalize=personalize, kernel=None)
