"""Server optimisers sgd, adagrad, adam and yogi, with the mean change as a pseudo-gradient.

Reddi et al., Adaptive Federated Optimization, ICLR 2021.

    sgd       x += lr m,  m = momentum m + change                     (lr 1, momentum 0: plain averaging)
    adagrad   v += change^2                                           x += lr change / (sqrt v + tau)
    adam      v = b2 v + (1 - b2) change^2, m = b1 m + (1-b1) change  x += lr m / (sqrt v + tau)
    yogi      v -= (1 - b2) change^2 sign(v - change^2)               the same step
Moments live in the server's memory and are never downloaded; as in the paper there is no bias correction.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fedtaste.core import Method, Params, ServerStep, Upload, step_by_mean
from fedtaste.errors import SettingError
from fedtaste.params import nest, unnest
from fedtaste.signature import NonNegative, Share, Values, check_bounds
from fedtaste.text import did_you_mean

B1, B2 = 0.9, 0.99
SECOND: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "adagrad": lambda v, square: v + square,
    "adam": lambda v, square: B2 * v + (1 - B2) * square,
    "yogi": lambda v, square: v - (1 - B2) * square * torch.sign(v - square),
}
NAMES = ("sgd", *SECOND)
SERVER = {"server": "name", "server_lr": "lr", "momentum": "momentum", "tau": "tau"}
"""Settings of a run that choose the server's optimiser, with the names of `server_step`'s parameters."""


def server_step(name: str, *, lr: NonNegative = 1.0, momentum: Share = 0.0, tau: NonNegative = 1e-3) -> ServerStep:
    """A `server` function for any method that uploads changes. `lr` is the server's learning rate (eta), `tau` its
    degree of adaptivity, both as in the paper; `momentum` is that of sgd.

    >>> moved, _ = server_step("sgd", lr=0.5)({"w": torch.zeros(1)}, {}, Upload({"w": torch.ones(1)}, torch.ones(())))
    >>> moved["w"].tolist()
    [0.5]
    """
    if name not in NAMES:
        raise SettingError(did_you_mean(name, NAMES, "server optimiser"))
    check_bounds(server_step, {"lr": lr, "momentum": momentum, "tau": tau})
    b1 = momentum if name == "sgd" else 0.0 if name == "adagrad" else B1
    keep = 1.0 if name == "sgd" else 1 - b1

    def server(shared: Params, memory: Params, upload: Upload) -> tuple[Params, Params]:
        change = upload.mean()
        first = {n: b1 * v + keep * change[n] for n, v in (unnest("m", memory) or _filled(change, 0.0)).items()}
        if name == "sgd":
            moved = {n: shared[n] + lr * first[n] for n in change}
            return shared | moved, nest("m", first) if momentum else {}
        second = unnest("v", memory) or _filled(change, tau**2)
        second = {n: SECOND[name](v, change[n] ** 2) for n, v in second.items()}
        moved = {n: shared[n] + lr * first[n] / (second[n].sqrt() + tau) for n in change}
        return shared | moved, nest("m", first) | nest("v", second)

    return server


def with_server(method: Method, name: str, settings: Values) -> Method:
    """The method with the server optimiser that these settings choose (`server`, `server_lr`, `momentum`, `tau`)."""
    choice = {SERVER[key]: value for key, value in settings.items() if key in SERVER}
    if not choice:
        return method
    if not takes_optimizer(method):
        keys = ", ".join(key for key in settings if key in SERVER)
        raise SettingError(
            f"{name} has no use for a server optimiser ({keys}): its server step is exact. Leave it out."
        )
    step = server_step(**{"name": "sgd", **choice})  # type: ignore[arg-type]
    return method.replace(server=method.server_with(step) if method.server_with else step)


def takes_optimizer(method: Method) -> bool:
    """Whether the method's server steps by a mean change, so that an optimiser can take its place."""
    return (method.server is step_by_mean or method.server_with is not None) and not method.pooled


def unread_settings(values: Values) -> dict[str, str]:
    """Settings that the chosen optimiser does not read, each with the reason."""
    if values.get("server", "sgd") == "sgd":
        return {"tau": "server=sgd does not divide by it"}
    return {"momentum": f"server={values['server']} has its own"}


def _filled(like: Params, value: float) -> Params:
    return {name: torch.full_like(tensor, value) for name, tensor in like.items()}
