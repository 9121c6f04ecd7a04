"""The server's door: what is not a sound update is refused, counted by reason, and the round goes on."""

from __future__ import annotations

import torch
from torch import Tensor

from ..core import Params, Upload

LIMIT = 1e8  # no honest number here is larger; 1e9 from a broken or hostile device would drown everybody else
MAX_WEIGHT = 1e7
REASONS = ("names", "shape", "dtype", "non-finite", "too large", "weight")


def refusal(upload: Upload, expected: Params) -> str | None:
    """Why this one upload is refused, or None. `expected` has the names, shapes and types of a sound one."""
    if set(upload.total) != set(expected):
        return "names"
    if any(upload.total[name].shape != like.shape for name, like in expected.items()) or upload.weight.ndim:
        return "shape"
    if any(upload.total[name].dtype != like.dtype for name, like in expected.items()):
        return "dtype"
    for sound, reason in soundness(Upload({n: v[None] for n, v in upload.total.items()}, upload.weight[None])):
        if not bool(sound[0]):
            return reason
    return None


def soundness(uploads: Upload) -> list[tuple[Tensor, str]]:
    """For uploads stacked along a first axis: which pass each check of the numbers, [people], worst reason first."""
    weight = uploads.weight
    everyone = torch.ones_like(weight, dtype=torch.bool)
    finite, small = torch.isfinite(weight), everyone
    for value in uploads.total.values():
        flat = value.reshape(-1)
        if float(torch.dot(flat, flat)) <= LIMIT**2:  # then no number in it can be larger; the usual case, in one pass
            continue
        each = value.reshape(len(value), -1)
        size = torch.maximum(each.amax(1), -each.amin(1))  # NaN and infinity survive a maximum
        finite, small = finite & torch.isfinite(size), small & (size <= LIMIT)
    return [(finite, "non-finite"), (small, "too large"), ((weight > 0) & (weight <= MAX_WEIGHT), "weight")]
