"""What survives a crash: one safetensors file, replaced whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from ..core import Params
from ..errors import RunError
from ..local import nest, unnest
from .run import State

FORMAT = "tacit-state-2"


def write_atomically(path: Path, write: bytes | Callable[[Path], None]) -> None:
    """Write, flush to the disk, rename: at every moment `path` is the old file or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        if callable(write):
            write(part)
        else:
            part.write_bytes(write)
        with open(part, "rb") as file:
            os.fsync(file.fileno())
        os.replace(part, path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except BaseException as error:
        part.unlink(missing_ok=True)
        if not isinstance(error, OSError | SafetensorError):
            raise
        raise RunError(
            f"{path} cannot be written ({getattr(error, 'strerror', None) or error}); what was there before is "
            "untouched. Free some space, or choose another --out."
        ) from error


def save_params(path: Path, params: Params, about: Mapping[str, Any]) -> None:
    """Named tensors and a JSON description, in one file."""
    tensors = {name: value.detach().contiguous() for name, value in params.items()}
    known: set[int] = set()
    for name, value in tensors.items():  # a file holds every tensor for itself; large ones are written without a copy
        if value.untyped_storage().data_ptr() in known:
            tensors[name] = value.clone()
        known.add(value.untyped_storage().data_ptr())
    write_atomically(path, lambda part: save_file(tensors, part, {"about": json.dumps(about, sort_keys=True)}))


def load_params(path: Path) -> tuple[Params, dict[str, Any]]:
    try:
        with safe_open(path, "pt") as file:
            about = json.loads((file.metadata() or {}).get("about", "{}"))
            params = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except FileNotFoundError:
        raise RunError(f"{path} does not exist; expected a file that `tacit run` wrote.") from None
    except (SafetensorError, OSError, ValueError, RuntimeError) as error:  # RuntimeError: replaced while it is opened
        raise RunError(f"{path} cannot be read as weights ({error}). Restore it from a copy, or run again.") from error
    if not all(bool(torch.isfinite(value).all()) for value in params.values()):
        raise RunError(f"{path} holds numbers that are not finite. Restore it from a copy, or run again.")
    return params, about


def save_state(path: Path, state: State, about: Mapping[str, Any]) -> None:
    parts = nest("shared", state.shared) | nest("memory", state.memory) | nest("private", state.private.pack())
    save_params(path, parts, {**about, "format": FORMAT, "round": state.round})


def load_state(path: Path, fresh: State) -> tuple[State, dict[str, Any]]:
    """The saved state, checked against a fresh one of the same method and data."""
    parts, about = load_params(path)
    if about.get("format") != FORMAT:
        raise RunError(
            f"{path} has format {about.get('format')!r}; this tacit reads {FORMAT!r}. "
            "Run again, or use the tacit that wrote it."
        )
    shared = unnest("shared", parts)
    if {n: v.shape for n, v in shared.items()} != {n: v.shape for n, v in fresh.shared.items()}:
        raise RunError(
            f"{path} holds other parameters than its settings describe. Restore the folder from a copy, or run again."
        )
    fresh.private.unpack(unnest("private", parts))
    shared = {name: shared[name] for name in fresh.shared}  # in the order it had: sums over leaves follow it
    return State(shared, unnest("memory", parts), fresh.private, int(about["round"])), about


def same_bytes(a: Params, b: Params) -> bool:
    """Whether two sets of parameters are equal to the last bit."""
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
