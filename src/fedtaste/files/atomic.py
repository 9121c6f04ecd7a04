"""Atomic writes: a file is replaced completely or not at all."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from fedtaste.errors import RunError


def write_atomically(path: Path, write: bytes | Callable[[Path], None], mode: int | None = None) -> None:
    """Write, flush to the disk, rename: at every moment `path` is the old file or the new one, never a part. `mode`
    holds from the first byte on, as in 0o600 for what only the owner may read."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if mode is not None:
            os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode))
        if callable(write):
            write(part)
        else:
            part.write_bytes(write)
        if mode is not None:  # `write` may have replaced the file
            part.chmod(mode)
        with open(part, "rb") as file:
            os.fsync(file.fileno())
        os.replace(part, path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except BaseException as error:
        with contextlib.suppress(OSError):  # nothing may have been written at all
            part.unlink(missing_ok=True)
        if not isinstance(error, OSError):
            raise
        raise RunError(
            f"{path} cannot be written ({getattr(error, 'strerror', None) or error}); what was there before is "
            "untouched. Free some space, or choose another --out."
        ) from error
