"""Large data: linear passes equal plain ones, files in pieces equal files at once, worlds equal what was imported."""

from __future__ import annotations

import errno
import io
import os
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
import torch
from rich.console import Console

from fedtaste import evaluate
from fedtaste.bench import growth
from fedtaste.bench.result import GrowthPoint
from fedtaste.data import pieces, ragged, worlds
from fedtaste.data.interactions import Histories, Interactions, hash_pairs, repeated, starts_of
from fedtaste.data.sampling import DrawnNegatives, distinct_negatives, key_of
from fedtaste.data.sources import load
from fedtaste.data.synthetic import synthetic
from fedtaste.data.user_files import read_interactions, save
from fedtaste.errors import DataError
from fedtaste.evaluation.ranking import rank_items
from fedtaste.evaluation.scoring import full_ranks, top_lists
from fedtaste.experiment import progress_bars
from fedtaste.steps import blocks, listening
from support.command import fedtaste

PEOPLE, ITEMS = 30, 40
COLUMNS = ("person", "item", "value", "time")


def random_table(seed: int = 0, **columns: object) -> Interactions:
    """400 different pairs in random order."""
    rng = np.random.default_rng(seed)
    pairs = rng.permutation(PEOPLE * ITEMS)[:400]
    names = {"people": tuple(map(str, range(PEOPLE))), "items": tuple(map(str, range(ITEMS)))}
    value = rng.integers(1, 6, len(pairs)).astype(np.float32)
    person, item = (pairs // ITEMS).astype(np.int32), (pairs % ITEMS).astype(np.int32)
    return Interactions("mine", person, item, **names, **({"value": value} | columns))


def same_histories(a: Histories, b: Histories) -> bool:
    return all(np.array_equal(getattr(a, n), getattr(b, n)) for n in ("starts", "items", "values"))


# Histories


@pytest.mark.parametrize("times", ["none", "equal", "few", "different"])
@pytest.mark.parametrize("given", [False, True])
def test_histories_are_sorted_as_numpy_sorts(times, given):
    rng = np.random.default_rng(1)
    drawn = {"none": None, "equal": np.zeros(400), "few": rng.integers(0, 4, 400).astype(float)}
    time = drawn.get(times, rng.permutation(400).astype(float))
    ties = rng.integers(0, 1 << 60, 400).astype(np.uint64) if given else None
    data = random_table(time=time, ties=ties)
    keys = hash_pairs(data.person, data.item, 3) if ties is None else ties
    order = np.lexsort((keys, data.person) if time is None else (keys, time, data.person))
    expected = Histories(starts_of(np.bincount(data.person, minlength=PEOPLE)), data.item[order], data.value[order])
    assert same_histories(data.histories(3), expected)


def test_rows_in_order_are_not_copied():
    data = synthetic(20, 30, 200)
    histories = data.histories()
    assert np.shares_memory(histories.items, data.item)
    assert same_histories(histories, data.rows(np.random.default_rng(0).permutation(200)).histories())


def test_operations_on_histories_equal_plain_ones():
    histories = random_table().histories()
    lists = [histories.of(person).tolist() for person in range(PEOPLE)]
    keep = np.random.default_rng(2).random(400) < 0.5
    kept = [[i for i, k in zip(own, keep[histories.starts[p] :]) if k] for p, own in enumerate(lists)]
    half = histories.where(keep)
    assert [half.of(p).tolist() for p in range(PEOPLE)] == kept
    both = histories.then(half)
    assert [both.of(p).tolist() for p in range(PEOPLE)] == [a + b for a, b in zip(lists, kept)]
    assert same_histories(both.distinct(), histories)
    taken = histories.take(np.array([4, 2, 4]))
    assert [taken.of(p).tolist() for p in range(3)] == [lists[4], lists[2], lists[4]]
    assert histories.take(np.arange(PEOPLE)) is histories


def test_a_repeated_value_stays_in_memory_once():
    plain = random_table().histories()
    ones = Histories(plain.starts, plain.items, repeated(1.0, len(plain)))
    keep = np.arange(len(ones)) % 3 == 0
    for part in (ones.where(keep), ones.take(np.array([3, 1])), ones.then(ones.where(keep))):
        assert part.values.strides == (0,)
        assert (part.values == 1).all() and len(part.values) == len(part.items)
    mixed = ones.then(plain)
    assert mixed.values.sum() == len(plain) + plain.values.sum()


def test_negatives_that_are_drawn_for_some_equal_those_of_everybody():
    histories = random_table().histories()
    everybody = distinct_negatives(histories, ITEMS, 9, key_of(0, 2, 0))
    some = distinct_negatives(histories, ITEMS, 9, key_of(0, 2, 0)).take(np.array([7, 3]))
    assert isinstance(everybody, DrawnNegatives)
    assert [some.of(p).tolist() for p in range(2)] == [everybody.of(7).tolist(), everybody.of(3).tolist()]
    assert not any(set(everybody.of(p)) & set(histories.of(p)) for p in range(PEOPLE))


def test_of_a_pair_the_newest_row_is_kept():
    columns = {"person": [0, 1, 0, 0, 1, 0], "item": [1, 0, 1, 0, 0, 1], "time": [5.0, 1.0, 5.0, 2.0, 0.0, 4.0]}
    data = Interactions("mine", np.array(columns["person"], np.int32), np.array(columns["item"], np.int32), ("a", "b"),
                        ("x", "y"), value=np.arange(6, dtype=np.float32), time=np.array(columns["time"]))  # fmt: skip
    newest = data.with_newest_pairs()
    assert newest.value.tolist() == [1.0, 2.0, 3.0]
    assert newest.notes == ("2 duplicate pairs: the newest of each was kept.",)


# Ranks


def test_compiled_ranks_and_lists_equal_plain_ones():
    rng = np.random.default_rng(0)
    scores = torch.from_numpy(rng.integers(0, 12, (PEOPLE, ITEMS)).astype(np.float32))
    scores[3, :5], scores[4] = torch.tensor([torch.nan, torch.inf, -torch.inf, 1.0, 2.0]), torch.nan
    seen = random_table(1).histories()
    positives = Histories(np.arange(PEOPLE + 1) * 2, rng.integers(0, ITEMS, 2 * PEOPLE).astype(np.int32), np.ones(60))
    places = np.array([4, 3, 9, 0])
    ranks, top = [], []
    for row, person in zip(scores[places].numpy(), places):
        clean = np.where(np.isfinite(row), row, -np.inf)
        rival = np.ones(ITEMS, bool)
        rival[seen.of(person)] = rival[positives.of(person)] = False
        ranks += [1 + int((clean[rival] >= clean[item]).sum()) for item in positives.of(person)]
        best = rank_items(clean, seen.of(person))[:30].tolist()
        top.append(best + [-1] * (30 - len(best)))
    assert full_ranks(scores[places], seen, positives, places).tolist() == ranks
    assert top_lists(scores[places], seen, places, 30).tolist() == top


# Files in pieces


def frame_of(users: list[object], more: dict[str, object]) -> pl.DataFrame:
    """20 rows, of which two are of one pair."""
    rng = np.random.default_rng(0)
    pairs = rng.permutation(5 * 7)[:19]
    pairs = np.append(pairs, pairs[3])
    columns = {"user": [users[p] for p in pairs // 7], "item": [int(i) * 10 for i in pairs % 7]}
    return pl.DataFrame(columns | more)


@pytest.fixture
def small_pieces(monkeypatch):
    monkeypatch.setattr(pieces, "LARGE", 0)
    monkeypatch.setattr(pieces, "PIECE", 6)


USERS = {
    "numbers": [4, 11, 3, 200, 7],
    "far apart": [10**15, -5, 3, 9 * 10**17, 44],
    "texts": ["007", "7", "anna", "Zoe", "é"],
    "digits": ["10", "9", "0009", "1", "2"],
}
MORE = {
    "nothing": {},
    "ratings": {"rating": [1, 2, 3, 4, 5] * 4},
    "milliseconds": {"timestamp": [1_500_000_000_000 + 7 * n % 11 for n in range(20)]},
    "first small": {"time": [*range(6), *(1_500_000_000_000_000 + n for n in range(14))]},
    "dates": {"date": pl.Series([f"2020-01-{n % 9 + 1:02}" for n in range(20)]).str.to_date()},
    "titles": {"title": [None, *(f"film {n}" for n in range(19))], "genres": ["War"] * 20, "rating": [0.5] * 20},
    "an empty column": {"rating": pl.Series([None] * 20, dtype=pl.Float64), "other": range(20)},
}


@pytest.mark.parametrize("more", MORE)
@pytest.mark.parametrize("users", USERS)
def test_a_file_in_pieces_equals_the_file_at_once(tmp_path, monkeypatch, users, more, small_pieces):
    path = tmp_path / "mine.parquet"
    frame_of(USERS[users], MORE[more]).write_parquet(path)
    monkeypatch.setattr("fedtaste.data.pieces.require_readable", lambda *_: None)  # a trial takes a second
    assert pieces.Pieces.of(path, (("user", "item"), ("rating",)), pieces.ReadOptions()) is not None
    in_pieces = read_interactions(path)
    monkeypatch.setattr(pieces, "LARGE", 1 << 40)
    monkeypatch.setattr("fedtaste.data.formats.require_readable", lambda *_: None)
    at_once = read_interactions(path)
    for name in (*COLUMNS, "people", "items", "titles", "genres", "notes", "groups"):
        a, b = getattr(in_pieces, name), getattr(at_once, name)
        assert np.array_equal(a, b) if isinstance(b, np.ndarray) else a == b, name


@pytest.mark.parametrize(
    ("more", "where"),
    [
        ({"rating": [1.0] * 9 + [None] + [2.0] * 10}, "row 10: the value is missing"),
        ({"rating": [1.0] * 15 + [float("inf")] + [2.0] * 4}, 'row 16: "inf" is not a finite number'),
        ({"timestamp": [1.0] * 8 + [float("-inf")] * 2 + [2.0] * 10}, "rows 9, 10"),
    ],
)
def test_errors_in_a_piece_name_the_rows_of_the_file(tmp_path, small_pieces, more, where):
    path = tmp_path / "mine.parquet"
    frame_of(USERS["texts"], more).write_parquet(path)
    with pytest.raises(DataError, match=where):
        read_interactions(path)


def test_what_cannot_be_read_in_pieces_is_read_at_once(tmp_path, small_pieces):
    path = tmp_path / "mine.parquet"
    frame_of(USERS["texts"], {"rating": ["3.5"] * 20}).write_parquet(path)
    assert pieces.Pieces.of(path, (("user", "item"), ("rating",)), pieces.ReadOptions()) is None
    assert read_interactions(path).value.tolist() == [3.5] * 19


# Worlds


def same_data(a: Interactions, b: Interactions) -> bool:
    arrays = all(np.array_equal(getattr(a, n), getattr(b, n)) for n in COLUMNS)
    return arrays and all(getattr(a, n) == getattr(b, n) for n in ("name", "people", "items", "titles", "genres"))


def test_a_world_equals_the_data_and_is_mapped(tmp_path):
    data = synthetic(20, 30, 200)
    worlds.save_world(data, tmp_path / "mine.world")
    opened = load(str(tmp_path / "mine.world"))
    assert isinstance(opened, Interactions) and same_data(opened, data)
    assert isinstance(opened.item.base, np.memmap)
    assert same_histories(opened.histories(), data.histories())


def test_a_world_without_ratings_and_times(tmp_path):
    data = random_table(value=None)
    worlds.save_world(data, tmp_path / "mine.world")
    opened = worlds.open_world(tmp_path / "mine.world")
    assert opened.value is None and opened.time is None
    assert same_histories(opened.histories(4), data.histories(4))


@pytest.mark.parametrize("large", [False, True])
def test_import_writes_a_world_and_run_gives_the_same_result(tmp_path, monkeypatch, large):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pieces, "PIECE", 100)
    monkeypatch.setattr(pieces, "LARGE", 0 if large else 1 << 40)
    save(synthetic(30, 40, 400), tmp_path / "mine.parquet")
    assert fedtaste("data", "import", "mine.parquet", "mine.world").code == 0
    assert same_data(load("mine.world"), load("mine.parquet"))
    assert sorted(file.name for file in (tmp_path / "mine.world").iterdir()) == [
        "item.i32", "names.json", "person.i32", "time.f64", "value.f32", "world.json",
    ]  # fmt: skip
    if not large:
        sources = ("mine.parquet", "mine.world")
        results = [fedtaste("run", "--data", s, "--rounds", 1, "--out", s + ".run", "--json").json for s in sources]
        assert results[0]["seen"] == results[1]["seen"] and results[0]["people"] == 30


def test_duplicates_are_removed_from_a_world(tmp_path, small_pieces):
    path = tmp_path / "mine.parquet"
    frame_of(USERS["numbers"], MORE["ratings"]).write_parquet(path)
    data = worlds.import_world(path, tmp_path / "mine.world")
    assert len(data) == 19 and (tmp_path / "mine.world" / "item.i32").stat().st_size == 76
    assert data.notes == ("1 duplicate pair: the last row of each was kept.",)


def test_a_full_disk_is_an_error_and_leaves_nothing(tmp_path, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    save(synthetic(20, 30, 200), tmp_path / "mine.csv")
    monkeypatch.setattr(worlds.os, "posix_fallocate", full)
    fedtaste("data", "import", tmp_path / "mine.csv", tmp_path / "mine.world").refused("has no room for person", "GB")
    assert [file.name for file in tmp_path.iterdir()] == ["mine.csv"]


@pytest.mark.parametrize("damage", ["short", "stranger", "format", "json"])
def test_a_damaged_world_is_refused(tmp_path, damage):
    folder = tmp_path / "mine.world"
    worlds.save_world(synthetic(20, 30, 200), folder)
    if damage == "short":
        os.truncate(folder / "item.i32", 400)
    elif damage == "stranger":
        np.memmap(folder / "item.i32", "<i4", "r+")[7] = 30
    elif damage == "format":
        (folder / "world.json").write_text('{"format": "other"}')
    else:
        (folder / "names.json").write_text("[")
    with pytest.raises(DataError, match="is not a world of this fedtaste"):
        worlds.open_world(folder)


def test_a_world_is_not_written_over(tmp_path):
    worlds.save_world(synthetic(20, 30, 200), tmp_path / "mine.world")
    with pytest.raises(DataError, match="exists already"):
        worlds.save_world(synthetic(20, 30, 200), tmp_path / "mine.world")


# Progress


def test_loading_reports_its_steps(tmp_path, small_pieces):
    path = tmp_path / "mine.parquet"
    frame_of(USERS["numbers"], {}).write_parquet(path)
    reports: list[tuple[str, int, int]] = []
    with listening(lambda *report: reports.append(report)):
        read_interactions(path)
        synthetic(20, 30, 200)
    assert reports[:5] == [("reading names", done, 4) for done in range(5)]
    assert ("reading", 4, 4) in reports and ("generating", 1, 1) in reports


def test_counting_is_bincount():
    numbers = np.random.default_rng(0).integers(0, 9, 100).astype(np.int32)
    assert np.array_equal(ragged.count_numbers(numbers, 12), np.bincount(numbers, minlength=12))


def test_a_step_has_a_bar_on_a_terminal_and_lines_elsewhere(monkeypatch):
    text, clock = io.StringIO(), iter(range(0, 1_000, 6))
    monkeypatch.setattr(progress_bars, "time", SimpleNamespace(monotonic=lambda: float(next(clock))))
    monkeypatch.setattr(progress_bars, "err", Console(file=text, force_interactive=False))
    with progress_bars.Bars():
        for _ in blocks("splitting", range(5)):
            pass
    assert text.getvalue().splitlines() == ["splitting: 40 %", "splitting: 80 %"]
    monkeypatch.setattr(progress_bars, "err", Console(file=io.StringIO(), force_interactive=True))
    with progress_bars.Bars() as bars:
        for part in blocks("splitting", range(5)):
            shown = [task.description for task in bars.progress.tasks]
            assert shown == (["splitting"] if part else [])
        assert not bars.progress.tasks


def test_a_run_reports_splitting_and_evaluating():
    reports: list[tuple[str, int, int]] = []
    with listening(lambda *report: reports.append(report)):
        evaluate("popularity", synthetic(30, 40, 300), rounds=1, new_people=None)
    assert [report[1] for report in reports if report[0] == "splitting"] == [0, 1, 2, 3, 4]
    evaluating = [report[1:] for report in reports if report[0] == "evaluating"]
    assert evaluating[0] == (0, 27) and evaluating[-1] == (3, 3) and {(27, 27), (0, 3)} < set(evaluating)


# Growth


def test_growth_is_measured_and_fitted(monkeypatch, tmp_path):
    monkeypatch.setattr(growth, "SMALLEST", 1_000)
    monkeypatch.setattr(growth, "LARGEST", (10_000,))
    output = fedtaste("bench", "--growth", "--largest", 10_000, "--json").json
    (found,) = output["growth"]
    assert [point["interactions"] for point in found["points"]] == [1_000, 10_000]
    seconds = [point["cpu_seconds"] for point in found["points"]]
    assert found["fit"]["exponent"] == pytest.approx(np.log10(seconds[1] / seconds[0]), abs=0.001)
    assert found["fit"]["r_squared"] == 1
    fedtaste("bench", "--growth", "--largest", 5).refused("--largest must be one of 10000, got 5")
    fedtaste("bench", "--largest", 10_000).refused("--largest", "--growth")
    fedtaste("bench", "--growth", "--method", "fedrap").refused("--growth", "--method")
    fedtaste("bench", "--out", "plot.png").refused("--out", "--peers")
    fedtaste("bench", "--peers", "--force").refused("--force of bench is for --out FILE")
    plot = tmp_path / "plot.png"
    plot.write_text("mine")
    fedtaste("bench", "--peers", "--out", plot).refused("plot.png exists already; choose another --out or add --force")
    assert plot.read_text() == "mine"


def test_an_exponent_of_two_is_found():
    sizes = (10, 100, 1_000)
    points = [GrowthPoint(interactions=n, people=1, items=1, cpu_seconds=3e-6 * n**2) for n in sizes]
    fit = growth.fit_growth(points)
    assert (fit.exponent, fit.r_squared) == (2.0, 1.0)
