"""A node: one person's device, or a shard of people that runs the fast engine and sends one sum.

Every message starts a new process, so a node is what lies on its disk (`store`):
    catalogue-HASH.json              the items of a federation
    RUN/shard.safetensors            this node's people, where it brought its own file
    RUN/PHASE-N.safetensors          their private parameters after N rounds: touched rows, written whole or not at all
    RUN/answers.json                 which order this node answered in each round of a run with noise
    secret                           32 bytes that this node's noise and rounding are drawn from; nobody else knows them
The server says which N to go on from, so a round that was computed and never counted (a late answer, a server that
died) is as if it had not been. Private parameters and data never leave; they are on disk before the answer goes out.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from .. import __version__
from ..core import Params, Stage, Upload
from ..costs import gradients, threads
from ..engine.backends import Call, Outcome, choose, collect, wide
from ..engine.checkpoint import load_params, save_params
from ..engine.run import State
from ..engine.store import Store
from ..errors import DataError, RunError, SettingError, TacitError
from ..evaluation.tally import tally
from ..settings import Plan, plan
from ..tasks import People, Task
from ..wholefile import write_atomically
from ..wire.ledger import Head, encode
from ..wire.secure import SecureSum, to_words
from .messages import Hello, Order, Refusal, Told, Trained, line
from .node_noise import Config, NodeNoise, number_in
from .reading import facts_of, received, sample, settings_of
from .shards import Shard, bring, catalogue_hash, load_shard

Answer = Hello | Trained | Told | Refusal
Make = Callable[["Node", Order], "Home"]


@dataclass(frozen=True, eq=False)
class Home:
    """What this node's people are, for one run."""

    task: Task
    own: People  # their numbers in the task
    plan: Plan | None  # None before the federation's facts are known


class Node:
    def __init__(self, config: Config, make: Make | None = None) -> None:
        self.config, self.make = config, make or Node.home
        self.name = str(config.get("name", "this node"))[:64]

    @cached_property
    def store(self) -> Path:
        """Where this node keeps what is its own."""
        place = self.config.get("store")
        if not place:
            raise SettingError("This node has no store. Start it with --node-config 'store=\"/a/folder\" ...'.")
        try:
            Path(str(place)).mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise SettingError(
                f"This node's store {place} cannot be made ({error.strerror}). Choose another."
            ) from error
        return Path(str(place))

    @cached_property
    def noise(self) -> NodeNoise:
        return NodeNoise(self.config, self.store, self.name)

    @cached_property
    def fewest(self) -> int:
        """The node answers for so many people at once, or not at all."""
        found = number_in(self.config, "fewest", 1)
        if found != int(found):
            raise SettingError(f"fewest must be a whole number, got {found:g}. Change it in node.toml.")
        return int(found)

    def answer(self, order: Order, blob: bytes) -> tuple[Answer, bytes]:
        """What to say to an order. What whoever runs the node can mend is said in words, and not raised."""
        try:
            return self._answer(order, blob)
        except TacitError as error:
            return Refusal(error=line(f"{self.name}: {error}")), b""

    def _answer(self, order: Order, blob: bytes) -> tuple[Answer, bytes]:
        if order.version != __version__:
            raise SettingError(
                f"This node has tacit {__version__}, the federation {line(order.version)[:40]}; they would not compute "
                "the same. Install the same version on both."
            )
        if order.what == "hello":
            return self.hello(order, blob)
        if order.what == "train":
            if self.config.get("secure") or "secure" in str(order.settings.get("wire", "")):
                raise SettingError(
                    "This node adds to secure sums only, and was asked for its numbers in clear. Use --wire secure."
                )
            return self.train(order, blob)
        return self.tell(order, blob), b""

    # Who is here

    def hello(self, order: Order, blob: bytes) -> tuple[Hello, bytes]:
        path = self.store / f"catalogue-{order.catalogue}.json"
        if blob and not path.exists():
            try:
                names = json.loads(blob)
                right = all(isinstance(name, str) for name in names) and catalogue_hash(names) == order.catalogue
            except (ValueError, TypeError, RecursionError):
                right = False
            if not right:
                raise DataError("The catalogue that came is not the one that was announced. Begin again.")
            write_atomically(path, blob)
        home = self.make(self, order)
        task, own = home.task, home.own
        trial = home.plan or plan(settings_of(order), task.facts, elsewhere=True)
        self.noise.require_some(trial)
        members = {
            phase: np.intersect1d(task.federation(phase, trial.method, trial.sampling, None).members, own)
            for phase in ("search", "final")
        }
        shard = self.shard(order) if self.make is Node.home else None
        marks = own if shard is None else shard.marks(order.run)
        told = Hello(
            version=__version__, name=self.name, own=shard is not None and not shard.numbered,
            facts=task.facts.words(), people=len(own), newcomers=len(task.newcomers), judged=len(task.seen),
            choosers=0 if task.validate is None else 1, interactions=task.interactions, notes=list(task.notes),
        )  # fmt: skip
        numbers = {name: torch.from_numpy(np.asarray(who, np.int64)) for name, who in members.items()}
        upload = Upload(numbers | {"marks": torch.from_numpy(marks)}, torch.ones(()))
        return told, encode(upload, Head(order.run, 0, 0))

    def shard(self, order: Order) -> Shard:
        """This node's data: cut for it, or its own file, which becomes a shard when it first says hello."""
        place = self.config.get("data")
        if not place:
            raise SettingError("This node has no data. Start it with --node-config 'data=\"/a/file.csv\" ...'.")
        source, kept = Path(str(place)), self.folder(order) / "shard.safetensors"
        if not source.exists() and not kept.exists():
            raise DataError(f"This node's data {source} does not exist. Put the file there, or name another.")
        if source.suffix == ".safetensors":
            shard = load_shard(source)
        elif kept.exists() and (order.what != "hello" or not source.exists()):
            shard = load_shard(kept)
        else:
            names = self.store / f"catalogue-{order.catalogue}.json"
            items = tuple(json.loads(names.read_text("utf-8"))) if names.exists() else ()
            shard = bring(source, settings_of(order), items)
            shard.save(kept)
        if shard.catalogue != order.catalogue:
            raise DataError(
                f"This node's data were cut for another catalogue of items ({shard.catalogue[:8]}) than the "
                f"federation's ({order.catalogue[:8]}). Cut them again from the same data."
            )
        if not len(shard.own):
            raise DataError("Nobody is in this node's data. Give it a file with at least one person.")
        return shard

    def home(self, order: Order) -> Home:
        shard, settings = self.shard(order), settings_of(order)
        if not order.facts:
            return Home(shard.task(settings), shard.own, None)
        facts = facts_of(order.facts)
        return Home(shard.task(settings, facts.scale), shard.own, plan(settings, facts, elsewhere=True))

    # Private parameters

    def folder(self, order: Order) -> Path:
        made = self.store / f"{order.run:016x}"
        made.mkdir(mode=0o700, parents=True, exist_ok=True)
        return made

    def private(self, order: Order, home: Home, initial: Params, rows: tuple[str, ...]) -> Store:
        """These people's own, after `base` rounds."""
        store = Store.fresh(initial, home.task.people, rows)
        if order.base and initial:
            path = self.folder(order) / f"{order.phase}-{order.base}.safetensors"
            if not path.exists():
                raise RunError(
                    f"The federation goes on from round {order.base} of {order.phase}, and this node has nothing of "
                    "that round: its store was lost or replaced. Restore the store from a copy, or begin again."
                )
            packed, about = load_params(path)
            if about.get("people") != home.own.tolist():
                raise RunError(
                    f"{path.name} is of other people than this node's data. Restore the store, or begin again."
                )
            store.take(home.own, packed)
        return store

    def keep(self, order: Order, home: Home, store: Store) -> None:
        """What stays with these people, and with what it began; older rounds nobody can ask for any more."""
        if not store.initial:
            return
        folder = self.folder(order)
        about = {"people": home.own.tolist(), "run": order.run, "phase": order.phase}
        path = folder / f"{order.phase}-{order.round + 1}.safetensors"
        save_params(path, store.part(home.own), about)
        path.chmod(0o600)
        for old in folder.glob(f"{order.phase}-*.safetensors"):
            number = old.stem.rsplit("-", 1)[-1]
            if number.isdigit() and int(number) < order.base:
                old.unlink(missing_ok=True)

    # Work

    def train(self, order: Order, blob: bytes) -> tuple[Trained, bytes]:
        upload, told = self.round(order, blob)
        if upload is None:
            return told, b""
        return told, encode(upload, Head(order.run, order.round, order.place))

    def sealed(self, order: Order, blob: bytes) -> tuple[NDArray[np.int64], Trained]:
        """One round's sum as integers for secure aggregation. A node without a valid upload sends zeros, so that the
        masks of the other nodes still cancel."""
        made = self._planned(order).plan
        assert made is not None
        upload, told = self.round(order, blob)
        if upload is None:
            upload = _zeros(self._sample(order, blob))
        words = 64 if made.wire.noisy else None
        return to_words(SecureSum(most=order.nodes, words=words).seal(upload), np.uint64).view(np.int64), told

    def round(self, order: Order, blob: bytes) -> tuple[Upload | None, Trained]:
        """One round of this node's people: their sum with this node's noise, or None where there is nothing to send."""
        began = time.perf_counter()
        home = self._planned(order)
        made, task = home.plan, home.task
        assert made is not None
        shared, initial = made.method.init(made.model.init(torch.Generator().manual_seed(made.seed)))
        federation = task.federation(order.phase, made.method, made.sampling, None)
        members = np.intersect1d(federation.members, home.own)
        people = members if order.asked is None else np.intersect1d(np.array(order.asked, np.int64), members)
        if 0 < len(people) < self.fewest:
            raise SettingError(f"This node answers for {self.fewest} people or more at once (fewest).")
        self.noise.require_enough(order, made)
        store = self.private(order, home, initial, made.method.rows)
        settings, wire = settings_of(order), at_node(made.wire.stage)
        down = received(blob, shared, settings, order.round)
        request = self.noise.request(order, people, blob)
        if made.wire.noisy and made.wire.stage.seal is None:  # in a secure sum seals.json does this
            self.noise.answer_once(order, self.folder(order), request)
        seat = self.noise.seat(order, made, request)
        found = Outcome(None, Counter(), None, 0)
        if len(people):
            call = Call(down, people, federation.examples(people, order.round), seat, wire, people, order.run)
            method = made.method.but(kernel=made.method.kernel and (made.method.exact or made.method.kernel))
            found = collect(choose(settings.backend, method, wire), method, call, store)
        self.keep(order, home, store)
        told = Trained(
            answered=found.answered, refused=dict(found.refused), seconds=round(time.perf_counter() - began, 3)
        )
        upload = found.upload if found.answered else None
        if _hides_counts(made):
            if found.refused:
                shown = ", ".join(f"{reason}: {number}" for reason, number in found.refused.items())
                print(f"{self.name}: updates were refused in round {order.round + 1} ({shown}).", flush=True)  # noqa: T201
            weight = torch.tensor(float(len(people)))
            total = (upload or _zeros(self._sample(order, blob))).total
            upload, told = Upload(total, weight), Trained(answered=len(people))
        return None if upload is None else small(self.noise.add(order, made, wide(upload), seat, told.answered)), told

    def _sample(self, order: Order, blob: bytes) -> Upload:
        """What an answer to this order looks like."""
        home = self._planned(order)
        assert home.plan is not None
        shared, _ = home.plan.method.init(home.plan.model.init(torch.Generator().manual_seed(home.plan.seed)))
        return sample(home.plan, home.task.facts, received(blob, shared, settings_of(order), order.round))

    def tell(self, order: Order, blob: bytes) -> Told:
        """Sums of metrics of this node's people: for choosing the round, or, at the end, for the result."""
        home = self._planned(order)
        made, task = home.plan, home.task
        assert made is not None
        shared, initial = made.method.init(made.model.init(torch.Generator().manual_seed(made.seed)))
        down = received(blob, shared, settings_of(order), order.round)
        store = self.private(order, home, initial, made.method.rows)
        state = State(down.params, {}, store, order.round)
        common = (made.method, made.model, state, made.sampling)
        if order.what == "validate":
            return self._enough_people({"seen": tally(task.chosen(*common)) if task.chosen and task.validate else None})
        seen = tally(task.judge(*common, task.seen, None)) if len(task.seen) else None
        new = tally(task.judge(*common, task.newcomers, order.passes)) if len(task.newcomers) else None
        members = task.federation("final", made.method, made.sampling, None).members
        many = 0 < len(members) >= self.fewest
        found = self._enough_people({"seen": seen, "new": new})
        return found.model_copy(update={"gradients": gradients(made, task, state) if many else None})

    def _enough_people(self, parts: dict[str, dict[str, Any] | None]) -> Told:
        """Metrics of `fewest` people and more; what is of fewer is left out, and told to be. Refused where that is all:
        the metrics of one person are that person's own figures."""
        few = [name for name, part in parts.items() if part and part["people"] < self.fewest]
        kept = {name: part for name, part in parts.items() if part and name not in few}
        if few and not kept:
            raise SettingError(
                f"This node tells metrics of {self.fewest} people or more at once (fewest), and has fewer to judge."
            )
        return Told.model_validate({**kept, "too_few": few})

    def _planned(self, order: Order) -> Home:
        home = self.make(self, order)
        if home.plan is None:
            raise RunError("The federation asked for work before it said what on. Begin again.")
        if home.plan.method.pooled or not order.phase:
            raise SettingError("The federation asked for what no node does. Use another method.")
        threads(settings_of(order).threads)
        return home


def _zeros(like: Upload) -> Upload:
    return Upload({name: torch.zeros_like(value) for name, value in like.total.items()}, torch.zeros(()))


def _hides_counts(made: Plan) -> bool:
    """Whether the run's promise is against the server too: then how many of the people who were asked had something
    sound to send is not told, and those who had not send zeros with noise."""
    return made.wire.noisy and (made.wire.stage.local or made.wire.stage.seal is not None)


def small(upload: Upload) -> Upload:
    """In single precision wherever that loses nothing: always for one person, and for sums that were added in it. Whole
    numbers stay whole."""
    total = {n: v.float() if v.dtype == torch.float64 and torch.equal(v.float().double(), v) else v
             for n, v in upload.total.items()}  # fmt: skip
    return Upload(total, upload.weight.float())


def at_node(stage: Stage) -> Stage:
    """What of a wire happens before a node's sum."""
    return Stage(client=stage.client, whole=stage.whole, random=stage.random)
