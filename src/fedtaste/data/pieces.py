"""Read a large Parquet file of interactions in pieces, with memory for the columns of the result and for one piece.

`read_interactions` reads small files at once. Names as text take 30 bytes an interaction and more, so a file of 100
million rows would need tens of gigabytes. Here the file is read twice: first for the names, from which the vocabularies
follow, then for the numbers of people and items, ratings and times, which go into arrays of 4 or 8 bytes each. The
result is the same as at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedtaste.data.columns import (
    EPOCH_UNITS,
    LAST_SECOND,
    NUMBERS,
    Table,
    as_floats,
    as_text,
    assign_columns,
    drop_empty_rows,
    epoch_unit,
    gap_error,
    missing,
    read_ratings,
    read_times,
)
from fedtaste.data.formats import kind_of, require_readable, stem
from fedtaste.data.interactions import Interactions
from fedtaste.data.lazy_polars import pl
from fedtaste.data.read_options import ReadOptions
from fedtaste.data.vocabulary import indices, labels, people_groups, vocabulary
from fedtaste.errors import DataError
from fedtaste.steps import blocks

LARGE = 200 << 20  # bytes of a file from which on it is read in pieces
PIECE = 4_000_000  # rows
WIDEST = 4  # a table of all integers in a range is used where the range has at most so many for each name
NARROW = 1 << 24  # or where it is this small


Number = TypeVar("Number", bound=np.generic)


class Allocate(Protocol):
    """Makes the array of a column: in memory, or in a file (data/worlds.py)."""

    def __call__(self, column: str, dtype: type[Number], rows: int) -> NDArray[Number]: ...


def in_memory(column: str, dtype: type[Number], rows: int) -> NDArray[Number]:
    """An array in memory."""
    return np.empty(rows, dtype)


@dataclass(frozen=True, eq=False)
class Columns:
    """The columns of a data set, which are filled piece by piece."""

    person: NDArray[np.int32]
    item: NDArray[np.int32]
    value: NDArray[np.float32] | None
    time: NDArray[np.float64] | None

    @staticmethod
    def of(allocate: Allocate, rows: int, roles: Sequence[str]) -> Columns:
        """Columns of so many rows, with those of ratings and times where `roles` has them."""
        value = allocate("value", np.float32, rows) if "rating" in roles else None
        time = allocate("time", np.float64, rows) if "timestamp" in roles else None
        return Columns(allocate("person", np.int32, rows), allocate("item", np.int32, rows), value, time)


@dataclass(frozen=True, eq=False)
class Pieces:
    """The columns of a Parquet file that can be read in pieces."""

    path: Path
    columns: dict[str, str]  # our name -> the file's
    unused: tuple[str, ...]
    rows: int
    options: ReadOptions

    @staticmethod
    def of(path: Path, columns: tuple[tuple[str, ...], tuple[str, ...]], options: ReadOptions) -> Pieces | None:
        """The columns; None for a file that must be read at once: a small one, one of another format, with text or
        floats where numbers or names are expected, or whose rows with missing values are left out."""
        if kind_of(path.name) != "Parquet" or path.stat().st_size < LARGE or options.drop_missing:
            return None
        require_readable(path, "Parquet")
        scan = pl.scan_parquet(path, glob=False)
        schema = scan.collect_schema()
        found, unused = assign_columns(str(path), list(schema), *columns, options)
        if not all(_is_plain(role, schema[column]) for role, column in found.items()):
            return None
        rows = int(scan.select(pl.len()).collect().item())
        return Pieces(path, found, unused, rows, options) if rows else None

    def tables(self, step: str, roles: tuple[str, ...]) -> Iterator[Table]:
        """The columns of these roles piece by piece, without rows that have no value at all."""
        columns = {role: column for role, column in self.columns.items() if role in roles}
        scan = pl.scan_parquet(self.path, glob=False).select(
            *(pl.col(column).alias(role) for role, column in self.columns.items())
        )
        for begin in blocks(step, range(0, self.rows, PIECE)):
            frame = scan.slice(begin, PIECE).collect().with_row_index("row", begin)
            if all(frame[role].null_count() == len(frame) for role in self.columns):
                continue
            whole = Table(str(self.path), frame, self.columns, self.unused, False, options=self.options)
            table = drop_empty_rows(whole, ("user", "item"))
            yield replace(table, frame=table.frame.select("row", *columns))


def _is_plain(role: str, kind: pl.DataType) -> bool:
    """Whether a column of this type means the same in pieces as in one."""
    if role == "rating":
        return kind.is_numeric() and not kind.is_decimal()
    if role == "timestamp":
        return (kind.is_numeric() and not kind.is_decimal()) or kind in (pl.Date, pl.Datetime)
    return kind == pl.String or kind.is_integer()


@dataclass
class Names:
    """The different names in a column, collected piece by piece; then the place of each in the vocabulary."""

    parts: list[pl.Series] = field(default_factory=list)

    def add(self, column: pl.Series) -> None:
        """Collect the names of a piece."""
        self.parts = [pl.concat([*self.parts, column.unique()]).unique()]

    def vocabulary(self) -> tuple[pl.Series, Callable[[pl.Series], NDArray[np.int32]]]:
        """(all names in order, a function from a piece of the column to their places)."""
        (names,) = self.parts
        ordered = vocabulary([as_text(names)])
        if names.dtype == pl.String:
            return ordered, lambda column: indices(column, ordered)
        names = names.sort()
        return ordered, _look_up(names.to_numpy(), indices(as_text(names), ordered))


def _look_up(numbers: NDArray[np.integer], places: NDArray[np.int32]) -> Callable[[pl.Series], NDArray[np.int32]]:
    """A function from integers to places, given that of each of `numbers`, which are sorted."""
    least = int(numbers[0])
    width = int(numbers[-1]) - least + 1
    if width > max(NARROW, WIDEST * len(numbers)):
        return lambda column: places[np.searchsorted(numbers, column.to_numpy())]
    table = np.zeros(width, np.int32)
    table[(numbers - numbers[0]).astype(np.int64)] = places
    return lambda column: table[(column.to_numpy() - numbers[0]).astype(np.int64)]


@dataclass
class Vocabularies:
    """What the first pass over a file finds: names, titles, groups, and values that are missing."""

    user: Names = field(default_factory=Names)
    item: Names = field(default_factory=Names)
    rows: int = 0
    described: list[pl.DataFrame] = field(default_factory=list)  # of items: the first title and genres in a piece
    groups: list[pl.DataFrame] = field(default_factory=list)
    gaps: dict[str, int] = field(default_factory=dict)  # role -> values that are missing
    first_gap: dict[str, Table] = field(default_factory=dict)

    def add(self, table: Table) -> None:
        """Collect what a piece has."""
        frame = table.frame
        self.rows += len(frame)
        self.user.add(frame["user"])
        self.item.add(frame["item"])
        for role in ("title", "genres"):
            if role in frame.columns:
                first = frame.select("item", role).drop_nulls().unique("item", keep="first", maintain_order=True)
                texts = (as_text(first[column]).alias(column) for column in ("item", role))
                self.described.append(pl.DataFrame(list(texts)))
        if "group" in frame.columns:
            self.groups.append(frame.select(pl.col("user").cast(pl.String), pl.col("group").cast(pl.String)).unique())
        for role in NUMBERS:
            if role in frame.columns and (gaps := int(missing(frame[role]).sum())):
                self.gaps[role] = self.gaps.get(role, 0) + gaps
                self.first_gap.setdefault(role, table)

    def has(self, role: str, pieces: Pieces) -> bool:
        """Whether the column of this role is there and not empty. DataError where some of its values are missing."""
        if role not in pieces.columns or self.gaps.get(role) == self.rows:
            return False
        if role in self.gaps:
            table = self.first_gap[role]
            raise gap_error(table, role, missing(table.frame[role]))
        return True


def read_pieces(pieces: Pieces, allocate: Allocate = in_memory) -> Interactions:
    """The interactions of a large file, as `read_interactions` gives them."""
    found = Vocabularies()
    try:
        for table in pieces.tables("reading names", tuple(pieces.columns)):
            found.add(table)
        if not found.rows:
            raise DataError(f"{pieces.path} has no rows. Expected one row per interaction.")
        people, place_of_person = found.user.vocabulary()
        items, place_of_item = found.item.vocabulary()
        roles = [role for role in NUMBERS if found.has(role, pieces)]
        columns, begin = Columns.of(allocate, found.rows, roles), 0
        for table in pieces.tables("reading", ("user", "item", *roles)):
            end = begin + len(table.frame)
            columns.person[begin:end] = place_of_person(table.frame["user"])
            columns.item[begin:end] = place_of_item(table.frame["item"])
            if columns.value is not None and (ratings := read_ratings(table)) is not None:
                columns.value[begin:end] = ratings
            if columns.time is not None and (times := _times(table)) is not None:
                columns.time[begin:end] = times
            begin = end
    except pl.exceptions.PolarsError as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"{pieces.path} is not a Parquet file that can be read: {reason}. Write it again.") from error
    return _assemble(pieces, found, people, items, columns)


def _times(table: Table) -> NDArray[np.float64] | None:
    """The times of a piece: seconds of dates, and numbers as they are, in whatever unit."""
    column = table.frame["timestamp"]
    if not column.dtype.is_numeric():
        return read_times(table)
    numbers = as_floats(column).to_numpy()
    largest = LAST_SECOND * EPOCH_UNITS[0][1]  # in nanoseconds
    return numbers if (np.abs(numbers) <= largest).all() else read_times(table)  # which names the rows


def _assemble(
    pieces: Pieces, found: Vocabularies, people: pl.Series, items: pl.Series, columns: Columns
) -> Interactions:
    """The data set of these columns, each pair once."""
    time = columns.time
    if time is not None and (unit := epoch_unit(max(float(time.max()), -float(time.min())))) != 1:
        for begin in range(0, len(time), PIECE):  # by polars, whose quotients differ from NumPy's in the last bit
            part = time[begin : begin + PIECE]
            part[:] = (pl.Series(part) / unit).to_numpy()
    empty = Table(str(pieces.path), pl.DataFrame(), pieces.columns, pieces.unused, False, options=pieces.options)
    described = [replace(empty, frame=frame) for frame in found.described]
    grouped = [replace(empty, frame=frame) for frame in found.groups]
    titles, genres = (_labels(described, role, items) for role in ("title", "genres"))
    data = Interactions(
        stem(pieces.path), columns.person, columns.item, tuple(people.to_list()), tuple(items.to_list()),
        columns.value, time, titles, genres, groups=people_groups(grouped, people),
    )  # fmt: skip
    return data.with_newest_pairs().noted(*empty.notes)


def _labels(tables: list[Table], role: str, items: pl.Series) -> tuple[str, ...]:
    return labels([table for table in tables if role in table.frame.columns], role, items)
