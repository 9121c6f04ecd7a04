"""Messages as bytes. The ledger counts what these functions produce, not a formula."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from ..core import Download, Params, Upload


class Head(NamedTuple):
    """Whose message it is, of which run and round: what tells a late, a repeated or a strange one."""

    run: int = 0  # 63 bits
    round: int = 0
    person: int = 0


NOBODY = Head()


def encode(message: Upload | Download, head: Head = NOBODY) -> bytes:
    """A message as safetensors: names, shapes and numbers, and nothing that runs."""
    if isinstance(message, Upload):
        tensors, extra = message.total, {"weight": message.weight, "head": torch.tensor(head)}
    else:
        tensors, extra = message.params, {"round": message.round}
    both = {f"params/{name}": value for name, value in tensors.items()} | extra
    return save({name: value.detach().contiguous() for name, value in both.items()})


def decode(blob: bytes) -> tuple[Upload, Head]:
    """The upload in a message from a device, which may have sent anything: ValueError if it is not one."""
    try:
        parts = load(blob)
    except (SafetensorError, ValueError, TypeError, RuntimeError, OverflowError, KeyError, AttributeError) as error:
        raise ValueError(f"not a message: {error}") from error
    weight, head = parts.pop("weight", None), parts.pop("head", None)
    if weight is None or head is None or any(not name.startswith("params/") for name in parts):
        raise ValueError("a message holds params/..., weight and head, and nothing else")
    if head.dtype != torch.int64 or head.shape != (len(Head._fields),):
        raise ValueError(f"the head of a message is {len(Head._fields)} whole numbers")
    return Upload({name.removeprefix("params/"): value for name, value in parts.items()}, weight), Head(*head.tolist())


def read_download(blob: bytes) -> Download:
    """The download in a message: ValueError if it is not one."""
    try:
        parts = load(blob)
    except (SafetensorError, ValueError, TypeError, RuntimeError, OverflowError, KeyError, AttributeError) as error:
        raise ValueError(f"not a message: {error}") from error
    round = parts.pop("round", None)
    if round is None or round.ndim or any(not name.startswith("params/") for name in parts):
        raise ValueError("a download holds params/... and round, and nothing else")
    return Download({name.removeprefix("params/"): value for name, value in parts.items()}, round)


class Ledger:
    """Bytes up and down. Messages of the same names, shapes and types have the same length, so each kind is encoded
    once and then counted. Who shares nothing (the method `local`) sends nothing, not even an empty message."""

    def __init__(self, up_bytes: int = 0, down_bytes: int = 0, uploads: int = 0) -> None:
        self.up_bytes, self.down_bytes, self.uploads = up_bytes, down_bytes, uploads
        self._sizes: dict[tuple[tuple[str, tuple[int, ...], torch.dtype], ...], int] = {}

    def size(self, params: Params, tail: Tensor, down: bool) -> int:
        kind = (("<", (int(down),), tail.dtype), *((n, tuple(v.shape), v.dtype) for n, v in sorted(params.items())))
        if kind not in self._sizes:
            self._sizes[kind] = len(encode(Download(params, tail) if down else Upload(params, tail)))
        return self._sizes[kind]

    def sent_down(self, download: Download, people: int) -> None:
        if download.params:
            self.down_bytes += people * self.size(download.params, download.round, True)

    def sent_up(self, upload: Upload, people: int, written: Callable[[Params], Params] | None = None) -> None:
        """`upload` may be the sum of many: every one of them has its names and shapes. `written`: what stands in the
        message in place of the numbers."""
        if upload.total:
            total = written(upload.total) if written else upload.total
            total = {n: v.float() if v.dtype == torch.float64 else v for n, v in total.items()}  # devices send singles
            self.up_bytes += people * self.size(total, upload.weight, False)
        self.uploads += people
