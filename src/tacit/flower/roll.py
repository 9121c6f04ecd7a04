"""Who is in the federation, and talking to them: hello, orders, answers before a deadline, answers after it."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Message
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from numpy.typing import NDArray
from pydantic import BaseModel

from .. import __version__
from ..data.interactions import count
from ..errors import DataError, RunError, TacitError
from ..tasks import Facts, People
from ..wire.ledger import decode
from .messages import Hello, Order, Refusal, ask, line, read, words_of
from .reading import facts_of
from .shards import merged

PAUSE = 0.1  # seconds between two looks at what has arrived
LATE = 1.5  # deadlines after which Flower forgets a question: until then a late answer is known to be late
AGAIN = 2  # times that a node is asked again which was lost with the question
GONE = (ErrorCode.NODE_UNAVAILABLE, ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.CLIENT_APP_CRASHED)
STALE = 200  # answers that are still looked for after their round, so that they can be told to be late
Say = Callable[[str], None]


@dataclass(eq=False)
class Member:
    """A node that said hello and was taken in."""

    key: str  # of its people: the same node after a restart, under whatever id Flower gives it
    place: int
    node: int  # Flower's id
    hello: Hello
    facts: Facts
    offset: int  # what its own numbers of people are behind the federation's
    members: dict[str, People]  # by phase, the federation's numbers
    marks: set[int]

    @property
    def name(self) -> str:
        return self.hello.name


class Heard(NamedTuple):
    """An answer. `late`: to a question of an earlier round."""

    member: Member
    words: str
    blob: bytes
    late: bool


@dataclass(eq=False)
class Roll:
    grid: Grid
    common: dict[str, Any]  # what stands in every order: run, settings, catalogue
    catalogue: bytes  # the items' names, as JSON
    items: int
    deadline: float
    say: Say
    members: dict[str, Member] = field(default_factory=dict)
    offsets: dict[str, tuple[int, int]] = field(default_factory=dict)  # (offset, people); kept over restarts
    turned_away: dict[int, str] = field(default_factory=dict)  # Flower's ids, and why
    up_bytes: int = 0
    down_bytes: int = 0
    _stale: dict[str, Member] = field(default_factory=dict)

    # Who is here

    def gather(self, nodes: int) -> None:
        """Wait for so many nodes. Where as many are there and some cannot take part, it ends with their reasons."""
        end = time.monotonic() + self.deadline
        while True:
            self.refresh()
            here = len(self.present())
            if here >= nodes:
                return
            if self.turned_away and here + len(self.turned_away) >= nodes:
                raise DataError(" ".join(self.turned_away.values()))
            if time.monotonic() > end:
                raise RunError(
                    f"{count(here, 'node')} of {nodes} said hello within {self.deadline:.0f} seconds. "
                    f"{' '.join(self.turned_away.values())} "
                    "Look at the others' logs and start them, or ask for fewer (--nodes), or wait longer (--deadline)."
                )
            time.sleep(PAUSE * 5)

    def present(self) -> list[Member]:
        """Members whose node is connected now."""
        here = set(self.grid.get_node_ids())
        return [member for member in self.members.values() if member.node in here]

    def wait(self) -> None:
        """For a node that was not here before, until the deadline at most."""
        here, end = set(self.grid.get_node_ids()), time.monotonic() + self.deadline
        lost = len(self.members) - len(self.present())
        while lost and set(self.grid.get_node_ids()) <= here and time.monotonic() < end:
            time.sleep(PAUSE * 5)

    def refresh(self) -> None:
        """Take in nodes that came since, or came back."""
        here = set(self.grid.get_node_ids())
        self.turned_away = {node: why for node, why in self.turned_away.items() if node in here}
        known = {member.node for member in self.members.values()} | set(self.turned_away)
        new = {node: Order(what="hello", version=__version__, **self.common) for node in here - known}
        for node, answer in self._hellos(new).items():
            why = answer if isinstance(answer, str) else self._take_in(node, *answer, here)
            if why:
                self.turned_away[node] = why
                self.say(f"A node is turned away. {why}")

    def _hellos(self, orders: dict[int, Order]) -> dict[int, tuple[Hello, bytes] | str]:
        """By node: what it said of itself, or why it cannot be taken. Who says nothing is asked again later."""
        asked = {node: ask(order, node, self.catalogue, self.deadline) for node, order in orders.items()}
        out: dict[int, tuple[Hello, bytes] | str] = {}
        for node, reply in self._exchange(asked):
            if reply.has_error():
                out[node] = f"Node {node}: its app stopped with an error; the node's log says more ({_short(reply)})."
                continue
            try:
                words, blob = words_of(reply)
                told = read(Hello, words)
                out[node] = f"{told.error}" if isinstance(told, Refusal) else (told, blob)
            except ValueError as error:
                out[node] = f"Node {node} said what is no hello ({error}). Is its tacit another version?"
        return out

    def _take_in(self, node: int, hello: Hello, blob: bytes, here: set[int]) -> str:
        """Why this node cannot be taken; empty if it is."""
        try:
            facts = facts_of(hello.facts)
            numbers = {name: value.numpy().astype(np.int64) for name, value in decode(blob)[0].total.items()}
            marks = set(numbers.pop("marks").tolist())
            if set(numbers) != {"search", "final"} or any(not _numbers(a, hello.people) for a in numbers.values()):
                raise ValueError("who learns is not told")
            if len(marks) != hello.people or not hello.people > 0 or not 0 <= facts.people <= hello.people:
                raise ValueError("how many people there are is not told")
            if facts.items != self.items:
                raise ValueError(f"{facts.items:,} items, where the catalogue has {self.items:,}")
        except (ValueError, KeyError, TacitError) as error:
            return f"{hello.name}: what it says of its people cannot be read ({error}). Is its tacit another version?"
        if hello.version != __version__:
            return f"{hello.name} has tacit {hello.version}; this is {__version__}. Install the same version on both."
        key = hashlib.blake2b(json.dumps(sorted(marks)).encode(), digest_size=8).hexdigest()
        for other in self.members.values():
            if other.key == key and other.node not in here:  # the same node, back under another id
                other.node = node
                return ""
            if other.marks & marks:
                return (
                    f"{hello.name} and {other.name} both claim {count(len(other.marks & marks), 'person', 'people')}: "
                    "their data would count twice. Take them out of one of the two."
                )
            if other.hello.own != hello.own:
                return f"{hello.name} brings a file of its own and {other.name} a cut of a data set. Use one kind."
        try:
            merged([*(other.facts for other in self.members.values()), facts])
        except DataError as error:
            return f"{hello.name}: {error}"
        offset = self.offsets[key][0] if key in self.offsets else self._next_offset() if hello.own else 0
        counted = {phase: who + offset for phase, who in numbers.items()}
        for other in self.members.values():
            if any(len(np.intersect1d(counted[phase], other.members[phase])) for phase in counted):
                return f"{hello.name} and {other.name} both claim the same numbers of people. Cut the data again."
        self.offsets[key] = (offset, hello.people)
        self.members[key] = Member(key, len(self.members), node, hello, facts, offset, counted, marks)
        self.say(f"{hello.name} is here, with {count(hello.people, 'person', 'people')}.")
        return ""

    def _next_offset(self) -> int:
        return max((offset + people for offset, people in self.offsets.values()), default=0)

    # Talking

    def exchange(self, orders: dict[str, tuple[Order, bytes]]) -> Iterable[Heard]:
        """Answers as they come, until all have answered or the deadline is over; also answers to earlier questions."""
        asked = {self.members[key].node: ask(order, self.members[key].node, blob, LATE * self.deadline)
                 for key, (order, blob) in orders.items()}  # fmt: skip
        by_node = {member.node: member for member in self.members.values()}
        for node, reply in self._exchange(asked, by_node):
            late, member = node not in asked or by_node[node].key not in orders, by_node[node]
            if reply.metadata.reply_to_message_id in self._stale:
                late = True
                del self._stale[reply.metadata.reply_to_message_id]
            if reply.has_error():
                if not late:
                    self.say(f"{member.name} did not answer ({_short(reply)}).")
                continue
            try:
                words, blob = words_of(reply)
            except ValueError:
                words, blob = "", b""
            yield Heard(member, words, blob, late)

    def _exchange(
        self, asked: dict[int, Message], known: dict[int, Member] | None = None
    ) -> Iterable[tuple[int, Message]]:
        """What arrives, with the node that it is from. Who was lost with the message in hand is asked again when it is
        back; what comes for an earlier question comes too, where members are `known`."""
        waiting: dict[str, int] = {}
        lost: dict[int, Message] = {}
        self._push(asked, waiting)
        left, end = dict.fromkeys(asked, AGAIN), time.monotonic() + self.deadline
        while (waiting or lost) and time.monotonic() < end:
            for reply in self.grid.pull_messages([*waiting, *(self._stale if known else ())]):
                name = reply.metadata.reply_to_message_id
                self.up_bytes += 0 if reply.has_error() else size_of(reply)
                if name in waiting:
                    node = waiting.pop(name)
                    if reply.has_error() and reply.error.code in GONE and left[node]:
                        left[node] -= 1
                        lost[node] = asked[node]
                    elif reply.has_error() or reply.metadata.src_node_id == node:  # the one whose key it came with
                        yield node, reply
                elif known and name in self._stale:
                    yield self._stale[name].node, reply
            if lost:
                back = lost.keys() & set(self.grid.get_node_ids())
                self._push({node: _anew(lost.pop(node)) for node in back}, waiting)
            time.sleep(PAUSE if waiting or lost else 0)
        if known:
            self._stale |= {name: known[node] for name, node in waiting.items()}
            while len(self._stale) > STALE:
                del self._stale[next(iter(self._stale))]

    def _push(self, asked: dict[int, Message], waiting: dict[str, int]) -> None:
        nodes = list(asked)
        if nodes:
            names = self.grid.push_messages([asked[node] for node in nodes])
            waiting.update({name: node for name, node in zip(names, nodes) if name})
            self.down_bytes += sum(size_of(message) for message in asked.values())


def _anew(message: Message) -> Message:
    """The same question as a new message: Flower gives none out twice."""
    about = message.metadata
    return Message(message.content, about.dst_node_id, about.message_type, ttl=about.ttl)


def _numbers(of: NDArray[np.int64], most: int) -> bool:
    """Whether these can be the numbers of people."""
    return of.ndim == 1 and len(of) <= most and len(np.unique(of)) == len(of) and bool(((of >= 0) & (of < 2**31)).all())


def size_of(message: Message) -> int:
    """Bytes of what is in it, without Flower's and HTTP's own."""
    try:
        words, blob = words_of(message)
    except ValueError:
        return 0
    return len(words) + len(blob)


def _short(message: Message) -> str:
    return f"{message.error.code}: {line(message.error.reason)[:300]}"


def said(kind: type[BaseModel], heard: Heard) -> Any:
    """What a member said, a Refusal, or None where it is neither."""
    try:
        return read(kind, heard.words)
    except ValueError:
        return None
