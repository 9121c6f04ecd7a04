"""Interactions and Histories: the data types of who took which item, with which rating, and when.

`Interactions` is the table as it was read, with vocabularies and titles; `Histories` is the same as one ragged array by
person, oldest first: what a device holds, and what every kernel reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Unpack

import numpy as np
from numpy.typing import NDArray

from fedtaste.data.columns import Table, read_ratings, read_times
from fedtaste.data.frames import Column, FrameOptions, OptionalColumn, frame_options, frame_tables, matrix_entries
from fedtaste.data.lazy_polars import pl
from fedtaste.data.mixing import splitmix
from fedtaste.data.ragged import (
    compact,
    copy_parts,
    count_kept,
    count_numbers,
    first_entries,
    group_rows,
    is_in_order,
    join_people,
    newest_rows,
    sort_histories,
)
from fedtaste.data.vocabulary import PeopleGroups, indices, labels, people_groups, vocabulary
from fedtaste.errors import DataError
from fedtaste.text import count

Ints = NDArray[np.int32]
Floats = NDArray[np.float32]
EPOCH = (1e8, 2.5e11)  # seconds of times that are shown as dates: from 1973 on, and not after the year 9999


@dataclass(frozen=True, eq=False)
class Histories:
    """One ragged array by person; a person's slice is in time order, oldest first.

    >>> h = Histories(np.array([0, 2, 3]), np.array([7, 1, 7], np.int32), np.ones(3, np.float32))
    >>> h.people, len(h), h.of(0).tolist()
    (2, 3, [7, 1])
    """

    starts: NDArray[np.int64]  # [people + 1]
    items: Ints  # [n]
    values: Floats  # [n]

    @property
    def people(self) -> int:
        return len(self.starts) - 1

    @property
    def lengths(self) -> NDArray[np.int64]:
        return np.diff(self.starts)

    def __len__(self) -> int:
        return len(self.items)

    def of(self, person: int) -> Ints:
        return self.items[self.starts[person] : self.starts[person + 1]]

    @cached_property
    def owners(self) -> Ints:
        """The person of every entry, [n]."""
        return np.repeat(np.arange(self.people, dtype=np.int32), self.lengths)

    def where(self, keep: NDArray[np.bool_]) -> Histories:
        """The entries for which `keep` [n] holds; the people stay the same."""
        starts = starts_of(count_kept(self.starts, keep))
        values = constant(self.values, starts[-1])
        return Histories(starts, self.items[keep], self.values[keep] if values is None else values)

    def distinct(self) -> Histories:
        """Every item once per person, where it stands first."""
        first = first_entries(self.starts, self.items, int(self.items.max(initial=0)) + 1)
        return self if first.all() else self.where(first)

    def without(self, other: Histories) -> Histories:
        """The entries whose item the same person does not have in `other`."""
        width = 1 + max(int(self.items.max(initial=0)), int(other.items.max(initial=0)))
        mine, theirs = (h.owners.astype(np.int64) * width + h.items for h in (self, other))
        return self.where(~np.isin(mine, theirs))

    def take(self, people: NDArray[np.integer]) -> Histories:
        """The histories of these people, in this order. Where their entries stand in this order they are not copied."""
        begins, lengths = self.starts[:-1][people], self.lengths[people]
        starts = starts_of(lengths)
        if len(begins) and np.array_equal(begins, begins[0] + starts[:-1]):
            if len(begins) == self.people:
                return self
            entries = slice(begins[0], begins[0] + starts[-1])
            return Histories(starts, self.items[entries], self.values[entries])
        return self.parts(begins, lengths)

    def parts(self, begins: NDArray[np.int64], lengths: NDArray[np.int64]) -> Histories:
        """Histories of one part of these each: so many entries from the entry `begins[i]` on."""
        starts = starts_of(lengths)
        items, values = np.empty(starts[-1], np.int32), constant(self.values, starts[-1])
        copy_parts(begins, starts, self.items, items)
        if values is None:
            values = np.empty(starts[-1], np.float32)
            copy_parts(begins, starts, self.values, values)
        return Histories(starts, items, values)

    def then(self, later: Histories) -> Histories:
        """Each person's own entries followed by their entries in `later`."""
        starts = self.starts + later.starts
        items, values = np.empty(starts[-1], np.int32), constant(self.values, starts[-1])
        join_people(self.starts, self.items, later.starts, later.items, items)
        if values is None or (len(later) and (later.values.strides != (0,) or later.values[0] != values[0])):
            values = np.empty(starts[-1], np.float32)
            join_people(self.starts, self.values, later.starts, later.values, values)
        return Histories(starts, items, values)

    def padded(self) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """(items [people, longest history] with zeros after a person's last, which entries are items)."""
        filled = np.arange(max(int(self.lengths.max(initial=0)), 1)) < self.lengths[:, None]
        items = np.zeros(filled.shape, np.int64)
        items[filled] = self.items
        return items, filled

    @staticmethod
    def empty(people: int) -> Histories:
        return Histories(np.zeros(people + 1, np.int64), np.zeros(0, np.int32), np.zeros(0, np.float32))


@dataclass(frozen=True, eq=False, repr=False)
class Interactions:
    """A data set: `person[i]` took `item[i]` with the rating `value[i]` at `time[i]`. Each pair stands once.

    >>> data = Interactions("mine", np.array([0, 0, 1]), np.array([1, 0, 1]), ("ann", "bob"), ("tea", "jam"))
    >>> data
    Interactions("mine": 2 people, 2 items, 3 interactions, no ratings, no time)
    >>> len(data), data.titles, data.histories().lengths.tolist()
    (3, ('tea', 'jam'), [2, 1])
    """

    name: str
    person: Ints  # [n] index into people
    item: Ints  # [n] index into items
    people: tuple[str, ...]  # the people's names in the source
    items: tuple[str, ...]  # the items' names in the source
    value: Floats | None = None  # [n]; None: no ratings
    time: NDArray[np.float64] | None = None  # [n] seconds since 1970, or any numbers in order; None: no order
    titles: tuple[str, ...] = ()  # for readers; the names where the source has no titles
    genres: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()  # what was done to the source, for the reader
    frame_library: str = "polars"  # the library in whose frames answers are given: polars or pandas
    ties: NDArray[np.uint64] | None = None  # [n]: the order of equal times; by default a hash of (person, item)
    frame_keywords: Mapping[str, object] = field(default_factory=dict)  # of `from_frame`, to read later frames alike
    groups: PeopleGroups | None = None  # labels of people, by which metrics are compared

    @staticmethod
    def from_frame(
        frame: object,
        *,
        user: Column = ...,
        item: Column = ...,
        rating: OptionalColumn = ...,
        time: OptionalColumn = ...,
        items: object | None = None,
        name: str = "frame",
        **options: Unpack[FrameOptions],
    ) -> Interactions:
        """The interactions of a pandas or polars data frame, one row each.

        A column that is named must exist. Where `...` is left, a column of a usual name is used if there is one (user,
        userId, person; item, movieId, productId; rating, score; timestamp, time, date); `rating=None` reads none.
        `items` is a frame of the catalogue: the same item column, and optionally titles and genres. Its items are in
        the catalogue even if nobody has taken them.

        title, genres   columns of either frame
        group           a column of a person's own, such as a country: evaluations compare such groups
        drop_missing    leave rows with missing values out; otherwise they are refused
        decimal         the decimal mark of numbers in text, "." or ","
        date_format     of times in text, such as "%d/%m/%Y"; otherwise ISO dates or numbers since 1970

        >>> frame = pl.DataFrame({"customer": [7, 7, 12], "sku": ["tea", "jam", "tea"]})
        >>> Interactions.from_frame(frame, user="customer", item="sku").people
        ('7', '12')
        """
        columns = {"user": user, "item": item, "rating": rating, "time": time}
        table, catalogue, library = frame_tables(frame, items, name, frame_options(columns, options))
        described = [table] if catalogue is None else [catalogue, table]
        people, products = vocabulary([table.frame["user"]]), vocabulary([each.frame["item"] for each in described])
        titles, genres = (labels(described, role, products) for role in ("title", "genres"))
        data = Interactions.from_table(name, table, people, products, titles, genres)
        data = replace(data, groups=people_groups([table], people))
        keywords = {role: column for role, column in columns.items() if column is not ...} | dict(options)
        return replace(data, frame_library=library, frame_keywords=keywords)

    @staticmethod
    def from_matrix(
        matrix: object,
        *,
        users: Sequence[object] | None = None,
        items: Sequence[object] | None = None,
        titles: Sequence[str] = (),
        ratings: bool | None = None,
        name: str = "matrix",
    ) -> Interactions:
        """The interactions of a SciPy sparse matrix, [users, items]: its entries that are not zero.

        `users` and `items` are the names of rows and columns, by default their numbers from 0. `ratings` says whether
        the entries are ratings; by default they are, unless all are equal. People without an entry are left out; all
        items are in the catalogue.

        >>> from scipy.sparse import csr_array
        >>> Interactions.from_matrix(csr_array([[0, 5], [3, 0]]), users=["ann", "bob"])
        Interactions("matrix": 2 people, 2 items, 2 interactions, ratings 3 to 5, no time)
        """
        entries = matrix_entries(matrix, users, items, titles)
        rated = len(np.unique(entries.value)) > 1 if ratings is None else ratings
        return Interactions(
            name, entries.person, entries.item, entries.people, entries.items,
            value=entries.value if rated else None, titles=tuple(titles), notes=entries.notes,
        )  # fmt: skip

    @staticmethod
    def from_table(
        name: str, table: Table, people: pl.Series, items: pl.Series, titles: tuple[str, ...], genres: tuple[str, ...]
    ) -> Interactions:
        """The interactions of one table, with these vocabularies."""
        person, item = indices(table.frame["user"], people), indices(table.frame["item"], items)
        data = Interactions(
            name, person, item, tuple(people.to_list()), tuple(items.to_list()), read_ratings(table), read_times(table),
            titles, genres,
        )  # fmt: skip
        return data.with_newest_pairs().noted(*table.notes)

    def __post_init__(self) -> None:
        if not self.titles:
            object.__setattr__(self, "titles", self.items)

    def __len__(self) -> int:
        return len(self.person)

    def __repr__(self) -> str:
        sizes = f"{count(len(self.people), 'person', 'people')}, {count(len(self.items), 'item')}"
        parts = [sizes, count(len(self), "interaction"), "no ratings", "no time"]
        if self.value is not None and len(self):
            parts[2] = f"ratings {self.value.min():g} to {self.value.max():g}"
        if self.time is not None and len(self):
            parts[3] = time_span(self.time)
        return f'Interactions("{self.name}": {", ".join(parts)})'

    @property
    def table(self) -> Interactions:
        """The interactions themselves; of a UserSplit, its training part."""
        return self

    def rows(self, keep: NDArray[np.bool_] | NDArray[np.integer]) -> Interactions:
        """These interactions only; the vocabularies stay as they are."""
        value = None if self.value is None else self.value[keep]
        time = None if self.time is None else self.time[keep]
        ties = None if self.ties is None else self.ties[keep]
        return replace(self, person=self.person[keep], item=self.item[keep], value=value, time=time, ties=ties)

    def with_newest_pairs(self) -> Interactions:
        """Each pair once: the newest, and of equally new ones the last. Columns are changed in place."""
        starts = starts_of(count_numbers(self.person, len(self.people)))
        rows = np.empty(len(self), row_type(len(self)))
        group_rows(self.person, starts, rows)
        time = np.zeros(0) if self.time is None else self.time
        keep, pairs = newest_rows(rows, starts, self.item, time, len(self.items))
        if not pairs:
            return self
        columns = {n: getattr(self, n) for n in ("person", "item", "value", "time")}
        kept = {n: column[: compact(column, keep)] for n, column in columns.items() if column is not None}
        which = "newest" if self.time is not None else "last row"
        return replace(self, **kept).noted(f"{count(pairs, 'duplicate pair')}: the {which} of each was kept.")

    def noted(self, *notes: str) -> Interactions:
        return replace(self, notes=self.notes + notes)

    def histories(self, seed: int = 0) -> Histories:
        """The histories of all people, oldest first. Equal times are ordered by a seeded hash of (person, item): ids
        follow popularity and rows follow the file, so either would leak into a split. Without time the hash alone is
        the order."""
        starts = starts_of(count_numbers(self.person, len(self.people)))
        rows = self.history_rows(starts, seed)
        item = np.asarray(self.item, np.int32)
        if self.value is None:
            return Histories(starts, item if rows is None else item[rows], repeated(1.0, len(self)))
        values = np.asarray(self.value, np.float32)
        return Histories(starts, item if rows is None else item[rows], values if rows is None else values[rows])

    def history_rows(self, starts: NDArray[np.int64], seed: int) -> NDArray[np.integer] | None:
        """The numbers of the rows in the order of `histories`, each person's from `starts` on; None where they stand in
        this order already."""
        person, item = np.asarray(self.person, np.int32), np.asarray(self.item, np.int32)
        time = np.zeros(0) if self.time is None else np.asarray(self.time, np.float64)
        if self.time is not None and is_in_order(person, time):
            return None
        rows = np.empty(len(self), row_type(len(self)))
        group_rows(person, starts, rows)
        ties = np.zeros(0, np.uint64) if self.ties is None else self.ties
        sort_histories(rows, starts, item, time, ties, pair_shift(seed))
        return rows

    def require(self, people: int = 2) -> Interactions:
        """Refuse data that is too small to learn from."""
        if len(self.people) < people or len(self.items) < 2:
            raise DataError(
                f"{self.name} has {count(len(self.people), 'person', 'people')} and {count(len(self.items), 'item')}; "
                f"at least {people} people and 2 items are needed. Bring more data."
            )
        return self


def time_span(time: NDArray[np.float64]) -> str:
    """The first and the last time in words: as dates where the numbers are seconds since 1970.

    >>> time_span(np.array([881250949.0, 893286638.0])), time_span(np.array([1.0, 2.5]))
    ('1997-12-04 to 1998-04-22', 'times 1 to 2.5')
    """
    first, last = float(time.min()), float(time.max())
    if EPOCH[0] <= first and last <= EPOCH[1]:
        return " to ".join(f"{datetime.fromtimestamp(moment, UTC):%Y-%m-%d}" for moment in (first, last))
    return f"times {first:.12g} to {last:.12g}"


def hash_pairs(a: NDArray[np.integer], b: NDArray[np.integer], seed: int) -> NDArray[np.uint64]:
    """A fixed, well-mixed 64-bit number for every pair."""
    return splitmix(a.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) ^ b.astype(np.uint64) + pair_shift(seed))


def pair_shift(seed: int) -> np.uint64:
    """What a seed adds to the hash of a pair."""
    return np.uint64(seed * 0xD1B54A32D192ED03 % 2**64)


def starts_of(lengths: NDArray[np.integer]) -> NDArray[np.int64]:
    """Where each part of a ragged array starts, and its end: [0, 2, 5] for parts of lengths 2 and 3."""
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def row_type(rows: int) -> type[np.integer]:
    """The smallest type of integers that can number so many rows."""
    return np.int32 if rows < 2**31 else np.int64


def repeated(value: float, n: int) -> Floats:
    """An array [n] of one value, which is in memory once; it is read-only."""
    return np.broadcast_to(np.float32(value), (n,))


def constant(values: Floats, n: int) -> Floats | None:
    """As many as `n` of the value that `repeated` made `values` of; None for other arrays."""
    return np.broadcast_to(values[:1], (n,)) if len(values) and values.strides == (0,) else None
