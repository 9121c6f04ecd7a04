"""The worked examples of docs/contributing.md: every diff applies to the source and touches at most two files."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DIFFS = re.findall(r"```diff\n(.*?)```", (ROOT / "docs" / "contributing.md").read_text(), re.S)


def test_the_docs_have_three_diffs_for_a_metric_a_source_and_an_option():
    assert len(DIFFS) == 3


@pytest.mark.parametrize("diff", DIFFS, ids=["metric", "source", "option"])
def test_a_documented_diff_applies_to_two_files_at_most(diff, tmp_path):
    files = re.findall(r"^\+\+\+ b/(.*)$", diff, re.M)
    assert 1 <= len(files) <= 2
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text((ROOT / name).read_text())
    patch = subprocess.run(["patch", "-p1", "--dry-run"], input=diff, text=True, cwd=tmp_path, capture_output=True)
    assert patch.returncode == 0, patch.stdout


def test_the_method_in_the_docs_is_the_one_in_test_new_method():
    code = re.search(r"```python\n(.*?)```", (ROOT / "docs" / "contributing.md").read_text(), re.S)
    assert code and code[1].strip() in (ROOT / "tests" / "test_new_method.py").read_text()
