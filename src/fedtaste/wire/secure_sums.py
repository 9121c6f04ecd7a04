"""SecureSum: secure aggregation as a stage. Integer encoding, groups of people, and recovery from drop-outs.

    Stage(secure_sum=SecureSum(group=10))     the server sees sums of 10 people and more
    Stage(secure_sum=SecureSum())             of the whole cohort; masks with neighbours on a ring only
The loop backend runs the protocol of wire/masks.py between devices and a server; vmap adds the same integers. Both give
the same bits, since masks cancel exactly.

Integers. With noise, uploads are integers already, on the grid of wire/noise.py, which is chosen so that a sum does not
wrap modulo 2^`words`. Without noise a number is cut, towards zero, to a multiple of a step. Sums are then modulo 2^32
where a clip bounds every number, with the smallest step at which `most` people's numbers cannot wrap; otherwise modulo
2^64 with a step of 2^-32, and a number of 2^31 / most or beyond is an error. Uploads that are whole multiples of a
public unit already are not cut, and sums of them are modulo 2^16 where that is enough; where that holds for some rounds
alone, by the names of what is sent, these rounds have a `training` sum of their own. A scale of a person's own, as
`quantise` has it, is not such a unit: then rounded numbers are summed like any others. Numbers that the server would
refuse anyway (NaN, infinity, beyond its limit) become 0.

Groups. The cohort is shuffled by the run's key, which stays the same for all rounds, and cut into groups; the last
takes the rest, so that no group is smaller than requested. Where everybody takes part, groups are the same in all
rounds: groups that changed would let a server compute single uploads from the sums of several rounds. In a small group
everybody shares a mask with everybody, and its sum is recovered when a share of `threshold` is left, more than half and
at least 3 people. In a large one people share masks with their neighbours on a ring (wire/neighbour_graph.py), and
enough of everybody's neighbours must be left as well. Otherwise the group is abandoned, and the server sees nothing of
it. With groups of 10 and a drop-out of 30 %, every third group is abandoned.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedtaste.core import Params, People, Stage, StageContext, Upload
from fedtaste.errors import SettingError
from fedtaste.wire.masks import KEY, NONCE, SEED, TAG, Server, Words, run_session
from fedtaste.wire.neighbour_graph import Group, degree, share_threshold
from fedtaste.wire.rng import coins
from fedtaste.wire.validation import LIMIT, MAX_WEIGHT

FEWEST = 3  # a sum of two tells each of them the other's upload
Word = type[np.uint16] | type[np.uint32] | type[np.uint64]
WORD: dict[int, Word] = {16: np.uint16, 32: np.uint32, 64: np.uint64}
SLACK = 1.001  # a clipped upload may be longer than the clip by float32's rounding


@dataclass(frozen=True)
class SecureSum:
    """Sums of `group` people (None: the cohort), of whom a share of `threshold` must be left.

    `clip`: no number of an upload is larger, and its weight is at most 1. `most`: the largest cohort. `neighbours`: of
    each person on the ring, in place of the default. `words`: uploads are integers already, and their sums do not wrap
    modulo 2^`words`, at most 32 or 64. Masked numbers modulo 2^18 are sent as 18 bits. `unit`: every number of an
    upload is a whole multiple of it, a power of two, and so are weights of `weight_unit`. `training`: for uploads that
    have the names of `leaves` alone, from the round `training_from` on.
    """

    group: int | None = None
    threshold: float = 2 / 3
    clip: float | None = None
    most: int = 2**16
    neighbours: int | None = None
    words: int | None = None
    unit: float | None = None
    weight_unit: float | None = None
    training: SecureSum | None = None
    training_from: int = 0
    leaves: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        even = self.neighbours is None or (self.neighbours >= 4 and self.neighbours % 2 == 0)
        checks = {
            "group": (self.group is None or self.group >= FEWEST, f"{FEWEST} people or more"),
            "threshold": (0.5 < self.threshold <= 1, "a share above 0.5 and up to 1"),
            "clip": (self.clip is None or 0 < self.clip < math.inf, "a positive norm, or None"),
            "most": (1 <= self.most <= 2**28, "a number of people from 1 to 2^28"),
            "neighbours": (even, "an even number, 4 or more, or None"),
            "words": (self.words in (None, *range(2, 33), 64), "2 to 32, 64 or None"),
        }
        for name, (valid, expected) in checks.items():
            if not valid:
                raise SettingError(f"{name} of SecureSum must be {expected}, got {getattr(self, name)}.")

    def stage(self) -> Stage:
        """This secure sum as a stage."""
        return Stage(secure_sum=self, message_layout=self.message_layout)

    def fitting(self, total: Params) -> SecureSum:
        """The secure sum for uploads of this form."""
        return self.training if self.training and total and total.keys() <= {*self.leaves} else self

    # Integers

    @property
    def bits(self) -> int:
        if self.words or self.clip is None:
            return self.words or 64
        if self.unit is None:
            return 32
        return next((bits for bits in (16, 32) if self._holds(bits)), 64)

    def _holds(self, bits: int) -> bool:
        """Whether sums of whole multiples of the units fit into so many bits."""
        numbers = _step((self.clip or 1) * SLACK * self.most, bits) <= (self.unit or 1)
        return numbers and (self.weight_unit is None or _step(SLACK * self.most, bits) <= self.weight_unit)

    @property
    def step(self) -> float:
        """The step of the numbers: a power of two, so that multiples of it are exact."""
        return 2.0**-32 if self.clip is None else _step(self.clip * SLACK * self.most, self.bits)

    @property
    def weight_step(self) -> float:
        return _step((SLACK if self.bits < 64 else MAX_WEIGHT) * self.most, self.bits)

    @property
    def largest(self) -> float:
        """Every number of an upload must be below this."""
        return 2.0**31 / self.most if self.clip is None else self.clip * SLACK

    def encode(self, upload: Upload) -> Upload:
        """The upload as whole numbers (int64); of one device, or of many stacked."""
        if (other := self.fitting(upload.total)) is not self:
            return other.encode(upload)
        total = {name: self._integers(name, value) for name, value in upload.total.items()}
        weight = upload.weight.detach().double()
        weight = torch.where(torch.isfinite(weight) & (weight.abs() <= MAX_WEIGHT), weight, 0.0)
        if self.bits < 64 and bool((weight.abs() >= SLACK).any()):
            raise SettingError(
                f"Weights of clipped uploads must be at most 1, got {float(weight.abs().max()):g}. Clip before the "
                "secure sum (which sets the weight to 1), or leave `clip` out of SecureSum."
            )
        return Upload(total, torch.trunc(weight / self.weight_step).long())

    def _integers(self, name: str, value: Tensor) -> Tensor:
        if self.words:
            return value.long()
        value = value.detach().double()
        value = torch.where(torch.isfinite(value) & (value.abs() <= LIMIT), value, 0.0)
        beyond = value.abs() >= self.largest
        if bool(beyond.any()):
            advice = "Clip uploads, or give SecureSum a smaller `most`."
            if self.clip is not None:
                advice = "Clip before the secure sum and add noise to the sum only, or leave `clip` out of SecureSum."
            raise SettingError(
                f'Numbers in "{name}" must be below {self.largest:g}, or a sum of {self.most:,} people could wrap; got '
                f"{float(value[beyond][0]):g}. {advice}"
            )
        return torch.trunc(value / self.step).long()

    def decode(self, total: Upload) -> Upload:
        """The numbers of a sum of encoded uploads; with `words` they stay integers."""
        if (other := self.fitting(total.total)) is not self:
            return other.decode(total)

        def signed(value: Tensor) -> Tensor:
            half = 2 ** (self.bits - 1)
            return value if self.bits == 64 else ((value + half) & (2 * half - 1)) - half

        weight = (signed(total.weight).double() * self.weight_step).float()
        numbers = {name: signed(value) for name, value in total.total.items()}
        if self.words:
            return Upload(numbers, weight)
        return Upload({name: (value.double() * self.step).float() for name, value in numbers.items()}, weight)

    # Groups

    def groups(self, cohort: People, context: StageContext) -> list[Group]:
        """The groups of this cohort; none where it is too small."""
        people = np.asarray(cohort, np.int64)
        most = self.training.most if self.training and context.round >= self.training_from else self.most
        if len(people) > most:
            raise SettingError(
                f"A cohort of SecureSum must be at most {most:,} people, got {len(people):,}: their sum could "
                "wrap. Give it the largest cohort as `most`."
            )
        ring = people[np.argsort(coins(context.run_key or bytes(32), people), kind="stable")]
        size = self.group or len(ring)
        count = len(ring) // size if size >= FEWEST else 0
        cuts = [size * at for at in range(1, count)]
        return [self._group(tuple(part.tolist()), context.round) for part in np.split(ring, cuts)] if count else []

    def _group(self, people: tuple[int, ...], round: int) -> Group:
        size = len(people)
        least = max(FEWEST, size // 2 + 1, math.ceil(self.threshold * size - 1e-9))
        width = min(self.neighbours or degree(size), size - 1)
        return Group(people, width, least if width == size - 1 else share_threshold(width), least, round)

    def recoverable(self, cohort: People, answering: People, context: StageContext) -> People:
        """Those of `answering` whose group's sum can be recovered."""
        alive = set(answering.tolist())
        groups = [
            {*group.people} for group in self.groups(cohort, context) if not group.shortfall(alive & {*group.people})
        ]
        return answering[np.isin(answering, [who for people in groups for who in people])]

    def noise_shares(self, cohort: People, context: StageContext) -> dict[int, float]:
        """The share of a release's noise (of its variance) that each person's device adds. `least` people have all of
        it together, so every sum that is recovered has at least all of the noise, and nobody sees it with less."""
        return {who: 1 / group.least for group in self.groups(cohort, context) for who in group.people}

    def run_protocol(
        self, uploads: dict[int, Upload], cohort: People, context: StageContext, silent: Collection[int] = ()
    ) -> Upload | None:
        """The sum, by the protocol; None where no group's sum can be recovered. The cohort shares secrets, those in
        `uploads` send, and the `silent` among them do not reveal. Keys come from the operating system: the sum does
        not depend on them."""
        total: Upload | None = None
        for server in self.sessions(uploads, cohort, context, silent):
            if server.total is not None:
                part = from_words(server.total, next(iter(uploads.values())))
                total = part if total is None else total + part
        return None if total is None else self.decode(total)

    def sessions(
        self, uploads: dict[int, Upload], cohort: People, context: StageContext, silent: Collection[int] = ()
    ) -> list[Server]:
        """Every group's server after the protocol: what it saw, and the sum or why it failed."""
        bits = min((self.fitting(upload.total).bits for upload in uploads.values()), default=self.bits)
        kind = WORD[next(width for width in WORD if bits <= width)]
        vectors = {person: to_words(self.encode(upload), kind) for person, upload in uploads.items()}
        return [
            run_session(group, {person: vectors[person] for person in group.people if person in vectors}, silent)
            for group in self.groups(cohort, context)
        ]

    # Bytes

    def overhead_bytes(self, people: int) -> int:
        """What a device sends beside its vector in a group of `people`: keys, encrypted shares, revealed shares."""
        width = self._group(tuple(range(people)), 0).degree
        return 2 * KEY + width * (NONCE + 2 * SEED + TAG) + (width + 1) * SEED

    def message_layout(self, total: Params) -> Params:
        """Tensors like those of a device's messages: integers, and the protocol's own bytes for a group of the
        requested size (the whole cohort: of `most`)."""
        if (other := self.fitting(total)) is not self:
            return other.message_layout(total)
        if self.bits < 32:
            written = {n: torch.zeros(-(-v.numel() * self.bits // 8), dtype=torch.uint8) for n, v in total.items()}
        else:
            kind = torch.int64 if self.bits == 64 else torch.int32
            written = {name: torch.zeros(value.shape, dtype=kind) for name, value in total.items()}
        extra = torch.zeros(self.overhead_bytes(self.group or self.most), dtype=torch.uint8)
        return written | {"secure": extra}


def _step(sum_bound: float, bits: int) -> float:
    """The smallest power of two such that a sum up to the bound has fewer than 2^(bits-1) of them."""
    return 2.0 ** (math.floor(math.log2(sum_bound)) + 1 - (bits - 1))


def to_words(encoded: Upload, kind: Word) -> Words:
    """An encoded upload as one vector: the weight, then every leaf by name."""
    leaves = [encoded.weight, *(encoded.total[name] for name in sorted(encoded.total))]
    return np.concatenate([leaf.reshape(-1).numpy() for leaf in leaves]).astype(kind)


def from_words(words: Words, like: Upload) -> Upload:
    """The inverse of `to_words`, with signs."""
    signed = words.view(f"i{words.itemsize}").astype(np.int64)
    names = sorted(like.total)
    ends = np.cumsum([1, *(like.total[name].numel() for name in names)])
    parts = np.split(signed, ends[:-1])
    total = {name: torch.from_numpy(part).reshape(like.total[name].shape) for name, part in zip(names, parts[1:])}
    return Upload({name: total[name] for name in like.total}, torch.from_numpy(parts[0]).reshape(like.weight.shape))
