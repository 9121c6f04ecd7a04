"""Rounds that a node has answered already, on its disk, so that it answers no round in two different ways.

Two secure sums of one round over different nodes reveal their difference, which may be one node's numbers: a round
whose sum may have been opened is not answered again (store/secure_rounds.json). In a run with noise, an answer to a
second, different order of a round would be a release that no epsilon counts (store/RUN/answers.json). A server that
died with such a round continues without it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, RootModel

from fedtaste.errors import ProtocolError, RunError, SettingError
from fedtaste.files.atomic import write_atomically
from fedtaste.flower.messages import Order

ANSWERED = "was answered before in a secure sum"  # the server looks for these words in a refusal
ANSWERED_OTHERWISE = "was answered before, to another order"
T = TypeVar("T", bound=BaseModel)


class SecureRecord(BaseModel):
    """The content of secure_rounds.json."""

    masked: tuple[str, int] | None = None  # (run and phase, round) of the last answer
    unmasked: dict[str, int] = {}  # by run and phase: the last round whose sum may have been opened


class SecureRounds:
    """The secure sums that a node took part in."""

    def __init__(self, store: str) -> None:
        if not store:
            raise SettingError("This node has no store. Start it with --node-config 'store=\"/a/folder\" ...'.")
        self.path = Path(store) / "secure_rounds.json"

    def mask(self, order: Order) -> None:
        """Record that this round's numbers leave under masks; refuse if its sum may have been opened before."""
        record, key = _read(SecureRecord, self.path), f"{order.run:016x} {order.phase}"
        if order.round <= record.unmasked.get(key, -1):
            raise ProtocolError(
                f"Round {order.round + 1} of {order.phase} {ANSWERED}; a second answer could reveal this node's part."
            )
        record.masked = key, order.round
        write_atomically(self.path, record.model_dump_json().encode(), 0o600)

    def unmask(self) -> None:
        """Record that the masks of the last answer are about to be removed."""
        record = _read(SecureRecord, self.path)
        if record.masked:
            key, round = record.masked
            record.unmasked[key] = max(round, record.unmasked.get(key, -1))
            write_atomically(self.path, record.model_dump_json().encode(), 0o600)


class Answers(RootModel[dict[str, str]]):
    """The content of answers.json: by phase and round, the digest of the order that was answered."""

    root: dict[str, str] = {}


def answer_once(order: Order, folder: Path, digest: str) -> None:
    """Allow one order for each round of a run with noise, as often as it comes: equal orders have equal answers.
    `digest` identifies everything that the answer depends on; `folder` is the run's folder in the node's store."""
    path, name = folder / "answers.json", f"{order.phase} {order.round}"
    answers = _read(Answers, path)
    if answers.root.setdefault(name, digest) != digest:
        raise RunError(f"Round {order.round + 1} of {order.phase} {ANSWERED_OTHERWISE}. Nothing was sent.")
    write_atomically(path, answers.model_dump_json().encode(), 0o600)


def _read(model: type[T], path: Path) -> T:
    """The record in a file; empty if there is none yet."""
    try:
        return model.model_validate_json(path.read_bytes()) if path.exists() else model()
    except (OSError, ValueError) as error:
        raise RunError(f"{path} cannot be read ({error}). Restore this node's store from a copy.") from error
