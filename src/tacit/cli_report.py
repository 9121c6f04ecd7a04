"""`tacit report`: parses, calls, prints."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .cli_options import JsonOption
from .errors import TacitError
from .terminal import cache, emit, say, show


def report(
    path: Annotated[Path, typer.Argument(help="A run folder, or the folder of a comparison.")],
    json_: JsonOption = False,
) -> None:
    """Write the HTML report of a finished run or comparison again, and show its table."""
    from .data.sources import load
    from .report import shape, write_report
    from .runs import RunFolder
    from .tradeoff import weigh

    parts, kept = [path], {}
    if (path / "compare.json").exists():
        kept = RunFolder(path).read("compare.json")
        parts = RunFolder(path).runs()
    folders = [RunFolder.open(part) for part in parts]
    results = [folder.result() for folder in folders]
    settings = folders[0].settings()
    try:
        about = shape(load(settings.data, seed=settings.seed, cache=cache(), say=say))
    except TacitError:
        if not folders[0].federated:
            raise
        about = None  # the data are with the nodes
    weighed = weigh(results, kept.get("heterogeneity"), tuple(kept.get("axes", ())))
    made = write_report(results, path, data=about, runs=parts, weighed=weighed)
    emit({"report": str(made)}) if json_ else show(results, made, weighed)
