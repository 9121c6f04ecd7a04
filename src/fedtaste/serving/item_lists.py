"""Items by name or title, as in `likes`, `only` and `exclude`: the same for a folder, a bundle and the HTTP API."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple, TypedDict

import numpy as np

from fedtaste.errors import SettingError
from fedtaste.serving.bundle import Items as Catalogue
from fedtaste.serving.rebuild import Items, Taste
from fedtaste.serving.titles import Titles
from fedtaste.text import count, did_you_mean

OnUnknown = Literal["raise", "warn", "ignore"]
ON_UNKNOWN = ("raise", "warn", "ignore")
FEW = 12  # characters of a line of a file that an error repeats
NOTHING_NAMED = "{} names no {}, so nothing can be recommended. Name some, or leave it out."


class ItemListError(SettingError):
    """A list of items that cannot be used; `argument` is the one at fault."""

    def __init__(self, message: str, argument: str) -> None:
        super().__init__(message)
        self.argument = argument


class FileLine(str):
    """A name that was read from a file. Errors name its line and repeat little of it: the file may be a secret one."""

    place: str  # the file and the line

    @staticmethod
    def read(text: str, place: str) -> FileLine:
        line = FileLine(text)
        line.place = place
        return line


class Filter(NamedTuple):
    """What may be recommended, in words. An item must pass `only`, `genres` and `exclude`."""

    only: Iterable[object] | None = None  # names or titles; None: the whole catalogue
    exclude: Iterable[object] = ()  # names or titles
    genres: Iterable[str] | None = None  # an item must have one of these; None: any
    on_unknown: OnUnknown = "raise"  # items of `only` and `exclude`

    @property
    def is_empty(self) -> bool:
        """Whether everything passes; an `exclude` that is no list or tuple is not looked at."""
        return self.only is None and self.genres is None and isinstance(self.exclude, list | tuple) and not self.exclude


class TasteArguments(TypedDict, total=False):
    """What a new person likes, dislikes and has rated, by names or titles of items."""

    likes: Iterable[object]
    dislikes: Iterable[object]
    ratings: Mapping[str, float] | None
    timed: bool  # whether likes are in order of time, oldest first


def check_count(n: object) -> None:
    """Refuse a number of items that is not a whole number of at least 1. Where fewer are left, all of them are
    listed."""
    if isinstance(n, bool) or not isinstance(n, int | np.integer) or n < 1:
        raise SettingError(f"n must be a whole number of at least 1, got {n!r}.")


def as_list(values: object, argument: str) -> list[object]:
    """The values of an argument that is a list, an array, a set or a column; missing values are refused."""
    if isinstance(values, str) or not isinstance(values, Iterable) or hasattr(values, "columns"):
        kind = "one text" if isinstance(values, str) else f"a {type(values).__name__}"
        message = f"{argument} must be a list, as in {argument}=[{str(values)[:40]!r}], got {kind}."
        raise ItemListError(message, argument)
    out = list(values)
    if any(value is None or value != value for value in out if not isinstance(value, str)):  # noqa: PLR0124 (NaN)
        raise ItemListError(f"{argument} has missing values. Leave them out.", argument)
    return out


def check_on_unknown(value: str) -> None:
    if value not in ON_UNKNOWN:
        raise SettingError(f"on_unknown must be raise, warn or ignore, got {value!r}.")


def find_items(titles: Titles, texts: Iterable[object], argument: str, on_unknown: OnUnknown = "raise") -> list[int]:
    """The numbers of items by name or title, in their order; an item that is named twice is at its last place. Texts
    that name no item, or several, raise ItemListError, or are left out with a warning or without."""
    check_on_unknown(on_unknown)
    names = [text if isinstance(text, str) else str(text) for text in as_list(texts, argument)]
    numbers = [titles.get(name) for name in names]
    unknown = [name for name, number in zip(names, numbers) if number is None]
    if unknown and on_unknown == "raise":
        more = f" ({count(len(unknown), 'such item')} in {argument}.)" if len(unknown) > 1 else ""
        raise ItemListError(f"{argument}: {_not_found(titles, unknown[0])}{more}", argument)
    if unknown and on_unknown == "warn":
        warnings.warn(f"{argument}: {describe(unknown)} no one item of the catalogue and left out.", stacklevel=3)
    return list(dict.fromkeys(number for number in reversed(numbers) if number is not None))[::-1]


def _not_found(titles: Titles, name: str) -> str:
    if isinstance(name, FileLine):
        return f"{name.place}: {titles.not_found(name, shown=FEW)}"
    return str(titles.not_found(name))


def describe(names: Sequence[str]) -> str:
    """The first of these names, and how many there are: `"a", "b" and 3 more are`."""
    shown = ", ".join(f'"{name[:40]}"' for name in names[:3])
    more = f" and {len(names) - 3:,} more" if len(names) > 3 else ""
    return f"{shown}{more} {'is' if len(names) == 1 else 'are'}"


def allowed_items(titles: Titles, filter: Filter, catalogue: Catalogue | None = None) -> Items | None:
    """The items that pass a filter; None for the whole catalogue. ItemListError where none is left. `exclude` is about
    exactly these items: another one of the same title stays."""
    check_on_unknown(filter.on_unknown)
    if filter.is_empty:
        return None
    allowed = np.full(len(titles.titles), filter.only is None)
    if filter.only is not None:
        allowed[find_items(titles, filter.only, "only", filter.on_unknown)] = True
        if not allowed.any():
            raise ItemListError(
                "only names no item, so nothing can be recommended. Name some, or leave it out.", "only"
            )
    if filter.genres is not None:
        allowed &= np.isin(np.arange(len(allowed)), genre_items(catalogue, as_list(filter.genres, "genres")))
    allowed[find_items(titles, filter.exclude, "exclude", filter.on_unknown)] = False
    if not allowed.any():
        raise nothing_left(filter, len(allowed))
    return None if allowed.all() else np.flatnonzero(allowed)


def nothing_left(filter: Filter, items: int) -> ItemListError:
    """The error where a filter and the person's own list leave nothing of a catalogue of so many items."""
    argument = "only" if filter.only is not None else "genres" if filter.genres is not None else "exclude"
    return ItemListError(
        f"Nothing is left to recommend: the filters and the person's own list leave none of the {items:,} items. "
        "Widen only or genres, or exclude less.",
        argument,
    )


def genre_items(catalogue: Catalogue | None, genres: Iterable[object]) -> Items:
    """The items that have one of these genres; upper and lower case are the same."""
    numbers = {name.lower(): at for at, name in enumerate(catalogue.genre_names)} if catalogue else {}
    if catalogue is None or not numbers:
        raise ItemListError("This catalogue has no genres. Leave genres out.", "genres")
    wanted = set()
    for genre in map(str, genres):
        if genre.lower() not in numbers:
            raise ItemListError(did_you_mean(genre[:80], catalogue.genre_names, "genre"), "genres")
        wanted.add(numbers[genre.lower()])
    if not wanted:
        raise ItemListError(
            "genres names no genre, so nothing can be recommended. Name some, or leave it out.", "genres"
        )
    return np.array([at for at, own in enumerate(catalogue.genres) if wanted.intersection(own)], np.int64)


def find_taste(titles: Titles, person: TasteArguments, task: str, scale: tuple[float, float]) -> Taste:
    """A person's likes, ratings and dislikes as item numbers. A like counts as the best rating; of an item named twice
    the last rating counts."""
    ratings = person.get("ratings") or {}
    if task == "ranking" and ratings:
        raise ItemListError("This model knows liked or not, and no ratings. Give likes and dislikes.", "ratings")
    values = dict.fromkeys(find_items(titles, person.get("likes", ()), "likes"), float(scale[1]))
    for text, value in ratings.items():
        rating = _rating(value, scale, str(text))
        (item,) = find_items(titles, [text], "ratings")
        values.pop(item, None)
        values[item] = rating
    dislikes = find_items(titles, person.get("dislikes", ()), "dislikes")
    if task == "ratings" and dislikes:
        raise ItemListError("This model knows ratings, and no dislikes. Give low ratings instead.", "dislikes")
    for item in dislikes:
        if item in values:
            message = f'"{titles.titles[item]}" is among the likes and the dislikes. Choose one.'
            raise ItemListError(message, "dislikes")
    likes = np.array(list(values), np.int64), np.array(list(values.values()), np.float64)
    return Taste(*likes, np.array(dislikes, np.int64), person.get("timed", False))


def _rating(value: object, scale: tuple[float, float], name: str) -> float:
    low, high = scale
    if not isinstance(value, int | float) or not low <= value <= high or math.isnan(value):
        message = f"Ratings must be numbers from {low:g} to {high:g}, got {str(value)[:20]} for {name[:40]!r}."
        raise ItemListError(message, "ratings")
    return float(value)
