"""The named data sets: where each comes from, how large it is, under which terms; and `load` for names and paths.

A new data set is one entry of `SOURCES`, with a parser in publishers.py or a generator. No data set may be shipped.
What GroupLens offers is downloaded and checked against its checksum; ML-100K, where only a package index is reachable,
through pip from the RecBole wheel, which holds the same ratings. Files behind an account or a licence are put into the
cache by a person; they are compared with the counts of the FedRAP paper, and a difference is noted.
"""

from __future__ import annotations

import inspect
import math
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import get_args, get_type_hints

from fedtaste.data import publishers
from fedtaste.data.archives import Archive, ByHand, Log, default_cache, fetch_url, fetch_wheel, obtain, read_by_hand
from fedtaste.data.digits import digits, shifted_digits
from fedtaste.data.domains import domains, looks_like_domains
from fedtaste.data.formats import SHOWN_ENDINGS, is_table
from fedtaste.data.frames import is_frame
from fedtaste.data.generated import least_squares, linear, logistic
from fedtaste.data.interactions import Interactions
from fedtaste.data.read_options import DEFAULTS, ReadOptions
from fedtaste.data.supervised import Supervised
from fedtaste.data.synthetic import synthetic
from fedtaste.data.user_files import UserSplit, read_interactions, read_split
from fedtaste.data.worlds import is_world, open_world
from fedtaste.errors import DataError, SettingError
from fedtaste.text import cut, did_you_mean

Generator = Callable[[str, int], Interactions | Supervised]  # options after the colon, seed
Value = int | float | bool
KINDS = {int: ("a whole number", "10"), float: ("a number", "0.3"), bool: ("true or false", "true")}
SIZE = re.compile("[0-9]{1,18}")  # of generated data
OPTION_NAMES = {"spread": "R", "alpha": "dirichlet"}  # parameters whose option has another name


@dataclass(frozen=True)
class Source:
    """A data set that has a name: downloaded as one of `archives`, put into the cache by hand, or generated."""

    name: str
    about: str
    people: int | None  # or clients; None: unknown
    items: int | None  # or features
    interactions: int | None  # or examples, for training and testing
    terms: str
    archives: tuple[Archive, ...] = ()
    by_hand: ByHand | None = None
    generate: Generator | None = None

    @property
    def how(self) -> str:
        return "fetched" if self.archives else "by hand" if self.generate in (None, _folder) else "made"

    def load(self, options: str, seed: int, cache: Path, log: Log) -> Interactions | Supervised:
        """The data; `options` is what follows the colon of the name."""
        if self.generate is not None:
            return self.generate(options, seed)
        variants = self.by_hand.variants if self.by_hand else {}
        if options and options not in variants:
            expected = " or ".join([self.name, *(f"{self.name}:{variant}" for variant in variants)])
            raise DataError(f'"{self.name}:{options}" is not a data set. Expected {expected}; leave ":{options}" out.')
        if self.by_hand is None:
            return self._compare_counts(obtain(self.name, self.archives, self.terms, cache, log))
        data = read_by_hand(self.name, self.by_hand, options, cache)
        return data if options else self._compare_counts(data)

    def _compare_counts(self, data: Interactions) -> Interactions:
        """Note where the counts are not those of the FedRAP paper; the data is used all the same."""
        counts = len(data.people), len(data.items), len(data)
        expected = self.people, self.items, self.interactions
        if all(b in (a, None) for a, b in zip(counts, expected)):
            return data
        texts = [" x ".join("any" if n is None else f"{n:,}" for n in numbers) for numbers in (counts, expected)]
        return data.noted(
            f"People x items x interactions differ from the paper's: got {texts[0]}, expected {texts[1]}."
        )


def load(
    name_or_path: object,
    *,
    seed: int = 0,
    cache: Path | None = None,
    log: Log = lambda _: None,
    options: ReadOptions = DEFAULTS,
) -> Interactions | UserSplit | Supervised:
    """Load a data set by a name of `SOURCES`, or a file with columns, or a folder with a split or with domains.

    `options` say how a file is read. A data frame or a sparse matrix is read as `Interactions.from_frame` and
    `from_matrix` read it with their defaults.
    A name may have a size or options after a colon: `synthetic:60x40x500`, `tafeng:customers`, `logistic:R=0.1`.
    `log` receives messages for the user: what is downloaded, under which terms, and which cached file is damaged.
    A name comes before a path of the same name; write ./NAME for the path.

    >>> data = load("synthetic:50x40x500", seed=1)
    >>> len(data.people), len(data.items), len(data)
    (50, 40, 500)
    """
    if not isinstance(name_or_path, str | os.PathLike):
        return _load_object(name_or_path)
    text = os.fspath(name_or_path)
    name, _, source_options = text.partition(":")
    if name.lower() in SOURCES:
        _refuse_options(text, options)
        return SOURCES[name.lower()].load(source_options, seed, cache or default_cache(), log)
    return _load_path(text, seed, options)


def depends_on_seed(name_or_path: str) -> bool:
    """Whether `load` gives other data for another seed: generated data, and folders of domains, which it splits.

    >>> depends_on_seed("synthetic:50x40x500"), depends_on_seed("ml-100k")
    (True, False)
    """
    source = SOURCES.get(name_or_path.partition(":")[0].lower())
    if source is not None:
        return source.generate is not None
    path = Path(os.path.expanduser(name_or_path))
    return os.path.isdir(path) and looks_like_domains(path)


def _load_path(text: str, seed: int, options: ReadOptions) -> Interactions | UserSplit | Supervised:
    path = Path(os.path.expanduser(text))
    if os.path.isdir(path):  # unlike Path.is_dir this is False, not an error, for text that cannot be a path
        if looks_like_domains(path):
            _refuse_options(text, options)
            return domains(path, seed=seed)
        if is_world(path):
            _refuse_options(text, options)
            return open_world(path)
        return read_split(path, options)
    if not os.path.exists(path):
        hint = "The path of a CSV or Parquet file, or of a folder with a split or with domains, may be given as well"
        name = text.partition(":")[0]
        close = name if "=" in text[len(name) :] else text  # options would hide a near miss
        raise DataError(f"{did_you_mean(close, SOURCES, 'data set')} {hint}; no such path exists.")
    if not os.path.isfile(path):
        raise DataError(f"{path} is not a regular file. Expected a CSV or Parquet file, or a folder with a split.")
    if not is_table(path):
        raise DataError(f"{path} is of no known format. Expected a name that ends in {SHOWN_ENDINGS}; rename it.")
    return read_interactions(path, options)


def _load_object(value: object) -> Interactions:
    if hasattr(value, "tocsr"):
        return Interactions.from_matrix(value)
    if is_frame(value):
        return Interactions.from_frame(value)
    raise DataError(
        f"load needs the name of a data set, a path, a data frame or a sparse matrix, got {type(value).__name__}."
    )


def _refuse_options(name: str, options: ReadOptions) -> None:
    if options != DEFAULTS:
        raise SettingError(
            f"{name} is read as it was published or imported: --columns, --separator, --decimal, --date-format, "
            "--drop-missing and --max-gib are for files of your own. Leave them out."
        )


def absolute_source(name_or_path: str) -> str:
    """The same data from any working directory: names stay as they are, existing paths become absolute.

    >>> absolute_source("synthetic:50x40x500"), absolute_source("domains:/photos,size=16")
    ('synthetic:50x40x500', 'domains:/photos,size=16')
    """
    name, _, rest = name_or_path.partition(":")
    if name.lower() == "domains":
        path, options = split_path(rest)
        return f"{name}:{absolute_source(path)}" + (f",{options}" if options else "")
    path = os.path.expanduser(name_or_path)
    return name_or_path if name.lower() in SOURCES or not os.path.exists(path) else os.path.abspath(path)


def read_options(name: str, text: str, function: Callable[..., object]) -> dict[str, Value]:
    """Keyword arguments for the function of a data set.

    >>> def logistic(clients: int = 10, spread: float = 1.0, seed: int = 0): ...
    >>> read_options("logistic", "R=0.1,clients=10", logistic)
    {'spread': 0.1, 'clients': 10}
    """
    parameters = inspect.signature(function).parameters.values()
    optional = [p.name for p in parameters if p.default is not p.empty and p.name != "seed"]
    options = {OPTION_NAMES.get(parameter, parameter): parameter for parameter in optional}
    hints = get_type_hints(function)
    arguments: dict[str, Value] = {}
    prefix = name + ("," if ":" in name else ":")  # domains:PATH goes on with a comma
    for part in text.split(",") if text else []:
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not key:
            shown = ",".join(f"{option}=..." for option in options)
            raise DataError(
                f'"{part}" in "{prefix}{text}" is not an option. Expected NAME=VALUE, separated by commas, out of '
                f'"{prefix}{shown}".'
            )
        if key not in options:
            raise DataError(did_you_mean(key, options, f"{name.partition(':')[0]} option"))
        parameter = options[key]
        if parameter in arguments:
            raise DataError(f'"{prefix}{text}" gives {key} twice. Expected it once; leave one out.')
        kind = (get_args(hints[parameter]) or (hints[parameter],))[0]  # int of `int | None`
        arguments[parameter] = _convert(prefix, key, value, kind)
    return arguments


def _convert(prefix: str, key: str, value: str, kind: type) -> Value:
    """Text to a value of this kind; 1_000 and infinity are refused."""
    try:
        if kind is bool:
            return {"true": True, "false": False}[value.lower()]
        number: int | float = kind(value)
        if "_" in value or not value.isascii() or not math.isfinite(number):
            raise ValueError
        return number
    except (KeyError, ValueError, OverflowError):
        expected, example = KINDS[kind]
        short = value if len(value) <= 40 else f"{value[:40]}..."
        raise DataError(
            f'"{short}" is not a value of {key}. Expected {expected}, as in "{prefix}{key}={example}".'
        ) from None


def split_path(text: str) -> tuple[str, str]:
    """`PATH,size=16` -> (PATH, options). Options are the last parts that have an equals sign, the path is the rest.

    So a path may hold colons and commas, unless an equals sign follows its last comma.
    """
    parts = text.split(",")
    first = len(parts)
    while first > 1 and "=" in parts[first - 1]:
        first -= 1
    return ",".join(parts[:first]), ",".join(parts[first:])


def _with_options(name: str, function: Callable[..., Supervised], *arguments: object) -> Generator:
    """A generator of data whose options are the optional parameters of this function."""
    return lambda text, seed: function(*arguments, **read_options(name, text, function), seed=seed)


def _linear(text: str, seed: int) -> Supervised:
    if text:
        raise DataError(f'"linear:{text}": linear has no options. Expected linear; leave ":{text}" out.')
    return linear(seed=seed)


def _synthetic(size: str, seed: int) -> Interactions:
    parts = size.lower().split("x")
    if not size:
        return synthetic(seed=seed)
    if len(parts) != 3 or not all(SIZE.fullmatch(part) for part in parts):
        raise DataError(
            f'"{cut(size)}" is not a size. Expected PEOPLExITEMSxINTERACTIONS, as in synthetic:600x400x24000.'
        )
    return synthetic(*(int(part) for part in parts), seed=seed)


def _folder(text: str, seed: int) -> Interactions | Supervised:
    path, options = split_path(text)
    if not path or "=" in path and not os.path.exists(path):
        raise DataError(
            f'"domains:{text}" names no folder. Expected domains:PATH, or domains:PATH,size=16,examples=200; the '
            "folder has a .npz file, or a folder of images by class, for each domain."
        )
    return _with_options(f"domains:{path}", domains, Path(os.path.expanduser(path)))(options, seed)


def _grouplens(file: str, sha256: str, folder: str, parse: Callable[..., Interactions]) -> Archive:
    fetch = partial(fetch_url, f"https://files.grouplens.org/datasets/{folder}/{file}")
    return Archive(file, sha256, "GroupLens", fetch, parse)


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
ML_100K_RATINGS = "06416e597f82b7342361e41163890c81036900f418ad91315590814211dca490"
ML_100K = (
    _grouplens(
        "ml-100k.zip",
        "50d2a982c66986937beb9ffb3aa76efe955bf3d5c6b761f4e3a7cd717c6a3229",
        "movielens",
        partial(publishers.parse_grouplens_100k, ratings_sha256=ML_100K_RATINGS),
    ),
    Archive(
        file="recbole-1.2.1-py3-none-any.whl",
        sha256="9c9948202011f37eb0a7c6768129313f00d6403ad221ec940d5e2d5d5f33a407",
        origin="the RecBole 1.2.1 wheel",
        fetch=partial(fetch_wheel, "recbole==1.2.1", "recbole-1.2.1-py3-none-any.whl"),
        parse=partial(publishers.parse_recbole_100k, ratings_sha256=ML_100K_RATINGS),
    ),
)
ML_1M_SHA256 = "a6898adb50b9ca05aa231689da44c217cb524e7ebd39d264c56e2832f2c54e20"
LASTFM_SHA256 = "6738f48195667ff03caaab4d32ca9a3133d8cc026b7c3cdaf6ce1010e913c59c"
AMAZON_VIDEO = ByHand(
    files=("ratings_Amazon_Instant_Video.csv", "amazon-video.csv"),
    where="the Amazon product data of 2014 by Julian McAuley, UCSD (ratings only, Amazon Instant Video): "
    "https://jmcauley.ucsd.edu/data/amazon/",
    parse=publishers.parse_amazon_video,
)
TAFENG = ByHand(
    files=("ta_feng_all_months_merged.csv", "tafeng.csv"),
    where="Kaggle, with an account: https://www.kaggle.com/datasets/chiranjivdas09/ta-feng-grocery-dataset",
    parse=publishers.parse_tafeng,
    variants={"customers": partial(publishers.parse_tafeng, customers=True)},
)
QB_ARTICLE = ByHand(
    files=("QB-article.csv", "qb-article.csv"),
    where="Tenrec by Tencent, after its licence is accepted: "
    "https://static.qblv.qq.com/qblv/h5/algo-frontend/tenrec_dataset.html",
    parse=publishers.parse_qb_article,
)
SOURCES: dict[str, Source] = {
    source.name: source
    for source in (
        Source(
            "ml-100k", "MovieLens: people rate films, 1997-1998", 943, 1_682, 100_000, GROUPLENS, archives=ML_100K
        ),
        Source(
            "ml-1m", "MovieLens: people rate films, 2000-2003", 6_040, 3_706, 1_000_209, GROUPLENS,
            archives=(_grouplens("ml-1m.zip", ML_1M_SHA256, "movielens", publishers.parse_ml_1m),),
        ),
        Source(
            "lastfm", "Last.fm, HetRec 2011: how often people play artists", 1_874, 17_612, None, HETREC,
            archives=(_grouplens("hetrec2011-lastfm-2k.zip", LASTFM_SHA256, "hetrec2011", publishers.parse_lastfm),),
        ),
        Source(
            "amazon-video", "Amazon Instant Video: people rate films and series", 1_372, 7_957, 23_181, AMAZON,
            by_hand=AMAZON_VIDEO,
        ),
        Source(
            "tafeng", "Ta Feng groceries as FedRAP counts them, by day; tafeng:customers for who buys what",
            120, 32_266, None, TA_FENG, by_hand=TAFENG,
        ),
        Source(
            "qb-article", "Tenrec: people click on articles", 24_516, 7_455, 266_356, TENREC, by_hand=QB_ARTICLE
        ),
        Source(
            "synthetic", "generated people with planted tastes; synthetic:PEOPLExITEMSxINTERACTIONS for another size",
            600, 400, 24_000, OURS, generate=_synthetic,
        ),
        Source(
            "linear", "linear regression over 10 clients with 5 features and one true weight vector",
            10, 5, 1_000, OURS, generate=_linear,
        ),
        Source(
            "least-squares", "regression, each client's weights R from a centre; least-squares:R=0.3,condition=56",
            50, 10, 4_000, OURS, generate=_with_options("least-squares", least_squares),
        ),
        Source(
            "logistic", "labels by each client's own weights, FedCLUP's; logistic:R=0.1,clients=10,examples=200",
            10, 10, 4_000, OURS, generate=_with_options("logistic", logistic),
        ),
        Source(
            "digits", "8 x 8 digits, 2 kinds at each client; digits:skew=3,clients=20 or digits:dirichlet=0.3",
            10, 64, 1_797, OPTDIGITS, generate=_with_options("digits", digits),
        ),
        Source(
            "shifted-digits", "8 x 8 digits in five ways, one at each client; shifted-digits:examples=96",
            5, 192, 1_797, OPTDIGITS, generate=_with_options("shifted-digits", shifted_digits),
        ),
        Source(
            "domains", "a folder of pictures of several kinds, such as Digits-5; domains:PATH,size=16,examples=200",
            None, None, None, THEIRS, generate=_folder,
        ),
    )
}  # fmt: skip
