"""What a run promises: from `--wire`, `--epsilon`, `--delta` to the method on its wire, and what must be said of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from .core import Model, Params, Stage
from .errors import SettingError
from .federation import cohort_size
from .methods import build, find_method, settings_of
from .methods.fedveil import advice, predictor
from .tasks import Facts
from .wire.accounting import MEANINGLESS, NO_BOUND, REPEATABLE, Mechanism, check, default_delta, epsilons, statement
from .wire.plan import Wire, assemble, multiplier_for, parse, uploads_of
from .wire.rng import derive, seeded_key

if TYPE_CHECKING:
    from .runs import RunFolder
    from .settings import Settings


def wired(
    settings: Settings, task: Facts, model: Model, own: Mapping[str, Any], rounds: int, elsewhere: bool = False
) -> tuple[Wire, float, dict[str, Any] | None]:
    """(the method on its wire, delta, how noise and data go together)."""
    method = find_method(settings.method)
    asked, delta = parse(settings.wire), settings.delta or default_delta(task.people)
    check(settings.epsilon, settings.delta)
    everybody = settings.cohort is None and not settings.dropout and not elsewhere  # in every round
    public = {"features": task.features, "feature_count": task.feature_count, "counts_once": everybody}
    trial = build(settings.method, model, {**own, **_asked_by(method, public)})
    bounded, people = bool(trial.release), max(task.people, 1)
    if not asked and settings.epsilon is None:
        return Wire(trial, Stage(), None, False), delta, None
    many = people if settings.cohort is None else cohort_size(settings.cohort, people)
    if bounded and settings.cohort is not None:
        raise SettingError(
            f"--cohort is not for {settings.method}: everybody takes part in each of its sums. Leave it out."
        )
    noise = multiplier_for(asked, settings.epsilon, delta, rounds, many / people, bounded)
    values = dict(asked)
    known = {"noise": noise or values.get("noise") or values.get("local") or 0.0, "people": people}
    known |= {"clip": values.get("clip") or 1.0}
    if "local" in values:  # every device adds its own: the sum has that of all
        known["noise"] *= math.sqrt(many)
    built = build(settings.method, model, {**own, **_asked_by(method, known | public)})
    shape = task.shape or ((task.width,) if task.width else ())
    inputs = torch.zeros(1, 1, *shape) if shape else torch.zeros(1, 1, dtype=torch.int64)
    likes: list[Params] = [{}] if built.pooled else uploads_of(built, model, inputs)
    wire = assemble(asked, built, likes, everybody=people, rate=many / people, multiplier=noise)
    told = None
    if bounded and known["noise"]:
        r = predictor(known["noise"], task.items, people)
        told = {"r": r, "advice": advice(r, {**own, **built.resolved}.get("route") == "features")}
    return wire, delta, told


def secure_notes(settings: Settings, wire: Wire, rounds: int, elsewhere: bool) -> tuple[str, ...]:
    """Refuse, or say, what sums of several rounds without noise tell together."""
    if wire.stage.seal is None or wire.noisy or rounds < 2 or not wire.method.constant:
        return ()
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


def _asked_by(method: Callable[..., Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """What of the wire and of the task a method has a parameter for."""
    return {name: value for name, value in known.items() if name in settings_of(method)}


def require_cohort(mechanism: Mechanism | None, people: int, rounds: int, delta: float) -> None:
    """Refuse cohorts that may be empty, or too small for a secure sum: that nothing is released then tells something
    about the coins, which no accountant counts. The chance, times what it adds to delta, must be negligible."""
    if mechanism is None or mechanism.local or mechanism.rate >= 1:
        return
    few = range(3 if mechanism.sealed else 1)  # so few people release nothing
    chance = sum(
        math.comb(people, k) * mechanism.rate**k * (1 - mechanism.rate) ** (people - k) for k in few if k <= people
    )
    epsilon = min(epsilons(mechanism, rounds, delta)["epsilon"], 50.0)
    if (1 + math.exp(epsilon)) * rounds * chance > delta / 10:
        raise SettingError(
            f"--cohort asks {mechanism.rate * people:.3g} of {people:,} people on average: a round that happens to ask "
            "nobody, or too few for a secure sum, would release nothing, which tells who was not asked. Ask more "
            "people (30 are enough for most settings), or leave --cohort out."
        )


def promises(settings: Settings, task: Facts, wire: Wire, delta: float, rounds: int) -> tuple[str, ...]:
    """What must be said of epsilon."""
    if settings.promise and (wire.mechanism is None or settings.noise_seed is not None):
        why = (
            REPEATABLE if settings.noise_seed is not None else "there is no noise that an epsilon could be computed for"
        )
        raise SettingError(f"--promise was asked for, and no epsilon can be promised: {why}.")
    if wire.noisy and wire.mechanism is None:
        return (f"No epsilon is printed: {NO_BOUND}.",)
    if wire.mechanism is None:
        if settings.delta is not None or settings.noise_seed is not None and not settings.wire:
            name = "delta" if settings.delta is not None else "noise-seed"
            raise SettingError(
                f"--{name} would change nothing: there is no noise. Add --epsilon, or --wire clip=1,noise=1."
            )
        return ()
    notes = []
    promised = epsilons(wire.mechanism, rounds, delta)["epsilon"]
    if promised > MEANINGLESS and settings.promise:
        raise SettingError(f"--promise was asked for, and epsilon {promised:.3g} promises nothing. Use more noise.")
    if promised > MEANINGLESS:
        notes.append(f"epsilon {promised:.3g} promises nothing: use more noise, or fewer rounds.")
    if delta >= 1 / max(task.people, 1):
        notes.append(
            f"delta is {delta:.2g}, not below 1 in {task.people:,} people: such a promise may be kept by giving one "
            f"person away. Smaller is better; {default_delta(task.people):.1g} is the default."
        )
    if settings.folds:
        notes.append(
            "epsilon is of the final model; the folds are trained apart, with noise of their own, to judge it."
        )
    if settings.noise_seed is not None:
        notes.append(f"No epsilon is promised: {REPEATABLE}.")
    notes.append("The rounds are fixed beforehand: choosing the best would release more than the one model.")
    return tuple(notes)


def is_private(settings: Settings) -> bool:
    """Whether these settings ask for noise, so that outputs are kept to what the promise covers."""
    return settings.epsilon is not None or any(name in ("noise", "local") for name, _ in parse(settings.wire))


def privacy_statement(settings: Settings, wire: Wire, rounds: int, delta: float) -> dict[str, Any] | None:
    """What a run of so many planned rounds promises; None where there is no noise. It does not depend on how many
    rounds were run: a stop that depends on the data never lowers it."""
    if not wire.noisy:
        return None
    return statement(wire.mechanism, rounds, delta, repeatable=settings.noise_seed is not None)


def sentence(privacy: dict[str, Any] | None) -> list[str]:
    """What is promised, in a sentence, where something is."""
    if not privacy or privacy.get("epsilon") is None:
        return []
    rounds = privacy["rounds"]
    return [
        f"Private: epsilon {privacy['epsilon']:.3g} with delta {privacy['delta']:.2g}, against {privacy['against']}, "
        f"where {privacy['adjacency']}; noise {privacy['noise']:.3g} x the bound, {rounds} planned "
        f"round{'s' * (rounds != 1)}."
    ]


def phase_key(settings: Settings, folder: RunFolder, phase: str) -> bytes:
    """What this phase draws from: the run folder's secret key, or, for a study, the noise seed. Never the same for two
    phases, and for a secret key never for two runs: otherwise the difference of two releases would have no noise."""
    if settings.noise_seed is not None or not is_private(settings):
        seed = settings.seed if settings.noise_seed is None else settings.noise_seed
        return seeded_key(seed, folder.stable_number, phase)
    return derive(folder.noise_key(), folder.number, phase)  # the number: other settings draw other noise
