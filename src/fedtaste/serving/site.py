"""The site of `fedtaste serve`: the files of a bundle and, on request, the API; a new bundle is taken while it runs.

All files are in memory before the first request, and an address is a key of a dictionary: no request can name a path on
the disk.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path, PurePath
from typing import NamedTuple

from prometheus_client.core import Metric

from fedtaste.errors import FedtasteError
from fedtaste.event_log import Event, EventLog
from fedtaste.serving.api import Api, Refused, describe_model
from fedtaste.serving.bundle_recommender import BundleRecommender
from fedtaste.serving.http import JSON, TEXT, Reply, Request, accepts_gzip, api_reply
from fedtaste.serving.metrics import info
from fedtaste.serving.openapi import ROUTES
from fedtaste.text import cut

CONTENT_TYPES = {
    ".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8",
    ".json": JSON, ".svg": "image/svg+xml", ".md": TEXT, ".txt": TEXT,
}  # fmt: skip


class File(NamedTuple):
    """A file with its content type and its tag for caches, and compressed where that is shorter."""

    kind: str
    body: bytes
    packed: bytes | None
    tag: str


def files_by_address(files: Mapping[str, bytes]) -> dict[str, File]:
    """The files as they are sent, by their address; text is compressed here once."""
    by_address = {}
    for name, body in files.items():
        kind = CONTENT_TYPES.get(PurePath(name).suffix)
        packed = gzip.compress(body, 9, mtime=0) if kind else body
        tag = hashlib.sha256(body).hexdigest()[:32]
        smaller = packed if len(packed) < len(body) else None
        by_address[f"/{name}"] = File(kind or "application/octet-stream", body, smaller, tag)
    return by_address | {"/": by_address["/index.html"]}


class PageSite:
    """The page and the API of one model. `folder` is watched: another bundle in it replaces the model."""

    def __init__(
        self, recommender: BundleRecommender, *, api: bool = False, folder: Path | None = None,
        date: datetime | None = None,
    ) -> None:  # fmt: skip
        self.with_api, self.folder = api, folder
        self.seen = self.stamp()
        self.refused = ""  # why the last bundle was refused, so that it is logged once
        self._use(recommender, date)

    def _use(self, recommender: BundleRecommender, date: datetime | None) -> None:
        files, api = files_by_address(recommender.files), Api(recommender, describe_model(recommender, date))
        self.files, self.api = files, api  # requests in work keep what they have

    def stamp(self) -> tuple[int, int] | None:
        """What changes when another bundle is written: inode and time of manifest.json."""
        try:
            found = (self.folder / "manifest.json").stat() if self.folder else None
        except OSError:
            return None
        return (found.st_ino, found.st_mtime_ns) if found else None

    def refresh(self, log: EventLog) -> None:
        """Take another bundle that was written into the folder; one that is not whole is refused, and the old stays."""
        stamp = self.stamp()
        if self.folder is None or stamp is None or stamp == self.seen:
            return
        try:
            self._use(BundleRecommender.load(self.folder), bundle_date(self.folder))
        except FedtasteError as error:
            if str(error) != self.refused:
                self.refused = str(error)
                log(Event("model_refused", f"The new bundle was not taken; the old one stays. {error}"))
            return
        self.seen, self.refused = stamp, ""
        model = self.api.model.id
        log(Event("model", f"Answering with the new model {model} of {self.folder}.", {"model": model}))

    def health(self) -> bytes:
        return self.api.health.encode()

    def metrics(self) -> Iterable[Metric]:
        health = self.api.health
        about = {"model": health.model, "build": health.build, "fedtaste": health.fedtaste, "method": health.method}
        yield info("fedtaste_model", "The model that answers; the value is 1.", about)
        yield info(
            "fedtaste_model_timestamp_seconds", "When the model was written.", {}, self.api.model.date.timestamp()
        )
        yield info(
            "fedtaste_model_loaded_timestamp_seconds", "Since when the model answers.", {},
            self.api.model.loaded.timestamp(),
        )  # fmt: skip

    def address(self, target: str) -> str:
        if target in ROUTES:
            return target
        return "file" if target in self.files else "other"

    def reply(self, request: Request) -> Reply:
        if not request.target.startswith("/v1/"):
            return self._file(request)
        if not self.with_api:
            raise Refused(404, "There is no API here. Start it with `fedtaste serve --api`.")
        kind = request.headers.get("content-type")
        return api_reply(self.api.answer(request.method, request.target, kind, request.body))

    def _file(self, request: Request) -> Reply:
        path = request.target.partition("?")[0]
        file = self.files.get(path)
        if file is None:
            raise Refused(404, f"There is no {cut(path)} here. The page is at /.")
        if request.method not in ("GET", "HEAD"):
            raise Refused(405, f"A file takes GET or HEAD, got {request.method}.", Allow="GET, HEAD")
        packed = file.packed if accepts_gzip(request.headers.get("accept-encoding", "")) else None
        tag = f'"{file.tag}{"-gzip" if packed else ""}"'
        headers = {"Content-Type": file.kind, "Cache-Control": "no-cache", "ETag": tag}
        headers |= {"Vary": "Accept-Encoding"} if file.packed else {}
        tags = [part.strip().removeprefix("W/") for part in request.headers.get("if-none-match", "").split(",")]
        if tag in tags or "*" in tags:
            return Reply(304, b"", headers)
        return Reply(200, packed or file.body, headers | ({"Content-Encoding": "gzip"} if packed else {}))


def bundle_date(folder: Path) -> datetime:
    """When a bundle was written: the time of its manifest.json."""
    return datetime.fromtimestamp((folder / "manifest.json").stat().st_mtime, UTC)
