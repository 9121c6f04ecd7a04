"""Everybody's histories in one file of a fitted model, so that people of the data are served without their source."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch

from fedtaste.data.interactions import Interactions
from fedtaste.data.user_files import UserSplit
from fedtaste.engine.checkpoint import load_params, save_params
from fedtaste.errors import RunError
from fedtaste.result_part import JsonObject

INTERACTIONS = "interactions.safetensors"


def save_interactions(path: Path, data: Interactions | UserSplit, seed: int) -> None:
    """Write who took what, with ratings and times; the file is readable by its owner only. `items.json` of the same
    folder has the names of the items. Parts of a split become one table, in their order."""
    table = joined(data, seed)
    columns = {"person": table.person, "item": table.item, "value": table.value, "time": table.time}
    tensors = {name: torch.from_numpy(np.ascontiguousarray(c)) for name, c in columns.items() if c is not None}
    names = json.dumps(table.people).encode()
    tensors["people"] = torch.frombuffer(bytearray(names), dtype=torch.uint8)
    save_params(path, tensors, {"name": table.name, "frames": table.frame_library}, 0o600)


def load_interactions(path: Path, items: JsonObject) -> Interactions:
    """The table that `save_interactions` wrote; `items` is the catalogue (items.json)."""
    tensors, about = load_params(path)
    try:
        people = tuple(json.loads(tensors["people"].numpy().tobytes()))
        columns = {name: value.numpy() for name, value in tensors.items() if name != "people"}
        person, item = columns.pop("person"), columns.pop("item")
        if not (len(person) == len(item) == len(columns.get("time", item)) == len(columns.get("value", item))):
            raise ValueError("its columns have different lengths")
        if len(person) and (person.max() >= len(people) or item.max() >= len(items["names"]) or person.min() < 0):
            raise ValueError("it names people or items that do not exist")
    except (KeyError, ValueError, TypeError) as error:
        raise RunError(f"{path} cannot be read ({error}). Restore it from a copy, or fit again.") from error
    described = {"titles": tuple(items["titles"]), "genres": tuple(items.get("genres") or ())}
    library = str(about.get("frames", "polars"))
    return Interactions(
        str(about["name"]), person, item, people, tuple(items["names"]), **columns, **described, frame_library=library
    )


def joined(data: Interactions | UserSplit, seed: int) -> Interactions:
    """One table; of a split that the user supplies, all parts, where later parts are later in time."""
    if isinstance(data, Interactions):
        return data
    parts = [part for part in (data.train, data.valid, data.test) if part is not None]
    person, item = (np.concatenate([getattr(part, name) for part in parts]) for name in ("person", "item"))
    value = None if data.train.value is None else np.concatenate([_values(part) for part in parts])
    time = None if data.train.time is None else np.concatenate([_times(part) for part in parts])
    keys = person.astype(np.int64) * len(data.train.items) + item
    last = len(keys) - 1 - np.unique(keys[::-1], return_index=True)[1]  # of a pair that stands twice, the last
    keep = np.sort(last)
    return Interactions(
        data.name, person[keep], item[keep], data.train.people, data.train.items,
        None if value is None else value[keep], None if time is None else time[keep], data.train.titles,
        data.train.genres, data.notes,
    )  # fmt: skip


def _values(part: Interactions) -> np.ndarray:
    return np.ones(len(part), np.float32) if part.value is None else part.value


def _times(part: Interactions) -> np.ndarray:
    return np.zeros(len(part)) if part.time is None else part.time
