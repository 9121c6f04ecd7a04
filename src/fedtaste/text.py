"""Text helpers for messages: plural forms, did-you-mean suggestions, commands to type, and control codes."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Iterable

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


def did_you_mean(got: str, known: Iterable[str], kind: str) -> str:
    """The error message for an unknown name, with the nearest known one and the list of all.

    >>> did_you_mean("fedrepp", ["fedrep", "fedper"], "method")
    '"fedrepp" is not a method. Did you mean "fedrep"? Methods: fedper, fedrep.'
    """
    names = sorted(known)
    by_lower = {name.lower(): name for name in names}
    close = difflib.get_close_matches(got.lower(), list(by_lower), n=3, cutoff=0.6)
    article = "an" if kind[0] in "aeiou" else "a"
    hint = f' Did you mean "{by_lower[close[0]]}"?' if close else ""
    many = kind.replace("value of", "values of") if kind.startswith("value of") else f"{kind}s"
    return f'"{got}" is not {article} {kind}.{hint} {many.capitalize()}: {", ".join(names)}.'
