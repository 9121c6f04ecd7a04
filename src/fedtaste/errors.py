"""Exception classes: FedtasteError and its kinds, and a test for Ctrl-C inside compiled code.

    FedtasteError            an error that the user can fix; the command line prints it and exits with 2
    ├── DataError            a file, a column, a value or a data set is not what it should be
    │   └── ChecksumError    a fetched file is not the file that was published
    ├── SettingError         a name or a value of an option, a method or a setting is wrong
    ├── RunError             a run folder is missing, damaged, of another version, or cannot be written
    ├── ProtocolError        the secure-aggregation protocol was violated (wire/masks.py)
    └── DivergedError        training produced numbers that are not finite; says in which round

A message says what is wrong, what is needed, and what to do.
"""

from __future__ import annotations


class FedtasteError(Exception):
    """Base of every error that the user can fix."""


class DataError(FedtasteError):
    """A file, a column, a value or a data set is not what it should be."""


class ChecksumError(DataError):
    """A fetched file is not the file that was published."""


class SettingError(FedtasteError):
    """A name or a value of an option, a method or a setting is wrong."""


class RunError(FedtasteError):
    """A run folder is missing, damaged, of another version, or cannot be written."""


class ProtocolError(FedtasteError):
    """The secure-aggregation protocol was violated; nothing is revealed."""


class DivergedError(FedtasteError):
    """Training produced numbers that are not finite."""


def was_interrupted(error: BaseException) -> bool:
    """Whether Ctrl-C caused this error. Numba turns a KeyboardInterrupt inside a compiled kernel into a SystemError."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, KeyboardInterrupt):
        cause = cause.__cause__
    return cause is not None
