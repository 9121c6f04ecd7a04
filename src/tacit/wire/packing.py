"""How a table is written into a download, so that what is sparse is also small. The device computes with what it reads.

    dense    as it is
    sparse   a bit for every entry, and the entries that are not zero        exact
    rows     the rows that are not all zero, with their numbers              exact
    int8     a byte for every entry and one scale a row                      rounded to 1/254 of the row's range
A table that would not get smaller stays as it is. Uploads are not packed this way: which entries are zero in one
person's upload tells that person's items.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from ..core import Params

Form = Literal["dense", "sparse", "rows", "int8"]


def _sparse(table: Tensor) -> Params:
    there = (table != 0).numpy()
    return {"bits": torch.from_numpy(np.packbits(there)), "values": table[torch.from_numpy(there)]}


def _unsparse(parts: Params, shape: tuple[int, ...]) -> Tensor:
    there = torch.from_numpy(np.unpackbits(parts["bits"].numpy(), count=int(np.prod(shape))).astype(bool))
    out = torch.zeros(int(np.prod(shape)))
    out[there] = parts["values"]
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
    return {
        "scale": scale,
        "values": (table / torch.where(scale > 0, scale, 1.0)[:, None]).round().to(torch.int8),
    }


def _unint8(parts: Params, shape: tuple[int, ...]) -> Tensor:
    return parts["values"].float() * parts["scale"][:, None]


FORMS: dict[str, tuple[Callable[[Tensor], Params], Callable[[Params, tuple[int, ...]], Tensor]]] = {
    "sparse": (_sparse, _unsparse),
    "rows": (_rows, _unrows),
    "int8": (int8, _unint8),
}


def pack(params: Params, form: Form) -> tuple[Params, Params]:
    """(what is written into the message, what the device reads out of it)."""
    written, read = dict(params), dict(params)
    for name, table in params.items():
        if form == "dense" or table.ndim != 2 or table.dtype != torch.float32:
            continue
        to, back = FORMS[form]
        parts = to(table)
        if sum(p.numel() * p.element_size() for p in parts.values()) < table.numel() * table.element_size():
            del written[name]
            written |= {f"{name}.{part}": value for part, value in parts.items()}
            read[name] = back(parts, tuple(table.shape))
    return written, read


def unpack(written: Params, like: Params, form: Form) -> Params:
    """What a device reads out of a message that `pack` wrote: parameters of these names, shapes and types. ValueError
    where they are not."""
    found, left = {}, set(written)
    for name, shape in ((n, tuple(v.shape)) for n, v in like.items()):
        parts = {key.removeprefix(f"{name}."): written[key] for key in left if key.startswith(f"{name}.")}
        try:
            if name in written:
                found[name] = written[name]
                left.discard(name)
            elif form != "dense":
                found[name] = FORMS[form][1](parts, shape)
                left -= {f"{name}.{part}" for part in parts}
        except (KeyError, IndexError, RuntimeError, ValueError) as error:
            raise ValueError(f"{name} cannot be read ({error})") from error
        value = found.get(name)
        if value is None or value.shape != shape or value.dtype != like[name].dtype:
            raise ValueError(f"{name} is missing, or of another shape or type")
        if not bool(torch.isfinite(value).all()):
            raise ValueError(f"{name} holds numbers that are not finite")
    if left:
        raise ValueError(f"it also holds {', '.join(sorted(left)[:3])}")
    return found
