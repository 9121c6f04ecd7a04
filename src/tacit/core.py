"""The whole vocabulary: two messages, a model, a method, a stage.

A method is four pure functions, each written for ONE device; `tacit.engine` runs them for everybody. The type that
`client` returns is the privacy boundary: what is not in its Upload never leaves the device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from .recipes import Recipe

Params = dict[str, Tensor]  # flat and named: "item", "user", "head.weight"


class Examples(NamedTuple):
    """One person's examples, padded to [steps, batch]; the items of a history stand oldest first."""

    inputs: Tensor  # [steps, batch] item numbers, or [steps, batch, features]
    targets: Tensor  # [steps, batch]
    mask: Tensor  # [steps, batch], 0 on padding


class Download(NamedTuple):
    """All that a device receives."""

    params: Params
    round: Tensor  # [] counted from 0, for schedules


@dataclass(frozen=True)
class Upload:
    """All that a device sends. `total` is weight x change, so uploads add: a sum of uploads is an Upload.

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
        """The weighted mean change; nobody's upload is no change."""
        share = torch.where(self.weight > 0, 1 / self.weight, 0.0)
        return {name: value * share for name, value in self.total.items()}


torch.utils._pytree.register_pytree_node(  # so that vmap and grad see through an Upload
    Upload, lambda up: ([up.total, up.weight], None), lambda parts, _: Upload(*parts)
)


@dataclass(frozen=True)
class Model:
    """What is learnt, as pure functions of the parameters of ONE person."""

    init: Callable[[torch.Generator], Params]
    loss: Callable[[Params, Examples], Tensor]  # of one batch: [batch] arrays; padding must not count
    score: Callable[[Params, Tensor], Tensor]  # inputs [n, ...] -> [n]
    rows: tuple[str, ...] = ()  # parameters whose first axis is the catalogue and is indexed by the inputs
    private: tuple[str, ...] = ()  # globs of the parameters that are personal by nature
    design: Callable[[Params, Tensor], tuple[Tensor, Tensor]] | None = None  # score = features @ user + offset
    loss_name: str = ""
    catalogue: int = 0  # items, where inputs are items
    features: Callable[[Params, Tensor], Tensor] | None = None  # what the last layer sees: inputs [n, ...] -> [n, f]
    buffers: tuple[str, ...] = ()  # statistics that are kept and not descended (batch norm's)
    learn: Callable[[Params, Examples], tuple[Tensor, Params]] | None = None  # (loss, the buffers after this batch)
    bound: Callable[[Examples], Tensor] | None = None  # no parameters make the loss more curved, where that is known
    alone: bool = False  # what is scored together changes the scores: one person at a time, without padding


def step_by_mean(shared: Params, memory: Params, upload: Upload) -> tuple[Params, Params]:
    change = upload.mean()
    return {name: value + change[name] if name in change else value for name, value in shared.items()}, memory


def merge(shared: Params, private: Params, examples: Examples) -> Params:
    return shared | private


@dataclass(frozen=True)
class Method:
    """A federated algorithm: four pure functions, each written for one device."""

    init: Callable[[Params], tuple[Params, Params]]
    client: Callable[[Download, Params, Examples], tuple[Upload, Params]]
    server: Callable[[Params, Params, Upload], tuple[Params, Params]] = step_by_mean
    personalize: Callable[[Params, Params, Examples], Params] = merge
    examples: Literal["samples", "history"] = "samples"  # shuffled with drawn negatives, or the bare history in order
    rows: tuple[str, ...] = ()  # names, in shared, private or upload, whose first axis is the catalogue
    kernel: Callable[..., tuple[Upload, dict[str, int]]] | None = (
        None  # the client for a whole cohort; see engine.backends
    )
    scores: Callable[..., Any] | None = None  # everybody's scores at once; see evaluation.scoring
    bulk: int = 0  # numbers in one upload, where it is large whatever the person holds: few devices run at once then
    pooled: bool = False  # a bound that sees everybody's data in one place
    release: tuple[tuple[float, float], ...] = ()  # by round: (no upload is longer than this, share of the privacy
    # budget), where a method bounds its uploads itself and needs no clipping
    exact: Callable[..., tuple[Upload, dict[str, int]]] | None = None  # the kernel with sums in double precision, for
    # those who add up the sums of several cohorts
    recipe: Recipe | None = None  # how anybody is rebuilt by plain arithmetic, as in a browser; see recipes
    constant: bool = False  # a part of an upload is the same in every round, so that differences of sums isolate it
    told: tuple[str, ...] = ()  # names in an upload that are for the curve only; not sent where the wire clips
    # settings that the method chose itself, such as fedveil's route where it was left open; they are kept with a run
    resolved: Mapping[str, Any] = field(default_factory=dict)

    def but(self, **changes: Any) -> Method:
        return replace(self, **changes)


class Seat(NamedTuple):
    """What a stage may know beside the upload."""

    key: bytes  # what this party draws from in this round (wire/rng.py): the server's, or on a device the device's own
    round: int
    people: float  # whom the round expects, a public number
    shares: float = 1.0  # of the noise's variance: what one device adds, or what is left to be added to the sum
    draws: Params = {}  # on a device: numbers in [0, 1), as many as each leaf has, where a stage rounds at random
    run_key: bytes = b""  # stays the same for all rounds of a run: people are dealt into groups by it


@dataclass(frozen=True)
class Stage:
    """Something that happens to what crosses the wire: on the device first, on the server's sum last."""

    client: Callable[[Upload, Seat], Upload] | None = None  # of one device; runs under vmap
    server: Callable[[Upload, Seat], Upload] | None = None  # of the sum
    combine: Callable[[Upload], Upload] | None = None  # in place of +: all admitted uploads, stacked, give one
    seal: Sealed | None = None  # sums are of whole numbers, and only sums are seen (wire/secure.py)
    share: Callable[[Upload, Seat], Upload] | None = None  # the noise that one device adds to its own upload
    written: Callable[[Params], Params] | None = None  # what stands in the message, where that is not the numbers
    whole: bool = False  # `client` fills rows that a person did not touch
    poisson: bool = False  # everybody is asked or not by a secret coin of their own: what an accountant assumes
    local: bool = False  # every device adds all of the noise, and not a part of it
    random: bool = False  # `client` reads `Seat.draws`
    grid: Callable[[int], float] | None = None  # by round: released numbers are whole multiples of this public step
    sums: bool = False  # `server` also takes a plain sum in double precision, which `client` has not seen


class Sealed(Protocol):
    """Sums of which nobody sees the parts."""

    def seal(self, upload: Upload) -> Upload: ...  # as whole numbers, int64; of one device, or of many stacked
    def open(self, total: Upload) -> Upload: ...  # of the sum
    def standing(self, asked: Any, answering: Any, seat: Seat) -> Any: ...  # whose sums can be opened: people
    def parts(self, asked: Any, seat: Seat) -> dict[int, float]: ...  # of a release's noise that each one adds
    def collect(self, uploads: dict[int, Upload], asked: Any, seat: Seat) -> Upload | None: ...  # the real protocol


def chain(*stages: Stage) -> Stage:
    """Stages in order on the device, in reverse on the server; a chain is a Stage."""
    up = [stage.client for stage in stages if stage.client]
    down = [stage.server for stage in reversed(stages) if stage.server]

    def through(steps: Sequence[Callable[[Upload, Seat], Upload]]) -> Callable[[Upload, Seat], Upload] | None:
        return (lambda upload, seat: reduce(lambda value, step: step(value, seat), steps, upload)) if steps else None

    def last(name: str) -> Any:
        return next((getattr(stage, name) for stage in reversed(stages) if getattr(stage, name)), None)

    write = [stage.written for stage in stages if stage.written]
    return Stage(
        through(up), through(down), last("combine"), last("seal"), last("share"),
        (lambda total: reduce(lambda value, step: step(value), write, total)) if write else None,
        any(stage.whole for stage in stages), any(stage.poisson for stage in stages),
        any(stage.local for stage in stages), any(stage.random for stage in stages),
        last("grid"),
        bool(up) and all(stage.sums for stage in stages if stage.client),
    )  # fmt: skip
