"""Hostile clients for `fedtaste poison`: fake or flipped histories, crafted rows, noise (simulate.py has the attacks).

A private number marks a hostile device, so that an attack is a Method like any other and runs on every backend.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedtaste.core import Download, Examples, Fast, Method, Params, People, Upload
from fedtaste.data.interactions import Histories, starts_of
from fedtaste.data.sampling import SPLIT, Ragged, distinct_negatives, key_of, uniform
from fedtaste.federation import ExampleForm, Federation
from fedtaste.params import split
from fedtaste.wire.validation import LIMIT

MARK = "hostile"  # a private number: 0, or 1 + the hostile person's number


def _replace_histories(histories: Histories, people: People, lists: Sequence[NDArray[np.int32]]) -> Histories:
    """The same histories, with `lists` for these people."""
    parts = [histories.of(person) for person in range(histories.people)]
    for person, items in zip(people, lists):
        parts[person] = items
    starts = starts_of(np.array([len(part) for part in parts]))
    return Histories(starts, np.concatenate(parts).astype(np.int32), np.ones(starts[-1], np.float32))


def fake_profiles(histories: Histories, catalogue: int, hostile: People, target: int, seed: int) -> Histories:
    """Everybody's histories, where those of hostile people have the usual length: the target, and a seeded half of the
    most popular items."""
    usual = max(2, int(np.median(histories.lengths[histories.lengths > 0])))
    counts = np.bincount(histories.items, minlength=catalogue)
    popular = np.argsort(-counts, kind="stable")[: min(2 * usual, catalogue)]
    popular, key = popular[popular != target], key_of(seed, SPLIT, 9)
    lists = []
    for person in hostile:
        draw = uniform(popular + catalogue * int(person), key)
        lists.append(np.append(target, popular[np.argsort(draw, kind="stable")[: usual - 1]]).astype(np.int32))
    return _replace_histories(histories, hostile, lists)


def flip_histories(histories: Histories, catalogue: int, hostile: People, seed: int) -> Histories:
    """Everybody's histories, where a hostile person's items are replaced by as many that they do not really have."""
    mine = histories.take(hostile)
    other = distinct_negatives(mine, catalogue, int(mine.lengths.max(initial=1)), key_of(seed, SPLIT, 10))
    lists = [other.of(place)[: len(mine.of(place))] for place in range(len(hostile))]
    return _replace_histories(histories, hostile, lists)


def put_target_first(federation: Federation, hostile: People, target: int) -> Federation:
    """The same examples, where the target is a hostile person's first one: so its row is known to a device that holds
    touched rows only."""

    def reordered(people: People, round: int, form: ExampleForm) -> Ragged:
        examples = federation.examples(people, round, form)
        inputs, targets = examples.inputs.copy(), examples.targets.copy()
        for place in np.flatnonzero(np.isin(people, hostile)):
            begin, end = examples.starts[place], examples.starts[place + 1]
            at = begin + int(np.flatnonzero(inputs[begin:end] == target)[0])
            for array in (inputs, targets):
                array[[begin, at]] = array[[at, begin]]
        return replace(examples, inputs=inputs, targets=targets)

    return replace(federation, examples=reordered)


def _length(rows: Tensor) -> Tensor:
    return (rows**2).reshape(rows.shape[0], -1).sum(1).sqrt()


def _promote(upload: Upload, down: Download, examples: Examples, rows: tuple[str, ...], size: float) -> Params:
    """A device's upload with a crafted row of the target, which is the item of the first example."""
    first, total = examples.inputs[0, :1], dict(upload.total)
    liked = (examples.targets * examples.mask).clone().flatten().index_fill(0, torch.zeros(1, dtype=torch.int64), 0.0)
    for name in [name for name in total if name in rows]:
        value = total[name]
        if name in down.params and down.params[name].shape == value.shape:
            middle = torch.tensordot(liked, down.params[name][examples.inputs.flatten()], 1)
            longest = size * _length(value).amax()
            row = (middle / middle.norm().clamp(min=1e-12) * longest).clamp(-LIMIT / 2, LIMIT / 2)[None]
        else:
            row = (value[first] * _row_factors(name, value, down, size)).clamp(-LIMIT / 2, LIMIT / 2)
        total[name] = value.index_add(0, first, row - value[first])
    return total


def _row_factors(name: str, table: Tensor, down: Download, size: float) -> Tensor:
    """Factors of the columns of a crafted row. In FedALS's `sums`, [x x', x, 1], only x is lengthened, because an
    item's factors v solve (sum of x x') v = sum of x; in rounds without the count, all columns are."""
    k = down.params["item"].shape[1]
    triangle = k * (k + 1) // 2
    if name != "sums" or table.shape[1] != triangle + k + 1:
        return torch.full((table.shape[1],), size)
    return torch.cat([torch.ones(triangle), torch.full((k,), size), torch.ones(1)])


def _pseudo_normal(seed: Tensor, like: Tensor) -> Tensor:
    """Roughly normal numbers in the shape of `like`, from a hash that runs under vmap; nothing depends on their
    quality."""
    at = torch.arange(1, like.numel() + 1, dtype=torch.float64).reshape(like.shape)
    hashed = [torch.sin(at * 12.9898 + (seed + part) * 78.233) * 43758.5453 for part in (1, 2)]
    first, second = ((value - torch.floor(value)).clamp(min=1e-9) for value in hashed)
    return (torch.sqrt(-2 * torch.log(first)) * torch.cos(2 * torch.pi * second)).to(like.dtype)


def _noise(upload: Upload, down: Download, mark: Tensor, size: float) -> Params:
    """Noise in place of every number of an upload, `size` times as long as the upload."""
    out = {}
    for place, (name, value) in enumerate(sorted(upload.total.items())):
        noise = _pseudo_normal(mark.long() * 1009 + down.round.long() * 31 + place, value)
        factor = size * (value**2).sum().sqrt() / (noise**2).sum().sqrt().clamp(min=1e-12)
        out[name] = (factor * noise).clamp(-LIMIT / 2, LIMIT / 2)
    return out


def hostile_method(method: Method, attack: str, size: float) -> Method:
    """The method with hostile devices: those whose private MARK is not 0."""

    def init(params: Params) -> tuple[Params, Params]:
        shared, private = method.init(params)
        return shared, private | {MARK: torch.zeros(())}

    def client(down: Download, private: Params, examples: Examples) -> tuple[Upload, Params]:
        mark = private[MARK]
        upload, private = method.client(down, split(private, [MARK])[0], examples)
        if attack == "promote":
            crafted = _promote(upload, down, examples, method.rows, size)
        else:
            crafted = _noise(upload, down, mark, size)
        total = {name: torch.where(mark > 0, crafted[name], value) for name, value in upload.total.items()}
        return Upload(total, upload.weight), private | {MARK: mark}

    def personalize(shared: Params, private: Params, examples: Examples) -> Params:
        return method.personalize(shared, split(private, [MARK])[0], examples)

    return method.replace(init=init, client=client, personalize=personalize, fast=Fast())
