"""Publishers' formats, read from small valid and broken files, and files that a user puts into the cache."""

from __future__ import annotations

import gzip
import io
import zipfile
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from fedtaste.data.describe import facts
from fedtaste.data.interactions import Interactions
from fedtaste.data.publishers import (
    from_movielens,
    parse_amazon_video,
    parse_lastfm,
    parse_ml_1m,
    parse_qb_article,
    parse_tafeng,
)
from fedtaste.data.sources import SOURCES, load
from fedtaste.errors import DataError
from support.errors import raises_with
from support.files import same_interactions, sha256, zip_of

REAL_AMAZON = Path(__file__).resolve().parents[2] / "shared" / "data" / "amazon-video.csv.gz"
MOVIES = (
    "1::Toy Story (1995)::Animation|Children's|Comedy\n2::Jumanji (1995)::Adventure\n"
    "73::Misérables, Les (1995)::Drama\n"
)
ML_1M_RATINGS = "10::73::5::978300760\n2::1::3::978302109\n10::1::4::978301968\n"
TAFENG_HEADER = "TRANSACTION_DT CUSTOMER_ID AGE_GROUP PIN_CODE PRODUCT_SUBCLASS PRODUCT_ID AMOUNT ASSET SALES_PRICE"
QB_HEADER = (
    "user_id,item_id,click,gender,age,exposure_count,click_count,like_count,comment_count,read_percentage,item_score1,"
    "item_score2,category_second,category_first,item_score3\n"
)


def opened(files: dict[str, bytes]) -> zipfile.ZipFile:
    return zipfile.ZipFile(io.BytesIO(zip_of(files)))


def ml_1m_files(ratings: str = ML_1M_RATINGS, movies: str = MOVIES) -> dict[str, bytes]:
    return {"ml-1m/ratings.dat": ratings.encode(), "ml-1m/movies.dat": movies.encode("latin-1")}


def ml_1m(**files: str) -> Interactions:
    return parse_ml_1m(opened(ml_1m_files(**files)))


def lastfm(
    plays: str, artists: bytes = b"id\tname\turl\tpictureURL\n7\tBj\xc3\xb6rk\thttp://x\t\n8\tbroken \xff\t\t\n"
):
    return parse_lastfm(opened({"user_artists.dat": plays.encode(), "artists.dat": artists}))


def rows(*people: tuple[str, int], form: str) -> str:
    """`form` filled in for every item of (person, number of items); `time` counts up."""
    pairs = [(person, item) for person, items in people for item in range(items)]
    return "".join(form.format(person=person, item=item, time=1000 + n) for n, (person, item) in enumerate(pairs))


def plays(*people: tuple[str, int]) -> str:
    return "userID\tartistID\tweight\n" + rows(*people, form="{person}\t{item}\t{time}\n")


def amazon(*people: tuple[str, int]) -> bytes:
    return rows(*people, form="{person},B{item:03},4.0,{time}\n").encode()


def clicks(*people: tuple[str, int], form: str = "{person},{item},1.0,1,4,99,9,1,0,80,1.5,0.5,1002,101,0.1\n") -> bytes:
    return (QB_HEADER + rows(*people, form=form)).encode()


def groceries(*lines: tuple[str, str, str]) -> bytes:
    """Date, customer and product, in quotes as on Kaggle."""
    texts = [TAFENG_HEADER.split()] + [[d, c, "45-49", "115", "110411", p, "2", "24", "30"] for d, c, p in lines]
    return "".join(",".join(f'"{text}"' for text in line) + "\n" for line in texts).encode()


def counts(data: Interactions) -> tuple[int, int, int]:
    return len(data.people), len(data.items), len(data)


def test_ml_1m_with_gaps_in_its_numbers_and_unrated_films_is_read():
    data = ml_1m()
    assert data.people == ("2", "10") and data.items == ("1", "73")
    assert data.titles == ("Toy Story (1995)", "Misérables, Les (1995)")
    assert data.genres == ("Animation, Children's, Comedy", "Drama")
    assert data.person.tolist() == [1, 0, 1] and data.item.tolist() == [1, 0, 0]
    assert data.value.tolist() == [5, 3, 4] and data.time.tolist() == [978300760, 978302109, 978301968]
    assert (data.person.dtype, data.value.dtype, data.time.dtype) == (np.int32, np.float32, np.float64)
    assert data.notes == ()


def test_the_title_of_a_film_without_one_is_its_number():
    assert ml_1m(movies="1::Toy Story (1995)::Comedy\r\n").titles == ("Toy Story (1995)", "73")


def test_lastfm_keeps_people_with_ten_artists():
    data = lastfm(plays(("2", 10), ("3", 9), ("11", 12)))
    assert data.name == "lastfm" and data.people == ("2", "11") and counts(data) == (2, 12, 22)
    assert data.value[0] == 1000 and data.time is None and data.genres == ()
    assert data.titles[6:9] == ("6", "Björk", "broken \ufffd")
    assert data.notes == ("1 person with fewer than 10 interactions left out.",)


def test_the_title_of_an_artist_without_a_name_is_its_number():
    assert lastfm(plays(("2", 10)), b"id\tname\r\n7\r\n8\tCher\r\n").titles[6:9] == ("6", "7", "Cher")


def test_a_weight_of_0_is_no_interaction():
    text = plays(("2", 10), ("3", 10)).replace("3\t9\t1019", "3\t9\t0")
    assert lastfm(text).people == ("2",)


def test_amazon_as_published_and_as_filtered_give_the_same_data():
    content = amazon(("A2", 10), ("A1", 11), ("A3", 9))
    published = parse_amazon_video("ratings_Amazon_Instant_Video.csv", content)
    assert published.people == ("A1", "A2") and counts(published) == (2, 11, 21)
    assert published.value.tolist() == [4.0] * 21 and published.time[0] == 1000
    filtered = b"user,item,rating,timestamp\n" + amazon(("A2", 10), ("A1", 11))
    for content in (filtered, gzip.compress(filtered), filtered.replace(b"\n", b"\r\n")):
        assert same_interactions(published, parse_amazon_video("amazon-video.csv.gz", content))


def test_tafeng_as_in_the_paper_has_days_as_people_and_customers_as_items():
    days = ("11/1/2000", "2/28/2001", "12/31/2000")
    lines = [(day, f"{customer:08}", "4710199010372") for day in days for customer in range(11 - days.index(day))]
    data = parse_tafeng("ta_feng.csv", groceries(*lines, ("11/1/2000", "00000003", "0078895770025")))
    assert data.people == ("2000-11-01", "2001-02-28") and data.items[0] == "00000000" and counts(data) == (2, 11, 21)
    assert data.value is None and sorted(set(data.time)) == [973036800, 983318400]
    assert "1 duplicate pair" in data.notes[0]
    assert any("people here are days" in note and "tafeng:customers" in note for note in data.notes)


def test_tafeng_customers_has_customers_as_people_and_products_as_items():
    lines = [("11/1/2000", "00046855", f"47{n:011}") for n in range(10)] + [("11/2/2000", "00046855", "4700000000003")]
    data = parse_tafeng("ta_feng.csv", groceries(*lines), customers=True)
    assert data.people == ("00046855",) and counts(data) == (1, 10, 10)
    assert data.time[data.item == data.items.index("4700000000003")] == 973036800 + 86400  # the newer purchase
    assert not any("days" in note for note in data.notes)


def test_qb_article_is_read_as_clicks_in_order():
    content = clicks(("5", 12), ("71", 10)) + b"71,99,0.0,1,4,99,9,1,0,80,1.5,0.5,1002,101,0.1\n"
    data = parse_qb_article("QB-article.csv", content)
    assert data.people == ("5", "71") and counts(data) == (2, 12, 22) and "99" not in data.items
    assert data.value is None and data.histories().of(0).tolist() == list(range(12))
    assert any("order of their clicks" in note for note in data.notes)


def numbers(ratings: str) -> Interactions:
    return from_movielens("ml-100k", "u.data", ratings.encode(), [])


video, articles = partial(parse_amazon_video, "videos.csv"), partial(parse_qb_article, "QB-article.csv")
shop, ten = partial(parse_tafeng, "shop.csv"), range(10)
BROKEN = {
    "movielens: not a number": (lambda: numbers("1\t2\t3\t4\n1\t3\tfive\t4\n"), ["u.data", "line 2", '"five"']),
    "movielens: short": (lambda: numbers("1\t2\t3\t4\n1\n"), ["u.data", "line 2", "missing"]),
    "movielens: long": (lambda: numbers("1\t2\t3\t4\n1\t2\t3\t4\t5\n"), ["u.data", "line 2", "5 fields", "first line"]),
    "movielens: too few columns": (lambda: numbers("1\t2\t3\n"), ["u.data", "3 columns", "Expected: 4"]),
    "movielens: empty": (lambda: numbers(""), ["u.data", "publisher"]),
    "ml-1m: time": (lambda: ml_1m(ratings="1::1::5::now\n"), ["ratings.dat", "line 1", '"now" is not a time']),
    "ml-1m: film": (lambda: ml_1m(movies="1::Toy Story (1995)\n"), ["movies.dat", "line 1", "2 fields", "at least 3"]),
    "lastfm: no header": (lambda: lastfm("2\t51\t13883\n"), ["user_artists.dat", "2, 51, 13883", "weight"]),
    "amazon: other file": (lambda: video(b"PK\x03\x04 a zip\n"), ["videos.csv", "1 column", "Expected: 4"]),
    "amazon: other header": (lambda: video(b"user_id,item_id,stars,at\n" + amazon(("A", 10))), ["line 1", '"stars"']),
    "amazon: gap": (lambda: video(amazon(("A", 10)) + b",B1,4.0,7\n"), ["videos.csv", "user", "line 11", "missing"]),
    "amazon: nobody": (lambda: video(amazon(("A", 9), ("B", 2))), ["videos.csv", "nobody with 10", "whole file"]),
    "amazon: gzip": (lambda: video(gzip.compress(amazon(("A", 10)))[:-9]), ["videos.csv", "damaged gzip"]),
    "amazon: not UTF-8": (lambda: video(b"\xff\xfe,B,4.0,7\n"), ["videos.csv", "publisher"]),
    "tafeng: date": (
        lambda: shop(groceries(*[(day, str(n), "1") for day in ("11/1/2000", "1.11.") for n in ten])),
        ["shop.csv", "TRANSACTION_DT", "lines 12, 13, 14 and 7 more", '"1.11." is not a time'],
    ),
    "tafeng: columns": (lambda: shop(b"DATE,CUSTOMER_ID\n1/1/2000,7\n"), ["shop.csv", "TRANSACTION_DT missing"]),
    "qb: columns": (lambda: articles(b"user_id,item_id\n1,2\n"), ["QB-article.csv", "click missing"]),
    "qb: click": (
        lambda: articles(clicks(("5", 10), form="{person},{item},yes,1,4,9,9,1,0,8,1,0,1,1,0\n")),
        ["QB-article.csv", "column click", "line", '"yes"'],
    ),
    "qb: header only": (lambda: articles(QB_HEADER.encode()), ["QB-article.csv", "no rows"]),
}  # fmt: skip


@pytest.mark.parametrize(("parse", "parts"), BROKEN.values(), ids=BROKEN)
def test_an_error_about_a_broken_file_names_file_and_place(parse, parts):
    with raises_with(DataError, *parts):
        parse()


@pytest.mark.parametrize(
    ("name", "file", "where"),
    [
        ("amazon-video", "ratings_Amazon_Instant_Video.csv", "ucsd.edu"),
        ("tafeng", "ta_feng_all_months_merged.csv", "kaggle.com"),
        ("tafeng:customers", "ta_feng_all_months_merged.csv", "kaggle.com"),
        ("qb-article", "QB-article.csv", "qq.com"),
    ],
)
def test_a_missing_file_of_a_manual_source_is_named_with_its_address_and_the_cache(tmp_path, name, file, where):
    cache = tmp_path / "cache"
    with raises_with(DataError, f"Get {file} from", where, f"put it into {cache} as", ".gz"):
        load(name, cache=cache)
    assert not cache.exists()


@pytest.mark.parametrize(
    ("name", "file", "content"),
    [
        ("amazon-video", "ratings_Amazon_Instant_Video.csv", amazon(("A", 10), ("B", 12))),
        ("amazon-video", "amazon-video.csv.gz", gzip.compress(b"user,item,rating,timestamp\n" + amazon(("A", 10)))),
        ("tafeng", "tafeng.csv.gz", gzip.compress(groceries(*[("1/1/2001", str(n), "1") for n in ten]))),
        ("qb-article", "QB-article.csv", clicks(("5", 12))),
    ],
    ids=["amazon raw", "amazon filtered", "tafeng", "qb"],  # a gzip file holds the time it was made
)  # fmt: skip
def test_other_counts_than_the_papers_are_noted(tmp_path, name, file, content):
    (tmp_path / file).write_bytes(content)
    data = load(name, cache=tmp_path)
    assert isinstance(data, Interactions)
    source, notes = SOURCES[name], facts(data)["notes"]
    sizes = " x ".join(str(n) for n in counts(data))
    assert f"got {sizes}, expected {source.people:,} x {source.items:,} x " in notes


def test_the_papers_counts_are_not_noted(tmp_path, monkeypatch):
    (tmp_path / "amazon-video.csv").write_bytes(amazon(("A", 10), ("B", 12)))
    small = replace(SOURCES["amazon-video"], people=2, items=12, interactions=22)
    monkeypatch.setitem(SOURCES, "amazon-video", small)
    assert load("amazon-video", cache=tmp_path).notes == ()
    monkeypatch.setitem(SOURCES, "amazon-video", replace(small, interactions=None))
    assert load("amazon-video", cache=tmp_path).notes == ()


@pytest.mark.parametrize("name", ["ml-1m", "lastfm"])
def test_a_fetched_archive_with_another_checksum_is_refused(tmp_path, monkeypatch, name):
    (archive,) = SOURCES[name].archives
    messages: list[str] = []
    other = replace(archive, fetch=lambda: b"PK another file")
    monkeypatch.setitem(SOURCES, name, replace(SOURCES[name], archives=(other,)))
    with pytest.raises(DataError, match=f"{archive.file} has sha256 .*, expected {archive.sha256}"):
        load(name, cache=tmp_path, log=messages.append)
    assert list(tmp_path.iterdir()) == [] and messages == [f"Fetching {name} from GroupLens."]


def test_a_fetched_archive_is_cached_and_compared_with_the_papers_counts(tmp_path, monkeypatch):
    content = zip_of(ml_1m_files())
    (archive,) = SOURCES["ml-1m"].archives
    small = replace(archive, sha256=sha256(content), fetch=lambda: content)
    monkeypatch.setitem(SOURCES, "ml-1m", replace(SOURCES["ml-1m"], archives=(small,)))
    messages: list[str] = []
    for _ in range(2):
        data = load("ML-1M", cache=tmp_path, log=messages.append)
        assert data.notes[-1].endswith("got 2 x 2 x 3, expected 6,040 x 3,706 x 1,000,209.")
    assert messages == ["Fetching ml-1m from GroupLens.", SOURCES["ml-1m"].terms]
    assert [path.name for path in tmp_path.iterdir()] == ["ml-1m.zip"]


@pytest.mark.parametrize("name", ["ml-1m:2", "lastfm:2", "amazon-video:x", "tafeng:x", "qb-article:x"])
def test_an_unknown_variant_is_refused(name):
    with pytest.raises(DataError, match=f"{name}.*Expected {name.partition(':')[0]}"):
        load(name)


def test_the_published_amazon_video_file_has_the_papers_counts(tmp_path):
    if not REAL_AMAZON.is_file():
        pytest.skip(f"needs {REAL_AMAZON}, which may not be passed on")
    (tmp_path / "amazon-video.csv.gz").symlink_to(REAL_AMAZON)
    data = load("amazon-video", cache=tmp_path)
    assert isinstance(data, Interactions)
    assert counts(data) == (1_372, 7_957, 23_181) and data.notes == ()
    assert np.bincount(data.person).min() == 10 and set(data.value) == {1, 2, 3, 4, 5}
