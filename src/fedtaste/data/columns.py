"""Read tables from CSV, TSV and Parquet files: recognise the columns by name and check every value.

Text files are read as text first and converted to numbers here, so that an error can name the lines that are wrong.
"""

from __future__ import annotations

import csv
import difflib
import gzip
import io
import re
import subprocess
import sys
import zlib
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedtaste.data.interactions import Floats
from fedtaste.data.lazy_polars import pl
from fedtaste.errors import DataError

# Names that each column may have: in lower case, without "_", "-" and spaces, and without RecBole's ":token".
NAMES: dict[str, tuple[str, ...]] = {
    "user": ("user", "userid", "person", "personid", "uid"),
    "item": ("item", "itemid", "movieid", "productid", "iid"),
    "rating": ("rating", "value", "score"),
    "timestamp": ("timestamp", "time", "ts", "date", "datetime"),
    "title": ("title", "movietitle", "itemtitle"),
    "genres": ("genres", "genre", "class"),
}
GZIP = b"\x1f\x8b"  # how such a file begins
ENDINGS = (".csv", ".tsv", ".txt", ".inter", ".csv.gz", ".tsv.gz", ".parquet")
FREE_BYTES, LARGEST_RATIO = 1 << 28, 200  # a compressed file may take FREE_BYTES + LARGEST_RATIO x its size in memory
TRIAL = """
import sys
import polars
try:
    import resource
    most = int(sys.argv[2]) + (1 << 30)
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
except (ImportError, OSError, ValueError):
    pass  # a system without such limits
try:
    polars.read_parquet(sys.argv[1], glob=False)
except (polars.exceptions.PolarsError, OSError):
    pass  # the caller reports it
"""
# date, hours and minutes, seconds, zone
ISO = r"^(\d{4}-\d{2}-\d{2})(?:[T ](\d{2}:\d{2})(:\d{2}(?:\.\d+)?)?)? ?(Z|[+-]\d{2}:?\d{2})?$"


@dataclass(frozen=True, eq=False)
class Table:
    """The columns of one file under our names, plus `row`, the place in the file from 0."""

    file: str
    frame: pl.DataFrame
    columns: dict[str, str]  # our name -> the file's
    unused: tuple[str, ...]
    text: bool
    header: bool = True

    def at(self, bad: pl.Series) -> str:
        """Where the bad rows are: `lines 2, 5, 9 and 4 more` (a header is line 1), or rows of a Parquet file."""
        rows = self.frame["row"].filter(bad)
        shown = ", ".join(str(row + (2 if self.text and self.header else 1)) for row in rows.head(3))
        unit = ("line" if self.text else "row") + ("s" if len(rows) > 1 else "")
        return f"{unit} {shown}" + (f" and {len(rows) - 3:,} more" if len(rows) > 3 else "")

    def wrong(self, role: str, bad: pl.Series, what: str, todo: str) -> DataError:
        return DataError(f"{self.file}, column {self.columns[role]}, {self.at(bad)}: {what}. {todo}")


def is_table(path: Path) -> bool:
    return path.name.lower().endswith(ENDINGS)


def read_table(path: Path, needed: tuple[str, ...], useful: tuple[str, ...]) -> Table:
    """Read these columns of a file; those in `needed` must have a value in every row."""
    text = not path.name.lower().endswith(".parquet")
    try:
        frame = read_text(path) if text else read_parquet(path)
        columns = assign_columns(str(path), frame.columns, needed, useful)
        unused = tuple(column for column in frame.columns if column not in columns.values())
        frame = frame.select(pl.col(column).alias(role) for role, column in columns.items()).with_row_index("row")
        frame = frame.with_columns(as_text(frame[role]) for role in columns if role not in ("rating", "timestamp"))
    except OSError as error:
        reason = error.strerror or str(error)
        raise DataError(f"{path} cannot be read ({reason}). Check the path and its permissions.") from error
    except pl.exceptions.PolarsError as error:
        kind, again = ("CSV", "CSV in UTF-8, values with commas in quotes") if text else ("Parquet", "Parquet or CSV")
        what = f"{path} is not a {kind} file that can be read: {str(error).splitlines()[0]}"
        raise DataError(f"{what}. Write it again as {again}.") from error
    return drop_empty_rows(Table(str(path), frame, columns, unused, text), needed)


def drop_empty_rows(table: Table, needed: tuple[str, ...]) -> Table:
    """Treat empty text as missing and drop empty lines; refuse gaps in the needed columns."""
    texts = [pl.col(column) for column, kind in table.frame.schema.items() if kind == pl.String]
    frame = table.frame.with_columns(pl.when(column.str.contains(r"\S")).then(column) for column in texts)
    frame = frame.filter(~pl.all_horizontal(pl.col(*table.columns).is_null()))
    if not len(frame):
        unit = "interaction" if "user" in needed else "item"
        raise DataError(f"{table.file} has no rows. Expected one row per {unit}.")
    table = replace(table, frame=frame)
    for role in needed:
        if (gap := frame[role].is_null()).any():
            raise table.wrong(role, gap, "the value is missing", f"Name the {role}, or remove the row.")
    return table


def read_text(path: Path) -> pl.DataFrame:
    """A CSV or TSV file, every column as text; the header line decides the separator."""
    with path.open("rb") as file:
        start = file.read(1 << 16)
        packed = start.startswith(GZIP)
        if path.name.lower().endswith(".gz") and start and not packed:
            raise DataError(f"{path} is not a gzip file, as its name says. Rename it, or compress it again.")
        if packed:
            file.seek(0)
            content = gunzip(str(path), file.read())
            start = content[: 1 << 16]
    if not start.strip():
        raise DataError(f"{path} is empty. Expected a line of column names, such as user,item,rating, and rows.")
    if b"\0" in start:
        raise DataError(f"{path} is not a text file in UTF-8. Expected a CSV; save it as CSV in UTF-8, or as Parquet.")
    header = start.split(b"\n")[0].decode("utf-8", "replace")
    return read_separated(str(path), content if packed else path, max(",\t;", key=header.count))


def read_parquet(path: Path) -> pl.DataFrame:
    """A Parquet file, after a trial in a process of its own: a damaged file may make polars ask for exabytes, which
    ends the process without an error."""
    size = path.stat().st_size
    trial = [sys.executable, "-P", "-c", TRIAL, str(path), str(FREE_BYTES + size * LARGEST_RATIO)]
    try:
        done = subprocess.run(trial, stdin=subprocess.DEVNULL, capture_output=True, timeout=60 + size / 1e6)
    except subprocess.TimeoutExpired:
        done = None
    if done is None or done.returncode:
        raise DataError(f"{path} is a damaged Parquet file: it cannot be read to its end. Write or copy it again.")
    return pl.read_parquet(path, glob=False)


def gunzip(file: str, content: bytes) -> bytes:
    """Decompress gzip, within limits on the size; other content stays as it is."""
    if not content.startswith(GZIP):
        return content
    most = FREE_BYTES + len(content) * LARGEST_RATIO
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as packed:
            text = packed.read(most + 1)
        if len(text) > most:
            raise DataError(
                f"{file} unpacks to more than {LARGEST_RATIO} times its size. Unpack it, and see what is in it."
            )
        return text
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{file} is a damaged gzip file ({error}). Compress or copy it again.") from error


def read_separated(file: str, source: Path | bytes, separator: str, header: bool = True) -> pl.DataFrame:
    """The columns of separated text, as text."""
    opened = io.BytesIO(source) if isinstance(source, bytes) else source
    try:
        return pl.read_csv(opened, separator=separator, has_header=header, infer_schema=False, glob=False)
    except pl.exceptions.ComputeError as error:
        if "more fields" in str(error):
            content = source if isinstance(source, bytes) else source.read_bytes()
            raise DataError(f"{file}{long_line(content, separator, header)}") from error
        raise


def long_line(content: bytes, separator: str, header: bool) -> str:
    """Find the line with too many fields, by reading a second time with line numbers."""
    rows = csv.reader(io.StringIO(content.decode("utf-8", "replace"), newline=""), delimiter=separator)
    width, first = len(next(rows)), "header" if header else "first line"
    for row in rows:
        if len(row) > width:
            where = f", line {rows.line_num}: {len(row)} fields, but the {first} has {width}"
            return f"{where}. Put quotes around values that hold a {separator!r}, or name the column."
    return f": a line has more fields than the {first}, which has {width}. Name every column."


def normalise_name(column: str) -> str:
    """`userId`, `USER_ID` and `user_id:token` are one name."""
    return re.sub(r"[\s_-]", "", column.split(":")[0]).lower()


def assign_columns(file: str, got: list[str], needed: tuple[str, ...], useful: tuple[str, ...]) -> dict[str, str]:
    """Our names -> the file's. Refuses a needed column that is missing and an optional one that is misspelt."""
    by_name: dict[str, str] = {}
    for column in got:
        by_name.setdefault(normalise_name(column), column)
    columns = {
        role: next(by_name[name] for name in NAMES[role] if name in by_name)
        for role in needed + useful
        if not by_name.keys().isdisjoint(NAMES[role])
    }
    free = [name for name in by_name if by_name[name] not in columns.values()]
    expected = f"Expected: {' and '.join(needed)}" + (f", and optionally {', '.join(useful)}" if useful else "")
    for role in needed + useful:
        if role in columns:
            continue
        # Needed columns get a generous hint; an optional column is refused only where its name is almost right.
        names, cutoff = (NAMES[role], 0.6) if role in needed else ((role,), 0.8)
        guesses = [guess for name in names for guess in difflib.get_close_matches(name, free, 1, cutoff)]
        hint = f' Did you mean {role} by "{by_name[guesses[0]]}"? Rename it.' if guesses else ""
        if role in needed:
            advice = hint or " Name the columns in the first line."
            raise DataError(f"{file} has no column {role}. Got: {', '.join(got)}. {expected}.{advice}")
        if guesses:
            raise DataError(f'{file} has an unknown column "{by_name[guesses[0]]}". {expected}.{hint}')
    return columns


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
    if column.dtype.is_float() and role == "timestamp":
        column = column.fill_nan(None)
    gaps = column.is_null()
    if gaps.all():
        return None
    if gaps.any():
        todo = f"Fill it in, remove the row, or leave the whole column {table.columns[role]} out."
        raise table.wrong(role, gaps, "the value is missing", todo)
    return column.str.strip_chars() if column.dtype == pl.String else column


def read_ratings(table: Table) -> Floats | None:
    """The ratings as finite numbers, or None."""
    column = optional_column(table, "rating")
    if column is None:
        return None
    parsed = as_floats(column)
    with np.errstate(over="ignore"):
        values = parsed.to_numpy().astype(np.float32)  # NaN where there is no number
    bad = pl.Series(~np.isfinite(values))
    if bad.any():
        kind = "a number" if parsed.filter(bad)[0] is None else "a finite number"
        what = f"{first_bad(column, bad)} is not {kind}"
        raise table.wrong("rating", bad, what, "Expected a rating such as 3.5; correct it or remove the row.")
    return values


def read_times(table: Table) -> NDArray[np.float64] | None:
    """The times in seconds, from numbers or ISO dates (UTC where there is no zone), or None."""
    column = optional_column(table, "timestamp")
    if column is None:
        return None
    if column.dtype.is_temporal():
        return column.dt.epoch("us").to_numpy() / 1e6
    parsed = as_floats(column)
    if parsed.null_count() and column.dtype == pl.String:
        dates = iso_seconds(column)
        parsed = dates if dates.null_count() < len(dates) else parsed
    bad = parsed.is_null() | ~parsed.is_finite().fill_null(False)
    if bad.any():
        todo = "Expected seconds such as 881250949, or dates such as 1997-12-04T15:55:49."
        raise table.wrong("timestamp", bad, f"{first_bad(column, bad)} is not a time", todo)
    return parsed.to_numpy().copy()


def first_bad(column: pl.Series, bad: pl.Series) -> str:
    """The first wrong value; its type where the value does not fit on a line."""
    value = column.filter(bad)[0]
    return f'"{value}"' if isinstance(value, str | float | int) else f"a value of type {column.dtype}"


def as_floats(column: pl.Series) -> pl.Series:
    """Float64, with nulls where that cannot be."""
    if not (column.dtype == pl.String or column.dtype.is_numeric() or column.dtype == pl.Boolean):
        return pl.Series(column.name, [None] * len(column), dtype=pl.Float64)
    return column.cast(pl.Float64, strict=False)


def iso_seconds(column: pl.Series) -> pl.Series:
    """Seconds of ISO dates, which are normalised to one spelling and parsed by polars."""
    part = [pl.col("t").str.extract(ISO, group) for group in (1, 2, 3, 4)]
    zone = part[3].str.replace("^Z$", "+00:00").fill_null("+00:00")
    text = pl.concat_str(part[0], pl.lit(" "), part[1].fill_null("00:00"), part[2].fill_null(":00"), zone)
    parsed = text.str.to_datetime("%Y-%m-%d %H:%M:%S%.f%z", strict=False, time_unit="us")
    return pl.DataFrame({"t": column}).select(parsed.dt.epoch("us").cast(pl.Float64) / 1e6).to_series()
