"""What stands in an order, as objects of this tacit: settings, facts, the download; and what an answer looks like."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ..core import Download, Params, Seat, Upload
from ..engine.backends import one_of, stacked, staged
from ..errors import RunError, SettingError
from ..settings import Plan, Settings
from ..tasks import Facts
from ..wire.ledger import read_download
from ..wire.packing import unpack
from ..wire.plan import upload_of
from ..wire.rng import KEY_BYTES
from .messages import FactsWords, Order, line


def settings_of(order: Order) -> Settings:
    try:
        return Settings(**order.settings)
    except (TypeError, ValueError) as error:
        raise SettingError(
            f"The federation's settings are not of this tacit ({str(error).splitlines()[0]})."
        ) from error


def facts_of(words: Mapping[str, Any]) -> Facts:
    try:
        told = FactsWords.model_validate({**words, "scale": list(words["scale"]), "shape": list(words["shape"])})
    except (KeyError, TypeError, ValueError) as error:
        raise SettingError(
            f"Facts were told that are not of this tacit ({line(str(error).splitlines()[0])})."
        ) from error
    low, high = told.scale
    return Facts(**(told.model_dump() | {"scale": (low, high), "shape": tuple(told.shape)}))


def received(blob: bytes, like: Params, settings: Settings, round: int) -> Download:
    """The shared parameters out of a download, if they are of this method."""
    try:
        found = unpack(read_download(blob).params, like, settings.download)
    except ValueError as error:
        raise RunError(f"What the federation sent is not a download of this method ({error}).") from error
    return Download(found, torch.tensor(float(round)))


def sample(made: Plan, facts: Facts, down: Download) -> Upload:
    """What an answer to this download looks like, after the wire's first half: names, shapes, types."""
    shape = facts.shape or ((facts.width,) if facts.width else ())
    inputs = torch.zeros(1, 1, *shape) if shape else torch.zeros(1, 1, dtype=torch.int64)
    upload = Upload(upload_of(made.method, made.model, inputs, down), torch.ones(()))
    return one_of(staged(made.wire.stage, Seat(b"", int(down.round), 1.0), stacked([upload]), [bytes(KEY_BYTES)]))
