"""Supervised: the data type of regression and classification, each client's examples with features and targets.

All arrays are checked when the object is created, so that methods can rely on equal shapes at all clients.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from fedtaste.data.interactions import Floats
from fedtaste.errors import DataError
from fedtaste.text import count

TASKS = ("regression", "labels")


@dataclass(frozen=True, eq=False)
class Supervised:
    """Each client's own training examples, and its test examples.

    >>> x, y = np.zeros((3, 2)), np.array([0, 1, 1])
    >>> data = Supervised("mine", "labels", (x,), (y,), (x,), (y,), classes=2)
    >>> data.shape, data.width, data.targets[0].dtype.name
    ((2,), 2, 'float32')
    """

    name: str
    task: str  # "regression" or "labels"
    features: tuple[Floats, ...]  # per client [n_i, d], or images [n_i, channels, height, width]
    targets: tuple[Floats, ...]  # per client [n_i]; labels are 0 to classes - 1
    test_features: tuple[Floats, ...]
    test_targets: tuple[Floats, ...]
    truth: Floats | None = None  # the weights that generated the targets: [d] for all, or [clients, ...] one for each
    notes: tuple[str, ...] = ()
    clients: tuple[str, ...] = ()  # their names, where they have any, such as domains
    classes: int = 0  # of labels
    scales: tuple[Floats, ...] = ()  # per client [d]: what its features were divided by, where they were

    def __post_init__(self) -> None:
        for field in ("features", "targets", "test_features", "test_targets"):
            object.__setattr__(self, field, tuple(as_float32(array) for array in getattr(self, field)))
        check_counts(self)
        check_shapes(self)
        check_values(self)
        missing = tuple(note for note in missing_notes(self) if note not in self.notes)  # a copy has them already
        object.__setattr__(self, "notes", tuple(self.notes) + missing)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one example: (d,), or (channels, height, width)."""
        return tuple(self.features[0].shape[1:])

    @property
    def width(self) -> int:
        """How many numbers an example has."""
        return math.prod(self.shape)

    def named(self, client: int) -> str:
        """A client as a message names it: `client 3 ("usps")`."""
        return f'client {client} ("{self.clients[client]}")' if self.clients else f"client {client}"


def as_float32(array: Floats) -> Floats:
    """In single precision; numbers too large for it become infinite, and are refused later."""
    try:
        with np.errstate(over="ignore"):
            return np.asarray(array).astype(np.float32, copy=False)
    except (TypeError, ValueError) as error:
        raise DataError(f"Features and targets must be arrays of numbers ({error}). Convert them first.") from error


def parts_by_client(data: Supervised) -> Iterator[tuple[str, str, Floats, Floats]]:
    """(client, "" or "test ", features, targets) of every client, for messages about what they hold."""
    pairs = ((data.features, data.targets, ""), (data.test_features, data.test_targets, "test "))
    for inputs, outputs, kind in pairs:
        for client, (x, y) in enumerate(zip(inputs, outputs)):
            yield data.named(client), kind, x, y


def check_counts(data: Supervised) -> None:
    """Every list has one entry per client, and at least one client has training examples."""
    if data.task not in TASKS:
        raise DataError(f'{data.name} is for the task "{data.task}". Expected one of: {", ".join(TASKS)}.')
    clients = len(data.features)
    for name in ("targets", "test_features", "test_targets", "clients", "scales"):
        entries = getattr(data, name)
        if len(entries) != clients and (entries or name not in ("clients", "scales")):
            raise DataError(
                f"{data.name} has features of {count(clients, 'client')} and {name} of {len(entries):,}. Expected one "
                "entry for each client in both; give a client without examples empty arrays."
            )
    if not any(len(x) for x in data.features if x.ndim):
        raise DataError(f"{data.name} has no training examples at any client. Bring some examples.")


def check_shapes(data: Supervised) -> None:
    """Every example of every client has one shape, so that one model fits them all."""
    expected = data.features[0].shape[1:]
    for client, kind, x, y in parts_by_client(data):
        if x.shape[1:] != expected:
            raise DataError(
                f"{client} has {kind}examples of {shape_text(x.shape[1:])}, {data.named(0)} of "
                f"{shape_text(expected)}. Expected one shape for all; resize or cut the examples of one of them."
            )
        if y.ndim != 1 or len(x) != len(y):
            raise DataError(
                f"{client} has {len(x):,} {kind}examples and {kind}targets of {shape_text(y.shape)}. Expected "
                "one target for each example; check that both come from the same rows."
            )
    if len(expected) not in (1, 3) or 0 in expected:
        raise DataError(
            f"{data.name} has examples of {shape_text(expected)}. Expected vectors [examples, features] or images "
            "[examples, channels, height, width]; give grey images one channel."
        )
    truth = expected if data.truth is None else np.shape(data.truth)
    if truth != expected and not (len(truth) > 1 and truth[0] == len(data.features)):
        raise DataError(
            f"{data.name} has a truth of {shape_text(truth)}. Expected one of {shape_text(expected)} for all, or one "
            f"for each of the {count(len(data.features), 'client')}."
        )


def check_values(data: Supervised) -> None:
    """Finite numbers, and labels that are whole numbers from 0."""
    if data.task == "labels" and data.classes < 2:
        raise DataError(f"{data.name} has labels of {data.classes} classes. Expected at least 2; bring others as well.")
    for client, kind, x, y in parts_by_client(data):
        for what, array in (("feature", x), ("target", y)):
            if not np.isfinite(array).all():
                row = int(np.argwhere(~np.isfinite(array))[0][0])
                raise DataError(
                    f"{client}, {kind}example {row:,}: a {what} is not a finite number. Expected numbers that single "
                    "precision can hold; remove such examples or fill the gaps."
                )
        wrong = np.flatnonzero((y < 0) | (y >= data.classes) | (y != np.floor(y)))
        if data.task == "labels" and len(wrong):
            raise DataError(
                f"{client}, {kind}example {wrong[0]:,}: {y[wrong[0]]:g} is not a label. Expected whole numbers from 0 "
                f"to {data.classes - 1}; number the classes from 0, or give more classes."
            )


def missing_notes(data: Supervised) -> list[str]:
    """Notes on clients without examples, which are allowed."""
    notes = []
    for targets, gap in (
        (data.targets, "no examples and cannot take part in training"),
        (data.test_targets, "no test examples and cannot be evaluated"),
    ):
        without = [client for client, y in enumerate(targets) if not len(y)]
        if without:
            names = ", ".join(data.clients[client] if data.clients else str(client) for client in without[:5])
            more = f" and {len(without) - 5:,} more" if len(without) > 5 else ""
            notes.append(f"{count(len(without), 'client has', 'clients have')} {gap}: {names}{more}.")
    return notes


def shape_text(shape: Sequence[int]) -> str:
    """`3 x 8 x 8`."""
    return " x ".join(str(side) for side in shape) or "single numbers"
