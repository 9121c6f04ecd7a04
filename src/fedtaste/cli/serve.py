"""`fedtaste serve`: host the page of a bundle or of a run on this machine."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
from pathlib import Path

from fedtaste.cli.options import ServeOptions
from fedtaste.cli.output import emit, put, say
from fedtaste.cli.own_methods import allow_method_of
from fedtaste.errors import RunError
from fedtaste.experiment.folder import RunFolder
from fedtaste.serving.api import Api
from fedtaste.serving.bundle_recommender import BundleRecommender
from fedtaste.serving.export import export
from fedtaste.serving.server import Server


def serve(options: ServeOptions) -> None:
    """Host the page until Ctrl-C or SIGTERM."""
    recommender = load_recommender(options.path, options.method)
    api = Api(recommender) if options.api else None
    with Server(recommender.files, port=options.port, api=api, hosts=options.allow_host, log=say) as server:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have set it to be ignored
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        try:
            thread.start()
            if options.as_json:
                emit({"url": server.url, "pid": os.getpid()})
            else:
                described = f" The API is described at {server.url}v1/openapi.json." if api else ""
                put(f"Open {server.url} in a browser.{described} Ctrl-C stops.")
            thread.join()
        except KeyboardInterrupt:
            server.shutdown()
            thread.join(5)


def load_recommender(path: Path, method: str | None = None) -> BundleRecommender:
    """The BundleRecommender of a bundle, or of a run, which is exported to a temporary folder first."""
    if (path / "manifest.json").exists():
        return BundleRecommender.load(path)
    if not (path / "settings.json").exists() and not any(path.glob("*/settings.json")):
        raise RunError(
            f"{path} is neither a run folder nor a bundle: it has no settings.json and no manifest.json. Give a folder "
            "that `fedtaste run` or `fedtaste export` made."
        )
    allow_method_of(RunFolder.open(path), method)
    with tempfile.TemporaryDirectory(prefix="fedtaste-") as folder:
        say(f"Exporting {path} into a temporary folder")
        export(path, Path(folder) / "bundle", log=say)
        return BundleRecommender.load(Path(folder) / "bundle")
