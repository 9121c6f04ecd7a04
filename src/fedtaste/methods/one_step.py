"""Clients that take one gradient step: a cohort is one batched backward pass.

A client that takes one step from the shared parameters uploads -lr x the gradient of its summed loss. A sum of such
uploads is the gradient of the sum of losses, so that no single upload has to be computed where no stage needs one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from fedtaste.core import Cohort, CohortExamples, Download, Examples, Kernel, Model, Params, People, Upload
from fedtaste.methods.descent import flat_examples
from fedtaste.params import select

CohortLoss = Callable[[Download, Params, Examples], tuple[Tensor, Tensor]]
"""(download, stacked private parameters, stacked examples): the losses, summed over a person's examples, and weights of
these people, [people] each."""
AT_ONCE = 32_768  # examples in a sub-batch, padding included


def one_step_kernel(
    loss: CohortLoss, lr: float, moves: Callable[[Params], Iterable[str]], at_once: int = AT_ONCE, longest: int = 0
) -> Kernel:
    """The kernel of a client that takes one step of rate `lr` on its mean loss and uploads weight x change. `moves`
    names the shared parameters that are descended; all private ones are. The loss takes at most `longest` of a person's
    examples (0: all), and sub-batches have about `at_once` of them."""

    def kernel(download: Download, cohort: Cohort) -> tuple[Upload, dict[str, int]]:
        moving = _leaves(select(download.params, moves(download.params)))
        total, weight, refused = {name: torch.zeros_like(value) for name, value in moving.items()}, torch.zeros(()), 0
        current = Download(download.params | moving, download.round)
        for places in by_length(cohort.examples, at_once, longest):
            own = _leaves(cohort.private.gather(cohort.people[places]))
            losses, weights = loss(current, own, cohort.examples.pad(places))
            finite = torch.isfinite(losses.detach())
            if not finite.all():  # again without them: the gradient of a sum with NaN is NaN
                refused, places = refused + int((~finite).sum()), places[finite.numpy()]
                if not len(places):
                    continue
                own = _leaves(cohort.private.gather(cohort.people[places]))
                losses, weights = loss(current, own, cohort.examples.pad(places))
            slopes = torch.autograd.grad(losses.sum(), [*moving.values(), *own.values()], allow_unused=True)
            for name, slope in zip(moving, slopes):
                if slope is not None:
                    total[name] -= lr * slope
            weight = weight + weights.sum()
            rates = lr / weights
            after = {
                name: value.detach() if slope is None else value.detach() - slope * _along(rates, slope)
                for (name, value), slope in zip(own.items(), slopes[len(moving) :])
            }
            cohort.private.put(cohort.people[places], after)
        return Upload(total, weight), {"non-finite": refused}

    return kernel


def _along(values: Tensor, like: Tensor) -> Tensor:
    """Values [people] shaped to multiply a stacked parameter."""
    return values.reshape(-1, *[1] * (like.ndim - 1))


def mean_losses(model: Model) -> CohortLoss:
    """The loss of a client that steps on the model's mean loss over all its examples."""

    def loss(download: Download, own: Params, examples: Examples) -> tuple[Tensor, Tensor]:
        def one(own: Params, examples: Examples) -> tuple[Tensor, Tensor]:
            batch = flat_examples(examples)
            return model.loss(download.params | own, batch) * batch.mask.sum(), batch.mask.sum()

        return vmap(one)(own, examples)

    return loss


def by_length(examples: CohortExamples, at_once: int, longest: int = 0) -> Iterator[People]:
    """Places of people in groups of similar length, with at most `at_once` padded examples each, where a person has at
    most `longest` (0: any number)."""
    lengths = np.minimum(examples.lengths, longest or np.inf)
    order = np.argsort(lengths, kind="stable")
    begin = 0
    while begin < len(order):
        end = begin + 1
        while end < len(order) and (end + 1 - begin) * lengths[order[end]] <= at_once:
            end += 1
        yield order[begin:end]
        begin = end


def _leaves(params: Params) -> Params:
    return {name: value.detach().requires_grad_() for name, value in params.items()}
