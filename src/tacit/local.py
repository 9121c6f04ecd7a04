"""The verbs that methods are written with. All of them are for one person and run under vmap."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fnmatch import fnmatch

import torch
from torch import Tensor
from torch.func import grad

from .core import Examples, Params, Upload

Loss = Callable[[Params, Examples], Tensor]


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


def change(after: Params, before: Params, weight: Tensor) -> Upload:
    """The upload of a difference."""
    return Upload({name: weight * (after[name] - before[name]) for name in before}, weight)


def descend(loss: Loss, params: Params, examples: Examples, lr: float, only: Iterable[str], passes: int = 1) -> Params:
    """SGD over the batches, `passes` times, moving only the parameters named in `only`."""
    moving = like(params, only)
    still = {name: value for name, value in params.items() if name not in moving}
    slope = grad(lambda moving, batch: loss(still | moving, batch))
    for _ in range(passes):
        for step in range(examples.mask.shape[0]):
            batch = Examples(examples.inputs[step], examples.targets[step], examples.mask[step])
            live = (batch.mask.sum() > 0).float()  # a batch of pure padding moves nothing, regularisers included
            gradient = slope(moving, batch)
            moving = {name: value - lr * live * gradient[name] for name, value in moving.items()}
    return still | moving


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


def ridge(features: Tensor, targets: Tensor, weights: Tensor, gram: Tensor, lam: Tensor) -> Tensor:
    """argmin_u  sum_i w_i (f_i.u - t_i)^2 + u'(gram)u + lam |u|^2, by Cholesky.

    features [n, p], targets [n], weights [n] (0 on padding), gram [p, p], lam [].
    """
    weighted = features * weights[:, None]
    system = weighted.T @ features + gram + lam * torch.eye(features.shape[1], dtype=features.dtype)
    return torch.cholesky_solve((weighted.T @ targets)[:, None], torch.linalg.cholesky(system))[:, 0]
