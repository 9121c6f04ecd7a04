"""Tables of users: recognise the columns by name and check every value.

Text files are read as text first and converted to numbers here, so that an error can name the lines that are wrong.
"""

from __future__ import annotations

import difflib
import math
import re
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedtaste.data.formats import kind_of, read_content
from fedtaste.data.lazy_polars import pl
from fedtaste.data.read_options import DEFAULTS, ReadOptions, user_role
from fedtaste.errors import DataError, SettingError
from fedtaste.text import count, did_you_mean

# Names that each column may have: in lower case, without "_", "-" and spaces, and without RecBole's ":token".
NAMES: dict[str, tuple[str, ...]] = {
    "user": ("user", "userid", "person", "personid", "uid"),
    "item": ("item", "itemid", "movieid", "productid", "iid"),
    "rating": ("rating", "value", "score"),
    "timestamp": ("timestamp", "time", "ts", "date", "datetime"),
    "title": ("title", "movietitle", "itemtitle"),
    "genres": ("genres", "genre", "class", "categories", "category"),
    "group": (),  # read only where it is named: groups of people are nobody's default
}
# Parts of other names, only for the question "Is this the user column?".
LIKELY: dict[str, tuple[str, ...]] = {
    "user": ("user", "customer", "client", "member", "visitor", "account", "buyer", "reader", "reviewer", "session"),
    "item": ("item", "product", "sku", "article", "movie", "film", "book", "song", "track", "artist", "asin", "isbn"),
}
NUMBERS = ("rating", "timestamp")
SAFE_FLOAT = 2**53  # whole numbers above it cannot be told apart as floats
LARGEST_RATING = float(np.finfo(np.float32).max)
FIRST_SECOND, LAST_SECOND = -62_135_596_800, 253_402_300_799  # of the years 1 and 9999
# (smallest number, units in a second): a time with a larger number is not in seconds since 1970
EPOCH_UNITS = ((1e17, 1e9), (1e14, 1e6), (1e11, 1e3))
# date, hours and minutes, seconds, zone
ISO = r"^(\d{4}-\d{2}-\d{2})(?:[T ](\d{2}:\d{2})(:\d{2}(?:\.\d+)?)?)? ?(Z|[+-]\d{2}:?\d{2})?$"
OTHER_DATES = ((r"^\d{1,2}/\d{1,2}/\d{4}$", "%d/%m/%Y"), (r"^\d{1,2}\.\d{1,2}\.\d{4}$", "%d.%m.%Y"))


@dataclass(frozen=True, eq=False)
class Table:
    """The columns of one file or frame under our names, plus `row`, the place in it from 0."""

    file: str
    frame: pl.DataFrame
    columns: dict[str, str]  # our name -> the file's
    unused: tuple[str, ...]
    text: bool
    header: bool = True
    options: ReadOptions = DEFAULTS
    dropped: int = 0  # rows with missing values that were left out

    def at(self, bad: pl.Series) -> str:
        """Where the bad rows are: `lines 2, 5, 9 and 4 more` (a header is line 1), or rows of a Parquet file."""
        rows = self.frame["row"].filter(bad)
        shown = ", ".join(str(row + (2 if self.text and self.header else 1)) for row in rows.head(3))
        unit = ("line" if self.text else "row") + ("s" if len(rows) > 1 else "")
        return f"{unit} {shown}" + (f" and {len(rows) - 3:,} more" if len(rows) > 3 else "")

    def wrong(self, role: str, bad: pl.Series, what: str, todo: str) -> DataError:
        return DataError(f"{self.file}, column {self.columns[role]}, {self.at(bad)}: {what}. {todo}")

    @property
    def notes(self) -> tuple[str, ...]:
        """What was left out, for the reader."""
        rows = f"{count(self.dropped, 'row')} with missing values left out."
        return ((rows,) if self.dropped else ()) + (
            (f"Columns not used: {', '.join(self.unused)}.",) if self.unused else ()
        )


def read_table(path: Path, needed: tuple[str, ...], useful: tuple[str, ...], options: ReadOptions = DEFAULTS) -> Table:
    """Read these columns of a file; those in `needed` must have a value in every row."""
    try:
        content = read_content(path, options)
        columns, unused = assign_columns(str(path), content.frame.columns, needed, useful, options)
        frame = content.frame.select(pl.col(column).alias(role) for role, column in columns.items())
    except OSError as error:
        reason = error.strerror or str(error)
        raise DataError(f"{path} cannot be read ({reason}). Check the path and its permissions.") from error
    except pl.exceptions.PolarsError as error:
        what = f"{path} is not a {kind_of(path.name)} file that can be read: {str(error).splitlines()[0]}"
        raise DataError(f"{what}. Write it again, or as CSV in UTF-8, values with commas in quotes.") from error
    return complete(Table(str(path), frame, columns, unused, content.text, content.header, options), needed)


def complete(table: Table, needed: tuple[str, ...]) -> Table:
    """A table of freshly selected columns: number its rows, convert names to text, and treat missing values."""
    texts = [text_column(table, role) for role in table.columns if role not in NUMBERS]
    return drop_empty_rows(replace(table, frame=table.frame.with_columns(texts).with_row_index("row")), needed)


def drop_empty_rows(table: Table, needed: tuple[str, ...]) -> Table:
    """Treat empty text as missing and drop empty lines; refuse gaps in the needed columns, or drop their rows."""
    texts = [pl.col(column) for column, kind in table.frame.schema.items() if kind == pl.String]
    frame = table.frame.with_columns(pl.when(column.str.contains(r"\S")).then(column) for column in texts)
    frame = frame.filter(~pl.all_horizontal(pl.col(*table.columns).is_null()))
    rows = len(frame)
    if rows and table.options.drop_missing:
        gaps = {role: missing(frame[role]) for role in table.columns if role in (*needed, *NUMBERS)}
        useful = [gap for role, gap in gaps.items() if role in needed or not gap.all()]  # an empty column is ignored
        frame = frame.filter(~pl.Series(np.any([gap.to_numpy() for gap in useful], axis=0)))
    if not len(frame):
        unit = "interaction" if "user" in needed else "item"
        left = " without missing values" if rows else ""
        raise DataError(f"{table.file} has no rows{left}. Expected one row per {unit}.")
    table = replace(table, frame=frame, dropped=rows - len(frame))
    for role in needed:
        if (gap := frame[role].is_null()).any():
            todo = f"Name the {role}, or remove the row; {table.options.use('drop_missing')} leaves such rows out."
            raise table.wrong(role, gap, "the value is missing", todo)
    return table


def missing(column: pl.Series) -> pl.Series:
    """Which values are null or NaN."""
    return column.is_null() | column.is_nan().fill_null(False) if column.dtype.is_float() else column.is_null()


def normalise_name(column: str) -> str:
    """`userId`, `USER_ID` and `user_id:token` are one name."""
    return re.sub(r"[\s_-]", "", column.split(":")[0]).lower()


def assign_columns(
    file: str, got: list[str], needed: tuple[str, ...], useful: tuple[str, ...], options: ReadOptions = DEFAULTS
) -> tuple[dict[str, str], tuple[str, ...]]:
    """(our names -> the file's, the file's names that are not used, with a hint where one is almost an optional one).

    Columns that the options name must exist, once; the others are found by their usual names. A needed column that is
    missing is refused.
    """
    columns = named_columns(file, got, needed + useful, options)
    by_name: dict[str, str] = {}
    for column in got:
        if column not in columns.values():
            by_name.setdefault(normalise_name(column), column)
    for role in needed + useful:
        if not options.names(role) and not by_name.keys().isdisjoint(NAMES[role]):
            columns[role] = by_name.pop(next(name for name in NAMES[role] if name in by_name))
    if twice := [column for column in columns.values() if got.count(column) > 1]:
        raise DataError(f'{file} has {got.count(twice[0])} columns "{twice[0]}". Rename or remove all but one.')
    hints: dict[str, str] = {}
    for role in needed + useful:
        if role in columns or options.names(role):
            continue
        if role in needed:
            raise missing_column(file, got, role, by_name, (needed, useful), options)
        for column in (by_name[name] for name in difflib.get_close_matches(role, list(by_name), 1, 0.8)):
            hints[column] = f"{column} (if it is the {user_role(role)}: {options.use_column(role, column)})"
    return columns, tuple(hints.get(column, column) for column in got if column not in columns.values())


def named_columns(file: str, got: list[str], roles: tuple[str, ...], options: ReadOptions) -> dict[str, str]:
    """The columns that the options name."""
    columns: dict[str, str] = {}
    for role in roles:
        column = options.column(role)
        if column is None:
            continue
        if column not in got:
            raise DataError(f"{file}: {did_you_mean(column, got, 'column')} Got: {options.use_column(role, column)}.")
        if column in columns.values():
            first = next(other for other, name in columns.items() if name == column)
            raise SettingError(
                f'{user_role(first)} and {user_role(role)} both name the column "{column}" of {file}. Name two.'
            )
        columns[role] = column
    return columns


def missing_column(
    file: str, got: list[str], role: str, free: dict[str, str], expected: tuple[tuple[str, ...], tuple[str, ...]],
    options: ReadOptions,
) -> DataError:  # fmt: skip
    """The error for a needed column that is missing, with a column that it may be."""
    needed, useful = expected
    guesses = [guess for name in NAMES[role] for guess in difflib.get_close_matches(name, list(free), 1, 0.6)]
    guesses += [name for part in LIKELY.get(role, ()) for name in free if part in name]
    call = options.use_column(role, "NAME")
    hint = f" Name it with {call}." if options.of_frame else f" Name the columns in the first line, or use {call}."
    if guesses:
        column = free[guesses[0]]
        hint = f' Is "{column}" the {user_role(role)} column? Use {options.use_column(role, column)}.'
    wanted = f"Expected: {' and '.join(needed)}" + (f", and optionally {', '.join(useful)}" if useful else "")
    return DataError(f"{file} has no column {role}. Got: {', '.join(got)}. {wanted}.{hint}")


def text_column(table: Table, role: str) -> pl.Series:
    """A column of names as text; DataError where its type has no text, or its numbers are not exact."""
    column = table.frame[role]
    if column.dtype.is_float() and (column.fill_nan(None).abs() >= SAFE_FLOAT).any():
        raise DataError(
            f"{table.file}, column {table.columns[role]}: floats cannot tell whole numbers from 2^53 on apart. Store "
            "them as integers (in pandas as Int64 where some are missing) or as text."
        )
    try:
        return as_text(column)
    except pl.exceptions.PolarsError as error:
        raise DataError(
            f"{table.file}, column {table.columns[role]}: {column.dtype} cannot be read as text. Expected text or "
            "whole numbers."
        ) from error


def as_text(column: pl.Series) -> pl.Series:
    """Text as it is; whole numbers that were stored as floats (pandas does so beside a gap) without their `.0`."""
    if column.dtype.is_float():
        column = column.fill_nan(None)
        if bool((column.drop_nulls() % 1 == 0).all()):
            column = column.cast(pl.Int64)
    if column.dtype.is_nested():  # such as a list of genres
        column = column.cast(pl.List(pl.String)).list.join(", ")
    return column.cast(pl.String)


def optional_column(table: Table, role: str) -> pl.Series | None:
    """A column of numbers or dates; None where it is missing or empty. Refuses gaps."""
    if role not in table.frame.columns:
        return None
    column = table.frame[role]
    gaps = missing(column)
    if gaps.all():
        return None
    if gaps.any():
        raise gap_error(table, role, gaps)
    return column.str.strip_chars() if column.dtype == pl.String else column


def gap_error(table: Table, role: str, gaps: pl.Series) -> DataError:
    """The error for a column of numbers or dates of which some values are missing."""
    ignore = f"give {user_role(role)}=None" if table.options.of_frame else "leave the whole column out"
    todo = f"Fill it in, remove the row ({table.options.use('drop_missing')}), or {ignore}."
    return table.wrong(role, gaps, "the value is missing", todo)


def read_ratings(table: Table) -> NDArray[np.float32] | None:
    """The ratings as finite numbers, or None."""
    column = optional_column(table, "rating")
    if column is None:
        return None
    parsed = as_floats(column, table.options.decimal)
    with np.errstate(over="ignore"):
        values = parsed.to_numpy().astype(np.float32)  # NaN where there is no number
    bad = pl.Series(~np.isfinite(values))
    if bad.any():
        number = parsed.filter(bad)[0]
        if number is not None and math.isfinite(number):
            what = f"{first_bad(column, bad)} is too large; ratings must be below {LARGEST_RATING:.1e}"
        else:
            what = f"{first_bad(column, bad)} is not {'a number' if number is None else 'a finite number'}"
        todo = decimal_hint(column.filter(bad), table.options)
        raise table.wrong("rating", bad, what, todo or "Expected a rating such as 3.5; correct it or remove the row.")
    return values


def decimal_hint(bad: pl.Series, options: ReadOptions) -> str:
    """Advice where the first wrong number has the other decimal mark."""
    mark = "," if options.decimal == "." else "."
    number = re.fullmatch(rf"[+-]?\d+{re.escape(mark)}\d+", str(bad[0]))
    if not number:
        return ""
    return f"If {mark} is the decimal mark, use {options.use('decimal', mark)}."


def read_times(table: Table) -> NDArray[np.float64] | None:
    """The times in seconds since 1970, or None.

    Times are dates, text in the date format of the options or in ISO format (UTC where there is no zone), or numbers.
    Numbers are seconds, or by their size milliseconds, microseconds or nanoseconds.
    """
    column = optional_column(table, "timestamp")
    if column is None:
        return None
    seconds = parse_times(column, table)
    bad = ~seconds.is_between(FIRST_SECOND, LAST_SECOND)
    if bad.any():
        todo = "Expected a date, seconds to nanoseconds since 1970, or an order such as 0, 1, 2; correct it."
        raise table.wrong("timestamp", bad, f"{first_bad(column, bad)} is no time in the years 1 to 9999", todo)
    return seconds.to_numpy().copy()


def parse_times(column: pl.Series, table: Table) -> pl.Series:
    """Finite seconds since 1970 of a column of times; DataError for what is not a time."""
    if column.dtype == pl.Date or column.dtype == pl.Datetime:
        return column.dt.epoch("us").cast(pl.Float64) / 1e6
    if table.options.date_format is not None:
        parsed = formatted_seconds(as_text(column), table.options.date_format)
    else:
        parsed = as_floats(column, table.options.decimal) if column.dtype != pl.Boolean else no_floats(column)
        if parsed.null_count() and column.dtype == pl.String:
            dates = iso_seconds(column)
            parsed = dates if dates.null_count() < len(dates) else parsed
        if not parsed.null_count():
            parsed = epoch_seconds(parsed)
    bad = parsed.is_null() | ~parsed.is_finite().fill_null(False)
    if bad.any():
        raise table.wrong("timestamp", bad, f"{first_bad(column, bad)} is not a time", time_hint(column, bad, table))
    return parsed


def epoch_seconds(numbers: pl.Series) -> pl.Series:
    """Seconds since 1970 from numbers in seconds, milliseconds, microseconds or nanoseconds; the largest one decides.

    >>> [epoch_seconds(pl.Series([1.5 * unit]))[0] for unit in (1e9, 1e12, 1e15, 1e18)]
    [1500000000.0, 1500000000.0, 1500000000.0, 1500000000.0]
    """
    largest = numbers.abs().filter(numbers.is_finite()).max()
    unit = epoch_unit(largest) if isinstance(largest, float) else 1.0
    return numbers if unit == 1 else numbers / unit


def epoch_unit(largest: float) -> float:
    """How many units of a time are one second, by the largest time of a column."""
    return next((units for smallest, units in EPOCH_UNITS if largest >= smallest), 1.0)


def time_hint(column: pl.Series, bad: pl.Series, table: Table) -> str:
    """Advice for a value that is not a time."""
    value, wanted = str(column.filter(bad)[0]), table.options.date_format
    if wanted is not None:
        return f'Expected times in the format "{wanted}".'
    for pattern, date_format in OTHER_DATES:
        if re.match(pattern, value):
            return f"If days come before months, use {table.options.use('date_format', date_format)}."
    return (
        "Expected seconds such as 881250949, or dates such as 1997-12-04T15:55:49; other dates need "
        f"{table.options.use('date_format', '%d/%m/%Y')} or the like."
    )


def first_bad(column: pl.Series, bad: pl.Series) -> str:
    """The first wrong value; its type where the value does not fit on a line."""
    value = column.filter(bad)[0]
    return f'"{value}"' if isinstance(value, str | float | int) else f"a value of type {column.dtype}"


def as_floats(column: pl.Series, decimal: str = ".") -> pl.Series:
    """Float64, with nulls where that cannot be. `decimal` is the decimal mark of text."""
    if not (column.dtype == pl.String or column.dtype.is_numeric() or column.dtype == pl.Boolean):
        return no_floats(column)
    if decimal == "," and column.dtype == pl.String:
        column = column.str.replace_all(".", "?", literal=True).str.replace(",", ".", literal=True)
    return column.cast(pl.Float64, strict=False)


def no_floats(column: pl.Series) -> pl.Series:
    """As many nulls."""
    return pl.Series(column.name, [None] * len(column), dtype=pl.Float64)


def iso_seconds(column: pl.Series) -> pl.Series:
    """Seconds of ISO dates, which are normalised to one spelling and parsed by polars."""
    part = [pl.col("t").str.extract(ISO, group) for group in (1, 2, 3, 4)]
    zone = part[3].str.replace("^Z$", "+00:00").fill_null("+00:00")
    text = pl.concat_str(part[0], pl.lit(" "), part[1].fill_null("00:00"), part[2].fill_null(":00"), zone)
    parsed = text.str.to_datetime("%Y-%m-%d %H:%M:%S%.f%z", strict=False, time_unit="us")
    return pl.DataFrame({"t": column}).select(parsed.dt.epoch("us").cast(pl.Float64) / 1e6).to_series()


def formatted_seconds(column: pl.Series, date_format: str) -> pl.Series:
    """Seconds of dates in this format."""
    try:
        parsed = column.str.to_datetime(date_format, strict=False, time_unit="us")
    except pl.exceptions.PolarsError as error:
        reason = str(error).splitlines()[0]
        raise SettingError(f'The date format "{date_format}" cannot be used: {reason}') from error
    return parsed.dt.epoch("us").cast(pl.Float64) / 1e6
