"""The compiled descent of a factorisation equals the plain torch one, person by person."""

from __future__ import annotations

import pytest
import torch
from torch.func import vmap

from fedtaste.core import Examples
from fedtaste.methods.descent import Proximal, batch_gradient, descend, descend_in_turn
from fedtaste.models.additive import scorer
from fedtaste.models.factorization import factorization

MODELS = {"bce": factorization(7, k=5), "squared": factorization(7, k=5, loss="squared"), "scorer": scorer(7, k=5)}
PEOPLE = 4


def world(model):
    """(stacked parameters, stacked examples of 3 batches): somebody has a batch of padding, somebody has nothing."""
    draw = torch.Generator().manual_seed(1)
    single = model.init(draw)
    params = {name: torch.randn(PEOPLE, *value.shape, generator=draw) for name, value in single.items()}
    inputs = torch.randint(0, 7, (PEOPLE, 3, 6), generator=draw)
    targets = torch.randint(0, 2, (PEOPLE, 3, 6), generator=draw).float()
    mask = (torch.rand(PEOPLE, 3, 6, generator=draw) < 0.7).float()
    mask[1, 2], mask[3] = 0, 0
    return params, Examples(inputs, targets, mask)


def one(values, person):
    return {name: value[person] for name, value in values.items()}


@pytest.mark.parametrize("only", [("item", "user"), ("user",), ("item",)], ids=" ".join)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("lam", [0.0, 0.3])
def test_descent_of_many_people_equals_that_of_each(name, only, lam):
    model = MODELS[name]
    params, examples = world(model)
    centre = torch.ones(7, 5)

    def client(params, examples, lr):
        penalty = Proximal(torch.tensor(lam), {"item": centre}) if lam else None
        return descend(model, params, examples, lr, only, 2, penalty)

    rates = torch.tensor([0.1, 0.02, 0.05, 0.03])  # small, so that steps contract and do not amplify rounding
    together = vmap(client)(params, examples, rates)
    for person in range(PEOPLE):
        alone = client(one(params, person), Examples(*(x[person] for x in examples)), rates[person])
        for key, value in alone.items():
            torch.testing.assert_close(together[key][person], value, rtol=1e-5, atol=1e-6)
            assert key in only or torch.equal(value, params[key][person])
    assert torch.equal(together["user"][3], params["user"][3]), "padding changes nothing"


def test_descent_in_turn_equals_that_of_each():
    model = MODELS["scorer"]
    params, examples = world(model)

    def client(params, examples):
        return descend_in_turn(model, params, examples, (0.1, ("user", "bias")), (0.7, ("item",)), 2)

    together = vmap(client)(params, examples)
    for person in range(PEOPLE):
        alone = client(one(params, person), Examples(*(x[person] for x in examples)))
        for key, value in alone.items():
            torch.testing.assert_close(together[key][person], value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_the_gradient_of_many_people_equals_that_of_each(name):
    model = MODELS[name]
    params, examples = world(model)
    batch = Examples(*(array[:, 0] for array in examples))
    together = vmap(lambda p, e: batch_gradient(model, p, e, ("item", "user"))[0])(params, batch)
    for person in range(PEOPLE):
        alone = batch_gradient(model, one(params, person), Examples(*(x[person] for x in batch)), ("item", "user"))[0]
        assert alone.keys() == together.keys() == {"item", "user"}
        for key, value in alone.items():
            torch.testing.assert_close(together[key][person], value, rtol=1e-5, atol=1e-6)


def test_one_step_by_hand():
    model = factorization(2, k=1, loss="squared")
    params = {"item": torch.tensor([[[2.0], [5.0]]]), "user": torch.tensor([[3.0]])}
    examples = Examples(torch.zeros(1, 1, 1, dtype=torch.long), torch.ones(1, 1, 1), torch.ones(1, 1, 1))
    after = vmap(lambda p, e: descend(model, p, e, 0.1, ("item", "user")))(params, examples)
    # the error is 2 (2 x 3 - 1) = 10: both factors move from where they were
    torch.testing.assert_close(after["item"], torch.tensor([[[-1.0], [5.0]]]))
    torch.testing.assert_close(after["user"], torch.tensor([[1.0]]))
