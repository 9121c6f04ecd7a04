"""The secure-aggregation protocol (SecAgg, SecAgg+): pairwise masks, with which a server learns only sums of vectors.

Bonawitz et al. 2017 (Practical Secure Aggregation), where every pair of devices shares a mask, and Bell et al. 2020
(SecAgg+), where only neighbours on a ring do; both recover from drop-outs. A device sends four messages:

    advertise   two public keys (X25519): one for masks, one for encryption between devices
    share       to every neighbour, encrypted: a Shamir share of the device's own mask, and one of its mask key
    mask        the vector + own mask + (masks with neighbours of larger numbers) - (masks with smaller ones)
    reveal      of everybody who sent a vector the share of the own mask, of everybody else the share of the mask key

Masks between two devices that both sent cancel. The server rebuilds the own masks of those who sent and the mask keys
of those who did not, and subtracts what is left. A device never reveals both shares of one person, because both
together expose a vector. All secrets come from the operating system, fresh for every sum; the sum does not depend on
them.

Protected: no single vector is seen by a server that follows the protocol and keeps everything it sees, also together
with fewer devices than `threshold` - 1 among that person's neighbours. Not protected: against a server that invents
devices or keys (nobody signs them here); and no check that a device's vector is honest.

Departure from the papers: the shared secrets are seeds of 16 bytes, Shamir's block, from which HKDF derives the mask
key and the own mask.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Collection
from secrets import token_bytes
from typing import Any

import numpy as np
from Crypto.Protocol.SecretSharing import Shamir
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from fedtaste.errors import ProtocolError
from fedtaste.wire import rng
from fedtaste.wire.neighbour_graph import Group

Words = NDArray[np.unsignedinteger[Any]]  # uint16, uint32 or uint64: numpy's sums of them are modulo 2^16 ... 2^64
SEED, KEY, NONCE, TAG = 16, 32, 12, 16  # bytes


def expand(secret: bytes, purpose: str, *numbers: int) -> bytes:
    """Derive a key for one purpose (HKDF)."""
    info = purpose.encode() + struct.pack(f"<{len(numbers)}q", *numbers)
    return HKDF(algorithm=SHA256(), length=KEY, salt=None, info=info).derive(secret)


def agree(own: X25519PrivateKey, other: bytes) -> bytes:
    """The shared secret of two devices (Diffie-Hellman)."""
    try:
        return own.exchange(X25519PublicKey.from_public_bytes(other))
    except ValueError as error:
        raise ProtocolError(
            f"A public key of {len(other)} bytes is not valid ({error}). Leave its device out."
        ) from None


def mask_key(seed: bytes) -> X25519PrivateKey:
    """The private key of pairwise masks that a device shares as a seed."""
    return X25519PrivateKey.from_private_bytes(expand(seed, "mask key"))


def stream(key: bytes, like: Words) -> Words:
    """A mask: ChaCha20's key stream, as many words as in `like`. No key is used twice."""
    return np.frombuffer(rng.stream(key, like.nbytes), like.dtype)


def add_pair_mask(words: Words, key: X25519PrivateKey, advertised: bytes, pair: tuple[int, int], round: int) -> None:
    """Add, in place, the mask that the first person of the pair adds for the second: swapped, the two cancel. `key` is
    the first one's mask key, `advertised` are the other's public keys."""
    mask = stream(expand(agree(key, advertised[:KEY]), "mask", round, min(pair), max(pair)), words)
    if pair[0] < pair[1]:
        words += mask
    else:
        words -= mask


class Device:
    """One device's side of one sum."""

    def __init__(self, person: int, group: Group) -> None:
        self.person, self.group = person, group
        self._own_seed, self._key_seed = token_bytes(SEED), token_bytes(SEED)
        self._mask_key, self._channel = mask_key(self._key_seed), X25519PrivateKey.generate()
        self._public: dict[int, bytes] = {}
        self._shares: dict[int, bytes] = {}  # by owner: share of the own mask, share of the mask key
        self._revealed: set[int] | None = None  # people whom the server called alive in `reveal`
        self._sent = False

    def advertise(self) -> bytes:
        return self._mask_key.public_key().public_bytes_raw() + self._channel.public_key().public_bytes_raw()

    def share(self, keys: dict[int, bytes]) -> dict[int, bytes]:
        """Encrypted shares of this device's secrets, by neighbour."""
        holders = self.group.holders(self.person)
        missing = [who for who in self.group.neighbours(self.person) if len(keys.get(who, b"")) != 2 * KEY]
        if missing or self._public:
            why = f"the keys of person {missing[0]} are missing" if missing else "it has shared its secrets already"
            raise ProtocolError(f"The device of person {self.person} cannot share its secrets: {why}. Begin a new sum.")
        self._public = {who: keys[who] for who in holders if who != self.person}
        seeds = (self._own_seed, self._key_seed)
        own, key = (Shamir.split(self.group.threshold, len(holders), seed, False) for seed in seeds)
        pairs = {who: a[1] + b[1] for who, a, b in zip(holders, own, key)}
        self._shares[self.person] = pairs.pop(self.person)
        return {who: self._encrypt(who, pair) for who, pair in pairs.items()}

    def mask(self, vector: Words, ciphertexts: dict[int, bytes]) -> Words:
        """The masked vector. `ciphertexts` are the neighbours' shares; a neighbour without one is not in the sum."""
        if self._sent or self.person not in self._shares:
            raise ProtocolError(
                f"The device of person {self.person} sends one vector, after it has shared its secrets. Begin "
                "a new sum."
            )
        self._shares |= {who: self._decrypt(who, text) for who, text in ciphertexts.items() if who in self._public}
        if len(self._shares) < self.group.threshold:
            raise ProtocolError(
                f"The device of person {self.person} needs shares of at least {self.group.threshold} people, got "
                f"{len(self._shares)}. It sends nothing; begin a new sum."
            )
        masked = vector + stream(expand(self._own_seed, "own mask"), vector)
        for other in sorted(self._shares.keys() - {self.person}):
            add_pair_mask(masked, self._mask_key, self._public[other], (self.person, other), self.group.round)
        self._sent = True
        return masked

    def reveal(self, alive: Collection[int]) -> dict[int, bytes]:
        """By owner, one of the two shares that this device has. `alive` are the people who sent a vector, according to
        the server. A second, different list is refused: it would reveal both shares of somebody."""
        senders = set(alive) & self._shares.keys()
        if not self._sent or self.person not in senders:
            raise ProtocolError(
                f"The vector of person {self.person} is missing, by the server's account. The device reveals nothing."
            )
        if len(senders) < self.group.threshold:
            raise ProtocolError(
                f"Of the {len(self._shares)} people around person {self.person} only {len(senders)} are left, and "
                f"{self.group.threshold} are needed. The device reveals nothing; abandon this sum."
            )
        if self._revealed is not None and self._revealed != senders:
            both = min(self._revealed ^ senders)
            raise ProtocolError(
                f"The server asked the device of person {self.person} for both shares of person {both}, which together "
                "expose that person's vector. The device reveals one of them; abandon this sum."
            )
        self._revealed = senders
        return {who: pair[:SEED] if who in senders else pair[SEED:] for who, pair in self._shares.items()}

    def _encrypt(self, other: int, pair: bytes) -> bytes:
        key, about = self._channel_key(self._public[other], self.person, other)
        nonce = token_bytes(NONCE)
        return nonce + ChaCha20Poly1305(key).encrypt(nonce, pair, about)

    def _decrypt(self, other: int, ciphertext: bytes) -> bytes:
        key, about = self._channel_key(self._public[other], other, self.person)
        try:
            pair = ChaCha20Poly1305(key).decrypt(ciphertext[:NONCE], ciphertext[NONCE:], about)
        except (InvalidTag, ValueError):
            pair = b""
        if len(pair) != 2 * SEED:
            raise ProtocolError(
                f"The shares from person {other} to person {self.person} were changed on the way. The device sends "
                "nothing; count it as dropped out."
            )
        return pair

    def _channel_key(self, public: bytes, sender: int, reader: int) -> tuple[bytes, bytes]:
        """(key, authenticated header) of the only message from `sender` to `reader`."""
        key = expand(agree(self._channel, public[KEY:]), "letter", self.group.round, sender, reader)
        return key, struct.pack("<3q", self.group.round, sender, reader)


class Server:
    """The server's side of one sum. Its attributes are everything that a server ever sees."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.keys: dict[int, bytes] = {}
        self.ciphertexts: dict[int, dict[int, bytes]] = {}  # by reader, then sender; the server cannot decrypt them
        self.shared: set[int] = set()
        self.masked: dict[int, Words] = {}  # as received
        self.revealed: dict[int, list[tuple[int, bytes]]] = {}  # by owner: numbered shares, all of one kind
        self.total: Words | None = None  # the sum
        self.failure: str | None = None  # why there is none
        self.bytes: Counter[str] = Counter()  # received, by kind

    def receive_keys(self, person: int, keys: bytes) -> None:
        self.keys[person] = keys
        self.bytes["keys"] += len(keys)

    def keys_for(self, person: int) -> dict[int, bytes]:
        return {who: self.keys[who] for who in self.group.neighbours(person) if who in self.keys}

    def receive_shares(self, person: int, ciphertexts: dict[int, bytes]) -> None:
        self.shared.add(person)
        for reader, ciphertext in ciphertexts.items():
            self.ciphertexts.setdefault(reader, {})[person] = ciphertext
            self.bytes["shares"] += len(ciphertext)

    def ciphertexts_for(self, person: int) -> dict[int, bytes]:
        return self.ciphertexts.get(person, {})

    def receive_vector(self, person: int, masked: Words) -> None:
        self.masked[person] = masked
        self.bytes["vectors"] += masked.nbytes

    def alive(self) -> list[int] | None:
        """The people who sent a vector, for everybody to reveal shares; None where they are too few."""
        self.failure = self.group.shortfall(self.masked)
        return None if self.failure else sorted(self.masked)

    def receive_reveal(self, person: int, shares: dict[int, bytes]) -> None:
        for owner, share in shares.items():
            number = self.group.holders(owner).index(person) + 1
            self.revealed.setdefault(owner, []).append((number, share))
            self.bytes["reveals"] += len(share)

    def unmask(self) -> Words | None:
        """The sum without masks; None, with `failure` set, where it cannot be recovered."""
        if self.failure:
            return None
        fewest = min(len(self.revealed.get(owner, [])) for owner in self.shared)
        if fewest < self.group.threshold:
            self.failure = f"{fewest} shares of somebody were revealed and {self.group.threshold} are needed"
            return None
        shares = {owner: sorted(self.revealed[owner])[: self.group.threshold] for owner in self.shared}
        seeds = {owner: Shamir.combine(numbered, False) for owner, numbered in shares.items()}
        gone = {owner: mask_key(seeds[owner]) for owner in self.shared - self.masked.keys()}
        for owner, key in gone.items():
            if key.public_key().public_bytes_raw() != self.keys[owner][:KEY]:
                self.failure = f"the shares of person {owner} do not fit the key that was advertised"
                return None
        self.total = self._unmasked_sum(seeds, gone)
        return self.total

    def _unmasked_sum(self, seeds: dict[int, bytes], gone: dict[int, X25519PrivateKey]) -> Words:
        total = np.zeros_like(next(iter(self.masked.values())))
        for person, vector in self.masked.items():
            total += vector
            total -= stream(expand(seeds[person], "own mask"), vector)
        for owner, key in gone.items():
            for person in self.group.neighbours(owner):
                if person in self.masked:  # add what the missing person would have added
                    add_pair_mask(total, key, self.keys[person], (owner, person), self.group.round)
        return total


def run_session(group: Group, vectors: dict[int, Words], silent: Collection[int] = ()) -> Server:
    """Run the protocol for one sum. Everybody in the group advertises and shares; those in `vectors` send one; the
    `silent` among them drop out before shares are revealed, and still count."""
    server, devices = Server(group), {person: Device(person, group) for person in group.people}
    for person, device in devices.items():
        server.receive_keys(person, device.advertise())
    for person, device in devices.items():
        server.receive_shares(person, device.share(server.keys_for(person)))
    for person, vector in vectors.items():
        server.receive_vector(person, devices[person].mask(vector, server.ciphertexts_for(person)))
    alive = server.alive()
    for person in alive or ():
        if person not in silent:
            server.receive_reveal(person, devices[person].reveal(alive or ()))
    server.unmask()
    return server
