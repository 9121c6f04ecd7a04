"""Worlds: data sets in a folder of plain columns, which are mapped into memory instead of being read.

world.json       format, name, sizes, and the columns that there are
names.json       names of people and items, titles, genres, groups, notes
person.i32, item.i32, value.f32, time.f64    one number per interaction, little-endian

The operating system loads the parts of a column that are needed, and drops them again when memory is short. So a world
may be larger than memory, and opening one takes no time for reading names or numbers from text. `fedtaste data import`
writes one where its target ends in .world.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtaste.data.interactions import Interactions
from fedtaste.data.pieces import Number
from fedtaste.data.read_options import DEFAULTS, ReadOptions
from fedtaste.data.user_files import read_interactions
from fedtaste.data.vocabulary import PeopleGroups
from fedtaste.errors import DataError

ENDING = ".world"
FORMAT = "fedtaste-world-1"
COLUMNS = {"person": "<i4", "item": "<i4", "value": "<f4", "time": "<f8"}
BLOCK = 1 << 24  # numbers that are checked at once


def is_world(path: Path) -> bool:
    """Whether a folder holds a world."""
    return (path / "world.json").is_file()


@dataclass
class WorldColumns:
    """Columns in files of a folder: `allocate` makes them, and reserves their space before anything is written."""

    folder: Path
    files: dict[str, NDArray[np.generic]] = field(default_factory=dict)

    def allocate(self, column: str, dtype: type[Number], rows: int) -> NDArray[Number]:
        """A mapped array of so many rows. DataError where the disk has no room: a full disk under a mapped file would
        end the process without a message."""
        path, size = self.path(column), rows * np.dtype(dtype).itemsize
        try:
            with path.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, max(size, 1))
        except OSError as error:
            free = shutil.disk_usage(self.folder).free
            raise DataError(
                f"{self.folder.parent} has no room for {column}, {size / 1e9:.2f} GB of the world that is written "
                f"there ({error.strerror}; {free / 1e9:.2f} GB are free). Free some space, or choose another folder."
            ) from error
        values: NDArray[Number] = np.asarray(np.memmap(path, dtype, "r+", shape=(rows,)))
        self.files[column] = values
        return values

    def path(self, column: str) -> Path:
        return self.folder / f"{column}.{COLUMNS[column][1:].replace('4', '32').replace('8', '64')}"

    def open(self, column: str, rows: int) -> NDArray[Any]:
        """A column that was written, mapped; changes in memory do not reach the file."""
        path, kind = self.path(column), np.dtype(COLUMNS[column])
        if path.stat().st_size != rows * kind.itemsize:
            raise ValueError(f"{path.name} does not hold {rows:,} numbers")
        return np.asarray(np.memmap(path, kind, "c", shape=(rows,)))

    def store(self, column: str, values: NDArray[np.generic]) -> None:
        """Write a column, unless its values are those of the file already; then cut the file after the last one."""
        mapped = self.files.get(column)
        if mapped is None or not np.shares_memory(mapped[:1], values[:1]):
            mapped = self.allocate(column, np.dtype(COLUMNS[column]).type, len(values))
            mapped[:] = values
        os.truncate(self.path(column), len(values) * mapped.itemsize)


def import_world(source: Path, target: Path, options: ReadOptions = DEFAULTS) -> Interactions:
    """Read a file of the user, and write it as a world. A large Parquet file is read in pieces, so that memory for one
    piece is enough."""
    with new_folder(target) as folder:
        columns = WorldColumns(folder)
        data = read_interactions(source, options, columns.allocate)
        write_world(data, columns)
    return open_world(target)


def save_world(data: Interactions, target: Path) -> None:
    """Write a data set as a world."""
    with new_folder(target) as folder:
        write_world(data, WorldColumns(folder))


def write_world(data: Interactions, columns: WorldColumns) -> None:
    """Write the files of a world; `world.json` is the last, so that a folder without it is not one."""
    present = [name for name in COLUMNS if getattr(data, name) is not None]
    for name in present:
        columns.store(name, getattr(data, name))
    names = {
        "people": data.people, "items": data.items, "titles": data.titles, "genres": data.genres, "notes": data.notes,
        "groups": data.groups,
    }  # fmt: skip
    (columns.folder / "names.json").write_text(json.dumps(names), "utf-8")
    sizes = {"people": len(data.people), "items": len(data.items), "interactions": len(data)}
    about = {"format": FORMAT, "name": data.name, **sizes, "columns": present}
    (columns.folder / "world.json").write_text(json.dumps(about, indent=1), "utf-8")


@contextlib.contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """A folder that gets its name when everything inside is written, and is deleted where that fails."""
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    if target.exists():
        raise DataError(f"{target} exists already; nothing was changed. Name another folder, or delete it.")
    try:
        part.mkdir(parents=True)
        yield part
        os.rename(part, target)
    except OSError as error:
        reason = error.strerror or error
        raise DataError(f"{target} cannot be written ({reason}). Free some space, or choose another folder.") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def open_world(path: Path) -> Interactions:
    """The data set of a world; its columns are mapped, and changes to them in memory do not reach the files."""
    try:
        about, names = (json.loads((path / file).read_text("utf-8")) for file in ("world.json", "names.json"))
        if about["format"] != FORMAT:
            raise ValueError(f"its format is {about['format']!r}")
        columns = WorldColumns(path)
        data = {name: columns.open(name, int(about["interactions"])) for name in about["columns"]}
        _require_known(data["person"], len(names["people"]), "people")
        _require_known(data["item"], len(names["items"]), "items")
        groups = PeopleGroups(names["groups"][0], tuple(names["groups"][1])) if names.get("groups") else None
        people, items, titles, genres, notes = (
            tuple(names[part]) for part in ("people", "items", "titles", "genres", "notes")
        )
        return Interactions(
            str(about["name"]), data["person"], data["item"], people, items, data.get("value"), data.get("time"),
            titles, genres, notes, groups=groups,
        )  # fmt: skip
    except (OSError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"{path} is not a world of this fedtaste ({error}). Import the data again.") from error


def _require_known(numbers: NDArray[np.int32], size: int, what: str) -> None:
    """Raise ValueError for numbers that are not below `size`: compiled code reads tables by them without a check."""
    for begin in range(0, len(numbers), BLOCK):
        part = numbers[begin : begin + BLOCK]
        if part.min() < 0 or part.max() >= size:
            raise ValueError(f"it names {what} that do not exist")
