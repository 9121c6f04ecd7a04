"""Files and folders that people bring, good and bad."""

from __future__ import annotations

import gzip
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter

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

GOOD = "user,item,rating,timestamp\nb,10,3,100\na,9,4.5,50\nb,9,1,200\n"
ARRAYS, NAMES = ("person", "item", "value", "time"), ("name", "people", "items", "titles", "genres")


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def same(a: Interactions, b: Interactions) -> bool:
    for key in ARRAYS:
        one, two = getattr(a, key), getattr(b, key)
        if one is None or two is None:
            if one is not two:
                return False
        elif one.dtype != two.dtype or not np.array_equal(one, two):
            return False
    return all(getattr(a, key) == getattr(b, key) for key in NAMES)


def test_csv(tmp_path):
    data = load(str(write(tmp_path / "mine.csv", GOOD)))
    assert isinstance(data, Interactions)
    assert (data.name, data.people, data.items, data.titles) == ("mine", ("a", "b"), ("9", "10"), ("9", "10"))
    assert data.person.tolist() == [1, 0, 1] and data.item.tolist() == [1, 0, 0]
    assert data.value.tolist() == [3, 4.5, 1] and data.time.tolist() == [100, 50, 200]
    assert (data.person.dtype, data.item.dtype, data.value.dtype, data.time.dtype) == ("i4", "i4", "f4", "f8")
    assert data.notes == () and data.genres == ()


def frame(text: str) -> pl.DataFrame:
    return pl.read_csv(text.encode(), schema_overrides={"item": pl.String})


@pytest.mark.parametrize("kind", ["tsv", "semicolon", "gzip", "parquet", "crlf", "bom", "blank", "inter", "headings"])
def test_other_spellings_of_the_same(tmp_path, kind):
    expected = read_interactions(write(tmp_path / "x.csv", GOOD))
    path = tmp_path / "again" / "x.csv"
    path.parent.mkdir()
    if kind == "tsv":
        path = write(path.with_suffix(".tsv"), GOOD.replace(",", "\t"))
    elif kind == "semicolon":
        write(path, GOOD.replace(",", ";"))
    elif kind == "gzip":
        path = write(path.with_suffix(".csv.gz"), gzip.compress(GOOD.encode()))
    elif kind == "parquet":
        path = path.with_suffix(".parquet")
        frame(GOOD).write_parquet(path)
    elif kind == "crlf":
        write(path, GOOD.replace("\n", "\r\n"))
    elif kind == "bom":
        write(path, b"\xef\xbb\xbf" + GOOD.encode())
    elif kind == "blank":
        write(path, GOOD.replace("\n", "\n\n") + "\n\n")
    elif kind == "inter":
        header = "user_id:token,item_id:token,rating:float,timestamp:float"
        path = write(path.with_suffix(".inter"), GOOD.replace(GOOD.split("\n")[0], header).replace(",", "\t"))
    else:
        write(path, GOOD.replace(GOOD.split("\n")[0], " userId,Movie ID,VALUE,ts"))
    assert same(expected, read_interactions(path))


def test_names_are_text(tmp_path):
    data = read_interactions(write(tmp_path / "x.csv", "user,item\n007,a b\n7,NA\n007,null\n10,1.0\n"))
    assert data.people == ("007", "7", "10")
    assert data.items == ("1.0", "NA", "a b", "null")
    assert data.value is None and data.time is None


def test_vocabularies_sort_numbers_as_numbers(tmp_path):
    names = ["12345678901234567890123", "2", "10", "0", "02"]
    data = read_interactions(write(tmp_path / "x.csv", "user,item\n" + "".join(f"{n},{n}x\n" for n in names)))
    assert data.people == ("0", "02", "2", "10", "12345678901234567890123")
    assert data.items == tuple(sorted(f"{n}x" for n in names))


def test_parquet_numbers_beside_gaps_are_names_without_fractions(tmp_path):
    columns = {"user": [1.0, 2.0], "item": [10**15, 3], "timestamp": [float("nan")] * 2, "genre": [["a", "b"], []]}
    pl.DataFrame(columns).write_parquet(tmp_path / "x.parquet")
    data = read_interactions(tmp_path / "x.parquet")
    assert data.people == ("1", "2") and data.items == ("3", str(10**15)) and data.time is None
    assert data.genres == ("", "a, b")


def test_titles_and_unused_columns(tmp_path):
    text = 'user,item,title,price\n1,5,,3\n1,6,"Story, The ""Long"" One",3\n2,5,Fifth,3\n2,7,,3\n'
    data = read_interactions(write(tmp_path / "x.csv", text))
    assert data.titles == ("Fifth", 'Story, The "Long" One', "7")
    assert data.notes == ("Columns not used: price.",)


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
def test_times(tmp_path, text, expected):
    data = read_interactions(write(tmp_path / "x.csv", f"user,item,timestamp\n1,2,{text}\n2,2,{text}\n"))
    assert data.time.tolist() == [expected, expected]


def test_times_of_parquet(tmp_path):
    moments = [datetime(1997, 12, 4, 15, 55, 49, tzinfo=UTC), datetime(1970, 1, 1, tzinfo=UTC)]
    pl.DataFrame({"user": [1, 2], "item": [1, 1], "date": moments}).write_parquet(tmp_path / "x.parquet")
    assert read_interactions(tmp_path / "x.parquet").time.tolist() == [SECONDS, 0]


def test_empty_optional_columns_are_no_columns(tmp_path):
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
def test_duplicates_rule(tmp_path, rows, timed):
    kept = {}  # pair -> (time, row)
    for row, (user, item, time) in enumerate(rows):
        kept[user, item] = max(kept.get((user, item), (0, 0)), (time if timed else 0, row))
    lines = [f"{user},{item},{row}" + (f",{time}" if timed else "") for row, (user, item, time) in enumerate(rows)]
    header = "user,item,rating" + (",timestamp" if timed else "")
    data = read_interactions(write(tmp_path / "x.csv", "\n".join([header, *lines])))
    assert data.value.tolist() == sorted(row for _, row in kept.values())
    assert bool(data.notes) == (len(kept) < len(rows))


# Titles lose characters that steer a terminal, which has its own test.
NAME = st.text(st.characters(exclude_categories=("Cs", "Cc", "Cf"), include_characters='",;'), min_size=1, max_size=6)
NAME = NAME.map(lambda name: f"n{name}")  # digits alone are sorted as numbers, which has its own test


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    pairs=st.sets(st.tuples(NAME, NAME), min_size=1, max_size=15).map(sorted),
    numbered=st.booleans(),
    rated=st.booleans(),
    timed=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
    ending=st.sampled_from(["parquet", "csv", "csv.gz"]),
)
def test_saved_data_come_back(tmp_path, pairs, numbered, rated, timed, seed, ending):
    rng = np.random.default_rng(seed)
    people, items = (sorted({pair[side] for pair in pairs}) for side in (0, 1))
    person = np.array([people.index(user) for user, _ in pairs], np.int32)
    item = np.array([items.index(name) for _, name in pairs], np.int32)
    data = Interactions(
        name="kept",
        person=person,
        item=item,
        people=tuple(str(i + 5) for i in range(len(people))) if numbered else tuple(people),
        items=tuple(items),
        value=rng.standard_normal(len(pairs)).astype(np.float32) if rated else None,
        time=rng.standard_normal(len(pairs)) * 10.0 ** rng.integers(-5, 12) if timed else None,
        titles=tuple(f'"{name}", or so' for name in items) if seed % 2 else (),
        genres=tuple("A, B" if i % 2 else "" for i in range(len(items))) if seed % 3 == 0 else (),
    )
    path = tmp_path / f"kept.{ending}"
    save(data, path)
    assert same(data, read_interactions(path))


def test_titles_cannot_steer_a_terminal(tmp_path):
    path = write(tmp_path / "x.csv", "user,item,title\na,1,\x1b[31mRed\u202e film\nb,2,Plain")
    assert read_interactions(path).titles == ("[31mRed film", "Plain")


def test_save_leaves_the_old_file_when_it_fails(tmp_path, monkeypatch):
    data = read_interactions(write(tmp_path / "x.csv", GOOD))

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(DataError, match="x.csv cannot be written.*No space.*another folder"):
        save(data, tmp_path / "x.csv")
    assert (tmp_path / "x.csv").read_text() == GOOD and len(list(tmp_path.iterdir())) == 1
    with pytest.raises(DataError, match=r"x.json .*\.parquet, \.csv"):
        save(data, tmp_path / "x.json")


BAD = {
    "missing column": ("item,rating\n1,2\n", ["no column user", "Got: item, rating", "Expected: user and item"]),
    "misnamed column": ("usr,item\n1,2\n", ["no column user", 'mean user by "usr"', "Rename"]),
    "misnamed optional": ("user,item,raiting\n1,2,3\n", ['"raiting"', "mean rating", "Rename"]),
    "misnamed time": ("user,item,timestmp\n1,2,3\n", ['"timestmp"', "mean timestamp", "Rename"]),
    "no header": ("196\t242\t3\t881250949\n", ["no column user", "Got: 196, 242", "first line"]),
    "empty": ("", ["is empty", "user,item"]),
    "blank": ("\n\n", ["is empty"]),
    "header only": ("user,item\n", ["no rows", "one row per interaction"]),
    "text rating": ("user,item,rating\n1,2,3\n1,3,good\n1,4,bad\n", ["column rating", "lines 3, 4", '"good"', "3.5"]),
    "nan": ("user,item,rating\n1,2,3\n1,3,NaN\n", ["column rating", "line 3", "NaN", "finite", "remove the row"]),
    "infinite": ("user,item,value\n1,2,inf\n1,3,1\n", ["column value", "line 2", "inf", "finite"]),
    "too large": ("user,item,rating\n1,2,1e39\n", ["column rating", "line 2", "1e39", "finite"]),
    "rating gap": ("user,item,rating\n1,2,3\n1,3,\n", ["column rating", "line 3", "missing", "Fill it in"]),
    "user gap": ("user,item\n1,2\n,3\n ,4\n", ["column user", "lines 3, 4", "missing", "remove the row"]),
    "item gap": ("userId,movieId\n1,2\n3,\n", ["column movieId", "line 3", "missing"]),
    "time gap": ("user,item,ts\n" + "1,2,\n" * 5 + "1,3,4\n", ["column ts", "lines 2, 3, 4 and 2 more", "missing"]),
    "text time": ("user,item,time\n1,2,3\n1,3,soon\n", ["column time", "line 3", '"soon"', "seconds such as"]),
    "wrong date": ("user,item,date\n1,2,2020-01-01\n1,3,2020-02-31\n", ["column date", "line 3", "2020-02-31"]),
    "infinite time": ("user,item,ts\n1,2,inf\n", ["column ts", "line 2", "inf"]),
    "too many fields": ("user,item\n1,2\n1,2,3\n", ["line 3", "3 fields", "header has 2", "quotes"]),
    "stray quote": ('user,item\n"c"d,4\n', ["not a CSV file that can be read", "Write it again"]),
    "latin-1": ("user,item\né,1\n".encode("latin-1"), ["not a CSV file", "UTF-8"]),
    "binary": (b"\x89PNG\0\0\0\rIHDR\n\0\1", ["not a text file", "UTF-8"]),
    "utf-16": ("user,item\n1,2\n".encode("utf-16"), ["not a text file", "UTF-8"]),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_csv(tmp_path, case):
    content, parts = BAD[case]
    path = write(tmp_path / "mine.csv", content)
    with pytest.raises(DataError) as caught:
        load(str(path))
    message = str(caught.value)
    assert "mine.csv" in message
    assert all(part in message for part in parts), message


def test_bad_files(tmp_path):
    packed = gzip.compress(GOOD.encode() * 50)
    cases = [
        ("torn.csv.gz", packed[:-20], "torn.csv.gz is a damaged gzip.*again"),
        ("flip.csv.gz", packed[:-8] + b"abcd" + packed[-4:], "flip.csv.gz is a damaged gzip.*again"),
        ("plain.csv.gz", GOOD.encode(), "plain.csv.gz is not a gzip file.*Rename"),
        ("void.csv.gz", gzip.compress(b""), "void.csv.gz is empty"),
        ("torn.parquet", b"PAR1nonsensePAR1", "torn.parquet is not a Parquet file.*again"),
        ("void.parquet", b"", "void.parquet is not a Parquet file"),
    ]
    for name, content, expected in cases:
        with pytest.raises(DataError, match=expected):
            read_interactions(write(tmp_path / name, content))
    with pytest.raises(DataError, match="gone.csv cannot be read.*Check the path"):
        read_interactions(tmp_path / "gone.csv")
    with pytest.raises(DataError, match="gone.parquet cannot be read.*Check the path"):
        read_interactions(tmp_path / "gone.parquet")


def test_bad_parquet_values_are_named_by_row(tmp_path):
    path = tmp_path / "x.parquet"
    pl.DataFrame({"user": [1, 2], "item": [1, 2], "rating": [1.0, float("nan")]}).write_parquet(path)
    with pytest.raises(DataError, match='column rating, row 2: "nan" is not a finite'):
        read_interactions(path)
    pl.DataFrame({"user": [1, 2], "item": [1, 2], "rating": [[1], [2]]}).write_parquet(path)
    with pytest.raises(DataError, match="column rating, rows 1, 2: a value of type List.* is not a number"):
        read_interactions(path)
    pl.DataFrame({"user": [{"a": 1}], "item": [1]}).write_parquet(path)
    with pytest.raises(DataError, match="not a Parquet file that can be read"):
        read_interactions(path)
    pl.DataFrame({"user": [1], "item": [2]}).clear().write_parquet(path)
    with pytest.raises(DataError, match="no rows"):
        read_interactions(path)


def split_folder(folder: Path, **files: str) -> Path:
    texts = {
        "train": "user,item,rating,timestamp\n1,10,4,1\n1,20,3,2\n2,10,5,1\n",
        "test": "user,item,rating,timestamp\n1,30,4,3\n3,20,1,9\n",
        **files,
    }
    for part, text in texts.items():
        write(folder / f"{part}.csv", text)
    return folder


def test_a_split_of_ones_own(tmp_path):
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


def test_a_split_with_two_files(tmp_path):
    split = read_split(split_folder(tmp_path))
    assert split.valid is None and split.negatives is None and len(split.train) == 3 and len(split.test) == 2


def test_a_split_may_be_parquet_or_packed(tmp_path):
    split_folder(tmp_path)
    expected = read_split(tmp_path)
    pl.read_csv(tmp_path / "train.csv").write_parquet(tmp_path / "train.parquet")
    write(tmp_path / "test.csv.gz", gzip.compress((tmp_path / "test.csv").read_bytes()))
    with pytest.raises(DataError, match=r"train\.csv and train\.parquet.*Expected one file"):
        read_split(tmp_path)
    (tmp_path / "train.csv").unlink()
    (tmp_path / "test.csv").unlink()
    again = read_split(tmp_path)
    assert same(expected.train, again.train) and same(expected.test, again.test)


def test_a_split_that_tests_on_its_training_pairs_says_so(tmp_path):
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
def test_bad_splits(tmp_path, files, parts):
    with pytest.raises(DataError) as caught:
        read_split(split_folder(tmp_path, **files))
    assert all(part in str(caught.value) for part in parts), str(caught.value)


def test_folders_that_are_no_split(tmp_path):
    with pytest.raises(DataError, match=r"no train\.csv.*no files.*Expected train\.csv and test\.csv.*Add"):
        load(str(tmp_path))
    write(tmp_path / "train.csv", GOOD)
    with pytest.raises(DataError, match=r"no test\.csv. It has: train\.csv"):
        load(str(tmp_path))


def test_import_has_no_loop_over_rows(tmp_path):
    """A million rows in a few seconds; a loop in Python would need several times that."""
    rng = np.random.default_rng(0)
    n = 1_000_000
    people, items = rng.integers(50_000, size=n), rng.integers(9_000, size=n)
    table = pl.DataFrame({"user": people, "item": items, "timestamp": np.arange(n)})
    table.write_csv(tmp_path / "big.csv")
    start = perf_counter()
    data = read_interactions(tmp_path / "big.csv")
    assert perf_counter() - start < 8
    assert len(data) == table.select("user", "item").n_unique()
