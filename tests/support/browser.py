"""Chromium's program names and flags, and a counting web server on loopback, for tests and benchmarks/page.py.

The fixture `chromium` is in conftest.py.
"""

from __future__ import annotations

import mimetypes
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

FULL_PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
PROGRAMS = ("chromium-headless-shell", *FULL_PROGRAMS)  # the same engine without windows takes half of the CPU time
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]


class Site:
    """Files by their path; "" is the start page. `files` may change while it runs. `requests` lists requested paths."""

    def __init__(self, files: Mapping[str, bytes], headers: Mapping[str, str] | None = None) -> None:
        self.files, self.headers, self.requests = dict(files), dict(headers or {}), list[str]()
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path = self.path.partition("?")[0].removeprefix("/")
                site.requests.append(path)
                content = site.files.get(path)
                self.send_response(404 if content is None else 200)
                kind = mimetypes.guess_type(path or "index.html")[0] or "application/octet-stream"
                reply_headers = {"Content-Type": kind, "Content-Length": str(len(content or b"")), **site.headers}
                for name, value in reply_headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content or b"")

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self.url = f"http://127.0.0.1:{self._server.server_port}/"

    @staticmethod
    def of(folder: Path, headers: Mapping[str, str] | None = None) -> Site:
        """A site of the files in a folder, with index.html as the start page."""
        files = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
        return Site(files | {"": files["index.html"]}, headers)

    def __enter__(self) -> Site:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop listening, as if the network were gone. May be called twice."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()
