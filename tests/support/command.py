"""Run the command `fedtaste` in this process and capture its exit code and output."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import IO

import pytest

from fedtaste.cli import main as cli
from fedtaste.data.sources import SOURCES

WORLD = ("--data", "synthetic:40x40x400", "--threads", "1")
QUICK = (*WORLD, "--rounds", "2", "--json")
CONTRACT = {
    "data", "method", "settings", "protocol", "seed", "rounds", "people", "items", "interactions", "seen", "new",
    "intervals", "best_round", "leak", "traffic", "privacy", "seconds", "peak_rss_mb", "rejected_updates", "run",
}  # fmt: skip


@dataclass(frozen=True)
class CommandOutput:
    """Exit code and output of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self):
        """The one JSON object on standard output of a command that succeeded."""
        assert self.code == 0, self.err
        assert self.out.count("\n") == 1, "one line, one object"
        result = json.loads(self.out, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
        assert isinstance(result, dict)
        return result

    def refused(self, *parts: str) -> CommandOutput:
        """The command failed as a user error: exit code 2 and one error on standard error that contains these parts."""
        assert (self.code, self.out) == (2, ""), self.err
        assert self.err.count("error: ") == 1 and "Traceback" not in self.err and "bug" not in self.err
        for part in parts:
            assert part in self.err, self.err
        return self


def fedtaste(*args: object) -> CommandOutput:
    """Run `fedtaste` with these arguments in this process, without starting Python anew."""
    out, err = io.StringIO(), io.StringIO()
    code = 0
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        patch.setattr(sys, "argv", ["fedtaste", *map(str, args)])
        try:
            cli.main()
        except SystemExit as stop:
            code = stop.code
    return CommandOutput(code, out.getvalue(), err.getvalue())


class WorkerHere:
    """Replaces `subprocess.Popen` in tests of comparisons that are not about processes: it trains the run of a worker
    in this process before it returns. tests/test_comparisons.py starts real workers."""

    stdin = stdout = None

    def __init__(self, command: Sequence[str], *, stdin: int, stdout: int, stderr: IO[bytes]) -> None:
        output = fedtaste(*(word for word in command[3:] if word != "--worker"))
        stderr.write(output.err.encode())
        self.returncode = output.code

    def poll(self) -> int:
        return self.returncode

    def __enter__(self) -> WorkerHere:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def without_times(result: dict) -> dict:
    """A result without the parts that differ between two equal runs."""
    return {name: value for name, value in result.items() if name not in ("seconds", "peak_rss_mb", "run")}


def timeless(comparison: dict) -> dict:
    """A comparison without the parts that differ between two equal ones."""
    seeds = comparison.get("seeds") or {"methods": []}
    methods = [{n: v for n, v in method.items() if n != "runs"} for method in seeds["methods"]]
    results = [without_times(result) for result in comparison["results"]]
    return {n: v for n, v in comparison.items() if n != "report"} | {"results": results, "seeds": methods}


def no_network(monkeypatch, reply=None):
    """Downloads of data sets fail as without a network, or return `reply`."""

    def fetch():
        if reply is None:
            raise OSError("no answer (offline)")
        return reply

    for name, source in list(SOURCES.items()):
        archives = tuple(replace(archive, fetch=fetch) for archive in source.archives)
        monkeypatch.setitem(SOURCES, name, replace(source, archives=archives))
