"""Stepwise clients of a factorisation for a whole cohort, compiled by Numba: FedAvg and its relatives, Ditto, pFedMe,
FedCLUP, APFL and PFedRec. The readable equivalents are the methods' own clients.

Inside a batch all occurrences of an item share a score, so with c its count, q the sum of its targets and B the size
of the batch
    e = (c sigmoid(score) - q) / B, or 2 (c score - q) / B;   score = <row, u> + bias
    du = sum e row;   dbias = sum e;   drow = e u + lam (row - centre)
A person's touched rows are gathered once, all local steps run in cache, and the change is added once. Eight fixed
workers have an accumulator each, added in order at the end, so that the bytes do not depend on the number of threads.
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from fedtaste.kernels.row_pages import WORKERS
from fedtaste.wire.validation import LIMIT

FAST = {"contract", "reassoc", "nsz", "arcp"}  # NaN and infinity keep their meaning
ZERO, ONE, TWO = np.float32(0), np.float32(1), np.float32(2)  # a bare 1 would make everything double
NON_FINITE, TOO_LARGE, WEIGHT, ADMITTED = 0, 1, 2, 3
NO_COPY, PROXIMAL, MIXED = 0, 1, 2  # what a person's copy of the item rows does: there is none, Ditto, APFL


@njit(cache=True, nogil=True, parallel=True)
def run_clients(
    people, examples, touched, table, vectors, copies, phases, copy_kind, copy_phase, unit_weight, squared, moved,
    reached, weights, refused,
):  # fmt: skip
    """Run everybody's local steps; adds to `moved`, `reached`, `weights` and `refused` by worker, and writes the
    private parameters of admitted people.

    examples: (starts, local, targets, batch), local as in `distinct`. touched: (firsts, wanted), ragged by person.
    vectors: (users, biases), of everybody, biases empty where the model has none. copies: (users, alphas, rows, slots,
    met, met_slots, follow), a copy's own user vectors (empty where it has none), APFL's shares, pages of rows and of
    marks; without `follow` a row that was never met is as it was at first. phases [n, 5] of the shared rows: learning
    rate of user and bias, of rows, lam towards the shared rows, passes, and whether user and rows move in turn.
    copy_phase: learning rate, lam, passes, turns, and how far the shared rows follow the copy after each turn; of
    APFL learning rate, 0, passes, 0 and the learning rate of alpha.
    """
    for worker in prange(WORKERS):
        _run_worker(
            np.int64(worker), people, examples, touched, table, vectors, copies, phases, copy_kind, copy_phase,
            unit_weight, squared, moved, reached, weights, refused,
        )  # fmt: skip


@njit(cache=True, nogil=True, fastmath=FAST, error_model="numpy")
def _run_worker(
    worker, people, examples, touched, table, vectors, copies, phases, copy_kind, copy_phase, unit_weight, squared,
    moved, reached, weights, refused,
):  # fmt: skip
    """`run_clients` for every eighth person."""
    starts, local, targets, batch = examples
    firsts, wanted = touched
    users, biases = vectors
    copy_users, alphas, copy_rows, slots, met, met_slots, follow = copies
    k = table.shape[1]
    widest, longest = 1, 1
    for person in range(len(people)):
        widest = max(widest, firsts[person + 1] - firsts[person])
        longest = max(longest, starts[person + 1] - starts[person])
    x = np.empty((widest, k), np.float32)
    own = np.empty((widest if copy_kind != NO_COPY else 0, k), np.float32)
    u, v, du = np.empty(k, np.float32), np.empty(k, np.float32), np.empty(k, np.float32)
    stamps, straight = np.empty(widest, np.int64), np.empty(widest, np.int32)
    for row in range(widest):
        straight[row] = row
    error = np.empty(widest, np.float32)
    entries, entry_starts = np.empty(longest, np.int32), np.empty(longest + 1, np.int64)
    counts, sums = np.empty(longest, np.float32), np.empty(longest, np.float32)
    for place in range(worker, len(people), WORKERS):
        who, first, begin = people[place], firsts[place], starts[place]
        used, n = firsts[place + 1] - first, starts[place + 1] - begin
        weight = ONE if unit_weight else np.float32(n)
        if weight == ZERO:
            refused[worker, WEIGHT] += 1
            continue
        items = wanted[first : first + used]
        for row in range(used):
            common = table[items[row]]
            for c in range(k):
                x[row, c] = common[c]
        for c in range(k):
            u[c] = users[who, c]
        bias = biases[who] if len(biases) else ZERO
        steps = _count(local[begin : begin + n], targets[begin : begin + n], batch, stamps[:used], entries,
                       entry_starts, counts, sums)  # fmt: skip
        lists = (entries, entry_starts[: steps + 1], counts, sums)
        for phase in range(len(phases)):
            lr, row_lr, lam, passes, in_turn = phases[phase]
            rates = (lr, row_lr, lam, lr if len(biases) else ZERO)
            bias = _descend(x[:used], u, bias, lists, rates, table, items, passes, in_turn, squared, du,
                            error)  # fmt: skip
        share = ZERO
        if copy_kind != NO_COPY:
            for row in range(used):
                known = not follow or met[met_slots[first + row], 0] > ZERO
                kept = copy_rows[slots[first + row]] if known else table[items[row]]
                for c in range(k):
                    own[row, c] = kept[c]
        if copy_kind == MIXED:
            share = _mix(x[:used], own[:used], u, alphas[who], lists, copy_phase, squared, du)
        if copy_kind == PROXIMAL:
            separate = len(copy_users) > 0
            for c in range(k):
                v[c] = copy_users[who, c] if separate else u[c]
            lr, lam, passes, turns, rate = copy_phase
            centre, places = (x, straight) if rate > ZERO else (table, items)
            for _ in range(int(turns)):
                _descend(own[:used], v, ZERO, lists, (lr, lr, lam, ZERO), centre, places, passes, ZERO, squared,
                         du, error)  # fmt: skip
                if rate > ZERO:
                    for row in range(used):
                        for c in range(k):
                            x[row, c] += rate * (own[row, c] - x[row, c])
            if not separate:
                for c in range(k):
                    u[c] = v[c]
        total, private = ZERO, abs(bias) + abs(share)
        for c in range(k):
            private += abs(u[c]) + (abs(v[c]) if copy_kind == PROXIMAL else ZERO)
        for row in range(used):
            common = table[items[row]]
            for c in range(k):
                total += abs(weight * (x[row, c] - common[c]))
        if copy_kind != NO_COPY:
            for row in range(used):
                for c in range(k):
                    private += abs(own[row, c])
        verdict = ADMITTED if total <= LIMIT else _judge(x[:used], table, items, weight)
        if not np.isfinite(private):
            verdict = NON_FINITE
        if verdict != ADMITTED:
            refused[worker, verdict] += 1
            continue
        for row in range(used):
            out, common = moved[worker, items[row]], table[items[row]]
            for c in range(k):
                out[c] += weight * (x[row, c] - common[c])
        if len(reached):
            for row in range(used):
                reached[worker, items[row]] += weight
        if copy_kind != NO_COPY:
            for row in range(used):
                kept = copy_rows[slots[first + row]]
                for c in range(k):
                    kept[c] = own[row, c]
                met[met_slots[first + row], 0] = ONE
        if copy_kind == MIXED:
            alphas[who] = share
        for c in range(k):
            users[who, c] = u[c]
            if copy_kind == PROXIMAL and len(copy_users):
                copy_users[who, c] = v[c]
        if len(biases):
            biases[who] = bias
        weights[worker] += weight


@njit(cache=True, nogil=True)
def _judge(x, table, items, weight):
    """Why the server would refuse this upload (wire/validation.py), looking at every number."""
    verdict = ADMITTED
    for row in range(len(x)):
        for c in range(x.shape[1]):
            number = weight * (x[row, c] - table[items[row], c])
            if not np.isfinite(number):
                return NON_FINITE
            if abs(number) > LIMIT:
                verdict = TOO_LARGE
    return verdict


@njit(cache=True, nogil=True)
def _count(local, targets, batch, stamps, entries, entry_starts, counts, sums):
    """The rows of every batch with their counts and sums of targets; returns how many batches there are."""
    n = len(local)
    size = n if batch == 0 else batch
    for row in range(len(stamps)):
        stamps[row] = -1
    filled, steps = 0, 0
    for at in range(n):
        if at % size == 0:
            entry_starts[steps] = filled
            steps += 1
        row = local[at]
        if stamps[row] < entry_starts[steps - 1]:
            stamps[row] = filled
            entries[filled] = row
            counts[filled], sums[filled] = ZERO, ZERO
            filled += 1
        counts[stamps[row]] += ONE
        sums[stamps[row]] += targets[at]
    entry_starts[steps] = filled
    return steps


@njit(cache=True, nogil=True, fastmath=FAST, error_model="numpy", inline="always")
def _error(score, count, total, share, squared):
    """The derivative of a batch's loss by the score of a row."""
    if squared:
        return TWO * (count * score - total) * share
    return (count / (ONE + np.exp(-score)) - total) * share


@njit(cache=True, nogil=True)
def _clear(vector):
    """Write zeros; returns zero."""
    for c in range(len(vector)):
        vector[c] = ZERO
    return ZERO


@njit(cache=True, nogil=True, fastmath=FAST, error_model="numpy")
def _size(counts, begin, end):
    total = ZERO
    for at in range(begin, end):
        total += counts[at]
    return total


@njit(cache=True, nogil=True, fastmath=FAST, error_model="numpy")
def _descend(x, u, bias, lists, rates, centre, places, passes, in_turn, squared, du, error):
    """SGD on the rows `x`, `u` and the bias over the batches, `passes` times, in place; returns the bias. The centre
    of a row is centre[places[row]]."""
    entries, entry_starts, counts, sums = lists
    lr, row_lr, lam, bias_lr = rates
    k, steps = len(u), len(entry_starts) - 1
    keep, pull = ONE - row_lr * lam, row_lr * lam
    for step in range(int(passes) * steps):
        begin, end = entry_starts[step % steps], entry_starts[step % steps + 1]
        share = ONE / _size(counts, begin, end)
        if in_turn > ZERO:
            bias = _vector_step(x, u, bias, lists, begin, end, share, (lr, bias_lr), squared, du)
        db = _clear(du)
        whole = pull > ZERO and end - begin == len(x)  # one loop does it all
        if pull > ZERO and not whole:
            _scores(x, u, bias, lists, begin, end, share, squared, error)
            for at in range(begin, end):
                row = x[entries[at]]
                db += error[at - begin]
                for c in range(k):
                    du[c] += error[at - begin] * row[c]
            for at in range(len(x)):
                row, towards = x[at], centre[places[at]]
                for c in range(k):
                    row[c] = keep * row[c] + pull * towards[c]
            for at in range(begin, end):
                row, far = x[entries[at]], row_lr * error[at - begin]
                for c in range(k):
                    row[c] -= far * u[c]
        elif whole:
            for at in range(begin, end):
                row, score = x[entries[at]], bias
                towards = centre[places[entries[at]]]
                for c in range(k):
                    score += row[c] * u[c]
                e = _error(score, counts[at], sums[at], share, squared)
                db += e
                far = row_lr * e
                for c in range(k):
                    du[c] += e * row[c]
                    row[c] = keep * row[c] + pull * towards[c] - far * u[c]
        else:
            for at in range(begin, end):
                row, score = x[entries[at]], bias
                for c in range(k):
                    score += row[c] * u[c]
                e = _error(score, counts[at], sums[at], share, squared)
                db += e
                far = row_lr * e
                for c in range(k):
                    du[c] += e * row[c]
                    row[c] -= far * u[c]
        if not in_turn > ZERO:
            bias -= bias_lr * db
            for c in range(k):
                u[c] -= lr * du[c]
    return bias


@njit(cache=True, nogil=True, fastmath=FAST, error_model="numpy")
def _scores(x, u, bias, lists, begin, end, share, squared, error):
    """Write the errors of a batch."""
    entries, _, counts, sums = lists
    for at in range(begin, end):
        row, score = x[entries[at]], bias
        for c in range(len(u)):
            score += row[c] * u[c]
        error[at - begin] = _error(score, counts[at], sums[at], share, squared)


@njit(cache=True, nogil=True, fastmath=FAST, error_model="numpy")
def _vector_step(x, u, bias, lists, begin, end, share, rates, squared, du):
    """One step of `u` and the bias alone, which is returned."""
    entries, _, counts, sums = lists
    db = _clear(du)
    for at in range(begin, end):
        row, score = x[entries[at]], bias
        for c in range(len(u)):
            score += row[c] * u[c]
        e = _error(score, counts[at], sums[at], share, squared)
        db += e
        for c in range(len(u)):
            du[c] += e * row[c]
    for c in range(len(u)):
        u[c] -= rates[0] * du[c]
    return bias - rates[1] * db


@njit(cache=True, nogil=True, fastmath=FAST, error_model="numpy")
def _mix(x, own, u, alpha, lists, phase, squared, du):
    """APFL's steps: shared rows `x` descend by themselves, `own` and `u` in the mixture; returns the new alpha."""
    entries, entry_starts, counts, sums = lists
    lr, _, passes, _, alpha_lr = phase
    k, steps = len(u), len(entry_starts) - 1
    for step in range(int(passes) * steps):
        begin, end = entry_starts[step % steps], entry_starts[step % steps + 1]
        share, rest, way = ONE / _size(counts, begin, end), ONE - alpha, ZERO
        _clear(du)
        for at in range(begin, end):
            row, mine = x[entries[at]], own[entries[at]]
            shared_score, own_score = ZERO, ZERO
            for c in range(k):
                shared_score += row[c] * u[c]
                own_score += mine[c] * u[c]
            far = lr * _error(shared_score, counts[at], sums[at], share, squared)
            e = _error(alpha * own_score + rest * shared_score, counts[at], sums[at], share, squared)
            way += e * (own_score - shared_score)
            own_far = lr * alpha * e
            for c in range(k):
                du[c] += e * (alpha * mine[c] + rest * row[c])
                mine[c] -= own_far * u[c]
                row[c] -= far * u[c]
        for c in range(k):
            u[c] -= lr * du[c]
        alpha = min(max(alpha - alpha_lr * way, ZERO), ONE)
    return alpha
