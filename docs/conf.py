"""Configuration of the documentation site: `make docs` builds it into docs/_build/html, offline.

Pages are Markdown (MyST). generate.py writes the pages that follow from the code: methods, command line, settings,
JSON schemas and the list of public names.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
sys.path.insert(0, str(HERE.parent / "src"))

import generate  # noqa: E402
from docutils import nodes  # noqa: E402
from docutils.utils.math.latex2mathml import tex2mathml  # noqa: E402

import fedtaste  # noqa: E402

project = "fedtaste"
author = "The fedtaste developers"
copyright = "The fedtaste developers, MIT licence"  # noqa: A001 (Sphinx reads this name)
version = release = fedtaste.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx_copybutton"]
source_suffix = {".md": "myst-nb", ".ipynb": "myst-nb"}
exclude_patterns = ["_build", "evidence", "schemas", "README.md", "**/.ipynb_checkpoints"]
nb_execution_mode = "off"  # notebooks keep the outputs of `make notebooks`
myst_enable_extensions = ["dollarmath", "colon_fence", "deflist"]
myst_heading_anchors = 4
suppress_warnings = ["myst.header"]  # pages that are read on a code host begin their sections at any level

smartquotes_action = "qe"  # no dashes: --set is an option

html_theme = "furo"
html_title = f"fedtaste {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {"footer_icons": [], "top_of_page_buttons": []}
templates_path = ["_templates"]
html_math_renderer = "mathml"

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True, "undoc-members": False}

OUTSIDE = re.compile(r"\]\((?:\.\./)+(?P<path>[^)#\s]+)\)")  # a link to a file of the repository, not of the site
INSIDE = re.compile(r"\]\(docs/(?P<page>[^)\s]+)\)")  # a link as README and CHANGELOG have it


def adapt_links(app: object, name: str, source: list[str]) -> None:
    """Turn links to files outside docs/, which a reader of the site does not have, into the names of the files."""
    depth = name.count("/")
    text = INSIDE.sub(lambda found: f"]({'../' * depth}{found['page']})", source[0])
    source[0] = "".join(_outside(line, depth) for line in text.splitlines(keepends=True))


def _outside(line: str, depth: int) -> str:
    def replace(found: re.Match[str]) -> str:
        ups = found[0].count("../")
        return found[0] if ups <= depth else f"] (`{found['path']}`)"

    changed = OUTSIDE.sub(replace, line)
    return re.sub(r"\[([^\]]*)\] \((`[^`]*`)\)", r"\1 (\2 in the repository)", changed)


def plain_docstring(app: object, what: str, name: str, value: object, options: object, lines: list[str]) -> None:
    """Docstrings are plain text: names in single backquotes become literals, and indented lines stay as they are."""
    text = re.sub(r"(?<!`)`([^`\n]+)`(?!`)", r"``\1``", "\n".join(lines))
    text = re.sub(r"(?<=\w)\*(?=\w)|(?<=\s)\*\*?(?=\w)", lambda found: "\\" + found[0].replace("*", "\\*")[1:], text)
    lines[:] = text.split("\n")


def draw_math(self: Any, node: Any, block: bool = False) -> None:
    """A formula as MathML, which browsers draw themselves: no script from elsewhere."""
    self.body.append(tex2mathml(node.astext(), as_block=block))
    raise nodes.SkipNode


def draw_math_block(self: Any, node: Any) -> None:
    draw_math(self, node, block=True)


def setup(app: Any) -> None:
    generate.write_pages(HERE)
    app.add_html_math_renderer("mathml", (draw_math, None), (draw_math_block, None))
    app.connect("source-read", adapt_links)
    app.connect("autodoc-process-docstring", plain_docstring)
