"""The public surface, the docstrings, and the README's code."""

from __future__ import annotations

import contextlib
import doctest
import importlib
import io
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tacit

ROOT = Path(__file__).parents[1]
MODULES = [m.name for m in pkgutil.walk_packages(tacit.__path__, "tacit.")]


def test_every_public_name_exists():
    for name in tacit.__all__:
        assert getattr(tacit, name) is not None
    with pytest.raises(AttributeError, match="Public names"):
        _ = tacit.nonsense


def test_no_module_hides_a_public_name():
    for home in ("local", "heterogeneity", "methods"):
        importlib.import_module(f"tacit.{home}")
    assert callable(tacit.local) and callable(tacit.heterogeneity)
    assert tacit.local is tacit.METHODS["local"]


def test_help_does_not_wait_for_torch():
    code = "import sys; import tacit.cli; assert 'torch' not in sys.modules and 'numba' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", MODULES)
def test_docstrings(name):
    module = importlib.import_module(name)
    assert module.__doc__, "every module says what it is"
    assert doctest.testmod(module, optionflags=doctest.ELLIPSIS).failed == 0


def test_readme_code_runs_and_prints_what_it_says(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "README.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```\n+```text\n(.*?)```", text, re.S)
    assert blocks
    for code, expected in blocks:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, "README.md", "exec"), {})
        assert printed.getvalue().strip() == expected.strip()


def test_readme_names_every_method():
    text = (ROOT / "README.md").read_text()
    for name in tacit.METHODS:
        assert f"`{name}`" in text


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.stem)
def test_examples_run(example, tmp_path):
    subprocess.run([sys.executable, str(example)], check=True, cwd=tmp_path, timeout=120, capture_output=True)


def test_no_pickle_no_eval():
    for path in (ROOT / "src").rglob("*.py"):
        assert not re.search(r"\bpickle\b|(?<![\w.])eval\(|torch\.load\(|allow_pickle=True", path.read_text()), path


def test_files_stay_readable():
    pages = [path for path in (ROOT / "src" / "tacit" / "web").iterdir() if path.suffix != ".svg"]
    for path in [*(ROOT / "src").rglob("*.py"), *pages]:
        lines = path.read_text().splitlines()
        assert len(lines) <= 400, path  # files are cut by concept; this only stops what has grown unseen
        assert path.suffix == ".py" or max(map(len, lines)) <= 120, path
