"""One process at a time in a run folder: two that go on with the same run would write over each other.

The lock is on the folder itself, so nothing is left of it; the system lets go of it when a process ends, however that
ends (kill -9). What a process that is gone had half written is swept away by the next one that comes to work.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from .errors import RunError


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Work in this folder while no other process does."""
    try:
        import fcntl
    except ImportError:  # a system without such locks
        yield
        return
    try:
        place = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise RunError(f"{folder} cannot be opened ({error.strerror}). Check the path and its permissions.") from error
    try:
        try:
            fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunError(
                f"{folder} is being worked on by another process{holder(place)}. Wait until it ends, or stop it."
            ) from None
        except OSError:  # a file system that knows no locks
            pass
        sweep(folder)
        yield
    finally:
        os.close(place)


def holder(place: int) -> str:
    """` (123)`: the process that holds the lock of an open file, where the system tells."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        mark = str(os.fstat(place).st_ino)
        for line in Path("/proc/locks").read_text().splitlines():
            words = line.split()  # 1: FLOCK ADVISORY WRITE 123 fe:00:456 0 EOF
            if words[1] == "FLOCK" and words[5].split(":")[-1] == mark:
                return f" ({int(words[4])})"
    return ""


def sweep(folder: Path) -> None:
    """Remove what processes that are gone left half written (wholefile.py names it)."""
    for part in (*folder.glob(".*.part"), *folder.glob("plots/.*.part")):
        found = re.fullmatch(r"\..*\.(\d{1,9})\.part", part.name)
        if found and not alive(int(found[1])):
            with contextlib.suppress(OSError):
                part.unlink()


def alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # somebody else's
        pass
    return True


@contextlib.contextmanager
def wait_for(path: Path) -> Iterator[None]:
    """Hold a lock file for a short piece of work; whoever comes meanwhile waits. The empty file stays."""
    place = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        with contextlib.suppress(ImportError, OSError):  # a system or a file system without such locks
            import fcntl

            fcntl.flock(place, fcntl.LOCK_EX)
        yield
    finally:
        os.close(place)
