"""Simulate poisoning attacks by a share of the people; measure item exposure and accuracy per aggregation rule.

A seeded share of the members turn hostile; nobody is added. Their attacks:
    promote     recommend a target, an item hardly anybody has, to everybody: their histories are fake (the target and
                popular items), and the target's row of their upload is crafted. Where the upload is a change of item
                factors, the row points to the mean of popular items and is `size` times as long as the device's
                longest row; where it is FedALS's sums, the person's vector is `size` times too long
    profiles    the same by fake histories alone: the devices run the right program on wrong data
    random      noise in every number of every table, `size` times as long as an honest upload
    flip        items that they have count as not taken, and as many items that they do not have as taken
An unpopular item is one that somebody has, but no more people than have the median item; targets are a seeded choice of
these. Measured on honest people only, the same ones in every row of the result: exposure ER@k, the share of those
without the target in their history who have it among the top k of the whole catalogue; HR@10 and NDCG@10 under the
clean protocol. `clean`: the same people, all honest. Rounds are fixed before: nothing is chosen on test.
A defence is a rule of the server (wire/robust_sums.py). Stages on the device are no defence: a hostile device skips
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from fedtaste.core import Params, People, Stage
from fedtaste.data.interactions import Histories, Interactions
from fedtaste.data.sampling import SERVE, SPLIT, TRAIN, key_of, some, uniform
from fedtaste.data.user_files import UserSplit
from fedtaste.engine.run import State, begin, run
from fedtaste.errors import DivergedError, SettingError
from fedtaste.evaluation.scoring import personal_scores
from fedtaste.experiment.plan import Plan, plan
from fedtaste.experiment.progress import ProgressListener, Silent
from fedtaste.experiment.settings import Settings
from fedtaste.experiment.train import make_task
from fedtaste.federation import Federation, of_histories
from fedtaste.poisoning.attackers import MARK, fake_profiles, flip_histories, hostile_method, put_target_first
from fedtaste.poisoning.result import HostilePeople, Metrics, PoisonResult, PoisonRow, Target, Unpopular
from fedtaste.tasks.base import Served, Task
from fedtaste.text import did_you_mean
from fedtaste.wire.parse import parse, upload_of
from fedtaste.wire.robust_sums import RULES, check_memory
from fedtaste.wire.validation import LIMIT

ATTACKS = ("promote", "profiles", "random", "flip")
TARGETED = ("promote", "profiles")
CRAFTED = ("promote", "random")  # attacks that change uploads
SIZE = 1e4  # times an honest row: the server's validation admits it, and it is out of all proportion
SUMS_SIZE = 10.0  # the same where sums are sent, which are solved: with much more everybody's system breaks down


@dataclass(frozen=True)
class AttackSettings:
    """The attack, and how its effect is measured."""

    hostile: float = 0.05  # share of the people
    attack: str = "promote"
    wires: Sequence[str] = ()  # rules of the server, each measured in addition to the plain sum
    targets: int = 1  # unpopular items, each promoted in a run of its own
    k: int = 10  # length of the lists in which a target counts as exposed (ER@k)
    size: float | None = None  # length of a crafted upload over an honest one; None: the method's default


PROMOTE = AttackSettings()


@dataclass(frozen=True, eq=False)
class Simulation:
    """What all runs of one simulation share."""

    task: Task
    plan: Plan
    settings: Settings
    attack: AttackSettings
    histories: Histories  # everybody's true items
    members: People
    hostile: People
    honest: People  # those who are evaluated
    titles: tuple[str, ...]
    names: tuple[str, ...]
    watch: ProgressListener

    @property
    def catalogue(self) -> int:
        return self.task.facts.items

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """How many people have each item."""
        return np.bincount(self.histories.items, minlength=self.catalogue)

    @cached_property
    def unpopular(self) -> NDArray[np.int64]:
        """Items that somebody has, but no more people than have the median item; in a seeded order."""
        present = np.flatnonzero(self.counts)
        few = present[self.counts[present] <= np.median(self.counts[present])]
        return few[np.argsort(uniform(few, key_of(self.settings.seed, SPLIT, 8)), kind="stable")]

    @cached_property
    def size(self) -> float:
        """How many times larger than an honest one a crafted upload is."""
        sums = set(self.upload_layout) & set(self.plan.method.rows) - set(self.plan.model.rows)
        return (SUMS_SIZE if sums else SIZE) if self.attack.size is None else self.attack.size

    @cached_property
    def upload_layout(self) -> Params:
        """Tensors with the names and shapes of an upload."""
        return upload_of(self.plan.method, self.plan.model, torch.zeros(1, 1, dtype=torch.int64))

    def federation(self, histories: Histories, members: People | None = None, stream: int = TRAIN) -> Federation:
        """A federation with these histories."""
        sampling = self.plan.sampling
        return of_histories(
            histories, self.catalogue, negatives=sampling.negatives,
            batch=sampling.batch, seed=self.settings.seed, members=members, stream=stream,
        )  # fmt: skip

    def train(self, rule: Stage, attack: str | None, target: int) -> State:
        """The state after all rounds, with this rule of the server and this attack; None: everybody is honest."""
        method, histories, seed = self.plan.method, self.histories, self.settings.seed
        if attack in TARGETED:
            histories = fake_profiles(histories, self.catalogue, self.hostile, target, seed)
        elif attack == "flip":
            histories = flip_histories(histories, self.catalogue, self.hostile, seed)
        federation = self.federation(histories, members=self.members)
        if attack in CRAFTED:
            method = hostile_method(method, str(attack), self.size)
            federation = put_target_first(federation, self.hostile, target) if attack == "promote" else federation
            rule = replace(rule, dense=rule.dense or attack == "random")  # noise also in rows that nobody touched
        state = begin(method, self.plan.model, federation, seed)
        if MARK in state.private.stacked:
            state.private.stacked[MARK][torch.from_numpy(self.hostile)] = torch.from_numpy(self.hostile + 1).float()
        try:
            for done in run(
                method, self.plan.model, federation, rounds=self.plan.rounds, cohort=self.settings.cohort, seed=seed,
                wire=rule, state=state,
            ):  # fmt: skip
                state = done.state
                self.watch.round(done.number, None)
        except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]
            raise DivergedError(
                f"A system of equations could not be solved in round {state.round + 1}: with this size the attack does "
                "not promote, it breaks the training. Give a smaller --size."
            ) from error
        state.private.stacked.pop(MARK, None)
        state.private.initial.pop(MARK, None)
        return state

    def metrics(self, state: State) -> Metrics:
        """HR@10 and NDCG@10 of honest people."""
        served = Served(self.plan.method, self.plan.model, state, self.plan.sampling)
        evaluation = self.task.evaluate(served, self.honest, None)
        return Metrics(hr=evaluation.values["sampled"]["hr@10"], ndcg=evaluation.values["sampled"]["ndcg@10"])

    def exposure(self, state: State, targets: Sequence[int]) -> list[float]:
        """ER@k of every target: the share of honest people without it in their history who have it in their top k."""
        examples = self.federation(self.histories, stream=SERVE).examples(self.honest, 0, self.plan.method.examples)
        hits, eligible = np.zeros(len(targets)), np.zeros(len(targets))
        for part, scores in personal_scores(
            self.plan.method, self.plan.model, state.shared, state.private, self.honest, examples,
            torch.arange(self.catalogue),
        ):  # fmt: skip
            for place, row in zip(part, scores.double().numpy()):
                history = self.histories.of(int(self.honest[place]))
                row = np.where(np.isfinite(row), row, -np.inf)
                row[history] = -np.inf
                free = ~np.isin(targets, history)
                ahead = np.array([(row >= row[target]).sum() - 1 for target in targets])  # ties: against the target
                eligible += free
                hits += free & (ahead < self.attack.k)
        return [round(float(value), 6) for value in hits / np.maximum(eligible, 1)]

    def rules(self) -> dict[str, Stage]:
        """The plain sum and the server's rules of --wire, by wire string."""
        rules = {"": Stage()}
        for text in self.attack.wires:
            stages = parse(text)
            other = [name for name, _ in stages if name not in RULES]
            if other or len(stages) != 1:
                raise SettingError(
                    f'A defence in --wire must be one rule of the server ({", ".join(RULES)}), got "{text}".'
                    + (f" {other[0]} happens on the device, and a hostile one leaves it out." if other else "")
                )
            ((name, value),) = stages
            cohort, _ = self.federation(self.histories, members=self.members).cohort(0, size=self.settings.cohort)
            check_memory(len(cohort), self.upload_layout)
            rules[text] = RULES[name](value, self.plan.method.rows)
        return rules

    def check(self) -> None:
        """Refuse attack settings that are out of range."""
        attack, few = self.attack, len(self.unpopular)
        if attack.attack not in ATTACKS:
            raise SettingError(did_you_mean(attack.attack, ATTACKS, "attack"))
        if not 1 <= attack.k < self.catalogue:
            raise SettingError(
                f"--top must be from 1 to {self.catalogue - 1:,}, below the number of items; got {attack.k}."
            )
        if not 1 <= attack.targets <= few:
            raise SettingError(f"--targets must be from 1 to {few:,}, the unpopular items; got {attack.targets}.")
        if not 0 < self.size <= LIMIT:
            raise SettingError(f"--size must be a positive multiple of an honest upload, got {self.size:g}.")


def make_simulation(
    settings: Settings,
    data: Interactions | UserSplit,
    attack: AttackSettings = PROMOTE,
    watch: ProgressListener | None = None,
) -> Simulation:
    """The task of these settings with a seeded share of its members turned hostile."""
    if not 0 < attack.hostile <= 0.5:
        raise SettingError(f"--hostile must be a share above 0 and up to 0.5, got {attack.hostile:g}.")
    task = make_task(settings, data)
    if task.facts.kind != "ranking":
        raise SettingError(f"Poisoning is simulated for rankings, and {settings.data} is for {task.facts.kind}.")
    planned = plan(settings, task.facts)
    if planned.method.pooled or settings.method in ("local", "popularity"):
        raise SettingError(f"{settings.method} learns no model from uploads. Choose another method, such as fedmf.")
    federation = task.federation("final", planned.method, planned.sampling, None)
    examples, members = federation.examples(np.arange(task.people), 0, "history"), federation.members
    histories = Histories(examples.starts, examples.inputs.astype(np.int32), examples.targets)
    hostile = some(members, max(1, round(attack.hostile * len(members))), key_of(settings.seed, SPLIT, 7))
    honest = np.setdiff1d(task.seen, hostile)
    if not len(honest):
        raise SettingError("No honest person is left to be evaluated. Give a smaller share of hostile people.")
    table, watch = data.table, watch or Silent()
    return Simulation(
        task, planned, settings, attack, histories, members, hostile, honest, table.titles, table.items, watch
    )


def simulate(
    settings: Settings,
    data: Interactions | UserSplit,
    attack: AttackSettings = PROMOTE,
    watch: ProgressListener | None = None,
) -> PoisonResult:
    """Rows `clean`, `undefended` and, for every wire, its rule `at peace` and `defended`. Every target is attacked in a
    run of its own; a row has the mean over them, and exposures one by one."""
    sim = make_simulation(settings, data, attack, watch)
    sim.check()
    rules, unpopular = sim.rules(), sim.unpopular
    target_items = [int(item) for item in unpopular[: attack.targets]]
    rows: list[PoisonRow] = []
    usual_exposure = 0.0  # of an unpopular item when nobody attacks
    for wire, rule in rules.items():
        sim.watch.phase(f"honest, {wire or 'plain sum'}", sim.plan.rounds, 0)
        state = sim.train(rule, None, target_items[0])
        if not wire:
            usual_exposure = float(np.mean(sim.exposure(state, unpopular.tolist())))
        honest = (sim.metrics(state), sim.exposure(state, target_items))
        rows.append(_row("at peace" if wire else "clean", wire, [honest]))
        runs = []
        for place, target in enumerate(target_items if attack.attack in TARGETED else target_items[:1]):
            sim.watch.phase(f"{attack.attack}, {wire or 'plain sum'}, {place + 1}", sim.plan.rounds, 0)
            state = sim.train(rule, attack.attack, target)
            measured = [target] if attack.attack in TARGETED else target_items
            runs.append((sim.metrics(state), sim.exposure(state, measured)))
        rows.append(_row("defended" if wire else "undefended", wire, runs))
    clean = max(rows[0].ndcg, 1e-12)
    rows = [row.model_copy(update={"ndcg_loss": round(1 - row.ndcg / clean, 6)}) for row in rows]
    targets = [Target(item=sim.names[i], title=sim.titles[i], count=int(sim.counts[i])) for i in target_items]
    return PoisonResult(
        data=settings.data_name, method=settings.method, settings=sim.plan.settings, rounds=sim.plan.rounds,
        seed=settings.seed, attack=attack.attack, size=sim.size if attack.attack in CRAFTED else None, k=attack.k,
        hostile=HostilePeople(share=attack.hostile, people=len(sim.hostile)), honest=len(sim.honest),
        rows=tuple(rows), target=targets[0], targets=tuple(targets),
        unpopular=Unpopular(items=len(unpopular), exposure=round(usual_exposure, 9)),
    )  # fmt: skip


def _row(name: str, wire: str, runs: Sequence[tuple[Metrics, list[float]]]) -> PoisonRow:
    """One row of the result: the mean over these runs' metrics and exposures."""
    exposures = [value for _, values in runs for value in values]
    hr, ndcg = (round(float(np.mean([getattr(metrics, kind) for metrics, _ in runs])), 6) for kind in ("hr", "ndcg"))
    mean = round(float(np.mean(exposures)), 6)
    return PoisonRow(row=name, wire=wire, exposure=mean, exposures=tuple(exposures), hr=hr, ndcg=ndcg)
