"""Compression of downloads: sparse tables, rows and 8-bit integers. Devices compute with what they unpack.

    dense    as it is
    sparse   a bit for every entry, and the entries that are not zero        exact
    rows     the rows that are not all zero, with their numbers              exact
    int8     a byte for every entry and one scale a row                      rounded to 1/254 of the row's range
A table that would not get smaller is sent as it is. Uploads are not packed this way, because the positions of the zeros
in one person's upload reveal that person's items.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedtaste.core import Params
from fedtaste.params import all_finite

Form = Literal["dense", "sparse", "rows", "int8"]


def _sparse(table: Tensor) -> Params:
    nonzero = (table != 0).numpy()
    return {"bits": torch.from_numpy(np.packbits(nonzero)), "values": table[torch.from_numpy(nonzero)]}


def _unsparse(parts: Params, shape: tuple[int, ...]) -> Tensor:
    nonzero = torch.from_numpy(np.unpackbits(parts["bits"].numpy(), count=int(np.prod(shape))).astype(bool))
    out = torch.zeros(int(np.prod(shape)))
    out[nonzero] = parts["values"]
    return out.reshape(shape)


def _rows(table: Tensor) -> Params:
    at = (table != 0).any(1).nonzero()[:, 0]
    return {"at": at.int(), "values": table[at]}


def _unrows(parts: Params, shape: tuple[int, ...]) -> Tensor:
    out = torch.zeros(shape)
    out[parts["at"].long()] = parts["values"]
    return out


def int8(table: Tensor) -> Params:
    """A table [rows, width] as a byte for every entry and a scale for every row."""
    scale = table.abs().amax(1) / 127
    return {"scale": scale, "values": (table / torch.where(scale > 0, scale, 1.0)[:, None]).round().to(torch.int8)}


def _unint8(parts: Params, shape: tuple[int, ...]) -> Tensor:
    return parts["values"].float() * parts["scale"][:, None]


FORMS: dict[str, tuple[Callable[[Tensor], Params], Callable[[Params, tuple[int, ...]], Tensor]]] = {
    "sparse": (_sparse, _unsparse),
    "rows": (_rows, _unrows),
    "int8": (int8, _unint8),
}


def pack(params: Params, form: Form) -> tuple[Params, Params]:
    """(the tensors of the message, the parameters that a device unpacks from them)."""
    message, unpacked = dict(params), dict(params)
    for name, table in params.items():
        if form == "dense" or table.ndim != 2 or table.dtype != torch.float32:
            continue
        compress, restore = FORMS[form]
        parts = compress(table)
        if sum(p.numel() * p.element_size() for p in parts.values()) < table.numel() * table.element_size():
            del message[name]
            message |= {f"{name}.{part}": value for part, value in parts.items()}
            unpacked[name] = restore(parts, tuple(table.shape))
    return message, unpacked


def unpack(message: Params, like: Params, form: Form) -> Params:
    """The parameters of a message that `pack` wrote; ValueError unless they have the names, shapes and types of
    `like` and are finite."""
    params, unread = {}, set(message)
    for name, shape in ((n, tuple(v.shape)) for n, v in like.items()):
        parts = {key.removeprefix(f"{name}."): message[key] for key in unread if key.startswith(f"{name}.")}
        try:
            if name in message:
                params[name] = message[name]
                unread.discard(name)
            elif form != "dense":
                params[name] = FORMS[form][1](parts, shape)
                unread -= {f"{name}.{part}" for part in parts}
        except (KeyError, IndexError, RuntimeError, ValueError) as error:
            raise ValueError(f"{name} cannot be read ({error})") from error
        value = params.get(name)
        if value is None or value.shape != shape or value.dtype != like[name].dtype:
            raise ValueError(f"{name} is missing, or of another shape or type")
        if not all_finite(value):
            raise ValueError(f"{name} holds numbers that are not finite")
    if unread:
        raise ValueError(f"it also holds {', '.join(sorted(unread)[:3])}")
    return params
