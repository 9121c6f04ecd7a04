"""Classifiers: softmax regression, a small convolutional network with batch norm, and LG-Mix's network for digits."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedtaste.core import Examples, Model, Params
from fedtaste.errors import SettingError
from fedtaste.models.losses import Score, largest_eigenvalue, masked_mean
from fedtaste.models.torch_module import wrap
from fedtaste.signature import Count

Shape = tuple[int, ...]


def classifier(
    shape: Shape, classes: int, *, model: Literal["logistic", "cnn", "digits"] = "logistic", width: Count = 16
) -> Model:
    """The model of a classification, by its name; `width` is the number of channels of the small network."""
    if model == "logistic":
        return logistic(torch.Size(shape).numel(), classes)
    if len(shape) != 3:
        raise SettingError(
            f"model={model} needs images, and these examples have the shape {shape}. Use model=logistic."
        )
    return cnn(shape, classes, width=width) if model == "cnn" else digit_network(shape, classes)


def logistic(features: int, classes: int = 2, *, bias: bool = False) -> Model:
    """Softmax regression: one row of weights per class. It starts from zero, so that the seed does not matter."""

    def init(generator: torch.Generator) -> Params:
        return {"weight": torch.zeros(classes, features)} | ({"bias": torch.zeros(classes)} if bias else {})

    def score(params: Params, inputs: Tensor) -> Tensor:
        return inputs.flatten(1) @ params["weight"].T + (params["bias"] if bias else 0.0)

    def loss(params: Params, batch: Examples) -> Tensor:
        each = functional.cross_entropy(score(params, batch.inputs), batch.targets.long(), reduction="none")
        return masked_mean(each, batch.mask)

    def bound(batch: Examples) -> Tensor:
        """Holds for any number of classes (Böhning 1992)."""
        return (largest_eigenvalue(batch) + (1.0 if bias else 0.0)) / 2

    flat: Score = lambda params, inputs: inputs.flatten(1)
    return Model(init, loss, score, loss_name="cross_entropy", features=flat, bound=bound, kind="logistic")


def cnn(shape: Shape = (3, 8, 8), classes: int = 10, *, width: Count = 16) -> Model:
    """Two 3 x 3 convolutions with batch norm, each halving the image, and one layer between them and the head."""
    _check_size("cnn", shape)
    return wrap(lambda: _ConvNet(shape, classes, 3, (width, 2 * width), {"hidden": 4 * width}))


def digit_network(shape: Shape = (3, 28, 28), classes: int = 10) -> Model:
    """LG-Mix's network for digits: three 5 x 5 convolutions (64, 64, 128), layers of 2048 and 512, batch norm after
    each; 14 million parameters for 28 x 28 images."""
    _check_size("digits", shape)
    return wrap(lambda: _ConvNet(shape, classes, 5, (64, 64, 128), {"hidden1": 2048, "hidden2": 512}))


def _check_size(name: str, shape: Shape) -> None:
    if min(shape[1:]) < 4:
        size = f"{shape[1]} x {shape[2]}"
        raise SettingError(f"model={name} halves an image twice, and {size} is too small. Use model=logistic.")


class _ConvNet(nn.Sequential):
    """Convolutions and hidden layers, each followed by batch norm and ReLU; the first two convolutions halve the
    image."""

    def __init__(
        self, shape: Shape, classes: int, kernel: int, channels: tuple[int, ...], hidden: dict[str, int]
    ) -> None:
        super().__init__()
        inputs, high, wide = shape
        for number, outputs in enumerate(channels, 1):
            self.add_module(f"conv{number}", nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2))
            self.add_module(f"norm{number}", nn.BatchNorm2d(outputs))
            self.add_module(f"relu{number}", nn.ReLU())
            if number <= 2:
                self.add_module(f"pool{number}", nn.MaxPool2d(2))
            inputs = outputs
        self.add_module("flatten", nn.Flatten())
        inputs *= (high // 4) * (wide // 4)
        for number, (name, outputs) in enumerate(hidden.items(), len(channels) + 1):
            self.add_module(name, nn.Linear(inputs, outputs))
            self.add_module(f"norm{number}", nn.BatchNorm1d(outputs))
            self.add_module(f"relu{number}", nn.ReLU())
            inputs = outputs
        self.add_module("head", nn.Linear(inputs, classes))
