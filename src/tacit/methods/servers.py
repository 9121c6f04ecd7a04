"""Server optimisers: the mean change is a pseudo-gradient (Reddi et al., Adaptive Federated Optimization, ICLR 2021).

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

from ..core import Params, Upload
from ..errors import SettingError, did_you_mean
from ..local import nest, unnest

B1, B2 = 0.9, 0.99
SECOND: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "adagrad": lambda v, square: v + square,
    "adam": lambda v, square: B2 * v + (1 - B2) * square,
    "yogi": lambda v, square: v - (1 - B2) * square * torch.sign(v - square),
}
NAMES = ("sgd", *SECOND)


def server_step(
    name: str, *, lr: float = 1.0, momentum: float = 0.0, tau: float = 1e-3
) -> Callable[[Params, Params, Upload], tuple[Params, Params]]:
    """A `server` function for any method that uploads changes."""
    if name not in NAMES:
        raise SettingError(did_you_mean(name, NAMES, "server optimiser"))
    b1 = momentum if name == "sgd" else 0.0 if name == "adagrad" else B1
    keep = 1.0 if name == "sgd" else 1 - b1

    def server(shared: Params, memory: Params, upload: Upload) -> tuple[Params, Params]:
        change = upload.mean()
        first = {n: b1 * v + keep * change[n] for n, v in (unnest("m", memory) or _zeros(change, 0.0)).items()}
        if name == "sgd":
            moved = {n: shared[n] + lr * first[n] for n in change}
            return shared | moved, nest("m", first) if momentum else {}
        second = unnest("v", memory) or _zeros(change, tau**2)
        second = {n: SECOND[name](v, change[n] ** 2) for n, v in second.items()}
        moved = {n: shared[n] + lr * first[n] / (second[n].sqrt() + tau) for n in change}
        return shared | moved, nest("m", first) | nest("v", second)

    return server


def _zeros(like: Params, value: float) -> Params:
    return {name: torch.full_like(tensor, value) for name, tensor in like.items()}
