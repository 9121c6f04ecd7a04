"""A Flower grid in one process, for tests: real ClientApps, real bytes, and faults on order.

    grid = LocalGrid({1: (app, context), 2: (app, context)})
    grid.send_and_receive([Message(content, dst_node_id=1, message_type="train")], timeout=5)
Every message goes through Flower's own objects (`deflate`, `inflate`), as it does over HTTP, and a node's Context is
kept as bytes between messages, as if every one were handled in a new process. What a node raises comes back as the
error that Flower's runner makes of it.

Faults. `grid.dead`: nodes that get nothing and say nothing. `grid.offline`: nodes for whom the SuperLink answers with
an error. `deliver(ask)` False: this message is lost on the way to the node. `hook(ask, reply)`: what arrives in place
of the reply: None (nothing), a message (changed or not), `Late(seconds, message)`, or a list of these (duplicates).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import NamedTuple, cast

from flwr.app import Context, Error, Message, RecordDict
from flwr.app.message import make_message
from flwr.app.metadata import Metadata
from flwr.clientapp import ClientApp
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.common.serde import context_from_proto, context_to_proto
from flwr.proto.message_pb2 import Context as ProtoContext
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, no_object_id_recompute
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity


class Late(NamedTuple):
    """A message that arrives so many seconds after it was asked for."""

    seconds: float
    message: Message


Arrival = Message | Late
Hook = Callable[[Message, Message], Arrival | Iterable[Arrival] | None]


def new_context(node: int, run_id: int = 1, **node_config: bool | float | int | str) -> Context:
    return Context(run_id=run_id, node_id=node, node_config=node_config, state=RecordDict(), run_config={})


class LocalGrid(Grid):
    """Nodes by id, each an app and its Context. `asks` and `replies` hold all that went to nodes and to the server;
    `down_bytes` and `up_bytes` their sizes on the wire, without HTTP."""

    def __init__(
        self,
        apps: dict[int, tuple[ClientApp, Context]],
        *,
        hook: Hook | None = None,
        deliver: Callable[[Message], bool] | None = None,
        run_id: int = 1,
    ) -> None:
        self.apps = {node: app for node, (app, _) in apps.items()}
        self._contexts = {node: context_to_proto(context).SerializeToString() for node, (_, context) in apps.items()}
        self.hook, self.deliver = hook, deliver
        self.dead: set[int] = set()
        self.offline: set[int] = set()
        self.asks: list[Message] = []
        self.replies: list[Message] = []
        self.down_bytes = self.up_bytes = 0
        self._waiting: dict[str, list[tuple[float, Message]]] = {}
        self._run = Run.create_empty(run_id)
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = run_id, SUPERLINK_NODE_ID, 1

    # Nodes

    def join(self, node: int, app: ClientApp, context: Context) -> None:
        """A node that comes later, or comes back with a new Context."""
        self.apps[node] = app
        self._contexts[node] = context_to_proto(context).SerializeToString()
        self.dead.discard(node)
        self.offline.discard(node)

    def restart(self, node: int) -> None:
        """The node's process died and is back: what was in its Context.state is gone."""
        context = self.context(node)
        context.state = RecordDict()
        self.join(node, self.apps[node], context)

    def context(self, node: int) -> Context:
        """A copy of what the node keeps."""
        return context_from_proto(ProtoContext.FromString(self._contexts[node]))

    # Flower's interface

    def set_run(self, run: Run) -> None:
        self._run = run

    @property
    def run(self) -> Run:
        return self._run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        return [node for node in self.apps if node not in self.dead | self.offline]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Ids, in order. Nodes work one after the other, before this returns."""
        ids = []
        for message in messages:
            ask, size = wired(message)
            message.metadata.__dict__["_message_id"] = ask.metadata.message_id
            self.down_bytes += size
            self.asks.append(ask)
            ids.append(ask.metadata.message_id)
            start = time.monotonic()
            self._waiting[ids[-1]] = [(start + late.seconds, late.message) for late in self._replies(ask)]
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        now, here = time.monotonic(), []
        for name in message_ids:
            waiting = self._waiting.get(name, [])
            here += [message for due, message in waiting if due <= now]
            self._waiting[name] = [(due, message) for due, message in waiting if due > now]
        self.replies += here
        return here

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Nobody answers and no timeout: an error here, where Flower would hang."""
        open_ids, end, here = set(self.push_messages(messages)), time.monotonic() + (timeout or 0.0), []
        while True:
            here += self.pull_messages(sorted(open_ids))
            open_ids -= {reply.metadata.reply_to_message_id for reply in here}
            if not open_ids or (timeout is not None and time.monotonic() >= end):
                return here
            if timeout is None and not any(self._waiting[name] for name in open_ids):
                raise AssertionError(f"{len(open_ids)} messages will never be answered, and no timeout was given.")
            time.sleep(0.005)

    # A node at work

    def _replies(self, ask: Message) -> list[Late]:
        node = ask.metadata.dst_node_id
        if node in self.offline or node not in self.apps:
            return [Late(0.0, _unavailable(ask))]
        if node in self.dead or (self.deliver is not None and not self.deliver(ask)):
            return []
        received, _ = wired(ask)
        context = self.context(node)
        TaskIdentity.node_id = node
        try:
            reply = self.apps[node](received, context)
        except Exception as error:  # as Flower's runner does
            text = f"{type(error)}:<'{error}'>"
            reply = Message(Error(code=ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason=text), reply_to=ask)
        finally:
            TaskIdentity.node_id = SUPERLINK_NODE_ID
            self._contexts[node] = context_to_proto(context).SerializeToString()
        arriving = reply if self.hook is None else self.hook(ask, reply)
        several = [arriving] if isinstance(arriving, Message | Late) else list(arriving or [])
        out = []
        for one in several:
            late = one if isinstance(one, Late) else Late(0.0, one)
            message, size = wired(late.message)
            self.up_bytes += size
            out.append(Late(late.seconds, message))
        return out


def wired(message: Message) -> tuple[Message, int]:
    """The message as it comes out at the other end, and its size in bytes."""
    with no_object_id_recompute():
        objects = {name: item.deflate() for name, item in get_all_nested_objects(message).items()}
        size, name = sum(map(len, objects.values())), message.object_id
    out = cast(Message, inflate_object_from_contents(name, objects))
    out.metadata.__dict__["_message_id"] = name
    return out, size


def _unavailable(ask: Message) -> Message:
    """What a SuperLink says in place of a node that it does not hear any more. It does not say which node."""
    metadata = Metadata(
        run_id=ask.metadata.run_id,
        message_id="",
        src_node_id=SUPERLINK_NODE_ID,
        dst_node_id=SUPERLINK_NODE_ID,
        reply_to_message_id=ask.metadata.message_id,
        group_id=ask.metadata.group_id,
        message_type=ask.metadata.message_type,
        created_at=time.time(),
        ttl=ask.metadata.ttl,
    )
    return wired(make_message(metadata, error=Error(code=ErrorCode.NODE_UNAVAILABLE, reason="Node Unavailable")))[0]
