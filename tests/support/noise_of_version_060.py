"""Noise, cohort draws and keys of version 0.6.0 in short, which the attacks of test_privacy_attacks.py break.

It proves that every attack can succeed. The package does not use it.
"""

from __future__ import annotations

import hashlib
import math

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

A, B, C, D = 0x9E3779B97F4A7C15, 0x632BE59BD9B4E019, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
WORD = 2**64


def mixed(key, counter) -> np.ndarray:
    """splitmix64 of key and counter, vectorised; every step can be inverted."""
    with np.errstate(over="ignore"):
        x = np.uint64(key) * np.uint64(A) + np.asarray(counter, np.uint64) + np.uint64(B)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(C)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(D)
        return x ^ (x >> np.uint64(31))


def unmixed(x, counter) -> np.ndarray:
    """The key that gives x at this counter."""
    with np.errstate(over="ignore"):
        x = np.asarray(x, np.uint64)
        x = x ^ (x >> np.uint64(31)) ^ (x >> np.uint64(62))
        x = x * np.uint64(pow(D, -1, WORD))
        x = x ^ (x >> np.uint64(27)) ^ (x >> np.uint64(54))
        x = x * np.uint64(pow(C, -1, WORD))
        x = x ^ (x >> np.uint64(30)) ^ (x >> np.uint64(60))
        return (x - np.uint64(counter) - np.uint64(B)) * np.uint64(pow(A, -1, WORD))


def uniform(key, counter) -> np.ndarray:
    return (mixed(key, counter) >> np.uint64(11)) * 2.0**-53


def device_noise(round_key: int, person: int, size: int) -> np.ndarray:
    """The noise of `local` on the first leaf of one device's upload, in units of the standard deviation."""
    leaf = mixed(mixed(round_key, person), 0)
    at = 2 * np.arange(size, dtype=np.uint64)
    radius = np.sqrt(-2 * np.log1p(-uniform(leaf, at)))
    return (radius * np.cos(2 * np.pi * uniform(leaf, at + np.uint64(1)))).astype(np.float32)


def server_noise(key: int, name: str, size: int) -> np.ndarray:
    """The server's noise on a sum: float32 normal numbers from a key of 8 bytes."""
    secret = hashlib.sha256(b"tacit noise" + (key % WORD).to_bytes(8, "big") + name.encode()).digest()
    stream = Cipher(algorithms.ChaCha20(secret, bytes(16)), mode=None).encryptor().update(bytes(16 * size))
    first, second = (np.frombuffer(stream, np.uint64).reshape(2, size) >> np.uint64(11)) * 2.0**-53
    return (np.sqrt(-2 * np.log1p(-first)) * np.cos(2 * np.pi * second)).astype(np.float32)


def release(values: np.ndarray, sigma: float, key: int) -> np.ndarray:
    """A noisy sum: float32(v + float32(sigma g))."""
    noise = (np.float32(sigma) * server_noise(key, "count", len(values))).astype(np.float32)
    return (values.astype(np.float32) + noise).astype(np.float32)


def cohort_coins(seed: int, round: int, people: np.ndarray) -> np.ndarray:
    """One uniform number per person, from a seed that result.json contained; small numbers form the cohort."""
    cohort = 3  # the stream of cohorts
    return uniform(mixed(mixed(seed, cohort), round), people)


def groups(seed: int, round: int, people: np.ndarray, size: int) -> list[np.ndarray]:
    """Groups of secure sums, drawn again in every round."""
    draw = uniform(mixed(mixed(seed, 9), round), people)
    return np.split(people[np.argsort(draw)], np.arange(size, len(people) // size * size, size))


def run_draws(seed: int, settings: str, data_hash: str) -> int:
    """The key of a run's noise: it has no nonce, and deployed apps used the hash of no data."""
    number = int.from_bytes(hashlib.sha256(f"{settings} {data_hash}".encode()).digest()[:8], "big") >> 1
    return int.from_bytes(hashlib.sha256(f"{seed} {number} final".encode()).digest()[:8], "big") >> 1


def lucky_round_key(person: int) -> int:
    """A round key for which the first number of this person's noise is extreme.

    Such numbers occur in long runs: an attack with one of 6.9 deviations took 3 s. One of 8 makes the test fast.
    """
    low = np.arange(2**11, dtype=np.uint64)
    for missing in range(2, 40):
        x = np.uint64((2**53 - missing) << 11) | low
        leaf = unmixed(x, 0)
        radius = math.sqrt(-2 * math.log(missing * 2.0**-53))
        first = radius * np.cos(2 * np.pi * uniform(leaf, np.uint64(1)))
        best = int(np.argmax(np.abs(first)))
        if abs(first[best]) > 8.0:
            return int(unmixed(unmixed(leaf[best], 0), person))
    raise AssertionError("no round key gives an extreme number")
