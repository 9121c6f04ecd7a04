"""Interaction files and split folders of users: formats that are read, and errors about broken files."""

from __future__ import annotations

import gzip
import io
from datetime import UTC, datetime
from pathlib import Path
from subprocess import CompletedProcess
from time import process_time

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedtaste.data.interactions import Interactions
from fedtaste.data.sources import load
from fedtaste.data.user_files import UserSplit, read_interactions, read_split, save
from fedtaste.errors import DataError
from fedtaste.tasks.ranking import split_for_ranking
from fedtaste.tasks.ratings import split_for_ratings
from support.errors import raises_with
from support.files import same_interactions

GOOD = "user,item,rating,timestamp\nb,10,3,100\na,9,4.5,50\nb,9,1,200\n"


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def same(a: Interactions, b: Interactions) -> bool:
    return a.name == b.name and same_interactions(a, b)


def test_csv_is_read(tmp_path):
    data = load(str(write(tmp_path / "mine.csv", GOOD)))
    assert isinstance(data, Interactions)
    assert (data.name, data.people, data.items, data.titles) == ("mine", ("a", "b"), ("9", "10"), ("9", "10"))
    assert data.person.tolist() == [1, 0, 1] and data.item.tolist() == [1, 0, 0]
    assert data.value.tolist() == [3, 4.5, 1] and data.time.tolist() == [100, 50, 200]
    assert (data.person.dtype, data.item.dtype, data.value.dtype, data.time.dtype) == ("i4", "i4", "f4", "f8")
    assert data.notes == () and data.genres == ()


def parquet(text: str) -> bytes:
    buffer = io.BytesIO()
    pl.read_csv(text.encode(), schema_overrides={"item": pl.String}).write_parquet(buffer)
    return buffer.getvalue()


ROWS = GOOD.partition("\n")[2]
FORMATS = {
    "tsv": ("x.tsv", GOOD.replace(",", "\t")),
    "semicolon": ("x.csv", GOOD.replace(",", ";")),
    "gzip": ("x.csv.gz", gzip.compress(GOOD.encode())),
    "parquet": ("x.parquet", parquet(GOOD)),
    "crlf": ("x.csv", GOOD.replace("\n", "\r\n")),
    "bom": ("x.csv", b"\xef\xbb\xbf" + GOOD.encode()),
    "blank": ("x.csv", GOOD.replace("\n", "\n\n") + "\n\n"),
    "inter": ("x.inter", f"user_id:token,item_id:token,rating:float,timestamp:float\n{ROWS}".replace(",", "\t")),
    "headings": ("x.csv", f" userId,Movie ID,VALUE,ts\n{ROWS}"),
}


@pytest.mark.parametrize(("name", "content"), FORMATS.values(), ids=FORMATS)
def test_other_formats_and_headers_give_the_same_data(tmp_path, name, content):
    expected = read_interactions(write(tmp_path / "x.csv", GOOD))
    (tmp_path / "again").mkdir()
    assert same(expected, read_interactions(write(tmp_path / "again" / name, content)))


def test_names_are_read_as_text(tmp_path):
    data = read_interactions(write(tmp_path / "x.csv", "user,item\n007,a b\n7,NA\n007,null\n10,1.0\n"))
    assert data.people == ("007", "7", "10")
    assert data.items == ("1.0", "NA", "a b", "null")
    assert data.value is None and data.time is None


def test_vocabularies_sort_numbers_as_numbers(tmp_path):
    names = ["12345678901234567890123", "2", "10", "0", "02"]
    data = read_interactions(write(tmp_path / "x.csv", "user,item\n" + "".join(f"{n},{n}x\n" for n in names)))
    assert data.people == ("0", "02", "2", "10", "12345678901234567890123")
    assert data.items == tuple(sorted(f"{n}x" for n in names))


def test_whole_numbers_of_parquet_become_names_without_fractions(tmp_path):
    columns = {"user": [1.0, 2.0], "item": [10**15, 3], "timestamp": [float("nan")] * 2, "genre": [["a", "b"], []]}
    pl.DataFrame(columns).write_parquet(tmp_path / "x.parquet")
    data = read_interactions(tmp_path / "x.parquet")
    assert data.people == ("1", "2") and data.items == ("3", str(10**15)) and data.time is None
    assert data.genres == ("", "a, b")


def test_titles_are_read_and_unused_columns_noted(tmp_path):
    text = 'user,item,title,price\n1,5,,3\n1,6,"Story, The ""Long"" One",3\n2,5,Fifth,3\n2,7,,3\n'
    data = read_interactions(write(tmp_path / "x.csv", text))
    assert data.titles == ("Fifth", 'Story, The "Long" One', "7")
    assert data.notes == ("Columns not used: price.",)


@pytest.mark.parametrize(("column", "role"), [("raiting", "rating"), ("timestmp", "time")])
def test_a_column_that_resembles_an_optional_one_is_noted(tmp_path, column, role):
    data = read_interactions(write(tmp_path / "x.csv", f"user,item,{column}\n1,5,3\n2,6,4\n"))
    assert data.value is None and data.time is None
    assert data.notes == (f"Columns not used: {column} (if it is the {role}: --columns {role}={column}).",)


SECONDS = datetime(1997, 12, 4, 15, 55, 49, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("881250949", SECONDS), (" 881250949.5 ", SECONDS + 0.5), ("8.81250949e8", SECONDS),
        ("1997-12-04T15:55:49", SECONDS), ("1997-12-04 15:55:49.25", SECONDS + 0.25), ("1997-12-04T15:55:49Z", SECONDS),
        ("1997-12-04T17:55:49+02:00", SECONDS), ("1997-12-04T10:55:49-0500", SECONDS),
        ("1997-12-04 15:55", SECONDS - 49), ("1997-12-04", SECONDS - 49 - 55 * 60 - 15 * 3600),
    ],
)  # fmt: skip
def test_times_are_read_as_seconds(tmp_path, text, expected):
    data = read_interactions(write(tmp_path / "x.csv", f"user,item,timestamp\n1,2,{text}\n2,2,{text}\n"))
    assert data.time.tolist() == [expected, expected]


def test_times_of_parquet_are_read_as_seconds(tmp_path):
    moments = [datetime(1997, 12, 4, 15, 55, 49, tzinfo=UTC), datetime(1970, 1, 1, tzinfo=UTC)]
    pl.DataFrame({"user": [1, 2], "item": [1, 1], "date": moments}).write_parquet(tmp_path / "x.parquet")
    assert read_interactions(tmp_path / "x.parquet").time.tolist() == [SECONDS, 0]


def test_empty_optional_columns_are_ignored(tmp_path):
    data = read_interactions(write(tmp_path / "x.csv", "user,item,rating,timestamp\n1,2,,\n2,2,, \n"))
    assert data.value is None and data.time is None


def test_duplicates_keep_the_newest(tmp_path):
    text = "user,item,rating,timestamp\n1,1,1,30\n1,2,2,10\n1,1,3,40\n1,1,4,20\n2,1,5,10\n2,1,6,10\n"
    data = read_interactions(write(tmp_path / "x.csv", text))
    assert list(zip(data.person, data.item, data.value)) == [(0, 1, 2), (0, 0, 3), (1, 0, 6)]
    assert data.notes == ("2 duplicate pairs: the newest of each was kept.",)
    data = read_interactions(write(tmp_path / "x.csv", "user,item,rating\n1,1,1\n1,2,2\n1,1,3\n"))
    assert data.value.tolist() == [2, 3] and data.notes == ("1 duplicate pair: the last row of each was kept.",)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 4)), min_size=1, max_size=40),
    timed=st.booleans(),
)
def test_of_duplicates_the_newest_and_then_the_last_row_is_kept(tmp_path, rows, timed):
    kept = {}  # pair -> (time, row)
    for row, (user, item, time) in enumerate(rows):
        kept[user, item] = max(kept.get((user, item), (0, 0)), (time if timed else 0, row))
    lines = [f"{user},{item},{row}" + (f",{time}" if timed else "") for row, (user, item, time) in enumerate(rows)]
    header = "user,item,rating" + (",timestamp" if timed else "")
    data = read_interactions(write(tmp_path / "x.csv", "\n".join([header, *lines])))
    assert data.value.tolist() == sorted(row for _, row in kept.values())
    assert bool(data.notes) == (len(kept) < len(rows))


# Control characters are removed from titles, and digits are sorted as numbers: both have tests of their own.
NAME = st.text(st.characters(exclude_categories=("Cs", "Cc", "Cf"), include_characters='",;'), min_size=1, max_size=6)
NAME = NAME.map(lambda name: f"n{name}")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    pairs=st.sets(st.tuples(NAME, NAME), min_size=1, max_size=15).map(sorted),
    numbered=st.booleans(),
    rated=st.booleans(),
    timed=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
    ending=st.sampled_from(["parquet", "csv", "csv.gz"]),
)
def test_saved_data_are_read_unchanged(tmp_path, pairs, numbered, rated, timed, seed, ending):
    rng = np.random.default_rng(seed)
    people, items = (sorted({pair[side] for pair in pairs}) for side in (0, 1))
    person = np.array([people.index(user) for user, _ in pairs], np.int32)
    item = np.array([items.index(name) for _, name in pairs], np.int32)
    data = Interactions(
        name="saved",
        person=person,
        item=item,
        people=tuple(str(i + 5) for i in range(len(people))) if numbered else tuple(people),
        items=tuple(items),
        value=rng.standard_normal(len(pairs)).astype(np.float32) if rated else None,
        time=rng.standard_normal(len(pairs)) * 10.0 ** rng.integers(-5, 10) if timed else None,
        titles=tuple(f'"{name}", or so' for name in items) if seed % 2 else (),
        genres=tuple("A, B" if i % 2 else "" for i in range(len(items))) if seed % 3 == 0 else (),
    )
    path = tmp_path / f"saved.{ending}"
    save(data, path)
    with pytest.MonkeyPatch.context() as patch:  # a trial process for every Parquet file; test_decoders.py is about it
        patch.setattr("fedtaste.data.formats.subprocess.run", lambda *_, **__: CompletedProcess([], 0))
        assert same(data, read_interactions(path))


def test_control_characters_are_removed_from_titles(tmp_path):
    path = write(tmp_path / "x.csv", "user,item,title\na,1,\x1b[31mRed\u202e film\nb,2,Plain")
    assert read_interactions(path).titles == ("[31mRed film", "Plain")


def test_save_leaves_the_old_file_when_it_fails(tmp_path, monkeypatch):
    data = read_interactions(write(tmp_path / "x.csv", GOOD))

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with raises_with(DataError, "x.csv", "No space", "another folder"):
        save(data, tmp_path / "x.csv")
    assert (tmp_path / "x.csv").read_text() == GOOD and len(list(tmp_path.iterdir())) == 1
    with raises_with(DataError, "x.json", ".parquet, .csv"):
        save(data, tmp_path / "x.json")


BAD = {
    "missing column": ("item,rating\n1,2\n", ["no column user", "Got: item, rating", "Expected: user and item"]),
    "misnamed column": ("usr,item\n1,2\n", ["no column user", 'Is "usr" the user column?', "--columns user=usr"]),
    "no header": ("196\t242\t3\t881250949\n", ["no column user", "Got: 196, 242", "first line"]),
    "empty": ("", ["is empty", "user,item"]),
    "blank": ("\n\n", ["is empty"]),
    "header only": ("user,item\n", ["no rows", "one row per interaction"]),
    "text rating": ("user,item,rating\n1,2,3\n1,3,good\n1,4,bad\n", ["column rating", "lines 3, 4", '"good"', "3.5"]),
    "nan": ("user,item,rating\n1,2,3\n1,3,NaN\n", ["column rating", "line 3", "NaN", "finite", "remove the row"]),
    "infinite": ("user,item,value\n1,2,inf\n1,3,1\n", ["column value", "line 2", "inf", "finite"]),
    "too large": ("user,item,rating\n1,2,1e39\n", ["column rating", "line 2", "1e39", "too large"]),
    "rating gap": ("user,item,rating\n1,2,3\n1,3,\n", ["column rating", "line 3", "missing", "Fill it in"]),
    "user gap": ("user,item\n1,2\n,3\n ,4\n", ["column user", "lines 3, 4", "missing", "remove the row"]),
    "item gap": ("userId,movieId\n1,2\n3,\n", ["column movieId", "line 3", "missing"]),
    "time gap": ("user,item,ts\n" + "1,2,\n" * 5 + "1,3,4\n", ["column ts", "lines 2, 3, 4 and 2 more", "missing"]),
    "text time": ("user,item,time\n1,2,3\n1,3,soon\n", ["column time", "line 3", '"soon"', "seconds such as"]),
    "wrong date": ("user,item,date\n1,2,2020-01-01\n1,3,2020-02-31\n", ["column date", "line 3", "2020-02-31"]),
    "infinite time": ("user,item,ts\n1,2,inf\n", ["column ts", "line 2", "inf"]),
    "too many fields": ("user,item\n1,2\n1,2,3\n", ["line 3", "3 fields", "header has 2", "quotes"]),
    "stray quote": ('user,item\n"c"d,4\n', ["not a CSV file that can be read", "Write it again"]),
    "latin-1": ("user,item\né,1\n".encode("latin-1"), ["line 2", "UTF-8", "iconv"]),
    "binary": (b"\x89PNG\0\0\0\rIHDR\n\0\1", ["not a text file", "UTF-8"]),
    "utf-16": ("user,item\n1,2\n".encode("utf-16"), ["not a text file", "UTF-8"]),
}


@pytest.mark.parametrize(("content", "parts"), BAD.values(), ids=BAD)
def test_a_bad_csv_is_refused_with_file_and_place(tmp_path, content, parts):
    path = write(tmp_path / "mine.csv", content)
    with raises_with(DataError, "mine.csv", *parts):
        load(str(path))


PACKED = gzip.compress(GOOD.encode() * 50)


@pytest.mark.parametrize(
    ("name", "content", "parts"),
    [
        ("torn.csv.gz", PACKED[:-20], ["damaged gzip", "again"]),
        ("flip.csv.gz", PACKED[:-8] + b"abcd" + PACKED[-4:], ["damaged gzip", "again"]),
        ("plain.csv.gz", GOOD.encode(), ["not a gzip file", "Rename"]),
        ("void.csv.gz", gzip.compress(b""), ["is empty"]),
        ("torn.parquet", b"PAR1nonsensePAR1", ["not a Parquet file", "again"]),
        ("void.parquet", b"", ["not a Parquet file"]),
        ("gone.csv", None, ["cannot be read", "Check the path"]),
        ("gone.parquet", None, ["cannot be read", "Check the path"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_damaged_or_missing_file_is_refused(tmp_path, name, content, parts):
    if content is not None:
        write(tmp_path / name, content)
    with raises_with(DataError, name, *parts):
        read_interactions(tmp_path / name)


@pytest.mark.parametrize(
    ("columns", "parts"),
    [
        (
            {"user": [1, 2], "item": [1, 2], "rating": [1.0, float("nan")]},
            ["column rating, row 2", "missing", "--drop-missing"],
        ),
        ({"user": [1, 2], "item": [1, 2], "rating": [1.0, float("inf")]}, ["column rating, row 2", "inf", "finite"]),
        ({"user": [1, 2], "item": [1, 2], "rating": [[1], [2]]}, ["column rating, rows 1, 2", "List", "not a number"]),
        ({"user": [{"a": 1}], "item": [1]}, ["column user", "Struct", "cannot be read as text"]),
        ({"user": [], "item": []}, ["no rows"]),
    ],
)
def test_bad_parquet_values_are_named_by_row(tmp_path, columns, parts):
    pl.DataFrame(columns).write_parquet(tmp_path / "x.parquet")
    with raises_with(DataError, *parts):
        read_interactions(tmp_path / "x.parquet")


def split_folder(folder: Path, **files: str) -> Path:
    texts = {
        "train": "user,item,rating,timestamp\n1,10,4,1\n1,20,3,2\n2,10,5,1\n",
        "test": "user,item,rating,timestamp\n1,30,4,3\n3,20,1,9\n",
        **files,
    }
    for part, text in texts.items():
        write(folder / f"{part}.csv", text)
    return folder


def test_a_split_folder_with_all_parts_is_read(tmp_path):
    folder = split_folder(
        tmp_path,
        valid="user,item\n2,20\n",
        negatives="user,item\n3,50\n1,40\n1,10\n",
        items="item,title,genres\n10,Ten,Drama\n60,Sixty,\n",
    )
    split = load(str(folder))
    assert isinstance(split, UserSplit) and split.name == tmp_path.name
    for part in (split.train, split.valid, split.test):
        assert part.people == ("1", "2", "3") and part.items == ("10", "20", "30", "40", "50", "60")
        assert part.titles == ("Ten", "20", "30", "40", "50", "Sixty")
        assert part.genres == ("Drama", "", "", "", "", "")
    assert list(zip(split.train.person, split.train.item)) == [(0, 0), (0, 1), (1, 0)]
    assert list(zip(split.test.person, split.test.item)) == [(0, 2), (2, 1)]
    assert list(zip(split.valid.person, split.valid.item)) == [(1, 1)]
    assert split.valid.value is None and split.test.value.tolist() == [4, 1]
    assert [split.negatives.of(person).tolist() for person in range(3)] == [[3, 0], [], [4]]
    assert split.notes == ()


def test_a_split_folder_needs_only_train_and_test(tmp_path):
    split = read_split(split_folder(tmp_path))
    assert split.valid is None and split.negatives is None and len(split.train) == 3 and len(split.test) == 2


def test_a_split_folder_may_hold_parquet_and_gzip(tmp_path):
    split_folder(tmp_path)
    expected = read_split(tmp_path)
    pl.read_csv(tmp_path / "train.csv").write_parquet(tmp_path / "train.parquet")
    write(tmp_path / "test.csv.gz", gzip.compress((tmp_path / "test.csv").read_bytes()))
    with raises_with(DataError, "train.csv and train.parquet", "one file"):
        read_split(tmp_path)
    (tmp_path / "train.csv").unlink()
    (tmp_path / "test.csv").unlink()
    again = read_split(tmp_path)
    assert same(expected.train, again.train) and same(expected.test, again.test)


def test_test_pairs_that_are_also_in_train_are_noted(tmp_path):
    split = read_split(split_folder(tmp_path, test="user,item\n1,10\n1,30\n1,30\n"))
    assert split.notes[0].endswith("/test: 1 duplicate pair: the last row of each was kept.")
    assert split.notes[1] == "1 test pair also in train: results will be too good."


def test_every_task_reports_the_notes_of_a_split_once(tmp_path):
    train = "user,item,rating,timestamp\n1,10,4,1\n1,10,3,2\n1,30,3,2\n2,10,5,1\n"
    split = read_split(split_folder(tmp_path, train=train))
    assert len(split.notes) == 2
    for data in (split_for_ranking(split, "clean", "leave-one-out", 0), split_for_ratings(split, 0)):
        assert data.notes[:2] == split.notes and not any("duplicate" in note for note in data.notes[2:])


@pytest.mark.parametrize(
    ("files", "parts"),
    [
        ({"negatives": "user,item\n1,10\n9,10\n"}, ["negatives.csv", "column user", "line 3", "9", "remove"]),
        ({"negatives": "user,itm\n1,10\n"}, ["negatives.csv", "no column item", '"itm"']),
        ({"test": "user,item\n"}, ["test.csv", "no rows"]),
        ({"train": ""}, ["train.csv", "is empty"]),
        ({"items": "id,title\n1,One\n"}, ["items.csv", "no column item"]),
        ({"items": "item,title\n"}, ["items.csv", "one row per item"]),
    ],
)
def test_a_bad_file_of_a_split_is_refused(tmp_path, files, parts):
    split_folder(tmp_path, **files)
    with raises_with(DataError, *parts):
        read_split(tmp_path)


def test_a_folder_without_train_or_test_is_refused(tmp_path):
    with raises_with(DataError, "no train.csv", "no files", "train.csv and test.csv", "Add"):
        load(str(tmp_path))
    write(tmp_path / "train.csv", GOOD)
    with raises_with(DataError, "no test.csv", "train.csv"):
        load(str(tmp_path))


def test_a_million_rows_are_read_in_a_few_seconds(tmp_path):
    """A loop over rows in Python would need several times as long."""
    rng = np.random.default_rng(0)
    n = 1_000_000
    people, items = rng.integers(50_000, size=n), rng.integers(9_000, size=n)
    table = pl.DataFrame({"user": people, "item": items, "timestamp": np.arange(n)})
    table.write_csv(tmp_path / "big.csv")
    start = process_time()
    data = read_interactions(tmp_path / "big.csv")
    assert process_time() - start < 8
    assert len(data) == table.select("user", "item").n_unique()
