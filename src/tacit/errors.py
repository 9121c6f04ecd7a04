"""Everything tacit raises on purpose.

    TacitError                  something a person can mend; the command line prints it and exits with 2
    ├── DataError               a file, a column, a value or a data set is not what it should be
    │   └── ChecksumError       a fetched file is not the file that was published
    ├── SettingError            a name or a value of an option, a method or a setting is wrong
    ├── RunError                a run folder is missing, torn, of another version, or cannot be written
    ├── ProtocolError           a device or the server of a secure sum was told what must not be (wire/masks.py)
    └── DivergedError           training left the finite numbers; carries the round and the last finite state's round

A message says what was got, what was expected, and what to do.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class TacitError(Exception):
    """Base of every error that a person can mend."""


class DataError(TacitError):
    """A file, a column, a value or a data set is not what it should be."""


class ChecksumError(DataError):
    """A fetched file is not the file that was published."""


class SettingError(TacitError):
    """A name or a value of an option, a method or a setting is wrong."""


class RunError(TacitError):
    """A run folder is missing, torn, of another version, or cannot be written."""


class ProtocolError(TacitError):
    """A device or the server of a secure sum was told what must not be; nothing is revealed."""


class DivergedError(TacitError):
    """Training left the finite numbers."""


def did_you_mean(got: str, known: Iterable[str], kind: str) -> str:
    """One sentence for an unknown name.

    >>> did_you_mean("fedrepp", ["fedrep", "fedper"], "method")
    '"fedrepp" is not a method. Did you mean "fedrep"? Methods: fedper, fedrep.'
    """
    names = sorted(known)
    lowered = {name.lower(): name for name in names}
    close = difflib.get_close_matches(got.lower(), list(lowered), n=3, cutoff=0.6)
    article = "an" if kind[0] in "aeiou" else "a"
    hint = f' Did you mean "{lowered[close[0]]}"?' if close else ""
    many = kind.replace("value of", "values of") if kind.startswith("value of") else f"{kind}s"
    return f'"{got}" is not {article} {kind}.{hint} {many.capitalize()}: {", ".join(names)}.'
