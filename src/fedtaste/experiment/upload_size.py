"""The size of one upload, known before anything of that size is made, and a warning or refusal where it is too large.

A method's uploads are computed for three small catalogues; their size is a polynomial of at most the second degree in
the number of items (tables by item, or items x items), which gives the size for any catalogue.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from fedtaste.core import Method, Model
from fedtaste.errors import SettingError
from fedtaste.wire.parse import StageList, assemble, uploads_of

CHECKED_ITEMS = 10_000  # smaller catalogues make no upload that a computer could not hold
SMALL = (256, 512, 768)  # items of the catalogues that uploads are computed for; k is at most the first
LARGE_BYTES, MOST_BYTES = 50e6, 2**32  # of one upload: from the first on a note says so, from the second it is refused
BuildSmall = Callable[[int], tuple[Method, Model]]  # by number of items


def upload_bytes(build: BuildSmall, stages: StageList, items: int) -> float:
    """Bytes of the numbers in one person's largest upload with so many items."""
    values = dict(stages)
    chosen = tuple((name, value) for name, value in stages if name == "quantise")
    share = values.get("turns") or values.get("common_turns") or 1.0
    sizes = []
    for small in SMALL:
        method, model = build(small)
        likes = uploads_of(method, model, torch.zeros(1, 1, dtype=torch.int64))
        layout = assemble(chosen, method, likes, everybody=1).stage.message_layout
        messages = [layout(like) if layout else like for like in likes]
        sizes.append(max(sum(v.numel() * v.element_size() for v in message.values()) for message in messages))
    first, second, third = (share * size for size in sizes)
    bend = (third - 2 * second + first) / 2
    at = items / SMALL[0] - 1
    return first + (second - first) * at + bend * at * (at - 1)


def check_upload_size(build: BuildSmall, stages: StageList, items: int, method: str, ranking: bool) -> tuple[str, ...]:
    """A note where one upload is large, and SettingError where it is too large to be made."""
    if items < CHECKED_ITEMS:
        return ()
    size = upload_bytes(build, stages, items)
    if size < LARGE_BYTES:
        return ()
    what = f"One upload of {method} has {size / 1e6:,.0f} MB with {items:,} items"
    smaller = "add --wire turns=0.2,quantise=8 where the method takes it, a smaller k, or leave rare items out"
    advice = f"Use --method fedeigen, or {smaller}" if ranking and method != "fedeigen" else f"To shrink it, {smaller}"
    if size >= MOST_BYTES:
        raise SettingError(f"{what}: no device can send that. {advice} (docs/communication.md).")
    return (f"{what}. {advice} (docs/communication.md).",)
