"""The Flower ClientApp of a node: parse each message, let a Node answer it, send the reply; also for secure sums.

Flower starts a process for every message, and three of the four messages of a secure sum need no numbers. So modules
that import torch are imported where they are used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key, Stage
from pydantic import BaseModel

from fedtaste.errors import FedtasteError, ProtocolError
from fedtaste.flower.answered_rounds import SecureRounds
from fedtaste.flower.messages import Order, Refusal, pack_content, parse_message, unpack_content
from fedtaste.flower.secagg import ClearValues, Integers, is_secure, secure_reply

if TYPE_CHECKING:
    from fedtaste.flower.node import LoadNodeData


def make_client_app(load: LoadNodeData | None = None) -> ClientApp:
    """The app of a node; see `fedtaste.flower.client_app`."""
    app = ClientApp()

    def answer(message: Message, context: Context) -> Message:
        return _answer(message, context, load)

    app.train()(answer)
    app.evaluate()(answer)
    app.query()(answer)
    return app


def _answer(message: Message, context: Context, load: LoadNodeData | None) -> Message:
    if is_secure(message):
        return _answer_secure(message, context, load)
    from fedtaste.flower.node import Node

    node = Node(context.node_config, load)
    try:
        text, blob = unpack_content(message)
        order = parse_message(Order, text)
        if isinstance(order, Refusal):
            raise ValueError("a refusal in place of an order")
    except ValueError as error:
        return _reply(
            Refusal(error=f"{node.name} received an order that this fedtaste does not know ({error})."), message
        )
    reply, blob = node.answer(order, blob)
    if isinstance(reply, Refusal):
        print(reply.error, flush=True)  # noqa: T201 (the node's log, for its operator)
    return _reply(reply, message, blob)


def _reply(reply: BaseModel, message: Message, blob: bytes = b"") -> Message:
    return Message(pack_content(reply, blob), reply_to=message)


def _answer_secure(message: Message, context: Context, load: LoadNodeData | None) -> Message:
    """Answer one of the four messages of a secure sum."""
    rounds = SecureRounds(str(context.node_config.get("store") or ""))
    if message.content.config_records[RECORD_KEY_CONFIGS].get(Key.STAGE) == Stage.UNMASK:
        rounds.unmask()

    def vector(request: bytes) -> tuple[Integers, ClearValues]:
        """This node's numbers in the sum, and its counts, which travel in clear."""
        from fedtaste.flower.node import Node

        length = int.from_bytes(request[:4], "big")
        order = parse_message(Order, request[4 : 4 + length].decode())
        if isinstance(order, Refusal) or order.action != "train":
            raise ProtocolError("Secure sums are for training rounds only; the server asked for something else.")
        node = Node(context.node_config, load)
        try:
            rounds.mask(order)
            integers, report = node.train_secure(order, request[4 + length :])
        except FedtasteError as error:
            print(f"{node.name}: {error}", flush=True)  # noqa: T201 (the node's log; the server gets the same words)
            raise
        return integers, {"json": report.model_dump_json()}

    return secure_reply(message, context, vector)
