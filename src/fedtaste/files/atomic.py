"""Atomic writes: a file is replaced completely or not at all, and only where it may be."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from fedtaste.errors import RunError


def no_links(path: str, flags: int) -> int:
    """An `opener` for open() that refuses a symbolic link, which might lead to somebody else's file."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


def check_target(path: Path, option: str, force: bool, sources: Iterable[Path] = ()) -> None:
    """Refuse to replace a file without `force`; always where the data were read from it or from its folder."""
    for source in sources:
        if path.exists() and source.exists() and any(part.samefile(source) for part in (path, path.parent)):
            raise RunError(f"{path} belongs to the data that are read, and is never replaced. Choose another {option}.")
    if path.exists() and not force:
        raise RunError(f"{path} exists already; choose another {option} or add --force.")


def write_atomically(path: Path, write: bytes | Callable[[Path], None], mode: int | None = None) -> None:
    """Write, flush to the disk, rename: at every moment `path` is the old file or the new one, never a part. `mode`
    holds from the first byte on, as in 0o600 for what only the owner may read."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.unlink(missing_ok=True)  # of a killed process with the same number, or a link that somebody planted
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        os.close(os.open(part, flags, 0o666 if mode is None else mode))
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
