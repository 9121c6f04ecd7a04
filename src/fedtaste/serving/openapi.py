"""Request and answer types of the HTTP API, its routes, and its OpenAPI description with examples from one catalogue.

The description is generated from the types that validate requests. The examples are real titles of the catalogue, and
real answers to them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Literal, NamedTuple

from annotated_types import Ge, Le
from pydantic import BeforeValidator, ConfigDict, Field, create_model
from pydantic.json_schema import JsonSchemaMode, models_json_schema

from fedtaste import __version__
from fedtaste.serving.bundle_recommender import BundleRecommender
from fedtaste.serving.recommendation import Json, JsonModel, Recommendations, SimilarItems

MAX_ENTRIES, MAX_TITLE = 1000, 300  # entries of a list, characters of a title
MAX_ITEMS, MAX_PAGE, MAX_GENRES = 100, 1000, 100  # recommendations, items of a page, genres of a filter
MAX_START = 999_999_999
ERRORS = {
    400: "Not a request that can be read: its head or its body is malformed, or the body is not JSON.",
    408: "The request did not arrive whole in time.",
    411: "A POST without Content-Length, and not chunked.",
    413: "The body is too large.",
    415: "The body is not application/json.",
    421: "The Host is not one that this server answers for.",
    422: "The request can be read, but a value in it does not fit, or a title is not in the catalogue.",
    431: "The head of the request is too large.",
    503: "Too many requests at once.",
}
ALWAYS = (400, 408, 413, 421, 431, 503)
TITLES = f'a list of titles, as in ["A title"]: at most {MAX_ENTRIES:,}, each a text of 1 to {MAX_TITLE} characters'


@dataclass(frozen=True)
class MustBe:
    """What a field must be, in words for errors: metadata of the field of a request."""

    text: str


def whole_number(value: object) -> object:
    """Digits as a number; pydantic would also read +1, 1_0 and 1.0."""
    if not isinstance(value, str) or not re.fullmatch(r"[0-9]{1,9}", value):
        raise ValueError
    return int(value)


Title = Annotated[str, Field(min_length=1, max_length=MAX_TITLE)]
TitleList = Annotated[list[Title], Field(max_length=MAX_ENTRIES), MustBe(TITLES)]
Count = Annotated[int, Field(ge=1, le=MAX_ITEMS), MustBe(f"a whole number from 1 to {MAX_ITEMS}")]
Number = Annotated[int, BeforeValidator(whole_number)]


class RecommendRequest(JsonModel):
    """The body of POST /v1/recommend."""

    model_config = ConfigDict(strict=True)
    likes: TitleList = Field(default_factory=list, description="Titles, or names of items, oldest first.")
    dislikes: TitleList = Field(default_factory=list, description="For a model that ranks: what should not come.")
    ratings: Annotated[
        dict[Title, float],
        MustBe(
            f'an object as in {{"A title": 5}}: at most {MAX_ENTRIES:,} numbers, titles of 1 to {MAX_TITLE} characters'
        ),
    ] = Field(default_factory=dict, max_length=MAX_ENTRIES, description="For a model of ratings: stars by title.")
    n: Count = 10
    adventurous: Annotated[float, MustBe("a number from -1 to 1")] = Field(
        default=0, ge=-1, le=1, description="-1 leans towards what is popular, 1 away from it."
    )
    timed: Annotated[bool, MustBe("true or false")] = Field(
        default=False, description="Whether the order is one of time."
    )
    unknown: Annotated[Literal["refuse", "skip"], MustBe('"refuse" or "skip"')] = Field(
        default="refuse", description="What happens to a title that is not in the catalogue."
    )
    only: Annotated[TitleList | None, MustBe(TITLES)] = Field(
        default=None, description="Titles, or names of items: nothing else is listed."
    )
    exclude: TitleList = Field(default_factory=list, description="Titles, or names of items, that are not listed.")
    genres: Annotated[
        list[Title] | None,
        MustBe(f'a list of genres, as in ["Drama"]: 1 to {MAX_GENRES}, as GET /v1/items names them'),
    ] = Field(
        default=None, min_length=1, max_length=MAX_GENRES, description="Only items of one of these genres are listed."
    )


@cache
def recommend_request(low: float, high: float) -> type[RecommendRequest]:
    """RecommendRequest with the scale of a model of ratings: it validates requests, and describes them."""
    field, rating = RecommendRequest.model_fields["ratings"], Annotated[float, Ge(low), Le(high)]
    about: object = Field(default_factory=dict, max_length=MAX_ENTRIES, description=field.description)
    ratings = Annotated[dict[Title, rating], MustBe(must_be(RecommendRequest)["ratings"])]  # type: ignore[valid-type]
    return create_model(
        "RecommendRequest", __base__=RecommendRequest, __doc__=RecommendRequest.__doc__, ratings=(ratings, about)
    )


class SimilarRequest(JsonModel):
    """The body of POST /v1/similar."""

    model_config = ConfigDict(strict=True)
    item: Annotated[Title, MustBe(f"a title or the name of an item, a text of 1 to {MAX_TITLE} characters")] = Field(
        description="A title, or the name of an item."
    )
    n: Count = 10


class PageRequest(JsonModel):
    """The query of GET /v1/items."""

    start: Annotated[Number, MustBe(f"a whole number from 0 to {MAX_START:,}")] = Field(
        default=0, ge=0, le=MAX_START, description="How many items to skip."
    )
    limit: Annotated[Number, MustBe(f"a whole number from 1 to {MAX_PAGE:,}")] = Field(
        default=100, ge=1, le=MAX_PAGE, description="How many items at most."
    )


@cache
def must_be(model: type[JsonModel]) -> dict[str, str]:
    """What every field of a request must be, in words."""
    texts = {
        name: [m.text for m in field.metadata if isinstance(m, MustBe)] for name, field in model.model_fields.items()
    }
    return {name: text[-1] for name, text in texts.items()}


class CatalogueItem(JsonModel):
    """One item of the catalogue."""

    item: str
    title: str
    genres: tuple[str, ...]


class Page(JsonModel):
    """A page of the catalogue."""

    items: tuple[CatalogueItem, ...]
    start: int = Field(ge=0)
    total: int = Field(ge=0)


class Health(JsonModel):
    """The answer of /health and /v1/health."""

    status: Literal["ok"]
    fedtaste: str = Field(description="The version of the server.")
    model: str = Field(description="The id of the model: the beginning of the hash of manifest.json.")
    date: str = Field(description="When the model was written, in UTC.")
    build: str = Field(description="The version of fedtaste that exported the model.")
    loaded: str = Field(description="Since when the server answers with this model, in UTC.")
    name: str
    method: str
    task: Literal["ranking", "ratings"]
    items: int = Field(ge=0)
    scale: tuple[float, ...] = Field(min_length=2, max_length=2)


class Error(JsonModel):
    """Every refusal."""

    error: str = Field(description="What is wrong, what is needed, and what to do.")
    field: str | None = Field(description="The field, parameter or header at fault.")


class Route(NamedTuple):
    """An address of the API: its method, the model that validates requests, and the model of its answer."""

    method: Literal["GET", "POST"]
    summary: str
    request: type[JsonModel] | None = None
    answer: type[JsonModel] | None = None


ROUTES = {
    "/v1/openapi.json": Route("GET", "This description."),
    "/v1/health": Route("GET", "That the server runs, and with which model.", None, Health),
    "/v1/items": Route("GET", "The catalogue, in pages and in its own order.", PageRequest, Page),
    "/v1/recommend": Route(
        "POST", "The best items for somebody, best first. Without likes: what most people take.",
        RecommendRequest, Recommendations,
    ),
    "/v1/similar": Route(
        "POST", "The items that are most similar to one item, by the cosine of their vectors.",
        SimilarRequest, SimilarItems,
    ),
}  # fmt: skip


def describe(recommender: BundleRecommender, health: Health, first: tuple[CatalogueItem, ...]) -> Json:
    """OpenAPI 3.1. `first` are items to show as examples."""
    rated = recommender.task == "ratings"
    description = "Nothing of a request is stored or logged, and no address holds what a person typed. "
    taste, answer = _taste_example(recommender)
    (best,) = recommender.recommend(n=1).items
    examples: dict[str, Json] = {  # of the answers
        "/v1/health": health.dump(),
        "/v1/items": Page(items=first, start=0, total=health.items).dump(),
        "/v1/recommend": answer,
        "/v1/similar": recommender.similar(best.title, n=2).dump(),
    }
    bodies: dict[str, Json] = {
        "/v1/recommend": taste,
        "/v1/similar": {"title": {"summary": "By its title", "value": {"item": best.title, "n": 2}}},
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": f"fedtaste: recommendations from {health.name}",
            "version": __version__,
            "summary": "Recommendations from shared parameters and what somebody likes.",
            "description": description
            + ("This model knows ratings: send ratings, or likes." if rated else "Send likes, and dislikes."),
        },
        "servers": [{"url": "/"}],
        "paths": {
            path: {route.method.lower(): _operation(path, route, examples.get(path), bodies.get(path, {}))}
            for path, route in ROUTES.items()
        },
        "components": {"schemas": _schemas(*recommender.scale)},
    }


def _taste_example(recommender: BundleRecommender) -> tuple[Json, Json]:
    """(examples of requests for recommendations, the answer to the first)."""
    popular = [item.title for item in recommender.recommend(n=2).items]
    if recommender.task == "ratings":
        taste: Json = {"ratings": dict.fromkeys(popular, recommender.scale[1])}
        answer = recommender.recommend(ratings=dict.fromkeys(popular, recommender.scale[1]), n=2)
    else:
        taste = {"likes": popular}
        answer = recommender.recommend(popular, n=2)
    examples: Json = {
        "taste": {"summary": "From a taste", "value": taste | {"n": 2}},
        "nothing": {"summary": "From nothing", "value": {"n": 3}},
        "skip": {
            "summary": "Titles that may be unknown",
            "value": {"likes": [popular[0], "No such title"], "unknown": "skip"},
        },
        "filter": {"summary": "Without some titles", "value": {"likes": popular[:1], "exclude": popular[1:]}},
    }
    return examples, answer.model_copy(update={"unknown": ()}).dump()


def _operation(path: str, route: Route, example: Json | None, bodies: Mapping[str, object]) -> Json:
    schema = _ref(route.answer.__name__) if route.answer else {"type": "object"}
    content = {"schema": schema} | ({"example": example} if example else {})
    responses: Json = {"200": {"description": route.summary, "content": {"application/json": content}}}
    errors = {*ALWAYS, *((422,) if route.request else ()), *((411, 415) if route.method == "POST" else ())}
    responses |= {str(status): _failure(status) for status in sorted(errors)}
    operation: Json = {
        "operationId": path.split("/")[2].partition(".")[0],
        "summary": route.summary,
        "responses": responses,
    }
    if route.request and route.method == "GET":
        return operation | {"parameters": _parameters(route.request)}
    if route.request:
        body = {"application/json": {"schema": _ref(route.request.__name__), "examples": bodies}}
        return operation | {"requestBody": {"required": True, "content": body}}
    return operation


def _parameters(model: type[JsonModel]) -> list[Json]:
    """The parameters of a query, from its model."""
    properties = model.model_json_schema()["properties"]
    drop = ("title", "description")
    return [
        {"name": name, "in": "query", "required": False, "description": schema["description"],
         "schema": {key: value for key, value in schema.items() if key not in drop}}
        for name, schema in properties.items()
    ]  # fmt: skip


def _failure(status: int) -> Json:
    wait = {"Retry-After": {"description": "Seconds to wait.", "schema": {"type": "integer", "minimum": 1}}}
    content = {"application/json": {"schema": _ref("Error")}}
    failure: Json = {"description": ERRORS[status], "content": content}
    return failure | {"headers": wait} if status == 503 else failure


def _ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


def _schemas(low: float, high: float) -> Json:
    """The schemas of the requests, with the scale of the model, and of all answers."""
    requests = (recommend_request(low, high), SimilarRequest)
    models: list[tuple[type[JsonModel], JsonSchemaMode]] = [(model, "validation") for model in requests]
    models += [(model, "serialization") for model in (Recommendations, SimilarItems, Page, Health, Error)]
    schemas = models_json_schema(models, ref_template="#/components/schemas/{model}")[1]["$defs"]
    for name in ("Recommendations", "SimilarItems"):
        schemas[name]["properties"]["items"]["maxItems"] = MAX_ITEMS
    return dict(schemas)
