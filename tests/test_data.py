"""Named sources, their cache, and the made worlds."""

from __future__ import annotations

import hashlib
import io
import zipfile
from dataclasses import replace

import numpy as np
import pytest

from fedtaste.data import sources
from fedtaste.data.archives import Archive, default_cache, fetch_url, obtain
from fedtaste.data.generated import linear
from fedtaste.data.interactions import Interactions
from fedtaste.data.publishers import GENRES_100K, parse_grouplens_100k, parse_recbole_100k
from fedtaste.data.sources import ML_100K, SOURCES, load
from fedtaste.data.supervised import Supervised
from fedtaste.data.synthetic import synthetic
from fedtaste.data.user_files import read_interactions, save
from fedtaste.errors import ChecksumError, DataError

U_DATA = b"2\t1\t3\t881250949\n1\t3\t5\t891717742\n1\t2\t1\t878887116\n"
FLAGS = {"1": "Animation Children's Comedy", "2": "unknown", "3": "Drama Musical"}
TITLES = {"1": "Toy Story (1995)", "2": "unknown", "3": "Misérables, Les (1995)"}


def sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def zipped(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name), content)
    return buffer.getvalue()


def grouplens_zip(ratings: bytes, titles: dict[str, str], genres: dict[str, str]) -> bytes:
    """As GroupLens publishes it: u.data, and u.item in Latin-1 with a flag for each genre."""
    rows = []
    for item, title in titles.items():
        flags = "|".join(str(int(genre in genres[item].split())) for genre in GENRES_100K)
        rows.append(f"{item}|{title}|01-Jan-1995||http://us.imdb.com/M/title-exact?{item}|{flags}\n")
    return zipped({"ml-100k/u.data": ratings, "ml-100k/u.item": "".join(rows).encode("latin-1")})


def recbole_zip() -> bytes:
    folder = "recbole/dataset_example/ml-100k/ml-100k"
    items = (
        "item_id:token\tmovie_title:token_seq\trelease_year:token\tclass:token_seq\n"
        "1\tToy Story\t1995\tAnimation Children's Comedy\n2\tunkonwn\tunkonwn\tunknown\n"
        "3\tMisérables, Les\t1995\tDrama Musical\n"
    )
    header = b"user_id:token\titem_id:token\trating:float\ttimestamp:float\n"
    return zipped({f"{folder}.inter": header + U_DATA, f"{folder}.item": items.encode()})


def same(a: Interactions, b: Interactions) -> bool:
    arrays = all(np.array_equal(getattr(a, key), getattr(b, key)) for key in ("person", "item", "value", "time"))
    return arrays and all(getattr(a, key) == getattr(b, key) for key in ("people", "items", "titles", "genres"))


def unreachable() -> bytes:
    raise OSError("no answer")


def archives(**fetchers) -> tuple[Archive, ...]:
    """The two ways to ML-100K over a small made copy of it; without a fetcher a way is unreachable."""
    contents = {"zip": grouplens_zip(U_DATA, TITLES, FLAGS), "whl": recbole_zip()}
    parsers = {"zip": parse_grouplens_100k, "whl": parse_recbole_100k}
    return tuple(
        Archive(
            file=f"small.{way}",
            sha256=sha(contents[way]),
            origin=f"origin {way}",
            fetch=(lambda way=way: contents[way]) if fetchers.get(way) is True else fetchers.get(way, unreachable),
            parse=lambda opened, way=way: parsers[way](opened, sha(U_DATA)),
        )
        for way in ("zip", "whl")
    )


def test_grouplens_format(tmp_path):
    data = obtain("ml-100k", archives(zip=True), "terms", tmp_path, lambda _: None)
    assert data.name == "ml-100k"
    assert data.people == ("1", "2") and data.items == ("1", "2", "3")
    assert data.person.tolist() == [1, 0, 0] and data.item.tolist() == [0, 2, 1]
    assert data.value.tolist() == [3, 5, 1] and data.time.tolist() == [881250949, 891717742, 878887116]
    assert data.titles == ("Toy Story (1995)", "unknown", "Misérables, Les (1995)")
    assert data.genres == ("Animation, Children's, Comedy", "unknown", "Drama, Musical")
    assert (data.person.dtype, data.item.dtype, data.value.dtype) == (np.int32, np.int32, np.float32)


def test_both_origins_give_the_same_data(tmp_path):
    one = obtain("ml-100k", archives(zip=True), "terms", tmp_path / "a", lambda _: None)
    two = obtain("ml-100k", archives(whl=True), "terms", tmp_path / "b", lambda _: None)
    assert same(one, two)


def test_terms_are_said_when_fetched_and_not_from_the_cache(tmp_path):
    said: list[str] = []
    first = obtain("ml-100k", archives(whl=True), "the terms", tmp_path, said.append)
    assert said.count("the terms") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["small.whl"]
    said.clear()
    assert same(first, obtain("ml-100k", archives(), "the terms", tmp_path, said.append))
    assert said == []


def test_an_archive_put_into_the_cache_by_hand_is_used(tmp_path):
    (tmp_path / "small.zip").write_bytes(grouplens_zip(U_DATA, TITLES, FLAGS))
    assert len(obtain("ml-100k", archives(), "terms", tmp_path, lambda _: None)) == 3


@pytest.mark.parametrize("way", ["zip", "whl"])
def test_a_wrong_checksum_raises_and_keeps_nothing(tmp_path, way):
    with pytest.raises(ChecksumError) as caught:
        obtain("ml-100k", archives(**{way: lambda: b"PK another file"}), "terms", tmp_path, lambda _: None)
    message = str(caught.value)
    assert sha(b"PK another file") in message and f"small.{way}" in message and "Try again" in message
    assert list(tmp_path.iterdir()) == []


def test_wrong_ratings_inside_a_right_archive_raise(tmp_path):
    content = grouplens_zip(U_DATA + b"1\t1\t5\t1\n", TITLES, FLAGS)
    wrong = replace(archives()[0], sha256=sha(content), fetch=lambda: content)
    with pytest.raises(ChecksumError, match="u.data has sha256"):
        obtain("ml-100k", (wrong,), "terms", tmp_path, lambda _: None)
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_cache_is_said_and_fetched_again(tmp_path):
    said: list[str] = []
    good = obtain("ml-100k", archives(zip=True), "terms", tmp_path, said.append)
    content = (tmp_path / "small.zip").read_bytes()
    (tmp_path / "small.zip").write_bytes(content[:-1] + b"x")
    said.clear()
    assert same(good, obtain("ml-100k", archives(zip=True), "terms", tmp_path, said.append))
    assert "small.zip is damaged" in said[0]
    assert (tmp_path / "small.zip").read_bytes() == content


def test_a_damaged_archive_goes_when_the_other_origin_answers(tmp_path):
    (tmp_path / "small.zip").write_bytes(b"torn")
    obtain("ml-100k", archives(whl=True), "terms", tmp_path, lambda _: None)
    assert [path.name for path in tmp_path.iterdir()] == ["small.whl"]


def test_without_network_the_message_says_how_to_go_on(tmp_path):
    with pytest.raises(DataError) as caught:
        obtain("ml-100k", archives(), "terms", tmp_path / "cache", lambda _: None)
    message = str(caught.value)
    assert "origin zip: no answer" in message and "origin whl: no answer" in message
    assert f"Put small.zip into {tmp_path / 'cache'}" in message and "--data synthetic" in message


def test_a_cache_that_cannot_be_written_is_said_and_does_not_stop(tmp_path):
    (tmp_path / "file").write_text("in the way")
    said: list[str] = []
    assert len(obtain("ml-100k", archives(zip=True), "terms", tmp_path / "file", said.append)) == 3
    assert "Not kept" in said[-1]


def test_a_page_instead_of_the_archive_is_no_answer(monkeypatch):
    monkeypatch.setattr("urllib.request.urlopen", lambda *_, **__: io.BytesIO(b"<html>please sign in</html>"))
    with pytest.raises(OSError, match="not a zip"):
        fetch_url("https://example.org/ml-100k.zip")


def test_default_cache_follows_xdg(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache() == tmp_path / "fedtaste"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_cache() == tmp_path / ".cache" / "fedtaste"


@pytest.fixture(scope="module")
def ml_100k() -> Interactions:
    try:
        data = load("ml-100k", cache=default_cache())
    except ChecksumError:
        raise
    except DataError as error:
        pytest.skip(f"needs a network or a cached copy: {error}")
    assert isinstance(data, Interactions)
    return data


def test_ml_100k(ml_100k):
    assert (len(ml_100k.people), len(ml_100k.items), len(ml_100k)) == (943, 1_682, 100_000)
    assert ml_100k.people == tuple(str(i) for i in range(1, 944))
    assert ml_100k.items == tuple(str(i) for i in range(1, 1_683))
    assert ml_100k.titles[ml_100k.items.index("50")] == "Star Wars (1977)"
    assert ml_100k.titles[266] == "unknown" and ml_100k.genres[0] == "Animation, Children's, Comedy"
    first = (ml_100k.person[0], ml_100k.item[0], ml_100k.value[0], ml_100k.time[0])
    assert first == (195, 241, 3, 881250949)
    counts = np.bincount(ml_100k.value.astype(int)).tolist()
    assert counts == [0, 6110, 11370, 27145, 34174, 21201]


def test_ml_100k_in_the_format_of_grouplens_is_the_same(ml_100k, tmp_path):
    rows = zip(ml_100k.person + 1, ml_100k.item + 1, ml_100k.value, ml_100k.time)
    ratings = "".join(f"{p}\t{i}\t{v:.0f}\t{t:.0f}\n" for p, i, v, t in rows).encode()
    titles = dict(zip(ml_100k.items, ml_100k.titles))
    genres = {item: text.replace(",", "") for item, text in zip(ml_100k.items, ml_100k.genres)}
    content = grouplens_zip(ratings, titles, genres)
    archive = replace(ML_100K[0], sha256=sha(content), fetch=lambda: content)  # with the real checksum of the ratings
    assert same(ml_100k, obtain("ml-100k", (archive,), "terms", tmp_path, lambda _: None))


def test_ml_100k_survives_saving(ml_100k, tmp_path):
    save(ml_100k, tmp_path / "ml.parquet")
    assert same(ml_100k, read_interactions(tmp_path / "ml.parquet"))


def test_every_source_says_what_it_is():
    for name, source in SOURCES.items():
        assert name == source.name and source.about and source.terms and source.how in ("fetched", "by hand", "made")
        assert source.people != 0 and source.items != 0 and source.interactions != 0


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("ml-100", ['"ml-100" is not a data set', 'Did you mean "ml-100k"', "path"]),
        ("no/such/file.csv", ["no/such/file.csv", "synthetic", "no such path"]),
        ("x" * 5_000, ["is not a data set"]),
        ("~nobody-here/x.csv", ["is not a data set"]),
        ("nul\0.csv", ["is not a data set"]),
        ("synthetic:10x10", ['"10x10"', "PEOPLExITEMSxINTERACTIONS"]),
        ("synthetic:-1x10x10", ['"-1x10x10"', "synthetic:600x400x24000"]),
        ("synthetic:10x10x51", ["51 interactions", "50 (half of all pairs)"]),
        ("synthetic:10x10x9", ["9 interactions", "from 10 interactions"]),
        ("synthetic:10x1x10", ["1 items", "2 items"]),
        ("linear:3", ["linear:3", "leave"]),
        ("ml-100k:3", ["ml-100k:3", "leave"]),
    ],
)
def test_unknown_names_and_sizes(name, parts):
    with pytest.raises(DataError) as caught:
        load(name)
    assert all(part in str(caught.value) for part in parts), str(caught.value)


def test_a_file_of_another_kind(tmp_path):
    (tmp_path / "ratings.xlsx").write_bytes(b"PK")
    with pytest.raises(DataError, match=r"ratings.xlsx is of no known format.*\.csv.*rename"):
        load(str(tmp_path / "ratings.xlsx"))


def test_load_by_name():
    small = load("Synthetic:50x40x500", seed=3)
    assert isinstance(small, Interactions) and len(small) == 500
    assert same(small, synthetic(50, 40, 500, seed=3))
    assert isinstance(load("linear"), Supervised)
    source = SOURCES["synthetic"]
    default = synthetic()
    assert (len(default.people), len(default.items), len(default)) == (source.people, source.items, source.interactions)
    data = linear()
    examples = sum(len(y) for y in data.targets + data.test_targets)
    assert len(data.targets) == SOURCES["linear"].people and abs(examples - SOURCES["linear"].interactions) < 100


@pytest.mark.parametrize(
    ("people", "items", "interactions"),
    [(600, 400, 24_000), (1, 2, 1), (3, 3, 4), (2, 2, 2), (40, 10, 200), (100, 50, 130), (1, 40, 20), (30, 5000, 300)],
)
def test_synthetic_is_exact(people, items, interactions):
    data = synthetic(people, items, interactions)
    assert (len(data.people), len(data.items), len(data)) == (people, items, interactions)
    assert len(np.unique(data.person.astype(np.int64) * items + data.item)) == interactions
    lengths = np.bincount(data.person, minlength=people)
    assert lengths.min() >= min(5, interactions // people, items * 3 // 4)
    assert set(np.unique(data.value)) <= {1, 2, 3, 4, 5}
    steps, own = np.diff(data.time), np.diff(data.person) == 0
    assert (steps[own] > 0).all() and (data.time == np.floor(data.time)).all()
    assert len(set(data.titles)) == items == len(data.genres) and all(data.genres)


def test_synthetic_is_reproducible():
    one, two, other = synthetic(seed=5), synthetic(seed=5), synthetic(seed=6)
    for key in ("person", "item", "value", "time"):
        assert getattr(one, key).tobytes() == getattr(two, key).tobytes()
    assert (one.titles, one.genres) == (two.titles, two.genres)
    assert one.item.tobytes() != other.item.tobytes() and one.titles != other.titles


def test_synthetic_popularity_and_activity_have_heavy_tails():
    data = synthetic(1_000, 1_000, 60_000)
    popularity = np.sort(np.bincount(data.item, minlength=1_000))[::-1]
    activity = np.sort(np.bincount(data.person, minlength=1_000))[::-1]
    assert popularity[:100].sum() > 0.25 * len(data)
    assert activity[:100].sum() > 0.25 * len(data)
    # Item numbers must not give popularity away.
    assert abs(np.corrcoef(np.arange(1_000), np.bincount(data.item, minlength=1_000))[0, 1]) < 0.1


def test_synthetic_taste_is_there_and_moves():
    data = synthetic(1_000, 500, 60_000)
    _, genre = np.unique([text.split(", ")[0] for text in data.genres], return_inverse=True)
    histories = data.histories()
    chance = np.square(np.bincount(genre[data.item]) / len(data)).sum()

    def alike(near: int) -> float:
        """How often a person's item and the one `near` places later are of one genre."""
        together = histories.owners[near:] == histories.owners[:-near]
        return float((genre[histories.items[near:]] == genre[histories.items[:-near]])[together].mean())

    assert alike(1) > 1.5 * chance
    assert alike(1) > alike(30) + 0.03
    # People rate what suits them: the genre they take most is rated above the one they take least.
    taken = np.zeros((1_000, genre.max() + 1))
    np.add.at(taken, (data.person, genre[data.item]), 1)
    share = taken[data.person, genre[data.item]] / taken.sum(1)[data.person]
    assert np.corrcoef(share, data.value)[0, 1] > 0.2


def test_synthetic_titles_stay_readable_when_words_run_out():
    data = synthetic(10, 4_001, 100)
    assert len(set(data.titles)) == 4_001
    assert sum(title.endswith(" 2") for title in data.titles) == 2_000 and data.titles[4_000].endswith(" 3")


def test_synthetic_survives_saving(tmp_path):
    data = synthetic(60, 40, 1_000)
    save(data, tmp_path / "made.csv")
    assert set(range(40)) == set(data.item.tolist())
    assert same(data, read_interactions(tmp_path / "made.csv"))


def test_linear_has_one_true_weight_vector():
    data = linear(seed=1)
    assert data.task == "regression" and len(data.features) == len(data.test_targets) == 10
    for x, y, tx, ty in zip(data.features, data.targets, data.test_features, data.test_targets):
        assert x.shape == (len(y), 5) and tx.shape == (len(ty), 5) and x.dtype == y.dtype == np.float32
        assert len(ty) == (len(y) + len(ty)) // 5 and 80 <= len(y) + len(ty) <= 120
        np.testing.assert_allclose(tx @ data.truth, ty, atol=1e-5)
    found = np.linalg.lstsq(np.concatenate(data.features), np.concatenate(data.targets), rcond=None)[0]
    np.testing.assert_allclose(found, data.truth, atol=1e-5)
    assert len({len(y) for y in data.targets}) > 1


def test_linear_noise_and_seed():
    quiet, noisy, other = linear(seed=1), linear(noise=0.5, seed=1), linear(seed=2)
    assert quiet.features[3].tobytes() == linear(seed=1).features[3].tobytes() != other.features[3].tobytes()
    left = np.concatenate([y - x @ noisy.truth for x, y in zip(noisy.features, noisy.targets)])
    assert 0.45 < left.std() < 0.55
    with pytest.raises(DataError, match="clients=0.*Expected at least 1 client"):
        linear(clients=0)


def test_sources_can_be_added_in_one_entry(monkeypatch):
    two = replace(SOURCES["linear"], name="two", generate=lambda options, seed: synthetic(2, 4, 4, seed=seed))
    monkeypatch.setitem(sources.SOURCES, "two", two)
    assert len(load("two")) == 4
