"""Top items for one person: somebody of the data, or somebody new who names what they like.

Everything happens where the person is: the shared parameters come in, nothing goes out.
"""

from __future__ import annotations

import difflib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .core import Params
from .data.importing import BroughtSplit, read_likes
from .data.interactions import Histories, Interactions
from .data.sampling import SERVE, Ragged
from .data.sources import load
from .engine.run import begin
from .engine.store import Store
from .errors import DataError, SettingError
from .evaluation.scoring import personal_scores
from .experiment import make_task, passes
from .federation import Federation, of_histories
from .runs import RunFolder
from .settings import Plan, Settings, plan
from .tasks import Facts, serve
from .titles import Titles


def recommend(
    path: Path,
    *,
    likes: list[str],
    person: str | None = None,
    file: Path | None = None,
    n: int = 10,
    cache: Path | None = None,
) -> dict[str, Any]:
    """{"items": [{"item", "title", "score"}], "from": ...}: the n best items that the person does not have yet."""
    folder = RunFolder.open(path)
    settings = folder.settings()
    result = folder.result()
    items = folder.items(result["items"])
    facts = Facts(
        result["task"], result["items"], False, tuple(result["scale"]), people=result.get("members", 0),
        feature_count=result.get("feature_count", 0),
    )  # fmt: skip
    if facts.kind not in ("ranking", "ratings"):
        raise SettingError(f"{path} is about {facts.kind}; there are no items to recommend.")
    if sum((bool(likes), person is not None, file is not None)) != 1:
        raise SettingError("Say for whom: either --likes TITLE (repeatable), or --person NAME, or --from FILE.")
    if person is not None:
        return _for_member(folder, settings, items, person, n, cache)
    if file is not None:
        history, timed = _brought(file, items, facts.scale[1])
    else:  # titles have no order, so recency has nothing to weigh
        known = titles_of(items)
        chosen = np.array([known.find(text) for text in dict.fromkeys(likes)], np.int32)
        chosen, timed = np.array(list(dict.fromkeys(chosen.tolist())), np.int32), False
        history = Histories(np.array([0, len(chosen)]), chosen, np.full(len(chosen), facts.scale[1], np.float32))
    made = plan(settings, replace(facts, timed=timed), elsewhere=folder.federated)
    folder.same_plan(made.shown)
    home = _home(history, made, facts, settings.seed)
    start = begin(made.method, made.model, home, made.seed)
    shared = folder.model(start.shared)
    rounds = passes(replace(start, round=result["rounds"]))
    store, numbers, held = serve(made.method, shared, start.private, home, np.zeros(1, np.int64), rounds)
    return _answer(made, shared, store, numbers, held, history, items, n)


def titles_of(items: dict[str, Any]) -> Titles:
    """The catalogue of a run folder."""
    return Titles(items["names"], items["titles"], items["counts"])


def nobody() -> Histories:
    """One person without a history: enough to begin, and to know shapes and starts."""
    return Histories(np.zeros(2, np.int64), np.zeros(0, np.int32), np.zeros(0, np.float32))


def _for_member(
    folder: RunFolder, settings: Settings, items: dict[str, Any], person: str, n: int, cache: Path | None
) -> dict[str, Any]:
    """For somebody of the data, with all of their history and what is private to them."""
    data = load(settings.data, seed=settings.seed, cache=cache)
    folder.same_data(data)
    whole = data.train if isinstance(data, BroughtSplit) else data
    assert isinstance(whole, Interactions)
    known, task = _person(person, whole), make_task(settings, data)
    made = plan(settings, task.facts, elsewhere=folder.federated)
    folder.same_plan(made.shown)
    fresh = begin(made.method, made.model, task.federation("final", made.method, made.sampling, None), made.seed)
    if folder.federated and fresh.private.initial:
        raise SettingError(
            f'What {settings.method} has learnt of "{person}" alone is with their node, and not in {folder.path}. Say '
            "what they like with --likes or --from."
        )
    state = folder.final(fresh)
    history = whole.histories(settings.seed).take(np.array([known]))
    if not len(history):
        raise DataError(f'"{person}" has no history in the training data to go by. Say what they like with --likes.')
    home = _home(history, made, task.facts, settings.seed)
    trained = known not in task.newcomers and not made.method.pooled
    store, numbers, held = serve(
        made.method, state.shared, state.private, home, np.zeros(1, np.int64), None if trained else passes(state)
    )
    return _answer(made, state.shared, store, np.array([known]) if trained else numbers, held, history, items, n)


def _home(history: Histories, made: Plan, facts: Facts, seed: int) -> Federation:
    """One person's own device."""
    values = np.ones(len(history), np.float32) if facts.kind == "ranking" else history.values
    return of_histories(
        replace(history, values=values), facts.items, examples=made.method.examples,
        negatives=made.sampling.negatives if facts.kind == "ranking" else 0, batch=made.sampling.batch,
        seed=seed, stream=SERVE,
    )  # fmt: skip


def _answer(
    made: Plan,
    shared: Params,
    store: Store,
    numbers: np.ndarray,
    held: Ragged,
    history: Histories,
    items: dict[str, Any],
    n: int,
) -> dict[str, Any]:
    left = len(set(items["titles"]) - {items["titles"][i] for i in history.items})
    if not left:
        raise SettingError("Nothing is left to recommend: every item of the catalogue is in the history.")
    if not 1 <= n <= left:
        raise SettingError(
            f"{n} recommendations were asked for; {left:,} items are left to recommend. Give -n 1 to -n {left}."
        )
    catalogue = torch.arange(len(items["names"]))
    ((_, scores),) = personal_scores(made.method, made.model, shared, store, numbers, held, catalogue)
    return {
        "items": _best(scores[0].double().numpy(), history, items, n),
        "from": [items["titles"][i] for i in history.items],
    }


def _best(scores: np.ndarray, history: Histories, items: dict[str, Any], n: int) -> list[dict[str, Any]]:
    """Highest scores first; the catalogue's order breaks ties; a title that the person has, or that was listed already
    (some films stand twice in MovieLens), is passed over."""
    had = {items["titles"][i] for i in history.items}
    out: list[dict[str, Any]] = []
    for at in np.lexsort((np.arange(len(scores)), -scores)):
        if items["titles"][at] not in had:
            had.add(items["titles"][at])
            out.append({"item": items["names"][at], "title": items["titles"][at], "score": round(float(scores[at]), 6)})
        if len(out) == n:
            break
    return out


def _person(name: str, data: Interactions) -> int:
    if name not in data.people:
        close = difflib.get_close_matches(name, data.people, n=1)
        hint = (
            f' Did you mean "{close[0]}"?' if close else f' Names run from "{data.people[0]}" to "{data.people[-1]}".'
        )
        raise DataError(f'"{name}" is nobody in {data.name}.{hint}')
    return data.people.index(name)


def _brought(file: Path, items: dict[str, Any], top: float) -> tuple[Histories, bool]:
    """A new person's own list: a column item or title, optionally rating and timestamp; the newest stands last."""
    names, ratings, times = read_likes(file)
    known = titles_of(items)
    found = np.array([known.find(name) for name in names], np.int32)
    if not len(found):
        raise DataError(f"{file} names no items.")
    order = np.argsort(times, kind="stable") if times is not None else np.arange(len(found))
    _, first = np.unique(found[order][::-1], return_index=True)
    order = order[np.sort(len(order) - 1 - first)]  # an item named twice counts once, where it stands last
    values = np.full(len(found), top, np.float32) if ratings is None else ratings
    return Histories(np.array([0, len(order)]), found[order], values[order]), times is not None
