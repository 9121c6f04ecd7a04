"""The recommendation page in chromium: its lists equal those of Python, and it sends no data, online or offline."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from importlib import import_module
from statistics import median
from urllib.parse import urlsplit

import numpy as np
import pytest

from fedtaste.serving.bundle_recommender import BundleRecommender
from fedtaste.serving.export import bundle_files
from fedtaste.serving.item_lists import Filter
from support import browser
from support.bundles import bundle_of, export_source
from support.pages import (
    BROKEN_WORDS,
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
    wait_for_copy,
    wait_until,
    with_new_pins,
)

VENDOR = (".googleapis.com", ".google.com")  # chromium sends requests there by itself, whatever page is open
CLOCK = """() => {
  window.took = [];
  let begun;
  addEventListener("keydown", ({ key }) => { if (key === "Enter") begun = performance.now(); }, true);
  new MutationObserver(() => {
    if (begun !== undefined) window.took.push([performance.now() - begun, Number(document.documentElement.dataset.ms)]);
    begun = undefined;
  }).observe(document.documentElement, { attributeFilter: ["data-generation"] });
}"""


@pytest.fixture
def server(files):
    with CountingServer(files) as server:
        yield server


@pytest.fixture
def profile(chromium):
    with browser_context(chromium) as profile:
        yield profile


def requested_urls(log: bytes) -> list[str]:
    """The addresses in chromium's network log, of all of its processes, in order."""
    events = [e for e in json.loads(log)["traceEvents"] if (e["name"], e["ph"]) == ("REQUEST_ALIVE", "b")]
    urls = [urlsplit(e["args"]["params"]["url"]) for e in sorted(events, key=lambda event: event["ts"])]
    return [url.geturl() for url in urls if not url.scheme.startswith("chrome") and not url.netloc.endswith(VENDOR)]


def test_fifty_picks_change_the_list_and_send_no_request(chromium, profile, server, titles):
    requests: list[str] = []
    page = wait_for_copy(open_page(profile, server.url))
    before, request_count = recommended(page), len(server.requests)
    page.evaluate(CLOCK)
    profile.on("request", lambda request: requests.append(request.url))
    chromium.start_tracing(categories=["netlog"])
    for at, title in enumerate(random.Random(0).sample(titles, 50), 1):
        pick(page, title)
        after = recommended(page)
        assert after != before and len(after) == 20
        assert page.locator("html").get_attribute("data-generation") == str(at + 1)
        before = after
    assert page.locator("#mine > li").count() == 50
    assert (requests, server.requests[request_count:]) == ([], [])
    assert [ledger(page)[name] for name in ("sent", "requests", "refused")] == [0, 0, 0]
    assert page.locator("#sent").inner_text().startswith("Left this device: 0 bytes")
    control = f"{server.url}LICENCES.md"  # a request that all three counts must see
    profile.new_page().goto(control)
    assert requested_urls(chromium.stop_tracing())[0] == requests[0] == control
    assert server.requests[request_count] == "GET /LICENCES.md"
    wall, worker = zip(*page.evaluate("window.took"))
    print(f"50 picks: median {median(wall):.1f} ms to the new list, {median(worker):.1f} in the worker")
    assert len(wall) == 50 and median(worker) < 50


def test_page_works_and_reopens_without_a_network(chromium, profile, server, titles):
    page = wait_for_copy(open_page(profile, server.url))
    start = recommended(page)
    profile.set_offline(True)
    server.cut()
    with browser_context(chromium) as stranger, pytest.raises(Exception, match="ERR_CONNECTION_REFUSED"):
        stranger.new_page().goto(server.url)
    for title in titles[:3]:
        before = recommended(page)
        pick(page, title)
        assert recommended(page) != before
    reload_page(page)
    assert recommended(page) == start and page.locator("#mine > li").count() == 0
    second = open_page(profile, f"{server.url}index.html")
    assert recommended(second) == start
    for tab in (page, second):
        pick(tab, titles[5])
        assert page.locator("#mine > li").count() == 1 and recommended(tab) != start
    assert ledger(second)["requests"] == 0


def test_genre_filter_and_similar_titles_equal_those_of_python(profile, server, files):
    python = BundleRecommender.load(bundle_of("fedals"))
    genres, titles = python.bundle.items.genre_names, python.bundle.titles
    page = open_page(profile, server.url)
    for title in titles[:3]:
        pick(page, title)
    for genre in genres[:3]:
        with expect_update(page):
            page.locator("#genre").select_option(label=genre)
        shown = [titles[item] for item in recommended(page)]
        expected = python.recommend(titles[:3], n=20, filter=Filter(genres=[genre]))
        assert shown == [item.title for item in expected.items] and len(shown) > 5
    first = recommended(page)[0]
    page.locator("#recommendations .similar-button").first.click()
    similar = page.locator("#recommendations .similar button")
    similar.nth(4).wait_for()
    found = [titles[int(at)] for at in similar.evaluate_all("(all) => all.map((one) => one.dataset.item)")]
    assert found == [item.title for item in python.similar(titles[first], n=5).items]
    fresh = next(title for title in found if title not in titles[:3])
    with expect_update(page):
        similar.nth(found.index(fresh)).click()
    assert similar.nth(found.index(fresh)).get_attribute("aria-pressed") == "true"
    assert python.titles.find(fresh) in own_list(page)
    assert page.locator("#recommendations .similar").count() == 1, "the other titles stay"


def test_a_sequence_model_reads_picks_in_the_order_in_which_they_were_made(profile):
    python, rng = BundleRecommender.load(bundle_of("fedseq")), random.Random(0)
    titles = rng.sample(python.bundle.titles, 30)

    def expected(likes):
        return [python.titles.find(item.title) for item in python.recommend(likes, n=20).items]

    with CountingServer(files_in(bundle_of("fedseq"))) as server:
        page = open_page(profile, server.url)
        for count in (1, 2, 3, 4):
            pick(page, titles[count - 1])
            assert recommended(page) == expected(titles[:count])
        assert recommended(page) != expected(titles[3::-1])
        pick(page, titles[1], "Shift+Enter")  # a dislike, and then a like again: the newest
        pick(page, titles[1])
        order = [titles[0], *titles[2:4], titles[1]]
        assert recommended(page) == expected(order)
        assert "Its order counts" in page.locator("#basis").inner_text()
        with expect_update(page):
            note = import_file(page, "\n".join(["title", *titles[4:], titles[4]]))  # one of them twice
        order += [*titles[5:], titles[4]]
        assert recommended(page) == expected(order) and "in the order of the file" in note
        assert [*own_list(page)] == [python.titles.find(title) for title in reversed(order)]
        with expect_update(page):
            page.locator("#clear").click()
        dated = [[title, 2000 + at] for at, title in enumerate(order)]
        with expect_update(page):
            assert "their dates" in import_file(page, csv_text("title,date", rng.sample(dated, len(dated))))
        assert recommended(page) == expected(order)


def test_a_filter_that_leaves_nothing_is_explained(profile, server, files):
    items = json.loads(files["items.json"])
    page = open_page(profile, server.url)
    last = len(items["genre_names"]) - 1
    of_it = [title for title, genres in zip(items["titles"], items["genres"]) if last in genres]
    with expect_update(page):
        import_file(page, "\n".join(of_it))
    with expect_update(page):
        page.locator("#genre").select_option(value=str(last))
    assert recommended(page) == [] and "another genre" in page.locator("#empty").inner_text()
    with expect_update(page):
        page.locator("#clear").click()
    assert len(recommended(page)) == 20 and page.locator("#genre").input_value() == ""


def test_a_very_long_title_leaves_a_readable_page(chromium, files):
    items = json.loads(files["items.json"])
    items["titles"][0], items["genre_names"][0] = "Long " + "title" * 1000, "Genre" * 1000
    bundle = with_new_pins(files, {"items.json": json.dumps(items).encode()})
    with CountingServer(bundle) as server, browser_context(chromium, viewport={"width": 320, "height": 640}) as profile:
        page = open_page(profile, server.url)
        pick(page, "Long title")
        page.locator("#mine .similar-button").click()
        page.locator("#mine .similar button").nth(4).wait_for()
        assert 0 in own_list(page)
        height, wide = page.evaluate("[document.body.scrollHeight, document.documentElement.scrollWidth]")
        assert wide == 320 and height < 9000, (wide, height)
        assert max(map(len, page.locator(".name").all_inner_texts())) < 140


def test_no_heading_breaks_inside_a_word_on_a_narrow_phone(chromium, files):
    bundle = with_new_pins(files, name="MovieLens 100K")
    with CountingServer(bundle) as server, browser_context(chromium, viewport={"width": 320, "height": 640}) as profile:
        page = open_page(profile, server.url)
        assert page.locator("h1").inner_text() == "MovieLens 100K"
        assert page.evaluate(BROKEN_WORDS) == []


# Attempts to send data, each to its own address, which the browser must block

ATTEMPTS = """async (base) => {
  const blocked = new Set(), tried = [], url = (kind) => `${base}leak-${kind}`;
  addEventListener("securitypolicyviolation", (event) => blocked.add(event.blockedURI));
  const attempt = (kind, act) => {
    const { href, origin } = new URL(url(kind));
    const reported = { socket: href.replace("http", "ws"), frame: origin === location.origin ? href : origin };
    tried.push(reported[kind] ?? href);
    try { act(url(kind))?.catch?.(() => 0); } catch { blocked.add(tried.at(-1)); }
  };
  const node = (tag, props, parent = document.body) => {
    const element = Object.assign(document.createElement(tag), props);
    parent.append(element);
    return element;
  };
  const sendXhr = (to) => { const request = new XMLHttpRequest(); request.open("POST", to); request.send("taste"); };
  attempt("fetch", (to) => fetch(to, { mode: "no-cors" }));
  attempt("post", (to) => fetch(to, { mode: "no-cors", method: "POST", body: "taste", keepalive: true }));
  attempt("xhr", sendXhr);
  attempt("socket", (to) => { new WebSocket(to.replace("http", "ws")); });
  attempt("events", (to) => { new EventSource(to); });
  attempt("module", (to) => import(to));
  if (globalThis.document) {
    attempt("image", (to) => { new Image().src = to; });
    attempt("beacon", (to) => { navigator.sendBeacon(to, "taste"); });
    attempt("script", (to) => node("script", { src: to }));
    attempt("style", (to) => node("link", { rel: "stylesheet", href: to }));
    attempt("prefetch", (to) => node("link", { rel: "prefetch", href: to }));
    attempt("frame", (to) => node("iframe", { src: to }));
    attempt("object", (to) => node("object", { data: to }));
    attempt("media", (to) => node("video", { src: to }));
    attempt("font", (to) => { new FontFace("leak", `url(${to})`).load().catch(() => 0); });
    attempt("css", (to) => { document.body.style.backgroundImage = `url(${to})`; });
    attempt("ping", (to) => node("a", { href: "#ping", ping: to }).click());
    attempt("form", (to) => node("form", { action: to, method: "POST" }).submit());
  } else attempt("import", (to) => importScripts(to));
  globalThis.open_ = () => tried.filter((one) => !blocked.has(one));
  return tried.length;
}"""


UNPROTECTED = {
    "": b"<!doctype html><body><script src=make.js></script>",
    "make.js": b'new Worker(URL.createObjectURL(new Blob(["0"], { type: "text/javascript" })))',
}
KINDS = {
    "page": "fetch post xhr socket events module image beacon script style prefetch frame object media font css ping "
    "form",
    "worker": "fetch post xhr socket events module import",
}


@pytest.mark.parametrize("place", KINDS)
def test_exfiltration_attempts_succeed_without_the_security_policy(chromium, files, place):
    with CountingServer(files) as other, browser.Site(UNPROTECTED) as site, browser_context(chromium) as profile:
        page = profile.new_page()
        with page.expect_worker() as worker_info:
            page.goto(site.url)
        (page if place == "page" else worker_info.value).evaluate(ATTEMPTS, other.url)
        expected = {f"/leak-{kind}" for kind in KINDS[place].split()}
        wait_until(page, lambda: expected <= {line.split()[1] for line in other.requests})


@pytest.mark.parametrize("host", ["fedtaste serve", "any host, from the copy"])
def test_security_policy_blocks_every_exfiltration_attempt(chromium, profile, files, host):
    host_server = CountingServer(files) if host == "fedtaste serve" else browser.Site(files | {"": files["index.html"]})
    with CountingServer(files) as other, host_server as site:
        page = wait_for_copy(open_page(profile, site.url))
        if host != "fedtaste serve":
            reload_page(page)
            assert page.evaluate("navigator.serviceWorker.controller !== null")
        requests = site.requests
        request_count, refused = len(requests), 0
        [worker] = page.workers
        for place, base in [(place, base) for place in (worker, page) for base in (site.url, other.url)]:
            tried = place.evaluate(ATTEMPTS, base)
            wait_until(page, lambda: not place.evaluate("open_()"))  # noqa: B023
            refused += tried if place is page else 0
        update_check = set() if host == "fedtaste serve" else {"sw.js"}  # chromium's own request after a reload
        assert ({*requests[request_count:]} - update_check, other.requests) == (set(), [])
        assert page.url.partition("#")[0] == site.url
        counts = ledger(page)
        assert (counts["sent"], counts["requests"]) == (0, 0)
        assert counts["refused"] >= refused > 30
        assert f"({counts['refused']} refused)" in page.locator("#sent").inner_text()


def test_blocked_frame_is_not_counted_as_a_request(profile, server, files):
    """For a frame of another origin chromium reports only the origin, and sometimes lists it among loaded resources."""
    with CountingServer(files) as other:
        page = open_page(profile, server.url)
        for at in range(8):
            page.evaluate(
                "(src) => document.body.append(Object.assign(document.createElement('iframe'), { src }))",
                f"{other.url}leak-{at}",
            )
            wait_until(page, lambda: ledger(page)["refused"] > at)  # noqa: B023
        page.evaluate("new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")
        assert (ledger(page)["requests"], other.requests) == (0, [])


WAYS_IN = """() => new Promise((done) => setTimeout(() => {
  window.ran = [];
  const node = (tag, make) => {
    const element = document.createElement(tag);
    make(element);
    document.body.append(element);
    element.click();
  };
  const ways = {
    eval: () => eval("ran.push('eval')"),
    function: () => new Function("ran.push('function')")(),
    timer: () => setTimeout("ran.push('timer')"),
    inline: () => node("script", (element) => { element.text = "ran.push('inline')"; }),
    handler: () => node("b", (element) => element.setAttribute("onclick", "ran.push('handler')")),
    markup: () => node("b", (element) => { element.innerHTML = "<img src=data: onerror=ran.push('markup')>"; }),
    address: () => node("a", (element) => { element.href = "javascript:void ran.push('address')"; }),
    blob: () => node("script", (element) => { element.src = URL.createObjectURL(new Blob(["ran.push('blob')"])); }),
  };
  for (const way of Object.values(ways)) try { way(); } catch { }
  done(Object.keys(ways));
}))"""


def test_only_published_scripts_can_run(chromium, profile, server, files):
    page = open_page(profile, server.url)
    ways = page.evaluate(WAYS_IN)
    with browser.Site(UNPROTECTED) as site, browser_context(chromium) as free:
        unprotected = free.new_page()
        unprotected.goto(site.url)
        unprotected.evaluate(WAYS_IN)
        wait_until(unprotected, lambda: unprotected.evaluate("ran.toSorted()") == sorted(ways))
    pick(page, "The Last Festival")
    assert page.evaluate("ran") == []
    assert ledger(page)["refused"] >= len(ways) - 1


@pytest.mark.parametrize("name", ["fedals", "fedals-ratings"])
def test_thirty_imported_lists_get_the_recommendations_of_python(profile, name):
    folder = bundle_of(name, float32=True)
    python, rng, distinct = BundleRecommender.load(folder), random.Random(3), set()
    titles, ratings = python.bundle.titles, name == "fedals-ratings"
    with CountingServer(files_in(folder)) as server:
        page = open_page(profile, server.url)
        for turn in range(30):
            chosen = rng.sample(titles, rng.choice([1, 2, 5, 20, 60]))
            values = [rng.choice([1, 2, 3, 4, 5] if ratings else ["yes", "yes", "yes", "no"]) for _ in chosen]
            values[0] = 4 if ratings else "yes"
            timed, lean = turn % 3 == 0, rng.choice([0, 0, 0.3, -0.7])
            rows = [[title, value, 1e9 + 1e5 * at] for at, (title, value) in enumerate(zip(chosen, values))]
            rng.shuffle(rows) if timed else None
            with expect_update(page):
                header = f"title,{'rating' if ratings else 'liked'},{'date' if timed else 'x'}"
                import_file(page, csv_text(header, rows))
            if lean:
                with expect_update(page):
                    page.locator("#adventurous").fill(str(lean))
            value_of = dict(zip(chosen, values))
            arguments = {"ratings": value_of} if ratings else {
                "likes": [title for title in chosen if value_of[title] == "yes"],
                "dislikes": [title for title in chosen if value_of[title] == "no"],
            }  # fmt: skip
            known = python.recommend(**arguments, n=20, adventurous=lean, timed=timed)
            assert page.locator("#recommendations .name").all_inner_texts() == [item.title for item in known.items]
            distinct.add(tuple(recommended(page)))
            with expect_update(page):
                page.locator("#clear").dispatch_event("click")
    assert len(distinct) == 30


def large_bundle() -> dict[str, bytes]:
    """A bundle of 10,000 titles with 64 random numbers each."""
    m, k, rng = 10_000, 64, np.random.default_rng(0)
    base = [title.removeprefix("The ") for title in export_source("fedals").items["titles"]]
    items = {
        "names": [str(at) for at in range(m)],
        "titles": [f"{base[at % 200]} and the {base[at * 7 % 199]} {at // 200} ({1930 + at % 90})" for at in range(m)],
        "genres": [("Comedy, Drama", "War", "Music, Romance, Art")[at % 3] for at in rng.permutation(m)],
        "counts": rng.zipf(1.5, m).clip(max=50_000).tolist(),
    }
    item = rng.normal(0, 0.3, (m, k)).astype(np.float32)
    with pytest.MonkeyPatch.context() as patch:  # computing the map is slow, and its positions do not matter here
        patch.setattr(import_module("fedtaste.serving.export"), "place", lambda *_: rng.integers(-32767, 32768, (m, 2)))
        source = export_source("fedals")
        return bundle_files(replace(source, items=items, parts=replace(source.parts, item=item)), "int8")


TYPING = """() => {
  window.typed = [];
  let begun;
  addEventListener("input", () => { begun = performance.now(); }, true);
  addEventListener("input", () => { document.body.offsetHeight; window.typed.push(performance.now() - begun); });
}"""


def test_ten_thousand_titles_load_within_two_megabytes_and_answer_fast(profile):
    files = large_bundle()
    titles = json.loads(files["items.json"])["titles"]
    with CountingServer(files) as server:
        page = wait_for_copy(open_page(profile, server.url))
        sent, received = sum(server.sizes), ledger(page)["received"]
        page.evaluate(CLOCK)
        for title in random.Random(1).sample(titles, 20):
            pick(page, title)
        page.evaluate(TYPING)
        for text in ("the velvet railway and the", "lost", "zzzz", "paintr"):
            page.locator("#search").press_sequentially(text)
            page.locator("#search").fill("")
        typed = page.evaluate("typed")
        wall, worker = map(median, zip(*page.evaluate("took")))
    print(
        f"10,000 x 64: {sent / 1e6:.2f} MB sent, {received / 1e6:.2f} MB received; update {wall:.1f} ms, "
        f"{worker:.1f} in the worker; a key in the search {median(typed):.1f} ms, at most {max(typed):.1f} (medians)"
    )
    assert sent < 2e6 and 0.5e6 < received <= sent
    # The figures of a quiet machine are in docs/evidence/page.json; other tests run beside this one.
    assert worker < 150 and wall < 600 and median(typed) < 200
