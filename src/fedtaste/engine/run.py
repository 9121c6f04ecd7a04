"""The round loop: train a method on a federation, round by round.

    for done in run(method, model, federation, rounds=8): ...

There are no callbacks: the caller iterates, and may evaluate, save, plot or stop between two rounds.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Required, TypedDict, Unpack

import numpy as np
import torch
from torch import Tensor

from fedtaste.core import Download, Method, Model, Params, People, Stage, StageContext, Upload
from fedtaste.engine.backends import NO_EXAMPLES, Call, Network, Outcome, choose_backend, collect
from fedtaste.engine.store import Store
from fedtaste.errors import DivergedError, RunError, SettingError
from fedtaste.federation import Federation, cohort_size
from fedtaste.params import all_finite, squared_norm
from fedtaste.wire.messages import Ledger
from fedtaste.wire.packing import Form, pack
from fedtaste.wire.rng import derive, fresh_key, seeded_key

Clients = Callable[[Call], Outcome]  # runs clients that are not in this process (flower/server.py)
EXACT = 1e-9  # a share of the noise that is too small to add: the rounding error of a sum of shares
MOST_LOST = 3  # rounds in a row in which every upload was refused, before the run counts as diverged


@dataclass(eq=False)
class State:
    """The state of training after a round; nothing else is needed to resume.

    `shared` and `memory` are new in every round. Private parameters are not: people's own tables may take gigabytes,
    and copying them in every round would double the memory and cost more than training. All states of a run therefore
    share one store that training changes in place, and a state whose store has moved on raises RunError instead of
    handing out the values of a later round. `snapshot` makes a copy that keeps its values.
    """

    shared: Params
    memory: Params  # the server's own (optimisers); never downloaded
    store: Store
    round: int = 0
    version: int = field(init=False)  # of the store when this state was made

    def __post_init__(self) -> None:
        self.version = self.store.version

    @property
    def private(self) -> Store:
        """The private parameters after this round."""
        if self.version != self.store.version and self.store.initial:
            raise RunError(
                f"The private parameters after round {self.round} are gone: a later round has changed them in place. "
                "Keep a copy while you iterate: state = done.state.snapshot()."
            )
        return self.store

    def snapshot(self) -> State:
        """This state with a copy of its private parameters, which later rounds do not change."""
        return State(dict(self.shared), dict(self.memory), self.private.copy(), self.round)


@dataclass(frozen=True, eq=False)
class Round:
    """The outcome of a round and the state after it (`state.private` is readable until the next round; see State)."""

    state: State
    number: int  # from 1
    requested: int  # people in the cohort
    answered: int  # people whose upload was admitted
    rejected: Counter[str]  # uploads by the reason for which they were refused
    change: float  # of the shared parameters, relative to their size; NaN when nobody was admitted
    loss: float | None  # mean training loss of the clients, where the method's uploads hold it
    zeros: float  # the share of exact zeros among the shared numbers
    up_bytes: int
    down_bytes: int
    refused: str | None = None  # the name of the first person whose upload was refused
    senders: int = 0  # people whose messages `up_bytes` counts


class RunOptions(TypedDict, total=False):
    """Options of `run`; all but `rounds` may be left out."""

    rounds: Required[int]
    """Train until so many rounds are done, counting those of `state`."""
    cohort: int | float | None
    """People requested in a round: a number, or a share of them; everybody when left out."""
    dropout: float
    """The share of the requested people who do not answer."""
    seed: int
    """Everything random follows from it, except secret noise."""
    wire: Stage | None
    """What happens to uploads on their way: clipping, noise, secure sums, compression; the method's own stage (rounding
    to few bits, where it has one) when left out."""
    noise_seed: int | None
    """Draws noise from this number, for studies that are to be repeated. It protects nobody."""
    noise_key: bytes | None
    """32 bytes that noise, secret cohort coins and random rounding are drawn from. When it is left out and the wire has
    noise, a new key comes from the operating system, so that no two runs draw the same noise."""
    backend: str
    """auto, loop, vmap or kernel (engine/backends.py)."""
    download: Form
    """How tables are written into a download (wire/packing.py)."""
    state: State | None
    """Go on from this state; a new one by default."""
    run_id: int
    """A number that tells the messages of this run from those of others."""
    network: Network | None
    """What the network does to messages, for tests. Only the loop backend sends messages as bytes."""
    clients: Clients | None
    """Runs remote clients, which hold their examples and private parameters themselves."""


def begin(method: Method, model: Model, federation: Federation, seed: int = 0, folder: Path | None = None) -> State:
    """The state before the first round; `folder` keeps people's own item rows on disk."""
    shared, private = method.init(model.init(torch.Generator().manual_seed(seed)))
    return State(shared, {}, Store.fresh(private, federation.people, method.rows, folder))


def run(method: Method, model: Model, federation: Federation, **options: Unpack[RunOptions]) -> Iterator[Round]:
    """Train a method; yields a Round after each round. RunOptions documents the options.

    >>> import fedtaste
    >>> data = fedtaste.load("synthetic:30x20x300")
    >>> model = fedtaste.factorization(20, k=4)
    >>> method, people = fedtaste.fedals(model), fedtaste.of_histories(data.histories(), 20)
    >>> [done.answered for done in fedtaste.run(method, model, people, rounds=2, cohort=0.5)]
    [15, 15]
    """
    unknown = options.keys() - RunOptions.__annotations__.keys()
    if unknown or "rounds" not in options:
        what = f"has no option {sorted(unknown)[0]!r}" if unknown else "needs the option rounds"
        raise TypeError(f"run() {what}. Options: {', '.join(RunOptions.__annotations__)}.")
    return RoundLoop(method, model, federation, options).rounds_left()


class RoundCohort(NamedTuple):
    """Who takes part in a round."""

    requested: People
    people: People  # those who did not drop out
    answering: People  # those of them whose secure sum can be opened; all of them without secure sums
    context: StageContext


class RoundLoop:
    """The only round loop: draw the cohort, collect the uploads, apply the server's step, count the bytes."""

    def __init__(self, method: Method, model: Model, federation: Federation, options: RunOptions) -> None:
        self.method, self.model, self.federation, self.options = method, model, federation, options
        self.wire = options.get("wire") or method.stage or Stage()
        self.seed = options.get("seed", 0)
        self.backend = choose_backend(options.get("backend", "auto"), method, self.wire)
        self.clients = options.get("clients")
        if options.get("network") and self.backend != "loop":
            raise SettingError("Only the loop backend sends messages through a network. Use backend='loop'.")
        self.key = options.get("noise_key") or self._new_key(options.get("noise_seed"))
        self.state = options.get("state") or begin(method, model, federation, self.seed)
        self.norms, self.zeros = TensorFacts(squared_norm), TensorFacts(count_zeros)
        self.lost = 0  # rounds in a row in which every upload was refused

    def _new_key(self, noise_seed: int | None) -> bytes:
        """The key that this run draws from: secret where there is noise and no noise seed."""
        if noise_seed is None and self.wire.device_noise:
            return fresh_key()
        return seeded_key(self.seed if noise_seed is None else noise_seed)

    def rounds_left(self) -> Iterator[Round]:
        """Run the rounds that are left, and yield each."""
        while self.state.round < self.options["rounds"]:
            yield self._run_round()

    def _run_round(self) -> Round:
        state, number, ledger = self.state, self.state.round, Ledger()
        written, received = pack(state.shared, self.options.get("download", "dense"))
        down = Download(received, torch.tensor(float(number)))
        cohort = self._draw_cohort(number)
        pooled = self.method.pooled
        ledger.sent_down(down._replace(params=self._new_parts(written, number)), 0 if pooled else len(cohort.requested))
        outcome, noise_left = self._collect(down, written, cohort, ledger)
        rejected = Counter(outcome.refused)
        if len(cohort.people) > len(cohort.answering):
            rejected["abandoned"] += len(cohort.people) - len(cohort.answering)
        refused = None
        if outcome.first is not None and not self.wire.device_noise:  # under noise nobody is named
            refused = self.federation.name(outcome.first)
        self.lost = self.lost + 1 if rejected and not outcome.answered and len(cohort.answering) else 0
        if self.lost == MOST_LOST:
            raise diverged(number, f"everybody's upload, for the {MOST_LOST}rd time in a row,", refused)
        change, loss = math.nan, None
        if outcome.upload is None:  # a round in which nobody answers changes nothing
            self._advance(state.shared, state.memory)
        else:
            ledger.sent_up(outcome.upload, 0 if pooled else len(cohort.people), self.wire.message_layout)
            loss = self._server_step(outcome.upload, cohort.context._replace(shares=noise_left), refused)
            change = relative_change(self.state.shared, state.shared, self.norms)
        up_bytes, down_bytes = outcome.bytes or (ledger.up_bytes, ledger.down_bytes)
        return Round(
            self.state, number + 1, len(cohort.requested), outcome.answered, rejected, change, loss,
            zeros(self.state.shared, self.zeros), up_bytes, down_bytes, refused,
            senders=0 if outcome.upload is None else len(cohort.people),
        )  # fmt: skip

    def _draw_cohort(self, number: int) -> RoundCohort:
        """Draw who is requested in this round and who answers."""
        size, members, schedule = self._cohort_size(number), len(self.federation.members), self.method.schedule
        coins = derive(self.key, "cohort", number) if self.wire.poisson else None
        requested, people = self.federation.cohort(
            number, size=size, dropout=self.options.get("dropout", 0.0), seed=self.seed, coins=coins,
            counting=schedule.counting if schedule else None,
        )  # fmt: skip
        expected = float(members if size is None else cohort_size(size, members))
        key, run_key = derive(self.key, "devices", number), derive(self.key, "groups")
        context = StageContext(key, number, expected, run_key=run_key)
        answering = self.wire.secure_sum.recoverable(requested, people, context) if self.wire.secure_sum else people
        return RoundCohort(requested, people, answering, context)

    def _cohort_size(self, number: int) -> int | float | None:
        """The cohort of a round as the caller or the method's schedule says; None: everybody."""
        size, schedule = self.options.get("cohort"), self.method.schedule
        if schedule is None:
            return size
        if number < schedule.counting:
            return None
        return size or (min(schedule.cohort, len(self.federation.members)) or None)

    def _new_parts(self, written: Params, number: int) -> Params:
        """The parameters of a download that a device does not have yet: in the first pass after counting everybody is
        asked for the first time since, and fixed parameters are not sent again."""
        schedule, size = self.method.schedule, self._cohort_size(number)
        if schedule is None or not schedule.fixed or number < schedule.counting:
            return written
        first_pass = 1 if size is None else self.federation.rounds_of_pass(size)
        if number < schedule.counting + first_pass:
            return written
        return {name: value for name, value in written.items() if name.split(".")[0] not in schedule.fixed}

    def _collect(self, down: Download, written: Params, cohort: RoundCohort, ledger: Ledger) -> tuple[Outcome, float]:
        """(what the clients sent, the share of the noise's variance that the server has to add to the sum)."""
        answering, number = cohort.answering, cohort.context.round
        if not len(answering):
            return Outcome(None, Counter(), None, 0), 1.0
        shares = self._noise_shares(cohort)
        form = self.method.examples
        examples = NO_EXAMPLES if self.clients else self.federation.examples(answering, number, form)
        call = Call(
            down, answering, examples, cohort.context, self.wire, cohort.requested, self.options.get("run_id", 0),
            self.options.get("network"), shares, written,
        )  # fmt: skip
        if self.clients:
            outcome = self.clients(call)
            return outcome, 1.0 - outcome.noise if outcome.noise < 1 - EXACT else 0.0
        outcome = collect(self.backend, self.method, call, self.state.private)
        if self.method.pooled and number == 0:  # the baseline without privacy: everybody hands over their data, once
            data = {"inputs": torch.from_numpy(examples.inputs), "targets": torch.from_numpy(examples.targets)}
            ledger.sent_up(Upload(data, torch.ones(())), 1)
        if not shares:
            return outcome, 1.0
        if self.backend == "loop":  # the devices have added their noise
            return outcome, 0.0
        return outcome, float(outcome.answered if self.wire.local else sum(shares[who] for who in answering.tolist()))

    def _noise_shares(self, cohort: RoundCohort) -> dict[int, float]:
        """The share of a release's variance that each person's device adds; none where the server adds the noise."""
        if not self.wire.device_noise:
            return {}
        if self.wire.local:
            return dict.fromkeys(cohort.answering.tolist(), 1.0)
        return self.wire.secure_sum.noise_shares(cohort.requested, cohort.context) if self.wire.secure_sum else {}

    def _server_step(self, upload: Upload, context: StageContext, refused: str | None) -> float | None:
        """Apply the server's stages and the method's server step to the sum; returns the clients' mean loss."""
        number, state = context.round, self.state
        if self.wire.server:
            upload = self.wire.server(upload, context._replace(key=derive(self.key, "noise", number)))
        loss = float(upload.mean()["loss"]) if "loss" in upload.total else None
        try:
            shared, memory = self.method.server(state.shared, state.memory, upload)
        except (torch.linalg.LinAlgError, np.linalg.LinAlgError):  # type: ignore[attr-defined]
            raise diverged(number, "the server's step", refused) from None
        new = (value for name, value in shared.items() if value is not state.shared.get(name))
        if not all(all_finite(value) for value in new):
            raise diverged(number, "the server's step", refused)
        self._advance(shared, memory)
        return loss

    def _advance(self, shared: Params, memory: Params) -> None:
        """Make the state after this round. From here on states of earlier rounds have no private parameters."""
        store = self.state.private
        store.version += 1
        self.state = State(shared, memory, store, self.state.round + 1)


def diverged(number: int, what: str, who: str | None) -> DivergedError:
    """The error of a round in which numbers are no longer finite; `who` is the first person who was refused."""
    named = f" ({who} was the first)" if who else ""
    return DivergedError(
        f"In round {number + 1} {what} left the finite numbers{named}; the last good state is kept. "
        "A learning rate (lr, own_lr, recon_lr, private_lr, table_lr, server_lr or rate), or a penalty that pushes "
        "apart (lam of fedrap), is likely too large: try a tenth of it."
    )


class TensorFacts:
    """A number for each tensor, computed once for tensors that stay the same from round to round."""

    def __init__(self, compute: Callable[[Tensor], float]) -> None:
        self.compute = compute
        self.known: dict[str, tuple[Tensor, float]] = {}

    def of(self, params: Params) -> float:
        """The sum of the numbers of these parameters."""
        self.known = {
            name: (value, kept[1])
            if (kept := self.known.get(name)) and kept[0] is value
            else (value, self.compute(value))
            for name, value in params.items()
        }
        return sum(number for _, number in self.known.values())


def count_zeros(tensor: Tensor) -> float:
    return tensor.numel() - int(torch.count_nonzero(tensor))


def relative_change(new: Params, old: Params, norms: TensorFacts | None = None) -> float:
    """|new - old| / the larger of |new| and |old|, over all shared parameters; NaN where nothing is shared."""
    if not new:
        return math.nan
    new = {name: value for name, value in new.items() if value.is_floating_point()}  # counters do not move
    norms = norms or TensorFacts(squared_norm)
    before, after = norms.of({name: old[name] for name in new}), norms.of(new)
    pairs = [(value, old[name]) for name, value in new.items() if value is not old[name]]
    moved, size = sum(squared_norm(value - last) for value, last in pairs), max(before, after)
    return math.sqrt(moved / size) if size > 0 else 0.0


def zeros(params: Params, counts: TensorFacts) -> float:
    """The share of exact zeros among these numbers."""
    return counts.of(params) / max(sum(v.numel() for v in params.values()), 1)


@dataclass(frozen=True)
class Convergence:
    """Early stopping: when the shared parameters hardly move, or validation has not gained for `patience` rounds."""

    tolerance: float = 0.0
    patience: int = 0

    def reason(self, change: float, scores: list[float | None]) -> str | None:
        """Why to stop now, or None. `scores` are by round, larger is better; None where a round was not validated."""
        if change < self.tolerance:
            return f"the shared parameters moved by {change:.1e} of their size, less than tolerance {self.tolerance:g}"
        validated = [(place, score) for place, score in enumerate(scores) if score is not None]
        if self.patience and validated:
            best = max(validated, key=lambda pair: pair[1])[0]
            if len(scores) - 1 - best >= self.patience:
                return f"validation has not gained for {self.patience} rounds (best after round {best + 1})"
        return None
