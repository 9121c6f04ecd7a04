"""Limits of the source code: length of functions, number of parameters, uses of Any, words that errors must not use."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "fedtaste"
FILES = sorted(PACKAGE.rglob("*.py"))
LONGEST, MOST_PARAMETERS, MOST_ANY = 40, 8, 60


def functions(path: Path) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    nodes = ast.walk(ast.parse(path.read_text()))
    return [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


@pytest.mark.parametrize(
    "path", [p for p in FILES if "kernels" not in p.parts], ids=lambda p: str(p.relative_to(PACKAGE))
)
def test_functions_are_short_and_take_few_parameters(path):
    for function in functions(path):
        place = f"{path}:{function.lineno} {function.name}"
        arguments = function.args
        parameters = len([*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs])
        assert parameters <= MOST_PARAMETERS, f"{place}: {parameters} parameters"
        lines = (function.end_lineno or 0) - function.lineno + 1
        assert lines <= LONGEST, f"{place}: {lines} lines"


def test_the_type_any_is_rare():
    uses = [
        f"{path.relative_to(PACKAGE)}:{number}"
        for path in FILES
        for number, line in enumerate(path.read_text().splitlines(), 1)
        for _ in re.findall(r"\bAny\b", line)
    ]
    assert len(uses) < MOST_ANY, uses


def test_errors_name_the_limit_and_the_value():
    """For example `passes must be at least 1, got 0`."""
    for path in FILES:
        assert not re.search(r"was got|were got|is expected", path.read_text()), f"{path}: write `must be ..., got ...`"
