"""Cells that a spreadsheet would take for a formula: guarded with an apostrophe in CSV files that fedtaste writes.

A title such as `=HYPERLINK(...)` would be computed when the file is opened. Spreadsheets take a leading apostrophe as
"this is text". Reading a CSV file removes the apostrophe again, so that what was written is read back. Numbers, such as
the score -0.5, are left as they are.
"""

from __future__ import annotations

import re

from fedtaste.data.lazy_polars import pl

FORMULA = r"^'*[=+\-@\t\r]"  # the apostrophes make guarding reversible
NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"
_FORMULA, _NUMBER = re.compile(FORMULA), re.compile(NUMBER)


def guard(text: str) -> str:
    """The text of a cell.

    >>> guard("=1+1"), guard("@x"), guard("-2.5"), guard("Alien"), guard("'=x")
    ("'=1+1", "'@x", '-2.5', 'Alien', "''=x")
    """
    return f"'{text}" if _FORMULA.match(text) and not _NUMBER.match(text) else text


def guarded(frame: pl.DataFrame) -> pl.DataFrame:
    """The frame with guarded cells in all columns of text."""
    columns = [name for name, kind in frame.schema.items() if kind == pl.String]
    return frame.with_columns(
        pl.when(pl.col(name).str.contains(FORMULA) & ~pl.col(name).str.contains(NUMBER))
        .then(pl.lit("'") + pl.col(name))
        .otherwise(pl.col(name))
        .alias(name)
        for name in columns
    )


def unguarded(frame: pl.DataFrame) -> pl.DataFrame:
    """The frame of a CSV file without the apostrophes of `guarded`."""
    columns = [name for name, kind in frame.schema.items() if kind == pl.String]
    some = [name for name in columns if frame[name].str.starts_with("'").any()]
    return frame.with_columns(pl.col(name).str.replace(r"^'('*[=+\-@\t\r])", "${1}") for name in some)
