"""The page in a browser, for tests: the server of `tacit serve` with a count of its own, and what a person does."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from bundles import bundle_of
from tacit.bundle import sha256
from tacit.export import entrance
from tacit.serving import Server, in_memory
from tacit.serving_http import Reply, Request, rendered

WAIT = 15_000  # ms; two busy cores need it at times
COPIED = ": it opens without a network"


class Counted(Server):
    """Counts requests and bytes; once `gone`, it hangs up on everybody. As a context it listens."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self.asked, self.sizes, self.gone = list[str](), list[int](), False
        super().__init__(files)

    def reply(self, asked: Request) -> Reply:
        if self.gone:
            raise ConnectionAbortedError
        self.asked.append(f"{asked.method} {asked.target}")
        made = super().reply(asked)
        self.sizes.append(len(rendered(made, close=False)))
        return made

    def publish(self, files: Mapping[str, bytes]) -> None:
        self.files = in_memory(files)

    def __enter__(self) -> Counted:
        self.thread = threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.cut()

    def cut(self) -> None:
        """The network is gone: nobody listens, and connections that are open get no answer. May be called twice."""
        self.gone = True
        if self.thread.is_alive():
            self.shutdown()
            self.thread.join()
        self.server_close()


def files_in(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def repinned(files: Mapping[str, bytes], changes: Mapping[str, bytes] = {}, **facts: Any) -> dict[str, bytes]:  # noqa: B006
    """A bundle with other files and other facts in its manifest, all fingerprints right again."""
    manifest = json.loads(files["manifest.json"]) | facts
    made = {name: body for name, body in (files | changes).items() if name not in ("index.html", "sw.js")}
    pins = {
        name: {"bytes": len(body), "sha256": sha256(body)} for name, body in made.items() if name != "manifest.json"
    }
    made["manifest.json"] = json.dumps(manifest | {"files": pins}).encode()
    return made | entrance(manifest["name"], made)


@contextlib.contextmanager
def context(browser: Any, **options: Any) -> Iterator[Any]:
    """A browser profile of its own; no error of a script in it goes unseen."""
    made = browser.new_context(**{"reduced_motion": "reduce"} | options)
    made.set_default_timeout(WAIT)
    errors: list[str] = []
    made.on("weberror", lambda event: errors.append(str(event.error)))
    try:
        yield made
    finally:
        made.close()
    assert not errors, errors


def opened(profile: Any, url: str) -> Any:
    """The page in a new tab, ready for use."""
    page = profile.new_page()
    page.goto(url)
    return ready(page)


def reloaded(page: Any) -> Any:
    page.reload(wait_until="commit")
    return ready(page)


def ready(page: Any) -> Any:
    page.locator("html[data-state=ready], html[data-state=failed]").wait_for()
    assert page.locator("html").get_attribute("data-state") == "ready", page.locator("#problem").inner_text()
    return page


def copied(page: Any) -> Any:
    """The same page, once it can be opened without a network."""
    page.locator("#here-facts li", has_text=COPIED).wait_for(state="attached")
    return page


@contextlib.contextmanager
def update(page: Any) -> Iterator[None]:
    """What is done inside brings new recommendations; waits for them."""
    before = page.locator("html").get_attribute("data-generation")
    yield
    page.locator(f'html:not([data-generation="{before}"])').wait_for()


def until(page: Any, condition: Callable[[], bool]) -> None:
    """Waits while the browser goes on; fails where it never comes."""
    for left in reversed(range(1000)):
        if condition():
            return
        assert left, "waited 20 s for what did not come"
        page.wait_for_timeout(20)


def pick(page: Any, title: str, key: str = "Enter") -> None:
    with update(page):
        page.locator("#search").fill(title)
        page.locator("#search").press(key)


def shown(page: Any) -> list[int]:
    """The items recommended, in order."""
    return page.evaluate("[...document.querySelectorAll('#recommendations li')].map((row) => Number(row.dataset.item))")


def mine(page: Any) -> dict[int, str]:
    """item -> value of the person's list, newest first."""
    return {
        int(item): value
        for item, value in page.evaluate(
            "[...document.querySelectorAll('#mine > li')].map((row) => [row.dataset.item, row.dataset.value])"
        )
    }


def ledger(page: Any) -> dict[str, int]:
    found = page.evaluate("({...document.getElementById('ledger').dataset})")
    return {name: int(value) for name, value in found.items()}


def offer(page: Any, text: str | bytes, name: str = "list.csv") -> str:
    """Import a file; what the page says of it."""
    note = page.locator("#import-note")
    page.evaluate("document.getElementById('import-note').replaceChildren()")
    body = text if isinstance(text, bytes) else text.encode()
    page.locator("#import").set_input_files({"name": name, "mimeType": "text/csv", "buffer": body})
    note.locator("p").first.wait_for()
    return note.inner_text()


def csv(header: str, rows: Sequence[Sequence[object]]) -> str:
    return "\n".join([header, *(",".join(map(str, row)) for row in rows)])


@pytest.fixture(scope="module")
def files():
    return files_in(bundle_of("fedals"))


@pytest.fixture(scope="module")
def titles(files):
    return json.loads(files["items.json"])["titles"]
