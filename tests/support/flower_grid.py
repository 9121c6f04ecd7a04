"""A Flower grid in one process, for tests: real ClientApps, messages as bytes, and faults that a test switches on.

    grid = LocalGrid({1: (app, context), 2: (app, context)})
    grid.send_and_receive([Message(content, dst_node_id=1, message_type="train")], timeout=5)
Every message goes through Flower's own objects (`deflate`, `inflate`), as it does over HTTP. A node's Context is kept
as bytes between messages, as if a new process handled each of them. An exception of a node comes back as the error
that Flower's runner makes of it.

Faults. Nodes in `grid.dead` receive nothing and reply nothing. For nodes in `grid.offline` the SuperLink replies with
an error. If `deliver(ask)` is False, the message is lost on the way to the node. `hook(ask, reply)` returns what
arrives in place of the reply: None (nothing), a message (changed or not), `Late(seconds, message)`, or a list of these
(duplicates).
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
    """A message that arrives this many seconds after it was requested."""

    seconds: float
    message: Message


Arrival = Message | Late
Hook = Callable[[Message, Message], Arrival | Iterable[Arrival] | None]


def new_context(node: int, run_id: int = 1, **node_config: bool | float | int | str) -> Context:
    return Context(run_id=run_id, node_id=node, node_config=node_config, state=RecordDict(), run_config={})


class LocalGrid(Grid):
    """Nodes by id, each an app and its Context. `asks` and `replies` hold all messages to nodes and to the server,
    `down_bytes` and `up_bytes` their sizes on the wire without HTTP."""

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
        """Add a node, or bring a node back with a new Context."""
        self.apps[node] = app
        self._contexts[node] = context_to_proto(context).SerializeToString()
        self.dead.discard(node)
        self.offline.discard(node)

    def restart(self, node: int) -> None:
        """Restart the node's process: its Context.state is lost."""
        context = self.context(node)
        context.state = RecordDict()
        self.join(node, self.apps[node], context)

    def context(self, node: int) -> Context:
        """A copy of the node's Context."""
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
        """Ids, in order. Nodes handle their messages one after the other, before this returns."""
        ids = []
        for message in messages:
            ask, size = transmit(message)
            message.metadata.__dict__["_message_id"] = ask.metadata.message_id
            self.down_bytes += size
            self.asks.append(ask)
            ids.append(ask.metadata.message_id)
            start = time.monotonic()
            self._waiting[ids[-1]] = [(start + late.seconds, late.message) for late in self._replies(ask)]
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        now, arrived = time.monotonic(), []
        for message_id in message_ids:
            waiting = self._waiting.get(message_id, [])
            arrived += [message for due, message in waiting if due <= now]
            self._waiting[message_id] = [(due, message) for due, message in waiting if due > now]
        self.replies += arrived
        return arrived

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Without replies and without a timeout this raises an error, where Flower would wait forever."""
        open_ids, end, arrived = set(self.push_messages(messages)), time.monotonic() + (timeout or 0.0), []
        while True:
            arrived += self.pull_messages(sorted(open_ids))
            open_ids -= {reply.metadata.reply_to_message_id for reply in arrived}
            if not open_ids or (timeout is not None and time.monotonic() >= end):
                return arrived
            if timeout is None and not any(self._waiting[message_id] for message_id in open_ids):
                raise AssertionError(f"{len(open_ids)} messages will never be answered, and no timeout was given.")
            time.sleep(0.005)

    # A node at work

    def _replies(self, ask: Message) -> list[Late]:
        node = ask.metadata.dst_node_id
        if node in self.offline or node not in self.apps:
            return [Late(0.0, unavailable(ask))]
        if node in self.dead or (self.deliver is not None and not self.deliver(ask)):
            return []
        received, _ = transmit(ask)
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
        arrival = reply if self.hook is None else self.hook(ask, reply)
        arrivals = [arrival] if isinstance(arrival, Message | Late) else list(arrival or [])
        out = []
        for item in arrivals:
            delayed = item if isinstance(item, Late) else Late(0.0, item)
            message, size = transmit(delayed.message)
            self.up_bytes += size
            out.append(Late(delayed.seconds, message))
        return out


def transmit(message: Message) -> tuple[Message, int]:
    """The message as the other side receives it, and its size in bytes."""
    with no_object_id_recompute():
        objects = {name: item.deflate() for name, item in get_all_nested_objects(message).items()}
        size, name = sum(map(len, objects.values())), message.object_id
    out = cast(Message, inflate_object_from_contents(name, objects))
    out.metadata.__dict__["_message_id"] = name
    return out, size


def unavailable(ask: Message) -> Message:
    """The SuperLink's error in place of a reply from a node that is gone. It does not name the node."""
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
    return transmit(make_message(metadata, error=Error(code=ErrorCode.NODE_UNAVAILABLE, reason="Node Unavailable")))[0]
