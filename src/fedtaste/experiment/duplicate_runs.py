"""Detect configurations that produce bit-identical runs, and train each once.

On some data different methods are the same computation: FedAvg with one local step is FedSGD, and a proximal term has
no effect in the first local step. A comparison of all methods trains one of them; the others are copies with a note.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedtaste.core import Examples, Params
from fedtaste.engine.run import run
from fedtaste.experiment.folder import RunFolder
from fedtaste.experiment.train import Prepared
from fedtaste.files.folders import replace_folder

PEOPLE, ROUNDS = 6, 2  # of the trial that runs are compared by; the second round reads private parameters


def find_duplicates(runs: Mapping[str, Prepared]) -> dict[str, str]:
    """{label: label of the earlier run that it equals}, by a short trial with a few people."""
    first: dict[str, str] = {}
    duplicates = {}
    for label, prepared in runs.items():
        if prepared.plan.method.pooled:
            continue
        digest = _trial_digest(prepared)
        if digest in first:
            duplicates[label] = first[digest]
        first.setdefault(digest, label)
    return duplicates


def copy_run(original: RunFolder, folder: RunFolder, prepared: Prepared) -> None:
    """Copy a finished run to the folder of a run that equals it, under its own method and settings."""
    result, settings, shown = original.result(), prepared.settings, prepared.plan.settings
    note = f"{settings.method} does on these data exactly what {result.method} does; it was not trained again."
    changes = {"method": settings.method, "settings": shown, "run": str(folder.path), "notes": (*result.notes, note)}

    def fill(new: Path) -> None:
        copy = RunFolder(new)
        shutil.copytree(original.path, new, dirs_exist_ok=True)
        copy.write("settings.json", copy.read("settings.json") | {"settings": settings.model_dump()})
        copy.write("plan.json", shown)
        copy.write("result.json", result.model_copy(update=changes).dump())

    replace_folder(folder.path, fill)


def _trial_digest(prepared: Prepared) -> str:
    """A hash of the shared, private and personalised parameters after a few rounds with a few people, and of the
    settings of the training loop."""
    plan = prepared.plan
    federation = prepared.task.federation("search", plan.method, plan.sampling, None)
    federation = replace(federation, members=federation.members[:PEOPLE])
    *_, last = run(plan.method, plan.model, federation, rounds=ROUNDS, seed=plan.seed)
    person = federation.members[:1]
    private = {name: value[0] for name, value in last.state.private.gather(person).items()}
    examples = Examples(*(x[0] for x in federation.examples(person, 0, plan.method.examples).pad()))
    served = plan.method.personalize(last.state.shared, private, examples)
    loop = f"{plan.rounds} {plan.tolerance} {plan.patience} {last.up_bytes} {plan.sampling}"
    content = _bytes(last.state.shared) + _bytes(private) + _bytes(served) + loop.encode()
    return hashlib.sha256(content).hexdigest()


def _bytes(params: Params) -> bytes:
    parts = [name.encode() + np.ascontiguousarray(v.detach().numpy()).tobytes() for name, v in sorted(params.items())]
    return b"".join(parts)
