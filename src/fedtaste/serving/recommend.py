"""Recommend items to one person from a folder: to somebody of the data, or to a newcomer by likes or a file of ratings.

The person is personalised exactly as in evaluation (OpenModel), on this machine; nothing is sent.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtaste.core import People
from fedtaste.data.interactions import Histories
from fedtaste.data.user_files import read_likes
from fedtaste.errors import DataError, SettingError
from fedtaste.serving.folder_recommender import allowed_mask, history_of, recommended_items
from fedtaste.serving.item_lists import Filter, check_count, find_taste, nothing_left
from fedtaste.serving.open_model import OpenModel
from fedtaste.serving.opinions import read_opinions
from fedtaste.serving.recommendation import RecommendResult

NOTHING = np.zeros(0, np.int32)
EVERYTHING = Filter()


def recommend(
    path: Path, *, likes: list[str], person: str | None = None, file: Path | None = None, n: int = 10,
    cache: Path | None = None, filter: Filter = EVERYTHING,
) -> RecommendResult:  # fmt: skip
    """The n best items that the person does not have yet. Name them by `likes`, by `person` or by a `file` of likes.
    `filter` says which items may be recommended."""
    check_count(n)
    model = OpenModel.open(path, cache)
    given = sum((bool(likes), person is not None, file is not None))
    if given != 1:
        problem = "Say for whom" if not given else f"Say for whom in one way, got {given}"
        raise SettingError(f"{problem}: --likes TITLE (once for every title), --person NAME, --from FILE, or --all.")
    asked = _of_person(model, person, likes, file)
    allowed = allowed_mask(model.titles, filter, asked.dislikes)
    best = model.top(asked.history, n, timed=asked.timed, members=asked.members, allowed=allowed)
    items = best.items[0][best.items[0] >= 0]
    if not len(items):
        raise nothing_left(filter, model.facts.items)
    titles = model.items["titles"]
    result = RecommendResult(
        items=recommended_items(model, items, best.scores[0]),
        history=tuple(titles[at] for at in asked.history.items),
    )
    stated = {"disliked": tuple(titles[at] for at in asked.dislikes), "rating_rule": asked.rule}
    return result.model_copy(update=stated) if asked.rule else result


class Asked(NamedTuple):
    """Somebody for whom items are recommended. `rule` says how ratings of a file were read as likes and dislikes."""

    history: Histories
    timed: bool  # whether the history is in order of time
    dislikes: NDArray[np.int32] = NOTHING
    rule: str = ""
    members: People | None = None  # the number of a person of the data


def _of_person(model: OpenModel, person: str | None, likes: list[str], file: Path | None) -> Asked:
    if file is not None:
        return _read_history(model, file)
    if person is None:
        taste = find_taste(model.titles, {"likes": likes}, model.facts.kind, model.facts.scale)
        return Asked(history_of(taste), timed=False)  # titles have no order of time
    number = np.array([model.person(person)])
    history = model.histories.take(number)
    if not len(history):
        raise DataError(f'"{person}" has no history in the training data. Say what they like with --likes.')
    return Asked(history, model.data.time is not None, members=number)


def _read_history(model: OpenModel, file: Path) -> Asked:
    """Read a file with a column item or title, optionally rating, timestamp."""
    names, ratings, times = read_likes(file)
    items = np.array([model.titles.find(name) for name in names], np.int32)
    if not len(items):
        raise DataError(f"{file} names no items.")
    order = np.argsort(times, kind="stable") if times is not None else np.arange(len(items))
    _, last = np.unique(items[order][::-1], return_index=True)
    order = order[np.sort(len(order) - 1 - last)]  # an item named twice counts once, where it stands last
    values = np.full(len(items), model.facts.scale[1], np.float32) if ratings is None else ratings
    likes, dislikes, rule = order, NOTHING, ""
    if model.facts.kind == "ranking" and ratings is not None:
        opinions = read_opinions(ratings)
        likes, dislikes, rule = order[opinions.likes[order]], items[order[opinions.dislikes[order]]], opinions.rule
    if not len(likes):
        raise DataError(f"{file} names nothing that the person likes. {rule} Add a title that they like.")
    history = Histories(np.array([0, len(likes)]), items[likes], values[likes])
    return Asked(history, times is not None, dislikes, rule)
