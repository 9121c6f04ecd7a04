"""Least-squares solves, sums of outer products and FedRecon's client for whole cohorts, compiled by Numba.

Each has a readable equivalent in the `client` of methods/fedals.py or methods/fedrecon.py; tests compare the two.
Results do not depend on the number of threads: work is divided over a fixed number of workers, or every output is
computed by one of them in a fixed order.
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange

WORKERS = 8
FAST = {"contract", "reassoc", "nsz"}  # sums may be reordered to fill vector registers; NaN and infinity keep meaning
BLOCK = 8  # rows added to a Gram matrix at once, so that it is loaded and stored an eighth as often


@njit(cache=True, nogil=True, fastmath=FAST, error_model="numpy")
def cholesky_solve(a, b, p):
    """Overwrite b [p] with a^-1 b, a [p, p] symmetric, lower half used and overwritten. False if not positive."""
    for i in range(p):
        row = a[i]
        for j in range(i):
            other = a[j]
            s = row[j]
            for c in range(j):
                s -= row[c] * other[c]
            row[j] = s / other[j]
        s = row[i]
        for c in range(i):
            s -= row[c] * row[c]
        if not s > 0.0:
            return False
        row[i] = np.sqrt(s)
    for i in range(p):
        s = b[i]
        for c in range(i):
            s -= a[i, c] * b[c]
        b[i] = s / a[i, i]
    for i in range(p - 1, -1, -1):
        b[i] /= a[i, i]
        for c in range(i):
            b[c] -= a[i, c] * b[i]
    return True


@njit(cache=True, nogil=True, fastmath=FAST, error_model="numpy")
def add_outer(square, rows, scale):
    """square [p, p] += sum_r scale_r rows_r rows_r' for BLOCK rows; the lower half, and as much above it as is quicker
    than stopping at the diagonal."""
    p = square.shape[0]
    r0, r1, r2, r3, r4, r5, r6, r7 = rows[0], rows[1], rows[2], rows[3], rows[4], rows[5], rows[6], rows[7]
    for i in range(p):
        out = square[i]
        s0, s1, s2, s3 = scale[0] * r0[i], scale[1] * r1[i], scale[2] * r2[i], scale[3] * r3[i]
        s4, s5, s6, s7 = scale[4] * r4[i], scale[5] * r5[i], scale[6] * r6[i], scale[7] * r7[i]
        for j in range(min(p, (i // 8 + 1) * 8)):
            out[j] += (s0 * r0[j] + s1 * r1[j] + s2 * r2[j] + s3 * r3[j]) + (
                s4 * r4[j] + s5 * r5[j] + s6 * r6[j] + s7 * r7[j]
            )


@njit(cache=True, nogil=True, parallel=True, fastmath=FAST, error_model="numpy")
def solve_people(starts, items, targets, weights, table, gram, lam, lam_m):
    """u_i = [gram + sum w f f' + (lam sum w + lam_m) I]^-1 sum w t f over a person's items, f = table[item].

    starts [people + 1]; items, targets, weights [n]; table [catalogue, p]; gram [p, p]. Returns u [people, p] and which
    of them are finite.
    """
    people, p = len(starts) - 1, table.shape[1]
    out = np.zeros((people, p), np.float32)
    good = np.zeros(people, np.bool_)
    for worker in prange(WORKERS):
        a, b = np.empty((p, p), np.float32), np.empty(p, np.float32)
        rows, scale = np.zeros((BLOCK, p), np.float32), np.zeros(BLOCK, np.float32)
        for person in range(worker, people, WORKERS):
            a[:] = gram
            b[:] = 0.0
            mass = 0.0
            for begin in range(starts[person], starts[person + 1], BLOCK):
                scale[:] = 0.0
                for at in range(begin, min(begin + BLOCK, starts[person + 1])):
                    rows[at - begin] = table[items[at]]
                    scale[at - begin] = weights[at]
                    mass += weights[at]
                    weighted = weights[at] * targets[at]
                    for i in range(p):
                        b[i] += weighted * rows[at - begin, i]
                add_outer(a, rows, scale)
            for i in range(p):
                a[i, i] += lam * mass + lam_m
            solved = cholesky_solve(a, b, p)
            for i in range(p):
                solved = solved and np.isfinite(b[i])
            out[person] = b
            good[person] = solved
    return out, good


@njit(cache=True, nogil=True, parallel=True, fastmath=FAST, error_model="numpy")
def solve_items(outer, vector, strength, gram):
    """For every item [gram + full(outer) + strength I]^-1 vector; outer holds upper triangles by rows."""
    catalogue, p = vector.shape
    out = np.empty((catalogue, p), np.float32)
    for worker in prange(WORKERS):
        a, b = np.empty((p, p), np.float64), np.empty(p, np.float64)
        for item in range(worker, catalogue, WORKERS):
            flat = 0
            for i in range(p):
                b[i] = vector[item, i]
                for j in range(i, p):
                    a[j, i] = outer[item, flat] + gram[j, i]
                    flat += 1
                a[i, i] += strength[item]
            solved = cholesky_solve(a, b, p)
            for i in range(p):
                out[item, i] = b[i] if solved else np.nan
    return out


@njit(cache=True, nogil=True)
def by_item(starts, items, catalogue, good):
    """The transpose of a ragged array: for every item, who has it and at which entry. Only `good` people count."""
    counts = np.zeros(catalogue + 1, np.int64)
    for person in range(len(starts) - 1):
        if good[person]:
            for at in range(starts[person], starts[person + 1]):
                counts[items[at] + 1] += 1
    item_starts = np.cumsum(counts)
    place = item_starts[:-1].copy()
    people = np.empty(item_starts[-1], np.int32)
    entries = np.empty(item_starts[-1], np.int64)
    for person in range(len(starts) - 1):
        if good[person]:
            for at in range(starts[person], starts[person + 1]):
                people[place[items[at]]] = person
                entries[place[items[at]]] = at
                place[items[at]] += 1
    return item_starts, people, entries


@njit(cache=True, nogil=True, parallel=True, fastmath=FAST, error_model="numpy")
def sum_outer(item_starts, people, entries, residuals, vectors, out):
    """For every item the sums over its people of x x' (upper triangle by rows), r x and 1, x = vectors[person], side by
    side, into out [catalogue, p (p + 1) / 2 + p + 1]. Sums are in double precision, so that after rounding to
    `out` the order of people does not matter."""
    catalogue, p = len(item_starts) - 1, vectors.shape[1]
    upper = p * (p + 1) // 2
    for worker in prange(WORKERS):
        square, vector = np.empty((p, p), np.float64), np.empty(p, np.float64)
        rows, scale = np.zeros((BLOCK, p), np.float64), np.zeros(BLOCK, np.float64)
        for item in range(worker, catalogue, WORKERS):
            square[:] = 0.0
            vector[:] = 0.0
            for begin in range(item_starts[item], item_starts[item + 1], BLOCK):
                scale[:] = 0.0
                for at in range(begin, min(begin + BLOCK, item_starts[item + 1])):
                    rows[at - begin] = vectors[people[at]]
                    scale[at - begin] = 1.0
                    for i in range(p):
                        vector[i] += residuals[entries[at]] * rows[at - begin, i]
                add_outer(square, rows, scale)
            flat = 0
            for i in range(p):
                out[item, upper + i] = vector[i]
                for j in range(i, p):
                    out[item, flat] = square[j, i]
                    flat += 1
            out[item, upper + p] = item_starts[item + 1] - item_starts[item]


@njit(cache=True, nogil=True, error_model="numpy")
def _error(f, u, p, offset, target, bce):
    """d loss / d score of one example."""
    s = offset
    for i in range(p):
        s += f[i] * u[i]
    if not bce:
        return 2.0 * (s - target)
    return (1.0 / (1.0 + np.exp(-s)) if s >= 0 else np.exp(s) / (1.0 + np.exp(s))) - target


@njit(cache=True, nogil=True, error_model="numpy")
def _rebuild(items, targets, support, batch, table, offsets, start, a, b, g, u, bce, exact, lam, prior, lr, passes):
    """A person's vector u from the support examples: one ridge solve, or SGD from `start`."""
    n, p = len(items), len(u)
    u[:] = start
    if exact:
        a[:] = 0.0
        b[:] = 0.0
        mass = 0
        for at in range(n):
            if support[at]:
                mass += 1
                f, t = table[items[at]], targets[at] - offsets[items[at]]
                for i in range(p):
                    b[i] += f[i] * t
                    for j in range(i + 1):
                        a[i, j] += f[i] * f[j]
        for i in range(p):
            a[i, i] += lam * (mass + prior)
        solved = cholesky_solve(a, b, p)
        u[:] = b
        return solved
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


@njit(cache=True, nogil=True, parallel=True, error_model="numpy")
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
        a, b, g = np.empty((p, p), np.float64), np.empty(p, np.float64), np.empty(p, np.float64)
        u = np.empty(p, np.float64)
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
                own_items, own_targets, support[:n], size, table, offsets, start, a, b, g, u, bce, exact, lam, prior,
                recon_lr, recon_passes,
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
