"""Continue a fitted model with new data: join the data, and put what was learnt into a state for more people and items.

People and items keep their numbers and new ones follow, so parameters by person or by item stay where they are. New
items and people start as in a new training; the next rounds learn them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedtaste.core import Params, People
from fedtaste.data.interactions import Interactions, hash_pairs
from fedtaste.data.vocabulary import UNKNOWN, PeopleGroups
from fedtaste.engine.run import State
from fedtaste.errors import DataError
from fedtaste.experiment.settings import Settings
from fedtaste.signature import Values

SHARE = 1 / 3  # of the rounds of the first training: so many are run for an update


def rounds_of_update(rounds: int) -> int:
    """The number of rounds of an update, where none is given: a third of the rounds of the model, rounded up."""
    return math.ceil(SHARE * rounds)


def shortened(settings: Settings, before: Values, rounds: int, changes: Values) -> Settings:
    """The settings of an update of a model that was trained with `before` for `rounds` rounds: a third of the rounds,
    or of the participations where the method counts these; unless `changes` have another number."""
    if "participations" not in before:
        return settings.model_copy(update={"rounds": rounds_of_update(rounds)})
    others = {name: value for name, value in settings.set.items() if name != "participations"}
    if changes.get("rounds") is None:
        others["participations"] = str(rounds_of_update(cast(int, before["participations"])))
    return settings.model_copy(update={"rounds": None, "set": others})


def join(old: Interactions, new: Interactions) -> Interactions:
    """Both tables as one. Of a person and an item that stand in both, the newer interaction counts."""
    for name, what in (("time", "times"), ("value", "ratings")):
        if getattr(old, name) is not None and getattr(new, name) is None:
            raise DataError(f"The model's data have {what} and the new data have none. Bring the same columns.")
    people, person = _extend(old.people, new.people, new.person)
    items, item = _extend(old.items, new.items, new.item)
    titles = _described(items, (new.items, new.titles), (old.items, old.titles))
    genres = _described(items, (new.items, new.genres), (old.items, old.genres)) if old.genres or new.genres else ()
    value = None if old.value is None or new.value is None else np.concatenate([old.value, new.value])
    time = None if old.time is None or new.time is None else np.concatenate([old.time, new.time])
    ties = None if old.ties is None else np.concatenate([old.ties, hash_pairs(person, item, 0)])
    both = replace(
        old, people=people, items=items, titles=titles, genres=genres, value=value, time=time, ties=ties,
        person=np.concatenate([old.person, person]), item=np.concatenate([old.item, item]),
        groups=_join_groups(people, old, new),
    )  # fmt: skip
    keys = both.person.astype(np.int64) * len(items) + both.item
    order = np.arange(len(keys)) if time is None else np.argsort(time, kind="stable")
    _, last = np.unique(keys[order][::-1], return_index=True)
    return both.rows(np.sort(order[len(order) - 1 - last]))


def without_people(data: Interactions, leaving: People) -> Interactions:
    """The data without these people; those who stay are numbered anew, in their order."""
    staying = np.setdiff1d(np.arange(len(data.people)), leaving)
    number = np.full(len(data.people), -1, np.int32)
    number[staying] = np.arange(len(staying), dtype=np.int32)
    kept = data.rows(number[data.person] >= 0)
    groups = data.groups and data.groups._replace(labels=tuple(data.groups.labels[at] for at in staying))
    people = tuple(data.people[at] for at in staying)
    return replace(kept, person=number[kept.person], people=people, groups=groups)


def _join_groups(people: Sequence[str], old: Interactions, new: Interactions) -> PeopleGroups | None:
    """The groups of all people; a known label of the newer data counts. None where the older data have none."""
    if old.groups is None:
        return None
    known = dict(zip(old.people, old.groups.labels))
    if new.groups is not None:
        known |= {p: label for p, label in zip(new.people, new.groups.labels) if label != UNKNOWN}
    return old.groups._replace(labels=tuple(known.get(person, UNKNOWN) for person in people))


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


def continue_from(old: State, old_items: int, items: int) -> Callable[[State], State]:
    """A function that puts what `old` has learnt about `old_items` items into a fresh state of at least as many people
    and of `items` items. Rounds are counted from 0 again, as people send their counts in the first one, and a server
    optimiser with a schedule begins again: the old one has ended at its lowest rate."""

    restarted = _without_schedule(old.memory)

    def start(fresh: State) -> State:
        shared = {name: _grow(old.shared[name], fresh.shared[name]) for name in fresh.shared}
        memory = {name: _grow_memory(name, value, old, fresh, (old_items, items)) for name, value in restarted.items()}
        everybody = np.arange(old.store.people)
        if old.store.initial:
            fresh.store.unpack_part(everybody, old.store.part(everybody))
        return State(shared, memory, fresh.store, 0)

    return start


def _without_schedule(memory: Params) -> Params:
    """The server's memory without that of optimisers that count their steps (methods/server_optimizers.py)."""
    counted = [name.removesuffix("steps") for name in memory if name.split(".")[-1] == "steps"]
    parts = tuple(f"{place}{part}" for place in counted for part in ("steps", "m.", "v."))
    return {name: value for name, value in memory.items() if not name.startswith(parts)}


def _grow_memory(name: str, value: Tensor, old: State, fresh: State, items: tuple[int, int]) -> Tensor:
    """An entry of the server's memory for the new catalogue. It has the size of the shared parameter that the last part
    of its name names, or one place for every item along each axis, or for every pair of items (an upper triangle)."""
    shared, (before, now) = name.rsplit(".", 1)[-1], items
    if shared in old.shared and value.shape == old.shared[shared].shape:
        return _grow(value, torch.zeros(fresh.shared[shared].shape, dtype=value.dtype))
    if value.shape == (before * (before + 1) // 2,) and before > 1:
        square = torch.zeros(now, now, dtype=value.dtype)
        rows, columns = torch.triu_indices(before, before)
        square[rows, columns] = value
        rows, columns = torch.triu_indices(now, now)
        return square[rows, columns]
    size = [now if length == before else length for length in value.shape]
    return _grow(value, torch.zeros(size, dtype=value.dtype))


def _grow(old: Tensor, new: Tensor) -> Tensor:
    """`new` with the values of `old` in its first places."""
    if new.shape == old.shape:
        return old.clone()
    out = new.clone()
    out[tuple(slice(0, length) for length in old.shape)] = old
    return out
