"""Laws that hold for every method, from one table: a new method is one more row."""

from __future__ import annotations

import inspect

import numba
import numpy as np
import pytest
import torch

from flower_worlds import facts_of, fleet_of, nodes_of, over_flower, private_of
from tacit.core import Download, Examples, Stage, Upload
from tacit.engine.checkpoint import load_state, same_bytes, save_state
from tacit.engine.run import begin, run
from tacit.federation import of_histories
from tacit.methods import METHODS, build, settings_of
from tacit.wire.ledger import decode, encode
from worlds import FEATURES, ITEMS, PEOPLE, histories, model_of, world

SOLVED = {"lam": 0.5, "alpha0": 0.9, "recency": 0.5, "floor": 0.5}
TRAIL = {"window": 2, "fade": 0.5, "from_power": 1.0, "to_power": 1.0, "shrink": 1.0}
TRAIL |= {"mix": 0.2, "fast": 0.1, "slow": 0.5, "reach": 3, "keep": 9}
VEIL = {"people": 96, "strength": 2.0, "recency": 0.5, "floor": 0.5}
KINDS = (torch.arange(ITEMS)[:, None] % torch.arange(2, 9) == 0).float()  # public item features
# name, settings that keep tiny worlds lively, tasks, and for every setting another value (which must matter)
TABLE = [
    ("popularity", {}, ["ranking", "ratings"], {"shrink": 50.0}),
    ("local", {"lr": 0.1}, ["ranking", "ratings"], {"lr": 0.2, "passes": 2}),
    ("centralised", {}, ["ranking", "ratings"], SOLVED),
    ("fedsgd", {"lr": 0.1}, ["ranking", "ratings"], {"lr": 0.2, "private": ()}),
    ("fedavg", {"lr": 0.1}, ["ranking", "ratings"], {"lr": 0.2, "passes": 2, "private": ()}),
    ("fcf", {}, ["ranking"], {"lam": 0.5, "alpha0": 0.9, "lr": 0.2}),
    ("fedmf", {"lr": 0.1}, ["ranking", "ratings"], {"lr": 0.2, "passes": 2}),
    ("fedncf", {"lr": 0.1}, ["ranking"], {"lr": 0.2, "passes": 2}),
    ("fedprox", {"lr": 0.1, "mu": 0.5}, ["ranking", "ratings"], {"lr": 0.2, "passes": 2, "mu": 2.0, "private": ()}),
    ("fedper", {"lr": 0.1}, ["ranking", "ratings"], {"lr": 0.2, "passes": 2, "private": ("item_bias",)}),
    (
        "fedrep",
        {"lr": 0.1, "private_lr": 0.1},
        ["ranking", "ratings"],
        {"lr": 0.2, "private_lr": 0.2, "private_passes": 2, "passes": 2, "private": ("item_bias",)},
    ),
    (
        "fedrecon",
        {"lr": 0.1, "recon_lr": 0.1},
        ["ranking", "ratings"],
        {"lr": 0.2, "passes": 2, "recon_lr": 0.2, "recon_passes": 2, "support": 0.7, "joint": True, "solver": "exact"},
    ),
    (
        "fedrecon",
        {"lr": 0.1, "solver": "exact"},
        ["ranking", "ratings"],
        {"lr": 0.2, "passes": 2, "lam": 0.5, "prior": 9.0, "support": 0.7, "joint": True},
    ),
    ("fedals", {}, ["ranking", "ratings"], SOLVED),
    ("fedtrail", {}, ["ranking"], TRAIL | SOLVED | {"bits": 8, "parts": "trail"}),
    ("fedtrail", {"parts": "trail"}, ["ranking"], TRAIL | {"bits": 8}),
    ("fedtrail", {"parts": "factors"}, ["ranking"], SOLVED | {"bits": 8}),
    ("fedtrail", {"parts": "trail+als"}, ["ranking"], TRAIL | SOLVED | {"bits": 8}),
    ("fedtrail", {"keep": 6, "bits": 8}, ["ranking"], TRAIL | SOLVED | {"bits": 32, "parts": "trail"}),
    ("fedveil", {"noise": 0.02, "people": 24}, ["ranking"], VEIL | {"noise": 0.3, "route": "iterate"}),
    ("fedveil", {"route": "iterate"}, ["ranking"], VEIL | {"turns": 1, "route": "head"}),
    (
        "fedveil",
        {"noise": 0.3, "people": 24, "route": "features", "features": KINDS},
        ["ranking"],
        VEIL | {"noise": 0.1, "route": "head", "features": KINDS[:, :6]},
    ),
    (
        "fedrap",
        {"lr": 0.1, "table_lr": 5.0, "passes": 2, "weight_decay": 0.01},
        ["ranking"],
        {"lr": 0.2, "table_lr": 4.0, "passes": 3, "lam": 0.5, "mu": 0.5, "penalty": "l2", "released": False,
         "weight_decay": 0.02, "step_decay": 0.5, "round_decay": 0.5, "parts": "common", "prox": 0.1, "bound": 1.0},
    ),
    (
        "fedrap",
        {"lr": 0.1, "table_lr": 5.0, "passes": 2, "released": False, "schedule": "frac"},
        ["ranking"],
        {"lr": 0.2, "table_lr": 4.0, "passes": 3, "lam": 0.5, "mu": 0.5, "penalty": "none", "released": True,
         "schedule": "sin", "parts": "own", "prox": 0.1, "bound": 1.0},
    ),
    ("fedbn", {"lr": 0.1}, ["pictures"], {"lr": 0.2, "passes": 2}),
    (
        "ditto",
        {"lr": 0.1, "own_lr": 0.1, "lam": 0.5},
        ["ranking", "ratings", "pictures"],
        {"lr": 0.2, "passes": 2, "own_lr": 0.2, "own_passes": 2, "lam": 1.0},
    ),
    (
        "pfedme",
        {"lam": 0.5, "lr": 0.02},
        ["ranking", "ratings", "pictures"],
        {"lam": 1.0, "lr": 0.2, "passes": 2, "turns": 2, "eta": 0.5, "beta": 0.5},
    ),
    ("fedclup", {"passes": 3}, ["labels", "numbers"], {"lam": 0.5, "lr": 0.2, "passes": 2, "rate": 0.9}),
    (
        "fedclup",
        {"lam": 0.5, "lr": 0.1, "rate": 1.1, "passes": 3},
        ["ranking", "ratings", "pictures"],
        {"lam": 1.0, "lr": 0.2, "passes": 2, "rate": 1.0},
    ),
    (
        "apfl",
        {"lr": 0.1},
        ["ranking", "ratings", "pictures"],
        {"lr": 0.2, "passes": 2, "alpha": 0.2, "alpha_lr": 0.5},
    ),
    (
        "lgmix",
        {"lr": 0.1},
        ["ranking", "ratings", "pictures"],
        {"lr": 0.2, "passes": 2, "trace": "gram", "share": 0.9},
    ),
    (
        "pfedrec",
        {"lr": 0.1, "item_scale": 1.0},
        ["ranking"],
        {"lr": 0.2, "item_scale": 2.0, "passes": 2, "tuned": False},
    ),
]  # fmt: skip
VARIANT = ("solver", "parts", "keep", "schedule", "rate", "route")  # what tells two rows of one method apart


def label(name, settings):
    return "-".join([name, *(str(settings[key]) for key in VARIANT if key in settings)])


ROWS = [
    pytest.param(name, settings, task, id=f"{label(name, settings)}-{task}")
    for name, settings, tasks, _ in TABLE
    for task in tasks
]
FEDERATED = [row for row in ROWS if row.values[0] != "centralised"]


def trained(name, settings, task, *, rounds=3, backend="auto", model=None, **options):
    method, own_model, federation = world(name, settings, task, **options)
    return list(run(method, model or own_model, federation, rounds=rounds, backend=backend, seed=1))


def everything(state):
    """All parameters, shared and private, as one dict."""
    private = state.private.gather(np.arange(state.private.people))
    return dict(state.shared) | {f"private/{n}": v for n, v in private.items()}


PICTURES = 2e-3  # batch norm over a handful of examples multiplies what rounding leaves


def assert_close(a, b, tolerance=1e-5):
    assert a.keys() == b.keys()
    for name in a:
        scale = max(1.0, float(a[name].abs().max()) if a[name].numel() else 1.0)
        assert torch.allclose(a[name], b[name], rtol=0, atol=tolerance * scale), name


def test_every_method_has_a_row():
    assert {name for name, *_ in TABLE} == set(METHODS)


@pytest.mark.parametrize("name, settings, task", FEDERATED)
def test_flower_means_the_same(name, settings, task, tmp_path):
    """Three nodes with a third of the people each, every message as bytes, against everybody on one machine."""
    method, model, federation = world(name, settings, task)
    expected = trained(name, settings, task)[-1].state
    grid, made, nodes = nodes_of(method, model, federation, facts_of(task, federation), tmp_path)
    got = over_flower(fleet_of(grid, made), made)
    tolerance = PICTURES if task == "pictures" else 1e-6
    assert_close(got.shared, expected.shared, tolerance)
    private = private_of(made, nodes, federation, base=3)
    assert_close(private, expected.private.gather(np.arange(federation.people)), max(tolerance, 1e-5))


@pytest.mark.parametrize("name, settings, task", FEDERATED)
def test_backends_mean_the_same(name, settings, task):
    method, _, _ = world(name, settings, task)
    oracle = trained(name, settings, task, backend="loop")[-1]
    for backend in ("vmap", "kernel") if method.kernel else ("vmap",):
        other = trained(name, settings, task, backend=backend)[-1]
        assert_close(everything(oracle.state), everything(other.state), PICTURES if task == "pictures" else 1e-5)
        assert oracle.up_bytes == other.up_bytes and oracle.rejected == other.rejected


@pytest.mark.parametrize("name, settings, task", FEDERATED)
def test_nothing_private_is_in_an_upload(name, settings, task):
    method, model, federation = world(name, settings, task)
    state = begin(method, model, federation)
    own = {n: v[0] for n, v in state.private.gather(np.array([0])).items()}
    held = Examples(*(x[0] for x in federation.examples(np.array([0]), 0).pad()))
    upload, _ = method.client(Download(state.shared, torch.tensor(0.0)), own, held)
    assert not set(upload.total) & set(own)
    assert not {"user", "user_gmf", "user_mlp"} & set(
        upload.total
    )  # a person's vector never leaves, whatever a method calls private


@pytest.mark.parametrize("name, settings, task", ROWS)
def test_the_same_seed_gives_the_same_bytes(name, settings, task):
    one, two = (everything(trained(name, settings, task)[-1].state) for _ in range(2))
    assert same_bytes(one, two)


@pytest.mark.parametrize("name, settings, task", ROWS)
def test_threads_do_not_change_the_bytes(name, settings, task):
    many = everything(trained(name, settings, task)[-1].state)
    before = numba.get_num_threads()
    numba.set_num_threads(1)
    try:
        assert same_bytes(many, everything(trained(name, settings, task)[-1].state))
    finally:
        numba.set_num_threads(before)


@pytest.mark.parametrize("name, settings, task", FEDERATED)
def test_padding_changes_nothing(name, settings, task):
    method, model, federation = world(name, settings, task)
    state = begin(method, model, federation)
    down = Download(state.shared, torch.tensor(0.0))
    for person in (0, 5):
        own = {n: v[0] for n, v in state.private.gather(np.array([person])).items()}
        held = federation.examples(np.array([person]), 0)
        plain, padded = (Examples(*(x[0] for x in held.pad(extra=extra))) for extra in (0, 3))
        one, two = method.client(down, own, plain), method.client(down, own, padded)
        assert_close(one[0].total, two[0].total, 1e-6)
        assert one[0].weight == two[0].weight
        served = [method.personalize(state.shared, own, held) for held in (plain, padded)]
        assert_close(served[0], served[1], 1e-5)


@pytest.mark.parametrize("name, settings, task", FEDERATED)
def test_the_order_of_people_changes_nothing(name, settings, task):
    there = trained(name, settings, task, members=np.arange(PEOPLE))[-1].state
    back = trained(name, settings, task, members=np.arange(PEOPLE)[::-1])[-1].state
    assert_close(everything(there), everything(back), PICTURES if task == "pictures" else 1e-5)


@pytest.mark.parametrize("name, settings, task", ROWS)
def test_resume_equals_uninterrupted(name, settings, task, tmp_path):
    method, model, federation = world(name, settings, task)
    whole = list(run(method, model, federation, rounds=4, seed=1))[-1].state
    half = list(run(method, model, federation, rounds=2, seed=1))[-1].state
    save_state(tmp_path / "state", half, {})
    loaded, _ = load_state(tmp_path / "state", begin(method, model, federation, seed=1))
    resumed = list(run(method, model, federation, rounds=4, seed=1, state=loaded))[-1].state
    assert same_bytes(everything(whole), everything(resumed))


LIVE = [
    pytest.param(name, settings, tasks, key, value, id=f"{label(name, settings)}-{key}")
    for name, settings, tasks, others in TABLE
    for key, value in others.items()
]


@pytest.mark.parametrize("name, settings, tasks, key, value", LIVE)
def test_every_setting_changes_the_result(name, settings, tasks, key, value):
    """In at least one task: in what is learnt, or in what a person is served."""

    def outcome(task, settings):
        state = trained(name, settings, task)[-1].state
        method, _, federation = world(name, settings, task)
        if task not in FEATURES:
            federation = of_histories(histories(task), ITEMS, examples=method.examples, negatives=0)
        held = federation.examples(np.array([0]), 0)
        own = {n: v[0] for n, v in state.private.gather(np.array([0])).items()} if not method.pooled else {}
        served = method.personalize(state.shared, own, Examples(*(x[0] for x in held.pad())))
        return everything(state) | served

    changed = []
    for task in tasks:
        one, two = outcome(task, settings), outcome(task, settings | {key: value})
        changed.append(one.keys() != two.keys() or not same_bytes(one, two))
    assert any(changed)


@pytest.mark.parametrize("name, settings, tasks, others", TABLE, ids=[label(n, s) for n, s, *_ in TABLE])
def test_no_setting_is_left_out_of_the_table(name, settings, tasks, others):
    known = set(settings_of(METHODS[name]))
    unread = {
        "fedals": {"counts_once"},  # when counts are sent changes no number: tests/test_reductions.py
        "fedrecon": {"lam", "prior"},
        "fedrecon-exact": {"recon_lr", "recon_passes", "solver"},
        "centralised": {"lr", "passes"},
        "fedtrail-trail": {"parts", *SOLVED},
        "fedtrail-factors": {"parts", *TRAIL},
        "fedtrail-trail+als": {"parts"},
        "popularity": {"noise", "clip", "features"},  # see test_fedveil.py
        "fedveil": {"turns", "features", "feature_count"},
        "fedveil-iterate": {"noise", "features", "feature_count"},  # without people there is no noise
        "fedveil-features": {"turns", "feature_count"},
        "fedrap": {"schedule"},
        "fedrap-frac": {"weight_decay", "step_decay", "round_decay"},
    }
    assert set(others) == known - unread.get(label(name, settings), set())


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
def test_bad_updates_are_refused_counted_and_harmless(kind, backend):
    """Person 3 is hostile. What they send is rejected by reason; the result equals a round without them."""
    spoil, reason = BAD[kind]
    if backend == "vmap" and reason in ("shape", "names", "dtype"):
        pytest.skip("vmap runs one program for everybody: names, shapes and types cannot differ by person")
    name, settings = "fedavg", {"lr": 0.1}
    data = histories()
    method, model, federation = world(name, settings, "ranking", data=data)
    mark = float(federation.examples(np.array([3]), 0).lengths[0])
    weights = federation.examples(np.arange(PEOPLE), 0).lengths
    hostile = int((weights == mark).sum())  # told by the weight of their upload, as a stage sees nothing else

    def client(up, seat):
        bad, hit = spoil(up), up.weight == mark
        total = {n: torch.where(hit, bad.total[n], v) for n, v in up.total.items()}
        return Upload(total, torch.where(hit, bad.weight, up.weight))

    def mail(blobs):
        for blob in blobs:
            up, head = decode(blob)
            yield encode(spoil(up), head) if float(up.weight) == mark else blob

    options = {"mail": mail} if backend == "loop" else {"wire": Stage(client=client)}
    got = next(run(method, model, federation, rounds=1, backend=backend, **options))
    assert got.rejected == {reason: hostile} and got.answered == PEOPLE - hostile
    honest = np.flatnonzero(weights != mark)
    _, _, without = world(name, settings, "ranking", data=data, members=honest)
    expected = next(run(method, model, without, rounds=1, backend=backend))
    assert_close(got.state.shared, expected.state.shared, 1e-6)


def test_the_kernel_refuses_what_is_not_finite():
    method, model, federation = world("fedals", {}, "ranking")
    state = begin(method, model, federation)
    state.shared["item"][int(federation.examples(np.array([0]), 0).inputs[0])] = torch.nan
    method_up, refused = method.kernel(
        Download(state.shared, torch.tensor(0.0)), None, None, federation.examples(np.arange(PEOPLE), 0)
    )
    touched = sum(int(federation.examples(np.array([0]), 0).inputs[0]) in histories().of(p) for p in range(PEOPLE))
    assert refused["non-finite"] == touched and float(method_up.weight) == PEOPLE - touched
    assert torch.isfinite(method_up.total["sums"]).all()


def test_settings_are_keyword_only_with_types():
    for function in METHODS.values():
        for name, parameter in settings_of(function).items():
            assert parameter.annotation is not inspect.Parameter.empty, name
            assert parameter.default is not inspect.Parameter.empty, name


def test_an_unknown_server_optimiser_is_refused():
    with pytest.raises(Exception, match='Did you mean "adam"'):
        build("fedavg", model_of("ranking", {}), {"server": "adm"})
