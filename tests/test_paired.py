"""Paired statistics and stored scores of people: exact answers, coverage, and files that equal the results."""

from __future__ import annotations

import doctest
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from fedtaste.evaluation import paired
from fedtaste.evaluation.paired import PersonSums, holm, paired_differences, randomisation_test
from fedtaste.evaluation.protocol import PredictionErrors
from fedtaste.experiment.result import Difference, SeedSummary
from fedtaste.experiment.scores import PersonScores, person_scores, person_sums
from fedtaste.report.differences import Study, difference_note
from support.command import fedtaste

WORLD = ("--data", "synthetic:40x40x400", "--threads", "1", "--rounds", "2", "--json")


def sums_of(values, counts=None, root=False) -> PersonSums:
    values = np.array(values, float)
    return PersonSums(values, np.ones_like(values) if counts is None else np.array(counts, float), root)


def test_docstring_examples_of_paired_statistics():
    assert doctest.testmod(paired).failed == 0


def test_a_difference_is_the_mean_over_seeds_of_the_differences_of_means():
    first = sums_of([[1, 1], [0, 1], [1, 0]], counts=[[1, 1], [1, 1], [1, 0]])  # the third person: only in seed 0
    second = sums_of([[0, 1], [0, 0], [1, 0]], counts=[[1, 1], [1, 1], [1, 0]])
    (difference,) = paired_differences([first, second])
    assert difference.by_seed == pytest.approx([1 / 3, 1 / 2]) and difference.mean == pytest.approx(5 / 12)
    assert difference.interval[0] <= difference.mean <= difference.interval[1]


def test_rmse_is_the_root_of_the_ratio_of_sums():
    first = sums_of([[4.0], [5.0]], counts=[[1], [8]], root=True)
    assert first.by_seed()[0].tolist() == [1.0]
    (difference,) = paired_differences([first, sums_of([[16.0], [20.0]], counts=[[1], [8]], root=True)])
    assert difference.mean == -1.0


def test_equal_methods_have_a_difference_of_zero_and_p_of_one():
    same = sums_of(np.random.default_rng(0).random((50, 3)))
    (difference,) = paired_differences([same, same])
    assert (difference.mean, difference.interval, difference.p, difference.p_holm) == (0.0, [0.0, 0.0], 1.0, 1.0)


def test_the_randomisation_test_agrees_with_all_sign_changes():
    values = np.array([0.9, 0.4, -0.2, 0.7, 0.3, 0.1, 0.5])
    sums = [abs(np.dot(signs, values)) for signs in product((1, -1), repeat=len(values))]
    exact = np.mean([total >= abs(values.sum()) - 1e-12 for total in sums])
    assert randomisation_test(values[:, None])[0] == pytest.approx(exact, abs=0.01)


def test_intervals_over_people_cover_the_true_difference_in_95_of_100_cases():
    generator, covered, claimed = np.random.default_rng(1), 0, 0
    for _ in range(200):
        person = generator.normal(0, 1, (80, 1))  # what a person's scores share in all seeds
        first = person + generator.normal(0, 0.5, (80, 3))
        second = generator.normal(0, 1, (80, 1)) + generator.normal(0, 0.5, (80, 3))
        (difference,) = paired_differences([sums_of(first), sums_of(second)])
        low, high = difference.interval
        covered, claimed = covered + (low <= 0 <= high), claimed + (difference.p < 0.05)
    assert 183 <= covered <= 198 and claimed <= 20


def test_holm_corrects_for_the_number_of_tests():
    assert holm([]) == [] and holm([0.2]) == [0.2]
    assert holm([0.01, 0.02, 0.9]) == pytest.approx([0.03, 0.04, 0.9]) and holm([0.6, 0.7]) == [1.0, 1.0]


@pytest.mark.parametrize("options", ["", "--task ratings", "--new-people folds", "--task ratings --new-people folds"])
def test_stored_scores_give_the_figures_of_the_result(options, tmp_path):
    result = fedtaste("run", *WORLD, *options.split(), "--out", tmp_path / "run").json
    scores = PersonScores.read(tmp_path / "run")
    assert (tmp_path / "run/scores.safetensors").stat().st_mode & 0o77 == 0
    for who in ("seen", "new"):
        people, figures = scores.people(who), result[who]
        assert len(people) == len(set(people.tolist())) == figures["people"]
        for key, value in flat(figures).items():
            stored = person_sums([scores], ["data"], f"{who}.{key}")
            assert stored.by_seed()[0, 0] == pytest.approx(value, abs=1e-6), key
    folds = "folds" in options
    assert folds == bool(set(scores.people("seen").tolist()) & set(scores.people("new").tolist()))


def flat(figures: dict) -> dict[str, float]:
    """Metrics by dotted name."""
    parts = {f"{kind}.{n}": v for kind, part in figures.items() if isinstance(part, dict) for n, v in part.items()}
    return parts or {name: value for name, value in figures.items() if name != "people"}


def test_errors_of_several_folds_belong_to_their_people():
    owners = [f"{fold}/{place}" for fold in (0, 1) for place in (11, 2, 2)]
    columns = person_scores(PredictionErrors([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], owners))
    assert columns["rmse"].tolist() == [13.0, 1.0, 61.0, 16.0] and columns["examples"].tolist() == [2, 1, 2, 1]


@pytest.mark.parametrize("data", ["linear", "logistic"])
def test_scores_of_clients_are_stored(data, tmp_path):
    result = fedtaste("run", "--data", data, "--method", "fedavg", "--rounds", 2, "--threads", 1, "--json",
                      "--out", tmp_path / "run").json  # fmt: skip
    scores = PersonScores.read(tmp_path / "run")
    key = "rmse" if data == "linear" else "accuracy"
    stored = person_sums([scores], [""], f"seen.{key}")
    assert stored.by_seed()[0, 0] == pytest.approx(result["seen"][key], abs=1e-6)


def test_a_private_run_stores_no_scores(tmp_path):
    fedtaste("run", *WORLD, "--method", "fedmf", "--wire", "clip=1,noise=1", "--out", tmp_path / "run")
    assert (tmp_path / "run/result.json").exists() and PersonScores.read(tmp_path / "run") is None


def test_people_of_data_that_a_seed_generates_are_other_people(tmp_path):
    runs = []
    for seed in (0, 1):
        fedtaste("run", *WORLD, "--seed", seed, "--out", tmp_path / str(seed))
        runs.append(PersonScores.read(Path(tmp_path / str(seed))))
    key = "seen.sampled.hr@10"
    together, apart = (len(person_sums(runs, worlds, key).sums) for worlds in (["a", "a"], ["a", "b"]))
    assert apart == sum(len(run.people("seen")) for run in runs) > together


def test_the_note_counts_the_seeds_that_are_paired():
    pair = Difference(first="a", second="b", metric="m", difference=0.1, interval=(0.0, 0.2), p=0.5, p_holm=0.5,
                      people=40, by_seed=(0.1, 0.1))  # fmt: skip
    notes = [difference_note(Study("m", "a", SeedSummary(seeds=seeds, methods=()), (pair,))) for seeds in
             ((0, 1), (0, 1, 2))]  # fmt: skip
    assert "scores of all 2 seeds." in notes[0] and "scores of the 2 seeds that all methods have." in notes[1]
