"""Privacy of a run: solve for the noise, build the wire, check and state epsilon, and derive the keys of the noise."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from fedtaste.core import Method, Model, Params, Stage
from fedtaste.errors import SettingError
from fedtaste.federation import cohort_size
from fedtaste.methods.registry import PublicValues
from fedtaste.tasks.base import Facts
from fedtaste.text import count
from fedtaste.wire.accounting import (
    MEANINGLESS,
    NO_BOUND,
    REPEATABLE,
    Mechanism,
    PrivacyStatement,
    check_budget,
    default_delta,
    epsilons,
    statement,
)
from fedtaste.wire.parse import Wire, assemble, multiplier_for, parse, uploads_of
from fedtaste.wire.rng import derive, seeded_key

if TYPE_CHECKING:
    from fedtaste.experiment.folder import RunFolder
    from fedtaste.experiment.settings import Settings

BuildMethod = Callable[[PublicValues], Method]


def make_wire(
    settings: Settings, task: Facts, model: Model, public: PublicValues, build: BuildMethod, rounds: int
) -> Wire:
    """Solve for the noise that `--epsilon` needs, build the method with it, and put the method on its wire. `public`
    holds the public values that do not depend on the wire."""
    stages, delta = parse(settings.wire), delta_of(settings, task)
    if any(name in ("turns", "common_turns") for name, _ in stages):  # every round sends other rows' counts
        public = replace(public, counts_once=False)
    check_budget(settings.epsilon, settings.delta)
    plain = build(public)
    if not stages and settings.epsilon is None:
        return Wire(plain, plain.stage or Stage(), None, False)
    people, bounded = max(task.people, 1), bool(plain.privacy.bounds)
    cohort = people if settings.cohort is None else cohort_size(settings.cohort, people)
    if bounded and settings.cohort is not None:
        raise SettingError(
            f"--cohort is not for {settings.method}: everybody takes part in each of its sums. Leave it out."
        )
    solved = multiplier_for(stages, settings.epsilon, delta, rounds, cohort / people, bounded)
    values = dict(stages)
    noise = solved or values.get("noise") or values.get("local") or 0.0
    if "local" in values:  # every device adds its own noise: the sum has that of all
        noise *= math.sqrt(cohort)
    method = build(replace(public, noise=noise, people=people, clip=values.get("clip") or 1.0))
    shape = task.shape or ((task.width,) if task.width else ())
    inputs = torch.zeros(1, 1, *shape) if shape else torch.zeros(1, 1, dtype=torch.int64)
    upload_shapes: list[Params] = [{}] if method.pooled else uploads_of(method, model, inputs)
    return assemble(
        stages, method, upload_shapes, everybody=people, rate=cohort / people, multiplier=solved, seed=settings.seed
    )


def delta_of(settings: Settings, task: Facts) -> float:
    """The delta of the privacy statement: that of the settings, or the default for so many people."""
    return settings.delta or default_delta(task.people)


def wire_notes(settings: Settings, task: Facts, wire: Wire, rounds: int, elsewhere: bool) -> tuple[str, ...]:
    """The notes about the wire; SettingError where the run cannot promise what the settings demand."""
    epsilon_notes = _epsilon_notes(settings, task, wire, rounds)
    return (*wire.notes, *epsilon_notes, *_secure_sum_notes(settings, wire, rounds, elsewhere))


def _secure_sum_notes(settings: Settings, wire: Wire, rounds: int, elsewhere: bool) -> tuple[str, ...]:
    """Refuse secure sums without noise whose differences between rounds reveal a person; with nodes, warn."""
    if wire.stage.secure_sum is None or wire.noisy or rounds < 2 or not wire.method.privacy.constant:
        return ()
    if not elsewhere and settings.cohort is None and not settings.dropout:
        return ()  # every sum is over the same people
    if elsewhere:
        return (
            "Secure sums without noise over several rounds: a node that misses a round shows its own sum as the "
            "difference of two. Add noise, or let every node hold many people (fewest).",
        )
    raise SettingError(
        f"--wire {settings.wire} hides nobody here: {settings.method} sends a person's list of items in every round; "
        "where people come and go (--cohort, --dropout) the difference of two rounds' sums is one person's list. Add "
        "noise (--wire clip=1,noise=1,secure), or let everybody take part in every round."
    )


def require_cohort(mechanism: Mechanism | None, people: int, rounds: int, delta: float) -> None:
    """Refuse cohorts that may be empty, or too small for a secure sum. A round that releases nothing reveals something
    about the secret coins, which no accountant counts; its chance, times what it adds to delta, must be negligible."""
    if mechanism is None or mechanism.local or mechanism.rate >= 1:
        return
    few = range(3 if mechanism.sealed else 1)  # cohorts of these sizes release nothing
    chance = sum(
        math.comb(people, k) * mechanism.rate**k * (1 - mechanism.rate) ** (people - k) for k in few if k <= people
    )
    epsilon = min(epsilons(mechanism, rounds, delta).epsilon, 50.0)
    if (1 + math.exp(epsilon)) * rounds * chance > delta / 10:
        raise SettingError(
            f"--cohort asks {mechanism.rate * people:.3g} of {people:,} people on average: a round that happens to ask "
            "nobody, or too few for a secure sum, would release nothing, which reveals who was not asked. Ask more "
            "people (30 are enough for most settings), or leave --cohort out."
        )


def _epsilon_notes(settings: Settings, task: Facts, wire: Wire, rounds: int) -> tuple[str, ...]:
    """The notes about epsilon; SettingError for `--promise` where no meaningful epsilon can be promised."""
    mechanism, repeatable = wire.mechanism, settings.noise_seed is not None
    if settings.promise and (mechanism is None or repeatable):
        why = REPEATABLE if repeatable else NO_BOUND if wire.noisy else "there is no noise. Add --epsilon 3"
        raise SettingError(f"--promise was asked for, and no epsilon can be promised: {why}.")
    if mechanism is None:
        _refuse_options_without_noise(settings, wire)
        return (f"No epsilon is printed: {NO_BOUND}.",) if wire.noisy else ()
    delta, notes = delta_of(settings, task), []
    epsilon = epsilons(mechanism, rounds, delta).epsilon
    if epsilon > MEANINGLESS:
        if settings.promise:
            raise SettingError(f"--promise was asked for, and epsilon {epsilon:.3g} promises nothing. Use more noise.")
        notes.append(f"epsilon {epsilon:.3g} promises nothing: use more noise, or fewer rounds.")
    if delta >= 1 / max(task.people, 1):
        notes.append(
            f"delta is {delta:.2g}, not below 1 in {task.people:,} people: such a promise may be kept by giving one "
            f"person away. Smaller is better; {default_delta(task.people):.1g} is the default."
        )
    if settings.folds:
        notes.append(
            "epsilon is of the final model; the folds are trained apart, with noise of their own, to judge it."
        )
    if repeatable:
        notes.append(f"No epsilon is promised: {REPEATABLE}.")
    notes.append("The rounds are fixed beforehand: choosing the best would release more than the one model.")
    return tuple(notes)


def _refuse_options_without_noise(settings: Settings, wire: Wire) -> None:
    """Refuse `--delta` and `--noise-seed` where there is no noise that they could change."""
    if wire.noisy:
        return
    if settings.delta is not None or settings.noise_seed is not None and not settings.wire:
        name = "delta" if settings.delta is not None else "noise-seed"
        raise SettingError(
            f"--{name} would change nothing: there is no noise. Add --epsilon, or --wire clip=1,noise=1."
        )


def adds_noise(settings: Settings) -> bool:
    """Whether these settings ask for noise, so that outputs must be limited to what the promise covers."""
    return settings.epsilon is not None or any(name in ("noise", "local") for name, _ in parse(settings.wire))


def privacy_statement(settings: Settings, wire: Wire, rounds: int, delta: float) -> dict[str, object] | None:
    """The privacy statement of a run of so many planned rounds; None where there is no noise. It does not depend on how
    many rounds were run: a stop that depends on the data never lowers epsilon."""
    if not wire.noisy:
        return None
    return statement(wire.mechanism, rounds, delta, repeatable=settings.noise_seed is not None).dump()


def privacy_sentence(fields: Mapping[str, object] | None) -> list[str]:
    """A privacy statement as one sentence, where an epsilon is promised."""
    promise = PrivacyStatement.model_validate(fields) if fields else None
    if promise is None or promise.epsilon is None:
        return []
    return [
        f"Private: epsilon {promise.epsilon:.3g} with delta {promise.delta:.2g}, against {promise.against}, where "
        f"{promise.adjacency}; noise {promise.noise:.3g} x the bound, {count(promise.rounds or 0, 'planned round')}."
    ]


def phase_key(settings: Settings, folder: RunFolder, phase: str) -> bytes:
    """The key from which this phase draws its noise: derived from the run folder's secret key or, for a study, from the
    noise seed. It differs between phases, and with a secret key between runs: otherwise the difference of two releases
    would have no noise."""
    if settings.noise_seed is not None or not adds_noise(settings):
        seed = settings.seed if settings.noise_seed is None else settings.noise_seed
        return seeded_key(seed, folder.repeatable_run_id, phase)
    return derive(folder.noise_key(), folder.run_id, phase)  # the run id: other settings draw other noise
