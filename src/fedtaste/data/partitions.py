"""Partition one labelled data set over clients with label skew: a few classes each, or Dirichlet shares.

`by_label` gives every client a few classes (McMahan et al. 2017, and the digits of FedCLUP, ICML 2025); `dirichlet`
gives every client some of everything in unequal shares (Hsu, Qi, Brown 2019). Both only choose indices, each at most
once. `partition` then holds out a part of every class of every client, so that clients are tested on their own
classes in their own shares. (FedCLUP's released code tests a client on a single class.)
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedtaste.data.interactions import Floats
from fedtaste.data.supervised import Supervised
from fedtaste.errors import DataError
from fedtaste.text import count

Indices = NDArray[np.int64]
Labels = NDArray[np.generic]
DRAWS = 100  # how often a Dirichlet partition is drawn again before it is repaired


def by_label(targets: Labels, clients: int, classes_each: int, seed: int = 0) -> tuple[Indices, ...]:
    """Indices of the examples of each client, who holds exactly `classes_each` classes.

    Every client takes the classes with the fewest holders so far, so that the numbers of holders differ by one at most
    and no class is left out where there are enough clients. A class is divided evenly among its holders; remaining
    examples go to the clients with the fewest.

    >>> parts = by_label(np.repeat(np.arange(4), 10), clients=4, classes_each=2)
    >>> [len(part) for part in parts]
    [10, 10, 10, 10]
    """
    labels, classes = as_labels(targets)
    if clients < 1 or not 1 <= classes_each <= classes:
        raise DataError(
            f"{count(clients, 'client')} with {classes_each} classes each cannot be made. Expected at least 1 client, "
            f"and from 1 to {classes} classes each."
        )
    rng = np.random.default_rng(seed)
    holders = np.zeros(classes, int)
    holds = np.zeros((clients, classes), bool)
    for own in holds:
        order = rng.permutation(classes)
        own[order[np.argsort(holders[order], kind="stable")[:classes_each]]] = True
        holders += own
    sizes = np.bincount(labels, minlength=classes)
    if (sizes < holders).any():
        short = int(np.argmax(holders - sizes))
        raise DataError(
            f"Class {short} has {count(int(sizes[short]), 'example')}, and {holders[short]} of {clients} clients would "
            "hold it. Expected at least one example for each; use fewer clients, or fewer classes each."
        )
    counts = np.zeros((clients, classes), int)
    for label in range(classes):
        own = np.flatnonzero(holds[:, label])
        if len(own):
            each, over = divmod(int(sizes[label]), len(own))
            counts[own, label] = each
            counts[own[np.argsort(counts[own].sum(1), kind="stable")[:over]], label] += 1
    return deal(labels, counts, rng)


def dirichlet(targets: Labels, clients: int, alpha: float, seed: int = 0, least: int = 10) -> tuple[Indices, ...]:
    """Indices of the examples of each client; the clients' shares of every class are drawn from Dirichlet(alpha).

    A small alpha gives a class to few clients, a large one gives all clients the same. Shares are drawn again while a
    client has fewer than `least` examples; if that does not help, the largest clients give some of their commonest
    class.

    >>> parts = dirichlet(np.repeat(np.arange(4), 50), clients=5, alpha=0.3)
    >>> sum(len(part) for part in parts), min(len(part) for part in parts) >= 10
    (200, True)
    """
    labels, classes = as_labels(targets)
    if clients < 1 or least < 0 or not 0.001 <= alpha <= 1e6:
        raise DataError(
            f"{count(clients, 'client')} with Dirichlet shares of alpha {alpha:g} and at least {least} examples cannot "
            "be made. Expected at least 1 client, an alpha from 0.001 to 1,000,000, and a least number from 0."
        )
    if clients * least > len(labels):
        raise DataError(
            f"{count(clients, 'client')} cannot have {least} of {count(len(labels), 'example')} each. Use at most "
            f"{len(labels) // least:,} clients, or least={len(labels) // clients}."
        )
    rng = np.random.default_rng(seed)
    sizes = np.bincount(labels, minlength=classes)
    best = np.zeros((clients, classes), int)
    for draw in range(DRAWS):
        shares = rng.dirichlet(np.full(clients, alpha), classes)  # [classes, clients]
        counts = np.stack([apportion(int(n), share) for n, share in zip(sizes, shares)], 1)
        if draw == 0 or counts.sum(1).min() > best.sum(1).min():
            best = counts
        if best.sum(1).min() >= least:
            break
    while best.sum(1).min() < least:
        small, large = best.sum(1).argmin(), best.sum(1).argmax()
        label = best[large].argmax()
        moved = min(least - best[small].sum(), best[large].sum() - least, best[large, label])
        best[large, label] -= moved
        best[small, label] += moved
    return deal(labels, best, rng)


def apportion(n: int, shares: NDArray[np.float64]) -> NDArray[np.int64]:
    """Whole numbers that sum to n, each within one of its share of it; the largest remainders are rounded up."""
    exact = n * shares / shares.sum()
    counts: NDArray[np.int64] = np.floor(exact).astype(np.int64)
    counts[np.argsort(counts - exact, kind="stable")[: n - counts.sum()]] += 1
    return counts


def deal(labels: Indices, counts: NDArray[np.int64], rng: np.random.Generator) -> tuple[Indices, ...]:
    """Give counts[client, class] examples of each class to each client, at random and none twice."""
    parts: list[list[Indices]] = [[] for _ in counts]
    for label in range(counts.shape[1]):
        order = rng.permutation(np.flatnonzero(labels == label))
        for part, own in zip(parts, np.split(order, np.cumsum(counts[:, label]))):
            part.append(own)
    return tuple(np.sort(np.concatenate(part)).astype(np.int64) for part in parts)


def partition(
    name: str,
    features: Floats,  # [n, ...]
    targets: Labels,  # [n]
    parts: tuple[Indices, ...],
    *,
    test: float = 0.2,
    seed: int = 0,
    notes: tuple[str, ...] = (),
) -> Supervised:
    """The examples of `parts` at their clients; each holds out the share `test` of each of its classes, at least one.

    The only example of a class is for training; a note says how often that leaves a class untested.
    """
    labels, classes = as_labels(targets)
    if not 0 < test < 1:
        raise DataError(f"The test share must be between 0 and 1, such as 0.2, got {test:g}.")
    rng = np.random.default_rng((seed, 1))  # another stream than the one that made the parts
    pairs = [hold_out(rng.permutation(np.asarray(part, np.int64)), labels, test) for part in parts]
    train, tests = [own for own, _ in pairs], [own for _, own in pairs]
    untested = sum(len(np.setdiff1d(labels[own], labels[rest])) for own, rest in pairs)
    if untested:
        notes += (
            f"{count(untested, 'class', 'classes')} of a client with one example only, which is used for training "
            "and not for testing.",
        )
    return Supervised(
        name=name,
        task="labels",
        features=tuple(features[own] for own in train),
        targets=tuple(labels[own].astype(np.float32) for own in train),
        test_features=tuple(features[own] for own in tests),
        test_targets=tuple(labels[own].astype(np.float32) for own in tests),
        notes=notes,
        classes=classes,
    )


def hold_out(own: Indices, labels: Indices, test: float) -> tuple[Indices, Indices]:
    """A client's examples for training and for testing, class by class."""
    last = np.zeros(len(own), bool)
    for label in np.unique(labels[own]):
        places = np.flatnonzero(labels[own] == label)
        last[places[: min(len(places) - 1, max(1, round(test * len(places))))]] = True
    return own[~last], own[last]


def as_labels(targets: Labels) -> tuple[Indices, int]:
    """Labels as whole numbers, and how many classes there are."""
    values = np.asarray(targets)
    numbers = values.dtype.kind in "biuf" and bool(np.isfinite(values.astype(np.float64)).all())
    labels = values.astype(np.int64) if numbers else np.zeros(0, np.int64)
    if values.ndim != 1 or not len(labels) or (labels != values).any() or labels.min() < 0:
        raise DataError("Targets must be labels: one whole number from 0 for each example. Number the classes from 0.")
    return labels, int(labels.max()) + 1
