"""The command line, called as a person would."""

from __future__ import annotations

import contextlib
import io
import json
import sys
import warnings
from dataclasses import dataclass

import pytest

with warnings.catch_warnings():  # typer 0.20 imports what click 8.5 deprecates
    warnings.simplefilter("ignore", DeprecationWarning)
    from tacit import cli


@dataclass(frozen=True)
class Said:
    code: int
    out: str
    err: str

    @property
    def json(self):
        assert self.code == 0, self.err
        assert self.out.count("\n") == 1, "one line, one object"
        found = json.loads(self.out, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
        assert isinstance(found, dict)
        return found

    def refused(self, *parts: str) -> Said:
        """A sentence that a person can act on, on standard error alone."""
        assert (self.code, self.out) == (2, ""), self.err
        assert self.err.count("error: ") == 1 and "Traceback" not in self.err and "bug" not in self.err
        for part in parts:
            assert part in self.err, self.err
        return self


def tacit(*args: object) -> Said:
    """The command in this process: as quick as a call, and the same as `tacit` for whoever types it."""
    out, err = io.StringIO(), io.StringIO()
    code = 0
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        patch.setattr(sys, "argv", ["tacit", *map(str, args)])
        try:
            cli.main()
        except SystemExit as stop:
            code = stop.code
    return Said(code, out.getvalue(), err.getvalue())
