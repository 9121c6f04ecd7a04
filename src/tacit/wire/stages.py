"""Stages that compose with every method, each for one device or for the sum.

    sparsify=SHARE   send the largest numbers only; the others are kept and added next time
    quantise=BITS    send whole numbers of so few bits, rounded up or down by chance, so that the mean is right
    clip=C           no person's whole change is longer than C, and everybody weighs the same
    local=Z          discrete Gaussian noise of standard deviation Z x C on every upload, on the device
    noise=Z          discrete Gaussian noise of standard deviation Z x C on the sum, once
    secure[=N]       the server sees sums only, of N people or of the whole cohort (wire/secure.py)
    bound, trim, median, krum    in place of the plain sum (wire/robust.py)
They stand in this order on a device, and in the reverse one on the server. Clipping comes after what could lengthen an
upload again, and noise after clipping: a bound that does not hold is no bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from ..core import Download, Examples, Method, Params, Seat, Stage, Upload
from ..local import split
from .noise import IntegerNoise

Releases = tuple[tuple[float, float], ...]


def clip(limit: float, told: tuple[str, ...] = ()) -> Stage:
    """Scale the whole change down to norm `limit` where it is longer; weight 1. What is `told` for a curve only is not
    sent: nobody bounds it."""

    def client(upload: Upload, seat: Seat) -> Upload:
        each = torch.where(upload.weight > 0, 1 / upload.weight, 0.0)
        change = {name: value * each for name, value in upload.total.items() if name not in told}
        norm = torch.sqrt(sum(((value.double() ** 2).sum() for value in change.values()), torch.zeros(())))
        share = (limit / norm.clamp(min=1e-30)).clamp(max=1.0)
        return Upload({n: (v * share).to(v.dtype) for n, v in change.items()}, torch.ones_like(upload.weight))

    return Stage(client)


def noise(
    multiplier: float, limit: float | None = 1.0, release: Releases = (), step: float | None = None,
    told: tuple[str, ...] = (),
) -> Stage:  # fmt: skip
    """Central: clipped uploads, and discrete Gaussian noise on their sum (wire/noise.py).

    Devices clip the whole change to norm `limit` and round it to a grid; `step` is the grid's where secure sums have a
    modulus. `limit` None clips nothing: such noise promises nothing, and is measured in units of 1. `release` has
    (bound, share of the budget) by round, where a method bounds its uploads itself. The mean divides by the expected
    number of people, which is public and does not tell who was there. Where sums are sealed every device adds a share,
    so that no sum is ever seen without noise, and the server adds none. (The loop backend does that; faster ones draw
    one sample with the summed variance.) What is `told` for a curve only is not sent.
    """
    bounds = release or ((limit or 1.0, 1.0),)
    drawn = IntegerNoise(multiplier, bounds, step, sums=bool(release), clipped=bool(release or limit))

    def server(upload: Upload, seat: Seat) -> Upload:
        total = drawn.add(upload.total, seat.round, seat.people, seat.key, seat.shares)
        return Upload(drawn.to_floats(total, seat.round), torch.tensor(seat.people))

    share, client = _share(drawn), _to_grid(drawn, told)
    return Stage(client, server, share=share, written=_words, poisson=True, grid=drawn.grid, sums=bool(release))


def local(multiplier: float, limit: float | None = 1.0, told: tuple[str, ...] = ()) -> Stage:
    """Clipped uploads, and discrete Gaussian noise on every number of every one of them, on the device: whoever sees an
    upload sees noise."""
    drawn = IntegerNoise(multiplier, ((limit or 1.0, 1.0),), local=True, clipped=limit is not None)

    def server(upload: Upload, seat: Seat) -> Upload:
        total = drawn.add(upload.total, seat.round, seat.people, seat.key, seat.shares)
        return Upload(drawn.to_floats(total, seat.round), upload.weight)

    return Stage(_to_grid(drawn, told), server, share=_share(drawn), written=_words, local=True, grid=drawn.grid)


def _to_grid(drawn: IntegerNoise, told: tuple[str, ...]) -> Callable[[Upload, Seat], Upload]:
    def client(upload: Upload, seat: Seat) -> Upload:
        total = {name: value for name, value in upload.total.items() if name not in told}
        return Upload(*drawn.to_grid(total, upload.weight, seat.round))

    return client


def _share(drawn: IntegerNoise) -> Callable[[Upload, Seat], Upload]:
    """The noise that one device adds to its own upload."""

    def share(upload: Upload, seat: Seat) -> Upload:
        return Upload(drawn.add(upload.total, seat.round, seat.people, seat.key, seat.shares), upload.weight)

    return share


def _words(total: Params) -> Params:
    """A device writes whole numbers of 32 bits."""
    return {name: torch.zeros(value.shape, dtype=torch.int32) for name, value in total.items()}


def quantise(bits: int) -> Stage:
    """Whole multiples of the largest number / (2^(bits-1) - 1), by leaf, rounded up or down by chance: right in the
    mean. Draws go by rows that are not zero, so that a device draws the same whether it holds whole tables or not."""
    levels = 2 ** (bits - 1) - 1

    def one(value: Tensor, draws: Tensor) -> Tensor:
        step: Tensor = value.abs().amax() / levels
        rows = value.reshape(value.shape[0] if value.ndim else 1, -1)
        place = ((rows != 0).any(1).cumsum(0) - 1).clamp(min=0)
        draw = draws[place[:, None] * rows.shape[1] + torch.arange(rows.shape[1])].reshape(value.shape)
        whole = torch.floor(value.double() / torch.where(step > 0, step, 1.0) + draw)
        return (whole.clamp(-levels, levels) * step).to(value.dtype)

    def client(upload: Upload, seat: Seat) -> Upload:
        return Upload({name: one(value, seat.draws[name]) for name, value in upload.total.items()}, upload.weight)

    def written(total: Params) -> Params:
        kind = torch.int8 if bits <= 8 else torch.int16
        out: Params = {}
        for name, value in total.items():
            small = value.is_floating_point() and value.numel() > 1
            out |= {name: value.to(kind), f"{name}.step": torch.zeros(())} if small else {name: value}
        return out

    return Stage(client, written=written, random=True)


def sparsify(method: Method, share: float, like: Params) -> tuple[Method, Stage]:
    """(a method that sends the largest `share` of every leaf's numbers and keeps the rest for next time, a stage that
    says how it is written). What was not sent is private and lives in the store, by touched rows. `like` is an upload
    of the method, with whole tables. Where the entries are tells much: not a protection, and said so."""
    many = {name: max(1, math.ceil(share * value.numel())) for name, value in like.items()}

    def init(params: Params) -> tuple[Params, Params]:
        shared, own = method.init(params)
        return shared, own | {f"unsent.{name}": torch.zeros_like(value) for name, value in like.items()}

    def client(down: Download, own: Params, held: Examples) -> tuple[Upload, Params]:
        own, unsent = split(own, ("unsent.*",))
        upload, own = method.client(down, own, held)
        sent = {}
        for name, value in upload.total.items():
            all_of_it = value + unsent[f"unsent.{name}"]
            flat = all_of_it.flatten()
            kept = torch.zeros_like(flat)
            if flat.numel() <= many[name]:
                kept = flat
            else:
                at = flat.abs().sort(descending=True, stable=True).indices[: many[name]]  # ties: the first rows
                kept = kept.scatter(0, at, flat.gather(0, at))
            sent[name] = kept.reshape(value.shape)
            unsent = unsent | {f"unsent.{name}": all_of_it - sent[name]}
        return Upload(sent, upload.weight), own | unsent

    def written(total: Params) -> Params:
        out: Params = {}
        for name, value in total.items():
            smaller = many[name] < value.numel() * 31 / 32  # a bit for every number, and the numbers that are sent
            bits = torch.zeros(-(-value.numel() // 8), dtype=torch.uint8)
            out |= {f"{name}.bits": bits, f"{name}.values": value.flatten()[: many[name]]} if smaller else {name: value}
        return out

    def personalize(shared: Params, own: Params, held: Examples) -> Params:
        return method.personalize(shared, split(own, ("unsent.*",))[0], held)

    rows = (*method.rows, *(f"unsent.{name}" for name in like if name in method.rows))
    made = method.but(init=init, client=client, personalize=personalize, rows=rows, kernel=None)
    return made, Stage(client=lambda upload, seat: upload, written=written)
