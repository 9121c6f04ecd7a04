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

import re
from collections.abc import Iterator
from contextlib import contextmanager


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


QUOTED = re.compile(r"(`[^`]*`)")
WORDS = "ranking|ratings|vmap|memory|disk|random|folds|synthetic"  # values without a digit or an equals sign
VALUED = re.compile(rf"--([a-z-]+) ((?:{WORDS})\b|[^ ,.;:)]*[=\d](?:[^ ;:)]*[^ ,.;:)])?)")


def with_keywords(message: str) -> str:
    """A message with keyword arguments in place of options of the command line; commands in backticks stay.

    >>> with_keywords("Use --task ratings, or --set k=5. --new-people and --wire clip=1,noise=1 need --epsilon 3.")
    'Use task="ratings", or k=5. new_people and wire="clip=1,noise=1" need epsilon=3.'
    """

    def keyword(match: re.Match[str]) -> str:
        name, value = match[1].replace("-", "_"), match[2]
        number = value.replace(".", "").isdigit()
        return value if name == "set" else f"{name}={value}" if number else f'{name}="{value}"'

    def translate(text: str) -> str:
        text = VALUED.sub(keyword, text)
        return re.sub(r"--([a-z][a-z-]*)", lambda match: match[1].replace("-", "_"), text)

    return "".join(part if part.startswith("`") else translate(part) for part in QUOTED.split(message))


@contextmanager
def keyword_errors() -> Iterator[None]:
    """Errors of calls from Python name keyword arguments, not options of the command line."""
    try:
        yield
    except FedtasteError as error:
        error.args = (with_keywords(str(error)), *error.args[1:])
        raise


def was_interrupted(error: BaseException) -> bool:
    """Whether Ctrl-C caused this error. Numba turns a KeyboardInterrupt inside a compiled kernel into a SystemError."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, KeyboardInterrupt):
        cause = cause.__cause__
    return cause is not None
