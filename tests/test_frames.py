"""Data frames of pandas and polars, and sparse matrices: a table of cases with the documented result or error."""

from __future__ import annotations

import builtins
import contextlib
import datetime as dt
import decimal
import importlib
import io
import re
import shlex
import sys
import uuid
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest
from scipy import sparse

import fedtaste
from fedtaste.data.interactions import Interactions
from fedtaste.data.user_files import read_interactions
from fedtaste.errors import DataError, SettingError
from support.command import fedtaste as fedtaste_command
from support.errors import raises_with
from support.files import same_interactions

LIBRARIES = {"pandas": pd.DataFrame, "polars": pl.DataFrame}
PAIR = {"user": ["a", "b"], "item": ["x", "y"]}
NEW_YEAR = dt.datetime(2020, 1, 1, tzinfo=dt.UTC).timestamp()
DAY = 86_400.0
read = Interactions.from_frame


@pytest.fixture(params=LIBRARIES)
def library(request):
    return request.param


@pytest.fixture
def frame(library):
    return LIBRARIES[library]


# Cases for both libraries: (columns, keywords, what is expected of the attributes)
GOOD = {
    "strings": (PAIR, {}, {"people": ("a", "b"), "items": ("x", "y"), "value": None, "time": None, "notes": ()}),
    "usual names": (
        {"userId": [1, 2], "Movie ID": [5, 6], "score": [1, 2], "ts": [7, 8]},
        {},
        {"people": ("1", "2"), "items": ("5", "6"), "value": [1, 2], "time": [7, 8]},
    ),
    "named columns": (
        {"customer": ["a", "b"], "sku": ["x", "y"], "stars": [4, 5], "when": [2, 1]},
        {"user": "customer", "item": "sku", "rating": "stars", "time": "when"},
        {"people": ("a", "b"), "items": ("x", "y"), "value": [4, 5], "time": [2, 1], "notes": ()},
    ),
    "a named column before a usual one": (
        {**PAIR, "who": ["p", "q"]},
        {"user": "who"},
        {"people": ("p", "q"), "notes": ("Columns not used: user.",)},
    ),
    "a misspelt optional column": (
        {**PAIR, "raiting": [1, 2]},
        {},
        {"value": None, "notes": ('Columns not used: raiting (if it is the rating: rating="raiting").',)},
    ),
    "no ratings wanted": ({**PAIR, "rating": [1, 2]}, {"rating": None}, {"value": None}),
    "leading zeros": (
        {"user": ["007", "7"], "item": ["1.0", "NA"]},
        {},
        {"people": ("007", "7"), "items": ("1.0", "NA")},
    ),
    "64-bit integers": (
        {"user": [2**62 + 1, 2**62 + 2], "item": np.array([2**64 - 1, 2**64 - 2], np.uint64)},
        {},
        {"people": (str(2**62 + 1), str(2**62 + 2)), "items": (str(2**64 - 2), str(2**64 - 1))},
    ),
    "whole floats": ({"user": [1.0, 2.0], "item": [10.5, 2.0]}, {}, {"people": ("1", "2"), "items": ("10.5", "2.0")}),
    "floats beside a gap": (
        {"user": [1.0, None, 2.0], "item": ["x", "y", "z"]},
        {"drop_missing": True},
        {"people": ("1", "2")},
    ),
    "truth values": ({"user": [True, False], "item": ["x", "y"]}, {}, {"people": ("false", "true")}),
    "unicode": (
        {"user": ["Zoë", "Ünal"], "item": ["日本", "☕️"]},
        {},
        {"people": ("Zoë", "Ünal"), "items": ("☕️", "日本")},
    ),
    "dates as names": ({"user": [dt.date(2020, 1, 2)] * 2, "item": ["x", "y"]}, {}, {"people": ("2020-01-02",)}),
    "the newest of duplicates": (
        {"user": ["a", "a", "b"], "item": ["x", "x", "y"], "rating": [1, 2, 3], "time": [9, 5, 1]},
        {},
        {"value": [1, 3], "time": [9, 1], "notes": ("1 duplicate pair: the newest of each was kept.",)},
    ),
    "the last of duplicates": (
        {"user": ["a", "a", "b"], "item": ["x", "x", "y"], "rating": [1, 2, 3]},
        {},
        {"value": [2, 3], "notes": ("1 duplicate pair: the last row of each was kept.",)},
    ),
    "rows with gaps dropped": (
        {
            "user": ["a", None, "c", " ", "e", "f"],
            "item": ["x", "y", None, "z", "v", "w"],
            "rating": [1.0, 2, 3, 4, None, 6],
            "time": [1.0, 2, 3, 4, 5, float("nan")],
        },
        {"drop_missing": True},
        {
            "people": ("a",),
            "items": ("x",),
            "value": [1],
            "time": [1],
            "notes": ("5 rows with missing values left out.",),
        },
    ),
    "a column without values": (
        {**PAIR, "rating": [float("nan")] * 2, "time": [None] * 2},
        {},
        {"value": None, "time": None},
    ),
    "decimal numbers": ({**PAIR, "rating": [decimal.Decimal("3.5"), decimal.Decimal(2)]}, {}, {"value": [3.5, 2]}),
    "decimal commas": ({**PAIR, "rating": ["3,5", "2"]}, {"decimal": ","}, {"value": [3.5, 2]}),
    "moments": ({**PAIR, "time": [dt.datetime(2020, 1, 1), dt.datetime(2020, 1, 2)]}, {}, {"time": [0, DAY]}),
    "moments with a zone": (
        {**PAIR, "time": [dt.datetime(2020, 1, 1, 2, tzinfo=dt.timezone(dt.timedelta(hours=h))) for h in (2, 1)]},
        {},
        {"time": [0, 3600]},
    ),
    "dates": ({**PAIR, "date": [dt.date(2020, 1, 1), dt.date(2020, 1, 2)]}, {}, {"time": [0, DAY]}),
    "ISO text": ({**PAIR, "date": ["2020-01-01", "2020-01-02T01:00+01:00"]}, {}, {"time": [0, DAY]}),
    "dd/mm text": ({**PAIR, "date": ["01/01/2020", "02/01/2020"]}, {"date_format": "%d/%m/%Y"}, {"time": [0, DAY]}),
    "dates as numbers": (
        {**PAIR, "day": [20200101, 20200102]},
        {"time": "day", "date_format": "%Y%m%d"},
        {"time": [0, DAY]},
    ),
    **{
        f"epoch {unit}": ({**PAIR, "ts": [int(NEW_YEAR) * n, int(NEW_YEAR + DAY) * n]}, {}, {"time": [0, DAY]})
        for unit, n in (("seconds", 1), ("milliseconds", 10**3), ("microseconds", 10**6), ("nanoseconds", 10**9))
    },
    "titles and genres": (
        {**PAIR, "title": ["Ex", None], "genre": [["a", "b"], []]},
        {},
        {"titles": ("Ex", "y"), "genres": ("a, b", "")},
    ),
    "its name": (PAIR, {"name": "shop"}, {"name": "shop"}),
}


@pytest.mark.parametrize("case", GOOD)
def test_a_frame_gives_the_documented_interactions(frame, library, case):
    columns, keywords, expected = GOOD[case]
    data = read(frame(columns), **keywords)
    for name, value in expected.items():
        got = getattr(data, name)
        if name == "time" and value is not None and case != "usual names" and got.max() > 1e8:
            got = got - NEW_YEAR
        assert (got.tolist() if isinstance(got, np.ndarray) else got) == value, name
    assert data.frame_library == library


# (columns, keywords, kind of error, parts of the message)
BAD = {
    "missing columns": (
        {"customer_id": ["a"], "sku": ["x"]},
        {},
        DataError,
        [
            "frame has no column user",
            "Got: customer_id, sku",
            'Is "customer_id" the user column? Use user="customer_id".',
        ],
    ),
    "a missing item": ({"user": ["a"], "sku": ["x"]}, {}, DataError, ["no column item", 'Use item="sku".']),
    "nothing similar": ({"p": ["a"], "q": ["x"]}, {}, DataError, ["no column user", 'Name it with user="NAME"']),
    "a misspelt column": (
        PAIR,
        {"user": "usr"},
        DataError,
        ['"usr" is not a column', 'Did you mean "user"?', 'user="usr"'],
    ),
    "a misspelt keyword": (PAIR, {"tme": "x"}, SettingError, ['"tme" is not a keyword', 'Did you mean "time"?']),
    "one column for two": (PAIR, {"user": "user", "item": "user"}, SettingError, ["user and item both name", '"user"']),
    "no user": (PAIR, {"user": None}, SettingError, ["user must be the name of a column", "None"]),
    "no rows": ({"user": [], "item": []}, {}, DataError, ["no rows", "one row per interaction"]),
    "only gaps": (
        {"user": [None, "a"], "item": ["x", None]},
        {"drop_missing": True},
        DataError,
        ["no rows without missing"],
    ),
    "a missing user": (
        {"user": ["a", None], "item": ["x", "y"]},
        {},
        DataError,
        ["column user, row 2", "drop_missing=True"],
    ),
    "a missing rating": (
        {**PAIR, "rating": [1.0, float("nan")]},
        {},
        DataError,
        ["column rating, row 2", "missing", "drop_missing=True", "rating=None"],
    ),
    "an infinite rating": ({**PAIR, "rating": [1.0, float("inf")]}, {}, DataError, ["column rating, row 2", "finite"]),
    "a list for a rating": ({**PAIR, "rating": [[1], [2]]}, {}, DataError, ["column rating", "not a number"]),
    "a decimal comma": ({**PAIR, "rating": ["3,5", "1"]}, {}, DataError, ['"3,5" is not a number', 'decimal=","']),
    "a decimal point": (
        {**PAIR, "rating": ["3.5", "1"]},
        {"decimal": ","},
        DataError,
        ['"3.5" is not a number', 'decimal="."'],
    ),
    "a time that is none": (
        {**PAIR, "time": ["soon", "later"]},
        {},
        DataError,
        ["column time", '"soon" is not a time', "date_format"],
    ),
    "truth values for times": ({**PAIR, "time": [True, False]}, {}, DataError, ["is not a time"]),
    "durations for times": ({**PAIR, "time": [dt.timedelta(1)] * 2}, {}, DataError, ["is not a time"]),
    "a missing time": (
        {**PAIR, "time": [dt.date(2020, 1, 1), None]},
        {},
        DataError,
        ["column time, row 2", "missing", "time=None"],
    ),
    "other dates": ({**PAIR, "time": ["31/12/2020"] * 2}, {}, DataError, ["is not a time", 'date_format="%d/%m/%Y"']),
    "dates of another format": (
        {**PAIR, "time": ["2020-12-31"] * 2},
        {"date_format": "%d/%m/%Y"},
        DataError,
        ["is not a time", '"%d/%m/%Y"'],
    ),
    "no date format": (PAIR, {"date_format": "day"}, SettingError, ["date format", '"day"']),
    "an impossible date format": (
        {**PAIR, "time": ["10", "11"]},
        {"date_format": "%H"},
        SettingError,
        ["%H", "hour and minute"],
    ),
    "another decimal mark": (PAIR, {"decimal": "'"}, SettingError, ["decimal mark"]),
    "large floats": ({"user": [2.0**53, 1.0], "item": ["x", "y"]}, {}, DataError, ["column user", "2^53", "Int64"]),
    "bytes": ({"user": [b"a", b"\xff"], "item": ["x", "y"]}, {}, DataError, ["column user", "cannot be read"]),
    "objects": ({"user": [{"a": 1}] * 2, "item": ["x", "y"]}, {}, DataError, ["column user", "cannot be read"]),
}


@pytest.mark.parametrize("case", BAD)
def test_a_frame_that_cannot_be_read_is_refused(frame, case):
    columns, keywords, kind, parts = BAD[case]
    with raises_with(kind, *parts):
        read(frame(columns), **keywords)


def test_a_catalogue_adds_titles_genres_and_items_that_nobody_took(frame):
    items = frame({"item": ["z", "x", "x"], "title": ["Zed", "Ex", "Other"], "categories": [["a", "b"], ["c"], []]})
    data = read(frame({**PAIR, "title": ["from the frame", "Why"]}), items=items)
    assert data.items == ("x", "y", "z") and data.item.tolist() == [0, 1]
    assert data.titles == ("Ex", "Why", "Zed") and data.genres == ("c", "", "a, b")
    numbered = read(
        frame({"user": [1, 2], "sku": [10, 9]}), item="sku", items=frame({"sku": [11, 9], "nm": ["E", "N"]}), title="nm"
    )
    assert numbered.items == ("9", "10", "11") and numbered.titles == ("N", "10", "E")


def test_a_wrong_catalogue_is_refused(frame):
    with raises_with(DataError, "items", '"sku" is not a column', 'item="sku"'):
        read(frame({"user": ["a"], "sku": ["x"]}), item="sku", items=frame({"id": ["x"]}))
    with raises_with(DataError, "frame and items", '"nmm" is not a column', '"nm"'):
        read(frame(PAIR), title="nmm", items=frame({"item": ["x"], "nm": ["Ex"]}))
    with raises_with(DataError, "items", "column item, row 1", "missing"):
        read(frame(PAIR), items=frame({"item": [None, "x"], "title": ["E", "X"]}))
    with raises_with(DataError, "items", "data frame", "list"):
        read(frame(PAIR), items=["x"])


def test_both_libraries_and_a_file_give_the_same_data(tmp_path):
    rng = np.random.default_rng(0)
    columns = {
        "user": rng.integers(40, size=500),
        "item": [f"i{n}" for n in rng.integers(30, size=500)],
        "rating": rng.integers(1, 6, size=500) / 2,
        "timestamp": rng.integers(10**9, 2 * 10**9, size=500),
    }
    pl.DataFrame(columns).write_csv(tmp_path / "x.csv")
    expected = read_interactions(tmp_path / "x.csv")
    assert all(same_interactions(expected, read(make(columns))) for make in LIBRARIES.values())
    moments = pd.DataFrame(columns).assign(timestamp=lambda f: pd.to_datetime(f["timestamp"], unit="s"))
    assert same_interactions(expected, read(moments))


# pandas alone

PANDAS = {
    "categories": (pd.DataFrame(PAIR).astype("category"), {"people": ("a", "b"), "items": ("x", "y")}),
    "categories of numbers with a gap": (
        pd.DataFrame({"user": pd.Categorical([10, None, 9]), "item": [1, 2, 3]}),
        {"people": ("9", "10"), "items": ("1", "3")},
    ),
    "categories of times": (
        pd.DataFrame({**PAIR, "time": pd.Categorical(pd.to_datetime(["2020-01-02", "2020-01-01"]))}),
        {"time": [NEW_YEAR + DAY, NEW_YEAR]},
    ),
    "nullable numbers": (
        pd.DataFrame(
            {
                "user": pd.array([2**62 + 1, None, 9], "Int64"),
                "item": pd.array([1, 2, 2**64 - 1], "UInt64"),
                "rating": pd.array([1.5, 2, 4], "Float64"),
            }
        ),
        {"people": ("9", str(2**62 + 1)), "items": ("1", str(2**64 - 1)), "value": [1.5, 4]},
    ),
    "string type": (pd.DataFrame(PAIR).astype("string"), {"people": ("a", "b")}),
    "Python objects": (pd.DataFrame(PAIR).astype(object), {"people": ("a", "b")}),
    "mixed objects": (
        pd.DataFrame({"user": pd.Series([1, "1b", 2.0], dtype=object), "item": [uuid.UUID(int=n) for n in range(3)]}),
        {"people": ("1", "1b", "2"), "items": tuple(str(uuid.UUID(int=n)) for n in range(3))},
    ),
    "integers of any size": (
        pd.DataFrame({"user": pd.Series([10**25, 5], dtype=object), "item": [1, 2]}),
        {"people": ("5", str(10**25))},
    ),
    "half precision": (pd.DataFrame({**PAIR, "rating": np.array([1.5, 2], np.float16)}), {"value": [1.5, 2]}),
    "sparse ratings": (pd.DataFrame({**PAIR, "rating": pd.arrays.SparseArray([0, 1])}), {"value": [0, 1]}),
    "Arrow columns": (
        pd.DataFrame(
            {
                "user": pd.array([1, None], "int64[pyarrow]"),
                "item": pd.array(["a", "b"], "string[pyarrow]"),
                "time": pd.array([dt.datetime(2020, 1, 1), None], "timestamp[s][pyarrow]"),
            }
        ),
        {"people": ("1",), "time": [NEW_YEAR]},
    ),
    "Arrow dates": (
        pd.DataFrame({**PAIR, "time": pd.array([dt.date(2020, 1, 1)] * 2, "date32[pyarrow]")}),
        {"time": [NEW_YEAR] * 2},
    ),
    "a zone with summer time": (
        pd.DataFrame(
            {**PAIR, "time": pd.to_datetime(["2020-01-01 01:00", "2020-07-01 02:00"]).tz_localize("Europe/Berlin")}
        ),
        {"time": [NEW_YEAR, NEW_YEAR + 182 * DAY]},
    ),
    **{
        f"moments in {unit}": (
            pd.DataFrame({**PAIR, "time": pd.to_datetime(["2020-01-01"] * 2).astype(f"datetime64[{unit}]")}),
            {"time": [NEW_YEAR] * 2},
        )
        for unit in ("s", "ms", "us", "ns")
    },
    "a MultiIndex with names": (
        pd.DataFrame({**PAIR, "rating": [1, 2]}).set_index(["user", "item"]),
        {"people": ("a", "b"), "items": ("x", "y"), "value": [1, 2]},
    ),
    "an index with a name": (pd.DataFrame(PAIR, index=pd.Index([5, 6], name="time")), {"time": [5, 6]}),
    "an index without a name": (pd.DataFrame(PAIR, index=[5, 5]), {"people": ("a", "b"), "notes": ()}),
    "a part of a frame": (
        pd.DataFrame({"user": list("abc"), "item": list("xyz")}).iloc[[2, 0]],
        {"people": ("a", "c"), "person": [1, 0]},
    ),
}


@pytest.mark.parametrize("case", PANDAS)
def test_types_and_indices_of_pandas(case):
    frame, expected = PANDAS[case]
    before = frame.copy()
    data = read(frame, drop_missing=True)
    for name, value in expected.items():
        got = getattr(data, name)
        assert (got.tolist() if isinstance(got, np.ndarray) else got) == value, name
    pd.testing.assert_frame_equal(frame, before)


@pytest.mark.parametrize(
    ("frame", "parts"),
    [
        (pd.DataFrame([["a", "b", "x"]], columns=["user", "user", "item"]), ['2 columns "user"', "Rename"]),
        (pd.DataFrame([["a", "x"]], columns=pd.MultiIndex.from_tuples([("k", "user"), ("k", "item")])), ["2 levels"]),
        (pd.DataFrame(PAIR, index=pd.Index([5, 6], name="user")), ['"user" twice', "reset_index"]),
        (pd.DataFrame(PAIR)["user"], ["data frame", "Series"]),
        (pl.Series("user", ["a"]), ["data frame", "Series"]),
        (PAIR, ["data frame", "dict"]),
        (sparse.csr_array([[1]]), ["sparse matrix", "from_matrix"]),
        (pl.DataFrame({"user": pl.Series([object()], dtype=pl.Object), "item": ["x"]}), ["column user", "Object"]),
    ],
    ids=["twice", "levels", "index and column", "pandas series", "polars series", "dict", "matrix", "polars objects"],
)
def test_what_is_no_frame_is_refused(frame, parts):
    with raises_with(DataError, *parts):
        read(frame)


def test_columns_whose_names_are_numbers():
    assert read(pd.DataFrame([["a", "x"]]), user=0, item="1").people == ("a",)


@pytest.mark.parametrize("kind", [pl.Categorical, pl.Enum(["a", "b", "x", "y"])], ids=["categorical", "enum"])
def test_categories_of_polars(kind):
    data = read(pl.DataFrame(PAIR).cast(kind))
    assert data.people == ("a", "b") and data.items == ("x", "y")


def test_lazy_frames_and_arrow_tables_are_read():
    for frame in (pl.DataFrame(PAIR).lazy(), pl.DataFrame(PAIR).to_arrow()):
        data = read(frame)
        assert data.people == ("a", "b") and data.frame_library == "polars"


def test_pandas_frames_are_read_without_pyarrow(monkeypatch):
    """pyarrow is not needed: whatever imports it here fails."""
    real = builtins.__import__

    def refuse(name, *args, **more):
        if name.partition(".")[0] == "pyarrow":
            raise ImportError(name)
        return real(name, *args, **more)

    frame = pd.DataFrame({**PAIR, "rating": [1, 2], "time": pd.to_datetime(["2020-01-01", "2020-01-02"])})
    frame["user"] = frame["user"].astype("category")
    frame["item"] = frame["item"].astype(object)
    monkeypatch.setattr(builtins, "__import__", refuse)
    for name in [name for name in sys.modules if name.partition(".")[0] == "pyarrow"]:
        monkeypatch.delitem(sys.modules, name)
    data = read(frame)
    assert (
        data.people == ("a", "b") and data.value.tolist() == [1, 2] and data.time.tolist() == [NEW_YEAR, NEW_YEAR + DAY]
    )


def test_the_package_imports_neither_pandas_nor_pyarrow():
    assert importlib.import_module("fedtaste.data.frames").__doc__
    for path in Path(fedtaste.__file__).parent.rglob("*.py"):
        if path.parent.name == "programs":  # of other libraries, in processes of their own
            continue
        assert "import pandas" not in path.read_text() and "import pyarrow" not in path.read_text()


# load and matrices


def test_load_accepts_frames_paths_and_matrices(frame, library, tmp_path):
    data = fedtaste.load(frame(PAIR))
    assert data.people == ("a", "b") and data.frame_library == library
    pl.DataFrame(PAIR).write_csv(tmp_path / "x.csv")
    assert same_interactions(data, fedtaste.load(tmp_path / "x.csv"))
    assert fedtaste.load(sparse.csr_array([[0, 1], [1, 0]])).items == ("0", "1")
    with raises_with(DataError, "data frame", "dict"):
        fedtaste.load(PAIR)


@pytest.mark.parametrize("kind", [sparse.csr_array, sparse.csr_matrix, sparse.coo_array, sparse.csc_array])
def test_a_sparse_matrix_gives_its_entries(kind):
    matrix = kind(np.array([[0, 5, 0], [0, 0, 0], [3, 0, 0]]))
    data = Interactions.from_matrix(matrix, users=["ann", "bob", "eve"], items=[10, 20, 30], titles=["T", "U", "V"])
    assert data.people == ("ann", "eve") and data.items == ("10", "20", "30") and data.titles == ("T", "U", "V")
    assert list(zip(data.person, data.item, data.value)) == [(0, 1, 5), (1, 0, 3)]
    assert data.notes == ("1 row without entries left out.",) and data.time is None
    assert Interactions.from_matrix(matrix).people == ("0", "2")
    assert Interactions.from_matrix(matrix, ratings=False).value is None
    assert matrix.nnz == 2


def test_equal_entries_are_no_ratings_and_stored_zeros_no_entries():
    matrix = sparse.csr_array((np.array([2.0, 2.0, 0.0]), ([0, 1, 1], [0, 1, 0])), shape=(2, 2))
    data = Interactions.from_matrix(matrix)
    assert data.value is None and len(data) == 2
    assert Interactions.from_matrix(matrix, ratings=True).value.tolist() == [2, 2]


@pytest.mark.parametrize(
    ("matrix", "names", "parts"),
    [
        (np.eye(2), {}, ["sparse matrix", "ndarray", "csr_array"]),
        (sparse.csr_array([[np.nan, 1]]), {}, ["finite"]),
        (sparse.csr_array((2, 2)), {}, ["no entries but zeros"]),
        (sparse.csr_array([[1, 1]]), {"users": ["a", "b"]}, ["users", "one name per row, 1", "got 2"]),
        (sparse.csr_array([[1, 1]]), {"items": ["a", "a"]}, ["items", "different", '"a" twice']),
        (sparse.csr_array([[1, 1]]), {"titles": ["a"]}, ["titles", "one title per column, 2", "got 1"]),
    ],
    ids=["dense", "nan", "zeros", "users", "items", "titles"],
)
def test_a_wrong_matrix_is_refused(matrix, names, parts):
    with raises_with(DataError, *parts):
        Interactions.from_matrix(matrix, **names)


# In words


def test_the_representation_is_one_line():
    data = read(pl.DataFrame({**PAIR, "rating": [1.0, 4.5], "ts": [881250949000, 893286638000]}), name="shop")
    assert (
        repr(data)
        == 'Interactions("shop": 2 people, 2 items, 2 interactions, ratings 1 to 4.5, 1997-12-04 to 1998-04-22)'
    )
    assert repr(read(pl.DataFrame({**PAIR, "ts": [1, 2]}))).endswith("no ratings, times 1 to 2)")
    assert len(repr(fedtaste.load("synthetic:50x40x500"))) < 120


def test_the_snippets_of_the_page_about_data_print_what_is_shown(here):
    """Python blocks in one namespace, commands of sh blocks through the command line, in the order of the page."""
    page = (Path(__file__).parents[1] / "docs" / "data.md").read_text("utf-8")
    names: dict[str, object] = {}
    printed, shown, commands = io.StringIO(), "", 0
    for kind, block in re.findall(r"```(python|text|sh)\n(.*?)```", page, re.S):
        if kind == "python":
            with contextlib.redirect_stdout(printed):
                exec(compile(block, "docs/data.md", "exec"), names)
        elif kind == "text":
            shown += block
        for line in block.splitlines() if kind == "sh" else ():
            command, *arguments = shlex.split(line)
            assert command == "fedtaste" and fedtaste_command(*arguments).code == 0, line
            commands += 1
    assert printed.getvalue() == shown and shown.count("Interactions(") == 4 and commands == 3
