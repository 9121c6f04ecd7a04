"""The import layers: a module imports its own layer and the layers above it, never one below."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

from support.modules import DRAWN, INTEGRATION, MAPPED, PLOTTED

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "fedtaste"
LAYERS = (
    ("errors", "text", "event_log", "recipe", "result_part", "signature", "steps"),
    ("core", "params"),
    ("files",),
    ("data",),
    ("models",),
    ("wire",),
    ("federation",),
    ("kernels",),
    ("methods",),
    ("engine",),
    ("evaluation",),
    ("attacks",),
    ("tasks",),
    ("experiment",),
    ("report",),
    ("audit", "poisoning"),
    ("serving",),
    ("recommender",),
    ("bench",),
    ("flower",),
    ("cli",),
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
ROOT_FILES = {"__init__", "__main__"}  # the public surface and the entry point import from everywhere
FILES = [path for path in sorted(PACKAGE.rglob("*.py")) if path.parent != PACKAGE or path.stem not in ROOT_FILES]


def top(path: Path) -> str:
    """The package or module directly below fedtaste that this file belongs to."""
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


@cache
def nodes(path: Path) -> list[ast.AST]:
    """The syntax tree of a file, as a list: it is read by several tests."""
    return list(ast.walk(ast.parse(path.read_text())))


def imports(path: Path) -> list[tuple[int, str]]:
    """(line, first name below the package) of every import of the package."""
    targets = []
    for node in nodes(path):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            module = node.module or ""
            if module == "fedtaste":
                targets += [(node.lineno, alias.name) for alias in node.names if alias.name != "__version__"]
            elif module.startswith("fedtaste."):
                targets.append((node.lineno, module.split(".")[1]))
        elif isinstance(node, ast.Import):
            targets += [(node.lineno, a.name.split(".")[1]) for a in node.names if a.name.startswith("fedtaste.")]
    return targets


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_module_imports_only_its_own_and_higher_layers(path):
    for line, target in imports(path):
        assert LEVEL[target] <= LEVEL[top(path)], f"{path}:{line} imports {target}, which is a lower layer"


def test_every_package_has_a_layer():
    parts = {top(path) for path in FILES}
    assert parts == set(LEVEL)


@pytest.mark.parametrize(
    "path", sorted(ROOT.glob("tests/**/*.py")) + sorted(ROOT.glob("benchmarks/*.py")), ids=lambda p: p.name
)
def test_no_test_module_is_imported(path):
    """Code that tests and benchmarks share is in tests/support/."""
    for node in nodes(path):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else names
        for name in names:
            assert not name.startswith(("test_", "tests.", "conftest")), f"{path}:{node.lineno} imports {name}"


# Files with functions that import modules of the package. The command line imports a command when it is called, in
# one place. Flower's apps import torch only for messages that need it: Flower starts a process for every message.
# `Recommender` imports torch only where it trains or reads a model, as serving a bundle needs none (by importlib).
LATE_IMPORTS = {"cli/main.py", "__init__.py", "flower/__init__.py", "flower/node_app.py"}


def function_imports(path: Path) -> list[int]:
    """Lines of imports of the package inside functions."""
    functions = [node for node in nodes(path) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    lines = []
    for node in nodes(path):
        module = node.module if isinstance(node, ast.ImportFrom) else None
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [module or ""]
        if any(name.split(".")[0] == "fedtaste" for name in names):
            lines += [node.lineno for f in functions if f.lineno <= node.lineno <= f.end_lineno][:1]
    return lines


def test_imports_are_at_the_top_of_files():
    late = {str(path.relative_to(PACKAGE)): function_imports(path) for path in sorted(PACKAGE.rglob("*.py"))}
    unexpected = {name: lines for name, lines in late.items() if lines and name not in LATE_IMPORTS}
    assert not unexpected, "import at the top of the file"


# Files outside cli that read the environment: for child processes, the wait policy of thread pools, MLflow's telemetry
# and the XDG cache.
ENVIRONMENT = {"flower/processes.py", "data/archives.py", "experiment/tracking.py"}


def test_only_the_command_line_reads_the_environment():
    readers = {path for path in FILES if "os.environ" in path.read_text() or "getenv" in path.read_text()}
    assert {str(path.relative_to(PACKAGE)) for path in readers if top(path) != "cli"} <= ENVIRONMENT


def test_named_integration_modules_exist():
    modules = {path.stem for path in ROOT.glob("tests/test_*.py")}
    assert {*INTEGRATION, *DRAWN, *PLOTTED, *MAPPED} <= modules and len(set(INTEGRATION)) == len(INTEGRATION)
