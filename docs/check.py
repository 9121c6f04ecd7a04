"""Check the documentation: run its code blocks, and look for broken or remote links in the built site.

    python docs/check.py blocks [PAGE ...]     run every python, bash and sh block of these pages, or of all
    python docs/check.py links FOLDER          check the links of a built site

Blocks of a page run in their order, with one working directory and one Python namespace. The directory has the files of
`write_samples`. A block that is followed by a block of text must print that text, where `...` stands for anything. A
block that is not run has a comment before it with the reason: <!-- not run: it needs two machines -->. Commands in a
comment that begins with <!-- setup and a new line are run, and readers do not see them. A block without a language, and
a command in a block of text, fail: whether they are run would not be clear.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

import polars as pl

import fedtaste

DOCS = Path(__file__).parent
PART = re.compile(
    r"^<!-- setup\n(?P<setup>.*?)^-->$"
    r"|(?:^<!-- not run: (?P<reason>[^\n]+?) -->\n+)?^(?P<fence>```+)(?P<kind>\S*)\n(?P<code>.*?)^(?P=fence)$"
    r"|(?<=\n\n)(?P<indented> {4}\S.*?)(?=\n\S|\Z)",
    re.S | re.M,
)
RUN = ("python", "bash", "sh", "setup")
SHOWN = ("text", "diff", "nginx")  # and directives of the site, such as {toctree}
COMMAND = re.compile(r"^(fedtaste|pip|python3?|make|curl|podman|git) ", re.M)
GENERATED = ("command-line", "settings", "schemas", "names")  # of these pages; names.md repeats examples.md


class Block(NamedTuple):
    """A code block: its language, its code, why it is not run, what it should print, and its line in the page."""

    kind: str
    code: str
    reason: str | None
    output: str | None
    line: int


def blocks(text: str) -> list[Block]:
    """All blocks of a page.

    >>> blocks("```python\\nprint(1)\\n```\\n\\n```text\\n1\\n```\\n")[0]
    Block(kind='python', code='print(1)\\n', reason=None, output='1\\n', line=1)
    """
    found = list(PART.finditer(text))
    shown = []
    for here, after in zip(found, [*found[1:], None]):
        kind = "setup" if here["setup"] is not None else "indented" if here["indented"] else here["kind"]
        code = here["setup"] or here["indented"] or here["code"] or ""
        follows = after is not None and after["kind"] == "text" and not text[here.end() : after.start()].strip()
        output = after["code"] if after is not None and follows and kind in RUN else None
        start = here.start("fence") if here["fence"] else here.start()
        shown.append(Block(kind, code, here["reason"], output, text.count("\n", 0, start) + 1))
    return shown


def unclear_blocks(text: str) -> list[str]:
    """The blocks of which nobody can say whether they should be run, each as a sentence."""
    found = []
    for block in blocks(text):
        if block.kind == "indented":
            problem = "an indented block. Use ```bash, ```python or ```text."
        elif not block.kind:
            problem = "a block without a language. Use ```bash, ```python or ```text."
        elif block.kind == "text" and COMMAND.search(block.code):
            problem = "a block of text with a command. Use ```bash, and <!-- not run: reason --> if it cannot be run."
        elif block.kind not in RUN + SHOWN and not block.kind.startswith("{"):
            problem = (
                f"a block in {block.kind}, which is neither run ({', '.join(RUN)}) nor shown ({', '.join(SHOWN)})."
            )
        else:
            continue
        found.append(f"line {block.line}: {problem}")
    return found


def pages() -> Iterator[Path]:
    """The pages that have blocks to run: README, CONTRIBUTING, SECURITY and all of docs/, with the pages of methods after
    a build of the site."""
    yield from (DOCS.parent / f"{name}.md" for name in ("README", "CONTRIBUTING", "SECURITY"))
    for path in sorted(DOCS.rglob("*.md")):
        if "_build" not in path.parts and path.stem not in GENERATED:
            yield path


def run_page(path: Path) -> int:
    """Run the blocks of one page; returns how many ran. Raises AssertionError where one fails."""
    space: dict[str, object] = {"__name__": path.stem}
    ran = 0
    text = path.read_text()
    if unclear := unclear_blocks(text):
        raise AssertionError(f"{path}: " + "\n".join(unclear))
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        write_samples()
        for block in blocks(text):
            if block.reason or block.kind not in RUN:
                continue
            where = f"{path}, line {block.line}"
            printed = run_python(block.code, space, where) if block.kind == "python" else run_shell(block.code, where)
            if block.output is not None and not same_output(block.output, printed):
                raise AssertionError(f"{where}: the block\n{block.code}\nprinted\n{printed}\nand not\n{block.output}")
            ran += block.kind != "setup"
    return ran


def write_samples() -> None:
    """Write the files that commands of the pages name, with the interactions of a small synthetic world."""
    world = fedtaste.load("synthetic:100x60x2000")
    rows = pl.DataFrame({
        "user": [world.people[number] for number in world.person],
        "item": [world.items[number] for number in world.item],
        "timestamp": world.time,
    }).sort("timestamp")  # fmt: skip
    for name in ("my", "your", "events"):
        rows[:-100].write_csv(f"{name}.csv")
    rows[-100:].write_csv("week2.csv")
    rows.write_parquet("ratings.parquet")
    country = pl.when(pl.col("user").str.ends_with("1")).then(pl.lit("no")).otherwise(pl.lit("fi"))
    rows.select(customer="user", sku="item", country=country).write_csv("sales.csv")
    pl.DataFrame({"item": world.items, "title": world.titles}).write_csv("items.csv")


def same_output(expected: str, printed: str) -> bool:
    """Whether a text is as shown. Spaces and line ends do not count, and ... stands for anything.

    >>> same_output("[1, ...,\\n 3]", "[1,2,3]"), same_output("1 ... 3", "1 2 4")
    (True, False)
    """
    pieces = [re.escape("".join(piece.split())) for piece in expected.split("...")]
    return re.fullmatch(".*".join(pieces), "".join(printed.split())) is not None


def run_python(code: str, space: dict[str, object], where: str) -> str:
    """What the code prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, where, "exec"), space)
    return printed.getvalue()


def run_shell(code: str, where: str) -> str:
    """What the commands print; the first one that fails ends the check."""
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-e", "-c", code], capture_output=True, text=True, env=environment, timeout=1800)
    if done.returncode:
        raise AssertionError(f"{where}: the commands\n{code}\nfailed:\n{done.stderr}")
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
    failed = [path for path in [Path(word).resolve() for word in words[1:]] or pages() if not report_page(path)]
    if failed:
        raise SystemExit("Failed: " + " ".join(os.path.relpath(path) for path in failed))


def report_page(path: Path) -> bool:
    """Run a page and print what came of it; returns whether all is well."""
    start, name = time.monotonic(), os.path.relpath(path, DOCS.parent)
    left_out = sum(block.reason is not None for block in blocks(path.read_text()))
    try:
        ran = run_page(path)
    except Exception as problem:
        print(f"{name}: {type(problem).__name__}: {problem}", flush=True)
        return False
    if ran or left_out:
        print(f"{name}: {ran} blocks ran, {left_out} marked; {time.monotonic() - start:.0f} s", flush=True)
    return True


if __name__ == "__main__":
    main(sys.argv[1:])
