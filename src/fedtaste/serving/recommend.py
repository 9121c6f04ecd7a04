"""Recommend items to one person from a run folder: to somebody of the data, or to a newcomer by their likes.

The person is personalised exactly as in evaluation (tasks/serve.py), on this device; nothing is sent.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TypedDict, cast

import numpy as np
import torch
from numpy.typing import NDArray

from fedtaste.core import Params
from fedtaste.data.interactions import Histories, Interactions
from fedtaste.data.sampling import SERVE
from fedtaste.data.sources import load
from fedtaste.data.user_files import UserSplit, read_likes
from fedtaste.engine.run import begin
from fedtaste.engine.store import Store
from fedtaste.errors import DataError, SettingError
from fedtaste.evaluation.ranking import rank_items
from fedtaste.evaluation.scoring import personal_scores
from fedtaste.experiment.folder import RunFolder
from fedtaste.experiment.plan import Plan, plan
from fedtaste.experiment.result import RunResult
from fedtaste.experiment.settings import Settings
from fedtaste.experiment.train import make_task
from fedtaste.federation import Federation, of_histories
from fedtaste.serving.recommendation import Recommendation, Recommendations
from fedtaste.serving.titles import Titles
from fedtaste.tasks.base import Facts
from fedtaste.tasks.serve import passes, serve

Scores = NDArray[np.float64]
ONLY_PERSON = np.zeros(1, np.int64)  # the number of the one person whose device this is


def recommend(
    path: Path,
    *,
    likes: list[str],
    person: str | None = None,
    file: Path | None = None,
    n: int = 10,
    cache: Path | None = None,
) -> Recommendations:
    """The n best items that the person does not have yet. Name them by `likes`, by `person` or by a `file` of likes."""
    run = OpenRun.open(path)
    given = sum((bool(likes), person is not None, file is not None))
    if given != 1:
        problem = "Say for whom" if not given else f"Say for whom in one way, got {given}"
        raise SettingError(f"{problem}: either --likes TITLE (repeatable), or --person NAME, or --from FILE.")
    if person is not None:
        history, scores = _member_scores(run, person, cache)
    else:
        history, timed = _history_of_likes(run, likes) if file is None else _read_history(run, file)
        scores = _newcomer_scores(run, history, timed)
    names, titles = run.items["names"], run.items["titles"]
    best = rank_items(scores, history.items, run.titles.groups)
    if not len(best):
        raise SettingError("Nothing is left to recommend: every item of the catalogue is in the history.")
    if not 1 <= n <= len(best):
        raise SettingError(f"n must be from 1 to {len(best):,}, the items left to recommend, got {n}.")
    return Recommendations(
        items=tuple(
            Recommendation(item=names[at], title=titles[at], score=round(float(scores[at]), 6)) for at in best[:n]
        ),
        history=tuple(titles[at] for at in history.items),
    )


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


def _newcomer_scores(run: OpenRun, history: Histories, timed: bool) -> Scores:
    """Scores for somebody new, whose private parameters start as everybody's did and adapt here."""
    plan = run.plan(replace(run.facts, timed=timed))
    run.folder.require_same_plan(plan.settings)
    device = one_person(plan, run.facts, history)
    start = begin(plan.method, plan.model, device, plan.seed)
    shared = run.folder.model(start.shared)
    steps = passes(replace(start, round=run.result.rounds))
    return _scores(plan, shared, start.private, device, steps)


def _member_scores(run: OpenRun, name: str, cache: Path | None) -> tuple[Histories, Scores]:
    """(history, scores) of somebody of the data, with their whole history and their private parameters."""
    settings, folder = run.settings, run.folder
    data = load(settings.data, seed=settings.seed, cache=cache, options=settings.read_options)
    folder.require_same_data(data)
    assert isinstance(data, Interactions | UserSplit)
    number, task = _person_number(name, data.table), make_task(settings, data)
    plan = run.plan(task.facts)
    folder.require_same_plan(plan.settings)
    fresh = begin(plan.method, plan.model, task.federation("final", plan.method, plan.sampling, None), plan.seed)
    if folder.federated and fresh.private.initial:
        raise SettingError(
            f'The private parameters that {settings.method} learnt for "{name}" are on their node, not in '
            f"{folder.path}. Say what they like with --likes or --from."
        )
    state = folder.final(fresh)
    history = data.table.histories(settings.seed).take(np.array([number]))
    if not len(history):
        raise DataError(f'"{name}" has no history in the training data. Say what they like with --likes.')
    trained = number not in task.newcomers and not plan.method.pooled
    device = one_person(plan, task.facts, history)
    steps, member = (None, number) if trained else (passes(state), None)
    return history, _scores(plan, state.shared, state.private, device, steps, member)


def _scores(
    plan: Plan, shared: Params, store: Store, device: Federation, steps: int | None, member: int | None = None
) -> Scores:
    """Scores of the whole catalogue; a `member` of the federation has private parameters in the store."""
    store, numbers, examples = serve(plan.method, shared, store, device, ONLY_PERSON, steps)
    numbers = numbers if member is None else np.array([member])
    catalogue = torch.arange(plan.model.catalogue)
    ((_, scores),) = personal_scores(plan.method, plan.model, shared, store, numbers, examples, catalogue)
    doubles: Scores = scores[0].double().numpy()
    return doubles


def _person_number(name: str, data: Interactions) -> int:
    if name not in data.people:
        close = difflib.get_close_matches(name, data.people, n=1)
        hint = f'Did you mean "{close[0]}"?' if close else f'Names run from "{data.people[0]}" to "{data.people[-1]}".'
        raise DataError(f'"{name}" is nobody in {data.name}. {hint}')
    return data.people.index(name)


def _history_of_likes(run: OpenRun, likes: list[str]) -> tuple[Histories, bool]:
    """(history, False): titles have no order of time, so recent ones do not count for more."""
    items = np.array(list(dict.fromkeys(run.titles.find(text) for text in likes)), np.int32)
    return Histories(np.array([0, len(items)]), items, np.full(len(items), run.facts.scale[1], np.float32)), False


def _read_history(run: OpenRun, file: Path) -> tuple[Histories, bool]:
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
