"""Generate regression and classification data over clients whose true weights are known.

`linear` has one weight vector for all clients. In `least_squares` and `logistic` clients differ by a known amount R, to
study how much clients should share, as "Understanding the Accuracy-Communication Trade-off in Personalized Federated
Learning" does (Yu, He, Sun, Xue, Li; ICML 2025; FedCLUP). `logistic` is the synthetic data of
its released code; `least_squares` is ours, the simplest problem on which its theory can be checked. The released code
tests a client on one class; here a client's test examples are drawn from its own distribution, as many as it trains on.
R only scales what is drawn, so that a sweep over R with one seed changes nothing else.
"""

from __future__ import annotations

import numpy as np

from fedtaste.data.interactions import Floats
from fedtaste.data.supervised import Supervised
from fedtaste.errors import DataError
from fedtaste.text import count

MOST = 200_000_000  # numbers in the training features (800 MB): more is probably a typing error
LARGE = 1e6  # single precision has digits to spare below it


def logistic(
    clients: int = 10, examples: int = 200, features: int = 10, classes: int = 2, spread: float = 1.389, seed: int = 0
) -> Supervised:
    """Client k labels x with the largest entry of W_k x; the entries of W_k are N(0, spread^2).

    x is N(v_k, diag(j^-1.2)) for features j from 1, around a mean v_k ~ N(0, I) of the client's own. Every feature is
    then divided by its standard deviation at the client (`scales`): weights u learnt on them stand for u / scales,
    which is what `truth` [clients, classes, features] is to be compared with. The largest entry does not depend on
    the spread, so neither do the examples: two of one seed differ in `truth` alone.

    >>> data = logistic()
    >>> len(data.features), data.shape, data.truth.shape
    (10, (10,), (10, 2, 10))
    """
    _require(
        min(clients, features) >= 1 and min(examples, classes) >= 2 and 0 < spread < LARGE,
        clients * examples * max(features, classes),
        f"logistic(clients={clients}, examples={examples}, features={features}, classes={classes}, R={spread:g})",
        "1 client, 1 feature, 2 examples and 2 classes, an R above 0 and below a million",
    )
    rng = np.random.default_rng(seed)
    deviation = np.arange(1, features + 1) ** -0.6
    truth = spread * rng.normal(size=(clients, classes, features))
    rows: list[tuple[Floats, ...]] = []
    for weights in truth:
        mean = rng.normal(size=features)
        x, tx = (mean + deviation * rng.normal(size=(examples, features)) for _ in range(2))
        scale = x.std(0)
        rows.append((x / scale, (x @ weights.T).argmax(1), tx / scale, (tx @ weights.T).argmax(1), scale))
    inputs, outputs, test_inputs, test_outputs, scales = zip(*rows)
    note = f"Generated: labels by each client's own weights, entries N(0, {spread:g}^2), seed {seed}."
    notes: tuple[str, ...] = (note,)
    notes += ("R scales these weights, which changes no label: only errors against them depend on it.",)
    if alike := sum(len(np.unique(y)) == 1 for y in outputs):
        notes += (f"{count(alike, 'client')} with training labels of one class only.",)
    weights, divided = truth.astype(np.float32), tuple(scale.astype(np.float32) for scale in scales)
    return Supervised(
        "logistic", "labels", inputs, outputs, test_inputs, test_outputs, weights, notes,
        classes=classes, scales=divided,
    )  # fmt: skip


def least_squares(
    clients: int = 50, examples: int = 40, features: int = 10, noise: float = 1.0, spread: float = 1.0,
    condition: float = 1.0, seed: int = 0,
) -> Supervised:  # fmt: skip
    """y = x w_i + noise, with w_i at distance `spread` from a common w ~ N(0, I), in a random direction.

    The features are independent and normal. Their variances fall geometrically from 1 to 1 / `condition`: 1 (the
    default) makes all directions alike, more makes the problem as badly conditioned as that, on average over examples.
    With few examples a client's own matrix X'X / n is worse than that. Over all 50 clients the largest eigenvalue is
    about 13 times the smallest with condition=1, 56 times (the kappa of our reference runs) with condition=11, and 250
    times with condition=56, where only the pooled examples have about 56.

    >>> data = least_squares(spread=0.3)
    >>> len(data.features), data.shape, data.truth.shape
    (50, (10,), (50, 10))
    """
    _require(
        min(clients, examples, features) >= 1 and 0 <= noise < LARGE
        and 0 <= spread < LARGE and 1 <= condition < np.inf,
        clients * examples * features,
        f"least_squares(clients={clients}, examples={examples}, features={features}, noise={noise:g}, R={spread:g}, "
        f"condition={condition:g})",
        "1 client, 1 example and 1 feature, noise and R from 0 and below a million, a finite condition from 1",
    )  # fmt: skip
    rng = np.random.default_rng(seed)
    direction = rng.normal(size=(clients, features))
    direction /= np.linalg.norm(direction, axis=1, keepdims=True)
    truth = (rng.normal(size=features) + spread * direction).astype(np.float32)
    deviation = np.sqrt(np.geomspace(1, 1 / condition, features))
    rows: list[tuple[Floats, Floats]] = []
    for weights in np.repeat(truth, 2, axis=0):  # for training, then for testing
        x = (deviation * rng.normal(size=(examples, features))).astype(np.float32)
        rows.append((x, x.astype(np.float64) @ weights + noise * rng.normal(size=examples)))
    note = (
        f"Generated: y = Xw + {noise:g} x noise, each client's w at distance {spread:g} from the centre, variances of "
        f"the features from 1 to 1/{condition:g}, seed {seed}."
    )
    (inputs, outputs), (test_inputs, test_outputs) = zip(*rows[::2]), zip(*rows[1::2])
    return Supervised("least-squares", "regression", inputs, outputs, test_inputs, test_outputs, truth, (note,))


def linear(clients: int = 10, features: int = 5, examples: int = 100, noise: float = 0.0, seed: int = 0) -> Supervised:
    """Linear regression with one true weight vector w: y = X w + noise at every client.

    Clients hold between 80 % and 120 % of `examples` examples, and test on a fifth of their own. Without
    noise (the default) the true weights can be recovered to the precision of the arithmetic.

    >>> data = linear()
    >>> len(data.features), data.features[0].shape[1], data.truth.shape
    (10, 5, (5,))
    """
    _require(
        min(clients, features) >= 1 and examples >= 5 and 0 <= noise < np.inf,
        clients * examples * features,
        f"linear(clients={clients}, features={features}, examples={examples}, noise={noise})",
        "1 client, 1 feature and 5 examples, and a finite noise from 0",
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
        notes=(f"Generated: y = Xw + {noise:g} x noise, seed {seed}.",),
    )


def _require(possible: bool, numbers: int, call: str, least: str) -> None:
    """Refuse arguments that cannot be satisfied, with what is needed."""
    if not possible or numbers > MOST:
        raise DataError(
            f"{call} cannot be made. Expected at least {least}, and at most {MOST:,} numbers (clients x examples x "
            "features)."
        )
