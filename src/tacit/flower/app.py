"""The node's ClientApp: every message is read, answered by a Node, and sent back; also where sums are secure.

Every message starts a process, and three of the four messages of a secure sum need no numbers: so what is heavy (torch)
is imported where it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key, Stage

from ..errors import ProtocolError, TacitError
from .messages import Order, Refusal, content, read, words_of
from .seals import Seals
from .secagg import Aux, Whole, is_secure, secure_reply

if TYPE_CHECKING:
    from .node import Make


def node_app(make: Make | None = None) -> ClientApp:
    app = ClientApp()

    def answer(message: Message, context: Context) -> Message:
        if is_secure(message):
            return sealed_reply(message, context, make)
        from .node import Node

        node = Node(context.node_config, make)
        try:
            words, blob = words_of(message)
            order = read(Order, words)
        except ValueError as error:
            return _reply(Refusal(error=f"{node.name} was asked what this tacit does not know ({error})."), message)
        if isinstance(order, Refusal):
            return _reply(Refusal(error=f"{node.name} was asked nothing."), message)
        told, out = node.answer(order, blob)
        if isinstance(told, Refusal):
            print(told.error, flush=True)  # noqa: T201 (the node's log: who can mend it reads that)
        return _reply(told, message, out)

    app.train()(answer)
    app.evaluate()(answer)
    app.query()(answer)
    return app


def _reply(told: object, message: Message, blob: bytes = b"") -> Message:
    return Message(content(told, blob), reply_to=message)  # type: ignore[arg-type]


def sealed_reply(message: Message, context: Context, make: Make | None) -> Message:
    """One of the four messages of a secure sum."""
    seals = Seals(str(context.node_config.get("store") or ""))
    if message.content.config_records[RECORD_KEY_CONFIGS].get(Key.STAGE) == Stage.UNMASK:
        seals.open()  # from now on the sum may be known
    return secure_reply(message, context, lambda ask: sealed(context, make, seals, ask), 64)


def sealed(context: Context, make: Make | None, seals: Seals, ask: bytes) -> tuple[Whole, Aux]:
    """This node's words in a secure sum, and its counts, which go in clear."""
    from .node import Node

    length = int.from_bytes(ask[:4], "big")
    order = read(Order, ask[4 : 4 + length].decode())
    if isinstance(order, Refusal) or order.what != "train":
        raise ProtocolError("A secure sum of something else than a round was asked for.")
    node = Node(context.node_config, make)
    try:
        seals.close(order.run, order.phase, order.round)
        words, told = node.sealed(order, ask[4 + length :])
    except TacitError as error:
        print(f"{node.name}: {error}", flush=True)  # noqa: T201 (the node's log; the server gets the same words)
        raise
    return words, {"words": told.model_dump_json()}
