"""Methods of the user's own on the command line: import what `--method package.module:function` names."""

from __future__ import annotations

import os
import sys

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
    if name is None:
        return
    if name != (method := folder.settings().method):
        raise SettingError(f"--method must be {method}, the method of {folder.path}, got {name}.")
    allow_method(name)
