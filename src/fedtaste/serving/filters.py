"""Filters of recommendations: which items of a catalogue may be listed, by title or name of an item, and by genre."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from fedtaste.errors import SettingError
from fedtaste.serving.bundle import Items as Catalogue
from fedtaste.serving.rebuild import Items
from fedtaste.serving.titles import Titles
from fedtaste.text import did_you_mean


class Filter(NamedTuple):
    """What may be recommended, in words. An item must pass `only`, `genres` and `exclude`."""

    only: Iterable[str] | None = None  # titles or names of items; None: the whole catalogue
    exclude: Iterable[str] = ()  # titles or names of items
    genres: Iterable[str] | None = None  # an item must have one of these; None: any


class FilterError(SettingError):
    """A filter that is malformed or leaves nothing; `field` is the part of it at fault."""

    def __init__(self, message: str, field: str) -> None:
        super().__init__(message)
        self.field = field


class Candidates(NamedTuple):
    """What may be recommended, as item numbers."""

    allowed: Items | None = None  # None: the whole catalogue
    excluded: Items = np.zeros(0, np.int64)


ALL = Candidates()


def find_candidates(filter: Filter, titles: Titles, catalogue: Catalogue) -> Candidates:
    """The items that pass a filter; refuses unknown titles and genres, and lists that leave nothing."""
    for name, texts in filter._asdict().items():
        if isinstance(texts, str):
            raise FilterError(f"{name} must be a list, as in {name}=[{texts!r}], got a text.", name)
    allowed = None if filter.only is None else _numbers(filter.only, titles)
    if allowed is not None and not len(allowed):
        raise FilterError("only names no title, so nothing can be recommended. Name some, or leave it out.", "only")
    if filter.genres is not None:
        of_genres = genre_items(catalogue, filter.genres)
        allowed = of_genres if allowed is None else np.intersect1d(allowed, of_genres)
    return Candidates(allowed, _numbers(filter.exclude, titles))


def nothing_left(filter: Filter, items: int) -> FilterError:
    """The error where a filter and the person's own list leave nothing of a catalogue of so many items."""
    field = "only" if filter.only is not None else "genres" if filter.genres is not None else "exclude"
    return FilterError(
        f"Nothing is left to recommend: the filters and the person's own list leave none of the {items:,} items. "
        "Widen only or genres, or exclude less.",
        field,
    )


def genre_items(catalogue: Catalogue, genres: Iterable[str]) -> Items:
    """The items that have one of these genres; upper and lower case are the same."""
    numbers = {name.lower(): at for at, name in enumerate(catalogue.genre_names)}
    if not numbers:
        raise FilterError("This catalogue has no genres. Leave genres out.", "genres")
    wanted = set()
    for genre in genres:
        if str(genre).lower() not in numbers:
            raise FilterError(did_you_mean(str(genre)[:80], catalogue.genre_names, "genre"), "genres")
        wanted.add(numbers[str(genre).lower()])
    if not wanted:
        raise FilterError("genres names no genre, so nothing can be recommended. Name some, or leave it out.", "genres")
    return np.array([at for at, own in enumerate(catalogue.genres) if wanted.intersection(own)], np.int64)


def _numbers(texts: Iterable[str], titles: Titles) -> Items:
    return np.unique(np.array([titles.find(str(text)) for text in texts], np.int64))
