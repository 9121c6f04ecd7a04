"""Text helpers for messages: plural forms, did-you-mean suggestions, commands to type, and control codes."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Iterable, Sequence

CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")  # must not reach a terminal from data


def printable(text: str) -> str:
    """Text without control codes, for a terminal or a log; line breaks and tabs of our own messages stay.

    >>> printable("red \\x1b[31m, turned \\u202e, a line\\n")
    'red [31m, turned , a line\\n'
    """
    return CONTROL.sub(lambda found: found[0] if found[0] in "\n\t" else "", text)


def count(n: int, one: str, many: str | None = None) -> str:
    """A number with its noun.

    >>> count(1, "item"), count(2000, "item"), count(2, "person", "people")
    ('1 item', '2,000 items', '2 people')
    """
    return f"{n:,} {one if n == 1 else many or one + 's'}"


def command_text(*words: object) -> str:
    """A command of fedtaste for the user to type. Words with spaces or special characters are quoted.

    >>> command_text("resume", "runs/my shop-1")
    "fedtaste resume 'runs/my shop-1'"
    """
    return shlex.join(["fedtaste", *map(str, words)])


NUMBER = re.compile("[0-9]{1,9}")
LONGEST = 80  # characters of a name that a message repeats


def cut(text: str) -> str:
    """A text that may be of any length, as a message repeats it.

    >>> len(cut("x" * 1000)), cut("short")
    (80, 'short')
    """
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def unreadable(error: OSError | UnicodeDecodeError) -> str:
    """Why a text file could not be read, in words.

    >>> try:
    ...     b"a\\nb\\xe9".decode()
    ... except UnicodeDecodeError as error:
    ...     unreadable(error)
    'line 2 is not UTF-8'
    """
    if isinstance(error, UnicodeDecodeError):
        line = error.object.count(b"\n", 0, error.start) + 1
        return f"line {line} is not UTF-8"
    return (error.strerror or str(error)).lower()


def listed(names: Sequence[str]) -> str:
    """Names in a sentence.

    >>> listed(["a"]), listed(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def did_you_mean(got: str, known: Iterable[str], kind: str, others: str = "") -> str:
    """The error message for an unknown name, with the nearest known one and the list of all. `others` says what else
    has this name. Numbers are listed by size, and none is suggested: 4 is not a misspelt 64.

    >>> did_you_mean("fedrepp", ["fedrep", "fedper"], "method")
    '"fedrepp" is not a method. Did you mean "fedrep"? Methods: fedper, fedrep.'
    >>> did_you_mean("64", ["16", "8"], "value of bits")
    '"64" is not a value of bits. Values of bits: 8, 16.'
    """
    names = sorted(known, key=lambda name: (int(name) if NUMBER.fullmatch(name) else -1, name))
    by_lower = {name.lower(): name for name in names if not NUMBER.fullmatch(name)}
    close = difflib.get_close_matches(got[:LONGEST].lower(), list(by_lower), n=3, cutoff=0.6)
    article = "an" if kind[0] in "aeiou" else "a"
    hint = f' Did you mean "{cut(by_lower[close[0]])}"?' if close else ""
    first, of, rest = kind.partition(" of ")
    many = f"{first[0].upper()}{first[1:]}s{of}{rest}"
    return f'"{cut(got)}" is not {article} {kind}{others}.{hint} {many}: {", ".join(map(cut, names))}.'
