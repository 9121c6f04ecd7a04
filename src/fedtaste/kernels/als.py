"""Least-squares solves, sums of outer products and FedRecon's client for whole cohorts, compiled by Numba.

Each has a readable equivalent in the `client` of methods/fedals.py or methods/fedrecon.py; tests compare the two.
Results do not depend on the number of threads: work is divided over a fixed number of workers, or every output is
computed by one of them in a fixed order.
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from fedtaste.kernels.small_matrices import FAST, LANES, add_gram, padded, prefetch, solve

WORKERS = 8
BLOCK = 64  # rows that are gathered before they are multiplied: they fit in the fastest cache
SUBTOTAL = 16 * BLOCK  # rows that are added up before the sum is added to the total, so that rounding errors stay small
AHEAD = 8  # rows that are asked for before they are needed


@njit(cache=True, nogil=True, fastmath=FAST, error_model="numpy")
def gather(rows, table, ids, begin, end):
    """rows[at - begin] = table[ids[at]] for begin <= at < end; columns beyond those of the table are left alone."""
    p = table.shape[1]
    for at in range(begin, end):
        if at + AHEAD < len(ids):
            prefetch(table, ids[at + AHEAD])
        source, target = table[ids[at]], rows[at - begin]
        for i in range(p):
            target[i] = source[i]


@njit(cache=True, nogil=True, parallel=True, fastmath=FAST, error_model="numpy")
def solve_people(starts, items, targets, weights, table, gram, lam, lam_m):
    """u_i = [gram + sum w f f' + (lam sum w + lam_m) I]^-1 sum w t f over a person's items, f = table[item].

    starts [people + 1]; items [n]; targets, weights >= 0 [n], or [0] where all are 1; table [catalogue, p]; gram
    [p, p]. Returns u [people, p] and which of them are finite.
    """
    people, p, size = len(starts) - 1, table.shape[1], padded(table.shape[1])
    out = np.zeros((people, p), np.float32)
    good = np.zeros(people, np.bool_)
    empty = np.zeros((size + 1, size + LANES), np.float32)
    empty[:p, :p] = gram
    for i in range(p, size):
        empty[i, i] = 1.0
    for worker in prange(WORKERS):
        system, rows = np.zeros_like(empty), np.zeros((BLOCK, size + LANES), np.float32)
        rows[:, size] = 1.0
        flat, flat_empty = system.reshape(-1), empty.reshape(-1)
        for person in range(worker, people, WORKERS):
            for at in range(len(flat)):
                flat[at] = flat_empty[at]
            mass = np.float64(starts[person + 1] - starts[person])
            if len(weights):
                mass = 0.0
                for at in range(starts[person], starts[person + 1]):
                    mass += weights[at]
            for begin in range(starts[person], starts[person + 1], BLOCK):
                end = min(begin + BLOCK, starts[person + 1])
                gather(rows, table, items, begin, end)
                if len(targets):
                    rows[: end - begin, size] = targets[begin:end]
                if len(weights):
                    for at in range(begin, end):
                        root = np.sqrt(weights[at])
                        for i in range(p):
                            rows[at - begin, i] *= root
                        rows[at - begin, size] = root * (targets[at] if len(targets) else np.float32(1.0))
                add_gram(system, rows, end - begin)
            for i in range(p):
                system[i, i] += lam * mass + lam_m
            solved = solve(system)
            for i in range(p):
                solved = solved and np.isfinite(system[size, i])
                out[person, i] = system[size, i]
            good[person] = solved
    return out, good


@njit(cache=True, nogil=True, parallel=True, fastmath=FAST, error_model="numpy")
def solve_items(sums, strength, gram):
    """For every item [gram + A + strength I]^-1 b in double precision. A row of `sums` starts with the upper triangle
    of A, by rows, and b."""
    catalogue, p, size = len(sums), len(gram), padded(len(gram))
    out = np.empty((catalogue, p), np.float32)
    for worker in prange(WORKERS):
        system = np.zeros((size + 1, size + LANES), np.float64)
        for item in range(worker, catalogue, WORKERS):
            flat = 0
            source = sums[item]
            for i in range(p):
                row, base = system[i], gram[i]
                for j in range(i, p):
                    row[j] = source[flat + j - i] + base[j]
                row[i] += strength[item]
                row[p:size] = 0.0
                flat += p - i
            for i in range(p):
                system[size, i] = source[flat + i]
            for i in range(p, size):
                system[i, p:size] = 0.0
                system[i, i] = 1.0
                system[size, i] = 0.0
            solved = solve(system)
            for i in range(p):
                out[item, i] = system[size, i] if solved else np.nan
    return out


@njit(cache=True, nogil=True)
def by_item(starts, items, catalogue, good, with_entries=True):
    """The transpose of a ragged array: for every item, who has it and at which entry. Only `good` people count."""
    counts = np.zeros(catalogue + 1, np.int64)
    for person in range(len(starts) - 1):
        if good[person]:
            for at in range(starts[person], starts[person + 1]):
                counts[items[at] + 1] += 1
    item_starts = np.cumsum(counts)
    place = item_starts[:-1].copy()
    people = np.empty(item_starts[-1], np.int32)
    entries = np.empty(item_starts[-1] if with_entries else 0, np.int64)
    for person in range(len(starts) - 1):
        if good[person]:
            for at in range(starts[person], starts[person + 1]):
                people[place[items[at]]] = person
                if with_entries:
                    entries[place[items[at]]] = at
                place[items[at]] += 1
    return item_starts, people, entries


@njit(cache=True, nogil=True, parallel=True, fastmath=FAST, error_model="numpy")
def sum_outer(item_starts, people, entries, residuals, vectors, out):
    """For every item the sums over its people of x x' (upper triangle by rows) and r x, x = vectors[person], side by
    side, and their number where there is a column for it: into out [catalogue, p (p + 1) / 2 + p (+ 1)], zeros before.

    residuals [n], or [0] where all are 1. Sums of SUBTOTAL people are in the precision of `vectors`, and these are
    added up in that of `out`. In double precision the order of people does not matter after rounding to single."""
    catalogue, p, size = len(item_starts) - 1, vectors.shape[1], padded(vectors.shape[1])
    upper = p * (p + 1) // 2
    for worker in prange(WORKERS):
        system = np.zeros((size + 1, size + LANES), vectors.dtype)
        rows = np.zeros((BLOCK, size + LANES), vectors.dtype)
        rows[:, size] = 1.0
        for item in range(worker, catalogue, WORKERS):
            target = out[item]
            for first in range(item_starts[item], item_starts[item + 1], SUBTOTAL):
                last = min(first + SUBTOTAL, item_starts[item + 1])
                system[:] = 0.0
                for begin in range(first, last, BLOCK):
                    end = min(begin + BLOCK, last)
                    gather(rows, vectors, people, begin, end)
                    if len(residuals):
                        for at in range(begin, end):
                            rows[at - begin, size] = residuals[entries[at]]
                    add_gram(system, rows, end - begin)
                flat = 0
                for i in range(p):
                    target[upper + i] += system[size, i]
                    row = system[i]
                    for j in range(i, p):
                        target[flat + j - i] += row[j]
                    flat += p - i
            if out.shape[1] > upper + p:
                target[upper + p] = item_starts[item + 1] - item_starts[item]


@njit(cache=True, nogil=True, fastmath=FAST, error_model="numpy")
def _error(f, u, p, offset, target, bce):
    """d loss / d score of one example."""
    s = offset
    for i in range(p):
        s += f[i] * u[i]
    if not bce:
        return 2.0 * (s - target)
    return (1.0 / (1.0 + np.exp(-s)) if s >= 0 else np.exp(s) / (1.0 + np.exp(s))) - target


@njit(cache=True, nogil=True, error_model="numpy")
def _ridge(items, targets, support, table, offsets, system, rows, u, lam, prior):
    """A person's vector u from the support examples by one ridge solve. `system` and `rows` are memory to work in."""
    p, size = len(u), system.shape[0] - 1
    system[:] = 0.0
    mass, used = 0, 0
    for at in range(len(items)):
        if support[at]:
            mass += 1
            rows[used, :p] = table[items[at]]
            rows[used, size] = targets[at] - offsets[items[at]]
            used += 1
        if used == BLOCK or at == len(items) - 1:
            add_gram(system, rows, used)
            used = 0
    for i in range(size):
        system[i, i] += lam * (mass + prior) if i < p else 1.0
    solved = solve(system)
    u[:] = system[size, :p]
    return solved


@njit(cache=True, nogil=True, fastmath=FAST, error_model="numpy")
def _rebuild(
    items, targets, support, batch, table, offsets, start, system, rows, g, u, bce, exact, lam, prior, lr, passes
):
    """A person's vector u from the support examples: one ridge solve, or SGD from `start`."""
    n, p = len(items), len(u)
    u[:] = start
    if exact:
        return _ridge(items, targets, support, table, offsets, system, rows, u, lam, prior)
    for _ in range(passes):
        for begin in range(0, n, batch):
            end, size = min(begin + batch, n), 0
            g[:] = 0.0
            for at in range(begin, end):
                if support[at]:
                    size += 1
                    f = table[items[at]]
                    e = _error(f, u, p, offsets[items[at]], targets[at], bce)
                    for i in range(p):
                        g[i] += e * f[i]
            if size:
                for i in range(p):
                    u[i] -= lr * g[i] / size
    return True


@njit(cache=True, nogil=True, parallel=True, fastmath=FAST, error_model="numpy")
def reconstruct(
    starts, items, targets, batch, table, offsets, start, share, bce, exact, lam, prior, recon_lr, recon_passes, lr,
    passes, k, biased,
):  # fmt: skip
    """FedRecon's client for a whole cohort: rebuild u on support, then SGD on the item rows over query, u frozen.

    table [catalogue, p] features, p = k (+ 1 when biased: a constant 1); offsets [catalogue] = item_bias + mean.
    Returns by worker, to be added in order outside: weighted sums of the changes of item [catalogue, k], item_bias
    [catalogue] and mean, the weights, how many people were not finite, and how many had no query.
    """
    catalogue, p = table.shape
    people = len(starts) - 1
    d_item = np.zeros((WORKERS, catalogue, k), np.float32)
    d_bias = np.zeros((WORKERS, catalogue), np.float32)
    d_mean, weight = np.zeros(WORKERS), np.zeros(WORKERS)
    refused, empty = np.zeros(WORKERS, np.int64), np.zeros(WORKERS, np.int64)
    longest = 1
    for person in range(people):
        longest = max(longest, starts[person + 1] - starts[person])
    for worker in prange(WORKERS):
        g, u = np.empty(p, np.float64), np.empty(p, np.float64)
        system = np.zeros((padded(p) + 1, padded(p) + LANES), np.float64)
        features = np.zeros((BLOCK, padded(p) + LANES), np.float64)
        slot = np.full(catalogue, -1, np.int64)
        rows, ids = np.empty((longest, p), np.float32), np.empty(longest, np.int64)
        bias, error = np.empty(longest, np.float64), np.empty(longest, np.float64)
        support = np.empty(longest, np.bool_)
        for person in range(worker, people, WORKERS):
            first, n = starts[person], starts[person + 1] - starts[person]
            own_items, own_targets = items[first : first + n], targets[first : first + n]
            size = n if batch == 0 else batch
            for at in range(n):
                support[at] = np.floor((at + 1) * share) > np.floor(at * share)
            valid = _rebuild(
                own_items, own_targets, support[:n], size, table, offsets, start, system, features, g, u, bce,
                exact, lam, prior, recon_lr, recon_passes,
            )  # fmt: skip
            used, query, mean = 0, 0, 0.0
            for at in range(n):
                if not support[at]:
                    query += 1
                    item = own_items[at]
                    if slot[item] < 0:
                        slot[item] = used
                        ids[used] = item
                        rows[used] = table[item]
                        bias[used] = offsets[item]
                        used += 1
            for _ in range(passes):
                for begin in range(0, n, size):
                    end, live = min(begin + size, n), 0
                    for at in range(begin, end):
                        if not support[at]:
                            live += 1
                            place = slot[own_items[at]]
                            error[at] = _error(rows[place], u, p, bias[place] + mean, own_targets[at], bce)
                    for at in range(begin, end):
                        if not support[at]:
                            place, step = slot[own_items[at]], lr * error[at] / live
                            for i in range(k):
                                rows[place, i] -= step * u[i]
                            if biased:
                                bias[place] -= step
                                mean -= step
            for i in range(p):
                valid = valid and np.isfinite(u[i])
            for place in range(used):
                slot[ids[place]] = -1
                valid = valid and np.isfinite(rows[place].sum()) and np.isfinite(bias[place])
            if not valid:
                refused[worker] += 1
                continue
            if query == 0:
                empty[worker] += 1
                continue
            weight[worker] += query
            d_mean[worker] += query * mean
            for place in range(used):
                item = ids[place]
                d_bias[worker, item] += query * (bias[place] - offsets[item])
                for i in range(k):
                    d_item[worker, item, i] += query * (rows[place, i] - table[item, i])
    return d_item, d_bias, d_mean, weight, refused, empty
