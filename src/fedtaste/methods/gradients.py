"""Gradients of functions of parameters, also under vmap: torch.func.grad_and_value without the import of a compiler.

When it is first called, torch.func imports torch._dynamo in order to switch off compiled gradients, which fedtaste
never switches on. The import takes two seconds of CPU time in every process that trains. These functions take the same
steps (torch/_functorch/eager_transforms.py) and leave this one out, so that the gradients have the same bits.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch._functorch.eager_transforms import (
    _create_differentiable,
    _undo_create_differentiable,
    _wrap_all_tensors,
    grad_increment_nesting,
)

from fedtaste.core import Params


def gradient_and_extra(
    function: Callable[[Params], tuple[Tensor, Params]], params: Params
) -> tuple[Params, Tensor, Params]:
    """(gradient of the first result of `function` by its parameters, the first result, the second result)."""
    with grad_increment_nesting() as level, torch.enable_grad():
        inputs = _wrap_all_tensors(params, level)
        for value in inputs.values():
            _create_differentiable(value, level)
        output, extra = function(inputs)
        values: tuple[Tensor | None, ...] = (None,) * len(inputs)
        if output.requires_grad:
            values = torch.autograd.grad(output, list(inputs.values()), create_graph=True, allow_unused=True)
        gradient = {
            name: torch.zeros_like(value) if slope is None else slope
            for (name, value), slope in zip(inputs.items(), values)
        }
        result = (gradient, output, extra)
        return _undo_create_differentiable(result, level)  # type: ignore[type-var]


def gradient_and_value(function: Callable[[Params], Tensor], params: Params) -> tuple[Params, Tensor]:
    """(gradient of a function by its parameters, its value).

    >>> gradient_and_value(lambda at: (at["x"] ** 2).sum(), {"x": torch.tensor([1.0, 3.0])})
    ({'x': tensor([2., 6.])}, tensor(10.))
    """
    gradient, value, _ = gradient_and_extra(lambda at: (function(at), {}), params)
    return gradient, value
