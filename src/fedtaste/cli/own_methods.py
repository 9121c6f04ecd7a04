"""Methods of the user's own on the command line: import what `--method package.module:function` names."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from fedtaste.errors import SettingError
from fedtaste.experiment.folder import RunFolder
from fedtaste.methods import find_method


def allow_method(name: str) -> None:
    """Find a method that the user named on the command line. Modules of the current folder can be imported, here and in
    processes that this one starts, which may work in other folders; they come last, so that they replace no other
    module."""
    if ":" in name:
        here, inherited = os.getcwd(), filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
        folders = dict.fromkeys([*(os.path.abspath(folder) for folder in inherited), here])
        os.environ["PYTHONPATH"] = os.pathsep.join(folders)
        if here not in sys.path:  # `python -m fedtaste` has it first
            sys.path.append(here)
    find_method(name)


def allow_method_of(folder: RunFolder, name: str | None) -> None:
    """Import the method of a run folder where the user named the same one with --method."""
    allow_methods_of(folder.path, [folder.settings().method], name)


def allow_methods_of(path: Path, methods: Sequence[str], names: str | None) -> None:
    """Import the methods of a folder that the user named with --method, with commas between several."""
    for name in names.split(",") if names is not None else ():
        if name not in methods:
            several = f"one of {', '.join(methods)}, the methods" if len(methods) > 1 else f"{methods[0]}, the method"
            raise SettingError(f"--method must be {several} of {path}, got {name}.")
        allow_method(name)
