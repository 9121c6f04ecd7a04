"""The state machine of rounds (support/rounds_machine.py) passes, and finds planted flaws."""

from __future__ import annotations

import pytest
from hypothesis import Phase
from hypothesis.stateful import run_state_machine_as_test

from fedtaste.wire.validation import UploadValidator
from support.rounds_machine import Rounds, options


class TestRounds(Rounds.TestCase):
    settings = options(12, 30, derandomize=True)


ORIGINAL = UploadValidator._header_refusal
FLAWS = {
    "a late message counts": (
        "_header_refusal",
        lambda self, head: None if head.round < self.round else ORIGINAL(self, head),
    ),
    "a duplicate counts": (
        "_header_refusal",
        lambda self, head: None if head.person in self.answered else ORIGINAL(self, head),
    ),
    "a refusal is not counted": ("refuse", lambda self, reason, who=-1: None),
}


@pytest.mark.parametrize("flaw", FLAWS)
def test_the_state_machine_detects_planted_flaws(monkeypatch, flaw):
    """A machine that never fails would prove nothing."""
    monkeypatch.setattr(UploadValidator, *FLAWS[flaw])
    with pytest.raises((AssertionError, KeyError)):
        phases = [Phase.generate]  # no search for a shorter failing example
        run_state_machine_as_test(Rounds, settings=options(30, 30, derandomize=True, database=None, phases=phases))
