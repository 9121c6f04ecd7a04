"""scores.safetensors: the test scores of every person of a run, so that finished runs can be compared in pairs.

    seen.people, new.people     numbers of people, in the order of the scores
    seen.sampled.ndcg@10, ...   a metric of each person; of ratings: `rmse` is a sum of squared errors, `accuracy` a
                                number of ratings, and `examples` how many ratings (or targets) a person has

Runs with noise have no such file: no epsilon covers what single people got. Neither have runs over Flower, where the
scores of people stay on their nodes. The file is readable by its owner only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from fedtaste.core import Params, People
from fedtaste.engine.checkpoint import load_params, save_params
from fedtaste.errors import RunError
from fedtaste.evaluation.metrics import Array
from fedtaste.evaluation.paired import PersonSums
from fedtaste.evaluation.protocol import ClientMetrics, Evaluation, PredictionErrors, RankingMetrics
from fedtaste.params import nest

FILE, FORMAT = "scores.safetensors", "fedtaste-scores-1"
EXAMPLES = "examples"  # how many examples a person's sums are over, where they are not means


def save_scores(folder: Path, groups: Mapping[str, tuple[People, Evaluation]]) -> None:
    """Write the scores of the people of each group ("seen", "new")."""
    params: Params = {}
    for who, (people, evaluation) in groups.items():
        values = {"people": np.asarray(people, np.int64), **person_scores(evaluation)}
        if len({len(column) for column in values.values()}) > 1:
            raise RunError(f"The scores of {who} people do not belong to {len(people)} people.")
        params |= nest(who, {name: torch.from_numpy(column) for name, column in values.items()})
    save_params(folder / FILE, params, {"format": FORMAT})


def person_scores(evaluation: Evaluation) -> dict[str, NDArray[np.generic]]:
    """Columns by name, one value per person in the order of the evaluation."""
    if isinstance(evaluation, RankingMetrics):
        kinds = evaluation.kinds.items()
        return {f"{kind}.{name}": np.array(column, float) for kind, part in kinds for name, column in part.items()}
    if isinstance(evaluation, ClientMetrics):
        return {name: np.array(column, float) for name, column in evaluation.metrics.items()}
    if not isinstance(evaluation, PredictionErrors):
        raise TypeError(f"no scores of people are in {type(evaluation).__name__}")
    errors, (_, person) = np.array(evaluation.errors), np.unique(_places(evaluation.owners), return_inverse=True)
    close = {"accuracy": (np.abs(errors) <= 0.5).astype(float)} if evaluation.stars else {}
    sums = {"rmse": errors**2, **close, EXAMPLES: np.ones(len(errors))}
    return {name: np.bincount(person, weights=column) for name, column in sums.items()}


def _places(owners: Sequence[int] | Sequence[str]) -> list[int]:
    """Numbers in the order of people; the owners of several folds are written `fold/place`."""
    return [int(fold or 0) << 32 | int(place) for fold, _, place in (str(owner).rpartition("/") for owner in owners)]


@dataclass(frozen=True, eq=False)
class PersonScores:
    """The scores of the people of one run."""

    columns: dict[str, NDArray[np.generic]]

    @staticmethod
    def read(folder: Path) -> PersonScores | None:
        """The scores of a run folder; None where it has none."""
        if not (folder / FILE).exists():
            return None
        params, about = load_params(folder / FILE)
        if about.get("format") != FORMAT:
            raise RunError(f"{folder / FILE} has format {about.get('format')!r}; expected {FORMAT!r}. Run again.")
        return PersonScores({name: value.numpy() for name, value in params.items()})

    def people(self, who: str) -> NDArray[np.generic]:
        """The people of a group, in the order of their scores."""
        return self.columns.get(f"{who}.people", np.zeros(0, np.int64))

    def sums(self, key: str) -> tuple[Array, Array] | None:
        """(sum, count) of each person for a metric such as `seen.sampled.ndcg@10`; None where it was not measured."""
        column = self.columns.get(key)
        if column is None:
            return None
        counts = self.columns.get(f"{key.partition('.')[0]}.{EXAMPLES}")
        return column.astype(float), np.ones(len(column)) if counts is None else counts.astype(float)


def person_sums(runs: Sequence[PersonScores], worlds: Sequence[str], key: str) -> PersonSums | None:
    """A metric of one method over the runs of several seeds. `worlds` are the fingerprints of their data: a person of
    data that every seed generates anew is another person."""
    parts = [run.sums(key) for run in runs]
    who = key.partition(".")[0]
    names = [[(world, int(person)) for person in run.people(who)] for run, world in zip(runs, worlds)]
    rows = {name: row for row, name in enumerate(dict.fromkeys(sorted(name for part in names for name in part)))}
    sums, counts = np.zeros((len(rows), len(runs))), np.zeros((len(rows), len(runs)))
    for seed, (part, people) in enumerate(zip(parts, names)):
        if part is None or not people:
            return None
        at = [rows[name] for name in people]
        sums[at, seed], counts[at, seed] = part
    return PersonSums(sums, counts, root=key.endswith("rmse"))
