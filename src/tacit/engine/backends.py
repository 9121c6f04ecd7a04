"""Three ways to run the clients of one cohort. They mean the same; they differ in speed.

    loop     one person at a time on whole tables, every upload really encoded to bytes and read back: slow, obvious,
             the oracle
    vmap     people of similar length at once, each on a compact table of the rows they touch
    kernel   a method's own compiled client for the whole cohort (methods that have one)

A backend returns the sum of the admitted uploads and how many were refused for what; new private parameters go into the
store, of admitted people only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import vmap

from ..core import Download, Examples, Method, Params, Seat, Stage, Upload
from ..data.sampling import Ragged
from ..errors import SettingError, did_you_mean
from ..wire.admission import Door, soundness
from ..wire.ledger import Head, encode
from ..wire.rng import derive, device_keys, uniforms
from .store import Store

People = NDArray[np.int64]
Mail = Callable[[Iterator[bytes]], Iterator[bytes]]
NOTHING = Ragged(np.zeros(1, np.int64), np.zeros(0, np.int32), np.zeros(0, np.float32))


class Outcome(NamedTuple):
    """Of a cohort."""

    upload: Upload | None  # the sum of what was admitted
    refused: Counter[str]  # by reason
    first: int | None  # somebody who was refused
    answered: int  # people whose upload was admitted
    bytes: tuple[int, int] | None = None  # (up, down) as they were sent, where messages were really sent
    noise: float = 0.0  # the part of a release's variance that devices elsewhere have added already


PADDED = 4_000_000  # numbers in the largest array of a chunk: it should stay in the outer cache


def choose(backend: str, method: Method, wire: Stage) -> str:
    """`auto` is the fastest that means the same."""
    known = ("auto", "loop", "vmap", "kernel")
    if backend not in known:
        raise SettingError(did_you_mean(backend, known, "backend"))
    if method.pooled:  # one device that holds everything: there is nothing to run at once
        return "loop"
    sees_single = wire.client and not wire.sums or wire.combine or wire.seal
    possible = method.kernel is not None and not sees_single
    if backend == "kernel" and not possible:
        why = "this method has none" if method.kernel is None else "it sums before a stage could see single uploads"
        raise SettingError(f"The kernel backend cannot be used here: {why}. Use --backend vmap.")
    if backend == "auto":
        return "kernel" if possible else "vmap"
    return backend


@dataclass(frozen=True, eq=False)
class Call:
    """A round as its clients see it, and the way back."""

    down: Download
    people: People  # who compute
    examples: Ragged  # theirs, where they are here
    seat: Seat
    wire: Stage = Stage()
    asked: People | None = None  # `people` and those who dropped out; told apart by secure sums only
    run: int = 0
    mail: Mail | None = None  # what the network does to messages; they go through `loop` as bytes
    parts: dict[int, float] = field(default_factory=dict)  # of the noise that each person adds in a sealed sum

    def keys(self) -> list[bytes]:
        """What each of these people's devices draws from; none where no stage draws on a device."""
        if not (self.parts or self.wire.random):
            return [b""] * len(self.people)
        return device_keys(self.seat.key, self.people)


def collect(backend: str, method: Method, call: Call, store: Store) -> Outcome:
    """The sum of what these people upload."""
    if backend == "kernel":
        assert method.kernel is not None
        upload, refused = method.kernel(call.down, store, call.people, call.examples)
        counted = Counter({reason: count for reason, count in refused.items() if count})
        return Outcome(upload, counted, None, len(call.people) - sum(refused.values()))
    return loop(method, call, store) if backend == "loop" else batched(method, call, store)


def staged(wire: Stage, seat: Seat, uploads: Upload, keys: list[bytes]) -> Upload:
    """Stacked uploads after the devices' stages."""
    if wire.client is None:
        return uploads
    client = wire.client
    draws = rounding_draws(uploads, keys) if wire.random else {}
    return vmap(lambda upload, own: client(upload, seat._replace(draws=own)))(uploads, draws)


def rounding_draws(uploads: Upload, keys: list[bytes]) -> Params:
    """Numbers in [0, 1) for random rounding, as many as each leaf of one upload has: name -> [people, numbers]. A
    leaf's first numbers are the same whether its table is whole or compact."""
    return {
        name: torch.from_numpy(np.stack([uniforms(derive(key, "rounding", name), value[0].numel()) for key in keys]))
        for name, value in uploads.total.items()
    }


def loop(method: Method, call: Call, store: Store) -> Outcome:
    """One device after the other; an upload is a message that goes through the mail and the door. Sealed ones are
    checked on the device, as nobody else can, and go through the real protocol."""
    door = Door(call.run, call.seat.round, call.people)
    kept: dict[int, Params] = {}  # what stays with people whose upload is on its way
    apart: dict[int, Upload] = {}  # uploads that are not simply added
    total: Upload | None = None
    first: int | None = None

    def devices() -> Iterator[tuple[int, Upload]]:
        for place, (who, key) in enumerate(zip(call.people.tolist(), call.keys())):
            held = Examples(*(x[0] for x in call.examples.pad(np.array([place]))))
            own = {name: value[0] for name, value in store.gather(call.people[place : place + 1]).items()}
            upload, kept[who] = method.client(call.down, own, held)
            upload = one_of(staged(call.wire, call.seat, stacked([upload]), [key]))
            upload = with_noise(call, who, key, upload)
            door.expect(upload.total, who)  # what a sound upload looks like is known from the method, not from the wire
            yield who, upload

    def sent() -> Iterator[bytes]:
        return (encode(upload, Head(call.run, call.seat.round, who)) for who, upload in devices())

    def arrived() -> Iterator[tuple[int, Upload] | None]:
        if call.wire.seal:
            return (door.look(who, upload) for who, upload in devices())
        return (door.admit(blob) for blob in (call.mail(sent()) if call.mail else sent()))

    for got in arrived():
        if got is not None and not finite(kept[got[0]], 0):  # a device that lost itself says nothing
            got = door.refuse("non-finite", got[0])
        if got is None:
            first = next(reversed(kept), None) if first is None else first
            continue
        who, upload = got
        store.put(np.array([who]), {name: value[None] for name, value in kept.pop(who).items()})
        if call.wire.seal or call.wire.combine:
            apart[who] = upload
        else:
            total = wide(upload) if total is None else total + upload
    if apart and call.wire.seal:  # rejected clients send zeros, so that pairwise masks still cancel
        one = next(iter(apart.values()))
        nothing = Upload({name: torch.zeros_like(v) for name, v in one.total.items()}, torch.zeros_like(one.weight))
        keys = dict(zip(call.people.tolist(), call.keys()))
        silent = {who: with_noise(call, who, key, nothing) for who, key in keys.items() if who not in apart}
        total = call.wire.seal.collect(apart | silent, call.asked, call.seat)
    elif apart and call.wire.combine:
        total = call.wire.combine(stacked([apart[who] for who in sorted(apart)]))
    return Outcome(total, door.refused, first, len(door.answered))


def with_noise(call: Call, who: int, key: bytes, upload: Upload) -> Upload:
    """With the noise that this person's device adds, where devices do."""
    if who not in call.parts or call.wire.share is None:
        return upload
    seat = call.seat._replace(key=derive(key, "noise"), shares=call.parts[who])
    return narrow(call.wire.share(upload, seat)) if call.wire.local else call.wire.share(upload, seat)


def wide(upload: Upload) -> Upload:
    """Whole numbers as 64 bits, so that a sum of them cannot overflow."""
    if all(value.is_floating_point() for value in upload.total.values()):
        return upload
    return Upload({name: value.long() for name, value in upload.total.items()}, upload.weight)


def narrow(upload: Upload) -> Upload:
    """Whole numbers as 32 bits, as a device sends them: the grid of local noise is made so that they fit."""
    return Upload({name: value.int() for name, value in upload.total.items()}, upload.weight)


def one_of(uploads: Upload) -> Upload:
    """The only one of stacked uploads."""
    return Upload({name: value[0] for name, value in uploads.total.items()}, uploads.weight[0])


def stacked(uploads: list[Upload]) -> Upload:
    total = {name: torch.stack([up.total[name] for up in uploads]) for name in uploads[0].total}
    return Upload(total, torch.stack([up.weight for up in uploads]))


def batched(method: Method, call: Call, store: Store) -> Outcome:
    down, people, examples, wire = call.down, call.people, call.examples, call.wire
    total: Upload | None = None
    apart: list[Upload] = []
    refused: Counter[str] = Counter()
    first: int | None = None
    follow = [name for name in down.params if name in method.rows]
    compact = bool(follow or store.rows) and not wire.whole
    catalogue = next((down.params[n].shape[0] for n in follow), 0) or max(
        (store.initial[n].shape[0] for n in store.rows), default=0
    )
    keys = call.keys()
    for chunk in chunks(examples, _width(method, down, store, examples), method.bulk or _bulk(down, store, compact)):
        held = examples.pad(chunk)
        params, rows = down.params, None
        if compact:
            held, rows = compacted(held, catalogue)
            params = {n: v[rows] if n in method.rows else v for n, v in params.items()}
        dims = {n: 0 if compact and n in method.rows else None for n in params}
        own = store.gather(people[chunk], rows)
        run = vmap(method.client, in_dims=(Download(dims, None), 0, 0))  # type: ignore[arg-type]
        uploads, own = run(Download(params, down.round), own, held)
        uploads = staged(wire, call.seat, uploads, [keys[place] for place in chunk])
        good, reasons = admitted(uploads, finite(own, 1))
        refused += reasons
        if first is None and not good.all():
            first = int(people[chunk][int((~good).nonzero()[0])])
        if good.any():
            uploads = wire.seal.seal(uploads) if wire.seal else uploads
            if wire.combine:
                apart.append(expanded(uploads, good, rows, method.rows, catalogue))
            else:
                total = add_people(total, uploads, good, rows, method.rows, catalogue)
        kept = good.nonzero()[:, 0]
        store.put(
            people[chunk][kept.numpy()], {n: v[kept] for n, v in own.items()}, None if rows is None else rows[kept]
        )
    if wire.combine and apart:
        total = wire.combine(Upload(
            {name: torch.cat([up.total[name] for up in apart]) for name in apart[0].total},
            torch.cat([up.weight for up in apart]),
        ))  # fmt: skip
    total = wire.seal.open(total) if wire.seal and total is not None else total
    return Outcome(total, refused, first, len(people) - sum(refused.values()))


def expanded(uploads: Upload, good: Tensor, rows: Tensor | None, follow: tuple[str, ...], catalogue: int) -> Upload:
    """Good people's uploads one by one, stacked, with whole tables."""
    out: Params = {}
    for name, value in uploads.total.items():
        if name in follow and rows is not None:
            whole = torch.zeros(len(value), catalogue, *value.shape[2:], dtype=value.dtype)
            at = rows.clamp(min=0).reshape(*rows.shape, *[1] * (value.ndim - 2)).expand_as(value)
            value = whole.scatter_add(1, at, value)
        out[name] = value[good]
    return Upload(out, uploads.weight[good])


def _bulk(down: Download, store: Store, compact: bool) -> int:
    """Numbers that a person's model takes, with its gradient, where it is not compacted to what the person touches."""
    return 0 if compact else 2 * sum(v.numel() for v in (*down.params.values(), *store.initial.values()))


def _width(method: Method, down: Download, store: Store, examples: Ragged) -> int:
    """Numbers that one example may occupy: the widest catalogue leaf, as a factorisation's outer products are; or the
    example itself, where it has features."""
    if examples.inputs.ndim > 1:
        return 4 * int(np.prod(examples.inputs.shape[1:]))
    leaves = [*down.params.items(), *store.initial.items()]
    width = max((v[0].numel() for n, v in leaves if n in method.rows), default=1)
    return width * (width + 3) // 2 if method.examples == "history" else 2 * width


def chunks(examples: Ragged, width: int, bulk: int = 0) -> Iterator[People]:
    """People of similar length together, so that padding is at most a quarter, in pieces that fit the cache: `width`
    numbers for an example, and at least `bulk` for a person."""
    lengths = examples.lengths
    order = np.argsort(lengths, kind="stable")
    begin = 0
    while begin < len(order):
        end, shortest = begin, max(int(lengths[order[begin]]), 1)
        while end < len(order):
            longest = int(lengths[order[end]])
            size = (end + 1 - begin) * max(longest * width, bulk)
            if end > begin and (longest > 1.25 * shortest + 8 or size > PADDED):
                break
            end += 1
        yield order[begin:end]
        begin = end


def compacted(held: Examples, catalogue: int) -> tuple[Examples, Tensor]:
    """Examples whose items are numbers of rows in a compact table, and the rows [people, r] of that table in the
    catalogue (-1: none)."""
    flat = held.inputs.masked_fill(held.mask == 0, catalogue).flatten(1)
    order = flat.sort(1).values
    first = torch.ones_like(order, dtype=torch.bool)
    first[:, 1:] = order[:, 1:] != order[:, :-1]
    place = first.cumsum(1) - 1
    rows = torch.full((len(flat), int(place[:, -1].max()) + 1), catalogue)
    rows.scatter_(1, place, order)
    if bool((rows[:, -1] == catalogue).all()) and rows.shape[1] > 1:
        rows = rows[:, :-1].contiguous()
    local = torch.searchsorted(rows, flat).clamp(max=rows.shape[1] - 1).reshape(held.inputs.shape)
    return held._replace(inputs=local), rows.masked_fill(rows == catalogue, -1)


def finite(own: Params, axes: int) -> Tensor:
    """Whether private parameters are numbers, by person where they are stacked: a device that lost itself keeps what it
    had, and its upload does not count."""
    tests = [torch.isfinite(v).reshape(*v.shape[:axes], -1).all(-1) for v in own.values()]
    return torch.stack(tests).all(0) if tests else torch.ones((), dtype=torch.bool)


def admitted(uploads: Upload, kept: Tensor) -> tuple[Tensor, Counter[str]]:
    good = torch.ones_like(uploads.weight, dtype=torch.bool)
    reasons: Counter[str] = Counter()
    for sound, reason in [*soundness(uploads), (kept.expand_as(good), "non-finite")]:
        failed = int((good & ~sound).sum())
        if failed:
            reasons[reason] += failed
        good &= sound
    return good, reasons


def add_people(
    total: Upload | None, uploads: Upload, good: Tensor, rows: Tensor | None, follow: tuple[str, ...], catalogue: int
) -> Upload:
    """`total` plus the uploads of the people who are `good`; compact tables are scattered into whole ones, in place.
    Whole numbers are added as 64 bits."""
    if not good.all():
        uploads = Upload({name: value[good] for name, value in uploads.total.items()}, uploads.weight[good])
        rows = None if rows is None else rows[good]
    sums: Params = {} if total is None else total.total
    for name, value in uploads.total.items():
        if name in follow and rows is not None:
            if total is None:
                sums[name] = torch.zeros(catalogue, *value.shape[2:], dtype=_sum_type(value))
            real = rows.clamp(min=0).flatten()  # padding adds zeros to the first row: nobody's change there is a change
            sums[name].index_add_(0, real, value.flatten(0, 1).to(sums[name].dtype))
        else:
            sums[name] = value.sum(0) + (0 if total is None else sums[name])
    return Upload(sums, uploads.weight.sum() + (0 if total is None else total.weight))


def _sum_type(value: Tensor) -> torch.dtype:
    return value.dtype if value.is_floating_point() else torch.int64
