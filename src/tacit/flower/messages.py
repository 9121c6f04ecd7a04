"""What the server and a node say to each other, inside Flower's messages: a line of JSON and a blob of tensors.

    hello      who are you?            blob: the catalogue          -> facts, members (numbers), marks of people
    train      one round               blob: a Download             -> one Upload, the sum over those who were asked
    validate   how good is it?         blob: a Download             -> sums of metrics (evaluation/tally.py)
    judge      once, at the end        blob: a Download             -> the same, of seen and of new people
A node that cannot do what it is asked says why (`error`), in words for whoever runs it. Both sides read what comes in
with a model that refuses anything else.
"""

from __future__ import annotations

import json
import math
import re
from typing import Annotated, Any, Literal, TypeVar

from flwr.app import ConfigRecord, Message, RecordDict
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

KINDS = {"hello": "query", "train": "train", "validate": "evaluate", "judge": "evaluate"}
RECORD = "tacit"
LONGEST = 2**20  # bytes of JSON; whatever is longer than that is a blob
Whole = Annotated[int, Field(ge=0, lt=2**31)]
Positive = Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)]
Finite = Annotated[float, Field(ge=-1e12, le=1e12, allow_inf_nan=False)]
CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def line(text: object) -> str:
    """Words from another party as they may be shown: one line, no signs that steer a terminal."""
    return CONTROL.sub(" ", str(text))[:500]


Line = Annotated[str, AfterValidator(line)]
T = TypeVar("T", bound=BaseModel)


class FactsWords(BaseModel):
    """tasks.Facts as they cross; nothing that a task of ours could not have."""

    model_config = ConfigDict(extra="forbid", strict=True)

    kind: Literal["ranking", "ratings", "regression", "labels"]
    items: Whole = 0
    timed: bool = False
    scale: Annotated[list[Finite], Field(min_length=2, max_length=2)]
    width: int = Field(0, ge=0, le=10**7)
    shape: Annotated[list[Annotated[int, Field(ge=1, le=10**7)]], Field(max_length=4)]
    classes: int = Field(0, ge=0, le=10**6)
    people: Whole = 0
    feature_count: int = Field(0, ge=0, le=10**4)

    @model_validator(mode="after")
    def small(self) -> FactsWords:
        if math.prod(self.shape) > 10**7 or self.scale[0] > self.scale[1]:
            raise ValueError("a shape or a scale that no data have")
        return self


class Order(BaseModel):
    """What the server asks of a node."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    what: Literal["hello", "train", "validate", "judge"]
    version: str  # of tacit
    run: int = Field(ge=0, lt=2**63)
    settings: dict[str, Any]
    catalogue: str = Field(pattern="^[a-z0-9]{1,64}$")  # a hash of the items' names, in order
    facts: dict[str, Any] = {}
    place: Whole = 0  # the node's, among the federation's: its messages bear it
    phase: Literal["", "search", "final"] = ""
    round: Whole = 0
    base: Whole = 0  # rounds that this node's people have behind them, as the server counts: where to go on from
    asked: list[Whole] | None = None  # the node's own numbers; None: all who learn
    key: str = Field("", pattern="^([0-9a-f]{64})?$")  # for random rounding in runs without noise, so that a simulation
    # gives the same numbers; with noise a node draws from keys of its own
    people: Positive = 0.0  # whom the round expects, everywhere
    shares: float = Field(0.0, ge=0, le=1, allow_inf_nan=False)  # of the noise's variance, that this node adds
    nodes: Whole = 1  # that are asked in this round
    passes: int = Field(0, ge=0, le=1000)


class Hello(BaseModel):
    """A node about itself. The blob has int64 `search` and `final` (who learn), `marks` (of people)."""

    model_config = ConfigDict(extra="forbid")

    version: Line
    name: Line
    own: bool  # people are numbered by the node itself; otherwise they have the numbers of a data set that was cut
    facts: dict[str, Any]
    people: Whole
    newcomers: Whole
    judged: Whole
    choosers: Whole
    interactions: Whole
    notes: list[Line] = []


class Trained(BaseModel):
    """A node's round. The blob is the encoded Upload, and empty where nobody had anything sound to say."""

    model_config = ConfigDict(extra="forbid")

    answered: int
    refused: dict[str, int] = {}
    seconds: float = 0.0


class Told(BaseModel):
    """Sums of metrics. `too_few`: parts that are left out, because the node does not tell metrics of so few people."""

    model_config = ConfigDict(extra="forbid")

    seen: dict[str, Any] | None = None
    new: dict[str, Any] | None = None
    too_few: list[Literal["seen", "new"]] = []
    gradients: tuple[Positive, Positive] | None = None


class Refusal(BaseModel):
    """Why a node does not do what it was asked."""

    model_config = ConfigDict(extra="forbid")

    error: str


def content(words: BaseModel, blob: bytes = b"") -> RecordDict:
    return RecordDict({RECORD: ConfigRecord({"words": words.model_dump_json(), "blob": blob})})


def ask(order: Order, node: int, blob: bytes = b"", ttl: float | None = None) -> Message:
    return Message(content(order, blob), node, KINDS[order.what], ttl=ttl)


def words_of(message: Message) -> tuple[str, bytes]:
    """(the JSON, the blob) of a message from another party: ValueError where it has none."""
    record = message.content.config_records.get(RECORD)
    words, blob = (None, None) if record is None else (record.get("words"), record.get("blob"))
    if not isinstance(words, str) or not isinstance(blob, bytes) or len(words) > LONGEST:
        raise ValueError("not a message of tacit")
    return words, blob


def read(kind: type[T], words: str) -> T | Refusal:
    """What the other side said, or why it did not: ValueError where it is neither."""
    try:
        found = json.loads(words)
        if isinstance(found, dict) and set(found) == {"error"}:
            return Refusal(error=line(found["error"]))
        return kind.model_validate(found)
    except (ValidationError, RecursionError) as error:
        raise ValueError(f"not a {kind.__name__}: {str(error).splitlines()[0]}") from error
