"""Plan of a run: model, method and every setting in force, resolved from the settings and the facts of a task.

A value comes from, in rising order of precedence: the function's signature, the task (TASK_DEFAULTS), the method's own
defaults, its rule for data of this size, under --protocol published what its paper chose (presets; all three in
methods/registry.py), and the user.
"""

from __future__ import annotations

import fnmatch
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple, cast

import torch

from fedtaste.core import Method, Model, UtilityPredictor
from fedtaste.errors import SettingError
from fedtaste.experiment.privacy import delta_of, make_wire, wire_notes
from fedtaste.experiment.settings import MOST_ROUNDS, Settings, changed_settings
from fedtaste.experiment.upload_size import check_upload_size
from fedtaste.federation import cohort_size
from fedtaste.methods import METHODS, known_method
from fedtaste.methods.registry import PUBLIC_NAMES, MethodSpec, PublicFacts, PublicValues, RunContext
from fedtaste.methods.server_optimizers import SERVER, server_step, takes_optimizer, with_server
from fedtaste.methods.server_optimizers import unread_settings as unread_by_optimizer
from fedtaste.models import classifier, factorization, linear, ranker
from fedtaste.models import unread_settings as unread_by_model
from fedtaste.signature import CountOrNone, Values, coerce, settings_of
from fedtaste.tasks.base import Facts, Sampling
from fedtaste.text import did_you_mean, listed
from fedtaste.wire.parse import Wire, parse

# Chosen by hand on ML-100K: for ranking by the validation of the search phase (seed 0); for ratings by the held-out
# people of seeds 1 to 8, who overlap with those of seed 0, whose test data were read several times meanwhile. The
# proximal and the mixed methods had three to six trials of 5 to 40 rounds each on ranking, and all but lgmix still
# improved in the last round: a round costs several times FedAvg's, so their rounds are a budget and not an optimum.
TASK_DEFAULTS: dict[str, Values] = {
    "ranking": {
        "rounds": 60, "k": 32, "negatives": 4, "batch": 0, "patience": 20,
        "lr": 10.0, "server": "adagrad", "server_lr": 0.3,  # many items that each move little: the server adapts
    },
    "ratings": {
        "rounds": 120, "k": 32, "batch": 16, "patience": 20, "lr": 0.2, "server": "adagrad", "server_lr": 0.1,
    },
    "regression": {"rounds": 500, "tolerance": 1e-6, "lr": 0.1, "batch": 0},
    "labels": {"rounds": 50, "model": "logistic", "batch": 0, "lr": 0.1, "passes": 10, "patience": 0},
    "pictures": {"rounds": 40, "model": "cnn", "batch": 32, "lr": 0.1, "passes": 1, "patience": 0},
}  # fmt: skip
LOOP = ("rounds", "tolerance", "patience")  # of the round loop: options of their own, not settings of a method
VALIDATIONS, SCHEDULED_VALIDATIONS = 50, 5  # of a search, where the user does not say how many
SHOWN_METHODS = 3  # that an error names
# Where no order is known, weights by age are flat, and every item counts.
UNTIMED = {"recency": 1.0, "fast": 1.0, "slow": 1.0, "reach": 0}


@dataclass(frozen=True, eq=False)
class Plan:
    """A run whose defaults are resolved and whose settings are checked."""

    model: Model
    method: Method
    """The method on its wire, which may add private parameters (what `sparsify` did not send)."""
    sampling: Sampling
    """How histories become examples."""
    rounds: int
    every: int
    """Rounds between two validations."""
    tolerance: float
    """Training stops when a round changes the shared parameters by less than this, relative to their size."""
    patience: int
    """Training stops when validation has not improved for this many rounds; 0: never."""
    seed: int
    settings: dict[str, object]
    """Every setting of the model, the method, its examples and its server in force, by name."""
    notes: tuple[str, ...]
    """What the user of the run should know, in sentences."""
    wire: Wire
    delta: float
    validated: bool = False
    """The user gave a number of validations."""
    scaled: dict[str, object] = field(default_factory=dict)
    """The settings whose values the method's rule chose by the size of the data."""

    @property
    def predictor(self) -> UtilityPredictor | None:
        """The method's forecast of how useful a private model will be with this noise, where it has one."""
        return self.method.privacy.predictor

    @property
    def searches(self) -> bool:
        """Whether validation chooses the best round. Not in a private run, because a search releases more than one
        model; and not where the method plans its rounds: where every round releases another part of one model, or
        learning rates follow a schedule that is only good at its end. With --validations such a schedule is validated,
        and all of its rounds are run again on training and validation data."""
        planned = bool(self.method.privacy.bounds) or self.method.schedule is not None and not self.validated
        return self.wire.mechanism is None and not planned


def task_kind(task: Facts) -> str:
    """The kind of task by which defaults are chosen: labels of images are `pictures`."""
    return "pictures" if task.kind == "labels" and len(task.shape) > 1 else task.kind


def plan(settings: Settings, task: Facts, elsewhere: bool = False) -> Plan:
    """Resolve every default, refuse settings that do not exist or would change nothing, and build model and method.
    `elsewhere`: the clients are behind nodes, which may miss rounds."""
    draft = _draft(settings, task)
    model = make_model(task, draft.read)
    _check_private_names(settings, draft.values, model)
    everybody = _everybody(settings) and not elsewhere
    public = PublicValues(
        features=task.features, feature_count=task.feature_count, counts_once=everybody, learners=task.people,
        cohort=0 if settings.cohort is None or not task.people else cohort_size(settings.cohort, task.people),
    )  # fmt: skip
    sketch = draft.spec(model, **draft.arguments(public))
    values = _applicable(settings, task, draft, sketch)
    loop = draft.loop | {name: value for name in LOOP if (value := getattr(settings, name)) is not None}
    planned = _planned_rounds(settings, sketch, cast(int, loop["rounds"]))

    def build(public: PublicValues) -> Method:
        return with_server(draft.spec(model, **draft.arguments(public)), settings.method, values, planned)

    size_notes = _check_size(settings, task, draft)
    wire = make_wire(settings, task, model, public, build, planned)
    method = wire.method
    rounds = _fixed_rounds(settings, method, planned)
    in_force = dict(sorted((values | dict(method.resolved)).items()))
    return Plan(
        model,
        method,
        Sampling(cast(int, values.get("negatives", 0)), cast(int, values.get("batch", 0))),
        rounds,
        every=max(1, rounds // (settings.validations or (SCHEDULED_VALIDATIONS if method.schedule else VALIDATIONS))),
        tolerance=cast(float, loop.get("tolerance", 0.0)),
        patience=cast(int, loop.get("patience", 0)),
        seed=settings.seed,
        settings=in_force,
        notes=draft.notes + size_notes + wire_notes(settings, task, wire, rounds, elsewhere),
        wire=wire,
        delta=delta_of(settings, task),
        validated=settings.validations is not None,
        scaled={name: in_force[name] for name in draft.scaled if name in in_force},
    )


def _check_size(settings: Settings, task: Facts, draft: Draft) -> tuple[str, ...]:
    """A note about large uploads, or SettingError about uploads that are too large; nothing large is computed."""

    def build(items: int) -> tuple[Method, Model]:
        values = draft.read | ({"k": min(cast(int, draft.read["k"]), items)} if "k" in draft.read else {})
        small = make_model(replace(task, items=items, features=None), values)
        names = settings_of(draft.spec)
        return draft.spec(small, **{name: value for name, value in values.items() if name in names}), small

    if task.kind not in ("ranking", "ratings") or settings.method in ("local", "centralised"):
        return ()
    return check_upload_size(build, parse(settings.wire), task.items, settings.method, task.kind == "ranking")


def unread_settings(settings: Settings, task: Facts) -> dict[str, str]:
    """The settings that would change nothing in a run, with the reasons."""
    unread = _draft(settings, task).unread
    return unread | ({} if task.timed else dict.fromkeys(UNTIMED, "the data have no time"))


@dataclass(frozen=True, eq=False)
class Draft:
    """Values of all settings that could be read, before the method is built."""

    spec: MethodSpec[...]
    sources: dict[str, Source]
    values: dict[str, object]
    loop: dict[str, object]  # defaults of rounds, tolerance and patience
    scaled: tuple[str, ...]  # settings whose value the method's rule chose
    unread: dict[str, str]  # settings that change nothing, with the reason
    notes: tuple[str, ...]

    @property
    def read(self) -> dict[str, object]:
        """The values that change something."""
        return {name: value for name, value in self.values.items() if name not in self.unread}

    def arguments(self, public: PublicValues) -> dict[str, object]:
        """What the method is called with."""
        names = settings_of(self.spec)
        return {n: v for n, v in self.read.items() if n in names} | public.read_by(self.spec)


def _draft(settings: Settings, task: Facts) -> Draft:
    spec, kind = known_method(settings.method), task_kind(task)
    preset = spec.preset(kind, settings.data) if settings.protocol == "published" else {}
    fixed, scaled = {**TASK_DEFAULTS[kind], **spec.defaults.get(kind, {})}, _scaled(spec, task)
    defaults = {**fixed, **scaled, **preset}
    sources = _sources(spec, kind)
    signature = {name: source.default for name, source in sources.items() if name not in SERVER}
    chosen = {name: coerce(*sources[name], text, name) for name, text in settings.set.items() if name in sources}
    values = signature | defaults | chosen
    for condition, others in spec.variants.items():
        name, _, value = condition.partition("=")
        defaults |= {**others, **preset} if str(values.get(name)) == value else {}
    values = {name: value for name, value in (signature | defaults | chosen).items() if name in sources}
    fitted, notes = _fit_to_data(settings, task, values, "k" not in spec.unread(kind, values))
    tuned = bool(preset) and (kind, settings.data) in spec.presets
    context = RunContext(fitted, frozenset(settings.set), tuned, _everybody(settings))
    unread = unread_by_model(fitted) | spec.unread(kind, fitted) | unread_by_optimizer(fitted)
    loop = {name: defaults[name] for name in LOOP if name in defaults}
    by_rule = tuple(name for name in scaled if name not in {*preset, *settings.set, *LOOP, *unread})
    notes += _scale_note(task, {n: fitted[n] for n in by_rule if fitted[n] != fixed.get(n, sources[n].default)})
    return Draft(spec, sources, fitted, loop, by_rule, unread, notes + spec.notes(context))


def _scaled(spec: MethodSpec[...], task: Facts) -> Values:
    """The defaults that the method's rule chooses for data of this size."""
    rule = spec.scaled.get(task_kind(task))
    return rule(PublicFacts(task.people, task.items, task.timed)) if rule else {}


def _scale_note(task: Facts, changed: Values) -> tuple[str, ...]:
    """A note that names the settings that the size of the data has changed."""
    if not changed:
        return ()
    values = ", ".join(f"{name}={value}" for name, value in sorted(changed.items()))
    return (f"Defaults for {task.items:,} items and {task.people:,} people: {values} (docs/defaults.md).",)


def with_scaled_values(settings: Settings, run_plan: Plan) -> Settings:
    """The settings with the values that the method's rule chose, so that a model that is continued with more data, or
    with fewer people, keeps them, and with the k that its tables have: a small catalogue may have limited it. Weights
    by age are left out: they follow from whether a history has an order."""
    kept = run_plan.scaled | {name: value for name, value in run_plan.settings.items() if name == "k"}
    chosen = {name: value for name, value in kept.items() if name not in UNTIMED}
    return changed_settings(settings, chosen)


def _fit_to_data(
    settings: Settings, task: Facts, values: dict[str, object], reads_k: bool
) -> tuple[dict[str, object], tuple[str, ...]]:
    """The values, changed where the data do not allow them, and notes about the changes."""
    notes: tuple[str, ...] = ()
    if not task.timed and any(values.get(name, flat) != flat for name, flat in UNTIMED.items()):
        values = values | {name: flat for name, flat in UNTIMED.items() if name in values}
        notes += ("Recency is off: the data have no time.",)
    k = cast(int, values.get("k", 1))
    if reads_k and task.items and k > task.items:
        if "k" in settings.set:
            raise SettingError(f"k must be from 1 to {task.items:,} (the items of the data), got {k}.")
        values = values | {"k": task.items}
        notes += (f"k is {task.items}: the data have no more items.",)
    return values, notes


class Source(NamedTuple):
    """Where a setting comes from: a parameter of a function."""

    function: Callable[..., object]
    parameter: str

    @property
    def default(self) -> object:
        return inspect.signature(self.function).parameters[self.parameter].default


def _sources(spec: MethodSpec[...], kind: str) -> dict[str, Source]:
    """Every setting that the method, its model, its examples or its server could have on this kind of task."""
    factory, names = MODELS[kind]
    sources = {name: Source(factory, name) for name in names}
    sources |= {name: Source(sampling, name) for name in settings_of(sampling) if kind == "ranking" or name == "batch"}
    sources |= {name: Source(spec, name) for name in settings_of(spec) if name not in PUBLIC_NAMES}
    return sources | {name: Source(server_step, parameter) for name, parameter in SERVER.items()}


def _applicable(settings: Settings, task: Facts, draft: Draft, method: Method) -> dict[str, object]:
    """The values that this method reads. Refuses settings of the user that it does not read, with the reason."""
    inapplicable = set() if takes_optimizer(method) else set(SERVER)
    if method.examples != "samples" or method.pooled and task.items:
        inapplicable |= settings_of(sampling).keys()
    inapplicable -= settings_of(draft.spec).keys()
    known = [name for name in draft.sources if name not in inapplicable]
    for name in settings.set:
        if name not in known:
            raise _unknown_setting(settings.method, name, known)
        if name in draft.unread:
            raise SettingError(f"{name} would change nothing here: {draft.unread[name]}. Leave it out.")
    if method.pooled and not _everybody(settings):
        raise SettingError(
            f"--cohort and --dropout would change nothing for {settings.method}: it holds all data. Leave them out."
        )
    return {name: value for name, value in draft.read.items() if name in known}


def _unknown_setting(method: str, name: str, known: list[str]) -> SettingError:
    """The error for a setting that this method does not have, with methods that have it."""
    if name in LOOP:
        return SettingError(did_you_mean(name, known, "setting") + f" It is an option of its own: --{name} 8.")
    have = [other for other in METHODS if other != method and name in settings_of(METHODS[other])]
    if not have or name in PUBLIC_NAMES:
        return SettingError(did_you_mean(name, known, "setting"))
    shown = have if len(have) <= SHOWN_METHODS else [*have[:SHOWN_METHODS], f"{len(have) - SHOWN_METHODS} more methods"]
    others = f"; {listed(shown)} {'has' if len(have) == 1 else 'have'} it"
    return SettingError(did_you_mean(name, known, f"setting of {method}", others))


def _everybody(settings: Settings) -> bool:
    """Whether everybody takes part in every round."""
    return settings.cohort is None and not settings.dropout


def _check_private_names(settings: Settings, values: Values, model: Model) -> None:
    """Refuse a glob in `private` that no parameter matches."""
    if "private" not in settings.set or "private" not in values:
        return
    known = list(model.init(torch.Generator()))
    for glob in cast("tuple[str, ...]", values["private"]):
        if not fnmatch.filter(known, glob):
            raise SettingError(did_you_mean(glob, known, "parameter"))


def _planned_rounds(settings: Settings, method: Method, rounds: int) -> int:
    """The rounds of the method's schedule, where it has one and the user did not give --rounds; otherwise `rounds`."""
    schedule = method.schedule
    if schedule is None or not schedule.rounds:
        return rounds
    if settings.rounds is None:
        if schedule.rounds > MOST_ROUNDS:
            raise SettingError(
                f"participations gives {schedule.rounds:,} rounds; at most {MOST_ROUNDS:,} are possible."
            )
        return schedule.rounds
    if "participations" in settings.set:
        raise SettingError("--rounds and participations both say how long to train. Give one of them.")
    if settings.rounds < schedule.counting + schedule.rounds_of_pass:
        raise SettingError(
            f"--rounds {settings.rounds} does not let everybody take part once with cohorts of {schedule.cohort:,}. "
            f"Use --rounds {schedule.counting + schedule.rounds_of_pass:,} or more, or a larger --cohort."
        )
    return settings.rounds


def _fixed_rounds(settings: Settings, method: Method, rounds: int) -> int:
    """The number of releases of a method that releases another part in every round; otherwise `rounds`."""
    needed = len(method.privacy.bounds) or rounds
    if settings.rounds is not None and rounds != needed:
        raise SettingError(f"--rounds must be {needed} for {settings.method}, got {rounds}. Leave --rounds out.")
    return needed


def sampling(*, negatives: CountOrNone = 4, batch: CountOrNone = 0) -> Sampling:
    """`negatives` are drawn for every item a person has; `batch` 0 takes all of a person's examples at once."""
    return Sampling(negatives, batch)


MODELS: dict[str, tuple[Callable[..., Model], tuple[str, ...]]] = {  # by kind of task: factory, settings one may choose
    "ranking": (ranker, ("model", "k", "loss", "spread")),
    "ratings": (factorization, ("k", "spread")),  # a rating is a number: its loss is squared
    "regression": (linear, ()),
    "labels": (classifier, ("model", "width")),
    "pictures": (classifier, ("model", "width")),
}


def make_model(task: Facts, values: Values) -> Model:
    """The model of a task."""
    factory, names = MODELS[task_kind(task)]
    chosen = {name: values[name] for name in names if name in values}
    if task.kind == "regression":
        return linear(task.width)
    if task.kind == "labels":
        return factory(task.shape, task.classes, **chosen)
    if task.kind == "ratings":
        return factory(task.items, biases=True, loss="squared", mean=sum(task.scale) / 2, **chosen)
    return factory(task.items, **chosen)
