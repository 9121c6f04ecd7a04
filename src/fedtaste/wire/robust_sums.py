"""Robust aggregation: bound, trimmed mean, median and Krum limit what a few hostile devices can do to the model.

In place of +, the server keeps all uploads of a round side by side and takes a mean that few people cannot move far:
    bound[=S]    no row counts for more than S (Sun et al. 2019); without a number, S follows from the data, see below
    trim=SHARE   coordinate by coordinate, that share is cut off at either end (Yin et al., ICML 2018)
    median       coordinate by coordinate, the middle (the same)
    krum=SHARE   multi-Krum (Blanchard et al., NeurIPS 2017): that share, who have no near neighbours, is left out
A robust rule reads single uploads, so it cannot stand together with secure sums, which hide them.

Where nothing is sparse these are the papers' rules on people's changes, with means weighted by people's weights. Item
tables need another form. A person moves few rows, so over everybody the median of a row is no change at all, a trimmed
mean is none for most items, a person's norm only says how long the history is, and Krum prefers whoever sent least. So
  * every row is aggregated on its own, among the people who moved it;
  * the values are what a person ADDS to the row (weight x change): a weight is spread over all of a person's rows and
    says nothing about any of them;
  * hostile people may all attack one row, so the share is of everybody and not of those who moved it: with 1,000
    people, trim=0.05 cuts 50 from either end of every row. A row that 100 people or fewer moved (krum: 102) could be
    theirs alone, so it does not change;
  * `bound` caps every row. Its default is half of the median, over people, of everybody's longest row (where there are
    no rows, the median norm of the change): no group short of half the people can raise it. A row ten times longer
    than that does not count at all: a device that sends it is broken or hostile.
The result is again a sum: a row's mean times the people who moved it, so that with nothing cut it is the plain sum.
Weights may be lies too: a weight counts up to 20 times the median weight.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from fedtaste.core import Params, Stage, Upload
from fedtaste.errors import SettingError

MEMORY = 4 * 2**30  # bytes of uploads side by side
LARGEST_WEIGHT = 20.0  # largest weight, in medians: ML-100K's longest history is 11 times the median one
# Default bound, in median longest rows. Chosen on ML-100K, fedmf, seed 0, one target: with 1 an attacker who knows the
# rule got three times the exposure (.032 against .011), and 0.25 lost 8 % of NDCG.
DEFAULT_BOUND = 0.5
IGNORED_BEYOND = 10.0  # times the bound: longer rows do not count at all
CELLS = 4_000_000  # numbers that a rule works on at once

# values [rows, people, width], which of them are real [rows, people], weights [people] or None where all count the
# same, everybody's number -> the mean of every row [rows, width]
Rule = Callable[[Tensor, Tensor, Tensor | None, int], Tensor]


def bound(limit: float | None = None, rows: tuple[str, ...] = ()) -> Stage:
    """Cap everybody's change, and everybody's rows of the tables `rows`, at length `limit` (None: the default)."""
    if limit is not None and not limit > 0:
        raise SettingError(f"bound must be a positive length, or stand alone for the default; got bound={limit:g}.")

    def combine(stacked: Upload) -> Upload:
        weight, plain, tables = _capped_weights(stacked), *_by_kind(stacked, rows)
        total: Params = {}
        if plain:
            size = _norm([stacked.total[n].reshape(len(weight), -1) for n in plain]) / stacked.weight
            factor = _shrink(size, limit, size.median())
            weight = weight.masked_fill(factor == 0, 0)  # who does not count has no weight
            share = weight / stacked.weight * factor
            total |= {n: torch.tensordot(share.to(stacked.total[n].dtype), stacked.total[n], 1) for n in plain}
        if tables:
            size = _norm([_wide(stacked.total[n]) for n in tables])
            share = _shrink(size, limit, DEFAULT_BOUND * size.amax(1).median())  # [people, rows]
            total |= {n: torch.einsum("pr...,pr->r...", stacked.total[n], share) for n in tables}
        return Upload({name: total[name] for name in stacked.total}, weight.sum())

    return Stage(combine=combine)


def trim(share: float | None, rows: tuple[str, ...] = ()) -> Stage:
    """Coordinate-wise trimmed mean without the `share` of everybody at either end."""
    most = _check_share("trim", share)

    def rule(values: Tensor, real: Tensor, weight: Tensor | None, people: int) -> Tensor:
        return _trimmed_mean(values, real, weight, torch.full((len(values),), int(most * people)))

    return Stage(combine=_by_row(rule, rows))


def median(value: float | None = None, rows: tuple[str, ...] = ()) -> Stage:
    """Coordinate-wise median. Everybody has one vote, whatever their weight. It takes no value in --wire."""
    if value is not None:
        raise SettingError(f"median takes no value, got median={value:g}. Write median.")

    def rule(values: Tensor, real: Tensor, weight: Tensor | None, people: int) -> Tensor:
        return _trimmed_mean(values, real, None, (real.sum(1) - 1).clamp(min=0) // 2)

    return Stage(combine=_by_row(rule, rows))


def krum(share: float | None, rows: tuple[str, ...] = ()) -> Stage:
    """The mean without the `share` of everybody whose nearest neighbours are farthest. Of n people, f of them hostile,
    a score is the sum of squared distances to the n - f - 2 nearest; the n - f lowest scores stay."""
    most = _check_share("krum", share)

    def rule(values: Tensor, real: Tensor, weight: Tensor | None, people: int) -> Tensor:
        hostile, present = int(most * people), real.sum(1)
        square = (values**2).sum(2)
        apart = square[:, :, None] + square[:, None] - 2 * values @ values.transpose(1, 2)
        apart = apart.clamp(min=0).masked_fill(~(real[:, :, None] & real[:, None]), torch.inf)
        apart.diagonal(dim1=1, dim2=2).fill_(torch.inf)
        near = torch.arange(values.shape[1]) < (present - hostile - 2)[:, None]  # [rows, people]
        score = _sorted(apart).masked_fill(~near[:, None], 0).sum(2).masked_fill(~real, torch.inf)
        place = score.argsort(dim=1, stable=True).argsort(dim=1)
        used = real & (place < (present - hostile)[:, None]) & (present > 2 * hostile + 2)[:, None]
        return _mean(values, used if hostile else real, weight)

    return Stage(combine=_by_row(rule, rows))


def _check_share(name: str, share: float | None) -> float:
    if share is None or not 0 <= share < 0.5:
        raise SettingError(
            f"{name} must be the share of people who may be hostile, from 0 to below 0.5, as in {name}=0.1; got "
            f"{name if share is None else f'{name}={share:g}'}. Against half of the people no sum is safe."
        )
    return share


def _by_row(rule: Rule, rows: tuple[str, ...]) -> Callable[[Upload], Upload]:
    """Apply a rule to everybody's changes where nothing is sparse, and to the movers of every row of the tables."""

    def combine(stacked: Upload) -> Upload:
        weight, plain, tables = _capped_weights(stacked), *_by_kind(stacked, rows)
        people, total = len(weight), dict[str, Tensor]()
        if plain:
            values = torch.cat([stacked.total[n].reshape(people, -1) for n in plain], 1) / stacked.weight[:, None]
            mean = rule(values[None], torch.ones(1, people, dtype=torch.bool), weight, people)[0]
            total |= _split_leaves(mean * weight.sum(), plain, stacked.total)
        for names in _by_length(stacked.total, tables):
            values = torch.cat([_wide(stacked.total[n]) for n in names], 2)
            moved = (values != 0).any(2)  # [people, rows]
            out = torch.zeros(values.shape[1:], dtype=values.dtype)
            for part, theirs, real in _movers(values, moved):
                out[part] = rule(theirs, real, None, people) * real.sum(1, keepdim=True)
            total |= _split_leaves(out, names, stacked.total)
        return Upload({name: total[name] for name in stacked.total}, weight.sum())

    return combine


def _by_length(total: Params, names: list[str]) -> list[list[str]]:
    """Group tables with the same number of rows: an item's row is its factors and its bias together."""
    sizes = dict.fromkeys(total[name].shape[1] for name in names)
    return [[name for name in names if total[name].shape[1] == size] for size in sizes]


def _movers(values: Tensor, moved: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """(rows, what their movers added [rows, movers, width], which of these are real). Rows of similar popularity come
    together, so that little is padding."""
    counts = moved.sum(0)
    order = counts.argsort()
    order = order[counts[order] > 0]
    begin = 0
    while begin < len(order):
        room = CELLS // max(int(counts[order[begin]]) * max(values.shape[2], int(counts[order[begin]])), 1)
        part = order[begin : begin + max(1, room // 2)]
        most = int(counts[part].max())
        at = moved[:, part].int().argsort(dim=0, descending=True, stable=True)[:most].T  # [rows, movers]: people
        real = torch.arange(most) < counts[part][:, None]
        yield part, values[at, part[:, None]] * real[..., None], real
        begin += len(part)


def _split_leaves(flat: Tensor, names: list[str], stacked: Params) -> Params:
    """The leaves that stand side by side in the last axis of `flat`."""
    shapes = {name: stacked[name].shape[1:] for name in names}
    widths = [shapes[name].numel() // flat.shape[:-1].numel() for name in names]
    return {n: part.reshape(shapes[n]) for n, part in zip(names, torch.split(flat, widths, -1))}


def _trimmed_mean(values: Tensor, real: Tensor, weight: Tensor | None, cut: Tensor) -> Tensor:
    """The mean of every coordinate without the `cut` [rows] largest and smallest; 0 where none is left."""
    present = real.sum(1)
    place = torch.arange(values.shape[1])
    used = (place >= cut[:, None]) & (place < (present - cut)[:, None])  # [rows, people], in order of size
    at_end = values.masked_fill(~real[..., None], torch.inf).transpose(1, 2).contiguous()
    if weight is None:
        order = _sorted(at_end)
        return order.masked_fill(~used[:, None], 0).sum(2) / used.sum(1).clamp(min=1)[:, None]
    order, who = at_end.sort(2)
    counts = weight[who].masked_fill(~used[:, None], 0)
    return (order.masked_fill(~used[:, None], 0) * counts).sum(2) / counts.sum(2).clamp(min=1e-30)


def _sorted(values: Tensor) -> Tensor:
    """Sorted along the last axis; numpy sorts short runs several times faster than torch."""
    return torch.from_numpy(np.sort(values.numpy(), -1))


def _mean(values: Tensor, used: Tensor, weight: Tensor | None) -> Tensor:
    counts = used.to(values.dtype) * (1 if weight is None else weight)
    return torch.einsum("rpw,rp->rw", values, counts) / counts.sum(1).clamp(min=1e-30)[:, None]


def _wide(table: Tensor) -> Tensor:
    """[people, rows, ...] as [people, rows, width]."""
    return table.reshape(*table.shape[:2], -1)


def _norm(parts: list[Tensor]) -> Tensor:
    """The length of the vectors in the last axes of these, taken together."""
    return torch.stack([(part**2).sum(-1) for part in parts]).sum(0).sqrt()


def _shrink(size: Tensor, limit: float | None, default: Tensor) -> Tensor:
    """Factors after which nothing is longer than `limit`; exactly 1 where nothing is. The `default` limit also leaves
    out (factor 0) what is far beyond it."""
    if limit is not None:
        return torch.where(size > limit, limit / size, torch.ones(()))
    factor = torch.where(size > default, default / size, torch.ones(()))
    return factor.masked_fill(size > IGNORED_BEYOND * default, 0)


def _capped_weights(stacked: Upload) -> Tensor:
    """The weights that count. Uploads that do not fit into memory together are refused."""
    check_memory(len(stacked.weight), {name: value[0] for name, value in stacked.total.items()})
    return stacked.weight.clamp(max=LARGEST_WEIGHT * float(stacked.weight.median()))


def _by_kind(stacked: Upload, rows: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """(names of the leaves that are not sparse, names of the tables `rows`)."""
    return [name for name in stacked.total if name not in rows], [name for name in stacked.total if name in rows]


def check_memory(people: int, like: Params) -> None:
    """Refuse rounds of `people` uploads that would not fit into memory together; `like` is one, with whole tables."""
    numbers = sum(value.numel() for value in like.values())
    if people * numbers * 4 > MEMORY:
        raise SettingError(
            f"A robust sum keeps all uploads of a round in memory: {people:,} people x {numbers:,} numbers are "
            f"{people * numbers * 4 / 2**30:.1f} GB, and the limit is {MEMORY / 2**30:g}. Use smaller cohorts "
            f"(--cohort {max(MEMORY // (4 * max(numbers, 1)), 1)}), or send less (a smaller k)."
        )


RULES: dict[str, Callable[[float | None, tuple[str, ...]], Stage]] = {  # by their names in --wire
    "bound": bound,
    "trim": trim,
    "median": median,
    "krum": krum,
}
