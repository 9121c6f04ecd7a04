"""Secure sums between devices and a server: what is sent, and what is added to hide it.

Pairwise masks with drop-out recovery: Bonawitz et al. 2017 (Practical Secure Aggregation), where everybody has a mask
with everybody; and Bell et al. 2020 (SecAgg+), where only with neighbours on a ring. Four messages go from a device:

    advertise   two public keys (X25519): one for masks, one to write to each other unseen by the server
    share       to every neighbour, encrypted: a Shamir share of the device's own mask, and one of its mask key
    mask        the vector + own mask + (masks with neighbours further on) - (masks with neighbours before)
    reveal      of everybody who sent a vector the share of the own mask, of everybody else the share of the mask key

Masks between two who sent cancel. The server rebuilds the own masks of those who sent, and the mask keys of those who
did not, and takes off what is left. A device never reveals both shares of one person: both would bare a vector.
All secrets come from the operating system, anew for every sum; the sum does not depend on them.

Protected: nobody's single vector is seen by a server that follows the protocol and keeps everything it sees, also
together with fewer devices than `need` - 1 among that person's neighbours. Not protected: from a server that invents
devices or keys (nobody signs them here); and nobody can tell whether a device's vector is an honest one.

Departures: what is shared are seeds of 16 bytes, Shamir's block, from which HKDF makes the mask key and the own mask.
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
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from ..errors import ProtocolError
from .ring import Group

Words = NDArray[np.unsignedinteger[Any]]  # uint32 or uint64: numpy's sums of them are modulo 2^32 or 2^64
SEED, KEY, NONCE, TAG = 16, 32, 12, 16  # bytes


def expand(secret: bytes, purpose: str, *numbers: int) -> bytes:
    """A key for one purpose."""
    info = purpose.encode() + struct.pack(f"<{len(numbers)}q", *numbers)
    return HKDF(algorithm=SHA256(), length=KEY, salt=None, info=info).derive(secret)


def agree(own: X25519PrivateKey, other: bytes) -> bytes:
    """What only these two know."""
    try:
        return own.exchange(X25519PublicKey.from_public_bytes(other))
    except ValueError as error:
        raise ProtocolError(
            f"A public key of {len(other)} bytes was got that is none ({error}). Leave it out."
        ) from None


def mask_key(seed: bytes) -> X25519PrivateKey:
    return X25519PrivateKey.from_private_bytes(expand(seed, "mask key"))


def stream(key: bytes, like: Words) -> Words:
    """As many words as in `like`, of ChaCha20's key stream; no key is used twice, so the nonce may be zero."""
    cipher = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()
    return np.frombuffer(cipher.update(bytes(like.nbytes)), like.dtype)


def between(own: X25519PrivateKey, public: bytes, person: int, other: int, round: int) -> bytes:
    """The key of the mask that these two have; the same from both sides."""
    return expand(agree(own, public), "mask", round, min(person, other), max(person, other))


def put_on(words: Words, mask: Words, person: int, other: int) -> None:
    """What `person` adds for `other`, in place; for the opposite swap them."""
    if person < other:
        words += mask
    else:
        words -= mask


class Device:
    """One person's side of one sum."""

    def __init__(self, person: int, group: Group) -> None:
        self.person, self.group = person, group
        self._own_seed, self._key_seed = token_bytes(SEED), token_bytes(SEED)
        self._mask_key, self._channel = mask_key(self._key_seed), X25519PrivateKey.generate()
        self._public: dict[int, bytes] = {}
        self._held: dict[int, bytes] = {}  # by owner: share of the own mask, share of the mask key
        self._revealed: set[int] | None = None  # whom the server called alive when shares were revealed
        self._sent = False

    def advertise(self) -> bytes:
        return self._mask_key.public_key().public_bytes_raw() + self._channel.public_key().public_bytes_raw()

    def share(self, keys: dict[int, bytes]) -> dict[int, bytes]:
        """By neighbour, what only that neighbour can read."""
        holders, need = self.group.holders(self.person), self.group.need
        missing = [who for who in self.group.neighbours(self.person) if len(keys.get(who, b"")) != 2 * KEY]
        if missing or self._public:
            why = f"the keys of person {missing[0]} are missing" if missing else "it has shared its secrets already"
            raise ProtocolError(f"Person {self.person}'s device does not share: {why}. Begin a new sum.")
        self._public = {who: keys[who] for who in holders if who != self.person}
        own, key = (Shamir.split(need, len(holders), seed, False) for seed in (self._own_seed, self._key_seed))
        pairs = {who: a[1] + b[1] for who, a, b in zip(holders, own, key)}
        self._held[self.person] = pairs.pop(self.person)
        return {who: self._seal(who, pair) for who, pair in pairs.items()}

    def mask(self, vector: Words, letters: dict[int, bytes]) -> Words:
        """The vector as the server sees it. `letters`: what neighbours shared; who did not is no part of the sum."""
        if self._sent or self.person not in self._held:
            raise ProtocolError(f"Person {self.person}'s device sends one vector, after its shares. Begin a new sum.")
        self._held |= {who: self._unseal(who, letter) for who, letter in letters.items() if who in self._public}
        if len(self._held) < self.group.need:
            raise ProtocolError(
                f"Person {self.person}'s device has shares of {len(self._held)} people, of {self.group.need} at least "
                "were expected. It sends nothing; begin a new sum."
            )
        masked = vector + stream(expand(self._own_seed, "own mask"), vector)
        for other in sorted(self._held.keys() - {self.person}):
            key = between(self._mask_key, self._public[other][:KEY], self.person, other, self.group.round)
            put_on(masked, stream(key, vector), self.person, other)
        self._sent = True
        return masked

    def reveal(self, alive: Collection[int]) -> dict[int, bytes]:
        """By owner, one share of each whose shares are here. `alive`: who sent a vector, says the server. It is told
        once: another list would have both shares of somebody revealed."""
        told = set(alive) & self._held.keys()
        if not self._sent or self.person not in told:
            raise ProtocolError(
                f"Person {self.person}'s vector is said to be missing, or is. The device reveals nothing."
            )
        if len(told) < self.group.need:
            raise ProtocolError(
                f"Person {self.person}'s device was told that {len(told)} of its {len(self._held)} are left, and "
                f"{self.group.need} are needed. It reveals nothing; abandon this sum."
            )
        if self._revealed is not None and self._revealed != told:
            both = min(self._revealed ^ told)
            raise ProtocolError(
                f"Person {self.person}'s device was asked for both shares of person {both}, which together bare that "
                "person's vector. It reveals one kind, once; abandon this sum."
            )
        self._revealed = told
        return {who: pair[:SEED] if who in told else pair[SEED:] for who, pair in self._held.items()}

    def _seal(self, other: int, pair: bytes) -> bytes:
        key, about = self._letter(self._public[other], self.person, other)
        nonce = token_bytes(NONCE)
        return nonce + ChaCha20Poly1305(key).encrypt(nonce, pair, about)

    def _unseal(self, other: int, letter: bytes) -> bytes:
        key, about = self._letter(self._public[other], other, self.person)
        try:
            pair = ChaCha20Poly1305(key).decrypt(letter[:NONCE], letter[NONCE:], about)
        except (InvalidTag, ValueError):
            pair = b""
        if len(pair) != 2 * SEED:
            raise ProtocolError(
                f"The shares from person {other} to person {self.person} were changed on the way. The device sends "
                "nothing; leave it out as one that dropped out."
            )
        return pair

    def _letter(self, public: bytes, sender: int, reader: int) -> tuple[bytes, bytes]:
        """(key, what is authenticated with it) of the one letter from `sender` to `reader`."""
        key = expand(agree(self._channel, public[KEY:]), "letter", self.group.round, sender, reader)
        return key, struct.pack("<3q", self.group.round, sender, reader)


class Server:
    """The server's side of one sum, and all that it ever sees."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.keys: dict[int, bytes] = {}
        self.letters: dict[int, dict[int, bytes]] = {}  # by reader, then sender; it cannot read them
        self.shared: set[int] = set()
        self.masked: dict[int, Words] = {}  # as received
        self.revealed: dict[int, list[tuple[int, bytes]]] = {}  # by owner: numbered shares, all of one kind
        self.opened: Words | None = None  # the sum
        self.reason: str | None = None  # why there is none
        self.bytes: Counter[str] = Counter()  # received, by kind

    def hear_keys(self, person: int, keys: bytes) -> None:
        self.keys[person] = keys
        self.bytes["keys"] += len(keys)

    def keys_for(self, person: int) -> dict[int, bytes]:
        return {who: self.keys[who] for who in self.group.neighbours(person) if who in self.keys}

    def hear_shares(self, person: int, letters: dict[int, bytes]) -> None:
        self.shared.add(person)
        for reader, letter in letters.items():
            self.letters.setdefault(reader, {})[person] = letter
            self.bytes["shares"] += len(letter)

    def letters_for(self, person: int) -> dict[int, bytes]:
        return self.letters.get(person, {})

    def hear_vector(self, person: int, masked: Words) -> None:
        self.masked[person] = masked
        self.bytes["vectors"] += masked.nbytes

    def alive(self) -> list[int] | None:
        """Who sent a vector, for everybody to reveal; None where too few did: then nobody is asked for anything."""
        self.reason = self.group.short(self.masked)
        return None if self.reason else sorted(self.masked)

    def hear_reveal(self, person: int, shares: dict[int, bytes]) -> None:
        for owner, share in shares.items():
            number = self.group.holders(owner).index(person) + 1
            self.revealed.setdefault(owner, []).append((number, share))
            self.bytes["reveals"] += len(share)

    def open(self) -> Words | None:
        """Take off what masks are left; None, and a reason, where they cannot be."""
        if self.reason:
            return None
        fewest = min(len(self.revealed.get(owner, [])) for owner in self.shared)
        if fewest < self.group.need:
            self.reason = f"{fewest} shares of somebody were revealed and {self.group.need} are needed"
            return None
        seeds = {owner: Shamir.combine(sorted(self.revealed[owner])[: self.group.need], False) for owner in self.shared}
        gone = {owner: mask_key(seeds[owner]) for owner in self.shared - self.masked.keys()}
        for owner, key in gone.items():
            if key.public_key().public_bytes_raw() != self.keys[owner][:KEY]:
                self.reason = f"the shares of person {owner} do not fit the key that was advertised"
                return None
        self.opened = self._bare(seeds, gone)
        return self.opened

    def _bare(self, seeds: dict[int, bytes], gone: dict[int, X25519PrivateKey]) -> Words:
        vectors = list(self.masked.values())
        total = np.zeros_like(vectors[0])
        for person, vector in self.masked.items():
            total += vector
            total -= stream(expand(seeds[person], "own mask"), vector)
        for owner, key in gone.items():
            for person in self.group.neighbours(owner):
                if person in self.masked:
                    pair = between(key, self.keys[person][:KEY], owner, person, self.group.round)
                    put_on(total, stream(pair, total), owner, person)  # the half that never came
        return total


def converse(group: Group, vectors: dict[int, Words], silent: Collection[int] = ()) -> Server:
    """One sum from beginning to end. Everybody in the group advertises and shares; those in `vectors` send one; of
    these the `silent` are gone before shares are revealed, and count all the same."""
    server, devices = Server(group), {person: Device(person, group) for person in group.people}
    for person, device in devices.items():
        server.hear_keys(person, device.advertise())
    for person, device in devices.items():
        server.hear_shares(person, device.share(server.keys_for(person)))
    for person, vector in vectors.items():
        server.hear_vector(person, devices[person].mask(vector, server.letters_for(person)))
    alive = server.alive()
    for person in alive or ():
        if person not in silent:
            server.hear_reveal(person, devices[person].reveal(alive or ()))
    server.open()
    return server
