"""Federations of handwritten digits that need no download: the 1,797 of scikit-learn, 8 x 8 and grey.

They are the test half of UCI optdigits (Alpaydin and Kaynak 1998). `digits` partitions them by label, so that clients
see different digits, as in FedCLUP (ICML 2025). `shifted_digits` shows five clients digits in five ways: the same
classes with other features, as Digits-5 does for LG-Mix (ICLR 2024) and FedBN (ICLR 2021), but trained in seconds.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fedtaste.data.interactions import Floats
from fedtaste.data.partitions import by_label, dirichlet, partition
from fedtaste.data.supervised import Supervised
from fedtaste.errors import DataError


def load_handwritten() -> tuple[Floats, NDArray[np.int64]]:
    """Images [1797, 8, 8] from 0 to 1, and the digits that they show."""
    from sklearn.datasets import load_digits  # takes a second to import

    images, labels = load_digits(return_X_y=True)
    return (images.reshape(-1, 8, 8) / 16).astype(np.float32), labels.astype(np.int64)


def digits(clients: int = 10, skew: int | None = None, alpha: float | None = None, seed: int = 0) -> Supervised:
    """The plain digits over clients who hold `skew` classes each (by default 2), or Dirichlet(alpha) shares.

    Every client tests on a fifth of its own digits.
    """
    if skew is not None and alpha is not None:
        raise DataError("digits takes skew (classes for each client) or dirichlet (alpha), not both. Leave one out.")
    images, labels = load_handwritten()
    if alpha is not None:
        parts, how = dirichlet(labels, clients, alpha, seed), f"Dirichlet shares of each digit, alpha {alpha:g}"
    else:
        skew = 2 if skew is None else skew
        parts, how = by_label(labels, clients, skew, seed), f"{skew} of the 10 digits at each client"
    notes = (f"scikit-learn's 8 x 8 digits: {how}, seed {seed}.",)
    return partition("digits", images[:, None], labels, parts, seed=seed, notes=notes)


def shifted_digits(seed: int = 0, examples: int = 96) -> Supervised:
    """Five domains of 3 x 8 x 8 images, no digit in two of them: `examples` of each for training, the rest for testing.

    plain: as they are. inverted: black on white. noisy: contrast of a third around grey, and normal noise of 0.1.
    coloured: white on a random colour for each image. rotated: all by 90 degrees, anticlockwise.
    """
    images, labels = load_handwritten()
    fewest = len(images) // len(DOMAINS)
    if not 1 <= examples < fewest:
        raise DataError(
            f"shifted-digits with {examples:,} training examples for each domain cannot be made. Expected from 1 to "
            f"{fewest - 1}: each domain has {fewest} digits or one more, and the rest are for testing."
        )
    rng = np.random.default_rng(seed)
    shares = np.array_split(rng.permutation(len(images)), len(DOMAINS))
    views = [shift(images[own], rng) for shift, own in zip(DOMAINS.values(), shares)]
    return Supervised(
        name="shifted-digits",
        task="labels",
        features=tuple(x[:examples] for x in views),
        targets=tuple(labels[own[:examples]].astype(np.float32) for own in shares),
        test_features=tuple(x[examples:] for x in views),
        test_targets=tuple(labels[own[examples:]].astype(np.float32) for own in shares),
        notes=(f"scikit-learn's 8 x 8 digits in five ways, no digit in two of them, seed {seed}.",),
        clients=tuple(DOMAINS),
        classes=10,
    )


def grey(images: Floats) -> Floats:
    """[n, h, w] -> [n, 3, h, w]."""
    return np.repeat(images[:, None], 3, axis=1)


def noisy(images: Floats, rng: np.random.Generator) -> Floats:
    faint = (1 + images) / 3
    noise = 0.1 * rng.normal(size=images.shape).astype(np.float32)
    return grey(np.clip(faint + noise, 0, 1))


def coloured(images: Floats, rng: np.random.Generator) -> Floats:
    """The colour stays below 0.7, so that white ink can be read on it."""
    colour = rng.uniform(0, 0.7, size=(len(images), 3, 1, 1)).astype(np.float32)
    ink = grey(images)
    return ink + (1 - ink) * colour


DOMAINS: dict[str, Callable[[Floats, np.random.Generator], Floats]] = {
    "plain": lambda images, rng: grey(images),
    "inverted": lambda images, rng: grey(1 - images),
    "noisy": noisy,
    "coloured": coloured,
    "rotated": lambda images, rng: grey(np.rot90(images, axes=(1, 2))),
}
