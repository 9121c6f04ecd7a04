"""Encode and decode messages (safetensors), and the Ledger, which counts traffic by the length of real messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from fedtaste.core import Download, Params, Upload


class Head(NamedTuple):
    """A message's header: which run, round and person it is of, so that late, repeated and foreign messages show."""

    run: int = 0  # 63 bits
    round: int = 0
    person: int = 0


NOBODY = Head()


def encode(message: Upload | Download, head: Head = NOBODY) -> bytes:
    """Encode a message as safetensors: names, shapes and numbers, and no code."""
    if isinstance(message, Upload):
        tensors, extra = message.total, {"weight": message.weight, "head": torch.tensor(head)}
    else:
        tensors, extra = message.params, {"round": message.round}
    both = {f"params/{name}": value for name, value in tensors.items()} | extra
    return save({name: value.detach().contiguous() for name, value in both.items()})


def _tensors(blob: bytes, *extra: str) -> tuple[Params, list[Tensor]]:
    """(the parameters, the `extra` tensors) of a message; ValueError where it holds anything else. The bytes may come
    from anybody, so every error of the parser counts as a message that cannot be read."""
    try:
        tensors = load(blob)
    except (SafetensorError, ValueError, TypeError, RuntimeError, OverflowError, KeyError, AttributeError) as error:
        raise ValueError(f"not a message: {error}") from error
    named = [tensors.pop(name) for name in extra if name in tensors]
    if len(named) < len(extra) or any(not name.startswith("params/") for name in tensors):
        raise ValueError(f"a message must hold params/..., {' and '.join(extra)}, and nothing else")
    return {name.removeprefix("params/"): value for name, value in tensors.items()}, named


def decode(blob: bytes) -> tuple[Upload, Head]:
    """Read an upload; ValueError where the bytes are not one."""
    total, (weight, head) = _tensors(blob, "weight", "head")
    if head.dtype != torch.int64 or head.shape != (len(Head._fields),):
        raise ValueError(f"the head of a message must be {len(Head._fields)} whole numbers")
    return Upload(total, weight), Head(*head.tolist())


def read_download(blob: bytes) -> Download:
    """Read a download; ValueError where the bytes are not one."""
    params, (round,) = _tensors(blob, "round")
    if round.ndim:
        raise ValueError("the round of a download must be one number")
    return Download(params, round)


class Ledger:
    """Counts the bytes of a round, up and down. Messages of the same names, shapes and types have the same length, so
    one is encoded for all, and with `lengths`, a dictionary that ledgers share, for all rounds. A method that shares
    nothing (`local`) sends nothing, not even an empty message."""

    def __init__(self, lengths: dict[object, int] | None = None) -> None:
        self.up_bytes = self.down_bytes = 0
        self.lengths: dict[object, int] = {} if lengths is None else lengths

    def _length(self, message: Upload | Download) -> int:
        tensors = message.total if isinstance(message, Upload) else message.params
        form = (type(message), *((name, tuple(value.shape), value.dtype) for name, value in tensors.items()))
        if form not in self.lengths:
            self.lengths[form] = len(encode(message))
        return self.lengths[form]

    def sent_down(self, download: Download, people: int) -> None:
        """Count a download to each of so many people."""
        if download.params:
            self.down_bytes += people * self._length(download)

    def sent_up(self, upload: Upload, people: int, layout: Callable[[Params], Params] | None = None) -> None:
        """Count `people` uploads with the names and shapes of `upload`, which may be their sum. `layout` gives the
        tensors of a message where a stage writes others than the numbers."""
        if upload.total:
            total = layout(upload.total) if layout else upload.total
            total = {n: v.float() if v.dtype == torch.float64 else v for n, v in total.items()}  # devices send float32
            self.up_bytes += people * self._length(Upload(total, upload.weight))
