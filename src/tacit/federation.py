"""Who holds what, and who takes part: examples by person, cohorts, drop-out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .data.interactions import Histories
from .data.sampling import COHORT, DROPOUT, TRAIN, Ragged, key_of, samples, uniform
from .errors import DataError, SettingError
from .wire.rng import coins as secret_coins

People = NDArray[np.int64]


@dataclass(eq=False)
class Federation:
    """People with examples. `examples(people, round)` is what these devices would compute with in that round."""

    people: int  # everybody, members or not: private parameters are numbered by person
    members: People  # those who take part in training; who runs devices elsewhere may add to them
    examples: Callable[[People, int], Ragged]
    catalogue: int = 0  # items, where inputs are items
    names: tuple[str, ...] = ()  # of people, where they have any, for messages

    def name(self, person: int) -> str:
        """A person as a message names them."""
        if self.names:
            return f'client {person} ("{self.names[person]}")'
        return f"person {person}" if self.catalogue else f"client {person}"

    def cohort(
        self, round: int, *, size: int | float | None = None, dropout: float = 0.0, seed: int = 0,
        coins: bytes | None = None,
    ) -> tuple[People, People]:  # fmt: skip
        """(asked, answering) in a round: a number or a share of the members, and those of them who did not drop out.
        `coins` is a secret key: everybody is asked or not by a coin of their own, so many on average (Poisson
        sampling). Without it exactly so many are asked, by the seed."""
        asked = self.members
        if size is not None:
            many = cohort_size(size, len(self.members))
            if coins is not None:
                asked = np.sort(self.members[secret_coins(coins, self.members) < many / len(self.members)])
            else:
                order = np.argsort(uniform(self.members, key_of(seed, COHORT, round)), kind="stable")
                asked = np.sort(self.members[order[:many]])
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


def of_arrays(
    features: Sequence[NDArray], targets: Sequence[NDArray], *, batch: int = 0, seed: int = 0,
    names: tuple[str, ...] = (),
) -> Federation:  # fmt: skip
    """Every client holds rows of features and a target for each; with a batch, in another order every round."""
    check_clients(features, targets)
    starts = np.concatenate([[0], np.cumsum([len(x) for x in targets])]).astype(np.int64)
    inputs = np.concatenate(features).astype(np.float32)
    outputs = np.concatenate(targets).astype(np.float32)

    def held(people: People, round: int) -> Ragged:
        index = np.concatenate([np.arange(starts[p], starts[p + 1]) for p in people])
        if batch:
            draw, owner = uniform(index, key_of(seed, TRAIN, round)), np.repeat(people, np.diff(starts)[people])
            place = np.empty(len(starts), np.int64)
            place[people] = np.arange(len(people))
            index = index[np.lexsort((draw, place[owner]))]
        lengths = np.concatenate([[0], np.cumsum(np.diff(starts)[people])]).astype(np.int64)
        return Ragged(lengths, inputs[index], outputs[index], batch, even=True)

    return Federation(len(targets), np.flatnonzero(np.diff(starts)), held, names=names)


def check_clients(features: Sequence[NDArray], targets: Sequence[NDArray]) -> None:
    """Clients whose arrays do not fit together are told apart from a bug, here, where they enter."""
    if len(features) != len(targets) or not sum(len(y) for y in targets):
        raise DataError(
            f"Features of {len(features)} clients and targets of {len(targets)} were got, {sum(map(len, targets))} "
            "examples in all. Expected as many of one as of the other, and at least one example."
        )
    for client, (x, y) in enumerate(zip(features, targets)):
        if len(x) != len(y):
            raise DataError(f"Client {client} has {len(x)} examples and {len(y)} targets; expected one for each.")
        if np.shape(x)[1:] != np.shape(features[0])[1:]:
            raise DataError(
                f"Client {client} has examples of shape {np.shape(x)[1:]}, client 0 of {np.shape(features[0])[1:]}; "
                "expected one shape for all. Cut or pad the features of one of them."
            )


def pooled(federation: Federation) -> Federation:
    """One client that holds everybody's examples: the bound that no privacy can beat. Items become (person, item)."""

    def held(people: People, round: int) -> Ragged:
        apart = federation.examples(federation.members, round)
        inputs, ends = apart.inputs, np.array([0, len(apart.targets)])
        if federation.catalogue:
            return Ragged(ends, np.stack([np.repeat(federation.members, apart.lengths), inputs], 1), apart.targets)
        order = np.argsort(uniform(np.arange(len(inputs)), key_of(0, TRAIN, round)), kind="stable")  # clients mixed
        return Ragged(ends, inputs[order], apart.targets[order], apart.batch, even=True)

    return Federation(1, np.zeros(1, np.int64), held)
