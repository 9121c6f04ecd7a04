"""The import layers: a module imports its own layer and the layers above it, never one below."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from support.modules import DRAWN, INTEGRATION

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "fedtaste"
LAYERS = (
    ("errors", "text", "recipe", "result_part", "signature"),
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
    ("bench",),
    ("flower",),
    ("cli",),
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
ROOT_FILES = {"__init__", "__main__"}  # the public surface and the entry point import from everywhere
FILES = [
    p
    for p in sorted(PACKAGE.rglob("*.py"))
    if p.relative_to(PACKAGE).with_suffix("").name not in ROOT_FILES or p.parent != PACKAGE
]


def top(path: Path) -> str:
    """The first name below the package: a package or a module."""
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def imports(path: Path) -> list[tuple[int, str]]:
    """(line, first name below the package) of every import of the package."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            module = node.module or ""
            if module == "fedtaste":
                found += [(node.lineno, alias.name) for alias in node.names if alias.name != "__version__"]
            elif module.startswith("fedtaste."):
                found.append((node.lineno, module.split(".")[1]))
        elif isinstance(node, ast.Import):
            found += [(node.lineno, a.name.split(".")[1]) for a in node.names if a.name.startswith("fedtaste.")]
    return found


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
    """What tests and benchmarks share is in tests/support/."""
    for node in ast.walk(ast.parse(path.read_text())):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else names
        for name in names:
            assert not name.startswith(("test_", "tests.", "conftest")), f"{path}:{node.lineno} imports {name}"


# Functions that import modules of the package. The command line imports its commands when they are called, in one place.
LATE_IMPORTS = {"cli/main.py", "__init__.py"}
TO_BE_CLEANED = {  # to be emptied
    "flower/__init__.py",
    "flower/client_app.py",
    "flower/server_app.py",
}


def function_imports(path: Path) -> list[int]:
    """Lines of imports of the package inside functions."""
    functions = [
        n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    lines = []
    for node in (inner for function in functions for inner in ast.walk(function)):
        module = node.module if isinstance(node, ast.ImportFrom) else None
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [module or ""]
        if any(name.split(".")[0] == "fedtaste" for name in names):
            lines.append(node.lineno)
    return lines


def test_imports_stand_at_the_top():
    late = {str(path.relative_to(PACKAGE)): function_imports(path) for path in sorted(PACKAGE.rglob("*.py"))}
    late = {name: lines for name, lines in late.items() if lines}
    unexpected = {name: lines for name, lines in late.items() if name not in LATE_IMPORTS | TO_BE_CLEANED}
    assert not unexpected, "import at the top of the file"


# Reading the environment outside cli: where child processes get theirs, the wait policy of thread pools, the XDG cache.
ENVIRONMENT = {"flower/processes.py", "flower/federate.py", "data/archives.py"}


def test_only_the_command_line_reads_the_environment():
    reading = {path for path in FILES if "os.environ" in path.read_text() or "getenv" in path.read_text()}
    assert {str(path.relative_to(PACKAGE)) for path in reading if top(path) != "cli"} <= ENVIRONMENT


def test_named_integration_modules_exist():
    modules = {path.stem for path in ROOT.glob("tests/test_*.py")}
    assert {*INTEGRATION, *DRAWN} <= modules and len(set(INTEGRATION)) == len(INTEGRATION)
