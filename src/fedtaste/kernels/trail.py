"""FedSeq's trail features compiled by Numba: how strongly the items of a history lead to candidates, by position.

methods/sequence_loss.py has the formula and the readable equivalent (`negative_trail`).
"""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True, nogil=True, error_model="numpy")
def negative_trail(table, from_scale, to_scale, items, lengths, firsts, negatives, places, powers, speeds, out):
    """Fill out [people, T, J] for windows `items` [people, T + 1] of `lengths` real positions, which start at entry
    `firsts` of the history. `places` [people, J] are the first entries of the negatives in the history. `speeds` =
    (mix, fast, slow). Positions after the last real one are not written."""
    mix, fast, slow = speeds
    rest, count = np.float32(1.0) - mix, len(negatives)
    near, far = np.empty(count, np.float32), np.empty(count, np.float32)
    for person in range(len(items)):
        near[:] = 0
        far[:] = 0
        for step in range(lengths[person]):
            row = table[items[person, step]]
            for j in range(count):
                value = row[negatives[j]]
                near[j] = fast * near[j] + value
                far[j] = slow * far[j] + value
                out[person, step, j] = mix * near[j] + rest * far[j]
        for j in range(count):  # own later items: without the counts that this person has sent
            last = min(lengths[person], places[person, j] - firsts[person])
            if places[person, j] > firsts[person] + lengths[person] + len(powers) or last <= 0:
                continue
            first, second = np.float32(0), np.float32(0)
            for step in range(last):
                item = items[person, step]
                value, distance = table[item, negatives[j]], places[person, j] - firsts[person] - step
                if distance <= len(powers):
                    own = powers[distance - 1] * from_scale[item] * to_scale[negatives[j]]
                    value = max(value - own, np.float32(0))
                first, second = fast * first + value, slow * second + value
                out[person, step, j] = mix * first + rest * second


@njit(cache=True, nogil=True, error_model="numpy")
def target_trail(table, from_scale, to_scale, items, lengths, powers, speeds, out):
    """Fill out [people, T] for the next items of windows `items` [people, T + 1] of `lengths` real positions."""
    mix, fast, slow = speeds
    rest = np.float32(1.0) - mix
    for person in range(len(items)):
        for step in range(lengths[person]):
            target, total = items[person, step + 1], np.float32(0)
            near, far = mix, rest
            for back in range(step + 1):
                item = items[person, step - back]
                value = table[item, target]
                if back < len(powers):
                    value = max(value - powers[back] * from_scale[item] * to_scale[target], np.float32(0))
                total += (near + far) * value
                near *= fast
                far *= slow
            out[person, step] = total


@njit(cache=True, nogil=True)
def mask_taken(scores, places, firsts):
    """Set scores [people x T, J] of negatives to -inf from the position on whose next item they are. `places`
    [people, J] are their first entries in the history, `firsts` [people] the first entries of the windows."""
    steps = len(scores) // len(places)
    for person in range(len(places)):
        for j in range(places.shape[1]):
            for step in range(max(places[person, j] - firsts[person] - 1, 0), steps):
                scores[person * steps + step, j] = -np.inf
