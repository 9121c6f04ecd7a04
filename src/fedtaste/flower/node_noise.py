"""Noise that a node adds itself (distributed differential privacy): its secret key, and the least noise it accepts.

    store/secret     32 bytes from the operating system that noise is drawn from; nobody else knows them
    least_noise      in node.toml: the smallest standard deviation of the noise that this node adds itself, as a
                     multiple of the bound on one person's upload; orders for less are refused
Nothing that the server sends decides what is drawn: it does not know the secret, and other answers do not reveal the
noise. answered_rounds.py makes sure that a node answers each round of a run with noise in one way only.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from fedtaste.core import People, StageContext, Upload
from fedtaste.errors import RunError, SettingError
from fedtaste.experiment.plan import Plan
from fedtaste.files.atomic import write_atomically
from fedtaste.flower.answered_rounds import NodeConfig
from fedtaste.flower.messages import Order
from fedtaste.wire.rng import KEY_BYTES, derive, fresh_key


@dataclass(frozen=True, eq=False)
class NodeNoise:
    """Noise of one node, for runs that promise differential privacy."""

    config: NodeConfig
    store: Path
    name: str

    @cached_property
    def least(self) -> float:
        """The least standard deviation, as a multiple of the bound on one person's upload."""
        return config_number(self.config, "least_noise", 0.0)

    def require_some(self, plan: Plan) -> None:
        """Refuse a run without noise that has an epsilon, if `least_noise` is set."""
        if self.least and plan.wire.mechanism is None:
            raise SettingError(
                f"This node adds noise of at least {self.least:g} x the bound on one person's upload (least_noise), "
                "and this run has no such noise. Nothing was sent. Run with --epsilon, or with --wire clip=1,noise=1, "
                "or remove least_noise from node.toml."
            )

    def require_enough(self, order: Order, plan: Plan) -> None:
        """Refuse an order with less noise than `least_noise`, or with none in a run that promises some. Only the noise
        that this node adds itself counts: the server decides how many other nodes there are."""
        self.require_some(plan)
        stage, mechanism = plan.wire.stage, plan.wire.mechanism
        if plan.wire.noisy and not stage.local and not order.noise_share:
            raise SettingError("The federation promises noise and asks this node for none. Nothing was sent.")
        deviation = mechanism.deviation(order.round) if mechanism else 0.0
        if not stage.local:
            deviation *= math.sqrt(order.noise_share)
        if deviation < self.least * (1 - 1e-9):  # tolerates the rounding of the square root
            raise SettingError(
                f"This node adds noise of at least {self.least:g} x the bound on one person's upload (least_noise), "
                f"and the federation asks it for {deviation:.3g} x. Nothing was sent. Run with more noise, or lower "
                "least_noise in node.toml."
            )

    def add(self, order: Order, plan: Plan, upload: Upload, context: StageContext, people: int) -> Upload:
        """The node's sum with the node's noise: with local noise that of each of its `people`, otherwise the share that
        the round asks of every node."""
        stage = plan.wire.stage
        if stage.device_noise is None:
            return upload
        shares = float(people) if stage.local else order.noise_share
        return stage.device_noise(upload, context._replace(key=derive(context.key, "noise"), shares=shares))

    def digest(self, order: Order, people: People, blob: bytes) -> str:
        """A digest of everything that this node's answer depends on. The key of the noise depends on it, so two
        different orders of one round never get equal noise, which their difference would cancel."""
        fields = [order.run, order.phase, order.round, order.base, order.noise_share, order.expected_people]
        content = json.dumps([self.name, *fields, order.settings, people.tolist(), order.facts], sort_keys=True)
        return hashlib.sha256(content.encode() + blob).hexdigest()

    def context(self, order: Order, plan: Plan, digest: str) -> StageContext:
        """What the clients of this node draw from: in runs with noise the node's secret."""
        if order.key and not plan.wire.noisy:
            key = bytes.fromhex(order.key)
        else:
            key = derive(self._secret(), order.run, order.phase, order.round, digest)
        return StageContext(key, order.round, order.expected_people)

    def _secret(self) -> bytes:
        path = self.store / "secret"
        if not path.exists():
            write_atomically(path, fresh_key(), 0o600)
        secret = path.read_bytes()
        if len(secret) != KEY_BYTES:
            raise RunError(
                f"{path} holds {len(secret)} bytes, not {KEY_BYTES}. Remove it: the node then draws a new one."
            )
        return secret


def config_number(config: NodeConfig, name: str, default: float) -> float:
    """A number of node.toml that must not be negative."""
    value = config.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not (math.isfinite(value) and value >= 0):
        raise SettingError(f"{name} must be a number, 0 or more, got {value!r}. Change it in node.toml.")
    return float(value)
