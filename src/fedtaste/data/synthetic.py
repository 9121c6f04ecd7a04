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

from fedtaste.data.interactions import Floats, Interactions, Ints, starts_of
from fedtaste.errors import DataError
from fedtaste.steps import blocks

Doubles = NDArray[np.float64]
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
OFF_TASTE = 0.1  # the share of candidates that are drawn by popularity only, regardless of taste
CANDIDATES = 5  # items that a person looks at before taking one
# Each takes about 5 GB: 250 bytes for a person, 2 kB for an item (in the tables of its genres), 30 bytes for a pair.
MOST_PEOPLE, MOST_ITEMS, MOST_INTERACTIONS = 20_000_000, 2_000_000, 200_000_000
BLOCK = 2_000_000  # interactions that are generated between two reports of progress


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
    factors = item_factors(items, k, rng)
    first_taste, last_taste = rng.dirichlet(np.full(k, 0.25), (2, people)).astype(np.float32)  # shares of the genres
    counts = activity(people, interactions, items * 3 // 4, rng)
    starts = starts_of(counts)
    tables = popularity_tables(factors, rng)
    item, affinity = choose_all(starts, tables, factors, (first_taste, last_taste), int(rng.integers(1 << 62)))
    person = np.repeat(np.arange(people, dtype=np.int32), counts)
    value = ratings(affinity, rng)
    return Interactions(
        name=f"synthetic:{people}x{items}x{interactions}",
        person=person,
        item=item,
        people=tuple(str(i) for i in range(1, people + 1)),
        items=tuple(str(i) for i in range(1, items + 1)),
        value=value,
        time=timestamps(starts, rng),
        titles=titles(items, rng),
        genres=genres(factors),
        notes=(f"Generated: {k} planted tastes, seed {seed}.",),
    )


def _require(people: int, items: int, interactions: int, k: int) -> None:
    """Refuse sizes for which no data can be generated."""
    if min(people, k) < 1 or items < 2 or interactions < people or 2 * interactions > people * items:
        raise DataError(
            f"A synthetic world of {people:,} people, {items:,} items, {interactions:,} interactions and {k} tastes "
            f"cannot be made. Expected at least 1 person, 2 items and 1 taste, and from {people:,} interactions (one "
            f"each) to {people * items // 2:,} (half of all pairs). Change one: synthetic:PEOPLExITEMSxINTERACTIONS."
        )
    if people > MOST_PEOPLE or items > MOST_ITEMS or interactions > MOST_INTERACTIONS:
        raise DataError(
            f"A synthetic world of {people:,} people, {items:,} items and {interactions:,} interactions would not fit "
            f"into memory. Expected at most {MOST_PEOPLE:,} people, {MOST_ITEMS:,} items and {MOST_INTERACTIONS:,} "
            "interactions."
        )


def item_factors(items: int, k: int, rng: np.random.Generator) -> Floats:
    """Unit rows: one genre, half of another, and a little of everything. [items, k]"""
    factors = 0.35 * rng.standard_normal((items, k))
    rows = np.arange(items)
    factors[rows, rng.integers(k, size=items)] += 1.0
    factors[rows, rng.integers(k, size=items)] += 0.5
    unit: Floats = (factors / np.linalg.norm(factors, axis=1, keepdims=True)).astype(np.float32)
    return unit


def popularity_tables(factors: Floats, rng: np.random.Generator) -> tuple[Ints, NDArray[np.int64]]:
    """(tables, starts): a table per genre and one of all items, end to end, with more copies of more popular items.

    A uniform draw from a table is then a draw by popularity (Zipf) in one look-up. Ranks are shuffled, as item numbers
    that follow popularity would give it away. The last table has every item at least once.
    """
    items = len(factors)
    popularity = 1.0 / (rng.permutation(items) + 3.0)
    parts = []
    for liking in [*np.maximum(factors.T, 0.0) ** 2, np.ones(items, np.float32)]:
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


@njit(cache=True, nogil=True)
def next_state(state: np.uint64) -> np.uint64:
    """The state of splitmix64 after one more number."""
    return state + np.uint64(0x9E3779B97F4A7C15)


@njit(cache=True, nogil=True)
def uniform(state: np.uint64) -> float:
    """The number in (0, 1) of this state, by splitmix64."""
    x = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x = x ^ (x >> np.uint64(31))
    return (np.float64(x >> np.uint64(11)) + 0.5) / 9007199254740992.0


@njit(cache=True, nogil=True)
def pick_share(shares: NDArray[np.float64], at: float) -> int:
    """The index whose part of the unit line, cut by `shares`, holds the point `at`."""
    for i in range(len(shares) - 1):
        at -= shares[i]
        if at < 0:
            return i
    return len(shares) - 1


@njit(cache=True, nogil=True)
def blend_tastes(first: Floats, last: Floats, share: np.float32, mix: Doubles, taste: Doubles) -> None:
    """Fill `mix` with a mix of two tastes, the last one with this share, and `taste` with the unit vector of it."""
    square = 0.0
    for i in range(len(mix)):
        mix[i] = (1 - np.float64(share)) * first[i] + share * last[i]
        square += mix[i] * mix[i]
    length = np.sqrt(square)
    for i in range(len(mix)):
        taste[i] = mix[i] / length


@njit(cache=True, nogil=True)
def draw_candidates(
    tables: tuple[Ints, NDArray[np.int64]], mix: Doubles, state: np.uint64, spots: NDArray[np.int64], items: Ints
) -> np.uint64:
    """Fill `items` with candidates, -1 where a genre is empty (with more tastes than items one may be); `spots` is
    space for as many numbers. Returns the state of the generator.

    First all places in the table and then all items: the processor loads several at once.
    """
    table, starts = tables
    for c in range(len(items)):
        state = next_state(state)
        genre = len(mix)
        if uniform(state) > OFF_TASTE:
            state = next_state(state)
            genre = pick_share(mix, uniform(state))
        width = starts[genre + 1] - starts[genre]
        spots[c] = -1
        if width > 0:
            state = next_state(state)
            spots[c] = starts[genre] + int(uniform(state) * width)
    for c in range(len(items)):
        items[c] = table[spots[c]] if spots[c] >= 0 else -1
    return state


@njit(cache=True, nogil=True)
def choose_items(
    people: tuple[int, int],
    starts: NDArray[np.int64],
    tables: tuple[Ints, NDArray[np.int64]],
    factors: Floats,
    tastes: tuple[Floats, Floats],
    taken_by: Ints,
    state: np.uint64,
    out: tuple[Ints, Floats],
) -> np.uint64:
    """Choose the items of the people from `people[0]` to before `people[1]`; returns the state of the generator.

    `out` gets each person's items in the order they are taken, and how well each suited at that moment. `taken_by`
    [items] is the last person who took an item: nobody takes one twice.
    """
    (first_taste, last_taste), (items, affinity), k = tastes, out, factors.shape[1]
    mix, taste = np.empty(k), np.empty(k)
    spots, candidates = np.empty(CANDIDATES, np.int64), np.empty(CANDIDATES, np.int32)
    for person in range(people[0], people[1]):
        for place in range(starts[person], starts[person + 1]):
            progress = np.float32((place - starts[person]) / (starts[person + 1] - starts[person]))
            blend_tastes(first_taste[person], last_taste[person], progress, mix, taste)
            best, best_score, number = -1, -np.inf, CANDIDATES
            while best < 0:  # once, unless all candidates were taken before: then one more at a time
                state = draw_candidates(tables, mix, state, spots, candidates[:number])
                for item in candidates[:number]:
                    score = 0.0
                    for i in range(k):
                        score += taste[i] * factors[item, i]
                    if item >= 0 and score > best_score and taken_by[item] != person:
                        best, best_score = item, score
                number = 1
            taken_by[best] = person
            items[place], affinity[place] = best, best_score
    return state


def choose_all(
    starts: NDArray[np.int64],
    tables: tuple[Ints, NDArray[np.int64]],
    factors: Floats,
    tastes: tuple[Floats, Floats],
    seed: int,
) -> tuple[Ints, Floats]:
    """Everybody's items in the order they are taken, and how well each suited at that moment. [n], [n]"""
    out = np.empty(starts[-1], np.int32), np.empty(starts[-1], np.float32)
    taken_by, state = np.full(len(factors), -1, np.int32), np.uint64(seed)
    cuts = np.searchsorted(starts, np.arange(0, starts[-1], BLOCK)).tolist()
    for people in blocks("generating", list(zip(cuts, [*cuts[1:], len(starts) - 1]))):
        state = np.uint64(choose_items(people, starts, tables, factors, tastes, taken_by, state, out))
    return out


def ratings(affinity: Floats, rng: np.random.Generator) -> Floats:
    """Whole numbers from 1 to 5, by how well an item suited and by chance. Overwrites `affinity`."""
    mean, spread = affinity.mean(), max(float(affinity.std()), 1e-6)
    affinity -= mean
    affinity /= spread
    affinity += 3.6
    chance = rng.standard_normal(len(affinity), np.float32)
    chance *= 0.5
    affinity += chance
    return np.clip(np.rint(affinity, out=affinity), 1, 5, out=affinity)


@njit(cache=True, nogil=True)
def _add_to_people(starts: NDArray[np.int64], values: NDArray[np.float64], amount: NDArray[np.float64]) -> None:
    for person in range(len(amount)):
        for at in range(starts[person], starts[person + 1]):
            values[at] += amount[person]


def timestamps(starts: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.float64]:
    """Whole seconds; each person begins within a year, and steps of at least a second follow. [n]"""
    gaps = rng.exponential(20_000.0, starts[-1])
    np.floor(gaps, out=gaps)
    gaps += 1.0
    first = gaps[starts[:-1]]
    total: Doubles = np.cumsum(gaps, out=gaps)
    begin = 1_600_000_000.0 + rng.integers(365 * 86_400, size=len(starts) - 1)
    _add_to_people(starts, total, begin - (total[starts[:-1]] - first))  # less the gaps of the people before
    return total


def titles(items: int, rng: np.random.Generator) -> tuple[str, ...]:
    """`The Amber Lighthouse`, each once; when the words run out, `The Amber Lighthouse 2`."""
    words = [f"The {adjective} {noun}" for adjective in ADJECTIVES for noun in NOUNS]
    order = rng.permutation(len(words))
    rounds = (divmod(i, len(words)) for i in range(items))
    return tuple(words[order[j]] + (f" {turn + 1}" if turn else "") for turn, j in rounds)


def genres(factors: Floats) -> tuple[str, ...]:
    """The one or two planted factors that an item is mostly made of, the strongest first."""
    names = [GENRES[i] if i < len(GENRES) else f"Genre {i + 1}" for i in range(factors.shape[1])]
    order = np.argsort(-factors, axis=1, kind="stable")[:, :2]
    # A third of a unit row is about the share of the second planted genre.
    strong = np.take_along_axis(factors, order, axis=1) > 0.33
    strong[:, 0] = True
    return tuple(", ".join(names[i] for i in row[mask]) for row, mask in zip(order, strong))
