"""Events of a long-running command for its operator: a sentence, or one line of JSON with the same facts.

An event names what happened to the server, the model or a round. It never holds anything of a request or of a person.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Literal, NamedTuple

from fedtaste.text import printable

LogFormat = Literal["text", "json"]


class Event(NamedTuple):
    """One event: its kind, a sentence for people, and its facts for programs."""

    kind: str
    text: str
    facts: dict[str, object] = {}

    def json_line(self, now: datetime | None = None) -> str:
        """The event as one line of JSON with its time.

        >>> Event("round", "Round 1 of 8.", {"round": 1}).json_line(datetime(2026, 1, 2, tzinfo=UTC))
        '{"time": "2026-01-02T00:00:00.000Z", "event": "round", "message": "Round 1 of 8.", "round": 1}'
        """
        time = (now or datetime.now(UTC)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        head = {"time": time, "event": self.kind, "message": printable(self.text)}
        return json.dumps(head | self.facts, allow_nan=False)


EventLog = Callable[[Event], None]


def ignore(event: Event) -> None:
    """An EventLog that writes nothing."""
