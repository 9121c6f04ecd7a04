"""Attacks that broke the privacy of version 0.6.0: each succeeds against its mechanism and fails against today's.

C1 inverts the generator of local noise. C2 tests which floating-point numbers the noise can give. C3 predicts cohorts
from a published seed. H1 solves for single people over several rounds of secure sums. H3 subtracts two runs that drew
the same noise. H2 (keys that a server gives to its nodes) is in test_node_noise.py.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.optimize import lsq_linear
from scipy.stats import beta

import support.noise_of_version_060 as old
from fedtaste.core import StageContext, Upload
from fedtaste.data.interactions import Histories
from fedtaste.engine.run import run
from fedtaste.federation import of_histories
from fedtaste.methods import build
from fedtaste.models import factorization
from fedtaste.wire import stages
from fedtaste.wire.accounting import Mechanism, epsilons, solve, statement
from fedtaste.wire.parse import assemble, parse, uploads_of
from fedtaste.wire.rng import device_keys, fresh_key
from fedtaste.wire.secure_sums import SecureSum
from support.worlds import histories

ITEM = torch.zeros(1, 1, dtype=torch.int64)
TRIALS = 400


def f1(guess: np.ndarray, truth: np.ndarray) -> float:
    hits = len(np.intersect1d(guess, truth))
    return 2 * hits / max(len(guess) + len(truth), 1)


def epsilon_shown(with_person: int, without: int, trials: int) -> float:
    """Lower bound of epsilon from counts of an event, at 95 %: log(lower bound of one / upper bound of the other)."""
    low = beta.ppf(0.025, with_person, trials - with_person + 1) if with_person else 0.0
    high = beta.ppf(0.975, without + 1, trials - without) if without < trials else 1.0
    return math.log(low / high) if low > high else 0.0


# C1: the generator of local noise


def invert_generator(numbers: np.ndarray, budget: int = 2**22) -> int | None:
    """The key that generated these standard normal numbers, found from the most extreme of them.

    None if more states than the budget would have to be tried, or if no state explains the other numbers.
    """
    at = int(np.argmax(np.abs(numbers)))
    extreme = float(numbers[at])
    missing = int(2.0**53 * math.exp(-(extreme**2) / 2) * 1.001) + 1  # u = 1 - missing / 2^53 at least
    if missing << 11 > budget:
        return None
    x = (np.arange(2**53 - missing, 2**53, dtype=np.uint64)[:, None] << np.uint64(11)) | np.arange(
        2**11, dtype=np.uint64
    )
    keys = old.unmixed(x.ravel(), 2 * at)
    radius = np.sqrt(-2 * np.log1p(-((x.ravel() >> np.uint64(11)) * 2.0**-53)))
    angle = 2 * np.pi * old.uniform(keys, np.uint64(2 * at + 1))
    for key in keys[np.abs(radius * np.cos(angle) - extreme) < 1e-5]:
        counters = 2 * np.arange(len(numbers), dtype=np.uint64)
        size = np.sqrt(-2 * np.log1p(-old.uniform(key, counters)))
        guess = size * np.cos(2 * np.pi * old.uniform(key, counters + np.uint64(1)))
        if np.abs(guess - numbers).max() < 1e-4:
            return int(key)
    return None


def guessed_items(upload: np.ndarray) -> np.ndarray:
    """The items of an upload: rows that are not nearly zero or, under noise, the ten longest rows."""
    length = np.abs(upload).max(1)
    return np.flatnonzero(length > 1e-3) if np.median(length) < 1e-3 else np.argsort(-length)[:10]


def uploads(people: int, items: int = 60, width: int = 4) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """(item lists, tables of length 1 with a row for each item of the list)."""
    draw = np.random.default_rng(3)
    lists = [np.sort(draw.permutation(items - 1)[:10]) + 1 for _ in range(people)]  # nobody has the first item
    tables = []
    for own in lists:
        table = np.zeros((items, width), np.float32)
        table[own] = draw.normal(0, 1, (len(own), width))
        tables.append(table / np.linalg.norm(table))
    return lists, tables


def test_c1_inverting_the_generator_reveals_all_lists_in_060():
    lists, tables = uploads(12)
    round_key = old.lucky_round_key(0)
    sent = [
        table + old.device_noise(round_key, person, table.size).reshape(table.shape)
        for person, table in enumerate(tables)
    ]
    before = np.mean([f1(guessed_items(upload), truth) for upload, truth in zip(sent, lists)])
    untouched = np.setdiff1d(np.arange(60), lists[0])  # a row that the attacker assumes to be empty
    first = np.flatnonzero(np.isin(np.arange(60).repeat(4), untouched[:1]))
    leaf = invert_generator(sent[0].ravel()[first])
    assert leaf is not None, "the extreme number is in a row without items"
    recovered_key = old.unmixed(old.unmixed(np.uint64(leaf), 0), 0)
    assert int(recovered_key) == round_key
    denoised = [
        upload - old.device_noise(int(recovered_key), person, upload.size).reshape(upload.shape)
        for person, upload in enumerate(sent)
    ]
    after = [f1(guessed_items(upload), truth) for upload, truth in zip(denoised, lists)]
    assert before < 0.6 and min(after) == 1.0


def test_c1_fails_against_current_local_noise():
    lists, tables = uploads(12)
    stage, round_key = stages.local(1.0, 1.0), fresh_key()
    assert stage.client is not None and stage.device_noise is not None and stage.grid is not None
    scores = []
    for person, key in enumerate(device_keys(round_key, np.arange(12))):
        upload = stage.client(
            Upload({"item": torch.from_numpy(tables[person])}, torch.ones(())), StageContext(key, 0, 12.0)
        )
        noisy = stage.device_noise(upload, StageContext(key, 0, 12.0)).total["item"].double().numpy() * stage.grid(0)
        assert invert_generator(noisy[0] / noisy.std()) is None  # a row without items
        assert invert_generator(noisy.ravel() / noisy.std()) is None
        scores.append(f1(guessed_items(noisy), lists[person]))
    assert np.mean(scores) < 0.6


# C2: which floating-point numbers can occur


def attainable(values: np.ndarray, sigma: float) -> np.ndarray:
    """Whether each value is float32(sigma g) for a float32 g, as 0.6.0 releases for an item that nobody has."""
    guess = (values.astype(np.float64) / np.float32(sigma)).astype(np.float32)
    possible = np.zeros(len(values), bool)
    for _ in range(3):
        possible |= (np.float32(sigma) * guess).astype(np.float32) == values
        guess = np.nextafter(guess, np.float32(np.inf))
    guess = (values.astype(np.float64) / np.float32(sigma)).astype(np.float32)
    for _ in range(2):
        guess = np.nextafter(guess, np.float32(-np.inf))
        possible |= (np.float32(sigma) * guess).astype(np.float32) == values
    return possible


def detects(released: np.ndarray, sigma: float, items: np.ndarray) -> bool:
    """The attack: an item that only this person could have shows a value that noise alone cannot give."""
    return not attainable(released[items].astype(np.float32), sigma).all()


def popularity_sums(items: int = 200, own: int = 30) -> tuple[np.ndarray, np.ndarray]:
    """(sum of everybody else, the person's own upload of length 1): `own` items that nobody else has."""
    others = np.zeros(items)
    others[own:] = np.random.default_rng(0).uniform(1, 20, items - own)
    person = np.zeros(items)
    person[:own] = 1 / math.sqrt(own)
    return others, person


@pytest.mark.parametrize("epsilon", [1.0, 3.0])
def test_c2_attainable_values_break_060_and_reveal_nothing_now(epsilon):
    sigma, (others, person), items = solve(epsilon, 1e-6, 1), popularity_sums(), np.arange(30)
    old_hits = [
        sum(detects(old.release(total, sigma, 7 * trial + 1), sigma, items) for trial in range(TRIALS))
        for total in (others + person, others)
    ]
    assert old_hits[1] == 0 and epsilon_shown(*old_hits, TRIALS) > 1.2 * epsilon, old_hits
    stage = stages.noise(sigma, 1.0)
    assert stage.client is not None and stage.server is not None and stage.grid is not None
    new_hits = []
    for member in (True, False):
        hits = 0
        own = torch.from_numpy(person * member).float()
        for _ in range(TRIALS):
            rest = torch.from_numpy(np.rint(others / stage.grid(0))).long()
            upload = stage.client(Upload({"count": own}, torch.ones(())), StageContext(b"", 0, 100.0))
            total = Upload({"count": rest + upload.total["count"].long()}, torch.ones(()))
            released = stage.server(total, StageContext(fresh_key(), 0, 100.0)).total["count"].numpy()
            assert (released.astype(np.float64) / stage.grid(0) % 1 == 0).all()
            hits += detects(released, sigma, items)
        new_hits.append(hits)
    assert max(epsilon_shown(*new_hits, TRIALS), epsilon_shown(*new_hits[::-1], TRIALS)) <= epsilon, new_hits


# C3: cohorts drawn from a published seed


def test_c3_a_published_seed_predicts_cohorts_in_060_and_not_now(monkeypatch):
    data = histories(people=400)
    federation = of_histories(data, 40)
    everybody, rate = federation.members, 0.1
    predicted = [everybody[old.cohort_coins(0, number, everybody) < rate] for number in range(20)]
    by_seed = [
        federation.cohort(number, size=rate, seed=0)[0] for number in range(20)
    ]  # runs without a privacy guarantee
    assert np.mean([len(np.intersect1d(a, b)) / len(b) for a, b in zip(predicted, by_seed)]) > 0.9
    cohorts: list[np.ndarray] = []
    draw_cohort = type(federation).cohort

    def recording(self, number, **options):
        result = draw_cohort(self, number, **options)
        cohorts.append(result[0])
        return result

    monkeypatch.setattr(type(federation), "cohort", recording)
    method, model = build("popularity", factorization(40), {}), factorization(40)
    for _ in range(2):
        list(run(method, model, federation, rounds=20, cohort=rate, seed=0, wire=stages.noise(1.0, 1.0)))
    first, second = cohorts[:20], cohorts[20:]
    overlap = [len(np.intersect1d(a, b)) / max(len(b), 1) for a, b in zip(predicted, first)]
    assert len(first) == len(second) == 20 and abs(np.mean(overlap) - rate) < 0.05
    assert not all(np.array_equal(a, b) for a, b in zip(first, second))


def test_c3_a_known_seed_gives_no_amplification_by_sampling():
    """0.6.0 printed the first epsilon although the second held; now a run with a known seed prints no epsilon."""
    printed = epsilons(Mechanism(0.9, 0.1), 1, 1e-3).epsilon
    known = epsilons(Mechanism(0.9), 1, 1e-3).epsilon
    assert known > 3 * printed
    repeatable = statement(Mechanism(0.9, 0.1), 1, 1e-3, repeatable=True)
    assert repeatable.epsilon is None and repeatable.repeatable_epsilon == printed


# H1: secure sums over several rounds


def solve_membership(groups_of_rounds: list[list[np.ndarray]], sums: list[list[np.ndarray]], people: int) -> np.ndarray:
    """Membership [people, items] in [0, 1] by box-constrained least squares over all groups of all rounds."""
    rows = np.array([np.isin(np.arange(people), group) for groups in groups_of_rounds for group in groups], float)
    right = np.array([total for round in sums for total in round])
    return np.stack([lsq_linear(rows, column, (0, 1)).x for column in right.T], 1)


def mean_f1(membership: np.ndarray, data: Histories) -> float:
    scores = []
    for person in range(data.people):
        truth = data.of(person)
        scores.append(f1(np.argsort(-membership[person], kind="stable")[: len(truth)], truth))
    return float(np.mean(scores))


def test_h1_changing_groups_reveal_lists_in_060_and_fixed_groups_do_not():
    data = histories(people=60, items=50, seed=2)
    taken = np.zeros((60, 50))
    taken[data.owners, data.items] = 1
    people = np.arange(60)

    def attack(rounds: list[list[np.ndarray]]) -> float:
        sums = [[taken[group].sum(0) for group in groups] for groups in rounds]
        return mean_f1(solve_membership(rounds, sums, 60), data)

    changing = [old.groups(0, number, people, 10) for number in range(6)]
    assert attack(changing[:1]) < 0.5 and attack(changing) > 0.9
    key, secure = fresh_key(), SecureSum(group=10)
    contexts = [StageContext(fresh_key(), number, 60.0, run_key=key) for number in range(6)]
    fixed = [[np.array(group.people) for group in secure.groups(people, context)] for context in contexts]
    assert attack(fixed) < attack(fixed[:1]) + 0.05 and attack(fixed) < 0.5  # more rounds reveal no more


def test_h1_counts_are_sent_once_and_in_the_same_groups_by_the_engine():
    """The server's view of six rounds of FedALS with secure=10."""
    data = histories(people=60, items=50, seed=2)
    model = factorization(50, k=4)
    method = build("fedals", model, {"counts_once": True})
    wire = assemble(parse("secure=10"), method, uploads_of(method, model, ITEM), everybody=60)
    federation = of_histories(data, 50)
    groups: list[tuple[tuple[int, ...], ...]] = []
    widths: list[int] = []
    secure = wire.stage.secure_sum
    assert isinstance(secure, SecureSum)

    class RecordingSum(SecureSum):
        def sessions(self, uploads, cohort, context, silent=()):
            groups.append(tuple(group.people for group in self.groups(cohort, context)))
            widths.append(next(iter(uploads.values())).total["sums"].shape[1])
            return super().sessions(uploads, cohort, context, silent)

    recording = RecordingSum(**{name: getattr(secure, name) for name in secure.__dataclass_fields__})
    list(run(method, model, federation, rounds=6, wire=replace(wire.stage, secure_sum=recording), backend="loop"))
    assert len(set(groups)) == 1 and len(groups) == 6
    assert widths == [15, 14, 14, 14, 14, 14]  # u u' 10, u 4, and the count once


# H3: two runs with the same noise


def test_h3_retraining_without_a_person_reveals_their_items_in_060_and_not_now():
    data, sigma, person = histories(people=80, seed=5), 3.0, 17
    taken = np.zeros((80, 40))
    taken[data.owners, data.items] = 1
    taken /= np.linalg.norm(taken, axis=1, keepdims=True)
    draws = old.run_draws(0, "popularity clip=1,noise=3", "hash of no data")  # a deployed app: the same in both runs
    with_person = old.release(taken.sum(0), sigma, draws)
    without_person = old.release(taken.sum(0) - taken[person], sigma, draws)
    revealed = np.flatnonzero(np.abs(with_person - without_person) > 1e-3)
    assert np.array_equal(revealed, np.sort(data.of(person)))
    model = factorization(40)
    method = build("popularity", model, {})
    rest = np.setdiff1d(np.arange(80), [person])
    released = []
    for members in (None, rest):
        federation = of_histories(data, 40, members=members)
        *_, last = run(method, model, federation, rounds=1, seed=0, wire=stages.noise(sigma, 1.0))
        released.append(last.state.shared["count"].numpy())
    gap = released[0] - released[1]
    assert gap.std() == pytest.approx(sigma * math.sqrt(2), rel=0.5)  # two independent draws of the noise
    best = np.argsort(-np.abs(gap))[: len(data.of(person))]
    assert f1(best, data.of(person)) < 0.8
