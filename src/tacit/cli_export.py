"""`tacit export`: parses, calls, prints."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .cli_options import JsonOption
from .terminal import emit, out, say


def export(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    to: Annotated[Path, typer.Argument(help="The folder to write: new, empty, or a bundle.", metavar="DIR")],
    float32: Annotated[bool, typer.Option("--float32", help="Four bytes a number; one is the usual.")] = False,
    json_: JsonOption = False,
) -> None:
    """A static folder with a page that recommends in the browser, and everything that it needs. Any web server can
    host it."""
    from .export import export as write

    manifest = write(run, to, float32=float32, told=lambda text: say(f"{text} ..."))
    files = manifest["files"]
    size = sum(entry["bytes"] for entry in files.values())
    if json_:
        emit({"bundle": str(to), "bytes": size, **{n: v for n, v in manifest.items() if n not in ("recipe", "about")}})
        return
    out.print(
        f"{to}: {manifest['items']:,} items as {manifest['precision']}, {size / 1e6:.2f} MB in {len(files) + 3} files, "
        f"each held to its hash.", markup=False, soft_wrap=True,
    )  # fmt: skip
    out.print(f"Before you publish it: {manifest['about']['licence'][0]}", markup=False, soft_wrap=True)
    out.print(f"Look at it: tacit serve {to}", markup=False, soft_wrap=True)
