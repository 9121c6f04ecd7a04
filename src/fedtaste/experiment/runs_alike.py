"""Finished runs that may be compared later: of the same data, task, protocol and split; other ones are refused."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedtaste.errors import RunError, SettingError
from fedtaste.experiment.compare import finished_runs
from fedtaste.experiment.comparison_record import is_comparison, read_record
from fedtaste.experiment.folder import RunFolder
from fedtaste.experiment.scores import PersonScores
from fedtaste.experiment.seeds import FinishedRun, configurations

SAME = ("protocol", "split", "new_people", "new_items")  # settings that decide who is evaluated on what


def alike_runs(paths: Sequence[Path]) -> list[FinishedRun]:
    """The runs of these folders, of which one may be a comparison or the seeds of a run; RunError with the reason where
    they do not compare."""
    runs = [run for path in paths for run in _open(path)]
    if len(runs) < 2:
        raise SettingError(f"--runs needs two runs or more, as in --runs RUN1,RUN2; got {len(runs)}.")
    first = runs[0]
    for run in runs:
        _require_alike(first, run)
    parts = configurations(runs)
    for part in parts:
        if len(set(part.seeds)) < len(part.runs):
            raise RunError(f"{part.runs[0].folder} and {part.runs[1].folder} have the same settings and seed.")
        if part.seeds != parts[0].seeds:
            raise RunError(
                f"{part.runs[0].folder} has seed {_listed(part.seeds)}, and {parts[0].runs[0].folder} has "
                f"{_listed(parts[0].seeds)}: another seed splits the data in another way. Run with the same seeds."
            )
    for seed in parts[0].seeds:
        _require_same_people([run for run in runs if run.result.seed == seed])
    return runs


def _open(path: Path) -> list[FinishedRun]:
    if is_comparison(path):
        return [_labelled(RunFolder.open(run.folder)) for run in finished_runs(path, read_record(path))]
    return [_labelled(RunFolder.open(path))]


def _labelled(folder: RunFolder) -> FinishedRun:
    """A run whose configuration is its method with every setting in force."""
    result = folder.result()
    settings = json.dumps([result.method, result.settings, result.wire, result.epsilon], sort_keys=True, default=str)
    return FinishedRun(settings, folder.path, result, str(folder.read("settings.json").get("data_hash")))


def _require_alike(first: FinishedRun, run: FinishedRun) -> None:
    """Refuse runs of other data, tasks, protocols or splits."""
    ours, theirs = RunFolder(first.folder).settings(), RunFolder(run.folder).settings()
    pairs = {"task": (first.result.task, run.result.task)}
    pairs |= {name: (getattr(ours, name), getattr(theirs, name)) for name in SAME}
    for name, (one, other) in pairs.items():
        if one != other:
            raise RunError(
                f"{first.folder} and {run.folder} do not compare: {name.replace('_', ' ')} {one} and {other}. Run both "
                "with the same."
            )
    if first.result.seed == run.result.seed and first.data_hash != run.data_hash:
        raise RunError(
            f"{first.folder} and {run.folder} do not compare: their data differ ({first.result.data}, "
            f"{run.result.data}). Run both on the same."
        )


def _require_same_people(runs: Sequence[FinishedRun]) -> None:
    """Refuse runs that were evaluated on other people; runs without stored scores are compared without pairing."""
    stored = [(run, scores) for run in runs if (scores := PersonScores.read(run.folder))]
    for run, scores in stored[1:]:
        if not np.array_equal(scores.people("seen"), stored[0][1].people("seen")):
            raise RunError(
                f"{stored[0][0].folder} and {run.folder} do not compare: they were evaluated on other people. Run both "
                "without --from."
            )


def _listed(seeds: Sequence[int]) -> str:
    return ", ".join(map(str, seeds))
