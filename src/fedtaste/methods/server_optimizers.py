"""Server optimisers sgd, adagrad, adam, adam-unbiased and yogi, with the mean change as a pseudo-gradient.

Reddi et al., Adaptive Federated Optimization, ICLR 2021.

    sgd       x += lr m,  m = momentum m + change                     (lr 1, momentum 0: plain averaging)
    adagrad   v += change^2                                           x += lr change / (sqrt v + tau)
    adam      v = b2 v + (1 - b2) change^2, m = b1 m + (1-b1) change  x += lr m / (sqrt v + tau)
    yogi      v -= (1 - b2) change^2 sign(v - change^2)               the same step
    adam-unbiased   as adam from v = 0 with b2 = .98, and m and v divided by 1 - b1^t and 1 - b2^t (Kingma and Ba 2015)
Moments live in the server's memory and are never downloaded; as in the paper the first four have no bias correction.
Every optimiser may have a schedule: lr grows linearly over `warmup` rounds and falls along a cosine to `final` x lr in
the last round; and a mean change that is longer than `max_norm` is scaled down to it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from fedtaste.core import Method, Params, ServerStep, Upload, step_by_mean
from fedtaste.errors import SettingError
from fedtaste.params import nest, squared_norm, unnest
from fedtaste.signature import CountOrNone, NonNegative, Share, Values, check_bounds
from fedtaste.text import did_you_mean

B1, B2, UNBIASED_B2 = 0.9, 0.99, 0.98
SECOND: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "adagrad": lambda v, square: v + square,
    "adam": lambda v, square: B2 * v + (1 - B2) * square,
    "yogi": lambda v, square: v - (1 - B2) * square * torch.sign(v - square),
    "adam-unbiased": lambda v, square: UNBIASED_B2 * v + (1 - UNBIASED_B2) * square,
}
NAMES = ("sgd", *SECOND)
SERVER = {"server": "name", "server_lr": "lr", "momentum": "momentum", "tau": "tau"}
SERVER |= {"warmup": "warmup", "final_rate": "final", "max_norm": "max_norm"}
"""Settings of a run that choose the server's optimiser, with the names of `server_step`'s parameters."""


def server_step(
    name: str, *, lr: NonNegative = 1.0, momentum: Share = 0.0, tau: NonNegative = 1e-3, warmup: CountOrNone = 0,
    final: Share = 1.0, max_norm: NonNegative = 0.0, rounds: CountOrNone = 0,
) -> ServerStep:  # fmt: skip
    """A `server` function for any method that uploads changes. `lr` is the server's learning rate (eta), `tau` its
    degree of adaptivity, both as in the paper; `momentum` is that of sgd. `warmup` rounds and the share `final` of lr
    after all `rounds` (0: not known, no cosine) are its schedule; `max_norm` bounds the mean change (0: no bound).

    >>> moved, _ = server_step("sgd", lr=0.5)({"w": torch.zeros(1)}, {}, Upload({"w": torch.ones(1)}, torch.ones(())))
    >>> moved["w"].tolist()
    [0.5]
    """
    if name not in NAMES:
        raise SettingError(did_you_mean(name, NAMES, "server optimiser"))
    check_bounds(server_step, {"lr": lr, "momentum": momentum, "tau": tau, "final": final, "max_norm": max_norm})
    b1 = momentum if name == "sgd" else 0.0 if name == "adagrad" else B1
    keep, unbiased = 1.0 if name == "sgd" else 1 - b1, name == "adam-unbiased"
    counted = unbiased or warmup > 0 or (final < 1 and rounds > 0)  # whether the step needs its number

    def server(shared: Params, memory: Params, upload: Upload) -> tuple[Params, Params]:
        number = int(memory.get("steps", torch.zeros(()))) + 1
        rate, change = lr * scheduled_rate(number, warmup, final, rounds), _bounded(upload.mean(), max_norm)
        after = {"steps": torch.tensor(float(number))} if counted else {}
        first = {n: b1 * v + keep * change[n] for n, v in (unnest("m", memory) or _filled(change, 0.0)).items()}
        if name == "sgd":
            moved = {n: shared[n] + rate * first[n] for n in change}
            return shared | moved, after | (nest("m", first) if momentum else {})
        second = unnest("v", memory) or _filled(change, 0.0 if unbiased else tau**2)
        second = {n: SECOND[name](v, change[n] ** 2) for n, v in second.items()}
        grown = (1 - b1**number, 1 - UNBIASED_B2**number) if unbiased else (1.0, 1.0)  # of m and v, from zero
        scale = {n: (second[n] / grown[1]).sqrt_().add_(tau) for n in change}
        moved = {n: (rate / grown[0] * first[n]).div_(scale[n]).add_(shared[n]) for n in change}
        return shared | moved, after | nest("m", first) | nest("v", second)

    return server


def scheduled_rate(number: int, warmup: int, final: float, rounds: int) -> float:
    """The share of the learning rate in a step, counted from 1. The warm-up takes half of the rounds at most.

    >>> [round(scheduled_rate(number, 2, 0.0, 6), 2) for number in (1, 2, 4, 6)]
    [0.5, 1.0, 0.5, 0.0]
    """
    warmup = min(warmup, rounds // 2) if rounds else warmup
    if number <= warmup:
        return number / warmup
    if not rounds:
        return 1.0
    done = min(1.0, (number - warmup) / max(rounds - warmup, 1))
    return final + (1 - final) * (1 + math.cos(math.pi * done)) / 2


def _bounded(change: Params, max_norm: float) -> Params:
    """The change scaled down to this norm, where it is longer; 0: as it is."""
    if not max_norm:
        return change
    norm = sum(squared_norm(value) for value in change.values()) ** 0.5
    return {name: value * (max_norm / norm) for name, value in change.items()} if norm > max_norm else change


def with_server(method: Method, name: str, settings: Values, rounds: int = 0) -> Method:
    """The method with the server optimiser that these settings choose (`server`, `server_lr`, `momentum`, `tau`,
    `warmup`, `final_rate`, `max_norm`); `rounds` is how many the run will have, 0 where that is not known."""
    choice = {SERVER[key]: value for key, value in settings.items() if key in SERVER}
    if not choice:
        return method
    if not takes_optimizer(method):
        keys = ", ".join(key for key in settings if key in SERVER)
        raise SettingError(
            f"{name} has no use for a server optimiser ({keys}): its server step is exact. Leave it out."
        )
    if method.schedule:
        rounds = max((rounds or method.schedule.rounds) - method.schedule.counting, 0)
    step = server_step(**{"name": "sgd", "rounds": rounds, **choice})  # type: ignore[arg-type]
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
