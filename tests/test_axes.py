"""Fronts over accuracy, bytes and epsilon at once (`fedtaste compare --axes`)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedtaste.errors import SettingError
from fedtaste.report.html import headline
from fedtaste.report.pareto import epsilon_of, parse_axes
from fedtaste.report.style import quiet_style
from fedtaste.report.trade_off import trade_off
from fedtaste.report.trade_off_plots import front_plot, surface_plot
from support.command import fedtaste
from support.reports import make_result

pytestmark = pytest.mark.usefixtures("here")

AXES = ("accuracy", "bytes", "epsilon")


def result(method, value, sent, epsilon=None):
    return make_result(
        method=method, rounds=3, seen={"sampled": {"ndcg@10": value, "hr@10": value}}, traffic={"up_bytes": sent},
        privacy=None if epsilon is None else {"epsilon": epsilon, "delta": 1e-6},
        intervals={"seen": {"sampled": {"ndcg@10": [value - 0.01, value + 0.01]}}},
    )  # fmt: skip


RUNS = [
    result("fedals", 0.5, 900),  # the best
    result("fedveil", 0.3, 100, 1.0),
    result("fedveil", 0.4, 100, 3.0),
    result("fedmf", 0.35, 200, 3.0),  # worse than the one before on all axes
    result("popularity", 0.2, 10, 3.0),  # few bytes
    result("local", 0.1, 0),  # no uploads
]


def test_the_front_holds_the_results_that_no_other_beats_on_all_axes():
    choice = trade_off(RUNS, axes=AXES)
    assert [RUNS[i].method for i in choice.surface.front] == ["fedals", "fedveil", "fedveil", "popularity", "local"]
    surface = choice.summary().dump()["surface"]
    assert surface["axes"] == list(AXES) and len(surface["points"]) == 6 and len(surface["front"]) == 5
    assert surface["points"][0]["epsilon"] is None and surface["points"][5]["epsilon"] == 0.0
    json.dumps(surface, allow_nan=False)
    two = trade_off(RUNS, axes=("accuracy", "bytes")).surface
    assert [RUNS[i].method for i in two.front] == ["fedals", "fedveil", "popularity", "local"]


def test_epsilon_is_infinite_without_privacy_and_zero_without_uploads():
    assert epsilon_of(RUNS[0]) == float("inf") and epsilon_of(RUNS[5]) == 0.0 and epsilon_of(RUNS[1]) == 1.0


def test_the_advice_names_the_best_run_for_every_epsilon():
    advice = trade_off(RUNS).advice
    assert "Highest test NDCG@10 with epsilon 1: FedVeil (0.300); with 3: FedVeil (0.400)." in advice
    assert "epsilon" in trade_off(RUNS).fronts and "epsilon" not in trade_off([RUNS[0], RUNS[5]]).fronts


def test_no_advice_is_given_by_test_figures_of_several_settings_without_validation():
    swept = [changed_lam(0.3, 0.01), changed_lam(0.5, 0.1), changed_lam(0.4, 1.0)]
    alone = trade_off(swept, axes=AXES)
    assert "Highest" not in alone.advice and not any(alone.fronts.values()) and not alone.surface.front
    assert front_plot(alone) is None and headline(swept, alone).startswith("Of 3 runs none is chosen")
    assert "Several settings of FedALS were tried without validation figures, so none of" in alone.advice
    both = trade_off([*swept, RUNS[2]])
    assert "Highest test NDCG@10 with epsilon 3: FedVeil (0.400). Several settings of FedALS" in both.advice
    assert both.fronts["bytes"] == [3]
    assert "Several settings" not in trade_off(RUNS).advice  # one setting for each epsilon


def changed_lam(value, lam):
    """A private run of FedALS, which has no validation figures."""
    return result("fedals", value, 900, 3.0).model_copy(update={"settings": {"lam": lam}})


def test_the_alternative_text_of_the_plot_names_every_run():
    with quiet_style():
        plot = surface_plot(trade_off(RUNS, axes=AXES), RUNS)
    assert plot.name == "privacy" and "FedALS: 0.500 without a promise, 900 B" in plot.alt
    assert plot.alt.count("at epsilon 3") == 3
    assert surface_plot(trade_off(RUNS, axes=("accuracy", "bytes")), RUNS) is None


@pytest.mark.parametrize("text", ["bytes", "accuracy", "accuracy,byte", ""])
def test_invalid_axes_are_refused(text):
    with pytest.raises(SettingError):
        parse_axes(text)


def test_compare_runs_every_epsilon(here):
    comparison = fedtaste(
        "compare", "--methods", "popularity,fedveil", "--data", "synthetic:60x40x900", "--threads", "1", "--json",
        "--wire", "clip=1", "--epsilon", "1,none", "--axes", "accuracy,bytes,epsilon", "--out", "both",
    ).json  # fmt: skip
    assert {Path(r["run"]).name for r in comparison["results"]} == {
        f"{method}-epsilon={e}" for method in ("popularity", "fedveil") for e in ("1", "none")
    }
    promised = [r["privacy"] and r["privacy"]["epsilon"] for r in comparison["results"]]
    assert promised.count(None) == 2 and all(e is None or 0.98 < e <= 1 for e in promised)
    assert comparison["tradeoff"]["surface"]["axes"] == list(AXES)
    assert (here / "both/plots/privacy.png").exists()
    output = fedtaste("report", "both", "--json")
    assert output.code == 0 and (here / "both/plots/privacy.png").exists()
    args = ("--methods", "popularity", "--data", "synthetic:60x40x900", "--epsilon", "1,lots", "--json")
    fedtaste("compare", *args).refused("lots")
