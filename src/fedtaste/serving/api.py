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
from collections.abc import Container, Iterable, Mapping
from datetime import UTC, datetime
from typing import NamedTuple, TypeVar
from urllib.parse import parse_qsl

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from fedtaste import __version__
from fedtaste.serving.bundle import sha256
from fedtaste.serving.bundle_recommender import BundleRecommender
from fedtaste.serving.item_lists import Filter, ItemListError
from fedtaste.serving.openapi import (
    ROUTES,
    CatalogueItem,
    Error,
    Health,
    Page,
    PageRequest,
    RecommendRequest,
    SimilarRequest,
    describe,
    must_be,
    recommend_request,
)
from fedtaste.serving.recommendation import Json, JsonModel, Recommendations, SimilarItems
from fedtaste.text import cut, did_you_mean

Request = TypeVar("Request", bound=JsonModel)
MAX_BODY = 64 * 1024
MAX_DIGITS = 30


class Answer(NamedTuple):
    status: int
    content: bytes  # JSON in UTF-8
    headers: dict[str, str] = {}

    @property
    def body(self) -> Json:
        return dict(json.loads(self.content))


class Refused(Exception):
    """A request that cannot be answered: the status, the reason, and the field at fault."""

    def __init__(self, status: int, reason: str, field: str | None = None, **headers: str) -> None:
        super().__init__(reason)
        self.status, self.field, self.headers = status, field, headers

    def answer(self) -> Answer:
        return Answer(self.status, Error(error=str(self), field=self.field).encode(), self.headers)


class Model(NamedTuple):
    """Which model is served: its id, when it was written, and since when it answers."""

    id: str
    date: datetime
    loaded: datetime


class Api:
    """Answers requests about one bundle; `answer` may be called by many threads."""

    def __init__(self, recommender: BundleRecommender, model: Model | None = None) -> None:
        self.recommender = recommender
        manifest = recommender.bundle.manifest
        self.model = model or describe_model(recommender)
        self.health = Health(
            status="ok",
            fedtaste=__version__,
            model=self.model.id,
            date=f"{self.model.date:%Y-%m-%dT%H:%M:%SZ}",
            build=manifest.fedtaste,
            loaded=f"{self.model.loaded:%Y-%m-%dT%H:%M:%SZ}",
            name=manifest.name,
            method=manifest.method,
            task=recommender.task,
            items=manifest.items,
            scale=recommender.scale,
        )
        self.description = describe(recommender, self.health, self._items(0, 2))
        self._described = json.dumps(self.description, allow_nan=False).encode()
        self._request = recommend_request(*recommender.scale)

    def answer(self, method: str, target: str, content_type: str | None, body: bytes) -> Answer:
        """`target` is a path with its query; every mistake in a request becomes an answer with a sentence."""
        try:
            return Answer(200, self._route(method, target, content_type, body))
        except Refused as refused:
            return refused.answer()

    def _route(self, method: str, target: str, content_type: str | None, body: bytes) -> bytes:
        path, _, query = target.partition("?")
        route = ROUTES.get(path)
        if route is None:
            raise Refused(404, f"{quote(path)} is not an address of this API. There are: {', '.join(ROUTES)}.")
        if method != route.method and not (method == "HEAD" and route.method == "GET"):
            allow = route.method + ", HEAD" * (route.method == "GET")
            raise Refused(405, f"{path} takes {route.method}, got {cut(method)}.", Allow=allow)
        if path == "/v1/recommend":
            return self.recommend(parse_body(content_type, body)).encode()
        if path == "/v1/similar":
            return self.similar(parse_body(content_type, body)).encode()
        if path == "/v1/items":
            return self.page(query).encode()
        return self.health.encode() if path == "/v1/health" else self._described

    def page(self, query: str) -> Page:
        request = parse_request(PageRequest, dict(parse_query(query)), "parameter")
        items = self._items(request.start, request.start + request.limit)
        return Page(items=items, start=request.start, total=self.recommender.bundle.manifest.items)

    def _items(self, start: int, end: int) -> tuple[CatalogueItem, ...]:
        items = self.recommender.bundle.items
        rows = zip(items.names[start:end], items.titles[start:end], items.genres[start:end])
        return tuple(
            CatalogueItem(item=name, title=title, genres=tuple(items.genre_names[at] for at in genres))
            for name, title, genres in rows
        )

    def recommend(self, body: Json) -> Recommendations:
        """The answer to a JSON object; 422 where a value does not fit."""
        if body.get("ratings") and self.recommender.task != "ratings":
            message = "This model ranks and knows no stars. Send titles in likes and dislikes, and no ratings."
            raise Refused(422, message, "ratings")
        request = parse_request(self._request, body)
        unknown = self._unknown_titles(request) if request.unknown == "skip" else {}
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
            self._unknown_titles(request)  # an unknown title is refused with a hint
            raise Refused(422, str(error), error.argument) from None
        return answer.model_copy(update={"unknown": tuple(unknown)})

    def similar(self, body: Json) -> SimilarItems:
        """The answer to a JSON object; 422 where a value does not fit, or the item is unknown."""
        request = parse_request(SimilarRequest, body)
        try:
            return self.recommender.similar(request.item, request.n)
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
        if b"\\u" in body:  # only an escape can write half of a surrogate pair
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        raise _not_json("a text holds half of a surrogate pair") from None
    except UnicodeDecodeError as error:
        raise _not_json(f"byte {error.start + 1} of it is not UTF-8") from None
    except RecursionError:
        raise _not_json("it is nested hundreds of levels deep") from None
    except json.JSONDecodeError as error:
        what = error.msg.lower().removesuffix(" at")
        raise _not_json(f"{what} at line {error.lineno}, column {error.colno}") from None
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
    """The parameters of a query, each once."""
    try:
        pairs = parse_qsl(query, keep_blank_values=True, max_num_fields=10)
    except ValueError:
        raise Refused(422, "There are more than 10 parameters; give start and limit only.") from None
    for at, (name, _) in enumerate(pairs):
        if name in dict(pairs[:at]):
            raise Refused(422, f"{cut(name)} is there twice; give it once.", cut(name))
    return dict(pairs)


# From values to a request


def parse_request(model: type[Request], values: Mapping[str, object], kind: str = "field") -> Request:
    """The values as this model; 422 with a sentence where a field is unknown or its value does not fit."""
    fields = must_be(model)
    for name in values:
        if name not in fields:
            raise Refused(422, did_you_mean(name, tuple(fields), kind), cut(name))
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise _unfit(error.errors(include_url=False)[0], fields) from None


def _unfit(first: ErrorDetails, fields: dict[str, str]) -> Refused:
    """The refusal for the first error of pydantic."""
    field, *inner = first["loc"]
    bounds = first.get("ctx", {})
    if first["type"] == "missing":
        return Refused(422, f"{field} is missing; it must be {fields[str(field)]}.", str(field))
    if field == "ratings" and inner and {"ge", "le"} & {*bounds}:
        limit = f"at least {bounds['ge']:g}" if "ge" in bounds else f"at most {bounds['le']:g}"
        got = f"ratings of {quote(inner[0])} is {first['input']:g}"
        return Refused(422, f"{got}; it must be {limit}, as /v1/health says in scale.", "ratings")
    verb = "has" if inner else "is"  # has: an entry of the field is wrong
    message = f"{field} {verb} {quote(first['input'])}; {field} must be {fields[str(field)]}."
    return Refused(422, message, str(field))


def filter_of(request: RecommendRequest, unknown: Container[str]) -> Filter | None:
    """The filter of a request, without unknown titles; None where the request has none."""
    if request.only is None and request.genres is None and not request.exclude:
        return None
    only = None if request.only is None else [title for title in request.only if title not in unknown]
    return Filter(only, [title for title in request.exclude if title not in unknown], request.genres)


def describe_model(recommender: BundleRecommender, date: datetime | None = None) -> Model:
    """The id of a model, which depends on its content alone, and its date (the present, if it is not known)."""
    now = datetime.now(UTC)
    return Model(sha256(recommender.files.get("manifest.json", b""))[:16], date or now, now)
