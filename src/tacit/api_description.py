"""The OpenAPI description of the API, for one catalogue: its examples are real titles, and real answers to them."""

from __future__ import annotations

from typing import Any

from . import __version__

MOST, LONGEST = 1000, 300  # entries of a list, characters of a title
MOST_ITEMS, PAGE = 100, 1000  # recommendations, items of a page
FIELDS = ("likes", "dislikes", "ratings", "n", "adventurous", "timed", "unknown")
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


def describe(recommender: Any, health: dict[str, Any], some: list[dict[str, Any]]) -> dict[str, Any]:
    """OpenAPI 3.1. `health` is the answer of /v1/health, `some` the first items of the catalogue."""
    popular = [item["title"] for item in recommender.recommend(n=2)["items"]]
    rated = recommender.task == "ratings"
    low, high = recommender.scale
    taste = {"ratings": dict.fromkeys(popular, high)} if rated else {"likes": popular}
    answer = recommender.recommend(**taste, n=2) | {"unknown": []}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": f"tacit: recommendations from {health['name']}",
            "version": __version__,
            "summary": "Recommendations from shared parameters and what somebody likes.",
            "description": "Nothing of a request is stored or logged, and no address holds what a person typed. "
            + ("This model knows ratings: send ratings, or likes." if rated else "Send likes, and dislikes."),
        },
        "servers": [{"url": "/"}],
        "paths": {
            "/v1/openapi.json": {"get": operation("openapi", "This description.", {"type": "object"})},
            "/v1/health": {
                "get": operation("health", "That the server runs, and with which model.", ref("Health"), health)
            },
            "/v1/items": {
                "get": operation(
                    "items", "The catalogue, in pages and in its own order.", ref("Page"),
                    {"items": some, "start": 0, "total": health["items"]}, (422,),
                    parameters=[
                        parameter("start", "How many items to skip.", 0, 999_999_999, 0),
                        parameter("limit", "How many items at most.", 1, PAGE, 100),
                    ],
                )
            },
            "/v1/recommend": {
                "post": operation(
                    "recommend", "The best items for somebody, best first. Without likes: what most people take.",
                    ref("Recommended"), answer, (411, 415, 422),
                    requestBody={
                        "required": True,
                        "content": {"application/json": {"schema": ref("Wanted"), "examples": {
                            "taste": {"summary": "From a taste", "value": taste | {"n": 2}},
                            "nothing": {"summary": "From nothing", "value": {"n": 3}},
                            "skip": {"summary": "Titles that may be unknown",
                                     "value": {"likes": [popular[0], "No such title"], "unknown": "skip"}},
                        }}},
                    },
                )
            },
        },
        "components": {"schemas": schemas(low, high)},
    }  # fmt: skip


def operation(
    name: str, summary: str, schema: dict[str, Any], example: Any = None, errors: tuple[int, ...] = (), **more: Any
) -> dict[str, Any]:
    content: dict[str, Any] = {"schema": schema} | ({"example": example} if example else {})
    responses = {"200": {"description": summary, "content": {"application/json": content}}}
    responses |= {str(status): failure(status) for status in sorted({*ALWAYS, *errors})}
    return {"operationId": name, "summary": summary, "responses": responses} | more


def failure(status: int) -> dict[str, Any]:
    wait = {"Retry-After": {"description": "Seconds to wait.", "schema": {"type": "integer", "minimum": 1}}}
    content = {"application/json": {"schema": ref("Error")}}
    return {"description": ERRORS[status], "content": content} | ({"headers": wait} if status == 503 else {})


def parameter(name: str, description: str, low: int, high: int, default: int) -> dict[str, Any]:
    schema = {"type": "integer", "minimum": low, "maximum": high, "default": default}
    return {"name": name, "in": "query", "required": False, "description": description, "schema": schema}


def ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def record(properties: dict[str, Any], required: tuple[str, ...] | None = None) -> dict[str, Any]:
    """An object with these properties and no others; all of them required where nothing else is said."""
    wanted = list(properties if required is None else required)
    return {"type": "object", "additionalProperties": False, "properties": properties} | (
        {"required": wanted} if wanted else {}
    )


def schemas(low: float, high: float) -> dict[str, Any]:
    string, title = {"type": "string"}, {"type": "string", "minLength": 1, "maxLength": LONGEST}
    strings = {"type": "array", "items": string}
    titles = {"type": "array", "items": title, "maxItems": MOST, "default": []}
    count = {"type": "integer", "minimum": 0}
    return {
        "Wanted": record(
            {
                "likes": titles | {"description": "Titles, or names of items, oldest first."},
                "dislikes": titles | {"description": "For a model that ranks: what should not come."},
                "ratings": {
                    "type": "object", "maxProperties": MOST, "propertyNames": title, "default": {},
                    "additionalProperties": {"type": "number", "minimum": low, "maximum": high},
                    "description": "For a model of ratings: stars by title.",
                },
                "n": {"type": "integer", "minimum": 1, "maximum": MOST_ITEMS, "default": 10},
                "adventurous": {
                    "type": "number", "minimum": -1, "maximum": 1, "default": 0,
                    "description": "-1 leans towards what is popular, 1 away from it.",
                },
                "timed": {"type": "boolean", "default": False, "description": "Whether the order is one of time."},
                "unknown": {
                    "type": "string", "enum": ["refuse", "skip"], "default": "refuse",
                    "description": "What happens to a title that is not in the catalogue.",
                },
            },
            (),
        ),
        "Recommended": record(
            {
                "items": {
                    "type": "array", "maxItems": MOST_ITEMS,
                    "items": record({"item": string, "title": string, "score": {"type": "number"}, "because": strings}),
                },
                "from": strings | {"description": "The titles that were understood."},
                "popular": {"type": "boolean", "description": "Whether nothing was known: what most people take."},
                "unknown": strings | {"description": "What was skipped, as it was sent."},
            }
        ),
        "Page": record(
            {
                "items": {"type": "array", "items": record({"item": string, "title": string, "genres": strings})},
                "start": count, "total": count,
            }
        ),
        "Health": record(
            {
                "status": {"const": "ok"}, "tacit": string, "name": string, "method": string,
                "task": {"enum": ["ranking", "ratings"]}, "items": count,
                "scale": {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2},
            }
        ),
        "Error": record(
            {
                "error": string | {"description": "What was got, what was expected, and what to do."},
                "field": {"type": ["string", "null"], "description": "The field, parameter or header at fault."},
            }
        ),
    }  # fmt: skip
