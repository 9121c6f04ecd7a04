"""Torch modules as models: they train as torch trains them, and modules that cannot be trained are refused."""

from __future__ import annotations

import copy
import functools

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import vmap
from torch.nn import functional

from fedtaste.core import Download, Examples
from fedtaste.data.supervised import Supervised
from fedtaste.engine.run import begin, run
from fedtaste.errors import DataError, SettingError
from fedtaste.federation import of_arrays
from fedtaste.methods import fedavg, fedbn, lgmix
from fedtaste.methods.descent import batch_gradient, descend
from fedtaste.models import wrap
from fedtaste.tasks.base import Served
from fedtaste.tasks.clients import predict
from support.errors import raises_with
from support.states import assert_close

N, WIDE, CLASSES = 7, 6, 3


class Net(nn.Module):
    """A layer, a norm and a head. With BatchNorm2d the six features are an image of 2 x 3."""

    def __init__(self, norm=None):
        super().__init__()
        self.flat = not isinstance(norm, nn.BatchNorm2d)
        self.first = nn.Linear(WIDE, 4) if self.flat else nn.Conv2d(1, 4, 2, padding=1)
        self.norm = nn.Identity() if norm is None else norm
        self.head = nn.Linear(4 if self.flat else 48, CLASSES)

    def forward(self, x):
        x = x if self.flat else x.reshape(-1, 1, 2, 3)
        return self.head(torch.tanh(self.norm(self.first(x))).flatten(1))


class Twice(nn.Module):
    """A layer and a norm that are each used twice; the norm has two names."""

    def __init__(self):
        super().__init__()
        self.layer, self.norm, self.head = nn.Linear(WIDE, WIDE), nn.BatchNorm1d(WIDE), nn.Linear(WIDE, CLASSES)
        self.again = self.norm

    def forward(self, x):
        return self.head(self.again(self.layer(torch.tanh(self.norm(self.layer(x))))))


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self):
        super().__init__()
        self.there, self.back, self.head = nn.Linear(WIDE, WIDE), nn.Linear(WIDE, WIDE), nn.Linear(WIDE, CLASSES)
        self.back.weight = self.there.weight

    def forward(self, x):
        return self.head(self.back(torch.tanh(self.there(x))))


def norm1(**options):
    return lambda: Net(nn.BatchNorm1d(4, **options))


def norm2(**options):
    return lambda: Net(nn.BatchNorm2d(4, **options))


NETS = {
    "plain": Net,
    "1d": norm1(),
    "2d": norm2(),
    "1d momentum": norm1(momentum=0.3, eps=1e-2),
    "1d affine=False": norm1(affine=False),
    "2d affine=False": norm2(affine=False),
    "1d track=False": norm1(track_running_stats=False),
    "2d track=False": norm2(track_running_stats=False),
    "1d momentum=None": norm1(momentum=None),
    "2d momentum=None": norm2(momentum=None),
    "twice": Twice,
    "tied": Tied,
}
every_net = pytest.mark.parametrize("make", NETS.values(), ids=NETS)


def seeded(make, seed=0):
    torch.manual_seed(seed)
    return make()


def batch(n=N, padding=0, seed=0):
    rng = torch.Generator().manual_seed(seed)
    x, y = torch.randn(n, WIDE, generator=rng), torch.randint(0, CLASSES, (n,), generator=rng).float()
    gap = torch.zeros(padding)
    return Examples(torch.cat([x, torch.zeros(padding, WIDE)]), torch.cat([y, gap]), torch.cat([torch.ones(n), gap]))


def examples_of(*parts):
    return Examples(*(torch.stack(x) for x in zip(*parts)))


def start(model):
    return model.init(torch.Generator().manual_seed(0))


def torch_steps(module, parts, lr):
    """The module after a training loop of torch, in evaluation mode."""
    module = copy.deepcopy(module).train()
    optimiser = torch.optim.SGD(module.parameters(), lr)
    for part in parts:
        optimiser.zero_grad()
        functional.cross_entropy(module(part.inputs), part.targets.long()).backward()
        optimiser.step()
    return module.eval()


# Equal to torch


@every_net
def test_three_steps_give_the_weights_statistics_and_scores_of_torch(make):
    module, parts = seeded(make), [batch(seed=seed) for seed in range(3)]
    model = wrap(module)
    after = descend(model, start(model), examples_of(*parts), 0.5, start(model))
    native = torch_steps(module, parts, 0.5)
    expected = native.state_dict()
    assert_close(after, {name: expected[name].float() for name in after}, 1e-5)
    trained = {name for name, _ in native.named_parameters()}
    statistics = {n for n in expected if "running" in n and not n.startswith("again")}
    assert set(after) - {"norm.num_batches_tracked"} == trained | statistics
    assert torch.allclose(model.score(after, parts[0].inputs), native(parts[0].inputs), atol=1e-5)


@every_net
def test_the_loss_equals_that_of_torch_in_training(make):
    module = seeded(make)
    model = wrap(module)
    expected = functional.cross_entropy(copy.deepcopy(module).train()(batch().inputs), batch().targets.long())
    assert float(model.loss(start(model), batch())) == pytest.approx(expected.item(), abs=1e-6)


@every_net
def test_padding_changes_nothing(make):
    model = wrap(seeded(make))
    initial = start(model)
    plain, padded = (
        descend(model, start(model), examples_of(*(batch(padding=p, seed=s) for s in range(2))), 0.5, initial)
        for p in (0, 5)
    )
    assert_close(plain, padded, 1e-6)
    empty = batch()._replace(mask=torch.zeros(N))
    assert_close(descend(model, initial, examples_of(empty), 0.5, initial), initial, 0)


@every_net
def test_vmap_trains_the_same_state_as_the_loop(make):
    model = wrap(seeded(make))
    rng = np.random.default_rng(0)
    sizes = (5, 9, 20, 6)
    inputs = [rng.normal(size=(n, WIDE)).astype(np.float32) for n in sizes]
    federation = of_arrays(inputs, [rng.integers(0, CLASSES, n).astype(np.float32) for n in sizes], batch=8)
    loop, vmapped = (
        list(run(fedavg(model, lr=0.3, passes=2), model, federation, rounds=3, backend=backend))[-1].state.shared
        for backend in ("loop", "vmap")
    )
    assert_close(loop, vmapped, 1e-5)


def test_padding_is_harmless_where_zero_has_no_gradient():
    """The norm of a zero vector has no gradient."""

    class Directions(Net):
        def forward(self, x):
            return super().forward(x / x.norm(dim=1, keepdim=True))

    model = wrap(seeded(Directions))
    initial = start(model)
    plain = descend(model, initial, examples_of(batch()), 0.5, initial)
    padded = descend(model, initial, examples_of(batch(padding=4), batch(n=0, padding=N + 4)), 0.5, initial)
    assert_close(plain, padded, 1e-6)


def test_a_factory_is_initialised_by_the_seed_and_an_instance_keeps_its_weights():
    model, module = wrap(Net), seeded(Net)
    first, same, other = (model.init(torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert_close(first, same, 0)
    assert not torch.equal(first["head.weight"], other["head.weight"])
    before = torch.random.get_rng_state()
    model.init(torch.Generator().manual_seed(3))
    assert torch.equal(before, torch.random.get_rng_state())
    for seed in (1, 2):
        assert_close(wrap(module).init(torch.Generator().manual_seed(seed)), dict(module.state_dict()), 0)


def test_an_instance_is_never_changed():
    module = seeded(norm1())
    before = {name: value.clone() for name, value in module.state_dict().items()}
    model = wrap(module)
    first = start(model)
    for part in (model.init(torch.Generator()), first):
        for value in descend(model, part, examples_of(batch()), 0.5, part).values():
            value += 1
    first["head.weight"] += 1
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert module.training and all(p.requires_grad for p in module.parameters())
    assert not any(layer._forward_pre_hooks for layer in module.modules())


def test_frozen_weights_and_constants_are_not_parameters():
    module = seeded(norm1())
    module.first.weight.requires_grad_(False)
    module.register_buffer("constant", torch.ones(3))
    model = wrap(module)
    assert set(start(model)) == {
        "first.bias", "norm.weight", "norm.bias", "norm.running_mean", "norm.running_var", "head.weight", "head.bias",
    }  # fmt: skip
    assert model.buffers == ("norm.running_mean", "norm.running_var")
    expected = copy.deepcopy(module).eval()(batch().inputs)
    assert torch.allclose(model.score(start(model), batch().inputs), expected, atol=1e-6)


LOSSES = {
    "function": functional.cross_entropy,
    "module": nn.CrossEntropyLoss(),
    "partial": functools.partial(functional.cross_entropy, label_smoothing=0.0),
    "lambda": lambda out, y: functional.cross_entropy(out, y.long(), reduction="none").mean(),
    "nll": lambda out, y: functional.nll_loss(out.log_softmax(1), y.long()),
}


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_a_loss_of_the_user_equals_the_named_one(loss):
    module = seeded(norm1())
    named, own = wrap(module), wrap(module, loss)
    part = batch(padding=3)
    assert_close(*(batch_gradient(model, start(model), part, start(model))[0] for model in (named, own)), 1e-6)
    assert float(named.loss(start(named), part)) == pytest.approx(float(own.loss(start(own), part)), abs=1e-6)


@pytest.mark.parametrize(
    "name, loss", [("squared", nn.MSELoss()), ("bce", functional.binary_cross_entropy_with_logits)]
)
def test_losses_of_one_output_equal_those_of_torch(name, loss):
    module, part = seeded(lambda: nn.Linear(WIDE, 1)), batch(padding=2)
    part = part._replace(targets=(part.targets > 0).float())
    real = part.mask > 0
    expected = loss(module(part.inputs[real])[:, 0], part.targets[real]).item()
    for choice in (name, loss):
        model = wrap(module, choice)
        assert float(model.loss(start(model), part)) == pytest.approx(expected, abs=1e-6)


def test_features_are_the_inputs_of_the_last_linear_layer_or_of_the_named_one():
    module = seeded(norm1()).eval()
    x = batch().inputs
    hidden = torch.tanh(module.norm(module.first(x)))
    for name, expected in ((None, hidden), ("head", hidden), ("first", x), ("norm", module.first(x))):
        model = wrap(module, features=name)
        assert torch.allclose(model.features(start(model), x), expected, atol=1e-6)
    assert wrap(nn.Sequential(nn.Conv1d(WIDE, CLASSES, 1), nn.Flatten())).features is None


def test_without_running_statistics_people_are_scored_one_at_a_time():
    """The score of an example then depends on its batch, which must contain neither padding nor other people."""
    module = seeded(norm1(track_running_stats=False))
    model = wrap(module)
    assert model.alone and model.features is None and not wrap(norm1()).alone
    inputs = tuple(batch(n, seed=n).inputs.numpy() for n in (4, 6, 7))
    home = (inputs, tuple(np.zeros(len(x), np.float32) for x in inputs))
    method = fedavg(model)
    state = begin(method, model, of_arrays(*home))
    outputs = predict(Served(method, model, state), np.arange(3), home, inputs)
    for x, out in zip(inputs, outputs):
        assert np.allclose(out, module(torch.from_numpy(x)).detach().numpy(), atol=1e-5)
    with pytest.raises(SettingError, match="has no `features`"):
        lgmix(model)


# Private parameters


def clients(n=4, seed=0):
    rng = np.random.default_rng(seed)
    x = [rng.normal(size=(9 + i, WIDE)).astype(np.float32) for i in range(n)]
    return x, [rng.integers(0, CLASSES, len(part)).astype(np.float32) for part in x]


def test_private_parameters_are_not_uploaded_and_differ_between_clients():
    model = wrap(norm1(), private=("head.*", "norm.running_*"))
    method, federation = fedavg(model, lr=0.3), of_arrays(*clients())
    private = {"head.weight", "head.bias", "norm.running_mean", "norm.running_var"}
    state = begin(method, model, federation)
    own = {name: value[0] for name, value in state.private.gather(np.array([0])).items()}
    examples = Examples(*(x[0] for x in federation.examples(np.array([0]), 0, method.examples).pad()))
    upload, updated = method.client(Download(state.shared, torch.tensor(0.0)), own, examples)
    assert set(own) == set(updated) == private and not private & {*upload.total, *state.shared}
    for last in run(method, model, federation, rounds=2):
        heads = last.state.private.gather(np.arange(4))["head.weight"]
        assert set(last.state.shared) == set(start(model)) - private
        assert len({tuple(head.flatten().tolist()) for head in heads}) == 4


def test_fedbn_keeps_all_parameters_of_norms_private():
    method = fedbn(wrap(norm2(momentum=None)))
    shared, own = method.init(start(wrap(norm2(momentum=None))))
    assert {name.split(".")[0] for name in shared} == {"first", "head"}
    assert {name.split(".")[1] for name in own} == {
        "weight", "bias", "running_mean", "running_var", "num_batches_tracked",
    }  # fmt: skip


def test_tied_weights_are_one_parameter_and_are_private_together_or_not_at_all():
    model = wrap(Tied)
    assert "there.weight" in start(model) and "back.weight" not in start(model)
    with pytest.raises(SettingError, match="there.weight and back.weight.*only back.weight"):
        wrap(Tied, private=("back.*",))
    shared, own = fedavg(wrap(Tied, private=("back.*", "there.*"))).init(start(model))
    assert set(own) == {"there.weight", "there.bias", "back.bias"} and set(shared) == {"head.weight", "head.bias"}


# Refusals


refuses = functools.partial(raises_with, SettingError)


class TwoInputs(nn.Linear):
    def forward(self, x, other):
        return super().forward(x + other)


class NamedInput(nn.Linear):
    def forward(self, *, x):
        return super().forward(x)


class DrawsAtRandom(nn.Linear):
    def forward(self, x):
        return functional.dropout(super().forward(x), 0.5, self.training)


class PairOfOutputs(nn.Linear):
    def forward(self, x):
        return super().forward(x), x


class ChangesBuffer(nn.Linear):
    def __init__(self, *size):
        super().__init__(*size)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        self.seen += len(x)
        return super().forward(x)


class ReplacesBuffer(ChangesBuffer):
    def forward(self, x):
        self.seen = self.seen + 1
        return nn.Linear.forward(self, x)


REFUSED_WHEN_WRAPPED = {
    "two inputs": (lambda: wrap(TwoInputs(6, 3)), ["takes (x, other)", "exactly one", "default"]),
    "named input": (lambda: wrap(NamedInput(6, 3)), ["takes (x)", "exactly one"]),
    "dropout": (lambda: wrap(nn.Sequential(nn.Linear(6, 3), nn.Dropout(0.1))), ["'1'", "Dropout", "p=0"]),
    "rrelu": (lambda: wrap(nn.Sequential(nn.Linear(6, 3), nn.RReLU())), ["RReLU", "at random"]),
    "lazy": (lambda: wrap(nn.LazyLinear(3)), ["without a size", "Call it once"]),
    "lazy norm": (lambda: wrap(nn.Sequential(nn.LazyBatchNorm1d(affine=False))), ["without a size"]),
    "a norm alone": (lambda: wrap(nn.BatchNorm1d(3)), ["nothing else", "Sequential"]),
    "nothing to learn": (lambda: wrap(nn.ReLU()), ["nothing to learn"]),
    "all frozen": (lambda: wrap(nn.Linear(6, 3).requires_grad_(False)), ["nothing to learn", "frozen"]),
    "private": (lambda: wrap(Net, private=("heed.weight",)), ["not a parameter", 'Did you mean "head.weight"']),
    "private glob": (lambda: wrap(Net, private=("tail.*",)), ["not a parameter", "head.bias"]),
    "features": (lambda: wrap(Net, features="haed"), ["not a layer", 'Did you mean "head"']),
    "loss": (lambda: wrap(Net, "cross_entrpy"), ["not a loss", 'Did you mean "cross_entropy"']),
    "weighted": (lambda: wrap(Net, nn.CrossEntropyLoss(torch.ones(3))), ["weighs classes", 'reduction="sum"']),
    "not a module": (lambda: wrap(lambda: 3), ["makes a module", "makes int"]),
}
REFUSED_WHEN_TRAINED = {
    "width": (nn.Linear(WIDE + 1, 3), "cross_entropy", ["cannot take these examples, of 6 each", "first layer"]),
    "pictures": (nn.Conv2d(1, 3, 1), "cross_entropy", ["cannot take these examples, of 6 each"]),
    "no rows": (nn.Sequential(nn.Linear(WIDE, 3), nn.Flatten(0)), "cross_entropy", ["one row for each", "got shape"]),
    "too many axes": (nn.Sequential(nn.Unflatten(1, (6, 1, 1)), nn.Conv2d(6, 3, 1)), "cross_entropy", ["one row"]),
    "a tuple": (PairOfOutputs(WIDE, 3), "cross_entropy", ["one row", "got tuple"]),
    "too few classes": (nn.Linear(WIDE, 2), "cross_entropy", ["cannot take", "out of bounds", "last layer"]),
    "one output": (nn.Linear(WIDE, 1), "cross_entropy", ["cross_entropy cannot take", "for each class"]),
    "many outputs": (nn.Linear(WIDE, N), "squared", ["squared cannot take", "one number of an example"]),
    "many logits": (nn.Linear(WIDE, N), "bce", ["bce cannot take", "one number"]),
    "loss by example": (
        nn.Linear(WIDE, 3), nn.CrossEntropyLoss(reduction="none"), ["one number, got shape (1,)", ".mean()"],
    ),
    "a loss of floats": (nn.Linear(WIDE, 3), lambda out, y: 3.0, ["one number, got float"]),
    "labels as floats": (
        nn.Linear(WIDE, 3), lambda out, y: functional.cross_entropy(out, y), ["cannot take outputs", "floats"],
    ),
    "a draw in the forward": (DrawsAtRandom(WIDE, 3), "cross_entropy", ["draws at random"]),
    "a buffer changed": (ChangesBuffer(WIDE, 3), "cross_entropy", ["changes a buffer"]),
    "a buffer replaced": (ReplacesBuffer(WIDE, 3), "cross_entropy", ["changes a buffer"]),
    "instance norm": (
        nn.Sequential(nn.Unflatten(1, (2, 3)), nn.InstanceNorm1d(2, track_running_stats=True), nn.Flatten(),
                      nn.Linear(WIDE, 3)), "cross_entropy", ["changes a buffer"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("make, parts", REFUSED_WHEN_WRAPPED.values(), ids=REFUSED_WHEN_WRAPPED)
def test_unsuitable_modules_are_refused_when_they_are_wrapped(make, parts):
    with refuses(*parts):
        make()


@pytest.mark.parametrize("backend", ["loop", "vmap"])
@pytest.mark.parametrize("module, loss, parts", REFUSED_WHEN_TRAINED.values(), ids=REFUSED_WHEN_TRAINED)
def test_modules_that_do_not_fit_the_data_are_refused_in_one_line(module, loss, parts, backend):
    model = wrap(module, loss)
    rng = np.random.default_rng(0)
    x, y = [rng.normal(size=(N, WIDE)).astype(np.float32)] * 2, [np.array([0, 1, 2, 2, 1, 0, 2], np.float32)] * 2
    with refuses(*parts) as error:
        list(run(fedavg(model), model, of_arrays(x, y), rounds=1, backend=backend))
    assert "\n" not in str(error.value)


def test_dropout_that_drops_nothing_is_allowed():
    model = wrap(nn.Sequential(nn.Linear(WIDE, 3), nn.Dropout(0)))
    assert model.score(start(model), batch().inputs).shape == (N, 3)


def test_clients_of_two_widths_are_refused():
    x, y = clients()
    x[2] = x[2][:, :4]
    with pytest.raises(DataError, match="client 2 has .4,., client 0 has .6,."):
        of_arrays(x, y)
    with pytest.raises(DataError, match="client 2 has examples of 4, client 0 of 6"):
        Supervised("mine", "labels", x, y, x, y, classes=CLASSES)


def test_clients_without_any_examples_are_refused():
    x, y = [np.zeros((0, WIDE), np.float32)] * 2, [np.zeros(0, np.float32)] * 2
    with pytest.raises(DataError, match="one example at least"):
        of_arrays(x, y)


def test_a_wrapped_loss_works_under_vmap():
    model = wrap(norm2())
    parts = examples_of(batch(seed=0), batch(seed=1, n=4, padding=3))
    together = vmap(model.loss, (None, 0))(start(model), parts)
    apart = [model.loss(start(model), Examples(*(x[i] for x in parts))) for i in range(2)]
    assert torch.allclose(together, torch.stack(apart), atol=1e-6)
