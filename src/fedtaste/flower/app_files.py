"""Write files from the templates in templates/: the Flower app of a federation, and scripts for real machines."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from fedtaste import __version__

TEMPLATES = Path(__file__).parent / "templates"


def write_template(template: str, path: Path, values: Mapping[str, object]) -> Path:
    """Write a template with these values for the names between @ signs. Scripts are executable."""
    text = (TEMPLATES / template).read_text("utf-8")
    for name, value in values.items():
        text = text.replace(f"@{name}@", str(value))
    return write_text(path, text)


def write_text(path: Path, text: str) -> Path:
    """Write a public file; one that begins with #! is executable."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
    path.chmod(0o755 if text.startswith("#!") else 0o644)
    return path


def write_app(folder: Path, config: Mapping[str, object]) -> Path:
    """Write the Flower app of a federation; `config` is its run-config unless the run overrides it."""
    lines = "\n".join(f"{key} = {json.dumps(value)}" for key, value in config.items())
    for template in sorted((TEMPLATES / "app").iterdir()):
        target = folder / template.name.removesuffix(".txt")
        write_template(f"app/{template.name}", target, {"VERSION": __version__, "CONFIG": lines})
    return folder
