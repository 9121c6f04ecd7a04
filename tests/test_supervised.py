"""Data of clients with features: generated data, digits, options in names, and errors about wrong arrays."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from fedtaste.data.describe import facts
from fedtaste.data.digits import digits, load_handwritten, shifted_digits
from fedtaste.data.generated import least_squares, logistic
from fedtaste.data.sources import SOURCES, load, read_options
from fedtaste.data.supervised import Supervised
from fedtaste.errors import DataError
from support.errors import raises_with

GENERATORS = {
    "logistic": logistic,
    "least-squares": least_squares,
    "digits": digits,
    "digits:dirichlet=0.3": lambda seed=0: digits(alpha=0.3, seed=seed),
    "shifted-digits": shifted_digits,
}


def arrays(data: Supervised) -> list[np.ndarray]:
    return [*data.features, *data.targets, *data.test_features, *data.test_targets]


def same(a: Supervised, b: Supervised) -> bool:
    return all(x.tobytes() == y.tobytes() for x, y in zip(arrays(a), arrays(b))) and a.clients == b.clients


refuses = partial(raises_with, DataError)


def rows(data: Supervised) -> list[bytes]:
    """The first channel of every image of every client."""
    return [x.tobytes() for images in (*data.features, *data.test_features) for x in images[:, 0]]


# Laws of all generated data


@pytest.mark.parametrize("name", GENERATORS)
def test_a_seed_determines_the_data(name):
    data = GENERATORS[name](seed=3)
    assert same(data, GENERATORS[name](seed=3)) and same(data, load(name, seed=3))
    assert not same(data, GENERATORS[name](seed=4))
    assert {array.dtype for array in arrays(data)} == {np.dtype(np.float32)}
    assert all(len(y) for y in (*data.targets, *data.test_targets)) and data.notes


@pytest.mark.parametrize("name", [name for name in GENERATORS if ":" not in name])
def test_the_sizes_of_a_source_are_those_of_its_data(name):
    data, source = load(name), SOURCES[name]
    examples = sum(len(y) for y in (*data.targets, *data.test_targets))
    assert (len(data.targets), data.width, examples) == (source.people, source.items, source.interactions)
    description = facts(data)
    assert (
        description["clients"] == source.people and description["examples"] + description["test_examples"] == examples
    )


# Logistic and least squares


def test_logistic_labels_are_the_argmax_of_each_clients_own_weights():
    data = logistic(clients=6, classes=4, features=7, examples=150, spread=2.0)
    assert data.task == "labels" and data.classes == 4 and data.truth.shape == (6, 4, 7)
    for weights, scale, *parts in zip(
        data.truth, data.scales, data.features, data.targets, data.test_features, data.test_targets
    ):
        np.testing.assert_allclose(parts[0].std(0), 1, rtol=1e-5)  # the scales are those of the training examples
        for x, y in (parts[:2], parts[2:]):
            assert len(x) == 150
            scores = (x.astype(float) * scale) @ weights.T
            sure = np.diff(np.sort(scores, 1)[:, -2:], axis=1)[:, 0] > 1e-4
            assert sure.mean() > 0.99 and (scores.argmax(1) == y)[sure].all()


def test_logistic_features_and_weights_have_the_spread_of_the_paper():
    data = logistic(clients=200, examples=50, spread=0.5)
    assert data.truth.std() == pytest.approx(0.5, rel=0.05)
    expected = np.arange(1, 11) ** -0.6
    np.testing.assert_allclose(np.mean(data.scales, 0), expected, rtol=0.05)
    means = np.array([(x * s).mean(0) for x, s in zip(data.features, data.scales)])
    assert means.std() == pytest.approx(1, rel=0.06)  # N(0, I), and a little from the finite sample
    other = logistic(clients=200, examples=50, spread=1.5)
    np.testing.assert_allclose(other.truth, 3 * data.truth, rtol=1e-5)
    assert same(data, other)  # the scale R changes the weights and no label


def test_logistic_notes_how_many_clients_have_one_class():
    data = logistic()
    single = sum(len(np.unique(y)) == 1 for y in data.targets)
    assert single and any(note.startswith(f"{single} client") for note in data.notes)


def test_least_squares_clients_are_at_distance_R_from_the_centre():
    data = least_squares(clients=400, spread=0.3)
    distance = np.linalg.norm(data.truth - data.truth.mean(0), axis=1)
    np.testing.assert_allclose(distance, 0.3, atol=0.05)  # the mean of 400 is within R / 20 of the centre
    assert np.ptp(least_squares(spread=0.0).truth, axis=0).max() == 0
    far = least_squares(clients=400, spread=3.0)
    assert far.features[7].tobytes() == data.features[7].tobytes()
    np.testing.assert_allclose(far.truth - far.truth.mean(0), 10 * (data.truth - data.truth.mean(0)), atol=1e-5)


def test_least_squares_has_the_noise_and_condition_asked_for():
    quiet, noisy = (least_squares(noise=noise, examples=200, condition=25.0) for noise in (0.0, 0.5))
    for weights, x, y in zip(quiet.truth, quiet.test_features, quiet.test_targets):
        np.testing.assert_allclose(x @ weights, y, atol=1e-5)
    residuals = np.concatenate([y - x @ w for w, x, y in zip(noisy.truth, noisy.features, noisy.targets)])
    assert residuals.std() == pytest.approx(0.5, rel=0.03)
    pooled = np.concatenate(quiet.features)
    np.testing.assert_allclose(pooled.var(0), np.geomspace(1, 1 / 25, 10), rtol=0.08)
    np.testing.assert_allclose(np.concatenate(least_squares(examples=200).features).var(0), 1, rtol=0.08)


@pytest.mark.parametrize(
    ("generate", "wrong"),
    [
        *((logistic, wrong) for wrong in (
            {"clients": 0}, {"features": 0}, {"examples": 1}, {"classes": 1}, {"spread": 0.0}, {"spread": np.nan},
            {"examples": 10**12},
        )),
        *((least_squares, wrong) for wrong in (
            {"clients": 0}, {"features": 0}, {"examples": 0}, {"noise": -1.0}, {"spread": -1.0}, {"spread": 1e300},
            {"condition": 0.5}, {"clients": 10**12},
        )),
    ],
)  # fmt: skip
def test_impossible_sizes_are_refused(generate, wrong):
    with refuses(f"{generate.__name__}(clients", "cannot be made", "at least 1 client"):
        generate(**wrong)


# Digits


@pytest.mark.parametrize("alpha", [None, 0.3])
def test_clients_are_tested_on_their_own_classes_in_the_same_shares(alpha):
    data = digits(alpha=alpha, seed=2)
    for y, ty in zip(data.targets, data.test_targets):
        counts, tests = (np.bincount(part.astype(int), minlength=10) for part in (y, ty))
        assert ((tests > 0) == (counts > 1))[counts > 1].all() and not tests[counts == 0].any()
        assert (np.abs(tests - (counts + tests) / 5) <= 1).all()
    assert sorted(rows(data)) == sorted(image.tobytes() for image in load_handwritten()[0])  # every image once


@pytest.mark.parametrize("skew", [1, 2, 5, 10])
def test_skew_is_the_number_of_classes_of_every_client(skew):
    data = digits(clients=10, skew=skew)
    assert data.shape == (1, 8, 8) and data.width == 64 and data.classes == 10
    assert all(len(np.unique(y)) == len(np.unique(ty)) == skew for y, ty in zip(data.targets, data.test_targets))


def test_shifted_digits_are_five_domains_of_different_digits():
    data = shifted_digits()
    assert data.clients == ("plain", "inverted", "noisy", "coloured", "rotated") and data.shape == (3, 8, 8)
    assert [len(y) for y in data.targets] == [96] * 5 and [len(y) for y in data.test_targets] == [264] * 2 + [263] * 3
    assert all(x.min() >= 0 and x.max() <= 1 for x in (*data.features, *data.test_features))
    known = {image.tobytes(): (place, label) for place, (image, label) in enumerate(zip(*load_handwritten()))}
    plain, inverted, _, coloured, rotated = (np.concatenate(x) for x in zip(data.features, data.test_features))
    labels = [np.concatenate(y) for y in zip(data.targets, data.test_targets)]
    colour = coloured.min((2, 3), keepdims=True)  # every digit has a background pixel, which shows the colour
    restored = {
        0: plain[:, 0],
        1: 1 - inverted[:, 0],
        3: np.round(16 * ((coloured - colour) / (1 - colour))[:, 0]) / 16,
        4: np.rot90(rotated[:, 0], -1, axes=(1, 2)),
    }
    places = []
    for domain, images in restored.items():
        originals = [known[np.ascontiguousarray(image, np.float32).tobytes()] for image in images]
        assert [label for _, label in originals] == labels[domain].tolist()
        places += [place for place, _ in originals]
    assert len(places) == len(set(places)) == 1797 - len(labels[2])  # the noisy domain has the other images
    remaining = [label for _, (place, label) in known.items() if place not in set(places)]
    assert sorted(remaining) == sorted(labels[2].tolist())


@pytest.mark.parametrize("examples", [0, 359])
def test_shifted_digits_need_examples_for_training_and_test(examples):
    with refuses("shifted-digits with", "Expected from 1 to 358"):
        shifted_digits(examples=examples)


def test_skew_and_dirichlet_exclude_each_other():
    with refuses("skew", "or dirichlet", "not both"):
        load("digits:skew=2,dirichlet=0.3")


# Arrays of the user


def user_data(**changes) -> Supervised:
    x, y = np.zeros((4, 3), np.float32), np.array([0, 1, 1, 0], np.float32)
    arrays = {"features": (x, x), "targets": (y, y), "test_features": (x, x), "test_targets": (y, y)}
    return Supervised(**{"name": "mine", "task": "labels", "classes": 2, **arrays, **changes})


X, Y = np.zeros((4, 3)), np.array([0, 1, 1, 0])
INFINITE = np.array([np.inf, 0, 0, 0])
WITH_NAN = np.where(np.arange(12).reshape(4, 3) == 7, np.nan, 0)


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"task": "label"}, ['task "label"', "regression, labels"]),
        ({"targets": (Y,)}, ["features of 2 clients", "targets of 1", "empty arrays"]),
        ({"clients": ("a",)}, ["features of 2 clients", "clients of 1"]),
        ({"scales": (np.ones(3),)}, ["features of 2 clients", "scales of 1"]),
        ({"features": (X, np.zeros((4, 5)))}, ["client 1 has examples of 5, client 0 of 3", "resize or cut"]),
        ({"features": (X, X[:3])}, ["client 1 has 3 examples and targets of 4", "same rows"]),
        ({"test_targets": (Y, Y[:, None])}, ["client 1 has 4 test examples and test targets of 4 x 1"]),
        ({"features": (X, WITH_NAN)}, ["client 1, example 2: a feature is not a finite", "remove"]),
        ({"features": (X, X + 1e300)}, ["client 1, example 0: a feature is not a finite"]),
        ({"test_features": (WITH_NAN, X)}, ["client 0, test example 2: a feature is not a finite"]),
        ({"task": "regression", "targets": (Y, INFINITE)}, ["client 1, example 0: a target is not a finite"]),
        ({"targets": (Y, Y + 1)}, ["client 1, example 1: 2 is not a label", "from 0 to 1"]),
        ({"targets": (Y - 1, Y)}, ["client 0, example 0: -1 is not a label"]),
        ({"test_targets": (Y, Y / 2)}, ["client 1, test example 1: 0.5 is not a label"]),
        ({"classes": 0}, ["labels of 0 classes", "at least 2"]),
        ({"features": (X[:0],) * 2, "targets": (Y[:0],) * 2}, ["no training examples at any client"]),
        ({"features": (), "targets": (), "test_features": (), "test_targets": ()}, ["no training examples"]),
        ({"features": (np.array([["a"] * 3] * 4), X)}, ["arrays of numbers"]),
        ({"truth": np.zeros((3, 3))}, ["truth of 3 x 3", "one of 3 for all", "2 clients"]),
    ],
)
def test_inconsistent_arrays_are_refused(changes, parts):
    with refuses(*parts):
        user_data(**changes)


def test_images_of_two_sizes_are_refused_with_the_names_of_clients():
    shapes = [(2, 1, 28, 28), (2, 1, 28, 28), (2, 1, 28, 28), (2, 1, 16, 16)]
    images, labels = tuple(np.zeros(shape) for shape in shapes), (np.array([0, 1]),) * 4
    names = ("mnist", "svhn", "synth", "usps")
    with refuses('client 3 ("usps")', "1 x 16 x 16", 'client 0 ("mnist")', "1 x 28 x 28"):
        Supervised("five", "labels", images, labels, images, labels, clients=names, classes=2)
    grey = tuple(np.zeros((2, 28, 28)) for _ in names)
    with refuses("five has examples of 28 x 28", "one channel"):
        Supervised("five", "labels", grey, labels, grey, labels, clients=names, classes=2)


def test_clients_without_examples_are_allowed_and_noted_once():
    data = user_data(features=(X, X[:0]), targets=(Y, Y[:0]), clients=("here", "away"))
    assert data.notes == ("1 client has no examples and cannot take part in training: away.",)
    assert replace(data, name="copy").notes == data.notes and data.features[1].shape == (0, 3)
    data = user_data(test_features=(X[:0],) * 2, test_targets=(Y[:0],) * 2)
    assert data.notes == ("2 clients have no test examples and cannot be evaluated: 0, 1.",)


# Options in names


def test_options_are_passed_to_the_generators():
    assert same(load("logistic:R=0.1,clients=4,examples=30", seed=2), logistic(4, 30, spread=0.1, seed=2))
    assert same(load("least-squares:R=0.3,condition=56"), least_squares(spread=0.3, condition=56.0))
    assert same(load("Digits:skew=3, clients=7"), digits(clients=7, skew=3))
    assert same(load("shifted-digits:examples=40"), shifted_digits(examples=40))


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("logistic:r=1", ['"r" is not a logistic option', 'Did you mean "R"', "clients, examples"]),
        ("logistic:client=3", ['Did you mean "clients"']),
        ("logistic:3", ['"3" in "logistic:3" is not an option', "NAME=VALUE"]),
        ("logistic:R=0.1,", ['"" in "logistic:R=0.1,"']),
        ("logistic:R=", ['"" is not a value of R', "a number", "logistic:R=0.3"]),
        ("logistic:R=inf", ['"inf" is not a value of R']),
        ("logistic:clients=2.5", ['"2.5" is not a value of clients', "a whole number"]),
        ("logistic:clients=1_0", ['"1_0" is not a value']),
        ("logistic:clients=" + "9" * 5000, ["is not a value of clients"]),
        ("logistic:R=1,R=2", ["gives R twice"]),
        ("logistic:clients=0", ["clients=0", "at least 1 client"]),
        ("logistc:R=0.1", ['"logistc" is not a data set', 'Did you mean "logistic"']),
        ("digits:skew=0", ["0 classes each", "from 1 to 10"]),
        ("digits:dirichlet=0", ["alpha 0 "]),
        ("domains", ["names no folder", "domains:PATH"]),
        ("domains:size=16", ["names no folder"]),
        ("domains:no/such/folder", ["no/such/folder cannot be read", "folder of domains"]),
        ("domains:some/where,sise=3", ['"sise" is not a domains option', 'Did you mean "size"']),
        ("domains:some/where,optdigits=yes", ['"yes" is not', "true or false", "domains:some/where,optdigits=true"]),
    ],
)
def test_wrong_options_are_refused_with_a_suggestion(name, parts):
    with refuses(*parts):
        load(name)


def test_options_may_be_left_out():
    assert read_options("digits", "", digits) == {}


def test_facts_of_labels_count_examples_of_each_class():
    description = facts(load("digits"))
    assert description["shape"] == "1 x 8 x 8" and description["features"] == 64 and description["classes"] == 10
    table = np.array(list(description["examples_of_each_class"].values()))
    assert table.shape == (10, 10) and table.sum() == description["examples"] and ((table > 0).sum(1) == 2).all()
    assert "2 of the 10 digits" in description["notes"]
    assert "examples_of_each_class" not in facts(load("digits:clients=30,skew=2"))
