"""Any torch module as a Model.

    wrap(module)                        its parameters, by their names, are the Params of one person
    wrap(make)                          a function that makes the module: every seed starts elsewhere

Two things in a module are not functions of parameters and inputs, and are dealt with here. Batch norm keeps statistics:
they become buffers among the Params, are taken over real examples only (padding does not count), and follow the batches
of training. Drop-out draws at random, while a client must give the same answer every time: it is refused.
Parameters that the module itself has frozen, and its other buffers, are constants: nobody learns or sends them.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from fnmatch import filter as matches
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional

from ..core import Examples, Model, Params
from ..errors import SettingError, did_you_mean

Loss = Callable[[Tensor, Tensor], Tensor]
LOSSES: dict[str, Loss] = {  # of a batch: [batch]
    "cross_entropy": lambda out, y: functional.cross_entropy(out, y.long(), reduction="none"),
    "bce": lambda out, y: functional.binary_cross_entropy_with_logits(out, y, reduction="none"),
    "squared": lambda out, y: (out - y) ** 2,
}
OF_CLASSES = (functional.cross_entropy, functional.nll_loss)
DROPS = (nn.modules.dropout._DropoutNd, nn.RReLU)


@dataclass
class Pass:
    """What is true during one forward pass, and what it leaves behind."""

    mask: Tensor | None = None  # [batch] in training; None: use the kept statistics
    settled: Params = field(default_factory=dict)
    features: Tensor | None = None


class MaskedNorm(nn.Module):
    """Batch norm as a pure function: statistics over the real examples of a batch, and new ones told, not stored."""

    def __init__(self, norm: Any, name: str, now: list[Pass]) -> None:
        super().__init__()
        self.weight, self.bias, self.eps = norm.weight, norm.bias, norm.eps
        self.running_mean: Tensor
        self.running_var: Tensor
        self.momentum = 0.1 if norm.momentum is None else norm.momentum
        self.prefix, self.now = f"{name}.", now
        self.kept = norm.running_mean is not None
        if self.kept:
            self.register_buffer("running_mean", norm.running_mean)
            self.register_buffer("running_var", norm.running_var)

    def forward(self, x: Tensor) -> Tensor:
        now, over = self.now[0], [0, *range(2, x.ndim)]
        flat = (1, -1, *[1] * (x.ndim - 2))
        if now.mask is None and self.kept:
            mean, var = self.running_mean, self.running_var
        else:
            mask = torch.ones(len(x)) if now.mask is None else now.mask
            mask = mask.reshape(-1, *[1] * (x.ndim - 1)).expand(-1, 1, *x.shape[2:])
            count = mask.sum().clamp(min=1)
            mean = (x * mask).sum(over) / count
            var = ((x - mean.reshape(flat)) ** 2 * mask).sum(over) / count
            if self.kept:
                wide = var * count / (count - 1).clamp(min=1)
                for name, new in (("running_mean", mean), ("running_var", wide)):
                    now.settled[self.prefix + name] = (1 - self.momentum) * getattr(self, name) + self.momentum * new
        x = (x - mean.reshape(flat)) * (var.reshape(flat) + self.eps).rsqrt()
        return x if self.weight is None else x * self.weight.reshape(flat) + self.bias.reshape(flat)


def wrap(
    module: nn.Module | Callable[[], nn.Module],
    loss: str | Callable[[Tensor, Tensor], Tensor] = "cross_entropy",
    *,
    private: tuple[str, ...] = (),
    features: str | None = None,
) -> Model:
    """A Model of a module (or of a function that makes one).

    `loss`: cross_entropy, bce, squared, or a function (outputs, targets) -> one number. It is asked for every example
    by itself, so that padding can be left out. `private`: globs of parameters that are personal. `features`: the layer
    whose input is what LG-Mix looks at; the last linear one when left out.
    """
    made = module if isinstance(module, nn.Module) else _fresh(module, 0)
    now, body = [Pass()], _prepared(made)
    norms = _replace_norms(body, now)
    body.requires_grad_(False)
    params = {n: p for n, p in made.named_parameters() if p.requires_grad}
    buffers = tuple(f"{n}.{kind}" if n else kind for n in norms for kind in ("running_mean", "running_var"))
    known = [*params, *buffers]
    for glob in private:
        if not matches(known, glob):
            raise SettingError(did_you_mean(glob, known, "parameter"))
    _watch(body, features, now)
    each, name = _each(loss)

    def forward(params: Params, inputs: Tensor, mask: Tensor | None) -> tuple[Tensor, Pass]:
        now[0] = Pass(mask)
        try:
            out = functional_call(body, params, (inputs,))
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            shape = " x ".join(map(str, inputs.shape[1:])) or "one number"
            raise SettingError(
                f"The module cannot take these examples, of {shape} each: {str(error).splitlines()[0]} "
                "Change its first layer, or bring examples of the shape it expects."
            ) from error
        if not isinstance(out, Tensor) or out.ndim not in (1, 2) or len(out) != len(inputs):
            got = f"shape {tuple(out.shape)}" if isinstance(out, Tensor) else type(out).__name__
            raise SettingError(f"The module gave {got} for {len(inputs)} examples; expected one row for each.")
        return out[:, 0] if out.ndim == 2 and out.shape[1] == 1 else out, now[0]

    def learn(params: Params, batch: Examples) -> tuple[Tensor, Params]:
        out, done = forward(params, batch.inputs, batch.mask)
        value = (each(out, batch.targets) * batch.mask).sum() / batch.mask.sum().clamp(min=1)
        return value, done.settled

    def penultimate(params: Params, inputs: Tensor) -> Tensor:
        found = forward(params, inputs, None)[1].features
        assert found is not None
        return found.flatten(1)

    def init(generator: torch.Generator) -> Params:
        new = made if isinstance(module, nn.Module) else _fresh(module, generator.initial_seed())
        state = new.state_dict()
        return {name: state[name].detach().clone() for name in known}

    watched = any(layer._forward_pre_hooks for layer in body.modules())
    return Model(
        init, lambda params, batch: learn(params, batch)[0], lambda params, inputs: forward(params, inputs, None)[0],
        (), private, loss_name=name, features=penultimate if watched else None, buffers=buffers, learn=learn,
    )  # fmt: skip


def _fresh(make: Callable[[], nn.Module], seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = make()
    if not isinstance(made, nn.Module):
        raise SettingError(f"wrap got a function that makes {type(made).__name__}; expected one that makes a module.")
    return made


def _prepared(module: nn.Module) -> nn.Module:
    """A copy to call, after a look at what could not work."""
    if any(nn.parameter.is_lazy(p) for p in module.parameters()):
        raise SettingError("The module has layers without a size yet. Call it once on an example before wrapping it.")
    names = list(inspect.signature(module.forward).parameters.values())
    needed = [p.name for p in names if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    needed += [p.name for p in names if p.default is p.empty and p.kind is p.KEYWORD_ONLY]
    if len(needed) > 1 or not any(p.kind is not p.KEYWORD_ONLY for p in names):
        raise SettingError(
            f"The module's forward takes ({', '.join(needed)}); examples have inputs and nothing else, so it must take "
            "exactly one. Give the others a default, or put them into the inputs."
        )
    for name, layer in module.named_modules():
        if isinstance(layer, DROPS) and getattr(layer, "p", 1) > 0:
            raise SettingError(
                f"The layer {name!r} ({type(layer).__name__}) draws at random; a client must give the same answer "
                "every time, or no run could be resumed or checked. Leave it out, or set p=0."
            )
    return copy.deepcopy(module)


def _replace_norms(body: nn.Module, now: list[Pass]) -> list[str]:
    """Put MaskedNorm where batch norm stands; the names of those that keep statistics."""
    kept = []
    for name, layer in list(body.named_modules()):
        if not isinstance(layer, nn.modules.batchnorm._BatchNorm):
            continue
        if not name:
            raise SettingError("The module is a batch norm and nothing else. Put it into an nn.Sequential.")
        home, _, own = name.rpartition(".")
        setattr(body.get_submodule(home), own, MaskedNorm(layer, name, now))
        kept += [name] if layer.running_mean is not None else []
    return kept


def _watch(body: nn.Module, features: str | None, now: list[Pass]) -> None:
    """Note what goes into the layer whose input is the features."""
    layers = dict(body.named_modules())
    if features is None:
        features = next((n for n, layer in reversed(layers.items()) if isinstance(layer, nn.Linear)), None)
    elif features not in layers:
        raise SettingError(did_you_mean(features, [name for name in layers if name], "layer"))
    if features is not None:

        def note(_layer: nn.Module, args: tuple[Any, ...]) -> None:
            now[0].features = args[0]

        layers[features].register_forward_pre_hook(note)


def _each(loss: str | Callable[[Tensor, Tensor], Tensor]) -> tuple[Loss, str]:
    """A loss by example [batch], and its name."""
    if isinstance(loss, str):
        if loss not in LOSSES:
            raise SettingError(did_you_mean(loss, LOSSES, "loss"))
        return LOSSES[loss], loss
    classes = loss in OF_CLASSES or isinstance(loss, (nn.CrossEntropyLoss, nn.NLLLoss))

    def one(out: Tensor, target: Tensor) -> Tensor:
        value = loss(out[None], target[None])
        if not isinstance(value, Tensor) or value.ndim:
            got = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise SettingError(f"The loss returned {got}; one number is expected. Take its mean: .mean().")
        return value

    return lambda out, y: vmap(one)(out, y.long() if classes else y), getattr(loss, "__name__", type(loss).__name__)
