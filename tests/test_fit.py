"""`fedtaste fit`, `similar`, `recommend --all`, and continuing a model with `--from`: as a user types them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from fedtaste.data.sources import load
from fedtaste.data.user_files import save
from support.command import fedtaste

DATA = "synthetic:60x50x1200"
FIT = ("--data", DATA, "--rounds", "2", "--set", "k=4", "--threads", "1")


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("fit") / "model"
    assert fedtaste("fit", *FIT, "--out", path).code == 0
    return path


@pytest.fixture
def weeks(tmp_path) -> tuple[Path, Path]:
    """The first nine tenths of the data by time, and the rest, as two files."""
    data = load(DATA)
    late = data.time > np.quantile(data.time, 0.9)
    paths = tmp_path / "old.csv", tmp_path / "new.csv"
    for path, rows in zip(paths, (~late, late)):
        save(data.rows(rows), path)
    return paths


def test_a_fit_prints_what_it_learnt_and_what_to_do_next(model, tmp_path):
    output = fedtaste("fit", *FIT, "--out", tmp_path / "again")
    assert "60 people" in output.out and "50 items" in output.out and "recommend" in output.out
    result = json.loads((model / "result.json").read_text())
    assert result["interactions"] == 1200 and result["rounds"] == 2 and "seen" not in result
    assert fedtaste("resume", model, "--json").json == result
    fedtaste("report", model).refused("model for production")


def test_a_fit_takes_the_rounds_that_a_run_chose(tmp_path):
    run = fedtaste("run", "--data", DATA, "--set", "k=4", "--threads", "1", "--out", tmp_path / "run", "--json").json
    fit = fedtaste("fit", "--data", DATA, "--like", tmp_path / "run", "--out", tmp_path / "fit", "--json").json
    assert fit["rounds"] == run["rounds"] and fit["settings"] == run["settings"] and fit["valid"] is None
    fedtaste("fit", "--like", tmp_path / "run", "--seed", 3, "--out", tmp_path / "other").refused("leave out seed")


@pytest.mark.parametrize("ending", ["parquet", "csv", "csv.gz", "jsonl"])
def test_recommendations_for_everybody_are_a_table(model, tmp_path, ending):
    path = tmp_path / f"all.{ending}"
    counts = fedtaste("recommend", model, "--all", "--out", path, "-n", 3, "--json").json
    assert counts == {"file": str(path), "people": 60, "rows": 180}
    read = {"parquet": pl.read_parquet, "jsonl": pl.read_ndjson}.get(ending, pl.read_csv)
    table = read(path)
    assert table.columns == ["user", "item", "rank", "score"] and len(table) == 180
    one = fedtaste("recommend", model, "--person", "7", "-n", 3, "--json").json
    mine = table.filter(pl.col("user").cast(pl.String) == "7")["item"].cast(pl.String).to_list()
    assert mine == [each["item"] for each in one["items"]]


def test_lists_replace_a_file_with_force_only_and_the_data_never(weeks, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fedtaste("fit", "--data", "old.csv", *FIT[2:], "--out", "my shop")
    shown = fedtaste("fit", "--from", "my shop", "--data", "new.csv", "--rounds", "1", "--out", "later")
    assert "Next: fedtaste recommend later --all --out recommendations.parquet\n" in shown.out
    before = {path: path.read_bytes() for path in weeks}
    Path("link.csv").symlink_to("old.csv")
    for name in ("old.csv", "new.csv", "link.csv"):  # of the model, and of the one that it continues
        for force in ((), ("--force",)):
            lists = fedtaste("recommend", "later", "--all", "--out", name, *force)
            lists.refused(f"{name} belongs to the data", "Choose another --out")
    Path("mine.csv").write_text("mine")
    lists = fedtaste("recommend", "my shop", "--all", "--out", "mine.csv")
    lists.refused("mine.csv exists already; choose another --out or add --force.")
    assert Path("mine.csv").read_text() == "mine"
    counts = fedtaste("recommend", "later", "--all", "--out", "mine.csv", "--force", "-n", 3, "--json").json
    assert counts == {"file": "mine.csv", "people": 60, "rows": 180}
    assert len(pl.read_csv("mine.csv")) == 180 and {path: path.read_bytes() for path in weeks} == before
    fedtaste("recommend", "my shop", "--likes", "1", "--force").refused("--all and --out FILE go together")


def test_filters_of_the_command_line(model, tmp_path):
    items = load(DATA).items
    (tmp_path / "stock.txt").write_text("\n".join(items[:9]))
    stock = f"@{tmp_path / 'stock.txt'}"
    answer = fedtaste(
        "recommend", model, "--likes", items[20], "--only", stock, "--exclude", items[3], "-n", 4, "--json"
    )
    assert {each["item"] for each in answer.json["items"]} <= set(items[:9]) - {items[3]}
    fedtaste("recommend", model, "--likes", items[20], "--only", "no such thing").refused("only", "no such thing")
    fedtaste("recommend", model, "--likes", items[20], "--only", "@no-such-file").refused("no-such-file")
    fedtaste("recommend", model, "--all").refused("--out")
    fedtaste("recommend", model, "--all", "--out", "a.xlsx").refused(".parquet")
    fedtaste("recommend", model, "--all", "--out", "a.csv", "--person", "7").refused("--person")


def test_similar_items_are_listed(model):
    title = load(DATA).titles[3]
    answer = fedtaste("similar", model, title, "--json").json
    assert answer["title"] == title and len(answer["items"]) == 5
    assert title in fedtaste("similar", model, title, "-n", 2).out
    fedtaste("similar", model, "Nothing at all").refused("Nothing at all")


def test_a_model_continues_with_new_data(weeks, tmp_path):
    old, new = weeks
    assert fedtaste("fit", "--data", old, *FIT[2:], "--out", tmp_path / "first").code == 0
    result = fedtaste("fit", "--from", tmp_path / "first", "--data", new, "--out", tmp_path / "second", "--json").json
    assert result["interactions"] == 1200 and result["rounds"] == 1 and result["total_rounds"] == 3
    assert result["settings"]["k"] == 4
    # interrupted before its first round: everything but the settings is gone, and the same bytes come back
    expected = (tmp_path / "second" / "model.safetensors").read_bytes()
    for name in ("result.json", "model.safetensors", "final.safetensors", "state.safetensors"):
        (tmp_path / "second" / name).unlink()
    assert fedtaste("resume", tmp_path / "second", "--json").json["total_rounds"] == 3
    assert (tmp_path / "second" / "model.safetensors").read_bytes() == expected


def test_new_data_are_read_like_the_old(tmp_path):
    for name, day in (("old", 10), ("new", 20)):
        rows = [f"u{u};i{(u * 7 + j * day) % 30};{day + j}/01/2024" for u in range(30) for j in range(6)]
        (tmp_path / f"{name}.csv").write_text("kunde;sku;wann\n" + "\n".join(rows))
    options = ("--columns", "user=kunde,item=sku,time=wann", "--date-format", "%d/%m/%Y", "--separator", ";")
    assert fedtaste("fit", "--data", tmp_path / "old.csv", *options, *FIT[2:], "--out", tmp_path / "one").code == 0
    result = fedtaste(
        "fit", "--from", tmp_path / "one", "--data", tmp_path / "new.csv", "--out", tmp_path / "two", "--json"
    )
    assert result.json["people"] == 30


def test_errors_send_no_control_codes_to_a_terminal(tmp_path):
    rows = [f"\x1b[2Jann{u},i{(u * 7 + j) % 30}" for u in range(30) for j in range(6)]
    (tmp_path / "nasty.csv").write_text("user,item\n" + "\n".join(rows))
    fedtaste("fit", "--data", tmp_path / "nasty.csv", *FIT[2:], "--out", tmp_path / "model")
    output = fedtaste("recommend", tmp_path / "model", "--person", "zzz").refused("is not a person", "ann")
    assert "\x1b" not in output.err


def test_an_update_is_evaluated_on_items_that_the_model_had_not_seen(weeks, tmp_path):
    old, new = weeks
    fedtaste("fit", "--data", old, *FIT[2:], "--out", tmp_path / "first")
    result = fedtaste("run", "--from", tmp_path / "first", "--data", new, "--out", tmp_path / "run", "--json").json
    fresh = load(str(new))
    assert result["seen"]["people"] == len(fresh.people) and result["new"] is None
    assert any("not evaluated" in note for note in result["notes"])
    fedtaste("run", "--from", tmp_path / "first", "--data", old, "--out", tmp_path / "no").refused("newer data")
    fedtaste("run", "--from", tmp_path / "first", "--data", new, "--set", "k=8", "--out", tmp_path / "no").refused(
        "--set"
    )
    fedtaste("fit", "--from", tmp_path / "run", "--data", new, "--out", tmp_path / "no").refused("evaluated run")


def test_recommendations_need_no_file_and_a_grown_file_does_no_harm(weeks, tmp_path, monkeypatch):
    old, new = weeks
    fedtaste("fit", "--data", old, *FIT[2:], "--out", tmp_path / "model")
    fedtaste("run", "--data", old, *FIT[2:], "--out", tmp_path / "run")
    before = fedtaste("recommend", tmp_path / "model", "--person", "7", "--json").json
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert fedtaste("recommend", tmp_path / "run", "--person", "7", "--json").code == 0
    rows = new.read_text().splitlines()[1:]
    old.write_text(old.read_text() + "\n".join(rows) + "\n")
    grown = fedtaste("recommend", tmp_path / "run", "--person", "7", "--json")
    assert grown.code == 0 and len(grown.json["from"]) >= len(before["from"])
    old.unlink()
    assert fedtaste("recommend", tmp_path / "model", "--person", "7", "--json").json == before
