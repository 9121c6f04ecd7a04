"""The node's ClientApp: every message is read, answered by a Node, and sent back; also where sums are secure."""

from __future__ import annotations

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from .messages import Order, Refusal, content, read, words_of
from .node import Make, Node
from .secagg import Aux, Whole, is_secure, secure_reply


def node_app(make: Make | None = None) -> ClientApp:
    app = ClientApp()

    def answer(message: Message, context: Context) -> Message:
        node = Node(context.node_config, make)
        if is_secure(message):
            return secure_reply(message, context, lambda ask: sealed(node, ask), 64)
        try:
            words, blob = words_of(message)
            order = read(Order, words)
        except ValueError as error:
            return _reply(
                Refusal(error=f"{node.name} was asked what this tacit does not know ({error})."), b"", message
            )
        if isinstance(order, Refusal):
            return _reply(Refusal(error=f"{node.name} was asked nothing."), b"", message)
        told, out = node.answer(order, blob)
        if isinstance(told, Refusal):
            print(told.error, flush=True)  # noqa: T201 (the node's log: who can mend it reads that)
        return _reply(told, out, message)

    app.train()(answer)
    app.evaluate()(answer)
    app.query()(answer)
    return app


def _reply(told: object, blob: bytes, message: Message) -> Message:
    return Message(content(told, blob), reply_to=message)  # type: ignore[arg-type]


def sealed(node: Node, ask: bytes) -> tuple[Whole, Aux]:
    """This node's words in a secure sum, and its counts, which go in clear."""
    length = int.from_bytes(ask[:4], "big")
    order = read(Order, ask[4 : 4 + length].decode())
    if isinstance(order, Refusal) or order.what != "train":
        raise ValueError("a secure sum of something else than a round was asked for")
    words, told = node.sealed(order, ask[4 + length :])
    return words, {"words": told.model_dump_json()}
