"""`descend` on a factorisation: plain torch for one person, one compiled kernel for people at once (under vmap)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedtaste.core import Examples, Model, Params
from fedtaste.kernels import descent as kernels

COMPILED = {"factorization": ("item", "user"), "scorer": ("item", "user", "bias")}  # names of the parameters by kind
Reference = Callable[[Params, Examples], Params]


class Descent(NamedTuple):
    """What stays the same for all people in one call of `descend`."""

    names: tuple[str, ...]  # of the parameters, item and user first
    moves: tuple[str, ...]
    passes: int
    in_turn: bool
    squared: bool
    reference: Reference  # the same in plain torch, for one person


def compiles(model: Model, params: Params, centre: Params | None, moves: tuple[str, ...]) -> bool:
    """Whether the kernel can do this: a factorisation in single precision, whose item table alone may be held near a
    centre."""
    names = COMPILED.get(model.kind, ())
    held = {name for name in centre or {} if name in moves}
    exact = all(name in params and params[name].dtype == torch.float32 for name in names)
    return bool(names) and exact and held <= {"item"} and set(moves) <= set(names)


def run_compiled(
    descent: Descent, params: Params, examples: Examples, rates: tuple[float | Tensor, ...], centre: Params | None
) -> Params:
    """The parameters after the descent; `rates` are those of user and bias, of item, and the weight of the proximal
    term towards `centre`."""
    held = [] if centre is None or "item" not in centre or "item" not in descent.moves else [centre["item"]]
    numbers = [torch.as_tensor(rate, dtype=torch.float32) for rate in rates]
    tensors = [*(params[name] for name in descent.names), *numbers, *examples, *held]
    after = _Compiled.apply(descent, *tensors)  # type: ignore[no-untyped-call]
    return params | dict(zip(descent.moves, after))


def run_compiled_gradient(gradient: Descent, params: Params, batch: Examples) -> Params:
    """The gradient of one batch's loss by the parameters that `gradient.moves` names."""
    tensors = [*(params[name] for name in gradient.names), *batch]
    values = _CompiledGradient.apply(gradient, *tensors)  # type: ignore[no-untyped-call]
    return dict(zip(gradient.moves, values))


def _stack(people: int, tensors: Sequence[Tensor], in_dims: Sequence[int | None]) -> list[Tensor]:
    """The tensors with people as their first axis; those that are the same for all are repeated."""
    return [
        (value.expand(people, *value.shape) if dim is None else value.movedim(dim, 0)).detach()
        for value, dim in zip(tensors, in_dims)
    ]


class _CompiledGradient(torch.autograd.Function):
    """As `_Compiled`, for the gradient of one batch."""

    @staticmethod
    def forward(gradient: Descent, *tensors: Tensor) -> tuple[Tensor, ...]:
        size = len(gradient.names)
        values = gradient.reference(dict(zip(gradient.names, tensors)), Examples(*tensors[size:]))
        return tuple(values[name] for name in gradient.moves)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        return

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], gradient: Descent, *tensors: Tensor) -> tuple[Any, Any]:
        size = len(gradient.names)
        stacked = [value.contiguous() for value in _stack(info.batch_size, tensors, in_dims[1:])]
        params = {"bias": torch.zeros(info.batch_size)} | dict(zip(gradient.names, stacked))
        out = {name: torch.zeros_like(value) for name, value in params.items()}
        inputs, targets, mask = (array.numpy() for array in stacked[size:])
        kernels.add_gradients(
            params["item"].numpy(), params["user"].numpy(), params["bias"].numpy(), inputs, targets, mask,
            gradient.squared, out["item"].numpy(), out["user"].numpy(), out["bias"].numpy(),
        )  # fmt: skip
        return tuple(out[name] for name in gradient.moves), (0,) * len(gradient.moves)


class _Compiled(torch.autograd.Function):
    """Its `forward` runs for one person, its `vmap` for all of them. There is no backward pass: nobody differentiates
    through a descent."""

    @staticmethod
    def forward(descent: Descent, *tensors: Tensor) -> tuple[Tensor, ...]:
        size = len(descent.names)
        examples = Examples(*tensors[size + 3 : size + 6])
        after = descent.reference(dict(zip(descent.names, tensors)), examples)
        return tuple(after[name] for name in descent.moves)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        return

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], descent: Descent, *tensors: Tensor) -> tuple[Any, Any]:
        people, size = info.batch_size, len(descent.names)
        stacked = _stack(people, tensors, in_dims[1:])
        params = {
            name: value.clone(memory_format=torch.contiguous_format) if name in descent.moves else value.contiguous()
            for name, value in zip(descent.names, stacked)
        }
        rates = torch.stack(stacked[size : size + 3], 1).numpy()
        inputs, targets, mask = (array.contiguous().numpy() for array in stacked[size + 3 : size + 6])
        centre = stacked[size + 6].contiguous() if len(stacked) > size + 6 else torch.zeros(0, 0, 0)
        bias = params.get("bias", torch.zeros(people))
        moves = "item" in descent.moves, "user" in descent.moves, "bias" in descent.moves
        kernels.descend(
            params["item"].numpy(), params["user"].numpy(), bias.numpy(), centre.numpy(), rates, inputs, targets,
            mask, descent.passes, moves, descent.in_turn, descent.squared,
        )  # fmt: skip
        after = tuple(params[name] for name in descent.moves)
        return after, (0,) * len(after)
