"""Named data sets, the cache of fetched archives, and synthetic data."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

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
from support.errors import raises_with
from support.files import same_interactions, sha256, zip_of

U_DATA = b"2\t1\t3\t881250949\n1\t3\t5\t891717742\n1\t2\t1\t878887116\n"
FLAGS = {"1": "Animation Children's Comedy", "2": "unknown", "3": "Drama Musical"}
TITLES = {"1": "Toy Story (1995)", "2": "unknown", "3": "Misérables, Les (1995)"}


def grouplens_zip(ratings: bytes, titles: dict[str, str], genres: dict[str, str]) -> bytes:
    """ML-100K in the format of GroupLens: u.data, and u.item in Latin-1 with a flag for each genre."""
    rows = []
    for item, title in titles.items():
        flags = "|".join(str(int(genre in genres[item].split())) for genre in GENRES_100K)
        rows.append(f"{item}|{title}|01-Jan-1995||http://us.imdb.com/M/title-exact?{item}|{flags}\n")
    return zip_of({"ml-100k/u.data": ratings, "ml-100k/u.item": "".join(rows).encode("latin-1")})


def recbole_zip() -> bytes:
    """The same data in the format of RecBole's package."""
    folder = "recbole/dataset_example/ml-100k/ml-100k"
    items = (
        "item_id:token\tmovie_title:token_seq\trelease_year:token\tclass:token_seq\n"
        "1\tToy Story\t1995\tAnimation Children's Comedy\n2\tunkonwn\tunkonwn\tunknown\n"
        "3\tMisérables, Les\t1995\tDrama Musical\n"
    )
    header = b"user_id:token\titem_id:token\trating:float\ttimestamp:float\n"
    return zip_of({f"{folder}.inter": header + U_DATA, f"{folder}.item": items.encode()})


def unreachable() -> bytes:
    raise OSError("no answer")


def archives(**fetchers) -> tuple[Archive, ...]:
    """The two origins of ML-100K with a small copy of it; an origin without a fetcher is unreachable."""
    contents = {"zip": grouplens_zip(U_DATA, TITLES, FLAGS), "whl": recbole_zip()}
    parsers = {"zip": parse_grouplens_100k, "whl": parse_recbole_100k}
    return tuple(
        Archive(
            file=f"small.{origin}",
            sha256=sha256(contents[origin]),
            origin=f"origin {origin}",
            fetch=(lambda origin=origin: contents[origin])
            if fetchers.get(origin) is True
            else fetchers.get(origin, unreachable),
            parse=lambda opened, origin=origin: parsers[origin](opened, sha256(U_DATA)),
        )
        for origin in ("zip", "whl")
    )


def fetch(cache: Path, *sources: Archive, log=lambda _: None, **fetchers) -> Interactions:
    """ML-100K from these archives, or from `archives(**fetchers)`."""
    return obtain("ml-100k", sources or archives(**fetchers), "the terms", cache, log)


def test_grouplens_format_is_read(tmp_path):
    data = fetch(tmp_path, zip=True)
    assert data.name == "ml-100k"
    assert data.people == ("1", "2") and data.items == ("1", "2", "3")
    assert data.person.tolist() == [1, 0, 0] and data.item.tolist() == [0, 2, 1]
    assert data.value.tolist() == [3, 5, 1] and data.time.tolist() == [881250949, 891717742, 878887116]
    assert data.titles == ("Toy Story (1995)", "unknown", "Misérables, Les (1995)")
    assert data.genres == ("Animation, Children's, Comedy", "unknown", "Drama, Musical")
    assert (data.person.dtype, data.item.dtype, data.value.dtype) == (np.int32, np.int32, np.float32)


def test_both_origins_give_the_same_data(tmp_path):
    assert same_interactions(fetch(tmp_path / "a", zip=True), fetch(tmp_path / "b", whl=True))


def test_terms_are_logged_when_fetched_and_not_from_the_cache(tmp_path):
    messages: list[str] = []
    data = fetch(tmp_path, whl=True, log=messages.append)
    assert messages.count("the terms") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["small.whl"]
    messages.clear()
    assert same_interactions(data, fetch(tmp_path, log=messages.append))
    assert messages == []


def test_an_archive_put_into_the_cache_by_hand_is_used(tmp_path):
    (tmp_path / "small.zip").write_bytes(grouplens_zip(U_DATA, TITLES, FLAGS))
    assert len(fetch(tmp_path)) == 3


@pytest.mark.parametrize("origin", ["zip", "whl"])
def test_a_wrong_checksum_raises_and_keeps_nothing(tmp_path, origin):
    with raises_with(ChecksumError, f"small.{origin}", sha256(b"PK another file"), "Try again"):
        fetch(tmp_path, **{origin: lambda: b"PK another file"})
    assert list(tmp_path.iterdir()) == []


def test_wrong_ratings_inside_an_archive_with_the_right_checksum_raise(tmp_path):
    content = grouplens_zip(U_DATA + b"1\t1\t5\t1\n", TITLES, FLAGS)
    wrong = replace(archives()[0], sha256=sha256(content), fetch=lambda: content)
    with pytest.raises(ChecksumError, match="u.data has sha256"):
        fetch(tmp_path, wrong)
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_cache_is_logged_and_fetched_again(tmp_path):
    messages: list[str] = []
    data = fetch(tmp_path, zip=True)
    content = (tmp_path / "small.zip").read_bytes()
    (tmp_path / "small.zip").write_bytes(content[:-1] + b"x")
    assert same_interactions(data, fetch(tmp_path, zip=True, log=messages.append))
    assert "small.zip is damaged" in messages[0]
    assert (tmp_path / "small.zip").read_bytes() == content


def test_a_damaged_archive_is_removed_when_the_other_origin_answers(tmp_path):
    (tmp_path / "small.zip").write_bytes(b"torn")
    fetch(tmp_path, whl=True)
    assert [path.name for path in tmp_path.iterdir()] == ["small.whl"]


def test_without_network_the_error_names_the_origins_and_what_to_do(tmp_path):
    cache = tmp_path / "cache"
    parts = ("origin zip: no answer", "origin whl: no answer", f"Put small.zip into {cache}", "--data synthetic")
    with raises_with(DataError, *parts):
        fetch(cache)


def test_a_cache_that_cannot_be_written_is_logged_and_the_data_are_used(tmp_path):
    (tmp_path / "file").write_text("a file in place of the folder")
    messages: list[str] = []
    assert len(fetch(tmp_path / "file", zip=True, log=messages.append)) == 3
    assert "Not kept" in messages[-1]


def test_a_web_page_in_place_of_the_archive_is_refused(monkeypatch):
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


def test_ml_100k_has_the_published_counts(ml_100k):
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
    archive = replace(
        ML_100K[0], sha256=sha256(content), fetch=lambda: content
    )  # with the real checksum of the ratings
    assert same_interactions(ml_100k, fetch(tmp_path, archive))


def test_ml_100k_is_read_back_unchanged_after_saving(ml_100k, tmp_path):
    save(ml_100k, tmp_path / "ml.parquet")
    assert same_interactions(ml_100k, read_interactions(tmp_path / "ml.parquet"))


def test_every_source_has_a_description_terms_and_sizes():
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
def test_unknown_names_and_wrong_sizes_are_refused(name, parts):
    with raises_with(DataError, *parts):
        load(name)


def test_a_file_of_unknown_format_is_refused(tmp_path):
    (tmp_path / "ratings.xlsx").write_bytes(b"PK")
    with raises_with(DataError, "ratings.xlsx", ".csv", "rename"):
        load(str(tmp_path / "ratings.xlsx"))


def test_load_finds_sources_by_name_and_size():
    small = load("Synthetic:50x40x500", seed=3)
    assert isinstance(small, Interactions) and len(small) == 500
    assert same_interactions(small, synthetic(50, 40, 500, seed=3))
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
def test_synthetic_has_the_sizes_asked_for(people, items, interactions):
    data = synthetic(people, items, interactions)
    assert (len(data.people), len(data.items), len(data)) == (people, items, interactions)
    assert len(np.unique(data.person.astype(np.int64) * items + data.item)) == interactions
    lengths = np.bincount(data.person, minlength=people)
    assert lengths.min() >= min(5, interactions // people, items * 3 // 4)
    assert set(np.unique(data.value)) <= {1, 2, 3, 4, 5}
    steps, same_person = np.diff(data.time), np.diff(data.person) == 0
    assert (steps[same_person] > 0).all() and (data.time == np.floor(data.time)).all()
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
    # Item numbers must not be correlated with popularity.
    assert abs(np.corrcoef(np.arange(1_000), np.bincount(data.item, minlength=1_000))[0, 1]) < 0.1


def test_synthetic_people_have_tastes_that_drift():
    data = synthetic(1_000, 500, 60_000)
    _, genre = np.unique([text.split(", ")[0] for text in data.genres], return_inverse=True)
    histories = data.histories()
    chance = np.square(np.bincount(genre[data.item]) / len(data)).sum()

    def same_genre(lag: int) -> float:
        """How often a person's item and the one `lag` places later have the same genre."""
        same_person = histories.owners[lag:] == histories.owners[:-lag]
        return float((genre[histories.items[lag:]] == genre[histories.items[:-lag]])[same_person].mean())

    assert same_genre(1) > 1.5 * chance
    assert same_genre(1) > same_genre(30) + 0.03
    # People rate the genres that they choose often above those that they choose seldom.
    counts = np.zeros((1_000, genre.max() + 1))
    np.add.at(counts, (data.person, genre[data.item]), 1)
    share = counts[data.person, genre[data.item]] / counts.sum(1)[data.person]
    assert np.corrcoef(share, data.value)[0, 1] > 0.2


def test_synthetic_titles_get_numbers_when_words_run_out():
    data = synthetic(10, 4_001, 100)
    assert len(set(data.titles)) == 4_001
    assert sum(title.endswith(" 2") for title in data.titles) == 2_000 and data.titles[4_000].endswith(" 3")


def test_synthetic_is_read_back_unchanged_after_saving(tmp_path):
    data = synthetic(60, 40, 1_000)
    save(data, tmp_path / "synthetic.csv")
    assert set(range(40)) == set(data.item.tolist())
    assert same_interactions(data, read_interactions(tmp_path / "synthetic.csv"))


def test_linear_has_one_true_weight_vector():
    data = linear(seed=1)
    assert data.task == "regression" and len(data.features) == len(data.test_targets) == 10
    for x, y, tx, ty in zip(data.features, data.targets, data.test_features, data.test_targets):
        assert x.shape == (len(y), 5) and tx.shape == (len(ty), 5) and x.dtype == y.dtype == np.float32
        assert len(ty) == (len(y) + len(ty)) // 5 and 80 <= len(y) + len(ty) <= 120
        np.testing.assert_allclose(tx @ data.truth, ty, atol=1e-5)
    estimate = np.linalg.lstsq(np.concatenate(data.features), np.concatenate(data.targets), rcond=None)[0]
    np.testing.assert_allclose(estimate, data.truth, atol=1e-5)
    assert len({len(y) for y in data.targets}) > 1


def test_linear_has_the_noise_asked_for_and_depends_on_the_seed():
    quiet, noisy, other = linear(seed=1), linear(noise=0.5, seed=1), linear(seed=2)
    assert quiet.features[3].tobytes() == linear(seed=1).features[3].tobytes() != other.features[3].tobytes()
    residuals = np.concatenate([y - x @ noisy.truth for x, y in zip(noisy.features, noisy.targets)])
    assert 0.45 < residuals.std() < 0.55
    with pytest.raises(DataError, match="clients=0.*at least 1"):
        linear(clients=0)


def test_sources_can_be_added_in_one_entry(monkeypatch):
    two = replace(SOURCES["linear"], name="two", generate=lambda options, seed: synthetic(2, 4, 4, seed=seed))
    monkeypatch.setitem(sources.SOURCES, "two", two)
    assert len(load("two")) == 4
