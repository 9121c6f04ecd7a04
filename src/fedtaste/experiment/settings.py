"""The settings of one experiment, with types and bounds; the command line and --config files are made from them.

A field's docstring is the help text of its option. Values that depend on the data (a cohort that is too large, more
threads than cores) are checked later, in `prepare`; the settings of a method (`set`) by the method itself.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le, Lt
from pydantic import AllowInfNan, BaseModel, BeforeValidator, ConfigDict, ValidationError

from fedtaste.data.read_options import ReadOptions
from fedtaste.errors import SettingError

TrackerName = Literal["tensorboard", "mlflow"]
MAX_SEED = 2**63 - 1
MOST_ROUNDS = 1_000_000


@dataclass(frozen=True)
class Cli:
    """How a field appears on the command line, where that differs from its name and type."""

    names: tuple[str, ...] = ()  # in place of --field-name
    argument: bool = False  # positional
    commas: bool = False  # several values in one word, with commas between them
    hidden: bool = False  # not in the help
    metavar: str = ""
    alone: str = ""  # the value of the option without a value, where it may stand alone
    example: str = "--set k=64"  # of a field of pairs, in messages


def _cohort(value: object) -> object:
    """Read "10" as a number of people and "1.0" as a share of them, which pydantic would read as one person."""
    try:
        if isinstance(value, str):
            return int(value) if value.lstrip("+-").isdecimal() else float(value)
    except ValueError:
        value = None
    if not isinstance(value, int | float):
        raise ValueError("must be a number of people such as 100, or a share of them such as 0.1")
    return value


Share = Annotated[float, Ge(0), Le(1), AllowInfNan(False)]
Seed = Annotated[int, Ge(0), Le(MAX_SEED)]
Positive = Annotated[float, Gt(0), AllowInfNan(False)]


def _columns(value: object) -> object:
    """Names of columns as text, user=customer,item=sku, or by role as they are."""
    if not isinstance(value, str):
        return value
    return {role.strip(): name.strip() for role, _, name in (part.partition("=") for part in value.split(","))}


class Options(BaseModel):
    """Options whose docstrings are their help texts; unknown ones are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class DataSettings(Options):
    """The data of an experiment."""

    data: str = "ml-100k"
    """A name of `fedtaste data list`, a file such as CSV or Parquet, or a folder with train.csv and test.csv."""

    @property
    def data_name(self) -> str:
        """The data for readers: the name of a file or folder without the path to it."""
        kind, colon, path = self.data.rpartition("domains:")
        return kind + colon + os.path.basename(path.rstrip(os.sep))


class ReadSettings(Options):
    """How a file of the user is read (data/read_options.py)."""

    columns: Annotated[dict[str, str], BeforeValidator(_columns), Cli(commas=True, metavar="ROLE=NAME,...")] = {}
    """Names of the file's columns, as in user=customer_id,item=sku,time=when (also rating, title, genres, and group:
    a label of people, such as a country, by which metrics are compared). Columns with usual names, such as userId, are
    found without it."""
    separator: str | None = None
    """What separates the columns of a text file; detected from its first line when it is left out."""
    decimal: Literal[".", ","] = "."
    """The decimal mark of numbers in text."""
    date_format: str | None = None
    """How times are written, as in %d/%m/%Y. Without it: ISO dates, or numbers since 1970 in seconds to nanoseconds."""
    drop_missing: bool = False
    """Leave rows with missing values out; otherwise they are an error."""
    max_gib: Positive | None = None
    """The largest size in GiB of a compressed file after unpacking (default 2, and less for small files)."""

    @property
    def read_options(self) -> ReadOptions:
        """The same as the loader takes them."""
        return ReadOptions(**{name: getattr(self, name) for name in ReadSettings.model_fields})


class Settings(ReadSettings, DataSettings):
    """The settings of one experiment. Values that are left out get their defaults in `plan`."""

    task: Literal["ranking", "ratings", "regression", "labels"] | None = None
    """What to predict; the data decide when it is left out."""
    method: str = "fedals"
    """The method to train, or a function of your own as package.module:function. An unknown name lists all methods."""
    set: dict[str, str] = {}
    """A setting of the method, its model, its examples or its server's optimiser, as in --set k=64."""
    rounds: Annotated[int, Ge(1), Le(MOST_ROUNDS)] | None = None
    """The largest number of rounds; the method has a default."""
    cohort: Annotated[int | float, BeforeValidator(_cohort)] | None = None
    """Clients per round: a number of people, or a share such as 0.1. Without it everybody takes part (fedseq: 32)."""
    dropout: Annotated[float, Ge(0), Lt(1)] = 0.0
    """The share of a round's cohort that does not answer, below 1."""
    protocol: Literal["clean", "published"] = "clean"
    """How results are measured: clean, or published (the rules of the papers, which leak test items)."""
    split: Literal["leave-one-out", "temporal", "random"] = "leave-one-out"
    """How each history is split into training, validation and test."""
    new_people: Annotated[float, Ge(0), Lt(1)] | Literal["folds"] | None = None
    """The share of people who take no part in training and are evaluated as new (default 0.1), or `folds`: ten further
    trainings, in which everybody is new once."""
    new_items: Annotated[float, Ge(0), Lt(1)] = 0.0
    """The share of items that are held out of training and evaluated as new, by vectors from genres and years."""
    new_item_ridge: Positive = 300.0
    """The strength of the ridge in the map from features to vectors of new items; larger values give lists that differ
    less between people."""
    validations: Annotated[int, Ge(1)] | None = None
    """How often the search is validated at most (default 50). A method that plans its rounds has a search only where
    this is given (5 in `fedtaste tune`), and trains all of its rounds again after it."""
    tolerance: Share | None = None
    """Stop when a round changes the shared parameters by less than this, relative to their size."""
    patience: Annotated[int, Ge(0), Le(2**31)] | None = None
    """Stop when validation has not improved for this many rounds; 0 never stops."""
    seed: Seed = 0
    """The seed of everything random, except for secret noise."""
    backend: Literal["auto", "loop", "vmap", "kernel"] = "auto"
    """How clients are computed: one at a time, batched, or by compiled code. Results agree up to rounding."""
    download: Literal["dense", "sparse", "rows", "int8"] = "dense"
    """How tables are encoded in a download; clients compute with the values that they decode."""
    store: Literal["memory", "disk"] = "memory"
    """Where people's private item rows are kept: in memory, or in a file of the run folder."""
    threads: Annotated[int, Ge(1)] | None = None
    """The number of threads; compiled code uses all cores when it is left out."""
    wire: str = ""
    """The stages of uploads, as in clip=1.0,noise=0.8,secure. In this order: turns=0.2 (or common_turns=0.2),
    sparsify=0.1, quantise=8, clip=1.0, noise=0.8 (or local=1.0), secure (or secure=10); or, in place of the plain sum:
    bound, trim=0.1, median, krum=0.1."""
    epsilon: Positive | None = None
    """The privacy budget of the whole run for each person; the noise is solved for. Smaller is more private."""
    delta: Annotated[float, Gt(0), Lt(1)] | None = None
    """The probability with which the privacy guarantee may fail (default min(people^-1.1, 1e-6))."""
    noise_seed: Seed | None = None
    """For studies: draw noise, cohorts and rounding from this number, so that they can be repeated. Whoever knows the
    number can remove the noise, so no epsilon is promised. They are secret when it is left out."""
    promise: bool = False
    """Refuse to run where no epsilon can be promised."""
    tuned_on: str = ""
    """The fingerprint of the data on which `fedtaste tune` chose these settings; it writes this into run.toml. A run
    with noise on the same data is refused, because its epsilon would not cover the choice."""

    @property
    def folds(self) -> bool:
        """Whether everybody is evaluated as new once."""
        return self.new_people == "folds"

    @property
    def new_share(self) -> float:
        """The share of people who take no part in training."""
        if self.new_people is None:
            return 0.0 if self.protocol == "published" else 0.1
        return 0.0 if isinstance(self.new_people, str) else self.new_people


class FederationSettings(Options):
    """The settings of a federation of processes (`fedtaste federate`) beside those of its run."""

    nodes: Annotated[int, Ge(1), Le(1000)] = 4
    """The number of SuperNodes, among which everybody's data are divided."""
    deadline: Annotated[float, Gt(0), Le(86_400)] = 120.0
    """Seconds that a node has to answer; nodes that miss it count as dropped out for that round."""
    least: Annotated[float, Gt(0), Le(1)] = 0.5
    """The share of a round's cohort that must answer."""
    host: str = "127.0.0.1"
    """The address of the SuperLink. With --write-app: the name by which nodes reach it."""
    port: Annotated[int, Ge(1), Le(65535)] | None = None
    """The port of the SuperLink; a free one when it is left out. With --write-app: of its proxy (8443)."""


def settings_from(method: str, data: str, values: Mapping[str, object]) -> Settings:
    """Settings from keyword arguments: those that are no fields of Settings are settings of the method."""
    fields = {name: value for name, value in values.items() if name in Settings.model_fields}
    others = {name: _as_text(value) for name, value in values.items() if name not in fields}
    if "data" in fields or "set" in fields:
        name = "data" if "data" in fields else "set"
        raise SettingError(f"{name} is no setting here. Give data as data, and settings of the method by their names.")
    try:
        return Settings.model_validate({**fields, "method": method, "data": data, "set": others})
    except ValidationError as error:
        first = error.errors()[0]
        raise SettingError(f"{first['loc'][0]} is not valid: {first['msg']}, got {first['input']!r}.") from None


def changed_settings(settings: Settings, changes: Mapping[str, object]) -> Settings:
    """The settings with some changed; values that are not valid are refused."""
    return settings_from(
        settings.method,
        settings.data,
        settings.model_dump(exclude={"method", "data", "set"}) | settings.set | dict(changes),
    )


def with_method_settings(settings: Settings, values: Mapping[str, object]) -> Settings:
    """The settings with these settings of the method, as `--set` gives them."""
    return settings.model_copy(update={"set": settings.set | {name: _as_text(value) for name, value in values.items()}})


def _as_text(value: object) -> str:
    """A setting as `--set` has it."""
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, tuple | list) else str(value)
