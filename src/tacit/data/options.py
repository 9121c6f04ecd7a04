"""What follows the colon of a name: `logistic:R=0.1,clients=10`. One reader for every data set that takes options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import DataError, did_you_mean

Known = Mapping[str, tuple[str, type]]  # option as it is written -> (argument of the maker, int, float or bool)
KINDS = {int: "a whole number", float: "a number", bool: "true or false"}


def read_options(name: str, text: str, known: Known) -> dict[str, Any]:
    """Arguments for the maker of a data set.

    >>> read_options("logistic", "R=0.1,clients=10", {"R": ("spread", float), "clients": ("clients", int)})
    {'spread': 0.1, 'clients': 10}
    """
    found: dict[str, Any] = {}
    given = name + ("," if ":" in name else ":")  # domains:PATH goes on with a comma
    for part in text.split(",") if text else []:
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not key:
            shown = ",".join(f"{option}=..." for option in known)
            raise DataError(
                f'"{part}" in "{given}{text}" is not an option. Expected NAME=VALUE, separated by commas, out of '
                f'"{given}{shown}".'
            )
        if key not in known:
            raise DataError(did_you_mean(key, known, f"{name.partition(':')[0]} option"))
        argument, kind = known[key]
        if argument in found:
            raise DataError(f'"{given}{text}" gives {key} twice. Expected it once; leave one out.')
        found[argument] = convert(given, key, value, kind)
    return found


def convert(given: str, key: str, value: str, kind: type) -> int | float | bool:
    """Text to a value of this kind; 1_000 and the like are not numbers here, nor is infinity."""
    try:
        if kind is bool:
            return {"true": True, "false": False}[value.lower()]
        if "_" in value or not value.isascii():
            raise ValueError
        number = kind(value)
        if number != number or number in (float("inf"), float("-inf")):
            raise ValueError
        return number
    except (KeyError, ValueError):
        example = {int: "10", float: "0.3", bool: "true"}[kind]
        shown = value if len(value) <= 40 else f"{value[:40]}..."
        raise DataError(
            f'"{shown}" is not a value of {key}. Expected {KINDS[kind]}, as in "{given}{key}={example}".'
        ) from None


def split_path(text: str) -> tuple[str, str]:
    """`PATH,size=16` -> (PATH, options). Options are the last parts that have an equals sign, the path is the rest.

    So a path may hold colons and commas, unless an equals sign follows its last comma.
    """
    parts = text.split(",")
    first = len(parts)
    while first > 1 and "=" in parts[first - 1]:
        first -= 1
    return ",".join(parts[:first]), ",".join(parts[first:])
