"""Personalise people before they are scored: seen people from the store, newcomers by passes on their device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from fedtaste.core import Download, Method, Model, Params, People, Stage, StageContext
from fedtaste.data.interactions import Histories
from fedtaste.data.sampling import SERVE, Ragged
from fedtaste.engine.backends import Call, choose_backend, collect
from fedtaste.engine.run import State
from fedtaste.engine.store import Store
from fedtaste.errors import SettingError
from fedtaste.evaluation.ranking import rank_items
from fedtaste.evaluation.scoring import Personalised
from fedtaste.federation import Federation, of_histories
from fedtaste.tasks.base import Sampling, Served

MOST_PASSES = 50


def passes(state: State) -> int:
    """How often a newcomer's device runs the client before it is served: as often as there were rounds, at most 50."""
    return max(1, min(state.round, MOST_PASSES))


def serve(
    method: Method, shared: Params, store: Store, federation: Federation, people: People, passes: int | None
) -> tuple[Store, People, Ragged]:
    """(private parameters, numbers of the people in them, examples) with which these people are personalised.

    People who took part in training (`passes` None) have their private parameters in the store. Newcomers begin with
    the initial ones: the device runs the method's client on its own examples `passes` times, keeps what is private and
    sends nothing. Methods without private parameters need none of that.
    """
    examples = federation.examples(people, 0, method.examples)
    if passes is None:
        return store, people, examples
    backend = choose_backend("auto", method, Stage())
    fresh, numbers = Store.fresh(store.initial, len(people), method.rows), np.arange(len(people))
    for step in range(passes if store.initial else 0):
        down = Download(shared, torch.tensor(float(step)))
        context = StageContext(b"", step, float(len(people)))
        call = Call(down, numbers, federation.examples(people, step + 1, method.examples), context)
        collect(backend, method, call, fresh)
    return fresh, numbers, examples


def personalise(served: Served, federation: Federation, people: People, passes: int | None) -> Personalised:
    """These people, ready to be scored; arguments as in `serve`. The federation holds what they bring."""
    state = served.state
    store = state.private if passes is None else state.store  # of newcomers only the initial parameters are read
    parts = serve(served.method, state.shared, store, federation, people, passes)
    return Personalised(served.method, served.model, state.shared, *parts)


def top_items(
    method: Method, model: Model, state: State, likes: Sequence[int], n: int = 10, *, sampling: Sampling | None = None
) -> list[int]:
    """The n best items for a newcomer who likes these items, oldest first.

    The newcomer is personalised as in evaluation: private parameters adapt to the likes in as many passes as there were
    rounds. `sampling` says how negatives are drawn for that, where the method learns from samples.

    >>> import fedtaste
    >>> data = fedtaste.load("synthetic:30x20x300")
    >>> model = fedtaste.factorization(20, k=4)
    >>> method, people = fedtaste.fedals(model), fedtaste.of_histories(data.histories(), 20)
    >>> *_, done = fedtaste.run(method, model, people, rounds=2)
    >>> len(fedtaste.top_items(method, model, done.state, likes=[3, 5], n=5))
    5
    """
    for like in likes:
        if not 0 <= like < model.catalogue:
            raise SettingError(f"likes must be numbers of items from 0 to {model.catalogue - 1:,}, got {like}.")
    items, draw = np.asarray(likes, np.int32), sampling or Sampling()
    history = Histories(np.array([0, len(items)]), items, np.ones(len(items), np.float32))
    device = of_histories(history, model.catalogue, negatives=draw.negatives, batch=draw.batch, stream=SERVE)
    person = personalise(Served(method, model, state, draw), device, np.zeros(1, np.int64), passes(state))
    ((_, scores),) = person.scores(torch.arange(model.catalogue))
    return [int(item) for item in rank_items(scores[0].numpy(), excluded=items, n=n)]
