"""Classifiers: softmax regression, a small convolutional network with batch norm, and LG-Mix's network for digits."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedtaste.core import Examples, Model, Params
from fedtaste.errors import SettingError
from fedtaste.models.linear_bound import largest_eigenvalue
from fedtaste.models.losses import masked_mean
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

    return Model(
        init,
        loss,
        score,
        loss_name="cross_entropy",
        features=lambda params, inputs: inputs.flatten(1),
        bound=bound,
        kind="logistic",
    )


def cnn(shape: Shape = (3, 8, 8), classes: int = 10, *, width: Count = 16) -> Model:
    """Two 3 x 3 convolutions with batch norm, each halving the image, and one layer between them and the head."""
    channels, high, wide = shape
    flat = 2 * width * (high // 4) * (wide // 4)
    if not flat:
        raise SettingError(f"model=cnn halves an image twice, and {high} x {wide} is too small. Use model=logistic.")
    return wrap(lambda: _CNN(channels, flat, width, classes))


def digit_network(shape: Shape = (3, 28, 28), classes: int = 10) -> Model:
    """LG-Mix's network for digits: three 5 x 5 convolutions (64, 64, 128), layers of 2048 and 512, batch norm after
    each; 14 million parameters for 28 x 28 images."""
    channels, high, wide = shape
    flat = 128 * (high // 4) * (wide // 4)
    if not flat:
        raise SettingError(f"model=digits halves an image twice, and {high} x {wide} is too small. Use model=logistic.")
    return wrap(lambda: _DigitNetwork(channels, flat, classes))


class _CNN(nn.Module):
    def __init__(self, channels: int, flat: int, width: int, classes: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width)
        self.conv2, self.norm2 = nn.Conv2d(width, 2 * width, 3, padding=1), nn.BatchNorm2d(2 * width)
        self.hidden, self.norm3 = nn.Linear(flat, 4 * width), nn.BatchNorm1d(4 * width)
        self.head = nn.Linear(4 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.max_pool2d(torch.relu(self.norm1(self.conv1(x))), 2)
        x = functional.max_pool2d(torch.relu(self.norm2(self.conv2(x))), 2)
        out: Tensor = self.head(torch.relu(self.norm3(self.hidden(x.flatten(1)))))
        return out


class _DigitNetwork(nn.Module):
    def __init__(self, channels: int, flat: int, classes: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(channels, 64, 5, padding=2), nn.BatchNorm2d(64)
        self.conv2, self.norm2 = nn.Conv2d(64, 64, 5, padding=2), nn.BatchNorm2d(64)
        self.conv3, self.norm3 = nn.Conv2d(64, 128, 5, padding=2), nn.BatchNorm2d(128)
        self.hidden1, self.norm4 = nn.Linear(flat, 2048), nn.BatchNorm1d(2048)
        self.hidden2, self.norm5 = nn.Linear(2048, 512), nn.BatchNorm1d(512)
        self.head = nn.Linear(512, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.max_pool2d(torch.relu(self.norm1(self.conv1(x))), 2)
        x = functional.max_pool2d(torch.relu(self.norm2(self.conv2(x))), 2)
        x = torch.relu(self.norm3(self.conv3(x))).flatten(1)
        out: Tensor = self.head(torch.relu(self.norm5(self.hidden2(torch.relu(self.norm4(self.hidden1(x)))))))
        return out
