"""Everybody's histories in one file of a fitted model, so that people of the data are served without their source."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from fedtaste.data.interactions import Interactions, hash_pairs
from fedtaste.data.user_files import UserSplit
from fedtaste.data.vocabulary import PeopleGroups
from fedtaste.engine.checkpoint import load_params, save_params
from fedtaste.errors import RunError
from fedtaste.result_part import JsonObject

INTERACTIONS = "interactions.safetensors"
Number = TypeVar("Number", bound=np.generic)


def save_interactions(path: Path, data: Interactions | UserSplit, seed: int) -> None:
    """Write who took what, with ratings, times and the order of equal times, which must stay the same when people leave
    and others are numbered anew; the file is readable by its owner only. `items.json` of the same
    folder has the names of the items. Parts of a split become one table, in their order."""
    table = joined(data)
    columns = {"person": table.person, "item": table.item, "value": table.value, "time": table.time}
    tensors = {name: torch.from_numpy(np.ascontiguousarray(c)) for name, c in columns.items() if c is not None}
    ties = hash_pairs(table.person, table.item, seed) if table.ties is None else table.ties
    tensors["ties"] = torch.from_numpy(ties.view(np.int64).copy())
    names = json.dumps(table.people).encode()
    tensors["people"] = torch.frombuffer(bytearray(names), dtype=torch.uint8)
    save_params(
        path,
        tensors,
        {
            "name": table.name,
            "frames": table.frame_library,
            "keywords": dict(table.frame_keywords),
            **({"groups": list(table.groups)} if table.groups else {}),
        },  # fmt: skip
    )


def load_interactions(path: Path, items: JsonObject) -> Interactions:
    """The table that `save_interactions` wrote; `items` is the catalogue (items.json)."""
    tensors, about = load_params(path)
    try:
        people = tuple(json.loads(tensors["people"].numpy().tobytes()))
        columns = {name: value.numpy() for name, value in tensors.items() if name != "people"}
        person, item = columns.pop("person"), columns.pop("item")
        if {len(column) for column in columns.values()} != {len(item)} or len(person) != len(item):
            raise ValueError("its columns have different lengths")
        if len(person) and (person.max() >= len(people) or item.max() >= len(items["names"]) or person.min() < 0):
            raise ValueError("it names people or items that do not exist")
        groups = PeopleGroups(about["groups"][0], tuple(about["groups"][1])) if "groups" in about else None
        if groups and len(groups.labels) != len(people):
            raise ValueError("it does not have one group for every person")
    except (KeyError, ValueError, TypeError) as error:
        raise RunError(f"{path} cannot be read ({error}). Restore it from a copy, or fit again.") from error
    return Interactions(
        str(about.get("name", "data")), person, item, people, tuple(items["names"]), columns.get("value"),
        columns.get("time"), tuple(items["titles"]), tuple(items.get("genres") or ()),
        ties=columns["ties"].view(np.uint64), frame_library=str(about.get("frames", "polars")),
        frame_keywords=dict(about.get("keywords") or {}), groups=groups,
    )  # fmt: skip


def joined(data: Interactions | UserSplit) -> Interactions:
    """One table; of a split that the user supplies, all parts. Of a pair that stands in several, the last counts."""
    if isinstance(data, Interactions):
        return data
    parts = [part for part in (data.train, data.valid, data.test) if part is not None]
    together = replace(
        data.train,
        name=data.name,
        notes=data.notes,
        person=np.concatenate([part.person for part in parts]),
        item=np.concatenate([part.item for part in parts]),
        value=_column([part.value for part in parts]),
        time=_column([part.time for part in parts]),
    )
    keys = together.person.astype(np.int64) * len(together.items) + together.item
    return together.rows(np.sort(len(keys) - 1 - np.unique(keys[::-1], return_index=True)[1]))


def _column(parts: Sequence[NDArray[Number] | None]) -> NDArray[Number] | None:
    """The column of all parts; None where a part has none."""
    filled = [part for part in parts if part is not None]
    return np.concatenate(filled) if len(filled) == len(parts) else None
