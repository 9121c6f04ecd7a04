"""What secure sums without noise give away: the F1 of an attacker who keeps the sums of several rounds of a run.

`run` measures it for its own configuration and puts it into the result and its notes; `tacit audit` has more.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from .evaluation.audit import order
from .evaluation.cross_round import many_round_f1
from .progress import Watch
from .settings import Plan, Settings
from .tasks import Task
from .wire.plan import parse

ROUNDS = 6  # that the attacker sees, at most: what one round does not tell, six hardly do
GROUPS, PEOPLE = 6, 100  # groups that are attacked, and people of one sum of everybody


def secure_leak(made: Plan, task: Task, settings: Settings, watch: Watch) -> dict[str, Any] | None:
    """{"f1", "worst_f1", "popularity_f1", "rounds", "people", "in_sum", "attack"}; None where there are no secure sums,
    where they have noise, or where there are no items to guess. Groups are small worlds of their own, so a few of them
    are trained and attacked; one sum of everybody is trained as a whole."""
    if made.wire.stage.seal is None or made.wire.noisy or task.facts.kind not in ("ranking", "ratings"):
        return None
    federation = task.federation("final", made.method, made.sampling, None)
    group = dict(parse(settings.wire))["secure"]
    if group:
        few = order(federation.members, settings.seed)[: GROUPS * int(group)]
        federation = replace(federation, members=few)
    told = many_round_f1(
        made.method, made.model, federation, made.wire.stage, min(made.rounds, ROUNDS), PEOPLE, settings.seed,
        cohort=None if group else settings.cohort, dropout=settings.dropout, kind=task.facts.kind, watch=watch,
    )  # fmt: skip
    return {name: value for name, value in told.items() if name != "attacks"}


def leak_note(leak: dict[str, Any] | None) -> list[str]:
    """The figure in a sentence."""
    if leak is None:
        return []
    rounds = f"{leak['rounds']} round{'s' * (leak['rounds'] != 1)}"
    return [
        f"Secure sums without noise promise nothing: a server that keeps the sums of {rounds} recovers people's items "
        f"with F1 {leak['f1']:.3f} (worst person {leak['worst_f1']:.3f}; knowing only what is popular gives "
        f"{leak['popularity_f1']:.3f}). Add noise (--wire clip=1,noise=1,secure)."
    ]
