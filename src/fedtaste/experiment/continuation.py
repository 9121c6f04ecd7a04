"""Continue a fitted model with new data: join the data, and put what was learnt into a state for more people and items.

People and items keep their numbers and new ones follow, so parameters by person or by item stay where they are. New
items and people start as in a new training; the next rounds learn them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedtaste.core import Params
from fedtaste.data.interactions import Interactions
from fedtaste.engine.run import State
from fedtaste.engine.store import Store
from fedtaste.errors import DataError
from fedtaste.experiment.result import FitResult

SHARE = 1 / 3  # of the rounds of the first training: so many are run for an update


def rounds_of_update(before: FitResult) -> int:
    """The number of rounds of an update, where none is given: a third of those of the model."""
    return math.ceil(SHARE * before.rounds)


def join(old: Interactions, new: Interactions) -> Interactions:
    """Both tables as one. Of a person and an item that stand in both, the newer interaction counts."""
    for name in ("time", "value"):
        if (getattr(old, name) is None) != (getattr(new, name) is None):
            what = {"time": "times", "value": "ratings"}[name]
            have, lack = ("model's", "new") if getattr(new, name) is None else ("new", "model's")
            raise DataError(
                f"The {have} data have {what} and the {lack} data have none. Bring data with the same columns."
            )
    people, person = _extend(old.people, new.people, new.person)
    items, item = _extend(old.items, new.items, new.item)
    titles = _described(items, (new.items, new.titles), (old.items, old.titles))
    genres = _described(items, (new.items, new.genres), (old.items, old.genres)) if old.genres or new.genres else ()
    value = None if old.value is None or new.value is None else np.concatenate([old.value, new.value])
    time = None if old.time is None or new.time is None else np.concatenate([old.time, new.time])
    both = replace(
        old, people=people, items=items, titles=titles, genres=genres, value=value, time=time,
        person=np.concatenate([old.person, person]), item=np.concatenate([old.item, item]),
    )  # fmt: skip
    keys = both.person.astype(np.int64) * len(items) + both.item
    order = np.arange(len(keys)) if time is None else np.argsort(time, kind="stable")
    _, last = np.unique(keys[order][::-1], return_index=True)
    return both.rows(np.sort(order[len(order) - 1 - last]))


def _extend(
    old: Sequence[str], new: Sequence[str], codes: NDArray[np.integer]
) -> tuple[tuple[str, ...], NDArray[np.int32]]:
    """(old names followed by those that are new, `codes` of the new names as codes of all)."""
    numbers = {name: at for at, name in enumerate(old)}
    for name in new:
        numbers.setdefault(name, len(numbers))
    table = np.array([numbers[name] for name in new], np.int32)
    return tuple(numbers), table[codes] if len(codes) else codes.astype(np.int32)


def _described(items: Sequence[str], *tables: tuple[Sequence[str], Sequence[str]]) -> tuple[str, ...]:
    """The title (or genres) of every item; later tables win, and a name stands for a missing title."""
    texts: dict[str, str] = {}
    for names, values in tables:
        texts |= dict(zip(names, values))
    has_titles = any(names is values or tuple(names) == tuple(values) for names, values in tables)
    return tuple(texts.get(name, name if has_titles else "") for name in items)


def continue_from(shared: Params, memory: Params, store: Store) -> Callable[[State], State]:
    """A function that puts these parameters into a fresh state of at least as many people and items."""

    def start(fresh: State) -> State:
        grown = {name: _grow(value, shared[name]) for name, value in fresh.shared.items()}
        sizes = {(name, tuple(old.shape)): fresh.shared[name].shape for name, old in shared.items()}
        items = {old.shape[0]: fresh.shared[name].shape[0] for name, old in shared.items() if old.ndim}
        remembered = {
            name: _grow(torch.zeros(_size(name, value, sizes, items), dtype=value.dtype), value)
            for name, value in memory.items()
        }
        everybody = np.arange(store.people)
        if store.initial:
            fresh.store.unpack_part(everybody, store.part(everybody))
        return State(grown, remembered, fresh.store, 0)

    return start


def _size(
    name: str, value: Tensor, sizes: dict[tuple[str, tuple[int, ...]], torch.Size], items: dict[int, int]
) -> tuple[int, ...]:
    """The new size of an entry of the server's memory: that of the shared parameter that it belongs to (the last part
    of its name), or else with one place for every item along each axis of the old catalogue's length."""
    belongs = sizes.get((name.rsplit(".", 1)[-1], tuple(value.shape)))
    return tuple(belongs) if belongs is not None else tuple(items.get(length, length) for length in value.shape)


def _grow(new: Tensor, old: Tensor) -> Tensor:
    """`new` with the values of `old` in its first places."""
    if new.shape == old.shape:
        return old.clone()
    out = new.clone()
    out[tuple(slice(0, length) for length in old.shape)] = old
    return out
