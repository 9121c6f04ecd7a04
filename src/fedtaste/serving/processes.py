"""Several processes for one server: they share the listening socket, the model (copied on write) and the counts.

Python computes in one thread at a time, so a server of one process uses one core.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator

from fedtaste.event_log import ignore
from fedtaste.serving.server import Server

MOST = 4  # processes that are started where no number is given


def default_processes() -> int:
    """One process for every core that this process may use, at most MOST; one where processes cannot be forked."""
    if not hasattr(os, "fork"):
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, MOST)


@contextlib.contextmanager
def forked(server: Server, processes: int) -> Iterator[list[int]]:
    """Further processes of this server, besides the present one, for the duration of the block; yields their ids.

    They end when the pipe closes that only this process holds, so also when it is killed. Call this before any thread
    is started.
    """
    reading, writing = os.pipe()
    children: list[int] = []
    try:
        for number in range(1, processes):
            child = os.fork()
            if child == 0:
                os.close(writing)
                _serve_until_closed(server, reading, number)
            children.append(child)
        yield children
    finally:
        os.close(writing)
        os.close(reading)
        for child in children:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(child, 0)


def _serve_until_closed(server: Server, reading: int, number: int) -> None:
    """The life of a further process; it does not return."""
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        server.counts.use_row(number)
        server.log = ignore  # the first process speaks for all

        def wait() -> None:
            os.read(reading, 1)
            server.shutdown()

        threading.Thread(target=wait, daemon=True).start()
        server.serve_forever()
        code = 0
    finally:
        os._exit(code)
