"""The item that a person means when they type a title."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Sequence

from .errors import DataError

ARTICLES = "the|a|an|la|le|les|il|der|die|das|el"


def plain(title: str) -> str:
    """A title as people type it: no year, no case, the article in front, single spaces.

    >>> plain("Lion King, The (1994)")
    'the lion king'
    """
    text = re.sub(r"\s*\(\d{4}\)\s*$", "", title).strip().lower()
    moved = re.fullmatch(rf"(.*), ({ARTICLES})", text)
    return " ".join((f"{moved[2]} {moved[1]}" if moved else text).split())


def bare(title: str) -> str:
    """A plain title without its article: somebody who types "lion king" means "Lion King, The (1994)"."""
    return re.sub(rf"^({ARTICLES}) (?=.)", "", plain(title))


class Titles:
    """A catalogue that can be asked for an item: by its title, with or without the year and the article, or by its
    name. Of several, the most taken."""

    def __init__(self, names: Sequence[str], titles: Sequence[str], counts: Sequence[int]) -> None:
        self.titles, self.size = titles, len(titles)
        self.plain = [plain(title) for title in titles]

        def by(keys: Iterable[str]) -> dict[str, int]:
            best: dict[str, int] = {}
            for at, key in enumerate(keys):
                if key not in best or counts[at] > counts[best[key]]:
                    best[key] = at
            return best

        self.ways: tuple[tuple[Callable[[str], str], dict[str, int]], ...] = (
            (str, by(titles)), (plain, by(self.plain)), (str, by(names)), (bare, by(map(bare, titles))),
        )  # fmt: skip

    def get(self, text: str) -> int | None:
        """The item, or None where there is none."""
        return next((known[key] for make, known in self.ways if (key := make(text)) in known), None)

    def find(self, text: str) -> int:
        """The item; an error that names close ones where there is none."""
        found = self.get(text)
        if found is not None:
            return found
        close = self.close(text)
        hint = " Did you mean " + " or ".join(f'"{title}"' for title in close) + "?" if close else ""
        todo = " Give a title or the name of an item, as they stand in the data."
        shown = text if len(text) <= 80 else text[:79] + "…"
        raise DataError(f'"{shown}" is not in the catalogue of {self.size:,} items.{hint or todo}')

    def close(self, text: str) -> list[str]:
        """Up to three titles that look like the text."""
        by_plain, wanted = dict(zip(self.plain, self.titles)), plain(text)[:80]
        inside = sorted((key for key in by_plain if wanted and wanted in key), key=len)
        likely = difflib.get_close_matches(wanted, by_plain, n=3, cutoff=0.5)
        return [by_plain[key] for key in list(dict.fromkeys(inside[:2] + likely))[:3]]
