"""Federation: the data that each person or client holds, who takes part in a round (cohort), and who drops out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedtaste.core import People
from fedtaste.data.interactions import Histories, starts_of
from fedtaste.data.sampling import COHORT, DROPOUT, SERVE, TRAIN, Ragged, key_of, samples, uniform
from fedtaste.errors import DataError, SettingError
from fedtaste.wire.rng import coins as secret_coins

ExampleForm = Literal["samples", "history"]  # as in Method.examples
Arrays = Sequence[NDArray[np.generic]]  # one array for each client


@dataclass(eq=False)
class Federation:
    """People who hold data. `examples(people, round, form)` is what their devices compute with in that round.

    `form` is `method.examples`: "samples" are shuffled examples with drawn negatives, "history" is the bare history in
    order. The federation does not know the method, so whoever runs one asks for the form that it needs.
    """

    people: int  # everybody, members or not: private parameters are numbered by person
    members: People  # those who take part in training; a server of remote clients may add to them
    examples: Callable[[People, int, ExampleForm], Ragged]
    catalogue: int = 0  # items, where inputs are items
    names: tuple[str, ...] = ()  # of clients, where they have any, for messages

    def name(self, person: int) -> str:
        """A person as a message names them."""
        if self.names:
            return f'client {person} ("{self.names[person]}")'
        return f"person {person}" if self.catalogue else f"client {person}"

    def cohort(
        self, round: int, *, size: int | float | None = None, dropout: float = 0.0, seed: int = 0,
        coins: bytes | None = None, counting: int | None = None,
    ) -> tuple[People, People]:  # fmt: skip
        """(requested, answering) of a round: a number or a share of the members, and those who did not drop out.

        With the secret key `coins` each member is requested or not by an independent coin, `size` of them on average
        (Poisson sampling). Without it exactly `size` are requested, by the seed. With `counting` cohorts are drawn in
        passes after so many first rounds: a pass deals all members into cohorts of at most `size`.
        """
        requested = self.members
        if size is not None:
            expected = cohort_size(size, len(self.members))
            if coins is not None:
                heads = secret_coins(coins, self.members) < expected / len(self.members)
                requested = np.sort(self.members[heads])
            elif counting is not None:
                number, part = divmod(round - counting, self.rounds_of_pass(size))
                order = np.argsort(uniform(self.members, key_of(seed, COHORT, number)), kind="stable")
                requested = np.sort(self.members[np.array_split(order, self.rounds_of_pass(size))[part]])
            else:
                order = np.argsort(uniform(self.members, key_of(seed, COHORT, round)), kind="stable")
                requested = np.sort(self.members[order[:expected]])
        stay = uniform(requested, key_of(seed, DROPOUT, round)) >= dropout
        return requested, requested[stay]

    def rounds_of_pass(self, size: int | float) -> int:
        """Rounds in which cohorts of this size reach every member once."""
        return -(-len(self.members) // cohort_size(size, len(self.members)))


def cohort_size(size: int | float, people: int) -> int:
    """The number of people in a cohort that is given as a number (an int) or as a share of them (a float up to 1)."""
    if isinstance(size, float) and 0 < size <= 1:
        return max(1, round(size * people))
    if isinstance(size, int) and 1 <= size <= people:
        return size
    raise SettingError(f"A cohort must be a number from 1 to {people:,} or a share such as 0.1, got {size}.")


def of_histories(
    histories: Histories, catalogue: int, *, negatives: int = 4, batch: int = 0, seed: int = 0,
    members: People | None = None, forbidden: Histories | None = None, stream: int = TRAIN,
) -> Federation:  # fmt: skip
    """A federation in which each person holds their own history of items.

    Methods that learn from samples get `negatives` drawn items for each item of the history, in batches of `batch`
    (0: all at once); methods that learn from histories get the history itself. `forbidden` items are never drawn (the
    published protocol); `stream` numbers the random stream that they are drawn from.
    """

    def examples(people: People, round: int, form: ExampleForm) -> Ragged:
        if form == "history":
            part = histories.take(people)
            return Ragged(part.starts, part.items, part.values)
        key = key_of(seed, stream, round)
        return samples(
            histories, people, catalogue=catalogue, negatives=negatives, batch=batch, key=key, forbidden=forbidden
        )

    learners = np.arange(histories.people) if members is None else np.asarray(members, np.int64)
    return Federation(histories.people, learners[histories.lengths[learners] > 0], examples, catalogue)


def separate_devices(
    histories: Histories, catalogue: int, *, negatives: int = 4, batch: int = 0, seed: int = 0
) -> Federation:
    """People who are served, each as the only person of a federation: what is drawn for somebody depends on their
    history alone and not on their number, so that a list for many people has the same rows as lists one by one."""

    def examples(people: People, round: int, form: ExampleForm) -> Ragged:
        if form == "history":
            part = histories.take(people)
            return Ragged(part.starts, part.items, part.values)
        key = key_of(seed, SERVE, round)
        return samples(histories, people, catalogue=catalogue, negatives=negatives, batch=batch, key=key, alone=True)

    return Federation(histories.people, np.flatnonzero(histories.lengths), examples, catalogue)


def of_arrays(
    features: Arrays, targets: Arrays, *, batch: int = 0, seed: int = 0, names: tuple[str, ...] = ()
) -> Federation:
    """A federation in which each client holds rows of features with a target each; with a batch, in another order every
    round."""
    check_clients(features, targets)
    counts = np.array([len(y) for y in targets])
    starts = starts_of(counts)
    inputs = np.concatenate(features).astype(np.float32)
    outputs = np.concatenate(targets).astype(np.float32)

    def examples(people: People, round: int, form: ExampleForm) -> Ragged:
        index = np.concatenate([np.arange(starts[p], starts[p + 1]) for p in people])
        if batch:
            owner = np.repeat(np.arange(len(people)), counts[people])
            index = index[np.lexsort((uniform(index, key_of(seed, TRAIN, round)), owner))]
        return Ragged(starts_of(counts[people]), inputs[index], outputs[index], batch, even=True)

    return Federation(len(targets), np.flatnonzero(counts), examples, names=names)


def check_clients(features: Arrays, targets: Arrays) -> None:
    """Raise DataError where the arrays of the clients do not fit together."""
    if len(features) != len(targets) or not sum(len(y) for y in targets):
        raise DataError(
            f"Features and targets must be of the same clients, with one example at least; got features of "
            f"{len(features)} clients, targets of {len(targets)}, and {sum(map(len, targets))} examples in all."
        )
    for client, (x, y) in enumerate(zip(features, targets)):
        if len(x) != len(y):
            raise DataError(f"Client {client} must have a target for each example, got {len(x)} and {len(y)} targets.")
        if np.shape(x)[1:] != np.shape(features[0])[1:]:
            raise DataError(
                f"All clients must have examples of one shape; client {client} has {np.shape(x)[1:]}, client 0 has "
                f"{np.shape(features[0])[1:]}. Cut or pad the features of one of them."
            )


def pooled(federation: Federation) -> Federation:
    """One client that holds everybody's examples: the baseline without privacy. Items become pairs (person, item)."""

    def examples(people: People, round: int, form: ExampleForm) -> Ragged:
        separate = federation.examples(federation.members, round, form)
        inputs, targets = separate.inputs, np.ascontiguousarray(separate.targets)
        starts = np.array([0, len(targets)])
        if federation.catalogue:
            return Ragged(starts, np.stack([np.repeat(federation.members, separate.lengths), inputs], 1), targets)
        order = np.argsort(uniform(np.arange(len(inputs)), key_of(0, TRAIN, round)), kind="stable")  # clients mixed
        return Ragged(starts, inputs[order], targets[order], separate.batch, even=True)

    return Federation(1, np.zeros(1, np.int64), examples)
