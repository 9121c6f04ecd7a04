"""Exact removal of people from a trained state, for methods whose shared parameters follow from a sum over people.

A device takes back what it has sent with one more upload, the negative of the sum of its earlier ones. The upload takes
the ordinary way (validation, sum, server step), so it reveals no more than those did.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from fedtaste.core import Fast, Method, Model
from fedtaste.engine.run import State, run
from fedtaste.errors import SettingError
from fedtaste.federation import Federation


def remove_people(method: Method, model: Model, state: State, federation: Federation, people: Iterable[int]) -> State:
    """The state as if these people had never taken part; `state` itself stays as it is.

    People are numbers of the federation, whose histories must begin with what they held when they sent; how much that
    was is a private parameter in the state (between machines it is on their nodes, not with the server). Shared
    parameters equal those of a training without these people, up to rounding. Whoever never sent anything, or was
    removed before, takes back zeros, which changes nothing. A removed person who takes part again sends everything
    again: leave them out of the federation's members.

    >>> import fedtaste
    >>> data = fedtaste.load("synthetic:30x20x300")
    >>> model = fedtaste.factorization(20, k=4)
    >>> method, everybody = fedtaste.popularity(model), fedtaste.of_histories(data.histories(), 20)
    >>> *_, done = fedtaste.run(method, model, everybody, rounds=1)
    >>> after = remove_people(method, model, done.state, everybody, [4, 7])
    >>> taken_back = done.state.shared["count"].sum() - after.shared["count"].sum()
    >>> int(taken_back) == sum(len(data.histories().of(person)) for person in (4, 7))
    True
    """
    if method.removal is None:
        raise SettingError(
            "People cannot be removed from what this method has learnt, because its shared parameters are not a sum "
            "over people. Train again from the start without them. Methods with removal: popularity, and fedtrail "
            "with any parts but trail+als."
        )
    leaving = np.unique(np.fromiter(people, np.int64))
    strangers = leaving[(leaving < 0) | (leaving >= federation.people)]
    if len(strangers):
        raise SettingError(
            f"There is no person {strangers[0]}: the federation has people 0 to {federation.people - 1}."
        )
    if not len(leaving):
        return state.snapshot()
    devices = method.replace(client=method.removal, fast=Fast(bulk=method.fast.bulk))
    members = replace(federation, members=leaving)
    *_, done = run(devices, model, members, rounds=state.round + 1, state=state.snapshot())
    return State(done.state.shared, done.state.memory, done.state.private, state.round)
