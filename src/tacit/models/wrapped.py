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
import re
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
DRAWS = (
    "The module's forward draws at random; a client must give the same answer every time, or no run could be resumed "
    "or checked. Leave the draw out."
)
CHANGES = (
    "The module's forward changes a buffer, other than those of batch norm; a client keeps nothing that is not among "
    "its parameters. Leave it out, or use a layer that keeps no statistics."
)


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
        self.momentum, self.prefix, self.now = norm.momentum, f"{name}.", now
        self.statistics = _statistics(norm)
        for own in self.statistics:
            self.register_buffer(own, 1.0 * getattr(norm, own))

    def forward(self, x: Tensor) -> Tensor:
        now, over = self.now[0], [0, *range(2, x.ndim)]
        flat = (1, -1, *[1] * (x.ndim - 2))
        if now.mask is None and self.statistics:
            mean, var = self.running_mean, self.running_var
        else:
            mask = torch.ones(len(x)) if now.mask is None else now.mask
            mask = mask.reshape(-1, *[1] * (x.ndim - 1)).expand(-1, 1, *x.shape[2:])
            count = mask.sum().clamp(min=1)
            mean = (x * mask).sum(over) / count
            var = ((x - mean.reshape(flat)) ** 2 * mask).sum(over) / count
            if self.statistics:
                wide = var * count / (count - 1).clamp(min=1)
                old = {n: now.settled.get(self.prefix + n, getattr(self, n)) for n in self.statistics}
                if self.momentum is None:  # the plain mean of all batches so far
                    new = {"num_batches_tracked": old["num_batches_tracked"] + 1}
                    part = 1 / new["num_batches_tracked"]
                else:
                    new, part = {}, self.momentum
                new |= {n: (1 - part) * old[n] + part * v for n, v in (("running_mean", mean), ("running_var", wide))}
                now.settled |= {self.prefix + n: v for n, v in new.items()}
        x = (x - mean.reshape(flat)) * (var.reshape(flat) + self.eps).rsqrt()
        return x if self.weight is None else x * self.weight.reshape(flat) + self.bias.reshape(flat)


def _statistics(norm: Any) -> tuple[str, ...]:
    """What a batch norm keeps; the number of batches only where it decides something."""
    if norm.running_mean is None:
        return ()
    return ("running_mean", "running_var", *(["num_batches_tracked"] if norm.momentum is None else []))


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
    buffers, alone = _replace_norms(body, now)
    body.requires_grad_(False)
    known = [*(n for n, p in made.named_parameters() if p.requires_grad), *buffers]
    if not known:
        raise SettingError("The module has nothing to learn: no parameters, or all of them frozen (requires_grad).")
    _check_private(private, known, made)
    watched = _watch(body, features, now)
    each, name = _each(loss)

    def forward(params: Params, inputs: Tensor, mask: Tensor | None) -> tuple[Tensor, Pass]:
        now[0] = Pass(mask)
        if mask is not None:  # padding is made of real numbers, as a slope through 1/0 is not a number even times 0
            inputs = torch.where(mask.reshape(-1, *[1] * (inputs.ndim - 1)) > 0, inputs, inputs[:1])
        before, drawn = _marks(body), torch.random.get_rng_state()
        try:
            out = functional_call(body, params, (inputs,))
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            for why, said in ((DRAWS, "randomness"), (CHANGES, "in.?place")):  # as torch calls them in a transform
                if re.search(said, str(error)):
                    raise SettingError(why) from error
            shape = " x ".join(map(str, inputs.shape[1:])) or "one number"
            raise SettingError(
                f"The module cannot take these examples, of {shape} each: {str(error).splitlines()[0]} "
                "Change its first layer, or bring examples of the shape it expects."
            ) from error
        if not torch.equal(drawn, torch.random.get_rng_state()):
            raise SettingError(DRAWS)
        if _marks(body) != before:
            raise SettingError(CHANGES)
        if not isinstance(out, Tensor) or out.ndim not in (1, 2) or len(out) != len(inputs):
            got = f"shape {tuple(out.shape)}" if isinstance(out, Tensor) else type(out).__name__
            raise SettingError(f"The module gave {got} for {len(inputs)} examples; expected one row for each.")
        return out[:, 0] if out.ndim == 2 and out.shape[1] == 1 else out, now[0]

    def learn(params: Params, batch: Examples) -> tuple[Tensor, Params]:
        out, done = forward(params, batch.inputs, batch.mask)
        try:
            losses = each(out, batch.targets)
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            raise SettingError(
                f"The loss {name} cannot take outputs of shape {tuple(out.shape)} and targets of shape "
                f"{tuple(batch.targets.shape)}, which are floats: {str(error).splitlines()[0]} Change the last layer, "
                "or the loss."
            ) from error
        return (losses * batch.mask).sum() / batch.mask.sum().clamp(min=1), done.settled

    def penultimate(params: Params, inputs: Tensor) -> Tensor:
        found = forward(params, inputs, None)[1].features
        assert found is not None
        return found.flatten(1)

    def init(generator: torch.Generator) -> Params:
        new = made if isinstance(module, nn.Module) else _fresh(module, generator.initial_seed())
        state = new.state_dict()
        return {name: 1.0 * state[name].detach() for name in known}

    return Model(
        init, lambda params, batch: learn(params, batch)[0], lambda params, inputs: forward(params, inputs, None)[0],
        (), private, loss_name=name, features=penultimate if watched and not alone else None, buffers=buffers,
        learn=learn, alone=alone,
    )  # fmt: skip


def _marks(body: nn.Module) -> list[tuple[int, int]]:
    """What changes when a constant does."""
    layers = [layer for layer in body.modules() if not isinstance(layer, MaskedNorm)]
    return [(id(b), b._version) for layer in layers for b in layer._buffers.values() if b is not None]


def _check_private(private: tuple[str, ...], known: list[str], module: nn.Module) -> None:
    """Refuse a glob that matches nothing, or one of the names of a weight that has several."""
    names: dict[int, list[str]] = {}
    for name, p in module.named_parameters(remove_duplicate=False):
        names.setdefault(id(p), []).append(name)
    for glob in private:
        if not matches([*known, *(n for tied in names.values() for n in tied if tied[0] in known)], glob):
            raise SettingError(did_you_mean(glob, known, "parameter"))
    for tied in names.values():
        inside = [name for name in tied if any(matches([name], glob) for glob in private)]
        if inside and len(inside) < len(tied) and tied[0] in known:
            raise SettingError(
                f"{' and '.join(tied)} are one weight under several names, and only {' and '.join(inside)} would be "
                "private. Make all of them private, or none."
            )


def _fresh(make: Callable[[], nn.Module], seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = make()
    if not isinstance(made, nn.Module):
        raise SettingError(f"wrap got a function that makes {type(made).__name__}; expected one that makes a module.")
    return made


def _prepared(module: nn.Module) -> nn.Module:
    """A copy to call, after a look at what could not work."""
    if any(nn.parameter.is_lazy(p) for p in (*module.parameters(), *module.buffers())):
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


def _replace_norms(body: nn.Module, now: list[Pass]) -> tuple[tuple[str, ...], bool]:
    """Put MaskedNorm where batch norm stands; (the names of their statistics, whether some norm keeps none)."""
    made: dict[int, MaskedNorm] = {}
    for name, layer in list(body.named_modules(remove_duplicate=False)):
        if not isinstance(layer, nn.modules.batchnorm._BatchNorm):
            continue
        if not name:
            raise SettingError("The module is a batch norm and nothing else. Put it into an nn.Sequential.")
        home, _, own = name.rpartition(".")
        norm = made.setdefault(id(layer), MaskedNorm(layer, name, now))  # under its first name, where it has several
        setattr(body.get_submodule(home), own, norm)
    buffers = tuple(norm.prefix + kind for norm in made.values() for kind in norm.statistics)
    return buffers, not all(norm.statistics for norm in made.values())


def _watch(body: nn.Module, features: str | None, now: list[Pass]) -> bool:
    """Note what goes into the layer whose input is the features; whether there is one."""
    layers = dict(body.named_modules())
    if features is None:
        features = next((n for n, layer in reversed(layers.items()) if isinstance(layer, nn.Linear)), None)
    elif features not in layers:
        raise SettingError(did_you_mean(features, [name for name in layers if name], "layer"))
    if features is not None:

        def note(_layer: nn.Module, args: tuple[Any, ...]) -> None:
            now[0].features = args[0]

        layers[features].register_forward_pre_hook(note)
    return features is not None


def _each(loss: str | Callable[[Tensor, Tensor], Tensor]) -> tuple[Loss, str]:
    """A loss by example [batch], and its name."""
    if isinstance(loss, str):
        if loss not in LOSSES:
            raise SettingError(did_you_mean(loss, LOSSES, "loss"))
        wide = loss == "cross_entropy"

        def named(out: Tensor, y: Tensor) -> Tensor:
            if (out.ndim == 2) != wide:  # or it would be spread over the others without a word
                raise ValueError(f"it takes {'a number for each class' if wide else 'one number'} of an example.")
            return LOSSES[loss](out, y)

        return named, loss
    told = getattr(loss, "func", loss)  # functools.partial
    classes = told in OF_CLASSES or isinstance(loss, (nn.CrossEntropyLoss, nn.NLLLoss))
    if classes and getattr(loss, "weight", None) is not None and getattr(loss, "reduction", "") == "mean":
        raise SettingError(
            "The loss weighs classes and divides by the weights of a batch; asked for one example at a time, the "
            'weights would cancel out. Give it reduction="sum".'
        )

    def one(out: Tensor, target: Tensor) -> Tensor:
        value = loss(out[None], target[None])
        if not isinstance(value, Tensor) or value.ndim:
            got = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise SettingError(f"The loss returned {got}; one number is expected. Take its mean: .mean().")
        return value

    return lambda out, y: vmap(one)(out, y.long() if classes else y), getattr(loss, "__name__", type(loss).__name__)
