"""The server of a federation: the Flower ServerApp runs the experiment of `fedtaste run` with clients on nodes.

FlowerClients takes the place of the local clients and collects a round's uploads over Flower. FlowerTask takes the
place of the task and lets nodes compute the metrics. Everything else (the round loop, the search for the best round,
the server's step, checkpoints, the result) is the same code as in a simulation. Uploads pass the same validation
(wire/validation.py). Nodes that do not answer in time count as dropped out. The state is on disk after every round, and
a server that died continues from there.
"""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from flwr.app import Message
from flwr.serverapp import Grid

from fedtaste import __version__
from fedtaste.core import Download, Method, People, Stage, Upload
from fedtaste.data.interactions import Interactions
from fedtaste.engine.backends import NO_EXAMPLES, Call, Outcome
from fedtaste.engine.checkpoint import load_params
from fedtaste.engine.run import State
from fedtaste.errors import FedtasteError, RunError, SettingError
from fedtaste.evaluation.list_metrics import BeyondAccuracy, ListMetrics, item_metrics, metrics_of_sums
from fedtaste.evaluation.metric_sums import Tallied
from fedtaste.evaluation.protocol import Evaluation
from fedtaste.experiment.folder import RunFolder
from fedtaste.experiment.plan import Plan, plan
from fedtaste.experiment.result import RunResult
from fedtaste.experiment.settings import Settings
from fedtaste.experiment.train import execute, prepare_remote
from fedtaste.federation import Federation
from fedtaste.files.lock import lock_folder
from fedtaste.flower import validation
from fedtaste.flower.answered_rounds import ANSWERED, ANSWERED_OTHERWISE
from fedtaste.flower.counters import Counters, add_counters
from fedtaste.flower.membership import Member, Membership
from fedtaste.flower.messages import Action, MetricReport, Order, Refusal, TrainReport, pack_request, single_line
from fedtaste.flower.secagg import SecureOutcome, min_threshold, secure_sum
from fedtaste.flower.shards import catalogue_hash, merge_facts, parse_facts
from fedtaste.flower.status import StatusWriter
from fedtaste.flower.validation import ItemCounts
from fedtaste.methods import find_method
from fedtaste.result_part import JsonObject
from fedtaste.tasks.base import Facts, Sampling, Served, Task
from fedtaste.tasks.serve import passes
from fedtaste.text import count
from fedtaste.wire.messages import encode
from fedtaste.wire.secure_sums import SecureSum, from_words
from fedtaste.wire.validation import UploadValidator, refusal

ATTEMPTS = 3  # to complete a round, or to get everybody's metrics
Orders = dict[str, Order]  # by member key
Reports = dict[str, tuple[Upload | None, TrainReport]]  # by member key
RunConfig = Mapping[str, object]  # of a Flower run: folder, settings, catalogue, nodes, deadline, least


class CollectedRound(NamedTuple):
    """The replies to one attempt at a round."""

    outcome: Outcome
    keys: list[str]  # members whose part is in it
    responding: int  # people of nodes that replied, validly or not


@dataclass(eq=False)
class FlowerClients:
    """The clients of an experiment, on the nodes of a federation (experiment.progress.RemoteClients)."""

    membership: Membership
    facts: Facts
    plan: Plan
    least: float = 0.5  # share of a cohort's people whose nodes must answer
    observe: Callable[[Message], None] | None = None  # sees every message of a secure sum
    count: Callable[[Counters], None] = lambda counted: None  # for the operator (counters.json)
    versions: dict[str, int] = field(default_factory=dict)  # by member: rounds of this phase that count for it
    history: list[dict[str, object]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    item_counts: dict[str, ItemCounts] = field(default_factory=dict)  # by member, of the last judge order
    refusals: set[str] = field(default_factory=set)  # reasons of nodes that refused the last order
    _federations: dict[str, Federation] = field(default_factory=dict)

    # What a checkpoint remembers

    def note(self) -> JsonObject:
        kept = {"versions": self.versions, "offsets": self.membership.offsets, "history": self.history}
        return kept | {"notes": self.notes, "facts": self.facts.words()}

    def recall(self, saved: JsonObject) -> None:
        self.versions, self.history = dict(saved.get("versions", {})), list(saved.get("history", []))
        self.notes = list(saved.get("notes", []))

    def federation(self, phase: str) -> Federation:
        """Who learns in a phase; their examples are on the nodes."""
        self._federations[phase] = Federation(0, self._learners(phase), lambda *_: NO_EXAMPLES, self.facts.items)
        return self._federations[phase]

    def _learners(self, phase: str) -> People:
        parts = [member.learners[phase] for member in self.membership.members.values()]
        return np.sort(np.concatenate(parts)) if parts else np.zeros(0, np.int64)

    # A round

    def wire(self, stage: Stage) -> Stage:
        """The server's part of a wire: nodes have added their noise, and the server adds what is missing."""
        return Stage(server=stage.server, poisson=stage.poisson)

    def clients(self, phase: str) -> Callable[[Call], Outcome]:
        """How the engine reaches the clients in a phase."""
        return lambda call: self._collect(call, phase)

    def _collect(self, call: Call, phase: str) -> Outcome:
        """Attempt a round until enough nodes have answered."""
        members, number = self.membership, call.context.round + 1
        began, up_before, down_before = time.perf_counter(), members.up_bytes, members.down_bytes
        for _ in range(ATTEMPTS):
            members.refresh()
            if phase in self._federations:  # nodes that joined take part from the next round on
                self._federations[phase].members = self._learners(phase)
            self.refusals.clear()
            collected = self._attempt(call, phase)
            if collected.responding >= max(self.least * len(call.people), 1):
                break
            members.log(f"Too few nodes answered in round {number}; it is repeated.")
            members.wait_for_lost()
        else:
            raise RunError(
                f"In round {number} the nodes of {collected.responding:,} of {len(call.people):,} people answered "
                f"within {members.deadline:.0f} seconds, {ATTEMPTS} times; {self.least:.0%} are needed. The round "
                "before is kept: start the missing nodes and resume, or allow fewer (--least)."
                + "".join(f" {reason}" for reason in sorted(self.refusals))
            )
        self.versions |= dict.fromkeys(collected.keys, number)
        outcome, turns = collected.outcome, self.plan.wire.stage.turns
        if turns and outcome.upload is not None:
            outcome = outcome._replace(upload=turns.restore(outcome.upload, 0, call.context.round))
        entry = {"phase": phase, "round": number, "nodes": [members.members[key].name for key in collected.keys]}
        entry |= {"people": outcome.answered, "refused": dict(outcome.refused)}
        seconds, sent = round(time.perf_counter() - began, 3), members.up_bytes - up_before
        self.history.append(entry | {"seconds": seconds})
        counted = Counters(rounds=1, up_bytes=sent, down_bytes=members.down_bytes - down_before, seconds=seconds)
        if not self.plan.wire.noisy:  # no epsilon covers such counts
            counted = counted.model_copy(update={"people": outcome.answered, "refused": dict(outcome.refused)})
        self.count(counted)
        return outcome._replace(bytes=(sent, members.down_bytes - down_before))

    def _attempt(self, call: Call, phase: str) -> CollectedRound:
        members = self.membership.members.items()
        cohorts = {key: np.intersect1d(member.learners[phase], call.people) for key, member in members}
        cohorts = {key: people for key, people in cohorts.items() if len(people)}
        orders = self._orders(call, phase, cohorts)
        blob = encode(Download(call.written, call.down.round))
        expected = validation.expected_upload(self.plan, self.facts, call.down)
        if self._secure:
            return self._collect_secure(call, orders, blob, expected)
        sizes = {key: len(cohorts[key]) for key in orders}
        return self._collect_clear(call, orders, blob, sizes, expected)

    @property
    def _secure(self) -> bool:
        return self.plan.wire.stage.secure_sum is not None

    def _orders(self, call: Call, phase: str, cohorts: dict[str, People]) -> Orders:
        """The orders for the present members that have people in the cohort."""
        present = {member.key for member in self.membership.present()}
        available = {key: people for key, people in cohorts.items() if key in present}
        # In clear an absent node counts for the noise: the server adds its share, and a repeated round asks every node
        # for the same share, so that it sends the same answer.
        nodes = len(available) if self._secure else len(cohorts)
        fields = {
            "round": call.context.round,
            "key": "" if self.plan.wire.noisy else call.context.key.hex(),
            "expected_people": call.context.people,
            "noise_share": 1 / max(self._needed(nodes), 1) if self.plan.wire.noisy else 0.0,
            "nodes": nodes,
        }
        orders: Orders = {}
        for key, people in available.items():
            member = self.membership.members[key]
            everybody = len(people) == len(member.learners[phase])
            cohort = None if everybody else (people - member.offset).tolist()
            orders[key] = self._order("train", phase, member, fields | {"cohort": cohort})
        return orders

    def _needed(self, nodes: int) -> int:
        """Nodes that together bring all of the noise: in a secure sum those that must remain, otherwise all."""
        return max(min_threshold(nodes), math.ceil(2 * nodes / 3)) if self._secure else nodes

    def _order(self, action: Action, phase: str, member: Member, fields: Mapping[str, object]) -> Order:
        about = {"action": action, "phase": phase, "version": __version__, "index": member.index}
        about |= {"base": self.versions.get(member.key, 0), "facts": self.facts.words()}
        return Order.model_validate({**about, **self.membership.common, **fields})

    def _collect_clear(
        self, call: Call, orders: Orders, blob: bytes, sizes: dict[str, int], expected: Upload
    ) -> CollectedRound:
        """Collect each node's sum; `sizes`: people of the cohort by member key."""
        people = {self.membership.members[key].index: size for key, size in sizes.items()}
        validator = UploadValidator(call.run_id, call.context.round, people, expected.total, people)
        reports: Reports = {}
        responding = 0
        for reply in self.membership.exchange(orders, blob, TrainReport):
            key, report = reply.member.key, reply.report
            if reply.late:
                validator.refuse("late")
                continue
            if isinstance(report, Refusal):
                self.membership.log(report.error)
                self.refusals.add(report.error)
                responding += sizes[key] if ANSWERED_OTHERWISE in report.error else 0  # a repetition would not help
                continue
            responding += sizes[key]
            if report is None or not validation.valid_counts(report, sizes[key]):
                validator.refuse("not a message")
            elif not reply.blob and not report.answered:  # no client there had a valid update
                reports[key] = None, report
            elif upload := validator.admit(reply.blob, sender=reply.member.index):
                reports[key] = upload[1], report
        share = next((order.noise_share for order in orders.values()), 0.0)
        return self._add(reports, validator.refused, responding, share)

    def _add(self, reports: Reports, refused: Counter[str], responding: int, share: float) -> CollectedRound:
        """Sum the uploads, in an order that does not depend on the time of arrival. Each contains `share` of the
        noise. Sums are in double precision, so that the distribution of people over nodes does not matter."""
        total: Upload | None = None
        parts, answered, rejected = 0, 0, Counter(refused)
        members = self.membership.members
        keys = sorted(reports, key=lambda key: (min(members[key].learners["final"], default=0), key))
        for key in keys:
            upload, report = reports[key]
            answered += report.answered
            rejected.update(report.refused)
            if upload is not None:
                wide = {n: v.double() if v.is_floating_point() else v.long() for n, v in upload.total.items()}
                part = Upload(wide, upload.weight)
                total = part if total is None else total + part
                parts += 1
        if total is not None:
            total = Upload({n: v.float() if v.is_floating_point() else v for n, v in total.total.items()}, total.weight)
        noise = 1.0 if self.plan.wire.stage.local else parts * share
        refusals = Counter({reason: number for reason, number in rejected.items() if number})
        return CollectedRound(Outcome(total, refusals, None, answered, noise=noise), keys, responding)

    # A round as a secure sum

    def _collect_secure(self, call: Call, orders: Orders, blob: bytes, expected: Upload) -> CollectedRound:
        """Collect the sum over all nodes by Flower's SecAgg+: the server does not see any part of it."""
        members, needed = self.membership, self._needed(len(orders))
        nobody = Outcome(None, Counter({"abandoned": len(call.people)}), None, 0)
        if len(orders) < needed:
            members.log(f"A secure sum needs at least {needed} nodes; {count(len(orders), 'node')} can answer.")
            return CollectedRound(nobody, [], 0)
        keys, requests = {}, {}
        for key, order in orders.items():
            node_id = members.members[key].node_id
            keys[node_id], requests[node_id] = key, pack_request(order, blob)
        members.down_bytes += sum(map(len, requests.values()))
        words = 1 + sum(value.numel() for value in expected.total.values())
        outcome = secure_sum(
            members.grid, requests, words, least=needed, timeout=members.deadline, round=call.context.round,
            observe=self.observe,
        )  # fmt: skip
        members.up_bytes += 12 * words * len(outcome.answered)
        for node_id, why in outcome.refused.items():
            reason = f"{members.members[keys[node_id]].name} is not in the sum: {single_line(why)}"
            members.log(reason)
            self.refusals.add(reason)
        if outcome.total is None:
            members.log(f"The secure sum was not opened: {outcome.why}")
            lost = any(ANSWERED in why for why in outcome.refused.values())  # a repetition would not help
            return CollectedRound(nobody, [], len(call.people) if lost else 0)
        return self._open_secure(call, outcome, keys, expected, len(orders))

    def _open_secure(
        self, call: Call, outcome: SecureOutcome, keys: Mapping[int, str], expected: Upload, nodes: int
    ) -> CollectedRound:
        """The round from an opened secure sum of so many nodes; `keys`: member keys by node id."""
        assert outcome.total is not None
        sums = SecureSum(most=nodes, words=64 if self.plan.wire.noisy else None)
        upload = sums.decode(from_words(outcome.total.view(np.uint64), expected))
        reports: Reports = {
            keys[node]: (None, validation.report_in_clear(outcome.aux[node])) for node in outcome.answered
        }
        collected = self._add(reports, Counter(), len(call.people), 0.0)
        answered = collected.outcome.answered
        invalid = refusal(upload, expected.total, max(len(call.people), 1))
        if invalid and answered:
            return collected._replace(outcome=Outcome(None, Counter({invalid: answered}), None, 0))
        return collected._replace(outcome=collected.outcome._replace(upload=upload if answered else None, noise=1.0))

    # Metrics

    def collect_metrics(self, action: Action, phase: str, state: State) -> list[MetricReport]:
        """The metrics of every node's people; after several attempts without the nodes that do not answer."""
        blob = encode(Download(state.shared, torch.tensor(float(state.round))))
        fields = {"round": state.round, "passes": passes(state)}
        members = self.membership
        reports: dict[str, MetricReport] = {}
        refused: set[str] = set()
        self.item_counts.clear()
        for _ in range(ATTEMPTS):
            members.refresh()
            missing = [m for m in members.present() if m.key not in reports and m.key not in refused]
            orders = {member.key: self._order(action, phase, member, fields) for member in missing}
            for reply in members.exchange(orders, blob, MetricReport):
                report = None if reply.late else reply.report
                if isinstance(report, Refusal):
                    refused.add(reply.member.key)
                    members.log(report.error)
                elif report and (counts := self._possible_counts(report, reply.blob, reply.member, action)) is not None:
                    reports[reply.member.key], self.item_counts[reply.member.key] = report, counts
                elif not reply.late:
                    members.log(f"{reply.member.name} reported metrics that are not possible; they are left out.")
            if len({*reports, *refused}) == len(members.members):
                break
        if not reports:
            raise RunError(
                f"No node reported metrics of round {state.round}. "
                + ("All refused, for the reasons above: change their node.toml" if refused else "Start the nodes")
                + ", and resume."
            )
        if action == "judge":
            names = {key: member.name for key, member in members.members.items()}
            self.notes += validation.missing_metrics(names, reports, refused)
            self.notes += validation.missing_counts({key: names[key] for key in reports}, self.item_counts)
        return [reports[key] for key in sorted(reports)]

    def _possible_counts(self, report: MetricReport, blob: bytes, member: Member, action: Action) -> ItemCounts | None:
        """The counts by item that came with a report; None where a node cannot have this report or these counts, given
        how many people it said it has."""
        hello = member.hello
        seen, new = (hello.people, 0) if action == "validate" else (hello.judged, hello.newcomers)
        if not validation.valid_metrics(report, self.facts.kind, seen, new):
            return None
        return validation.read_item_counts(blob, self.facts.items, {"seen": seen, "new": new, "taken": hello.people})


class FlowerTask(Task):
    """The task of an experiment whose data are on the nodes: the server knows only the numbers of people."""

    def __init__(self, clients: FlowerClients) -> None:
        hellos = [member.hello for member in clients.membership.members.values()]
        notes = Counter(note for hello in hellos for note in hello.notes)
        shared_notes = [note for note, times in notes.items() if times == len(hellos)]
        seen, new = sum(hello.judged for hello in hellos), sum(hello.newcomers for hello in hellos)
        self.clients, self.facts = clients, clients.facts
        self.people = sum(hello.people for hello in hellos)
        self.interactions = sum(hello.interactions for hello in hellos)
        self.notes = (*shared_notes, f"{count(len(hellos), 'node')} over Flower; the data stayed on the nodes.")
        self.validates = any(hello.choosers for hello in hellos)
        self.evaluated, self.newcomers = np.arange(seen + new), np.arange(seen, seen + new)
        self.selection = {"ranking": ("ndcg@10", 1), "labels": ("loss", -1)}.get(self.facts.kind, ("rmse", -1))
        self._test_reports: tuple[int, list[MetricReport]] = (-1, [])  # (round, reports) of the last judge order

    def federation(self, phase: str, method: Method, sampling: Sampling, without: People | None) -> Federation:
        return self.clients.federation(phase)

    def validation(self, served: Served) -> Tallied:
        reports = self.clients.collect_metrics("validate", "search", served.state)
        return Tallied([report.seen for report in reports if report.seen])

    def evaluate(self, served: Served, people: People, passes: int | None) -> Tallied:
        parts = [report.seen if passes is None else report.new for report in self._judge(served.state)]
        return Tallied([part for part in parts if part])

    def beyond(self, seen: Evaluation, new: Evaluation | None) -> BeyondAccuracy | None:
        metrics = {name: self._list_metrics(name, part) for name, part in (("seen", seen), ("new", new))}
        return BeyondAccuracy.model_validate(metrics) if any(metrics.values()) else None

    def _list_metrics(self, name: str, evaluation: Evaluation | None) -> ListMetrics | None:
        """Metrics of lists from the nodes' sums, and from the counts by item of the nodes that sent them."""
        if not isinstance(evaluation, Tallied):
            return None
        nodes = {key: counts for key, counts in self.clients.item_counts.items() if name in counts}
        lists, taken = (np.sum([counts[n] for counts in nodes.values()], axis=0) for n in (name, "taken"))
        people = sum(self.clients.membership.members[key].hello.people for key in nodes)
        items = item_metrics(lists, taken, people) if nodes else {}
        return metrics_of_sums([part.get("lists", {}) for part in evaluation.parts], evaluation.people, items)

    def gradients(self, served: Served, seed: int) -> tuple[float, float] | None:
        return next((report.gradients for report in self._judge(served.state) if report.gradients), None)

    def _judge(self, state: State) -> list[MetricReport]:
        """Test metrics of everybody's nodes, requested once for each state."""
        if self._test_reports[0] != state.round:
            self._test_reports = state.round, self.clients.collect_metrics("judge", "final", state)
        return self._test_reports[1]


def federation_facts(membership: Membership, saved: JsonObject | None = None, items: JsonObject | None = None) -> Facts:
    """The facts of the federation's task: those that were `saved` when the run began, or merged from the members. The
    server adds public item features from the titles and genres of `items`; a run that has begun keeps their number."""
    facts = parse_facts(saved) if saved else merge_facts([member.facts for member in membership.members.values()])
    if facts.kind != "ranking" or not items:
        return facts
    described = facts.described(items.get("titles") or (), items.get("genres") or ())
    if described.features is None or len(described.features) != facts.items:
        return facts
    return facts if saved and described.feature_count != facts.feature_count else described


# The run


def serve(grid: Grid, config: RunConfig) -> RunResult | None:
    """Run, or continue, the run of `config["folder"]`. Returns the result, or None after an error that is in
    status.json."""
    folder = Path(str(config.get("folder") or "")).expanduser()
    if not folder.is_absolute():
        raise SettingError(f'folder in the run-config must be an absolute path, got "{config.get("folder")}".')
    status = StatusWriter()
    try:
        run = open_run(folder, config)
        status.open(folder / "federation")
        result = _serve(grid, config, run, status)
        status.end("done")
        return result
    except FedtasteError as error:
        status.end("error", str(error))
    except Exception as error:
        status.end("bug", f"{type(error).__name__}: {error}")
        raise
    return None


def _serve(grid: Grid, config: RunConfig, folder: RunFolder, status: StatusWriter) -> RunResult:
    settings, items = folder.settings(), folder.read("items.json")
    if config.get("method"):  # of the user's own, named by the operator of this server
        find_method(str(config["method"]))
    names = items["names"]
    validation.refuse_unfit(settings)
    folder.require_same_version(__version__)
    nodes, least = int(_config_number(config, "nodes", 1)), _config_number(config, "least", 0.5)
    deadline = _config_number(config, "deadline", 600.0)
    common = validation.common_fields(settings, folder.run_id, catalogue_hash(names))
    membership = Membership(grid, common, json.dumps(names).encode(), len(names), deadline, status.log)
    with lock_folder(folder.path):
        saved = _saved_membership(folder)
    membership.offsets = {key: (int(a), int(b)) for key, (a, b) in saved.get("offsets", {}).items()}
    status.log(f"Waiting for {nodes} nodes.")
    membership.gather(nodes)
    facts = federation_facts(membership, saved.get("facts"), items)
    clients = FlowerClients(membership, facts, plan(settings, facts, elsewhere=True), least)
    clients.count = lambda counted: add_counters(folder.path / "federation", counted)
    return execute(prepare_remote(settings, FlowerTask(clients)), folder, status, remote=clients)


def open_run(path: Path, config: RunConfig) -> RunFolder:
    """The run folder at this path, or a new one from `settings` and `catalogue` of the run-config."""
    if (path / "settings.json").exists():
        return RunFolder.open(path)
    try:
        settings = Settings(**json.loads(str(config.get("settings") or "{}")))
        catalogue = json.loads(Path(str(config.get("catalogue"))).expanduser().read_text("utf-8"))
        items, titles, genres = (tuple(map(str, catalogue.get(name) or ())) for name in ("names", "titles", "genres"))
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise SettingError(
            f"{path} is not a run folder yet, and settings and catalogue of the run-config do not describe one "
            f"({str(error).splitlines()[0]}). Write the app again with `fedtaste federate --write-app`."
        ) from error
    nobody = np.zeros(0, np.int32)
    data = Interactions(settings.data, nobody, nobody, (), items, titles=titles, genres=genres)
    return RunFolder.create(path, settings.model_dump(), data, __version__)


def _saved_membership(folder: RunFolder) -> JsonObject:
    """What the last checkpoint remembers of the nodes."""
    path = folder.path / "state.safetensors"
    saved = load_params(path)[1].get("progress", {}).get("fleet", {}) if path.exists() else {}
    return saved if isinstance(saved, dict) else {}


def _config_number(config: RunConfig, name: str, default: float) -> float:
    try:
        value = float(str(config.get(name, default) or default))
    except ValueError:
        value = -1.0
    if not 0 < value < 1e9:
        raise SettingError(f"{name} in the run-config must be a positive number, got {config.get(name)}.")
    return value
