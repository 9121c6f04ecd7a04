"""FedRAP: exact answers, its kernel for every setting, and the pages that store private rows."""

from __future__ import annotations

import errno
import os
from functools import partial

import numba
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from fedtaste.core import Download, Examples, Fast, Upload
from fedtaste.data.synthetic import synthetic
from fedtaste.engine.checkpoint import same_bytes
from fedtaste.engine.run import begin, run
from fedtaste.engine.store import Store
from fedtaste.errors import DivergedError, RunError, SettingError
from fedtaste.evaluation.scoring import personal_scores
from fedtaste.federation import of_histories
from fedtaste.kernels.row_pages import PAGE, Pages
from fedtaste.methods import build
from fedtaste.methods.fedrap import SCHEDULES
from fedtaste.methods.server_optimizers import with_server
from fedtaste.models import additive, factorization
from support.states import assert_close, everything

ITEMS = 120
PEOPLE = 14
WORLD = synthetic(PEOPLE, ITEMS, 330, seed=3).histories()


def federation(batch=40, **options):
    return of_histories(WORLD, ITEMS, negatives=3, batch=batch, seed=1, **options)


BASE_SETTINGS = {"table_lr": 20.0, "mu": 0.02, "passes": 4}  # rates for short histories


def fedrap_of(k=8, **settings):
    model = additive(ITEMS, k=k)
    return build("fedrap", model, BASE_SETTINGS | settings), model


def train(backend="kernel", rounds=3, batch=40, **settings):
    method, model = fedrap_of(**settings)
    return list(run(method, model, federation(batch), rounds=rounds, backend=backend, seed=2))


VARIANTS = [
    {},
    {"penalty": "l2"},
    {"penalty": "none"},
    {"lam": 0.0, "mu": 0.0},
    {"parts": "common"},
    {"parts": "common", "penalty": "l2"},
    {"parts": "own"},
    {"bound": 2.0, "lam": 0.5},
    {"prox": 0.05, "mu": 0.0},
    {"own_rate": 0.1, "own_start": 0.0, "start": 0.3},
    {"own_rate": 0.1, "penalty": "l2", "weight_decay": 0.01},
    {"own_rate": 0.5, "parts": "own", "weight_decay": 0.01},
    {"weights": "examples"},
    {"start": 0.0},
    {"k": 5},
    {"k": 5, "parts": "own"},
    {"k": 13, "own_rate": 0.1, "penalty": "l2"},
    {"weight_decay": 0.002, "step_decay": 0.9, "round_decay": 0.5},
    {"lr": 0.1, "table_lr": 40.0, "passes": 3},
    *({"released": False, "schedule": name} for name in SCHEDULES),
]


@pytest.mark.parametrize("settings", VARIANTS, ids=lambda s: "-".join(f"{k}={v}" for k, v in s.items()) or "released")
@pytest.mark.parametrize("batch", [40, 0])
def test_the_kernel_equals_the_loop_for_every_setting(settings, batch):
    """They agree to 1e-5 after two rounds, with one batch per person or several."""
    slow, fast = (train(backend, rounds=2, batch=batch, **settings)[-1] for backend in ("loop", "kernel"))
    assert_close(everything(slow.state), everything(fast.state), 1e-5)
    assert slow.loss == pytest.approx(fast.loss, rel=1e-4) if slow.loss is not None else fast.loss is None


def reference_client(c, d, u, b, items, targets, *, lr, table_lr, lam, mu, wd, steps):
    """One person's training on one batch by the published formulas with counts, dense and in double precision."""
    c, d, u = c.astype(float), d.astype(float), u.astype(float)
    k, size = c.shape[1], len(items)
    count = np.bincount(items, minlength=len(c))
    positives = np.bincount(items, targets, minlength=len(c))
    for t in range(steps):
        p = 1 / (1 + np.exp(-((d + c) @ u + b)))
        e = (count * p - positives) / size
        gu, gb = e @ (d + c), e.sum()
        push = 2 * lam * count[:, None] / (size * k) * (d - c)
        gd = e[:, None] * u - push
        gc = e[:, None] * u + push + mu * count[:, None] / (size * k) * np.sign(c)
        fast, slow = table_lr * 0.95**t, lr * 0.95**t
        c, d = (1 - fast * wd) * c - fast * gc, (1 - fast * wd) * d - fast * gd
        u, b = (1 - slow * wd) * u - slow * gu, (1 - slow * wd) * b - slow * gb
    return c, d, u, b


def test_a_client_step_equals_the_formulas_of_the_paper():
    method, model = fedrap_of()
    shared, private = method.init(model.init(torch.Generator().manual_seed(5)))
    examples = federation(batch=0).examples(np.array([0]), 0, "samples")
    upload, after = method.client(
        Download(shared, torch.tensor(0.0)), private, Examples(*(x[0] for x in examples.pad(np.array([0]))))
    )
    c, d, u, b = reference_client(
        shared["item"].numpy(), private["own"].numpy(), private["user"].numpy(), float(private["bias"]),
        examples.inputs, examples.targets,
        lr=0.5, table_lr=20.0, lam=0.1, mu=0.02, wd=1e-4, steps=4,
    )  # fmt: skip
    item = (1 + upload.total["decay"]) * shared["item"] + upload.total["item"]
    np.testing.assert_allclose(item, c, atol=2e-4)
    np.testing.assert_allclose(after["scale"] * after["own"], d, atol=2e-4)
    np.testing.assert_allclose(after["user"], u, atol=2e-4)
    assert float(after["bias"]) == pytest.approx(b, abs=2e-4)


def test_one_step_of_all_clients_equals_central_descent():
    """With passes=1 and batch=0, C moves by the gradient of the mean objective of all people, and other parameters by
    the gradient of their own person's objective."""
    settings = {"passes": 1, "released": False, "schedule": "fixed", "lr": 0.5, "table_lr": 20.0}
    method, model = fedrap_of(**settings)
    federated = list(run(method, model, federation(0), rounds=4, seed=2))[-1].state
    start = model.init(torch.Generator().manual_seed(2))
    people = federation(0).members
    c = start["item"].double().requires_grad_()
    d = start["own"].double().repeat(len(people), 1, 1).requires_grad_()
    u = start["user"].double().repeat(len(people), 1).requires_grad_()
    b = start["bias"].double().repeat(len(people)).requires_grad_()
    for number in range(4):
        examples = federation(0).examples(people, number, "samples")
        costs = []
        for index in range(len(people)):
            part = slice(examples.starts[index], examples.starts[index + 1])
            items = torch.from_numpy(examples.inputs[part]).long()
            targets = torch.from_numpy(examples.targets[part]).double()
            logits = (c[items] + d[index][items]) @ u[index] + b[index]
            fit = torch.nn.functional.binary_cross_entropy_with_logits(logits, targets)
            costs.append(fit - 0.1 * ((d[index][items] - c[items]) ** 2).mean() + 0.02 * c[items].abs().mean())
        gc, gd, gu, gb = torch.autograd.grad(sum(costs), [c, d, u, b])
        with torch.no_grad():
            c -= 20.0 * gc / len(people)
            d -= 20.0 * gd
            u -= 0.5 * gu
            b -= 0.5 * gb
    private = federated.private.gather(people)
    np.testing.assert_allclose(federated.shared["item"], c.detach(), atol=1e-4)
    np.testing.assert_allclose(private["own"], d.detach(), atol=1e-4)
    np.testing.assert_allclose(private["user"], u.detach(), atol=1e-4)


def test_schedule_changes_training_except_with_released():
    rounds = torch.arange(25.0)
    values = {name: schedule(rounds) for name, schedule in SCHEDULES.items()}
    assert values["tanh"][0] == 0 and values["tanh"][20] == pytest.approx(np.tanh(2))
    assert values["square"].tolist() == [1] * 10 + [0] * 10 + [1] * 5
    assert values["frac"][3] == 0.25 and values["sin"][5] == pytest.approx(np.sin(0.5))
    ends = [everything(train(released=False, schedule=name)[-1].state) for name in SCHEDULES]
    assert all(not same_bytes(ends[0], other) for other in ends[1:])
    first = train(released=False, schedule="tanh", rounds=1)[-1].state  # tanh(0) = 0: only the loss on the data
    assert_close(everything(first), everything(train(released=False, lam=0.0, mu=0.0, rounds=1)[-1].state), 1e-6)
    same = [everything(train(schedule=name)[-1].state) for name in ("tanh", "sin")]
    assert same_bytes(*same)


def test_prox_sets_entries_of_the_item_table_to_exactly_zero():
    without_prox, with_prox = train(rounds=4)[-1].state.shared, train(rounds=4, prox=0.2)[-1].state.shared
    assert float((without_prox["item"] == 0).float().mean()) == 0
    assert float((with_prox["item"] == 0).float().mean()) > 0.3


def test_a_server_optimiser_steps_by_the_mean_change_with_its_decay():
    """sgd with rate 1 is the plain server; adagrad divides the same change by its size, before the threshold."""
    plain, model = fedrap_of(prox=0.01, weight_decay=0.01)
    shared, private = plain.init(model.init(torch.Generator().manual_seed(5)))
    change, decay = torch.randn(ITEMS, 8, generator=torch.Generator().manual_seed(6)), torch.tensor(-0.2)
    upload = Upload({"item": 3 * change, "decay": 3 * decay, "loss": torch.ones(())}, torch.tensor(3.0))
    same = with_server(plain, "fedrap", {"server": "sgd", "server_lr": 1.0})
    assert torch.equal(plain.server(shared, {}, upload)[0]["item"], same.server(shared, {}, upload)[0]["item"])
    adaptive = with_server(plain, "fedrap", {"server": "adagrad", "server_lr": 0.5, "tau": 0.1})
    moved, memory = adaptive.server(shared, {}, upload)
    total = change + decay * shared["item"]
    item = shared["item"] + 0.5 * total / ((0.1**2 + total**2).sqrt() + 0.1)
    torch.testing.assert_close(moved["item"], item.sign() * (item.abs() - 0.01).clamp(min=0))
    torch.testing.assert_close(memory["v.item"], 0.1**2 + total**2)
    with pytest.raises(SettingError, match="no use for a server optimiser"):
        with_server(fedrap_of(parts="own")[0], "fedrap", {"server": "adagrad"})


def test_an_own_part_that_starts_at_nothing_and_stands_still_is_the_common_part_alone():
    nothing = {"lam": 0.0, "released": False, "schedule": "fixed", "weights": "examples"}
    both = train(own_start=0.0, own_rate=0.0, **nothing)[-1].state
    common = train(parts="common", **nothing)[-1].state
    torch.testing.assert_close(both.shared["item"], common.shared["item"], rtol=1e-5, atol=1e-6)
    assert both.private.gather(np.arange(PEOPLE))["own"].abs().max() < 1e-5


def test_weights_by_examples_give_the_mean_over_examples():
    """With passes=1 and batch=0 the change of C is the gradient of the mean over all examples of all people."""
    settings = {"passes": 1, "released": False, "lam": 0.0, "mu": 0.0, "weights": "examples", "parts": "common"}
    method, model = fedrap_of(**settings)
    start = model.init(torch.Generator().manual_seed(2))
    moved = next(run(method, model, federation(0), rounds=1, seed=2)).state.shared["item"]
    examples = federation(0).examples(federation(0).members, 0, "samples")
    c, items = start["item"].double().requires_grad_(), torch.from_numpy(examples.inputs).long()
    logits = c[items] @ start["user"].double() + start["bias"]
    targets = torch.from_numpy(examples.targets).double()
    (gradient,) = torch.autograd.grad(torch.nn.functional.binary_cross_entropy_with_logits(logits, targets), c)
    np.testing.assert_allclose(moved, (c - BASE_SETTINGS["table_lr"] * gradient).detach(), atol=1e-5)


def test_bound_limits_the_distance_of_private_and_common_tables():
    """Without the bound the push would diverge. The bound stops it after the round that exceeds it."""
    free = train(lam=1.0, bound=1e30, rounds=8, released=False, schedule="fixed")[-1].state
    bounded = train(lam=1.0, bound=4.0, rounds=8, released=False, schedule="fixed")[-1].state

    def largest_distance(state):
        private = state.private.gather(np.arange(PEOPLE))
        return float(((private["scale"][:, None, None] * private["own"] - state.shared["item"]) ** 2).mean(2).max())

    assert largest_distance(bounded) < 20 and largest_distance(bounded) < 0.01 * largest_distance(free)


def test_a_refused_person_keeps_the_initial_rows():
    method, model = fedrap_of()
    state = begin(method, model, federation(), seed=2)
    state.private.stacked["user"][3] = torch.nan
    done = next(run(method, model, federation(), rounds=1, backend="kernel", state=state))
    own = done.state.private.gather(np.arange(PEOPLE))["own"]
    assert dict(done.rejected) == {"non-finite": 1}
    assert torch.equal(own[3], done.state.private.initial["own"]) and not torch.equal(own[2], own[3])


@pytest.mark.parametrize("backend", ["kernel", "vmap"])
def test_a_diverging_push_raises_an_error_that_names_lam(backend):
    with pytest.raises(DivergedError, match="lam of fedrap"):
        train(backend, rounds=5, lam=1e9)


def test_fast_scores_equal_those_of_the_personal_model():
    for parts in ("both", "common", "own"):
        method, model = fedrap_of(parts=parts)
        state = list(run(method, model, federation(), rounds=2))[-1].state
        people, examples = np.arange(PEOPLE), federation().examples(np.arange(PEOPLE), 0, "samples")
        for candidates in (torch.arange(ITEMS), torch.randint(0, ITEMS, (PEOPLE, 7))):
            rows_of = {}
            for variant in (method, method.replace(fast=Fast(method.fast.kernel))):
                rows = torch.zeros(PEOPLE, candidates.shape[-1])
                for part, scores in personal_scores(
                    variant, model, state.shared, state.private, people, examples, candidates
                ):
                    rows[part] = scores
                rows_of[variant.fast.scores is None] = rows
            torch.testing.assert_close(rows_of[True], rows_of[False], rtol=1e-4, atol=1e-4)


def test_one_thread_and_several_give_the_same_bytes():
    before, ends = numba.get_num_threads(), []
    for threads in (1, before):
        numba.set_num_threads(threads)
        ends.append(everything(train(rounds=4)[-1].state))
    assert same_bytes(*ends)


def test_another_model_and_a_large_weight_decay_are_refused():
    with pytest.raises(SettingError, match="model=additive"):
        build("fedrap", factorization(10), {})
    with pytest.raises(SettingError, match="below 1"):
        fedrap_of(weight_decay=0.1)


@examples(max_examples=40, deadline=None)
@given(st.lists(st.dictionaries(st.integers(0, 4), st.sets(st.integers(0, 199), max_size=90)), max_size=6))
def test_pages_store_and_find_every_row(batches):
    """Every placed row is found again at one slot, and starts at its initial value."""
    initial = np.arange(400, dtype=np.float32).reshape(200, 2)
    pages, known = Pages(initial, 5), {}
    for number, batch in enumerate(batches):
        parts = {person: sorted(rows) for person, rows in batch.items()}
        people = np.array(list(parts), np.int64)
        starts = np.append(0, np.cumsum([len(rows) for rows in parts.values()])).astype(np.int64)
        row_ids = np.array([row for rows in parts.values() for row in rows], np.int32)
        slots = pages.place(people, starts, row_ids)
        assert len(set(slots.tolist())) == len(slots)
        owners = np.repeat(people, np.diff(starts))
        for owner, row, slot in zip(owners.tolist(), row_ids.tolist(), slots.tolist()):
            assert pages.rows[slot].tolist() == known.get((owner, row), initial[row].tolist())
            pages.rows[slot] = known[owner, row] = [number, row]
    assert pages.used.sum() == len(known) and pages.pages <= -(-len(known) // PAGE) + 5
    loaded = Pages(initial, 5)
    loaded.unpack({name: part.copy() for name, part in pages.pack().items()})
    all_rows = np.tile(np.arange(200, dtype=np.int32), 5)
    slots_before, slots_after = (p.find(np.arange(5), np.arange(0, 1001, 200), all_rows) for p in (pages, loaded))
    assert np.array_equal(slots_before, slots_after) and (slots_before >= 0).sum() == len(known)


def test_rows_that_the_caller_fills_have_negative_slots():
    pages = Pages(np.ones((10, 4), np.float32), 1)
    place = partial(pages.place, np.array([0]), np.array([0, 2]))
    assert place(np.array([7, 2], np.int32)).tolist() == [0, 1]
    assert place(np.array([2, 5], np.int32), fill=False).tolist() == [1, ~2]
    assert pages.rows[:3].tolist() == [[1] * 4, [1] * 4, [0] * 4]
    assert place(np.array([2, 5], np.int32), fill=False).tolist() == [1, 2]


def test_pages_on_disk_give_the_same_bytes(tmp_path):
    method, model = fedrap_of()
    in_memory = list(run(method, model, federation(), rounds=3))[-1].state
    on_disk = begin(method, model, federation(), folder=tmp_path / "private")
    on_disk = list(run(method, model, federation(), rounds=3, state=on_disk))[-1].state
    assert same_bytes(everything(in_memory), everything(on_disk))
    assert isinstance(on_disk.private.touched["own"].values, np.memmap)
    copy = Store.fresh(on_disk.private.initial, PEOPLE, ["own"], tmp_path)
    copy.unpack({name: value.clone() for name, value in on_disk.private.pack().items()})
    assert same_bytes(copy.gather(np.arange(PEOPLE)), on_disk.private.gather(np.arange(PEOPLE)))


def test_a_full_disk_raises_an_error_before_a_page_is_written(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    pages = Pages(np.zeros((10, 4), np.float32), 2, tmp_path)
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(RunError, match="No space left.*resumed"):
        pages.place(np.array([0]), np.array([0, 2]), np.array([1, 2], np.int32))
    pages.close()
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="--store memory"):
        Pages(np.zeros((10, 4), np.float32), 2, tmp_path / "file")


def test_inconsistent_pages_are_refused():
    pages = Pages(np.zeros((10, 4), np.float32), 2)
    pages.place(np.array([0]), np.array([0, 2]), np.array([1, 2], np.int32))
    for name, value in (("first", 7), ("used", 90), ("follows", 0), ("ids", 10), ("ids", 1), ("last", 3)):
        parts = {n: p.copy() for n, p in pages.pack().items()}
        parts[name][0] = value
        with pytest.raises(RunError, match="do not fit together"):
            Pages(np.zeros((10, 4), np.float32), 2).unpack(parts)


def test_private_parameters_of_other_settings_are_refused():
    state = train(rounds=1)[-1].state
    good = state.private.pack()
    for name in good:
        less = {n: v for n, v in good.items() if n != name}
        with pytest.raises(RunError, match="does not fit the settings"):
            Store.fresh(state.private.initial, PEOPLE, ["own"]).unpack(less)
    with pytest.raises(RunError, match="does not fit the settings"):
        Store.fresh(state.private.initial, PEOPLE + 1, ["own"]).unpack(good)
