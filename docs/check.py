"""Check the documentation: run its code blocks, and look for broken or remote links in the built site.

    python docs/check.py blocks [PAGE ...]     run every python, bash and sh block of these pages, or of all
    python docs/check.py links FOLDER          check the links of a built site

Blocks of a page run in their order, with one working directory and one Python namespace. A block of Python that is
followed by a block of text must print that text. A block that is not run has a comment before it with the reason:
<!-- not run: it needs two machines -->.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

DOCS = Path(__file__).parent
BLOCK = re.compile(r"(?:<!-- not run: (?P<reason>[^\n]*?) -->\n+)?^```(?P<kind>\w+)\n(?P<code>.*?)^```$", re.S | re.M)
RUN = ("python", "bash", "sh")
GENERATED = ("command-line", "settings", "schemas", "names")


class Block(NamedTuple):
    """A code block: its language, its code, why it is not run, and what it should print."""

    kind: str
    code: str
    reason: str | None
    output: str | None


def blocks(text: str) -> list[Block]:
    """The blocks of a page that are code.

    >>> blocks("```python\\nprint(1)\\n```\\n\\n```text\\n1\\n```\\n")
    [Block(kind='python', code='print(1)\\n', reason=None, output='1\\n')]
    """
    found = list(BLOCK.finditer(text))
    shown = []
    for here, after in zip(found, [*found[1:], None]):
        follows = after is not None and after["kind"] == "text" and not text[here.end() : after.start()].strip()
        if here["kind"] in RUN:
            shown.append(
                Block(here["kind"], here["code"], here["reason"], after["code"] if after and follows else None)
            )
    return shown


def pages() -> Iterator[Path]:
    """The pages that have blocks to run: README and all of docs/, without what generate.py writes from docstrings."""
    yield DOCS.parent / "README.md"
    for path in sorted(DOCS.rglob("*.md")):
        if "_build" not in path.parts and path.stem not in GENERATED and path.parent.name != "methods":
            yield path


def run_page(path: Path) -> int:
    """Run the blocks of one page; returns how many ran. Raises AssertionError where one fails."""
    space: dict[str, object] = {"__name__": path.stem}
    ran = 0
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for block in blocks(path.read_text()):
            if block.reason:
                continue
            printed = run_python(block.code, space, path) if block.kind == "python" else run_shell(block.code, path)
            if block.output is not None and printed.strip() != block.output.strip():
                raise AssertionError(f"{path}: the block\n{block.code}\nprinted\n{printed}\nand not\n{block.output}")
            ran += 1
    return ran


def run_python(code: str, space: dict[str, object], path: Path) -> str:
    """What the code prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, str(path), "exec"), space)
    return printed.getvalue()


def run_shell(code: str, path: Path) -> str:
    """What the commands print; the first one that fails ends the check."""
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-e", "-c", code], capture_output=True, text=True, env=environment, timeout=600)
    if done.returncode:
        raise AssertionError(f"{path}: the commands\n{code}\nfailed:\n{done.stderr}")
    return done.stdout


class Links(HTMLParser):
    """What a page links to and loads, and its anchors."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("href", "src", "srcset", "action") and value:
                self.links.append(value)
            if name in ("id", "name") and value:
                self.anchors.add(value)


def read_links(path: Path) -> Links:
    parser = Links()
    parser.feed(path.read_text())
    return parser


def link_problems(site: Path) -> list[str]:
    """Broken links, and links to other hosts, of a built site."""
    found = {path: read_links(path) for path in site.rglob("*.html")}
    problems = []
    for path, page in found.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme in ("http", "https") or parts.netloc:
                problems.append(f"{path.relative_to(site)}: {link} is elsewhere")
                continue
            if parts.scheme:  # mailto:, data:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.exists():
                problems.append(f"{path.relative_to(site)}: {link} does not exist")
            elif parts.fragment and target in found and unquote(parts.fragment) not in found[target].anchors:
                problems.append(f"{path.relative_to(site)}: {link} has no such place")
    return sorted(set(problems))


def main(words: list[str]) -> None:
    if words[:1] == ["links"]:
        problems = link_problems(Path(words[1]).resolve())
        if problems:
            raise SystemExit("\n".join(problems))
        print("All links lead to pages of the site, and nothing is loaded from elsewhere.")
        return
    if words[:1] != ["blocks"]:
        raise SystemExit(__doc__)
    for path in [Path(word).resolve() for word in words[1:]] or pages():
        count = run_page(path)
        if count:
            print(f"{path.name}: {count} blocks ran", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
