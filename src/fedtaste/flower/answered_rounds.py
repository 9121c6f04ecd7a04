"""A node's record of the rounds that it has answered, on its disk: it never answers a round in two different ways.

Two secure sums of one round over different nodes reveal their difference, which may be one node's numbers: a round
whose sum may have been opened is not answered again (store/secure_rounds.json). In a run with noise, an answer to a
second, different order of a round would be a release that no epsilon counts (store/RUN/answers.json). A server that
died with such a round continues without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, RootModel

from fedtaste.errors import ProtocolError, RunError, SettingError
from fedtaste.files.atomic import write_atomically
from fedtaste.flower.messages import Order

ANSWERED = "was answered before in a secure sum"  # the server looks for these words in a refusal
ANSWERED_OTHERWISE = "was answered before, to another order"
NodeConfig = Mapping[str, object]  # of a node: data, store, name, secure, fewest, least_noise
T = TypeVar("T", bound=BaseModel)


def node_store(config: NodeConfig) -> Path:
    """The folder of a node's own files, which is created if it does not exist."""
    if not config.get("store"):
        raise SettingError("This node has no store. Start it with --node-config 'store=\"/a/folder\" ...'.")
    store = Path(str(config["store"]))
    try:
        store.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise SettingError(
            f"This node's store {store} cannot be created ({error.strerror}). Choose another folder."
        ) from error
    return store


class SecureRounds(BaseModel):
    """The content of secure_rounds.json: the secure sums that a node took part in."""

    masked: tuple[str, int] | None = None  # (run and phase, round) of the last answer
    unmasked: dict[str, int] = {}  # by run and phase: the last round whose sum may have been opened


class Answers(RootModel[dict[str, str]]):
    """The content of answers.json: by phase and round, the digest of the order that was answered."""

    root: dict[str, str] = {}


def record_masked(store: Path, order: Order) -> None:
    """Record that this round's numbers leave under masks; refuse if its sum may have been opened before."""
    path, key = store / "secure_rounds.json", f"{order.run:016x} {order.phase}"
    record = _read(SecureRounds, path)
    if order.round <= record.unmasked.get(key, -1):
        raise ProtocolError(
            f"Round {order.round + 1} of {order.phase} {ANSWERED}; a second answer could reveal this node's part."
        )
    record.masked = key, order.round
    _write(path, record)


def record_unmasked(store: Path) -> None:
    """Record that the masks of the last answer are about to be removed."""
    path = store / "secure_rounds.json"
    record = _read(SecureRounds, path)
    if record.masked:
        key, round = record.masked
        record.unmasked[key] = max(round, record.unmasked.get(key, -1))
        _write(path, record)


def answer_once(order: Order, folder: Path, digest: str) -> None:
    """Allow one order for each round of a run with noise, as often as it comes: equal orders have equal answers.
    `digest` identifies everything that the answer depends on; `folder` is the run's folder in the node's store."""
    path = folder / "answers.json"
    answers = _read(Answers, path)
    if answers.root.setdefault(f"{order.phase} {order.round}", digest) != digest:
        raise RunError(f"Round {order.round + 1} of {order.phase} {ANSWERED_OTHERWISE}. Nothing was sent.")
    _write(path, answers)


def _read(model: type[T], path: Path) -> T:
    """The record in a file; empty if there is none yet."""
    try:
        return model.model_validate_json(path.read_bytes()) if path.exists() else model()
    except (OSError, ValueError) as error:
        raise RunError(f"{path} cannot be read ({error}). Restore this node's store from a copy.") from error


def _write(path: Path, record: BaseModel) -> None:
    write_atomically(path, record.model_dump_json().encode(), 0o600)
