"""The only round loop.

    for round in run(method, model, federation, rounds=8): ...

No callbacks: whoever iterates may evaluate, save, draw, or stop.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core import Download, Method, Model, Params, Seat, Stage, Upload
from ..errors import DivergedError, SettingError
from ..federation import Federation, cohort_size
from ..wire.ledger import Ledger
from ..wire.packing import Form, pack
from ..wire.rng import derive, fresh_key, seeded_key
from .backends import NOTHING, Call, Mail, Outcome, choose, collect
from .store import Store

Clients = Callable[[Call], Outcome]  # devices that are elsewhere (flower/server.py)
EXACT = 1e-9  # a part of the noise that is not worth adding: rounding errors of a sum of shares
LOST = 3  # rounds in which every single upload was refused, before it is called divergence


@dataclass(eq=False)
class State:
    """All that goes on from one round to the next; nothing else is needed to resume."""

    shared: Params
    memory: Params  # the server's own (optimisers); never downloaded
    private: Store
    round: int = 0


@dataclass(frozen=True, eq=False)
class Round:
    """What a round left behind."""

    state: State
    number: int  # from 1
    asked: int
    answered: int  # admitted
    rejected: Counter[str]
    change: float  # of the shared parameters, relative to their size; NaN when nobody was admitted
    loss: float | None  # people's own training loss, where the method's uploads tell it
    zeros: float  # the share of exact zeros among the shared numbers
    up_bytes: int
    down_bytes: int
    refused: str | None = None  # somebody whose upload was
    senders: int = 0  # people whose messages `up_bytes` counts


def begin(method: Method, model: Model, federation: Federation, seed: int = 0, folder: Path | None = None) -> State:
    """The state before the first round; `folder` keeps people's own item rows on disk."""
    shared, private = method.init(model.init(torch.Generator().manual_seed(seed)))
    return State(shared, {}, Store.fresh(private, federation.people, method.rows, folder))


def run(
    method: Method,
    model: Model,
    federation: Federation,
    *,
    rounds: int,
    cohort: int | float | None = None,
    dropout: float = 0.0,
    seed: int = 0,
    wire: Stage | None = None,
    noise_seed: int | None = None,
    noise_key: bytes | None = None,
    backend: str = "auto",
    download: Form = "dense",
    state: State | None = None,
    name: int = 0,
    mail: Mail | None = None,
    clients: Clients | None = None,
) -> Iterator[Round]:
    """Train until `rounds` rounds are done, counting those that `state` has behind it. `download` is how tables are
    written into a download (wire/packing.py). `noise_key` (32 bytes) is what noise, secret cohort coins and random
    rounding are drawn from; where it is left out and there is noise, a new one comes from the operating system, so that
    no two runs draw the same. `noise_seed` is for studies that are to be repeated: it protects nobody. `name` is the
    run's own number and `mail` what the network does to messages; both matter to the loop backend only, where messages
    are bytes. `clients` runs devices that are elsewhere, with their examples and private parameters."""
    wire = wire or Stage()
    if mail and choose(backend, method, wire) != "loop":
        raise SettingError("mail carries messages, and only the loop backend makes them. Use backend='loop'.")
    secret = noise_key or _run_key(wire, seed, noise_seed)
    state = state or begin(method, model, federation, seed)
    backend, lost = choose(backend, method, wire), 0
    while state.round < rounds:
        number = state.round
        ledger = Ledger()
        written, received = pack(state.shared, download)
        down = Download(received, torch.tensor(float(number)))
        coins = derive(secret, "cohort", number) if wire.poisson else None
        asked, people = federation.cohort(number, size=cohort, dropout=dropout, seed=seed, coins=coins)
        expected = float(len(federation.members) if cohort is None else cohort_size(cohort, len(federation.members)))
        seat = Seat(derive(secret, "devices", number), number, expected, run_key=derive(secret, "groups"))
        ledger.sent_down(down._replace(params=written), 0 if method.pooled else len(asked))
        upload: Upload | None = None
        rejected: Counter[str] = Counter()
        first: int | None = None
        answered, shares, sent = 0, 1.0, None
        answering = wire.seal.standing(asked, people, seat) if wire.seal else people
        if len(answering):
            held = NOTHING if clients else federation.examples(answering, number)
            parts = _noise_parts(wire, asked, answering, seat)
            call = Call(down, answering, held, seat, wire, asked, name, mail, parts)
            outcome = clients(call) if clients else collect(backend, method, call, state.private)
            upload, rejected, first, answered, sent, inside = outcome
            if clients:
                shares = 1.0 - inside if inside < 1 - EXACT else 0.0
            elif parts:  # devices have added their noise in the loop; elsewhere what it comes to is added to the sum
                added = answered if wire.local else sum(parts[who] for who in answering.tolist())
                shares = 0.0 if backend == "loop" else float(added)
            if method.pooled and number == 0:  # a bound: everybody hands over their data, once
                data = {"inputs": torch.from_numpy(held.inputs), "targets": torch.from_numpy(held.targets)}
                ledger.sent_up(Upload(data, torch.ones(())), 1)
        if len(people) > len(answering):
            rejected["abandoned"] += len(people) - len(answering)
        moved, loss = math.nan, None
        if upload is not None:  # a round in which nobody answers changes nothing
            ledger.sent_up(upload, 0 if method.pooled else len(people), wire.written)
            desk = seat._replace(key=derive(secret, "noise", number), shares=shares)
            upload = wire.server(upload, desk) if wire.server else upload
            loss = float(upload.mean()["loss"]) if "loss" in upload.total else None
            try:
                shared, memory = method.server(state.shared, state.memory, upload)
            except (torch.linalg.LinAlgError, np.linalg.LinAlgError):  # what an upload at the edge of the door can do
                raise diverged(number, "the server's step", _named(first, federation, wire)) from None
            moved = relative_change(shared, state.shared)
            if not all(bool(torch.isfinite(value).all()) for value in shared.values()):
                raise diverged(number, "the server's step", _named(first, federation, wire))
            state = State(shared, memory, state.private, number + 1)
        else:
            state = State(state.shared, state.memory, state.private, number + 1)
        lost = lost + 1 if rejected and not answered and len(answering) else 0
        refused = _named(first, federation, wire)
        if lost == LOST:
            raise diverged(number, f"everybody's upload, for the {LOST}rd time in a row,", refused)
        yield Round(
            state, number + 1, len(asked), answered, rejected, moved, loss, zeros(state.shared),
            *(sent or (ledger.up_bytes, ledger.down_bytes)), refused, 0 if upload is None else len(people),
        )  # fmt: skip


def _named(person: int | None, federation: Federation, wire: Stage) -> str | None:
    """Somebody whose upload was refused, by name; nobody is named where the wire adds noise."""
    return None if person is None or wire.share else federation.name(person)


def _run_key(wire: Stage, seed: int, noise_seed: int | None) -> bytes:
    """What a run draws from: secret where there is noise and no seed was asked for."""
    if noise_seed is not None:
        return seeded_key(noise_seed)
    return fresh_key() if wire.share else seeded_key(seed)


def _noise_parts(wire: Stage, asked: NDArray[np.int64], answering: NDArray[np.int64], seat: Seat) -> dict[int, float]:
    """The part of a release's variance that each of these people's devices adds; none where the server adds it."""
    if wire.share and wire.local:
        return dict.fromkeys(answering.tolist(), 1.0)
    return wire.seal.parts(asked, seat) if wire.seal and wire.share else {}


def diverged(number: int, what: str, who: str | None) -> DivergedError:
    named = f" ({who} was the first)" if who else ""
    return DivergedError(
        f"In round {number + 1} {what} left the finite numbers{named}; the last good state is kept. "
        "A learning rate (lr, own_lr, recon_lr, private_lr, table_lr, server_lr or rate), or a penalty that pushes "
        "apart (lam of fedrap), is likely too large: try a tenth of it."
    )


def relative_change(new: Params, old: Params) -> float:
    """|new - old| / the larger of |new| and |old|, over all shared parameters; NaN where nothing is shared."""
    if not new:
        return math.nan

    def square(of: Callable[[str], Tensor]) -> float:
        return sum(float((of(name).double() ** 2).sum()) for name in new)

    size = max(square(lambda n: new[n]), square(lambda n: old[n]))
    return math.sqrt(square(lambda n: new[n].double() - old[n].double()) / size) if size > 0 else 0.0


def zeros(params: Params) -> float:
    """The share of exact zeros."""
    return sum(int((v == 0).sum()) for v in params.values()) / max(sum(v.numel() for v in params.values()), 1)


@dataclass(frozen=True)
class Convergence:
    """When to stop before the last round: the shared parameters hardly move, or validation has not gained for
    `patience` rounds."""

    tolerance: float = 0.0
    patience: int = 0

    def reason(self, change: float, scores: list[float | None]) -> str | None:
        """Why to stop now, or None. `scores` by round, larger is better; None where none was taken."""
        if change < self.tolerance:
            return f"the shared parameters moved by {change:.1e} of their size, less than tolerance {self.tolerance:g}"
        taken = [(place, score) for place, score in enumerate(scores) if score is not None]
        if self.patience and taken:
            best = max(taken, key=lambda pair: pair[1])[0]
            if len(scores) - 1 - best >= self.patience:
                return f"validation has not gained for {self.patience} rounds (best after round {best + 1})"
        return None
