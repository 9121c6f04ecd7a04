"""One rule names items: a table of texts, with the same answers in Python, bundle, command line, API and page."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

import polars as pl
import pytest

import fedtaste as ft
from fedtaste.errors import SettingError
from fedtaste.serving.api import Api
from fedtaste.serving.bundle_recommender import BundleRecommender
from fedtaste.serving.item_lists import find_items
from fedtaste.serving.titles import Titles
from support.browser import Site
from support.command import fedtaste

CATALOGUE = {  # name -> title
    "1": "Lion King, The (1994)",
    "2": "Star Wars (1977)",
    "3": "Amélie (Le Fabuleux Destin) (2001)",
    "4": "7",  # the title of one item is the name of another
    "5": "Chasing Amy (1997)",
    "6": "Chasing Amy (1997)",
    "7": "Titanic (1953)",
    "8": "Titanic (1997)",
    "9": "STAR WARS II",
    "A-1": "Alien",
    "alien": "Another Thing",
}
CASES: dict[str, list[str]] = {  # text -> the names of the items that it names; several are refused
    "1": ["1"],
    "7": ["7"],  # a name before a title
    "A-1": ["A-1"],
    "a-1": [],  # names are exact
    "Alien": ["A-1"],
    "alien": ["alien"],
    "ALIEN": ["A-1"],
    "Lion King, The (1994)": ["1"],
    "the  LION king": ["1"],
    "lion king (1994)": ["1"],
    "lion king (1995)": ["1"],  # services differ by a year
    "lion king (2019)": [],
    "amelie": ["3"],
    "Fabuleux destin, Le": ["3"],
    "star wars": ["2"],
    "Star Wars (1977)": ["2"],
    "star wars ii": ["9"],
    "Chasing Amy (1997)": ["5", "6"],
    "chasing amy": ["5", "6"],
    "Titanic": ["7", "8"],
    "titanic (1953)": ["7"],
    "Titanic (1998)": ["8"],
    "": [],
    "   ": [],
    "Star Warts": [],
}
NAMES, TITLES = list(CATALOGUE), list(CATALOGUE.values())


@pytest.fixture(scope="module")
def model() -> ft.Recommender:
    rows = [
        (f"u{u}", name, title) for u in range(9) for at, (name, title) in enumerate(CATALOGUE.items()) if (at + u) % 3
    ]
    frame = pl.DataFrame(rows, schema=["user", "item", "title"], orient="row")
    return ft.Recommender("fedals", rounds=2, k=3).fit(frame, progress=False)


@pytest.fixture(scope="module")
def folders(model, tmp_path_factory) -> tuple[Path, Path]:
    """(a saved model, a bundle of it)."""
    parent = tmp_path_factory.mktemp("models")
    model.save(parent / "saved")
    model.export(parent / "bundle")
    return parent / "saved", parent / "bundle"


@pytest.mark.parametrize("text", CASES)
def test_a_text_names_an_item_several_or_none(text):
    titles = Titles(NAMES, TITLES)
    assert [NAMES[at] for at in titles.matches(text)] == CASES[text]
    assert titles.get(text) == (NAMES.index(CASES[text][0]) if len(CASES[text]) == 1 else None)


@pytest.mark.parametrize("text", CASES)
def test_folder_bundle_and_api_name_items_alike(model, folders, text):
    bundle = ft.Recommender.load(folders[1])
    api = Api(BundleRecommender.load(folders[1]))
    known = CASES[text]
    calls = {
        "likes": lambda m: m.recommend_for(likes=[text], n=1).history,
        "dislikes": lambda m: m.recommend_for(likes=["2" if known != ["2"] else "1"], dislikes=[text], n=1).disliked,
        "only": lambda m: m.recommend_for(likes=["2" if known != ["2"] else "1"], only=[text], n=99).items,
        "exclude": lambda m: m.recommend_for(likes=["2" if known != ["2"] else "1"], exclude=[text], n=99).items,
        "item": lambda m: m.similar_items(text, n=1).item,
    }
    for argument, call in calls.items():
        if len(known) == 1:
            assert plain(call(model)) == plain(call(bundle))
            continue
        messages = set()
        for each in (model, bundle):
            with pytest.raises(SettingError, match=argument) as error:
                call(each)
            messages.add(str(error.value))
        assert len(messages) == 1 and all(f'"{name}" (' in next(iter(messages)) for name in known)
    if len(known) == 1:
        assert model.recommend_for(likes=[text], n=1).history == (CATALOGUE[known[0]],)
        listed = {each.item for each in calls["exclude"](model)}
        assert known[0] not in listed and {each.item for each in calls["only"](model)} <= {known[0]}
        assert model.similar_items(text).item == known[0]
    for target, body, field in (("recommend", {"likes": [text]}, "likes"), ("similar", {"item": text}, "item")):
        reply = api.answer("POST", f"/v1/{target}", "application/json", json.dumps(body).encode())
        assert reply.status == (200 if len(known) == 1 else 422)
        assert len(known) == 1 or reply.body["field"] == field


def plain(value: object) -> object:
    """What a call names, without scores, which a bundle rounds."""
    return [each.item for each in value] if isinstance(value, tuple) and hasattr(value[0], "item") else value


@pytest.mark.parametrize("text", ["7", "ALIEN", "chasing amy", "Star Warts"])
def test_the_command_line_names_items_alike(folders, text):
    known = CASES[text]
    for folder in folders:
        output = fedtaste("similar", folder, text, "--json")
        if len(known) == 1:
            assert output.json["item"] == known[0]
        else:
            output.refused(*known or ["not in the catalogue"])
    output = fedtaste("recommend", folders[0], "--likes", text, "--exclude", text, "-n", "1", "--json")
    if len(known) == 1:
        assert output.json["from"] == [CATALOGUE[known[0]]]
    else:
        output.refused(*known or ["not in the catalogue"])


def test_exclude_leaves_another_item_of_the_same_title(model, folders):
    for each in (model, ft.Recommender.load(folders[1])):
        listed = {item.item for item in each.recommend_for(likes=["1"], exclude=["5"], n=99).items}
        assert "6" in listed and "5" not in listed


def test_skipped_titles_of_a_request_are_listed(folders):
    api = Api(BundleRecommender.load(folders[1]))
    body = {"likes": ["star wars", "Titanic", "Star Warts"], "unknown": "skip"}
    reply = api.answer("POST", "/v1/recommend", "application/json", json.dumps(body).encode()).body
    assert reply["from"] == ["Star Wars (1977)"] and reply["unknown"] == ["Titanic", "Star Warts"]


def test_the_page_names_items_alike(chromium):
    script = (files("fedtaste.serving") / "web" / "catalogue.js").read_bytes()
    items = {"names": NAMES, "titles": TITLES, "genres": [[] for _ in NAMES], "genre_names": []}
    with Site({"": b"<!doctype html><title>test</title>", "catalogue.js": script}) as site:
        page = chromium.new_page()
        page.goto(site.url)
        answers = page.evaluate(
            """async ([items, texts]) => {
                const { Catalogue } = await import("./catalogue.js");
                const catalogue = new Catalogue(items, new Uint8Array(items.names.length));
                return texts.map((text) => catalogue.matches(text).map((item) => catalogue.names[item]));
            }""",
            [items, list(CASES)],
        )
        page.close()
    assert dict(zip(CASES, answers)) == CASES


def test_an_item_that_is_named_twice_is_at_its_last_place():
    titles = Titles(["a", "b"], ["Alien (1979)", "Brazil (1985)"])
    assert find_items(titles, ["a", "b", "Alien"], "likes") == [1, 0]
    assert find_items(titles, ["b", "a"], "likes") == [1, 0]
