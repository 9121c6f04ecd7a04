"""Named data sets and paths -> data. `SOURCES` is the list; a new data set is one entry, and a parser if it is fetched.

ML-100K may not be shipped, so it is fetched from GroupLens or, where only a package index is reachable, through pip out
of the RecBole wheel, which carries it; the ratings in both are the same bytes.
"""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import polars as pl

from ..errors import DataError, did_you_mean
from .archives import Archive, Say, default_cache, fetch_url, fetch_wheel, obtain, verify
from .importing import BroughtSplit, read_interactions, read_split
from .interactions import Interactions
from .supervised import Supervised, linear
from .synthetic import synthetic
from .tables import ENDINGS, is_table

Rows = list[tuple[str, str, str]]  # item, title, genres


@dataclass(frozen=True)
class Source:
    """A data set that has a name."""

    name: str
    about: str
    people: int
    items: int
    interactions: int
    terms: str
    loader: Callable[[str, int, Path, Say], Interactions | Supervised]  # what follows the ":", seed, cache, say


def load(
    name_or_path: str, *, seed: int = 0, cache: Path | None = None, say: Say = lambda _: None
) -> Interactions | BroughtSplit | Supervised:
    """A name of `SOURCES` (`synthetic` also with a size), a file with columns user and item, or a folder with a split.

    `say` is told what a person should know: that something is fetched, under which terms, or that a cache is damaged.
    A name comes before a path of the same name; write ./NAME for the path.
    """
    name, _, size = name_or_path.partition(":")
    if name.lower() in SOURCES:
        return SOURCES[name.lower()].loader(size, seed, cache or default_cache(), say)
    path = Path(os.path.expanduser(name_or_path))
    if os.path.isdir(path):  # unlike Path.is_dir this is False, not an error, for text that cannot be a path
        return read_split(path)
    if not os.path.exists(path):
        hint = "The path of a CSV or Parquet file, or of a folder with train.csv and test.csv, may be given as well"
        raise DataError(f"{did_you_mean(name_or_path, SOURCES, 'data set')} {hint}; no such path exists.")
    if not os.path.isfile(path):
        raise DataError(f"{path} is not a regular file. Expected a CSV or Parquet file, or a folder with a split.")
    if not is_table(path):
        raise DataError(f"{path} is of no known format. Expected a name that ends in {', '.join(ENDINGS)}; rename it.")
    return read_interactions(path)


def from_movielens(name: str, ratings: bytes, rows: Rows) -> Interactions:
    """user, item, rating, timestamp between tabs, without a header; people and items are numbered from 1."""
    names = ["user", "item", "rating", "timestamp"]
    frame = pl.read_csv(io.BytesIO(ratings), separator="\t", has_header=False, new_columns=names)
    rows = sorted(rows, key=lambda row: int(row[0]))
    return Interactions(
        name=name,
        person=(frame["user"] - 1).cast(pl.Int32).to_numpy().copy(),
        item=(frame["item"] - 1).cast(pl.Int32).to_numpy().copy(),
        people=tuple(str(i) for i in range(1, int(frame["user"].n_unique()) + 1)),
        items=tuple(item for item, _, _ in rows),
        value=frame["rating"].cast(pl.Float32).to_numpy().copy(),
        time=frame["timestamp"].cast(pl.Float64).to_numpy().copy(),
        titles=tuple(title for _, title, _ in rows),
        genres=tuple(genres for _, _, genres in rows),
    )


def parse_grouplens_100k(archive: zipfile.ZipFile, ratings_sha256: str) -> Interactions:
    """u.item is Latin-1: number|title (year)|date|date|link|19 flags, one for each genre."""
    lines = archive.read("ml-100k/u.item").decode("latin-1").splitlines()
    rows = []
    for fields in (line.split("|") for line in lines if line):
        held = [genre for genre, flag in zip(GENRES_100K, fields[5:]) if flag == "1"]
        rows.append((fields[0], fields[1].strip(), ", ".join(held)))
    ratings = verify("u.data", archive.read("ml-100k/u.data"), ratings_sha256)
    return from_movielens("ml-100k", ratings, rows)


def parse_recbole_100k(archive: zipfile.ZipFile, ratings_sha256: str) -> Interactions:
    """RecBole's copy: the ratings as published under a header; title and year apart; genres between spaces."""
    folder = "recbole/dataset_example/ml-100k/ml-100k"
    rows = []
    for line in archive.read(f"{folder}.item").decode().splitlines()[1:]:
        item, title, year, genres = line.split("\t")
        unknown = title == "unkonwn"  # as it stands there, for the one film that GroupLens calls "unknown"
        rows.append((item, "unknown" if unknown else f"{title} ({year})", ", ".join(genres.split())))
    ratings = verify("ml-100k.inter", archive.read(f"{folder}.inter").partition(b"\n")[2], ratings_sha256)
    return from_movielens("ml-100k", ratings, rows)


def load_ml_100k(size: str, _seed: int, cache: Path, say: Say) -> Interactions:
    no_size("ml-100k", size)
    return obtain("ml-100k", ML_100K, GROUPLENS, cache, say)


def load_synthetic(size: str, seed: int, _cache: Path, _say: Say) -> Interactions:
    parts = size.lower().split("x")
    if not size:
        return synthetic(seed=seed)
    if len(parts) != 3 or not all(part.isascii() and part.isdigit() for part in parts):
        raise DataError(f'"{size}" is not a size. Expected PEOPLExITEMSxINTERACTIONS, as in synthetic:600x400x24000.')
    return synthetic(*(int(part) for part in parts), seed=seed)


def load_linear(size: str, seed: int, _cache: Path, _say: Say) -> Supervised:
    no_size("linear", size)
    return linear(seed=seed)


def no_size(name: str, size: str) -> None:
    if size:
        raise DataError(f'"{name}:{size}": {name} comes in one size. Expected {name}; leave ":{size}" out.')


GENRES_100K = (
    "unknown", "Action", "Adventure", "Animation", "Children's", "Comedy", "Crime", "Documentary", "Drama", "Fantasy",
    "Film-Noir", "Horror", "Musical", "Mystery", "Romance", "Sci-Fi", "Thriller", "War", "Western",
)  # fmt: skip
ML_100K_RATINGS = "06416e597f82b7342361e41163890c81036900f418ad91315590814211dca490"
ML_100K = (
    Archive(
        file="ml-100k.zip",
        sha256="50d2a982c66986937beb9ffb3aa76efe955bf3d5c6b761f4e3a7cd717c6a3229",
        origin="GroupLens",
        fetch=partial(fetch_url, "https://files.grouplens.org/datasets/movielens/ml-100k.zip"),
        parse=partial(parse_grouplens_100k, ratings_sha256=ML_100K_RATINGS),
    ),
    Archive(
        file="recbole-1.2.1-py3-none-any.whl",
        sha256="9c9948202011f37eb0a7c6768129313f00d6403ad221ec940d5e2d5d5f33a407",
        origin="the RecBole 1.2.1 wheel",
        fetch=partial(fetch_wheel, "recbole==1.2.1", "recbole-1.2.1-py3-none-any.whl"),
        parse=partial(parse_recbole_100k, ratings_sha256=ML_100K_RATINGS),
    ),
)
GROUPLENS = (
    "MovieLens data are by GroupLens, University of Minnesota: for research; not to be passed on, nor used "
    "commercially, without their permission. In publications cite Harper and Konstan (2015), The MovieLens Datasets, "
    "ACM TiiS 5(4)."
)
SOURCES: dict[str, Source] = {
    source.name: source
    for source in (
        Source(
            "ml-100k", "MovieLens: people rate films, 1997-1998", 943, 1_682, 100_000, GROUPLENS,
            load_ml_100k,
        ),
        Source(
            "synthetic", "a made world with planted tastes; synthetic:PEOPLExITEMSxINTERACTIONS for another size",
            600, 400, 24_000, "Made here; free to use.", load_synthetic,
        ),
        Source(
            "linear", "linear regression over 10 clients with 5 features and one true weight vector",
            10, 5, 1_000, "Made here; free to use.", load_linear,
        ),
    )
}  # fmt: skip
