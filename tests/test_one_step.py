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
