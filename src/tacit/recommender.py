"""Recommendations from a bundle, in Python: for those who serve from their own backend. The page computes the same.

>>> Recommender.load("bundle").recommend(likes=["Toy Story", "Star Wars"], n=10)  # doctest: +SKIP
{'items': [{'item': '172', 'title': 'Empire Strikes Back, The (1980)', 'score': ..., 'because': [...]}, ...], ...}
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .bundle import Bundle, read_bundle
from .errors import SettingError
from .recipes import (
    BEST,
    REASONS,
    Floats,
    Ints,
    Ranked,
    Rebuilt,
    Taste,
    best_of,
    gram_of,
    middle,
    order_of,
    passed_over,
    rebuild,
)
from .titles import Titles


class Recommender:
    """A bundle that answers. Nothing is kept between two calls; several threads may call at once."""

    def __init__(self, bundle: Bundle, files: Mapping[str, bytes] | None = None) -> None:
        self.bundle = bundle
        self.files = dict(files or {})  # what `tacit serve` hosts
        self.task, self.scale = bundle.manifest.task, bundle.manifest.scale
        self.recipe, self.tables = bundle.manifest.recipe, bundle.tables
        self.popularity: Floats = bundle.popularity / 255.0
        self.titles = Titles(bundle.names, bundle.titles, bundle.popularity.tolist())
        self.group: Ints = np.unique(np.array(bundle.titles, object), return_inverse=True)[1].astype(np.int64)
        self.gram = gram_of(self.recipe, self.tables)

    @staticmethod
    def load(path: Path | str) -> Recommender:
        """The bundle in this folder; every file is held to its hash first."""
        return Recommender(*read_bundle(Path(path)))

    @property
    def manifest(self) -> dict[str, Any]:
        return self.bundle.manifest.model_dump(mode="json")

    @property
    def items(self) -> dict[str, Any]:
        b = self.bundle
        return {"names": b.names, "titles": b.titles, "genres": b.genres, "genre_names": b.genre_names}

    def recommend(
        self,
        likes: Iterable[str] = (),
        *,
        dislikes: Iterable[str] = (),
        ratings: Mapping[str, float] | None = None,
        n: int = 10,
        adventurous: float = 0.0,
        timed: bool = False,
    ) -> dict[str, Any]:
        """{"items": [{"item", "title", "score", "because"}], "from": titles, "popular": whether nothing was known}.

        Titles or names of items, oldest first; `timed` says that the order is one of time, so that recent ones count
        for more. `ratings` are for a model of ratings, where a like counts as the best rating.
        `adventurous`: -1 leans towards what is popular, 1 away from it.
        """
        taste = self.taste(likes, dislikes, ratings, timed)
        if isinstance(n, bool) or not isinstance(n, int) or n < 1:
            raise SettingError(f"n={n!r} recommendations were asked for; a whole number from 1 on is expected.")
        if not isinstance(adventurous, (int, float)) or not -1 <= adventurous <= 1:
            raise SettingError(f"adventurous={adventurous!r} was got; a number from -1 to 1 is expected.")
        found, b = self.rank(taste, n, adventurous), self.bundle
        return {
            "items": [
                {
                    "item": b.names[at],
                    "title": b.titles[at],
                    "score": round(float(score), 6),
                    "because": [b.titles[i] for i in because],
                }
                for at, score, because in zip(found.items.tolist(), found.scores, found.because)
            ],
            "from": [b.titles[at] for at in taste.likes],
            "popular": found.popular,
        }

    def taste(
        self,
        likes: Iterable[str] = (),
        dislikes: Iterable[str] = (),
        ratings: Mapping[str, float] | None = None,
        timed: bool = False,
    ) -> Taste:
        """What a person says, as item numbers. Of an item that is named twice the last word counts."""
        if isinstance(likes, str) or isinstance(dislikes, str):
            raise SettingError("One text was got; a list of titles is expected, as in likes=['Toy Story'].")
        if self.task == "ranking" and ratings:
            raise SettingError("Ratings were got; this model knows liked or not. Give likes and dislikes.")
        low, high = self.scale
        given: dict[int, float] = {}
        for text, value in [*((text, high) for text in likes), *(ratings or {}).items()]:
            at = self.titles.find(str(text))
            if ratings and (not isinstance(value, (int, float)) or not low <= value <= high or math.isnan(value)):
                raise SettingError(
                    f"A rating of {str(value)[:20]} was got; numbers from {low:g} to {high:g} are expected."
                )
            given.pop(at, None)
            given[at] = float(value)
        against = [self.titles.find(str(text)) for text in dislikes]
        if self.task == "ratings" and against:
            raise SettingError("Dislikes were got; this model knows ratings. Give low ratings instead.")
        both = [at for at in against if at in given]
        if both:
            raise SettingError(f'"{self.bundle.titles[both[0]]}" is among the likes and the dislikes. Choose one.')
        return Taste(
            np.array(list(given), np.int64), np.array(list(given.values()), np.float64),
            np.array(list(dict.fromkeys(against)), np.int64), timed,
        )  # fmt: skip

    def rank(self, taste: Taste, n: int, adventurous: float = 0.0) -> Ranked:
        """The n best items for somebody with this taste: as the page ranks them, to the last item."""
        person = rebuild(self.recipe, self.tables, self.gram, taste)
        out = passed_over(taste, self.group)
        left = len(np.unique(self.group[~out]))
        if person is None:
            top = best_of(self.popularity, out, self.group, n)
            return Ranked(top, self.popularity[top], True, [[] for _ in top], None, left)
        final = order_of(self.tables.scores(person.user), self.popularity, adventurous)
        top = best_of(final, out, self.group, max(n, BEST))
        you = middle(self.bundle.places[top[:BEST]]) if len(top) else None
        top = top[:n]
        return Ranked(top, final[top], False, self._because(person, taste, top), you, left)

    def _because(self, person: Rebuilt, taste: Taste, top: Ints) -> list[list[int]]:
        """For each of these items the likes that speak for it most; of ratings, only good ones."""
        shares = self.tables.features(top) @ person.pulls.T  # [top, likes]
        good = taste.values > sum(self.scale) / 2
        shares = np.where(good & (shares > 0), shares, 0.0)
        order = np.argsort(-shares, axis=1, kind="stable")[:, :REASONS]
        return [[int(taste.likes[i]) for i in row if share[i] > 0] for row, share in zip(order, shares)]
