"""Accessibility of the page: keyboard use, axe-core in every view (narrow, wide, light, dark), and reduced motion."""

from __future__ import annotations

from importlib import resources

import pytest

from support.bundles import bundle_of
from support.pages import (
    CountingServer,
    browser_context,
    expect_update,
    files_in,
    import_file,
    open_page,
    own_list,
    pick,
    recommended,
    wait_until,
)

FOCUSED = """() => {
  const at = document.activeElement, around = [at, at.closest("label"), ...(at.labels ?? [])].filter(Boolean);
  const seen = around.some((node) => {
    const { outlineStyle, outlineWidth } = getComputedStyle(node);
    return outlineStyle !== "none" && parseFloat(outlineWidth) >= 2;
  });
  return { at: at === document.body ? "" : at.id || at.className || at.tagName, seen };
}"""


@pytest.fixture(scope="module")
def server(files):
    with CountingServer(files) as server:
        yield server


@pytest.fixture(scope="module")
def stars():
    with CountingServer(files_in(bundle_of("fedals-ratings"))) as server:
        yield server


class Keyboard:
    """A keyboard user. Every action checks that an element has the focus and shows it."""

    def __init__(self, page) -> None:
        self.page = page

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)
            self.look()

    def look(self) -> None:
        focus = self.page.evaluate(FOCUSED)
        assert focus["at"], "the focus is lost"
        assert focus["seen"], f"no outline shows the focus at {focus['at']}"

    def update(self, *keys: str) -> None:
        """Press keys that change the recommendations."""
        with expect_update(self.page):
            self.press(*keys)
        self.look()

    def go(self, selector: str, key: str = "Tab") -> None:
        for _ in range(150):
            if self.page.evaluate("(selector) => document.activeElement.matches(selector)", selector):
                return
            self.press(key)
        raise AssertionError(f"{selector} is not reached with {key}")

    def at(self, selector: str) -> bool:
        return self.page.evaluate("(selector) => document.activeElement.matches(selector)", selector)

    def write(self, text: str) -> None:
        self.page.keyboard.type(text)
        self.look()


def test_the_whole_page_can_be_used_by_keyboard(chromium, server, titles):
    with browser_context(chromium) as profile:
        page = open_page(profile, server.url)
        keyboard, choosers = Keyboard(page), []
        page.on("filechooser", lambda chooser: choosers.append(chooser))
        keyboard.press("Tab")
        assert keyboard.at("#skip")
        keyboard.press("Enter")
        assert keyboard.at("#search")
        keyboard.write("the")
        marked = [page.locator("#search").get_attribute("aria-activedescendant")]
        for key in ("ArrowDown", "ArrowDown", "ArrowUp", "End", "Home"):
            keyboard.press(key)
            marked.append(page.locator("#search").get_attribute("aria-activedescendant"))
        assert marked == [f"option-{at}" for at in (0, 1, 2, 1, 11, 0)]
        assert page.locator("#options [aria-selected=true]").get_attribute("id") == "option-0"
        keyboard.press("Escape")
        assert page.locator("#options").is_hidden() and page.locator("#search").input_value() == "the"
        keyboard.press("Escape")
        assert page.locator("#search").input_value() == ""
        keyboard.write("last festival")
        keyboard.update("Enter")
        keyboard.write("golden express")
        keyboard.update("Shift+Enter")
        assert own_list(page) == {1: "0", 0: "1"} and keyboard.at("#search")
        assert "disliked" in page.locator("#status").inner_text()
        keyboard.go("#mine [data-item='1'] .like")
        keyboard.update("Space")
        assert own_list(page) == {1: "1", 0: "1"} and keyboard.at("#mine [data-item='1'] .like")
        keyboard.go("#mine [data-item='1'] .dislike")
        keyboard.update("Enter")
        assert own_list(page) == {1: "0", 0: "1"}

        keyboard.go("#adventurous")
        calm = page.locator("#adventurous-text").inner_text()
        keyboard.update("ArrowRight")
        keyboard.update("End")
        assert page.locator("#adventurous-text").inner_text() != calm
        assert page.locator("#adventurous").get_attribute("aria-valuetext") == "far off the beaten track"
        keyboard.go("#genre")
        keyboard.update("ArrowDown")
        assert page.locator("#genre").input_value() == "0"
        keyboard.update("ArrowUp")
        keyboard.go("#recommendations li .like")
        first = recommended(page)[0]
        keyboard.update("Enter")
        assert own_list(page)[first] == "1" and keyboard.at("#recommendations .like")
        keyboard.go("#recommendations .similar-button")
        keyboard.press("Enter")
        page.locator("#recommendations .similar button").first.wait_for()
        keyboard.go("#recommendations .similar button[aria-pressed=false]")
        similar = page.evaluate("Number(document.activeElement.dataset.item)")
        keyboard.update("Enter")
        assert own_list(page)[similar] == "1" and keyboard.at(f"#recommendations .similar [data-item='{similar}']")
        keyboard.update("Enter")
        assert similar not in own_list(page)
        keyboard.go("#recommendations .similar-button[aria-expanded=true]", "Shift+Tab")
        keyboard.press("Space")
        assert page.locator("#recommendations .similar").count() == 0
        keyboard.go("#recommendations li [data-do=hide]")
        hidden = page.evaluate("Number(document.activeElement.closest('li').dataset.item)")
        keyboard.update("Space")
        assert hidden not in recommended(page) and keyboard.at("#recommendations [data-do=hide]")

        keyboard.go("#mine .remove", "Shift+Tab")
        before = own_list(page)
        keyboard.update("Enter")
        assert len(own_list(page)) == len(before) - 1 and keyboard.at("#mine .remove")
        keyboard.go("#undo button", "Shift+Tab")
        keyboard.update("Enter")
        assert own_list(page) == before and keyboard.at("#search")

        keyboard.go("#export")
        with page.expect_download() as download:
            keyboard.press("Enter")
        assert download.value.path().read_text().count("\n") == len(before) + 1
        keyboard.go("#import", "Shift+Tab")
        keyboard.press("Enter")
        wait_until(page, lambda: bool(choosers))
        with expect_update(page):
            choosers[0].set_files({"name": "more.txt", "mimeType": "text/plain", "buffer": titles[7].encode()})
        wait_until(page, lambda: keyboard.at("#import-note"))
        keyboard.go("#import-note button")
        keyboard.press("Enter")
        assert keyboard.at("#import") and own_list(page)[7] == "1"
        keyboard.go("#remember")
        keyboard.press("Space", "Space")
        keyboard.go("#clear", "Shift+Tab")
        keyboard.update("Enter")
        assert own_list(page) == {} and keyboard.at("#undo button")
        keyboard.go("#theme input", "Shift+Tab")
        for key, scheme in (("ArrowRight", "light"), ("ArrowRight", "dark")):
            keyboard.press(key)
            assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == scheme
        keyboard.go("#marks")
        keyboard.press("+", "ArrowLeft", "ArrowUp")
        keyboard.update("Enter")
        assert len(own_list(page)) == 1 and keyboard.at("#marks")
        keyboard.press("0")
        keyboard.go("#ledger summary")
        keyboard.press("Enter")
        assert page.locator("#out-facts").is_visible()
        keyboard.press("Tab", "Shift+Tab", "Space")
        assert page.locator("#out-facts").is_hidden()


def test_ratings_can_be_given_by_keyboard(chromium, stars):
    with browser_context(chromium) as profile:
        page = open_page(profile, stars.url)
        keyboard = Keyboard(page)
        keyboard.go("#search")
        keyboard.write("last festival")
        keyboard.press("Enter")
        assert keyboard.at("#mine [data-item='0'] input[type=radio]") and own_list(page) == {0: ""}
        keyboard.update("ArrowRight")
        stars_given = int(own_list(page)[0])
        keyboard.update("ArrowRight")
        assert int(own_list(page)[0]) == stars_given + 1 and keyboard.at(f"#mine input[value='{stars_given + 1}']")
        keyboard.press("Enter")
        assert keyboard.at("#search")
        keyboard.go("#recommendations input")
        first = recommended(page)[0]
        keyboard.update("Space")
        assert first in own_list(page) and first not in recommended(page)
        keyboard.go("#mine .remove")
        keyboard.update("Enter")
        keyboard.go("#undo button", "Shift+Tab")
        keyboard.update("Enter")
        assert len(own_list(page)) == 2


# Checks by axe-core

LOOKS = {
    "wide and light": (1280, 800, {"color_scheme": "light"}),
    "phone and dark": (390, 844, {"color_scheme": "dark"}),
    "narrow and light": (320, 640, {"color_scheme": "light"}),
}
AXE = "async () => (await axe.run({ preload: false, resultTypes: ['violations'] })).violations"
DARK = {"wide and dark": (1280, 800, {"color_scheme": "dark"})}


def check_view(page, view: str, looks=LOOKS) -> None:
    """axe-core finds no violation, and the page needs no horizontal scrolling, in any of these looks."""
    for look, (width, height, media) in looks.items():
        page.set_viewport_size({"width": width, "height": height})
        page.emulate_media(**media)
        page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 0, f"{view}, {look}: {wide} pixels to the side"
        if not page.evaluate("'axe' in window"):
            page.evaluate((resources.files("axe_playwright_python") / "axe.min.js").read_text() + ";0")
        violations = page.evaluate(AXE)
        summary = [(item["id"], [node["html"][:150] for node in item["nodes"]][:3]) for item in violations]
        assert not violations, f"{view}, {look}: {summary}"


def test_axe_finds_nothing_in_any_view(chromium, server, titles):
    with browser_context(chromium) as profile:
        page = open_page(profile, server.url)
        check_view(page, "the start")
        page.locator("#search").fill("the")
        check_view(page, "the search")
        assert page.locator("#options").is_visible()
        page.locator("#search").fill("qqqqqq")
        check_view(page, "a search that finds nothing", {"phone and dark": LOOKS["phone and dark"]})
        page.locator("#search").fill("")
        for at, title in enumerate(titles[:4]):
            pick(page, title, "Shift+Enter" if at == 2 else "Enter")
        with expect_update(page):
            page.locator("#recommendations [data-do=hide]").first.click()
        page.locator("#remember").check()
        check_view(page, "with picks", LOOKS | DARK)
        for place in ("#recommendations", "#mine"):
            page.locator(f"{place} .similar-button").first.click()
            page.locator(f"{place} .similar button").nth(4).wait_for()
        check_view(page, "similar titles", LOOKS | DARK)
        page.locator("#ledger summary").click()
        check_view(page, "the ledger", LOOKS | DARK)
        page.locator("#ledger summary").click()
        rows = f"{titles[9]},9\nNo Such Title,3\nGolden Expres,1\n{titles[9]},8\n{titles[10]},5"
        import_file(page, f"title,rating\n{rows}")
        check_view(page, "what was imported")
        import_file(page, b"\0\1\2", "picture.png")
        check_view(page, "what was not imported", {"phone and dark": LOOKS["phone and dark"]})
        with expect_update(page):
            import_file(page, "\n".join(titles[:-1]))
        with expect_update(page):
            import_file(page, titles[-1])
        check_view(page, "nothing left", {name: LOOKS[name] for name in ("wide and light", "phone and dark")})


def test_axe_finds_nothing_with_forced_colours(chromium, server, titles):
    with browser_context(chromium, forced_colors="active") as profile:
        page = open_page(profile, server.url)
        pick(page, titles[0])
        page.locator("#search").fill("the")
        check_view(page, "forced colours", {"wide": (1280, 800, {}), "phone": (390, 844, {"color_scheme": "dark"})})


def test_axe_finds_nothing_on_a_ratings_page(chromium, stars):
    with browser_context(chromium) as profile:
        page = open_page(profile, stars.url)
        page.locator("#search").fill("the")
        page.locator("#search").press("Enter")
        with expect_update(page):
            page.locator("#mine input").nth(3).check()
        page.locator("#search").fill("golden")
        page.locator("#search").press("Enter")
        for place in ("#recommendations", "#mine"):
            page.locator(f"{place} .similar-button").first.click()
            page.locator(f"{place} .similar button").nth(4).wait_for()
        check_view(page, "stars", LOOKS | DARK)


def test_axe_finds_nothing_on_the_error_page(chromium, files):
    broken = {"changed": files | {"item.i8": files["item.i8"][::-1]}, "no script": files | {"boot.js": b" "}}
    for view, wrong in broken.items():
        with CountingServer(wrong) as server, browser_context(chromium) as profile:
            page = profile.new_page()
            page.goto(server.url)
            page.locator("#problem" if view == "changed" else ".late").locator("visible=true").wait_for()
            check_view(page, view)


def test_axe_finds_a_planted_violation(chromium, server):
    with browser_context(chromium) as profile:
        page = open_page(profile, server.url)
        page.evaluate("document.getElementById('adventurous').labels[0].remove()")
        with pytest.raises(AssertionError, match="label"):
            check_view(page, "a slider without a name")


@pytest.mark.parametrize("motion", ["reduce", "no-preference"])
def test_reduced_motion_stops_animations(chromium, server, titles, motion):
    with browser_context(chromium, reduced_motion=motion) as profile:
        profile.add_init_script(
            """window.moved = 0;
            const { animate } = Element.prototype;
            Element.prototype.animate = function (...how) { window.moved += 1; return animate.apply(this, how); };
            addEventListener("transitionrun", () => { window.moved += 1; });"""
        )
        page = open_page(profile, server.url)
        pick(page, titles[0])
        page.locator("#recommendations button").first.hover()
        pick(page, titles[1])
        assert (page.evaluate("window.moved") > 0) == (motion == "no-preference")
