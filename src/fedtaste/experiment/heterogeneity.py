"""Measure the heterogeneity of clients: how far their best models are apart, against the error of a client's own fit.

    R       the distance of the clients' best models from their centre, without the part that is noise
    noise   the error of a client's own fit, which has only n examples
If R is below the noise, sharing pays; above it, a model of one's own does. Both are estimated from the gradients of a
linear (or softmax) model at the shared one, in rounds of FedCLUP with lam="auto"; nobody's data or fit leaves a client.
"""

from __future__ import annotations

from fedtaste.data.supervised import Supervised
from fedtaste.engine.run import run
from fedtaste.experiment.result import Heterogeneity
from fedtaste.methods import fedclup
from fedtaste.models import linear, logistic
from fedtaste.tasks.base import Sampling, Task
from fedtaste.tasks.clients import Clients

ROUNDS, PASSES = 15, 20


def heterogeneity(task: Task | Supervised, seed: int = 0) -> Heterogeneity | None:
    """Measure the clients of data with features; None for other data, and for fewer than two clients."""
    task = Clients(task, seed=seed) if isinstance(task, Supervised) else task
    facts = task.facts
    if facts.kind not in ("regression", "labels"):
        return None
    model = linear(facts.width) if facts.kind == "regression" else logistic(facts.width, facts.classes)
    method = fedclup(model, lam="auto", passes=PASSES)
    federation = task.federation("final", method, Sampling(), None)
    if len(federation.members) < 2:
        return None
    examples = federation.examples(federation.members, 0, method.examples)
    memory = dict.fromkeys(("differ", "noise", "usual"), 0.0)
    lam = 0.0
    for done in run(method, model, federation, rounds=ROUNDS, seed=seed):
        memory = {name: float(value) for name, value in done.state.memory.items()}
        lam = float(done.state.shared["lam"])
    usual = memory["usual"]
    if not usual > 0:
        return None
    return Heterogeneity(
        R=round(max(memory["differ"], 0.0) ** 0.5 / usual, 6),
        noise=round(memory["noise"] ** 0.5 / usual, 6),
        n=round(float(examples.lengths.mean()), 1),
        clients=len(federation.members),
        lam=float(f"{lam:.3g}") if len(facts.shape) == 1 else None,  # pictures have another model
    )
