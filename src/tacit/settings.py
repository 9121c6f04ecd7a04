"""One frozen settings object per experiment, and the plan that follows from it: model, method, every value in force."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict

from .core import Method, Model, step_by_mean
from .defaults import DEFAULTS, PICTURES, PRESETS
from .errors import SettingError, did_you_mean
from .methods import SERVER, coerce, find_method, settings_of
from .methods.servers import server_step
from .models import classifier, factorization, linear, ranker
from .promises import promises, secure_notes, wired
from .tasks import Facts, Sampling
from .wire.plan import Wire


class Settings(BaseModel):
    """What a person asked for. Everything that is not said here has a default in `plan`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    data: str = "ml-100k"
    """A name of `tacit data list`, a CSV or Parquet file, or a folder with a split."""
    task: Literal["ranking", "ratings", "regression", "labels"] | None = None
    """Told from the data when left out."""
    method: str = "fedals"
    set: dict[str, str] = {}
    """Settings of the method, its model, its examples and its server's optimiser, by name."""
    rounds: int | None = None
    cohort: int | float | None = None
    """People asked in a round: a number, or a share of them; everybody when left out."""
    dropout: float = 0.0
    """The share of those asked who do not answer."""
    protocol: Literal["clean", "published"] = "clean"
    split: Literal["leave-one-out", "temporal", "random"] = "leave-one-out"
    new_people: float | Literal["folds"] | None = None
    """The share of people who take no part in training and are judged as new; `folds`: everybody is new once."""
    tolerance: float | None = None
    """Stop when a round moves the shared parameters by less than this, relative to their size."""
    patience: int | None = None
    """Stop when validation has not gained for this many rounds."""
    seed: int = 0
    backend: str = "auto"
    download: Literal["dense", "sparse", "rows", "int8"] = "dense"
    """How tables are written into a download; the device computes with what it reads."""
    store: Literal["memory", "disk"] = "memory"
    """Where people's own item rows are: in memory, or in a file of the run folder that is paged in and out."""
    threads: int | None = None
    wire: str = ""
    """What happens to uploads on their way, as in clip=1.0,noise=0.8,secure (wire/stages.py)."""
    epsilon: float | None = None
    """What the whole run may cost a person; the noise is solved for."""
    delta: float | None = None
    """min(people^-1.1, 1e-6) when left out."""
    noise_seed: int | None = None
    """For studies that are to be repeated: what noise, cohort coins and rounding are drawn from. Whoever knows it can
    take the noise off, so no epsilon is promised. When left out they are secret, from the operating system."""
    promise: bool = False
    """Refuse to run where no epsilon can be promised."""

    @property
    def folds(self) -> bool:
        return self.new_people == "folds"

    @property
    def new_share(self) -> float:
        if self.new_people is None:
            return 0.0 if self.protocol == "published" else 0.1
        return 0.0 if isinstance(self.new_people, str) else self.new_people


@dataclass(frozen=True, eq=False)
class Plan:
    """What will be run."""

    model: Model
    method: Method
    sampling: Sampling
    rounds: int
    every: int  # rounds between two validations
    tolerance: float
    patience: int
    seed: int
    shown: dict[str, Any]  # every setting in force
    notes: tuple[str, ...]
    wire: Wire
    delta: float
    predictor: dict[str, Any] | None = None  # how private noise and this much data go together, where that is known

    @property
    def searches(self) -> bool:
        """Whether the best round is looked for. Not where something is promised: a search would release, too; and not
        where every round is a part of one whole."""
        return self.wire.mechanism is None and not self.method.release


LOOP = ("rounds", "tolerance", "patience")
# What a method is told by the wire and the task, and not by --set.
GIVEN = ("noise", "people", "clip", "features", "feature_count", "counts_once")
MODEL = {
    "ranking": ("model", "k", "loss", "spread"),
    "ratings": ("k", "spread"),  # a rating is a number: its loss is squared
    "regression": (),
    "labels": ("model", "width"),
}
HOMES: dict[str, Callable[..., Model]] = {"ranking": ranker, "ratings": factorization, "labels": classifier}
UNTIMED = {"recency": 1.0, "fast": 1.0, "slow": 1.0}  # weights by age that are flat, where no order is known


def plan(settings: Settings, task: Facts, elsewhere: bool = False) -> Plan:
    """Resolve every default, refuse what does not exist or would change nothing, and build the model and the method.
    `elsewhere`: devices are behind nodes that may come and go."""
    method = find_method(settings.method)
    by_task = DEFAULTS[task.kind]
    preset = PRESETS.get(task.kind, {}).get((settings.method, settings.data), {})
    chosen = {**by_task[""], **by_task.get(settings.method, {}), **preset}
    if task.kind == "labels" and len(task.shape) > 1:
        chosen |= PICTURES[""] | PICTURES.get(settings.method, {})
    homes = _homes(method, task, chosen, settings.set.get("model", chosen.get("model")))
    for name in settings.set:
        if name not in homes:
            hint = f" It is an option of its own: --{name} 8." if name in LOOP else ""
            raise SettingError(did_you_mean(name, homes, "setting") + hint)
    values: dict[str, Any] = {name: p.default for name, (_, p) in homes.items() if name not in SERVER}
    values |= {name: value for name, value in chosen.items() if name in homes}
    values |= {name: coerce(homes[name][0], _plain(name), text) for name, text in settings.set.items()}
    notes: tuple[str, ...] = ()
    chosen |= by_task.get(f"{settings.method} {values.get('parts')}", {})
    if not task.timed and any(values.get(name, flat) != flat for name, flat in UNTIMED.items()):
        values |= {name: flat for name, flat in UNTIMED.items() if name in values}
        notes = ("Recency is off: the data have no time.",)
    if values.get("parts") == "trail+als" and (settings.cohort is not None or settings.dropout):
        notes += ("Only the people who answer in the first round send counts: parts=trail+als asks for them once.",)
    if settings.method == "fedrap" and not {"lr", "table_lr"} & settings.set.keys() and not preset:
        notes += ("FedRAP's rates are the paper's for ML-100K; other data may want another table_lr and lr.",)
    if task.items and "k" not in settings.set and values.get("k", 0) > task.items:
        values["k"] = task.items
        notes += (f"k is {task.items}: the data have no more items.",)
    _check(values, task)
    for name, why in _dead(settings.method, task, values).items():
        if name in settings.set:
            raise SettingError(f"{name} would change nothing here: {why}. Leave it out.")
        values.pop(name, None)
    if "private" in settings.set:
        _names(values["private"], make_model(task, values))
    rounds = settings.rounds if settings.rounds is not None else chosen["rounds"]
    if rounds < 1:
        raise SettingError(f"--rounds {rounds} was asked for; at least 1 is needed.")
    own = {n: v for n, v in values.items() if n in settings_of(method) or n in SERVER}
    wire, delta, predictor = wired(settings, task, make_model(task, values), own, rounds, elsewhere)
    built = wire.method
    values |= built.resolved
    if built.release:
        if settings.rounds is not None and rounds != len(built.release):
            raise SettingError(
                f"--rounds {rounds} was asked for; {settings.method} takes {len(built.release)}. Leave --rounds out."
            )
        rounds = len(built.release)
    notes += (
        wire.notes + promises(settings, task, wire, delta, rounds) + secure_notes(settings, wire, rounds, elsewhere)
    )
    if built.pooled and (settings.cohort is not None or settings.dropout):
        raise SettingError(
            f"--cohort and --dropout mean nothing for {settings.method}, which holds everybody's data. Leave them out."
        )
    return Plan(
        make_model(task, values), built, Sampling(values.get("negatives", 0), values.get("batch", 0)), rounds,
        max(1, rounds // 50), _first(settings.tolerance, chosen.get("tolerance", 0.0)),
        _first(settings.patience, chosen.get("patience", 0)), settings.seed, dict(sorted(values.items())), notes,
        wire, delta, predictor,
    )  # fmt: skip


def _names(globs: tuple[str, ...], model: Model) -> None:
    """Refuse a private name that no parameter has."""
    known = list(model.init(torch.Generator()))
    for glob in globs:
        if not fnmatch.filter(known, glob):
            raise SettingError(did_you_mean(glob, known, "parameter"))


def _first(asked: Any, default: Any) -> Any:
    return default if asked is None else asked


def _dead(method: str, task: Facts, values: Mapping[str, Any]) -> dict[str, str]:
    """Settings that this method does not read on this task, and why."""
    dead: dict[str, str] = {}
    if task.kind == "labels" and values.get("model") != "cnn":
        dead["width"] = f"model={values.get('model')} does not read it"
    if task.kind == "ranking" and values.get("model", "factorization") != "factorization":
        dead |= dict.fromkeys(("loss", "spread"), f"model={values['model']} does not read it")
    if method == "popularity":
        dead |= dict.fromkeys(("model", "k", "spread", "loss"), "popularity has no factors")
        if task.kind == "ranking":
            dead["shrink"] = "it does not change an order"
    if method == "local":
        dead |= dict.fromkeys(SERVER, "local sends nothing, so its server has nothing to do")
    if method in ("fedals", "fcf", "centralised"):
        dead["loss"] = "its solves are exact for the squared loss"
        if task.kind == "ratings":
            dead["alpha0"] = "what was not rated says nothing about ratings"
    if method == "centralised":
        unread = ("lr", "passes") if task.items else ("lam", "alpha0", "recency", "floor")
        dead |= dict.fromkeys(unread, f"centralised does not read it for {task.kind}")
    if method == "fedrecon":
        exact = values.get("solver") == "exact"
        dead |= dict.fromkeys(
            ("recon_lr", "recon_passes") if exact else ("lam", "prior"),
            f"solver={values.get('solver')} does not read it",
        )
    if method == "fedrap":
        other = ["schedule"] if values.get("released") else ["weight_decay", "step_decay", "round_decay"]
        dead |= dict.fromkeys(other, f"released={str(values.get('released')).lower()} does not read it")
        if values.get("parts") != "both":
            dead |= dict.fromkeys(("lam", "bound"), f"parts={values.get('parts')} has nothing to keep apart")
        if values.get("parts") == "own":
            dead |= dict.fromkeys(("mu", "penalty", "prox"), "parts=own has no common table")
        if values.get("penalty") == "none":
            dead["mu"] = "penalty=none does not read it"
    if method == "fedtrail":
        parts = str(values.get("parts"))
        dead["loss"] = "it counts and solves, and descends no loss"
        if parts != "trail+als":
            dead["spread"] = "there is nothing to start from"
        if "trail" not in parts:
            trail = ("window", "fade", "from_power", "to_power", "shrink", "mix", "fast", "slow", "reach", "keep")
            dead |= dict.fromkeys(trail, f"parts={parts} has no trail")
        if parts == "trail":
            dead |= dict.fromkeys(("k", "lam", "alpha0", "recency", "floor"), "parts=trail has no factors")
    if method == "fedveil":
        dead |= dict.fromkeys(("model", "k", "loss", "spread"), "its tables follow from the data and the noise")
        if values.get("route") != "iterate":
            dead["turns"] = f"route={values.get('route')} has no turns"
    if "momentum" in values and values.get("server", "sgd") != "sgd":
        dead["momentum"] = f"server={values['server']} has its own"
    if "tau" in values and values.get("server", "sgd") == "sgd":
        dead["tau"] = "server=sgd does not divide by it"
    return dead


def sampling(*, negatives: int = 4, batch: int = 0) -> Sampling:
    """`negatives` are drawn for every item a person has; `batch` 0 takes all of a person's examples at once."""
    return Sampling(negatives, batch)


def _plain(name: str) -> str:
    return {"server": "name", "server_lr": "lr"}.get(name, name)


def _homes(
    method: Callable[..., Method], task: Facts, chosen: Mapping[str, Any], model: str | None
) -> dict[str, tuple[Callable[..., Any], Any]]:
    """Every setting that may be given, with the function it belongs to."""
    homes: dict[str, tuple[Callable[..., Any], Any]] = {}
    home = HOMES.get(task.kind)
    picked = {} if home is None or model is None else {"model": coerce(home, "model", model)}
    trial = method(make_model(task, picked), **{n: v for n, v in chosen.items() if n in settings_of(method)})
    if home is not None:
        homes |= {n: (home, p) for n, p in settings_of(home).items() if n in MODEL[task.kind]}
    if trial.examples == "samples" and not (trial.pooled and task.items):
        homes |= {n: (sampling, p) for n, p in settings_of(sampling).items() if task.kind == "ranking" or n == "batch"}
    homes |= {n: (method, p) for n, p in settings_of(method).items() if n not in GIVEN}
    if trial.server is step_by_mean and not trial.pooled:
        homes |= dict.fromkeys(SERVER, (server_step, None))
    return homes


def make_model(task: Facts, values: Mapping[str, Any]) -> Model:
    """The model of a task."""
    if task.kind == "regression":
        return linear(task.width)
    own = {name: values[name] for name in MODEL[task.kind] if name in values}
    if task.kind == "labels":
        return classifier(task.shape, task.classes, **own)
    if task.kind == "ratings":
        return factorization(task.items, biases=True, loss="squared", mean=sum(task.scale) / 2, **own)
    return ranker(task.items, **own)


def _check(values: Mapping[str, Any], task: Facts) -> None:
    """Values that no method could use."""
    k = values.get("k", 1)
    if task.items and not 1 <= k <= task.items:
        raise SettingError(
            f"k={k} was asked for; the data have {task.items:,} items, so 1 to {task.items:,} factors are possible."
        )
    for name, low in (
        ("lr", 0),
        ("recon_lr", 0),
        ("server_lr", 0),
        ("private_lr", 0),
        ("table_lr", 0),
        ("weight_decay", 0),
        ("prox", 0),
        ("bound", 0),
        ("lam", 0),
        ("mu", 0),
        ("alpha0", 0),
        ("prior", 0),
        ("tau", 0),
        ("shrink", 0),
        ("from_power", 0),
        ("to_power", 0),
        ("window", 1),
        ("reach", 1),
        ("item_scale", 0),
        ("negatives", 0),
        ("batch", 0),
        ("passes", 1),
        ("recon_passes", 1),
        ("private_passes", 1),
        ("spread", 0),
        ("own_lr", 0),
        ("own_passes", 1),
        ("turns", 1),
        ("eta", 0),
        ("beta", 0),
        ("rate", 0),
        ("alpha_lr", 0),
        ("width", 1),
    ):
        if isinstance(values.get(name), (int, float)) and values[name] < low:
            raise SettingError(f"{name}={values[name]} was got; at least {low} is expected.")
    for name in (
        "recency",
        "floor",
        "support",
        "momentum",
        "step_decay",
        "round_decay",
        "fade",
        "mix",
        "fast",
        "slow",
        "alpha",
    ):
        if name in values and not 0 <= values[name] <= 1:
            raise SettingError(f"{name}={values[name]} was got; a number from 0 to 1 is expected.")
