"""Files as users have them: other column names, separators, decimal marks, dates and formats; limits on their size."""

from __future__ import annotations

import gzip
import io
import json
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest

from fedtaste.data.formats import stem
from fedtaste.data.interactions import Interactions
from fedtaste.data.read_options import ReadOptions
from fedtaste.data.sources import absolute_source, load
from fedtaste.data.user_files import UserSplit
from fedtaste.errors import DataError, SettingError
from fedtaste.experiment.settings import Settings
from support.command import fedtaste
from support.errors import raises_with
from support.files import same_interactions, zip_of

GOOD = "user,item,rating,timestamp\nb,10,3,100\na,9,4.5,50\nb,9,1,200\n"
ROWS = [dict(zip(("user", "item", "rating", "timestamp"), line.split(","))) for line in GOOD.split()[1:]]
OBJECTS = [{**row, "rating": float(row["rating"]), "timestamp": int(row["timestamp"])} for row in ROWS]
LINES = "".join(json.dumps(row) + "\n" for row in OBJECTS)
SHOP = "customer_id;sku;stars;when;price\nb;10;3,0;01/02/2020;9\na;9;4,5;31/01/2020;8\n"
SHOP_OPTIONS = ReadOptions(
    {"user": "customer_id", "item": "sku", "rating": "stars", "time": "when"}, decimal=",", date_format="%d/%m/%Y"
)


def binary(write: str, **more: object) -> bytes:
    buffer = io.BytesIO()
    frame = pl.DataFrame(OBJECTS)
    getattr(frame, write)(buffer, **more)
    return buffer.getvalue()


def of_pandas() -> bytes:
    buffer = io.BytesIO()
    pd.DataFrame(OBJECTS).astype({"user": "category"}).to_feather(buffer)
    return buffer.getvalue()


def put(path: Path, content: str | bytes) -> str:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)


FORMATS = {
    "x.jsonl": LINES,
    "x.ndjson": LINES.replace("\n", "\r\n\n"),
    "x.jsonl.gz": gzip.compress(LINES.encode()),
    "x.feather": of_pandas(),
    "x.arrow": binary("write_ipc", compression="zstd"),
    "x.parquet": binary("write_parquet"),
    "x.txt.gz": gzip.compress(GOOD.replace(",", "|").encode()),
    "x.zip": zip_of({"data/ratings.csv": GOOD.encode(), "README.txt": b"read me", "__MACOSX/data/._ratings.csv": b"?"}),
    "x.csv.zip": zip_of({"ratings.jsonl": LINES.encode()}),
}


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_gives_the_same_data(tmp_path, name):
    expected = load(put(tmp_path / "expected.csv", GOOD))
    data = load(put(tmp_path / name, FORMATS[name]))
    assert same_interactions(expected, data) and data.name == "x"


def test_names_of_files():
    names = ("a.csv", "a.csv.gz", "a.zip", "my.data.zip", "my.data.csv.zip", "a.jsonl.gz", "a")
    assert [stem(Path(name)) for name in names] == ["a", "a", "a", "my.data", "my.data", "a", "a"]


def test_columns_separators_decimal_commas_and_dates_are_read_as_named(tmp_path):
    data = load(put(tmp_path / "x.csv", SHOP), options=SHOP_OPTIONS)
    assert (data.people, data.items, data.value.tolist()) == (("a", "b"), ("9", "10"), [3, 4.5])
    assert repr(data).endswith("ratings 3 to 4.5, 2020-01-31 to 2020-02-01)")
    assert data.notes == ("Columns not used: price.",)


def test_values_of_json_lines_keep_their_text(tmp_path):
    rows = [{"user": "007", "item": 2**63}, {"user": 7, "item": "b", "genres": ["x", "y"], "more": {"a": [1]}}]
    data = load(put(tmp_path / "x.jsonl", "\n".join(map(json.dumps, rows))))
    assert data.people == ("007", "7") and data.items == (str(2**63), "b") and data.genres == ("", "x, y")


def test_options_hold_for_every_file_of_a_split(tmp_path):
    put(tmp_path / "train.csv", "who;what\na;x\na;y\nb;x\n")
    put(tmp_path / "test.jsonl", '{"who": "b", "what": "y"}\n{"who": null, "what": "y"}\n')
    put(tmp_path / "items.csv", "what;title\nx;Ex\nz;Zed\n")
    options = ReadOptions({"user": "who", "item": "what"}, drop_missing=True)
    split = load(str(tmp_path), options=options)
    assert isinstance(split, UserSplit) and split.train.items == ("x", "y", "z") and len(split.test) == 1
    assert split.train.titles == ("Ex", "y", "Zed") and "1 row with missing values left out" in split.notes[0]
    with raises_with(SettingError, "test.jsonl", "JSON-lines", "no separator"):
        load(str(tmp_path), options=ReadOptions({"user": "who", "item": "what"}, separator=";"))


GAPS = "user,item,rating\na,x,1\n,y,2\nb,,3\nb,x,\nb,y,5\n"


def test_rows_with_missing_values_are_refused_or_dropped(tmp_path):
    path = put(tmp_path / "x.csv", GAPS)
    with raises_with(DataError, "column user, line 3", "missing", "--drop-missing"):
        load(path)
    data = load(path, options=ReadOptions(drop_missing=True))
    assert list(zip(data.person, data.item, data.value)) == [(0, 0, 1), (1, 1, 5)]
    assert data.notes == ("3 rows with missing values left out.",)


REFUSED = {
    "another column": (
        "x.csv",
        "customer_id,sku\na,x\n",
        {},
        ['Is "customer_id" the user column?', "Use --columns user=customer_id."],
    ),
    "a second column": (
        "x.csv",
        "customer,product\na,x\n",
        {"columns": {"user": "customer"}},
        ["Use --columns user=customer,item=product."],
    ),
    "a column with a space": ("x.csv", "Customer ID,item\na,x\n", {}, ["Use --columns 'user=Customer ID'."]),
    "a misspelt column": (
        "x.csv",
        GOOD,
        {"columns": {"user": "usr"}},
        ['"usr" is not a column', 'Did you mean "user"?'],
    ),
    "one column twice": ("x.csv", GOOD, {"columns": {"user": "user", "item": "user"}}, ["user and item both name"]),
    "a decimal comma": ("x.csv", "user;item;rating\na;x;3,5\n", {}, ['"3,5" is not a number', "--decimal ,"]),
    "dd/mm": ("x.csv", "user,item,date\na,x,31/12/2020\n", {}, ["is not a time", "--date-format %d/%m/%Y"]),
    "dd.mm": ("x.csv", "user,item,date\na,x,31.12.2020\n", {}, ["is not a time", "--date-format %d.%m.%Y"]),
    "a wrong date": (
        "x.csv",
        "user,item,date\na,x,31/12/2020\na,y,12/31/2020\n",
        {"date_format": "%d/%m/%Y"},
        ["line 3", '"12/31/2020" is not a time', "%d/%m/%Y"],
    ),
    "the wrong separator": ("x.csv", "user,item\na,x\n", {"separator": ";"}, ["no column user", "Got: user,item"]),
    "broken JSON": ("x.jsonl", '{"user": 1, "item": 2}\n\n{"user": 1,\n', {}, ["line 3", "JSON object"]),
    "a JSON list": ("x.jsonl", "[1, 2]\n", {}, ["line 1", "JSON object"]),
    "deep JSON": ("x.jsonl", "[" * 100_000, {}, ["line 1", "nested"]),
    "nested JSON": (
        "x.jsonl",
        '{"user": 1, "item": 2, "x": ' + "[" * 1000 + "]" * 1000 + "}",
        {},
        ["line 1", "nested"],
    ),
    "Latin-1": ("x.csv", "user,item\na,x\nb,é\n".encode("latin-1"), {}, ["line 3 is not UTF-8", "CSV UTF-8"]),
    "Latin-1 in gzip": ("x.csv.gz", gzip.compress("user,item\na,é\n".encode("latin-1")), {}, ["line 2 is not UTF-8"]),
    "lines that end in CR": ("x.csv", "user,item\ra,x\rb,y", {}, ["end in CR alone", "LF or CRLF"]),
    "a time beyond all years": (
        "x.csv",
        "user,item,time\na,x,0\na,y,1e300\n",
        {},
        ["line 3", '"1e300" is no time in the years 1 to 9999'],
    ),
    "no JSON": ("x.jsonl", " \n", {}, ["is empty"]),
    "a damaged Feather file": ("x.feather", of_pandas()[:-40], {}, ["Feather", "again"]),
    "no Feather file": ("x.arrow", b"ARROW1\0\0nonsense", {}, ["Feather", "again"]),
    "no zip": ("x.zip", b"PK nonsense", {}, ["cannot be unpacked"]),
    "two tables": ("x.zip", zip_of({"a.csv": b"1", "b.csv": b"2"}), {}, ["holds a.csv, b.csv", "Expected one file"]),
    "no table": ("x.zip", zip_of({"a.parquet": b"1"}), {}, ["holds a.parquet", "Expected one file"]),
    "an empty zip": ("x.zip", zip_of({}), {}, ["holds no files"]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_files_that_cannot_be_read_say_what_to_do(tmp_path, case):
    name, content, options, parts = REFUSED[case]
    path = put(tmp_path / name, content)
    with raises_with((DataError, SettingError), name if "both name" not in parts[0] else "", *parts):
        load(path, options=ReadOptions(**options))


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"columns": {"usr": "x"}}, ['"usr" is not a kind of column', 'Did you mean "user"?']),
        ({"separator": "::"}, ["one character", "::"]),
        ({"decimal": "'"}, ["decimal mark"]),
        ({"date_format": "dd/mm"}, ["date format", "dd/mm"]),
        ({"max_gib": 0.0}, ["above 0"]),
    ],
    ids=["columns", "separator", "decimal", "date format", "size"],
)
def test_wrong_options_are_refused(options, parts):
    with raises_with(SettingError, *parts):
        ReadOptions(**options)


def test_named_data_take_no_options():
    with raises_with(SettingError, "synthetic:50x40x500", "--columns", "Leave them out"):
        load("synthetic:50x40x500", options=ReadOptions(drop_missing=True))


def test_a_compressed_file_must_not_unpack_beyond_the_limit(tmp_path):
    text = GOOD + "b,10,3,100\n" * 300_000  # 3.3 MB
    bombs = {"x.csv.gz": gzip.compress(text.encode())}
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.csv", text)
    bombs["x.zip"] = packed.getvalue()
    for name, content in bombs.items():
        path = put(tmp_path / name, content)
        with raises_with(DataError, name, f"{len(content):,}"[:2], "unpacks to more than 0.001 GiB", "--max-gib"):
            load(path, options=ReadOptions(max_gib=0.001))
        assert len(load(path, options=ReadOptions(max_gib=0.01))) == 3


# The command line


@pytest.fixture
def shop(here) -> Path:
    rng = np.random.default_rng(0)
    rows = {
        "Kunde": [f"k{n}" for n in rng.integers(20, size=300)], "sku": rng.integers(15, size=300),
        "Note": [f"{n / 2:.1f}".replace(".", ",") for n in rng.integers(2, 11, size=300)],
        "Tag": [f"{n:02}.03.2021" for n in rng.integers(1, 29, size=300)],
    }  # fmt: skip
    pl.DataFrame(rows).write_csv("shop.txt", separator=";")
    return Path("shop.txt")


OPTIONS = ("--columns", "user=Kunde,item=sku,rating=Note,time=Tag", "--decimal", ",", "--date-format", "%d.%m.%Y")


def test_every_command_reads_files_with_the_options(shop):
    facts = fedtaste("data", "describe", shop, *OPTIONS, "--separator", ";", "--json").json
    assert facts["people"] == 20 and facts["items"] == 15
    assert facts["time"] == "2021-03-01 to 2021-03-28" and facts["ratings"].startswith("1 to 5")
    assert fedtaste("data", "import", shop, "shop.parquet", *OPTIONS).code == 0
    assert same_interactions(load("shop.parquet"), load("shop.txt", options=Settings(
        columns={"user": "Kunde", "item": "sku", "rating": "Note", "time": "Tag"}, decimal=",", date_format="%d.%m.%Y",
    ).read_options))  # fmt: skip
    fedtaste("run", "--data", shop).refused("no column user", "--columns")
    fedtaste("run", "--data", shop, "--columns", "Kunde").refused("--columns must be key=value", '"Kunde"')
    fedtaste("run", "--data", shop, "--columns", "usr=Kunde").refused("usr", 'Did you mean "user"')
    fedtaste("run", "--data", shop, "--decimal", ";").refused("decimal")
    fedtaste("run", "--data", "synthetic:20x15x200", "--drop-missing").refused("synthetic", "Leave them out")


def test_a_run_remembers_how_its_data_were_read_and_works_from_another_folder(shop, monkeypatch):
    quick = ("--rounds", "2", "--threads", "1", "--set", "k=4", "--json")
    result = fedtaste("run", "--data", shop, *OPTIONS, *quick, "--out", "run").json
    assert result["data"] == "shop.txt", "the short name is shown"
    stored = json.loads(Path("run/settings.json").read_text())["settings"]
    assert stored["data"] == str(shop.resolve()) and stored["columns"]["user"] == "Kunde"
    Path("elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    answer = fedtaste("recommend", "../run", "--person", "k3", "--n", "2", "--json").json
    assert len(answer["items"]) == 2
    Path("../run/report.html").unlink()
    assert fedtaste("resume", "../run", "--json").json["data"] == "shop.txt"


def test_equal_runs_have_equal_results_whatever_the_path(shop):
    quick = ("--rounds", "2", "--threads", "1", "--set", "k=4", "--json")
    Path("copy").mkdir()
    Path("copy/shop.txt").write_bytes(shop.read_bytes())
    for place, out in ((shop, "one"), ("copy/shop.txt", "two")):
        assert fedtaste("run", "--data", place, *OPTIONS, *quick, "--out", out).code == 0
    first, second = (json.loads(Path(out, "result.json").read_text()) for out in ("one", "two"))
    different = {key for key in first if first[key] != second[key]}
    assert different <= {"seconds", "peak_rss_mb", "run"}
    assert Path("one/model.safetensors").read_bytes() == Path("two/model.safetensors").read_bytes()


def test_absolute_sources(here):
    Path("mine.csv").write_text(GOOD)
    Path("photos").mkdir()
    assert absolute_source("mine.csv") == str(Path("mine.csv").resolve())
    assert absolute_source("gone.csv") == "gone.csv" and absolute_source("ml-100k") == "ml-100k"
    assert absolute_source("domains:photos,size=9") == f"domains:{Path('photos').resolve()},size=9"
    assert Settings(data=absolute_source("mine.csv")).data_name == "mine.csv"
    names = ("synthetic:5x5x9", "../there/mine.csv", "my/split/", "domains:a/photos,size=9")
    assert [Settings(data=name).data_name for name in names] == [
        "synthetic:5x5x9",
        "mine.csv",
        "split",
        "domains:photos,size=9",
    ]


def test_a_config_file_names_columns(shop):
    Path("run.toml").write_text('decimal = ","\ndate_format = "%d.%m.%Y"\n[columns]\nuser = "Kunde"\nitem = "sku"\n')
    quick = ("--rounds", "2", "--threads", "1", "--set", "k=4", "--json")
    assert fedtaste("run", "--config", "run.toml", "--data", shop, *quick, "--out", "run").json["people"] == 20
    assert isinstance(
        load(str(shop), options=Settings(columns={"user": "Kunde", "item": "sku"}).read_options), Interactions
    )
