"""Building blocks of a method's client: SGD, curvature, support/query splits, recency weights, ridge regression.

Every function is for one person and runs under vmap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from fedtaste.core import Examples, Model, Params, Upload
from fedtaste.methods.compiled_descent import COMPILED, Descent, compiles, run_compiled, run_compiled_gradient
from fedtaste.methods.gradients import gradient_and_extra, gradient_and_value
from fedtaste.params import dot, select, square_distance


def change(after: Params, before: Params, weight: Tensor) -> Upload:
    """The upload of a difference of parameters."""
    return Upload({name: weight * (after[name] - before[name]) for name in before}, weight)


@dataclass(frozen=True, eq=False)
class Proximal:
    """The penalty weight/2 |params - centre|^2, over the parameters that both have; it is added to a loss."""

    weight: float | Tensor
    centre: Params

    def __call__(self, params: Params) -> Tensor:
        return self.weight / 2 * square_distance(params, self.centre)


class Meter:
    """Counts the gradients of a batch that this process has taken."""

    gradients = 0


def batch_gradient(
    model: Model, params: Params, batch: Examples, only: Iterable[str], penalty: Proximal | None = None
) -> tuple[Params, Params]:
    """(gradient of loss + `penalty` by the parameters named in `only`, the model's buffers after this batch). On a
    factorisation without penalty people under vmap run a compiled kernel."""
    moving, fixed = _partition(model, params, only)

    def objective(moving: Params) -> tuple[Tensor, Params]:
        params = fixed | moving
        value, buffers = model.learn(params, batch) if model.learn else (model.loss(params, batch), {})
        return value + penalty(params) if penalty else value, buffers

    Meter.gradients += 1
    if penalty is not None or not compiles(model, params, None, tuple(moving)):
        gradient, _, buffers = gradient_and_extra(objective, moving)
        return gradient, buffers

    def reference(params: Params, batch: Examples) -> Params:
        return gradient_and_value(lambda moving: model.loss(params | moving, batch), select(params, moving))[0]

    compiled = Descent(COMPILED[model.kind], tuple(moving), 1, False, model.loss_name == "squared", reference)
    return run_compiled_gradient(compiled, params, batch), {}


def _partition(model: Model, params: Params, only: Iterable[str]) -> tuple[Params, Params]:
    """(the parameters named in `only` that are descended, all others)."""
    moving = select(params, [name for name in only if name not in model.buffers])
    return moving, {name: value for name, value in params.items() if name not in moving}


def batches(examples: Examples, passes: int = 1) -> Iterator[Examples]:
    """Every batch in order, `passes` times."""
    for _ in range(passes):
        for step in range(examples.mask.shape[0]):
            yield Examples(*(array[step] for array in examples))


def descend(
    model: Model,
    params: Params,
    examples: Examples,
    lr: float | Tensor,
    only: Iterable[str],
    passes: int = 1,
    penalty: Proximal | None = None,
) -> Params:
    """SGD over the batches, `passes` times, on the model's loss plus `penalty`. Only the parameters named in `only`
    move; buffers among them follow the batches. On a factorisation people under vmap run a compiled kernel."""
    only = tuple(only)

    def reference(params: Params, examples: Examples) -> Params:
        for batch in batches(examples, passes):
            gradient, buffers = batch_gradient(model, params, batch, only, penalty)
            params = step(params, gradient, buffers, lr, batch, only)
        return params

    centre = penalty.centre if penalty else None
    if not compiles(model, params, centre, only):
        return reference(params, examples)
    descent = Descent(COMPILED[model.kind], only, passes, False, model.loss_name == "squared", reference)
    return run_compiled(descent, params, examples, (lr, lr, penalty.weight if penalty else 0.0), centre)


def descend_in_turn(
    model: Model, params: Params, examples: Examples, first: tuple[float, Iterable[str]],
    second: tuple[float, Iterable[str]], passes: int = 1,
) -> Params:  # fmt: skip
    """SGD in which every batch moves the parameters of `first` (learning rate, names) and then, after a fresh forward
    pass, those of `second`."""

    def reference(params: Params, examples: Examples) -> Params:
        for batch in batches(examples, passes):
            for lr, names in (first, second):
                params = descend(model, params, Examples(*(array[None] for array in batch)), lr, names)
        return params

    moves = (*first[1], *second[1])
    if not compiles(model, params, None, moves) or tuple(second[1]) != ("item",):
        return reference(params, examples)
    descent = Descent(COMPILED[model.kind], moves, passes, True, model.loss_name == "squared", reference)
    return run_compiled(descent, params, examples, (first[0], second[0], 0.0), None)


def step(
    params: Params, gradient: Params, buffers: Params, lr: float | Tensor, batch: Examples, only: Iterable[str]
) -> Params:
    """One step of descent; a batch of pure padding changes nothing, penalties and buffers included."""
    live = batch.mask.sum() > 0
    after = {name: params[name] - lr * value for name, value in gradient.items()}
    after |= {name: buffers[name] for name in only if name in buffers}
    return params | {name: torch.where(live, value, params[name]) for name, value in after.items()}


def curvature(model: Model, params: Params, examples: Examples, only: Iterable[str], probes: int = 12) -> Tensor:
    """[2]: the largest curvature of the loss on all of a person's examples, which limits the step size, and the
    curvature along an arbitrary direction, which is a typical one. The largest is the model's bound where it has
    one, and otherwise comes from power iteration at these parameters."""
    moving, fixed = _partition(model, params, only)
    batch = flat_examples(examples)

    def gradient(at: Params) -> Params:
        return gradient_and_value(lambda moving: model.loss(fixed | moving, batch), at)[0]

    towards = {
        name: torch.cos(torch.arange(v.numel()) + 1.0).reshape(v.shape).to(v.dtype) for name, v in moving.items()
    }
    typical, largest = None, torch.zeros(())
    probes = probes if model.bound is None else 1
    for _ in range(probes):
        # curvature x direction
        product, _ = gradient_and_value(lambda at, towards=towards: dot(towards, gradient(at)), moving)  # type: ignore[misc]
        if typical is None:
            typical = dot(towards, product) / dot(towards, towards)
        largest = dot(product, product).sqrt()
        towards = {name: v / largest.clamp(min=1e-12) for name, v in product.items()}
    Meter.gradients += 2 * probes * examples.mask.shape[0]  # a product with the curvature costs two gradients
    largest = largest if model.bound is None else model.bound(batch)
    return torch.stack([largest, typical if typical is not None else largest])


def measure_once(known: Tensor, measure: Callable[[], Tensor]) -> Tensor:
    """`known` where it is positive, otherwise the measured value. Under vmap `measure` runs for all clients, since they
    run one program; values already known are kept."""
    try:
        if bool((known > 0).all()):
            return known
    except RuntimeError:  # under vmap there is no single answer
        return torch.where((known > 0).all(), known, measure())
    return measure()


def item_counts(examples: Examples, items: int) -> Tensor:
    """[items]: how many of these examples name each item."""
    return torch.zeros(items).index_add(0, examples.inputs.flatten(), examples.mask.flatten())


def unsent(mask: Tensor, sent: Tensor) -> Tensor:
    """The mask [n] of a history without its first `sent` examples, whose counts the device has sent before.

    >>> unsent(torch.tensor([1., 1., 1., 0.]), torch.tensor(2.)).tolist()
    [0.0, 0.0, 1.0, 0.0]
    """
    return mask * (mask.cumsum(0) > sent)


def touched(params: Params, rows: Iterable[str], examples: Examples) -> Params:
    """1 for what these examples reach and 0 for rows of the catalogue that none of them names; shaped to multiply."""
    rows = frozenset(rows)

    def mark(value: Tensor) -> Tensor:
        return (item_counts(examples, value.shape[0]) > 0).float().reshape(-1, *[1] * (value.ndim - 1))

    return {name: mark(value) if name in rows else torch.ones(()) for name, value in params.items()}


def flat_examples(examples: Examples) -> Examples:
    """All examples without batches: [n] arrays."""
    inputs, targets, mask = examples
    return Examples(inputs.flatten(0, 1), targets.flatten(), mask.flatten())


def ages(mask: Tensor) -> Tensor:
    """How many examples came after each, [n] for a mask [n]: 0 for the newest, and on padding.

    >>> ages(torch.tensor([1., 1., 1., 0.])).tolist()
    [2.0, 1.0, 0.0, 0.0]
    """
    return (mask.flip(0).cumsum(0).flip(0) - 1).clamp(min=0)


def recency_weights(mask: Tensor, recency: float, floor: float) -> Tensor:
    """Weights of a history [n], oldest item first: floor + (1 - floor) recency^age, and 0 on padding.

    >>> recency_weights(torch.tensor([1., 1., 0.]), 0.5, 0.0).tolist()
    [0.5, 1.0, 0.0]
    """
    return mask * (floor + (1 - floor) * recency ** ages(mask))


def split_support_query(examples: Examples, share: float) -> tuple[Examples, Examples]:
    """(support, query): `share` of the examples, evenly spread, and the others. The split is by example and never by
    batch, so that a person with one batch has both."""
    mask = examples.mask
    place = mask.flatten().cumsum(0).reshape(mask.shape).double()  # 1, 2, ... over the real examples
    support = mask * ((place * share).floor() > ((place - 1) * share).floor()).float()
    return examples._replace(mask=support), examples._replace(mask=mask - support)


def parts(examples: Examples, number: int) -> list[Examples]:
    """The examples dealt in turn into `number` sets, each with a mask of its own."""
    place = examples.mask.flatten().cumsum(0).reshape(examples.mask.shape) - 1  # 0, 1, ... over the real examples
    return [examples._replace(mask=examples.mask * (place % number == part)) for part in range(number)]


def ridge(features: Tensor, targets: Tensor, weights: Tensor, gram: Tensor, lam: Tensor) -> Tensor:
    """argmin_u  sum_i w_i (f_i.u - t_i)^2 + u'(gram)u + lam |u|^2, by Cholesky.

    features [n, p], targets [n], weights [n] (0 on padding), gram [p, p], lam [] (lambda, the regularisation).
    """
    weighted = features * weights[:, None]
    system = weighted.T @ features + gram + lam * torch.eye(features.shape[1], dtype=features.dtype)
    return torch.cholesky_solve((weighted.T @ targets)[:, None], torch.linalg.cholesky(system))[:, 0]
