"""The trade-off of quality and costs: fronts against brute force, advice that respects intervals, and its plots."""

from __future__ import annotations

import doctest
import io
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from fedtaste.experiment.result import Heterogeneity, RunResult
from fedtaste.report import curves as plots
from fedtaste.report import html as report
from fedtaste.report import tables
from fedtaste.report import trade_off as tradeoff
from fedtaste.report.trade_off import front, trade_off
from support.command import QUICK, fedtaste
from support.reports import EVIL, RATINGS, Page, changed, make_result, page_of, ranking

LAMS = {0.01: (0.74, 0.55), 0.1: (0.79, 0.62), 1: (0.84, 0.66), 10: (0.83, 0.69), 100: (0.76, 0.7), 1000: (0.71, 0.7)}
MEASURED = Heterogeneity(R=0.42, noise=0.16, n=40, clients=50, lam=0.74)


def result_of(method: str, level: float, shared: float | None = None, *, lam: float | None = None, mb: float = 3.6,
             half: float | None = 0.02, passes: float = 5, rounds: int = 30, **changes) -> RunResult:  # fmt: skip
    """A result of the labels task, as a run writes it."""
    values = {"accuracy": level, "loss": 1.2 - level, "global_accuracy": shared, "global_loss": shared and 1.3 - shared}
    values = {key: value for key, value in values.items() if value is not None}
    spread = {key: [value - half, value + half] for key, value in values.items()} if half else {}
    half_bytes = round(mb * 1e6 / 2)
    curve = [
        {"round": n, "up_bytes": half_bytes * n // rounds, "down_bytes": half_bytes * n // rounds,
         "gradients": passes * n, "valid": {"accuracy": level - 0.025 * rounds / n} |
         ({"global_accuracy": shared - 0.025 * rounds / n} if shared else {}), "loss": 1.2 - level + 0.3 / n}
        for n in range(1, rounds + 1)
    ]  # fmt: skip
    result = {
        "data": "synthetic-labels", "task": "labels", "method": method, "protocol": "clean", "seed": 0,
        "settings": {"lr": 0.1} if lam is None else {"lr": 0.1, "lam": lam}, "rounds": rounds, "best_round": rounds,
        "people": 50, "seen": {"people": 50, **values}, "intervals": {"seen": spread}, "new": None, "curve": curve,
        "gradients": {"per_person_round": passes, "total": passes * rounds}, "notes": [],
        "traffic": {"up_bytes": half_bytes, "down_bytes": half_bytes,
                    "up_bytes_per_person_round": half_bytes // rounds // 50},
        "seconds": {"setup": 0.1, "train": 0.2 * passes, "evaluate": 0.1, "round": 0.2 * passes / rounds},
        "stopped": {"round": rounds + 5, "reason": "all rounds were run"}, "run": f"runs/{method}",
    }  # fmt: skip
    return make_result(**(result | changes))


def sweep(mb=(0.5, 0.9, 3.6, 1.2, 4.1, 4.4), passes=(40, 30, 12, 6, 4, 3), **more) -> list[RunResult]:
    """Results of FedCLUP for six values of lam."""
    return [
        result_of("fedclup", *levels, lam=lam, mb=m, passes=p, rounds=round(8 * m), **more)
        for (lam, levels), m, p in zip(LAMS.items(), mb, passes)
    ]


LOCAL, FEDAVG = result_of("local", 0.7, mb=0, passes=20), result_of("fedavg", 0.62, 0.62, mb=4.5)
EIGHT = [*sweep(), LOCAL, FEDAVG]

maybe = st.none() | st.integers(0, 4)
pairs = st.lists(st.tuples(maybe, maybe), max_size=12)


@settings(deadline=None)
@given(pairs, st.sampled_from([1, -1]))
def test_the_front_equals_a_brute_force_search(points, better):
    values, paid = [v for v, _ in points], [c for _, c in points]
    expected = []
    for i, (v, c) in enumerate(points):
        if v is None or c is None:
            continue  # a missing value is never on a front
        rivals = [(w, d) for w, d in points if w is not None and d is not None]
        as_good = [(w, d) for w, d in rivals if better * w >= better * v and d <= c]
        if not any(better * w > better * v or d < c for w, d in as_good):
            expected.append(i)
    front_places = front(values, paid, better)
    assert front_places == expected
    known = [i for i, (v, c) in enumerate(points) if v is not None and c is not None]
    assert bool(front_places) == bool(known)
    for i in known:  # every result is on the front, or a result on the front beats it
        assert i in front_places or any(
            better * values[j] >= better * values[i] and paid[j] <= paid[i] for j in front_places
        )


def test_equal_runs_are_all_on_the_front():
    assert front([1, 1, 0], [2, 2, 2]) == [0, 1] and front([1, 1], [2, 3]) == [0] and front([], []) == []


def test_the_best_value_of_a_sweep_is_chosen_between_local_and_fedavg():
    outcome = trade_off(EIGHT, MEASURED)
    assert outcome.quality.key == "seen.accuracy" and outcome.choice == 2
    assert outcome.sweep.key == "lam" and outcome.sweep.places == [0, 1, 2, 3, 4, 5] and outcome.sweep.degree
    assert outcome.fronts == {"rounds": [0, 1, 2, 3], "bytes": [0, 1, 2, 3, 6], "gradients": [2, 3]}
    assert outcome.advice == (
        "Choose lam=1 (the smaller lam, the more personal) by validation accuracy 0.815: test accuracy 0.840 "
        "[0.820–0.860], 3.6 MB sent; on validation, lam=10 is within the noise of that at a third of the bytes "
        "(1.2 MB). Both ends, Local 0.675 and FedAvg 0.595, are worse. Clients differ by R = 0.42 while a client’s own "
        "n = 40 examples leave an error of 0.16: R is above that, so personalisation should pay; theory would take lam "
        "near 0.74."
    )
    summary = outcome.summary().dump()
    assert json.loads(json.dumps(summary)) == summary and summary["choice"] == "FedCLUP lam=1"
    assert summary["metric"] == "seen.accuracy" and "Local" in summary["front"]["bytes"]
    assert list(summary) == ["metric", "front", "choice", "advice", "basis", "validation", "not_chosen"]
    assert summary["basis"] == "validation" and summary["validation"]["FedCLUP lam=1"] == pytest.approx(0.815)
    assert summary["not_chosen"] == [f"FedCLUP lam={lam}" for lam in (0.01, 0.1, 10, 100, 1000)]
    shuffled = trade_off(EIGHT[::-1], MEASURED)
    assert shuffled.advice.replace("FedAvg 0.595 and Local 0.675", "Local 0.675 and FedAvg 0.595") == outcome.advice


@pytest.mark.parametrize(
    "difference, text",
    [(0.5, "above that, so personalisation"), (0.05, "below that, so sharing"), (0.17, "about that, so something")],
)
def test_the_advice_explains_the_measured_heterogeneity(difference, text):
    assert text in trade_off(EIGHT, MEASURED.model_copy(update={"R": difference})).advice
    assert "lam near 1,200." in trade_off(EIGHT, MEASURED.model_copy(update={"lam": 1234.5})).advice
    assert "Clients differ" not in trade_off(EIGHT).advice
    assert "theory" not in trade_off(EIGHT, MEASURED.model_copy(update={"lam": None})).advice
    assert "theory" not in trade_off([LOCAL, FEDAVG], MEASURED).advice  # neither has a lam


def test_the_advice_names_a_best_value_at_the_edge_of_the_sweep():
    rising = [result_of("fedclup", level, lam=lam) for lam, level in ((0.1, 0.5), (1, 0.6), (10, 0.7))]
    assert "try larger ones" in trade_off(rising).advice
    falling = [result_of("fedclup", level, lam=lam) for lam, level in ((0.1, 0.7), (1, 0.6), (10, 0.5))]
    assert "try smaller ones" in trade_off(falling).advice
    zero = [result_of("fedclup", level, lam=lam) for lam, level in ((0, 0.7), (1, 0.6), (10, 0.5))]
    assert "edge" not in trade_off(zero).advice  # 0 is the smallest value
    assert "edge" not in trade_off(EIGHT).advice
    noisy = [result_of("fedclup", level, lam=lam, half=0.3) for lam, level in ((0.1, 0.5), (1, 0.6), (10, 0.7))]
    assert "edge" not in trade_off(noisy).advice  # the best value is uncertain


def test_the_advice_claims_no_difference_where_intervals_overlap():
    close = [
        result_of(name, level, half=0.05) for name, level in (("fedavg", 0.80), ("fedper", 0.81), ("fedrep", 0.82))
    ]
    advice = trade_off(close).advice
    assert advice.startswith("Choose FedRep by validation accuracy 0.795: test accuracy 0.820")
    assert "worse" not in advice
    assert "within the noise of that, but no cheaper" in advice
    ends = [*sweep(half=0.2), changed(LOCAL, intervals={"seen": {}})]
    assert "worse" not in trade_off(ends).advice
    wide = [result_of("fedper", 0.9, half=0.01), result_of("fedrep", 0.8, half=0.2)]  # its own interval is wide
    assert "FedRep with 0.800, not clearly worse" in trade_off(wide).advice
    bare = trade_off([result_of("fedper", 0.9, half=None), result_of("fedrep", 0.8, half=None)]).advice
    assert "small differences may be noise" in bare and "worse" not in bare and "within" not in bare


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0.2, 0.9), st.floats(0.001, 0.3)), min_size=2, max_size=6))
def test_the_advice_calls_a_run_worse_only_outside_the_interval(runs):
    results = [result_of("fedclup", level, lam=10.0**i, half=half) for i, (level, half) in enumerate(runs[1:])]
    results.append(result_of("local", runs[0][0], half=runs[0][1]))
    outcome = trade_off(results)
    best, (low, high) = outcome.levels[outcome.choice], outcome.spreads[outcome.choice]
    assert best == max(outcome.levels) and outcome.valid[outcome.choice] == max(outcome.valid)
    if "worse" in outcome.advice.replace("not clearly worse", ""):
        assert not low <= outcome.levels[-1] <= high


some = st.none() | st.floats(0.1, 0.9)
runs = st.builds(
    result_of, st.sampled_from(["fedclup", "ditto", "local", "fedavg", "centralised", "fedper"]), st.floats(0.1, 0.9),
    some, lam=st.none() | st.sampled_from([0, 0.1, 1, 10]), half=st.none() | st.floats(0.001, 0.5),
    traffic=st.builds(lambda n: {"up_bytes": n, "down_bytes": n}, st.integers(0, 3)),
)  # fmt: skip
empty = st.builds(make_result, method=st.sampled_from(["fedclup", "local"]), data=st.just("synthetic-labels"))


@settings(deadline=None)
@given(st.lists(runs | empty, min_size=2, max_size=7), st.none() | st.just(MEASURED))
def test_any_set_of_results_gives_a_complete_advice(results, measured):
    outcome = trade_off(results, measured)
    if outcome is None:
        assert all(result.metric("seen.accuracy") is None for result in results)
        return
    assert outcome.advice.endswith(".")
    assert not any(word in outcome.advice for word in ("None", "nan", "  ", " ,", ";."))
    assert all(i in range(len(results)) for places in outcome.fronts.values() for i in places)
    pooled = any(result.method == "centralised" for result in results)
    if outcome.choice is None:
        assert "No choice is made" in outcome.advice
    elif outcome.costs["bytes"][outcome.choice] is not None and not pooled:
        assert outcome.withheld == frozenset() or outcome.choice in outcome.fronts["bytes"]


def test_local_or_fedavg_may_be_the_choice():
    outcome = trade_off([*sweep(), LOCAL, result_of("fedavg", 0.9, 0.9)], MEASURED.model_copy(update={"R": 0.1}))
    assert outcome.advice.startswith(
        "Choose FedAvg (one model for all) by validation accuracy 0.875: test accuracy 0.900"
    )
    assert "next comes lam=1 with 0.815" in outcome.advice and "sharing should pay; theory" in outcome.advice
    outcome = trade_off([*sweep(), LOCAL, result_of("fedavg", 0.9, 0.9)], MEASURED)
    assert "which these runs do not show" in outcome.advice
    outcome = trade_off([*sweep(), result_of("local", 0.85, mb=0)])
    assert "Choose Local (nothing shared) by validation accuracy 0.825: test accuracy 0.850 [0.830–" in outcome.advice
    assert "nothing sent; " in outcome.advice
    mixed = trade_off([*sweep(), result_of("local", 0.825, mb=0), FEDAVG]).advice
    assert "Local is within the noise of that and sends nothing. FedAvg 0.595 is worse." in mixed


def test_several_methods_are_compared_by_name():
    outcome = trade_off([result_of("fedper", 0.8, mb=1), result_of("ditto", 0.81, mb=4), result_of("fedavg", 0.6)])
    assert outcome.sweep is None and outcome.advice == (
        "Choose Ditto by validation accuracy 0.785: test accuracy 0.810 [0.790–0.830], 4.0 MB sent; on test, FedPer is "
        "within the noise of that at a quarter of the bytes (1.0 MB)."
    )
    outcome = trade_off([*sweep(), result_of("fedper", 0.95)])  # another method beside a sweep: names in full
    assert "next comes FedCLUP lam=1 with 0.815" in outcome.advice
    pooled = trade_off([LOCAL, FEDAVG, result_of("centralised", 0.9)])
    assert pooled.choice == 0 and "Centralised, which pools the data, has 0.900 on test." in pooled.advice
    tie = trade_off([result_of("fedper", 0.8, mb=3), result_of("fedrep", 0.8, mb=2)])
    assert tie.choice == 1


def test_rankings_and_ratings_use_their_own_metrics():
    outcome = trade_off([ranking("fedals", 0.74), ranking("fedrecon", 0.73, 60, 10_000)])
    assert outcome.quality.key == "seen.sampled.ndcg@10" and outcome.fronts["gradients"] == []
    assert "Choose FedALS by validation NDCG@10 0.360: test NDCG@10 0.370 [0.350–0.390]" in outcome.advice
    assert "FedRecon is within the noise" in outcome.advice
    rated = changed(RATINGS, best_round=2, rounds=2)
    worse = changed(rated, method="fedavg", valid={"rmse": 1.9}, seen={"rmse": 1.2, "accuracy": 0.9})
    outcome = trade_off([rated, worse])
    assert outcome.quality.key == "seen.rmse" and outcome.choice == 0  # less error is better
    ks = [ranking(settings={"k": k, "lam": 0.1}, level=level) for k, level in ((8, 0.5), (16, 0.7), (32, 0.6))]
    outcome = trade_off(ks)
    assert outcome.sweep.key == "k" and not outcome.sweep.degree
    assert outcome.advice.startswith("Choose k=16 by validation NDCG@10 0.340: test NDCG@10 0.350")
    ridge = [ranking(settings={"lam": lam}, level=level) for lam, level in ((0.1, 0.5), (1, 0.7))]
    assert "personal" not in trade_off(ridge).advice  # lam of FedALS has another meaning


def test_too_few_or_incomparable_results_give_no_choice():
    nothing = make_result(method="fedclup", data="synthetic-labels")
    assert trade_off([]) is trade_off([EIGHT[0]]) is trade_off([nothing] * 3) is None
    single = trade_off([EIGHT[0], nothing])
    assert single.choice == 0 and "nothing to weigh it against" in single.advice
    assert trade_off([LOCAL, changed(FEDAVG, data="other")]).choice is None
    leaking = trade_off([changed(LOCAL, protocol="published"), changed(FEDAVG, protocol="published")])
    assert leaking.choice is None and "leaks" in leaking.advice and leaking.summary().choice is None


@pytest.mark.parametrize("key", ["gradients", "leak", "interactions", "privacy", "new"])
def test_results_with_missing_parts_are_rendered(key):
    results = [changed(r, **{key: None}) for r in EIGHT]
    outcome = trade_off(results, MEASURED)
    assert outcome is not None
    tables.text_table(results, outcome)
    assert Page(report.render(results, tradeoff=outcome)).text


def test_the_choice_goes_by_validation_where_test_says_otherwise(real_plots):
    """A setting that is best on test is not chosen, and its test figures are in no table, page or plot."""
    lucky = changed(result_of("fedclup", 0.9123, lam=1), valid={"accuracy": 0.6})
    sound = changed(result_of("fedclup", 0.8, lam=2), valid={"accuracy": 0.7})
    outcome = trade_off([lucky, sound])
    assert outcome.choice == 1 and outcome.withheld == {0} and outcome.values == [None, 0.8]
    rows = tables.withhold([lucky, sound], outcome.withheld)
    console = Console(width=120, file=io.StringIO())
    console.print(tables.text_table(rows, outcome))
    page = report.render(rows, plots.draw(rows, tradeoff=outcome), outcome)
    for text in (console.file.getvalue(), page, outcome.advice):
        assert "0.912" not in text and "0.9123" not in text
    assert "0.600" in console.file.getvalue() and "0.700" in page and "0.800" in page
    methods = [changed(lucky, method="ditto"), changed(sound, method="apfl")]  # methods are compared on test
    outcome = trade_off(methods)
    assert outcome.choice == 1 and outcome.withheld == frozenset() and outcome.basis == "test"
    assert "on test, Ditto lam=1 is ahead with 0.912" in outcome.advice.replace("Ditto is", "Ditto lam=1 is")


def test_no_choice_is_made_on_test_figures():
    private = changed(result_of("fedavg", 0.9), curve=[], privacy={"epsilon": 1.0, "delta": 1e-6})
    outcome = trade_off([private, LOCAL])
    assert outcome.choice is None and "No choice is made: FedAvg has no validation figures" in outcome.advice
    assert outcome.values == [0.9, 0.7]  # methods are shown on test all the same
    outcome = trade_off([private, *sweep()])
    assert outcome.choice is None and "Of the settings tried, validation accuracy chose FedCLUP lam=1 (0.815)." in (
        outcome.advice
    )


def test_find_sweep_finds_the_varied_number():
    derived = [result_of("fedclup", 0.5, lam=lam, settings={"lam": lam, "rate": 1 + lam}) for lam in (1, 2)]
    assert tradeoff.find_sweep(derived).key == "lam"
    grid = [result_of("ditto", 0.5, settings={"lam": lam, "lr": lr}) for lam in (1, 2) for lr in (3, 4)]
    assert tradeoff.find_sweep(grid) is None
    optimizers = [result_of("ditto", 0.5, settings={"server": name}) for name in ("adam", "sgd")]
    assert tradeoff.find_sweep(optimizers) is None


def test_labels_omit_rounds_that_depend_on_other_settings():
    assert tables.labels(EIGHT)[:2] == ["FedCLUP lam=0.01", "FedCLUP lam=0.1"]  # though their rounds differ
    assert tables.labels([ranking(rounds=2), ranking(rounds=3)]) == ["FedALS rounds=2", "FedALS rounds=3"]


def test_docstring_examples_of_trade_off():
    assert doctest.testmod(tradeoff).failed == 0


# Page, plots and terminal


def by_client(level: float) -> list[dict]:
    names = ("amazon", "caltech", "dslr", "webcam", EVIL)
    return [
        {"client": name, "accuracy": level - 0.03 * i + (level > 0.7) * 0.07 * (i % 2), "examples": 100 + i}
        for i, name in enumerate(names)
    ]


def test_the_page_shows_the_advice_the_fronts_and_the_clients(tmp_path, real_plots):
    results = [changed(r, by_client=by_client(r.metric("seen.accuracy"))) for r in EIGHT[:-1]] + [FEDAVG]
    outcome = trade_off(results, MEASURED)
    page, text = page_of(results, tmp_path, tradeoff=outcome)
    assert outcome.advice in page.text and "script" not in {tag for tag, _ in page.tags} and EVIL in page.text
    marks = [(attrs["data-run"], attrs["data-cost"]) for _, attrs in page.tags if "data-cost" in attrs]
    assert marks == [(str(i), cost) for i in range(8) for cost in outcome.on_front(i)]
    assert sum(attrs.get("class") == "chosen" for _, attrs in page.tags) == 1
    table = tables.by_client(results)
    assert len(table.names) == 7 and [client for client, _, _ in table.rows][:2] == ["amazon", "caltech"]
    assert table.rows[0][2][2] == ("0.840", True)
    for name in ("gradients", "tradeoff", "sweep"):
        assert (tmp_path / "plots" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    # Without a trade-off there is no advice and no mark, and earlier plots are removed.
    page, _ = page_of([LOCAL, FEDAVG], tmp_path)
    assert "Choose" not in page.text and not (tmp_path / "plots" / "sweep.png").exists()


def test_plots_have_alternative_texts_with_their_values(real_plots):
    by_name = {plot.name: plot for plot in plots.draw(EIGHT, tradeoff=trade_off(EIGHT))}
    assert list(by_name)[:4] == ["tradeoff", "sweep", "convergence", "bytes"]
    assert "of validation accuracy by bytes. " in by_name["tradeoff"].alt
    assert "FedCLUP lam=10: 0.805 at 1.2 MB, on the front" in by_name["tradeoff"].alt
    assert "FedAvg: 0.595 at 4.5 MB." in by_name["tradeoff"].alt
    assert "Local sends nothing and has 0.675" in by_name["tradeoff"].alt
    assert "lam=1: 0.815, shared model 0.635" in by_name["sweep"].alt and "Local 0.675" in by_name["sweep"].alt
    methods = [result_of("fedper", 0.8, mb=1), result_of("ditto", 0.81, mb=4)]
    (tested,) = (plot for plot in plots.draw(methods, tradeoff=trade_off(methods)) if plot.name == "tradeoff")
    assert "of test accuracy by bytes. " in tested.alt and "Ditto: 0.810 [0.790–0.830] at 4.0 MB" in tested.alt
    assert "FedAvg ends at 150 with" in by_name["gradients"].alt
    for plot in by_name.values():
        assert plot.light.rstrip().endswith(b"</svg>") and plot.light != plot.dark and plot.caption.endswith(".")


def test_gradients_are_plotted_only_where_they_differ_from_rounds():
    names = lambda results: [plot.name for plot in plots.draw(results)]
    same = [result_of("fedavg", 0.7), result_of("fedper", 0.8)]
    assert "gradients" not in names(same) and "gradients" not in names(EIGHT[:1])
    assert "gradients" in names([*same, result_of("local", 0.6, passes=9)])


@pytest.mark.parametrize(
    "results",
    [
        [result_of("fedclup", 0.5, lam=lam) for lam in (0, 1)],
        [result_of("fedclup", 0.5, lam=lam, mb=0, half=None) for lam in (1, 2)],
        [changed(RATINGS, settings={"lam": lam}) for lam in (1, 2, 3)],
        [ranking("$x_1^{"), ranking("_hidden", 0.5)],
        [LOCAL, changed(FEDAVG, gradients=None)],
        [LOCAL, make_result(method="fedavg", settings={"lam": 1}), make_result(method="fedavg", settings={"lam": 2})],
    ],
)
def test_unusual_comparisons_are_plotted_without_a_warning(results, tmp_path, real_plots):
    page_of(results, tmp_path, tradeoff=trade_off(results))


def test_a_comparison_of_recommenders_fits_80_columns():
    names = ("popularity", "fedals", "fedrecon")
    results = [ranking(name, 0.5, gradients={"total": 40.0, "per_person_round": 10.0}) for name in names]
    for weighing in (None, trade_off(results)):
        console = Console(width=80, file=io.StringIO())
        console.print(tables.text_table(results, weighing))
        text = console.file.getvalue()
        assert max(map(len, text.splitlines())) <= 80 and "…" not in text and ("◆" in text) == bool(weighing)
    assert "40 in all, 10 per person and round" in Page(report.render(results)).text


@pytest.mark.parametrize("width", [80, 100])
def test_the_terminal_table_has_the_front(width):
    console = Console(width=width, file=io.StringIO())
    console.print(tables.text_table(EIGHT, trade_off(EIGHT)))
    text = console.file.getvalue()
    assert max(map(len, text.splitlines())) <= width and "…" not in text
    if width == 100:
        row = next(line for line in text.splitlines() if line.startswith("FedCLUP lam=10 "))
        for part in ("0.830", "0.370", "0.690", "1.2", "rbg"):
            assert part in row
    assert "front" in text and "front" not in str(tables.text_table(EIGHT).columns)


def test_names_in_the_advice_are_escaped(real_plots):
    results = [result_of(EVIL, 0.9), result_of("fedavg", 0.8), result_of("local", 0.7, settings={EVIL: 1})]
    results.append(result_of("local", 0.6, settings={EVIL: 2}))
    outcome = trade_off(results)
    text = report.render(results, plots.draw(results, tradeoff=outcome), tradeoff=outcome)
    assert EVIL in outcome.advice and EVIL not in text and f"Choose {EVIL}" in Page(text).text


def test_compare_saves_the_heterogeneity_for_later_reports(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    outcome = fedtaste("compare", "--methods", "popularity,fedals", *QUICK, "--out", "both").json
    summary = outcome["tradeoff"]
    results = [RunResult.model_validate(result) for result in outcome["results"]]
    assert summary == trade_off(results).summary().dump() and summary["metric"] == "seen.sampled.ndcg@10"
    assert summary["choice"] in ("Popularity", "FedALS") and summary["front"].keys() == {"rounds", "bytes", "gradients"}
    file = Path("both/compare.json")
    content = json.loads(file.read_text())
    assert content == {"runs": ["popularity", "fedals"], "heterogeneity": None, "left_out": {}}
    file.write_text(json.dumps(content | {"heterogeneity": MEASURED.dump()}))
    output = " ".join(fedtaste("report", "both").out.split())
    assert "Clients differ by R = 0.42" in output and summary["advice"] in output
    assert "Clients differ" in Path("both/report.html").read_text()
    file.write_text(json.dumps({"runs": content["runs"]}))  # a file of a version without trade-offs
    assert "Clients differ" not in fedtaste("report", "both").out
    assert fedtaste("compare", "--methods", "fedals", *QUICK, "--out", "one").json["tradeoff"] is None


def test_the_advice_notes_a_choice_that_was_best_in_its_last_round():
    runs = [result_of("ditto", 0.8), result_of("apfl", 0.6)]
    assert "more rounds" not in trade_off(runs).advice
    runs[0] = changed(runs[0], stopped={"round": runs[0].best_round})
    assert "It was best in the last round it had" in trade_off(runs).advice
