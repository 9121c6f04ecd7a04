"""wrap: turn a torch nn.Module into a Model, whose functions are pure functions of named parameters.

    wrap(module)                        its parameters, by their names, are the Params of one person
    wrap(make)                          a function that makes the module: every seed starts elsewhere

Two things in a module are not functions of parameters and inputs. Batch norm keeps statistics: here they become buffers
among the Params, are taken over real examples only (padding does not count), and follow the batches of training.
Drop-out draws at random, while a client must give the same answer every time: it is refused.
Parameters that the module itself has frozen, and its other buffers, are constants: nobody learns or sends them.
"""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from fnmatch import filter as matches

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional

from fedtaste.core import Examples, Model, Params
from fedtaste.errors import SettingError
from fedtaste.models.losses import masked_mean
from fedtaste.text import did_you_mean

Loss = Callable[[Tensor, Tensor], Tensor]
LOSSES: dict[str, Loss] = {  # by example: [batch]
    "cross_entropy": lambda out, y: functional.cross_entropy(out, y.long(), reduction="none"),
    "bce": lambda out, y: functional.binary_cross_entropy_with_logits(out, y, reduction="none"),
    "squared": lambda out, y: (out - y) ** 2,
}
OF_CLASSES = (functional.cross_entropy, functional.nll_loss)
BatchNorm = nn.modules.batchnorm._BatchNorm
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
    """Inputs and results of one forward pass beside the module's own."""

    mask: Tensor | None = None  # [batch] in training; None: use the stored statistics
    buffers: Params = field(default_factory=dict)  # statistics of batch norm after this batch
    features: Tensor | None = None  # inputs of the last layer


class MaskedNorm(nn.Module):
    """Batch norm as a pure function: statistics are over the real examples of a batch, and new ones are returned in the
    current Pass, not stored."""

    def __init__(self, norm: BatchNorm, name: str, current: list[Pass]) -> None:
        super().__init__()
        self.weight, self.bias, self.eps = norm.weight, norm.bias, norm.eps
        self.running_mean: Tensor
        self.running_var: Tensor
        self.momentum, self.prefix, self.current = norm.momentum, f"{name}.", current
        self.statistics: tuple[str, ...] = () if norm.running_mean is None else ("running_mean", "running_var")
        if self.statistics and norm.momentum is None:
            self.statistics += ("num_batches_tracked",)
        for statistic in self.statistics:
            self.register_buffer(statistic, 1.0 * getattr(norm, statistic))

    def forward(self, x: Tensor) -> Tensor:
        flat = (1, -1, *[1] * (x.ndim - 2))
        if self.current[0].mask is None and self.statistics:
            mean, var = self.running_mean, self.running_var
        else:
            mean, var = self._measure(x, flat)
        x = (x - mean.reshape(flat)) * (var.reshape(flat) + self.eps).rsqrt()
        return x if self.weight is None else x * self.weight.reshape(flat) + self.bias.reshape(flat)

    def _measure(self, x: Tensor, flat: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """Mean and variance over the real examples of this batch; notes the statistics that follow from them."""
        now, over = self.current[0], [0, *range(2, x.ndim)]
        mask = torch.ones(len(x)) if now.mask is None else now.mask
        mask = mask.reshape(-1, *[1] * (x.ndim - 1)).expand(-1, 1, *x.shape[2:])
        count = mask.sum().clamp(min=1)
        mean = (x * mask).sum(over) / count
        var = ((x - mean.reshape(flat)) ** 2 * mask).sum(over) / count
        if not self.statistics:
            return mean, var
        unbiased = var * count / (count - 1).clamp(min=1)
        old = {n: now.buffers.get(self.prefix + n, getattr(self, n)) for n in self.statistics}
        new: Params = {}
        share: float | Tensor | None = self.momentum
        if share is None:  # the plain mean of all batches so far
            new["num_batches_tracked"] = old["num_batches_tracked"] + 1
            share = 1 / new["num_batches_tracked"]
        new |= {n: (1 - share) * old[n] + share * v for n, v in (("running_mean", mean), ("running_var", unbiased))}
        now.buffers |= {self.prefix + n: v for n, v in new.items()}
        return mean, var


def wrap(
    module: nn.Module | Callable[[], nn.Module],
    loss: str | Callable[[Tensor, Tensor], Tensor] = "cross_entropy",
    *,
    private: tuple[str, ...] = (),
    features: str | None = None,
) -> Model:
    """A Model of a module, or of a function that makes one.

    `loss`: cross_entropy, bce, squared, or a function (outputs, targets) -> one number. It is called for every example
    by itself, so that padding can be left out. `private`: globs of parameters that are personal. `features`: the layer
    whose input LG-Mix measures; the last linear one when left out."""
    first = module if isinstance(module, nn.Module) else _make(module, 0)
    current, body = [Pass()], _checked_copy(first)
    buffers, alone = _replace_norms(body, current)
    body.requires_grad_(False)
    names = [*(n for n, p in first.named_parameters() if p.requires_grad), *buffers]
    _check_names(private, names, first)
    watched = _watch_layer(body, features, current)
    pure = PureModule(body, current, *_loss_by_example(loss))

    def init(generator: torch.Generator) -> Params:
        new = first if isinstance(module, nn.Module) else _make(module, generator.initial_seed())
        state = new.state_dict()
        return {name: 1.0 * state[name].detach() for name in names}

    return Model(
        init,
        loss=lambda params, batch: pure.learn(params, batch)[0],
        score=lambda params, inputs: pure.forward(params, inputs, None)[0],
        private=private,
        loss_name=pure.loss_name,
        features=pure.features if watched and not alone else None,
        buffers=buffers,
        learn=pure.learn,
        alone=alone,
        kind="module",
    )


@dataclass(frozen=True, eq=False)
class PureModule:
    """A module's forward pass and loss as functions of its parameters, with errors that name the cause."""

    body: nn.Module
    current: list[Pass]  # of one element: the pass that MaskedNorm and the watched layer write to
    each: Loss
    loss_name: str

    def forward(self, params: Params, inputs: Tensor, mask: Tensor | None) -> tuple[Tensor, Pass]:
        self.current[0] = Pass(mask)
        if mask is not None:  # padding is replaced by real numbers: a gradient through 1/0 is NaN even times 0
            inputs = torch.where(mask.reshape(-1, *[1] * (inputs.ndim - 1)) > 0, inputs, inputs[:1])
        before, generator = _buffer_versions(self.body), torch.random.get_rng_state()
        try:
            out = functional_call(self.body, params, (inputs,))
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            raise _forward_error(error, inputs) from error
        if not torch.equal(generator, torch.random.get_rng_state()):
            raise SettingError(DRAWS)
        if _buffer_versions(self.body) != before:
            raise SettingError(CHANGES)
        if not isinstance(out, Tensor) or out.ndim not in (1, 2) or len(out) != len(inputs):
            got = f"shape {tuple(out.shape)}" if isinstance(out, Tensor) else type(out).__name__
            raise SettingError(f"The module must give one row for each of {len(inputs)} examples, got {got}.")
        return out[:, 0] if out.ndim == 2 and out.shape[1] == 1 else out, self.current[0]

    def learn(self, params: Params, batch: Examples) -> tuple[Tensor, Params]:
        """(mean loss over the real examples, the buffers after this batch)."""
        out, after = self.forward(params, batch.inputs, batch.mask)
        try:
            losses = self.each(out, batch.targets)
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            raise SettingError(
                f"The loss {self.loss_name} cannot take outputs of shape {tuple(out.shape)} and targets of shape "
                f"{tuple(batch.targets.shape)}, which are floats: {str(error).splitlines()[0]} Change the last layer, "
                "or the loss."
            ) from error
        return masked_mean(losses, batch.mask), after.buffers

    def features(self, params: Params, inputs: Tensor) -> Tensor:
        """Inputs of the watched layer, [n, f]."""
        features = self.forward(params, inputs, None)[1].features
        assert features is not None
        return features.flatten(1)


def _forward_error(error: Exception, inputs: Tensor) -> SettingError:
    for why, words in ((DRAWS, "randomness"), (CHANGES, "in.?place")):  # as torch calls them in a transform
        if re.search(words, str(error)):
            return SettingError(why)
    shape = " x ".join(map(str, inputs.shape[1:])) or "one number"
    return SettingError(
        f"The module cannot take these examples, of {shape} each: {str(error).splitlines()[0]} "
        "Change its first layer, or bring examples of the shape it expects."
    )


def _buffer_versions(body: nn.Module) -> list[tuple[int, int]]:
    """Identity and version of every constant, which change when the forward pass writes to one."""
    layers = [layer for layer in body.modules() if not isinstance(layer, MaskedNorm)]
    return [(id(b), b._version) for layer in layers for b in layer._buffers.values() if b is not None]


def _check_names(private: tuple[str, ...], known: list[str], module: nn.Module) -> None:
    """Refuse a module without parameters, a glob that matches none, or only one of the names of a shared weight."""
    if not known:
        raise SettingError("The module has nothing to learn: no parameters, or all of them frozen (requires_grad).")
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


def _make(make: Callable[[], nn.Module], seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = make()
    if not isinstance(module, nn.Module):
        raise SettingError(f"wrap needs a function that makes a module, got one that makes {type(module).__name__}.")
    return module


def _checked_copy(module: nn.Module) -> nn.Module:
    """A copy to call; refuses modules that could not work."""
    if any(nn.parameter.is_lazy(p) for p in (*module.parameters(), *module.buffers())):
        raise SettingError("The module has layers without a size yet. Call it once on an example before wrapping it.")
    parameters = inspect.signature(module.forward).parameters.values()
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [p.name for p in parameters if p.default is p.empty and p.kind not in variadic]
    if len(needed) > 1 or all(p.kind is p.KEYWORD_ONLY for p in parameters):
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


def _replace_norms(body: nn.Module, current: list[Pass]) -> tuple[tuple[str, ...], bool]:
    """Put MaskedNorm in place of batch norm; (the names of the statistics, whether some norm keeps none)."""
    norms: dict[int, MaskedNorm] = {}
    for name, layer in list(body.named_modules(remove_duplicate=False)):
        if not isinstance(layer, BatchNorm):
            continue
        if not name:
            raise SettingError("The module is a batch norm and nothing else. Put it into an nn.Sequential.")
        parent, _, attribute = name.rpartition(".")
        norm = norms.setdefault(id(layer), MaskedNorm(layer, name, current))  # under its first name, if it has several
        setattr(body.get_submodule(parent), attribute, norm)
    buffers = tuple(norm.prefix + kind for norm in norms.values() for kind in norm.statistics)
    return buffers, not all(norm.statistics for norm in norms.values())


def _watch_layer(body: nn.Module, features: str | None, current: list[Pass]) -> bool:
    """Store the input of the layer `features` (the last linear one when None) in the pass; whether there is one."""
    layers = dict(body.named_modules())
    if features is None:
        features = next((n for n, layer in reversed(layers.items()) if isinstance(layer, nn.Linear)), None)
        if features is None:
            return False
    elif features not in layers:
        raise SettingError(did_you_mean(features, [name for name in layers if name], "layer"))
    layers[features].register_forward_pre_hook(lambda _, inputs: setattr(current[0], "features", inputs[0]))
    return True


def _loss_by_example(loss: str | Callable[[Tensor, Tensor], Tensor]) -> tuple[Loss, str]:
    """A loss by example [batch], and its name."""
    if isinstance(loss, str):
        return _named_loss(loss), loss
    function = getattr(loss, "func", loss)  # of functools.partial
    classes = function in OF_CLASSES or isinstance(loss, (nn.CrossEntropyLoss, nn.NLLLoss))
    if classes and getattr(loss, "weight", None) is not None and getattr(loss, "reduction", "") == "mean":
        raise SettingError(
            "The loss weighs classes and divides by the weights of a batch; computed for one example at a time, the "
            'weights would cancel out. Give it reduction="sum".'
        )

    def example_loss(out: Tensor, target: Tensor) -> Tensor:
        value = loss(out[None], target[None])
        if not isinstance(value, Tensor) or value.ndim:
            got = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise SettingError(f"The loss must return one number, got {got}. Take its mean: .mean().")
        return value

    return lambda out, y: vmap(example_loss)(out, y.long() if classes else y), getattr(
        loss, "__name__", type(loss).__name__
    )


def _named_loss(name: str) -> Loss:
    if name not in LOSSES:
        raise SettingError(did_you_mean(name, LOSSES, "loss"))
    wide = name == "cross_entropy"

    def loss(out: Tensor, y: Tensor) -> Tensor:
        if (out.ndim == 2) != wide:  # otherwise torch would broadcast silently
            raise ValueError(f"it takes {'a number for each class' if wide else 'one number'} of an example.")
        return LOSSES[name](out, y)

    return loss
