"""The server's door: what is not a sound update is refused, counted by reason, and the round goes on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from ..core import Params, Upload
from .ledger import Head, decode, encode

LIMIT = 1e8  # no honest number here is larger; 1e9 from a broken or hostile device would drown everybody else
WHOLE_LIMIT = 2**50  # of whole numbers: sums of thousands of messages stay below 2^63
MAX_WEIGHT = 1e7
CROWD = 1000  # the sum of so many honest people's is not larger either
SLACK = 1024  # bytes that a message may be longer than a sound one
REASONS = {
    "oversized": "longer than a sound message",
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
    "abandoned": "lost with a group whose masks could not be taken off",
}


class Door:
    """One round's. What comes in is bytes from anybody; what goes on is one sound upload a person who was asked."""

    def __init__(
        self, run: int, round: int, asked: Iterable[int], expected: Params | None = None,
        people: Mapping[int, int] | None = None,
    ) -> None:  # fmt: skip
        self.people = people or {}  # in the sum that somebody sends, where it is more than one
        self.run, self.round, self.waiting = run, round, {int(who) for who in asked}
        self.answered: set[int] = set()
        self.begun: set[int] = set() if expected is None else set(self.waiting)  # who have had the time to answer
        self.refused: Counter[str] = Counter()
        self.expected: Params = {}
        self.most = 0
        if expected is not None:
            self.expect(expected)

    def expect(self, total: Params, who: int | None = None) -> None:
        """Learn what a sound upload looks like, once; and that from now on `who` may have answered."""
        if who is not None:
            self.begun.add(who)
        if not self.most:
            size = len(encode(Upload(total, torch.ones(()))))
            self.expected, self.most = total, size * (2 if self.people else 1) + SLACK

    def admit(self, blob: bytes) -> tuple[int, Upload] | None:
        """(who, upload), or None where it is refused: that is counted by reason. Of two sound messages in the name of
        one person the first counts: who wrote it, the transport must tell (keys and TLS), the door cannot."""
        if self.most and len(blob) > self.most:
            return self.refuse("oversized")
        try:
            upload, head = decode(blob)
        except ValueError:
            return self.refuse("not a message")
        wrong = self._wrong(head)
        return self.refuse(wrong) if wrong else self.look(head.person, upload)

    def look(self, who: int, upload: Upload) -> tuple[int, Upload] | None:
        """The same of an upload that is no message."""
        reason = refusal(upload, self.expected, self.people.get(who, 1))
        if reason:
            return self.refuse(reason)
        self.waiting.remove(who)
        self.answered.add(who)
        return who, upload

    def refuse(self, reason: str, who: int = -1) -> tuple[int, Upload] | None:
        """Count it; `who` was admitted, and is not any more. None, for whoever returns it."""
        self.refused[reason] += 1
        self.answered.discard(who)
        return None

    def _wrong(self, head: Head) -> str | None:
        if head.run != self.run:
            return "other run"
        if head.round != self.round:
            return "late" if head.round < self.round else "early"
        if head.person in self.answered:
            return "duplicate"
        return None if head.person in self.waiting & self.begun else "not asked"


def refusal(upload: Upload, expected: Params, people: int = 1) -> str | None:
    """Why this one upload is refused, or None. `expected` has the names, shapes and types of a sound one; it may be the
    sum of several people's."""
    if set(upload.total) != set(expected):
        return "names"
    if any(upload.total[name].shape != like.shape for name, like in expected.items()) or upload.weight.ndim:
        return "shape"
    wider = {torch.int32: torch.int64}  # with noise, or as a sum, whole numbers may take more bits
    wider |= {torch.float32: torch.float64} if people > 1 else {}
    if any(
        value.dtype not in (expected[name].dtype, wider.get(expected[name].dtype))
        for name, value in upload.total.items()
    ) or (upload.weight.dtype != torch.float32):
        return "dtype"
    for sound, reason in soundness(Upload({n: v[None] for n, v in upload.total.items()}, upload.weight[None]), people):
        if not bool(sound[0]):
            return reason
    return None


def soundness(uploads: Upload, people: int = 1) -> list[tuple[Tensor, str]]:
    """For uploads stacked along a first axis: which pass each check of the numbers, [uploads], worst reason first. Each
    is a sum of so many people's."""
    weight = uploads.weight
    everyone = torch.ones_like(weight, dtype=torch.bool)
    finite, small = torch.isfinite(weight), everyone
    for value in uploads.total.values():
        if not value.is_floating_point():
            if value.dtype == torch.int64:  # 32 bits are small enough as they are
                each = value.reshape(len(value), -1)
                small = small & (each.amax(1) <= WHOLE_LIMIT) & (each.amin(1) >= -WHOLE_LIMIT)
            continue
        flat = value.reshape(-1)
        if float(torch.dot(flat, flat)) <= LIMIT**2:  # then no number in it can be larger; the usual case, in one pass
            continue
        each = value.reshape(len(value), -1)
        size = torch.maximum(each.amax(1), -each.amin(1))  # NaN and infinity survive a maximum
        finite, small = finite & torch.isfinite(size), small & (size <= LIMIT * max(1.0, people / CROWD))
    return [(finite, "non-finite"), (small, "too large"), ((weight > 0) & (weight <= MAX_WEIGHT * people), "weight")]
