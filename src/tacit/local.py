"""The verbs that methods are written with. All of them are for one person and run under vmap."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatch

import torch
from torch import Tensor
from torch.func import grad

from .core import Examples, Model, Params, Upload

Pull = Callable[[Params], Tensor]  # a penalty of the parameters, added to the loss


def split(params: Params, patterns: Iterable[str]) -> tuple[Params, Params]:
    """(the rest, those whose name matches a glob).

    >>> rest, hit = split({"user": torch.zeros(1), "item": torch.zeros(1)}, ["us*"])
    >>> list(rest), list(hit)
    (['item'], ['user'])
    """
    patterns = tuple(patterns)
    hit = {name for name in params if any(fnmatch(name, pattern) for pattern in patterns)}
    return {n: v for n, v in params.items() if n not in hit}, {n: v for n, v in params.items() if n in hit}


def like(params: Params, names: Iterable[str]) -> Params:
    """The parameters of these names."""
    return {name: params[name] for name in names}


def nest(prefix: str, params: Params) -> Params:
    """Put a whole set of parameters under a prefix, so that two sets fit into one."""
    return {f"{prefix}.{name}": value for name, value in params.items()}


def unnest(prefix: str, params: Params) -> Params:
    """The set that `nest` put there."""
    return {n.removeprefix(prefix + "."): v for n, v in params.items() if n.startswith(prefix + ".")}


def square_distance(a: Params, b: Params) -> Tensor:
    """Sum of squared differences over the names that both have."""
    return sum((((a[n] - b[n]) ** 2).sum() for n in b if n in a), torch.zeros(()))


def dot(a: Params, b: Params) -> Tensor:
    """The inner product of two sets of parameters, over the names of the first."""
    return sum(((value * b[name]).sum() for name, value in a.items()), torch.zeros(()))


def change(after: Params, before: Params, weight: Tensor) -> Upload:
    """The upload of a difference."""
    return Upload({name: weight * (after[name] - before[name]) for name in before}, weight)


class Meter:
    """How many gradients of a batch were taken since the start of this process."""

    gradients = 0


def slope(
    model: Model, params: Params, batch: Examples, only: Iterable[str], pull: Pull | None = None
) -> tuple[Params, Params]:
    """(the gradient of loss + pull by the parameters named in `only`, the model's buffers after this batch)."""
    moving = like(params, [name for name in only if name not in model.buffers])
    still = {name: value for name, value in params.items() if name not in moving}

    def objective(moving: Params) -> tuple[Tensor, Params]:
        all_of_it = still | moving
        value, settled = model.learn(all_of_it, batch) if model.learn else (model.loss(all_of_it, batch), {})
        return value + pull(all_of_it) if pull else value, settled

    Meter.gradients += 1
    return grad(objective, has_aux=True)(moving)


def batches(examples: Examples, passes: int = 1) -> Iterator[Examples]:
    """Every batch in order, `passes` times."""
    for _ in range(passes):
        for step in range(examples.mask.shape[0]):
            yield Examples(examples.inputs[step], examples.targets[step], examples.mask[step])


def descend(
    model: Model, params: Params, examples: Examples, lr: float | Tensor, only: Iterable[str], passes: int = 1,
    pull: Pull | None = None,
) -> Params:  # fmt: skip
    """SGD over the batches, `passes` times, on the model's loss (+ `pull`, a penalty of the parameters), moving only
    the parameters named in `only`; buffers among them follow the batches."""
    only = tuple(only)
    for batch in batches(examples, passes):
        gradient, settled = slope(model, params, batch, only, pull)
        params = step(params, gradient, settled, lr, batch, only)
    return params


def step(
    params: Params, gradient: Params, settled: Params, lr: float | Tensor, batch: Examples, only: Iterable[str]
) -> Params:
    """One step of descent; a batch of pure padding moves nothing, penalties and buffers included."""
    live = batch.mask.sum() > 0
    moved = {name: params[name] - lr * value for name, value in gradient.items()}
    kept = {name: settled[name] for name in only if name in settled}
    return params | {name: torch.where(live, value, params[name]) for name, value in (moved | kept).items()}


def curvature(model: Model, params: Params, examples: Examples, only: Iterable[str], probes: int = 12) -> Tensor:
    """[2]: the largest curvature of the loss on all of one's examples, which says how far a step may go: the model's
    bound where it has one, or by power iteration where the parameters are; and the curvature along an arbitrary
    direction, which says what is usual."""
    moving = like(params, [name for name in only if name not in model.buffers])
    still = {name: value for name, value in params.items() if name not in moving}
    one = Examples(*(x[0] for x in whole(examples)))
    first = grad(lambda moving: model.loss(still | moving, one))
    turn = {name: torch.cos(torch.arange(v.numel()) + 1.0).reshape(v.shape).to(v.dtype) for name, v in moving.items()}
    usual, largest = None, torch.zeros(())
    probes = probes if model.bound is None else 1
    for _ in range(probes):
        turned = grad(lambda at, turn=turn: dot(turn, first(at)))(moving)
        if usual is None:
            usual = dot(turn, turned) / dot(turn, turn)
        largest = dot(turned, turned).sqrt()
        turn = {name: v / largest.clamp(min=1e-12) for name, v in turned.items()}
    Meter.gradients += 2 * probes * examples.mask.shape[0]  # a product with the curvature costs two gradients
    largest = largest if model.bound is None else model.bound(one)
    return torch.stack([largest, usual if usual is not None else largest])


def widest(batch: Examples) -> Tensor:
    """The largest eigenvalue of the mean of x x' over the real examples of a batch: what bounds linear models."""
    x = batch.inputs.flatten(1) * batch.mask[:, None] / batch.mask.sum().clamp(min=1).sqrt()
    return torch.linalg.eigvalsh(x.T @ x if x.shape[1] <= x.shape[0] else x @ x.T)[-1]


def once(known: Tensor, measure: Callable[[], Tensor]) -> Tensor:
    """`known` where it is positive, or else measured. A device alone measures once; many under vmap measure each time,
    as they run one program, and those who knew keep what they knew."""
    try:
        if bool((known > 0).all()):
            return known
    except RuntimeError:  # under vmap there is no one answer
        return torch.where((known > 0).all(), known, measure())
    return measure()


def touched(params: Params, rows: Iterable[str], examples: Examples) -> Params:
    """1 for what these examples reach and 0 for rows of the catalogue that none of them names; shaped to multiply."""
    rows = frozenset(rows)

    def mark(value: Tensor) -> Tensor:
        count = torch.zeros(value.shape[0]).index_add(0, examples.inputs.flatten(), examples.mask.flatten())
        return (count > 0).float().reshape(-1, *[1] * (value.ndim - 1))

    return {name: mark(value) if name in rows else torch.ones(()) for name, value in params.items()}


def pick(where: Params, new: Params, old: Params) -> Params:
    """`new` where the mask is 1, else `old`."""
    return {name: torch.where(where[name] > 0, value, old[name]) for name, value in new.items()}


def whole(examples: Examples) -> Examples:
    """All examples as one batch."""
    inputs, targets, mask = examples
    return Examples(inputs.flatten(0, 1)[None], targets.flatten()[None], mask.flatten()[None])


def ages(mask: Tensor) -> Tensor:
    """How many examples came after each, [n] for a mask [n]: 0 for the newest, and on padding.

    >>> ages(torch.tensor([1., 1., 1., 0.])).tolist()
    [2.0, 1.0, 0.0, 0.0]
    """
    return (mask.flip(0).cumsum(0).flip(0) - 1).clamp(min=0)


def halves(examples: Examples, share: float) -> tuple[Examples, Examples]:
    """(support, query): `share` of the examples, evenly spread, and the others. By example and never by batch, so
    that a person with one batch has both."""
    mask = examples.mask
    place = mask.flatten().cumsum(0).reshape(mask.shape).double()  # 1, 2, ... over the real examples
    chosen = mask * ((place * share).floor() > ((place - 1) * share).floor()).float()
    return examples._replace(mask=chosen), examples._replace(mask=mask - chosen)


def parts(examples: Examples, number: int) -> list[Examples]:
    """The examples dealt out in turn, as so many sets with a mask each."""
    place = examples.mask.flatten().cumsum(0).reshape(examples.mask.shape) - 1  # 0, 1, ... over the real examples
    return [examples._replace(mask=examples.mask * (place % number == part)) for part in range(number)]


def ridge(features: Tensor, targets: Tensor, weights: Tensor, gram: Tensor, lam: Tensor) -> Tensor:
    """argmin_u  sum_i w_i (f_i.u - t_i)^2 + u'(gram)u + lam |u|^2, by Cholesky.

    features [n, p], targets [n], weights [n] (0 on padding), gram [p, p], lam [].
    """
    weighted = features * weights[:, None]
    system = weighted.T @ features + gram + lam * torch.eye(features.shape[1], dtype=features.dtype)
    return torch.cholesky_solve((weighted.T @ targets)[:, None], torch.linalg.cholesky(system))[:, 0]
