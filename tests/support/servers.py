"""A server of fedtaste in a thread of the test process."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from fedtaste.serving.server import Listener, Server, Site


@contextlib.contextmanager
def running(site: Site, log: Any = lambda event: None, **options: Any) -> Iterator[Server]:
    """A server of this site, until the block ends."""
    with Server(site, Listener(**options), log) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()
