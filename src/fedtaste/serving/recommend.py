"""Recommend items to one person from a run folder: to somebody of the data, or to a newcomer by their likes.

The person is personalised exactly as in evaluation (tasks/serve.py), on this device; nothing is sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TypedDict, cast

import numpy as np

from fedtaste.data.interactions import Histories
from fedtaste.data.sampling import SERVE
from fedtaste.data.user_files import read_likes
from fedtaste.errors import DataError, SettingError
from fedtaste.experiment.folder import RunFolder
from fedtaste.experiment.plan import Plan, plan
from fedtaste.experiment.result import RunResult
from fedtaste.experiment.settings import Settings
from fedtaste.federation import Federation, of_histories
from fedtaste.serving.item_lists import allowed_items
from fedtaste.serving.open_model import OpenModel
from fedtaste.serving.operations import history_of, recommendations
from fedtaste.serving.recommendation import Recommendations
from fedtaste.serving.titles import Titles
from fedtaste.tasks.base import Facts


def recommend(
    path: Path, *, likes: list[str], person: str | None = None, file: Path | None = None, n: int = 10,
    cache: Path | None = None, only: list[str] | None = None, exclude: Sequence[str] = (),
) -> Recommendations:  # fmt: skip
    """The n best items that the person does not have yet. Name them by `likes`, by `person` or by a `file` of likes.
    `only` and `exclude` name the items that may be, or may not be, recommended."""
    model = OpenModel.open(path, cache)
    given = sum((bool(likes), person is not None, file is not None))
    if given != 1:
        problem = "Say for whom" if not given else f"Say for whom in one way, got {given}"
        raise SettingError(f"{problem}: either --likes TITLE (repeatable), or --person NAME, or --from FILE.")
    members, timed = None, False
    if person is not None:
        members = np.array([model.person(person)])
        history, timed = model.histories.take(members), model.data.time is not None
        if not len(history):
            raise DataError(f'"{person}" has no history in the training data. Say what they like with --likes.')
    elif file is not None:
        history, timed = _read_history(model, file)
    else:
        history = history_of(model, likes, None, "raise")
    allowed = allowed_items(model.titles, only, exclude)
    best = model.top(history, max(n, 1), timed=timed, members=members, allowed=allowed)
    items = best.items[0][best.items[0] >= 0]
    if not len(items):
        raise SettingError("Nothing is left to recommend: every item of the catalogue is in the history or excluded.")
    if not 1 <= n <= len(items):
        raise SettingError(f"n must be from 1 to {len(items):,}, the items left to recommend, got {n}.")
    return recommendations(model, items, best.scores[0], tuple(model.items["titles"][at] for at in history.items))


class Catalogue(TypedDict):
    """items.json of a run folder, [m] each; without genres the list is empty."""

    names: list[str]
    titles: list[str]
    genres: list[str]
    counts: list[int]


@dataclass(frozen=True)
class OpenRun:
    """A finished run folder with its settings, result, facts and catalogue."""

    folder: RunFolder
    settings: Settings
    result: RunResult
    facts: Facts
    items: Catalogue

    @staticmethod
    def open(path: Path) -> OpenRun:
        """Read a run folder; refuse tasks that have no items to recommend."""
        folder = RunFolder.open(path)
        settings, result, facts = folder.settings(), folder.result(), folder.facts()
        if facts.kind not in ("ranking", "ratings"):
            raise SettingError(f"{path} is a run on {facts.kind}; there are no items to recommend.")
        return OpenRun(folder, settings, result, facts, cast(Catalogue, folder.items(facts.items)))

    def plan(self, facts: Facts) -> Plan:
        return plan(self.settings, facts, elsewhere=self.folder.federated)

    @cached_property
    def titles(self) -> Titles:
        return Titles(self.items["names"], self.items["titles"], self.items["counts"])


def one_person(plan: Plan, facts: Facts, history: Histories | None = None) -> Federation:
    """A federation of one person, with this history or an empty one."""
    history = Histories.empty(1) if history is None else history
    ranking = facts.kind == "ranking"
    return of_histories(
        replace(history, values=np.ones(len(history), np.float32) if ranking else history.values),
        facts.items,
        negatives=plan.sampling.negatives if ranking else 0,
        batch=plan.sampling.batch,
        seed=plan.seed,
        stream=SERVE,
    )


def _read_history(run: OpenModel, file: Path) -> tuple[Histories, bool]:
    """(history, whether it is in order of time) from a file: a column item or title, optionally rating, timestamp."""
    names, ratings, times = read_likes(file)
    items = np.array([run.titles.find(name) for name in names], np.int32)
    if not len(items):
        raise DataError(f"{file} names no items.")
    order = np.argsort(times, kind="stable") if times is not None else np.arange(len(items))
    _, last = np.unique(items[order][::-1], return_index=True)
    order = order[np.sort(len(order) - 1 - last)]  # an item named twice counts once, where it stands last
    values = np.full(len(items), run.facts.scale[1], np.float32) if ratings is None else ratings
    return Histories(np.array([0, len(order)]), items[order], values[order]), times is not None
