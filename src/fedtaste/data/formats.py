"""Read the file formats of tables: CSV, TSV, JSON lines, Parquet and Feather; text also in gzip or in a zip archive.

CSV and TSV are read as text, so that "007" stays "007" and errors can name lines. Nothing here knows which columns a
table should have.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import subprocess
import sys
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from fedtaste.data.lazy_polars import pl
from fedtaste.data.read_options import DEFAULTS, ReadOptions
from fedtaste.data.spreadsheets import unguarded
from fedtaste.errors import DataError, SettingError
from fedtaste.text import unreadable

GZIP = b"\x1f\x8b"  # how such a file begins
TEXT = (".csv", ".tsv", ".txt", ".inter")
JSON_LINES = (".jsonl", ".ndjson")
FEATHER = (".feather", ".arrow")
PLAIN = TEXT + JSON_LINES
TO_UTF8 = "Save the file in UTF-8 (in Excel as CSV UTF-8), or convert it: iconv -f latin1 -t utf-8."
ENDINGS = (*PLAIN, *(ending + ".gz" for ending in PLAIN), ".zip", ".parquet", *FEATHER)
SHOWN_ENDINGS = f"{', '.join(PLAIN)} (also with .gz), .zip, .parquet, {', '.join(FEATHER)}"
GIB = 1 << 30
DEEPEST = 100  # levels of nested JSON
# A compressed file may take the limit of the options, by default the smaller of MOST_BYTES and FREE_BYTES +
# LARGEST_RATIO x its size.
MOST_BYTES, FREE_BYTES, LARGEST_RATIO = 2 * GIB, 1 << 26, 200
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
    scan = polars.scan_parquet(sys.argv[1], glob=False)
    rows = scan.select(polars.len()).collect().item()
    for begin in range(0, rows, 4_000_000):
        scan.slice(begin, 4_000_000).collect()
except (polars.exceptions.PolarsError, OSError):
    pass  # the caller reports it
"""


@dataclass(frozen=True, eq=False)
class Content:
    """What a file holds."""

    frame: pl.DataFrame
    kind: str  # in words, for errors
    text: bool = True  # places are lines, not rows
    header: bool = True  # the first line has the names of the columns


def is_table(path: Path) -> bool:
    return path.name.lower().endswith(ENDINGS)


def stem(path: Path) -> str:
    """`ratings.csv.gz` and `ratings.csv.zip` are called `ratings`."""
    name = path.name.removesuffix(".gz")
    if name.lower().endswith(".zip"):
        name = name[:-4]
        return name[: name.rindex(".")] if name.lower().endswith(PLAIN) else name
    return name.rpartition(".")[0] or name


def kind_of(name: str) -> str:
    """The kind of a file in words, by its name."""
    name = name.lower()
    if name.endswith(".parquet"):
        return "Parquet"
    if name.endswith(FEATHER):
        return "Feather"
    return "JSON-lines" if name.removesuffix(".gz").endswith(JSON_LINES) else "CSV"


def read_content(path: Path, options: ReadOptions) -> Content:
    """The table in a file. Raises OSError and polars' errors as they are."""
    kind = kind_of(path.name)
    if options.separator is not None and kind != "CSV":
        raise SettingError(f"{path} is a {kind} file and has no separator. Leave --separator out.")
    if kind in ("Parquet", "Feather"):
        return Content(read_binary(path, kind), kind, text=False)
    if path.name.lower().endswith(".zip"):
        member, content = unzip(path, options)
        return parse_text(str(path), kind_of(member), content, content, options)
    with path.open("rb") as file:
        start = file.read(1 << 16)
    if start.startswith(GZIP):
        content = gunzip(str(path), path.read_bytes(), options)
        return parse_text(str(path), kind, content, content, options)
    if path.name.lower().endswith(".gz") and start:
        raise DataError(f"{path} is not a gzip file, as its name says. Rename it, or compress it again.")
    return parse_text(str(path), kind, start, path, options)


def parse_text(file: str, kind: str, start: bytes, source: Path | bytes, options: ReadOptions) -> Content:
    """The table in text that begins with `start`."""
    if not start.strip():
        raise DataError(f"{file} is empty. Expected a line of column names, such as user,item,rating, and rows.")
    if b"\0" in start[: 1 << 16]:
        raise DataError(f"{file} is not a text file in UTF-8. Expected a CSV; save it as CSV in UTF-8, or as Parquet.")
    if b"\n" not in start and b"\r" in start.rstrip():
        raise DataError(f"{file} has lines that end in CR alone, as on an old Macintosh. Save it with LF or CRLF.")
    if kind == "JSON-lines":
        return Content(read_json_lines(file, source), kind, header=False)
    header = start.partition(b"\n")[0].decode("utf-8", "replace")
    separator = options.separator or max(",\t;|", key=header.count)
    return Content(read_separated(file, source, separator), kind)


def read_binary(path: Path, kind: str) -> pl.DataFrame:
    """A Parquet or Feather file, after a trial."""
    require_readable(path, kind)
    if kind == "Feather":
        return pl.read_ipc(io.BytesIO(path.read_bytes()))  # not mapped: the file may change later
    return pl.read_parquet(path, glob=False)


def require_readable(path: Path, kind: str) -> None:
    """Read a Parquet or Feather file on trial in a process of its own, Parquet in pieces: a damaged file may make
    polars ask for exabytes, which ends the process without an error."""
    script = TRIAL.replace("scan_parquet(sys.argv[1], glob=False)", "read_ipc(sys.argv[1]).lazy()")
    script = script if kind == "Feather" else TRIAL
    size = path.stat().st_size
    trial = [sys.executable, "-P", "-c", script, str(path), str(4 * FREE_BYTES + size * LARGEST_RATIO)]
    try:
        done = subprocess.run(trial, stdin=subprocess.DEVNULL, capture_output=True, timeout=60 + size / 1e6)
    except subprocess.TimeoutExpired:
        done = None
    if done is None or done.returncode:
        raise DataError(f"{path} is a damaged {kind} file: it cannot be read to its end. Write or copy it again.")


def gunzip(file: str, content: bytes, options: ReadOptions = DEFAULTS) -> bytes:
    """Decompress gzip, within limits on the size; other content stays as it is."""
    if not content.startswith(GZIP):
        return content
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as packed:
            return read_within_limit(file, packed, len(content), options)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{file} is a damaged gzip file ({error}). Compress or copy it again.") from error


def unzip(path: Path, options: ReadOptions) -> tuple[str, bytes]:
    """(name, content) of the one table in a zip archive."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = [
                info for info in archive.infolist() if not info.is_dir() and "__MACOSX" not in info.filename.split("/")
            ]
            tables = [info for info in members if info.filename.lower().endswith(PLAIN)]
            # a README.txt may lie beside the table
            tables = [info for info in tables if not info.filename.lower().endswith(".txt")] or tables
            if len(tables) != 1:
                names = [info.filename for info in tables or members]
                shown = ", ".join(names[:3]) + f" and {len(names) - 3:,} more" * (len(names) > 3)
                raise DataError(
                    f"{path} holds {shown or 'no files'}. Expected one file that ends in {', '.join(PLAIN)}; unpack "
                    "the archive, and give the file that you mean."
                )
            with archive.open(tables[0]) as member:
                return tables[0].filename, read_within_limit(str(path), member, tables[0].compress_size, options)
    except (EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError) as error:
        raise DataError(f"{path} cannot be unpacked ({error}). Unpack it yourself, or copy it again.") from error


def read_within_limit(file: str, packed: IO[bytes] | gzip.GzipFile, size: int, options: ReadOptions) -> bytes:
    """Decompress `size` bytes; DataError where more comes out than the options allow."""
    most = min(MOST_BYTES, FREE_BYTES + size * LARGEST_RATIO)
    if options.max_gib is not None:
        most = int(options.max_gib * GIB)
    content = packed.read(most + 1)
    if len(content) > most:
        raise DataError(
            f"{file} has {size:,} compressed bytes and unpacks to more than {most / GIB:.3g} GiB ({most:,} bytes), the "
            f"limit. If you trust the file, raise the limit with --max-gib, or unpack the file yourself."
        )
    return content


def read_json_lines(file: str, source: Path | bytes) -> pl.DataFrame:
    """One JSON object per line. A column whose values have several types becomes text."""
    lines = (source if isinstance(source, bytes) else source.read_bytes()).split(b"\n")
    for number, line in enumerate(lines, 1):
        if (
            line.count(b"[") + line.count(b"{") > DEEPEST and nesting(line) > DEEPEST
        ):  # polars crashes from about 500 on
            raise DataError(f"{file}, line {number} has JSON nested more than {DEEPEST} deep. Expected flat objects.")
    try:
        return pl.read_ndjson(io.BytesIO(source) if isinstance(source, bytes) else source, infer_schema_length=None)
    except pl.exceptions.PolarsError as error:
        for number, line in enumerate(lines, 1):
            try:
                valid = not line.strip() or isinstance(json.loads(line), dict)
            except (ValueError, RecursionError):
                valid = False
            if not valid:
                raise DataError(
                    f'{file}, line {number} is not a JSON object. Expected one on every line, such as {{"user": "a", '
                    '"item": "b"}.'
                ) from error
        raise


def nesting(line: bytes) -> int:
    """How deep the brackets of a line of JSON are nested.

    >>> nesting(b'{"a": [[1], "[[[["]}')
    3
    """
    depth = deepest = 0
    for part in re.findall(rb'"(?:\\.|[^"\\])*"|[][{}]', line):
        depth += {b"[": 1, b"{": 1, b"]": -1, b"}": -1}.get(part, 0)
        deepest = max(deepest, depth)
    return deepest


def read_separated(
    file: str, source: Path | bytes, separator: str, header: bool = True, remedy: str = TO_UTF8
) -> pl.DataFrame:
    """The columns of separated text, as text."""
    opened = io.BytesIO(source) if isinstance(source, bytes) else source
    try:
        frame = pl.read_csv(opened, separator=separator, has_header=header, infer_schema=False, glob=False)
    except pl.exceptions.ComputeError as error:
        if "more fields" not in str(error) and "utf-8" not in str(error):
            raise
        content = source if isinstance(source, bytes) else source.read_bytes()
        if "utf-8" in str(error):
            require_utf8(file, content, remedy)
        raise DataError(f"{file}{long_line(content, separator, header)}") from error
    twice = next((name for name in frame.columns if f"{name}_duplicated_0" in frame.columns), None) if header else None
    if twice is not None:  # polars names the second one so
        raise DataError(f'{file}: the header names the column "{twice}" twice. Give every column a name of its own.')
    return unguarded(frame)


def require_utf8(file: str, content: bytes, remedy: str) -> None:
    """Refuse text in another encoding, with the first line that shows it and what to do."""
    try:
        content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{file}, {unreadable(error)}. {remedy}") from None


def long_line(content: bytes, separator: str, header: bool) -> str:
    """Find the line with too many fields, by reading a second time with line numbers."""
    rows = csv.reader(io.StringIO(content.decode("utf-8", "replace"), newline=""), delimiter=separator)
    width, first = len(next(rows)), "header" if header else "first line"
    for row in rows:
        if len(row) > width:
            where = f", line {rows.line_num}: {len(row)} fields, but the {first} has {width}"
            return f"{where}. Put quotes around values that hold a {separator!r}, or name the column."
    return f": a line has more fields than the {first}, which has {width}. Name every column."
