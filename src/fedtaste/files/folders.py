"""Folders that are replaced whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from fedtaste.errors import RunError


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
