"""How far the slider leads from the beaten track, and where a person stands on the map: measured over many people."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

from fedtaste.data.archives import default_cache
from fedtaste.data.interactions import Interactions
from fedtaste.data.sources import load
from fedtaste.errors import DataError
from fedtaste.evaluation.ranking import rank_items
from fedtaste.experiment.folder import RunFolder
from fedtaste.experiment.settings import Settings
from fedtaste.experiment.train import execute, prepare
from fedtaste.recipe import Recipe
from fedtaste.serving.bundle_recommender import BundleRecommender
from fedtaste.serving.export import export
from fedtaste.serving.rebuild import Tables, Taste, gram_matrix, lean, rebuild

PEOPLE, LIKES, SHOWN = 200, 4, 10


class Measured(NamedTuple):
    """Medians over people."""

    ratio: float  # popularity rank of the ten at the end of the slider, relative to that at the middle
    taste: float  # share of the catalogue with a lower score than the ten at the end
    often: float  # share of people with a ratio of at least 4


def old_lean(scores, popularity, adventurous):
    """The rule of version 0.8.0, by a standardised popularity on a logarithmic scale."""
    median, z = np.median(scores), (popularity - popularity.mean()) / popularity.std()
    return median + (scores - median) * np.exp(-0.7 * adventurous * z)


def popularity_ranks(popularity):
    ranks = np.empty(len(popularity))
    ranks[np.argsort(-popularity, kind="stable")] = np.arange(1, len(popularity) + 1)
    return ranks


def measure_lean(rule, people, scores_of, popularity, groups=None) -> Measured:
    rank, rows = popularity_ranks(popularity), []
    for likes in people:
        scores = scores_of(likes)
        middle, end = (rank_items(rule(scores, popularity, a), likes, groups)[:SHOWN] for a in (0.0, 1.0))
        assert (scores[end] > np.median(scores)).all()
        rows.append((np.median(rank[end]) / np.median(rank[middle]), (scores < np.median(scores[end])).mean()))
    ratios, tastes = np.array(rows).T
    return Measured(float(np.median(ratios)), float(np.median(tastes)), float((ratios >= 4).mean()))


def test_the_end_of_the_slider_is_off_the_beaten_track_on_a_made_up_catalogue():
    """Long-tailed counts, eight directions of taste; vectors of popular items are longer, as in trained models."""
    rng, m, k = np.random.default_rng(0), 1600, 8
    counts = 600 * np.exp(-np.arange(m) / 250)
    direction = np.abs(rng.normal(size=(m, k))) + 6 * np.eye(k)[rng.integers(k, size=m)]
    table = (counts / 600)[:, None] ** 0.75 * direction / np.linalg.norm(direction, axis=1, keepdims=True)
    recipe, tables = Recipe("ridge", lam=0.01, prior=1.0, alpha0=0.01), Tables(table, None, False)
    gram = gram_matrix(recipe, tables)

    def scores_of(likes):
        return tables.scores(rebuild(recipe, tables, gram, Taste(likes, np.ones(LIKES), likes[:0])).user)

    people = [rng.choice(100, LIKES, replace=False) for _ in range(50)]
    popularity = np.log1p(counts) / np.log1p(counts[0])
    new, old = (measure_lean(rule, people, scores_of, popularity) for rule in (lean, old_lean))
    assert new.ratio >= 4 and new.taste > 0.9, new
    assert old.ratio < 4, old


@pytest.fixture(scope="module")
def films(tmp_path_factory) -> tuple[BundleRecommender, Interactions]:
    """(the bundle of FedALS on MovieLens 100K, the data)."""
    try:
        data = load("ml-100k", cache=default_cache())
    except DataError as error:
        pytest.skip(f"needs a network or a cached copy: {error}")
    folder, settings = tmp_path_factory.mktemp("films"), Settings(data="ml-100k", method="fedals")
    run = RunFolder.create(folder / "run", settings.model_dump(), data, "0")
    execute(prepare(settings, data), run)
    export(run.path, folder / "bundle")
    return BundleRecommender.load(folder / "bundle"), data


def people_of(data: Interactions, popularity, best_known: int | None) -> list[np.ndarray]:
    """Four likes of each of 200 people: of their whole history, or of so many best-known titles in it."""
    rng, histories, people = np.random.default_rng(1), data.histories(0), []
    for person in rng.permutation(len(data.people))[:PEOPLE]:
        items = histories.take(np.array([person])).items.astype(np.int64)
        items = items[np.argsort(-popularity[items], kind="stable")][:best_known]
        people.append(rng.choice(items, LIKES, replace=False))
    return people


def scorer(films: BundleRecommender):
    def scores_of(likes):
        taste = Taste(likes, np.ones(LIKES), likes[:0])
        return films.tables.scores(rebuild(films.recipe, films.tables, films.gram, taste).user)

    return scores_of


def test_the_end_of_the_slider_is_off_the_beaten_track_on_movielens(films):
    films, data = films
    popularity, groups = films.popularity, films.titles.groups
    for best_known, often in ((12, 0.9), (None, 0.5)):
        people = people_of(data, popularity, best_known)
        new = measure_lean(lean, people, scorer(films), popularity, groups)
        print(f"likes among the {best_known or 'person’s'} best-known titles: {new}")
        assert new.ratio >= 4 and new.often >= often and new.taste > 0.95
    old = measure_lean(old_lean, people_of(data, popularity, 12), scorer(films), popularity, groups)
    assert old.ratio < 4, old


def test_a_person_stands_nearer_to_their_recommendations_than_to_nine_tenths_of_the_titles(films):
    films, data = films
    places, nearer, fits = films.bundle.places, [], []
    for likes in people_of(data, films.popularity, None):
        ranking = films.rank(Taste(likes, np.ones(LIKES), likes[:0]), SHOWN)
        distances = np.hypot(*(places - ranking.place).T)
        nearer.append((distances < np.median(distances[ranking.items])).mean())
        distances[likes] = np.inf
        scores, near = scorer(films)(likes), np.argsort(distances, kind="stable")[:5]
        fits.append((scores < np.median(scores[near])).mean())
    share = np.mean(np.array(nearer) <= 0.1)
    print(
        f"nearer than the ten: median {np.median(nearer):.3f} of the titles; at most a tenth for {share:.0%} of people"
    )
    print(f"the five titles near a person: better than {np.median(fits):.3f} of the catalogue")
    assert np.median(nearer) < 0.02 and share >= 0.8
    assert np.median(fits) > 0.95 and np.quantile(fits, 0.1) > 0.9
