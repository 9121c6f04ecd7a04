"""`fedtaste serve`: host the page of a bundle or of a run on this machine."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

from fedtaste.cli.options import ListenOptions, ServeOptions
from fedtaste.cli.output import emit, event_log, put
from fedtaste.cli.parser import load_function
from fedtaste.errors import RunError, SettingError
from fedtaste.event_log import Event, EventLog
from fedtaste.serving.bundle_recommender import BundleRecommender
from fedtaste.serving.metrics import Counts
from fedtaste.serving.processes import default_processes, forked
from fedtaste.serving.server import Listener, Server, check_address
from fedtaste.serving.site import PageSite, bundle_date


def serve(options: ServeOptions) -> None:
    """Host the page until Ctrl-C or SIGTERM."""
    log = event_log(options.log)
    processes = options.processes or (default_processes() if options.api else 1)
    if processes > 1 and not hasattr(os, "fork"):
        raise SettingError("--processes must be 1 on this system, which cannot copy processes.")
    with listen(options) as listener:  # before the export of a run, which takes seconds
        site = open_site(options)
        server = Server(site, listener, log, Counts(processes))
        described = f" The API is described at {server.url}v1/openapi.json." if options.api else ""
        facts: dict[str, object] = {"url": server.url, "model": site.api.model.id, "processes": processes}
        warn_exposed(options, server.port, log)
        host(server, options, f"Open {server.url} in a browser.{described} Ctrl-C stops.", facts, processes)


def open_site(options: ServeOptions) -> PageSite:
    """The page of a bundle, or of a run, with its date."""
    bundle = (options.path / "manifest.json").exists()
    recommender = load_recommender(options.path, options.method)
    date = bundle_date(options.path) if bundle else run_date(options.path)
    return PageSite(recommender, api=options.api, folder=options.path if bundle else None, date=date)


def listen(options: ListenOptions) -> Listener:
    return Listener(options.host, options.port, options.allow_host, options.allow_metrics)


def warn_exposed(options: ListenOptions, port: int, log: EventLog) -> None:
    """Say what it means to listen elsewhere than on the loopback address."""
    if not check_address(options.host).is_loopback:
        text = (
            f"Whoever can reach port {port} of {options.host} can send requests, in clear: there is no TLS, no "
            "password and no limit for a client. Put a proxy in front (docs/api.md), or use a firewall."
        )
        log(Event("exposed", text, {"host": options.host, "port": port}))


def host(
    server: Server, options: ListenOptions, text: str, facts: dict[str, object] | None = None, processes: int = 1
) -> None:
    """Answer until Ctrl-C or SIGTERM; `text` is printed once requests are answered."""
    log = event_log(options.log)
    signals: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        """The first signal is no exception, which code that prints might swallow; the second one is."""
        signals.append(number)
        if len(signals) > 1:
            signal.default_int_handler(number, frame)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, note)
    with forked(server, processes):
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        if options.log == "json":
            log(Event("started", text, facts or {}))
        if options.as_json:
            emit({"url": server.url, "pid": os.getpid()})
        elif options.log == "text":
            put(text)
        try:
            while thread.is_alive() and not signals:
                thread.join(0.2)  # a wait without end would not see a signal that arrives just before it
        finally:
            server.shutdown()
            thread.join(5)
    if not signals:
        raise RunError("The server ended by itself. The message above says why. Start it again.")
    if options.log == "json":
        log(Event("stopped", "Stopped."))


def run_date(path: Path) -> datetime | None:
    """When the model of a run folder was written."""
    model = path / "model.safetensors"
    return datetime.fromtimestamp(model.stat().st_mtime, UTC) if model.exists() else None


def load_recommender(path: Path, method: str | None = None) -> BundleRecommender:
    """The BundleRecommender of a bundle, or of a run, which is exported to a temporary folder first."""
    if (path / "manifest.json").exists():
        return BundleRecommender.load(path)
    if not (path / "settings.json").exists() and not any(path.glob("*/settings.json")):
        raise RunError(
            f"{path} is neither a run folder nor a bundle: it has no settings.json and no manifest.json. Give a folder "
            "that `fedtaste run` or `fedtaste export` made."
        )
    with tempfile.TemporaryDirectory(prefix="fedtaste-") as folder:
        load_function("serve_run:export_run")(path, Path(folder) / "bundle", method)
        return BundleRecommender.load(Path(folder) / "bundle")
