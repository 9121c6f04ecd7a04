"""FedTrail against answers computed by hand, and against an implementation of its formulas in dense numpy."""

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
    """The scores of all people for the whole catalogue."""
    people = np.arange(data.people)
    examples = of_histories(data, model.catalogue).examples(people, 0, "history")
    out = np.zeros((data.people, model.catalogue))
    for part, scores in personal_scores(
        method, model, state.shared, state.private, people, examples, torch.arange(model.catalogue)
    ):
        out[part] = scores.double().numpy()
    return out


def train(settings, data=None, rounds=1, **options):
    data = histories() if data is None else data
    method, model, federation = world("fedtrail", settings, "ranking", data=data)
    state = list(run(method, model, federation, rounds=rounds, seed=1, **options))[-1].state
    return method, model, state


@pytest.mark.parametrize("backend", ["loop", "vmap", "kernel"])
def test_the_counts_of_two_people_equal_those_by_hand(backend):
    """Ann has items 2, 0, 1, 3 in this order, Bob 0 and 1. With window 2, a pair with one item between counts half."""
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
    """(table, trail scores, factor scores) of all people in double precision, without code of the library."""
    m, n = ITEMS, data.people
    pairs, interactions = np.zeros((m, m)), np.zeros((n, m))
    for person in range(n):
        history = data.of(person)
        interactions[person, history] = 1
        for x in range(len(history)):
            for y in range(x + 1, min(x + window, len(history) - 1) + 1):
                pairs[history[x], history[y]] += fade ** (y - x - 1)
    count = interactions.sum(0)
    table = pairs / np.outer((count + 5) ** 0.6, (count + 5) ** 0.3)
    scale = np.diag((count + 10) ** -0.5)
    values, vectors = np.linalg.eigh(scale @ interactions.T @ interactions @ scale)
    top = np.argsort(-values)[:k]
    v = vectors[:, top] * np.sqrt(values[top])
    v /= np.sqrt((v**2).sum() / m)
    trail, factors = np.zeros((n, m)), np.zeros((n, m))
    for person in range(n):
        for age, item in enumerate(data.of(person)[::-1][:100]):
            trail[person] += (0.7 * 0.6**age + 0.3 * 0.93**age) * table[item]
        history = v[data.of(person)[::-1]]
        w = 0.02 + 0.98 * 0.75 ** np.arange(len(history))
        system = alpha0 * v.T @ v + (history.T * w) @ history + lam * (w.sum() + alpha0 * m) * np.eye(k)
        factors[person] = v @ np.linalg.solve(system, history.T @ w)
    return table, trail, factors


def z(scores):
    return (scores - scores.mean(1, keepdims=True)) / scores.std(1, keepdims=True)


@pytest.mark.parametrize("backend", ["loop", "vmap", "kernel"])
def test_scores_equal_the_formulas_in_dense_numpy(backend):
    data = histories(seed=5)
    table, trail, factors = dense(data, K)
    for parts, expected in (("trail", trail), ("factors", factors), ("trail+factors", z(trail) + z(factors))):
        method, model, state = train({"parts": parts}, data, backend=backend)
        assert np.abs(scores_of(method, model, state, data) - expected).max() < 1e-5, parts
        if parts == "trail":
            assert np.abs(state.shared["trail"].numpy() - table).max() < 1e-6


def test_trail_and_als_combine_fedals_with_the_trail():
    """The factors equal those of FedALS in every round, and only the first upload has counts."""
    data = histories(seed=5)
    method, model, federation = world("fedtrail", {"parts": "trail+als"}, "ranking", data=data)
    fedals, _, _ = world("fedals", {}, "ranking", data=data)
    trail_rounds = list(run(method, model, federation, rounds=3, seed=1))
    als_rounds = list(run(fedals, model, federation, rounds=3, seed=1))
    for trail_round, als_round in zip(trail_rounds, als_rounds, strict=True):
        assert torch.equal(trail_round.state.shared["item"], als_round.state.shared["item"])
    assert trail_rounds[1].up_bytes == als_rounds[1].up_bytes < trail_rounds[0].up_bytes
    expected = z(dense(data, K)[1]) + z(scores_of(fedals, model, als_rounds[-1].state, data))
    assert np.abs(scores_of(method, model, trail_rounds[-1].state, data) - expected).max() < 1e-5


@pytest.mark.parametrize("backend", ["loop", "vmap", "kernel"])
def test_every_person_sends_counts_only_once(backend):
    """A person who is asked again sends zeros, so cohorts over many rounds end with the result of one round of all."""
    _, _, once = train({}, backend=backend)
    method, model, federation = world("fedtrail", {}, "ranking")
    answered = np.zeros(PEOPLE)
    for round_result in run(method, model, federation, rounds=60, cohort=6, seed=1, backend=backend):
        answered[federation.cohort(round_result.number - 1, size=6, seed=1)[0]] = 1
        expected = answered * histories().lengths  # how many items each person has counted
        assert round_result.state.private.stacked["sent"].tolist() == expected.tolist()
        if answered.all():
            break
    assert answered.all() and round_result.number > PEOPLE / 6  # some people were asked twice
    assert_close(everything(once), everything(round_result.state))


def test_a_person_whose_upload_was_rejected_sends_counts_again():
    """How many items were sent is stored only for people whose upload was accepted."""
    method, model, federation = world("fedtrail", {"parts": "trail"}, "ranking")
    state = begin(method, model, federation)
    state.private.stacked["sent"][3] = torch.nan
    round_result = next(run(method, model, federation, rounds=1, backend="loop", state=state))
    assert round_result.rejected == {"non-finite": 1} and round_result.answered == PEOPLE - 1
    assert torch.isnan(round_result.state.private.stacked["sent"][3])


def test_keep_stores_the_largest_entries_of_a_row():
    _, _, full = train({"parts": "trail"})
    method, model, state = train({"parts": "trail", "keep": 4})
    values, at = state.shared["trail"], state.shared["trail.at"]
    assert values.shape == at.shape == (ITEMS, 4)
    table = full.shared["trail"]
    assert torch.equal(table.gather(1, at.long()), values)
    assert torch.equal(values.sort(descending=True).values, table.sort(descending=True).values[:, :4])
    cut = torch.zeros(ITEMS, ITEMS).scatter(1, at.long(), values)
    dense_method, _, _ = world("fedtrail", {"parts": "trail"}, "ranking")
    examples = Examples(*(x[0] for x in of_histories(histories(), ITEMS).examples([0], 0, "history").pad()))
    sparse_items, dense_items = (
        m.personalize(s, {}, examples)["item"]
        for m, s in ((method, state.shared), (dense_method, full.shared | {"trail": cut}))
    )
    assert torch.equal(sparse_items, dense_items)
    _, _, all_kept = train({"parts": "trail", "keep": ITEMS})
    assert torch.equal(all_kept.shared["trail"], table)
    with pytest.raises(SettingError, match="keep .* 1 to 40"):
        build("fedtrail", model, {"keep": 41})


@pytest.mark.parametrize("keep", [0, 8])
def test_int8_tables_are_within_half_a_step_of_the_exact_ones(keep):
    _, _, exact = train({"keep": keep})
    method, _, state = train({"keep": keep, "bits": 8})
    for name in ("trail", "item"):
        coded, scale = state.shared[name], state.shared[f"{name}.scale"]
        assert coded.dtype == torch.int8 and scale.shape == (ITEMS,)
        gap = (coded * scale[:, None] - exact.shared[name]).abs()
        assert (gap <= scale[:, None] * 0.5001).all() and gap.max() > 0
    decoded = state.shared["item"] * state.shared["item.scale"][:, None]
    assert torch.equal(state.shared["gram"], decoded.T @ decoded)  # clients compute with the decoded table
    size, float_size = (sum(v.numel() * v.element_size() for v in s.shared.values()) for s in (state, exact))
    assert size < 0.6 * float_size


def test_without_times_recency_is_off_and_a_note_says_so():
    untimed = plan(Settings(method="fedtrail"), Facts("ranking", ITEMS, timed=False))
    assert untimed.notes[0] == "Recency is off: the data have no time."
    assert {untimed.settings[name] for name in ("recency", "fast", "slow")} == {1.0}
    assert plan(Settings(method="fedtrail"), RANKING).notes == ()
    data = histories(seed=2)
    method, model, state = train({"parts": "trail", "fast": 1.0, "slow": 1.0, "reach": 4}, data)
    scores = scores_of(method, model, state, data)[0]
    assert np.abs(scores - state.shared["trail"].numpy()[data.of(0)[-4:]].sum(0)).max() < 1e-6


def test_default_rounds_are_one_for_trail_and_eight_for_trail_and_als():
    assert plan(Settings(method="fedtrail"), RANKING).rounds == 1
    assert plan(Settings(method="fedtrail", set={"parts": "trail+als"}), RANKING).rounds == 8
    assert plan(Settings(method="fedtrail", set={"parts": "trail+als"}, rounds=3), RANKING).rounds == 3
    cohort = plan(Settings(method="fedtrail", set={"parts": "trail+als"}, cohort=5), RANKING)
    assert "first round send counts" in cohort.notes[-1]


@pytest.mark.parametrize(
    "fields, reason",
    [
        ({"parts": "trail", "k": "8"}, "k would change nothing here: parts=trail has no factors"),
        ({"parts": "trail", "recency": "0.5"}, "recency would change nothing"),
        ({"parts": "factors", "keep": "8"}, "keep would change nothing here: parts=factors has no trail"),
        ({"loss": "squared"}, "loss would change nothing"),
        ({"spread": "0.5"}, "spread would change nothing"),
        ({"bits": "16"}, "8, 32"),
        ({"window": "0"}, "window must be at least 1, got 0"),
        ({"fade": "1.5"}, "fade must be from 0 to 1, got 1.5"),
        ({"server": "adam"}, '"server" is not a setting'),
    ],
)
def test_unread_and_invalid_settings_are_refused(fields, reason):
    with pytest.raises(SettingError, match=reason):
        plan(Settings(method="fedtrail", set=fields), RANKING)


def test_other_models_and_huge_catalogues_are_refused():
    for model in (model_of("ratings", {}), linear(5)):
        with pytest.raises(SettingError, match="model=factorization"):
            build("fedtrail", model, {})
    with pytest.raises(SettingError, match="at most 31,622"):
        build("fedtrail", factorization(40_000, k=2), {})


def test_large_uploads_are_computed_for_few_clients_at_once():
    examples = of_histories(histories(), ITEMS).examples(np.arange(PEOPLE), 0, "history")
    assert max(len(part) for part in chunks(examples, 2)) > 2
    assert max(len(part) for part in chunks(examples, 2, PADDED // 2)) == 2
    assert all(len(part) == 1 for part in chunks(examples, 2, 10 * PADDED))


@pytest.mark.parametrize("name", ["recency", "fast", "slow"])
def test_a_rate_of_zero_gives_the_same_with_and_without_padding(name):
    """A rate of 0 ignores all but the newest item. Padding has no age, so no power of 0 may be computed for it."""
    method, model, federation = world("fedtrail", {name: 0.0}, "ranking")
    state = next(run(method, model, federation, rounds=1)).state
    examples = federation.examples(np.array([0]), 0, "history")
    unpadded, padded = (
        method.personalize(state.shared, {}, Examples(*(x[0] for x in examples.pad(extra=extra)))) for extra in (0, 3)
    )
    assert torch.isfinite(padded["item"]).all()
    assert_close(unpadded, padded, 1e-5)


def test_a_person_with_one_item_sends_no_pairs():
    method, _, _ = world("fedtrail", {}, "ranking")
    examples = Examples(torch.tensor([[7]]), torch.ones(1, 1), torch.ones(1, 1))
    shared, private = method.init(model_of("ranking", {}).init(torch.Generator()))
    upload, after = method.client(Download(shared, torch.tensor(0.0)), private, examples)
    assert not upload.total["pairs"].any() and upload.total["both"].sum() == upload.total["items"][7] == 1
    assert after["sent"] == 1
