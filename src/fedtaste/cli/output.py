"""Terminal output (progress bars, messages, JSON), and the folder of FEDTASTE_CACHE."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from fedtaste.event_log import Event, EventLog, LogFormat
from fedtaste.experiment.progress_bars import SafeConsole, err
from fedtaste.text import printable

out = SafeConsole(highlight=False)


def say(text: str) -> None:
    """Print a message on standard error, without control codes of data."""
    err.print(printable(text), style="dim", markup=False, soft_wrap=True)


def put(text: str, style: str | None = None) -> None:
    """Print one line on standard output; text from outside is not read as markup, and has no control codes."""
    out.print(printable(text), style=style, markup=False, soft_wrap=True)


def event_log(format: LogFormat) -> EventLog:
    """Where events are written: sentences or lines of JSON, on standard error."""

    def write_json(event: Event) -> None:
        sys.stderr.write(event.json_line() + "\n")
        sys.stderr.flush()

    return write_json if format == "json" else lambda event: say(event.text)


def emit(value: object) -> None:
    """Print a value as one line of JSON on standard output."""
    sys.stdout.write(json.dumps(value, allow_nan=False) + "\n")
    sys.stdout.flush()


def cache() -> Path | None:
    """The folder of fetched data that FEDTASTE_CACHE names, if it does."""
    return Path(os.environ["FEDTASTE_CACHE"]) if os.environ.get("FEDTASTE_CACHE") else None
