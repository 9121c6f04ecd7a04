"""Request and answer types of the HTTP API, and its OpenAPI description with examples from one catalogue.

The schemas are generated from these types. The examples are real titles of the catalogue, and real answers to them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import ConfigDict, Field
from pydantic.json_schema import JsonSchemaMode, models_json_schema

from fedtaste import __version__
from fedtaste.serving.bundle_recommender import BundleRecommender
from fedtaste.serving.recommendation import Json, JsonModel, Recommendations, SimilarItems

MAX_ENTRIES, MAX_TITLE = 1000, 300  # entries of a list, characters of a title
MAX_ITEMS, MAX_PAGE, MAX_GENRES = 100, 1000, 100  # recommendations, items of a page, genres of a filter
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
Title = Annotated[str, Field(min_length=1, max_length=MAX_TITLE)]
TitleList = Annotated[list[Title], Field(max_length=MAX_ENTRIES)]
TITLES = f'a list of titles, as in ["A title"]: at most {MAX_ENTRIES:,}, each a text of 1 to {MAX_TITLE} characters'
MUST_BE = {  # of every field of POST /v1/recommend, for errors
    "likes": TITLES,
    "dislikes": TITLES,
    "ratings": (
        f'an object as in {{"A title": 5}}: at most {MAX_ENTRIES:,} numbers, titles of 1 to {MAX_TITLE} characters'
    ),
    "n": f"a whole number from 1 to {MAX_ITEMS}",
    "adventurous": "a number from -1 to 1",
    "timed": "true or false",
    "unknown": '"refuse" or "skip"',
    "only": TITLES,
    "exclude": TITLES,
    "genres": f'a list of genres, as in ["Drama"]: 1 to {MAX_GENRES}, as GET /v1/items names them',
}
SIMILAR_MUST_BE = {  # of every field of POST /v1/similar
    "item": f"a title or the name of an item, a text of 1 to {MAX_TITLE} characters",
    "n": MUST_BE["n"],
}


class RecommendRequest(JsonModel):
    """The body of POST /v1/recommend."""

    model_config = ConfigDict(strict=True)
    likes: TitleList = Field(default=[], description="Titles, or names of items, oldest first.")
    dislikes: TitleList = Field(default=[], description="For a model that ranks: what should not come.")
    ratings: dict[Title, float] = Field(
        default={}, max_length=MAX_ENTRIES, description="For a model of ratings: stars by title."
    )
    n: int = Field(default=10, ge=1, le=MAX_ITEMS)
    adventurous: float = Field(default=0, ge=-1, le=1, description="-1 leans towards what is popular, 1 away from it.")
    timed: bool = Field(default=False, description="Whether the order is one of time.")
    unknown: Literal["refuse", "skip"] = Field(
        default="refuse", description="What happens to a title that is not in the catalogue."
    )
    only: TitleList | None = Field(default=None, description="Titles, or names of items: nothing else is listed.")
    exclude: TitleList = Field(default=[], description="Titles, or names of items, that are not listed.")
    genres: list[Title] | None = Field(
        default=None, min_length=1, max_length=MAX_GENRES, description="Only items of one of these genres are listed."
    )


class SimilarRequest(JsonModel):
    """The body of POST /v1/similar."""

    model_config = ConfigDict(strict=True)
    item: Title = Field(description="A title, or the name of an item.")
    n: int = Field(default=10, ge=1, le=MAX_ITEMS)


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
    """The answer of /v1/health."""

    status: Literal["ok"]
    fedtaste: str
    name: str
    method: str
    task: Literal["ranking", "ratings"]
    items: int = Field(ge=0)
    scale: tuple[float, ...] = Field(min_length=2, max_length=2)


class Error(JsonModel):
    """Every refusal."""

    error: str = Field(description="What is wrong, what is needed, and what to do.")
    field: str | None = Field(description="The field, parameter or header at fault.")


def describe(recommender: BundleRecommender, health: Health, first: tuple[CatalogueItem, ...]) -> Json:
    """OpenAPI 3.1. `first` are items to show as examples."""
    rated = recommender.task == "ratings"
    description = "Nothing of a request is stored or logged, and no address holds what a person typed. "
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
            "/v1/openapi.json": {"get": _operation("openapi", "This description.", {"type": "object"})},
            "/v1/health": {
                "get": _operation(
                    "health", "That the server runs, and with which model.", _ref("Health"), health.dump()
                )
            },
            "/v1/items": {"get": _items_operation(Page(items=first, start=0, total=health.items))},
            "/v1/recommend": {"post": _recommend_operation(recommender)},
            "/v1/similar": {"post": _similar_operation(recommender)},
        },
        "components": {"schemas": _schemas(*recommender.scale)},
    }


def _items_operation(example: Page) -> Json:
    summary = "The catalogue, in pages and in its own order."
    return _operation("items", summary, _ref("Page"), example.dump(), (422,)) | {
        "parameters": [
            _parameter("start", "How many items to skip.", 0, 999_999_999, 0),
            _parameter("limit", "How many items at most.", 1, MAX_PAGE, 100),
        ]
    }


def _recommend_operation(recommender: BundleRecommender) -> Json:
    popular = [item.title for item in recommender.recommend(n=2).items]
    if recommender.task == "ratings":
        taste: Json = {"ratings": dict.fromkeys(popular, recommender.scale[1])}
        answer = recommender.recommend(ratings=dict.fromkeys(popular, recommender.scale[1]), n=2)
    else:
        taste = {"likes": popular}
        answer = recommender.recommend(popular, n=2)
    summary = "The best items for somebody, best first. Without likes: what most people take."
    examples = {
        "taste": {"summary": "From a taste", "value": taste | {"n": 2}},
        "nothing": {"summary": "From nothing", "value": {"n": 3}},
        "skip": {
            "summary": "Titles that may be unknown",
            "value": {"likes": [popular[0], "No such title"], "unknown": "skip"},
        },
        "filter": {"summary": "Without some titles", "value": {"likes": popular[:1], "exclude": popular[1:]}},
    }
    example = answer.model_copy(update={"unknown": ()}).dump()
    return _operation("recommend", summary, _ref("Recommendations"), example, (411, 415, 422)) | {
        "requestBody": _body("RecommendRequest", examples)
    }


def _similar_operation(recommender: BundleRecommender) -> Json:
    (first,) = recommender.recommend(n=1).items
    summary = "The items that are most similar to one item, by the cosine of their vectors."
    examples = {"title": {"summary": "By its title", "value": {"item": first.title, "n": 2}}}
    example = recommender.similar(first.title, n=2).dump()
    return _operation("similar", summary, _ref("SimilarItems"), example, (411, 415, 422)) | {
        "requestBody": _body("SimilarRequest", examples)
    }


def _body(schema: str, examples: Mapping[str, object]) -> Json:
    return {"required": True, "content": {"application/json": {"schema": _ref(schema), "examples": examples}}}


def _operation(
    name: str, summary: str, schema: Json, example: Json | None = None, errors: tuple[int, ...] = ()
) -> Json:
    content = {"schema": schema} | ({"example": example} if example else {})
    responses: Json = {"200": {"description": summary, "content": {"application/json": content}}}
    responses |= {str(status): _failure(status) for status in sorted({*ALWAYS, *errors})}
    return {"operationId": name, "summary": summary, "responses": responses}


def _failure(status: int) -> Json:
    wait = {"Retry-After": {"description": "Seconds to wait.", "schema": {"type": "integer", "minimum": 1}}}
    content = {"application/json": {"schema": _ref("Error")}}
    failure: Json = {"description": ERRORS[status], "content": content}
    return failure | {"headers": wait} if status == 503 else failure


def _parameter(name: str, description: str, low: int, high: int, default: int) -> Json:
    schema: Json = {"type": "integer", "minimum": low, "maximum": high, "default": default}
    return {"name": name, "in": "query", "required": False, "description": description, "schema": schema}


def _ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


def _schemas(low: float, high: float) -> Json:
    """The schemas of the request and of all answers; ratings are bounded by the scale of the model."""
    models: list[tuple[type[JsonModel], JsonSchemaMode]] = [
        (model, "validation") for model in (RecommendRequest, SimilarRequest)
    ]
    models += [(model, "serialization") for model in (Recommendations, SimilarItems, Page, Health, Error)]
    schemas = models_json_schema(models, ref_template="#/components/schemas/{model}")[1]["$defs"]
    schemas["RecommendRequest"]["properties"]["ratings"]["additionalProperties"] |= {"minimum": low, "maximum": high}
    for name in ("Recommendations", "SimilarItems"):
        schemas[name]["properties"]["items"]["maxItems"] = MAX_ITEMS
    return dict(schemas)
