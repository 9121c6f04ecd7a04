"""The documentation site: its pages name everything, its Python blocks run, and links are found broken."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from pathlib import Path

import pytest

import fedtaste
from fedtaste.methods import METHODS

DOCS = Path(__file__).parents[1] / "docs"
spec = importlib.util.spec_from_file_location("docs_check", DOCS / "check.py")
check = importlib.util.module_from_spec(spec)
spec.loader.exec_module(check)


def test_every_method_has_facts_for_its_page():
    facts = tomllib.loads((DOCS / "methods" / "methods.toml").read_text())
    assert set(METHODS) <= set(facts)
    for about in facts.values():
        assert {"title", "group", "idea", "formula", "shared", "stays", "sent", "when", "paper"} <= set(about)


def test_every_public_name_has_an_example():
    """Methods have a page each with an example of their own."""
    sections = re.findall(r"^## (\w+)$", (DOCS / "reference" / "examples.md").read_text(), re.M)
    assert set(sections) == set(fedtaste.__all__) - set(METHODS) - {"__version__"}


def test_the_examples_of_public_names_run():
    assert check.run_page(DOCS / "reference" / "examples.md") > 30


def test_every_page_is_in_a_list_of_pages():
    listed = set()
    for path in DOCS.rglob("*.md"):
        for block in re.findall(r"```\{toctree\}\n(.*?)```", path.read_text(), re.S):
            names = [line.strip() for line in block.splitlines() if line.strip() and not line.startswith(":")]
            listed |= {(path.parent / name).resolve() for name in names}
    pages = [path for path in [*DOCS.rglob("*.md"), *DOCS.rglob("*.ipynb")] if "_build" not in path.parts]
    generated = {DOCS / "methods", DOCS / "reference"}
    missing = {p.with_suffix("") for p in pages if p.parent not in generated} - listed - {DOCS / "index"}
    assert not missing


def test_a_block_must_print_the_text_below_it(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("```python\nprint(1)\n```\n\n```text\n2\n```\n")
    with pytest.raises(AssertionError, match="printed"):
        check.run_page(page)
    page.write_text("<!-- not run: it would never end -->\n```python\nwhile True: pass\n```\n")
    assert check.run_page(page) == 0


@pytest.mark.parametrize("page", list(check.pages()), ids=lambda path: path.stem)
def test_every_block_of_a_page_has_a_language_and_no_command_is_shown_as_text(page):
    assert check.unclear_blocks(page.read_text()) == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("Say:\n\n    fedtaste run\n", "line 3: an indented block"),
        ("```\nfedtaste run\n```\n", "line 1: a block without a language"),
        ("```text\nan output\nfedtaste run --data my.csv\n```\n", "line 1: a block of text with a command"),
        ("```cobol\nSTOP RUN.\n```\n", "line 1: a block in cobol"),
    ],
)
def test_a_block_that_is_neither_run_nor_marked_fails(tmp_path, text, problem):
    page = tmp_path / "page.md"
    page.write_text(text)
    (found,) = check.unclear_blocks(text)
    assert found.startswith(problem)
    with pytest.raises(AssertionError, match=problem):
        check.run_page(page)


def test_a_page_can_prepare_and_leave_out_parts_of_an_output(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "<!-- setup\necho 12 apples and 3 pears > stock.txt\n-->\n\n"
        "```bash\ncat stock.txt; wc -l my.csv\n```\n\n```text\n12 ...\n  pears ... my.csv\n```\n"
    )
    assert check.run_page(page) == 1


def test_broken_and_remote_links_are_found(tmp_path):
    (tmp_path / "a.html").write_text(
        '<a href="b.html"></a><a href="#here"></a><img src="https://x.org/a.png"><p id="there">'
    )
    assert check.link_problems(tmp_path) == [
        "a.html: #here has no such place", "a.html: b.html does not exist", "a.html: https://x.org/a.png is elsewhere",
    ]  # fmt: skip
