"""Generate a synthetic data set of interactions with planted tastes, a few popular items and a few busy people.

Items and people have `k` planted factors, one per genre. To take an item, a person looks at a few: each is of a genre
drawn by taste and drawn by popularity within it, or, rarely, anything popular; the one that suits best is taken. The
taste moves slowly from one mix of genres to another, so that the order of a history helps to predict what comes next.
No array of size people x items is ever made.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from fedtaste.data.interactions import Floats, Interactions, Ints
from fedtaste.errors import DataError

GENRES = (
    "Adventure", "Comedy", "Drama", "Mystery", "Romance", "Science", "History", "Music", "Fantasy", "Travel", "Nature",
    "Crime", "War", "Family", "Horror", "Sport", "Art", "Western",
)  # fmt: skip
ADJECTIVES = (
    "Amber", "Ancient", "Autumn", "Borrowed", "Brave", "Broken", "Copper", "Crimson", "Distant", "Electric", "Emerald",
    "Endless", "Forgotten", "Frozen", "Gentle", "Glass", "Golden", "Hidden", "Hollow", "Honest", "Invisible", "Ivory",
    "Last", "Little", "Lonely", "Lost", "Midnight", "Paper", "Patient", "Quiet", "Restless", "Salt", "Scarlet",
    "Second", "Secret", "Silver", "Sleeping", "Stolen", "Velvet", "Wandering",
)  # fmt: skip
NOUNS = (
    "Accordion", "Anchor", "Archive", "Balcony", "Bridge", "Caravan", "Cathedral", "Clockmaker", "Comet", "Compass",
    "Cousin", "Desert", "Detective", "Dragon", "Empire", "Express", "Festival", "Ferryman", "Forest", "Garden",
    "Gardener", "Harbour", "Horizon", "Hotel", "Island", "Journey", "Kingdom", "Labyrinth", "Lantern", "Letter",
    "Library", "Lighthouse", "Machine", "Meadow", "Melody", "Mirror", "Mountain", "Orchard", "Orchestra", "Painter",
    "Parade", "Promise", "Railway", "River", "Sailor", "Shadow", "Stranger", "Summer", "Theatre", "Voyage",
)  # fmt: skip
LEAST = 5  # interactions of the least active person, where the numbers allow it
STRAY = 0.1  # the share of looks at anything popular, regardless of taste
LOOKS = 5  # items looked at for one that is taken


def synthetic(
    people: int = 600, items: int = 400, interactions: int = 24_000, *, k: int = 6, seed: int = 0
) -> Interactions:
    """Exactly `interactions` different pairs, each person's in strictly increasing time, with ratings from 1 to 5.

    >>> data = synthetic(50, 40, 500)
    >>> len(data), len(data.people), len(data.items), data.titles[0][:4]
    (500, 50, 40, 'The ')
    """
    _require(people, items, interactions, k)
    rng = np.random.default_rng(seed)
    axes = item_factors(items, k, rng)
    before, after = rng.dirichlet(np.full(k, 0.25), (2, people)).astype(np.float32)  # the mix of genres, first and last
    counts = activity(people, interactions, items * 3 // 4, rng)
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    item, affinity = choose(starts, *shelves(axes, rng), axes, before, after, int(rng.integers(1 << 62)))
    person = np.repeat(np.arange(people, dtype=np.int32), counts)
    liking = (affinity - affinity.mean()) / max(float(affinity.std()), 1e-6)
    value = np.clip(np.rint(3.6 + liking + 0.5 * rng.standard_normal(interactions, np.float32)), 1, 5)
    return Interactions(
        name=f"synthetic:{people}x{items}x{interactions}",
        person=person,
        item=item,
        people=tuple(str(i) for i in range(1, people + 1)),
        items=tuple(str(i) for i in range(1, items + 1)),
        value=value.astype(np.float32),
        time=clock(starts, rng),
        titles=titles(items, rng),
        genres=genres(axes),
        notes=(f"Made: {k} planted tastes, seed {seed}.",),
    )


def _require(people: int, items: int, interactions: int, k: int) -> None:
    """Refuse sizes that no world can have."""
    if min(people, k) < 1 or items < 2 or interactions < people or 2 * interactions > people * items:
        raise DataError(
            f"A synthetic world of {people:,} people, {items:,} items, {interactions:,} interactions and {k} tastes "
            f"cannot be made. Expected at least 1 person, 2 items and 1 taste, and from {people:,} interactions (one "
            f"each) to {people * items // 2:,} (half of all pairs). Change one: synthetic:PEOPLExITEMSxINTERACTIONS."
        )


def item_factors(items: int, k: int, rng: np.random.Generator) -> Floats:
    """Unit rows: one genre, half of another, and a little of everything. [items, k]"""
    factors = 0.35 * rng.standard_normal((items, k))
    rows = np.arange(items)
    factors[rows, rng.integers(k, size=items)] += 1.0
    factors[rows, rng.integers(k, size=items)] += 0.5
    unit: Floats = (factors / np.linalg.norm(factors, axis=1, keepdims=True)).astype(np.float32)
    return unit


def shelves(axes: Floats, rng: np.random.Generator) -> tuple[Ints, NDArray[np.int64]]:
    """One shelf per genre and one for all, where items stand as often as they are popular there, end to end. -> starts

    A uniform draw from a shelf is then a draw by popularity (Zipf) in one look-up. Ranks are shuffled, as item numbers
    that follow popularity would give it away. On the last shelf every item stands at least once.
    """
    items = len(axes)
    popularity = 1.0 / (rng.permutation(items) + 3.0)
    parts = []
    for liking in [*np.maximum(axes.T, 0.0) ** 2, np.ones(items, np.float32)]:
        weight = popularity * liking
        copies = np.ceil(weight / max(weight.sum(), 1e-12) * max(32 * items, 1 << 14)).astype(np.int64)
        parts.append(np.repeat(np.arange(items, dtype=np.int32), copies))
    return np.concatenate(parts), np.cumsum([0] + [len(part) for part in parts])


def activity(people: int, total: int, most: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """How many interactions each person has: `LEAST` and a power-law tail, at most `most`, `total` in all."""
    counts = np.full(people, min(LEAST, total // people, most), np.int64)
    weight = rng.pareto(1.6, people) + 0.1
    while (left := total - counts.sum()) > 0:
        room = most - counts
        open_weight = np.where(room > 0, weight, 0.0)
        share = np.minimum((left * open_weight / open_weight.sum()).astype(np.int64), room)
        if not share.any():  # every share is below one, so that fewer are left than there are people with room
            share[rng.permutation(np.flatnonzero(room > 0))[:left]] = 1
        counts += share
    return counts


@njit(cache=True)
def uniform(state: NDArray[np.uint64]) -> float:
    """A number in (0, 1), by splitmix64; `state` [1] moves on."""
    state[0] += np.uint64(0x9E3779B97F4A7C15)
    x = state[0]
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x = x ^ (x >> np.uint64(31))
    return (np.float64(x >> np.uint64(11)) + 0.5) / 9007199254740992.0


@njit(cache=True)
def pick(shares: Floats, at: float) -> int:
    """The index whose part of the unit line, cut by `shares`, holds the point `at`."""
    for i in range(len(shares) - 1):
        at -= shares[i]
        if at < 0:
            return i
    return len(shares) - 1


@njit(cache=True)
def choose(
    starts: NDArray[np.int64],
    shelf: Ints,
    shelf_starts: NDArray[np.int64],
    axes: Floats,
    before: Floats,
    after: Floats,
    seed: int,
) -> tuple[Ints, Floats]:
    """Each person's items in the order they are taken, and how well each suited at that moment. [n], [n]"""
    items = np.empty(starts[-1], np.int32)
    affinity = np.empty(starts[-1], np.float32)
    taken_by = np.full(len(axes), -1, np.int32)  # the last person who took the item: nobody takes one twice
    state = np.array([seed], np.uint64)
    for person in range(len(starts) - 1):
        for place in range(starts[person], starts[person + 1]):
            moved = np.float32((place - starts[person]) / (starts[person + 1] - starts[person]))
            mix = (1 - moved) * before[person] + moved * after[person]
            taste = mix / np.sqrt((mix * mix).sum())
            looks, best, suits = 0, -1, np.float32(-np.inf)
            while looks < LOOKS or best < 0:
                looks += 1
                genre = pick(mix, uniform(state)) if uniform(state) > STRAY else len(mix)
                width = shelf_starts[genre + 1] - shelf_starts[genre]
                if width == 0:  # with more tastes than items a genre may be empty
                    continue
                item = shelf[shelf_starts[genre] + int(uniform(state) * width)]
                score = (taste * axes[item]).sum()
                if score > suits and taken_by[item] != person:
                    best, suits = item, score
            taken_by[best] = person
            items[place], affinity[place] = best, suits
    return items, affinity


def clock(starts: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.float64]:
    """Whole seconds; each person begins within a year, and steps of at least a second follow. [n]"""
    gaps = 1.0 + np.floor(rng.exponential(20_000.0, starts[-1]))
    total = np.cumsum(gaps)
    begin = 1_600_000_000.0 + rng.integers(365 * 86_400, size=len(starts) - 1)
    before = total[starts[:-1]] - gaps[starts[:-1]]
    time: NDArray[np.float64] = total + np.repeat(begin - before, np.diff(starts))
    return time


def titles(items: int, rng: np.random.Generator) -> tuple[str, ...]:
    """`The Amber Lighthouse`, each once; when the words run out, `The Amber Lighthouse 2`."""
    words = [f"The {adjective} {noun}" for adjective in ADJECTIVES for noun in NOUNS]
    order = rng.permutation(len(words))
    rounds = (divmod(i, len(words)) for i in range(items))
    return tuple(words[order[j]] + (f" {turn + 1}" if turn else "") for turn, j in rounds)


def genres(axes: Floats) -> tuple[str, ...]:
    """The one or two planted factors that an item is mostly made of, the strongest first."""
    names = [GENRES[i] if i < len(GENRES) else f"Genre {i + 1}" for i in range(axes.shape[1])]
    order = np.argsort(-axes, axis=1, kind="stable")[:, :2]
    # A third of a unit row is about the share of the second planted genre.
    strong = np.take_along_axis(axes, order, axis=1) > 0.33
    strong[:, 0] = True
    return tuple(", ".join(names[i] for i in row[mask]) for row, mask in zip(order, strong))
