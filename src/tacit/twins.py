"""Methods that are the same thing on given data: one step of FedAvg is FedSGD, and a spring that is not stretched yet
is no spring. Of such runs one is trained; the others are copies that say so."""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from .core import Examples, Params
from .engine.run import run
from .runs import RunFolder
from .settings import Settings, plan
from .tasks import Task

PEOPLE, ROUNDS = 6, 2  # what two methods are told apart by; after as many rounds everything private has been used


def twins(wanted: dict[str, Settings], task: Task) -> dict[str, str]:
    """{run: the earlier one that it equals}, to the last bit, in what a few people learn, keep and are served."""
    first: dict[str, str] = {}
    found = {}
    for label, settings in wanted.items():
        made = plan(settings, task.facts)
        if made.method.pooled:
            continue
        whole = task.federation("search", made.method, made.sampling, None)
        few = replace(whole, members=whole.members[:PEOPLE])
        *_, done = run(made.method, made.model, few, rounds=ROUNDS, seed=made.seed)
        who = few.members[:1]
        own = {name: value[0] for name, value in done.state.private.gather(who).items()}
        held = Examples(*(x[0] for x in few.examples(who, 0).pad()))
        served = made.method.personalize(done.state.shared, own, held)
        loop = f"{made.rounds} {made.tolerance} {made.patience} {done.up_bytes} {made.sampling}"
        mark = hashlib.sha256(_bytes(done.state.shared) + _bytes(own) + _bytes(served) + loop.encode()).hexdigest()
        if mark in first:
            found[label] = first[mark]
        first.setdefault(mark, label)
    return found


def _bytes(params: Params) -> bytes:
    parts = [name.encode() + np.ascontiguousarray(v.detach().numpy()).tobytes() for name, v in sorted(params.items())]
    return b"".join(parts)


def copied(folder: Path, target: Path, settings: Settings, task: Task) -> dict[str, Any]:
    """The finished run of `folder` as that of its twin."""
    shutil.copytree(folder, target)
    twin, result = RunFolder(target), RunFolder(target).result()
    shown = plan(settings, task.facts).shown
    note = f"{settings.method} does on these data exactly what {result['method']} does; it was not trained again."
    result |= {"method": settings.method, "settings": shown, "run": str(target), "notes": [*result["notes"], note]}
    begun = twin.read("settings.json")
    twin.write("settings.json", begun | {"settings": settings.model_dump()})
    twin.write("plan.json", shown)
    twin.write("result.json", result)
    return result
