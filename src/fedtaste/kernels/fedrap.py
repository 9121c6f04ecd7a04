"""FedRAP's client and scores for a whole cohort, compiled by Numba; methods/fedrap.py has the readable equivalents.

Inside a batch all occurrences of an item share a score, so with c its count and q the positives among them
    e = (c p - q) / B;   du = sum e (D + C);   db = sum e
    dD = e u - 2 lam c / (B k) (D - C);   dC = e u + 2 lam c / (B k) (D - C) + mu c / (B k) sign C
A person's touched rows are gathered once, all local steps run in cache, and the rows are scattered once. Rows are held
as S = D + C and T = D - C: scores need S alone, the term in lam T alone. They stand in tiles of 64 rows, component by
component, so that every inner loop is 64 long. Eight fixed workers have an accumulator each for the common table's
change, added in order at the end, so that the bytes do not depend on the number of threads.
"""

from __future__ import annotations

import numpy as np
import torch
from numba import njit, prange
from numpy.typing import NDArray
from torch import Tensor

from fedtaste.core import CohortExamples, People, Upload
from fedtaste.kernels.row_pages import PAGE, WORKERS, PagedStore, Pages
from fedtaste.kernels.touched_rows import blocks, distinct
from fedtaste.wire.validation import LIMIT

TILE = 64
FAST = {"contract", "reassoc", "nsz", "arcp"}  # NaN and infinity keep their meaning
BOTH, COMMON, OWN = 0, 1, 2
ZERO, HALF, ONE = np.float32(0), np.float32(0.5), np.float32(1)  # a bare 1 would make everything double


def clients(
    item: Tensor | None, store: PagedStore, people: People, examples: CohortExamples, *, parts: str, passes: int,
    lr: float, table_lr: float, own_lr: float, lam: float, mu: float, square: bool, shrink: float, step_decay: float,
    bound: float, by_examples: bool,
) -> tuple[Upload, dict[str, int]]:  # fmt: skip
    """(the sum of the uploads, the rejected by reason); private parameters of admitted people go into the store."""
    mode = {"both": BOTH, "common": COMMON, "own": OWN}[parts]
    stacked = {name: value.numpy() for name, value in store.stacked.items()}
    k = stacked["user"].shape[1]
    pages = _own_pages(store, k)
    catalogue = len(pages.initial) if item is None else len(item)
    common = np.zeros((0, k), np.float32) if item is None else item.numpy()
    moved = np.zeros((WORKERS, *common.shape), np.float32)
    sums, refused = np.zeros((WORKERS, 3)), np.zeros((WORKERS, 2), np.int64)  # kept, loss, weight
    people = np.asarray(people, np.int64)
    for begin, end in blocks(examples.starts):
        starts = examples.starts[begin : end + 1]
        inputs, targets = examples.inputs[starts[0] : starts[-1]], examples.targets[starts[0] : starts[-1]]
        local, wanted, counts = distinct(starts - starts[0], inputs, catalogue)
        firsts = np.append(0, np.cumsum(counts))
        who = people[begin:end]
        slots = pages.place(who, firsts, wanted) if mode != COMMON else np.zeros(0, np.int64)
        rows = pages.rows if mode != COMMON else np.zeros((0, k), np.float32)
        descend(
            who, starts - starts[0], local, targets, examples.batch, firsts, wanted, slots, common, rows,
            stacked["user"], stacked["bias"], stacked["scale"], moved, sums, refused, mode, passes, np.float32(lr),
            np.float32(table_lr), np.float32(own_lr), np.float32(lam), np.float32(mu), square, np.float32(shrink),
            np.float32(step_decay), np.float32(bound), by_examples,
        )  # fmt: skip
    kept, loss, number = sums.sum(0)
    total = {} if item is None else {"item": moved.sum(0), "decay": kept - number, "loss": loss}
    upload = Upload({n: torch.as_tensor(v).float() for n, v in total.items()}, torch.tensor(float(number)))
    return upload, dict(zip(("non-finite", "too large"), refused.sum(0).tolist()))


@njit(cache=True, nogil=True, fastmath=FAST, error_model="numpy", inline="always")
def odds(x):
    """exp(min(|x|, 16)) out of plain arithmetic, so that loops over it fill vector registers: a series for an eighth of
    it, squared three times."""
    y = min(abs(x), np.float32(16)) * np.float32(0.125)
    e = np.float32(1 / 362880)
    for term in (40320.0, 5040.0, 720.0, 120.0, 24.0, 6.0, 2.0, 1.0, 1.0):
        e = e * y + np.float32(1 / term)
    e = e * e
    e = e * e
    return e * e


@njit(cache=True, nogil=True, fastmath=FAST, error_model="numpy", inline="always")
def tail(o):
    """log(1 + 1 / o) for o >= 1: the series of the inverse hyperbolic tangent."""
    w = np.float32(1) / (np.float32(2) * o + np.float32(1))
    v = w * w
    total = np.float32(2 / 13)
    for term in (11.0, 9.0, 7.0, 5.0, 3.0, 1.0):
        total = total * v + np.float32(2 / term)
    return total * w


@njit(cache=True, nogil=True, parallel=True, fastmath=FAST, error_model="numpy")
def descend(
    people, starts, local, targets, batch, firsts, wanted, slots, common, rows, users, biases, scales, moved, sums,
    refused, mode, passes, lr, table_lr, own_lr, lam, mu, square, shrink, step_decay, bound, by_examples,
):  # fmt: skip
    """Run everybody's local steps; adds to `moved`, `sums` and `refused` by worker, and writes private parameters."""
    k = users.shape[1]
    widest, longest, most = 1, 1, 1
    for person in range(len(people)):
        widest = max(widest, firsts[person + 1] - firsts[person])
        longest = max(longest, starts[person + 1] - starts[person])
    if batch > 0:
        most = -(-longest // batch)
    tiles = -(-widest // TILE)
    most_apart = bound * np.float32(k)
    for worker in prange(WORKERS):
        s_all = np.empty((tiles, k, TILE), np.float32)
        t_all = np.empty((tiles if mode == BOTH else 0, k, TILE), np.float32)
        count = np.empty((most, tiles, TILE), np.float32)
        taken = np.empty((most, tiles, TILE), np.float32)
        apart = np.empty((tiles, TILE), np.float32)  # by row: sum of T^2
        x, e, grow, cross, pull = np.empty((5, TILE), np.float32)
        u, gu = np.empty(k, np.float32), np.empty(k, np.float32)
        sizes = np.empty(most, np.float32)
        for person in range(worker, len(people), WORKERS):
            who, first = people[person], firsts[person]
            used, n = firsts[person + 1] - first, starts[person + 1] - starts[person]
            size = n if batch == 0 else batch
            batches, used_tiles = -(-n // size), -(-used // TILE)
            count[:batches, :used_tiles] = 0
            taken[:batches, :used_tiles] = 0
            for at in range(n):
                row = local[starts[person] + at]
                count[at // size, row // TILE, row % TILE] += 1
                taken[at // size, row // TILE, row % TILE] += targets[starts[person] + at]
            for b in range(batches):
                sizes[b] = min(size, n - b * size)
            scale, kept = scales[who], ONE
            s_all[used_tiles - 1] = 0
            if mode == BOTH:
                t_all[used_tiles - 1] = 0
                apart[used_tiles - 1] = 0
            touched = ZERO
            if mode != COMMON:  # rows lie far apart in memory: load all of them before the first is needed
                for row in range(used):
                    touched += rows[slots[first + row], 0] + rows[slots[first + row], k // 2]
            for row in range(used):
                tile, lane = row // TILE, row % TILE
                if mode == BOTH:
                    distance = ZERO
                    shared, own = common[wanted[first + row]], rows[slots[first + row]]
                    for c in range(k):
                        d = scale * own[c]
                        s_all[tile, c, lane] = d + shared[c]
                        t_all[tile, c, lane] = d - shared[c]
                        distance += (d - shared[c]) * (d - shared[c])
                    apart[tile, lane] = distance
                elif mode == COMMON:
                    for c in range(k):
                        s_all[tile, c, lane] = common[wanted[first + row], c]
                else:
                    for c in range(k):
                        s_all[tile, c, lane] = scale * rows[slots[first + row], c]
            u[:] = users[who]
            bias, speed, loss = biases[who], ONE, 0.0
            for step in range(passes * batches):
                b = step % batches
                rate, own_rate, slow = speed * table_lr, speed * own_lr, speed * lr
                keep, own_keep, hold = ONE - rate * shrink, ONE - own_rate * shrink, ONE - slow * shrink
                mean_keep, half_keep = HALF * (own_keep + keep), HALF * (own_keep - keep)
                sum_rate, more_rate = own_rate + rate, own_rate - rate
                share = ONE / sizes[b]
                by_cell = share / np.float32(k)
                gu[:] = 0
                gb, cost, extra, pulled = ZERO, ZERO, ZERO, ZERO
                for tile in range(used_tiles):
                    s, c_row, q_row = s_all[tile], count[b, tile], taken[b, tile]
                    x[:] = bias
                    for c in range(k):
                        uc = u[c]
                        for i in range(TILE):
                            x[i] += uc * s[c, i]
                    for i in range(TILE):
                        o = odds(x[i])
                        p = (o if x[i] >= ZERO else ONE) / (ONE + o)
                        e[i] = (c_row[i] * p - q_row[i]) * share
                        gb += e[i]
                        cost += c_row[i] * (max(x[i], ZERO) + tail(o)) - q_row[i] * x[i]
                        pull[i] = rate * mu * c_row[i] * by_cell
                    if mode == BOTH:
                        t, far = t_all[tile], apart[tile]
                        for i in range(TILE):
                            push = lam * c_row[i] if far[i] < most_apart else ZERO
                            grow[i] = mean_keep + np.float32(2) * sum_rate * push * by_cell
                            cross[i] = half_keep + np.float32(2) * more_rate * push * by_cell
                            extra -= push * far[i]
                            far[i] = ZERO
                        for c in range(k):
                            g, step_s, step_t = ZERO, sum_rate * u[c], more_rate * u[c]
                            if square:
                                for i in range(TILE):
                                    g += e[i] * s[c, i]
                                    high, low = s[c, i], t[c, i]
                                    way = high - low
                                    back = pull[i] * way
                                    pulled += back * way
                                    s[c, i] = mean_keep * high + cross[i] * low - step_s * e[i] - back
                                    t[c, i] = grow[i] * low + half_keep * high - step_t * e[i] + back
                                    far[i] += t[c, i] * t[c, i]
                            else:
                                for i in range(TILE):
                                    g += e[i] * s[c, i]
                                    high, low = s[c, i], t[c, i]
                                    way = high - low
                                    back = pull[i] if way > ZERO else (-pull[i] if way < ZERO else ZERO)
                                    pulled += back * way
                                    s[c, i] = mean_keep * high + cross[i] * low - step_s * e[i] - back
                                    t[c, i] = grow[i] * low + half_keep * high - step_t * e[i] + back
                                    far[i] += t[c, i] * t[c, i]
                            gu[c] += g
                    else:
                        for c in range(k):
                            g, step_u = ZERO, (rate if mode == COMMON else own_rate) * u[c]
                            for i in range(TILE):
                                g += e[i] * s[c, i]
                                way, back = s[c, i], ZERO
                                if mode == COMMON and square:
                                    back = np.float32(2) * pull[i] * way
                                elif mode == COMMON:
                                    back = pull[i] if way > ZERO else (-pull[i] if way < ZERO else ZERO)
                                pulled += back * way
                                s[c, i] = (keep if mode == COMMON else own_keep) * s[c, i] - step_u * e[i] - back
                            gu[c] += g
                for c in range(k):
                    u[c] = hold * u[c] - slow * gu[c]
                bias = hold * bias - slow * gb
                pulled *= (
                    (ONE if mode == COMMON and not square else HALF) if mode == COMMON or not square else HALF * HALF
                )
                if rate > ZERO:
                    extra += pulled / (rate * by_cell)
                loss += (cost + extra * np.float32(1 / k)) / (passes * n)
                scale *= own_keep
                kept *= keep
                speed *= step_decay
            finite, small = bool(np.isfinite(touched) and np.isfinite(bias) and np.isfinite(scale) and scale > 0), True
            for c in range(k):
                finite = finite and bool(np.isfinite(u[c]))
            for tile in range(used_tiles):
                total = ZERO
                for c in range(k):
                    for i in range(TILE):
                        total += abs(s_all[tile, c, i])
                if mode == BOTH:
                    for c in range(k):
                        for i in range(TILE):
                            total += abs(t_all[tile, c, i])
                finite = finite and bool(np.isfinite(total))
                small = small and bool(total < LIMIT)
            if not (finite and small):
                refused[worker, int(finite)] += 1
                continue
            weight = np.float32(n) if by_examples else ONE
            for row in range(used):
                tile, lane = row // TILE, row % TILE
                if mode == BOTH:
                    out, shared = moved[worker, wanted[first + row]], common[wanted[first + row]]
                    own = rows[slots[first + row]]
                    for c in range(k):
                        high, low = s_all[tile, c, lane], t_all[tile, c, lane]
                        out[c] += weight * (HALF * (high - low) - kept * shared[c])
                        own[c] = HALF * (high + low) / scale
                elif mode == COMMON:
                    for c in range(k):
                        shared_c = common[wanted[first + row], c]
                        moved[worker, wanted[first + row], c] += weight * (s_all[tile, c, lane] - kept * shared_c)
                else:
                    for c in range(k):
                        rows[slots[first + row], c] = s_all[tile, c, lane] / scale
            users[who] = u
            biases[who] = bias
            scales[who] = scale
            sums[worker, 0] += weight * kept
            sums[worker, 1] += weight * loss
            sums[worker, 2] += weight


def _own_pages(store: PagedStore, k: int) -> Pages:
    """People's own item rows; empty where the method has none (parts=common)."""
    return store.touched["own"] if "own" in store.touched else Pages(np.zeros((0, k), np.float32), store.people)


def scores(
    item: Tensor | None, store: PagedStore, people: People, candidates: NDArray[np.int64]
) -> NDArray[np.float32]:
    """<u, common + own> + b of every candidate; candidates [people, c], or [c] for all alike."""
    stacked = {name: value.numpy() for name, value in store.stacked.items()}
    k, people = stacked["user"].shape[1], np.asarray(people, np.int64)
    pages = _own_pages(store, k)
    catalogue = len(pages.initial) if item is None else len(item)
    common = np.zeros((catalogue, k), np.float32) if item is None else item.numpy()
    wide = np.broadcast_to(candidates, (len(people), candidates.shape[-1]))
    result: NDArray[np.float32] = _scores(
        people, wide, common, pages.initial, pages.rows, pages.used, pages.first, pages.follows, pages.ids,
        stacked["user"], stacked["bias"], stacked["scale"],
    )  # fmt: skip
    return result


@njit(cache=True, nogil=True, parallel=True, fastmath=FAST, error_model="numpy")
def _scores(people, candidates, common, initial, rows, used, first, follows, ids, users, biases, scales):
    out = np.empty(candidates.shape, np.float32)
    k = users.shape[1]
    for worker in prange(WORKERS):
        slot = np.full(len(common), -1, np.int64)
        for place in range(worker, len(people), WORKERS):
            who = people[place]
            u, scale = users[who], scales[who]
            page = first[who]
            for row in range(used[who]):
                if row and row % PAGE == 0:
                    page = follows[page]
                slot[ids[page, row % PAGE]] = np.int64(page) * PAGE + row % PAGE
            for at in range(candidates.shape[1]):
                item = candidates[place, at]
                total = ZERO
                if len(initial):
                    own = rows[slot[item]] if slot[item] >= 0 else initial[item]
                    for c in range(k):
                        total += u[c] * (common[item, c] + scale * own[c])
                else:
                    for c in range(k):
                        total += u[c] * common[item, c]
                out[place, at] = total + biases[who]
            page = first[who]
            for row in range(used[who]):
                if row and row % PAGE == 0:
                    page = follows[page]
                slot[ids[page, row % PAGE]] = -1
    return out
