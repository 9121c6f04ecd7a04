"""The Flower ClientApp's handler on a node: answers the server's orders and the messages of secure sums.

Flower starts a process for every message, and three of the four messages of a secure sum need no numbers. So modules
that import torch are imported where they are used.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from flwr.app import Context, Message
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key, Stage

from fedtaste.errors import FedtasteError, ProtocolError
from fedtaste.flower.answered_rounds import node_store, record_masked, record_unmasked
from fedtaste.flower.counters import Counters, add_counters
from fedtaste.flower.messages import (
    Order,
    Refusal,
    TrainReport,
    pack_content,
    parse_message,
    unpack_content,
    unpack_request,
)
from fedtaste.flower.secagg import ClearValues, Integers, is_secure, secure_reply
from fedtaste.text import printable

if TYPE_CHECKING:
    from fedtaste.flower.node import LoadNodeData


def adds_noise(settings: Mapping[str, object]) -> bool:
    """Whether a run of these settings may add noise, read without the modules that need torch."""
    wire = str(settings.get("wire", ""))
    return settings.get("epsilon") is not None or "noise" in wire or "local" in wire


def answer(message: Message, context: Context, load: LoadNodeData | None) -> Message:
    """The reply to any message of the server; `load` as in `fedtaste.flower.client_app`."""
    if is_secure(message):
        return _answer_secure(message, context, load)
    from fedtaste.flower.node import Node

    node, began = Node(context.node_config, load), time.perf_counter()
    try:
        text, blob = unpack_content(message)
        order = parse_message(Order, text)
    except ValueError as error:
        problem = f"{node.name} received an order that this fedtaste does not know ({error})."
        return Message(pack_content(Refusal(error=problem)), reply_to=message)
    reply, answered = node.answer(order, blob)
    if isinstance(reply, Refusal):
        print(printable(reply.error), flush=True)  # noqa: T201 (the node's log, for its operator)
    counted = Counters(
        orders={order.action: 1},
        up_bytes=len(reply.model_dump_json()) + len(answered),
        down_bytes=len(text) + len(blob),
        seconds=round(time.perf_counter() - began, 3),
        refused={node.refused_because: 1} if isinstance(reply, Refusal) else {},
    )
    if isinstance(reply, TrainReport):
        noisy = adds_noise(order.settings)
        people = {} if noisy else {"people": reply.answered, "refused": dict(reply.refused)}
        counted = counted.model_copy(update={"rounds": 1} | people)
    _count(context, counted)
    return Message(pack_content(reply, answered), reply_to=message)


def _count(context: Context, counted: Counters) -> None:
    with contextlib.suppress(FedtasteError):  # without a store nothing is counted
        add_counters(node_store(context.node_config), counted)


def _answer_secure(message: Message, context: Context, load: LoadNodeData | None) -> Message:
    """Answer one of the four messages of a secure sum."""
    store, began = node_store(context.node_config), time.perf_counter()
    if message.content.config_records[RECORD_KEY_CONFIGS].get(Key.STAGE) == Stage.UNMASK:
        record_unmasked(store)

    def vector(request: bytes) -> tuple[Integers, ClearValues]:
        """This node's numbers in the sum, and its counts, which travel in clear."""
        from fedtaste.flower.node import Node

        order, blob = unpack_request(request)
        if order.action != "train":
            raise ProtocolError("Secure sums are for training rounds only; the server asked for something else.")
        node = Node(context.node_config, load)
        try:
            record_masked(store, order)
            integers, report = node.train_secure(order, blob)
        except FedtasteError as error:
            print(printable(f"{node.name}: {error}"), flush=True)  # noqa: T201 (the node's log; the server gets the same words)
            raise
        return integers, {"json": report.model_dump_json()}

    reply = secure_reply(message, context, vector)
    _count(context, Counters(orders={"secure": 1}, seconds=round(time.perf_counter() - began, 3)))
    return reply
