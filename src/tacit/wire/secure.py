"""Secure sums as a stage: uploads as whole numbers, people in groups, and who must be left for a sum to be opened.

    Stage(seal=SecureSum(group=10))     the server sees sums of 10 people and more
    Stage(seal=SecureSum())             of the whole cohort; masks with neighbours on a ring only
The loop backend runs the protocol of wire/masks.py between devices and a server; vmap adds the same whole numbers. Both
mean the same to the last bit, since masks cancel exactly.

Whole numbers. With noise, uploads are whole numbers already, on the grid of wire/noise.py, which is chosen so that a
sum does not wrap modulo 2^`words`. Without noise a number is cut, towards zero, to a multiple of a step. Sums are then
modulo 2^32 where a clip bounds every number, with the smallest step at which `most` people's numbers cannot wrap;
otherwise modulo 2^64 with a step of 2^-32, and a number of 2^31 / most or beyond is an error. What the door refuses
anyway (NaN, infinity, beyond its limit) is 0 here.

Groups. People who were asked are shuffled by the run's key, which stays the same for all rounds, and dealt into groups;
the last takes the rest, so that none is smaller than was asked for. Where everybody takes part, groups are the same in
all rounds: groups that changed would let a server compute single people's uploads from several rounds' sums. In a
small group everybody has a mask with everybody, and its sum is opened when a share of `threshold` is left, more than
half and 3 people at least. In a large one people have masks with their neighbours on a ring (wire/ring.py), and enough
of everybody's neighbours must be left as well. Otherwise the group is abandoned, and nothing of it is seen. With groups
of 10 and a drop-out of 30 %, that is every third.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core import Params, Seat, Stage, Upload
from ..errors import SettingError
from .admission import LIMIT, MAX_WEIGHT
from .masks import KEY, NONCE, SEED, TAG, Server, Words, converse
from .ring import Group, degree, majority
from .rng import coins

People = NDArray[np.int64]
FEWEST = 3  # a sum of two tells each of them the other's upload
SLACK = 1.001  # a clipped upload may be longer than the clip by float32's rounding


@dataclass(frozen=True)
class SecureSum:
    """Sums of `group` people (None: the cohort), of whom a share of `threshold` must be left.

    `clip`: no number of an upload is larger and its weight is at most 1. `most`: no round asks more people.
    `neighbours`: of everybody on the ring, in place of what is worked out. `words`: uploads are whole numbers already,
    and sums of them do not wrap modulo 2^`words`, 32 or 64.
    """

    group: int | None = None
    threshold: float = 2 / 3
    clip: float | None = None
    most: int = 2**16
    neighbours: int | None = None
    words: int | None = None

    def __post_init__(self) -> None:
        wrong = [
            (self.group is not None and self.group < FEWEST, f"group={self.group}", f"{FEWEST} people or more"),
            (not 0.5 < self.threshold <= 1, f"threshold={self.threshold}", "a share above 0.5 and up to 1"),
            (self.clip is not None and not 0 < self.clip < math.inf, f"clip={self.clip}", "a positive norm, or None"),
            (not 1 <= self.most <= 2**28, f"most={self.most}", "a number of people from 1 to 2^28"),
            (self.neighbours is not None and (self.neighbours < 4 or self.neighbours % 2 > 0),
             f"neighbours={self.neighbours}", "an even number, 4 or more, or None"),
            (self.words not in (None, 32, 64), f"words={self.words}", "32, 64 or None"),
        ]  # fmt: skip
        for bad, got, expected in wrong:
            if bad:
                raise SettingError(f"SecureSum got {got}; expected {expected}.")

    def stage(self) -> Stage:
        return Stage(seal=self, written=self.written)

    # Whole numbers

    @property
    def bits(self) -> int:
        return self.words or (64 if self.clip is None else 32)

    @property
    def step(self) -> float:
        """Of numbers. A power of two: multiples of it are exact."""
        return 2.0**-32 if self.clip is None else _step(self.clip * SLACK * self.most, self.bits)

    @property
    def weight_step(self) -> float:
        return _step((SLACK if self.bits == 32 else MAX_WEIGHT) * self.most, self.bits)

    @property
    def largest(self) -> float:
        """No number of an upload may reach this."""
        return 2.0**31 / self.most if self.clip is None else self.clip * SLACK

    def seal(self, upload: Upload) -> Upload:
        total = {name: self._whole(name, value) for name, value in upload.total.items()}
        weight = upload.weight.detach().double()
        weight = torch.where(torch.isfinite(weight) & (weight.abs() <= MAX_WEIGHT), weight, 0.0)
        if self.bits == 32 and bool((weight.abs() >= SLACK).any()):
            raise SettingError(
                f"A weight of {float(weight.abs().max()):g} was got where uploads are clipped; expected 1 at most. "
                "Clip before sealing (it sets the weight to 1), or leave `clip` out of SecureSum."
            )
        return Upload(total, torch.trunc(weight / self.weight_step).long())

    def _whole(self, name: str, value: Tensor) -> Tensor:
        if self.words:
            return value.long()
        value = value.detach().double()
        value = torch.where(torch.isfinite(value) & (value.abs() <= LIMIT), value, 0.0)
        beyond = value.abs() >= self.largest
        if bool(beyond.any()):
            advice = (
                "Clip uploads, or give SecureSum a smaller `most`."
                if self.clip is None
                else "Clip before sealing and add noise to the sum only, or leave `clip` out of SecureSum."
            )
            raise SettingError(
                f'A number of {float(value[beyond][0]):g} was got in "{name}"; a sum of up to {self.most:,} people is '
                f"safe from wrapping below {self.largest:g}. {advice}"
            )
        return torch.trunc(value / self.step).long()

    def open(self, total: Upload) -> Upload:
        """The numbers of a sum; whole numbers stay whole."""

        def signed(value: Tensor) -> Tensor:
            half = 2 ** (self.bits - 1)
            return value if self.bits == 64 else ((value + half) & (2 * half - 1)) - half

        weight = (signed(total.weight).double() * self.weight_step).float()
        numbers = {name: signed(value) for name, value in total.total.items()}
        if self.words:
            return Upload(numbers, weight)
        return Upload({name: (value.double() * self.step).float() for name, value in numbers.items()}, weight)

    # Groups

    def groups(self, asked: People, seat: Seat) -> list[Group]:
        """Of the people who were asked; none where they are too few."""
        people = np.asarray(asked, np.int64)
        if len(people) > self.most:
            raise SettingError(
                f"{len(people):,} people were asked, and SecureSum was made for {self.most:,} at most: their sum could "
                "wrap. Give it `most` of all who may be asked in one round."
            )
        draw = coins(seat.run_key or bytes(32), people)
        ring = people[np.argsort(draw, kind="stable")]
        size = self.group or len(ring)
        many = len(ring) // size if size >= FEWEST else 0
        cuts = [size * at for at in range(1, many)]
        return [self._group(tuple(part.tolist()), seat.round) for part in np.split(ring, cuts)] if many else []

    def _group(self, people: tuple[int, ...], round: int) -> Group:
        size = len(people)
        least = max(FEWEST, size // 2 + 1, math.ceil(self.threshold * size - 1e-9))
        width = min(self.neighbours or degree(size), size - 1)
        return Group(people, width, least if width == size - 1 else majority(width), least, round)

    def standing(self, asked: People, answering: People, seat: Seat) -> People:
        """Those of `answering` whose group's sum can be opened."""
        alive = set(np.asarray(answering).tolist())
        good = [group for group in self.groups(asked, seat) if not group.short(alive.intersection(group.people))]
        return answering[np.isin(answering, np.array([who for group in good for who in group.people], np.int64))]

    def parts(self, asked: People, seat: Seat) -> dict[int, float]:
        """The part of a release's noise (of its variance) that each of these people adds: enough people are left to
        open a sum, so every sum that is opened has at least the whole of it, and nobody sees it without."""
        return {who: 1 / group.least for group in self.groups(asked, seat) for who in group.people}

    def collect(
        self, uploads: dict[int, Upload], asked: People, seat: Seat, silent: Collection[int] = ()
    ) -> Upload | None:
        """The sum, by the protocol; None where no group could be opened. `asked` commit, those in `uploads` send, of
        these the `silent` do not reveal. Keys come from the operating system: the sum does not depend on them."""
        total: Upload | None = None
        for server in self.sessions(uploads, asked, seat, silent):
            if server.opened is not None:
                part = from_words(server.opened, next(iter(uploads.values())))
                total = part if total is None else total + part
        return None if total is None else self.open(total)

    def sessions(
        self, uploads: dict[int, Upload], asked: People, seat: Seat, silent: Collection[int] = ()
    ) -> list[Server]:
        """Every group's server after the protocol: what it saw, and the sum or why there is none."""
        kind = np.uint64 if self.bits == 64 else np.uint32
        return [
            converse(group, {p: to_words(self.seal(uploads[p]), kind) for p in group.people if p in uploads}, silent)
            for group in self.groups(asked, seat)
        ]

    # Bytes

    def overhead_bytes(self, people: int) -> int:
        """What a device sends beside its vector in a group of so many: keys, shares in letters, shares revealed."""
        width = self._group(tuple(range(people)), 0).degree
        return 2 * KEY + width * (NONCE + 2 * SEED + TAG) + (width + 1) * SEED

    def written(self, total: Params) -> Params:
        """What stands in a device's messages: words, and the protocol's own bytes for a group as large as asked for
        (the cohort: as `most`)."""
        kind = torch.int64 if self.bits == 64 else torch.int32
        extra = torch.zeros(self.overhead_bytes(self.group or self.most), dtype=torch.uint8)
        return {name: torch.zeros(value.shape, dtype=kind) for name, value in total.items()} | {"secure": extra}


def _step(sum_bound: float, bits: int) -> float:
    """The smallest power of two of which a sum up to the bound has fewer than 2^(bits-1)."""
    return 2.0 ** (math.floor(math.log2(sum_bound)) + 1 - (bits - 1))


def to_words(sealed: Upload, kind: type[np.uint32] | type[np.uint64]) -> Words:
    """One vector: the weight, then every leaf by name."""
    leaves = [sealed.weight, *(sealed.total[name] for name in sorted(sealed.total))]
    return np.concatenate([leaf.reshape(-1).numpy() for leaf in leaves]).astype(kind)


def from_words(words: Words, like: Upload) -> Upload:
    """The way back, with signs."""
    signed = words.view(np.int64 if words.itemsize == 8 else np.int32).astype(np.int64)
    names = sorted(like.total)
    ends = np.cumsum([1, *(like.total[name].numel() for name in names)])
    parts = np.split(signed, ends[:-1])
    total = {name: torch.from_numpy(part).reshape(like.total[name].shape) for name, part in zip(names, parts[1:])}
    return Upload({name: total[name] for name in like.total}, torch.from_numpy(parts[0]).reshape(like.weight.shape))
