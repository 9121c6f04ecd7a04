"""FedTrail against answers known by hand, and against the formulas written once more in dense numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedtaste.core import Download, Examples
from fedtaste.data.interactions import Histories
from fedtaste.engine.backends import PADDED, chunks
from fedtaste.engine.run import begin, run
from fedtaste.errors import SettingError
from fedtaste.evaluation.scoring import personal_scores
from fedtaste.experiment.plan import plan
from fedtaste.experiment.settings import Settings
from fedtaste.federation import of_histories
from fedtaste.methods import build
from fedtaste.models import factorization, linear
from fedtaste.tasks.base import Facts
from support.states import assert_close, everything
from support.worlds import ITEMS, PEOPLE, K, histories, model_of, world

RANKING = Facts("ranking", ITEMS, timed=True)


def scores_of(method, model, state, data):
    """Everybody's scores of the whole catalogue."""
    people = np.arange(data.people)
    examples = of_histories(data, model.catalogue).examples(people, 0, "history")
    out = np.zeros((data.people, model.catalogue))
    for part, scores in personal_scores(
        method, model, state.shared, state.private, people, examples, torch.arange(model.catalogue)
    ):
        out[part] = scores.double().numpy()
    return out


def learnt(settings, data=None, rounds=1, **options):
    data = histories() if data is None else data
    method, model, federation = world("fedtrail", settings, "ranking", data=data)
    state = list(run(method, model, federation, rounds=rounds, seed=1, **options))[-1].state
    return method, model, state


@pytest.mark.parametrize("backend", ["loop", "vmap", "kernel"])
def test_the_counts_of_two_people_by_hand(backend):
    """Ann took 2, 0, 1, 3 in this order, Bob 0 and 1; a window of 2, half the weight for a step over one item."""
    model = factorization(4, k=2)
    method = build("fedtrail", model, {"window": 2, "fade": 0.5})
    data = Histories(np.array([0, 4, 6]), np.array([2, 0, 1, 3, 0, 1], np.int32), np.ones(6, np.float32))
    federation = of_histories(data, 4)
    memory = next(run(method, model, federation, rounds=1, backend=backend)).state.memory
    pairs = [[0, 2, 0, 0.5], [0, 0, 0, 1], [1, 0.5, 0, 0], [0, 0, 0, 0]]
    assert memory["pairs"].tolist() == pairs
    assert memory["items"].tolist() == [2, 2, 1, 1]
    assert memory["both"].tolist() == [2, 2, 1, 1, 2, 1, 1, 1, 1, 1]  # rows 0, 1, 2, 3 from the diagonal on


def dense(data, k, *, fade=0.85, window=5, lam=0.01, alpha0=0.3):
    """(T, P) of everybody, from the formulas in double precision, with nothing shared with the library."""
    m, n = ITEMS, data.people
    pairs, taken = np.zeros((m, m)), np.zeros((n, m))
    for person in range(n):
        own = data.of(person)
        taken[person, own] = 1
        for x in range(len(own)):
            for y in range(x + 1, min(x + window, len(own) - 1) + 1):
                pairs[own[x], own[y]] += fade ** (y - x - 1)
    count = taken.sum(0)
    table = pairs / np.outer((count + 5) ** 0.6, (count + 5) ** 0.3)
    scale = np.diag((count + 10) ** -0.5)
    values, vectors = np.linalg.eigh(scale @ taken.T @ taken @ scale)
    top = np.argsort(-values)[:k]
    v = vectors[:, top] * np.sqrt(values[top])
    v /= np.sqrt((v**2).sum() / m)
    trail, factors = np.zeros((n, m)), np.zeros((n, m))
    for person in range(n):
        for age, item in enumerate(data.of(person)[::-1][:100]):
            trail[person] += (0.7 * 0.6**age + 0.3 * 0.93**age) * table[item]
        own = v[data.of(person)[::-1]]
        w = 0.02 + 0.98 * 0.75 ** np.arange(len(own))
        system = alpha0 * v.T @ v + (own.T * w) @ own + lam * (w.sum() + alpha0 * m) * np.eye(k)
        factors[person] = v @ np.linalg.solve(system, own.T @ w)
    return table, trail, factors


def z(scores):
    return (scores - scores.mean(1, keepdims=True)) / scores.std(1, keepdims=True)


@pytest.mark.parametrize("backend", ["loop", "vmap", "kernel"])
def test_it_is_the_formulas_of_its_docstring(backend):
    data = histories(seed=5)
    table, trail, factors = dense(data, K)
    for parts, expected in (("trail", trail), ("factors", factors), ("trail+factors", z(trail) + z(factors))):
        method, model, state = learnt({"parts": parts}, data, backend=backend)
        assert np.abs(scores_of(method, model, state, data) - expected).max() < 1e-5, parts
        if parts == "trail":
            assert np.abs(state.shared["trail"].numpy() - table).max() < 1e-6


def test_trail_and_als_are_fedals_and_the_trail():
    """The factors are FedALS's, round by round, and the counts are in the first upload only."""
    data = histories(seed=5)
    method, model, federation = world("fedtrail", {"parts": "trail+als"}, "ranking", data=data)
    alone, _, _ = world("fedals", {}, "ranking", data=data)
    both = list(run(method, model, federation, rounds=3, seed=1))
    only = list(run(alone, model, federation, rounds=3, seed=1))
    for one, two in zip(both, only, strict=True):
        assert torch.equal(one.state.shared["item"], two.state.shared["item"])
    assert both[1].up_bytes == only[1].up_bytes < both[0].up_bytes
    expected = z(dense(data, K)[1]) + z(scores_of(alone, model, only[-1].state, data))
    assert np.abs(scores_of(method, model, both[-1].state, data) - expected).max() < 1e-5


@pytest.mark.parametrize("backend", ["loop", "vmap", "kernel"])
def test_counts_are_sent_once(backend):
    """Whoever is asked again sends zeros: cohorts over many rounds end where one round of everybody does."""
    _, _, once = learnt({}, backend=backend)
    method, model, federation = world("fedtrail", {}, "ranking")
    heard = np.zeros(PEOPLE)
    for done in run(method, model, federation, rounds=60, cohort=6, seed=1, backend=backend):
        heard[federation.cohort(done.number - 1, size=6, seed=1)[0]] = 1
        assert done.state.private.stacked["told"].tolist() == heard.tolist()
        if heard.all():
            break
    assert heard.all() and done.number > PEOPLE / 6  # somebody was asked twice
    assert_close(everything(once), everything(done.state))


def test_a_refused_person_may_tell_later():
    """`told` is kept only of those whose upload was admitted."""
    method, model, federation = world("fedtrail", {"parts": "trail"}, "ranking")
    state = begin(method, model, federation)
    state.private.stacked["told"][3] = torch.nan
    done = next(run(method, model, federation, rounds=1, backend="loop", state=state))
    assert done.rejected == {"non-finite": 1} and done.answered == PEOPLE - 1
    assert torch.isnan(done.state.private.stacked["told"][3])


def test_keep_stores_the_largest_entries_of_a_row():
    _, _, full = learnt({"parts": "trail"})
    method, model, state = learnt({"parts": "trail", "keep": 4})
    values, at = state.shared["trail"], state.shared["trail.at"]
    assert values.shape == at.shape == (ITEMS, 4)
    table = full.shared["trail"]
    assert torch.equal(table.gather(1, at.long()), values)
    assert torch.equal(values.sort(descending=True).values, table.sort(descending=True).values[:, :4])
    cut = torch.zeros(ITEMS, ITEMS).scatter(1, at.long(), values)
    plain, _, _ = world("fedtrail", {"parts": "trail"}, "ranking")
    examples = Examples(*(x[0] for x in of_histories(histories(), ITEMS).examples([0], 0, "history").pad()))
    one, two = (
        m.personalize(s, {}, examples)["item"]
        for m, s in ((method, state.shared), (plain, full.shared | {"trail": cut}))
    )
    assert torch.equal(one, two)
    _, _, every = learnt({"parts": "trail", "keep": ITEMS})
    assert torch.equal(every.shared["trail"], table)
    with pytest.raises(SettingError, match="keep must be from 1 to 40 .*, got 41"):
        build("fedtrail", model, {"keep": 41})


@pytest.mark.parametrize("keep", [0, 8])
def test_bytes_are_within_half_a_step_of_the_numbers(keep):
    _, _, exact = learnt({"keep": keep})
    method, _, state = learnt({"keep": keep, "bits": 8})
    for name in ("trail", "item"):
        coded, scale = state.shared[name], state.shared[f"{name}.scale"]
        assert coded.dtype == torch.int8 and scale.shape == (ITEMS,)
        gap = (coded * scale[:, None] - exact.shared[name]).abs()
        assert (gap <= scale[:, None] * 0.5001).all() and gap.max() > 0
    decoded = state.shared["item"] * state.shared["item.scale"][:, None]
    assert torch.equal(state.shared["gram"], decoded.T @ decoded)  # the person computes with what was decoded
    size, float_size = (sum(v.numel() * v.element_size() for v in s.shared.values()) for s in (state, exact))
    assert size < 0.6 * float_size


def test_without_time_the_weights_are_flat_and_it_is_said():
    untimed = plan(Settings(method="fedtrail"), Facts("ranking", ITEMS, timed=False))
    assert untimed.notes[0] == "Recency is off: the data have no time."
    assert {untimed.settings[name] for name in ("recency", "fast", "slow")} == {1.0}
    assert plan(Settings(method="fedtrail"), RANKING).notes == ()
    data = histories(seed=2)
    method, model, state = learnt({"parts": "trail", "fast": 1.0, "slow": 1.0, "reach": 4}, data)
    got = scores_of(method, model, state, data)[0]
    assert np.abs(got - state.shared["trail"].numpy()[data.of(0)[-4:]].sum(0)).max() < 1e-6


def test_rounds_follow_the_parts():
    assert plan(Settings(method="fedtrail"), RANKING).rounds == 1
    assert plan(Settings(method="fedtrail", set={"parts": "trail+als"}), RANKING).rounds == 8
    assert plan(Settings(method="fedtrail", set={"parts": "trail+als"}, rounds=3), RANKING).rounds == 3
    cohort = plan(Settings(method="fedtrail", set={"parts": "trail+als"}, cohort=5), RANKING)
    assert "Only the people who answer in the first round send counts" in cohort.notes[-1]


@pytest.mark.parametrize(
    "given, why",
    [
        ({"parts": "trail", "k": "8"}, "k would change nothing here: parts=trail has no factors"),
        ({"parts": "trail", "recency": "0.5"}, "recency would change nothing"),
        ({"parts": "factors", "keep": "8"}, "keep would change nothing here: parts=factors has no trail"),
        ({"loss": "squared"}, "loss would change nothing"),
        ({"spread": "0.5"}, "spread would change nothing"),
        ({"bits": "16"}, "32, 8"),
        ({"window": "0"}, "window must be at least 1, got 0"),
        ({"fade": "1.5"}, "fade must be from 0 to 1, got 1.5"),
        ({"server": "adam"}, '"server" is not a setting'),
    ],
)
def test_what_would_change_nothing_is_refused(given, why):
    with pytest.raises(SettingError, match=why):
        plan(Settings(method="fedtrail", set=given), RANKING)


def test_what_it_cannot_do_is_refused():
    for model in (model_of("ratings", {}), linear(5)):
        with pytest.raises(SettingError, match="fedtrail ranks with model=factorization"):
            build("fedtrail", model, {})
    with pytest.raises(SettingError, match="40,000 items would take 6 GB: at most 31,622"):
        build("fedtrail", factorization(40_000, k=2), {})


def test_large_uploads_run_few_devices_at_once():
    examples = of_histories(histories(), ITEMS).examples(np.arange(PEOPLE), 0, "history")
    assert max(len(part) for part in chunks(examples, 2)) > 2
    assert max(len(part) for part in chunks(examples, 2, PADDED // 2)) == 2
    assert all(len(part) == 1 for part in chunks(examples, 2, 10 * PADDED))


@pytest.mark.parametrize("name", ["recency", "fast", "slow"])
def test_only_the_newest_may_count_whatever_the_padding(name):
    """A rate of 0 forgets all but the newest; padding has no age that 0 could be raised to."""
    method, model, federation = world("fedtrail", {name: 0.0}, "ranking")
    state = next(run(method, model, federation, rounds=1)).state
    examples = federation.examples(np.array([0]), 0, "history")
    plain, padded = (
        method.personalize(state.shared, {}, Examples(*(x[0] for x in examples.pad(extra=extra)))) for extra in (0, 3)
    )
    assert torch.isfinite(padded["item"]).all()
    assert_close(plain, padded, 1e-5)


def test_somebody_with_one_item_has_no_pairs():
    method, _, _ = world("fedtrail", {}, "ranking")
    examples = Examples(torch.tensor([[7]]), torch.ones(1, 1), torch.ones(1, 1))
    shared, own = method.init(model_of("ranking", {}).init(torch.Generator()))
    upload, after = method.client(Download(shared, torch.tensor(0.0)), own, examples)
    assert not upload.total["pairs"].any() and upload.total["both"].sum() == upload.total["items"][7] == 1
    assert after["told"] == 1
