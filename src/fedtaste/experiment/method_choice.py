"""Which method for these data? `compare --methods auto`: the few that suit a task, tried within a time budget.

The candidates follow from the facts of the task, each with the reason why it is tried; every other method has the
reason why it is not. The choice is made on validation, never on test: among the methods that keep KEPT of the best
one's gain over the plain baseline, the one that sends the fewest bytes.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from fedtaste.engine.run import RunOptions, run
from fedtaste.errors import SettingError
from fedtaste.experiment.folder import Data
from fedtaste.experiment.plan import task_kind
from fedtaste.experiment.privacy import adds_noise
from fedtaste.experiment.result import MethodChoice, MethodTrial, RunResult
from fedtaste.experiment.settings import Settings
from fedtaste.experiment.train import Prepared, checked_plan, prepare
from fedtaste.methods import METHODS
from fedtaste.tasks.base import Facts, Served, Task

KEPT = 0.9  # of the best method's gain over the baseline: a method that keeps it and sends less is taken instead
REQUIRED = 2  # the first candidates, the plain baseline and the default, are always tried
WARM_UP = 6  # people of the round before the one that is timed, which may compile
MOST_PAIRS = 50_000_000  # numbers in an upload of item pairs, 200 MB
Reasons = dict[str, str]  # by method

RANKING = {
    "popularity": "the plain baseline, the same list for everybody",
    "fedals": "the default: exact solves, few rounds",
    "fedeigen": "item factors from eigenvectors of counts; few bytes where there are many items",
    "fedtrail": "counts which items are taken together, and in which order where there is time; one round",
    "fedrecon": "rebuilds a person from their own items and stores nothing; good where histories are short",
    "fedmf": "the plain federated factorisation, by gradients",
    "fedseq": "a small network that reads items in their order; it takes longer than all others",
}
CANDIDATES: dict[str, Reasons] = {
    "ranking": RANKING,
    "ratings": {
        "popularity": "the plain baseline, the mean rating of an item",
        "fedals": "the default: exact solves, few rounds",
        "fedrecon": RANKING["fedrecon"],
        "fedmf": RANKING["fedmf"],
    },
    "labels": {
        "local": "the plain baseline, everybody alone",
        "fedavg": "the default: one model for everybody",
        "ditto": "a personal model near the shared one",
        "fedclup": "a personal model whose distance from the shared one is measured",
    },
    "pictures": {
        "local": "the plain baseline, everybody alone",
        "fedavg": "the default: one model for everybody",
        "fedbn": "everybody keeps their own batch norm, for pictures that look different by client",
        "fedrep": "everybody keeps a head of their own, for labels that differ by client",
    },
}
SAME_AS_FEDMF = "with default settings it computes on a factorisation what fedmf computes"
COPIES = "it learns a personal item table, and was below fedmf on ML-100K (docs/evidence/all.json)"
NOT_TRIED: dict[str, Reasons] = {
    "items": {
        "local": "it learns alone, and a history alone says little about other items",
        "centralised": "it holds everybody's data in one place",
        "fedveil": "it is made for runs with noise (--epsilon)",
        **dict.fromkeys(("fedsgd", "fedavg", "fedprox", "fedper"), SAME_AS_FEDMF),
        **dict.fromkeys(("ditto", "pfedme", "apfl", "fedclup", "lgmix", "pfedrec"), COPIES),
        "fedrap": "its own item table takes more of a device than any method that is tried",
        "fedrep": "it differs from fedmf only in the order of its steps",
        "fedncf": "its network costs several times what fedmf costs",
        "fcf": "its gradients are of the objective that fedals solves exactly",
        "fedbn": "a factorisation has no batch norm",
    },
    "features": {
        "centralised": "it holds everybody's data in one place",
        **dict.fromkeys(("popularity", "fedals", "fedtrail", "fedveil", "fedrap", "fcf", "fedmf", "fedncf", "pfedrec"),
                        "it recommends items, and these data have none"),
    },
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class ChoicePlan:
    """The candidates that are ready to be tried, in order, and why each other method is not."""

    task: Task
    runs: dict[str, Prepared]
    why: Reasons
    left_out: Reasons

    @property
    def required(self) -> list[str]:
        """The plain baseline and the default, which are tried in any case."""
        return list(self.runs)[:REQUIRED]


def candidates(facts: Facts) -> tuple[Reasons, Reasons]:
    """(the methods that suit these data, the others), each method with its reason."""
    kind = task_kind(facts)
    tried = dict(CANDIDATES[kind])
    reasons = NOT_TRIED["items" if facts.items else "features"]
    left_out = {
        name: reasons.get(name, "the methods that are tried cover what it does")
        for name in METHODS
        if name not in tried
    }
    if facts.items**2 / 2 > MOST_PAIRS:
        for name in ("fedtrail", "fedseq"):
            if tried.pop(name, ""):
                left_out[name] = f"it would send counts of pairs of {facts.items:,} items, too many bytes"
    if not facts.timed and tried.pop("fedseq", ""):
        left_out["fedseq"] = "it learns from the order of items, and these data have no time"
    return tried, left_out


def plan_choice(settings: Settings, data: Data, task: Task) -> ChoicePlan:
    """Prepare the candidates; those that do not fit the settings (a wire, a cohort) are left out with the reason."""
    kind = task_kind(task.facts)
    if settings.protocol == "published":
        raise SettingError(
            "--protocol published chooses the round on the test data, and --methods auto would choose the method on "
            "them, too. Leave it out, or compare by name: --methods popularity,fedals."
        )
    if adds_noise(settings):
        raise SettingError(
            "--methods auto chooses on validation, which a run with noise does not have: it would spend more of the "
            "privacy budget. Compare by name: --methods popularity,fedveil,fedals."
        )
    if kind not in CANDIDATES or not task.validates:
        raise SettingError(
            f"--methods auto chooses on validation, and {data.name} leaves nothing to validate on. Compare by name, as "
            "in --methods local,fedavg,fedclup."
        )
    tried, left_out = candidates(task.facts)
    runs = {}
    for method in tried:
        try:
            runs[method] = prepare(_validated(settings, method), data, task=task)
        except SettingError as error:
            left_out[method] = str(error)
    if not runs:
        raise SettingError("No method can be tried with these settings: " + " ".join(left_out[m] for m in tried))
    return ChoicePlan(task, runs, {method: tried[method] for method in runs}, left_out)


def _validated(settings: Settings, method: str) -> Settings:
    """The settings of a candidate. One that plans its rounds is validated at their end, for the choice."""
    changes: dict[str, object] = {"method": method}
    if method == "fedseq" and settings.validations is None:
        changes["validations"] = 1
    return settings.model_copy(update=changes)


def estimate_seconds(prepared: Prepared) -> float:
    """About how long this run would take if no phase ended early, from one round and one validation."""
    plan, task, settings = prepared.plan, prepared.task, prepared.settings
    federation = task.federation("search", plan.method, plan.sampling, None)
    first = plan.method.schedule.counting if plan.method.schedule else 0  # rounds that are not like the others
    options = RunOptions(rounds=first + 1, seed=plan.seed, backend=settings.backend, wire=plan.wire.stage)
    few = replace(federation, members=federation.members[:WARM_UP])
    if plan.wire.stage.secure_sum is None:  # so few people could not open a sum
        list(run(plan.method, plan.model, few, **options))
    training = run(plan.method, plan.model, federation, **options)
    for _ in range(first):
        next(training)
    began = time.perf_counter()
    *_, done = training
    lap, served = time.perf_counter() - began, Served(plan.method, plan.model, done.state, plan.sampling)
    task.validation(served)  # the first one may compile, too
    began = time.perf_counter()
    task.validation(served)
    return 2 * plan.rounds * lap + plan.rounds / plan.every * (time.perf_counter() - began)


def require_budget(seconds: dict[str, float], minutes: float) -> None:
    """Raise SettingError where the methods that are always tried do not fit the budget."""
    needed = sum(seconds.values()) / 60
    if needed > minutes:
        names = " and ".join(seconds)
        raise SettingError(
            f"--minutes {minutes:g} is too little for {names}, which take about {needed:.2g} minutes on these data. "
            f"Give at least --minutes {max(needed * 2, 0.1):.1g}."
        )


def choose(plan: ChoicePlan, results: Sequence[RunResult], minutes: float) -> MethodChoice:
    """The method to take, by validation and bytes, with the figures of all that were tried."""
    metric, sign = plan.task.selection
    trials = tuple(_trial(plan, result, metric) for result in results)
    baseline = trials[0]

    def gain(trial: MethodTrial) -> float:
        return sign * (trial.valid - baseline.valid)

    best = max(trials, key=gain)
    good = [trial for trial in trials if gain(trial) >= KEPT * gain(best)] if gain(best) > 0 else [baseline]
    take = min(good, key=lambda trial: trial.bytes_per_person)
    sentence = _sentence(take, best, baseline, metric)
    return MethodChoice(
        take=take.method, sentence=sentence, metric=metric, minutes=minutes, trials=trials, left_out=plan.left_out
    )


def _trial(plan: ChoicePlan, result: RunResult, metric: str) -> MethodTrial:
    """The validation, bytes and properties of one method that was tried."""
    prepared = plan.runs[result.method]
    method, valid = prepared.plan.method, result.curve[result.best_round - 1].valid
    assert valid is not None  # the best round is one that was validated
    sent = result.traffic.up_bytes + result.traffic.down_bytes
    private = tuple(sorted(method.init(prepared.plan.model.init(torch.Generator()))[1]))
    return MethodTrial(
        method=result.method, why=plan.why[result.method], valid=round(valid[metric], 6),
        bytes_per_person=round(sent / max(result.members, 1)), private=private,
        trains_new_people=bool(private) and method.examples == "samples",
        secure=_works_with_secure_sums(prepared), page=method.recipe is not None, run=result.run,
    )  # fmt: skip


def _works_with_secure_sums(prepared: Prepared) -> bool:
    """Whether the same run with --wire secure would be accepted."""
    if prepared.plan.method.pooled:
        return False
    if "secure" in prepared.settings.wire:
        return True
    try:
        checked_plan(prepared.settings.model_copy(update={"wire": "secure"}), prepared.task)
    except SettingError:
        return False
    return True


def _sentence(take: MethodTrial, best: MethodTrial, baseline: MethodTrial, metric: str) -> str:
    """The choice for readers."""
    if take is baseline:
        return f"Take {take.method}: no method that was tried is better on validation ({metric} {take.valid:.3f})."
    figures = f"{metric} {take.valid:.3f} on validation ({baseline.method} {baseline.valid:.3f})"
    text = f"Take {take.method}: {figures}, {take.bytes_per_person:,} bytes to and from a person."
    if best is take:
        return f"{text} No other method that was tried is better on validation."
    ratio = best.bytes_per_person / max(take.bytes_per_person, 1)
    better = f"{best.method} is {abs(best.valid - take.valid):.3f} better on validation"
    return f"{text} {better} but sends {ratio:.2g} times the bytes."
