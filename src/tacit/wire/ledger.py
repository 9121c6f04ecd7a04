"""Messages as bytes. The ledger counts what these functions produce, not a formula."""

from __future__ import annotations

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from ..core import Download, Params, Upload


def encode(message: Upload | Download) -> bytes:
    """A message as safetensors: names, shapes and numbers, and nothing that runs."""
    if isinstance(message, Upload):
        tensors, extra = message.total, {"weight": message.weight}
    else:
        tensors, extra = message.params, {"round": message.round}
    both = {f"params/{name}": value for name, value in tensors.items()} | extra
    return save({name: value.detach().contiguous() for name, value in both.items()})


def decode(blob: bytes) -> Upload:
    """The upload in a message from a device, which may have sent anything: ValueError if it is not one."""
    try:
        parts = load(blob)
    except (SafetensorError, ValueError, RuntimeError, OverflowError, KeyError) as error:
        raise ValueError(f"not a message: {error}") from error
    weight = parts.pop("weight", None)
    if weight is None or any(not name.startswith("params/") for name in parts):
        raise ValueError("a message holds params/... and weight, and nothing else")
    return Upload({name.removeprefix("params/"): value for name, value in parts.items()}, weight)


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

    def sent_up(self, upload: Upload, people: int) -> None:
        """`upload` may be the sum of many: every one of them has its names and shapes."""
        if upload.total:
            self.up_bytes += people * self.size(upload.total, upload.weight, False)
        self.uploads += people
