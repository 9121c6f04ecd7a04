"""The compiled clients of whole cohorts equal the methods' own clients, person by person."""

from __future__ import annotations

from dataclasses import replace

import numba
import numpy as np
import pytest
import torch

from fedtaste.core import Cohort, Download, Stage
from fedtaste.data.interactions import Histories
from fedtaste.engine.backends import choose_backend
from fedtaste.engine.checkpoint import same_bytes
from fedtaste.engine.run import begin, run
from fedtaste.evaluation.scoring import Personalised
from fedtaste.federation import of_histories
from fedtaste.methods import build
from fedtaste.models import factorization, ranker
from support.states import assert_close, everything
from support.worlds import ITEMS, PEOPLE, histories, model_of, world

CASES = [
    ("fedavg", {"lr": 0.5, "passes": 3}),
    ("fedprox", {"lr": 0.5, "passes": 3, "mu": 0.7}),
    ("fedsgd", {"lr": 0.5}),
    ("fedrep", {"lr": 0.5, "private_lr": 0.3, "private_passes": 2, "passes": 2}),
    ("pfedrec", {"lr": 0.1, "item_scale": 1.0, "passes": 2}),
    ("ditto", {"lr": 0.5, "own_lr": 0.3, "lam": 0.5, "passes": 2, "own_passes": 3}),
    ("ditto", {"lr": 0.5, "own_lr": 0.3, "lam": 0.0}),  # copies that do not follow the shared rows
    ("pfedme", {"lam": 0.5, "lr": 0.2, "passes": 2, "turns": 3, "eta": 0.5}),
    ("pfedme", {"lam": 0.0, "lr": 0.2}),
    ("fedclup", {"lam": 0.5, "lr": 0.3, "rate": 1.1, "passes": 3}),
    ("apfl", {"lr": 0.5, "passes": 2, "alpha": 0.4, "alpha_lr": 5.0}),
    ("lgmix", {"lr": 0.5, "passes": 2}),
    ("lgmix", {"lr": 0.5, "trace": "gram"}),
    ("lgmix", {"lr": 0.5, "share": 0.3}),
]


def federation_of(batch: int):
    """Twelve people, of whom the third and the last have no history."""
    full = histories(people=12)
    lists = [full.items[full.starts[p] : full.starts[p + 1]] if p not in (2, 11) else full.items[:0] for p in range(12)]
    starts = np.concatenate([[0], np.cumsum([len(items) for items in lists])]).astype(np.int64)
    items = np.concatenate(lists)
    data = Histories(starts, items, np.ones(len(items), np.float32))
    return replace(of_histories(data, ITEMS, negatives=2, batch=batch), members=np.arange(12))


def build_with(name, settings, loss="bce"):
    model = ranker(ITEMS, model="scorer", k=5) if name == "pfedrec" else factorization(ITEMS, k=5, loss=loss, spread=1)
    return build(name, model, settings), model


@pytest.mark.parametrize("name, settings", CASES, ids=lambda value: value if isinstance(value, str) else "")
@pytest.mark.parametrize("batch", [0, 8])
def test_kernel_equals_the_loop_with_empty_histories(name, settings, batch):
    method, model = build_with(name, settings)
    states = [
        list(run(method, model, federation_of(batch), rounds=2, backend=backend))[-1] for backend in ("loop", "kernel")
    ]
    assert_close(everything(states[0].state), everything(states[1].state), 1e-5)
    assert states[0].rejected == states[1].rejected and states[0].answered == states[1].answered
    assert states[1].answered == (12 if name == "pfedrec" else 10)


def test_kernel_equals_the_loop_with_squared_loss():
    method, model = build_with("ditto", CASES[5][1], "squared")
    loop, kernel = (
        list(run(method, model, federation_of(8), rounds=2, backend=b))[-1].state for b in ("loop", "kernel")
    )
    assert_close(everything(loop), everything(kernel), 1e-5)


@pytest.mark.parametrize("name, settings", CASES, ids=lambda value: value if isinstance(value, str) else "")
def test_threads_change_no_byte(name, settings):
    before, states = numba.get_num_threads(), []
    try:
        for threads in (1, min(2, numba.config.NUMBA_NUM_THREADS)):
            numba.set_num_threads(threads)
            method, model = build_with(name, settings)
            states.append(everything(list(run(method, model, federation_of(8), rounds=2, backend="kernel"))[-1].state))
    finally:
        numba.set_num_threads(before)
    assert same_bytes(*states)


def test_kernel_and_vmap_can_take_turns():
    """A store that one backend wrote is read by the other: the copies' rows are in pages of both."""
    method, model = build_with("ditto", CASES[5][1])
    first = list(run(method, model, federation_of(0), rounds=1, backend="kernel"))[-1].state
    mixed = list(run(method, model, federation_of(0), rounds=2, backend="vmap", state=first))[-1].state
    mixed = list(run(method, model, federation_of(0), rounds=3, backend="kernel", state=mixed))[-1].state
    loop = list(run(method, model, federation_of(0), rounds=3, backend="loop"))[-1].state
    assert_close(everything(loop), everything(mixed), 1e-5)


@pytest.mark.parametrize("value, reason", [(torch.nan, "non-finite"), (1e12, "too large")])
@pytest.mark.parametrize("name", ["fedavg", "fedclup", "lgmix"])
def test_refusals_are_those_of_vmap(name, value, reason):
    """One item's row is bad: those who touch it are refused, for the same reason as under vmap. (The loop, with its
    whole tables, also refuses the others where the row is not a number.)"""
    settings = {"lr": 0.5, "lam": 0.0, "rate": 1.0, "passes": 2}
    method, model, federation = world(name, settings, "ranking")
    outcomes = []
    for backend in ("vmap", "kernel"):
        state = begin(method, model, federation)
        state.shared["item"][7] = value
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("fedtaste.engine.run.RoundLoop._server_step", lambda *_: None)  # NaN is in the shared table
            patch.setattr("fedtaste.engine.run.relative_change", lambda *_: 0.0)
            done = next(run(method, model, federation, rounds=1, backend=backend, state=state))
        outcomes.append((done.rejected, done.answered))
    assert outcomes[0] == outcomes[1] and outcomes[1][0][reason] > 0


def test_compiled_scores_of_lgmix_equal_those_of_the_personalised_model():
    method, model, federation = world("lgmix", {"lr": 0.5, "passes": 2}, "ranking")
    state = list(run(method, model, federation, rounds=3, cohort=9))[-1].state
    people, examples = np.arange(PEOPLE), federation.examples(np.arange(PEOPLE), 9, method.examples)
    for candidates in (torch.arange(ITEMS), torch.randint(0, ITEMS, (PEOPLE, 7))):
        both = []
        for fast in (method.fast, replace(method.fast, scores=None)):
            served = Personalised(method.replace(fast=fast), model, state.shared, state.private, people, examples)
            parts = list(served.scores(candidates))
            order = np.argsort(np.concatenate([part for part, _ in parts]))
            both.append(torch.cat([scores for _, scores in parts])[order])
        torch.testing.assert_close(*both)


def test_private_parameters_of_refused_people_stay():
    method, model, federation = world("ditto", CASES[5][1], "ranking")
    state = begin(method, model, federation)
    before = {name: value.clone() for name, value in state.private.gather(np.arange(PEOPLE)).items()}
    shared = {"item": torch.full_like(state.shared["item"], torch.nan)}
    examples = federation.examples(np.arange(PEOPLE), 0, method.examples)
    cohort = Cohort(np.arange(PEOPLE), examples, state.private)
    upload, refused = method.fast.kernel(Download(shared, torch.tensor(0.0)), cohort)
    assert refused["non-finite"] == PEOPLE and float(upload.weight) == 0 and not upload.total["item"].any()
    assert same_bytes(before, state.private.gather(np.arange(PEOPLE)))


def test_other_models_private_parts_and_stages_run_under_vmap():
    ranking, ratings = model_of("ranking", {}), model_of("ratings", {})
    assert build("fedavg", ranking, {"private": (), "passes": 2}).fast.kernel is None
    assert build("fedavg", ratings, {"passes": 2}).fast.kernel is None
    assert build("ditto", ranker(ITEMS, model="scorer", k=5), {}).fast.kernel is None
    fedavg = build("fedavg", ranking, {})
    assert choose_backend("auto", fedavg, Stage()) == "kernel"
    assert choose_backend("auto", fedavg, Stage(client=lambda upload, context: upload)) == "vmap"
