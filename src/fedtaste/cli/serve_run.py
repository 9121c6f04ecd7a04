"""Export a run into a bundle, for `fedtaste serve RUN`. This needs torch; serving a bundle does not."""

from __future__ import annotations

from pathlib import Path

from fedtaste.cli.output import say
from fedtaste.cli.own_methods import allow_method_of
from fedtaste.experiment.folder import RunFolder
from fedtaste.serving.export import export


def export_run(path: Path, out: Path, method: str | None) -> None:
    """Write the bundle of a run; `method` names a method of the user's own."""
    allow_method_of(RunFolder.open(path), method)
    say(f"Exporting {path} into a temporary folder")
    export(path, out, log=say)
