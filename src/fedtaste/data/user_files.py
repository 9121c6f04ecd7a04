"""Read data that the user supplies: one file with a table (formats.py), or a folder with a train/test split.

Names of people and items are text as it stands in the file ("007" stays "007"). `save` writes what `read_interactions`
reads back.
"""

from __future__ import annotations

import gzip
import io
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedtaste.data.columns import Table, read_ratings, read_table, read_times
from fedtaste.data.formats import is_table, stem
from fedtaste.data.interactions import Floats, Histories, Interactions, starts_of
from fedtaste.data.lazy_polars import pl
from fedtaste.data.pieces import Allocate, Pieces, in_memory, read_pieces
from fedtaste.data.read_options import DEFAULTS, ReadOptions
from fedtaste.data.spreadsheets import guarded
from fedtaste.data.vocabulary import indices, labels, people_groups, vocabulary
from fedtaste.errors import DataError, RunError
from fedtaste.files.atomic import write_atomically
from fedtaste.text import count

PARTS = ("train", "test", "valid", "negatives", "items")


@dataclass(frozen=True, eq=False)
class UserSplit:
    """A split into training and test files that the user supplies. All parts have the same vocabularies."""

    name: str
    train: Interactions
    test: Interactions
    valid: Interactions | None = None
    negatives: Histories | None = None  # by person, in file order: items to rank the test items against
    notes: tuple[str, ...] = ()

    @property
    def table(self) -> Interactions:
        """The training part, from which names, titles and counts are read."""
        return self.train


def read_interactions(path: Path, options: ReadOptions = DEFAULTS, allocate: Allocate = in_memory) -> Interactions:
    """One file with columns user, item and, optionally, rating, timestamp, title, genres. A large Parquet file is read
    in pieces, into columns that `allocate` makes."""
    if path.is_file() and (pieces := Pieces.of(path, part_columns("train"), options)):
        return read_pieces(pieces, allocate)
    table = read_table(path, *part_columns("train"), options)
    people, items = vocabulary([table.frame["user"]]), vocabulary([table.frame["item"]])
    data = Interactions.from_table(
        stem(path), table, people, items, labels([table], "title", items), labels([table], "genres", items)
    )
    return replace(data, groups=people_groups([table], people))


def read_split(folder: Path, options: ReadOptions = DEFAULTS) -> UserSplit:
    """A folder with train, test and optionally valid, negatives (user, item) and items (item, title, genres)."""
    files = {part: path for part in PARTS if (path := find_part(folder, part))}
    tables = {part: read_table(path, *part_columns(part), options) for part, path in files.items()}
    histories = {part: tables[part] for part in ("train", "valid", "test") if part in tables}
    people = vocabulary([table.frame["user"] for table in histories.values()])
    items = vocabulary([table.frame["item"] for table in tables.values()])
    # Titles of the catalogue file take precedence; columns in the other files fill the gaps.
    described = ([tables["items"]] if "items" in tables else []) + list(histories.values())
    titles, genres = labels(described, "title", items), labels(described, "genres", items)
    name, groups = folder.resolve().name, people_groups(list(histories.values()), people)
    parts = {
        part: replace(Interactions.from_table(f"{name}/{part}", table, people, items, titles, genres), groups=groups)
        for part, table in histories.items()
    }
    negatives = group_negatives(tables["negatives"], people, items) if "negatives" in tables else None
    notes = tuple(f"{part.name}: {note}" for part in parts.values() for note in part.notes)
    notes += overlap_note(parts["train"], parts["test"])
    return UserSplit(name, parts["train"], parts["test"], parts.get("valid"), negatives, notes)


def read_likes(path: Path) -> tuple[list[str], Floats | None, NDArray[np.float64] | None]:
    """One person's list of likes: a column title or item and, optionally, rating and timestamp."""
    named = read_table(path, ("item",), ("title", "rating", "timestamp")) if not has_title(path) else None
    table = named or read_table(path, ("title",), ("rating", "timestamp"))
    return table.frame["item" if named else "title"].to_list(), read_ratings(table), read_times(table)


def has_title(path: Path) -> bool:
    """Whether a list names its items by title."""
    try:
        read_table(path, ("title",), ())
    except DataError as error:
        return "has no rows" in str(error)  # the error is then about the titles, not about another column
    return True


def save(interactions: Interactions, path: Path) -> None:
    """Write one row per interaction, as .parquet, .csv or .csv.gz, so that `read_interactions` gives the same back.

    People and items that take part in no interaction have no row, and are not stored.
    """
    texts = {"user": (interactions.people, interactions.person), "item": (interactions.items, interactions.item)}
    frame = pl.DataFrame({role: pl.Series(names, dtype=pl.String).gather(i) for role, (names, i) in texts.items()})
    optional = {"rating": interactions.value, "timestamp": interactions.time}
    frame = frame.with_columns(pl.Series(role, array) for role, array in optional.items() if array is not None)
    described = {"title": interactions.titles, "genres": interactions.genres}
    frame = frame.with_columns(
        pl.Series(role, names, dtype=pl.String).gather(interactions.item) for role, names in described.items() if names
    )
    if interactions.groups:  # read again with --columns group=group
        labels = pl.Series("group", interactions.groups.labels, dtype=pl.String)
        frame = frame.with_columns(labels.gather(interactions.person))
    ending = path.name.lower()
    if ending.endswith(".parquet"):
        content = io.BytesIO()
        frame.write_parquet(content)
        data = content.getvalue()
    elif ending.endswith((".csv", ".csv.gz")):
        text = guarded(frame).write_csv().encode()
        data = gzip.compress(text, 6, mtime=0) if ending.endswith(".gz") else text
    else:
        raise DataError(f"{path} does not say its format. Expected a name that ends in .parquet, .csv or .csv.gz.")
    try:
        write_atomically(path, data)
    except RunError as error:
        raise DataError(f"{path} cannot be written ({error.__cause__}). Choose another folder.") from error


def part_columns(part: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The needed and the useful columns of a part of a split."""
    if part == "items":
        return ("item",), ("title", "genres")
    return ("user", "item"), () if part == "negatives" else ("rating", "timestamp", "title", "genres", "group")


def find_part(folder: Path, part: str) -> Path | None:
    """The file of a part of a split; train and test are required."""
    try:
        files = sorted(file for file in folder.iterdir() if file.is_file())
    except OSError as error:
        raise DataError(f"{folder} cannot be read ({error.strerror or error}). Check its permissions.") from error
    matches = [file for file in files if stem(file).lower() == part and is_table(file)]
    if len(matches) > 1:
        raise DataError(f"{folder} has {' and '.join(f.name for f in matches)}. Expected one file; remove the others.")
    if not matches and part in ("train", "test"):
        raise DataError(
            f"{folder} has no {part}.csv. It has: {', '.join(file.name for file in files) or 'no files'}. Expected "
            "train.csv and test.csv, and optionally valid.csv, negatives.csv and items.csv (or .csv.gz or .parquet). "
            "Add the file, or give the path of one file to let fedtaste split it."
        )
    return matches[0] if matches else None


def group_negatives(table: Table, people: pl.Series, items: pl.Series) -> Histories:
    """Negatives by person, in the order of their file."""
    strangers = ~table.frame["user"].is_in(people.implode())
    if strangers.any():
        shown = ", ".join(table.frame["user"].filter(strangers).unique(maintain_order=True).head(3).to_list())
        raise DataError(
            f"{table.file}, column {table.columns['user']}, {table.at(strangers)}: {shown} not in train, valid or "
            f"test. Expected negatives of people who are there; remove these rows or add the people's interactions."
        )
    person, item = indices(table.frame["user"], people), indices(table.frame["item"], items)
    order = np.argsort(person, kind="stable")
    starts = starts_of(np.bincount(person, minlength=len(people)))
    return Histories(starts, item[order], np.ones(len(item), np.float32))


def overlap_note(train: Interactions, test: Interactions) -> tuple[str, ...]:
    """A note on pairs that are in train and in test."""
    width = len(train.items)
    pairs = [part.person.astype(np.int64) * width + part.item for part in (train, test)]
    both = int(np.isin(pairs[1], pairs[0]).sum())
    return (f"{count(both, 'test pair')} also in train: results will be too good.",) if both else ()
