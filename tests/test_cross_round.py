"""Attacks on the secure sums of several rounds: exact recovery of lists where possible, and the audit's figures."""

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
from support.command import fedtaste

DATA = "synthetic:60x120x1200"


class Regrouped(SecureSum):
    """Secure sums whose groups change in every round, as in version 0.6.0."""

    def groups(self, cohort, context):
        return super().groups(cohort, context._replace(run_key=context.key))


@cache
def world_of(method: str, wire: str):
    """(plan, federation) of this method."""
    settings = Settings(data=DATA, method=method, wire=wire)
    task = make_task(settings, load(DATA))
    run_plan = plan(settings, task.facts)
    return run_plan, task.federation("final", run_plan.method, run_plan.sampling, None)


def attack(method: str, wire: str, rounds: int, stage=None, counts_each_round=False, **options):
    """The result of the attack over this number of rounds."""
    run_plan, federation = world_of(method, wire)
    method_in_use = build(method, run_plan.model, {}) if counts_each_round else run_plan.method
    run = ObservedRun(method_in_use, run_plan.model, federation, stage or run_plan.wire.stage, rounds, **options)
    return measure_all_rounds(run, 40)


def sums_of(people: int, k: int, items: int = 200, seed: int = 0):
    """The summed FedALS upload of these people, and their lists [people, items]."""
    rng = np.random.default_rng(seed)
    users, lists = rng.standard_normal((people, k)) + 0.5, rng.random((people, items)) < 0.2
    i, j = np.triu_indices(k)
    terms = np.concatenate([users[:, i] * users[:, j], users, np.ones((people, 1))], 1)
    return lists.T.astype(float) @ terms, lists


# Parts of the attack


@pytest.mark.parametrize("people,k", [(1, 4), (3, 4), (10, 32), (10, 10)])
@pytest.mark.parametrize("counts", [True, False])
def test_separate_lists_recovers_every_list_from_a_fedals_sum(people, k, counts):
    """This works although no item belongs to one person only, and also without counts."""
    sums, lists = sums_of(people, k)
    sums = np.asarray(sums if counts else sums[:, :-1], np.float32)
    assert factor_count(sums.shape[1]) == k
    separated = separate_lists(sums.astype(np.float64))
    assert sorted(map(tuple, separated.tolist())) == sorted(map(tuple, lists.tolist()))


def test_an_empty_sum_has_no_lists():
    assert separate_lists(np.zeros((20, 15))).shape == (0, 20)


def test_counts_of_regrouped_people_determine_their_lists():
    rng = np.random.default_rng(1)
    lists = (rng.random((30, 50)) < 0.3).astype(float)
    rows = [np.isin(np.arange(30), part) for _ in range(8) for part in np.split(rng.permutation(30), 6)]
    member = sparse.csr_matrix(np.array(rows, float))
    guess = solve_in_box(member, member @ lists, np.full((30, 50), 0.3), 3000)
    assert ((guess > 0.5) == (lists > 0.5)).all()


def test_a_person_missing_in_a_later_round_is_recovered_from_two_sums():
    rng = np.random.default_rng(2)
    lists = (rng.random((12, 40)) < 0.3).astype(float)
    member = sparse.csr_matrix(np.array([np.ones(12), np.arange(12) != 5], float))
    guess = solve_in_box(member, member @ lists, np.full((12, 40), lists.mean()), 3000)
    assert np.abs(guess[5] - lists[5]).max() < 0.02
    assert np.abs(guess[4] - lists[4]).max() > 0.5, "the others are not determined"


def test_merged_guesses_average_standardised_scores_and_vote_on_picks():
    merged = MergedGuesses()
    merged.add({"a": Guess(np.array([0.0, 2.0]), np.array([True, False]))})
    merged.add({"a": Guess(np.array([0.0, 9.0]), np.array([False, False])), "b": Guess(np.array([3.0, 1.0]))})
    guesses = merged.guesses()
    assert guesses["a"].scores.tolist() == [-1, 1] and guesses["a"].picks.tolist() == [True, False]
    assert guesses["b"].scores.tolist() == [1, -1] and guesses["b"].picks is None
    lists = Guess(np.zeros(3), None, np.array([[True, False, False], [True, True, False]]))
    assert lists.for_length(2).picks.tolist() == [True, True, False]


# Runs


def test_counts_of_six_rounds_with_changing_groups_reveal_the_lists_of_fedals():
    """Version 0.6.0: the same counts in every round, in groups that change."""
    stage = replace(world_of("fedals", "secure=10")[0].wire.stage, secure_sum=Regrouped(10, most=60))
    six_rounds, one_round = (attack("fedals", "secure=10", rounds, stage, True) for rounds in (6, 1))
    name = f"{COUNTS} (sums)"
    assert six_rounds.attacks[name] > 0.9 and six_rounds.f1 > 0.9 and six_rounds.worst_f1 == 1.0
    assert one_round.attacks[name] < 0.8, "one round of counts determines little"
    assert (six_rounds.rounds, six_rounds.in_sum, six_rounds.people) == (6, 10, 40)


def test_fixed_groups_do_not_protect_fedals():
    """Counts are sent once, so later rounds add nothing to them. The sum of one round reveals the lists anyway."""
    three_rounds, one_round = (attack("fedals", "secure=10", rounds) for rounds in (3, 1))
    name = f"{COUNTS} (sums)"
    assert three_rounds.attacks[name] == pytest.approx(one_round.attacks[name], abs=0.01)
    assert three_rounds.attacks["lists of sums"] > 0.8 and three_rounds.f1 > 0.8


def test_dropouts_make_recovery_from_cohort_sums_better():
    """All people are in one sum. With drop-outs the sums of two rounds differ by the lists of a few people."""
    name = f"{COUNTS} (sums)"
    without_dropout, with_dropout = (
        attack("fedals", "secure", 6, None, True, dropout=dropout).attacks[name] for dropout in (0.0, 0.02)
    )
    assert with_dropout > without_dropout + 0.02


def test_fedmf_has_no_count_attacks_and_merged_rounds_beat_popularity():
    result = attack("fedmf", "secure=10", 4)
    assert result.f1 > result.popularity_f1
    assert not any(name.startswith(COUNTS) for name in result.attacks)


def test_the_audit_reports_the_attack_over_all_rounds():
    settings = Settings(data=DATA, method="fedals", wire="secure=10")
    loaded = load(DATA)
    result = audit(settings, make_task(settings, loaded), loaded.titles, AuditScope(rounds=6, people=40, canaries=0))
    assert (result.rounds, result.planned_rounds, result.in_sum) == (6, 8, 10)
    assert result.f1 > 0.8 and result.worst_f1 == 1.0 and result.helped


def test_local_noise_lowers_the_recovery_from_secure_sums():
    plain, noisy = (attack("fedmf", wire, 2).f1 for wire in ("clip=1.0,secure=3", "clip=1.0,noise=100,secure=3"))
    assert noisy < plain


def test_a_run_whose_rounds_send_different_messages_reports_its_leak(here):
    """Everybody sends counts, and not everybody is in the sums of later rounds."""
    options = ("--data", "synthetic:200x60x3000", "--method", "fedseq", "--set", "participations=2", "--set", "k=8")
    result = fedtaste("run", *options, "--wire", "secure", "--threads", 1, "--json", "--out", "run").json
    assert 0 < result["secure"]["f1"] <= 1
