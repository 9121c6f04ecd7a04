"""Data that is not ratings: examples with features and targets, spread over clients."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..errors import DataError
from .interactions import Floats


@dataclass(frozen=True, eq=False)
class Supervised:
    """Each client's own examples; the last part of them is held out for testing."""

    name: str
    task: str  # "regression"
    features: tuple[Floats, ...]  # per client [n_i, d]
    targets: tuple[Floats, ...]  # per client [n_i]
    test_features: tuple[Floats, ...]
    test_targets: tuple[Floats, ...]
    truth: Floats | None = None  # [d] the weights that made the targets, where they are known
    notes: tuple[str, ...] = ()


def linear(clients: int = 10, features: int = 5, examples: int = 100, noise: float = 0.0, seed: int = 0) -> Supervised:
    """The worked example of federated learning: one true weight vector w, and y = X w + noise at every client.

    Clients hold `examples` examples on average, between 80 % and 120 % of it, and test on a fifth of their own. Without
    noise (the default) the true weights can be recovered to the precision of the arithmetic.

    >>> data = linear()
    >>> len(data.features), data.features[0].shape[1], data.truth.shape
    (10, 5, (5,))
    """
    if min(clients, features) < 1 or examples < 5 or not 0 <= noise < np.inf:
        raise DataError(
            f"linear(clients={clients}, features={features}, examples={examples}, noise={noise}) cannot be made. "
            "Expected at least 1 client, 1 feature and 5 examples, and a finite noise of at least 0."
        )
    rng = np.random.default_rng(seed)
    truth = rng.normal(size=features).astype(np.float32)
    sizes = np.round(examples * rng.uniform(0.8, 1.2, clients)).astype(int)
    inputs = [rng.normal(size=(size, features)).astype(np.float32) for size in sizes]
    # The sum is taken in double precision, so that rounding is the only noise left by default.
    outputs = [(x.astype(np.float64) @ truth + noise * rng.normal(size=len(x))).astype(np.float32) for x in inputs]
    cuts = [len(x) - len(x) // 5 for x in inputs]
    return Supervised(
        name="linear",
        task="regression",
        features=tuple(x[:cut] for x, cut in zip(inputs, cuts)),
        targets=tuple(y[:cut] for y, cut in zip(outputs, cuts)),
        test_features=tuple(x[cut:] for x, cut in zip(inputs, cuts)),
        test_targets=tuple(y[cut:] for y, cut in zip(outputs, cuts)),
        truth=truth,
        notes=(f"Made: y = Xw + {noise:g} x noise, seed {seed}.",),
    )
