"""The API without HTTP: replies match the OpenAPI description, and wrong requests are refused with a reason."""

from __future__ import annotations

import json
import time

import jsonschema_rs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtaste.serving import api as api_module
from fedtaste.serving.api import MAX_BODY, Api
from fedtaste.serving.bundle_recommender import BundleRecommender
from fedtaste.serving.openapi import RecommendRequest, must_be
from support.bundles import TITLES, small_bundle


@pytest.fixture(scope="module")
def ranking(tmp_path_factory) -> Api:
    return Api(BundleRecommender.load(small_bundle(tmp_path_factory.mktemp("ranking"))))


@pytest.fixture(scope="module")
def rating(tmp_path_factory) -> Api:
    return Api(BundleRecommender.load(small_bundle(tmp_path_factory.mktemp("ratings"), "ratings")))


def send(
    api: Api, body: object, method: str = "POST", target: str = "/v1/recommend", kind: str | None = "application/json"
):
    """(status, body) of a request. The reply must match the OpenAPI description."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = api.answer(method, target, kind, raw)
    status, reply, headers = answer.status, answer.body, answer.headers
    json.dumps(reply, allow_nan=False)
    operation = api.description["paths"].get(target.partition("?")[0], {}).get(method.lower(), {"responses": {}})
    schema = "#/components/schemas/Error"
    if status not in (404, 405):
        schema = operation["responses"][str(status)]["content"]["application/json"]["schema"].get("$ref", "")
    if schema:
        components = {"components": api.description["components"], "$ref": schema}
        jsonschema_rs.validator_for(components).validate(reply)
    assert (status == 405) == ("Allow" in headers)
    return status, reply


# Replies


def test_replies_are_the_recommendations_of_the_recommender(ranking):
    status, reply = send(
        ranking, {"likes": ["the lion king", "i4"], "dislikes": ["Film 30"], "n": 5, "adventurous": 0.5}
    )
    expected = ranking.recommender.recommend(["the lion king", "i4"], dislikes=["Film 30"], n=5, adventurous=0.5).dump()
    assert (status, reply) == (200, expected | {"unknown": []})
    assert reply["from"] == [TITLES[0], TITLES[4]] and len(reply["items"]) == 5 and not reply["popular"]


def test_the_order_of_likes_counts_only_if_timed(ranking):
    def scores(likes, timed):
        return {i["item"]: i["score"] for i in send(ranking, {"likes": likes, "timed": timed, "n": 100})[1]["items"]}

    likes = TITLES[3:20]
    assert scores(likes, False) == pytest.approx(scores(likes[::-1], False), abs=2e-6)
    assert scores(likes, True) != pytest.approx(scores(likes[::-1], True), abs=2e-6)


def test_ratings_are_used_and_those_outside_the_scale_refused(rating):
    status, reply = send(rating, {"ratings": {"amélie": 5, "Film 03": 1.5}, "likes": ["Film 09"]})
    assert (status, reply["from"]) == (200, ["Film 09", TITLES[1], "Film 03"])
    assert send(rating, {"dislikes": ["Film 03"]})[1]["field"] == "dislikes"
    status, reply = send(rating, {"ratings": {"Film 03": 5.5}})
    assert status == 422 and all(part in reply["error"] for part in ('"Film 03"', "5.5", "at most 5"))


def test_a_request_without_likes_gets_popular_items(ranking, rating):
    for api in (ranking, rating):
        status, reply = send(api, {})
        assert (status, reply["popular"], len(reply["items"]), reply["from"]) == (200, True, 10, [])


def test_unknown_titles_are_refused_with_a_suggestion_or_skipped(ranking):
    status, reply = send(ranking, {"likes": ["Film 01", "Lion Kin"]})
    assert (status, reply["field"]) == (422, "likes")
    assert (
        '"Lion Kin"' in reply["error"] and f'Did you mean "{TITLES[0]}"' in reply["error"] and "skip" in reply["error"]
    )
    status, reply = send(ranking, {"likes": ["Film 01", "Nope", "Nope"], "dislikes": ["No"], "unknown": "skip"})
    assert (status, reply["unknown"], reply["from"], reply["popular"]) == (200, ["Nope", "No"], ["Film 01"], False)
    assert send(ranking, {"likes": ["Nope"], "unknown": "skip"})[1]["popular"]


def test_filters_leave_only_what_they_allow(ranking):
    titles = {title: at for at, title in enumerate(TITLES)}
    everything = send(ranking, {"likes": ["Film 01"], "n": 100})[1]["items"]
    status, reply = send(
        ranking, {"likes": ["Film 01"], "only": TITLES[10:20], "exclude": ["film 12", "i19"], "n": 100}
    )
    assert status == 200
    assert [i["title"] for i in reply["items"]] == [
        i["title"] for i in everything if titles[i["title"]] in {10, 11, 12, 13, 14, 16, 17, 18}
    ]
    status, reply = send(ranking, {"likes": ["Film 01"], "genres": ["film-noir"], "n": 100})
    assert [i["title"] for i in reply["items"]] == [i["title"] for i in everything if titles[i["title"]] % 2]
    status, reply = send(ranking, {"genres": ["Drama"], "only": TITLES[10:20], "n": 100})
    assert reply["popular"] and {titles[i["title"]] for i in reply["items"]} == {10, 12, 14, 16, 18}
    status, reply = send(ranking, {"only": ["Film 01", "Nope"], "exclude": ["No"], "unknown": "skip"})
    assert (status, reply["unknown"]) == (200, ["Nope", "No"])
    assert [i["title"] for i in reply["items"]] == ["Film 01"]


def test_dislikes_that_were_understood_are_in_the_answer(ranking):
    assert send(ranking, {"likes": ["Film 01"], "dislikes": ["film 02"]})[1]["disliked"] == ["Film 02"]


def test_similar_items_come_by_cosine(ranking):
    table = ranking.recommender.tables.item
    unit = table / np.linalg.norm(table, axis=1, keepdims=True)
    order = [at for at in np.argsort(-(unit @ unit[0])) if at]
    status, reply = send(ranking, {"item": "lion king", "n": 5}, target="/v1/similar")
    assert (status, reply["item"], reply["title"]) == (200, "i0", TITLES[0])
    assert [i["title"] for i in reply["items"]] == [TITLES[at] for at in order[:5]]
    assert [i["score"] for i in reply["items"]] == pytest.approx((unit @ unit[0])[order[:5]], abs=1e-6)
    assert len(send(ranking, {"item": "i0"}, target="/v1/similar")[1]["items"]) == 10


@pytest.mark.parametrize(
    ("body", "field", "part"),
    [
        ({}, "item", "item is missing"), ({"item": ""}, "item", "1 to 300"), ({"item": ["a"]}, "item", "a text"),
        ({"item": "Lion Kin"}, "item", "Did you mean"), ({"item": "i0", "n": 0}, "n", "from 1 to 100"),
        ({"item": "i0", "likes": []}, "likes", "is not a field"),
    ],
)  # fmt: skip
def test_a_wrong_request_for_similar_items_is_refused(ranking, body, field, part):
    status, reply = send(ranking, body, target="/v1/similar")
    assert (status, reply["field"], part in reply["error"]) == (422, field, True), reply


def test_the_catalogue_comes_in_pages(ranking):
    pages = [send(ranking, b"", "GET", f"/v1/items?start={start}&limit=25")[1] for start in (0, 25, 50, 75)]
    assert [item["title"] for page in pages for item in page["items"]] == TITLES
    assert pages[2]["items"][0] == {"item": "i50", "title": TITLES[50], "genres": ["Drama"]}
    assert {page["total"] for page in pages} == {60} and pages[3]["items"] == []


def test_health_describes_the_model(ranking, rating):
    status, reply = send(ranking, b"", "GET", "/v1/health")
    assert (status, reply["status"], reply["task"], reply["items"]) == (200, "ok", "ranking", 60)
    assert send(rating, b"", "GET", "/v1/health")[1]["scale"] == [1, 5]


def test_the_examples_of_the_description_get_the_documented_reply(ranking, rating):
    for api in (ranking, rating):
        status, description = send(api, b"", "GET", "/v1/openapi.json")
        assert status == 200 and description["openapi"] == "3.1.0"
        post = description["paths"]["/v1/recommend"]["post"]
        examples = post["requestBody"]["content"]["application/json"]["examples"]
        replies = {name: send(api, example["value"]) for name, example in examples.items()}
        assert {status for status, _ in replies.values()} == {200}
        documented = post["responses"]["200"]["content"]["application/json"]["example"]
        assert replies["taste"][1] == documented and not documented["popular"]


def test_every_object_of_the_description_forbids_other_properties(ranking):
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
def test_values_at_the_limits_are_accepted(ranking, body):
    status, reply = send(ranking, body)
    assert status == 200, reply


# Refusals

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
    ({"dislikes": [LONG]}, 422, "dislikes", "1 to 300 characters"),
    ({"likes": ["a"] * 1001}, 422, "likes", "at most 1,000"),
    ({"likes": ["   "]}, 422, "likes", "is not in the catalogue"),
    ({"likes": ["Film 01"], "dislikes": ["film 01"]}, 422, "dislikes", "Choose one"),
    ({"ratings": []}, 422, "ratings", "must be an object"), ({"ratings": {"Film 01": 1}}, 422, "ratings", "no stars"),
    ({"n": 0}, 422, "n", "from 1 to 100"), ({"n": 101}, 422, "n", "n is 101"), ({"n": -1}, 422, "n", "-1"),
    ({"n": 1.5}, 422, "n", "1.5"), ({"n": True}, 422, "n", "true"), ({"n": "10"}, 422, "n", '"10"'),
    ({"n": None}, 422, "n", "null"), ({"n": 10**29}, 422, "n", "100000"), ({"n": 1e300}, 422, "n", "whole number"),
    ({"adventurous": 1.01}, 422, "adventurous", "from -1 to 1"), ({"adventurous": False}, 422, "adventurous", "false"),
    ({"adventurous": "1"}, 422, "adventurous", "number"), ({"timed": 1}, 422, "timed", "true or false"),
    ({"timed": None}, 422, "timed", "null"), ({"unknown": "keep"}, 422, "unknown", '"refuse" or "skip"'),
    ({"only": []}, 422, "only", "names no item"), ({"only": ["No"]}, 422, "only", "is not in the catalogue"),
    ({"only": ["No"], "unknown": "skip"}, 422, "only", "names no item"), ({"only": "A"}, 422, "only", "list of"),
    ({"only": ["Film 01"], "likes": ["Film 01"]}, 422, "only", "Nothing is left"),
    ({"only": ["Film 01"], "exclude": ["Film 01"]}, 422, "only", "Nothing is left"),
    ({"exclude": TITLES}, 422, "exclude", "Nothing is left"), ({"exclude": [LONG]}, 422, "exclude", "1 to 300"),
    ({"genres": ["Dramma"]}, 422, "genres", 'Did you mean "Drama"?'), ({"genres": []}, 422, "genres", "1 to 100"),
    ({"genres": ["Drama"], "only": ["Film 00"]}, 422, "only", "Nothing is left"),
    ({"unknown": ["skip"]}, 422, "unknown", '"refuse" or "skip"'), ({"unknown": {}}, 422, "unknown", "{}"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "status", "field", "part"), BODIES, ids=range(len(BODIES)))
def test_a_wrong_body_is_refused_with_a_reason(ranking, body, status, field, part):
    reply_status, reply = send(ranking, body)
    assert (reply_status, part in reply["error"]) == (status, True), reply
    assert field is None or reply["field"] == field
    assert "x" * 81 not in reply["error"] + str(reply["field"]) and len(reply["error"]) < 400


@pytest.mark.parametrize(
    ("kind", "accepted"),
    [
        ("application/json", True), ("Application/JSON; charset=UTF-8", True),
        ('application/json;charset="utf-8"', True),
        (None, False), ("", False), ("text/plain", False), ("application/x-www-form-urlencoded", False),
        ("application/json; charset=latin-1", False), ("application/jsonx", False), ("multipart/form-data", False),
    ],
)  # fmt: skip
def test_only_json_is_accepted(ranking, kind, accepted):
    status, reply = send(ranking, {}, kind=kind)
    assert status == (200 if accepted else 415)
    assert accepted or (reply["field"] == "Content-Type" and "application/json" in reply["error"])


@pytest.mark.parametrize(
    "query",
    [
        "start=-1", "limit=0", "limit=1001", "start=1e3", "start=", "start=0&start=0", "start=%D9%A3", "q=film",
        "start=9999999999", "&".join(f"a{n}=1" for n in range(20)),
    ],
)  # fmt: skip
def test_wrong_query_parameters_are_refused(ranking, query):
    assert send(ranking, b"", "GET", f"/v1/items?{query}")[0] == 422


def test_errors_repeat_what_was_sent(ranking):
    wrong = send(ranking, b"", "GET", "/v1/items?start=-1")[1]
    assert (
        wrong["error"].startswith('start is "-1"; start must be a whole number from 0 to ')
        and wrong["field"] == "start"
    )
    broken = send(ranking, b'{"likes": ["A')[1]["error"]
    assert broken.startswith("The body cannot be read as JSON: unterminated string starting at line 1, column 12.")
    name = send(ranking, {"x" * 10_000: 1})[1]["error"]
    assert name.startswith(f'"{"x" * 79}…" is not a field.') and len(name) < 300


def test_other_addresses_get_404_and_other_methods_405(ranking):
    for target in ("/v1/", "/v1/recommend/", "/v1//health", "/v1/health%2f", "/v1/../v1/health"):
        status, reply = send(ranking, b"", "GET", target)
        assert status == 404 and "/v1/recommend" in reply["error"]
    for method, target in (
        ("GET", "/v1/recommend"), ("HEAD", "/v1/recommend"), ("POST", "/v1/items"), ("DELETE", "/v1/health"),
        ("OPTIONS", "/v1/recommend"), ("TRACE", "/v1/openapi.json"),
    ):  # fmt: skip
        assert send(ranking, b"", method, target)[0] == 405
    assert ranking.answer("HEAD", "/v1/health", None, b"").status == 200


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(TITLES),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)
bodies = st.dictionaries(st.sampled_from([*must_be(RecommendRequest), "other"]), values, max_size=5)


@settings(max_examples=300)
@given(bodies)
def test_any_json_gets_a_documented_status(ranking, body):
    assert send(ranking, json.dumps(body).encode())[0] in (200, 400, 422)


@settings(max_examples=300)
@given(st.binary(max_size=60) | st.text().map(str.encode))
def test_any_bytes_get_a_documented_status(ranking, body):
    assert send(ranking, body)[0] in (200, 400, 422)


@pytest.mark.parametrize(
    "body",
    [
        b"{" + b",".join(b'"%05d":1' % n for n in [*range(5900), 0]) + b"}",
        json.dumps({"likes": [f"{n} no {' ' * 40}" for n in range(1000)], "unknown": "skip"}).encode(),
        json.dumps({"likes": [" " * 200 + "(1994)x"] * 300}).encode(), b"[" + b"[]," * 20_000 + b"[]]",
        b'{"n": 0.' + b"1" * 60_000 + b"}", b'{"likes": ["' + b"\\u0041" * 10_000 + b'"]}',
    ],
)  # fmt: skip
def test_the_slowest_bodies_within_the_limit_take_less_than_a_second(ranking, body):
    assert len(body) <= MAX_BODY
    start = time.process_time()
    assert send(ranking, body)[0] in (200, 400, 422)
    assert time.process_time() - start < 1.0
