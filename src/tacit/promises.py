"""What a run promises: from `--wire`, `--epsilon`, `--delta` to the method on its wire, and what must be said of it."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from .core import Model, Stage
from .errors import SettingError
from .federation import cohort_size
from .methods import build, find_method, settings_of
from .methods.fedveil import advice, predictor
from .tasks import Facts
from .wire.accounting import NO_BOUND, check, default_delta, statement
from .wire.plan import Wire, assemble, multiplier_for, parse, upload_of

SECRET = 2**32  # a seed from here on was drawn, and not chosen

if TYPE_CHECKING:
    from .settings import Settings


def wired(
    settings: Settings, task: Facts, model: Model, own: Mapping[str, Any], rounds: int
) -> tuple[Wire, float, dict[str, Any] | None]:
    """(the method on its wire, delta, how noise and data go together)."""
    method = find_method(settings.method)
    asked, delta = parse(settings.wire), settings.delta or default_delta(task.people)
    check(settings.epsilon, settings.delta)
    public = {"features": task.features, "feature_count": task.feature_count}
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
    like = {} if built.pooled else upload_of(built, model, inputs)
    wire = assemble(asked, built, like, everybody=people, rate=many / people, multiplier=noise)
    told = None
    if bounded and known["noise"]:
        r = predictor(known["noise"], task.items, people)
        told = {"r": r, "advice": advice(r, {**own, **built.resolved}.get("route") == "features")}
    return wire, delta, told


def _asked_by(method: Callable[..., Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """What of the wire and of the task a method has a parameter for."""
    return {name: value for name, value in known.items() if name in settings_of(method)}


def promises(settings: Settings, task: Facts, wire: Wire, delta: float) -> tuple[str, ...]:
    """What must be said of epsilon."""
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
    if delta >= 1 / max(task.people, 1):
        notes.append(
            f"delta is {delta:.2g}, not below 1 in {task.people:,} people: such a promise may be kept by giving one "
            f"person away. Smaller is better; {default_delta(task.people):.1g} is the default."
        )
    if settings.folds:
        notes.append(
            "epsilon is of the final model; the folds are trained apart, with noise of their own, to judge it."
        )
    if (settings.noise_seed or 0) < SECRET:
        notes.append(
            "The noise is repeatable: who knows the seed can take it off. For people who must be protected: "
            "--noise-seed secret."
        )
    notes.append("The rounds are fixed beforehand: choosing the best would release more than the one model.")
    return tuple(notes)


def spent(so_far: dict[str, Any] | None, wire: Wire, delta: float) -> dict[str, Any] | None:
    """What the rounds so far have cost, for a checkpoint; it only grows. None where there is no noise."""
    return None if so_far is None else statement(wire.mechanism, so_far.get("rounds", 0), delta)


def sentence(privacy: dict[str, Any] | None) -> list[str]:
    """What is promised, in a sentence, where something is."""
    if not privacy or privacy.get("epsilon") is None:
        return []
    return [
        f"Private: epsilon {privacy['epsilon']:.3g} with delta {privacy['delta']:.2g}, against {privacy['against']}; "
        f"noise {privacy['noise']:.3g} x the bound, {privacy['rounds']} round{'s' * (privacy['rounds'] != 1)}."
    ]


def draws_of(settings: Settings, run: int, phase: str) -> int:
    """What this phase's noise is drawn from: never the same for two runs or two phases, or one could be taken from the
    other and the noise would be gone."""
    seed = settings.seed if settings.noise_seed is None else settings.noise_seed
    return int.from_bytes(hashlib.sha256(f"{seed} {run} {phase}".encode()).digest()[:8], "big") >> 1
