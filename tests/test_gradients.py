"""methods/gradients.py gives the bits of torch.func, under vmap and nested, and training does not import a compiler."""

from __future__ import annotations

import subprocess
import sys

import torch
from torch.func import grad_and_value, vmap

from fedtaste.methods.gradients import gradient_and_extra, gradient_and_value

PARAMS = {name: torch.randn(5, 4, generator=torch.Generator().manual_seed(n)) for n, name in enumerate("abc")}


def cost(params):
    """A function of two of the three parameters."""
    return (params["a"] ** 3).sum() * params["b"].sin().sum()


def slope(gradient):
    """A function of the gradient."""
    return sum((value * value.cos()).sum() for value in gradient.values())


def assert_same(ours, theirs):
    (gradient, value), (expected_gradient, expected_value) = ours, theirs
    assert torch.equal(value, expected_value) and gradient.keys() == expected_gradient.keys()
    assert all(torch.equal(gradient[name], expected_gradient[name]) for name in gradient)
    assert not value.requires_grad and not any(each.requires_grad for each in gradient.values())


def test_gradients_have_the_bits_of_torch_func():
    assert_same(gradient_and_value(cost, PARAMS), grad_and_value(cost)(PARAMS))
    assert_same(vmap(lambda at: gradient_and_value(cost, at))(PARAMS), vmap(grad_and_value(cost))(PARAMS))


def test_gradients_of_gradients_have_the_bits_of_torch_func():
    ours = vmap(lambda at: gradient_and_value(lambda inner: slope(gradient_and_value(cost, inner)[0]), at))
    theirs = vmap(grad_and_value(lambda inner: slope(grad_and_value(cost)(inner)[0])))
    assert_same(ours(PARAMS), theirs(PARAMS))


def test_the_second_result_is_returned_and_what_is_not_used_has_gradient_zero():
    gradient, value, extra = gradient_and_extra(lambda at: (torch.ones(()), {"twice": 2 * at["a"]}), PARAMS)
    assert value == 1 and torch.equal(extra["twice"], 2 * PARAMS["a"]) and not extra["twice"].requires_grad
    assert all(bool((each == 0).all()) for each in gradient.values())


def test_training_imports_no_compiler():
    code = (
        "import sys; from support.states import trained; trained('fedavg', {}, 'labels', rounds=1, backend='vmap'); "
        "assert 'torch._dynamo' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd="tests")
