"""`tacit serve`: parses, calls, prints."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
from pathlib import Path
from typing import Annotated, Any

import typer

from .cli_options import JsonOption
from .errors import RunError
from .terminal import emit, out, say


def serve(
    path: Annotated[Path, typer.Argument(help="A run folder, or a bundle of `tacit export`.")],
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Where to listen; 0 picks a free one.")] = 8700,
    api: Annotated[bool, typer.Option("--api", help="Answer POST /v1/recommend too; see /v1/openapi.json.")] = False,
    allow_host: Annotated[
        list[str] | None, typer.Option("--allow-host", help="One more name to answer for, as behind a proxy.")
    ] = None,
    json_: JsonOption = False,
) -> None:
    """Host the page on this machine alone: everything is computed in the browser. Nothing is logged."""
    from .api import Api
    from .serving import Server

    recommender = load(path)
    made = Api(recommender) if api else None
    with Server(recommender.files, port=port, api=made, hosts=allow_host or (), told=say) as server:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have left it to be ignored
        thread = threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True)
        try:
            thread.start()
            if json_:
                emit({"url": server.url, "pid": os.getpid()})
            else:
                told = f" The API is described at {server.url}v1/openapi.json." if api else ""
                out.print(f"Open {server.url} in a browser.{told} Ctrl-C stops.", markup=False, soft_wrap=True)
            thread.join()
        except KeyboardInterrupt:
            server.shutdown()


def load(path: Path) -> Any:
    """The Recommender of a bundle, or of a run, which is exported first."""
    from .recommender import Recommender

    if (path / "manifest.json").exists():
        return Recommender.load(path)
    if not (path / "settings.json").exists() and not any(path.glob("*/settings.json")):
        raise RunError(
            f"{path} is neither a run folder nor a bundle: it has no settings.json and no manifest.json. Give a folder "
            "that `tacit run` or `tacit export` made."
        )
    from .export import export

    with tempfile.TemporaryDirectory(prefix="tacit-") as folder:
        say(f"Exporting {path} into a folder that is gone when it has been read")
        export(path, Path(folder) / "bundle", told=say)
        return Recommender.load(Path(folder) / "bundle")
