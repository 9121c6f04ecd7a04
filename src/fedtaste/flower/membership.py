"""The nodes of a federation, as its server knows them: admit nodes, send them orders, and collect replies in time."""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from flwr.app import Message
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from pydantic import BaseModel

from fedtaste import __version__
from fedtaste.core import People
from fedtaste.errors import DataError, FedtasteError, RunError
from fedtaste.flower.messages import Hello, Order, Refusal, order_message, parse_reply, single_line, unpack_content
from fedtaste.flower.processes import Log
from fedtaste.flower.shards import merge_facts, parse_facts
from fedtaste.tasks.base import Facts
from fedtaste.text import count
from fedtaste.wire.messages import decode

POLL_SECONDS = 0.1
LATE = 1.5  # Flower forgets a message after so many deadlines; until then a late reply is recognised as late
RETRIES = 2  # for a node that was lost together with the message
LOST_CODES = (ErrorCode.NODE_UNAVAILABLE, ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.CLIENT_APP_CRASHED)
MAX_OVERDUE = 200  # messages whose replies are still looked for after their round
T = TypeVar("T", bound=BaseModel)


@dataclass(eq=False)
class Member:
    """A node that was admitted."""

    key: str  # hash of its people: the same node after a restart, whatever id Flower gives it
    index: int
    node_id: int  # Flower's
    hello: Hello
    facts: Facts
    offset: int  # federation's number of a person minus the node's own number
    learners: dict[str, People]  # by phase, in the federation's numbers
    person_hashes: set[int]

    @property
    def name(self) -> str:
        return self.hello.name


class Reply(NamedTuple, Generic[T]):
    """A member's reply."""

    member: Member
    report: T | Refusal | None  # None if it is not valid
    blob: bytes
    late: bool  # to an order of an earlier round


@dataclass(eq=False)
class Membership:
    """The members of a federation, and the messages to and from them."""

    grid: Grid
    common: Mapping[str, object]  # fields of every order: run, settings, catalogue
    catalogue: bytes  # item names, as JSON
    items: int
    deadline: float  # seconds that a node has to answer
    log: Log
    members: dict[str, Member] = field(default_factory=dict)
    offsets: dict[str, tuple[int, int]] = field(default_factory=dict)  # (offset, people) by key; kept over restarts
    rejected: dict[int, str] = field(default_factory=dict)  # Flower's ids, and the reasons
    up_bytes: int = 0
    down_bytes: int = 0
    _overdue: dict[str, Member] = field(default_factory=dict)  # message ids without a reply at their deadline

    # Admission

    def gather(self, nodes: int) -> None:
        """Wait for so many nodes. Fails early with the reasons if enough nodes came and some were rejected."""
        end = time.monotonic() + self.deadline
        while True:
            self.refresh()
            present = len(self.present())
            if present >= nodes:
                return
            if self.rejected and present + len(self.rejected) >= nodes:
                raise DataError(" ".join(self.rejected.values()))
            if time.monotonic() > end:
                raise RunError(
                    f"{count(present, 'node')} of {nodes} said hello within {self.deadline:.0f} seconds. "
                    f"{' '.join(self.rejected.values())} Look at the logs of the others and start them, or use fewer "
                    "(--nodes), or wait longer (--deadline)."
                )
            time.sleep(POLL_SECONDS * 5)

    def present(self) -> list[Member]:
        """Members whose node is connected now."""
        connected = set(self.grid.get_node_ids())
        return [member for member in self.members.values() if member.node_id in connected]

    def wait_for_lost(self) -> None:
        """If members are disconnected, wait for another node to connect, until the deadline at most."""
        before, end = set(self.grid.get_node_ids()), time.monotonic() + self.deadline
        lost = len(self.members) - len(self.present())
        while lost and set(self.grid.get_node_ids()) <= before and time.monotonic() < end:
            time.sleep(POLL_SECONDS * 5)

    def refresh(self) -> None:
        """Admit nodes that connected, or reconnected, since the last call."""
        connected = set(self.grid.get_node_ids())
        self.rejected = {node_id: why for node_id, why in self.rejected.items() if node_id in connected}
        new = connected - {member.node_id for member in self.members.values()} - set(self.rejected)
        order = Order.model_validate({"action": "hello", "version": __version__, **self.common})
        messages = {node_id: order_message(order, node_id, self.catalogue, self.deadline) for node_id in new}
        for node_id, reply in self._exchange(messages):  # a node without an answer is asked again by the next call
            try:
                self._admit(node_id, *self._read_hello(node_id, reply), connected)
            except DataError as error:
                self.rejected[node_id] = str(error)
                self.log(f"A node is rejected. {error}")

    def _read_hello(self, node_id: int, reply: Message) -> tuple[Hello, bytes]:
        """A node's hello and its blob; DataError if it sent none."""
        if reply.has_error():
            raise DataError(f"Node {node_id}: its app failed; see the node's log ({_error_text(reply)}).")
        try:
            text, blob = self._receive(reply)
            hello = parse_reply(Hello, text)
        except ValueError as error:
            raise DataError(f"Node {node_id} sent no valid hello ({error}). Does it have another fedtaste?") from error
        if isinstance(hello, Refusal):
            raise DataError(hello.error)
        return hello, blob

    def _admit(self, node_id: int, hello: Hello, blob: bytes, connected: set[int]) -> None:
        """Make a node a member; DataError if it cannot be one."""
        if hello.version != __version__:
            raise DataError(
                f"{hello.name} has fedtaste {hello.version}; this is {__version__}. Install the same version on both."
            )
        try:
            facts, learners, hashes = self._read_people(hello, blob)
        except (ValueError, KeyError, FedtasteError) as error:
            reason = f"its description of its people is not valid ({error}). Does it have another fedtaste?"
            raise DataError(f"{hello.name}: {reason}") from error
        key = hashlib.blake2b(json.dumps(sorted(hashes)).encode(), digest_size=8).hexdigest()
        member = self.members.get(key)
        if member and member.node_id not in connected:  # the same node with a new id
            member.node_id = node_id
            return
        offset = 0
        if key in self.offsets:
            offset = self.offsets[key][0]
        elif hello.own:  # its people get the numbers after everybody else's
            offset = max((start + people for start, people in self.offsets.values()), default=0)
        learners = {phase: people + offset for phase, people in learners.items()}
        new = Member(key, len(self.members), node_id, hello, facts, offset, learners, hashes)
        self._refuse_conflict(new)
        self.offsets[key] = (offset, hello.people)
        self.members[key] = new
        self.log(f"{hello.name} is here, with {count(hello.people, 'person', 'people')}.")

    def _read_people(self, hello: Hello, blob: bytes) -> tuple[Facts, dict[str, People], set[int]]:
        """(facts, learners by phase in the node's numbers, hashes of people); an error if they cannot be true."""
        facts = parse_facts(hello.facts)
        numbers = {name: value.numpy().astype(np.int64) for name, value in decode(blob)[0].total.items()}
        hashes = set(numbers.pop("person_hashes").tolist())
        if set(numbers) != {"search", "final"} or not all(_valid_people(n, hello.people) for n in numbers.values()):
            raise ValueError("the numbers of who learns are not valid")
        if len(hashes) != hello.people or not hello.people > 0 or not 0 <= facts.people <= hello.people:
            raise ValueError("the number of people is not valid")
        if facts.items != self.items:
            raise ValueError(f"{facts.items:,} items, where the catalogue has {self.items:,}")
        return facts, numbers, hashes

    def _refuse_conflict(self, new: Member) -> None:
        """DataError if a node cannot be a member beside the present members."""
        for other in self.members.values():
            if both := len(other.person_hashes & new.person_hashes):
                raise DataError(
                    f"{new.name} and {other.name} both claim {count(both, 'person', 'people')}, whose data would count "
                    "twice. Remove them from one of the two."
                )
            if other.hello.own != new.hello.own:
                raise DataError(
                    f"{new.name} brings its own file and {other.name} a part of a cut data set. Use one kind."
                )
        try:
            merge_facts([*(other.facts for other in self.members.values()), new.facts])
        except DataError as error:
            raise DataError(f"{new.name}: {error}") from error
        for other in self.members.values():
            if any(len(np.intersect1d(people, other.learners[phase])) for phase, people in new.learners.items()):
                raise DataError(
                    f"{new.name} and {other.name} both claim the same numbers of people. Cut the data again."
                )

    # Orders and replies

    def exchange(self, orders: Mapping[str, Order], blob: bytes, model: type[T]) -> Iterable[Reply[T]]:
        """Send orders (by member key) with this blob and yield replies, parsed as `model`, as they arrive, until all
        members have answered or the deadline has passed; also late replies to earlier orders."""
        messages = {}
        for key, order in orders.items():
            node_id = self.members[key].node_id
            messages[node_id] = order_message(order, node_id, blob, LATE * self.deadline)
        by_node = {member.node_id: member for member in self.members.values()}
        for node_id, reply in self._exchange(messages, by_node):
            member = by_node[node_id]
            late = self._overdue.pop(reply.metadata.reply_to_message_id, None) is not None
            if reply.has_error():
                if not late:
                    self.log(f"{member.name} did not answer ({_error_text(reply)}).")
                continue
            report: T | Refusal | None = None
            with contextlib.suppress(ValueError):
                text, content = self._receive(reply)
                report = parse_reply(model, text)
            yield Reply(member, report, content if report else b"", late)

    def _receive(self, reply: Message) -> tuple[str, bytes]:
        """The content of a reply; its size is counted, without what Flower and HTTP add."""
        text, blob = unpack_content(reply)
        self.up_bytes += len(text) + len(blob)
        return text, blob

    def _exchange(
        self, messages: dict[int, Message], by_node: dict[int, Member] | None = None
    ) -> Iterable[tuple[int, Message]]:
        """Yield (node, reply) as replies arrive. A node that was lost with the message gets it again when it is back.
        With `by_node`, replies to earlier messages come too."""
        waiting: dict[str, int] = {}
        lost: dict[int, Message] = {}
        self._push(messages, waiting)
        retries, end = dict.fromkeys(messages, RETRIES), time.monotonic() + self.deadline
        while (waiting or lost) and time.monotonic() < end:
            for reply in self.grid.pull_messages([*waiting, *(self._overdue if by_node else ())]):
                name = reply.metadata.reply_to_message_id
                if name in waiting:
                    node_id = waiting.pop(name)
                    if reply.has_error() and reply.error.code in LOST_CODES and retries[node_id]:
                        retries[node_id] -= 1
                        lost[node_id] = messages[node_id]
                    elif reply.has_error() or reply.metadata.src_node_id == node_id:  # Flower checked the node's key
                        yield node_id, reply
                elif by_node and name in self._overdue:
                    yield self._overdue[name].node_id, reply
            if lost:
                back = lost.keys() & set(self.grid.get_node_ids())
                self._push({node_id: _copy_message(lost.pop(node_id)) for node_id in back}, waiting)
            time.sleep(POLL_SECONDS if waiting or lost else 0)
        if by_node:
            self._overdue |= {name: by_node[node_id] for name, node_id in waiting.items()}
            while len(self._overdue) > MAX_OVERDUE:
                del self._overdue[next(iter(self._overdue))]

    def _push(self, messages: dict[int, Message], waiting: dict[str, int]) -> None:
        if messages:
            names = self.grid.push_messages(list(messages.values()))
            waiting.update({name: node_id for name, node_id in zip(names, messages) if name})
            contents = [unpack_content(message) for message in messages.values()]
            self.down_bytes += sum(len(text) + len(blob) for text, blob in contents)


def _copy_message(message: Message) -> Message:
    """The same content as a new message: Flower delivers a message once only."""
    about = message.metadata
    return Message(message.content, about.dst_node_id, about.message_type, ttl=about.ttl)


def _valid_people(numbers: People, most: int) -> bool:
    """Whether these can be the numbers of at most so many people."""
    unique = numbers.ndim == 1 and len(np.unique(numbers)) == len(numbers) <= most
    return unique and bool(((numbers >= 0) & (numbers < 2**31)).all())


def _error_text(message: Message) -> str:
    return f"{message.error.code}: {single_line(message.error.reason)[:300]}"
