"""Parse the options after the colon of a data set's name, as in `logistic:R=0.1,clients=10`."""

from __future__ import annotations

from collections.abc import Mapping

from fedtaste.errors import DataError
from fedtaste.text import did_you_mean

Options = Mapping[str, tuple[str, type]]  # option as written -> (argument, int, float or bool)
Value = int | float | bool
KINDS = {int: "a whole number", float: "a number", bool: "true or false"}


def read_options(name: str, text: str, options: Options) -> dict[str, Value]:
    """Keyword arguments for the function that generates a data set.

    >>> read_options("logistic", "R=0.1,clients=10", {"R": ("spread", float), "clients": ("clients", int)})
    {'spread': 0.1, 'clients': 10}
    """
    arguments: dict[str, Value] = {}
    prefix = name + ("," if ":" in name else ":")  # domains:PATH goes on with a comma
    for part in text.split(",") if text else []:
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not key:
            shown = ",".join(f"{option}=..." for option in options)
            raise DataError(
                f'"{part}" in "{prefix}{text}" is not an option. Expected NAME=VALUE, separated by commas, out of '
                f'"{prefix}{shown}".'
            )
        if key not in options:
            raise DataError(did_you_mean(key, options, f"{name.partition(':')[0]} option"))
        argument, kind = options[key]
        if argument in arguments:
            raise DataError(f'"{prefix}{text}" gives {key} twice. Expected it once; leave one out.')
        arguments[argument] = convert(prefix, key, value, kind)
    return arguments


def convert(prefix: str, key: str, value: str, kind: type) -> Value:
    """Text to a value of this kind; 1_000 and infinity are refused."""
    try:
        if kind is bool:
            return {"true": True, "false": False}[value.lower()]
        if "_" in value or not value.isascii():
            raise ValueError
        number: int | float = int(value) if kind is int else float(value)
        if number != number or number in (float("inf"), float("-inf")):
            raise ValueError
        return number
    except (KeyError, ValueError):
        example = {int: "10", float: "0.3", bool: "true"}[kind]
        short = value if len(value) <= 40 else f"{value[:40]}..."
        raise DataError(
            f'"{short}" is not a value of {key}. Expected {KINDS[kind]}, as in "{prefix}{key}={example}".'
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
