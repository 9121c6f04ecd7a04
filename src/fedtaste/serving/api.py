"""The API of `fedtaste serve --api`, without HTTP itself: from method, address and body to a status and JSON.

    GET  /v1/openapi.json    the description that openapi.py writes for this catalogue
    GET  /v1/health          that the server runs, and with which model
    GET  /v1/items           the catalogue, in pages
    POST /v1/recommend       the best items for somebody, from what they like
    POST /v1/similar         the items that are most similar to one item

There is no search: what a person types would stand in an address, and proxies write addresses into their logs. The
catalogue is public, so clients search in a copy of their own. Nothing is stored or logged between two requests.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Container, Iterable
from typing import NamedTuple, TypeVar
from urllib.parse import parse_qsl

from pydantic import ValidationError

from fedtaste import __version__
from fedtaste.serving.bundle_recommender import BundleRecommender
from fedtaste.serving.item_lists import Filter, ItemListError
from fedtaste.serving.openapi import (
    MAX_PAGE,
    MUST_BE,
    SIMILAR_MUST_BE,
    CatalogueItem,
    Error,
    Health,
    Page,
    RecommendRequest,
    SimilarRequest,
    describe,
)
from fedtaste.serving.recommendation import Json, JsonModel
from fedtaste.text import did_you_mean

Request = TypeVar("Request", bound=JsonModel)
MAX_BODY = 64 * 1024
MAX_DIGITS = 30
ECHO = 80  # characters of a wrong value that an error may repeat
ROUTES = {
    "/v1/openapi.json": "GET",
    "/v1/health": "GET",
    "/v1/items": "GET",
    "/v1/recommend": "POST",
    "/v1/similar": "POST",
}


class Answer(NamedTuple):
    status: int
    body: Json
    headers: dict[str, str] = {}


class Refused(Exception):
    """A request that cannot be answered: the status, the reason, and the field at fault."""

    def __init__(self, status: int, reason: str, field: str | None = None, **headers: str) -> None:
        super().__init__(reason)
        self.status, self.field, self.headers = status, field, headers

    def answer(self) -> Answer:
        return Answer(self.status, Error(error=str(self), field=self.field).dump(), self.headers)


class Api:
    """Answers requests about one bundle; `answer` may be called by many threads."""

    def __init__(self, recommender: BundleRecommender) -> None:
        self.recommender = recommender
        manifest = recommender.bundle.manifest
        health = Health(
            status="ok",
            fedtaste=__version__,
            name=manifest.name,
            method=manifest.method,
            task=recommender.task,
            items=manifest.items,
            scale=recommender.scale,
        )
        self.health = health.dump()
        self.description = describe(recommender, health, self._items(0, 2))

    def answer(self, method: str, target: str, content_type: str | None, body: bytes) -> Answer:
        """`target` is a path with its query; every mistake in a request becomes an answer with a sentence."""
        try:
            return Answer(200, self._route(method, target, content_type, body))
        except Refused as refused:
            return refused.answer()

    def _route(self, method: str, target: str, content_type: str | None, body: bytes) -> Json:
        path, _, query = target.partition("?")
        allowed = ROUTES.get(path)
        if allowed is None:
            raise Refused(404, f"{quote(path)} is not an address of this API. There are: {', '.join(ROUTES)}.")
        if method != allowed and not (method == "HEAD" and allowed == "GET"):
            allow = allowed + ", HEAD" * (allowed == "GET")
            raise Refused(405, f"{path} takes {allowed}, got {cut(method)}.", Allow=allow)
        if path == "/v1/recommend":
            return self.recommend(parse_body(content_type, body))
        if path == "/v1/similar":
            return self.similar(parse_body(content_type, body))
        if path == "/v1/items":
            return self.page(query)
        return self.health if path == "/v1/health" else self.description

    def page(self, query: str) -> Json:
        parameters = parse_query(query)
        start = parse_count(parameters.get("start", "0"), "start", 0, 999_999_999)
        limit = parse_count(parameters.get("limit", "100"), "limit", 1, MAX_PAGE)
        items = self._items(start, start + limit)
        return Page(items=items, start=start, total=self.recommender.bundle.manifest.items).dump()

    def _items(self, start: int, end: int) -> tuple[CatalogueItem, ...]:
        items = self.recommender.bundle.items
        rows = zip(items.names[start:end], items.titles[start:end], items.genres[start:end])
        return tuple(
            CatalogueItem(item=name, title=title, genres=tuple(items.genre_names[at] for at in genres))
            for name, title, genres in rows
        )

    def recommend(self, body: Json) -> Json:
        """The answer to a JSON object; 422 where a value does not fit."""
        request = check_request(body, self.recommender)
        unknown = self._unknown_titles(request)
        try:
            answer = self.recommender.recommend(
                [title for title in request.likes if title not in unknown],
                dislikes=[title for title in request.dislikes if title not in unknown],
                ratings={title: value for title, value in request.ratings.items() if title not in unknown} or None,
                n=request.n,
                adventurous=request.adventurous,
                timed=request.timed,
                filter=filter_of(request, unknown),
            )
        except ItemListError as error:
            raise Refused(422, str(error), error.argument) from None
        return answer.model_copy(update={"unknown": tuple(unknown)}).dump()

    def similar(self, body: Json) -> Json:
        """The answer to a JSON object; 422 where a value does not fit, or the item is unknown."""
        request = parse_request(SimilarRequest, body, SIMILAR_MUST_BE)
        try:
            return self.recommender.similar(request.item, request.n).dump()
        except ItemListError as error:
            raise Refused(422, str(error), error.argument) from None

    def _unknown_titles(self, request: RecommendRequest) -> dict[str, None]:
        """The titles that name no item, or several, each once; refuses the first unless the request skips them."""
        unknown: dict[str, None] = {}
        lookup = self.recommender.titles
        for field in ("likes", "dislikes", "ratings", "only", "exclude"):
            titles: Iterable[str] = getattr(request, field) or ()
            missing = [title for title in titles if lookup.get(title) is None]
            if missing and request.unknown == "refuse":
                hint = 'Or send "unknown": "skip" to leave such titles out.'
                raise Refused(422, f"{lookup.not_found(missing[0])} {hint}", field)
            unknown |= dict.fromkeys(missing)
        return unknown


def cut(text: str) -> str:
    return text if len(text) <= ECHO else text[: ECHO - 1] + "…"


def quote(value: object) -> str:
    """A value as JSON, cut where it is long."""
    return cut(json.dumps(value, ensure_ascii=False))


# From bytes to values


def parse_body(content_type: str | None, body: bytes) -> Json:
    """The JSON object of a body: strict, so that two readers of it cannot disagree."""
    if not re.fullmatch(r'application/json(\s*;\s*charset="?utf-8"?)?', (content_type or "").strip().lower()):
        got = f"is {quote(content_type)}" if content_type else "is missing"
        raise Refused(415, f"Content-Type {got}; it must be application/json, in UTF-8.", "Content-Type")
    if len(body) > MAX_BODY:
        raise too_large(len(body))
    try:
        value = json.loads(
            body.decode("utf-8"),
            object_pairs_hook=_unique,
            parse_constant=_no_constant,
            parse_int=_int,
            parse_float=_float,
        )
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        raise _not_json("a text holds half of a surrogate pair") from None
    except UnicodeDecodeError as error:
        raise _not_json(f"byte {error.start + 1} of it is not UTF-8") from None
    except RecursionError:
        raise _not_json("it is nested hundreds of levels deep") from None
    except json.JSONDecodeError as error:
        raise _not_json(f"{error.msg.lower()} at line {error.lineno}, column {error.colno}") from None
    if not isinstance(value, dict):
        raise Refused(422, f'The body is {quote(value)}; it must be an object, as in {{"likes": ["A title"]}}.', "body")
    return value


def too_large(size: int | None) -> Refused:
    got = "more" if size is None else f"{size:,} bytes"
    return Refused(413, f"The body has {got}; at most {MAX_BODY:,} bytes are read. Send fewer titles.", "body")


def _not_json(why: str) -> Refused:
    example = '{"likes": ["A title"]}'
    return Refused(400, f"The body cannot be read as JSON: {why}. Send an object, as in {example}.", "body")


def _unique(pairs: list[tuple[str, object]]) -> Json:
    if len(dict(pairs)) < len(pairs):
        twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise _not_json(f"the name {quote(twice)} is there twice")
    return dict(pairs)


def _no_constant(text: str) -> float:
    raise _not_json(f"{text} is not a number in JSON")


def _int(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise _not_json(f"a number has {len(text):,} digits, and at most {MAX_DIGITS} are read")
    return int(text)


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise _not_json(f"the number {cut(text)} is too large")
    return int(value) if value.is_integer() else value  # JSON has one kind of number: 10.0 is a whole one


def parse_query(query: str) -> dict[str, str]:
    """The parameters of /v1/items."""
    try:
        pairs = parse_qsl(query, keep_blank_values=True, max_num_fields=10)
    except ValueError:
        raise Refused(422, "There are more than 10 parameters; give start and limit only.") from None
    for at, (name, _) in enumerate(pairs):
        if name not in ("start", "limit"):
            raise Refused(422, did_you_mean(cut(name), ("start", "limit"), "parameter"), cut(name))
        if name in dict(pairs[:at]):
            raise Refused(422, f"{name} is there twice; give it once.", name)
    return dict(pairs)


def parse_count(text: str, field: str, low: int, high: int) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text) or not low <= int(text) <= high:
        raise Refused(422, f"{field} is {quote(text)}; it must be a whole number from {low} to {high:,}.", field)
    return int(text)


# From values to a request


def parse_request(model: type[Request], body: Json, must_be: dict[str, str]) -> Request:
    """The body as this model; 422 with a sentence where a field is unknown or its value does not fit."""
    for name in body:
        if name not in must_be:
            raise Refused(422, did_you_mean(cut(name), tuple(must_be), "field"), cut(name))
    try:
        return model.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        field = str(first["loc"][0])
        if first["type"] == "missing":
            raise Refused(422, f"{field} is missing; it must be {must_be[field]}.", field) from None
        verb = "is" if len(first["loc"]) == 1 else "has"  # has: an entry of the field is wrong
        raise Refused(
            422, f"{field} {verb} {quote(first['input'])}; {field} must be {must_be[field]}.", field
        ) from None


def filter_of(request: RecommendRequest, unknown: Container[str]) -> Filter | None:
    """The filter of a request, without unknown titles; None where the request has none."""
    if request.only is None and request.genres is None and not request.exclude:
        return None
    only = None if request.only is None else [title for title in request.only if title not in unknown]
    return Filter(only, [title for title in request.exclude if title not in unknown], request.genres)


def check_request(body: Json, recommender: BundleRecommender) -> RecommendRequest:
    """A typed request; 422 with a sentence where a value does not fit."""
    request = parse_request(RecommendRequest, body, MUST_BE)
    if request.ratings and recommender.task != "ratings":
        message = "This model ranks and knows no stars. Send titles in likes and dislikes, and no ratings."
        raise Refused(422, message, "ratings")
    low, high = recommender.scale
    for title, stars in request.ratings.items():
        if not low <= stars <= high:
            message = f"ratings of {quote(title)} is {stars:g}; it must be a number from {low:g} to {high:g}."
            raise Refused(422, message, "ratings")
    return request
