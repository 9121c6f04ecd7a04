"""Locks between processes: a folder that one process at a time may use, and a lock file that others wait for.

The lock of a folder is on the folder itself, so it leaves no file behind, and the system releases it however a process
ends (kill -9). What a dead process left half written is removed by the next one that takes the lock.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from fedtaste.errors import RunError


@contextlib.contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Hold a folder's lock; RunError if another process has it."""
    try:
        import fcntl
    except ImportError:  # a system without such locks
        yield
        return
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise RunError(f"{folder} cannot be opened ({error.strerror}). Check the path and its permissions.") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunError(
                f"{folder} is being worked on by another process{_owner(descriptor)}. Wait until it ends, or stop it."
            ) from None
        except OSError:  # a file system without locks
            pass
        _remove_parts(folder)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def lock_file(path: Path) -> Iterator[None]:
    """Hold a lock file for a short piece of work; other processes wait. The empty file stays."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        with contextlib.suppress(ImportError, OSError):  # a system or a file system without locks
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _owner(descriptor: int) -> str:
    """` (123)`: the process that holds the lock of an open file, where the system tells."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        inode = str(os.fstat(descriptor).st_ino)
        for line in Path("/proc/locks").read_text().splitlines():
            words = line.split()  # 1: FLOCK ADVISORY WRITE 123 fe:00:456 0 EOF
            if words[1] == "FLOCK" and words[5].split(":")[-1] == inode:
                return f" ({int(words[4])})"
    return ""


def _remove_parts(folder: Path) -> None:
    """Remove what dead processes left half written (named by files/atomic.py)."""
    for part in (*folder.glob(".*.part"), *folder.glob("plots/.*.part")):
        process = re.fullmatch(r"\..*\.(\d{1,9})\.part", part.name)
        if process is None:
            continue
        with contextlib.suppress(OSError):  # the process belongs to another user, or the file is gone
            try:
                os.kill(int(process[1]), 0)
            except ProcessLookupError:
                part.unlink()
