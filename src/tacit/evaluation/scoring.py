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
from ..engine.backends import chunks, compacted
from ..engine.run import State
from ..engine.store import Store

People = NDArray[np.int64]
CELLS = 8_000_000  # scores held at once


def personal_scores(
    method: Method, model: Model, shared: Params, store: Store, people: People, held: Ragged, candidates: Tensor
) -> Iterator[tuple[NDArray[np.int64], Tensor]]:
    """Yields (places in `people`, scores [places, c]). `candidates` is [people, c], or [c] for all alike.

    Where people have item tables of their own and candidates are few, only rows of candidates and examples are made.
    """

    def one(shared: Params, own: Params, examples: Examples, items: Tensor) -> Tensor:
        return model.score(method.personalize(shared, own, examples), items)

    each, people = candidates.ndim == 2, np.asarray(people)
    if method.scores is not None:  # a compiled twin of personalize and score
        everyone = np.arange(len(people))
        for part in np.array_split(everyone, max(1, -(-len(everyone) * candidates.shape[-1] // CELLS))):
            mine = (candidates[part] if each else candidates).numpy()
            yield part, torch.from_numpy(method.scores(shared, store, people[part], mine))
        return
    tables = _own_tables(method, shared, store, people, held)
    catalogue = max((len(table) for table in tables), default=0)
    width = sum(table[0].numel() for table in tables)
    for chunk in chunks(held, 64):
        rows = min(catalogue, candidates.shape[-1] + int(held.lengths[chunk].max())) if each else catalogue
        cells = candidates.shape[-1] + rows * width + (model.catalogue if method.bulk else 0)
        for part in np.array_split(chunk, min(len(chunk), max(1, -(-len(chunk) * cells // CELLS)))):
            examples, items = held.pad(part), candidates[part] if each else candidates
            params, at = shared, None
            if each and tables:
                examples, items, at = _compacted(examples, items, catalogue)
                params = {n: v[at] if n in method.rows else v for n, v in shared.items()}
            dims = {n: 0 if at is not None and n in method.rows else None for n in params}
            run = vmap(one, in_dims=(dims, 0, 0, 0 if each else None))
            yield part, run(params, store.gather(people[part], at), examples, items).detach()


def _own_tables(method: Method, shared: Params, store: Store, people: People, held: Ragged) -> list[Tensor]:
    """The item tables that a person has apart from the shared ones, told from the first person's."""
    if not len(people) or not method.rows:
        return []
    own = {name: value[0] for name, value in store.gather(people[:1]).items()}
    params = method.personalize(shared, own, Examples(*(x[0] for x in held.pad(np.arange(1)))))
    return [value for name, value in params.items() if name in method.rows and value is not shared.get(name)]


def _compacted(held: Examples, items: Tensor, catalogue: int) -> tuple[Examples, Tensor, Tensor]:
    """Examples and candidates in a table of the rows they name, and these rows [people, r] in the catalogue."""
    parts = (held.inputs.flatten(1), items), (held.mask.flatten(1), torch.ones(items.shape))
    inputs, mask = (torch.cat(pair, 1)[:, None] for pair in parts)
    both, rows = compacted(Examples(inputs, mask, mask), catalogue)
    named, asked = both.inputs[:, 0].split([parts[0][0].shape[1], items.shape[1]], 1)
    return held._replace(inputs=named.reshape(held.inputs.shape)), asked, rows


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
