"""`make notebooks`: run the notebooks, which takes minutes, and save their output.

python benchmarks/notebooks.py [name ...]      all of docs/tutorials/*.ipynb, or some
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[1] / "docs" / "tutorials"
LARGEST = 300_000  # bytes, because notebooks are stored in the history of the project


def execute(path: Path) -> None:
    """Run a notebook in a fresh process and write it back, without the metadata of this machine."""
    page = nbformat.read(path, as_version=4)
    NotebookClient(
        page, timeout=None, coalesce_streams=True, kernel_name="python3", resources={"metadata": {"path": str(FOLDER)}}
    ).execute()
    page.metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    for number, cell in enumerate(page.cells):
        cell["id"], cell["metadata"] = f"cell-{number}", {}
    nbformat.validate(page)
    text = re.sub(rf"{re.escape(tempfile.gettempdir())}/tmp\w+/", "", nbformat.writes(page)) + "\n"
    if len(text) > LARGEST:
        raise SystemExit(
            f"{path.name} has {len(text):,} bytes; at most {LARGEST:,} are allowed. Make its plots smaller."
        )
    path.write_text(text)


def main(names: list[str]) -> None:
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # the kernel of this Python
    for path in sorted(FOLDER.glob("*.ipynb")):
        if not names or path.stem in names:
            print(f"docs/tutorials/{path.name}", flush=True)
            execute(path)


if __name__ == "__main__":
    main(sys.argv[1:])
