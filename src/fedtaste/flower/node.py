"""A node of a federation: follows the server's orders (hello, train, validate, judge) with its people's data.

A node is one person's device, or holds the clients of many people and sends the sum of their uploads.

Flower starts a process for every message, so all of a node's state is on its disk (`store`):
    catalogue-HASH.json              the items of a federation
    RUN/shard.safetensors            this node's people, if it brought a file of its own
    RUN/PHASE-N.safetensors          their private parameters after N rounds: touched rows
    RUN/answers.json                 which order was answered in each round of a run with noise
    secure_rounds.json               which secure sums were answered
    secret                           32 bytes that this node's noise and rounding are drawn from
The server names the N to continue from, so a round that was computed and not counted (a late answer, a server that
died) has no effect. Data and private parameters never leave; they are on disk before the answer is sent.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from fedtaste import __version__
from fedtaste.core import Download, Params, People, Stage, StageContext, Upload
from fedtaste.engine.backends import Call, Outcome, choose_backend, collect, wide
from fedtaste.engine.checkpoint import load_params, save_params
from fedtaste.engine.run import State
from fedtaste.engine.store import Store
from fedtaste.errors import DataError, FedtasteError, RunError, SettingError
from fedtaste.evaluation.metric_sums import tally, withhold_groups
from fedtaste.evaluation.protocol import Evaluation, RankingMetrics
from fedtaste.experiment.plan import Plan, plan
from fedtaste.experiment.resources import set_threads
from fedtaste.experiment.settings import Settings
from fedtaste.files.atomic import write_atomically
from fedtaste.flower.answered_rounds import NodeConfig, answer_once, node_store
from fedtaste.flower.messages import Hello, MetricReport, MetricSums, Order, Refusal, TrainReport, single_line
from fedtaste.flower.node_noise import NodeNoise, config_number
from fedtaste.flower.shards import Shard, catalogue_hash, load_shard, parse_facts, shard_from_file
from fedtaste.flower.validation import expected_upload
from fedtaste.methods import find_method
from fedtaste.tasks.base import Served, Task
from fedtaste.tasks.ranking import Ranking
from fedtaste.wire.messages import Head, encode, read_download
from fedtaste.wire.packing import unpack
from fedtaste.wire.secure_sums import SecureSum, to_words

LEAST_LISTS = 10  # people about whose lists a node reports, or more (fewest)
Answer = Hello | TrainReport | MetricReport | Refusal
LoadNodeData = Callable[["Node", Order], "NodeData"]


@dataclass(frozen=True, eq=False)
class NodeData:
    """This node's people in one run."""

    task: Task
    own: People  # their numbers in the task
    plan: Plan  # at the hello from this node's facts, later from the federation's


@dataclass(frozen=True, eq=False)
class Job(NodeData):
    """An order with everything that is needed to follow it."""

    order: Order
    settings: Settings
    down: Download
    private: Store

    def empty_upload(self) -> Upload:
        """An upload of zeros, for a node without a valid one."""
        like = expected_upload(self.plan, self.task.facts, self.down)
        return Upload({name: torch.zeros_like(value) for name, value in like.total.items()}, torch.zeros(()))


class Node:
    """Answers the server's orders from the data and the store that its configuration names."""

    def __init__(self, config: NodeConfig, load: LoadNodeData | None = None) -> None:
        self.config, self.load = config, load or Node.load_data
        self.name = str(config.get("name", "this node"))[:64]
        self.refused_because = ""  # the kind of error behind the last refusal: setting, data, run or protocol

    @cached_property
    def store(self) -> Path:
        """The folder of this node's own files."""
        return node_store(self.config)

    @cached_property
    def noise(self) -> NodeNoise:
        return NodeNoise(self.config, self.store, self.name)

    @cached_property
    def fewest(self) -> int:
        """The smallest number of people that this node reports about."""
        number = config_number(self.config, "fewest", 1)
        if number != int(number):
            raise SettingError(f"fewest must be a whole number, got {number:g}. Change it in node.toml.")
        return int(number)

    def answer(self, order: Order, blob: bytes) -> tuple[Answer, bytes]:
        """The reply to an order, and its blob. An error that the operator can repair becomes a Refusal."""
        try:
            if order.version != __version__:
                raise SettingError(
                    f"This node has fedtaste {__version__}, the federation {single_line(order.version)[:40]}; "
                    "different versions may compute different numbers. Install the same version on both."
                )
            if order.action == "hello":
                return self.hello(order, blob)
            if order.action == "train":
                return self.train(order, blob)
            return self.report_metrics(order, blob)
        except FedtasteError as error:
            self.refused_because = type(error).__name__.removesuffix("Error").lower()
            return Refusal(error=f"{self.name}: {error}"), b""

    # The node's data

    def hello(self, order: Order, blob: bytes) -> tuple[Hello, bytes]:
        """Describe this node's people."""
        self._keep_catalogue(order, blob)
        data = self.load(self, order)
        task, own = data.task, data.own
        self.noise.require_some(data.plan)
        numbers = {"search": own, "final": own}
        for phase in numbers:
            federation = task.federation(phase, data.plan.method, data.plan.sampling, None)
            numbers[phase] = np.intersect1d(federation.members, own)
        shard = self.shard(order) if self.load is Node.load_data else None
        numbers["person_hashes"] = own if shard is None else shard.person_hashes(order.run)
        reply = Hello(
            version=__version__,
            name=self.name,
            own=shard is not None and not shard.numbered,
            facts=task.facts.words(),
            people=len(own),
            newcomers=len(task.newcomers),
            judged=len(task.seen),
            choosers=int(task.validates),
            interactions=task.interactions,
            notes=list(task.notes),
        )
        tensors = {name: torch.from_numpy(np.asarray(who, np.int64)) for name, who in numbers.items()}
        return reply, encode(Upload(tensors, torch.ones(())), Head(order.run, 0, 0))

    def _keep_catalogue(self, order: Order, blob: bytes) -> None:
        """Store the catalogue that came with a hello, if it is the announced one."""
        path = self.store / f"catalogue-{order.catalogue}.json"
        if not blob or path.exists():
            return
        try:
            names = json.loads(blob)
            valid = all(isinstance(name, str) for name in names) and catalogue_hash(names) == order.catalogue
        except (ValueError, TypeError, RecursionError):
            valid = False
        if not valid:
            raise DataError("The catalogue that arrived is not the one that was announced. Start the run again.")
        write_atomically(path, blob)

    def shard(self, order: Order) -> Shard:
        """This node's data: a shard that was cut for it, or its own file, which becomes a shard at the first hello."""
        if not self.config.get("data"):
            raise SettingError("This node has no data. Start it with --node-config 'data=\"/a/file.csv\" ...'.")
        source, stored = Path(str(self.config["data"])), self.folder(order) / "shard.safetensors"
        if not source.exists() and not stored.exists():
            raise DataError(f"This node's data {source} does not exist. Put the file there, or name another.")
        if source.suffix == ".safetensors":
            shard = load_shard(source)
        elif stored.exists() and (order.action != "hello" or not source.exists()):
            shard = load_shard(stored)
        else:
            names = self.store / f"catalogue-{order.catalogue}.json"
            items = tuple(json.loads(names.read_text("utf-8"))) if names.exists() else ()
            shard = shard_from_file(source, parse_settings(order), items)
            shard.save(stored)
        if shard.catalogue != order.catalogue:
            raise DataError(
                f"This node's data were cut for another catalogue of items ({shard.catalogue[:8]}) than the "
                f"federation's ({order.catalogue[:8]}). Cut them again from the same data."
            )
        if not len(shard.own):
            raise DataError("This node's data contain nobody. Give it a file with at least one person.")
        return shard

    def load_data(self, order: Order) -> NodeData:
        """This node's shard as a task."""
        shard, settings = self.shard(order), parse_settings(order)
        if not order.facts and order.action != "hello":
            raise RunError("The order has no facts of the federation's task. Start the run again.")
        facts = parse_facts(order.facts) if order.facts else None
        task = shard.task(settings, facts.scale if facts else None)
        if self.config.get("method"):  # of the federation's own: imported only where node.toml names it
            find_method(str(self.config["method"]))
        return NodeData(task, shard.own, plan(settings, facts or task.facts, elsewhere=True))

    # Private parameters

    def folder(self, order: Order) -> Path:
        """The run's folder in the store."""
        folder = self.store / f"{order.run:016x}"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder

    def load_private(self, order: Order, data: NodeData, initial: Params, rows: tuple[str, ...]) -> Store:
        """The private parameters of this node's people after `order.base` rounds."""
        store = Store.fresh(initial, data.task.people, rows)
        if order.base and initial:
            path = self.folder(order) / f"{order.phase}-{order.base}.safetensors"
            if not path.exists():
                raise RunError(
                    f"The federation continues from round {order.base} of {order.phase}, and this node has nothing of "
                    "that round: its store was lost or replaced. Restore the store from a copy, or start a new run."
                )
            params, about = load_params(path)
            if about.get("people") != data.own.tolist():
                raise RunError(
                    f"{path.name} belongs to other people than this node's data. Restore the store, or start a new run."
                )
            store.unpack_part(data.own, params)
        return store

    def _save_private(self, job: Job) -> None:
        """Save the private parameters after this round, and remove rounds that the server cannot return to."""
        order = job.order
        if not job.private.initial:
            return
        folder = self.folder(order)
        about = {"people": job.own.tolist(), "run": order.run, "phase": order.phase}
        path = folder / f"{order.phase}-{order.round + 1}.safetensors"
        save_params(path, job.private.part(job.own), about)
        path.chmod(0o600)
        for old in folder.glob(f"{order.phase}-*.safetensors"):
            number = old.stem.rsplit("-", 1)[-1]
            if number.isdigit() and int(number) < order.base:
                old.unlink(missing_ok=True)

    # Training

    def train(self, order: Order, blob: bytes) -> tuple[TrainReport, bytes]:
        """One round: the encoded sum of this node's uploads."""
        if self.config.get("secure") or "secure" in str(order.settings.get("wire", "")):
            raise SettingError("This node takes part in secure sums only, not in sums in clear. Use --wire secure.")
        upload, report = self._train(self._job(order, blob), blob)
        return report, b"" if upload is None else encode(upload, Head(order.run, order.round, order.index))

    def train_secure(self, order: Order, blob: bytes) -> tuple[NDArray[np.int64], TrainReport]:
        """One round as integers for a secure sum. A node without a valid upload sends zeros, so that the masks of the
        other nodes still cancel."""
        job = self._job(order, blob)
        upload, report = self._train(job, blob)
        words = 64 if job.plan.wire.noisy else None
        sealed = SecureSum(most=order.nodes, words=words).encode(upload or job.empty_upload())
        return to_words(sealed, np.uint64).view(np.int64), report

    def _train(self, job: Job, blob: bytes) -> tuple[Upload | None, TrainReport]:
        """The sum of this node's uploads with its noise, or None if there is nothing to send."""
        began, order, wire = time.perf_counter(), job.order, job.plan.wire
        federation = job.task.federation(order.phase, job.plan.method, job.plan.sampling, None)
        people = np.intersect1d(federation.members, job.own)
        if order.cohort is not None:
            people = np.intersect1d(np.array(order.cohort, np.int64), people)
        if 0 < len(people) < self.fewest:
            raise SettingError(f"This node answers for {self.fewest} people or more at once (fewest).")
        self.noise.require_enough(order, job.plan)
        digest = self.noise.digest(order, people, blob)
        if wire.noisy and wire.stage.secure_sum is None:  # secure sums are recorded in secure_rounds.json
            answer_once(order, self.folder(order), digest)
        context = self.noise.context(order, job.plan, digest)
        outcome = Outcome(None, Counter(), None, 0)
        if len(people):
            stage = wire.stage
            stages = Stage(client=stage.client, dense=stage.dense, random=stage.random, turns=stage.turns)
            examples = federation.examples(people, order.round, job.plan.method.examples)
            call = Call(job.down, people, examples, context, stages, people, order.run)
            fast = job.plan.method.fast
            method = job.plan.method.replace(fast=replace(fast, kernel=fast.exact or fast.kernel))
            outcome = collect(choose_backend(job.settings.backend, method, stages), method, call, job.private)
        self._save_private(job)
        return self._finish_round(job, people, outcome, context, began)

    def _finish_round(
        self, job: Job, people: People, outcome: Outcome, context: StageContext, began: float
    ) -> tuple[Upload | None, TrainReport]:
        """The upload with noise, and the counts that may be reported."""
        upload = outcome.upload if outcome.answered else None
        report = TrainReport(
            answered=outcome.answered, refused=dict(outcome.refused), seconds=round(time.perf_counter() - began, 3)
        )
        wire = job.plan.wire
        if upload and wire.stage.turns:  # everybody's rows are the same
            upload = wire.stage.turns.cut(upload, 0, job.order.round)
        if wire.noisy and (wire.stage.local or wire.stage.secure_sum is not None):
            # The run protects people from the server, too: it does not learn how many clients had a valid update, and
            # those who had none send zeros with noise.
            if outcome.refused:
                reasons = ", ".join(f"{reason}: {number}" for reason, number in outcome.refused.items())
                print(f"{self.name}: updates were refused in round {job.order.round + 1} ({reasons}).", flush=True)  # noqa: T201
            upload = Upload((upload or job.empty_upload()).total, torch.tensor(float(len(people))))
            report = TrainReport(answered=len(people))
        if upload is None:
            return None, report
        return _narrow(self.noise.add(job.order, job.plan, wide(upload), context, report.answered)), report

    # Metrics

    def report_metrics(self, order: Order, blob: bytes) -> tuple[MetricReport, bytes]:
        """Sums of metrics of this node's people: to choose the round, or for the result at the end; then also counts by
        item, where they may be sent."""
        job = self._job(order, blob)
        task, state = job.task, State(job.down.params, {}, job.private, order.round)
        served = Served(job.plan.method, job.plan.model, state, job.plan.sampling)
        if order.action == "validate":
            return self._withhold_few({"seen": tally(task.validation(served)) if task.validates else None}), b""
        parts: dict[str, Evaluation] = {}
        if len(task.seen):
            parts["seen"] = task.evaluate(served, task.seen, None)
        if len(task.newcomers):
            parts["new"] = task.evaluate(served, task.newcomers, order.passes)
        least = 2**31 if job.plan.wire.noisy else max(self.fewest, LEAST_LISTS)  # no epsilon covers lists
        report = self._withhold_few({name: withhold_groups(tally(part), least) for name, part in parts.items()})
        members = task.federation("final", job.plan.method, job.plan.sampling, None).members
        enough = 0 < len(members) >= self.fewest
        report = report.model_copy(update={"gradients": task.gradients(served, job.plan.seed) if enough else None})
        return report, self._item_counts(job, parts, least)

    def _item_counts(self, job: Job, parts: dict[str, Evaluation], least: int) -> bytes:
        """In how many lists each item is, and how many people have it; empty where fewer than `least` people would be
        counted, and in a secure sum, because it hides such counts."""
        order, task = job.order, job.task
        hidden = self.config.get("secure") or job.plan.wire.stage.secure_sum is not None
        if hidden or not isinstance(task, Ranking) or len(job.own) < least:
            return b""
        counts = {
            name: torch.tensor(part.lists.recommended)
            for name, part in parts.items()
            if isinstance(part, RankingMetrics) and part.lists and part.people >= least
        }
        if not counts:
            return b""
        counts["taken"] = torch.from_numpy(task.item_counts())
        return encode(Upload(counts, torch.ones(())), Head(order.run, order.round, order.index))

    def _withhold_few(self, parts: dict[str, MetricSums | None]) -> MetricReport:
        """Report parts of at least `fewest` people, and name the others; refuse if there are only others. The metrics
        of one person are that person's private data."""
        few = [name for name, part in parts.items() if part and part["people"] < self.fewest]
        shown = {name: part for name, part in parts.items() if part and name not in few}
        if few and not shown:
            raise SettingError(
                f"This node reports metrics of {self.fewest} people or more at once (fewest), and has fewer to judge."
            )
        return MetricReport.model_validate({**shown, "too_few": few})

    def _job(self, order: Order, blob: bytes) -> Job:
        data, settings = self.load(self, order), parse_settings(order)
        if data.plan.method.pooled or not order.phase:
            raise SettingError("The federation asked for something that no node does. Use another method.")
        set_threads(settings.threads)
        method, model = data.plan.method, data.plan.model
        shared, initial = method.init(model.init(torch.Generator().manual_seed(data.plan.seed)))
        try:
            params = unpack(read_download(blob).params, shared, settings.download)
        except ValueError as error:
            raise RunError(f"The federation's download does not fit this method ({error}).") from error
        down = Download(params, torch.tensor(float(order.round)))
        private = self.load_private(order, data, initial, method.rows)
        return Job(data.task, data.own, data.plan, order, settings, down, private)


def parse_settings(order: Order) -> Settings:
    """The run's settings in an order."""
    try:
        return Settings.model_validate(order.settings)
    except (TypeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise SettingError(f"The federation's settings are not valid for this fedtaste ({reason}).") from error


def _narrow(upload: Upload) -> Upload:
    """In single precision wherever that is exact: always for one person, and for sums of singles. Integers stay."""
    total = dict(upload.total)
    for name, value in total.items():
        if value.dtype == torch.float64 and torch.equal(value.float().double(), value):
            total[name] = value.float()
    return Upload(total, upload.weight.float())
