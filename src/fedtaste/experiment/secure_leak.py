"""Measure what secure sums without noise leak: the F1 of an attacker who keeps the sums of several rounds.

`run` measures it for its own configuration and puts it into the result and its notes; `fedtaste audit` has more.
"""

from __future__ import annotations

from dataclasses import replace

from fedtaste.attacks.cross_round import measure_all_rounds
from fedtaste.attacks.observed_run import ObservedRun
from fedtaste.attacks.uploads import shuffle
from fedtaste.experiment.plan import Plan
from fedtaste.experiment.progress import ProgressListener
from fedtaste.experiment.result import SecureLeak
from fedtaste.experiment.settings import Settings
from fedtaste.tasks.base import Task
from fedtaste.text import count
from fedtaste.wire.parse import parse

ROUNDS = 6  # the most rounds that the attacker sees; more hardly help
GROUPS, PEOPLE = 6, 100  # the groups that are attacked; the people who are attacked in one sum of everybody


def secure_leak(plan: Plan, task: Task, settings: Settings, watch: ProgressListener) -> SecureLeak | None:
    """Attack the secure sums of a run; None where it has none, where they have noise, or where there are no items to
    guess. Groups do not depend on each other, so only a few of them are trained and attacked; with one sum of everybody
    all people are trained."""
    if plan.wire.stage.secure_sum is None or plan.wire.noisy or task.facts.kind not in ("ranking", "ratings"):
        return None
    federation = task.federation("final", plan.method, plan.sampling, None)
    group = dict(parse(settings.wire))["secure"]
    if group:
        few = shuffle(federation.members, settings.seed)[: GROUPS * int(group)]
        federation = replace(federation, members=few)
    run = ObservedRun(
        plan.method, plan.model, federation, plan.wire.stage, min(plan.rounds, ROUNDS), settings.seed, settings.seed,
        None if group else settings.cohort, settings.dropout,
    )  # fmt: skip
    leak = measure_all_rounds(run, PEOPLE, task.facts.kind, watch)
    return SecureLeak.model_validate(leak.model_dump(exclude={"attacks"}))


def leak_note(leak: SecureLeak) -> str:
    """The leak as a note of the result."""
    return (
        "Secure sums without noise promise nothing: a server that keeps the sums of "
        f"{count(leak.rounds, 'round')} recovers people's items "
        f"with F1 {leak.f1:.3f} (worst person {leak.worst_f1:.3f}; knowing only what is popular gives "
        f"{leak.popularity_f1:.3f}). Add noise (--wire clip=1,noise=1,secure)."
    )
