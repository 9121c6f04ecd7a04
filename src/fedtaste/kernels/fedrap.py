"""FedRAP's client and scores for a whole cohort, compiled by Numba; methods/fedrap.py has the readable equivalents.

Inside a batch all occurrences of an item share a score, so with c its count and q the positives among them
    e = (c p - q) / B;   du = sum e (D + C);   db = sum e
    dD = e u - 2 lam c / (B k) (D - C);   dC = e u + 2 lam c / (B k) (D - C) + mu c / (B k) sign C
A person's touched rows are gathered once, all local steps run in cache, and the rows are scattered once. Rows are held
as S = D + C and T = D - C: scores need S alone, the term in lam T alone. They stand in blocks of eight rows, component
by component, so that a vector holds one component of eight rows (kernels/lanes.py) and what belongs to a row stays in
registers; an 8 x 8 transposition by shuffles leads there and back. A step takes a few blocks at a time, so that they
are still in the nearest cache when their rows move. Own rows that a person did not have yet are read from the initial
table and written once. Eight fixed workers have an accumulator each for the common table's change, added in order at
the end, so that the bytes do not depend on the number of threads.
"""

from __future__ import annotations

import numpy as np
import torch
from numba import njit, prange
from numpy.typing import NDArray
from torch import Tensor

from fedtaste.core import CohortExamples, People, Upload
from fedtaste.kernels.lanes import FAST, LANES, load, prefetch, signed, spread, store, total, transpose, where_less
from fedtaste.kernels.row_pages import PAGE, WORKERS, PagedStore, Pages
from fedtaste.kernels.touched_rows import row_blocks
from fedtaste.wire.validation import LIMIT

GROUP = 4  # blocks whose steps are interleaved
BOTH, COMMON, OWN = 0, 1, 2
ZERO, HALF, ONE = np.float32(0), np.float32(0.5), np.float32(1)  # a bare 1 would make everything double
STEEP = np.float32(1e30)  # a clamped product with it is a sign, and 0 for 0


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
    # The sign of a number of C is its sign bit, unless it is zero; components are padded with zeros.
    plain = mode == BOTH and own_lr == table_lr and not square and k % LANES == 0 and bool(common.all())
    for who, starts, local, targets, firsts, wanted in row_blocks(people, examples, catalogue):
        slots = pages.place(who, firsts, wanted, fill=False) if mode != COMMON else np.zeros(0, np.int64)
        rows = pages.rows if mode != COMMON else np.zeros((0, k), np.float32)
        descend(
            who, starts, local, targets, examples.batch, firsts, wanted, slots, common, pages.initial, rows,
            stacked["user"], stacked["bias"], stacked["scale"], moved, sums, refused, mode, passes, np.float32(lr),
            np.float32(table_lr), np.float32(own_lr), np.float32(lam), np.float32(mu), square, np.float32(shrink),
            np.float32(step_decay), np.float32(bound), by_examples, plain,
        )  # fmt: skip
    kept, loss, number = sums.sum(0)
    total = {} if item is None else {"item": moved.sum(0), "decay": kept - number, "loss": loss}
    upload = Upload({n: torch.as_tensor(v).float() for n, v in total.items()}, torch.tensor(float(number)))
    return upload, dict(zip(("non-finite", "too large"), refused.sum(0).tolist()))


@njit(cache=True, nogil=True, fastmath=FAST, error_model="numpy", inline="always")
def odds(x):
    """exp(min(|x|, 16)) out of plain arithmetic: a series for an eighth of it, squared three times."""
    size, most = larger(x, ZERO - x), spread(np.float32(16))
    y = where_less(most, size, most, size) * np.float32(0.125)
    e = spread(np.float32(1 / 362880))
    for term in (40320.0, 5040.0, 720.0, 120.0, 24.0, 6.0, 2.0, 1.0, 1.0):
        e = e * y + np.float32(1 / term)
    e = e * e
    e = e * e
    return e * e


@njit(cache=True, nogil=True, fastmath=FAST, error_model="numpy", inline="always")
def tail(o):
    """log(1 + 1 / o) for o >= 1: the series of the inverse hyperbolic tangent."""
    w = ONE / (o + o + ONE)
    v = w * w
    total = spread(np.float32(2 / 13))
    for term in (11.0, 9.0, 7.0, 5.0, 3.0, 1.0):
        total = total * v + np.float32(2 / term)
    return total * w


@njit(cache=True, nogil=True, fastmath=FAST, error_model="numpy")
def larger(a, b):
    """By place, the larger number; `b` where one of them is NaN."""
    return where_less(b, a, a, b)


@njit(cache=True, nogil=True, fastmath=FAST, error_model="numpy")
def clamp(x, limit):
    """By place, x between -limit and limit."""
    return larger(where_less(x, limit, x, limit), ZERO - limit)


@njit(cache=True, nogil=True, inline="always")
def pairs_of(rows):
    """Blocks for so many rows: an even number."""
    return -(-rows // (2 * LANES)) * 2


@njit(cache=True, nogil=True, parallel=True, fastmath=FAST, error_model="numpy")
def descend(
    people, starts, local, targets, batch, firsts, wanted, slots, common, initial, rows, users, biases, scales, moved,
    sums, refused, mode, passes, lr, table_lr, own_lr, lam, mu, square, shrink, step_decay, bound, by_examples,
    plain,
):  # fmt: skip
    """Run everybody's local steps; adds to `moved`, `sums` and `refused` by worker, and writes private parameters."""
    k = users.shape[1]
    wide = -(-k // LANES) * LANES  # components with their padding, which is zero
    widest, longest, most = 1, 1, 1
    for person in range(len(people)):
        widest = max(widest, firsts[person + 1] - firsts[person])
        longest = max(longest, starts[person + 1] - starts[person])
    if batch > 0:
        most = -(-longest // batch)
    blocks = pairs_of(widest)
    for worker in prange(WORKERS):
        s_all = np.empty((blocks, wide, LANES), np.float32)
        t_all = np.empty((blocks if mode == BOTH else 0, wide, LANES), np.float32)
        apart = np.zeros((blocks, LANES), np.float32)  # by row: sum of T^2
        count, taken = np.empty((2, most, blocks * LANES), np.float32)
        u = np.zeros(wide, np.float32)
        lane_values = np.empty((6, GROUP, LANES), np.float32)  # of the blocks of a group
        buffers = np.zeros((2, LANES, wide), np.float32)  # of a block before or after its transposition
        factors, gradients = np.empty((2, wide), np.float32), np.empty((wide, LANES), np.float32)  # by component
        for person in range(worker, len(people), WORKERS):
            who, first = people[person], firsts[person]
            used, n = firsts[person + 1] - first, starts[person + 1] - starts[person]
            size = n if batch == 0 else batch
            batches = -(-n // size)
            tally(local, targets, starts[person], n, size, count, taken, pairs_of(used) * LANES)
            gather(
                wanted[first : first + used], slots[first:], common, initial, rows, scales[who], mode, s_all, t_all,
                apart, buffers,
            )  # fmt: skip
            u[:k] = users[who]
            bias, scale, kept, loss = steps(
                s_all, t_all, apart, count, taken, lane_values, factors, gradients, u, biases[who], scales[who], used,
                n, size, batches, k, mode, passes, lr, table_lr, own_lr, lam, mu, square, shrink, step_decay, bound,
                plain,
            )  # fmt: skip
            finite, small = soundness(s_all, t_all, used, mode)
            finite = finite and bool(np.isfinite(bias) and np.isfinite(scale) and scale > 0)
            for c in range(k):
                finite = finite and bool(np.isfinite(u[c]))
            if not (finite and small):
                refused[worker, int(finite)] += 1
                if mode != COMMON:
                    for row in range(first, first + used):
                        if slots[row] < 0:
                            rows[~slots[row]] = initial[wanted[row]]
                continue
            weight = np.float32(n) if by_examples else ONE
            scatter(
                wanted[first : first + used], slots[first:], common, rows, moved, worker, scale, kept, weight, mode,
                s_all, t_all, buffers,
            )  # fmt: skip
            users[who] = u[:k]
            biases[who] = bias
            scales[who] = scale
            sums[worker, 0] += weight * kept
            sums[worker, 1] += weight * loss
            sums[worker, 2] += weight


@njit(cache=True, nogil=True, error_model="numpy")
def tally(local, targets, start, n, size, count, taken, used):
    """Count a person's examples and positives by batch and row."""
    for b in range(-(-n // size)):
        count[b, :used] = 0
        taken[b, :used] = 0
        for at in range(start + b * size, start + min(n, (b + 1) * size)):
            count[b, local[at]] += 1
            taken[b, local[at]] += targets[at]


@njit(cache=True, nogil=True, fastmath=FAST, error_model="numpy")
def gather(wanted, slots, common, initial, rows, scale, mode, s_all, t_all, apart, buffers):
    """Load a person's rows into the blocks, filled up with the last row."""
    used, k, wide = len(wanted), common.shape[1], s_all.shape[1]
    whole = k - k % LANES
    high_rows, low_rows = buffers[0], buffers[1]
    if mode != COMMON:  # rows lie far apart in memory: begin to load all of them before the first is needed
        for row in range(used):
            if slots[row] >= 0:
                for c in range(0, k, 16):
                    prefetch(rows, slots[row] * k + c)
    for block in range(pairs_of(used)):
        for lane in range(LANES):
            row = min(block * LANES + lane, used - 1)
            to, shared, own = lane * wide, wanted[row] * k, 0
            fresh = False
            if mode != COMMON:
                fresh = slots[row] < 0
                own = shared if fresh else slots[row] * k
            for c in range(0, whole, LANES):
                d = spread(ZERO)
                if mode != COMMON:
                    d = scale * (load(initial, own + c) if fresh else load(rows, own + c))
                if mode == OWN:
                    store(high_rows, to + c, d)
                else:
                    common_c = load(common, shared + c)
                    store(high_rows, to + c, d + common_c)
                    store(low_rows, to + c, d - common_c)
            for c in range(whole, k):
                value, common_value = ZERO, ZERO
                if mode != COMMON:
                    value = scale * (initial[wanted[row], c] if fresh else rows[slots[row], c])
                if mode != OWN:
                    common_value = common[wanted[row], c]
                high_rows[lane, c] = value + common_value
                low_rows[lane, c] = value - common_value
        for c in range(0, wide, LANES):
            transpose(high_rows, c, wide, s_all, (block * wide + c) * LANES, LANES)
        if mode == BOTH:
            far = spread(ZERO)
            for c in range(0, wide, LANES):
                transpose(low_rows, c, wide, t_all, (block * wide + c) * LANES, LANES)
            for c in range(wide):
                t = load(t_all, (block * wide + c) * LANES)
                far += t * t
            store(apart, block * LANES, far)


@njit(cache=True, nogil=True, fastmath=FAST, error_model="numpy")
def steps(
    s_all, t_all, apart, count, taken, lane_values, factors, gradients, u, bias, scale, used, n, size, batches, k, mode,
    passes, lr, table_lr, own_lr, lam, mu, square, shrink, step_decay, bound, plain,
):  # fmt: skip
    """All local steps of one person on the blocks and on `u`: (bias, scale of D, factor of C's decay, mean loss).

    `plain` takes the shortest loop: D and C have the same rates, the penalty is l1, and no number of C is zero."""
    wide, blocks, padded = s_all.shape[1], pairs_of(used), count.shape[1]
    x_all, e_all, grow_all, cross_all, gain_all, limit_all = lane_values
    step_s, step_t = factors[0], factors[1]
    most_apart, zero = spread(bound * np.float32(k)), spread(ZERO)
    kept, speed, loss = ONE, ONE, 0.0
    for step in range(passes * batches):
        b = step % batches
        batch_size = np.float32(min(size, n - b * size))
        rate, own_rate, slow = speed * table_lr, speed * own_lr, speed * lr
        keep, own_keep, hold = ONE - rate * shrink, ONE - own_rate * shrink, ONE - slow * shrink
        mean_keep, half_keep = HALF * (own_keep + keep), HALF * (own_keep - keep)
        sum_rate, more_rate = own_rate + rate, own_rate - rate
        share = ONE / batch_size
        by_cell = share / np.float32(k)
        pull_rate = rate * mu * by_cell if mode != OWN else ZERO
        if mode != BOTH:
            sum_rate = rate if mode == COMMON else own_rate
            mean_keep = keep if mode == COMMON else own_keep
        for c in range(wide):
            step_s[c], step_t[c] = sum_rate * u[c], more_rate * u[c]
        gradients[:] = 0
        gb, cost, extra, pulled = zero, zero, zero, zero
        for begin in range(0, blocks, GROUP):
            end = min(begin + GROUP, blocks)
            for block in range(begin, end, 2):
                at, next_at = block * wide * LANES, (block + 1) * wide * LANES
                x0, x1, next_x0, next_x1 = spread(bias), zero, spread(bias), zero
                for c in range(0, wide, 2):
                    to, odd = c * LANES, (c + 1) * LANES
                    x0 += u[c] * load(s_all, at + to)
                    next_x0 += u[c] * load(s_all, next_at + to)
                    x1 += u[c + 1] * load(s_all, at + odd)
                    next_x1 += u[c + 1] * load(s_all, next_at + odd)
                store(x_all, (block - begin) * LANES, x0 + x1)
                store(x_all, (block - begin + 1) * LANES, next_x0 + next_x1)
            for block in range(begin, end):
                lane = (block - begin) * LANES
                x = load(x_all, lane)
                counts = load(count, b * padded + block * LANES)
                positives = load(taken, b * padded + block * LANES)
                o = odds(x)
                e = (counts * (where_less(x, zero, spread(ONE), o) / (o + ONE)) - positives) * share
                store(e_all, lane, e)
                gb += e
                cost += counts * (larger(x, zero) + tail(o)) - positives * x
                pull = counts * pull_rate
                if square:  # the step is gain x way, without a limit
                    store(gain_all, lane, pull if mode == BOTH else pull + pull)
                    store(limit_all, lane, spread(np.float32(np.inf)))
                else:  # the step is pull x sign of way
                    store(gain_all, lane, spread(STEEP))
                    store(limit_all, lane, pull)
                if mode == BOTH:
                    far = load(apart, block * LANES)
                    push = where_less(far, most_apart, counts * lam, zero)
                    extra -= push * far
                    push = push * (by_cell + by_cell)
                    store(grow_all, lane, push * sum_rate + mean_keep)
                    store(cross_all, lane, push * more_rate + half_keep)
            if plain:
                for block in range(begin, end, 2):
                    lane, at = (block - begin) * LANES, block * wide * LANES
                    e, limit, grow = load(e_all, lane), load(limit_all, lane), load(grow_all, lane)
                    lane, next_at = lane + LANES, at + wide * LANES
                    next_e, next_limit = load(e_all, lane), load(limit_all, lane)
                    next_grow, far, next_far, next_pulled = load(grow_all, lane), zero, zero, zero
                    for c in range(wide):
                        to, move = c * LANES, step_s[c]
                        s, t = load(s_all, at + to), load(t_all, at + to)
                        next_s, next_t = load(s_all, next_at + to), load(t_all, next_at + to)
                        store(gradients, to, load(gradients, to) + e * s + next_e * next_s)
                        way = s - t
                        back = signed(limit, way)
                        pulled += back * way
                        t = grow * t + back
                        far += t * t
                        store(s_all, at + to, mean_keep * s - (move * e + back))
                        store(t_all, at + to, t)
                        way = next_s - next_t
                        back = signed(next_limit, way)
                        next_pulled += back * way
                        t = next_grow * next_t + back
                        next_far += t * t
                        store(s_all, next_at + to, mean_keep * next_s - (move * next_e + back))
                        store(t_all, next_at + to, t)
                    pulled += next_pulled
                    store(apart, block * LANES, far)
                    store(apart, (block + 1) * LANES, next_far)
                continue
            for block in range(begin, end):
                lane, at = (block - begin) * LANES, block * wide * LANES
                e, gain, limit = load(e_all, lane), load(gain_all, lane), load(limit_all, lane)
                if mode != BOTH:
                    for c in range(wide):
                        s, to = load(s_all, at + c * LANES), c * LANES
                        store(gradients, to, load(gradients, to) + e * s)
                        back = clamp(s * gain, limit)
                        pulled += back * s
                        store(s_all, at + to, mean_keep * s - (step_s[c] * e + back))
                    continue
                grow, cross = load(grow_all, lane), load(cross_all, lane)
                far = zero
                for c in range(wide):
                    to = c * LANES
                    s, t = load(s_all, at + to), load(t_all, at + to)
                    store(gradients, to, load(gradients, to) + e * s)
                    way = s - t
                    back = clamp(way * gain, limit)
                    pulled += back * way
                    store(s_all, at + to, mean_keep * s + cross * t - (step_s[c] * e + back))
                    t = grow * t + half_keep * s - (step_t[c] * e - back)
                    far += t * t
                    store(t_all, at + to, t)
                store(apart, block * LANES, far)
        for c in range(wide):
            u[c] = hold * u[c] - slow * total(load(gradients, c * LANES))
        bias = hold * bias - slow * total(gb)
        penalty = total(extra)
        if pull_rate > ZERO:  # back x way is twice the penalty's gradient for squares, and way is 2 C with both tables
            part = (HALF if square else ONE) * (HALF if mode == BOTH else ONE)
            penalty += part * total(pulled) / (rate * by_cell)
        loss += (total(cost) + penalty * np.float32(1 / k)) / (passes * n)
        scale *= own_keep
        kept *= keep
        speed *= step_decay
    return bias, scale, kept, loss


@njit(cache=True, nogil=True, fastmath=FAST, error_model="numpy")
def soundness(s_all, t_all, used, mode):
    """(whether all rows are finite, whether they are small enough for the server)."""
    finite, small = True, True
    width = s_all.shape[1] * LANES
    for block in range(-(-used // LANES)):
        size = spread(ZERO)
        for at in range(block * width, (block + 1) * width, LANES):
            s = load(s_all, at)
            size += larger(ZERO - s, s)
        if mode == BOTH:
            for at in range(block * width, (block + 1) * width, LANES):
                t = load(t_all, at)
                size += larger(ZERO - t, t)
        finite = finite and bool(np.isfinite(total(size)))
        small = small and bool(total(size) < LIMIT)
    return finite, small


@njit(cache=True, nogil=True, fastmath=FAST, error_model="numpy")
def scatter(wanted, slots, common, rows, moved, worker, scale, kept, weight, mode, s_all, t_all, buffers):
    """Add the change of a person's common rows to the worker's sum, and write their own rows."""
    used, k, wide = len(wanted), common.shape[1], s_all.shape[1]
    whole, sum_place = k - k % LANES, worker * common.size
    common_rows, own_rows = buffers[0], buffers[1]
    part, own_part = HALF if mode == BOTH else ONE, (HALF if mode == BOTH else ONE) / scale
    for block in range(-(-used // LANES)):
        for c in range(0, wide, LANES):
            begin = (block * wide + c) * LANES
            if mode == BOTH:
                for at in range(begin, begin + LANES * LANES, LANES):
                    s, t = load(s_all, at), load(t_all, at)
                    store(s_all, at, s - t)
                    store(t_all, at, s + t)
                transpose(t_all, begin, LANES, own_rows, c, wide)
            transpose(s_all, begin, LANES, common_rows if mode != OWN else own_rows, c, wide)
        for row in range(block * LANES, min(used, (block + 1) * LANES)):
            lane = row % LANES
            if mode != OWN:
                shared = wanted[row] * k
                for c in range(0, whole, LANES):
                    change = part * load(common_rows, lane * wide + c) - kept * load(common, shared + c)
                    to = sum_place + shared + c
                    store(moved, to, load(moved, to) + weight * change)
                for c in range(whole, k):
                    moved[worker, wanted[row], c] += weight * (
                        part * common_rows[lane, c] - kept * common[wanted[row], c]
                    )
            if mode != COMMON:
                slot = slots[row] if slots[row] >= 0 else ~slots[row]
                for c in range(0, whole, LANES):
                    store(rows, slot * k + c, own_part * load(own_rows, lane * wide + c))
                for c in range(whole, k):
                    rows[slot, c] = own_part * own_rows[lane, c]


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
