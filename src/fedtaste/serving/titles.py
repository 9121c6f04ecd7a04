"""Titles: look up items by the title that a person types, and suggest similar titles."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from fedtaste.errors import DataError

ARTICLES = "the|a|an|la|le|les|il|der|die|das|el"


def plain(title: str) -> str:
    """A title in the form that lookups compare: lower case, no year, the article in front, single spaces.

    >>> plain("Lion King, The (1994)")
    'the lion king'
    """
    text = re.sub(r"\s*\(\d{4}\)\s*$", "", title).strip().lower()
    moved = re.fullmatch(rf"(.*), ({ARTICLES})", text)
    return " ".join((f"{moved[2]} {moved[1]}" if moved else text).split())


def bare(title: str) -> str:
    """A plain title without its article, so that "lion king" finds "Lion King, The (1994)"."""
    return re.sub(rf"^({ARTICLES}) (?=.)", "", plain(title))


class Titles:
    """Look up items by title (with or without year and article) or by name; of several, the item most people have.

    `groups` numbers items with equal titles alike, [m]: some films stand twice in MovieLens.
    """

    def __init__(self, names: Sequence[str], titles: Sequence[str], counts: Sequence[int]) -> None:
        self.titles = titles
        self.numbers = {name: at for at, name in enumerate(names)}
        self.plain = [plain(title) for title in titles]
        first: dict[str, int] = {}
        self.groups = np.array([first.setdefault(title, at) for at, title in enumerate(titles)], np.int64)

        def index(keys: Iterable[str]) -> dict[str, int]:
            best: dict[str, int] = {}
            for at, key in enumerate(keys):
                if key not in best or counts[at] > counts[best[key]]:
                    best[key] = at
            return best

        self._lookups: list[tuple[Callable[[str], str], dict[str, int]]] = [
            (str, index(titles)),
            (plain, index(self.plain)),
            (str, index(names)),
            (bare, index(map(bare, titles))),
        ]

    def number(self, text: str) -> int | None:
        """The item of this name, or else of this title; None where there is none."""
        number = self.numbers.get(text)
        return self.get(text) if number is None else number

    def get(self, text: str) -> int | None:
        """The item, or None where there is none."""
        return next((items[key] for normalise, items in self._lookups if (key := normalise(text)) in items), None)

    def find(self, text: str) -> int:
        """The item; where there is none, an error that names similar titles."""
        item = self.get(text)
        if item is None:
            raise self.not_found(text)
        return item

    def not_found(self, text: str) -> DataError:
        """The error for a title that is not in the catalogue, with up to three similar ones."""
        by_plain, sought = dict(zip(self.plain, self.titles)), plain(text)[:80]
        inside = sorted((key for key in by_plain if sought and sought in key), key=len)
        similar = difflib.get_close_matches(sought, by_plain, n=3, cutoff=0.5)
        close = " or ".join(f'"{by_plain[key]}"' for key in list(dict.fromkeys(inside[:2] + similar))[:3])
        hint = f"Did you mean {close}?" if close else "Give a title or the name of an item, as they stand in the data."
        shown = text if len(text) <= 80 else text[:79] + "…"
        return DataError(f'"{shown}" is not in the catalogue of {len(self.titles):,} items. {hint}')
