"""Tables from data frames of pandas and polars, and the entries of sparse matrices. pandas and SciPy are not imported.

A pandas frame is converted column by column, which needs no pyarrow. Named levels of its index count as columns. Any
other object with an Arrow stream (pyarrow, DuckDB) is read by polars.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from types import EllipsisType
from typing import Any, NamedTuple, TypedDict

import numpy as np
from numpy.typing import NDArray

from fedtaste.data.columns import Table, assign_columns, complete
from fedtaste.data.lazy_polars import pl
from fedtaste.data.read_options import ReadOptions
from fedtaste.errors import DataError, SettingError
from fedtaste.text import CONTROL, count, did_you_mean

Column = str | EllipsisType  # `...`: a column of a usual name
OptionalColumn = str | None | EllipsisType  # None: none is read
DESCRIPTIONS = ("title", "genres")
NUMBERS = {"i": "Int64", "u": "UInt64", "f": "Float64", "b": "Boolean"}  # polars's, by the kind of a pandas type


class FrameOptions(TypedDict, total=False):
    """Further keywords of `Interactions.from_frame`, which documents them."""

    title: OptionalColumn
    genres: OptionalColumn
    group: str | None
    drop_missing: bool
    decimal: str
    date_format: str | None


def frame_options(columns: Mapping[str, object], options: Mapping[str, Any]) -> ReadOptions:
    """The keywords of `from_frame` as ReadOptions; unknown ones are refused."""
    known = (*columns, "items", "name", *FrameOptions.__annotations__)
    for name in options:
        if name not in known:
            raise SettingError(f"from_frame: {did_you_mean(name, known, 'keyword')}")
    columns = {**columns, **{role: options[role] for role in (*DESCRIPTIONS, "group") if role in options}}
    given = {role: None if name is None else str(name) for role, name in columns.items() if name is not ...}
    others = {name: value for name, value in options.items() if name not in columns}
    return ReadOptions(given, **others, of_frame=True)


@dataclass(frozen=True, eq=False)
class Frame:
    """A data frame of any library: the names of its columns, and its columns as polars has them."""

    library: str
    names: list[str]
    column: Callable[[int], pl.Series]  # by position

    def table(self, file: str, needed: tuple[str, ...], useful: tuple[str, ...], options: ReadOptions) -> Table:
        """The columns that are named, or recognised by their names."""
        columns, unused = assign_columns(file, self.names, needed, useful, options)
        series = [self._read(file, role, column) for role, column in columns.items()]
        return complete(Table(file, pl.DataFrame(series), columns, unused, False, options=options), needed)

    def _read(self, file: str, role: str, column: str) -> pl.Series:
        try:
            return self.column(self.names.index(column)).alias(role)
        except (TypeError, ValueError, OverflowError, pl.exceptions.PolarsError) as error:
            reason = str(error).splitlines()[0]
            raise DataError(f"{file}, column {column} cannot be read: {reason} Expected text or numbers.") from error


class FrameTables(NamedTuple):
    """The interactions, the catalogue if there is one, and the library of the interactions."""

    table: Table
    catalogue: Table | None
    library: str


def frame_tables(frame: object, items: object | None, name: str, options: ReadOptions) -> FrameTables:
    """The tables of a frame of interactions and of an optional frame of items."""
    source, catalogue = open_frame(frame, name), None
    if items is not None:
        products = open_frame(items, "items")
        for role in DESCRIPTIONS:
            names = dict.fromkeys(source.names + products.names)
            if (column := options.column(role)) and column not in names:
                raise DataError(f"{name} and items: {did_you_mean(column, names, 'column')}")
        catalogue = products.table("items", ("item",), DESCRIPTIONS, _present(options, products))
        options = _present(options, source)
    table = source.table(name, ("user", "item"), ("rating", "timestamp", *DESCRIPTIONS, "group"), options)
    return FrameTables(table, catalogue, source.library)


def _present(options: ReadOptions, frame: Frame) -> ReadOptions:
    """The options without titles and genres that are in the other frame."""
    absent = {role: None for role in DESCRIPTIONS if (c := options.column(role)) and c not in frame.names}
    return replace(options, columns={**options.columns, **absent})


def is_frame(value: object) -> bool:
    """Whether `open_frame` reads this object."""
    if _library(type(value)) in ("pandas", "polars"):  # a Series is no frame
        return isinstance(value, pl.DataFrame | pl.LazyFrame) or _is_pandas(value)
    return hasattr(value, "__arrow_c_stream__")


def open_frame(value: Any, name: str) -> Frame:
    """A frame of polars or pandas, or of another library with an Arrow stream."""
    if _is_pandas(value):
        return _open_pandas(value, name)
    if hasattr(value, "tocsr"):
        raise DataError(f"{name} is a sparse matrix. Use Interactions.from_matrix for it.")
    if not is_frame(value):
        raise DataError(
            f"{name} must be a pandas or polars data frame, got {type(value).__name__}. Make one, as in "
            "polars.DataFrame({'user': [...], 'item': [...]})."
        )
    frame = value.collect() if isinstance(value, pl.LazyFrame) else pl.DataFrame(value)
    return Frame("polars", frame.columns, lambda place: frame[:, place])


def _is_pandas(value: object) -> bool:
    """Whether it is a DataFrame of pandas, or of a class derived from it."""
    return any(base.__name__ == "DataFrame" and _library(base) == "pandas" for base in type(value).__mro__)


def _library(kind: type) -> str:
    return kind.__module__.partition(".")[0]


def _open_pandas(frame: Any, name: str) -> Frame:
    if frame.columns.nlevels > 1:
        raise DataError(
            f"{name} has columns with {frame.columns.nlevels} levels. Give every column one name, as in "
            "frame.columns = ['user', 'item']."
        )
    levels = [str(level) for level in frame.index.names if level is not None]
    names = [str(column) for column in frame.columns]
    if both := [level for level in levels if level in names or levels.count(level) > 1]:
        raise DataError(f'{name} has "{both[0]}" twice, as a level of its index. Use frame.reset_index(drop=True).')
    if levels:
        frame = frame.reset_index()
        names = [str(column) for column in frame.columns]
    return Frame("pandas", names, lambda place: pandas_series(frame.iloc[:, place]))


def pandas_series(column: Any) -> pl.Series:
    """A pandas column as a polars one, without pyarrow. Objects that are not all numbers, or all lists, become text."""
    kind = column.dtype
    if hasattr(column, "cat"):
        categories = pandas_series(column.cat.categories.to_series())
        codes = column.cat.codes.to_numpy().astype(np.int64)
        absent = pl.Series([None], dtype=categories.dtype)
        return pl.concat([categories.alias(""), absent]).gather(np.where(codes < 0, len(categories), codes))
    if kind.kind == "M":
        zone = getattr(getattr(kind, "pyarrow_dtype", kind), "tz", None)
        moments = column if zone is None else column.dt.tz_convert("UTC").dt.tz_localize(None)
        return pl.Series(moments.to_numpy(dtype="datetime64[us]"))
    if kind.kind in NUMBERS:
        number = getattr(pl, NUMBERS[kind.kind])
        if isinstance(kind, np.dtype):
            return pl.Series(column.to_numpy()).cast(number)
        return pl.Series(column.to_numpy(dtype=object, na_value=None).tolist(), dtype=number)
    values = [None if gap else value for value, gap in zip(column.tolist(), column.isna().tolist())]
    return _from_objects(values)


def _from_objects(values: list[Any]) -> pl.Series:
    """Python objects as lists where all are lists, as floats where all are numbers and some are not integers, and as
    text otherwise."""
    kinds = {type(value) for value in values if value is not None}
    if kinds == {str}:
        return pl.Series(values, dtype=pl.String)
    if kinds and all(issubclass(kind, list | tuple | set | frozenset | np.ndarray) for kind in kinds):
        lists = [None if value is None else [str(part) for part in value] for value in values]
        return pl.Series(lists, dtype=pl.List(pl.String))
    fractional = any(issubclass(kind, float | Decimal | np.floating) for kind in kinds)
    if fractional and all(issubclass(kind, int | float | Decimal | np.number) for kind in kinds - {bool}):
        return pl.Series([None if value is None else float(value) for value in values], dtype=pl.Float64)
    return pl.Series([None if value is None else _text(value) for value in values], dtype=pl.String)


def _text(value: object) -> str:
    """One object as text; true and false as polars writes them."""
    if isinstance(value, bytes | dict | list | tuple | set):
        raise TypeError(f"it holds a {type(value).__name__}.")
    if isinstance(value, bool | np.bool_):
        return str(value).lower()
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    return str(value)


class Entries(NamedTuple):
    """The entries of a sparse matrix, with the names of its rows and columns."""

    person: NDArray[np.int32]
    item: NDArray[np.int32]
    value: NDArray[np.float32]
    people: tuple[str, ...]
    items: tuple[str, ...]
    notes: tuple[str, ...]


def matrix_entries(
    matrix: Any, users: Sequence[object] | None, items: Sequence[object] | None, titles: Sequence[str]
) -> Entries:
    """The entries of a SciPy matrix that are not zero, without the rows that have none."""
    if not hasattr(matrix, "tocsr") or len(matrix.shape) != 2:
        raise DataError(
            f"from_matrix needs a sparse matrix of SciPy, [users, items], got {type(matrix).__name__}. Make one with "
            "scipy.sparse.csr_array(matrix)."
        )
    csr = matrix.tocsr(copy=True)
    csr.sum_duplicates()
    csr.eliminate_zeros()
    with np.errstate(over="ignore"):
        value = csr.data.astype(np.float32)
    if not np.isfinite(value).all():
        raise DataError("The matrix has entries that are not finite numbers. Remove or correct them.")
    lengths = np.diff(csr.indptr)
    taken = np.flatnonzero(lengths)
    if not len(taken):
        raise DataError("The matrix has no entries but zeros. Expected one entry per interaction.")
    people = _names("users", users, csr.shape[0], "row")
    if len(titles) not in (0, csr.shape[1]):
        raise DataError(f"titles must have one title per column, {csr.shape[1]:,}, got {len(titles):,}.")
    person = np.repeat(np.arange(len(taken), dtype=np.int32), lengths[taken])
    empty = len(lengths) - len(taken)
    note = f"{count(empty, 'row', 'rows')} without entries left out."
    return Entries(
        person, csr.indices.astype(np.int32), value, tuple(people[row] for row in taken),
        _names("items", items, csr.shape[1], "column"), (note,) if empty else (),
    )  # fmt: skip


def _names(argument: str, names: Sequence[object] | None, size: int, line: str) -> tuple[str, ...]:
    """The names of the rows or columns of a matrix as text, each once."""
    texts = tuple(str(name) for name in (range(size) if names is None else names))
    if len(texts) != size:
        raise DataError(f"{argument} must have one name per {line}, {size:,}, got {len(texts):,}.")
    if len(set(texts)) < size:
        twice = next(text for place, text in enumerate(texts) if text in texts[:place])
        raise DataError(f'{argument} must be different names, got "{CONTROL.sub("", twice)}" twice.')
    return texts
