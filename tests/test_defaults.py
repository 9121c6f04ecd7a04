"""Defaults that follow from the size of the data: values at given sizes, precedence, and models that outgrow them."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

import fedtaste as ft
from fedtaste.data.interactions import Interactions
from fedtaste.experiment.plan import plan, with_scaled_values
from fedtaste.experiment.settings import Settings
from fedtaste.flower.shards import merge_facts, parse_facts
from fedtaste.methods import METHODS
from fedtaste.methods.registry import PublicFacts
from fedtaste.tasks.base import Facts

SIZES = (20, 100, 800, 1_682, 2_499, 2_500, 3_706, 5_999, 6_000, 9_990, 17_612, 30_000, 30_999, 31_000, 10**6)


def ranking(items: int, people: int = 1_000, timed: bool = True) -> Facts:
    return Facts("ranking", items, timed, people=people)


def chosen(method: str, items: int, *names: str, **settings) -> tuple[object, ...]:
    values = plan(Settings(method=method, data="mine.csv", **settings), ranking(items)).settings
    return tuple(values[name] for name in names)


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        (800, (32, 0.2, 0.02)),
        (2_499, (32, 0.2, 0.02)),
        (2_500, (64, 0.1, 0.01)),
        (3_706, (64, 0.1, 0.01)),
        (5_999, (64, 0.1, 0.01)),
        (6_000, (64, 0.05, 0.02)),
        (17_612, (64, 0.05, 0.02)),
        (31_000, (32, 0.05, 0.02)),
    ],
)
def test_fedals_by_the_number_of_items(items, expected):
    assert chosen("fedals", items, "k", "alpha0", "lam") == expected
    assert chosen("centralised", items, "k", "alpha0", "lam") == expected  # the same model from pooled data


def test_fedtrail_by_the_number_of_items():
    assert chosen("fedtrail", 5_999, "k", "alpha0", "lam") == (32, 0.3, 0.01)
    assert chosen("fedtrail", 6_000, "k", "alpha0", "lam") == (64, 0.05, 0.02)
    assert plan(Settings(method="fedtrail", data="mine.csv", set={"parts": "trail"}), ranking(6_000)).scaled == {}


def test_fedeigen_by_the_number_of_items():
    names = ("k", "extra", "alpha0", "lam")
    assert chosen("fedeigen", 2_499, *names) == (64, 32, 0.2, 0.02)
    assert chosen("fedeigen", 3_706, *names) == (128, 16, 0.1, 0.01)
    assert chosen("fedeigen", 6_000, *names) == (64, 32, 0.05, 0.2)
    assert chosen("fedeigen", 31_000, *names) == (32, 16, 0.05, 0.2)
    assert plan(Settings(method="fedeigen", data="mine.csv"), ranking(31_000)).rounds == 3


def test_fedveil_by_items_for_each_person():
    assert chosen("fedveil", 3_000, "strength") == (1.25,)
    assert chosen("fedveil", 3_001, "strength") == chosen("fedveil", 3_001, "strength", epsilon=3.0) == (0.5,)
    assert chosen("fedveil", 3_001, "strength", set={"strength": "2"}) == (2.0,)


def test_a_few_items_still_bound_k():
    assert chosen("fedals", 20, "k", "lam") == (20, 0.02)


@pytest.mark.parametrize(
    "name", sorted(n for n, spec in METHODS.items() if spec.scaled and n not in ("fedveil", "fedseq"))
)
def test_rules_are_bounded_and_alpha0_only_falls(name):
    rule = METHODS[name].scaled["ranking"]
    values = [rule(PublicFacts(1_000, items, True)) for items in SIZES]
    assert all(set(v) == set(values[0]) for v in values)
    alpha0 = [v.get("alpha0", 0.3) for v in values]
    assert alpha0 == sorted(alpha0, reverse=True) and 0.03 <= alpha0[-1] <= alpha0[0] <= 0.3
    most_lam, most_k = (0.2, 128) if name == "fedeigen" else (0.02, 64)
    assert all(0.01 <= v.get("lam", 0.01) <= most_lam for v in values)
    for items, value in zip(SIZES, values):
        k = value.get("k", 32)
        assert 32 <= k <= most_k
        if name == "fedals":  # 4 bytes for each of k (k + 1) / 2 + k + 1 sums of an item
            assert k == 32 or 4 * items * (k * (k + 1) // 2 + k + 1) < 2**28
        if name == "fedeigen" and items < 90_000:  # half a byte for each of k + extra numbers of an item and table
            assert items * (k + value["extra"]) * (value["rounds"] - 1) / 2 < 4.5e6
        for people in (5, 10**6):  # a model is also served to histories without an order, and outlives people
            assert rule(PublicFacts(people, items, False)) == value


def test_set_beats_a_preset_beats_a_rule_beats_the_defaults(monkeypatch):
    spec = replace(
        METHODS["fedavg"],
        defaults={"ranking": {"lr": 1.0, "negatives": 1, "k": 4, "rounds": 5}},
        scaled={"ranking": lambda facts: {"lr": facts.items / 10, "negatives": 2, "k": 5, "rounds": 6}},
        presets={("ranking", "ml-100k"): {"lr": 3.0, "negatives": 3}},
    )
    monkeypatch.setitem(METHODS, "fedavg", spec)
    result = plan(Settings(method="fedavg", data="ml-100k", protocol="published", set={"lr": "4"}), ranking(40))
    assert [result.settings[name] for name in ("lr", "negatives", "k")] == [4.0, 3, 5] and result.rounds == 6
    assert result.scaled == {"k": 5}
    other = plan(Settings(method="fedavg", data="mine.csv", rounds=7), ranking(60))
    assert other.rounds == 7 and other.scaled == {"lr": 6.0, "negatives": 2, "k": 5}
    assert other.notes == ("Defaults for 60 items and 1,000 people: k=5, lr=6.0, negatives=2 (docs/defaults.md).",)
    assert plan(Settings(method="fedavg", data="mine.csv"), Facts("ratings", 40, scale=(1, 5))).scaled == {}


def test_a_note_names_only_what_the_size_changed():
    notes = plan(Settings(data="mine.csv", set={"lam": "0.05"}), ranking(9_990)).notes
    assert [note for note in notes if "Defaults" in note] == [
        "Defaults for 9,990 items and 1,000 people: alpha0=0.05, k=64 (docs/defaults.md)."
    ]
    assert not plan(Settings(), ranking(1_682)).notes  # the values of ML-100K are the defaults


def test_nodes_and_server_choose_the_same_values():
    nodes = [ranking(9_990, people) for people in (3, 400)]
    merged = parse_facts(merge_facts(nodes).words())
    for name in METHODS:
        if METHODS[name].scaled:
            settings = Settings(method=name, data="mine.csv")
            remote, here = plan(settings, merged, elsewhere=True), plan(settings, ranking(9_990, 403), elsewhere=True)
            assert remote.settings == here.settings and remote.scaled == here.scaled
            assert remote.rounds == here.rounds


def test_a_larger_catalogue_does_not_change_the_values_of_a_model():
    settings = Settings(data="mine.csv", set={"alpha0": "0.3"})
    lasting = with_scaled_values(settings, plan(settings, ranking(1_000)))
    assert lasting.set == {"alpha0": "0.3", "k": "32", "lam": "0.02"}
    later = plan(lasting, ranking(5_000))
    assert [later.settings[name] for name in ("k", "alpha0", "lam")] == [32, 0.3, 0.02] and later.scaled == {}


@pytest.fixture
def growing(monkeypatch):
    """FedALS's k and FedTrail's window follow the number of people and items, with a step at 30 of either."""
    for name, setting in (("fedals", "k"), ("fedtrail", "window")):
        rule = {"ranking": lambda facts, s=setting: {s: 3 if facts.items < 30 and facts.people < 30 else 4}}
        monkeypatch.setitem(METHODS, name, replace(METHODS[name], scaled=rule))


def worlds() -> tuple[Interactions, Interactions]:
    """29 people with 25 items, and later 10 more of each."""
    rng = np.random.default_rng(0)

    def table(people: range, items: range) -> Interactions:
        person = np.repeat(np.arange(len(people), dtype=np.int32), 6)
        item = np.concatenate([rng.permutation(len(items))[:6] for _ in people]).astype(np.int32)
        time = np.arange(len(person), dtype=np.int64)
        return Interactions("mine", person, item, tuple(map(str, people)), tuple(map(str, items)), time=time)

    return table(range(29), range(25)), table(range(29, 39), range(20, 35))


def test_an_update_keeps_the_values_of_the_model(growing):
    old, new = worlds()
    model = ft.Recommender("fedals", rounds=1).fit(old, progress=False)
    assert model.result.settings["k"] == 3
    model.update(new, progress=False)
    assert (model.result.items, model.result.settings["k"]) == (35, 3)
    assert len(model.recommend(["38"])["item"]) == 10


def test_a_removal_keeps_the_values_of_the_model(growing):
    _, new = worlds()
    everybody = np.tile(new.person, 4) + np.repeat(np.arange(4, dtype=np.int32) * 10, len(new))
    data = replace(
        new,
        person=everybody,
        item=np.tile(new.item, 4),
        people=tuple(map(str, range(40))),
        time=np.arange(4 * len(new)),
    )
    model = ft.Recommender("fedtrail").fit(data, progress=False)
    assert model.result.settings["window"] == 4
    model.forget(list(map(str, range(15))))
    assert model.result.people == 25 and model.result.settings["window"] == 4


def test_a_model_is_served_with_the_defaults_of_the_version_that_trained_it(tmp_path):
    """plan.json holds every setting in force, so a model outlives a change of the defaults."""
    data = ft.load("synthetic:60x40x900")
    ft.Recommender("fedals", k=4, rounds=2).fit(data, progress=False).save(tmp_path / "model")
    expected = ft.Recommender.load(tmp_path / "model").recommend(["1"], n=3)
    file = tmp_path / "model" / "plan.json"
    plan_then = json.loads(file.read_text())
    assert plan_then["alpha0"] == 0.2
    file.write_text(json.dumps(plan_then | {"alpha0": 0.9}))
    other = ft.Recommender.load(tmp_path / "model").recommend(["1"], n=3)
    assert not expected.equals(other)  # served with alpha0 = 0.9, as plan.json says
    file.write_text(json.dumps({name: value for name, value in plan_then.items() if name != "alpha0"}))
    with pytest.raises(ft.RunError, match="other values of alpha0"):
        ft.Recommender.load(tmp_path / "model")


def test_an_updated_model_keeps_the_k_that_a_small_catalogue_limited():
    small, large = ft.load("synthetic:60x20x400"), ft.load("synthetic:60x40x900")
    model = ft.Recommender("fedmf", rounds=1).fit(small, progress=False)
    assert model.result.settings["k"] == 20
    assert model.update(large, progress=False).result.settings["k"] == 20
