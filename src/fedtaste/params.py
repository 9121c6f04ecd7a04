"""Operations on dictionaries of named parameters (`Params`): split by glob, add a prefix, inner product, distance."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatch

import torch
from torch import Tensor

from fedtaste.core import Params


def split(params: Params, patterns: Iterable[str]) -> tuple[Params, Params]:
    """(the rest, those whose name matches a glob).

    >>> rest, hit = split({"user": torch.zeros(1), "item": torch.zeros(1)}, ["us*"])
    >>> list(rest), list(hit)
    (['item'], ['user'])
    """
    patterns = tuple(patterns)
    hit = {name for name in params if any(fnmatch(name, pattern) for pattern in patterns)}
    return {n: v for n, v in params.items() if n not in hit}, {n: v for n, v in params.items() if n in hit}


def select(params: Params, names: Iterable[str]) -> Params:
    """The parameters with these names."""
    return {name: params[name] for name in names}


def nest(prefix: str, params: Params) -> Params:
    """A set of parameters with a prefix before each name, so that two sets fit into one."""
    return {f"{prefix}.{name}": value for name, value in params.items()}


def unnest(prefix: str, params: Params) -> Params:
    """The inverse of `nest`: the set under a prefix."""
    return {n.removeprefix(prefix + "."): v for n, v in params.items() if n.startswith(prefix + ".")}


def all_finite(tensor: Tensor) -> bool:
    """Whether no number is NaN or infinite. Where the sum is finite, all numbers are; only otherwise each is tested.

    >>> all_finite(torch.ones(2)), all_finite(torch.tensor([1.0, torch.nan])), all_finite(torch.full((2,), 3e38))
    (True, False, True)
    """
    return bool(torch.isfinite(tensor.sum())) or bool(torch.isfinite(tensor).all())


def squared_norm(tensor: Tensor) -> float:
    """The sum of squares, in double precision."""
    numbers = tensor if tensor.is_floating_point() else tensor.double()
    norm = float(torch.linalg.vector_norm(numbers, dtype=torch.float64))
    return norm * norm  # a power would raise an error where the square is infinite


def square_distance(a: Params, b: Params) -> Tensor:
    """The sum of squared differences over the names that both sets have."""
    return sum((((a[n] - b[n]) ** 2).sum() for n in b if n in a), torch.zeros(()))


def dot(a: Params, b: Params) -> Tensor:
    """The inner product of two sets of parameters, over the names of the first."""
    return sum(((value * b[name]).sum() for name, value in a.items()), torch.zeros(()))


def pick(where: Params, new: Params, old: Params) -> Params:
    """`new` where the mask is 1, else `old`."""
    return {name: torch.where(where[name] > 0, value, old[name]) for name, value in new.items()}
