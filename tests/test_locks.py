"""The lock files: every package has the version of constraints.txt and a hash, and every dependency is in them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LOCKS = sorted((ROOT / "requirements" / "locked").glob("*.txt"))
PIN = re.compile(r"^([\w.-]+)(?:\[[\w,]+\])?==(\S+)", re.M)


def name_of(text: str) -> str:
    """The normal form of a requirement's name."""
    return re.sub(r"[-_.]+", "-", re.split(r"[\[<>=~! ;]", text)[0]).lower()


def pins(path: Path) -> dict[str, str]:
    return {name_of(name): version for name, version in PIN.findall(path.read_text())}


CONSTRAINTS = pins(ROOT / "constraints.txt")


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.stem)
def test_every_locked_package_has_a_hash_and_no_file_names_a_registry(path):
    text = path.read_text()
    for requirement in re.split(r"\n(?=\w)", text)[1:]:
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", requirement), requirement[:60]
    assert "://" not in text


@pytest.mark.parametrize("path", [path for path in LOCKS if path.stem != "cuda"], ids=lambda path: path.stem)
def test_locked_versions_are_those_of_the_constraints(path):
    locked = pins(path)
    assert locked and {name: CONSTRAINTS.get(name) for name in locked} == locked


def test_locks_have_every_dependency_of_pyproject():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras, groups = project["project"]["optional-dependencies"], project["dependency-groups"]
    plain = project["project"]["dependencies"]
    needed = {
        "fedtaste": plain,
        "federation": plain + extras["flower"],
        "dev": plain + sum((extras[name] for name in extras if name != "bench"), []) + sum(groups.values(), []),
    }
    for lock, packages in needed.items():
        locked = pins(ROOT / "requirements" / "locked" / f"{lock}.txt")
        assert {name_of(package) for package in packages} <= set(locked), lock
