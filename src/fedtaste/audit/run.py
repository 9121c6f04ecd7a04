"""Audit a configuration: produce its uploads stage by stage, attack them, and test membership.

`audit` attacks the uploads that settings produce; `audit_saved` attacks uploads from a folder.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from pydantic import BaseModel

from fedtaste.attacks.cross_round import attack_all_rounds
from fedtaste.attacks.list_recovery import POPULARITY
from fedtaste.attacks.measure import RoundUploads, StepAttacks, attack_once, attack_round, measure_baselines
from fedtaste.attacks.membership import MembershipSetup, audit_membership
from fedtaste.attacks.observed_run import ObservedRun, enlarge_cohort
from fedtaste.attacks.result import Figures, MembershipResult
from fedtaste.attacks.uploads import (
    SIZES,
    Holdings,
    Step,
    Targets,
    Watch,
    holdings_of,
    make_targets,
    produce_uploads,
    shuffle,
    stage_context,
)
from fedtaste.audit.result import AuditResult, Example, GuessedItem, ListRecovery, refutations
from fedtaste.audit.saved import SavedUploads, UploadWriter
from fedtaste.core import Method, People, StageContext, Upload
from fedtaste.engine.run import State, begin, run
from fedtaste.errors import SettingError
from fedtaste.experiment.plan import Plan, plan
from fedtaste.experiment.progress import Silent
from fedtaste.experiment.settings import Settings
from fedtaste.federation import Federation, cohort_size
from fedtaste.result_part import JsonObject
from fedtaste.tasks.base import Task
from fedtaste.wire.accounting import statement
from fedtaste.wire.parse import ORDER, parse

NO_STAGES, SAVED = "no stages", "as saved"  # labels of steps
SHOWN = 15  # guessed items of the example
BARE = {"wire": "", "epsilon": None, "delta": None, "noise_seed": None}  # settings without stages
HANDED_OVER = "The data themselves are handed over: nothing has to be attacked."
NOTHING_SENT = "Nothing is sent, so nothing is revealed: the figures are those of popularity."
NO_HELP = "No attack beats popularity: what the server sees did not help to guess people's items."
SECURE_NOISE = "Devices add the noise, each a share: the server recovers no sum without all of it."
LOCAL_NOISE = "Every device adds all of the noise to its own upload before it is sent."
SERVER_NOISE = (
    "The noise is added by the server, to the sum: it hides nobody from the server, which sees single uploads."
)


@dataclass(frozen=True)
class AuditScope:
    """The extent of an audit: lists of `people` are guessed from uploads of rounds 1 to `rounds` (None: the first), and
    membership is tested with at most `canaries` in a run (None: the default, 0: no test). The attacked uploads are
    written to `save`."""

    rounds: int | None = None
    people: int = 300
    canaries: int | None = None
    save: Path | None = None
    coin_seed: int | None = None  # of the canaries' coins, for tests


EVERYTHING = AuditScope()


def wire_prefixes(settings: Settings, plan: Plan) -> list[str]:
    """The wire strings from no stage to all of them; noise that was solved for has its value."""
    stages = [(name, value) for name, value in parse(settings.wire) if name not in ("noise", "local") or value]
    mechanism = plan.wire.mechanism
    if settings.epsilon is not None and mechanism is not None:
        stages.append(("local" if mechanism.local else "noise", mechanism.noise))
        stages.sort(key=lambda part: ORDER.index(part[0]) if part[0] in ORDER else len(ORDER))
    parts = [name if value is None else f"{name}={value!r}" for name, value in stages]
    return [",".join(parts[:many]) for many in range(len(parts) + 1)]


def stages_label(text: str) -> str:
    """A wire string as a table shows it.

    >>> stages_label("clip=1.0,noise=0.8123456,secure"), stages_label("")
    ('clip 1 + noise 0.812 + secure', 'no stages')
    """
    parts = [part.partition("=") for part in text.split(",") if part]
    return " + ".join(f"{name} {float(value):.3g}" if value else name for name, _, value in parts) or NO_STAGES


def check_settings(settings: Settings, task: Task, rounds: int | None) -> tuple[Settings, Plan]:
    """(the settings with the audited rounds, the plan without stages); SettingError where no audit is possible."""
    if task.facts.kind not in ("ranking", "ratings"):
        raise SettingError(
            f"fedtaste audit guesses lists of items, and {settings.data} has none: its task is {task.facts.kind}. Use "
            "data of people and items, such as ml-100k."
        )
    plain = plan(settings.model_copy(update=BARE | {"rounds": None}), task.facts)
    releases = len(plain.method.privacy.bounds)
    if not releases:
        most = settings.rounds or plain.rounds
        return settings.model_copy(update={"rounds": max(most, rounds or 1)}), plain
    if rounds and rounds > releases:
        raise SettingError(f"--rounds must be from 1 to {releases} for {settings.method}, got {rounds}.")
    return settings.model_copy(update={"rounds": None}), plain


@dataclass(frozen=True, eq=False)
class _Audit:
    """One audit of a configuration."""

    settings: Settings
    task: Task
    titles: Sequence[str]
    scope: AuditScope
    plain: Plan  # without stages
    watch: Watch

    @cached_property
    def plan(self) -> Plan:
        return plan(self.settings, self.task.facts)

    @cached_property
    def federation(self) -> Federation:
        return self.task.federation("final", self.plain.method.replace(pooled=False), self.plain.sampling, None)

    @cached_property
    def holdings(self) -> Holdings:
        return holdings_of(self.federation, self.task.facts.kind, 0)

    @cached_property
    def everybody(self) -> People:
        return shuffle(self.federation.members, self.settings.seed)

    @cached_property
    def targets(self) -> Targets:
        return make_targets(self.holdings, self.everybody[: self.scope.people], self.federation.catalogue, {})

    @property
    def rounds(self) -> int:
        return self.scope.rounds or 1

    @property
    def noise_seed(self) -> int:
        return self.settings.seed if self.settings.noise_seed is None else self.settings.noise_seed

    @cached_property
    def steps(self) -> list[Step]:
        """The configuration without stages, then with one more of them at a time."""
        people, cohort, steps = len(self.federation.members), self.settings.cohort, []
        for text in wire_prefixes(self.settings, self.plan):
            part = plan(self.settings.model_copy(update=BARE | {"wire": text}), self.task.facts)
            stages = dict(parse(text))
            everybody = people if cohort is None else cohort_size(cohort, people)
            group = int(stages["secure"] or everybody) if "secure" in stages else 1
            wire = enlarge_cohort(part.wire.stage, people)  # sums of all sizes are attacked
            steps.append(Step(stages_label(text), wire, min(group, people), part.method))
        return steps

    def attack_lists(self) -> list[StepAttacks]:
        """List recovery under every step; where sums are secure, also over all rounds."""
        attacks = [each for steps in steps_alike(self.steps, self.rounds) for each in self._attack_steps(steps)]
        last = attacks[-1]
        if last.step.wire.secure_sum is not None and last.step.method is not None:
            observed = self._observed(last.step.method, last.step, self.rounds)
            attack = attack_all_rounds(observed, last.step, self.targets, self.watch)
            attacks[-1] = last._replace(attacks=[*(old for old in last.attacks if old.size < last.step.group), attack])
        return attacks

    def _observed(self, method: Method, step: Step, rounds: int) -> ObservedRun:
        s = self.settings
        return ObservedRun(
            method, self.plan.model, self.federation, step.wire, rounds, s.seed, self.noise_seed, s.cohort, s.dropout
        )

    def _attack_steps(self, steps: list[Step]) -> list[StepAttacks]:
        """Attack steps whose devices compute the same, over all rounds that are seen."""
        sizes = [size for size in (*SIZES, *(step.group for step in steps)) if size <= len(self.everybody)]
        senders = self.everybody[: max(self.scope.people, *sizes)]
        people, seed, method = len(senders), self.noise_seed, steps[0].method
        attacks = [StepAttacks.of(step, self.targets, people, self.rounds) for step in steps]
        writer = None
        if self.scope.save and steps[-1] is self.steps[-1]:
            writer = UploadWriter(
                self.scope.save,
                self.holdings,
                self.targets,
                self.titles,
                round=self.rounds - 1,
                seed=self.settings.seed,
            )
        if method is None or method.pooled:
            data = handed_over(self.holdings, senders, self.federation.catalogue)
            attack_round(attacks, RoundUploads(data, people, seed=seed), self.targets.knowledge, self.watch)
        for number, state in enumerate(self._states(steps[0])):
            assert method is not None
            uploads: Iterable[tuple[int, Upload]] = produce_uploads(method, self.federation, state, senders)
            if writer is not None and number == self.rounds - 1:
                writer.write_download(state.shared)
                uploads = write_while_reading(
                    uploads, writer, steps[-1], stage_context(seed, "devices", number, people)
                )
            shared = {name: value.numpy() for name, value in state.shared.items()}
            knowledge = replace(self.targets.knowledge, shared=shared)
            attack_round(attacks, RoundUploads(uploads, people, number, seed), knowledge, self.watch)
        for _, by_size in attacks:
            for attack in by_size:
                attack.finish()
        return attacks

    def _states(self, step: Step) -> Iterator[State]:
        """The state before each of the rounds; none where the data themselves are handed over."""
        if step.method is None or step.method.pooled:
            return
        s = self.settings
        state = begin(step.method, self.plan.model, self.federation, s.seed)
        yield state
        for done in run(
            step.method, self.plan.model, self.federation, rounds=self.rounds - 1, seed=s.seed, wire=step.wire,
            state=state, noise_seed=self.noise_seed, cohort=s.cohort, dropout=s.dropout,
        ):  # fmt: skip
            yield done.state

    def test_membership(self) -> MembershipResult | None:
        """The membership audit of the whole planned run; None where it does not apply."""
        text, wire = wire_prefixes(self.settings, self.plan)[-1], self.plan.wire
        if self.scope.canaries == 0 or wire.method.pooled:
            return None
        without_local = ",".join(piece for piece in text.split(",") if not piece.startswith("local"))
        quiet = plan(self.settings.model_copy(update=BARE | {"wire": without_local}), self.task.facts).wire.stage
        facts = self.task.facts
        setup = MembershipSetup(
            self._observed(wire.method, Step("", wire.stage), self.plan.rounds), quiet, dict(parse(text)),
            self.targets.knowledge.popularity,
            wire.mechanism.rate if wire.mechanism and not wire.mechanism.local else 1.0,
            facts.scale[1] if facts.kind == "ratings" else 1.0,
        )  # fmt: skip
        scope = self.scope
        return audit_membership(
            setup, self.plan.delta, most=scope.canaries, coin_seed=scope.coin_seed, watch=self.watch
        )


def audit(
    settings: Settings, task: Task, titles: Sequence[str], scope: AuditScope = EVERYTHING, watch: Watch | None = None
) -> AuditResult:
    """Attack a configuration. An attacker who sees the uploads of the first rounds of a run guesses people's lists; one
    who sees all releases of the whole planned run guesses who took part."""
    began = time.perf_counter()
    settings, plain = check_settings(settings, task, scope.rounds)
    run_audit = _Audit(settings, task, titles, scope, plain, watch or Silent())
    attacks, member = run_audit.attack_lists(), run_audit.test_membership()
    final, epsilon, delta = run_audit.plan, None, None
    if final.wire.noisy:
        promise = statement(final.wire.mechanism, final.rounds, final.delta)
        epsilon, delta = promise.epsilon, promise.delta
    notes = [*refutations(epsilon, member), *([HANDED_OVER] if plain.method.pooled else []), *task.notes, *final.notes]
    return AuditResult(
        data=settings.data_name, task=task.facts.kind, method=settings.method, settings=final.settings,
        wire=settings.wire, rounds=run_audit.rounds, planned_rounds=final.rounds, seed=settings.seed, epsilon=epsilon,
        delta=delta,
        epsilon_lower=member.epsilon_lower if member else None, tpr_at_fpr=member.tpr_at_fpr if member else None,
        membership=member, seconds=round(time.perf_counter() - began, 3),
        **fields_of(list_recovery(attacks, run_audit.targets, titles, notes)),
    )  # fmt: skip


def audit_saved(saved: SavedUploads, watch: Watch | None = None) -> AuditResult:
    """Attack saved uploads as they are."""
    began, targets = time.perf_counter(), saved.targets
    uploads = RoundUploads(saved.uploads(), len(saved.files), seed=saved.seed)
    attacks = attack_once([Step(SAVED)], uploads, targets, watch)
    return AuditResult(
        data=None, task="ranking" if targets.ratings is None else "ratings", method=None, settings={}, wire="",
        rounds=None, planned_rounds=None, seed=saved.seed, epsilon=None, delta=None, epsilon_lower=None,
        tpr_at_fpr=None, membership=None, seconds=round(time.perf_counter() - began, 3),
        **fields_of(list_recovery(attacks, targets, saved.titles, [])),
    )  # fmt: skip


def steps_alike(steps: list[Step], rounds: int) -> list[list[Step]]:
    """Steps in groups whose devices compute the same: in the first round all of them, except where a stage is part of
    the method (sparsify), or the method knows the noise."""
    first = steps[0].method
    if rounds > 1 or first is None or first.privacy.bounds:
        return [[step] for step in steps]
    apart = [step for step in steps if step.method and step.method.rows != first.rows]
    return [[step for step in steps if step not in apart], *([step] for step in apart)]


def handed_over(holdings: Holdings, people: People, items: int) -> Iterator[tuple[int, Upload]]:
    """(person, all of that person's data) for a pooled method, which holds everybody's data."""
    for who in people.tolist():
        mine = holdings.person == who
        rows = torch.from_numpy(holdings.item[mine])
        data = {"count": torch.zeros(items)}
        data["count"][rows] = 1.0
        if holdings.rating is not None:
            data["stars"] = torch.zeros(items)
            data["stars"][rows] = torch.from_numpy(holdings.rating[mine]).float()
        yield who, Upload(data, torch.ones(()))


def write_while_reading(
    uploads: Iterable[tuple[int, Upload]], writer: UploadWriter, step: Step, context: StageContext
) -> Iterator[tuple[int, Upload]]:
    """The same uploads; each is also written as it leaves the device."""
    for who, upload in uploads:
        staged = step.on_device(who, upload, context)
        writer.write_upload(who, step.on_server(staged, context, noise=False))
        yield who, upload


def list_recovery(
    attacks: list[StepAttacks], targets: Targets, titles: Sequence[str], notes: list[str]
) -> ListRecovery:
    """The figures of all steps; the main figures are of the sums that the server sees in the last step."""
    step, last = attacks[-1]
    rows = [attack.figures() for _, by_size in attacks for attack in by_size if attack.places]
    mine = [row for row in rows if row.stages == step.label]
    main = next(row for row in mine if row.in_sum == min(step.group, max(row.in_sum for row in mine)))
    baselines = measure_baselines(targets)
    sends = any(name != POPULARITY for name in last[0].names)
    helped = sends and main.f1 > baselines.popularity_f1
    notes = [*([] if sends else [NOTHING_SENT]), *([NO_HELP] if sends and not helped else []), *notes]
    if step.wire.server:
        notes.insert(0, LOCAL_NOISE if step.wire.local else SECURE_NOISE if step.wire.secure_sum else SERVER_NOISE)
    both = fields_of(main) | fields_of(baselines)
    return ListRecovery.model_validate(
        {name: value for name, value in both.items() if name in ListRecovery.model_fields}
        | {"items": targets.knowledge.items, "sends": sends, "helped": helped, "ratings": mine[0].ratings, "rows": rows}
        | {"intervals": {n.removesuffix("_interval"): v for n, v in both.items() if n.endswith("_interval")}}
        | {"sums": {str(row.in_sum): {name: getattr(row, name) for name in Figures.model_fields} for row in mine}}
        | {"example": {each.step.label: example_of(each, targets, titles) for each in (attacks[0], attacks[-1])}}
        | {"notes": tuple(dict.fromkeys(notes))}
    )


def fields_of(part: BaseModel) -> JsonObject:
    """The fields of a result that were set, as they are."""
    return {name: getattr(part, name) for name in type(part).model_fields if name in part.model_fields_set}


def example_of(attacks: StepAttacks, targets: Targets, titles: Sequence[str]) -> Example:
    """The guesses about one person, by the attack that is reported for their half."""
    attack = next(attack for attack in reversed(attacks.attacks) if attack.size <= attacks.step.group)
    truth, reported = targets.lists[targets.example], attack.guess_about_example()
    if reported is None:
        return Example()
    name, guess = reported
    guess = guess.for_length(len(truth))
    scores = guess.scores if guess.picks is None else np.where(guess.picks, guess.scores, -np.inf)
    many = min(SHOWN, len(truth) if guess.picks is None else int(guess.picks.sum()))
    best, mine = np.argsort(-scores)[:many].tolist(), set(truth.tolist())
    guessed = tuple(GuessedItem(title=titles[item], hit=item in mine) for item in best)
    return Example(list_length=len(truth), in_sum=attack.size, attack=name, guessed=guessed)
