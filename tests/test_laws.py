"""Laws that every method must obey, checked from one table. A new method is one more row of TABLE."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedtaste.core import Cohort, Download, Stage, Upload
from fedtaste.engine.run import begin, run
from fedtaste.methods import METHODS, build
from fedtaste.wire.messages import decode, encode
from support.laws import (
    FEDERATED_LAWS,
    LAWS,
    Row,
    changes,
    row_changes_every_setting_that_the_method_reads,
    setting_changes_the_result,
)
from support.states import assert_close
from support.worlds import ITEMS, PEOPLE, histories, model_of, world

SOLVED = {"lam": 0.5, "alpha0": 0.9, "recency": 0.5, "floor": 0.5}
TRAIL = {"window": 2, "fade": 0.5, "from_power": 1.0, "to_power": 1.0, "shrink": 1.0}
TRAIL |= {"mix": 0.2, "fast": 0.1, "slow": 0.5, "reach": 3, "keep": 9}
VEIL = {"people": 96, "strength": 2.0, "recency": 0.5, "floor": 0.5}
SEQUENCE = {"length": 6, "negatives": 20, "heads": 1, "learners": PEOPLE, "server": "adam-unbiased", "server_lr": 2e-3}
SEQUENCE |= {"tau": 1e-3, "final_rate": 0.02}
SEQUENCE_OTHERS = {"participations": 2, "start": "items", "trail": False, "network": "gru", "length": 5, "negatives": 9}
SEQUENCE_OTHERS |= {"hidden_dropout": 0.5, "upload_mb": 0.005, "cpu_minutes": 3e-6, "learners": 48, "cohort": 8}
SEQUENCE_OTHERS |= {"bits": 8}
KINDS = (torch.arange(ITEMS)[:, None] % torch.arange(2, 9) == 0).float()  # public item features
ITEM_TASKS = ["ranking", "ratings"]
# name, settings with which a tiny world changes visibly, tasks, and another value of every setting (which must matter)
TABLE = [
    ("popularity", {}, ITEM_TASKS, {"shrink": 50.0}),
    ("local", {"lr": 0.1, "passes": 2}, ITEM_TASKS, {"lr": 0.2, "passes": 3}),
    ("centralised", {}, ITEM_TASKS, SOLVED),
    ("fedsgd", {"lr": 0.1}, ITEM_TASKS, {"lr": 0.2, "private": ()}),
    ("fedavg", {"lr": 0.1}, ITEM_TASKS, {"lr": 0.2, "passes": 2, "private": ()}),
    ("fcf", {}, ["ranking"], {"lam": 0.5, "alpha0": 0.9, "lr": 0.2}),
    ("fedmf", {"lr": 0.1}, ITEM_TASKS, {"lr": 0.2, "passes": 2}),
    ("fedncf", {"lr": 0.1}, ["ranking"], {"lr": 0.2, "passes": 2}),
    ("fedprox", {"lr": 0.1, "mu": 0.5}, ITEM_TASKS, {"lr": 0.2, "passes": 2, "mu": 2.0, "private": ()}),
    ("fedper", {"lr": 0.1}, ITEM_TASKS, {"lr": 0.2, "passes": 2, "private": ("item_bias",)}),
    ("fedrep", {"lr": 0.1, "private_lr": 0.1, "private_passes": 2}, ITEM_TASKS,
     {"lr": 0.2, "private_lr": 0.2, "private_passes": 3, "passes": 2, "private": ("item_bias",)}),
    ("fedrecon", {"lr": 0.1, "recon_lr": 0.1, "recon_passes": 2}, ITEM_TASKS,
     {"lr": 0.2, "passes": 2, "recon_lr": 0.2, "recon_passes": 3, "support": 0.7, "joint": True, "solver": "exact"}),
    ("fedrecon", {"lr": 0.1, "solver": "exact"}, ITEM_TASKS,
     {"lr": 0.2, "passes": 2, "lam": 0.5, "prior": 9.0, "support": 0.7, "joint": True}),
    ("fedals", {}, ITEM_TASKS, SOLVED | {"block": 2}),
    ("fedals", {"block": 2}, ITEM_TASKS, SOLVED | {"block": 3}),
    ("fedtrail", {}, ["ranking"], TRAIL | SOLVED | {"bits": 8, "parts": "trail"}),
    ("fedtrail", {"parts": "trail"}, ["ranking"], TRAIL | {"bits": 8}),
    ("fedtrail", {"parts": "factors"}, ["ranking"], SOLVED | {"bits": 8}),
    ("fedtrail", {"parts": "trail+als"}, ["ranking"], TRAIL | SOLVED | {"bits": 8}),
    ("fedtrail", {"keep": 6, "bits": 8}, ["ranking"], TRAIL | SOLVED | {"bits": 32, "parts": "trail"}),
    ("fedeigen", {}, ["ranking"], SOLVED | {"bits": 32, "extra": 1}),
    ("fedseq", SEQUENCE, ["ranking"], SEQUENCE_OTHERS | {"layers": 1, "heads": 5}),
    ("fedseq", SEQUENCE | {"network": "gru", "trail": False}, ["ranking"],
     SEQUENCE_OTHERS | {"trail": True, "network": "attention"}),
    ("fedseq", SEQUENCE | {"start": "features", "trail": False, "features": KINDS}, ["ranking"],
     {n: v for n, v in SEQUENCE_OTHERS.items() if n != "trail"} | {"layers": 1, "heads": 5, "features": KINDS[:, :6]}),
    ("fedveil", {"noise": 0.02, "people": 24}, ["ranking"], VEIL | {"noise": 0.3, "route": "iterate"}),
    ("fedveil", {"route": "iterate"}, ["ranking"], VEIL | {"turns": 1, "route": "head"}),
    ("fedveil", {"noise": 0.3, "people": 24, "route": "features", "features": KINDS}, ["ranking"],
     VEIL | {"noise": 0.1, "route": "head", "features": KINDS[:, :6]}),
    ("fedrap", {"lr": 0.1, "table_lr": 5.0, "passes": 2, "weight_decay": 0.01}, ["ranking"],
     {"lr": 0.2, "table_lr": 4.0, "passes": 3, "lam": 0.5, "mu": 0.5, "penalty": "l2", "released": False,
      "weight_decay": 0.02, "step_decay": 0.5, "round_decay": 0.5, "parts": "common", "prox": 0.1, "bound": 1.0,
      "start": 0.5, "own_start": 0.5, "own_rate": 0.5, "weights": "examples"}),
    ("fedrap", {"lr": 0.1, "table_lr": 5.0, "passes": 2, "released": False, "schedule": "frac", "own_start": 0.0,
                "own_rate": 0.3, "weights": "examples"}, ["ranking"],
     {"lr": 0.2, "table_lr": 4.0, "passes": 3, "lam": 0.5, "mu": 0.5, "penalty": "none", "released": True,
      "schedule": "sin", "parts": "own", "prox": 0.1, "bound": 1.0, "start": 0.5, "own_start": 0.5, "own_rate": 0.5,
      "weights": "equal"}),
    ("fedbn", {"lr": 0.1}, ["pictures"], {"lr": 0.2, "passes": 2}),
    ("ditto", {"lr": 0.1, "own_lr": 0.1, "lam": 0.5}, [*ITEM_TASKS, "pictures"],
     {"lr": 0.2, "passes": 2, "own_lr": 0.2, "own_passes": 2, "lam": 1.0}),
    ("pfedme", {"lam": 0.5, "lr": 0.02}, [*ITEM_TASKS, "pictures"],
     {"lam": 1.0, "lr": 0.2, "passes": 2, "turns": 2, "eta": 0.5, "beta": 0.5}),
    ("fedclup", {"passes": 3}, ["labels", "numbers"], {"lam": 0.5, "lr": 0.2, "passes": 2, "rate": 0.9}),
    ("fedclup", {"lam": 0.5, "lr": 0.1, "rate": 1.1, "passes": 3}, [*ITEM_TASKS, "pictures"],
     {"lam": 1.0, "lr": 0.2, "passes": 2, "rate": 1.0}),
    ("apfl", {"lr": 0.1}, [*ITEM_TASKS, "pictures"], {"lr": 0.2, "passes": 2, "alpha": 0.2, "alpha_lr": 0.5}),
    ("lgmix", {"lr": 0.1}, [*ITEM_TASKS, "pictures"], {"lr": 0.2, "passes": 2, "trace": "gram", "share": 0.9}),
    ("pfedrec", {"lr": 0.1, "item_scale": 1.0}, ["ranking"],
     {"lr": 0.2, "item_scale": 2.0, "passes": 2, "tuned": False}),
]  # fmt: skip
UNREAD = {  # settings that a row's method does not read with these settings
    "fedals": {"counts_once"},  # when counts are sent changes no number: tests/test_reductions.py
    "fedals-2": {"counts_once"},
    "fedrecon": {"lam", "prior"},
    "fedrecon-exact": {"recon_lr", "recon_passes", "solver"},
    "centralised": {"lr", "passes"},
    "fedtrail-trail": {"parts", *SOLVED},
    "fedtrail-factors": {"parts", *TRAIL},
    "fedtrail-trail+als": {"parts"},
    "popularity": {"noise", "clip", "features"},  # see test_fedveil.py
    "fedseq": {"noise", "features", "feature_count"},  # noise is refused with counts: tests/test_fedseq.py
    "fedseq-gru": {"noise", "features", "feature_count", "layers", "heads"},
    "fedseq-features": {"noise", "feature_count", "trail"},  # trail=true needs counts
    "fedveil": {"turns", "features", "feature_count"},
    "fedveil-iterate": {"noise", "features", "feature_count"},  # without people there is no noise
    "fedveil-features": {"turns", "feature_count"},
    "fedrap": {"schedule"},
    "fedrap-frac": {"weight_decay", "step_decay", "round_decay"},
}
ROWS = [Row(*entry, UNREAD.get(Row(*entry).label, frozenset())) for entry in TABLE]
CASES = [
    pytest.param(law, row, task, id=f"{law.__name__}-{row.label}-{task}")
    for law in (*LAWS, *FEDERATED_LAWS)
    for row in ROWS
    for task in row.tasks
    if row.name != "centralised" or law in LAWS
]
SETTINGS = [pytest.param(row, key, id=f"{row.label}-{key}") for row in ROWS for key in row.others]


def test_every_method_has_a_row():
    assert {row.name for row in ROWS} == set(METHODS)


@pytest.mark.parametrize("law, row, task", CASES)
def test_method_obeys_law(law, row, task, tmp_path):
    law(row, task, tmp_path)


@pytest.mark.parametrize("row, key", SETTINGS)
def test_every_setting_changes_the_result(row, key):
    setting_changes_the_result(row, key)


def test_the_same_settings_change_nothing():
    row = next(row for row in ROWS if row.name == "fedrep")  # with private parameters
    assert not changes(row, dict(row.settings), "ranking")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.label)
def test_table_changes_every_setting_that_the_method_reads(row):
    row_changes_every_setting_that_the_method_reads(row)


BAD = {
    "nan": (lambda up: _scaled(up, float("nan")), "non-finite"),
    "inf": (lambda up: _scaled(up, float("inf")), "non-finite"),
    "huge": (lambda up: Upload({n: v + 1e9 for n, v in up.total.items()}, up.weight), "too large"),
    "negative weight": (lambda up: Upload(up.total, -up.weight), "weight"),
    "zero weight": (lambda up: Upload(up.total, 0 * up.weight), "weight"),
    "huge weight": (lambda up: Upload(up.total, up.weight * 1e12), "weight"),
    "nan weight": (lambda up: Upload(up.total, up.weight * float("nan")), "non-finite"),
    "shape": (lambda up: Upload({n: torch.cat([v, v]) for n, v in up.total.items() if v.ndim}, up.weight), "shape"),
    "name": (lambda up: Upload({n + "x": v for n, v in up.total.items()}, up.weight), "names"),
    "missing": (lambda up: Upload(dict(list(up.total.items())[1:]), up.weight), "names"),
    "dtype": (lambda up: Upload({n: v.double() for n, v in up.total.items()}, up.weight), "dtype"),
}


def _scaled(up, factor):
    return Upload({n: (v + 1) * factor for n, v in up.total.items()}, up.weight)


@pytest.mark.parametrize("kind", BAD)
@pytest.mark.parametrize("backend", ["loop", "vmap"])
def test_bad_uploads_are_rejected_counted_and_change_nothing(kind, backend):
    """Person 3 sends bad uploads. They are rejected by reason, and the result equals a round without person 3."""
    spoil, reason = BAD[kind]
    if backend == "vmap" and reason in ("shape", "names", "dtype"):
        pytest.skip("vmap runs one program for everybody: names, shapes and types cannot differ by person")
    name, settings = "fedavg", {"lr": 0.1}
    data = histories()
    method, model, federation = world(name, settings, "ranking", data=data)
    mark = float(federation.examples(np.array([3]), 0, method.examples).lengths[0])
    weights = federation.examples(np.arange(PEOPLE), 0, method.examples).lengths
    hostile = int((weights == mark).sum())  # a stage can recognise people by the weight of their upload only

    def client(up, context):
        bad, hit = spoil(up), up.weight == mark
        total = {n: torch.where(hit, bad.total[n], v) for n, v in up.total.items()}
        return Upload(total, torch.where(hit, bad.weight, up.weight))

    def network(blobs):
        for blob in blobs:
            up, head = decode(blob)
            yield encode(spoil(up), head) if float(up.weight) == mark else blob

    options = {"network": network} if backend == "loop" else {"wire": Stage(client=client)}
    result = next(run(method, model, federation, rounds=1, backend=backend, **options))
    assert result.rejected == {reason: hostile} and result.answered == PEOPLE - hostile
    honest = np.flatnonzero(weights != mark)
    _, _, without = world(name, settings, "ranking", data=data, members=honest)
    expected = next(run(method, model, without, rounds=1, backend=backend))
    assert_close(result.state.shared, expected.state.shared, 1e-6)


def test_kernel_rejects_clients_whose_numbers_are_not_finite():
    method, model, federation = world("fedals", {}, "ranking")
    state = begin(method, model, federation)
    item = int(federation.examples(np.array([0]), 0, method.examples).inputs[0])
    state.shared["item"][item] = torch.nan
    examples = federation.examples(np.arange(PEOPLE), 0, method.examples)
    cohort = Cohort(np.arange(PEOPLE), examples, state.private)
    upload, refused = method.fast.kernel(Download(state.shared, torch.tensor(0.0)), cohort)
    touched = sum(item in histories().of(person) for person in range(PEOPLE))
    assert refused["non-finite"] == touched and float(upload.weight) == PEOPLE - touched
    assert torch.isfinite(upload.total["sums"]).all()


def test_unknown_server_optimiser_is_refused_with_a_suggestion():
    with pytest.raises(Exception, match='Did you mean "adam"'):
        build("fedavg", model_of("ranking", {}), {"server": "adm"})
