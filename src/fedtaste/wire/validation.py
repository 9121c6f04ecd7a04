"""Validation of uploads on the server: invalid ones are refused and counted by reason, and the round goes on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from fedtaste.core import Params, Upload
from fedtaste.wire.messages import Head, decode, encode

LIMIT = 1e8  # no honest number is larger; a single 1e9 would dominate the sum
INTEGER_LIMIT = 2**50  # of integers: sums of thousands of messages stay below 2^63
MAX_WEIGHT = 1e7
CROWD = 1000  # LIMIT also holds for sums of up to so many uploads
SLACK = 1024  # bytes that a message may be longer than a valid one
REASONS = {
    "oversized": "longer than a valid message",
    "not a message": "cannot be read",
    "other run": "made for another run",
    "late": "of a round that is over",
    "early": "of a round that has not begun",
    "not asked": "from somebody who was not asked",
    "duplicate": "from somebody who has answered already",
    "names": "other parameters than the method sends",
    "shape": "parameters of another shape",
    "dtype": "numbers of another type",
    "non-finite": "NaN or infinity",
    "too large": "a number beyond what any honest device sends",
    "weight": "a weight that is not positive, or absurdly large",
    "abandoned": "lost with a group whose masks could not be removed",
}


class UploadValidator:
    """Validates the uploads of one round. Input: bytes from anybody. Output: one valid upload for each person of the
    cohort who sent one. `people` says how many people's sum somebody sends, where it is more than one."""

    def __init__(
        self, run: int, round: int, cohort: Iterable[int], expected: Params | None = None,
        people: Mapping[int, int] | None = None,
    ) -> None:  # fmt: skip
        self.people = people or {}
        self.run, self.round, self.waiting = run, round, {int(who) for who in cohort}
        self.answered: set[int] = set()
        self.begun: set[int] = set() if expected is None else set(self.waiting)  # who have had the time to answer
        self.refused: Counter[str] = Counter()
        self.expected: Params = {}
        self.max_bytes = 0  # of a message; 0: not known yet
        if expected is not None:
            self.expect(expected)

    def expect(self, total: Params, who: int | None = None) -> None:
        """Set, once, the names, shapes and types of a valid upload; from now on `who` may have answered."""
        if who is not None:
            self.begun.add(who)
        if not self.max_bytes:
            size = len(encode(Upload(total, torch.ones(()))))
            self.expected, self.max_bytes = total, size * (2 if self.people else 1) + SLACK

    def admit(self, blob: bytes, sender: int | None = None) -> tuple[int, Upload] | None:
        """Read a message: (person, upload), or None where it is refused, which is counted by reason. Of two valid
        messages in the name of one person the first counts: the transport (keys and TLS) must authenticate the sender.
        Where the transport knows the `sender`, a message in another person's name is refused."""
        if self.max_bytes and len(blob) > self.max_bytes:
            return self.refuse("oversized")
        try:
            upload, head = decode(blob)
        except ValueError:
            return self.refuse("not a message")
        reason = "not asked" if sender not in (None, head.person) else self._header_refusal(head)
        return self.refuse(reason) if reason else self.admit_upload(head.person, upload)

    def admit_upload(self, who: int, upload: Upload) -> tuple[int, Upload] | None:
        """As `admit`, for an upload that did not arrive as a message."""
        reason = refusal(upload, self.expected, self.people.get(who, 1))
        if reason:
            return self.refuse(reason)
        self.waiting.remove(who)
        self.answered.add(who)
        return who, upload

    def refuse(self, reason: str, who: int = -1) -> tuple[int, Upload] | None:
        """Count a refusal, and withdraw the earlier admission of `who`. Always None, for callers to return."""
        self.refused[reason] += 1
        self.answered.discard(who)
        return None

    def _header_refusal(self, head: Head) -> str | None:
        if head.run != self.run:
            return "other run"
        if head.round != self.round:
            return "late" if head.round < self.round else "early"
        if head.person in self.answered:
            return "duplicate"
        return None if head.person in self.waiting & self.begun else "not asked"


def refusal(upload: Upload, expected: Params, people: int = 1) -> str | None:
    """The reason to refuse this upload, or None. `expected` has the names, shapes and types of a valid one; the upload
    may be the sum of `people` people's."""
    if set(upload.total) != set(expected):
        return "names"
    if any(upload.total[name].shape != like.shape for name, like in expected.items()) or upload.weight.ndim:
        return "shape"
    wider = {torch.int32: torch.int64}  # with noise, or as a sum, integers may take more bits
    wider |= {torch.float32: torch.float64} if people > 1 else {}
    types = [(value.dtype, expected[name].dtype) for name, value in upload.total.items()]
    if any(sent not in (valid, wider.get(valid)) for sent, valid in types) or upload.weight.dtype != torch.float32:
        return "dtype"
    stacked = Upload({n: v[None] for n, v in upload.total.items()}, upload.weight[None])
    return next((reason for valid, reason in soundness(stacked, people) if not bool(valid[0])), None)


def soundness(uploads: Upload, people: int = 1) -> list[tuple[Tensor, str]]:
    """For uploads stacked along a first axis, each a sum of `people` people's: (which pass [uploads], the reason to
    refuse the others) for every check of the numbers, worst reason first."""
    weight = uploads.weight
    everyone = torch.ones_like(weight, dtype=torch.bool)
    finite, small = torch.isfinite(weight), everyone
    for value in uploads.total.values():
        if not value.is_floating_point():
            if value.dtype == torch.int64:  # 32 bits are small enough as they are
                each = value.reshape(len(value), -1)
                small = small & (each.amax(1) <= INTEGER_LIMIT) & (each.amin(1) >= -INTEGER_LIMIT)
            continue
        flat = value.reshape(-1)
        if float(torch.dot(flat, flat)) <= LIMIT**2:  # then no number in it can be larger; the usual case, in one pass
            continue
        each = value.reshape(len(value), -1)
        size = torch.maximum(each.amax(1), -each.amin(1))  # NaN and infinity survive a maximum
        finite, small = finite & torch.isfinite(size), small & (size <= LIMIT * max(1.0, people / CROWD))
    return [(finite, "non-finite"), (small, "too large"), ((weight > 0) & (weight <= MAX_WEIGHT * people), "weight")]
