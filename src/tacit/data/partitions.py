"""One labelled data set dealt out to clients who see different classes.

`by_label` gives every client a few classes (McMahan et al. 2017, and the digits of FedCLUP, ICML 2025); `dirichlet`
gives everybody some of everything in unequal shares (Hsu, Qi, Brown 2019). Both only choose indices, each at most once.
`partitioned` then holds out a part of every class of every client: people are tested on what is theirs, in the shares
in which they hold it. (FedCLUP's released code tests a client on a single class.)
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError
from .interactions import count
from .supervised import Supervised

Indices = NDArray[np.int64]
DRAWS = 100  # how often a Dirichlet partition is drawn again before it is repaired


def by_label(targets: NDArray, clients: int, classes_each: int, seed: int = 0) -> tuple[Indices, ...]:
    """Indices of the examples of each client, who holds exactly `classes_each` classes.

    The classes go to those who are held least so far, so that none has two holders more than another, and none is left
    out where there are enough places. A class is dealt evenly among its holders; an example too many goes to the client
    with the fewest.

    >>> parts = by_label(np.repeat(np.arange(4), 10), clients=4, classes_each=2)
    >>> [len(part) for part in parts]
    [10, 10, 10, 10]
    """
    labels, classes = whole_labels(targets)
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


def dirichlet(targets: NDArray, clients: int, alpha: float, seed: int = 0, least: int = 10) -> tuple[Indices, ...]:
    """Indices of the examples of each client; the clients' shares of every class are drawn from Dirichlet(alpha).

    A small alpha gives a class to few clients, a large one gives everybody the same. It is drawn again while somebody
    has fewer than `least` examples; if that does not help, those who have most give some of their commonest class.

    >>> parts = dirichlet(np.repeat(np.arange(4), 50), clients=5, alpha=0.3)
    >>> sum(len(part) for part in parts), min(len(part) for part in parts) >= 10
    (200, True)
    """
    labels, classes = whole_labels(targets)
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
        poor, rich = best.sum(1).argmin(), best.sum(1).argmax()
        label = best[rich].argmax()
        given = min(least - best[poor].sum(), best[rich].sum() - least, best[rich, label])
        best[rich, label] -= given
        best[poor, label] += given
    return deal(labels, best, rng)


def apportion(n: int, shares: NDArray[np.float64]) -> NDArray[np.int64]:
    """Whole numbers that sum to n, each within one of its share of it: what is left goes to the largest remainders."""
    exact = n * shares / shares.sum()
    counts = np.floor(exact).astype(np.int64)
    counts[np.argsort(counts - exact, kind="stable")[: n - counts.sum()]] += 1
    return counts


def deal(labels: Indices, counts: NDArray, rng: np.random.Generator) -> tuple[Indices, ...]:
    """counts[client, class] examples of each class to each client, in random order and none twice."""
    hands: list[list[Indices]] = [[] for _ in counts]
    for label in range(counts.shape[1]):
        deck = rng.permutation(np.flatnonzero(labels == label))
        for hand, own in zip(hands, np.split(deck, np.cumsum(counts[:, label]))):
            hand.append(own)
    return tuple(np.sort(np.concatenate(hand)).astype(np.int64) for hand in hands)


def partitioned(
    name: str,
    features: NDArray,  # [n, ...]
    targets: NDArray,  # [n]
    parts: tuple[Indices, ...],
    *,
    test: float = 0.2,
    seed: int = 0,
    classes: int = 0,
    clients: tuple[str, ...] = (),
    notes: tuple[str, ...] = (),
) -> Supervised:
    """The examples of `parts` at their clients; each holds out the share `test` of each of its classes, at least one.

    An only example of a class is for learning; how often that leaves a class untested is noted.
    """
    labels, found = whole_labels(targets)
    if not 0 < test < 1:
        raise DataError(f"A test share of {test:g} was asked for. Expected one between 0 and 1, such as 0.2.")
    rng = np.random.default_rng((seed, 1))  # another stream than the one that made the parts
    cut = [hold_out(rng.permutation(np.asarray(part, np.int64)), labels, test) for part in parts]
    train, held = [own for own, _ in cut], [own for _, own in cut]
    untested = sum(len(np.setdiff1d(labels[own], labels[tests])) for own, tests in cut)
    said = (f"{count(untested, 'class', 'classes')} of a client with one example only: learnt, not tested.",)
    return Supervised(
        name=name,
        task="labels",
        features=tuple(features[own] for own in train),
        targets=tuple(labels[own].astype(np.float32) for own in train),
        test_features=tuple(features[own] for own in held),
        test_targets=tuple(labels[own].astype(np.float32) for own in held),
        notes=notes + (said if untested else ()),
        clients=clients,
        classes=classes or found,
    )


def hold_out(own: Indices, labels: Indices, test: float) -> tuple[Indices, Indices]:
    """A client's examples for training and for testing, class by class."""
    last = np.zeros(len(own), bool)
    for label in np.unique(labels[own]):
        places = np.flatnonzero(labels[own] == label)
        last[places[: min(len(places) - 1, max(1, round(test * len(places))))]] = True
    return own[~last], own[last]


def whole_labels(targets: NDArray) -> tuple[Indices, int]:
    """Labels as whole numbers, and how many classes there are."""
    given = np.asarray(targets)
    labels = given.astype(np.int64) if given.dtype.kind in "biuf" and np.isfinite(given).all() else np.zeros(0, int)
    if given.ndim != 1 or not len(labels) or (labels != given).any() or labels.min() < 0:
        raise DataError(
            "Only labels can be dealt out by class. Expected one whole number from 0 for each example; number the "
            "classes from 0."
        )
    return labels, int(labels.max()) + 1
