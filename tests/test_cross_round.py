"""Servers that keep secure sums: exact recovery where it is possible, and the figures of a whole audit."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from scipy import sparse

from fedtaste.attacks.cross_round import COUNTS, measure_all_rounds, solve_in_box
from fedtaste.attacks.fedals_separation import factor_count, separate_lists
from fedtaste.attacks.list_recovery import Guess, MergedGuesses
from fedtaste.attacks.observed_run import ObservedRun
from fedtaste.audit.run import AuditScope, audit
from fedtaste.data.sources import load
from fedtaste.experiment.plan import plan
from fedtaste.experiment.settings import Settings
from fedtaste.experiment.train import make_task
from fedtaste.methods import build
from fedtaste.wire.secure_sums import SecureSum

DATA = "synthetic:60x120x1200"


class Regrouped(SecureSum):
    """Groups that are dealt anew in every round, as in version 0.6.0."""

    def groups(self, cohort, context):
        return super().groups(cohort, context._replace(run_key=context.key))


@cache
def world_of(method: str, wire: str):
    settings = Settings(data=DATA, method=method, wire=wire)
    task = make_task(settings, load(DATA))
    made = plan(settings, task.facts)
    return made, task.federation("final", made.method, made.sampling, None)


def attacked(method: str, wire: str, rounds: int, stage=None, counts_each_round=False, **how):
    made, federation = world_of(method, wire)
    used = build(method, made.model, {}) if counts_each_round else made.method
    run = ObservedRun(used, made.model, federation, stage or made.wire.stage, rounds, **how)
    return measure_all_rounds(run, 40)


def sums_of(people: int, k: int, items: int = 200, seed: int = 0):
    """A FedALS table of these people, and their lists [people, items]."""
    rng = np.random.default_rng(seed)
    users, lists = rng.standard_normal((people, k)) + 0.5, rng.random((people, items)) < 0.2
    i, j = np.triu_indices(k)
    one = np.concatenate([users[:, i] * users[:, j], users, np.ones((people, 1))], 1)
    return lists.T.astype(float) @ one, lists


# Pieces


@pytest.mark.parametrize("people,k", [(1, 4), (3, 4), (10, 32), (10, 10)])
@pytest.mark.parametrize("counts", [True, False])
def test_the_lists_of_a_fedals_sum_come_apart(people, k, counts):
    """No item belongs to one person only, and no count is needed."""
    sums, lists = sums_of(people, k)
    sums = np.asarray(sums if counts else sums[:, :-1], np.float32)
    assert factor_count(sums.shape[1]) == k
    told = separate_lists(sums.astype(np.float64))
    assert sorted(map(tuple, told.tolist())) == sorted(map(tuple, lists.tolist()))


def test_an_empty_sum_has_no_lists():
    assert separate_lists(np.zeros((20, 15))).shape == (0, 20)


def test_counts_of_regrouped_people_determine_their_lists():
    rng = np.random.default_rng(1)
    lists = (rng.random((30, 50)) < 0.3).astype(float)
    rows = [np.isin(np.arange(30), part) for _ in range(8) for part in np.split(rng.permutation(30), 6)]
    member = sparse.csr_matrix(np.array(rows, float))
    guess = solve_in_box(member, member @ lists, np.full((30, 50), 0.3), 3000)
    assert ((guess > 0.5) == (lists > 0.5)).all()


def test_somebody_missing_in_a_later_round_is_the_difference_of_two_sums():
    rng = np.random.default_rng(2)
    lists = (rng.random((12, 40)) < 0.3).astype(float)
    member = sparse.csr_matrix(np.array([np.ones(12), np.arange(12) != 5], float))
    guess = solve_in_box(member, member @ lists, np.full((12, 40), lists.mean()), 3000)
    assert np.abs(guess[5] - lists[5]).max() < 0.02
    assert np.abs(guess[4] - lists[4]).max() > 0.5, "the others are not determined"


def test_guesses_of_rounds_are_merged():
    merged = MergedGuesses()
    merged.add({"a": Guess(np.array([0.0, 2.0]), np.array([True, False]))})
    merged.add({"a": Guess(np.array([0.0, 9.0]), np.array([False, False])), "b": Guess(np.array([3.0, 1.0]))})
    told = merged.guesses()
    assert told["a"].scores.tolist() == [-1, 1] and told["a"].picks.tolist() == [True, False]
    assert told["b"].scores.tolist() == [1, -1] and told["b"].picks is None
    lists = Guess(np.zeros(3), None, np.array([[True, False, False], [True, True, False]]))
    assert lists.for_length(2).picks.tolist() == [True, True, False]


# Runs


def test_counts_over_six_rounds_of_regrouped_fedals_give_every_list():
    """Version 0.6.0: the same counts in every round, in groups that change."""
    stage = replace(world_of("fedals", "secure=10")[0].wire.stage, secure_sum=Regrouped(10, most=60))
    told, first = (attacked("fedals", "secure=10", rounds, stage, True) for rounds in (6, 1))
    name = f"{COUNTS} (sums)"
    assert told.attacks[name] > 0.9 and told.f1 > 0.9 and told.worst_f1 == 1.0
    assert first.attacks[name] < 0.8, "one round of counts determines little"
    assert (told.rounds, told.in_sum, told.people) == (6, 10, 40)


def test_groups_that_stay_do_not_save_fedals():
    """Counts are sent once, so later rounds add nothing to them; one round's table gives the lists all the same."""
    told, first = (attacked("fedals", "secure=10", rounds) for rounds in (3, 1))
    name = f"{COUNTS} (sums)"
    assert told.attacks[name] == pytest.approx(first.attacks[name], abs=0.01)
    assert told.attacks["lists of sums"] > 0.8 and told.f1 > 0.8


def test_whoever_drops_out_of_the_cohort_s_sum_is_told():
    """All people in one sum; with drop-outs the sums of several rounds differ by a few people's lists."""
    name = f"{COUNTS} (sums)"
    still, moving = (
        attacked("fedals", "secure", 6, None, True, dropout=dropout).attacks[name] for dropout in (0.0, 0.02)
    )
    assert moving > still + 0.02


def test_other_methods_are_averaged_over_rounds():
    told = attacked("fedmf", "secure=10", 4)
    assert told.f1 > told.popularity_f1
    assert not any(name.startswith(COUNTS) for name in told.attacks)


def test_the_audit_reports_what_all_rounds_tell():
    settings = Settings(data=DATA, method="fedals", wire="secure=10")
    loaded = load(DATA)
    result = audit(settings, make_task(settings, loaded), loaded.titles, AuditScope(rounds=6, people=40, canaries=0))
    assert (result.rounds, result.planned_rounds, result.in_sum) == (6, 8, 10)
    assert result.f1 > 0.8 and result.worst_f1 == 1.0 and result.helped


def test_noise_of_devices_is_seen_by_the_server_of_sealed_sums():
    plain, noisy = (attacked("fedmf", wire, 2).f1 for wire in ("clip=1.0,secure=3", "clip=1.0,noise=100,secure=3"))
    assert noisy < plain
