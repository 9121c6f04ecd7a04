"""How far apart clients' data are, in the one unit that decides about sharing: against what a client cannot know alone.

    R       how far the models that fit the clients lie from their centre, with the noise taken out
    noise   how far a client's own fit is off, for having only n examples
If R is below the noise, sharing pays; above it, a model of one's own. Both are read off the gradients of a linear (or
softmax) model at the shared one, by the rounds that FedCLUP with lam="auto" runs; nobody's data or fit is looked at.
"""

from __future__ import annotations

from typing import Any

from .client_tasks import examples_each, supervised
from .data.supervised import Supervised
from .engine.run import run
from .methods import fedclup
from .models import linear, logistic
from .tasks import Sampling, Task

ROUNDS, PASSES = 15, 20


def heterogeneity(task: Task | Supervised, seed: int = 0) -> dict[str, Any] | None:
    """{"R", "noise", "n", "clients", "lam"} of data with features; None for others. `lam` is what FedCLUP would take,
    for the linear model that was measured with."""
    task = supervised(task, seed=seed) if isinstance(task, Supervised) else task
    facts = task.facts
    if facts.kind not in ("regression", "labels"):
        return None
    model = linear(facts.width) if facts.kind == "regression" else logistic(facts.width, facts.classes)
    method = fedclup(model, lam="auto", passes=PASSES)
    federation = task.federation("final", method, Sampling(), None)
    if len(federation.members) < 2:
        return None
    memory = dict.fromkeys(("differ", "noise", "usual"), 0.0)
    lam = 0.0
    for done in run(method, model, federation, rounds=ROUNDS, seed=seed):
        memory = {name: float(value) for name, value in done.state.memory.items()}
        lam = float(done.state.shared["lam"])
    usual = memory["usual"]
    if not usual > 0:
        return None
    return {
        "R": round(max(memory["differ"], 0.0) ** 0.5 / usual, 6),
        "noise": round(memory["noise"] ** 0.5 / usual, 6),
        "n": round(examples_each(federation), 1),
        "clients": len(federation.members),
        "lam": float(f"{lam:.3g}") if len(facts.shape) == 1 else None,  # pictures have another model
    }
