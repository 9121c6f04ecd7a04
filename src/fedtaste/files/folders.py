"""Folders that are replaced whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Collection
from pathlib import Path

from fedtaste.errors import RunError


def inner_folder(folder: Path, name: str, mode: int = 0o777) -> Path:
    """Create a folder inside a folder of ours; a symbolic link in its place is refused, as it may lead anywhere."""
    inner = folder / name
    if inner.is_symlink():
        raise RunError(f"{inner} is a symbolic link, and nothing is written through it. Remove it.")
    inner.mkdir(mode=mode, parents=True, exist_ok=True)
    return inner


def check_replaceable(out: Path, kind: str, own_files: Callable[[Path], Collection[str]]) -> None:
    """Refuse to replace anything but a folder of this kind. `own_files` names the files that such a folder may hold,
    and none where it is something else."""
    if out.is_symlink() or (out.exists() and not out.is_dir()):
        what = "symbolic link" if out.is_symlink() else "file"
        raise RunError(f"{out} is a {what} and is not a folder. Give a new folder.")
    if not out.exists() or not any(out.iterdir()):
        return
    known = own_files(out)
    if not known:
        raise RunError(f"{out} is not empty, and what is in it is not {kind}. Give a new folder.")
    others = sorted({entry.name for entry in out.iterdir()} - set(known))
    if others:
        raise RunError(
            f"{out} holds {kind} and also {', '.join(others[:3])}, which would be lost. Move that away, or give a new "
            "folder."
        )


def replace_folder(out: Path, fill: Callable[[Path], None]) -> None:
    """Fill a new folder beside `out`, then put it in the place of `out`: all of it or nothing."""
    out = out.absolute()
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as beside:
            new, old = Path(beside) / "new", Path(beside) / "old"
            new.mkdir()
            new.chmod(0o755)
            fill(new)
            if out.exists() and not any(out.iterdir()):  # keep the folder: it may be a process's working directory
                for entry in list(new.iterdir()):
                    os.replace(entry, out / entry.name)
                return
            try:
                if out.exists():
                    os.replace(out, old)
                os.replace(new, out)
            finally:
                if old.exists() and not out.exists():
                    os.replace(old, out)
    except OSError as error:
        raise RunError(
            f"{out} cannot be written ({error.strerror}). Choose another folder, or free some space."
        ) from error
