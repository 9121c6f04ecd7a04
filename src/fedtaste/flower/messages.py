"""Messages between the server and a node, inside Flower's messages: a line of JSON and a blob of tensors.

    action     blob of the order      reply
    hello      the catalogue          Hello; blob: members of each phase, hashes of people
    train      a Download             TrainReport; blob: one Upload, the sum over the cohort's people on this node
    validate   a Download             MetricReport: sums of metrics (evaluation/metric_sums.py)
    judge      a Download             MetricReport of seen and of new people, once at the end; blob: counts by item
A node that cannot follow an order replies with a Refusal that gives the reason to its operator. Both sides parse with
pydantic models that reject anything else. Nothing here imports torch: most messages of a secure sum do without it.
"""

from __future__ import annotations

import json
from typing import Annotated, Literal, TypeVar

from flwr.app import ConfigRecord, Message, RecordDict
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from fedtaste.result_part import JsonObject
from fedtaste.text import CONTROL

Action = Literal["hello", "train", "validate", "judge"]
MESSAGE_TYPES: dict[str, str] = {"hello": "query", "train": "train", "validate": "evaluate", "judge": "evaluate"}
RECORD = "fedtaste"
MAX_JSON_BYTES = 2**20  # longer content belongs into the blob
Count = Annotated[int, Field(ge=0, lt=2**31)]
Positive = Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)]


def single_line(text: object) -> str:
    """Text from another party, made safe to print: one line of at most 500 characters, no terminal control codes."""
    return CONTROL.sub(" ", str(text))[:500]


Line = Annotated[str, AfterValidator(single_line)]
MetricSums = JsonObject  # {"kind", "people", "sums", "lists"} of evaluation/metric_sums.py
T = TypeVar("T", bound=BaseModel)


class Content(BaseModel):
    """The JSON of a message: anything that its fields do not describe is rejected."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Order(Content):
    """What the server asks of a node."""

    action: Action
    version: str  # of fedtaste
    run: int = Field(ge=0, lt=2**63)
    settings: dict[str, object]
    catalogue: str = Field(pattern="^[a-z0-9]{1,64}$")  # hash of the item names, in order
    facts: dict[str, object] = {}
    index: Count = 0  # of the node in the federation; it stands in the header of the node's uploads
    phase: Literal["", "search", "final"] = ""
    round: Count = 0
    base: Count = 0  # rounds of this phase that count for this node: which private parameters to continue from
    cohort: list[Count] | None = None  # person numbers of this node; None: all who learn
    key: str = Field("", pattern="^([0-9a-f]{64})?$")  # for random rounding in runs without noise, so that a simulation
    # computes the same numbers; in runs with noise a node draws from keys of its own
    expected_people: Positive = 0.0  # size of the round's cohort over all nodes
    noise_share: float = Field(0.0, ge=0, le=1, allow_inf_nan=False)  # part of the noise variance that this node adds
    nodes: Count = 1  # that take part in this round
    passes: int = Field(0, ge=0, le=1000)


class Hello(Content):
    """A node's description of itself. The blob holds int64 `search` and `final` (who learn) and `person_hashes`."""

    version: Line
    name: Line
    own: bool  # the node numbers its people itself; otherwise they have the numbers of a data set that was cut
    facts: dict[str, object]
    people: Count
    newcomers: Count
    judged: Count
    choosers: Count
    interactions: Count
    notes: list[Line] = []


class TrainReport(Content):
    """Counts of a node's round. The blob is the encoded Upload; it is empty if no client had a valid update."""

    answered: Count
    refused: dict[str, Count] = {}
    seconds: float = 0.0


class MetricReport(Content):
    """Sums of metrics. `too_few` names the parts that the node withholds because they cover too few people. The blob is
    empty, or holds int64 counts by item: in how many lists it is (`seen`, `new`), how many people have it (`taken`)."""

    seen: MetricSums | None = None
    new: MetricSums | None = None
    too_few: list[Literal["seen", "new"]] = []
    gradients: tuple[Positive, Positive] | None = None


class Refusal(Content):
    """Why a node does not follow an order."""

    error: Line


def pack_content(model: BaseModel, blob: bytes = b"") -> RecordDict:
    """The content of a Flower message."""
    return RecordDict({RECORD: ConfigRecord({"json": model.model_dump_json(), "blob": blob})})


def unpack_content(message: Message) -> tuple[str, bytes]:
    """The JSON and the blob of a message from another party. Raises ValueError if it has none."""
    record = message.content.config_records.get(RECORD)
    text, blob = (None, None) if record is None else (record.get("json"), record.get("blob"))
    if not isinstance(text, str) or not isinstance(blob, bytes) or len(text) > MAX_JSON_BYTES:
        raise ValueError("not a message of fedtaste")
    return text, blob


def order_message(order: Order, node_id: int, blob: bytes = b"", ttl: float | None = None) -> Message:
    """An order as a Flower message to one node."""
    return Message(pack_content(order, blob), node_id, MESSAGE_TYPES[order.action], ttl=ttl)


def pack_request(order: Order, blob: bytes) -> bytes:
    """An order with its blob as the request of a secure sum."""
    text = order.model_dump_json().encode()
    return len(text).to_bytes(4, "big") + text + blob


def unpack_request(request: bytes) -> tuple[Order, bytes]:
    """The order and the blob of a request. Raises ValueError if it is not valid."""
    end = 4 + int.from_bytes(request[:4], "big")
    return parse_message(Order, request[4:end].decode()), request[end:]


def parse_message(model: type[T], text: str) -> T:
    """Parse what the other side sent. Raises ValueError if it is not valid."""
    try:
        return model.model_validate(json.loads(text))
    except (ValidationError, RecursionError) as error:
        raise ValueError(f"not a valid {model.__name__}: {str(error).splitlines()[0]}") from error


def parse_reply(model: type[T], text: str) -> T | Refusal:
    """Parse a node's reply, which may be a refusal. Raises ValueError if it is neither."""
    try:
        return parse_message(Refusal, text)
    except ValueError:
        return parse_message(model, text)
