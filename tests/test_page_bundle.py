"""Integrity of the page: it refuses changed, missing and invalid files by name, and never mixes versions."""

from __future__ import annotations

import base64
import json

import pytest

from fedtaste.serving.bundle import sha256
from fedtaste.serving.export import page_files
from support import browser
from support.bundles import bundle_of
from support.pages import (
    CountingServer,
    browser_context,
    files_in,
    open_page,
    own_list,
    pick,
    recommended,
    reload_page,
    wait_for_copy,
    wait_until,
    with_new_pins,
)

PARTS = sorted({*page_files()} - {"index.html", "sw.js", "boot.js"})
DATA = ["items.json", "item.i8", "scale.f32", "popularity.u8", "map.i16", "vectors.json", "manifest.json"]


@pytest.fixture(scope="module")
def profile(chromium):
    with browser_context(chromium) as profile:
        yield profile


def slightly_changed(name: str, body: bytes) -> bytes:
    """Change the file so little that everything would still work: only its hash differs."""
    replacements = {"items.json": (b"The Last", b"The Lost"), "manifest.json": (b'"people":2', b'"people":3')}
    if name in replacements:
        return body.replace(*replacements[name], 1)
    if name.endswith((".i8", ".f32", ".u8", ".i16")):
        return bytes([body[0] ^ 1]) + body[1:]
    return body.rstrip(b"\n") + b" "


@pytest.fixture
def tab(profile):
    page = profile.new_page()
    yield page
    page.close()


def refusal(page, url: str) -> str:
    """The reason that the page shows instead of starting."""
    page.goto(url)
    page.locator("html:not([data-state=loading])").wait_for()
    assert page.locator("html").get_attribute("data-state") == "failed", "it works with what is not the bundle"
    assert page.locator("#app").is_hidden() and page.locator("#recommendations li").count() == 0
    return page.locator("#problem").inner_text()


@pytest.mark.parametrize("name", DATA + PARTS)
def test_changed_file_is_refused_by_name_on_any_host(tab, files, name):
    wrong = files | {name: slightly_changed(name, files[name])}
    assert wrong[name] != files[name]
    with browser.Site(wrong | {"": wrong["index.html"]}) as site:
        text = refusal(tab, site.url)
    assert f"{name} was changed" in text and "Nothing was computed with it" in text


@pytest.mark.parametrize("name", ["items.json", "main.js", "parts.css"])
def test_changed_file_is_refused_by_name_from_fedtaste_serve(tab, files, name):
    with CountingServer(files | {name: slightly_changed(name, files[name])}) as server:
        assert f"{name} was changed" in refusal(tab, server.url)


@pytest.mark.parametrize("name", ["item.i8", "worker.js", "main.js", "lists.js", "style.css", "manifest.json"])
def test_missing_file_is_refused_by_name(tab, files, name):
    with CountingServer({other: body for other, body in files.items() if other != name}) as server:
        assert f"{name} is missing" in refusal(tab, server.url)


@pytest.mark.parametrize("missing", [False, True])
def test_page_explains_when_its_first_script_does_not_run(tab, files, missing):
    wrong = files | {"boot.js": slightly_changed("boot.js", files["boot.js"])}
    if missing:
        del wrong["boot.js"]
    with CountingServer(wrong) as server:
        tab.goto(server.url)
        tab.locator(".late").locator("visible=true").wait_for()
        assert "missing or was changed" in tab.locator(".late").inner_text()
        assert tab.locator("html").get_attribute("data-state") == "loading" and tab.locator("#app").is_hidden()


def test_bundle_of_another_version_is_refused(tab, files):
    with CountingServer(with_new_pins(files, format="fedtaste-bundle-2")) as server:
        text = refusal(tab, server.url)
    assert "another version" in text and "fedtaste-bundle-2" in text and "fedtaste-bundle-1" in text


def test_a_bundle_of_tacit_is_refused_with_its_version(tab, files):
    with CountingServer(with_new_pins(files, format="tacit-bundle-1", fedtaste=None, tacit="0.6.0")) as server:
        text = refusal(tab, server.url)
    assert "written by tacit 0.6.0" in text and "tacit-bundle-1" in text


@pytest.mark.parametrize("case", ["short", "other", "no list"])
def test_tables_of_wrong_size_are_refused_despite_right_fingerprints(tab, files, case):
    item = files["item.i8"]
    change = {"short": {"item.i8": item[:-8]}, "other": {"item.i8": item[::-1]}, "no list": {"items.json": b"[]"}}[case]
    with CountingServer(with_new_pins(files, change)) as server:
        assert "Reload the page" in refusal(tab, server.url)


def test_page_explains_itself_without_javascript(chromium, files):
    with CountingServer(files) as server, browser_context(chromium, java_script_enabled=False) as profile:
        page = profile.new_page()
        page.goto(server.url)
        text = page.locator("body").inner_text()
        assert "This page needs JavaScript" in text and "never sends what you pick" in text
        assert "Loading" not in text and page.locator("#app").is_hidden()


# Versions


def edition(files: dict[str, bytes], word: str) -> dict[str, bytes]:
    items = json.loads(files["items.json"])
    items["titles"] = [f"{title} {word}" for title in items["titles"]]
    return with_new_pins(files, {"items.json": json.dumps(items).encode()}, name=word)


def version_of(page, bundle: dict[str, bytes]) -> str:
    """The version of the page, after a check that all its parts are of this version."""
    word = page.locator("h1").inner_text()
    names = page.locator("#recommendations .name").all_inner_texts()
    assert len(names) == 20 and all(name.endswith(word) for name in names)
    pin = base64.b64encode(bytes.fromhex(sha256(bundle["manifest.json"]))).decode()
    assert page.locator("meta[name=fedtaste-manifest]").get_attribute("content") == f"sha256-{pin}"
    return word


WAITING = "async () => Boolean((await navigator.serviceWorker.getRegistration()).waiting)"
IDLE = """async () => {
  const { installing, waiting } = await navigator.serviceWorker.getRegistration();
  return !installing && !waiting;
}"""


def test_new_version_replaces_all_files_of_the_old_one(chromium, files):
    old, new = edition(files, "first"), edition(files, "second")
    with CountingServer(old) as server, browser_context(chromium) as profile:
        page = wait_for_copy(open_page(profile, server.url))
        assert version_of(page, old) == "first"
        server.publish(new)
        assert version_of(reload_page(page), old) == "first"
        wait_until(page, lambda: page.evaluate(WAITING))
        second = open_page(profile, server.url)
        bundle = {"first": old, "second": new}[second.locator("h1").inner_text()]
        assert version_of(second, bundle) and version_of(page, old)
        pick(page, "The Last Festival first")
        second.close()
        page.close()  # the new version waits until all pages are closed
        blank = profile.new_page()
        for _ in range(20):  # it takes over shortly after the last page is closed
            blank.wait_for_timeout(300)
            page = open_page(profile, server.url)
            if page.locator("h1").inner_text() == "second":
                break
            page.close()
        assert version_of(page, new) == "second"
        wait_until(page, lambda: len(page.evaluate("caches.keys()")) == 1)
        profile.set_offline(True)
        server.cut()
        assert version_of(open_page(profile, server.url), new) == "second"


def test_half_published_version_changes_nothing(chromium, files):
    old, new = edition(files, "first"), edition(files, "second")
    with CountingServer(old) as server, browser_context(chromium) as profile:
        page = wait_for_copy(open_page(profile, server.url))
        server.publish(new | {"items.json": old["items.json"]})
        request_count = len(server.requests)
        assert version_of(reload_page(page), old) == "first"
        wait_until(page, lambda: "GET /items.json" in server.requests[request_count:])
        wait_until(page, lambda: page.evaluate(IDLE))
        assert version_of(reload_page(page), old) == "first"


@pytest.mark.parametrize(("first", "then"), [("fedals", "fedals-ratings"), ("fedals-ratings", "fedals")])
def test_remembered_list_of_another_model_at_the_same_address_is_harmless(chromium, first, then):
    bundles = [files_in(bundle_of(name)) for name in (first, then)]
    titles = json.loads(bundles[0]["items.json"])["titles"]
    with CountingServer(bundles[0]) as server, browser_context(chromium, service_workers="block") as profile:
        page = open_page(profile, server.url)
        page.locator("#remember").check()
        if first == "fedals":
            pick(page, titles[0])
            pick(page, titles[1], "Shift+Enter")
        else:
            page.locator("#search").fill(titles[0])
            page.locator("#search").press("Enter")
            page.locator("#mine input[value='4']").check()
        server.publish(bundles[1])
        reload_page(page)
        assert len(recommended(page)) == 20
        allowed = {"0", "1"} if then == "fedals" else {"", "1", "2", "3", "4", "5"}
        assert {*own_list(page).values()} <= allowed
