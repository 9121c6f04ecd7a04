"""`fedtaste reproduce`: the table of papers, figures read from results, and the command."""

from __future__ import annotations

import json
import re

import pytest

from fedtaste.cli.reproduce import show
from fedtaste.experiment.papers import PAPERS, ReproducedRow, Reproduction, read_figure
from fedtaste.experiment.result import CurvePoint, RunResult
from fedtaste.experiment.settings import Settings
from support.command import fedtaste


@pytest.mark.parametrize("name", PAPERS)
def test_every_case_has_valid_settings_and_published_figures_of_its_columns(name):
    paper = PAPERS[name]
    for case in paper.cases:
        assert Settings(**case.settings).method
        assert set(case.published) <= set(paper.figures)
    assert re.search(r"(more|less) is better", paper.reading, re.I)
    assert paper.differences and any(column.startswith(paper.axis) for column in paper.figures)


def _point(round, valid=None, loss=None):
    fields = {"change": None, "answered": None, "zeros": None, "gradients": None, "up_bytes": 0, "down_bytes": 0}
    return CurvePoint(round=round, loss=loss, valid=valid, **fields)


def test_a_figure_is_a_metric_or_a_value_of_one_round():
    result = RunResult.model_construct(curve=(_point(1, loss=0.25), _point(10, valid={"ndcg@10": 0.4})))
    assert read_figure(result, "round 1: loss") == 0.25
    assert read_figure(result, "round 10: ndcg@10") == 0.4
    assert read_figure(result, "round 10: hr@10") is None and read_figure(result, "round 2: loss") is None


def test_the_worked_example_is_reproduced(tmp_path):
    found = fedtaste("reproduce", "federated-sgd", "--out", tmp_path / "sgd", "--json").json
    assert [row["label"] for row in found["rows"]] == ["FedSGD", "centralised"]
    assert found["rows"][0]["ours"]["largest error of a weight"] < 1e-5
    assert (tmp_path / "sgd" / "reproduction.png").exists()
    assert json.loads((tmp_path / "sgd" / "reproduction.json").read_text()) == found


def test_the_output_explains_the_figures_and_both_values_of_a_cell(tmp_path, capsys):
    rows = (
        ReproducedRow(
            label="a case", command="fedtaste run", ours={"error": 2.4, "other": None}, published={"error": 0.0}
        ),
    )
    found = Reproduction(paper="p", title="P: a paper", reading="Less is better.", rows=rows, differences=("Why.",))
    show(found, tmp_path / "plot.png")
    printed = " ".join(capsys.readouterr().out.split())
    for part in (
        "P: a paper Less is better. Every cell is ours / theirs",
        "2.40 / 0.00",
        "- / -",
        "- Why.",
        "plot.png",
    ):
        assert part in printed


def test_an_unknown_paper_is_refused_with_a_similar_name():
    fedtaste("reproduce", "fedrecn").refused("fedrecon")
