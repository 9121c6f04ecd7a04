"""Score items for many people at once, each with a personalised model; and rank held-out items by the scores."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import vmap

from fedtaste.core import Examples, Method, Model, Params, People
from fedtaste.data.interactions import Histories
from fedtaste.data.sampling import Ragged
from fedtaste.engine.backends import chunks, compacted
from fedtaste.engine.store import Store
from fedtaste.kernels import ranks as kernels
from fedtaste.kernels.top_items import top_items

CELLS = 8_000_000  # scores in memory at once


@dataclass(frozen=True, eq=False)
class Personalised:
    """People whom a trained method can score: its shared parameters with their private ones and their examples."""

    method: Method
    model: Model
    shared: Params
    store: Store
    people: People  # their numbers in the store
    examples: Ragged  # in the same order

    def scores(self, candidates: Tensor) -> Iterator[tuple[NDArray[np.int64], Tensor]]:
        """Yields (places in `people`, scores [places, c]) as `personal_scores` does."""
        return personal_scores(self.method, self.model, self.shared, self.store, self.people, self.examples, candidates)


def personal_scores(
    method: Method, model: Model, shared: Params, store: Store, people: People, examples: Ragged, candidates: Tensor
) -> Iterator[tuple[NDArray[np.int64], Tensor]]:
    """Yields (places in `people`, scores [places, c]). `candidates` is [people, c], or [c] for everybody.

    Where people have item tables of their own and candidates are few, only rows of candidates and examples are read.
    """

    def one(shared: Params, own: Params, examples: Examples, items: Tensor) -> Tensor:
        return model.score(method.personalize(shared, own, examples), items)

    each, people = candidates.ndim == 2, np.asarray(people)
    if method.fast.scores is not None:  # a compiled equivalent of personalize and score
        everyone = np.arange(len(people))
        for part in np.array_split(everyone, max(1, -(-len(everyone) * candidates.shape[-1] // CELLS))):
            mine = (candidates[part] if each else candidates).numpy()
            yield part, torch.from_numpy(method.fast.scores(shared, store, people[part], mine))
        return
    tables = _own_tables(method, shared, store, people, examples)
    catalogue = max((len(table) for table in tables), default=0)
    width = sum(table[0].numel() for table in tables)
    for chunk in chunks(examples, 64):
        rows = min(catalogue, candidates.shape[-1] + int(examples.lengths[chunk].max())) if each else catalogue
        cells = candidates.shape[-1] + rows * width + (model.catalogue if method.fast.bulk else 0)
        for part in np.array_split(chunk, min(len(chunk), max(1, -(-len(chunk) * cells // CELLS)))):
            padded, items = examples.pad(part), candidates[part] if each else candidates
            params, at = shared, None
            if each and tables:
                padded, items, at = _compacted(padded, items, catalogue)
                params = {n: v[at] if n in method.rows else v for n, v in shared.items()}
            dims = {n: 0 if at is not None and n in method.rows else None for n in params}
            run = vmap(one, in_dims=(dims, 0, 0, 0 if each else None))
            yield part, run(params, store.gather(people[part], at), padded, items).detach()


def _own_tables(method: Method, shared: Params, store: Store, people: People, examples: Ragged) -> list[Tensor]:
    """The item tables that a person has apart from the shared ones; the first person's stand for all."""
    if not len(people) or not method.rows:
        return []
    own = {name: value[0] for name, value in store.gather(people[:1]).items()}
    params = method.personalize(shared, own, Examples(*(x[0] for x in examples.pad(np.arange(1)))))
    return [value for name, value in params.items() if name in method.rows and value is not shared.get(name)]


def _compacted(examples: Examples, items: Tensor, catalogue: int) -> tuple[Examples, Tensor, Tensor]:
    """Examples and candidates in a table of the rows they name, and these rows [people, r] in the catalogue."""
    parts = (examples.inputs.flatten(1), items), (examples.mask.flatten(1), torch.ones(items.shape))
    inputs, mask = (torch.cat(pair, 1)[:, None] for pair in parts)
    both, rows = compacted(Examples(inputs, mask, mask), catalogue)
    width = parts[0][0].shape[1]
    named, candidates = both.inputs[:, 0, :width], both.inputs[:, 0, width:]
    return examples._replace(inputs=named.reshape(examples.inputs.shape)), candidates, rows


def sampled_ranks(scores: Tensor, mine: NDArray[np.bool_], theirs: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Ranks of the `mine` columns against the `theirs` columns of each row; ties count against the positive. There is
    one rank for each true entry of `mine`, row by row."""
    s = _lowest_where_undefined(scores)
    row, column = np.nonzero(mine)
    rank: NDArray[np.int64] = 1 + ((s[row] >= s[row, column][:, None]) & theirs[row]).sum(1)
    return rank


def full_ranks(scores: Tensor, seen: Histories, positives: Histories, places: People) -> NDArray[np.int64]:
    """Ranks of the positives of these people in the whole catalogue, their history and other positives left out."""
    mine, history = positives.take(places), seen.take(places)
    values = _lowest_where_undefined(scores)
    ranks: NDArray[np.int64] = kernels.full_ranks(values, history.starts, history.items, mine.starts, mine.items)
    return ranks


def top_lists(scores: Tensor, seen: Histories, places: People, n: int) -> NDArray[np.int64]:
    """The n best items of these people [places, n] without their history, in the order of `rank_items`; -1 after the
    last where fewer are left."""
    history, values = seen.take(places), _lowest_where_undefined(scores)
    every, each = np.ones(values.shape[1], bool), np.arange(values.shape[1])
    best, _ = top_items(values, history.starts, history.items, every, each, n)
    lists: NDArray[np.int64] = best.astype(np.int64)
    return lists


def _lowest_where_undefined(scores: Tensor) -> NDArray[np.floating]:
    """The scores, with -inf for NaN and infinite ones: a diverged model must not win by comparisons that are false."""
    values = scores.numpy()
    return np.where(np.isfinite(values), values, -np.inf)
