"""BundleRecommender: recommendations from an exported bundle, in Python without torch, as on its page.

>>> BundleRecommender.load("bundle").recommend(likes=["Toy Story", "Star Wars"], n=10)  # doctest: +SKIP
Recommendations(items=(Recommendation(item='172', title='Empire Strikes Back, The (1980)', score=..., ...
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedtaste.errors import SettingError
from fedtaste.evaluation.ranking import rank_items
from fedtaste.serving.bundle import Bundle, read_bundle
from fedtaste.serving.filters import ALL, Candidates, Filter, find_candidates, nothing_left
from fedtaste.serving.rebuild import (
    Floats,
    Items,
    Taste,
    densest_point,
    gram_matrix,
    lean,
    like_shares,
    person_scores,
    rebuild,
    strongest_likes,
)
from fedtaste.serving.recommendation import Recommendation, Recommendations, SimilarItem, SimilarItems
from fedtaste.serving.similar import similar_items
from fedtaste.serving.titles import Titles

MAPPED = 10  # best items, among which the person stands on the map
REASONS = 2  # likes that are named for an item


class Ranking(NamedTuple):
    """The best items of a person, as the page shows them."""

    items: Items
    scores: Floats  # of these items
    popular: bool  # whether nothing was known of the person: these are the most popular items
    because: list[list[int]]  # for every item, the likes that add most to its score
    place: tuple[float, float] | None  # of the person on the map
    left: int  # how many items could be listed


class BundleRecommender:
    """Recommends from a bundle. Calls change nothing in it, so several threads may call at once."""

    def __init__(self, bundle: Bundle, files: Mapping[str, bytes] | None = None) -> None:
        self.bundle = bundle
        self.files = dict(files or {})  # by name, for `fedtaste serve`
        self.task, self.scale = bundle.manifest.task, bundle.manifest.scale
        self.recipe, self.tables = bundle.manifest.recipe, bundle.tables
        self.popularity: Floats = bundle.popularity / 255.0
        self.titles = Titles(bundle.names, bundle.titles, bundle.popularity.tolist())
        self.gram = gram_matrix(self.recipe, self.tables)

    @staticmethod
    def load(path: Path | str) -> BundleRecommender:
        """Read the bundle in this folder; every file is checked against its hash first."""
        return BundleRecommender(*read_bundle(Path(path)))

    def recommend(
        self,
        likes: Iterable[str] = (),
        *,
        dislikes: Iterable[str] = (),
        ratings: Mapping[str, float] | None = None,
        n: int = 10,
        adventurous: float = 0.0,
        timed: bool = False,
        filter: Filter | None = None,
    ) -> Recommendations:
        """The n best items for a person.

        Likes are titles or names of items, oldest first; `timed` says that the order is one of time, so that recent
        ones count for more. `ratings` are for a model of ratings, where a like counts as the best rating.
        `adventurous`: -1 leans towards popular items, 1 away from them. `filter` says which items may be listed.
        """
        taste = self.taste(likes, dislikes, ratings, timed)
        check_count(n)
        if not isinstance(adventurous, (int, float)) or not -1 <= adventurous <= 1:
            raise SettingError(f"adventurous must be a number from -1 to 1, got {adventurous!r}.")
        names, titles = self.bundle.names, self.bundle.titles
        candidates = ALL if filter is None else find_candidates(filter, self.titles, self.bundle.items)
        best = self.rank(taste, n, adventurous, candidates)
        if not best.left and filter is not None:
            raise nothing_left(filter, len(titles))
        rows = zip(best.items.tolist(), best.scores.tolist(), best.because)
        return Recommendations(
            items=tuple(
                Recommendation(
                    item=names[at], title=titles[at], score=round(score, 6), because=tuple(titles[i] for i in because)
                )
                for at, score, because in rows
            ),
            history=tuple(titles[at] for at in taste.likes),
            disliked=tuple(titles[at] for at in taste.dislikes),
            popular=best.popular,
        )

    def similar(self, item: str, n: int = 10) -> SimilarItems:
        """The n items whose vectors are most similar to this item's, a title or a name; see similar_items."""
        check_count(n)
        at, names, titles = self.titles.find(str(item)), self.bundle.names, self.bundle.titles
        best, cosines = similar_items(self.tables, at, n, self.titles.groups)
        return SimilarItems(
            item=names[at],
            title=titles[at],
            items=tuple(
                SimilarItem(item=names[j], title=titles[j], score=round(cosine, 6))
                for j, cosine in zip(best.tolist(), cosines.tolist())
            ),
        )

    def taste(
        self,
        likes: Iterable[str] = (),
        dislikes: Iterable[str] = (),
        ratings: Mapping[str, float] | None = None,
        timed: bool = False,
    ) -> Taste:
        """The person's likes, ratings and dislikes as item numbers. Of an item named twice the last value counts."""
        if isinstance(likes, str) or isinstance(dislikes, str):
            raise SettingError("likes and dislikes must each be a list of titles, as in likes=['Toy Story'].")
        if self.task == "ranking" and ratings:
            raise SettingError("This model knows liked or not, and no ratings. Give likes and dislikes.")
        values: dict[int, float] = {}
        for text, value in [*((text, self.scale[1]) for text in likes), *(ratings or {}).items()]:
            item = self.titles.find(str(text))
            values.pop(item, None)
            values[item] = self._rating(value)
        disliked = dict.fromkeys(self.titles.find(str(text)) for text in dislikes)
        if self.task == "ratings" and disliked:
            raise SettingError("This model knows ratings, and no dislikes. Give low ratings instead.")
        for item in disliked:
            if item in values:
                raise SettingError(f'"{self.bundle.titles[item]}" is among the likes and the dislikes. Choose one.')
        likes_and_ratings = np.array(list(values), np.int64), np.array(list(values.values()), np.float64)
        return Taste(*likes_and_ratings, np.array(list(disliked), np.int64), timed)

    def _rating(self, value: object) -> float:
        low, high = self.scale
        if not isinstance(value, (int, float)) or not low <= value <= high or math.isnan(value):
            raise SettingError(f"Ratings must be numbers from {low:g} to {high:g}, got {str(value)[:20]}.")
        return float(value)

    def rank(self, taste: Taste, n: int, adventurous: float = 0.0, candidates: Candidates = ALL) -> Ranking:
        """The n best candidates for somebody with this taste, the same items as on the page."""
        person = rebuild(self.recipe, self.tables, self.gram, taste)
        scores = self.popularity
        if person is not None:
            scores = lean(person_scores(self.tables, taste, person), self.popularity, adventurous)
        excluded = np.concatenate([taste.likes, taste.dislikes, candidates.excluded])
        order = rank_items(scores, excluded, self.titles.groups, candidates.allowed)
        best = order[:n]
        if person is None:
            return Ranking(best, scores[best], True, [[] for _ in best], None, len(order))
        shares = like_shares(self.tables, taste, person, best)
        reasons = strongest_likes(shares, taste, self.scale, REASONS)
        place = densest_point(self.bundle.places[order[:MAPPED]]) if len(order) else None
        return Ranking(best, scores[best], False, reasons, place, len(order))


def check_count(n: object) -> None:
    """Refuse a number of items that is not a whole number of at least 1."""
    if isinstance(n, bool) or not isinstance(n, int | np.integer) or n < 1:
        raise SettingError(f"n must be a whole number of at least 1, got {n!r}.")
