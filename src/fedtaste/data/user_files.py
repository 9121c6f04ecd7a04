"""Read data that the user supplies: one CSV, TSV or Parquet file, or a folder with a train/test split.

Names of people and items are text as it stands in the file ("007" stays "007"). A vocabulary of digits only is sorted
as numbers, any other alphabetically, so that the same data in another row order has the same indices. `save` writes
what `read_interactions` reads back.
"""

from __future__ import annotations

import gzip
import io
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedtaste.data.columns import Table, is_table, read_ratings, read_table, read_times
from fedtaste.data.interactions import Floats, Histories, Interactions, Ints, starts_of
from fedtaste.data.lazy_polars import pl
from fedtaste.errors import DataError, RunError
from fedtaste.files.atomic import write_atomically
from fedtaste.text import count

# Titles must not send control codes to a terminal.
CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
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


def read_interactions(path: Path) -> Interactions:
    """One file with columns user, item and, optionally, rating, timestamp, title, genres."""
    table = read_table(path, ("user", "item"), ("rating", "timestamp", "title", "genres"))
    people, items = vocabulary([table.frame["user"]]), vocabulary([table.frame["item"]])
    return build_interactions(
        stem(path), table, people, items, labels([table], "title", items), labels([table], "genres", items)
    )


def read_split(folder: Path) -> UserSplit:
    """A folder with train, test and optionally valid, negatives (user, item) and items (item, title, genres)."""
    tables = {part: read_table(path, *part_columns(part)) for part in PARTS if (path := find_part(folder, part))}
    histories = {part: tables[part] for part in ("train", "valid", "test") if part in tables}
    people = vocabulary([table.frame["user"] for table in histories.values()])
    items = vocabulary([table.frame["item"] for table in tables.values()])
    # Titles of the catalogue file take precedence; columns in the other files fill the gaps.
    described = ([tables["items"]] if "items" in tables else []) + list(histories.values())
    titles, genres = labels(described, "title", items), labels(described, "genres", items)
    name = folder.resolve().name
    parts = {
        part: build_interactions(f"{name}/{part}", table, people, items, titles, genres)
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
    ending = path.name.lower()
    if ending.endswith(".parquet"):
        content = io.BytesIO()
        frame.write_parquet(content)
        data = content.getvalue()
    elif ending.endswith((".csv", ".csv.gz")):
        text = frame.write_csv().encode()
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
    return ("user", "item"), () if part == "negatives" else ("rating", "timestamp", "title", "genres")


def stem(path: Path) -> str:
    """`ratings.csv.gz` is called `ratings`."""
    name = path.name.removesuffix(".gz")
    return name.rpartition(".")[0] or name


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


def vocabulary(parts: list[pl.Series]) -> pl.Series:
    """Every name once: digits sorted as numbers, anything else alphabetically."""
    names = pl.concat([part.unique() for part in parts]).unique().rename("name")
    if not names.str.contains("^[0-9]+$").all():
        return names.sort()
    bare = names.str.strip_chars_start("0")  # compared by length and then by digits, numbers of any size fit
    frame = pl.DataFrame({"name": names, "bare": bare, "size": bare.str.len_bytes()})
    return frame.sort("size", "bare", "name")["name"]


def indices(names: pl.Series, vocabulary: pl.Series) -> Ints:
    """The place of every name in a vocabulary that holds them all."""
    return names.cast(pl.Enum(vocabulary)).to_physical().cast(pl.Int32).to_numpy().copy()


def labels(tables: list[Table], role: str, items: pl.Series) -> tuple[str, ...]:
    """The first title (or genres) of each item in these tables; its name (or nothing) where there is none."""
    columns = [table.frame.select("item", role) for table in tables if role in table.frame.columns]
    if not columns:
        return ()
    first = pl.concat(columns).drop_nulls().unique("item", keep="first", maintain_order=True)
    joined = pl.DataFrame({"item": items}).join(first, on="item", how="left", maintain_order="left")
    texts = joined[role].fill_null(items if role == "title" else pl.Series([""])).to_list()
    return tuple(CONTROL.sub("", text) for text in texts)


def build_interactions(
    name: str, table: Table, people: pl.Series, items: pl.Series, titles: tuple[str, ...], genres: tuple[str, ...]
) -> Interactions:
    """The interactions of one table."""
    person, item = indices(table.frame["user"], people), indices(table.frame["item"], items)
    value, time = read_ratings(table), read_times(table)
    keep, notes = keep_newest(person, item, time, len(items))
    if table.unused:
        notes += (f"Columns not used: {', '.join(table.unused)}.",)
    return Interactions(
        name=name,
        person=person[keep],
        item=item[keep],
        people=tuple(people.to_list()),
        items=tuple(items.to_list()),
        value=None if value is None else value[keep],
        time=None if time is None else time[keep],
        titles=titles,
        genres=genres,
        notes=notes,
    )


def keep_newest(
    person: Ints, item: Ints, time: NDArray[np.float64] | None, items: int
) -> tuple[NDArray[np.bool_], tuple[str, ...]]:
    """(rows to keep, notes): each pair once, the newest, and of equally new ones the last."""
    frame = pl.DataFrame({"pair": person.astype(np.int64) * items + item}).with_row_index("row")
    repeated = frame["pair"].is_duplicated()
    keep = ~repeated.to_numpy()
    if keep.all():
        return keep, ()
    doubtful = frame.filter(repeated)
    if time is not None:
        doubtful = doubtful.with_columns(time=time[~keep]).sort("time", maintain_order=True)
    rows = doubtful.unique("pair", keep="last")["row"].to_numpy()
    keep[rows] = True
    which = "newest" if time is not None else "last row"
    return keep, (f"{count(len(rows), 'duplicate pair')}: the {which} of each was kept.",)


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
