"""FedVeil: bounds of its uploads, an independent implementation of all its steps, and its advice before a run."""

from __future__ import annotations

import math
from dataclasses import replace

import dp_accounting
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtaste import __version__
from fedtaste.core import Cohort, Download, Examples, Stage, StageContext, Upload
from fedtaste.data.interactions import Histories
from fedtaste.data.synthetic import synthetic
from fedtaste.engine.run import begin, run
from fedtaste.errors import SettingError
from fedtaste.evaluation.scoring import personal_scores
from fedtaste.experiment.folder import RunFolder
from fedtaste.experiment.plan import plan
from fedtaste.experiment.settings import Settings
from fedtaste.experiment.train import execute, make_task, prepare
from fedtaste.federation import of_histories
from fedtaste.methods import build, fedveil
from fedtaste.methods.fedveil import CLIP, advice, choose_route, constants, predictor
from fedtaste.methods.shrinkage import shrunk
from fedtaste.methods.subspaces import fold, unfold
from fedtaste.models import factorization
from fedtaste.serving.export import export
from fedtaste.serving.recommend import recommend
from fedtaste.tasks.base import Sampling, Served
from fedtaste.tasks.ranking import ranking_task
from fedtaste.wire.accounting import Mechanism, epsilons
from fedtaste.wire.stages import clip

ROUTES = ("head", "iterate", "features")
PEOPLE, ITEMS = 60, 130  # more items than the smallest head has
FEATURES = np.random.default_rng(8).random((ITEMS, 7)).round() + np.eye(ITEMS)[:, :7]
FEATURES[:, 0] = np.arange(ITEMS) % 2  # the feature that separates the two tastes
TABLE = torch.from_numpy(FEATURES).float()


def settings_of(route: str) -> dict:
    """Settings of a route, with the features where it needs them."""
    return {"route": route} | ({"features": TABLE} if route == "features" else {})


def two_taste_histories(people: int = PEOPLE, items: int = ITEMS, seed: int = 0) -> Histories:
    """Two kinds of people, who choose items of their own half nine times in ten, and the first items more often."""
    rng = np.random.default_rng(seed)
    rows = []
    for person in range(people):
        probabilities = np.where(np.arange(items) % 2 == person % 2, 0.9, 0.1) / (5 + np.arange(items))
        rows.append(rng.choice(items, rng.integers(8, 25), replace=False, p=probabilities / probabilities.sum()))
    starts = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    items_of_all = np.concatenate(rows).astype(np.int32)
    return Histories(starts, items_of_all, np.ones(len(items_of_all), np.float32))


def dense(histories: Histories, items: int = ITEMS) -> np.ndarray:
    x = np.zeros((histories.people, items))
    x[histories.owners, histories.items] = 1
    return x


def add_noise(method, draws: list[np.ndarray], z: float) -> Stage:
    """A stage that adds C z / sqrt(share) times the given draws to the sum of every round."""

    def server(upload: Upload, context: StageContext) -> Upload:
        bound, share = method.privacy.bounds[context.round]
        extra = torch.from_numpy(draws[context.round]).float() * (bound * z / math.sqrt(share))
        return Upload({name: value + extra for name, value in upload.total.items()}, upload.weight)

    return Stage(server=server)


def draws_of(method) -> list[np.ndarray]:
    """Standard normal numbers, in the shapes of the uploads."""
    rng, state, noise = np.random.default_rng(3), method.init({})[0], []
    for number in range(len(method.privacy.bounds)):
        upload = method.client(Download(state, torch.tensor(float(number))), {}, person([0]))[0]
        noise.append(rng.standard_normal(next(iter(upload.total.values())).shape))
    return noise


def genre_task():
    """A ranking task on synthetic data whose genres are the tastes."""
    data = synthetic(500, 200, 20_000)
    return ranking_task(data, protocol_name="clean", split_name="leave-one-out", new_people=0.1, seed=0)


def unit(x: np.ndarray) -> np.ndarray:
    size = np.linalg.norm(x, axis=-1, keepdims=True)
    return x / np.where(size > 0, size, 1)


def shrink_vector(y: np.ndarray, features: np.ndarray, s: float) -> np.ndarray:
    """Shrink a vector of items towards its ridge fit, by least squares with additional rows for the penalty."""
    f = np.column_stack([features, np.ones(len(y))])
    augmented = np.vstack([f, math.sqrt(3) * np.eye(f.shape[1])])
    fit = f @ np.linalg.lstsq(augmented, np.concatenate([y, np.zeros(f.shape[1])]), rcond=None)[0]
    tau = max(np.mean((y - fit) ** 2) - s**2, 0)
    return fit + tau / (tau + s**2) * (y - fit)


class Reference:
    """The mechanism of the specification, implemented again on a dense matrix and in double precision. A basis V
    consists of eigenvectors here. Its rotation does not matter, so the noise of tables comes in that of the method."""

    def __init__(
        self, x: np.ndarray, z: float, shares: list[float], alpha: float, noise: list[np.ndarray],
        features: np.ndarray | None = None,
    ) -> None:  # fmt: skip
        self.n, self.m = x.shape
        self.x, self.z, self.shares, self.noise, self.features = x, z, shares, noise, features
        s = z / math.sqrt(shares[0])
        total = unit(x).sum(0) + s * noise[0]
        total = total if features is None else shrink_vector(total, features, s)
        self.p = s * np.logaddexp(0, total / s) if z else unit(x).sum(0)
        self.d = np.maximum(self.p, max(s, 1)) ** -alpha
        self.q = unit(self.p * self.d)
        self.t = self.residual(x * self.d, self.q)

    @staticmethod
    def residual(x: np.ndarray, q: np.ndarray) -> np.ndarray:
        x = unit(x)
        return unit(x - np.outer(x @ q, q))

    def off_q(self, table: np.ndarray) -> np.ndarray:
        return table - np.outer(self.q, self.q @ table)

    def from_gram(self, h: int, k: int) -> np.ndarray:
        head = np.argsort(-self.p, kind="stable")[:h]
        head.sort()
        r = self.residual((self.x * self.d)[:, head], unit(self.q[head]))
        s = self.z / math.sqrt(self.shares[1])
        gram, error = r.T @ r, np.zeros((h, h))
        error[np.triu_indices(h)] = self.noise[1]
        diagonal = np.diag(np.diag(error))
        gram += s * (diagonal + (error - diagonal) / math.sqrt(2) + (error - diagonal).T / math.sqrt(2))
        values, vectors = np.linalg.eigh(gram)
        number = int(np.clip((values > s * math.sqrt(2 * h)).sum(), 2, k))
        v = np.zeros((self.m, number))
        v[head] = vectors[:, -number:]
        return np.linalg.qr(self.off_q(v))[0]

    def table_of(self, v: np.ndarray, theirs: np.ndarray, number: int) -> np.ndarray:
        """Y, for a basis V whose space is that of `theirs`."""
        u = self.t @ v
        u *= np.minimum(1, CLIP / np.maximum(np.linalg.norm(u, axis=1), 1e-12))[:, None]
        self.s = CLIP * self.z / math.sqrt(self.shares[number])
        y = self.t.T @ u + self.s * self.noise[number] @ theirs.T @ v
        if self.features is not None:
            axes = np.linalg.eigh(v.T @ y + y.T @ v)[1]
            y = np.stack([shrink_vector(y @ axis, self.features, self.s) for axis in axes.T], 1) @ axes.T
        return self.off_q(y)

    def from_features(self) -> np.ndarray:
        return np.linalg.qr(self.off_q(self.features))[0]

    def operator(self, v: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Q diag(gain) Q'."""
        values, rotation = np.linalg.eigh((v.T @ y + y.T @ v) / 2)
        large = values > (2 * self.s if self.features is None else 1e-3 * values[-1])
        y = y @ rotation[:, large]
        t, q = np.linalg.eigh((y / values[large]) @ y.T)
        t = np.maximum(t, 0)
        return (q * (t / (t + (8 if self.features is None else 2) * self.n / self.m))) @ q.T

    def scores(self, operator: np.ndarray, ever: np.ndarray, now: np.ndarray, strength: float) -> np.ndarray:
        y, late = unit(ever * self.d), unit(now * self.d)
        return (np.outer(y @ self.q, self.q) + strength * late @ operator) / self.d


def close(values, expected, within: float = 1e-4) -> None:
    assert np.abs(np.asarray(values, float) - expected).max() <= within * max(1, np.abs(expected).max())


@pytest.mark.parametrize("backend", ["kernel", "vmap"])
@pytest.mark.parametrize("z", [0.05, 0.3])
@pytest.mark.parametrize("route", ROUTES)
def test_fedveil_equals_an_independent_dense_implementation(route, z, backend):
    data, model = two_taste_histories(), factorization(ITEMS, k=4)
    options = {"noise": z, "people": PEOPLE, "turns": 2, "strength": 1.5, "recency": 0.8, "floor": 0.2}
    method, fixed = fedveil(model, **options, **settings_of(route)), constants(z, ITEMS, PEOPLE, route == "features")
    noise, public = draws_of(method), FEATURES if route == "features" else None
    reference = Reference(dense(data), z, [share for _, share in method.privacy.bounds], fixed.alpha, noise, public)
    federation = of_histories(data, ITEMS)
    number = min(len(method.privacy.bounds), 3)
    rounds = run(method, model, federation, rounds=number, wire=add_noise(method, noise, z), backend=backend)
    states = [round_result.state.shared for round_result in rounds]
    close(states[0]["popular"], reference.p)
    if route == "head":
        v = reference.from_gram(fixed.head, fixed.width)
        assert fixed.head == (100 if z == 0.3 else ITEMS)
    elif route == "features":
        v = reference.from_features()
        assert method.init({})[0]["table"].shape == (ITEMS, 32) and len(method.privacy.bounds) == 2
    else:
        v = states[0]["table"].double().numpy()  # public and random: any basis orthogonal to q is right
        close(v.T @ v, np.eye(fixed.width))
        close(v.T @ reference.q, np.zeros(fixed.width))
    for turn in {"head": (2,), "iterate": (1, 2), "features": (1,)}[route]:
        before = states[turn - 1]["table"].double().numpy()
        close(before @ before.T, v @ v.T)
        y = reference.table_of(v, before, turn)
        operator, v = reference.operator(v, y), np.linalg.qr(y)[0]
        table, gain = (states[turn][name].double().numpy() for name in ("table", "gain"))
        close(table @ gain @ table.T, operator)
    ages = [np.arange(n)[::-1] for n in data.lengths]
    now = np.zeros((PEOPLE, ITEMS))
    now[data.owners, data.items] = 0.2 + 0.8 * 0.8 ** np.concatenate(ages)
    expected = reference.scores(operator, dense(data), now, 1.5)
    everyone, examples = np.arange(PEOPLE), federation.examples(np.arange(PEOPLE), 0, "history")
    state = begin(method, model, federation)
    for part, scores in personal_scores(
        method, model, states[-1], state.private, everyone, examples, torch.arange(ITEMS)
    ):
        close(scores, expected[part])


def person(items: list[int]) -> Examples:
    ones = torch.ones(1, max(len(items), 1))
    return Examples(torch.tensor([items or [0]]), ones, ones if items else 0 * ones)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, ITEMS - 1), max_size=40),  # some twice, or none at all
    st.integers(0, 1 << 30),
    st.floats(0, 50),
    st.sampled_from(ROUTES),
)
def test_no_upload_exceeds_its_bound_for_any_download(items, seed, scale, route):
    method = fedveil(factorization(ITEMS, k=2), noise=0.5, people=PEOPLE, **settings_of(route))
    generator = torch.Generator().manual_seed(seed)
    params = {n: scale * torch.randn(v.shape, generator=generator) for n, v in method.init({})[0].items()}
    for number, (bound, _) in enumerate(method.privacy.bounds):
        upload, _ = method.client(Download(params, torch.tensor(float(number))), {}, person(items))
        assert math.sqrt(sum(float((v.double() ** 2).sum()) for v in upload.total.values())) <= bound
        assert float(upload.weight) == 1


@pytest.mark.parametrize("route", ROUTES)
def test_the_kernel_equals_the_sum_of_the_clients(route):
    data, model = two_taste_histories(), factorization(ITEMS, k=4)
    method = fedveil(model, noise=0.2, people=PEOPLE, **settings_of(route))
    federation = of_histories(data, ITEMS)
    state = begin(method, model, federation)
    everyone, examples = np.arange(PEOPLE), federation.examples(np.arange(PEOPLE), 0, "history")
    for number in range(len(method.privacy.bounds) + 1):
        down = Download(state.shared, torch.tensor(float(number)))
        kernel_sum, refused = method.fast.kernel(down, Cohort(everyone, examples, state.private))
        parts = [method.client(down, {}, Examples(*(x[0] for x in examples.pad(np.array([p])))))[0] for p in everyone]
        client_sum = parts[0]
        for part in parts[1:]:
            client_sum = client_sum + part
        assert kernel_sum.total.keys() == client_sum.total.keys() and float(kernel_sum.weight) == PEOPLE and not refused
        first = Cohort(everyone[:1], federation.examples(everyone[:1], 0, "history"), state.private)
        single, _ = method.fast.kernel(down, first)
        for name in kernel_sum.total:
            assert kernel_sum.total[name].dtype == torch.float64 and single.total[name].dtype == torch.float32
            close(single.total[name], parts[0].total[name].numpy(), 1e-6)
            close(kernel_sum.total[name], client_sum.total[name].numpy(), 2e-6)
        shared, memory = method.server(state.shared, state.memory, kernel_sum)
        assert number < len(method.privacy.bounds) or all(torch.equal(shared[n], state.shared[n]) for n in shared)
        state.shared, state.memory = shared, memory
    assert not kernel_sum.total  # uploads after the last release are empty


@pytest.mark.parametrize("route", ROUTES)
def test_the_shares_of_all_rounds_add_up_to_the_budget(route):
    z = float(dp_accounting.get_sigma_gaussian(3.0, 1e-3))
    release = fedveil(factorization(ITEMS, k=2), noise=z, people=900, **settings_of(route)).privacy.bounds
    shares = tuple(share for _, share in release)
    assert math.isclose(sum(shares), 1) and min(shares) > 0
    assert epsilons(Mechanism(z, 1.0, shares), len(shares), 1e-3).epsilon == pytest.approx(3.0, abs=2e-3)


def test_route_iterate_gives_later_tables_larger_shares_of_the_budget():
    release = fedveil(factorization(ITEMS, k=2), route="iterate", turns=3).privacy.bounds
    assert [b for b, _ in release] == [1, CLIP, CLIP, CLIP]
    assert np.allclose([release[2][1] / release[1][1], release[3][1] / release[2][1]], 1.3)


def test_folding_a_symmetric_matrix_keeps_its_norm():
    x = torch.randn(7, 7, dtype=torch.float64)
    square = x + x.T
    assert torch.allclose(fold(square).norm(), square.norm())
    assert torch.allclose(unfold(fold(square), 7), square)


def test_a_person_without_a_head_item_sends_zeros_and_is_served():
    method = fedveil(factorization(ITEMS, k=2), noise=0.5, people=PEOPLE)
    shared = method.init({})[0]
    shared["popular"] = torch.arange(ITEMS, 0, -1).float()  # the head is items 0 to 99
    upload, _ = method.client(Download(shared, torch.tensor(1.0)), {}, person([120, 110, 129]))
    assert not upload.total["gram"].any()
    upload, _ = method.client(Download(shared, torch.tensor(1.0)), {}, person([3, 120]))
    assert float(upload.total["gram"].norm()) == pytest.approx(1, rel=1e-5)
    params = method.personalize(shared, {}, person([120, 110, 129]))
    assert torch.isfinite(params["item"]).all() and torch.isfinite(params["user"]).all()


@pytest.mark.parametrize("route", ROUTES)
def test_one_person_and_items_of_nobody_give_finite_numbers(route):
    data, model = two_taste_histories(1, 40), factorization(40, k=2)
    method = fedveil(model, route=route, features=TABLE[:40] if route == "features" else None)
    last = list(run(method, model, of_histories(data, 40), rounds=len(method.privacy.bounds)))[-1]
    assert all(torch.isfinite(value).all() for value in last.state.shared.values())
    params = method.personalize(last.state.shared, {}, person([5, 7]))
    assert torch.isfinite(model.score(params, torch.arange(40))).all()


def test_with_recency_one_the_order_does_not_matter():
    data, model = two_taste_histories(), factorization(ITEMS, k=4)
    state = list(run(fedveil(model), model, of_histories(data, ITEMS), rounds=3))[-1].state
    forwards, backwards = person(data.of(0).tolist()), person(data.of(0).tolist()[::-1])

    def scores(examples: Examples, **options) -> torch.Tensor:
        return model.score(fedveil(model, **options).personalize(state.shared, {}, examples), torch.arange(ITEMS))

    assert torch.allclose(scores(forwards, recency=1.0), scores(backwards, recency=1.0), atol=1e-6)
    assert torch.allclose(scores(forwards, recency=1.0), scores(forwards, floor=1.0), atol=1e-6)
    assert not torch.allclose(scores(forwards), scores(backwards), atol=1e-3)


@pytest.mark.parametrize("route", ROUTES)
def test_fedveil_beats_popularity_on_data_with_two_tastes(route):
    task = genre_task()
    model = factorization(200, k=8)
    hits = {}
    for name, options in (("popularity", {}), ("fedveil", {"route": route, "features": task.facts.features})):
        method = build(name, model, options)
        federation = task.federation("final", method, Sampling(), None)
        state = list(run(method, model, federation, rounds=len(method.privacy.bounds) or 1))[-1].state
        for group, people, passes in (("seen", task.seen, None), ("new", task.newcomers, 1)):
            metrics = task.evaluate(Served(method, model, state), people, passes)
            hits[name, group] = metrics.values["sampled"]["hr@10"]
    assert hits["fedveil", "seen"] > hits["popularity", "seen"] + 0.06
    assert hits["fedveil", "new"] > hits["popularity", "new"]


def test_predictor_advice_and_constants_equal_values_computed_by_hand():
    assert predictor(2.5, 1600, 1000) == pytest.approx(0.1) and predictor(1.0, 2500, 50_000) == pytest.approx(0.001)
    assert (
        "30 items" in advice(0.019)
        and "compare with --method popularity --wire clip=1" in advice(0.05)
        and "popularity" in advice(0.11)
    )
    assert constants(0.0, 3706, 0) == (0.1, 500, 32, 0.25)
    assert constants(2.528, 1682, 849) == pytest.approx((4 * 2.528 * math.sqrt(1682) / 849, 100, 16, 0.0))
    assert constants(2.5, 5000, 100_000) == (0.1, 500, 32, 0.25)
    assert constants(1.0, 3706, 1000).head == int(0.17 * 50**2)
    assert constants(5.0, 20, 30) == (0.5, 20, 16, 0.0)  # as many as there are


@pytest.mark.parametrize(
    "options, error_text",
    [
        ({"noise": 1.0}, "people"),
        ({"noise": -1.0, "people": 9}, "noise must be at least 0, got -1"),
        ({"turns": 0}, "turns must be"),
    ],
)
def test_invalid_settings_are_refused(options, error_text):
    with pytest.raises(SettingError, match=error_text):
        fedveil(factorization(9, k=2), **options)


def test_ratings_are_refused():
    with pytest.raises(SettingError, match="fedals"):
        fedveil(factorization(9, k=2, biases=True))


def test_private_popularity_uploads_only_the_clipped_history():
    method = build("popularity", factorization(ITEMS, k=2), {})
    shared, private = method.init({"item": torch.zeros(ITEMS, 2)})
    upload, _ = method.client(Download(shared, torch.tensor(0.0)), private, person([1, 4, 6]))
    clipped = clip(1.0).client(upload, StageContext(bytes(32), 0, 1.0)).total
    assert list(clipped) == ["count"] and clipped["count"].nonzero()[:, 0].tolist() == [1, 4, 6]
    assert clipped["count"][[1, 4, 6]].tolist() == pytest.approx([1 / math.sqrt(3)] * 3)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1 << 30), st.floats(1e-9, 1e-2), st.integers(1, 60))
def test_the_kernel_bounds_a_person_with_nearly_the_common_taste(seed, share, number):
    """The residual of such a person is as small as rounding errors, which must not increase its norm."""
    rng = np.random.default_rng(seed)
    items = rng.choice(ITEMS, number, replace=False).tolist()
    popular = torch.full((ITEMS,), share)
    popular[items] = 1.0
    method = fedveil(factorization(ITEMS, k=2), noise=0.5, people=PEOPLE)
    params = {n: torch.randn(v.shape) for n, v in method.init({})[0].items()} | {"popular": popular}
    data = Histories(np.array([0, number]), np.array(items, np.int32), np.ones(number, np.float32))
    federation = of_histories(data, ITEMS)
    for round, (bound, _) in enumerate(method.privacy.bounds):
        down = Download(params, torch.tensor(float(round)))
        person = np.arange(1)
        upload, _ = method.fast.kernel(down, Cohort(person, federation.examples(person, 0, "history"), None))
        assert math.sqrt(sum(float((v.double() ** 2).sum()) for v in upload.total.values())) <= bound


def test_shrinkage_equals_a_computation_by_hand():
    """Without features the fit is the sum over items / (items + 3), and a part of the residual is added."""
    y = torch.tensor([[1.0, 4.0], [3.0, 4.0], [5.0, 4.0]], dtype=torch.float64)
    fit = np.array([9 / 6, 12 / 6])
    rest = y.numpy() - fit  # [-.5, 1.5, 3.5], [2, 2, 2]
    tau = np.array([14.75 / 3 - 2.0, 4.0 - 2.0])  # s^2 is 2
    expected = fit + rest * tau / (tau + 2)
    result = shrunk(y, torch.zeros(3, 0), math.sqrt(2))
    assert np.allclose(result, expected)
    assert np.allclose(shrunk(y[:, 1], torch.zeros(3, 0), math.sqrt(2)), expected[:, 1])
    assert np.allclose(
        shrunk(y, torch.zeros(3, 0), 100.0), np.tile(fit, (3, 1))
    )  # all variance is noise: the result is the fit
    assert torch.equal(shrunk(y, torch.zeros(3, 0), 0.0), y)


@pytest.mark.parametrize("seed", range(3))
def test_shrinkage_equals_an_independent_implementation_and_lowers_the_error(seed):
    rng = np.random.default_rng(seed)
    truth = FEATURES @ rng.standard_normal((7, 3)) + 0.3 * rng.standard_normal((ITEMS, 3))
    noisy = truth + rng.standard_normal(truth.shape)
    result = shrunk(torch.from_numpy(noisy), TABLE, 1.0).numpy()
    assert np.allclose(result, np.stack([shrink_vector(column, FEATURES, 1.0) for column in noisy.T], 1))
    assert ((result - truth) ** 2).mean() < 0.3 * ((noisy - truth) ** 2).mean()


def test_route_auto_depends_on_noise_and_counts_but_not_on_the_feature_table():
    assert choose_route("auto", 0.54, 1682, 849, 26) == "features"
    assert choose_route("auto", 0.54, 1682, 849, 5) == choose_route("auto", 0.0, 1682, 849, 26) == "head"
    assert choose_route("auto", 0.05, 1682, 849, 26) == "head"  # r is .0024
    assert choose_route("iterate", 0.54, 1682, 849, 26) == "iterate"
    model = factorization(ITEMS, k=2)
    with_table = fedveil(model, noise=0.5, people=PEOPLE, features=TABLE)
    counted = fedveil(model, noise=0.5, people=PEOPLE, feature_count=7)
    assert with_table.resolved == counted.resolved == {"route": "features"}
    assert with_table.privacy.bounds == counted.privacy.bounds and len(counted.privacy.bounds) == 2
    shapes = [{n: v.shape for n, v in method.init({})[0].items()} for method in (with_table, counted)]
    assert shapes[0] == shapes[1]


def test_a_server_without_the_features_is_refused():
    data, model = two_taste_histories(), factorization(ITEMS, k=2)
    method = fedveil(model, noise=0.5, people=PEOPLE, route="features", feature_count=7)
    with pytest.raises(SettingError, match="route=head"):
        list(run(method, model, of_histories(data, ITEMS), rounds=1))
    with pytest.raises(SettingError, match="130 x 7"):
        fedveil(model, features=TABLE[:9])


def test_without_features_the_route_is_head():
    data, model = two_taste_histories(), factorization(ITEMS, k=2)
    federation, states = of_histories(data, ITEMS), []
    for options in ({}, {"route": "head"}):
        method = fedveil(model, noise=0.3, people=PEOPLE, **options)
        wire = add_noise(method, draws_of(method), 0.3)
        states.append(list(run(method, model, federation, rounds=3, wire=wire))[-1].state.shared)
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


@pytest.mark.parametrize("z", [1.0, 2.0])
def test_features_improve_accuracy_under_much_noise(z):
    """Mean over three noise draws on data whose genres are the tastes."""
    task = genre_task()
    model, hits = factorization(200, k=8), {}
    assert task.facts.feature_count == task.facts.features.shape[1] >= 6
    for name, options in (("head", {"route": "head"}), ("features", {"features": task.facts.features})):
        method, rates = fedveil(model, noise=z, people=task.facts.people, **options), []
        for seed in range(3):
            rng = np.random.default_rng(seed)
            draws = [rng.standard_normal(draw.shape) for draw in draws_of(method)]
            federation = task.federation("final", method, Sampling(), None)
            state = list(
                run(method, model, federation, rounds=len(method.privacy.bounds), wire=add_noise(method, draws, z))
            )[-1].state
            rates.append(task.evaluate(Served(method, model, state), task.seen, None).values["sampled"]["hr@10"])
        hits[name] = np.mean(rates)
    assert hits["features"] > hits["head"] + 0.02


def test_private_popularity_is_shrunk_towards_its_fit():
    model = factorization(ITEMS, k=2)
    noisy = torch.from_numpy(np.random.default_rng(0).normal(5, 3, ITEMS)).float()
    shared = {"item": torch.zeros(ITEMS, 2), "count": torch.zeros(ITEMS)}
    for options, expected in (
        ({"noise": 1.5, "clip": 2.0, "features": TABLE}, shrink_vector(noisy.double().numpy(), FEATURES, 3.0)),
        ({"noise": 1.5, "clip": 2.0}, noisy.numpy()),
        ({"features": TABLE}, noisy.numpy()),
    ):
        method = build("popularity", model, options)
        after, _ = method.server(shared, {}, Upload({"count": noisy}, torch.tensor(60.0)))
        close(after["count"], expected, 1e-6)
        close(after["item"][:, 0], (expected + 5) / (expected.max() + 5), 1e-6)


def private_settings(method: str, **options) -> Settings:
    return Settings(data="synthetic:60x40x900", method=method, epsilon=1.0, **options)


def test_a_plan_without_the_feature_table_equals_the_plan_with_it():
    """Devices, `recommend` and `export` know the number of features and have no table."""
    task = make_task(private_settings("fedveil"), synthetic(60, 40, 900))
    with_table, without_table = (
        plan(private_settings("fedveil"), facts) for facts in (task.facts, replace(task.facts, features=None))
    )
    assert with_table.settings == without_table.settings and with_table.settings["route"] == "features"
    assert with_table.rounds == without_table.rounds == 2
    assert with_table.method.privacy.bounds == without_table.method.privacy.bounds
    no_features = plan(private_settings("fedveil"), replace(task.facts, features=None, feature_count=0))
    assert no_features.settings["route"] == "head" and no_features.rounds == 3
    assert plan(Settings(data="synthetic:60x40x900", method="fedveil"), task.facts).settings["route"] == "head"
    assert "features" in with_table.predictor["advice"] and "features" not in no_features.predictor["advice"]


def test_popularity_gets_noise_and_clip_from_the_wire():
    settings, data = private_settings("popularity", wire="clip=0.5"), synthetic(60, 40, 900)
    task = make_task(settings, data)
    private_plan = plan(settings, task.facts)
    noisy = torch.from_numpy(np.random.default_rng(0).normal(5, 3, 40)).float()
    shared = private_plan.method.init(private_plan.model.init(torch.Generator()))[0]
    after, _ = private_plan.method.server(shared, {}, Upload({"count": noisy}, torch.tensor(54.0)))
    deviation = 0.5 * private_plan.wire.mechanism.noise
    close(after["count"], shrink_vector(noisy.double().numpy(), task.facts.features.double().numpy(), deviation), 1e-5)


def test_a_run_with_features_recommends_and_cannot_be_exported(tmp_path):
    settings, data = private_settings("fedveil"), synthetic(60, 40, 900)
    folder = RunFolder.create(tmp_path / "run", settings.model_dump(), data, __version__)
    result = execute(prepare(settings, data), folder)
    assert result.settings["route"] == "features" and result.rounds == 2 and result.feature_count >= 6
    assert folder.read("plan.json")["route"] == "features"
    liked = recommend(folder.path, likes=[data.titles[3]], n=5)
    member = recommend(folder.path, likes=[], person=data.people[2], n=5)
    assert len(liked.items) == len(member.items) == 5
    with pytest.raises(SettingError, match=r"fedveil cannot be exported.*fedtaste recommend"):
        export(folder.path, tmp_path / "bundle")
