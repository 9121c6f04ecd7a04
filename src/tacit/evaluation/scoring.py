"""Everybody's personal scores: `personalize`, then `score`, people in batches. This is also how people are served."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import vmap

from ..core import Examples, Method, Model, Params
from ..data.interactions import Histories
from ..data.sampling import Ragged
from ..engine.backends import chunks
from ..engine.run import State
from ..engine.store import Store

People = NDArray[np.int64]
CELLS = 8_000_000  # scores held at once


def personal_scores(
    method: Method, model: Model, shared: Params, store: Store, people: People, held: Ragged, candidates: Tensor
) -> Iterator[tuple[NDArray[np.int64], Tensor]]:
    """Yields (places in `people`, scores [places, c]). `candidates` is [people, c], or [c] for all alike."""

    def one(own: Params, examples: Examples, items: Tensor) -> Tensor:
        return model.score(method.personalize(shared, own, examples), items)

    each = candidates.ndim == 2
    if method.scores is not None:  # a compiled twin of personalize and score
        everyone = np.arange(len(people))
        for part in np.array_split(everyone, max(1, -(-len(everyone) * candidates.shape[-1] // CELLS))):
            mine = (candidates[part] if each else candidates).numpy()
            yield part, torch.from_numpy(method.scores(shared, store, np.asarray(people)[part], mine))
        return
    cells = candidates.shape[-1] + sum(v.numel() for n, v in store.initial.items() if n in store.rows)
    cells += model.catalogue if method.bulk else 0  # such a method scores everything at once
    for chunk in chunks(held, 64):
        for part in np.array_split(chunk, max(1, -(-len(chunk) * cells // CELLS))):
            own, examples = store.gather(np.asarray(people)[part]), held.pad(part)
            scores = vmap(one, in_dims=(0, 0, 0 if each else None))(
                own, examples, candidates[part] if each else candidates
            )
            yield part, scores.detach()


def sampled_ranks(scores: Tensor, mine: NDArray[np.bool_], theirs: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Ranks of the `mine` columns against the `theirs` columns of each row; ties count against the positive. The
    result runs over the true entries of `mine`, row by row."""
    s = scores.numpy()
    s = np.where(np.isfinite(s), s, -np.inf)
    row, column = np.nonzero(mine)
    rank: NDArray[np.int64] = 1 + ((s[row] >= s[row, column][:, None]) & theirs[row]).sum(1)
    return rank


def full_ranks(scores: Tensor, seen: Histories, positives: Histories, places: People) -> NDArray[np.int64]:
    """Ranks of the positives of these people in the whole catalogue, their history and other positives left out."""
    out = []
    for row, person in enumerate(places):
        s = scores[row].double()
        mine = torch.from_numpy(positives.of(int(person)).astype(np.int64))
        wanted = s[mine]
        s[torch.from_numpy(seen.of(int(person)).astype(np.int64))] = -torch.inf
        s[mine] = -torch.inf
        out.append(1 + (s[None] >= wanted[:, None]).sum(1).numpy())
    return np.concatenate(out) if out else np.zeros(0, np.int64)


def top_items(method: Method, model: Model, state: State, likes: Sequence[int], n: int = 10) -> list[int]:
    """The n best items for somebody new who likes these, oldest first. Needs the shared parameters and the likes only.

    Methods that keep something private start it as everybody's began; `tacit recommend` lets it adapt first.
    """
    items = np.asarray(likes, np.int32)
    held = Ragged(np.array([0, len(items)]), items, np.ones(len(items), np.float32))
    fresh = Store.fresh(state.private.initial, 1, method.rows)
    catalogue = torch.arange(model.catalogue)
    ((_, scores),) = personal_scores(method, model, state.shared, fresh, np.zeros(1, np.int64), held, catalogue)
    best = scores[0].index_fill(0, torch.from_numpy(items.astype(np.int64)), -torch.inf)
    return [int(item) for item in best.argsort(descending=True, stable=True)[:n]]
