"""The server's side: the experiment of `tacit run`, whose devices are nodes elsewhere.

A Fleet stands where the engine would be: `clients` collects a round's uploads over Flower, `task` lets nodes say how
good a model is. Everything else (the round loop, the search for the best round, the server's step, checkpoints, the
result) is the same code. What arrives is looked at by the same door (wire/admission.py); who does not answer in time is
as if they had dropped out; after every round the state is on disk, and a server that died goes on from there.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch

from .. import __version__
from ..core import Download, Method, Model, Stage, Upload
from ..data.interactions import count
from ..engine.backends import NOTHING, Call, Outcome
from ..engine.run import State
from ..errors import RunError, SettingError
from ..evaluation.tally import Tallied
from ..experiment import passes
from ..federation import Federation
from ..settings import Plan, Settings, plan
from ..tasks import Facts, People, Sampling, Task
from ..wire.admission import Door, refusal
from ..wire.ledger import encode
from ..wire.packing import pack
from ..wire.secure import SecureSum, from_words
from .checks import aux_of, bears, left_out, sound, tallies
from .messages import Order, Refusal, Told, Trained, line
from .reading import facts_of, sample
from .roll import Member, Roll, said
from .seals import ANSWERED, ANSWERED_OTHERWISE
from .secagg import fewest, secure_sum
from .shards import merged

TRIES = 3  # to get a round together, or a judgement of everybody


class Found(NamedTuple):
    """A round that was asked for."""

    outcome: Outcome
    keys: list[str]  # members that are in it
    heard: int  # people of nodes that said anything, sound or not


@dataclass(eq=False)
class Fleet:
    roll: Roll
    settings: Settings
    least: float = 0.5  # the share of the people who were asked that a round needs
    versions: dict[str, int] = field(default_factory=dict)  # by member: rounds of this phase that it has behind it
    history: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    refusals: set[str] = field(default_factory=set)  # why nodes refused the order of the round that was asked for last
    observe: Callable[[Any], None] | None = None
    _plan: Plan | None = None
    _facts: Any = None
    _federations: dict[str, Federation] = field(default_factory=dict)

    # What goes on from one process of the server to the next

    def note(self) -> dict[str, Any]:
        return {"versions": self.versions, "offsets": self.roll.offsets, "history": self.history, "notes": self.notes,
                "facts": None if self._facts is None else self._facts.words()}  # fmt: skip

    def recall(self, noted: dict[str, Any]) -> None:
        self.versions, self.history = dict(noted.get("versions", {})), list(noted.get("history", []))
        self.notes = list(noted.get("notes", []))

    # The task

    def task(
        self, known: dict[str, Any] | None = None, made: Plan | None = None, items: Mapping[str, Any] | None = None
    ) -> Task:
        """As the experiment sees it: nothing of it is here but numbers of people. `known`: the facts of a run that goes
        on, which stay as they were when it began. `made`: a plan of one's own, where nodes have one too. `items`: the
        catalogue's titles and genres, from which the server derives public item features."""
        members = list(self.roll.members.values())
        facts = facts_of(known) if known else merged([member.facts for member in members])
        self._facts = facts = _described(facts, items or {}, bool(known))
        self._plan = made or plan(self.settings, facts, elsewhere=True)
        if self._plan.method.pooled:
            raise SettingError(
                f"{self.settings.method} holds everybody's data in one place, so no federation can run it."
            )
        told = Counter(note for member in members for note in member.hello.notes)
        everywhere = [note for note, times in told.items() if times == len(members)]
        better = {"ranking": ("ndcg@10", 1), "labels": ("loss", -1)}.get(facts.kind, ("rmse", -1))
        new, seen = (sum(getattr(m.hello, name) for m in members) for name in ("newcomers", "judged"))
        last: dict[str, Any] = {}

        def judge(
            method: Method, model: Model, state: State, sampling: Sampling, people: People, again: int | None
        ) -> Tallied:
            if last.get("round") != state.round:
                last.update(round=state.round, told=self._ask_all("judge", "final", state))
            parts = [told.seen if again is None else told.new for told in last["told"]]
            return Tallied([part for part in parts if part])

        def validate(method: Method, model: Model, state: State, sampling: Sampling) -> dict[str, float]:
            return Tallied([t.seen for t in self._ask_all("validate", "search", state) if t.seen]).exact()

        def taken(made: Plan, state: State) -> tuple[float, float] | None:
            return next((told.gradients for told in last.get("told", ()) if told.gradients), None)

        return Task(
            facts, sum(m.hello.people for m in members), sum(m.hello.interactions for m in members),
            (*everywhere, f"{count(len(members), 'node')} over Flower; nobody's data were here."),
            self._federation, validate if any(m.hello.choosers for m in members) else None,
            judge,  # type: ignore[arg-type]
            np.arange(seen + new), np.arange(seen, seen + new), lambda: None, better, taken=taken,
        )  # fmt: skip

    def _federation(self, phase: str, method: Method, sampling: Sampling, without: People | None) -> Federation:
        made = Federation(0, self._members(phase), lambda people, round: NOTHING, self._facts.items)
        self._federations[phase] = made
        return made

    def _members(self, phase: str) -> People:
        parts = [member.members[phase] for member in self.roll.members.values()]
        return np.sort(np.concatenate(parts)) if parts else np.zeros(0, np.int64)

    def wire(self, stage: Stage) -> Stage:
        """What of a wire is left for the server: nodes have added their noise, and the server adds what is missing."""
        return Stage(server=stage.server, poisson=stage.poisson)

    # A round

    def clients(self, phase: str) -> Callable[[Call], Outcome]:
        """How the engine's round reaches the nodes."""

        def collect(call: Call) -> Outcome:
            began, before = time.perf_counter(), (self.roll.up_bytes, self.roll.down_bytes)
            for _ in range(TRIES):
                self.roll.refresh()
                if phase in self._federations:  # from the next round on, who came since is asked too
                    self._federations[phase].members = self._members(phase)
                self.refusals.clear()
                found = self._round(call, phase)
                if found.heard >= max(self.least * len(call.people), 1):
                    break
                self.roll.say(f"Too few answered in round {call.seat.round + 1}; it is asked for again.")
                self.roll.wait()
            else:
                raise RunError(
                    f"In round {call.seat.round + 1} the nodes of {found.heard:,} of {len(call.people):,} people "
                    f"answered within {self.roll.deadline:.0f} seconds, {TRIES} times; {self.least:.0%} are needed. "
                    "The round before is kept: start the nodes that are missing and resume, or allow fewer (--least)."
                    + "".join(f" {words}" for words in sorted(self.refusals))
                )
            self.versions |= dict.fromkeys(found.keys, call.seat.round + 1)
            names = [self.roll.members[key].name for key in found.keys]
            self.history.append({
                "phase": phase, "round": call.seat.round + 1, "nodes": names, "people": found.outcome.answered,
                "refused": dict(found.outcome.refused), "seconds": round(time.perf_counter() - began, 3),
            })  # fmt: skip
            return found.outcome._replace(bytes=(self.roll.up_bytes - before[0], self.roll.down_bytes - before[1]))

        return collect

    def _orders(self, call: Call, phase: str) -> dict[str, tuple[Order, bytes]]:
        """What each member that has anybody to ask is asked."""
        assert self._plan is not None
        blob = encode(Download(pack(call.down.params, self.settings.download)[0], call.down.round))
        key = "" if self._plan.wire.noisy else call.seat.key.hex()  # with noise nodes draw from keys of their own
        orders, here, nodes = {}, {member.key for member in self.roll.present()}, 0
        for member in list(self.roll.members.values()):
            mine = member.members[phase]
            asked = np.intersect1d(mine, call.people)
            nodes += bool(len(asked))
            if not len(asked) or member.key not in here:
                continue
            numbers = None if len(asked) == len(mine) else (asked - member.offset).tolist()
            orders[member.key] = self._order(
                "train", phase, member, round=call.seat.round, asked=numbers, key=key, people=call.seat.people,
            ), blob  # fmt: skip
        # In clear a node that is away counts too: the server adds its share, and a round that is asked for again asks
        # every node for the same, so that it answers the same.
        nodes = nodes if self._plan.wire.stage.seal is None else len(orders)
        share = 1 / max(self._needed(nodes), 1) if self._plan.wire.noisy else 0.0
        more = {"shares": share, "nodes": nodes}
        return {member: (order.model_copy(update=more), blob) for member, (order, blob) in orders.items()}

    def _needed(self, nodes: int) -> int:
        """Nodes that together bring all of the noise: in a secure sum those that must be left, and otherwise all."""
        assert self._plan is not None
        sealed = self._plan.wire.stage.seal is not None
        return max(fewest(nodes), math.ceil(2 * nodes / 3)) if sealed else nodes

    def _order(self, what: Any, phase: Any, member: Member, **more: Any) -> Order:
        return Order(
            what=what, version=__version__, facts=self._facts.words(), place=member.place, phase=phase,
            base=self.versions.get(member.key, 0), **self.roll.common, **more,
        )  # fmt: skip

    def _round(self, call: Call, phase: str) -> Found:
        assert self._plan is not None
        orders = self._orders(call, phase)
        expected = sample(self._plan, self._facts, call.down)
        if self._plan.wire.stage.seal is not None:
            return self._sealed(call, orders, expected)
        sizes = {}
        for key, (order, _) in orders.items():
            member = self.roll.members[key]
            sizes[member.place] = len(member.members[phase]) if order.asked is None else len(order.asked)
        door = Door(call.run, call.seat.round, sizes, expected.total, sizes)
        admitted: dict[str, tuple[Upload | None, Trained]] = {}
        heard = 0
        for got in self.roll.exchange(orders):
            told, place = said(Trained, got), got.member.place
            if got.late:
                door.refuse("late")
            elif isinstance(told, Refusal):
                self.roll.say(told.error)
                self.refusals.add(told.error)
                heard += sizes[place] if ANSWERED_OTHERWISE in told.error else 0  # and will not be: its part is lost
            else:
                heard += sizes[place]
                if told is None or not sound(told, sizes[place]):
                    door.refuse("not a message")
                elif not got.blob and not told.answered:  # nobody there had anything sound to say
                    admitted[got.member.key] = None, told
                elif not bears(got.blob, place):
                    door.refuse("not asked")
                elif upload := door.admit(got.blob):
                    admitted[got.member.key] = upload[1], told
        return self._added(admitted, door.refused, heard, _share(orders))

    def _added(
        self, admitted: dict[str, tuple[Upload | None, Trained]], refused: Counter[str], heard: int, share: float
    ) -> Found:
        """The sum, in an order that does not depend on who was first; `share` of the noise is in every node's part."""
        total: Upload | None = None
        parts = 0
        answered, rejected = 0, Counter(refused)
        keys = sorted(admitted, key=lambda key: (min(self.roll.members[key].members["final"], default=0), key))
        for key in keys:
            upload, told = admitted[key]
            answered += told.answered
            rejected.update(told.refused)
            if upload is not None:
                part = Upload({name: _exact(value) for name, value in upload.total.items()}, upload.weight)
                total = part if total is None else total + part
                parts += 1
        if total is not None:  # added in double precision: how people are dealt to nodes does not matter
            total = Upload({n: v.float() if v.is_floating_point() else v for n, v in total.total.items()}, total.weight)
        refusals = Counter({n: c for n, c in rejected.items() if c})
        local = self._plan is not None and self._plan.wire.stage.local
        return Found(Outcome(total, refusals, None, answered, noise=1.0 if local else parts * share), keys, heard)

    def _sealed(self, call: Call, orders: dict[str, tuple[Order, bytes]], expected: Upload) -> Found:
        """The same by Flower's SecAgg+: the sum of all nodes, and no part of it, is seen here."""
        assert self._plan is not None
        nobody = Outcome(None, Counter({"abandoned": len(call.people)}), None, 0)
        need = self._needed(len(orders))
        if len(orders) < need:
            self.roll.say(f"A secure sum needs {need} nodes at least; {count(len(orders), 'node')} can answer.")
            return Found(nobody, [], 0)
        by_node, asks = {}, {}
        for key, (order, blob) in orders.items():
            asked = order.model_dump_json().encode()
            node = self.roll.members[key].node
            by_node[node], asks[node] = key, len(asked).to_bytes(4, "big") + asked + blob
            self.roll.down_bytes += len(asks[node])
        many = 1 + sum(value.numel() for value in expected.total.values())
        found = secure_sum(
            self.roll.grid, asks, many, bits=64, least=need, timeout=self.roll.deadline, round=call.seat.round,
            observe=self.observe,
        )  # fmt: skip
        self.roll.up_bytes += 12 * many * len(found.answered)
        for node, why in found.refused.items():
            words = f"{self.roll.members[by_node[node]].name} is not in the sum: {line(why)}"
            self.roll.say(words)
            self.refusals.add(words)
        if found.total is None:
            self.roll.say(f"The secure sum was not opened: {found.why}")
            again = any(ANSWERED in why for why in found.refused.values())  # and will not be: the round is lost
            return Found(nobody, [], len(call.people) if again else 0)
        words_kept = 64 if self._plan.wire.noisy else None
        sums = SecureSum(most=len(orders), words=words_kept)
        upload = sums.open(from_words(found.total.view(np.uint64), expected))
        told: dict[str, tuple[Upload | None, Trained]] = {}
        for node in found.answered:
            words_of_it = aux_of(found.aux[node])
            told[by_node[node]] = None, words_of_it
        added = self._added(told, Counter(), len(call.people), 0.0)
        wrong = refusal(upload, expected.total, max(len(call.people), 1))
        if wrong and added.outcome.answered:
            refused = Outcome(None, Counter({wrong: added.outcome.answered}), None, 0)
            return Found(refused, added.keys, added.heard)
        outcome = added.outcome._replace(upload=upload if added.outcome.answered else None, noise=1.0)
        return added._replace(outcome=outcome)

    # Judging

    def _ask_all(self, what: str, phase: str, state: State) -> list[Told]:
        """What every node says of its people; after several tries without those that are not there."""
        blob = encode(Download(state.shared, torch.tensor(float(state.round))))
        told: dict[str, Told] = {}
        refused: set[str] = set()
        for _ in range(TRIES):
            self.roll.refresh()
            missing = [m for m in self.roll.present() if m.key not in told and m.key not in refused]
            orders = {
                m.key: (self._order(what, phase, m, round=state.round, passes=passes(state)), blob) for m in missing
            }
            for heard in self.roll.exchange(orders):
                got = None if heard.late else said(Told, heard)
                if isinstance(got, Refusal):
                    refused.add(heard.member.key)
                    self.roll.say(got.error)
                elif got is not None and tallies(got, self._facts.kind, *_most(heard.member, what)):
                    told[heard.member.key] = got
                elif not heard.late:
                    self.roll.say(f"{heard.member.name} told figures that cannot be true; they are left out.")
            if len({*told, *refused}) == len(self.roll.members):
                break
        if not told:
            raise RunError(
                f"No node said how good round {state.round} is"
                + (": all refused, and said why above. Change their node.toml" if refused else ". Start the nodes")
                + ", and resume."
            )
        if what == "judge":
            names = {key: member.name for key, member in self.roll.members.items()}
            self.notes += left_out(names, told, refused)
        return [told[key] for key in sorted(told)]


def _described(facts: Facts, items: Mapping[str, Any], begun: bool) -> Facts:
    """The facts with public item features of the server's catalogue. A run that has begun keeps its feature count."""
    if facts.kind != "ranking":
        return facts
    found = facts.described(items.get("titles") or (), items.get("genres") or ())
    right = found.features is not None and len(found.features) == facts.items
    if right and begun:
        right = found.feature_count == facts.feature_count
    return found if right else facts


def _most(member: Member, what: str) -> tuple[int, int]:
    """How many seen and new people a node may speak for."""
    return (member.hello.people, 0) if what == "validate" else (member.hello.judged, member.hello.newcomers)


def _exact(value: torch.Tensor) -> torch.Tensor:
    """In a type in which sums of many nodes are exact, or nearly so."""
    return value.double() if value.is_floating_point() else value.long()


def _share(orders: dict[str, tuple[Order, bytes]]) -> float:
    """The share of the noise that every node of this round adds."""
    return next((order.shares for order, _ in orders.values()), 0.0)
