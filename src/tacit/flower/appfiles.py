"""The Flower app of a federation, written into a folder: two lines of Python, its settings, a licence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .. import __version__
from ..wholefile import write_atomically

APP = '''"""{name}: a federation of tacit."""

from tacit.flower import client_app, server_app

client = client_app()
server = server_app()
'''
PROJECT = """[build-system]
requires = ["hatchling>=1.24"]
build-backend = "hatchling.build"

[project]
name = "{name}"
version = "{version}"
description = "A federation of tacit"
license = {{ file = "LICENSE" }}
dependencies = ["tacit[flower]=={version}", "flwr>=1.41,<1.42"]

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "tacit"
fab-format-version = 1
flwr-version-target = "1.41.0"

[tool.flwr.app.components]
serverapp = "federation:server"
clientapp = "federation:client"

[tool.flwr.app.config]
{config}"""
LICENCE = """This folder was written by tacit for its owner, who may use, change and share it without conditions.
tacit itself is under the MIT licence.
"""


def write_app(folder: Path, config: dict[str, Any], name: str = "tacit-federation") -> Path:
    """An app that runs with these settings unless the run says otherwise. Returns the folder."""
    lines = "".join(f"{key} = {json.dumps(value)}\n" for key, value in config.items())
    for file, text in {
        "federation.py": APP.format(name=name),
        "pyproject.toml": PROJECT.format(name=name, version=__version__, config=lines),
        "LICENSE": LICENCE,
    }.items():
        write_atomically(folder / file, text.encode())
    return folder
