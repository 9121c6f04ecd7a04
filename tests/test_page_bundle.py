"""The page and the files it is made of: changed, missing and foreign ones are refused by name; versions never mix."""

from __future__ import annotations

import base64
import json

import pytest

import browser
import pages
from bundles import bundle_of
from pages import Counted, context, copied, files_in, mine, opened, pick, reloaded, repinned, shown, until
from tacit.bundle import sha256
from tacit.export import page_files

chromium = browser.chromium
files = pages.files
PARTS = sorted({*page_files()} - {"index.html", "sw.js", "boot.js"})
DATA = ["items.json", "item.i8", "scale.f32", "popularity.u8", "map.i16", "vectors.json", "manifest.json"]


@pytest.fixture(scope="module")
def profile(chromium):
    with context(chromium) as profile:
        yield profile


def changed(name: str, body: bytes) -> bytes:
    """Another byte, and all would go on working with it: only a fingerprint can tell."""
    sought = {"items.json": (b"The Last", b"The Lost"), "manifest.json": (b'"people":2', b'"people":3')}
    if name in sought:
        return body.replace(*sought[name], 1)
    if name.endswith((".i8", ".f32", ".u8", ".i16")):
        return bytes([body[0] ^ 1]) + body[1:]
    return body.rstrip(b"\n") + b" "


@pytest.fixture
def tab(profile):
    page = profile.new_page()
    yield page
    page.close()


def refusal(page, url: str) -> str:
    """What the page says instead of starting."""
    page.goto(url)
    page.locator("html:not([data-state=loading])").wait_for()
    assert page.locator("html").get_attribute("data-state") == "failed", "it works with what is not the bundle"
    assert page.locator("#app").is_hidden() and page.locator("#recommendations li").count() == 0
    return page.locator("#problem").inner_text()


@pytest.mark.parametrize("name", DATA + PARTS)
def test_a_changed_part_is_refused_by_name_whoever_hosts_it(tab, files, name):
    wrong = files | {name: changed(name, files[name])}
    assert wrong[name] != files[name]
    with browser.Site(wrong | {"": wrong["index.html"]}) as site:
        said = refusal(tab, site.url)
    assert f"{name} was changed" in said and "Nothing was computed with it" in said


@pytest.mark.parametrize("name", ["items.json", "main.js", "parts.css"])
def test_a_changed_part_is_refused_by_name_from_tacit_serve(tab, files, name):
    with Counted(files | {name: changed(name, files[name])}) as server:
        assert f"{name} was changed" in refusal(tab, server.url)


@pytest.mark.parametrize("name", ["item.i8", "worker.js", "main.js", "lists.js", "style.css", "manifest.json"])
def test_a_missing_part_is_named(tab, files, name):
    with Counted({other: body for other, body in files.items() if other != name}) as server:
        assert f"{name} is missing" in refusal(tab, server.url)


@pytest.mark.parametrize("missing", [False, True])
def test_where_the_first_script_does_not_run_the_page_still_says_why(tab, files, missing):
    wrong = files | {"boot.js": changed("boot.js", files["boot.js"])}
    if missing:
        del wrong["boot.js"]
    with Counted(wrong) as server:
        tab.goto(server.url)
        tab.locator(".late").locator("visible=true").wait_for()
        assert "a part of this page is missing or was changed" in tab.locator(".late").inner_text()
        assert tab.locator("html").get_attribute("data-state") == "loading" and tab.locator("#app").is_hidden()


def test_a_bundle_of_another_version_is_refused_in_words(tab, files):
    with Counted(repinned(files, format="tacit-bundle-2")) as server:
        said = refusal(tab, server.url)
    assert "This bundle is of another version" in said and "tacit-bundle-2" in said and "tacit-bundle-1" in said


@pytest.mark.parametrize("what", ["short", "other", "no list"])
def test_tables_that_do_not_fit_are_refused_though_their_fingerprints_are_right(tab, files, what):
    item = files["item.i8"]
    change = {"short": {"item.i8": item[:-8]}, "other": {"item.i8": item[::-1]}, "no list": {"items.json": b"[]"}}[what]
    with Counted(repinned(files, change)) as server:
        assert "Reload the page" in refusal(tab, server.url)


def test_without_javascript_there_is_an_explanation(chromium, files):
    with Counted(files) as server, context(chromium, java_script_enabled=False) as profile:
        page = profile.new_page()
        page.goto(server.url)
        said = page.locator("body").inner_text()
        assert "This page needs JavaScript" in said and "never sends what you pick" in said
        assert "Loading" not in said and page.locator("#app").is_hidden()


# Versions


def edition(files: dict[str, bytes], word: str) -> dict[str, bytes]:
    items = json.loads(files["items.json"])
    items["titles"] = [f"{title} {word}" for title in items["titles"]]
    return repinned(files, {"items.json": json.dumps(items).encode()}, name=word)


def which(page, bundle: dict[str, bytes]) -> str:
    """The version that a page is of, all of it."""
    word = page.locator("h1").inner_text()
    names = page.locator("#recommendations .name").all_inner_texts()
    assert len(names) == 20 and all(name.endswith(word) for name in names)
    pin = base64.b64encode(bytes.fromhex(sha256(bundle["manifest.json"]))).decode()
    assert page.locator("meta[name=tacit-manifest]").get_attribute("content") == f"sha256-{pin}"
    return word


WAITING = "async () => Boolean((await navigator.serviceWorker.getRegistration()).waiting)"
IDLE = """async () => {
  const { installing, waiting } = await navigator.serviceWorker.getRegistration();
  return !installing && !waiting;
}"""


def test_a_new_version_replaces_the_old_one_whole(chromium, files):
    old, new = edition(files, "first"), edition(files, "second")
    with Counted(old) as server, context(chromium) as profile:
        page = copied(opened(profile, server.url))
        assert which(page, old) == "first"
        server.publish(new)
        assert which(reloaded(page), old) == "first"
        until(page, lambda: page.evaluate(WAITING))
        second = opened(profile, server.url)
        whole = {"first": old, "second": new}[second.locator("h1").inner_text()]
        assert which(second, whole) and which(page, old)
        pick(page, "The Last Festival first")
        second.close()
        page.close()  # as long as one is open, the new version waits
        blank = profile.new_page()
        for _ in range(20):  # it takes over a moment after the last page is gone
            blank.wait_for_timeout(300)
            page = opened(profile, server.url)
            if page.locator("h1").inner_text() == "second":
                break
            page.close()
        assert which(page, new) == "second"
        until(page, lambda: len(page.evaluate("caches.keys()")) == 1)
        profile.set_offline(True)
        server.cut()
        assert which(opened(profile, server.url), new) == "second"


def test_a_half_published_version_changes_nothing(chromium, files):
    old, new = edition(files, "first"), edition(files, "second")
    with Counted(old) as server, context(chromium) as profile:
        page = copied(opened(profile, server.url))
        server.publish(new | {"items.json": old["items.json"]})
        asked = len(server.asked)
        assert which(reloaded(page), old) == "first"
        until(page, lambda: "GET /items.json" in server.asked[asked:])
        until(page, lambda: page.evaluate(IDLE))
        assert which(reloaded(page), old) == "first"


@pytest.mark.parametrize(("first", "then"), [("fedals", "fedals-ratings"), ("fedals-ratings", "fedals")])
def test_a_list_remembered_for_another_model_at_the_same_address_does_no_harm(chromium, first, then):
    bundles = [files_in(bundle_of(name)) for name in (first, then)]
    titles = json.loads(bundles[0]["items.json"])["titles"]
    with Counted(bundles[0]) as server, context(chromium, service_workers="block") as profile:
        page = opened(profile, server.url)
        page.locator("#remember").check()
        if first == "fedals":
            pick(page, titles[0])
            pick(page, titles[1], "Shift+Enter")
        else:
            page.locator("#search").fill(titles[0])
            page.locator("#search").press("Enter")
            page.locator("#mine input[value='4']").check()
        server.publish(bundles[1])
        reloaded(page)
        assert len(shown(page)) == 20
        allowed = {"0", "1"} if then == "fedals" else {"", "1", "2", "3", "4", "5"}
        assert {*mine(page).values()} <= allowed
