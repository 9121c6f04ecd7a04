"""Laws that every federated method obeys, as functions of a row of a table; tests/test_laws.py has the table.

A method passes when its row (settings that train on tiny data, tasks, and for every setting another value) passes
every law. tests/test_new_method.py shows it for a method that no other file names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numba
import numpy as np
import torch

from fedtaste.core import Download, Examples, Method, Params
from fedtaste.engine.checkpoint import load_state, same_bytes, save_state
from fedtaste.engine.run import Round, State, begin, run
from fedtaste.federation import of_histories
from fedtaste.methods import METHODS
from fedtaste.signature import settings_of
from support.flower_worlds import clients_of, facts_of, nodes_of, over_flower, private_of
from support.states import assert_close, everything, trained
from support.worlds import FEATURES, ITEMS, PEOPLE, histories, world

PICTURES = 2e-3  # tolerance: batch norm over a handful of examples amplifies rounding
VARIANT = ("solver", "parts", "keep", "schedule", "rate", "route", "block", "network", "start")  # by which rows differ
_baselines: dict[str, Baseline] = {}


class Baseline(NamedTuple):
    """A training that most laws compare with, on the backend that a run uses."""

    last: Round
    shared: list[Params]  # after every round

    @property
    def rounds(self) -> int:
        return len(self.shared)

    @property
    def state(self) -> State:
        return self.last.state


def rounds_of(method: Method) -> int:
    """Two rounds; three where every round releases another part of the model."""
    return 3 if method.privacy.bounds else 2


@dataclass(frozen=True)
class Row:
    """A method with settings, and the tasks on which the laws are tested."""

    name: str
    settings: dict[str, Any]
    tasks: list[str]
    others: dict[str, Any]  # another value of every setting, which must change the result
    unread: frozenset[str] = field(default=frozenset())  # settings that change nothing with these

    @property
    def label(self) -> str:
        return "-".join([self.name, *(str(self.settings[key]) for key in VARIANT if key in self.settings)])

    def baseline(self, task: str) -> Baseline:
        """Trained once per process."""
        key = f"{self.name} {self.settings} {task}"  # the text of a tensor contains its values
        if key not in _baselines:
            method, model, federation = world(self.name, self.settings, task)
            shared: list[Params] = []
            for done in run(method, model, federation, rounds=rounds_of(method), seed=1):
                shared.append({name: value.clone() for name, value in done.state.shared.items()})
            _baselines[key] = Baseline(done, shared)
        return _baselines[key]


def flower_trains_the_same_state_as_the_simulator(row: Row, task: str, folder: Path) -> None:
    """Three nodes with a third of the people each, every message as bytes, against everybody on one machine."""
    method, model, federation = world(row.name, row.settings, task)
    baseline = row.baseline(task)
    expected = baseline.state
    grid, plan, nodes = nodes_of(method, model, federation, facts_of(task, federation), folder)
    state = over_flower(clients_of(grid, plan), plan, baseline.rounds)
    tolerance = PICTURES if task == "pictures" else 1e-6
    assert_close(state.shared, expected.shared, tolerance)
    private = private_of(plan, nodes, federation, base=baseline.rounds)
    assert_close(private, expected.private.gather(np.arange(federation.people)), max(tolerance, 1e-5))


def loop_vmap_and_kernel_train_the_same_state(row: Row, task: str, folder: Path) -> None:
    """The baseline is trained by the kernel, if there is one, and otherwise by vmap."""
    method, _, _ = world(row.name, row.settings, task)
    baseline = row.baseline(task)
    oracle = trained(row.name, row.settings, task, rounds=baseline.rounds, backend="loop")[-1]
    others = [baseline.last]
    if method.fast.kernel:
        others.append(trained(row.name, row.settings, task, rounds=baseline.rounds, backend="vmap")[-1])
    for other in others:
        assert_close(everything(oracle.state), everything(other.state), PICTURES if task == "pictures" else 1e-5)
        assert oracle.up_bytes == other.up_bytes and oracle.rejected == other.rejected


def nothing_private_is_in_an_upload(row: Row, task: str, folder: Path) -> None:
    method, model, federation = world(row.name, row.settings, task)
    state = begin(method, model, federation)
    own = {n: v[0] for n, v in state.private.gather(np.array([0])).items()}
    examples = Examples(*(x[0] for x in federation.examples(np.array([0]), 0, method.examples).pad()))
    upload, _ = method.client(Download(state.shared, torch.tensor(0.0)), own, examples)
    assert not set(upload.total) & set(own)
    vectors = {"user", "user_gmf", "user_mlp"}  # never leave, whatever a method calls private
    assert not vectors & set(upload.total)


def padded_examples_change_nothing(row: Row, task: str, folder: Path) -> None:
    method, model, federation = world(row.name, row.settings, task)
    state = begin(method, model, federation)
    download = Download(state.shared, torch.tensor(0.0))
    for person in (0, 5):
        own = {n: v[0] for n, v in state.private.gather(np.array([person])).items()}
        examples = federation.examples(np.array([person]), 0, method.examples)
        plain, padded = (Examples(*(x[0] for x in examples.pad(extra=extra))) for extra in (0, 3))
        (upload, _), (padded_upload, _) = (method.client(download, own, some) for some in (plain, padded))
        assert_close(upload.total, padded_upload.total, PICTURES if task == "pictures" else 1e-6)
        assert upload.weight == padded_upload.weight
        people = [method.personalize(state.shared, own, some) for some in (plain, padded)]
        assert_close(*people, PICTURES if task == "pictures" else 1e-5)


def order_of_clients_changes_nothing(row: Row, task: str, folder: Path) -> None:
    baseline, reverse = row.baseline(task), np.arange(PEOPLE)[::-1]
    reversed_order = trained(row.name, row.settings, task, rounds=baseline.rounds, members=reverse)[-1].state
    tolerance = PICTURES if task == "pictures" else 1e-5
    assert_close(everything(baseline.state), everything(reversed_order), tolerance)


def resumed_training_on_one_thread_ends_with_the_same_bytes(row: Row, task: str, folder: Path) -> None:
    """Trained again with the same seed, interrupted after one round and resumed from a file, on another number of
    threads than the baseline: none of these changes a bit."""
    baseline = row.baseline(task)
    method, model, federation = world(row.name, row.settings, task)
    before = numba.get_num_threads()
    numba.set_num_threads(1)
    try:
        first = list(run(method, model, federation, rounds=1, seed=1))[-1].state
        save_state(folder / "state", first, {})
        loaded, _ = load_state(folder / "state", begin(method, model, federation, seed=1))
        resumed = list(run(method, model, federation, rounds=baseline.rounds, seed=1, state=loaded))[-1].state
    finally:
        numba.set_num_threads(before)
    assert same_bytes(everything(baseline.state), everything(resumed))


Law = Callable[[Row, str, Path], None]
LAWS: tuple[Law, ...] = (resumed_training_on_one_thread_ends_with_the_same_bytes,)
FEDERATED_LAWS: tuple[Law, ...] = (  # of methods that do not pool the data of clients
    flower_trains_the_same_state_as_the_simulator,
    loop_vmap_and_kernel_train_the_same_state,
    nothing_private_is_in_an_upload,
    padded_examples_change_nothing,
    order_of_clients_changes_nothing,
)


def setting_changes_the_result(row: Row, key: str) -> None:
    """Another value of this setting changes the trained or the personalised parameters on at least one task."""
    assert any(changes(row, row.settings | {key: row.others[key]}, task) for task in row.tasks)


def changes(row: Row, other: dict[str, Any], task: str) -> bool:
    """Whether these settings change the shared parameters after some round, or anything after the last."""
    baseline = row.baseline(task)
    method, model, federation = world(row.name, other, task)
    for shared, done in zip(baseline.shared, run(method, model, federation, rounds=baseline.rounds, seed=1)):
        if not same_bytes(shared, done.state.shared):
            return True
    expected = _outcome(baseline.last, row.name, row.settings, task)
    return not same_bytes(expected, _outcome(done, row.name, other, task))


def _outcome(last: Round, name: str, settings: dict[str, Any], task: str) -> dict[str, torch.Tensor]:
    """All trained parameters, and the personalised parameters of person 0."""
    method, _, federation = world(name, settings, task)
    if task not in FEATURES:
        federation = of_histories(histories(task), ITEMS, negatives=0)
    examples = Examples(*(x[0] for x in federation.examples(np.array([0]), 0, method.examples).pad()))
    own = {n: v[0] for n, v in last.state.private.gather(np.array([0])).items()} if not method.pooled else {}
    return everything(last.state) | method.personalize(last.state.shared, own, examples)


def row_changes_every_setting_that_the_method_reads(row: Row) -> None:
    """Settings are keyword-only with types and defaults, and the row has another value for each of them."""
    settings = settings_of(METHODS[row.name])
    assert set(row.others) == settings.keys() - row.unread
    for name, parameter in settings.items():
        assert parameter.annotation is not parameter.empty, name
        assert parameter.default is not parameter.empty, name
