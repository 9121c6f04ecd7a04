"""The HTTP API of `tacit serve --api`, without the HTTP: text and bytes come in, a status and JSON go out.

    GET  /v1/openapi.json    the description that api_description.py writes for this catalogue
    GET  /v1/health          that it runs, and with which model
    GET  /v1/items           the catalogue, in pages
    POST /v1/recommend       the best items for somebody, from what they like

There is no search here: what a person types would stand in an address, and addresses are written into the logs of
proxies. The catalogue is public, so whoever wants to search in it does so in a copy of their own. Nothing is kept
between two requests, and nothing is written down.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from typing import Any, NamedTuple, Protocol
from urllib.parse import parse_qsl

from . import __version__
from .api_description import FIELDS, LONGEST, MOST, MOST_ITEMS, PAGE, describe
from .errors import DataError, TacitError, did_you_mean
from .titles import Titles

MAX_BODY = 64 * 1024
MAX_DIGITS = 30
ECHO = 80  # characters of what was got that an error may repeat
ROUTES = {"/v1/openapi.json": "GET", "/v1/health": "GET", "/v1/items": "GET", "/v1/recommend": "POST"}


class Ranker(Protocol):
    """What the API needs of a Recommender."""

    manifest: dict[str, Any]
    items: dict[str, Any]
    task: str
    scale: tuple[float, float]
    titles: Titles

    def recommend(self, *args: Any, **kwargs: Any) -> dict[str, Any]: ...


class Answer(NamedTuple):
    status: int
    body: dict[str, Any]
    headers: dict[str, str] = {}


class Refused(Exception):
    """A request that cannot be answered: a status, a sentence, and which field is at fault."""

    def __init__(self, status: int, sentence: str, field: str | None = None, **headers: str) -> None:
        super().__init__(sentence)
        self.status, self.field, self.headers = status, field, headers

    def answer(self) -> Answer:
        return Answer(self.status, {"error": str(self), "field": self.field}, self.headers)


class Api:
    """Everything that can be computed once is; `answer` may be called by many threads."""

    def __init__(self, recommender: Ranker) -> None:
        self.recommender = recommender
        names, titles, genres = (recommender.items[key] for key in ("names", "titles", "genres"))
        called = recommender.items["genre_names"]
        self.catalogue = [
            {"item": name, "title": title, "genres": [called[at] for at in of]}
            for name, title, of in zip(names, titles, genres)
        ]
        manifest = recommender.manifest
        self.health = {
            "status": "ok", "tacit": __version__, "name": manifest["name"], "method": manifest["method"],
            "task": recommender.task, "items": len(titles), "scale": list(recommender.scale),
        }  # fmt: skip
        self.description = describe(recommender, self.health, self.catalogue[:2])

    def answer(self, method: str, target: str, content_type: str | None, body: bytes) -> Answer:
        """`target` is a path with its query; every problem of the request becomes an answer with a sentence."""
        try:
            return Answer(200, self._found(method, target, content_type, body))
        except Refused as no:
            return no.answer()

    def _found(self, method: str, target: str, content_type: str | None, body: bytes) -> dict[str, Any]:
        path, _, query = target.partition("?")
        allowed = ROUTES.get(path)
        if allowed is None:
            raise Refused(404, f"{shown(path)} is not an address of this API. There are: {', '.join(ROUTES)}.")
        if method != allowed and not (method == "HEAD" and allowed == "GET"):
            raise Refused(
                405,
                f"{path} was asked with {cut(method)}; it takes {allowed}.",
                Allow=allowed + ", HEAD" * (allowed == "GET"),
            )
        if path == "/v1/recommend":
            return self.recommend(parsed(content_type, body))
        if path == "/v1/items":
            return self.page(query)
        return self.health if path == "/v1/health" else self.description

    def page(self, query: str) -> dict[str, Any]:
        given = asked(query)
        start = whole(given.get("start", "0"), "start", 0, 999_999_999)
        limit = whole(given.get("limit", "100"), "limit", 1, PAGE)
        return {"items": self.catalogue[start : start + limit], "start": start, "total": len(self.catalogue)}

    def recommend(self, wanted: dict[str, Any]) -> dict[str, Any]:
        """The answer to a valid body; 422 where a value does not fit."""
        for name in wanted:
            if name not in FIELDS:
                raise Refused(422, did_you_mean(cut(name), FIELDS, "field"), cut(name))
        likes, dislikes = (texts(wanted.get(field, []), field) for field in ("likes", "dislikes"))
        ratings = stars(wanted.get("ratings", {}), self.recommender)
        n = integer(wanted.get("n", 10))
        adventurous = number(wanted.get("adventurous", 0), "adventurous", -1, 1)
        timed, unknown = wanted.get("timed", False), wanted.get("unknown", "refuse")
        if not isinstance(timed, bool):
            raise Refused(422, f"timed is {shown(timed)}; it must be true or false.", "timed")
        if unknown not in ("refuse", "skip"):
            raise Refused(422, f'unknown is {shown(unknown)}; it must be "refuse" or "skip".', "unknown")
        left_out = self._strangers(
            {"likes": likes, "dislikes": dislikes, "ratings": [*ratings]}, refuse=unknown == "refuse"
        )
        try:
            answer = self.recommender.recommend(
                [title for title in likes if title not in left_out],
                dislikes=[title for title in dislikes if title not in left_out],
                ratings={title: value for title, value in ratings.items() if title not in left_out} or None,
                n=n, adventurous=adventurous, timed=timed,
            )  # fmt: skip
        except TacitError as error:  # likes and ratings have been looked at; what is left is about dislikes
            raise Refused(422, str(error), "dislikes") from None
        return {key: answer[key] for key in ("items", "from", "popular")} | {"unknown": list(left_out)}

    def _strangers(self, said: dict[str, list[str]], *, refuse: bool) -> dict[str, None]:
        """The titles that are not in the catalogue, each once; or, with `refuse`, a refusal of the first of them."""
        left_out: dict[str, None] = {}
        for field, titles in said.items():
            for title in titles:
                if title in left_out or self.recommender.titles.get(title) is not None:
                    continue
                if refuse:
                    try:
                        self.recommender.titles.find(title)
                    except DataError as error:
                        raise Refused(
                            422, f'{error} Or send "unknown": "skip" to leave such titles out.', field
                        ) from None
                left_out[title] = None
        return left_out


def cut(text: str) -> str:
    return text if len(text) <= ECHO else text[: ECHO - 1] + "…"


def shown(value: object) -> str:
    """A value as JSON, cut where it is long."""
    return cut(json.dumps(value, ensure_ascii=False))


# From bytes to values


def parsed(content_type: str | None, body: bytes) -> dict[str, Any]:
    """The JSON object of a body: strict, so that two readers of it cannot disagree."""
    if not re.fullmatch(r'application/json(\s*;\s*charset="?utf-8"?)?', (content_type or "").strip().lower()):
        got = f"is {shown(content_type)}" if content_type else "is missing"
        raise Refused(415, f"Content-Type {got}; it must be application/json, in UTF-8.", "Content-Type")
    if len(body) > MAX_BODY:
        raise too_large(len(body))
    try:
        value = json.loads(
            body.decode("utf-8"),
            object_pairs_hook=_once,
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
        raise Refused(422, f'The body is {shown(value)}; it must be an object, as in {{"likes": ["A title"]}}.', "body")
    return value


def too_large(size: int | None) -> Refused:
    got = "more" if size is None else f"{size:,} bytes"
    return Refused(413, f"The body has {got}; at most {MAX_BODY:,} bytes are read. Send fewer titles.", "body")


def _not_json(why: str) -> Refused:
    return Refused(
        400, f'The body cannot be read as JSON: {why}. Send an object, as in {{"likes": ["A title"]}}.', "body"
    )


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise _not_json(f"the name {shown(twice)} is there twice")
    return made


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
    return value


def asked(query: str) -> dict[str, str]:
    """The parameters of /v1/items."""
    try:
        pairs = parse_qsl(query, keep_blank_values=True, max_num_fields=10)
    except ValueError:
        raise Refused(422, "More than 10 parameters were got; there are two: start and limit.") from None
    for at, (name, _) in enumerate(pairs):
        if name not in ("start", "limit"):
            raise Refused(422, did_you_mean(cut(name), ("start", "limit"), "parameter"), cut(name))
        if name in dict(pairs[:at]):
            raise Refused(422, f"{name} was got twice; give it once.", name)
    return dict(pairs)


def whole(text: str, field: str, low: int, high: int) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text) or not low <= int(text) <= high:
        raise Refused(422, f"{field} is {shown(text)}; it must be a whole number from {low} to {high:,}.", field)
    return int(text)


# From values to what they must be


def integer(value: object) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_ITEMS:
        raise Refused(422, f"n is {shown(value)}; it must be a whole number from 1 to {MOST_ITEMS}.", "n")
    return value


def number(value: object, field: str, low: float, high: float, of: str = "") -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        what = f"{field}{of} is {shown(value)}"
        raise Refused(422, f"{what}; it must be a number from {low:g} to {high:g}.", field)
    return float(value)


def text(value: object, field: str) -> str:
    if not isinstance(value, str) or not 1 <= len(value) <= LONGEST:
        got = shown(value) + (f", {len(value):,} characters" if isinstance(value, str) and value else "")
        raise Refused(422, f"{field} has {got}; a title must be a text of 1 to {LONGEST} characters.", field)
    return value


def texts(value: object, field: str) -> list[str]:
    if not isinstance(value, list):
        raise Refused(422, f'{field} is {shown(value)}; it must be a list of titles, as in ["A title"].', field)
    if len(value) > MOST:
        raise Refused(422, f"{field} has {len(value):,} entries; at most {MOST:,} are read. Send fewer.", field)
    return [text(entry, field) for entry in value]


def stars(value: object, recommender: Ranker) -> dict[str, float]:
    if not isinstance(value, dict):
        raise Refused(422, f'ratings is {shown(value)}; it must be an object, as in {{"A title": 5}}.', "ratings")
    if len(value) > MOST:
        raise Refused(422, f"ratings has {len(value):,} entries; at most {MOST:,} are read. Send fewer.", "ratings")
    if value and recommender.task != "ratings":
        raise Refused(
            422, "This model ranks and knows no stars. Send titles in likes and dislikes, and no ratings.", "ratings"
        )
    low, high = recommender.scale
    return {
        text(title, "ratings"): number(got, "ratings", low, high, f" of {shown(title)}") for title, got in value.items()
    }
