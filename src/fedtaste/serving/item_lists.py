"""Lists of items by name or title, as in `likes`, `only` and `exclude`: the items they name."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedtaste.errors import DataError, SettingError
from fedtaste.serving.titles import Titles
from fedtaste.text import count

OnUnknown = Literal["raise", "warn", "ignore"]
ON_UNKNOWN = ("raise", "warn", "ignore")


def as_list(values: object, argument: str) -> list[object]:
    """The values of an argument that is a list, an array, a set or a column; missing values are refused."""
    if isinstance(values, str) or not isinstance(values, Iterable) or hasattr(values, "columns"):
        kind = "one text" if isinstance(values, str) else f"a {type(values).__name__}"
        raise SettingError(f"{argument} must be a list, as in {argument}=[{str(values)[:40]!r}], got {kind}.")
    out = list(values)
    if any(value is None or value != value for value in out if not isinstance(value, str)):  # noqa: PLR0124 (NaN)
        raise SettingError(f"{argument} has missing values. Leave them out.")
    return out


def find_items(titles: Titles, texts: Iterable[object], on_unknown: OnUnknown, argument: str) -> list[int]:
    """The numbers of items by name or title, in their order, each once. Unknown ones raise DataError, or are left out
    with a warning or without."""
    if on_unknown not in ON_UNKNOWN:
        raise SettingError(f"on_unknown must be raise, warn or ignore, got {on_unknown!r}.")
    found: dict[int, None] = {}
    unknown = []
    for text in map(str, as_list(texts, argument)):
        number = titles.number(text)
        if number is None:
            unknown.append(text)
        else:
            found[number] = None
    if unknown and on_unknown == "raise":
        error = titles.not_found(unknown[0])
        more = f" ({count(len(unknown), 'such item')} in {argument}.)" if len(unknown) > 1 else ""
        raise DataError(f"{argument}: {error}{more}")
    if unknown and on_unknown == "warn":
        warnings.warn(f"{argument}: {describe(unknown)} not in the catalogue and left out.", stacklevel=3)
    return list(found)


def describe(names: list[str]) -> str:
    """The first of these names, and how many there are: `"a", "b" and 3 more are`."""
    shown = ", ".join(f'"{name[:40]}"' for name in names[:3])
    more = f" and {len(names) - 3:,} more" if len(names) > 3 else ""
    return f"{shown}{more} {'is' if len(names) == 1 else 'are'}"


def allowed_items(
    titles: Titles, only: Iterable[object] | None, exclude: Iterable[object], on_unknown: OnUnknown = "raise"
) -> NDArray[np.bool_]:
    """Which items may be recommended, [m]. SettingError where none is left."""
    allowed = np.full(len(titles.titles), only is None)
    if only is not None:
        allowed[find_items(titles, only, on_unknown, "only")] = True
    allowed[find_items(titles, exclude, on_unknown, "exclude")] = False
    if not allowed.any():
        raise SettingError("No item is left to recommend: only and exclude leave none of the catalogue.")
    return allowed
