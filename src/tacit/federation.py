"""Who holds what, and who takes part: examples by person, cohorts, drop-out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .data.interactions import Histories
from .data.sampling import COHORT, DROPOUT, TRAIN, Ragged, key_of, samples, uniform
from .errors import SettingError

People = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Federation:
    """People with examples. `examples(people, round)` is what these devices would compute with in that round."""

    people: int  # everybody, members or not: private parameters are numbered by person
    members: People  # those who take part in training
    examples: Callable[[People, int], Ragged]
    catalogue: int = 0  # items, where inputs are items

    def cohort(
        self, round: int, *, size: int | float | None = None, dropout: float = 0.0, seed: int = 0
    ) -> tuple[People, People]:
        """(asked, answering) in a round: a number or a share of the members, and those of them who did not drop out."""
        asked = self.members
        if size is not None:
            order = np.argsort(uniform(self.members, key_of(seed, COHORT, round)), kind="stable")
            asked = np.sort(self.members[order[: cohort_size(size, len(self.members))]])
        stay = uniform(asked, key_of(seed, DROPOUT, round)) >= dropout
        return asked, asked[stay]


def cohort_size(size: int | float, people: int) -> int:
    """A cohort is a number of people (an int) or a share of them (a float up to 1)."""
    if isinstance(size, float) and 0 < size <= 1:
        return max(1, round(size * people))
    if isinstance(size, int) and 1 <= size <= people:
        return size
    raise SettingError(f"A cohort of {size} was asked for; give a number from 1 to {people:,} or a share such as 0.1.")


def of_histories(
    histories: Histories,
    catalogue: int,
    *,
    examples: str = "samples",
    negatives: int = 4,
    batch: int = 0,
    seed: int = 0,
    members: People | None = None,
    forbidden: Histories | None = None,
    stream: int = TRAIN,
) -> Federation:
    """Everybody holds their own history. `forbidden` items are never drawn as negatives (the published protocol)."""

    def held(people: People, round: int) -> Ragged:
        if examples == "history":
            part = histories.take(people)
            return Ragged(part.starts, part.items, part.values)
        key = key_of(seed, stream, round)
        return samples(
            histories, people, catalogue=catalogue, negatives=negatives, batch=batch, key=key, forbidden=forbidden
        )

    everybody = np.arange(histories.people) if members is None else np.asarray(members, np.int64)
    return Federation(histories.people, everybody[histories.lengths[everybody] > 0], held, catalogue)


def of_arrays(features: tuple[NDArray, ...], targets: tuple[NDArray, ...], *, batch: int = 0) -> Federation:
    """Every client holds rows of features and a target for each."""
    starts = np.concatenate([[0], np.cumsum([len(x) for x in targets])]).astype(np.int64)
    inputs = np.concatenate(features).astype(np.float32)
    outputs = np.concatenate(targets).astype(np.float32)

    def held(people: People, round: int) -> Ragged:
        index = np.concatenate([np.arange(starts[p], starts[p + 1]) for p in people])
        lengths = np.concatenate([[0], np.cumsum(np.diff(starts)[people])]).astype(np.int64)
        return Ragged(lengths, inputs[index], outputs[index], batch)

    return Federation(len(targets), np.flatnonzero(np.diff(starts)), held)


def pooled(federation: Federation) -> Federation:
    """One client that holds everybody's examples: the bound that no privacy can beat. Items become (person, item)."""

    def held(people: People, round: int) -> Ragged:
        apart = federation.examples(federation.members, round)
        inputs = apart.inputs
        if federation.catalogue:
            inputs = np.stack([np.repeat(federation.members, apart.lengths), apart.inputs], 1)
        return Ragged(np.array([0, len(apart.targets)]), inputs, apart.targets)

    return Federation(1, np.zeros(1, np.int64), held)
