"""FedVeil: bounds that hold, a second derivation of all it computes, and what it promises before a run."""

from __future__ import annotations

import math

import dp_accounting
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.core import Download, Examples, Seat, Stage, Upload
from tacit.data.interactions import Histories
from tacit.data.synthetic import synthetic
from tacit.engine.run import begin, run
from tacit.errors import SettingError
from tacit.evaluation.scoring import personal_scores
from tacit.federation import of_histories
from tacit.methods import build, fedveil
from tacit.methods.fedveil import CLIP, _fold, _unfold, advice, constants, predictor
from tacit.models import factorization
from tacit.tasks import Sampling, ranking
from tacit.wire.accounting import Mechanism, epsilons
from tacit.wire.stages import clip

ROUTES = ("head", "iterate")
PEOPLE, ITEMS = 60, 130  # more items than the smallest head has


def planted(people: int = PEOPLE, items: int = ITEMS, seed: int = 0) -> Histories:
    """Two kinds of people, who take items of their own half nine times in ten, the first items more often."""
    rng = np.random.default_rng(seed)
    rows = []
    for person in range(people):
        liking = np.where(np.arange(items) % 2 == person % 2, 0.9, 0.1) / (5 + np.arange(items))
        rows.append(rng.choice(items, rng.integers(8, 25), replace=False, p=liking / liking.sum()))
    starts = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    taken = np.concatenate(rows).astype(np.int32)
    return Histories(starts, taken, np.ones(len(taken), np.float32))


def dense(histories: Histories, items: int = ITEMS) -> np.ndarray:
    x = np.zeros((histories.people, items))
    x[histories.owners, histories.items] = 1
    return x


def given_noise(method, draws: list[np.ndarray], z: float) -> Stage:
    """The sum of round t plus C z / sqrt(share) times what is given."""

    def server(upload: Upload, seat: Seat) -> Upload:
        bound, share = method.release[seat.round]
        extra = torch.from_numpy(draws[seat.round]).float() * (bound * z / math.sqrt(share))
        return Upload({name: value + extra for name, value in upload.total.items()}, upload.weight)

    return Stage(server=server)


def draws_of(method) -> list[np.ndarray]:
    """Standard normal numbers, in the shapes of the uploads."""
    rng, state, found = np.random.default_rng(3), method.init({})[0], []
    for number in range(len(method.release)):
        upload = method.client(Download(state, torch.tensor(float(number))), {}, person([0]))[0]
        found.append(rng.standard_normal(next(iter(upload.total.values())).shape))
    return found


def unit(x: np.ndarray) -> np.ndarray:
    size = np.linalg.norm(x, axis=-1, keepdims=True)
    return x / np.where(size > 0, size, 1)


class Reference:
    """The mechanism again, on a dense matrix and in double precision, as the specification has it. A basis V is here
    made of eigenvectors; what it is turned by does not matter, so the tables' noise comes in the method's rotation."""

    def __init__(self, x: np.ndarray, z: float, shares: list[float], alpha: float, noise: list[np.ndarray]) -> None:
        self.n, self.m = x.shape
        self.x, self.z, self.shares, self.noise = x, z, shares, noise
        s = z / math.sqrt(shares[0])
        self.p = s * np.logaddexp(0, (unit(x).sum(0) + s * noise[0]) / s) if z else unit(x).sum(0)
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

    def tabled(self, v: np.ndarray, theirs: np.ndarray, turn: int) -> np.ndarray:
        """Y, for a basis V whose space is that of `theirs`."""
        u = self.t @ v
        u *= np.minimum(1, CLIP / np.maximum(np.linalg.norm(u, axis=1), 1e-12))[:, None]
        self.s = CLIP * self.z / math.sqrt(self.shares[turn])
        return self.off_q(self.t.T @ u + self.s * self.noise[turn] @ theirs.T @ v)

    def operator(self, v: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Q diag(gain) Q'."""
        values, turn = np.linalg.eigh((v.T @ y + y.T @ v) / 2)
        kept = values > 2 * self.s
        y = y @ turn[:, kept]
        t, q = np.linalg.eigh((y / values[kept]) @ y.T)
        t = np.maximum(t, 0)
        return (q * (t / (t + 8 * self.n / self.m))) @ q.T

    def scores(self, operator: np.ndarray, ever: np.ndarray, now: np.ndarray, strength: float) -> np.ndarray:
        y, late = unit(ever * self.d), unit(now * self.d)
        return (np.outer(y @ self.q, self.q) + strength * late @ operator) / self.d


def close(got, expected, within: float = 1e-4) -> None:
    assert np.abs(np.asarray(got, float) - expected).max() <= within * max(1, np.abs(expected).max())


@pytest.mark.parametrize("backend", ["kernel", "vmap"])
@pytest.mark.parametrize("z", [0.05, 0.3])
@pytest.mark.parametrize("route", ROUTES)
def test_all_of_it_equals_a_second_derivation(route, z, backend):
    data, model = planted(), factorization(ITEMS, k=4)
    words = {"noise": z, "people": PEOPLE, "route": route, "turns": 2, "strength": 1.5, "recency": 0.8, "floor": 0.2}
    method, fixed = fedveil(model, **words), constants(z, ITEMS, PEOPLE)
    noise = draws_of(method)
    reference = Reference(dense(data), z, [share for _, share in method.release], fixed.alpha, noise)
    federation = of_histories(data, ITEMS, examples="history")
    rounds = run(method, model, federation, rounds=3, wire=given_noise(method, noise, z), backend=backend)
    states = [done.state.shared for done in rounds]
    close(states[0]["popular"], reference.p)
    if route == "head":
        v = reference.from_gram(fixed.head, fixed.width)
        assert fixed.head == (100 if z == 0.3 else ITEMS)
    else:
        v = states[0]["table"].double().numpy()  # public and random: any is right, if it is a basis without q
        close(v.T @ v, np.eye(fixed.width))
        close(v.T @ reference.q, np.zeros(fixed.width))
    for turn in range(2 if route == "head" else 1, 3):
        before = states[turn - 1]["table"].double().numpy()
        close(before @ before.T, v @ v.T)
        y = reference.tabled(v, before, turn)
        operator, v = reference.operator(v, y), np.linalg.qr(y)[0]
        table, gain = (states[turn][name].double().numpy() for name in ("table", "gain"))
        close(table @ gain @ table.T, operator)
    ages = [np.arange(n)[::-1] for n in data.lengths]
    now = np.zeros((PEOPLE, ITEMS))
    now[data.owners, data.items] = 0.2 + 0.8 * 0.8 ** np.concatenate(ages)
    expected = reference.scores(operator, dense(data), now, 1.5)
    everyone, held = np.arange(PEOPLE), federation.examples(np.arange(PEOPLE), 0)
    state = begin(method, model, federation)
    for part, got in personal_scores(method, model, states[-1], state.private, everyone, held, torch.arange(ITEMS)):
        close(got, expected[part])


def person(items: list[int]) -> Examples:
    one = torch.ones(1, max(len(items), 1))
    return Examples(torch.tensor([items or [0]]), one, one if items else 0 * one)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, ITEMS - 1), max_size=40),  # some twice, or none at all
    st.integers(0, 1 << 30),
    st.floats(0, 50),
    st.sampled_from(ROUTES),
)
def test_no_upload_is_longer_than_its_bound(items, seed, scale, route):
    """Whatever the device is sent."""
    method = fedveil(factorization(ITEMS, k=2), noise=0.5, people=PEOPLE, route=route)
    generator = torch.Generator().manual_seed(seed)
    params = {n: scale * torch.randn(v.shape, generator=generator) for n, v in method.init({})[0].items()}
    for number, (bound, _) in enumerate(method.release):
        upload, _ = method.client(Download(params, torch.tensor(float(number))), {}, person(items))
        assert math.sqrt(sum(float((v.double() ** 2).sum()) for v in upload.total.values())) <= bound * (1 + 1e-6)
        assert float(upload.weight) == 1


@pytest.mark.parametrize("route", ROUTES)
def test_the_kernel_is_the_sum_of_the_clients(route):
    data, model = planted(), factorization(ITEMS, k=4)
    method = fedveil(model, noise=0.2, people=PEOPLE, route=route)
    federation = of_histories(data, ITEMS, examples="history")
    state = begin(method, model, federation)
    everyone, held = np.arange(PEOPLE), federation.examples(np.arange(PEOPLE), 0)
    for number in range(len(method.release) + 1):
        down = Download(state.shared, torch.tensor(float(number)))
        whole, refused = method.kernel(down, state.private, everyone, held)
        parts = [method.client(down, {}, Examples(*(x[0] for x in held.pad(np.array([p])))))[0] for p in everyone]
        alone = parts[0]
        for part in parts[1:]:
            alone = alone + part
        assert whole.total.keys() == alone.total.keys() and float(whole.weight) == PEOPLE and not refused
        for name in whole.total:
            close(whole.total[name], alone.total[name].numpy(), 2e-6)
        shared, memory = method.server(state.shared, state.memory, whole)
        assert number < len(method.release) or all(torch.equal(shared[n], state.shared[n]) for n in shared)
        state.shared, state.memory = shared, memory
    assert not whole.total  # after the last release nothing is sent


@pytest.mark.parametrize("route", ROUTES)
def test_the_shares_add_up_to_the_whole_budget(route):
    z = float(dp_accounting.get_sigma_gaussian(3.0, 1e-3))
    release = fedveil(factorization(ITEMS, k=2), noise=z, people=900, route=route).release
    shares = tuple(share for _, share in release)
    assert math.isclose(sum(shares), 1) and min(shares) > 0
    assert epsilons(Mechanism(z, 1.0, shares), len(shares), 1e-3)["epsilon"] == pytest.approx(3.0, abs=2e-3)


def test_iterated_tables_get_growing_shares():
    release = fedveil(factorization(ITEMS, k=2), route="iterate", turns=3).release
    assert [b for b, _ in release] == [1, CLIP, CLIP, CLIP]
    assert np.allclose([release[2][1] / release[1][1], release[3][1] / release[2][1]], 1.3)


def test_a_folded_square_is_as_long_as_the_square():
    x = torch.randn(7, 7, dtype=torch.float64)
    square = x + x.T
    assert torch.allclose(_fold(square).norm(), square.norm())
    assert torch.allclose(_unfold(_fold(square), 7), square)


def test_a_person_without_a_head_item_sends_zeros_and_is_served():
    method = fedveil(factorization(ITEMS, k=2), noise=0.5, people=PEOPLE)
    shared = method.init({})[0]
    shared["popular"] = torch.arange(ITEMS, 0, -1).float()  # the head is items 0 to 99
    upload, _ = method.client(Download(shared, torch.tensor(1.0)), {}, person([120, 110, 129]))
    assert not upload.total["gram"].any()
    upload, _ = method.client(Download(shared, torch.tensor(1.0)), {}, person([3, 120]))
    assert float(upload.total["gram"].norm()) == pytest.approx(1, rel=1e-5)
    served = method.personalize(shared, {}, person([120, 110, 129]))
    assert torch.isfinite(served["item"]).all() and torch.isfinite(served["user"]).all()


@pytest.mark.parametrize("route", ROUTES)
def test_one_person_and_items_of_nobody_are_no_trouble(route):
    data, model = planted(1, 40), factorization(40, k=2)
    method = fedveil(model, route=route)
    last = list(run(method, model, of_histories(data, 40, examples="history"), rounds=len(method.release)))[-1]
    assert all(torch.isfinite(value).all() for value in last.state.shared.values())
    served = method.personalize(last.state.shared, {}, person([5, 7]))
    assert torch.isfinite(model.score(served, torch.arange(40))).all()


def test_recency_one_does_not_see_the_order():
    data, model = planted(), factorization(ITEMS, k=4)
    state = list(run(fedveil(model), model, of_histories(data, ITEMS, examples="history"), rounds=3))[-1].state
    there, back = person(data.of(0).tolist()), person(data.of(0).tolist()[::-1])

    def served(held: Examples, **words) -> torch.Tensor:
        return model.score(fedveil(model, **words).personalize(state.shared, {}, held), torch.arange(ITEMS))

    assert torch.allclose(served(there, recency=1.0), served(back, recency=1.0), atol=1e-6)
    assert torch.allclose(served(there, recency=1.0), served(there, floor=1.0), atol=1e-6)
    assert not torch.allclose(served(there), served(back), atol=1e-3)


@pytest.mark.parametrize("route", ROUTES)
def test_planted_taste_is_found_and_beats_popularity(route):
    task = ranking(
        synthetic(500, 200, 20_000), protocol_name="clean", split_name="leave-one-out", new_people=0.1, seed=0
    )
    model = factorization(200, k=8)
    hits = {}
    for name, words in (("popularity", {}), ("fedveil", {"route": route})):
        method = build(name, model, words)
        federation = task.federation("final", method, Sampling(), None)
        state = list(run(method, model, federation, rounds=len(method.release) or 1))[-1].state
        for whom, people, passes in (("seen", task.seen, None), ("new", task.newcomers, 1)):
            judged = task.judge(method, model, state, Sampling(), people, passes)
            hits[name, whom] = judged.values["sampled"]["hr@10"]
    assert hits["fedveil", "seen"] > hits["popularity", "seen"] + 0.06
    assert hits["fedveil", "new"] > hits["popularity", "new"]


def test_what_is_said_before_a_run():
    assert predictor(2.5, 1600, 1000) == pytest.approx(0.1) and predictor(1.0, 2500, 50_000) == pytest.approx(0.001)
    assert "30 items" in advice(0.019) and "Compare" in advice(0.05) and "popularity" in advice(0.11)
    assert constants(0.0, 3706, 0) == (0.1, 500, 32, 0.25)
    assert constants(2.528, 1682, 849) == pytest.approx((4 * 2.528 * math.sqrt(1682) / 849, 100, 16, 0.0))
    assert constants(2.5, 5000, 100_000) == (0.1, 500, 32, 0.25)
    assert constants(1.0, 3706, 1000).head == int(0.17 * 50**2)
    assert constants(5.0, 20, 30) == (0.5, 20, 16, 0.0)  # as many as there are


@pytest.mark.parametrize(
    "words, said", [({"noise": 1.0}, "people"), ({"noise": -1.0, "people": 9}, "noise=-1"), ({"turns": 0}, "turns=0")]
)
def test_what_cannot_be_is_refused(words, said):
    with pytest.raises(SettingError, match=said):
        fedveil(factorization(9, k=2), **words)


def test_ratings_are_refused():
    with pytest.raises(SettingError, match="fedals"):
        fedveil(factorization(9, k=2, biases=True))


def test_private_popularity_is_the_clipped_history_and_nothing_else():
    method = build("popularity", factorization(ITEMS, k=2), {})
    shared = method.init({"item": torch.zeros(ITEMS, 2)})[0]
    upload, _ = method.client(Download(shared, torch.tensor(0.0)), {}, person([1, 4, 6]))
    clipped = clip(1.0).client(upload, Seat(torch.tensor(0), 0, 1.0)).total
    assert list(clipped) == ["count"] and clipped["count"].nonzero()[:, 0].tolist() == [1, 4, 6]
    assert clipped["count"][[1, 4, 6]].tolist() == pytest.approx([1 / math.sqrt(3)] * 3)
