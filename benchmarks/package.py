"""`make package`: build the sdist and the wheel, check them, and use the wheel in empty environments.

    everything   the wheel with its dependencies: run, Recommender, export, and the page over HTTP
    serving      the wheel without its dependencies, and what serving needs: load a bundle, serve it

Packages are those of requirements/locked, checked by their hashes. `everything` then installs the wheel without an
index, which fails where the lock lacks something that the wheel needs.

python benchmarks/package.py [build] [everything] [serving]      all parts, or some of them
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import urllib.request
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
LARGEST = 200_000_000  # bytes of the packages of a serving-only environment
NEEDED = ("fedtaste/serving/web/index.html", "fedtaste/py.typed")  # files that are not code
HEAVY = ("torch", "numba", "matplotlib", "scipy", "polars", "sklearn")
USE = """
import fedtaste as ft
data = ft.load("synthetic:100x60x2000")
model = ft.Recommender("fedals", k=4, rounds=2).fit(data)
print(model.recommend(["1"], n=3))
model.export("site")
"""
LOAD = """
import importlib.util, sys
import fedtaste as ft
assert not [name for name in {heavy!r} if importlib.util.find_spec(name)], "the environment is not a light one"
model = ft.Recommender.load({site!r})
print([each.title for each in model.recommend_for(likes=["The Quiet Labyrinth"], n=3).items])
"""


def run(*words: object, cwd: Path = ROOT) -> str:
    """What a command prints; its output is shown where it fails."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([str(word) for word in words], cwd=cwd, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, words))} failed:\n{done.stdout}\n{done.stderr}")
    return done.stdout


def build() -> None:
    """Build and check the sdist and the wheel."""
    for old in DIST.glob("*"):
        old.unlink()
    run(sys.executable, "-m", "build", "--outdir", DIST)
    run(sys.executable, "-m", "twine", "check", "--strict", *DIST.glob("*"))
    names = zipfile.ZipFile(wheel()).namelist()
    foreign = [name for name in names if not name.startswith(("fedtaste/", "fedtaste-"))]
    missing = [name for name in NEEDED if name not in names]
    if foreign or missing or any("__pycache__" in name for name in names):
        raise SystemExit(f"The wheel should not hold {foreign}, and should hold {missing}.")
    for path in sorted(DIST.glob("*")):
        print(f"{path.name}: {path.stat().st_size:,} bytes, checked")


def wheel() -> Path:
    (path,) = DIST.glob("*.whl")
    return path


def environment(folder: Path, lock: str, *options: object) -> Path:
    """The bin folder of a new environment with the packages of a lock file and the wheel."""
    run(sys.executable, "-m", "venv", folder)
    pip = (folder / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "install", "--quiet")
    run(*pip, "--require-hashes", "--no-deps", "--requirement", ROOT / "requirements" / "locked" / f"{lock}.txt")
    run(*pip, *options, wheel())
    return folder / "bin"


def everything(folder: Path) -> None:
    """Use the wheel with its dependencies."""
    bin = environment(folder / "all", "fedtaste", "--no-index")
    run(bin / "fedtaste", "run", "--data", "synthetic:100x60x2000", "--rounds", 2, "--out", "run", cwd=folder)
    print(run(bin / "python", "-c", USE, cwd=folder))
    check_page(bin, folder / "site")


def serving(folder: Path) -> None:
    """Use the wheel without its dependencies for a bundle."""
    bin = environment(folder / "light", "serving", "--no-deps")
    site = folder / "site"
    if not site.exists():
        run(sys.executable, "-c", USE, cwd=folder)
    print(run(bin / "python", "-c", LOAD.format(heavy=HEAVY, site=str(site)), cwd=folder))
    check_page(bin, site)
    size = sum(path.stat().st_size for path in (folder / "light" / "lib").rglob("*") if path.is_file())
    print(f"The serving-only environment has {size / 1e6:.0f} MB.")
    if size > LARGEST:
        raise SystemExit(f"That is more than {LARGEST / 1e6:.0f} MB.")


def check_page(bin: Path, site: Path) -> None:
    """Serve a bundle on a free port, and fetch its page and one recommendation."""
    words = [bin / "fedtaste", "serve", site, "--port", 0, "--api"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with subprocess.Popen(
        list(map(str, words)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as server:
        try:
            assert server.stdout is not None
            line = next(line for line in server.stdout if "http://" in line)
            address = next(word for word in line.split() if word.startswith("http://")).rstrip("/.,")
            page = urllib.request.urlopen(f"{address}/", timeout=10).read()
            body = json.dumps({"likes": ["The Quiet Labyrinth"], "n": 2}).encode()
            headers = {"Content-Type": "application/json"}
            request = urllib.request.Request(f"{address}/v1/recommend", body, headers)
            answer = json.loads(urllib.request.urlopen(request, timeout=10).read())
            print(f"{address}: a page of {len(page):,} bytes; {answer}"[:200])
        finally:
            server.terminate()


def main(parts: list[str]) -> None:
    if not parts or "build" in parts:
        build()
    with tempfile.TemporaryDirectory() as name:
        for part in (everything, serving):
            if not parts or part.__name__ in parts:
                part(Path(name))


if __name__ == "__main__":
    main(sys.argv[1:])
