"""Search spaces of settings for `fedtaste tune`: LogRange, Range, Choice, and Around, which follows a default.

A method names them beside its defaults, as in `define(search={"lam": Around(10), "recency": Range(0.5, 1.0)})`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from fedtaste.errors import SettingError

LOGARITHMIC = 10  # a range of the user whose ends differ by this factor is searched on a logarithmic scale


@dataclass(frozen=True)
class LogRange:
    """Numbers from `low` to `high`, equally likely on a logarithmic scale; whole ones where the setting is."""

    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.low:g}..{self.high:g} (log)"

    def __contains__(self, value: object) -> bool:
        return _is_number(value) and self.low <= value <= self.high  # type: ignore[operator]


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, equally likely; whole ones where the setting is."""

    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.low:g}..{self.high:g}"

    def __contains__(self, value: object) -> bool:
        return _is_number(value) and self.low <= value <= self.high  # type: ignore[operator]


@dataclass(frozen=True)
class Choice:
    """One of these values, without an order."""

    values: tuple[object, ...]

    def __str__(self) -> str:
        return ", ".join(map(str, self.values))

    def __contains__(self, value: object) -> bool:
        return value in self.values


@dataclass(frozen=True)
class Around:
    """From the default divided by `factor` to the default times `factor`, on a logarithmic scale. A default that is no
    positive number is not searched."""

    factor: float


Space = LogRange | Range | Choice
Search = Mapping[str, Space | Around]

# Of models, examples and server optimisers, for methods that descend; and of the methods with FedALS's exact solves.
DESCENT: Search = {"k": Around(2), "negatives": LogRange(1, 16), "lr": Around(10), "server_lr": Around(10)}
SOLVES: Search = {"k": Around(2), "lam": Around(5), "alpha0": Around(5), "recency": Range(0.5, 1.0)}


def largest_k(items: int) -> float:
    """The largest k that is searched without being asked for: not above the number of items, and with FedALS's uploads
    of items x k^2 / 2 numbers not above 256 MiB.

    >>> largest_k(50), largest_k(9_111)
    (50, 121)
    """
    return min(items, math.isqrt(2 * 2**28 // (4 * items))) if items else math.inf


def resolve(space: Space | Around, default: object, most: float = math.inf) -> Space | None:
    """The space around this default, which it contains; None where there is nothing to search. No number is above
    `most`.

    >>> resolve(Around(10), 0.5), resolve(Range(0.5, 0.9), 1.0), resolve(LogRange(16, 64), 8, most=40)
    (LogRange(low=0.05, high=5.0), Range(low=0.5, high=1.0), LogRange(low=8, high=40))
    """
    if isinstance(space, Choice):
        return space if default in space else Choice((default, *space.values))
    if not isinstance(default, int | float) or isinstance(default, bool):
        return None
    if isinstance(space, Around):
        if default <= 0:
            return None
        space = LogRange(default / space.factor, default * space.factor)
    low, high = min(space.low, default), min(max(space.high, default), most)
    if isinstance(default, int):
        low, high = math.ceil(low), math.floor(high)
    if isinstance(space, LogRange) and low <= 0:
        space = Range(low, high)
    return type(space)(low, high) if low < high else None


def parse_space(name: str, text: str) -> Space:
    """A space that the user gave: a range as in 0.001..0.1, or values as in 16,32,64.

    >>> parse_space("lam", "0.001..0.1"), parse_space("k", "16..64"), parse_space("k", "16, 32")
    (LogRange(low=0.001, high=0.1), Range(low=16, high=64), Choice(values=('16', '32')))
    """
    start, dots, end = text.partition("..")
    if not dots:
        values = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
        if len(values) < 2:
            raise SettingError(
                f"--space {name} must be a range or two values or more, got {text}. Examples: {name}=0.001..0.1, "
                f"{name}=16,32,64. One value is given with --set."
            )
        return Choice(values)
    try:
        low, high = _number(start), _number(end)
    except ValueError:
        raise SettingError(
            f"--space {name} must be a range of two numbers, got {text}. Example: {name}=0.001..0.1."
        ) from None
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise SettingError(f"--space {name} must go from a smaller number to a larger one, got {text}.")
    return LogRange(low, high) if low > 0 and high >= LOGARITHMIC * low else Range(low, high)


def _number(text: str) -> float:
    return int(text) if text.strip().lstrip("+-").isdecimal() else float(text)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
