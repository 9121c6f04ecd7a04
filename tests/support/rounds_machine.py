"""A Hypothesis state machine of training rounds with faults in any order.

Clients join, leave, drop out, answer twice, late or with rubbish, and the server crashes and resumes. After every round
the state must equal that of a run with only the clients that were counted. tests/test_rounds_machine.py takes a few
hundred steps, `benchmarks/faults.py machine` 10,000.
"""

from __future__ import annotations

import copy
import os
import tempfile
from collections import Counter
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from fedtaste.core import Upload
from fedtaste.engine.checkpoint import load_state, same_bytes, save_state
from fedtaste.engine.run import begin, run
from fedtaste.errors import RunError
from fedtaste.wire.messages import decode, encode
from support.worlds import world

NAME, FEW = 5, 5  # people there are; the loop is slow
METHODS = {"fedavg": {"lr": 0.1, "server": "adam"}, "fedals": {}}
DAMAGE = {  # damage to a message -> (the reason for which it is rejected is the key)
    "non-finite": lambda up, head: encode(Upload({n: v * np.nan for n, v in up.total.items()}, up.weight), head),
    "too large": lambda up, head: encode(Upload({n: v + 1e9 for n, v in up.total.items()}, up.weight), head),
    "weight": lambda up, head: encode(Upload(up.total, -up.weight), head),
    "shape": lambda up, head: encode(Upload({n: v[1:] for n, v in up.total.items()}, up.weight), head),
    "dtype": lambda up, head: encode(Upload({n: v.half() for n, v in up.total.items()}, up.weight), head),
    "names": lambda up, head: encode(Upload({"x": torch.ones(1)}, up.weight), head),
    "not a message": lambda up, head: encode(up, head)[:-5],
    "oversized": lambda up, head: encode(up, head) + bytes(5000),
    "other run": lambda up, head: encode(up, head._replace(run=NAME + 1)),
    "early": lambda up, head: encode(up, head._replace(round=head.round + 2)),
    "not asked": lambda up, head: encode(up, head._replace(person=10**6)),
}
WITHIN = ("non-finite", "too large", "weight", "shape", "dtype", "names")  # seen after whose it is
PEOPLE = st.integers(0, FEW - 1)
taken: Counter[str] = Counter()  # steps, by rule
refused: Counter[str] = Counter()


@lru_cache(None)
def parts(method: str):
    return world(method, METHODS[method], "ranking", members=np.arange(FEW))


def everything(state):
    private = state.private.gather(np.arange(state.private.people))
    memory = {f"memory/{name}": value for name, value in state.memory.items()}
    return dict(state.shared) | memory | {f"private/{name}": value for name, value in private.items()}


def one_round(method, state, members, network=None):
    rule, model, federation = parts(method)
    federation = replace(federation, members=np.array(sorted(members), np.int64))
    options = {"rounds": state.round + 1, "backend": "loop", "seed": 1, "run_id": NAME}
    return next(run(rule, model, federation, state=state, network=network, **options))


@lru_cache(2048)
def after(method, history):
    """The state after rounds with exactly these clients and without faults, and all of its parameters."""
    if not history:
        state = begin(*parts(method), seed=1)
    else:  # what is private is one store that goes on, so the earlier state is kept as a copy
        state = one_round(method, copy.deepcopy(after(method, history[:-1])[0]), history[-1]).state
    return state, everything(state)


class Rounds(RuleBasedStateMachine):
    @initialize(method=st.sampled_from(sorted(METHODS)), members=st.sets(PEOPLE, min_size=1))
    def start(self, method, members):
        self.method, self.members = method, set(members)
        self.folder = tempfile.TemporaryDirectory()
        self.file = Path(self.folder.name) / "state.safetensors"
        self.state, self.history, self.kept = begin(*parts(method), seed=1), (), ()
        self.saved, self.seen = False, None
        self.forget()
        self.late: list[bytes] = []

    def forget(self):
        """Clear the faults that are planned for the next round."""
        self.lost: set[int] = set()
        self.delayed: set[int] = set()
        self.twice: Counter[int] = Counter()
        self.damaged: dict[int, str] = {}
        self.before: dict[int, str] = {}
        self.strange: list[str] = []

    @rule(who=PEOPLE)
    def join(self, who):
        taken["join"] += 1
        self.members.add(who)

    @precondition(lambda self: len(self.members) > 1)
    @rule(who=PEOPLE)
    def leave(self, who):
        taken["leave"] += 1
        self.members -= {who} if self.members != {who} else set()

    @rule(who=PEOPLE)
    def drop(self, who):
        taken["drop"] += 1
        self.lost.add(who)

    @rule(who=PEOPLE)
    def delay(self, who):
        taken["late"] += 1
        self.delayed.add(who)

    @rule(who=PEOPLE, times=st.integers(1, 3))
    def duplicate(self, who, times):
        taken["duplicate"] += 1
        self.twice[who] += times

    @rule(who=PEOPLE, how=st.sampled_from(sorted(DAMAGE)))
    def corrupt(self, who, how):
        taken["corrupt"] += 1
        self.damaged[who] = how

    @rule(who=PEOPLE, how=st.sampled_from(sorted(DAMAGE)))
    def forge(self, who, how):
        """A bad message in a client's name, before the client's own."""
        taken["forge"] += 1
        self.before[who] = how

    @rule(how=st.sampled_from(sorted(DAMAGE)))
    def rubbish(self, how):
        """A bad message at the end of the round."""
        taken["rubbish"] += 1
        self.strange.append(how)

    @rule()
    def round(self):
        taken["round"] += 1
        expected: Counter[str] = Counter()
        expected["late"] += len(self.late)
        counted, coming = [], []

        def network(blobs):
            yield from self.late
            last = None
            for blob in blobs:
                upload, head = last = decode(blob)
                who = head.person
                if who in self.before:
                    expected[self.before[who]] += 1
                    yield DAMAGE[self.before[who]](upload, head)
                if who in self.delayed:
                    coming.append(blob)
                    continue
                if who in self.lost:
                    continue
                if who in self.damaged:
                    expected[self.damaged[who]] += 1
                    yield DAMAGE[self.damaged[who]](upload, head)
                    continue
                counted.append(who)
                yield blob
                expected["duplicate"] += self.twice[who]
                yield from [blob] * self.twice[who]
            for how in self.strange:  # in the name of the last one: who has answered may not answer again
                expected["duplicate" if last[1].person in counted and how in WITHIN else how] += 1
                yield DAMAGE[how](*last)

        own = self.state.private.gather(np.arange(FEW))
        done = one_round(self.method, self.state, self.members, network)
        assert done.state.round == done.number == self.state.round + 1
        assert (done.requested, done.answered) == (len(self.members), len(counted)) and len(set(counted)) == len(
            counted
        )
        assert done.rejected == +expected  # every bad message once, by its reason
        assert np.isnan(done.change) == (not counted)
        quiet = sorted(set(range(FEW)) - set(counted))
        kept = done.state.private.gather(np.arange(FEW))
        assert all(torch.equal(kept[name][quiet], value[quiet]) for name, value in own.items())
        refused.update(done.rejected)
        self.state, self.history = done.state, (*self.history, tuple(sorted(counted)))
        self.late = coming
        self.forget()

    @rule()
    def save(self):
        taken["save"] += 1
        save_state(self.file, self.state, {"people": sorted(self.members)})
        self.kept, self.saved = self.history, True

    @rule(call=st.sampled_from(["fsync", "replace"]))
    def save_in_vain(self, call):
        """The disk is full, or the process is killed: the old checkpoint stays."""
        taken["save in vain"] += 1

        def full(*_, **__):
            raise OSError(28, "No space left on device")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, call, full)
            with pytest.raises(RunError):
                save_state(self.file, self.state, {})

    @rule(half=st.binary(max_size=20))
    def crash(self, half):
        """The server loses its memory and resumes from the last checkpoint; messages on their way still arrive."""
        taken["crash and resume"] += 1
        self.file.with_name(".state.safetensors.1.part").write_bytes(half)
        self.state = begin(*parts(self.method), seed=1)
        if self.saved:
            self.state, about = load_state(self.file, self.state)
            assert about["round"] == self.state.round
        else:
            assert not self.file.exists()
        self.history = self.kept
        self.late = [blob for blob in self.late if decode(blob)[1].round < self.state.round]  # others are not late now

    @invariant()
    def as_if_nothing_had_happened(self):
        if hasattr(self, "state") and self.seen is not self.state:
            self.seen = self.state
            assert self.state.round == len(self.history)
            assert same_bytes(everything(self.state), after(self.method, self.history)[1])

    def teardown(self):
        if hasattr(self, "folder"):
            self.folder.cleanup()


def explore(steps: int) -> dict:
    """Take at least so many steps, in cases of up to 50. An AssertionError shows the steps that lead to it."""
    before, cases = taken.total(), 0
    while taken.total() - before < steps:
        some = min(40, max(1, (steps - taken.total() + before) // 30))
        run_state_machine_as_test(Rounds, settings=options(some, 50))
        cases += some
    return {
        "steps": taken.total() - before,
        "cases": cases,
        "failures": 0,
        "rules": dict(taken),
        "refused": dict(refused),
    }


def options(cases: int, steps: int, **more):
    return settings(
        max_examples=cases, stateful_step_count=steps, deadline=None, suppress_health_check=list(HealthCheck), **more
    )
