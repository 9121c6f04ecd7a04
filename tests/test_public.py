"""The public names, the docstrings, the code in README.md, and the examples."""

from __future__ import annotations

import ast
import contextlib
import doctest
import importlib
import io
import pkgutil
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import fedtaste

ROOT = Path(__file__).parents[1]
MODULES = [
    module.name
    for module in pkgutil.walk_packages(fedtaste.__path__, "fedtaste.")
    if not module.name.startswith("fedtaste.bench.programs.")  # they need other libraries
]


def test_every_public_name_exists_and_others_raise_an_error():
    for name in fedtaste.__all__:
        assert getattr(fedtaste, name) is not None
    with pytest.raises(AttributeError, match="Public names"):
        _ = fedtaste.nonsense


def test_no_module_hides_a_public_name():
    for module in MODULES:
        importlib.import_module(module)
    assert fedtaste.local is fedtaste.METHODS["local"] and callable(fedtaste.heterogeneity)


def test_the_command_line_starts_without_torch():
    code = "import sys; import fedtaste.cli.main; assert 'torch' not in sys.modules and 'numba' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_bundle_is_served_without_heavy_libraries():
    """requirements/serving.txt names all that is needed."""
    heavy = ["torch", "numba", "matplotlib", "scipy", "sklearn", "polars", "pandas", "flwr", "safetensors"]
    code = (
        "import sys; import fedtaste.cli.serve, fedtaste.serving.bundle_recommender, fedtaste.recommender; "
        f"found = set({heavy!r}) & set(sys.modules); assert not found, found"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", MODULES)
def test_every_module_has_a_docstring_and_its_examples_pass(name):
    module = importlib.import_module(name)
    assert module.__doc__, "every module needs a docstring"
    assert doctest.testmod(module, optionflags=doctest.ELLIPSIS).failed == 0


def test_readme_code_prints_the_output_shown(monkeypatch, tmp_path):
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
    for name in fedtaste.METHODS:
        assert f"`{name}`" in text


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.stem)
def test_examples_run(example, tmp_path, monkeypatch):
    """With three rounds of each training; `make evidence` runs them in full."""
    train = fedtaste.run

    def short_run(*args, rounds, **options):
        return train(*args, rounds=min(rounds, 3), **options)

    monkeypatch.setattr(fedtaste, "run", short_run)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(example)])
    with contextlib.redirect_stdout(io.StringIO()):
        runpy.run_path(str(example), run_name="__main__")


def test_the_source_uses_no_pickle_and_no_eval():
    for path in (ROOT / "src").rglob("*.py"):
        assert not re.search(r"\bpickle\b|(?<![\w.])eval\(|torch\.load\(|allow_pickle=True", path.read_text()), path


def test_the_public_surface_is_small_and_typed():
    """There are at most 60 names beside the version, and type checkers see the same names as the lazy table."""
    assert len(fedtaste.__all__) - 1 <= 60
    tree = ast.parse((ROOT / "src" / "fedtaste" / "__init__.py").read_text())
    typed = [alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names]
    assert set(typed) - {"annotations", "TYPE_CHECKING"} == set(fedtaste.__all__) - {"__version__"}
