"""Make a public table of item features from genres and from the years in titles such as "Toy Story (1995)".

Features are facts about items and not about people, so a private method may use them without privacy cost.
    labels   one column for every genre, 1 where the item has it; at most LABELS, the most common ones
    year     KNOTS quantiles of the catalogue's years (years that occur) are knots; an item's columns are the weights of
             linear interpolation between the two knots around its year (they add to 1). Equal quantiles count once.
    words    only with `words=True` and where there are neither labels nor years: one column for every word that FEWEST
             titles share or more; at most LABELS, the most common ones
Words are not used beside genres and years: on validation of ML-100K they made recommendations worse.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

LABELS = 100  # genres that get a column, at most
KNOTS = 10  # quantiles of the years
FEWEST = 5  # titles that share a word, for it to get a column
WORD = re.compile(r"[^\W\d_]{3,}")
YEAR = re.compile(r"\((\d{4})\)\s*$")
SEPARATORS = re.compile(r"[,|;]")


def item_features(
    titles: Sequence[str], genres: Sequence[str] = (), *, words: bool = False
) -> NDArray[np.float32] | None:
    """[items, features], or None where the items have neither genres nor years; with `words`, those of the titles then.

    >>> item_features(["A (1990)", "B (1995)", "C (2000)"], ["Drama", "Drama, War", ""])[:, :2].tolist()
    [[1.0, 0.0], [1.0, 1.0], [0.0, 0.0]]
    >>> item_features(["A", "B"]) is None
    True
    """
    table = np.concatenate([_label_columns(genres, len(titles)), _year_columns(years(titles))], axis=1)
    if words and not table.shape[1]:
        table = _label_columns(["|".join(WORD.findall(title.lower())) for title in titles], len(titles), FEWEST)
    return table if table.shape[1] else None


def years(titles: Sequence[str]) -> NDArray[np.float64]:
    """The year in brackets at the end of each title; nan where there is none.

    >>> years(["Toy Story (1995)", "Toy Story"]).tolist()
    [1995.0, nan]
    """
    return np.array([float(match[1]) if (match := YEAR.search(title)) else np.nan for title in titles])


def genre_bits(genres: Sequence[str]) -> list[int]:
    """Each item's set of genres as the bits of a number; 0 where it has none.

    >>> genre_bits(["Drama", "War|Drama", ""])
    [1, 3, 0]
    """
    rows = [_labels(text) for text in genres]
    bit = {label: 1 << number for number, label in enumerate(dict.fromkeys(label for row in rows for label in row))}
    return [sum(bit[label] for label in row) for row in rows]


def _labels(text: str) -> list[str]:
    """The different labels of an item."""
    return list(dict.fromkeys(filter(None, map(str.strip, SEPARATORS.split(text)))))


def _label_columns(genres: Sequence[str], items: int, fewest: int = 1) -> NDArray[np.float32]:
    """One column for every label that `fewest` items have; a label that all items have says nothing and gets none."""
    labels = [_labels(text) for text in genres]
    count = Counter(label for row in labels for label in row)
    common = sorted(
        (label for label, n in count.items() if fewest <= n < items), key=lambda label: (-count[label], label)
    )
    column = {label: number for number, label in enumerate(sorted(common[:LABELS]))}
    table = np.zeros((items, len(column)), np.float32)
    for item, row in enumerate(labels):
        table[item, [column[label] for label in row if label in column]] = 1
    return table


def _year_columns(year: NDArray[np.float64]) -> NDArray[np.float32]:
    """Weights of linear interpolation between quantiles of the years; zeros where the year is not known."""
    dated = ~np.isnan(year)
    ordered = np.sort(year[dated])
    quantiles = (2 * np.arange(KNOTS) + 1) * len(ordered) // (2 * KNOTS)
    knots = np.unique(ordered[quantiles]) if len(ordered) else ordered
    if len(knots) < 2:
        return np.zeros((len(year), 0), np.float32)
    table = np.zeros((len(year), len(knots)), np.float32)
    for number, weights in enumerate(np.eye(len(knots))):
        table[dated, number] = np.interp(year[dated], knots, weights)
    return table
