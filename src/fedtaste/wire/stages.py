"""Upload stages: clipping, central and local noise, quantisation and sparsification; they compose with every method.

    sparsify=SHARE   send the largest numbers only; the others are added to the next upload
    turns=SHARE      send a part of the rows by turns that do not depend on data; common_turns: the same for everybody
    quantise=BITS    send integers of so few bits, rounded up or down at random, so that the mean is right; with secure
                     sums after clipping, and with one announced step
    clip=C           scale a person's whole change down to length C; everybody has weight 1
    local=Z          discrete Gaussian noise of standard deviation Z x C on every upload, on the device
    noise=Z          discrete Gaussian noise of standard deviation Z x C on the sum, once
    secure[=N]       the server sees sums only, of N people or of the whole cohort (wire/secure_sums.py)
    bound, trim, median, krum    in place of the plain sum (wire/robust_sums.py)
They run in this order on a device, and in reverse order on the server. Clipping comes after every stage that could
lengthen an upload again, and noise after clipping: otherwise the bound would not hold.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedtaste.core import Download, Examples, Fast, Method, Params, Stage, StageContext, Upload
from fedtaste.params import split
from fedtaste.wire.noise import IntegerNoise

Releases = tuple[tuple[float, float], ...]


def clip(limit: float, curve_only: tuple[str, ...] = ()) -> Stage:
    """Scale the whole change down to norm `limit` where it is longer, and set the weight to 1. Parameters that only
    feed the learning curve (`curve_only`) are not sent, because nothing bounds them."""

    def client(upload: Upload, context: StageContext) -> Upload:
        inverse = torch.where(upload.weight > 0, 1 / upload.weight, 0.0)
        change = {name: value * inverse for name, value in upload.total.items() if name not in curve_only}
        norm = torch.sqrt(sum(((value.double() ** 2).sum() for value in change.values()), torch.zeros(())))
        share = (limit / norm.clamp(min=1e-30)).clamp(max=1.0)
        return Upload({n: (v * share).to(v.dtype) for n, v in change.items()}, torch.ones_like(upload.weight))

    return Stage(client)


def noise(
    multiplier: float, limit: float | None = 1.0, releases: Releases = (), step: float | None = None,
    curve_only: tuple[str, ...] = (),
) -> Stage:  # fmt: skip
    """Central noise: clipped uploads, and discrete Gaussian noise on their sum (wire/noise.py).

    Devices clip the whole change to norm `limit` and round it to a grid; `step` is the grid's where secure sums have a
    modulus. `limit` None clips nothing: such noise promises nothing, and is measured in units of 1. `releases` has
    (bound, share of the budget) by round, where a method bounds its uploads itself. The mean divides by the expected
    number of people, which is public and does not reveal who was there. With secure sums every device adds a share of
    the noise, so that no sum is ever seen without it, and the server adds none. (The loop backend does that; faster
    ones draw one sample with the summed variance.) `curve_only` as for `clip`.
    """
    bounds = releases or ((limit or 1.0, 1.0),)
    integers = IntegerNoise(multiplier, bounds, step, sums=bool(releases), clipped=bool(releases or limit))
    return replace(_noise_stage(integers, curve_only), poisson=True, accepts_plain_sums=bool(releases))


def local(multiplier: float, limit: float | None = 1.0, curve_only: tuple[str, ...] = ()) -> Stage:
    """Local noise: clipped uploads, and discrete Gaussian noise on every number of each, added on the device."""
    integers = IntegerNoise(multiplier, ((limit or 1.0, 1.0),), local=True, clipped=limit is not None)
    return replace(_noise_stage(integers, curve_only), local=True)


def _noise_stage(integers: IntegerNoise, curve_only: tuple[str, ...]) -> Stage:
    """The parts that central and local noise share: devices round to the grid and may add noise of their own, and the
    server adds what is missing. A mean under central noise divides by the public number of people."""

    def client(upload: Upload, context: StageContext) -> Upload:
        total = {name: value for name, value in upload.total.items() if name not in curve_only}
        return Upload(*integers.to_grid(total, upload.weight, context.round))

    def device_noise(upload: Upload, context: StageContext) -> Upload:
        noisy = integers.add(upload.total, context.round, context.people, context.key, context.shares)
        return Upload(noisy, upload.weight)

    def server(upload: Upload, context: StageContext) -> Upload:
        total = integers.to_floats(device_noise(upload, context).total, context.round)
        return Upload(total, upload.weight if integers.local else torch.tensor(context.people))

    def message_layout(total: Params) -> Params:
        return {name: torch.zeros(value.shape, dtype=torch.int32) for name, value in total.items()}

    return Stage(client, server, device_noise=device_noise, message_layout=message_layout, grid=integers.grid)


def quantise(bits: int) -> Stage:
    """Round each leaf to whole multiples of its largest number / (2^(bits-1) - 1), up or down at random, so that the
    mean is right. Random numbers are consumed by rows that are not zero, so that a device draws the same whether it
    holds whole tables or only the rows that it touched."""
    levels = 2 ** (bits - 1) - 1

    def rounded(value: Tensor, draws: Tensor) -> Tensor:
        step: Tensor = value.abs().amax() / levels
        return (_units(value, step, levels, draws) * step).to(value.dtype)

    def client(upload: Upload, context: StageContext) -> Upload:
        total = {name: rounded(value, context.draws[name]) for name, value in upload.total.items()}
        return Upload(total, upload.weight)

    def message_layout(total: Params) -> Params:
        message = dict(total)
        for name, value in total.items():
            if value.is_floating_point() and value.numel() > 1:
                packed = torch.zeros(-(-value.numel() * bits // 8), dtype=torch.uint8)
                message[name] = {8: value.to(torch.int8), 16: value.to(torch.int16)}.get(bits, packed)
                message[f"{name}.step"] = torch.zeros(())
        return message

    return Stage(client, message_layout=message_layout, random=True)


def _units(value: Tensor, step: Tensor, levels: int, draws: Tensor) -> Tensor:
    """value / step, rounded up or down at random to whole numbers from -levels to levels."""
    rows = value.reshape(value.shape[0] if value.ndim else 1, -1)
    place = ((rows != 0).any(1).cumsum(0) - 1).clamp(min=0)
    draw = draws[place[:, None] * rows.shape[1] + torch.arange(rows.shape[1])].reshape(value.shape)
    return torch.floor(value.double() / torch.where(step > 0, step, 1.0) + draw).clamp(-levels, levels)


def quantise_clipped(bits: int, limit: float) -> Stage:
    """As `quantise`, for secure sums, after clipping to `limit`: whole multiples of limit / (2^(bits-1) - 1), as whole
    numbers. The step is announced and the same for everybody, because integers of different steps have no sum, and a
    step of one's own would tell something about the upload."""
    levels = 2 ** (bits - 1) - 1
    step = torch.tensor(limit / levels, dtype=torch.float64)

    def client(upload: Upload, context: StageContext) -> Upload:
        total = {name: _units(value, step, levels, context.draws[name]).int() for name, value in upload.total.items()}
        return Upload(total, upload.weight)

    def server(upload: Upload, context: StageContext) -> Upload:
        return Upload({name: (value.double() * step).float() for name, value in upload.total.items()}, upload.weight)

    return Stage(client, server, random=True)


@dataclass(frozen=True, eq=False)
class _Sparsified:
    """The functions of a method that sends the `counts` largest numbers of each leaf. The rest is private and is added
    to the next upload; the store keeps it by touched rows."""

    method: Method
    counts: dict[str, int]  # numbers that are sent, by leaf
    like: Params

    def init(self, params: Params) -> tuple[Params, Params]:
        shared, private = self.method.init(params)
        return shared, private | {f"unsent.{name}": torch.zeros_like(value) for name, value in self.like.items()}

    def client(self, down: Download, private: Params, examples: Examples) -> tuple[Upload, Params]:
        private, unsent = split(private, ("unsent.*",))
        upload, private = self.method.client(down, private, examples)
        total = {}
        for name, value in upload.total.items():
            both = value + unsent[f"unsent.{name}"]
            flat = both.flatten()
            largest = flat
            if flat.numel() > self.counts[name]:
                at = flat.abs().sort(descending=True, stable=True).indices[: self.counts[name]]  # ties: the first rows
                largest = torch.zeros_like(flat).scatter(0, at, flat.gather(0, at))
            total[name] = largest.reshape(value.shape)
            unsent = unsent | {f"unsent.{name}": both - total[name]}
        return Upload(total, upload.weight), private | unsent

    def personalize(self, shared: Params, private: Params, examples: Examples) -> Params:
        return self.method.personalize(shared, split(private, ("unsent.*",))[0], examples)

    def message_layout(self, total: Params) -> Params:
        """A bit for every number, and the numbers that are sent; the whole leaf where that is not smaller."""
        message: Params = {}
        for name, value in total.items():
            bits = torch.zeros(-(-value.numel() // 8), dtype=torch.uint8)
            sparse = {f"{name}.bits": bits, f"{name}.values": value.flatten()[: self.counts[name]]}
            message |= sparse if self.counts[name] < value.numel() * 31 / 32 else {name: value}
        return message


def sparsify(method: Method, share: float, like: Params) -> tuple[Method, Stage]:
    """(a method that sends the largest `share` of every leaf's numbers and adds the rest to the next upload, a stage
    for the size of its messages). `like` is an upload of the method, with whole tables. This is no protection: the
    positions of the numbers that are sent reveal items."""
    counts = {name: max(1, math.ceil(share * value.numel())) for name, value in like.items()}
    sparsified = _Sparsified(method, counts, like)
    rows = (*method.rows, *(f"unsent.{name}" for name in like if name in method.rows))
    changed = method.replace(
        init=sparsified.init,
        client=sparsified.client,
        personalize=sparsified.personalize,
        rows=rows,
        fast=Fast(),
        removal=None,  # what a device did not send yet cannot be taken back
    )
    return changed, Stage(client=lambda upload, context: upload, message_layout=sparsified.message_layout)
