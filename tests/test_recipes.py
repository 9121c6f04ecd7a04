"""A recipe rebuilds a person's vector as the method itself does, for every method with a recipe."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedtaste.data.interactions import Histories
from fedtaste.data.sampling import SERVE, key_of, samples
from fedtaste.engine.run import begin, run
from fedtaste.errors import SettingError
from fedtaste.evaluation.ranking import rank_items
from fedtaste.evaluation.scoring import personal_scores
from fedtaste.federation import of_histories, pooled
from fedtaste.methods import METHODS, build
from fedtaste.models import additive, factorization
from fedtaste.models.sequence import Network, network_params
from fedtaste.params import unnest
from fedtaste.recipe import Recipe, SequenceRecipe, TrailRecipe
from fedtaste.serving import rebuild as rebuild_module
from fedtaste.serving.rebuild import (
    Tables,
    Taste,
    TrailTable,
    densest_point,
    gram_matrix,
    lean,
    like_shares,
    person_scores,
    rebuild,
    strongest_likes,
)
from fedtaste.serving.sequence_state import network_shapes
from fedtaste.tasks.serve import serve

ITEMS, NOBODY = 30, np.zeros(0, np.int64)
CASES = [
    ("fedals", {}, "ranking", 0),
    ("fedals", {"lam": 0.03, "alpha0": 0.4, "recency": 0.5, "floor": 0.3}, "ranking", 0),
    ("fedals", {"lam": 0.1}, "ratings", 0),
    ("fcf", {}, "ranking", 0),
    ("centralised", {}, "ranking", 0),
    ("centralised", {"lam": 0.1}, "ratings", 0),
    ("fedrecon", {"recon_lr": 2.0, "recon_passes": 7}, "ranking", 0),
    ("fedrecon", {"recon_lr": 0.1, "recon_passes": 3}, "ratings", 4),
    ("fedrecon", {"solver": "exact", "lam": 0.1, "prior": 3.0}, "squared", 0),
    ("fedrecon", {"solver": "exact", "lam": 0.1, "prior": 3.0}, "ratings", 0),
    ("fedmf", {"lr": 0.5}, "ranking", 0),
    ("fedmf", {"lr": 0.5, "passes": 3}, "ranking", 7),
    ("fedmf", {"lr": 0.05, "passes": 2}, "ratings", 3),
    ("fedavg", {"lr": 0.5}, "ranking", 5),
    ("fedtrail", {}, "ranking", 0),
    ("fedtrail", {"parts": "trail", "mix": 0.4, "fast": 0.3, "slow": 0.8, "reach": 5}, "ranking", 0),
    ("fedtrail", {"parts": "factors", "bits": 8}, "ranking", 0),
    ("fedtrail", {"parts": "trail+als", "keep": 7, "bits": 8, "reach": 0}, "ranking", 0),
    ("fedseq", {}, "ranking", 0),
    ("fedseq", {"length": 5, "layers": 3, "heads": 1}, "ranking", 0),
    ("fedseq", {"trail": False, "start": "items", "length": 5}, "ranking", 0),
    ("fedseq", {"network": "gru", "length": 5}, "ranking", 0),
    ("fedeigen", {"lam": 0.03, "alpha0": 0.4, "recency": 0.5}, "ranking", 0),
    ("fedrap", {"lr": 0.3, "table_lr": 0.0, "passes": 3, "parts": "common"}, "additive", 8),
    ("fedrap", {"lr": 0.3, "table_lr": 0.0, "passes": 2, "parts": "common", "released": False}, "additive", 0),
]


def model_of(task):
    if task == "additive":
        return additive(ITEMS, k=4)
    if task == "ratings":
        return factorization(ITEMS, k=4, biases=True, loss="squared", mean=3.0)
    return factorization(ITEMS, k=4, loss="squared" if task == "squared" else "bce", spread=1.0)


def history(items, values):
    return Histories(np.array([0, len(items)]), np.array(items, np.int32), np.array(values, np.float32))


def parts_of(shared, initial):
    """(tables, start), as an export reads them from a run."""
    tables = {name: value.double().numpy() for name, value in (shared | initial).items()}
    ratings = "item_bias" in tables
    offset = tables["item_bias"] + tables["mean"] if ratings else tables.get("offset")
    start = tables.get("start.user", tables.get("user"))
    if "bias" in tables:
        start = np.append(start, tables["bias"])
    trail = None
    if "trail" in tables:
        trail = TrailTable(np.tile(np.arange(ITEMS), (ITEMS, 1)), tables["trail"])
    network = {name: tables[f"network.{name}"] for name in unnest("network", shared)}
    return Tables(tables["item"], offset, ratings or "bias" in tables, trail, network), start


def learnt(sequence, shared):
    """The recipe of a sequence with the numbers that training found."""
    return sequence and replace(sequence, alpha=float(shared.get("alpha", 0)), eps=float(shared.get("eps", 1)))


@pytest.mark.parametrize(("name", "settings", "task", "batch"), CASES, ids=lambda value: str(value))
def test_a_recipe_gives_the_scores_of_the_method_for_a_new_person(name, settings, task, batch):
    model = model_of(task)
    method = build(name, model, settings)
    negatives, rounds, seed = (0 if task == "ratings" else 4), 3, 11
    rng = np.random.default_rng(3)
    people = [rng.permutation(ITEMS)[: rng.integers(3, 12)] for _ in range(20)]
    values = [rng.integers(1, 6, len(p)) if task == "ratings" else np.ones(len(p)) for p in people]
    everybody = Histories(
        np.cumsum([0, *map(len, people)]), np.concatenate(people).astype(np.int32),
        np.concatenate(values).astype(np.float32),
    )  # fmt: skip
    options = {"negatives": negatives, "batch": batch, "seed": seed}
    crowd = of_histories(everybody, ITEMS, **options)
    if method.pooled:
        crowd = pooled(crowd)
    state = list(run(method, model, crowd, rounds=2, seed=1))[-1].state
    items, ratings = [4, 9, 2, 17, 20, 5, 8], [5, 1, 3, 4, 2, 5, 4] if task == "ratings" else [1] * 7
    home = of_histories(history(items, ratings), ITEMS, **options, stream=SERVE)
    fresh = begin(method, model, home, 1)
    store, numbers, examples = serve(method, state.shared, fresh.private, home, np.zeros(1, np.int64), rounds)
    ((_, expected),) = personal_scores(method, model, state.shared, store, numbers, examples, torch.arange(ITEMS))

    shared = method.tables(state.shared) if method.tables else state.shared
    tables, start = parts_of(shared, fresh.private.initial)
    recipe = replace(
        method.recipe, examples=method.examples, negatives=negatives, batch=batch, seed=str(seed),
        rounds=rounds if fresh.private.initial else 1, start=() if start is None else tuple(start),
        sequence=learnt(method.recipe.sequence, shared),
    )  # fmt: skip
    taste = Taste(np.array(items), np.array(ratings, float), NOBODY, timed=True)
    person = rebuild(recipe, tables, gram_matrix(recipe, tables), taste)
    scores = person_scores(tables, taste, person)
    spread = float(expected[0].std())
    assert spread > 1e-3, "equal scores would hide every mistake"
    assert np.abs(scores - expected[0].double().numpy()).max() < 2e-5 * max(1.0, spread, float(expected.abs().max()))


@pytest.mark.parametrize("kind", ["attention", "gru"])
def test_a_bundle_stores_every_parameter_of_a_sequence_network(kind):
    params = network_params(Network(kind, 6, layers=2, heads=3, length=7), torch.Generator())
    shapes = network_shapes(SequenceRecipe(kind, layers=2, heads=3, length=7, embedded=1.0), 6)
    flat = {name: value.flatten() if name.endswith("rel") else value for name, value in params.items()}
    assert shapes == {name: tuple(value.shape) for name, value in flat.items()}


def test_a_sequence_without_a_trail_is_explained_by_the_most_similar_likes():
    recipe = Recipe("sequence", sequence=SequenceRecipe("gru", layers=1, heads=1, length=9, embedded=1.0))
    rng = np.random.default_rng(0)
    network = {name: rng.normal(size=shape) for name, shape in network_shapes(recipe.sequence, 2).items()}
    item = np.array([[1, 0], [0, 5], [0, 0], [1, 0.1], [0.1, 1]])
    t, taste = Tables(item, np.zeros(5), False, None, network), Taste(np.array([0, 1, 2]), np.ones(3), NOBODY)
    shares = like_shares(t, taste, rebuild(recipe, t, None, taste), np.array([3, 4]))
    assert strongest_likes(shares, taste, (0, 1), 2) == [[0, 1], [1, 0]]
    assert np.allclose(shares, [[1, 0.1, 0], [0.1, 1, 0]])


def test_every_method_with_a_recipe_has_a_case():
    tested = {case[0] for case in CASES}
    for name in METHODS:
        for model in (factorization(ITEMS, k=4), additive(ITEMS, k=4)):
            try:
                method = build(name, model, {})
            except SettingError:
                continue
            assert method.recipe is None or name in tested, f"{name} has a recipe and no case in CASES"


def tables(seed=0, m=40, k=3):
    rng = np.random.default_rng(seed)
    return Tables(rng.normal(size=(m, k)), None, False)


RIDGE = Recipe("ridge", lam=0.1, prior=2.0, alpha0=0.2)
STEPS = Recipe("descent", loss="bce", lr=0.5, passes=4, examples="samples", negatives=4, start=(0.1, -0.1, 0.2))


@pytest.mark.parametrize("recipe", [RIDGE, STEPS, replace(STEPS, rounds=3, first=1, shrink=0.1, moves=False)])
def test_contributions_of_likes_add_up_to_the_vector_and_dislikes_count(recipe):
    """The contributions are those of "because you liked". Under a ridge solve nothing else contributes."""
    t, taste = tables(), Taste(np.array([3, 8, 1]), np.ones(3), np.array([7]))
    person = rebuild(recipe, t, gram_matrix(recipe, t), taste)
    without_dislike = rebuild(recipe, t, gram_matrix(recipe, t), Taste(np.array([3, 8, 1]), np.ones(3), NOBODY))
    assert person.pulls.shape == (3, 3)
    if recipe.solver == "ridge":  # only likes have a target above 0
        assert np.allclose(person.pulls.sum(0), person.user, atol=1e-12)
    assert not np.allclose(person.user, without_dislike.user)


@pytest.mark.parametrize("timed", [False, True])
def test_shares_of_likes_with_a_trail_add_up_to_the_score(timed):
    """Both parts are z-scores: the shares of the likes add up to the score without its two means."""
    rng = np.random.default_rng(1)
    at = np.argsort(rng.random((40, 40)), axis=1)[:, :6]
    t = tables()._replace(trail=TrailTable(at, rng.random((40, 6))))
    recipe = replace(RIDGE, recency=0.8, trail=TrailRecipe(mix=0.7, fast=0.5, slow=0.9, reach=3))
    taste = Taste(np.array([3, 8, 1, 30]), np.ones(4), NOBODY, timed)
    person = rebuild(recipe, t, gram_matrix(recipe, t), taste)
    dense = np.zeros((40, 40))
    np.put_along_axis(dense, at, t.trail.values, axis=1)
    w = np.array([0, 0.7 * 0.25 + 0.3 * 0.81, 0.7 * 0.5 + 0.3 * 0.9, 1]) if timed else np.ones(4)
    alone = rebuild(replace(recipe, trail=None), t._replace(trail=None), gram_matrix(recipe, t), taste)
    parts = t.scores(alone.user), w @ dense[taste.likes]
    expected = sum((part - part.mean()) / part.std() for part in parts)
    assert np.allclose(person_scores(t, taste, person), expected, atol=1e-12)
    shares = like_shares(t, taste, person, np.arange(40))
    by_hand = t.item @ alone.pulls.T / parts[0].std() + dense[taste.likes].T * w / parts[1].std()
    assert np.allclose(shares, by_hand, atol=1e-12)
    assert np.allclose(shares.sum(1) - shares.sum(1).mean(), expected, atol=1e-12)


def test_a_dislike_counts_for_factors_and_not_in_the_trail():
    rng = np.random.default_rng(2)
    at = np.tile(np.arange(40), (40, 1))
    t = tables()._replace(trail=TrailTable(at, rng.random((40, 40))))
    trail = TrailRecipe(mix=0.7, fast=0.5, slow=0.9, reach=0)
    base = Taste(np.array([3, 8]), np.ones(2), NOBODY)
    for recipe, changes in ((Recipe("none", trail=trail), False), (replace(RIDGE, trail=trail), True)):
        plain, disliked = (
            person_scores(t, taste, rebuild(recipe, t, gram_matrix(recipe, t), taste))
            for taste in (base, base._replace(dislikes=np.array([20])))
        )
        assert np.allclose(plain, disliked) != changes


def test_contributions_of_a_descent_from_zero_add_up_to_the_vector():
    recipe = replace(STEPS, negatives=0, start=(0.0, 0.0, 0.0), shrink=0.2, step_decay=0.9, rounds=2, batch=2)
    person = rebuild(recipe, tables(), None, Taste(np.array([3, 8, 1]), np.ones(3), NOBODY))
    assert np.abs(person.user).max() > 0.1 and np.allclose(person.pulls.sum(0), person.user, atol=1e-12)


def test_a_like_raises_and_a_dislike_lowers_the_score_of_its_item():
    t = tables()
    for recipe in (RIDGE, STEPS):
        gram = gram_matrix(recipe, t)
        base = Taste(np.array([3, 8]), np.ones(2), NOBODY)
        liked = base._replace(likes=np.array([3, 8, 20]), values=np.ones(3))
        disliked = base._replace(dislikes=np.array([20]))
        score = {name: t.scores(rebuild(recipe, t, gram, taste).user)[20]
                 for name, taste in {"base": base, "like": liked, "dislike": disliked}.items()}  # fmt: skip
        assert score["like"] > score["base"], recipe.solver
        if score["base"] > 0 and recipe.solver == "ridge":
            assert abs(score["dislike"]) < abs(score["base"])


def test_rebuild_returns_none_without_likes():
    t = tables()
    assert rebuild(RIDGE, t, None, Taste(NOBODY, np.zeros(0), np.array([3]))) is None


def test_liking_all_items_draws_no_negatives():
    t = tables()
    whole_catalogue = Taste(np.arange(39), np.ones(39), np.array([39]))
    assert np.isfinite(rebuild(STEPS, t, None, whole_catalogue).user).all()


@pytest.mark.parametrize("number", range(40))
def test_negatives_drawn_without_compiled_code_equal_those_of_sampling(number):
    rng = np.random.default_rng(number)
    m = int(rng.integers(3, 200))
    order, liked = rng.permutation(m), int(rng.integers(1, m + 1))
    disliked = order[liked : liked + int(rng.integers(0, m - liked + 1))]
    ratings = rng.integers(1, 11, liked) / 2
    recipe = replace(STEPS, negatives=int(rng.integers(0, 6)), seed=str(rng.integers(0, 2**63)))
    drawn = samples(
        history(order[:liked], ratings), np.zeros(1, np.int64), catalogue=m, negatives=recipe.negatives, batch=0,
        key=key_of(int(recipe.seed), SERVE, number), forbidden=history(disliked, np.zeros(len(disliked))),
    )  # fmt: skip
    items, targets = rebuild_module._samples(recipe, m, Taste(order[:liked], ratings, disliked), number)
    assert np.array_equal(items, drawn.inputs) and np.array_equal(targets, drawn.targets)


def test_rank_items_lists_a_title_once_and_breaks_ties_by_the_catalogue():
    scores, groups = np.array([1.0, 3.0, 3.0, 2.0, 3.0]), np.array([0, 1, 2, 3, 1])
    assert rank_items(scores, [3], groups).tolist() == [1, 2, 0]
    assert rank_items(scores, [3]).tolist() == [1, 2, 4, 0]
    assert rank_items(scores, [4], groups).tolist() == [2, 3, 0], "a group with an excluded item is left out"
    assert rank_items(np.array([np.nan, 1.0, 2.0])).tolist() == [2, 1, 0]
    assert rank_items(scores, [3], groups, allowed=[4, 3, 0]).tolist() == [4, 0]
    assert rank_items(scores, allowed=[]).tolist() == []


def test_adventurous_lowers_popular_items_and_does_not_raise_low_scores():
    scores, popularity = np.array([1.0, 0.9, 0.0, 0.0, -0.1]), np.array([1.0, 0.2, 0.0, 0.1, 0.4])
    assert lean(scores, popularity, 0.0).argmax() == 0
    assert lean(scores, popularity, -1.0).argmax() == 0
    for adventurous in (0.5, 1.0):
        final = lean(scores, popularity, adventurous)
        assert final.argmax() == 1 and final[0] > final[2:].max()
    assert np.array_equal(lean(scores, np.ones(5), 1.0), scores)  # equal popularity changes nothing


def test_a_lean_multiplies_distances_from_the_median_by_the_root_of_the_popularity_rank():
    scores, popularity = np.array([5.0, 3.0, 1.0, 0.0, -4.0]), np.array([0.9, 0.1, 0.5, 0.5, 0.2])  # ranks 1 5 2 2 4
    assert lean(scores, popularity, 1.0).tolist() == pytest.approx([5, 1 + 2 * 5**0.5, 1, 1 - 2**0.5, 1 - 5 * 2])
    assert lean(scores, popularity, -0.5).tolist() == pytest.approx(
        [5, 1 + 2 / 5**0.25, 1, 1 - 2**-0.25, 1 - 5 / 2**0.5]
    )


def test_the_densest_point_stands_in_the_larger_of_two_groups():
    group, few = np.array([[0.0, 0], [1, 0], [0, 1], [2, 2]]), np.array([[90.0, 90], [90, 91], [91, 90]])
    assert densest_point(np.concatenate([few, group])) == (1, 0)
    assert densest_point(np.array([[3.0, 4.0]])) == (3, 4)
    assert densest_point(np.array([[0.0, 0], [10, 0]])) == (0, 0), "of equal points the first"
