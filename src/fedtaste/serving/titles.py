"""Titles: the one rule by which a text names an item, everywhere; web/catalogue.js has the same rule for the page.

A text names the item of exactly this name (its id in the data); else of exactly this title; else of this title in other
letters: upper or lower case, without accents, with or without its article, other names in brackets, and year. A year in
the text must be that of the title or the one beside it. A text that names several items names none: the error lists
them with their names.
"""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from fedtaste.errors import DataError
from fedtaste.text import CONTROL

ARTICLE = "the|a|an|le|la|les|un|une|der|die|das|ein|eine|el|los|las|il|lo|gli|het|den|det"
TRAILING = re.compile(rf"(.+), ({ARTICLE}|l')", re.IGNORECASE)
LEADING = re.compile(rf"^(?:{ARTICLE}) (?=.)")
YEAR = re.compile(r"\s*\(([0-9]{4})\)\s*$")
ASIDE = re.compile(r"\s*\(([^()]*)\)\s*$")
LETTERS = str.maketrans(
    {"ø": "o", "ł": "l", "đ": "d", "æ": "ae", "œ": "oe", "ß": "ss", "&": " and "} | dict.fromkeys("'’`´", "")
)
LISTED = 5  # items of the same title that an error names
SHOWN = 80  # characters of a text that an error repeats


def fold(text: str) -> str:
    """Lower case without accents, words separated by one space, nothing else.

    >>> fold("Amélie & the  Œuvre!")
    'amelie and the oeuvre'
    """
    spread = unicodedata.normalize("NFKD", text.lower())
    letters = "".join(letter for letter in spread if not unicodedata.category(letter).startswith("M"))
    words = "".join(x if unicodedata.category(x)[0] in "LN" else " " for x in letters.translate(LETTERS))
    return " ".join(words.split())


class TitleParts(NamedTuple):
    """A title as it is compared: folded without articles, its name first, then other names; and its year."""

    keys: tuple[str, ...]
    year: int | None


def title_parts(title: str) -> TitleParts:
    """The parts of a title.

    >>> title_parts("Lion King, The (Le Roi Lion) (1994)")
    TitleParts(keys=('lion king', 'roi lion'), year=1994)
    """
    year = YEAR.search(title)
    name = title[: year.start()] if year else title.strip()
    others: list[str] = []
    while (aside := ASIDE.search(name)) and aside.start():
        others.insert(0, aside[1])
        name = name[: aside.start()]
    keys = dict.fromkeys(LEADING.sub("", fold(_turned(text))) for text in (name, *others))
    return TitleParts(tuple(key for key in keys if key), int(year[1]) if year else None)


def _turned(text: str) -> str:
    """`Lion King, The` as `The Lion King`."""
    moved = TRAILING.fullmatch(text)
    return f"{moved[2]} {moved[1]}".replace("' ", "'", 1) if moved else text


class Titles:
    """The items of a catalogue by name and by title.

    `groups` numbers items with equal titles alike, [m]: some films stand twice in MovieLens, and readers take them for
    one.
    """

    def __init__(self, names: Sequence[str], titles: Sequence[str]) -> None:
        self.names, self.titles = names, titles
        self.numbers = {name: at for at, name in enumerate(names)}
        first: dict[str, int] = {}
        self.groups = np.array([first.setdefault(title, at) for at, title in enumerate(titles)], np.int64)
        self._exact = _index((title, at) for at, title in enumerate(titles))

    @cached_property
    def _parts(self) -> list[TitleParts]:  # computed when a text is no exact title
        return [title_parts(title) for title in self.titles]

    @cached_property
    def keys(self) -> dict[str, list[int]]:
        """The items of every folded name."""
        return _index((key, at) for at, parts in enumerate(self._parts) for key in parts.keys)

    def matches(self, text: str) -> list[int]:
        """The items that a text names; several where they share what the text says of them."""
        if text in self.numbers:
            return [self.numbers[text]]
        if text in self._exact:
            return self._exact[text]
        wanted = title_parts(text)
        near = {at: self._gap(at, wanted.year) for key in wanted.keys for at in self.keys.get(key, ())}
        nearest = min(near.values(), default=0)
        return sorted(at for at, gap in near.items() if gap == nearest <= 1)

    def _gap(self, item: int, year: int | None) -> int:
        own = self._parts[item].year
        return abs(own - year) if own is not None and year is not None else 0

    def get(self, text: str) -> int | None:
        """The item that a text names; None where it names none, or several."""
        items = self.matches(text)
        return items[0] if len(items) == 1 else None

    def find(self, text: str) -> int:
        """The item; where there is none or more than one, an error that names candidates."""
        item = self.get(text)
        if item is None:
            raise self.not_found(text)
        return item

    def not_found(self, text: str, shown: int = SHOWN) -> DataError:
        """The error for a text that names no item, with similar titles, or several, with their names. At most `shown`
        characters of the text are repeated."""
        clean = CONTROL.sub("", text)
        quoted = f'"{clean}"' if len(clean) <= shown else f'"{clean[: shown - 1]}…"'
        if len(items := self.matches(text)) > 1:
            listed = ", ".join(f'"{self.names[at]}" ({self.titles[at]})' for at in items[:LISTED])
            more = f" and {len(items) - LISTED:,} more" if len(items) > LISTED else ""
            return DataError(f"{quoted} is the title of {len(items):,} items: {listed}{more}. Give the name of one.")
        sought = next(iter(title_parts(text[:SHOWN]).keys), "")
        inside = sorted((key for key in self.keys if sought and sought in key), key=len)
        similar = difflib.get_close_matches(sought, self.keys, n=3, cutoff=0.5)
        close = [self.titles[self.keys[key][0]] for key in dict.fromkeys(inside[:2] + similar)][:3]
        hint = "Give a title or the name of an item, as they stand in the data."
        if close:
            hint = "Did you mean " + " or ".join(f'"{title}"' for title in close) + "?"
        return DataError(f"{quoted} is not in the catalogue of {len(self.titles):,} items. {hint}")


def _index(pairs: Iterable[tuple[str, int]]) -> dict[str, list[int]]:
    """The numbers of every key, in order."""
    index: dict[str, list[int]] = {}
    for key, at in pairs:
        index.setdefault(key, []).append(at)
    return index
