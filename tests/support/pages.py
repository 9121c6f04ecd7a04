"""The recommendation page in a browser, for tests: a server that counts requests, and actions of a user on the page."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedtaste.serving.bundle import sha256
from fedtaste.serving.export import entrance_files
from fedtaste.serving.http import Reply, Request, render
from fedtaste.serving.server import Listener, Server
from fedtaste.serving.site import PageSite, files_by_address

WAIT = 15_000  # ms; two busy cores need it at times
BROKEN_WORDS = """() => {
  const broken = [];
  for (const heading of document.querySelectorAll("h1, h2, h3")) {
    const texts = document.createTreeWalker(heading, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
      for (const { 0: word, index } of texts.currentNode.data.matchAll(/[^\\s-]+/g)) {
        const range = document.createRange();
        range.setStart(texts.currentNode, index);
        range.setEnd(texts.currentNode, index + word.length);
        const boxes = [...range.getClientRects()], long = boxes.reduce((sum, { width }) => sum + width, 0);
        const lines = new Set(boxes.map(({ top }) => Math.round(top))).size;
        if (lines > 1 && long <= heading.clientWidth) broken.push(word);
      }
    }
  }
  return broken;
}"""  # words of headings that continue on another line although one line has room for them
COPIED = ": it opens without a network"


class FilesOnly(PageSite):
    """A site of these files, which need not be a valid bundle."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self.with_api, self.folder, self.files = False, None, files_by_address(files)


class CountingServer(Server):
    """The server of `fedtaste serve`, extended by counts of requests and bytes. It listens inside a `with` block."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self.requests, self.sizes, self.gone = list[str](), list[int](), False
        super().__init__(FilesOnly(files), Listener())

    def reply(self, request: Request, peer: str) -> Reply:
        if self.gone:
            raise ConnectionAbortedError
        self.requests.append(f"{request.method} {request.target}")
        reply = super().reply(request, peer)
        self.sizes.append(len(render(reply, close=False)))
        return reply

    def publish(self, files: Mapping[str, bytes]) -> None:
        self.site = FilesOnly(files)

    def __enter__(self) -> CountingServer:
        self.thread = threading.Thread(target=self.serve_forever, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.cut()

    def cut(self) -> None:
        """Cut the network: stop listening, and close open connections without a reply. May be called twice."""
        self.gone = True
        if self.thread.is_alive():
            self.shutdown()
            self.thread.join()
        self.listener.socket.close()


def files_in(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def with_new_pins(files: Mapping[str, bytes], changes: Mapping[str, bytes] = {}, **facts: Any) -> dict[str, bytes]:  # noqa: B006
    """Change files and manifest entries of a bundle, and write correct hashes of all files."""
    manifest = json.loads(files["manifest.json"]) | facts
    bundle = {name: body for name, body in (files | changes).items() if name not in ("index.html", "sw.js")}
    pins = {
        name: {"bytes": len(body), "sha256": sha256(body)} for name, body in bundle.items() if name != "manifest.json"
    }
    bundle["manifest.json"] = json.dumps(manifest | {"files": pins}).encode()
    return bundle | entrance_files(manifest["name"], bundle)


@contextlib.contextmanager
def browser_context(browser: Any, **options: Any) -> Iterator[Any]:
    """A fresh browser profile; fails at the end if a script in it raised an error."""
    profile = browser.new_context(**{"reduced_motion": "reduce"} | options)
    profile.set_default_timeout(WAIT)
    errors: list[str] = []
    profile.on("weberror", lambda event: errors.append(str(event.error)))
    try:
        yield profile
    finally:
        profile.close()
    assert not errors, errors


def open_page(profile: Any, url: str) -> Any:
    """Open the page in a new tab and wait until it is ready for use."""
    page = profile.new_page()
    page.goto(url)
    return wait_until_ready(page)


def reload_page(page: Any) -> Any:
    page.reload(wait_until="commit")
    return wait_until_ready(page)


def wait_until_ready(page: Any) -> Any:
    page.locator("html[data-state=ready], html[data-state=failed]").wait_for()
    assert page.locator("html").get_attribute("data-state") == "ready", page.locator("#problem").inner_text()
    return page


def wait_for_copy(page: Any) -> Any:
    """Wait until the service worker has copied the page, so that it opens without a network."""
    page.locator("#here-facts li", has_text=COPIED).wait_for(state="attached")
    return page


@contextlib.contextmanager
def expect_update(page: Any) -> Iterator[None]:
    """Wait at the end of the block for new recommendations."""
    before = page.locator("html").get_attribute("data-generation")
    yield
    page.locator(f'html:not([data-generation="{before}"])').wait_for()


def wait_until(page: Any, condition: Callable[[], bool]) -> None:
    """Wait up to 20 s for a condition, while the browser keeps running."""
    for left in reversed(range(1000)):
        if condition():
            return
        assert left, "the condition did not become true within 20 s"
        page.wait_for_timeout(20)


def pick(page: Any, title: str, key: str = "Enter") -> None:
    with expect_update(page):
        page.locator("#search").fill(title)
        page.locator("#search").press(key)


def recommended(page: Any) -> list[int]:
    """The numbers of the recommended items, in order."""
    return page.evaluate("[...document.querySelectorAll('#recommendations li')].map((row) => Number(row.dataset.item))")


def own_list(page: Any) -> dict[int, str]:
    """The user's own list as item -> value, newest first."""
    return {
        int(item): value
        for item, value in page.evaluate(
            "[...document.querySelectorAll('#mine > li')].map((row) => [row.dataset.item, row.dataset.value])"
        )
    }


def ledger(page: Any) -> dict[str, int]:
    """The page's own count of requests and bytes."""
    counts = page.evaluate("({...document.getElementById('ledger').dataset})")
    return {name: int(value) for name, value in counts.items()}


def import_file(page: Any, text: str | bytes, name: str = "list.csv") -> str:
    """Import a file, and return the page's note about it."""
    note = page.locator("#import-note")
    page.evaluate("document.getElementById('import-note').replaceChildren()")
    body = text if isinstance(text, bytes) else text.encode()
    page.locator("#import").set_input_files({"name": name, "mimeType": "text/csv", "buffer": body})
    note.locator("p").first.wait_for()
    return note.inner_text()


def csv_text(header: str, rows: Sequence[Sequence[object]]) -> str:
    return "\n".join([header, *(",".join(map(str, row)) for row in rows)])
