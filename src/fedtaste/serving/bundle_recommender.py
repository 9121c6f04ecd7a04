"""BundleRecommender: recommendations from an exported bundle, in Python without torch, as on its page.

>>> BundleRecommender.load("bundle").recommend(likes=["Toy Story", "Star Wars"], n=10)  # doctest: +SKIP
Recommendations(items=(Recommendation(item='172', title='Empire Strikes Back, The (1980)', score=..., ...
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedtaste.errors import SettingError
from fedtaste.evaluation.ranking import rank_items
from fedtaste.serving.bundle import Bundle, read_bundle
from fedtaste.serving.item_lists import (
    Filter,
    TasteArguments,
    allowed_items,
    check_count,
    find_items,
    find_taste,
    nothing_left,
)
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
from fedtaste.serving.recommendation import Recommendations, SimilarItem, SimilarItems
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
    mapped: Floats  # [at most MAPPED, 2] places of the best items on the map

    @property
    def place(self) -> tuple[float, float] | None:
        """Where the person stands on the map; None if nothing is known of them."""
        return None if self.popular or not len(self.mapped) else densest_point(self.mapped)


class BundleRecommender:
    """Recommends from a bundle. Calls change nothing in it, so several threads may call at once."""

    def __init__(self, bundle: Bundle, files: Mapping[str, bytes] | None = None) -> None:
        self.bundle = bundle
        self.files = dict(files or {})  # by name, for `fedtaste serve`
        self.task, self.scale = bundle.manifest.task, bundle.manifest.scale
        self.recipe, self.tables = bundle.manifest.recipe, bundle.tables
        self.popularity: Floats = bundle.popularity / 255.0
        self.titles = Titles(bundle.names, bundle.titles)
        self.gram = gram_matrix(self.recipe, self.tables)

    @staticmethod
    def load(path: Path | str) -> BundleRecommender:
        """Read the bundle in this folder; every file is checked against its hash first."""
        return BundleRecommender(*read_bundle(Path(path)))

    def recommend(
        self,
        likes: Iterable[object] = (),
        *,
        dislikes: Iterable[object] = (),
        ratings: Mapping[str, float] | None = None,
        n: int = 10,
        adventurous: float = 0.0,
        timed: bool = False,
        filter: Filter | None = None,
    ) -> Recommendations:
        """The n best items for a person.

        Likes are names or titles of items, oldest first; `timed` says that the order is one of time, so that recent
        ones count for more. `ratings` are for a model of ratings, where a like counts as the best rating.
        `adventurous`: -1 leans towards popular items, 1 away from them. `filter` says which items may be listed.
        """
        check_count(n)
        person: TasteArguments = {"likes": likes, "dislikes": dislikes, "ratings": ratings, "timed": timed}
        taste = find_taste(self.titles, person, self.task, self.scale)
        if not isinstance(adventurous, (int, float)) or not -1 <= adventurous <= 1:
            raise SettingError(f"adventurous must be a number from -1 to 1, got {adventurous!r}.")
        filter = filter or Filter()
        best = self.rank(taste, n, adventurous, allowed_items(self.titles, filter, self.bundle.items))
        if not len(best.items) and filter != Filter():
            raise nothing_left(filter, len(self.bundle.titles))
        return self._answer(best, taste)

    def _answer(self, best: Ranking, taste: Taste) -> Recommendations:
        """The answer in words. It is validated in one call, which is faster than one for every item."""
        names, titles = self.bundle.names, self.bundle.titles
        items = [
            {"item": names[at], "title": titles[at], "score": round(score, 6), "because": tuple(titles[i] for i in why)}
            for at, score, why in zip(best.items.tolist(), best.scores.tolist(), best.because)
        ]
        return Recommendations.model_validate(
            {
                "items": tuple(items),
                "from": tuple(titles[at] for at in taste.likes.tolist()),
                "disliked": tuple(titles[at] for at in taste.dislikes.tolist()),
                "popular": best.popular,
            }
        )

    def similar(self, item: object, n: int = 10) -> SimilarItems:
        """The n items whose vectors are most similar to this item's, a name or a title; see similar_items."""
        check_count(n)
        (at,), names, titles = find_items(self.titles, [item], "item"), self.bundle.names, self.bundle.titles
        best, cosines = similar_items(self.tables, at, n, self.titles.groups)
        return SimilarItems(
            item=names[at],
            title=titles[at],
            items=tuple(
                SimilarItem(item=names[j], title=titles[j], score=round(cosine, 6))
                for j, cosine in zip(best.tolist(), cosines.tolist())
            ),
        )

    def rank(self, taste: Taste, n: int, adventurous: float = 0.0, allowed: Items | None = None) -> Ranking:
        """The n best of the `allowed` items (None: all) for somebody with this taste, the same as on the page."""
        person = rebuild(self.recipe, self.tables, self.gram, taste)
        scores = self.popularity
        if person is not None:
            scores = lean(person_scores(self.tables, taste, person), self.popularity, adventurous)
        own = np.concatenate([taste.likes, taste.dislikes])
        order = rank_items(scores, own, self.titles.groups, allowed, max(n, MAPPED))
        best = order[:n]
        mapped = self.bundle.places[order[:MAPPED]]
        if person is None:
            return Ranking(best, scores[best], True, [[] for _ in best], mapped)
        shares = like_shares(self.tables, taste, person, best)
        reasons = strongest_likes(shares, taste, self.scale, REASONS)
        return Ranking(best, scores[best], False, reasons, mapped)
