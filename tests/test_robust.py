"""Robust sums: exact answers, laws of a sum and refusals; and the poisoning simulator on a small data set."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedtaste.core import Stage, Upload
from fedtaste.data.synthetic import synthetic
from fedtaste.data.user_files import save
from fedtaste.engine.run import run
from fedtaste.errors import SettingError
from fedtaste.experiment.settings import Settings
from fedtaste.poisoning.attackers import fake_profiles, flip_histories
from fedtaste.poisoning.simulate import AttackSettings, make_simulation, simulate
from fedtaste.wire import robust_sums as robust
from fedtaste.wire.robust_sums import RULES, bound, check_memory, krum, median, trim
from support.command import fedtaste
from support.worlds import world

PEOPLE, WIDTH = 11, 4


def dense(seed: int = 0, weights: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray, Upload]:
    """Changes [people, width], weights [people], and the uploads with both."""
    rng = np.random.default_rng(seed)
    change = rng.normal(size=(PEOPLE, WIDTH))
    weight = np.ones(PEOPLE) if weights is None else weights
    return change, weight, Upload({"w": torch.tensor(weight[:, None] * change)}, torch.tensor(weight))


def mean(stage: Stage, upload: Upload) -> np.ndarray:
    return stage.combine(upload).mean()["w"].numpy()


def krum_by_hand(change: np.ndarray, hostile: int) -> list[int]:
    """The people whom Krum keeps, by its definition."""
    n, score = len(change), []
    for i in range(n):
        others = sorted(float(((change[i] - change[j]) ** 2).sum()) for j in range(n) if j != i)
        score.append(sum(others[: n - hostile - 2]))
    return sorted(range(n), key=lambda i: score[i])[: n - hostile]


# Exact answers for dense uploads


def test_trimmed_mean_follows_its_definition():
    change, _, upload = dense()
    cut = int(0.2 * PEOPLE)
    expected = np.sort(change, 0)[cut : PEOPLE - cut].mean(0)
    np.testing.assert_allclose(mean(trim(0.2), upload), expected, rtol=1e-12)


def test_trimmed_mean_is_weighted_by_the_people_who_are_kept():
    change, weight, upload = dense(1, np.random.default_rng(5).integers(1, 9, PEOPLE).astype(float))
    order = np.argsort(change, 0)[2:-2]
    kept, counts = np.take_along_axis(change, order, 0), weight[order]
    np.testing.assert_allclose(mean(trim(0.2), upload), (kept * counts).sum(0) / counts.sum(0), rtol=1e-12)


@pytest.mark.parametrize("people", [10, 11])
def test_median_follows_its_definition_and_ignores_weights(people):
    change, weight, upload = dense(2, np.arange(1.0, PEOPLE + 1))
    upload = Upload({"w": upload.total["w"][:people]}, upload.weight[:people])
    np.testing.assert_allclose(mean(median(), upload), np.median(change[:people], 0), rtol=1e-12)


def test_krum_follows_its_definition():
    change, _, upload = dense(3)
    kept = krum_by_hand(change, 2)
    np.testing.assert_allclose(mean(krum(0.2), upload), change[kept].mean(0), rtol=1e-12)


def test_krum_keeps_the_honest_cluster():
    rng = np.random.default_rng(4)
    change = rng.normal(1.0, 0.1, (PEOPLE, WIDTH))
    change[:3] = -50.0  # three equal uploads far away
    upload = Upload({"w": torch.tensor(change)}, torch.ones(PEOPLE, dtype=torch.float64))
    np.testing.assert_allclose(mean(krum(0.3), upload), change[3:].mean(0), rtol=1e-12)


def test_krum_with_too_many_hostile_people_changes_nothing():
    upload = Upload({"w": torch.ones(6, 2)}, torch.ones(6))
    assert mean(krum(0.4), upload).tolist() == [0.0, 0.0]  # 6 people are not more than 2 x 2 + 2
    assert mean(krum(0.3), upload).tolist() == [1.0, 1.0]


def test_bound_shortens_only_uploads_above_the_limit():
    change, _, upload = dense(5)
    limit = 1.5
    length = np.linalg.norm(change, axis=1)
    expected = (change * np.minimum(1, limit / length)[:, None]).mean(0)
    np.testing.assert_allclose(mean(bound(limit), upload), expected, rtol=1e-12)
    usual = (change * np.minimum(1, np.median(length) / length)[:, None]).mean(0)
    np.testing.assert_allclose(mean(bound(), upload), usual, rtol=1e-12)


@pytest.mark.parametrize("stage", [bound(), trim(0.3), median(), krum(0.3)], ids=["bound", "trim", "median", "krum"])
def test_three_hostile_people_of_eleven_hardly_change_a_robust_mean(stage):
    rng = np.random.default_rng(6)
    change = rng.normal(1.0, 0.1, (PEOPLE, WIDTH))
    change[:3] = 1e6
    upload = Upload({"w": torch.tensor(change)}, torch.ones(PEOPLE, dtype=torch.float64))
    assert np.abs(mean(stage, upload) - 1).max() < 0.2
    assert mean(bound(np.inf), upload).min() > 1e5


def test_rules_treat_all_parameters_of_an_upload_as_one_vector_and_keep_shapes():
    change, _, upload = dense(7)
    parts = Upload({"a": upload.total["w"][:, :1].reshape(PEOPLE), "b": upload.total["w"][:, 1:, None]}, upload.weight)
    for stage in (bound(1.0), trim(0.2), median(), krum(0.2)):
        out = stage.combine(parts).total
        assert out["a"].shape == () and out["b"].shape == (WIDTH - 1, 1)
        joined = np.append(out["a"].numpy(), out["b"].numpy())
        np.testing.assert_allclose(joined, stage.combine(upload).total["w"].numpy(), rtol=1e-12)


# Tables of which people change few rows


def table(seed: int = 0, people: int = 30, rows: int = 7) -> Upload:
    rng = np.random.default_rng(seed)
    moved = rng.random((people, rows)) < np.linspace(0.0, 1.0, rows)
    values = rng.normal(size=(people, rows, 3)) * moved[..., None]
    bias = rng.normal(size=(people, rows)) * moved
    weight = rng.integers(1, 9, people).astype(float)
    return Upload({"item": torch.tensor(values), "bias": torch.tensor(bias)}, torch.tensor(weight))


ROWS = ("item", "bias")


@pytest.mark.parametrize("name", ["trim", "median", "krum"])
def test_every_row_is_combined_among_the_people_who_changed_it(name, monkeypatch):
    upload, share = table(), 0.1
    cut = int(share * 30)
    monkeypatch.setattr(robust, "CELLS", 400)  # so that the table is combined in several pieces
    out = RULES[name](None if name == "median" else share, ROWS).combine(upload)
    both = np.concatenate([upload.total["item"].numpy(), upload.total["bias"].numpy()[..., None]], 2)
    for row in range(both.shape[1]):
        changes = both[:, row][(both[:, row] != 0).any(1)]
        least = {"trim": 2 * cut, "median": 0, "krum": 2 * cut + 2}[name]
        if len(changes) <= least:
            expected = np.zeros(4)
        elif name == "trim":
            expected = np.sort(changes, 0)[cut : len(changes) - cut].mean(0) * len(changes)
        elif name == "median":
            expected = np.median(changes, 0) * len(changes)
        else:
            expected = changes[krum_by_hand(changes, cut)].mean(0) * len(changes)
        np.testing.assert_allclose(out.total["item"][row].numpy(), expected[:3], rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(float(out.total["bias"][row]), expected[3], rtol=1e-9, atol=1e-12)
    assert float(out.weight) == float(upload.weight.sum())


def test_a_table_that_everybody_changes_is_combined_like_a_plain_leaf():
    change, _, upload = dense(8)
    as_rows = Upload({"w": upload.total["w"][:, None]}, upload.weight)
    for name, value in (("trim", 0.2), ("median", None), ("krum", 0.2), ("bound", 1.0)):
        plain = RULES[name](value, ()).combine(upload).total["w"]
        rows = RULES[name](value, ("w",)).combine(as_rows).total["w"][0]
        np.testing.assert_allclose(rows.numpy(), plain.numpy(), rtol=1e-12)


def test_few_people_do_not_raise_the_bound_of_a_row():
    rng = np.random.default_rng(9)
    values = rng.normal(size=(40, 5, 3))
    honest = bound(rows=("item",)).combine(Upload({"item": torch.tensor(values[4:])}, torch.ones(36)))
    values[:4] = 0
    values[:4, 2] = 1e6  # four people, one row
    attacked = bound(rows=("item",)).combine(Upload({"item": torch.tensor(values)}, torch.ones(40)))
    gap = (attacked.total["item"] - honest.total["item"]).norm(dim=1)
    assert gap[2] < 4 * 3.0  # four people, each cut to about the usual length
    assert gap[[0, 1, 3, 4]].max() < 3.0


# Laws of a sum


@pytest.mark.parametrize("backend", ["loop", "vmap"])
@pytest.mark.parametrize(
    ("name", "settings", "task"), [("fedavg", {"lr": 0.1}, "ranking"), ("fedals", {}, "ranking"),
                                   ("fedsgd", {"lr": 0.1}, "numbers")],
)  # fmt: skip
def test_rules_that_remove_nothing_give_the_plain_sum(name, settings, task, backend):
    method, model, federation = world(name, settings, task)

    def trained(wire: Stage | None) -> dict[str, torch.Tensor]:
        return [*run(method, model, federation, rounds=2, wire=wire, backend=backend)][-1].state.shared

    plain = trained(None)
    for rule, limit in (("bound", float("inf")), ("trim", 0.0), ("krum", 0.0)):
        for leaf, value in trained(RULES[rule](limit, method.rows)).items():
            torch.testing.assert_close(value, plain[leaf], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rule", ["bound", "trim", "median", "krum"])
def test_loop_and_vmap_give_the_same_robust_sum(rule):
    method, model, federation = world("fedavg", {"lr": 0.1}, "ranking")
    stage = RULES[rule](None if rule in ("bound", "median") else 0.1, method.rows)
    tables = [
        [*run(method, model, federation, rounds=2, wire=stage, backend=backend)][-1].state.shared["item"]
        for backend in ("loop", "vmap")
    ]
    torch.testing.assert_close(*tables, rtol=1e-4, atol=1e-6)


def test_a_weight_is_capped_at_twenty_medians():
    change, weight, _ = dense(10)
    weight = np.append(np.ones(PEOPLE - 1), 1e7)
    upload = Upload({"w": torch.tensor(weight[:, None] * change)}, torch.tensor(weight))
    capped = np.append(np.ones(PEOPLE - 1), 20.0)
    expected = (change * capped[:, None]).sum(0) / capped.sum()
    np.testing.assert_allclose(mean(bound(np.inf), upload), expected, rtol=1e-9)
    assert float(trim(0.1).combine(upload).weight) == capped.sum()


# Refusals


def test_uploads_that_do_not_fit_into_memory_are_refused_with_a_cohort_size(monkeypatch):
    with pytest.raises(SettingError, match=r"1,000,000.*53,824.*200\.5 GB.*--cohort 19949"):
        check_memory(1_000_000, {"item": torch.zeros(1682, 32)})
    check_memory(943, {"item": torch.zeros(1682, 32)})
    monkeypatch.setattr(robust, "MEMORY", 100)
    with pytest.raises(SettingError, match="in memory"):
        trim(0.1).combine(dense()[2])


@pytest.mark.parametrize(
    ("name", "value", "part"),
    [("trim", 0.5, "below 0.5"), ("trim", -0.1, "below 0.5"), ("krum", float("nan"), "below 0.5"),
     ("trim", None, "trim=0.1"), ("krum", None, "krum=0.1"), ("median", 0.1, "no value"),
     ("bound", 0.0, "positive"), ("bound", -1.0, "positive"), ("bound", float("nan"), "positive")],
)  # fmt: skip
def test_wrong_values_of_rules_are_refused(name, value, part):
    with pytest.raises(SettingError, match=part):
        RULES[name](value, ())


# The poisoning simulator


SMALL = Settings(data="small", method="fedmf", rounds=15, new_people=0.0, set={"k": "8"})


@pytest.fixture(scope="module")
def small():
    return synthetic(150, 200, 3000)


@pytest.fixture(scope="module")
def promotion(small):
    return simulate(SMALL, small, AttackSettings(hostile=0.05, wires=["bound"]))


def test_an_attack_promotes_its_item_and_a_robust_sum_prevents_it(promotion):
    rows = {row.row: row for row in promotion.rows}
    assert list(rows) == ["clean", "undefended", "at peace", "defended"]
    assert rows["undefended"].exposure > rows["clean"].exposure + 0.5
    assert rows["defended"].exposure < rows["clean"].exposure + 0.05
    assert promotion.hostile.people == 8 and promotion.honest == 142
    assert rows["clean"].ndcg_loss == 0 and rows["clean"].wire == ""
    assert promotion.targets == (promotion.target,)


def test_the_same_seed_gives_the_same_figures(small):
    quick = SMALL.model_copy(update={"rounds": 3})
    first, second = (simulate(quick, small, AttackSettings(wires=["bound"])) for _ in range(2))
    assert first == second
    assert simulate(quick.model_copy(update={"seed": 1}), small, AttackSettings(wires=["bound"])) != first


def test_targets_are_unpopular_and_hostile_histories_are_fake(small):
    simulation = make_simulation(SMALL, small, AttackSettings(hostile=0.1))
    unpopular = simulation.unpopular
    assert simulation.counts[unpopular].min() >= 1 and simulation.counts[unpopular].max() <= np.median(
        simulation.counts[simulation.counts > 0]
    )
    fake = fake_profiles(simulation.histories, simulation.catalogue, simulation.hostile, int(unpopular[0]), 0)
    flipped = flip_histories(simulation.histories, simulation.catalogue, simulation.hostile, 0)
    for person in range(simulation.histories.people):
        items = set(simulation.histories.of(person).tolist())
        if person in simulation.hostile:
            assert fake.of(person)[0] == unpopular[0] and len(set(fake.of(person).tolist())) == len(fake.of(person))
            assert not items & set(flipped.of(person).tolist())
        else:
            assert items == set(fake.of(person).tolist()) == set(flipped.of(person).tolist())


def test_random_uploads_spoil_a_plain_sum_and_not_a_median(small):
    result = simulate(SMALL.model_copy(update={"rounds": 6}), small, AttackSettings(0.1, "random", ["median"]))
    rows = {row.row: row for row in result.rows}
    assert rows["undefended"].ndcg_loss > 0.1
    assert rows["defended"].ndcg > rows["undefended"].ndcg


def test_people_with_flipped_histories_spoil_the_model(small):
    result = simulate(SMALL.model_copy(update={"method": "fedals", "rounds": 4}), small, AttackSettings(0.4, "flip"))
    assert result.size is None and result.rows[1].ndcg_loss > 0.02


def test_the_attack_works_on_sums_of_fedals(small):
    result = simulate(SMALL.model_copy(update={"method": "fedals", "rounds": 4}), small, AttackSettings(0.05))
    assert result.size == 10.0
    assert result.rows[1].exposure > result.rows[0].exposure + 0.2


@pytest.mark.parametrize(
    ("options", "part"),
    [({"hostile": 0.0}, "above 0"), ({"hostile": 0.6}, "up to 0.5"), ({"hostile": float("nan")}, "above 0"),
     ({"attack": "promot"}, 'Did you mean "promote"'), ({"k": 0}, "got 0"), ({"k": 200}, "got 200"),
     ({"targets": 0}, "got 0"), ({"targets": 10_000}, "got 10000"), ({"size": -1.0}, "got -1"),
     ({"wires": ["clip=1.0"]}, "on the device"), ({"wires": ["trmi=0.1"]}, "Did you mean")],
)  # fmt: skip
def test_wrong_settings_of_an_attack_are_refused(small, options, part):
    with pytest.raises(SettingError, match=part):
        simulate(SMALL, small, AttackSettings(**options))


def test_the_command_prints_a_table_or_json(small, tmp_path):
    save(small, tmp_path / "small.csv")
    args = ("poison", "--data", tmp_path / "small.csv", "--rounds", 3, "--set", "k=4", "--wire", "trim=0.1")
    result = fedtaste(*args, "--json").json
    assert [row["row"] for row in result["rows"]] == ["clean", "undefended", "at peace", "defended"]
    assert set(result["target"]) == {"item", "title", "count"}
    output = fedtaste(*args)
    assert output.code == 0 and "trim=0.1" in output.out and "undefended" in output.out
