"""Cryptographic random numbers: ChaCha20 streams under keys that HMAC-SHA-256 derives for each party and purpose.

A run has one 32-byte key. Every party and purpose derives its own from it, as in `derive(key, "noise", round, name)`,
so the numbers of one stream reveal nothing about another. The key comes from the operating system (`fresh_key`)
wherever a privacy promise depends on it; `seeded_key` is for studies, which can be repeated and promise nothing.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from numpy.typing import NDArray

KEY_BYTES = 32


def fresh_key() -> bytes:
    """A new key from the operating system's generator."""
    return secrets.token_bytes(KEY_BYTES)


def seeded_key(seed: int, *purpose: str | int) -> bytes:
    """A key for repeatable studies: whoever knows the seed can compute it."""
    # The label holds the former name of the project: another one would change every repeatable run.
    return derive(hashlib.sha256(b"tacit repeatable").digest(), seed, *purpose)


def derive(key: bytes, *purpose: str | int) -> bytes:
    """The key of one party and purpose. Different purposes give independent keys; no key leads back to its parent.

    >>> derive(bytes(32), "noise", 1) == derive(bytes(32), "noise", "1")
    False
    """
    text = b"".join(_tagged(part) for part in purpose)
    return hmac.new(key, text, hashlib.sha256).digest()


def _tagged(part: str | int) -> bytes:
    kind, body = (b"s", part.encode()) if isinstance(part, str) else (b"i", str(int(part)).encode())
    return kind + len(body).to_bytes(4, "big") + body


def stream(key: bytes, size: int) -> bytes:
    """The first `size` bytes of the ChaCha20 key stream."""
    return Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor().update(bytes(size))


def words(key: bytes, count: int) -> NDArray[np.uint64]:
    """Independent uniform 64-bit numbers."""
    return np.frombuffer(stream(key, 8 * count), "<u8")


def coins(key: bytes, people: NDArray[np.int64]) -> NDArray[np.float64]:
    """A number in [0, 1) for each of these people, which depends on the key and the person alone."""
    everybody = words(key, int(people.max(initial=-1)) + 1)
    return (everybody[people] >> np.uint64(11)).astype(np.float64) * 2.0**-53


def device_keys(key: bytes, people: NDArray[np.int64]) -> list[bytes]:
    """The key of each of these people's devices, which depends on the key and the person alone."""
    everybody = stream(key, KEY_BYTES * (int(people.max(initial=-1)) + 1))
    return [everybody[KEY_BYTES * who : KEY_BYTES * (who + 1)] for who in people.tolist()]


def uniforms(key: bytes, count: int) -> NDArray[np.float64]:
    """Independent numbers in [0, 1) with 32 bits, for random rounding."""
    return np.frombuffer(stream(key, 4 * count), "<u4") * 2.0**-32
