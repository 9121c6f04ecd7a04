"""Core types of federated learning: Params, Examples, Download, Upload, Model, Method and Stage.

A Method is four pure functions (init, client, server, personalize), written for ONE client; `fedtaste.engine` runs them
for everybody. The type that `client` returns is the privacy boundary: what is not in its Upload never leaves the
device. `chain` composes stages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any, Literal, NamedTuple, Protocol, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedtaste.recipe import Recipe

Params = dict[str, Tensor]  # flat and named: "item", "user", "head.weight"
People = NDArray[np.int64]  # numbers of people


class Examples(NamedTuple):
    """One person's examples, padded to [steps, batch]; a history has its oldest item first."""

    inputs: Tensor  # [steps, batch] item numbers, or [steps, batch, features]
    targets: Tensor  # [steps, batch]
    mask: Tensor  # [steps, batch], 0 on padding


class CohortExamples(Protocol):
    """The examples of a cohort, one person after the other without padding (data/sampling.py has the type)."""

    @property
    def starts(self) -> NDArray[np.int64]: ...  # [people + 1]
    @property
    def inputs(self) -> NDArray[Any]: ...  # [n] item numbers, or [n, features]
    @property
    def targets(self) -> NDArray[np.float32]: ...  # [n]
    @property
    def batch(self) -> int: ...
    @property
    def lengths(self) -> NDArray[np.int64]: ...
    def pad(self, people: People) -> Examples: ...  # [people, steps, batch]


class PrivateStore(Protocol):
    """Everybody's private parameters (engine/store.py has the type)."""

    def gather(self, people: People) -> Params: ...
    def put(self, people: People, params: Params) -> None: ...


class Download(NamedTuple):
    """All that a device receives."""

    params: Params
    round: Tensor  # [] counted from 0, for schedules


@dataclass(frozen=True)
class Upload:
    """All that a device sends. `total` is weight x change, so that a sum of uploads is again an Upload.

    >>> a = Upload({"w": torch.tensor([1., 2.])}, torch.tensor(1.))
    >>> (a + a).mean()["w"].tolist()
    [1.0, 2.0]
    """

    total: Params
    weight: Tensor  # []

    def __add__(self, other: Upload) -> Upload:
        return Upload(
            {name: value + other.total[name] for name, value in self.total.items()}, self.weight + other.weight
        )

    def mean(self) -> Params:
        """The weighted mean change; zero where nobody sent anything."""
        share = torch.where(self.weight > 0, 1 / self.weight, 0.0)
        return {name: value * share for name, value in self.total.items()}


torch.utils._pytree.register_pytree_node(  # so that vmap and grad see through an Upload
    Upload, lambda up: ([up.total, up.weight], None), lambda parts, _: Upload(*parts)
)


ModelKind = Literal[
    "factorization", "rating_factorization", "scorer", "additive", "ncf", "linear", "logistic", "module", "custom"
]


@dataclass(frozen=True)
class Model:
    """A model: its loss and scores as pure functions of the parameters of ONE person."""

    init: Callable[[torch.Generator], Params]
    loss: Callable[[Params, Examples], Tensor]  # of one batch: [batch] arrays; padding must not count
    score: Callable[[Params, Tensor], Tensor]  # inputs [n, ...] -> [n]
    rows: tuple[str, ...] = ()  # parameters whose first axis is the catalogue and is indexed by the inputs
    private: tuple[str, ...] = ()  # globs of the parameters that are personal by nature
    design: Callable[[Params, Tensor], tuple[Tensor, Tensor]] | None = None  # score = features @ user + offset
    loss_name: str = ""
    catalogue: int = 0  # number of items, where inputs are items
    features: Callable[[Params, Tensor], Tensor] | None = None  # inputs of the last layer: [n, ...] -> [n, f]
    buffers: tuple[str, ...] = ()  # statistics that follow the batches and are not descended (batch norm's)
    learn: Callable[[Params, Examples], tuple[Tensor, Params]] | None = None  # (loss, the buffers after this batch)
    bound: Callable[[Examples], Tensor] | None = None  # upper bound of the loss's curvature, where one is known
    alone: bool = False  # score() depends on the batch: evaluate one person at a time, without padding
    kind: ModelKind = "custom"  # for methods that need one particular model


def recipe_loss(model: Model) -> Literal["bce", "squared"]:
    """The loss of a factorisation, as a recipe names it."""
    return "bce" if model.loss_name == "bce" else "squared"


ServerStep = Callable[[Params, Params, Upload], tuple[Params, Params]]  # (shared, memory, upload)


def step_by_mean(shared: Params, memory: Params, upload: Upload) -> tuple[Params, Params]:
    """The plain server step: add the mean change."""
    change = upload.mean()
    return {name: value + change[name] if name in change else value for name, value in shared.items()}, memory


def merge(shared: Params, private: Params, examples: Examples) -> Params:
    """The plain personalisation: shared and private parameters together."""
    return shared | private


class Cohort(NamedTuple):
    """The people whose clients a kernel runs, with their examples and private parameters."""

    people: People
    examples: CohortExamples
    private: PrivateStore
    sent: NDArray[np.bool_] | None = None  # [n] examples whose rows are sent in this round; None: all (wire/turns.py)


class Kernel(Protocol):
    """`client` for a whole cohort: the sum of the uploads, and how many were rejected by reason."""

    def __call__(self, download: Download, cohort: Cohort, /) -> tuple[Upload, dict[str, int]]: ...


Scores = Callable[[Params, PrivateStore, People, NDArray[np.int64]], NDArray[np.float32]]
Users = Callable[[Params, CohortExamples], NDArray[np.float32]]


@dataclass(frozen=True)
class Fast:
    """Faster equivalents of a method's functions, for many people at once. Each must mean the same as its original."""

    kernel: Kernel | None = None  # `client` for a whole cohort (engine/backends.py)
    exact: Kernel | None = None  # the kernel with sums in double precision, for sums that are added up elsewhere
    scores: Scores | None = None  # (shared, store, people, candidates): everybody's scores (evaluation/scoring.py)
    users: Users | None = None  # (shared, examples): everybody's vector `user` [people, p], where it is all of
    # `personalize` and the model has a design
    turns: bool = False  # the kernel reads `Cohort.sent`
    one_batch: bool = False  # the kernel is exact only where each person's examples are one batch; otherwise vmap runs
    bulk: int = 0  # numbers in one upload, where it is large whatever the person holds: fewer clients run at once then


class UtilityPredictor(TypedDict):
    """How useful a model can be with this noise and this many people, known before a run."""

    r: float
    advice: str


@dataclass(frozen=True)
class Release:
    """Facts about a method's uploads for the accountant and the stages."""

    bounds: tuple[tuple[float, float], ...] = ()  # by round: (largest norm of an upload, share of the privacy budget),
    # for a method that bounds its uploads itself and needs no clipping
    constant: bool = False  # a part of an upload is equal in every round: differences of sums isolate it
    curve_only: tuple[str, ...] = ()  # names in an upload that only feed the learning curve; not sent under clipping
    predictor: UtilityPredictor | None = None


@dataclass(frozen=True)
class Schedule:
    """Rounds and cohorts that a method plans itself. Its cohorts are drawn in passes: everybody takes part once before
    anybody takes part again."""

    rounds: int = 0  # in all; 0: as many as the caller runs
    counting: int = 0  # first rounds, in which everybody takes part
    rounds_of_pass: int = 0  # in which everybody takes part once, after counting
    cohort: int = 0  # people in every later round, where the caller gives no number; 0: everybody
    fixed: tuple[str, ...] = ()  # shared parameters that do not change after `counting`: a device downloads them once


@dataclass(frozen=True)
class Method:
    """A federated algorithm: four pure functions, each for one client, and the facts that the engine needs."""

    init: Callable[[Params], tuple[Params, Params]]
    client: Callable[[Download, Params, Examples], tuple[Upload, Params]]
    server: ServerStep = step_by_mean
    personalize: Callable[[Params, Params, Examples], Params] = merge
    examples: Literal["samples", "history"] = "samples"  # shuffled with drawn negatives, or the bare history in order
    rows: tuple[str, ...] = ()  # names, in shared, private or upload, whose first axis is the catalogue
    fast: Fast = Fast()
    privacy: Release = Release()
    removal: Callable[[Download, Params, Examples], tuple[Upload, Params]] | None = None  # a client that takes back
    # all that its device has sent, for methods whose shared parameters follow from a sum over people
    recipe: Recipe | None = None  # how anybody is rebuilt by plain arithmetic, as in a browser (recipe.py)
    tables: Callable[[Params], Params] | None = None  # shared parameters as the tables that the recipe reads ("item",
    # "trail"), where they are kept in another form
    stage: Stage | None = None  # the method's own first stage of uploads, such as rounding to 8 bits
    server_with: Callable[[ServerStep], ServerStep] | None = None  # the server with another step in place of adding the
    # mean change, for methods whose server does more than that
    sums: bool = False  # the server computes rows anew from the sums of a round: where only some rows are sent, it has
    # to remember the others (wire/turns.py)
    takes_turns: tuple[str, ...] = ("turns", "common_turns")  # which of these stages leave the method right
    schedule: Schedule | None = None  # rounds and cohorts, for methods that plan them
    ordered: bool = False  # it learns from the order of histories, and nothing from data without one
    pooled: bool = False  # a baseline that sees everybody's data in one place
    resolved: Mapping[str, object] = field(default_factory=dict)  # settings that the method chose itself

    def replace(self, **changes: Any) -> Method:
        """A copy with these fields changed. A new `client` or `personalize` leaves out the fast equivalents of the old
        one, which would run in its place."""
        fast = self.fast
        if "client" in changes:
            fast = replace(fast, kernel=None, exact=None, turns=False, one_batch=False)
        if "personalize" in changes:
            fast = replace(fast, scores=None, users=None)
        return replace(self, **({"fast": fast} | changes))


class StageContext(NamedTuple):
    """What a stage knows beside the upload."""

    key: bytes  # this party's source of randomness in this round (wire/rng.py): the server's, or the device's own
    round: int
    people: float  # how many people the round expects, a public number
    shares: float = 1.0  # of the noise's variance: what one device adds, or what is left to be added to the sum
    draws: Params = {}  # on a device: numbers in [0, 1), as many as each leaf has, where a stage rounds at random
    run_key: bytes = b""  # the same in all rounds of a run: it assigns people to groups


class SecureSummation(Protocol):
    """Sums of uploads that reveal no single upload (wire/secure_sums.py has the type, and explains its functions)."""

    def encode(self, upload: Upload) -> Upload: ...
    def decode(self, total: Upload) -> Upload: ...
    def recoverable(self, cohort: People, answering: People, context: StageContext) -> People: ...
    def noise_shares(self, cohort: People, context: StageContext) -> dict[int, float]: ...
    def run_protocol(self, uploads: dict[int, Upload], cohort: People, context: StageContext) -> Upload | None: ...


class RowTurns(Protocol):
    """Which rows of the catalogue are sent in a round (wire/turns.py has the type, and explains its functions)."""

    def entries(
        self, people: People, starts: NDArray[np.int64], items: NDArray[np.int32], round: int
    ) -> NDArray[np.bool_]: ...
    def mask(self, uploads: Upload, people: People, round: int, rows: Tensor | None = None) -> Upload: ...
    def cut(self, upload: Upload, person: int, round: int) -> Upload: ...
    def restore(self, upload: Upload, person: int, round: int) -> Upload: ...


UploadStep = Callable[[Upload, StageContext], Upload]


@dataclass(frozen=True)
class Stage:
    """A transformation of what crosses the wire: on the device first, on the server's sum last."""

    client: UploadStep | None = None  # of one device; runs under vmap
    server: UploadStep | None = None  # of the sum
    combine: Callable[[Upload], Upload] | None = None  # in place of +: all admitted uploads, stacked, give one
    secure_sum: SecureSummation | None = None  # sums are of whole numbers, and only sums are seen
    device_noise: UploadStep | None = None  # adds one device's noise to its own upload
    message_layout: Callable[[Params], Params] | None = None  # tensors of a message's shapes and types, to count bytes
    turns: RowTurns | None = None  # only some rows are sent; the others are zero before `client` sees an upload
    dense: bool = False  # `client` fills rows that a person did not touch
    poisson: bool = False  # each person is in the cohort by a secret coin of their own: what an accountant assumes
    local: bool = False  # every device adds all of the noise, and not a share of it
    random: bool = False  # `client` reads `StageContext.draws`
    grid: Callable[[int], float] | None = None  # by round: released numbers are whole multiples of this public step
    bound: float | None = None  # no number of an upload is larger
    step: float | None = None  # every number of an upload is a whole multiple of this, a power of two
    weight_step: float | None = None  # a weight is at most 1 and a whole multiple of this, a power of two
    leaves: tuple[str, ...] = ()  # `bound` and the steps hold for uploads that have these names alone; (): for all
    accepts_plain_sums: bool = False  # `server` also takes a sum in double precision that skipped `client`


def chain(*stages: Stage) -> Stage:
    """Compose stages into one, which runs them in order on the device and in reverse order on the server."""
    layouts = [stage.message_layout for stage in stages if stage.message_layout]
    clients = [stage for stage in stages if stage.client]
    names = ["combine", "secure_sum", "device_noise", "grid", "turns", "dense", "poisson", "local", "random", "bound"]
    names += ["step", "weight_step", "leaves"]

    def compose(steps: Sequence[UploadStep | None]) -> UploadStep | None:
        present = [step for step in steps if step]
        if not present:
            return None
        return lambda upload, context: reduce(lambda value, step: step(value, context), present, upload)

    def last_set(name: str) -> Any:
        """The field's value in the last stage that sets it, or else its default."""
        return next((value for stage in reversed(stages) if (value := getattr(stage, name))), getattr(Stage, name))

    return Stage(
        client=compose([stage.client for stage in stages]),
        server=compose([stage.server for stage in reversed(stages)]),
        message_layout=(lambda total: reduce(lambda value, step: step(value), layouts, total)) if layouts else None,
        accepts_plain_sums=bool(clients) and all(stage.accepts_plain_sums for stage in clients),
        **{name: last_set(name) for name in names},
    )
