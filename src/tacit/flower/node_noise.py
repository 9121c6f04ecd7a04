"""A node's own noise: what it is drawn from, how much there must be at least, and that a round is answered once.

    store/secret            32 bytes from the operating system that noise is drawn from; nobody else knows them
    store/RUN/answers.json  which order was answered in each round of a run with noise
    least_noise             in node.toml: the smallest standard deviation of the noise that this node adds itself, as a
                            multiple of the bound on one person's upload; orders for less are refused
Nothing that the server sends decides what is drawn: it knows neither the secret nor, from other answers, the noise.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ..core import Seat, Upload
from ..errors import RunError, SettingError
from ..settings import Plan
from ..tasks import People
from ..wholefile import write_atomically
from ..wire.rng import KEY_BYTES, derive, fresh_key
from .messages import Order
from .seals import ANSWERED_OTHERWISE

Config = Mapping[str, Any]  # of a node: data, store, name, secure, fewest, least_noise


@dataclass(frozen=True, eq=False)
class NodeNoise:
    config: Config
    store: Path
    name: str

    # How much

    @cached_property
    def least(self) -> float:
        return number_in(self.config, "least_noise", 0.0)

    def require_some(self, made: Plan) -> None:
        """Refuse a run without noise that an epsilon could be computed for, where `least_noise` asks for some."""
        if self.least and made.wire.mechanism is None:
            raise SettingError(
                f"This node adds noise of at least {self.least:g} x the bound on one person's upload (least_noise), "
                "and this run has no such noise. Nothing was sent. Run with --epsilon, or with --wire clip=1,noise=1, "
                "or take least_noise out of node.toml."
            )

    def require_enough(self, order: Order, made: Plan) -> None:
        """Refuse an order with less noise than this node allows, or with none where the run promises some. What counts
        is the noise that this node adds itself: the server decides how many others there are, and whether there are."""
        self.require_some(made)
        stage, mechanism = made.wire.stage, made.wire.mechanism
        if made.wire.noisy and not stage.local and not order.shares:
            raise SettingError("The federation promises noise and asks this node for none. Nothing was sent.")
        whole = mechanism.deviation(order.round) if mechanism else 0.0
        own = whole if stage.local else whole * math.sqrt(order.shares)
        if own < self.least * (1 - 1e-9):  # as much as was asked for, up to the rounding of a square root
            raise SettingError(
                f"This node adds noise of at least {self.least:g} x the bound on one person's upload (least_noise), "
                f"and the federation asks it for {own:.3g} x. Nothing was sent. Ask for more noise, or lower "
                "least_noise in node.toml."
            )

    def add(self, order: Order, made: Plan, upload: Upload, seat: Seat, answered: int) -> Upload:
        """The sum of this node's people with this node's own noise: for local noise that of every person, and otherwise
        the share that the round asks of every node."""
        stage = made.wire.stage
        if stage.share is None:
            return upload
        shares = float(answered) if stage.local else order.shares
        return stage.share(upload, seat._replace(key=derive(seat.key, "noise"), shares=shares))

    # Which orders are answered

    def request(self, order: Order, people: People, blob: bytes) -> str:
        """A digest of all that this node's answer depends on. It is a part of the key that noise is drawn from: two
        different orders of one round never get the same noise, which their difference would be free of."""
        words = [self.name, order.run, order.phase, order.round, order.base, order.shares, order.people, order.settings]
        digest = hashlib.sha256(json.dumps([*words, people.tolist(), order.facts], sort_keys=True).encode())
        digest.update(blob)
        return digest.hexdigest()

    def answer_once(self, order: Order, folder: Path, request: str) -> None:
        """Answer one order for each round of a run with noise, as often as it comes: the same order has the same
        answer. An answer to another order would be a second release, which no epsilon counts."""
        path, name = folder / "answers.json", f"{order.phase} {order.round}"
        try:
            found = json.loads(path.read_text("utf-8")) if path.exists() else {}
            before = found.get(name)
        except (OSError, ValueError, AttributeError) as error:
            raise RunError(f"{path} cannot be read ({error}). Restore this node's store from a copy.") from error
        if before is None:
            write_atomically(path, json.dumps(found | {name: request}).encode(), 0o600)
        elif before != request:
            raise RunError(f"Round {order.round + 1} of {order.phase} {ANSWERED_OTHERWISE}. Nothing was sent.")

    # What it is drawn from

    def seat(self, order: Order, made: Plan, request: str) -> Seat:
        """What this node's devices draw from: in runs with noise its own secret, which nobody else knows."""
        if order.key and not made.wire.noisy:
            return Seat(bytes.fromhex(order.key), order.round, order.people)
        return Seat(derive(self._secret(), order.run, order.phase, order.round, request), order.round, order.people)

    def _secret(self) -> bytes:
        path = self.store / "secret"
        if not path.exists():
            write_atomically(path, fresh_key(), 0o600)
        found = path.read_bytes()
        if len(found) != KEY_BYTES:
            raise RunError(
                f"{path} holds {len(found)} bytes, not {KEY_BYTES}. Remove it: the node draws a new one by itself."
            )
        return found


def number_in(config: Config, name: str, usual: float) -> float:
    """A number of node.toml that is not negative."""
    value = config.get(name, usual)
    right = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0
    if not right:
        raise SettingError(f"{name} must be a number, 0 or more, got {value!r}. Change it in node.toml.")
    return float(value)
