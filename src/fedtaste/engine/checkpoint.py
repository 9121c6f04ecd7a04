"""Checkpoints: parameters or a training state in one safetensors file with a checksum, replaced atomically."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from fedtaste.core import Params
from fedtaste.engine.run import State
from fedtaste.errors import RunError
from fedtaste.files.atomic import write_atomically
from fedtaste.params import all_finite, nest, unnest
from fedtaste.result_part import JsonObject

FORMAT = "fedtaste-state-2"


def save_params(path: Path, params: Params, about: JsonObject) -> None:
    """Write named tensors and a JSON description into one file that only its owner may read: models tell of people."""
    tensors = {name: value.detach().contiguous() for name, value in params.items()}
    storages: set[int] = set()
    for name, value in tensors.items():  # safetensors refuses shared memory; only tensors that share it are copied
        if value.untyped_storage().data_ptr() in storages:
            tensors[name] = value.clone()
        storages.add(value.untyped_storage().data_ptr())
    text = json.dumps(about, sort_keys=True)
    entry = f"{checksum(tensors, text)} {text}"  # one entry: the order of several would vary

    def write(part: Path) -> None:
        try:
            save_file(tensors, part, {"about": entry})
        except SafetensorError as error:
            raise OSError(str(error)) from error

    write_atomically(path, write, 0o600)


def checksum(tensors: Params, about: str) -> str:
    """Hash every number, name, shape and type, so that a changed bit on the disk never passes for another model or
    another epsilon."""
    digest = hashlib.blake2b(about.encode(), digest_size=16)
    for name, value in sorted(tensors.items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        if value.numel():
            digest.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def load_params(path: Path) -> tuple[Params, JsonObject]:
    """Read the tensors and the description that `save_params` wrote; RunError where the file is damaged."""
    try:
        with safe_open(path, "pt") as file:
            saved, _, text = (file.metadata() or {}).get("about", "").partition(" ")
            params = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        if saved != checksum(params, text):
            raise ValueError("its checksum is not that of its content")
        about = json.loads(text)
        finite = all(all_finite(value) for value in params.values())
    except FileNotFoundError:
        raise RunError(f"{path} does not exist; expected a file that `fedtaste run` wrote.") from None
    except (SafetensorError, OSError, ValueError, RuntimeError, LookupError, TypeError) as error:
        # RuntimeError: replaced while it is opened, or of a type of number that torch cannot look into
        raise RunError(f"{path} cannot be read as weights ({error}). Restore it from a copy, or run again.") from error
    if not finite or not isinstance(about, dict):
        what = "numbers that are not finite" if not finite else "no description"
        raise RunError(f"{path} holds {what}. Restore it from a copy, or run again.")
    return params, about


def save_state(path: Path, state: State, about: JsonObject) -> None:
    """Write a training state, from which a run can be resumed."""
    parts = nest("shared", state.shared) | nest("memory", state.memory) | nest("private", state.private.pack())
    save_params(path, parts, {**about, "format": FORMAT, "round": state.round})


def load_state(path: Path, fresh: State) -> tuple[State, JsonObject]:
    """The saved state, checked against a fresh one of the same method and data."""
    parts, about = load_params(path)
    if about.get("format") != FORMAT:
        raise RunError(
            f"{path} has format {about.get('format')!r}; this fedtaste reads {FORMAT!r}. "
            "Run again, or use the fedtaste that wrote it."
        )
    shared = unnest("shared", parts)
    number = about.get("round")
    if type(number) is not int or number < 0 or _kinds(shared) != _kinds(fresh.shared):
        raise RunError(
            f"{path} holds other parameters than its settings describe. Restore the folder from a copy, or run again."
        )
    fresh.private.unpack(unnest("private", parts))
    shared = {name: shared[name] for name in fresh.shared}  # in the order it had: sums over leaves follow it
    return State(shared, unnest("memory", parts), fresh.private, number), about


def _kinds(params: Params) -> JsonObject:
    return {name: (value.shape, value.dtype) for name, value in params.items()}


def same_bytes(a: Params, b: Params) -> bool:
    """Whether two sets of parameters are equal to the last bit."""
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
