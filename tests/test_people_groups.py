"""Groups of people by a column of the data: read, split, stored, joined, and compared in results, tables and plots."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import fedtaste as ft
from fedtaste.data.interactions import Interactions
from fedtaste.errors import DataError, SettingError
from fedtaste.evaluation.list_metrics import Lists, merge_labels
from fedtaste.experiment.continuation import join, without_people
from fedtaste.experiment.settings import Settings
from fedtaste.flower.validation import refuse_unfit
from fedtaste.report.group_plot import group_plots
from fedtaste.report.tables import list_table
from support.command import fedtaste

COUNTRIES = ["DE"] * 24 + ["FR"] * 12 + ["IT"] * 3 + [None]


def frame(people: int = 40) -> pl.DataFrame:
    rows = [
        (f"u{u:02}", f"i{(u * 7 + n * n) % 30:02}", n, COUNTRIES[u]) for u in range(people) for n in range(6 + u % 5)
    ]
    return pl.DataFrame(rows, schema=["user", "item", "time", "land"], orient="row").unique(["user", "item"])


@pytest.fixture(scope="module")
def data() -> Interactions:
    return Interactions.from_frame(frame(), group="land")


@pytest.fixture(scope="module")
def result(data):
    return ft.evaluate("popularity", data, new_people=0.0)


def test_a_column_labels_people(data):
    assert data.groups.column == "land"
    assert dict(zip(data.people, data.groups.labels)) == {f"u{u:02}": COUNTRIES[u] or "unknown" for u in range(40)}
    assert Interactions.from_frame(frame()).groups is None


@pytest.mark.parametrize(
    "labels, names, sizes",
    [
        ([], [], []),
        (["a"] * 30, ["a"], [30]),
        (["a"] * 30 + ["b"] * 10, ["a", "b"], [30, 10]),
        (["b"] * 9 + ["a"] * 30 + ["c"] * 9, ["a", "other"], [30, 18]),
        (["a"] * 30 + ["b"] * 12 + ["c"] * 4, ["a", "other"], [30, 16]),  # c alone would stand out
        (["a"] * 12 + ["b"] * 4, ["other"], [16]),
        (["other"] * 20 + ["b"] * 15, ["b", "other"], [15, 20]),
        (
            [str(n) for n in range(20) for _ in range(11)],
            ["0", "1", *map(str, range(10, 20)), "other"],
            [11] * 12 + [88],
        ),
    ],
)
def test_small_groups_are_merged(labels, names, sizes):
    number, got = merge_labels(labels)
    assert got == names and np.bincount(number, minlength=len(names)).tolist() == sizes


def test_groups_are_compared_with_exact_means(data, result):
    groups = result.beyond.seen.column_groups
    assert [(each.name, each.people) for each in groups.groups] == [("DE", 24), ("other", 16)]
    everybody = result.metric("seen.full.ndcg@10")
    means = [each.metrics["ndcg@10"] for each in groups.groups]
    assert (24 * means[0] + 16 * means[1]) / 40 == pytest.approx(everybody, abs=1e-6)
    gap = groups.gaps["ndcg@10"]
    assert gap.difference == pytest.approx(abs(means[0] - means[1]), abs=2e-6)
    assert result.metric("beyond.seen.column_gap.ndcg@10") == gap.difference
    assert result.interval("beyond.seen.column_gap.ndcg@10") == gap.interval
    assert result.beyond.seen.groups is not None, "quartiles stay"


def test_lists_of_folds_keep_their_labels():
    one, two = (Lists([1, 0], [], [3], [label]) for label in ("DE", "FR"))
    assert Lists.join([vars(one), vars(two)]).labels == ["DE", "FR"]
    assert Lists.join([{"recommended": [1], "diversity": [], "history": [2]}]).labels == []  # an older checkpoint


def test_tables_and_plots_show_the_groups(result):
    assert any("label" in str(column.header) for column in list_table([result]).columns)
    history, column = group_plots([result, result])
    assert history.name == "groups" and column.name == "column-groups"
    assert "DE" in column.alt and "land" in column.caption


def test_a_model_keeps_the_labels_of_people(data, tmp_path):
    model = ft.Recommender("popularity").fit(data, progress=False)
    model.save(tmp_path / "shop")
    loaded = ft.Recommender.load(tmp_path / "shop")
    moved = pl.DataFrame({"user": ["u00", "new"], "item": ["i29", "i03"], "time": [99, 99], "land": ["FR", None]})
    loaded.update(moved, progress=False)
    groups = loaded._trained("").data
    labels = dict(zip(groups.people, groups.groups.labels))
    assert labels["u00"] == "FR" and labels["u01"] == "DE" and labels["new"] == "unknown" and len(labels) == 41
    assert loaded.evaluate(progress=False).beyond.seen.column_groups.column == "land"


def test_joining_and_removing_people_keep_labels_in_their_places(data):
    both = join(data, Interactions.from_frame(frame(5)))
    assert both.groups == data.groups
    left = without_people(data, np.array([0, 39]))
    assert left.groups.labels == data.groups.labels[1:39]


def test_a_person_has_one_label():
    other = pl.DataFrame({"user": ["u01"], "item": ["i99"], "time": [9], "land": ["US"]})
    with pytest.raises(DataError, match=r'land.*same in all rows.*"u01" has "DE", "US" \(1 such person\)'):
        Interactions.from_frame(pl.concat([frame(), other.cast(frame().schema)]), group="land")


def test_wrong_names_of_the_column_are_refused():
    with pytest.raises(DataError, match='Did you mean "land"'):
        Interactions.from_frame(frame(), group="lnd")
    with pytest.raises(SettingError, match="group"):
        refuse_unfit(Settings(method="fedavg", columns={"group": "land"}))


def test_the_command_line_reads_groups_of_a_file_and_of_a_split(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    frame().write_csv("mine.csv")
    options = ("--method", "popularity", "--columns", "group=land", "--json")
    answer = fedtaste("run", "--data", "mine.csv", *options, "--new-people", "0", "--out", "run").json
    assert [group["name"] for group in answer["beyond"]["seen"]["column_groups"]["groups"]] == ["DE", "other"]
    assert "in groups by land" in Path("run/report.html").read_text() and Path("run/plots/column-groups.png").exists()
    fedtaste("data", "import", "mine.csv", "mine.parquet", "--columns", "group=land")
    assert ft.load("mine.csv").groups is None
    assert sorted(set(pl.read_parquet("mine.parquet")["group"])) == ["DE", "FR", "IT", "unknown"]
    Path("split").mkdir()
    rows = frame()
    rows.filter(pl.col("time") < 5).write_csv("split/train.csv")
    rows.filter(pl.col("time") >= 5).write_csv("split/test.csv")
    answer = fedtaste("run", "--data", "split", *options, "--new-people", "0", "--out", "other").json
    assert answer["beyond"]["seen"]["column_groups"]["column"] == "land"
    assert json.loads(Path("other/settings.json").read_text())["settings"]["columns"] == {"group": "land"}
