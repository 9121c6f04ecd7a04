"""Input to the page: imported files, hostile titles, and storage that is damaged or denied."""

from __future__ import annotations

import json
import re
import shutil

import pytest

from support import browser
from support.bundles import bundle_of
from support.pages import (
    CountingServer,
    browser_context,
    csv_text,
    expect_update,
    files_in,
    import_file,
    ledger,
    open_page,
    own_list,
    pick,
    recommended,
    reload_page,
    with_new_pins,
)

STORED = """async () => [Object.keys(localStorage), Object.keys(sessionStorage), await indexedDB.databases(),
  document.cookie]"""
EMPTY_STORAGE = [[], [], [], ""]


@pytest.fixture(scope="module")
def server(files):
    with CountingServer(files) as server:
        yield server


@pytest.fixture(scope="module")
def tab(chromium, server):
    with browser_context(chromium) as profile:
        yield open_page(profile, server.url)


@pytest.fixture
def page(tab):
    """The page with an empty list."""
    if own_list(tab):
        with expect_update(tab):
            tab.locator("#clear").click()
    assert own_list(tab) == {}
    return tab


@pytest.fixture(scope="module")
def rated(chromium):
    with CountingServer(files_in(bundle_of("fedals-ratings"))) as server, browser_context(chromium) as profile:
        yield open_page(profile, server.url)


# Imported files

IMDB = """Const,Your Rating,Date Rated,Title,URL,Title Type,IMDb Rating,Runtime (mins),Year,Genres
tt1,9,2021-03-04,{0},https://x.example/tt1,movie,8.1,100,1999,"Drama, War"
tt2,2,2020-01-02,{1},https://x.example/tt2,movie,6.0,90,2001,Comedy
tt3,7,2022-05-06,No Such Film,https://x.example/tt3,movie,7.0,95,2003,Crime
"""
LETTERBOXD = """Date,Name,Year,Letterboxd URI,Rating
2023-01-01,{0},1999,https://boxd.example/a,4.5
2023-01-02,{1},2001,https://boxd.example/b,0.5
2023-01-03,{2},2001,https://boxd.example/c,
"""
SHAPES = {  # file -> content, the user's list after the import, a part of the page's note
    "semicolons and a mark": ("\ufeffTitle;Rating\r\n{0};5\r\n\"{1}\";1\r\n", {0: "1", 1: "0"}, "1 liked, 1 disliked"),
    "imdb": (IMDB, {0: "1", 1: "0"}, "No Such Film"),
    "letterboxd": (LETTERBOXD, {0: "1", 1: "0"}, "1 left out"),
    "json titles": ('["{0}", "{1}", null, 7]', {0: "1", 1: "1", 6: "1"}, "3 liked"),
    "json objects": ('{{"list": [{{"title": "{0}", "liked": true}}, {{"title": "{1}", "liked": false}}]}}',
                     {0: "1", 1: "0"}, "1 liked, 1 disliked"),
    "plain": ("{0}\n\n  {1}  \n{2}", {0: "1", 1: "1", 2: "1"}, "3 liked"),
    "the fields of the API": ('{{"dislikes": ["{0}"], "likes": ["{1}", {{"title": "{2}"}}], "n": 5}}',
                              {0: "0", 1: "1", 2: "1"}, "2 liked, 1 disliked"),
    "ratings by title": ('{{"ratings": {{"{0}": 4.5, "{1}": 2}}}}', {0: "1", 1: "0"}, "1 liked, 1 disliked"),
    "ten": ("title\trating\n{0}\t10\n{1}\t0\n{2}\t2\n{3}\t5", {0: "1", 2: "0", 3: "1"},
            "Ratings from 0 to 10: from 5 on a like, below that a dislike; 0 is no rating."),
    "half a star": ("title,rating\n{0},0.5\n{1},2.5\n{2},2", {0: "0", 1: "1", 2: "0"}, "Ratings from 0 to 5: from 2.5"),
    "nothing and one": ("title,rating\n{0},1\n{1},0", {0: "1", 1: "0"}, "1 is a like, 0 a dislike"),
    "decimal commas": ("title;rating\n{0};4,5\n{1};1,5", {0: "1", 1: "0"}, "1 liked, 1 disliked"),
    "no header": ("{0},5\n{1},1", {0: "1", 1: "0"}, "1 liked, 1 disliked"),
    "twice": ("title,liked\n{0},yes\n{1},yes\n{0},no", {0: "0", 1: "1"}, "1 came more than once"),
    "other spelling": ("name\nLAST FESTIVAL, the\ngolden express (1999)", {0: "1", 1: "1"}, "2 liked"),
    "sixteen bits": ("\ufefftitle,liked\r\n{0},yes\r\n{1},no", {0: "1", 1: "0"}, "1 liked, 1 disliked"),
}  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
def test_exported_lists_of_other_services_are_imported(page, titles, shape):
    text, known, expected_text = SHAPES[shape]
    body = text.format(*titles).encode("utf-16-le" if shape == "sixteen bits" else "utf-8")
    with expect_update(page):
        note = import_file(page, body, f"{shape}.csv")
    assert own_list(page) == known
    assert expected_text in note and f"From {shape}.csv" in note
    assert page.locator("#undo").is_visible()


def test_ratings_of_another_scale_are_rescaled(rated):
    titles = json.loads(files_in(bundle_of("fedals-ratings"))["items.json"])["titles"]
    with expect_update(rated):
        note = import_file(rated, csv_text("title,rating", [[titles[0], 10], [titles[1], 1], [titles[2], 0]]))
    assert own_list(rated) == {0: "5", 1: "1"}
    assert "Ratings of 0 to 10 were brought to 1 to 5" in note and "1 left out" in note
    with expect_update(rated):
        note = import_file(rated, csv_text("title,rating", [[titles[0], 3.6], [titles[3], 2]]))
    assert own_list(rated) == {3: "2", 0: "4", 1: "1"}
    assert "1 rounded" in note and "1 had been in your list" in note


MARKUP = "<img src=x onerror=ran=1>"
REFUSED = {  # file -> content, a part of the refusal
    "empty": (b"", "It is empty"),
    "blank": (b" \r\n \n", "It is empty"),
    "binary": (bytes(range(256)), "not text"),
    "picture": (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "not text"),
    "large": (b"title\n" + b"x" * 6_000_000, "6.0 MB"),
    "json without a list": (b'{"title": 5}', "no list"),
    "json with two lists": (b'{"seen": ["A"], "later": ["B"]}', "several lists"),
    "only a header": (b"title,liked\n", "no titles"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_files_that_are_not_lists_are_refused_and_change_nothing(page, titles, case):
    pick(page, titles[3])
    before = recommended(page)
    body, reason = REFUSED[case]
    note = import_file(page, body, f"{case}.bin")
    assert reason in note and "Your list is as it was" in note
    assert (own_list(page), recommended(page)) == ({3: "1"}, before)
    assert page.locator("#problem").is_hidden()
    assert page.evaluate("document.activeElement.id") == "import-note"


def test_unknown_titles_are_named_as_plain_text(page, titles):
    strange = ["Golden Expres", '=HYPERLINK("http://x.example")', "+1+cmd|' /C calc'!A0", MARKUP, "y" * 500, "no six"]
    note = import_file(page, csv_text("title", [['"' + name.replace('"', '""') + '"'] for name in strange]))
    assert "6 not found in this catalogue, such as:" in note
    assert all(name in note for name in strange[:4]) and "y" * 60 + "…" in note and "no six" not in note
    assert f"closest: {titles[1]}" in note
    assert own_list(page) == {} and page.evaluate("'ran' in window") is False
    assert page.locator("#import-note img").count() == 0


def test_file_of_twenty_thousand_lines_is_imported(page, titles):
    rows = [[titles[at % 150] if at % 4 else f"Unknown {at}", "yes"] for at in range(20_000)]
    with expect_update(page):
        note = import_file(page, csv_text("title,liked", rows))
    assert len(own_list(page)) == len({row[0] for row in rows if not row[0].startswith("Unknown")}) > 100
    assert "5000 not found" in note.replace(",", "")
    assert len(recommended(page)) == 20


def test_all_items_liked_and_no_item_liked_are_explained(page, titles):
    assert "what most people take" in page.locator("#rec-title").inner_text()
    assert "Nothing is known of you yet" in page.locator("#basis").inner_text()
    start = recommended(page)
    with expect_update(page):
        import_file(page, "\n".join(titles))
    assert recommended(page) == [] and len(own_list(page)) == len(titles)
    assert page.locator("#empty").inner_text().startswith("Nothing is left to recommend")
    assert "nothing is left" in page.locator("#status").inner_text()
    with expect_update(page):
        page.locator("#undo button").click()
    assert recommended(page) == start and page.locator("#empty").is_hidden()
    pick(page, titles[start[0]], "Shift+Enter")
    assert recommended(page)[:19] == start[1:] and own_list(page) == {start[0]: "0"}
    assert "what most people take" in page.locator("#rec-title").inner_text()


@pytest.mark.parametrize("task", ["ranking", "ratings"])
def test_exported_list_imports_as_the_same_list(page, rated, titles, task):
    tab = page if task == "ranking" else rated
    known = json.loads(files_in(bundle_of("fedals-ratings"))["items.json"])["titles"]
    with expect_update(tab):
        rows = [[title, at % 2 and "no" or "yes"] for at, title in enumerate(titles[:9])] if tab is page else [
            [title, at % 5 + 1] for at, title in enumerate(known[:9])]  # fmt: skip
        import_file(tab, csv_text("title,liked" if tab is page else "title,rating", rows))
    before, list_before = recommended(tab), [*own_list(tab).items()]
    with tab.expect_download() as download:
        tab.locator("#export").click()
    content = download.value.path().read_bytes()
    assert download.value.suggested_filename == "my-list.csv"
    with expect_update(tab):
        tab.locator("#clear").click()
    with expect_update(tab):
        import_file(tab, content)
    assert [*own_list(tab).items()] == list_before and recommended(tab) == before


HOSTILE = [
    MARKUP, '"><script>ran=1</script>', "=1+1", "{{title}}", "&lt;b&gt;", "__proto__", "constructor", "'; DROP TABLE",
    "שלום עולם", "\u202egnidaer sdrawkcab", "long " * 400, "w" * 1500, "A, \"quoted\"\ttitle", "😀 (2001)", "(1999)",
]  # fmt: skip


def test_hostile_titles_are_shown_as_text(chromium, files):
    items = json.loads(files["items.json"])
    items["titles"] = HOSTILE + items["titles"][len(HOSTILE) :]
    items["genre_names"] = [MARKUP, *items["genre_names"][1:]]
    name = '<b>"Films"</b> & more'
    bundle = with_new_pins(files, {"items.json": json.dumps(items).encode()}, name=name)
    with CountingServer(bundle) as server, browser_context(chromium, viewport={"width": 320, "height": 640}) as profile:
        page = open_page(profile, server.url)
        assert page.locator("h1").inner_text() == name
        with expect_update(page):
            import_file(page, "item\n" + "\n".join(items["names"][: len(HOSTILE)]))
        assert sorted(own_list(page)) == [*range(len(HOSTILE))]
        texts = page.locator("#mine .name").all_text_contents()[::-1]
        for title, text in zip(HOSTILE, texts):
            title = title if len(title) <= 120 else title[:119] + "…"
            assert " ".join(text.split()) == " ".join(re.sub(r"\((\d+)\)$", r"\1", title).split())
        page.locator("#search").fill("img src")
        assert MARKUP in page.locator("#options").inner_text()
        page.locator("#search").fill("")
        assert page.evaluate("'ran' in window") is False
        assert page.locator("main img, main script, main b:not(#tip b)").count() == 0
        assert page.evaluate("document.documentElement.scrollWidth") <= 320
        assert ledger(page)["refused"] == 0
        with page.expect_download() as download:
            page.locator("#export").click()
        with expect_update(page):
            page.locator("#clear").click()
        with expect_update(page):
            import_file(page, download.value.path().read_bytes())
        assert sorted(own_list(page)) == [*range(len(HOSTILE))]


# Storage


def test_list_is_stored_only_on_request_and_comes_back(chromium, server, titles):
    with browser_context(chromium) as profile:
        page = open_page(profile, server.url)
        for title in titles[:2]:
            pick(page, title)
        assert page.evaluate(STORED) == EMPTY_STORAGE and profile.cookies() == []
        page.locator("#remember").check()
        pick(page, titles[2], "Shift+Enter")
        known, best = own_list(page), recommended(page)
        reload_page(page)
        assert (own_list(page), recommended(page)) == (known, best) == ({2: "0", 1: "1", 0: "1"}, best)
        assert page.locator("#remember").is_checked() and len(page.evaluate(STORED)[0]) == 1
        page.locator("#remember").uncheck()
        assert page.evaluate(STORED) == EMPTY_STORAGE
        assert "removed" in page.locator("#remember-note").inner_text()
        page.locator("#remember").check()
        with expect_update(page):
            page.locator("#clear").click()
        assert page.evaluate(STORED) == EMPTY_STORAGE and not page.locator("#remember").is_checked()
        reload_page(page)
        assert own_list(page) == {} and profile.cookies() == []


SPOILT = [
    '{"task": "ranking", "picks": [null, 1], "hidden": [null]}',
    "", "{", "5", "[]", '{"picks": 5}', '{"picks": [["x", 1]]}',
    '{"picks": [["1", 7, null], [null], 5], "hidden": null, "adventurous": "far"}',
]  # fmt: skip


@pytest.mark.parametrize("memory", SPOILT)
def test_page_starts_with_damaged_stored_data(chromium, server, titles, memory):
    with browser_context(chromium) as profile:
        page = open_page(profile, server.url)
        page.locator("#remember").check()
        page.evaluate("(memory) => { localStorage[Object.keys(localStorage)[0]] = memory; }", memory)
        pick(reload_page(page), titles[4])
        assert own_list(page)[4] == "1" and page.locator("#problem").is_hidden()


def test_page_works_without_storage_and_says_so(chromium, server, titles, tmp_path):
    program = next(filter(None, map(shutil.which, browser.FULL_PROGRAMS)), None)
    if program is None:
        pytest.skip("needs a chromium with windows, whose preferences can block storage; it is not installed")
    (tmp_path / "Default").mkdir()
    denied = {"profile": {"default_content_setting_values": {"cookies": 2}}}  # 2: block
    (tmp_path / "Default" / "Preferences").write_text(json.dumps(denied))
    options = {"executable_path": program, "args": browser.FLAGS}
    with chromium.browser_type.launch_persistent_context(tmp_path, **options) as profile:
        page = open_page(profile, server.url)
        with pytest.raises(Exception, match="Access is denied"):
            page.evaluate("localStorage.length")
        page.locator("#remember").click()
        assert "does not let the page keep anything" in page.locator("#remember-note").inner_text()
        assert not page.locator("#remember").is_checked()
        before = recommended(page)
        pick(page, titles[0])
        assert recommended(page) != before and page.locator("#problem").is_hidden()
        assert "Without a network it will not open" in page.locator("#here-facts").text_content()
