"""Vocabularies of people and items: names in a fixed order, their indices, titles, groups, and pairs that stand twice.

A vocabulary of digits only is sorted as numbers, any other alphabetically, so that the same data in another row order
has the same indices.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtaste.data.columns import Table
from fedtaste.data.lazy_polars import pl
from fedtaste.errors import DataError
from fedtaste.text import CONTROL, count

Ints = NDArray[np.int32]
UNKNOWN = "unknown"  # the group of people of whom no group is known


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


class PeopleGroups(NamedTuple):
    """A label of every person, such as a country, from a column of the data."""

    column: str  # its name in the source
    labels: tuple[str, ...]  # [people]; UNKNOWN where the source says nothing


def people_groups(tables: list[Table], people: pl.Series) -> PeopleGroups | None:
    """The groups of people in these tables; None where none has them. A person must have one label in all rows."""
    tables = [table for table in tables if "group" in table.frame.columns]
    if not tables:
        return None
    rows = pl.concat([table.frame.select("user", "group") for table in tables]).drop_nulls().unique()
    several = rows.filter(rows["user"].is_duplicated()).sort("user", "group")
    if len(several):
        person, column = several["user"][0], tables[0].columns["group"]
        values = ", ".join(f'"{value}"' for value in several.filter(pl.col("user") == person)["group"].head(3))
        such = count(several["user"].n_unique(), "such person", "such people")
        raise DataError(
            f'{tables[0].file}, column {column}: a group must be the same in all rows of a person, and user "{person}" '
            f"has {values} ({such}). Give everybody one value, or leave group out."
        )
    known = dict(rows.iter_rows())
    return PeopleGroups(tables[0].columns["group"], tuple(CONTROL.sub("", known.get(p, UNKNOWN)) for p in people))
