"""What stages draw, as functions of a key and a counter alone: the same on every backend, and after a crash.

A device's draws are hashes (splitmix64), since they run under vmap: good enough for rounding, and for noise in a
simulation of devices. The noise that a guarantee rests on is the server's, and comes from a ChaCha20 key stream: who
sees some of it learns nothing of the rest. Numbers are floating point, as everywhere in this field: a discrete Gaussian
would be needed to be exact to the last bit (Mironov 2012; docs/privacy.md).
"""

from __future__ import annotations

import hashlib
import math

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from torch import Tensor

A, B, C, D = (n - 2**64 if n >= 2**63 else n for n in (
    0x9E3779B97F4A7C15, 0x632BE59BD9B4E019, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB,
))  # fmt: skip


def _shift(x: Tensor, by: int) -> Tensor:
    """To the right, with zeros from the left."""
    return (x >> by) & ((1 << (64 - by)) - 1)


def mixed(key: Tensor, counter: Tensor) -> Tensor:
    """A well-mixed 64-bit number from two; data.sampling.mix for tensors."""
    x = key * A + counter + B
    x = (x ^ _shift(x, 30)) * C
    x = (x ^ _shift(x, 27)) * D
    return x ^ _shift(x, 31)


def uniform(key: Tensor, counter: Tensor) -> Tensor:
    """In [0, 1), one for every counter."""
    return _shift(mixed(key, counter), 11).double() * 2.0**-53


def gaussian(key: Tensor, like: Tensor) -> Tensor:
    """Standard normal numbers in the shape of `like` (Box and Muller), of a device."""
    at = 2 * torch.arange(like.numel()).reshape(like.shape)
    radius = torch.sqrt(-2 * torch.log1p(-uniform(key, at)))
    return (radius * torch.cos(2 * math.pi * uniform(key, at + 1))).to(like.dtype)


def secret_gaussian(key: int, name: str, shape: tuple[int, ...]) -> Tensor:
    """Standard normal numbers of the server, float32, from a key stream of their own for every name."""
    size = math.prod(shape)
    secret = hashlib.sha256(b"tacit noise" + (key % 2**64).to_bytes(8, "big") + name.encode()).digest()
    stream = Cipher(algorithms.ChaCha20(secret, bytes(16)), mode=None).encryptor().update(bytes(16 * size))
    first, second = (np.frombuffer(stream, np.uint64).reshape(2, size) >> np.uint64(11)) * 2.0**-53
    normal = np.sqrt(-2 * np.log1p(-first)) * np.cos(2 * np.pi * second)
    return torch.from_numpy(normal.astype(np.float32).reshape(shape))
