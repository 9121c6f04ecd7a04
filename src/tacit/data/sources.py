"""Named data sets and paths -> data. `SOURCES` is the list; a new data set is one entry, and a parser in publishers.py.

No data set may be shipped. What GroupLens offers is fetched and held to its checksum; ML-100K, where only a package
index is reachable, through pip out of the RecBole wheel, which carries the same ratings. What wants an account, or a
licence to be accepted, a person puts into the cache; it is held to the FedRAP paper's counts, and a difference is said.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ..errors import DataError, did_you_mean
from .archives import Archive, ByHand, Say, bring, default_cache, fetch_url, fetch_wheel, obtain
from .digits import digits, shifted_digits
from .domains import domains, looks_like_domains
from .generated import least_squares, logistic
from .importing import BroughtSplit, read_interactions, read_split
from .interactions import Interactions
from .options import read_options, split_path
from .publishers import (
    parse_amazon_video,
    parse_grouplens_100k,
    parse_lastfm,
    parse_ml_1m,
    parse_qb_article,
    parse_recbole_100k,
    parse_tafeng,
)
from .supervised import Supervised, linear
from .synthetic import synthetic
from .tables import ENDINGS, is_table


@dataclass(frozen=True)
class Source:
    """A data set that has a name."""

    name: str
    about: str
    how: str  # fetched, by hand, or made
    people: int | None  # or clients; None: not known
    items: int | None  # or features
    interactions: int | None  # or examples, for training and testing
    terms: str
    loader: Callable[[str, int, Path, Say], Interactions | Supervised]  # what follows the ":", seed, cache, say


def load(
    name_or_path: str, *, seed: int = 0, cache: Path | None = None, say: Say = lambda _: None
) -> Interactions | BroughtSplit | Supervised:
    """A name of `SOURCES`, a file with columns, or a folder with a split or with domains.

    A name may have a size or options after a colon: `synthetic:60x40x500`, `tafeng:customers`, `logistic:R=0.1`.
    `say` is told what a person should know: that something is fetched, under which terms, or that a cache is damaged.
    A name comes before a path of the same name; write ./NAME for the path.
    """
    name, _, size = name_or_path.partition(":")
    if name.lower() in SOURCES:
        return SOURCES[name.lower()].loader(size, seed, cache or default_cache(), say)
    path = Path(os.path.expanduser(name_or_path))
    if os.path.isdir(path):  # unlike Path.is_dir this is False, not an error, for text that cannot be a path
        return domains(path, seed=seed) if looks_like_domains(path) else read_split(path)
    if not os.path.exists(path):
        hint = "The path of a CSV or Parquet file, or of a folder with a split or with domains, may be given as well"
        close = name if "=" in name_or_path[len(name) :] else name_or_path  # options would hide a near miss
        raise DataError(f"{did_you_mean(close, SOURCES, 'data set')} {hint}; no such path exists.")
    if not os.path.isfile(path):
        raise DataError(f"{path} is not a regular file. Expected a CSV or Parquet file, or a folder with a split.")
    if not is_table(path):
        raise DataError(f"{path} is of no known format. Expected a name that ends in {', '.join(ENDINGS)}; rename it.")
    return read_interactions(path)


def load_ml_100k(size: str, _seed: int, cache: Path, say: Say) -> Interactions:
    no_size("ml-100k", size)
    return obtain("ml-100k", ML_100K, GROUPLENS, cache, say)


def load_ml_1m(size: str, _seed: int, cache: Path, say: Say) -> Interactions:
    no_size("ml-1m", size)
    return as_in_paper("ml-1m", obtain("ml-1m", ML_1M, GROUPLENS, cache, say))


def load_lastfm(size: str, _seed: int, cache: Path, say: Say) -> Interactions:
    no_size("lastfm", size)
    return as_in_paper("lastfm", obtain("lastfm", LASTFM, HETREC, cache, say))


def load_amazon_video(size: str, _seed: int, cache: Path, _say: Say) -> Interactions:
    no_size("amazon-video", size)
    return as_in_paper("amazon-video", bring("amazon-video", AMAZON_VIDEO, cache, parse_amazon_video))


def load_tafeng(reading: str, _seed: int, cache: Path, _say: Say) -> Interactions:
    if reading not in ("", "customers"):
        raise DataError(f'"tafeng:{reading}" is not a reading of tafeng. Expected tafeng or tafeng:customers.')
    data = bring("tafeng", TAFENG, cache, partial(parse_tafeng, reading=reading))
    return data if reading else as_in_paper("tafeng", data)


def load_qb_article(size: str, _seed: int, cache: Path, _say: Say) -> Interactions:
    no_size("qb-article", size)
    return as_in_paper("qb-article", bring("qb-article", QB_ARTICLE, cache, parse_qb_article))


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


def load_logistic(text: str, seed: int, _cache: Path, _say: Say) -> Supervised:
    return logistic(**read_options("logistic", text, LOGISTIC), seed=seed)


def load_least_squares(text: str, seed: int, _cache: Path, _say: Say) -> Supervised:
    return least_squares(**read_options("least-squares", text, LEAST_SQUARES), seed=seed)


def load_digits(text: str, seed: int, _cache: Path, _say: Say) -> Supervised:
    return digits(**read_options("digits", text, DIGITS), seed=seed)


def load_shifted_digits(text: str, seed: int, _cache: Path, _say: Say) -> Supervised:
    return shifted_digits(**read_options("shifted-digits", text, {"examples": ("examples", int)}), seed=seed)


def load_domains(text: str, seed: int, _cache: Path, _say: Say) -> Supervised:
    path, options = split_path(text)
    if not path or "=" in path and not os.path.exists(path):
        raise DataError(
            f'"domains:{text}" names no folder. Expected domains:PATH, or domains:PATH,size=16,examples=200; the '
            "folder has a .npz file, or a folder of images by class, for each domain."
        )
    return domains(Path(os.path.expanduser(path)), **read_options(f"domains:{path}", options, DOMAINS), seed=seed)


def as_in_paper(name: str, data: Interactions) -> Interactions:
    """With a note where the counts are not the FedRAP paper's; other data is still data."""
    source = SOURCES[name]
    got = len(data.people), len(data.items), len(data)
    expected = source.people, source.items, source.interactions
    if all(b in (a, None) for a, b in zip(got, expected)):
        return data
    texts = [" x ".join("any" if n is None else f"{n:,}" for n in counts) for counts in (got, expected)]
    return data.noted(f"People x items x interactions differ from the paper's: got {texts[0]}, expected {texts[1]}.")


def no_size(name: str, size: str) -> None:
    if size:
        raise DataError(f'"{name}:{size}": {name} comes in one size. Expected {name}; leave ":{size}" out.')


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
ML_1M = (
    Archive(
        file="ml-1m.zip",
        sha256="a6898adb50b9ca05aa231689da44c217cb524e7ebd39d264c56e2832f2c54e20",
        origin="GroupLens",
        fetch=partial(fetch_url, "https://files.grouplens.org/datasets/movielens/ml-1m.zip"),
        parse=parse_ml_1m,
    ),
)
LASTFM = (
    Archive(
        file="hetrec2011-lastfm-2k.zip",
        sha256="6738f48195667ff03caaab4d32ca9a3133d8cc026b7c3cdaf6ce1010e913c59c",
        origin="GroupLens",
        fetch=partial(fetch_url, "https://files.grouplens.org/datasets/hetrec2011/hetrec2011-lastfm-2k.zip"),
        parse=parse_lastfm,
    ),
)
AMAZON_VIDEO = ByHand(
    files=("ratings_Amazon_Instant_Video.csv", "amazon-video.csv"),
    where="the Amazon product data of 2014 by Julian McAuley, UCSD (ratings only, Amazon Instant Video): "
    "https://jmcauley.ucsd.edu/data/amazon/",
)
TAFENG = ByHand(
    files=("ta_feng_all_months_merged.csv", "tafeng.csv"),
    where="Kaggle, with an account: https://www.kaggle.com/datasets/chiranjivdas09/ta-feng-grocery-dataset",
)
QB_ARTICLE = ByHand(
    files=("QB-article.csv", "qb-article.csv"),
    where="Tenrec by Tencent, after its licence is accepted: "
    "https://static.qblv.qq.com/qblv/h5/algo-frontend/tenrec_dataset.html",
)
GROUPLENS = (
    "MovieLens data are by GroupLens, University of Minnesota: for research; not to be passed on, nor used "
    "commercially, without their permission. In publications cite Harper and Konstan (2015), The MovieLens Datasets, "
    "ACM TiiS 5(4)."
)
HETREC = (
    "The HetRec 2011 Last.fm data are by the Information Retrieval Group, Universidad Autonoma de Madrid: for "
    "non-commercial use. In publications cite Last.fm and Cantador, Brusilovsky and Kuflik (2011), HetRec, RecSys 2011."
)
AMAZON = "Collected by Julian McAuley, UCSD, for research. In publications cite the paper that his page names."
TA_FENG = "No terms are stated that we know of; ask where you get it."
TENREC = "CC BY-NC 4.0, by Tencent. In publications cite Yuan et al. (2022), Tenrec, NeurIPS 2022."
OURS = "Made here; free to use."
OPTDIGITS = "CC BY 4.0, by Alpaydin and Kaynak (1998), UCI Machine Learning Repository; comes with scikit-learn."
THEIRS = "Those of the data that you bring."
SIZES = {"clients": ("clients", int), "examples": ("examples", int), "features": ("features", int)}
LOGISTIC = {"R": ("spread", float), **SIZES, "classes": ("classes", int)}
LEAST_SQUARES = {"R": ("spread", float), "condition": ("condition", float), "noise": ("noise", float), **SIZES}
DIGITS = {"skew": ("skew", int), "dirichlet": ("alpha", float), "clients": ("clients", int)}
DOMAINS = {
    "size": ("size", int), "examples": ("examples", int), "tests": ("tests", int), "optdigits": ("optdigits", bool)
}  # fmt: skip
SOURCES: dict[str, Source] = {
    source.name: source
    for source in (
        Source(
            "ml-100k", "MovieLens: people rate films, 1997-1998", "fetched", 943, 1_682, 100_000, GROUPLENS,
            load_ml_100k,
        ),
        Source(
            "ml-1m", "MovieLens: people rate films, 2000-2003", "fetched", 6_040, 3_706, 1_000_209, GROUPLENS,
            load_ml_1m,
        ),
        Source(
            "lastfm", "Last.fm, HetRec 2011: how often people play artists", "fetched", 1_874, 17_612, None, HETREC,
            load_lastfm,
        ),
        Source(
            "amazon-video", "Amazon Instant Video: people rate films and series", "by hand",
            1_372, 7_957, 23_181, AMAZON, load_amazon_video,
        ),
        Source(
            "tafeng", "Ta Feng groceries as FedRAP counts them, by day; tafeng:customers for who buys what", "by hand",
            120, 32_266, None, TA_FENG, load_tafeng,
        ),
        Source(
            "qb-article", "Tenrec: people click on articles", "by hand", 24_516, 7_455, 266_356, TENREC,
            load_qb_article,
        ),
        Source(
            "synthetic", "a made world with planted tastes; synthetic:PEOPLExITEMSxINTERACTIONS for another size",
            "made", 600, 400, 24_000, OURS, load_synthetic,
        ),
        Source(
            "linear", "linear regression over 10 clients with 5 features and one true weight vector", "made",
            10, 5, 1_000, OURS, load_linear,
        ),
        Source(
            "least-squares", "regression, each client's weights R from a centre; least-squares:R=0.3,condition=56",
            "made", 50, 10, 4_000, OURS, load_least_squares,
        ),
        Source(
            "logistic", "labels by each client's own weights, FedCLUP's; logistic:R=0.1,clients=10,examples=200",
            "made", 10, 10, 4_000, OURS, load_logistic,
        ),
        Source(
            "digits", "8 x 8 digits, 2 kinds at each client; digits:skew=3,clients=20 or digits:dirichlet=0.3",
            "made", 10, 64, 1_797, OPTDIGITS, load_digits,
        ),
        Source(
            "shifted-digits", "8 x 8 digits in five ways, one at each client; shifted-digits:examples=96", "made",
            5, 192, 1_797, OPTDIGITS, load_shifted_digits,
        ),
        Source(
            "domains", "a folder of pictures of several kinds, such as Digits-5; domains:PATH,size=16,examples=200",
            "by hand", None, None, None, THEIRS, load_domains,
        ),
    )
}  # fmt: skip
