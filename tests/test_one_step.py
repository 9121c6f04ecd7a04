"""One backward pass for a cohort equals one client after the other, for methods that take one gradient step."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedtaste.core import Cohort, Download, Stage
from fedtaste.engine.backends import choose_backend
from fedtaste.engine.run import begin, run
from fedtaste.federation import of_arrays, of_histories
from fedtaste.methods import build
from fedtaste.methods.one_step import by_length
from fedtaste.models import ncf
from support.states import assert_close, everything
from support.worlds import ITEMS, PEOPLE, arrays, histories, model_of


def federation_of(task, batch=0):
    if task in ("ranking", "ratings"):
        return of_histories(histories(task), ITEMS, negatives=2 if task == "ranking" else 0, batch=batch)
    return of_arrays(*arrays(task), batch=batch)


@pytest.mark.parametrize("name", ["fedsgd", "fedavg"])
@pytest.mark.parametrize("task", ["ranking", "ratings", "labels", "numbers"])
def test_one_backward_pass_equals_the_loop(name, task):
    model = model_of(task, {})
    method = build(name, model, {"lr": 0.1, "server": "adam", "server_lr": 0.1})
    ends = [
        list(run(method, model, federation_of(task), rounds=3, cohort=9, dropout=0.2, seed=1, backend=backend))[-1]
        for backend in ("loop", "kernel")
    ]
    assert choose_backend("auto", method, Stage()) == "kernel"
    assert_close(*(everything(end.state) for end in ends))
    assert ends[0].up_bytes == ends[1].up_bytes and ends[0].answered == ends[1].answered


@pytest.mark.parametrize("name", ["fedncf", "fedsgd"])
def test_the_pass_of_neumf_equals_the_loop(name):
    model = ncf(ITEMS, k=6)
    method = build(name, model, {"lr": 2.0, "server": "adam", "server_lr": 0.1})
    loop, kernel = (
        list(run(method, model, federation_of("ranking"), rounds=3, cohort=9, dropout=0.2, seed=1, backend=backend))[-1]
        for backend in ("loop", "kernel")
    )
    assert_close(everything(loop.state), everything(kernel.state))
    assert loop.up_bytes == kernel.up_bytes and loop.answered == kernel.answered


def test_the_pass_of_neumf_equals_the_loop_in_pieces(monkeypatch):
    monkeypatch.setattr("fedtaste.methods.neumf_step.AT_ONCE", 20)  # several pieces, and somebody is larger than one
    monkeypatch.setattr("fedtaste.kernels.touched_rows.CHUNK", 200)
    test_the_pass_of_neumf_equals_the_loop("fedncf")


def test_neumf_with_a_private_head_has_the_general_kernel():
    model = ncf(ITEMS, k=6)
    method = build("fedavg", model, {"lr": 0.5, "private": ("user_*", "head.*")})
    loop, kernel = (
        list(run(method, model, federation_of("ranking"), rounds=2, seed=1, backend=backend))[-1].state
        for backend in ("loop", "kernel")
    )
    assert_close(everything(loop), everything(kernel))


def test_people_of_neumf_whose_scores_are_not_finite_are_refused():
    model, federation = ncf(ITEMS, k=6), federation_of("ranking")
    method = build("fedncf", model, {"lr": 0.1})
    sums = []
    for people in (np.arange(PEOPLE), np.delete(np.arange(PEOPLE), 3)):  # with somebody who is refused, and without
        state = begin(method, model, federation)
        state.private.put(np.array([3]), {"user_gmf": torch.zeros(1, 6), "user_mlp": torch.full((1, 6), torch.nan)})
        examples = federation.examples(people, 0, method.examples)
        cohort = Cohort(people, examples, state.private)
        upload, refused = method.fast.kernel(Download(state.shared, torch.tensor(0.0)), cohort)
        sums.append(upload.total | {"weight": upload.weight})
        assert refused == {"non-finite": PEOPLE - len(people) == 0, "weight": 0}
    assert_close(*sums)


def test_several_batches_are_several_steps():
    """FedAvg with batches takes more than one step: the kernel gives way to vmap. FedSGD takes one step in any case."""
    for name, steps in (("fedavg", True), ("fedsgd", False)):
        model = model_of("ratings", {})
        method = build(name, model, {"lr": 0.05})
        assert method.fast.one_batch == steps
        loop, kernel = (
            list(run(method, model, federation_of("ratings", 8), rounds=2, seed=1, backend=backend))[-1].state
            for backend in ("loop", "kernel")
        )
        assert_close(everything(loop), everything(kernel))


@pytest.mark.parametrize("settings", [{"passes": 2}, {"private": ("item",)}])
def test_more_steps_or_own_rows_have_no_such_kernel(settings):
    assert build("fedavg", model_of("ratings", {}), settings).fast.kernel is None


def test_stages_that_need_single_uploads_run_vmap():
    method = build("fedsgd", model_of("ranking", {}), {})
    assert choose_backend("auto", method, Stage(client=lambda upload, context: upload)) == "vmap"


def test_people_whose_loss_is_not_finite_are_refused():
    model, federation = model_of("ratings", {}), federation_of("ratings")
    method = build("fedsgd", model, {"lr": 0.1})
    state, people = begin(method, model, federation), np.arange(PEOPLE)
    state.private.put(np.array([3]), {"user": torch.full((1, 6), torch.nan)})
    examples = federation.examples(people, 0, method.examples)
    upload, refused = method.fast.kernel(
        Download(state.shared, torch.tensor(0.0)), Cohort(people, examples, state.private)
    )
    assert refused == {"non-finite": 1} and all(torch.isfinite(value).all() for value in upload.total.values())
    assert float(upload.weight) == examples.lengths.sum() - examples.lengths[3]


def test_groups_have_similar_lengths_and_a_bounded_size():
    examples = federation_of("ranking").examples(np.arange(PEOPLE), 0, "samples")
    groups = list(by_length(examples, 100))
    assert sorted(np.concatenate(groups).tolist()) == list(range(PEOPLE))
    assert all(len(group) == 1 or len(group) * examples.lengths[group].max() <= 100 for group in groups)
