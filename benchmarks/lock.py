"""`make lock`: write requirements/locked/*.txt, every package with its version and the SHA-256 of its files.

    serving     what `fedtaste serve BUNDLE` needs
    fedtaste    the package without extras
    federation  with Flower
    dev         what `make test`, `make docs`, `make package` and `make notebooks` need
    cuda        the libraries of torch's CUDA build, which the public index has for Linux; a CPU build needs none

uv resolves them for Python 3.11 on Linux, with the versions of constraints.txt; those of cuda.txt are torch's own. CPU
builds of torch in a folder of `PIP_FIND_LINKS` get their hashes beside those of the index. Install:

    pip install --require-hashes --no-deps -r requirements/locked/fedtaste.txt
    pip install --no-deps fedtaste
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "requirements" / "locked"
PYTHON = "3.11.7"
SETS = {
    "serving": ["requirements/serving.txt"],
    "fedtaste": ["pyproject.toml"],
    "federation": ["pyproject.toml", "--extra", "flower"],
    "dev": [
        "pyproject.toml",
        *(word for extra in ("flower", "tune", "tensorboard", "mlflow") for word in ("--extra", extra)),
        *(word for group in ("dev", "docs", "package", "notebooks") for word in ("--group", group)),
    ],
}  # fmt: skip
CUDA = re.compile(r"cuda-|nvidia-|triton==")  # packages that only the CUDA build of torch needs
USE = "pip install --require-hashes --no-deps -r requirements/locked/{name}.txt"


def compile_set(words: list[str]) -> list[str]:
    """The packages of one set, each as the text of its requirement with its hashes."""
    command = [
        Path(sys.executable).parent / "uv", "pip", "compile", *words, "--constraint", "constraints.txt", "--quiet",
        "--generate-hashes", "--no-header", "--no-annotate", "--python-version", PYTHON,
        "--python-platform", "x86_64-manylinux_2_28",
    ]  # fmt: skip
    done = subprocess.run([str(word) for word in command], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    return [add_cpu_builds(text) for text in re.split(r"\n(?=\S)", done.stdout.strip())]


def add_cpu_builds(text: str) -> str:
    """A requirement; that of torch with the hashes of CPU builds on this machine."""
    pinned = re.match(r"torch==([\d.]+)", text)
    folders = os.environ.get("PIP_FIND_LINKS", "").split() if pinned else []
    for folder in folders:
        for path in sorted(Path(folder).glob(f"torch-{pinned[1]}+cpu-*.whl") if pinned else ()):
            text += f" \\\n    --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"
    return text


def write(name: str, packages: list[str]) -> None:
    head = f"# Written by `make lock` for Python 3.11 on Linux: {USE.format(name=name)}\n"
    (FOLDER / f"{name}.txt").write_text(head + "\n".join(packages) + "\n")
    print(f"requirements/locked/{name}.txt: {len(packages)} packages")


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    cuda: dict[str, None] = {}
    for name, words in SETS.items():
        packages = compile_set(words)
        write(name, [text for text in packages if not CUDA.match(text)])
        cuda |= dict.fromkeys(text for text in packages if CUDA.match(text))
    write("cuda", list(cuda))


if __name__ == "__main__":
    main()
