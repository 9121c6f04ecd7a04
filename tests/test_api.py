"""The API without HTTP: every answer is as its description says, and every wrong request gets a reason."""

from __future__ import annotations

import json
import time

import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtaste.serving import api as api_module
from fedtaste.serving.api import MAX_BODY, Api
from fedtaste.serving.recommender import Recommender
from support.bundles import TITLES, small_bundle


@pytest.fixture(scope="module")
def ranking(tmp_path_factory) -> Api:
    return Api(Recommender.load(small_bundle(tmp_path_factory.mktemp("ranking"))))


@pytest.fixture(scope="module")
def rating(tmp_path_factory) -> Api:
    return Api(Recommender.load(small_bundle(tmp_path_factory.mktemp("ratings"), "ratings")))


def ask(
    api: Api, body: object, method: str = "POST", target: str = "/v1/recommend", kind: str | None = "application/json"
):
    """(status, body), held to the description."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    status, got, headers = api.answer(method, target, kind, raw)
    assert json.loads(json.dumps(got, allow_nan=False)) == got
    described = api.description["paths"].get(target.partition("?")[0], {}).get(method.lower(), {"responses": {}})
    schema = "#/components/schemas/Error"
    if status not in (404, 405):
        schema = described["responses"][str(status)]["content"]["application/json"]["schema"].get("$ref", "")
    if schema:
        components = {"components": api.description["components"], "$ref": schema}
        jsonschema_rs.validator_for(components).validate(got)
    assert (status == 405) == ("Allow" in headers)
    return status, got


# What it answers


def test_it_recommends_what_the_recommender_does(ranking):
    mine = ranking.recommender
    status, got = ask(ranking, {"likes": ["the lion king", "i4"], "dislikes": ["Film 30"], "n": 5, "adventurous": 0.5})
    want = mine.recommend(["the lion king", "i4"], dislikes=["Film 30"], n=5, adventurous=0.5).dump()
    assert (status, got) == (200, want | {"unknown": []})
    assert got["from"] == [TITLES[0], TITLES[4]] and len(got["items"]) == 5 and not got["popular"]


def test_the_order_counts_only_where_it_is_said_to_be_one_of_time(ranking):
    def scores(likes, timed):
        return {i["item"]: i["score"] for i in ask(ranking, {"likes": likes, "timed": timed, "n": 100})[1]["items"]}

    likes = TITLES[3:20]
    assert scores(likes, False) == pytest.approx(scores(likes[::-1], False), abs=2e-6)
    assert scores(likes, True) != pytest.approx(scores(likes[::-1], True), abs=2e-6)


def test_ratings(rating):
    status, got = ask(rating, {"ratings": {"amélie": 5, "Film 03": 1.5}, "likes": ["Film 09"]})
    assert (status, got["from"]) == (200, ["Film 09", TITLES[1], "Film 03"])
    assert ask(rating, {"dislikes": ["Film 03"]})[1]["field"] == "dislikes"
    status, got = ask(rating, {"ratings": {"Film 03": 5.5}})
    assert status == 422 and got["error"] == 'ratings of "Film 03" is 5.5; it must be a number from 1 to 5.'


def test_nothing_said_is_what_most_people_take(ranking, rating):
    for api in (ranking, rating):
        status, got = ask(api, {})
        assert (status, got["popular"], len(got["items"]), got["from"]) == (200, True, 10, [])


def test_unknown_titles_are_refused_with_a_hint_or_skipped(ranking):
    status, got = ask(ranking, {"likes": ["Film 01", "Lion Kin"]})
    assert (status, got["field"]) == (422, "likes")
    assert '"Lion Kin"' in got["error"] and f'Did you mean "{TITLES[0]}"' in got["error"] and "skip" in got["error"]
    status, got = ask(ranking, {"likes": ["Film 01", "Nope", "Nope"], "dislikes": ["No"], "unknown": "skip"})
    assert (status, got["unknown"], got["from"], got["popular"]) == (200, ["Nope", "No"], ["Film 01"], False)
    assert ask(ranking, {"likes": ["Nope"], "unknown": "skip"})[1]["popular"]


def test_the_catalogue_comes_in_pages(ranking):
    pages = [ask(ranking, b"", "GET", f"/v1/items?start={start}&limit=25")[1] for start in (0, 25, 50, 75)]
    assert [item["title"] for page in pages for item in page["items"]] == TITLES
    assert pages[2]["items"][0] == {"item": "i50", "title": TITLES[50], "genres": ["Drama"]}
    assert {page["total"] for page in pages} == {60} and pages[3]["items"] == []


def test_health_names_the_model(ranking, rating):
    status, got = ask(ranking, b"", "GET", "/v1/health")
    assert (status, got["status"], got["task"], got["items"]) == (200, "ok", "ranking", 60)
    assert ask(rating, b"", "GET", "/v1/health")[1]["scale"] == [1, 5]


def test_the_examples_of_the_description_are_answered(ranking, rating):
    for api in (ranking, rating):
        status, description = ask(api, b"", "GET", "/v1/openapi.json")
        assert status == 200 and description["openapi"] == "3.1.0"
        content = description["paths"]["/v1/recommend"]["post"]["requestBody"]["content"]["application/json"]
        got = {name: ask(api, example["value"]) for name, example in content["examples"].items()}
        assert {status for status, _ in got.values()} == {200}
        shown = description["paths"]["/v1/recommend"]["post"]["responses"]["200"]["content"]["application/json"][
            "example"
        ]
        assert got["taste"][1] == shown and not shown["popular"]


def test_every_object_of_the_description_is_closed(ranking):
    def walk(node):
        if isinstance(node, dict):
            if node.get("type") == "object" and "properties" in node:
                assert node["additionalProperties"] is False, node
            for child in node.values():
                walk(child)

    walk(ranking.description["components"])
    assert set(ranking.description["paths"]) == set(api_module.ROUTES)


@pytest.mark.parametrize(
    "body",
    [
        {"likes": TITLES * 16}, {"likes": ["x" * 300], "unknown": "skip"}, {"n": 1}, {"n": 100}, {"n": 10.0},
        {"adventurous": -1}, {"adventurous": 1}, {"timed": True, "likes": TITLES[:9]}, {"likes": TITLES},
        {"dislikes": TITLES}, {"likes": [TITLES[1]] * 1000}, {"likes": ["\x00", "\U0001f98a"], "unknown": "skip"},
    ],
)  # fmt: skip
def test_what_is_just_within_the_limits(ranking, body):
    status, got = ask(ranking, body)
    assert status == 200, got


# What it refuses

LONG = "x" * 301
BODIES = [
    (b"", 400, "body", "line 1, column 1"), (b"{", 400, "body", "column 2"), (b"{}x", 400, "body", "extra data"),
    (b"[" * 60_000, 400, "body", "nested"), (b'{"n":' * 10_000, 400, "body", "nested"),
    (b'{"n": 1, "n": 2}', 400, "body", '"n" is there twice'),
    (b'{"ratings": {"a": 1, "a": 2}}', 400, "body", '"a" is there twice'),
    (b'{"n": NaN}', 400, "body", "NaN"), (b'{"n": -Infinity}', 400, "body", "Infinity"),
    (b'{"n": 1e999}', 400, "body", "1e999 is too large"), (b'{"n": ' + b"9" * 5000 + b"}", 400, "body", "5,000 digits"),
    (b'{"likes": ["\xff"]}', 400, "body", "byte 13"), (b'{"likes": ["\\ud800"]}', 400, "body", "surrogate"),
    (b'{"\\udfff": 1}', 400, "body", "surrogate"), (b"\xef\xbb\xbf{}", 400, "body", "bom"),
    ('{"likes": []}'.encode("utf-16"), 400, "body", "UTF-8"), (b"x" * (MAX_BODY + 1), 413, "body", "65,537 bytes"),
    ([], 422, "body", "must be an object"), (None, 422, "body", "null"), ("Toy Story", 422, "body", "object"),
    ({"like": []}, 422, "like", 'Did you mean "likes"?'), ({"x" * 500: 1}, 422, None, "is not a field"),
    ({"likes": "Film 01"}, 422, "likes", "list of titles"), ({"likes": {"a": 1}}, 422, "likes", "list"),
    ({"likes": [1]}, 422, "likes", "likes has 1;"), ({"likes": [None]}, 422, "likes", "null"),
    ({"likes": [["Film 01"]]}, 422, "likes", "a text of"), ({"likes": [""]}, 422, "likes", "1 to 300"),
    ({"dislikes": [LONG]}, 422, "dislikes", "1 to 300 characters"), ({"likes": ["a"] * 1001}, 422, "likes", "at most 1,000"),
    ({"likes": ["   "]}, 422, "likes", "is not in the catalogue"),
    ({"likes": ["Film 01"], "dislikes": ["film 01"]}, 422, "dislikes", "Choose one"),
    ({"ratings": []}, 422, "ratings", "must be an object"), ({"ratings": {"Film 01": 1}}, 422, "ratings", "no stars"),
    ({"n": 0}, 422, "n", "from 1 to 100"), ({"n": 101}, 422, "n", "n is 101"), ({"n": -1}, 422, "n", "-1"),
    ({"n": 1.5}, 422, "n", "1.5"), ({"n": True}, 422, "n", "true"), ({"n": "10"}, 422, "n", '"10"'),
    ({"n": None}, 422, "n", "null"), ({"n": 10**29}, 422, "n", "100000"), ({"n": 1e300}, 422, "n", "whole number"),
    ({"adventurous": 1.01}, 422, "adventurous", "from -1 to 1"), ({"adventurous": False}, 422, "adventurous", "false"),
    ({"adventurous": "1"}, 422, "adventurous", "number"), ({"timed": 1}, 422, "timed", "true or false"),
    ({"timed": None}, 422, "timed", "null"), ({"unknown": "keep"}, 422, "unknown", '"refuse" or "skip"'),
    ({"unknown": ["skip"]}, 422, "unknown", '"refuse" or "skip"'), ({"unknown": {}}, 422, "unknown", "{}"),
]  # fmt: skip


@pytest.mark.parametrize("case", range(len(BODIES)))
def test_a_wrong_body_is_refused_with_a_reason(ranking, case):
    body, status, field, part = BODIES[case]
    got, answer = ask(ranking, body)
    assert (got, part in answer["error"]) == (status, True), answer
    assert field is None or answer["field"] == field
    assert "x" * 81 not in answer["error"] + str(answer["field"]) and len(answer["error"]) < 400


@pytest.mark.parametrize(
    ("kind", "fine"),
    [
        ("application/json", True), ("Application/JSON; charset=UTF-8", True),
        ('application/json;charset="utf-8"', True),
        (None, False), ("", False), ("text/plain", False), ("application/x-www-form-urlencoded", False),
        ("application/json; charset=latin-1", False), ("application/jsonx", False), ("multipart/form-data", False),
    ],
)  # fmt: skip
def test_only_json_is_taken(ranking, kind, fine):
    status, got = ask(ranking, {}, kind=kind)
    assert status == (200 if fine else 415)
    assert fine or (got["field"] == "Content-Type" and "application/json" in got["error"])


@pytest.mark.parametrize(
    "query",
    [
        "start=-1", "limit=0", "limit=1001", "start=1e3", "start=", "start=0&start=0", "start=%D9%A3", "q=film",
        "start=9999999999", "&".join(f"a{n}=1" for n in range(20)),
    ],
)  # fmt: skip
def test_wrong_parameters_are_refused(ranking, query):
    assert ask(ranking, b"", "GET", f"/v1/items?{query}")[0] == 422


def test_other_addresses_and_methods(ranking):
    for target in ("/v1/", "/v1/recommend/", "/v1//health", "/v1/health%2f", "/v1/../v1/health"):
        status, got = ask(ranking, b"", "GET", target)
        assert status == 404 and "/v1/recommend" in got["error"]
    for method, target in (
        ("GET", "/v1/recommend"), ("HEAD", "/v1/recommend"), ("POST", "/v1/items"), ("DELETE", "/v1/health"),
        ("OPTIONS", "/v1/recommend"), ("TRACE", "/v1/openapi.json"),
    ):  # fmt: skip
        assert ask(ranking, b"", method, target)[0] == 405
    assert ranking.answer("HEAD", "/v1/health", None, b"").status == 200


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(TITLES),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)
bodies = st.dictionaries(st.sampled_from([*api_module.MUST_BE, "other"]), values, max_size=5)


@settings(max_examples=300)
@given(bodies)
def test_whatever_json_comes_there_is_an_answer(ranking, body):
    assert ask(ranking, json.dumps(body).encode())[0] in (200, 400, 422)


@settings(max_examples=300)
@given(st.binary(max_size=60) | st.text().map(str.encode))
def test_whatever_bytes_come_there_is_an_answer(ranking, body):
    assert ask(ranking, body)[0] in (200, 400, 422)


@pytest.mark.parametrize(
    "body",
    [
        b"{" + b",".join(b'"%05d":1' % n for n in [*range(5900), 0]) + b"}",
        json.dumps({"likes": [f"{n} no {' ' * 40}" for n in range(1000)], "unknown": "skip"}).encode(),
        json.dumps({"likes": [" " * 200 + "(1994)x"] * 300}).encode(), b"[" + b"[]," * 20_000 + b"[]]",
        b'{"n": 0.' + b"1" * 60_000 + b"}", b'{"likes": ["' + b"\\u0041" * 10_000 + b'"]}',
    ],
)  # fmt: skip
def test_the_worst_that_fits_costs_little(ranking, body):
    assert len(body) <= MAX_BODY
    began = time.process_time()
    assert ask(ranking, body)[0] in (200, 400, 422)
    assert time.process_time() - began < 1.0
