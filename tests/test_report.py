"""The report: one page without other files, which escapes all texts and shows the values of its results."""

from __future__ import annotations

import base64
import io
import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread
from rich.console import Console

from fedtaste.data.sources import load
from fedtaste.errors import RunError, SettingError
from fedtaste.experiment.folder import RunFolder
from fedtaste.experiment.result import RunResult
from fedtaste.experiment.settings import Settings
from fedtaste.experiment.train import execute, prepare
from fedtaste.methods import METHODS
from fedtaste.report import curves as plots
from fedtaste.report import html as report
from fedtaste.report import item_scatter, numbers, pareto
from fedtaste.report.curves import DataShape
from fedtaste.report.html import write_report
from fedtaste.report.numbers import human_bytes
from fedtaste.report.tables import columns, labels, method_name, text_table
from support.reports import EVIL, RATINGS, Page, changed, make_result, page_of, ranking

REGRESSION = make_result(
    data="linear", method="fedavg", rounds=3, seen={"rmse": 0.1, "weights_error": 0.02},
    curve=[{"round": 1, "loss": 2.0}, {"round": 2, "loss": 1.0}],
    weights=[1.0123, -2.02], true_weights=[1.0, -2.0],
)  # fmt: skip
SIX = [
    ranking(name, level, rounds, up)
    for name, level, rounds, up in [
        ("fedals", 0.74, 8, 3_800_000), ("fedrecon", 0.69, 60, 215_000), ("pfedrec", 0.57, 100, 215_000),
        ("fedrap", 0.21, 100, 215_000), ("fedtrail", 0.72, 1, 1_200_000), ("local", 0.35, 20, 0),
    ]
]  # fmt: skip
DATA = DataShape([737 // (1 + i) + 1 for i in range(100)], [60 - i for i in range(60)])


@pytest.fixture(scope="module")
def six(tmp_path_factory) -> tuple[Path, Page, str]:
    folder = tmp_path_factory.mktemp("six")
    return folder, *page_of(SIX, folder, data=DATA)


def test_the_page_loads_no_other_file(six):
    _, page, text = six
    loading = ("src", "href", "srcset", "data", "action", "poster")
    addresses = [attrs[key] for _, attrs in page.tags for key in loading if key in attrs]
    assert addresses and all(address.startswith("data:") for address in addresses)
    assert not re.search(r"https?:|@import|url\(|<script|//[a-z]", re.sub(r"base64,[\w+/=]+", "", text))
    assert any("default-src 'none'" in attrs.get("content", "") for _, attrs in page.tags)
    for address in addresses:
        if "base64," in address:  # plots refer only to their own parts
            svg = base64.b64decode(address.split("base64,")[1]).decode()
            assert svg.rstrip().endswith("</svg>")
            assert all(link.startswith("#") for link in re.findall(r'href="([^"]*)"', svg))


OUTSIDE = ["data", "method", "protocol", "run", "notes", "settings", "stopped", "rejected_updates"]


@pytest.mark.parametrize("place", OUTSIDE)
def test_texts_from_outside_are_escaped(place):
    values = {"notes": [EVIL], "settings": {EVIL: EVIL}, "stopped": {"reason": EVIL}, "rejected_updates": {EVIL: 1}}
    result = ranking(**{place: values.get(place, EVIL)})
    drawn_plots = plots.draw([result]) if place == "method" else ()
    text = report.render([result, ranking("fedavg")], drawn_plots)
    page = Page(text)
    assert "script" not in {tag for tag, _ in page.tags}
    assert EVIL not in text and "&lt;script&gt;" in text
    assert EVIL in page.text


def test_names_with_symbols_line_breaks_or_300_letters_are_plotted_without_a_warning(tmp_path):
    odd = [ranking(name) for name in ("$x_1^{", "_hidden", "映画🎬", "a\nb", "n" * 300)]
    assert "映画🎬" in page_of(odd, tmp_path)[0].text


def test_the_table_shows_the_values_of_the_results(six):
    _, page, _ = six
    rows = [row for row in page.rows if row]
    assert len(rows) == len(SIX)
    for result, row in zip(SIX, rows):
        table_columns = columns(SIX)
        assert list(row) == [column.key for column in table_columns]
        for column in table_columns:
            cell = row[column.key]
            assert cell["value"] == column.value(result)
            assert cell["shown"] == column.write(column.value(result))
            assert cell["ends"] == (list(column.interval(result)) if column.interval(result) else None)
        assert float(row["seen.sampled.hr@10"]["shown"]) == pytest.approx(result.seen.sampled["hr@10"], abs=5e-4)
        assert row["new.full.ndcg@10"]["ends"] == list(result.intervals.new["full"]["ndcg@10"])
    best = {key: [labels(SIX)[i] for i, row in enumerate(rows) if row[key]["best"]] for key in rows[0]}
    assert best["seen.sampled.hr@10"] == ["FedALS"] and best["traffic.up_bytes"] == ["Local"]
    assert best["rounds"] == best["seconds.train"] == []  # a setting; all equal


def test_the_headline_states_the_main_result():
    assert report.headline([ranking()]) == (
        "FedALS, 4 rounds, clean protocol: a held-out item is among the first ten of a hundred for 74 % [72–76] of "
        "people seen in training, and 73 % [71–75] of people it has never seen."
    )
    assert report.headline(SIX[::-1]).startswith("Best of 6: FedALS, 8 rounds, clean protocol: ")
    assert report.headline([RATINGS]).endswith(
        "for people seen in training, predictions are off by 0.930 [0.910–0.950] and 42 % are within half a point."
    )
    assert "0.020 from the true" in report.headline([REGRESSION])
    worse = changed(RATINGS, method="fedavg", seen={"rmse": 1.2})
    assert report.headline([worse, RATINGS]).startswith("Best of 2: FedRecon")  # less error is better


def test_a_leaking_protocol_gets_a_warning_box():
    def boxes(**changes) -> tuple[int, str]:
        page = Page(report.render([ranking(**changes)]))
        return sum(attrs.get("class") == "box bad" for _, attrs in page.tags), page.text

    leak = {"memoriser_hr@10": 0.98, "popularity_hr@10": 0.41, "leaks": True}
    count, text = boxes()
    assert count == 0 and "does not leak" in text
    count, text = boxes(leak=leak)
    assert count == 2 and "The clean protocol leaks" in text
    count, text = boxes(protocol="published", leak=None)
    assert count == 1 and "The published protocol leaks" in text
    assert "do not compare" in report.warnings([ranking(), ranking(protocol="published")])[1]


@pytest.mark.parametrize(
    ("level", "method", "private", "says"),
    [
        (0.12, "fedals", True, "FedALS is no better than a random order"),  # 0.100 is within the interval
        (0.12, "fedveil", True, "Try a larger --epsilon or data of more people."),
        (0.13, "fedals", True, None),
        (0.12, "fedals", False, None),
    ],
)
def test_a_private_run_that_learns_nothing_says_so(level, method, private, says):
    result = ranking(method, level, privacy={"epsilon": 3.0, "delta": 1e-6} if private else None)
    found = report.warnings([result])
    assert says in found[0] if says else not found


def test_missing_parts_of_a_result_are_left_out(tmp_path):
    for missing in ("new", "leak", "gradients", "privacy", "interactions"):
        result = ranking(**{missing: None})
        assert Page(report.render([result])).text and plots.curves([result])[1]
        text_table([result])
    page, _ = page_of([make_result()], tmp_path)
    assert "no results on held-out data" in page.text and not list((tmp_path / "plots").iterdir())
    with pytest.raises(ValueError, match="finite"):
        ranking(seen={"rmse": float("nan")})


def test_the_page_shows_rounds_traffic_and_privacy():
    page = Page(report.render([ranking(privacy={"epsilon": 4.0, "delta": 1e-5})]))
    for text in (
        "best round 4 of 4 (all rounds were run), final training of 4 rounds",
        "3 norm above bound", "1.2 GB up, 1.2 GB down", "3.8 MB up in a round",
        "runs/toy-1", "ε = 4, δ = 1e-05", "Ties are broken", "80 seen, 20 new",
        "600 MB",
    ):  # fmt: skip
        assert text in page.text, text


def test_reports_of_ratings_show_rmse_and_of_regression_the_weights(tmp_path):
    rows = [row for row in page_of([RATINGS], tmp_path)[0].rows if row]
    assert rows[0]["seen.rmse"]["value"] == 0.93 and rows[0]["seen.rmse"]["ends"] == [0.91, 0.95]
    page, _ = page_of([REGRESSION], tmp_path)
    assert "w1 -2.0200 -2.0000" in page.text and "1.0123" in page.text
    assert plots.curves([REGRESSION])[0] == "loss" and plots.curves([RATINGS])[0] == "rmse"


def test_plots_are_non_empty_pictures_with_alternative_texts(six):
    folder, page, _ = six
    names = sorted(path.name for path in (folder / "plots").iterdir())
    assert names == ["activity.png", "bytes.png", "convergence.png", "popularity.png"]
    for name in names:
        assert (folder / "plots" / name).read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
        picture = imread(folder / "plots" / name)[..., :3]
        assert picture.shape[0] > 400 and picture.shape[1] > 600
        assert picture[:3].min() == 1  # the edge is blank; the inside is not, and has colour
        assert 0.01 < (picture.min(axis=2) < 0.9).mean() < 0.7 and np.ptp(picture, axis=2).max() > 0.5
    alts = [attrs["alt"] for tag, attrs in page.tags if tag == "img"]
    assert len(alts) == 4 and all(len(alt) > 40 for alt in alts) and "best round 8" in alts[0]
    assert "Local sends nothing" in alts[1]


def test_curves_count_bytes_per_person(plain_plots):
    assert plots.draw([ranking(rounds=1)], DataShape([3])) == []  # dots
    drawn_plots = plots.draw([ranking(rounds=1), ranking("fedavg", rounds=1)])
    assert [plot.name for plot in drawn_plots] == ["convergence", "bytes"]
    _, (curve,) = plots.curves([ranking(up=1000, rounds=3)])
    assert curve.rounds == [1, 2, 3] and curve.sent == [2000, 4000, 6000] and curve.best_round == 3


def test_equal_histories_are_plotted_without_a_warning(plain_plots):
    drawn = plots.draw([ranking(rounds=1)], DataShape([10] * 40, [10] * 40))
    assert [plot.name for plot in drawn][-2:] == ["activity", "popularity"]


def test_the_same_results_give_the_same_bytes(tmp_path):
    first, second = (write_report([ranking()], tmp_path / name, data=DATA) for name in "ab")
    assert first.read_bytes() == second.read_bytes()
    for path in (tmp_path / "a" / "plots").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / "plots" / path.name).read_bytes()


def test_a_failed_write_leaves_the_old_report(tmp_path, monkeypatch, plain_plots):
    path = write_report([ranking()], tmp_path, data=DATA)
    before = path.read_bytes()

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(RunError, match="disk full"):
        write_report([ranking("fedavg")], tmp_path)
    assert path.read_bytes() == before
    monkeypatch.undo()
    write_report([ranking("fedavg")], tmp_path)
    assert path.read_bytes() != before
    # no half-written file stays, and no plot of the earlier report
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["bytes.png", "convergence.png", "plots", "report.html"]
    with pytest.raises(SettingError, match="at least one"):
        write_report([], tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot be written"):
        write_report([ranking()], tmp_path / "file")


@pytest.mark.parametrize(
    "results", [SIX, SIX[:1], [RATINGS], [REGRESSION], [ranking(privacy={"epsilon": 4.0, "delta": 1e-6})]]
)
def test_the_terminal_table_fits_80_columns(results):
    console = Console(width=80, file=io.StringIO())
    console.print(text_table(results))
    text = console.file.getvalue()
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    for result, label in zip(results, labels(results)):
        line = next(line for line in lines if line.startswith(label + " "))
        for column in columns(results):
            if column.terminal and column.key != "seconds.train":
                assert column.write(column.value(result)) in line
    assert ("0.740" not in text) or (".72–.76" in text and "seconds" in text)


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_a_narrow_terminal_omits_columns_and_truncates_no_value(width):
    gradients = {"total": 40.0, "per_person_round": 10.0}
    private = {"epsilon": 123456.789, "delta": 1e-6}
    results = [ranking("fedmf", gradients=gradients, privacy=private), ranking("a" * 30, gradients=gradients)]
    console = Console(width=width, file=io.StringIO())
    console.print(text_table(results, width=width))
    text = console.file.getvalue()
    assert max(map(len, text.splitlines())) <= width and "…" not in text
    assert "0.740" in text and "1.23e+05" in text  # accuracy and privacy are left out last
    assert ("gradients" in text) == (width == 120)


def test_a_metric_is_read_by_its_key():
    result = ranking(level=0.5)
    assert result.metric("seen.sampled.hr@10") == 0.5 and result.interval("seen.sampled.hr@10") == (0.48, 0.52)
    assert result.metric("seen.rmse") is result.interval("new.full.map") is None
    with pytest.raises(SettingError, match="begins with seen, new, beyond"):
        result.metric("other.rmse")
    assert RATINGS.metric("seen.rmse") == 0.93 and RATINGS.metric("new.rmse") is RATINGS.interval("new.rmse") is None
    with pytest.raises(ValueError, match="frozen"):
        result.rounds = 3


def test_runs_of_one_method_get_distinct_labels():
    sweep = [ranking(settings={"k": k, "lam": 0.1}) for k in (8, 16)]
    assert labels([*sweep, ranking("fedavg")]) == ["FedALS k=8", "FedALS k=16", "FedAvg"]
    assert labels([sweep[0], sweep[0]]) == ["FedALS #1", "FedALS #2"]


def test_human_bytes_rounds_to_two_digits():
    sizes = (0, 999, 999.6, 1000, 9_949, 9_951, 999_499, 999_500, 28e9, 5e15, None)
    texts = ["0 B", "999 B", "1.0 kB", "1.0 kB", "9.9 kB", "10 kB", "999 kB", "1.0 MB", "28 GB", "5.0 PB", "–"]
    assert [human_bytes(n) for n in sizes] == texts


def sparse(method: str = "fedrap", share: float = 0.1, **changes) -> RunResult:
    """A result whose rounds have loss and zeros. A download has fewer bytes the more zeros there are."""
    result, down, curve = ranking(method, rounds=4, up=1000, **changes), 0, []
    for n, point in enumerate(result.curve, 1):
        down += round(80 * 1000 * (1 - share * n))
        curve.append(point.dump() | {"loss": 1 / n - 0.3, "zeros": share * n, "down_bytes": down})
    return changed(result, curve=curve)


def test_loss_zeros_and_downloads_are_plotted_by_round(plain_plots):
    by_name = {plot.name: plot for plot in plots.draw([sparse()])}
    assert list(by_name) == ["convergence", "bytes", "loss", "zeros", "down"]
    assert "FedRAP: 0.700 after round 1, -0.050 after round 4." in by_name["loss"].alt
    assert "10 % after round 1, 40 % after round 4" in by_name["zeros"].alt
    (curve,) = plots.downloads([sparse()])
    assert curve.values == pytest.approx([900, 800, 700, 600])
    assert "900 B after round 1, 600 B after round 4" in by_name["down"].alt
    assert [plot.name for plot in plots.draw([sparse(share=0)])] == ["convergence", "bytes", "loss"]
    assert "loss" not in {plot.name for plot in plots.draw([REGRESSION])}  # the convergence plot shows the loss
    losses = plots.follow([ranking(), sparse()], lambda point: point.loss)
    assert [curve.place for curve in losses] == [1]  # a method keeps its colour where others are missing


def test_accuracy_is_plotted_against_seconds(plain_plots):
    timed = [ranking(name, seconds={"train": 30.0, "round": lap}) for name, lap in (("fedals", 0.5), ("fcf", 2))]
    by_name = {plot.name: plot for plot in plots.draw([*timed, ranking("local")])}
    assert "FedALS ends at 2.0 s" in by_name["seconds"].alt and "FCF ends at 8.0 s" in by_name["seconds"].alt
    assert by_name["seconds"].caption.replace("\u00a0", " ").endswith("A round: FedALS 0.50 s, FCF 2.0 s.")
    assert "seconds" not in {plot.name for plot in plots.draw(timed[:1])}  # one run only
    page = Page(report.render(timed))
    assert [row["seconds.round"]["shown"] for row in page.rows if "seconds.round" in row] == ["0.50 s", "2.0 s"]


def test_the_memoriser_is_plotted_beside_the_method(plain_plots):
    leak = {"memoriser_hr@10": 0.9, "popularity_hr@10": 0.4, "leaks": True}
    leak |= {"memoriser_curve": [[1, 0.1], [2, 0.2], [10, 0.6], [50, 0.9]]}
    published = ranking(protocol="published", leak=leak)
    assert plots.memories([published, published, ranking()]) == [((1, 0.1), (2, 0.2), (10, 0.6), (50, 0.9))]
    (plot, *_) = plots.draw([published])
    assert "nothing: 0.300 after round 4" in plot.alt and "Grey, dashed" in plot.caption
    assert plot.alt.startswith("Line plot of test HR@10")  # the published protocol validates on test
    (plot, *_) = plots.draw([ranking()])
    assert "memory" not in plot.alt + plot.caption and plot.alt.startswith("Line plot of validation HR@10")


@pytest.fixture(scope="module")
def fedrap_run(tmp_path_factory) -> tuple[Path, RunResult]:
    settings = Settings(
        data="synthetic:30x24x240", method="fedrap", set={"k": "4", "prox": "0.05"}, rounds=3, protocol="published"
    )
    path, data = tmp_path_factory.mktemp("fedrap") / "run", load("synthetic:30x24x240")
    return path, execute(prepare(settings, data), RunFolder.create(path, settings.model_dump(), data, "0"))


def test_a_run_reports_seconds_per_round_and_the_memoriser(fedrap_run):
    _, result = fedrap_run
    assert result.seconds.round > 0
    memoriser = dict(result.leak.memoriser_curve)
    assert list(memoriser) == [1, 2, 5, 10, 20, 30, 50, 100] and memoriser[50] == result.leak.memoriser_hr


def test_common_and_private_items_are_plotted_in_one_plane(fedrap_run, tmp_path):
    """Private rows are scale x stored values, for touched rows only. The people shown have the most of them."""
    run, result = fedrap_run
    from fedtaste.engine.checkpoint import load_params

    state = load_params(run / "final.safetensors")[0]
    used = state["private.touched.own.used"].numpy()
    with item_scatter.safe_open(run / "final.safetensors", "np") as file:
        common, own = item_scatter._tables(file, 24)
    assert (common == state["shared.item"].numpy()).all() and len(own) == 3
    assert min(used[list(own)]) >= max(np.delete(used, list(own)))
    for person, rows in own.items():
        page = state["private.touched.own.values"][int(state["private.touched.own.first"][person])]
        scale = state["private.stacked.scale"][person]
        assert scale != 1 and rows == pytest.approx((scale * page[: used[person]]).numpy())  # 24 items: one page
    plane = item_scatter.read_plane(run, 24)
    assert plane.common.shape == (24, 2) and {p: len(r) for p, r in plane.own.items()} == {p: used[p] for p in own}
    assert plane.zeros == pytest.approx(float((state["shared.item"] == 0).float().mean()))
    sample = item_scatter.read_plane(run, 24, points=12)
    assert len(sample.common) == 6 and [len(rows) for rows in sample.own.values()] == [2, 2, 2]

    page, text = page_of([result], tmp_path, runs=[run])
    assert (tmp_path / "plots" / "items.png").exists() and "wants own and common rows apart" in page.text
    (alt,) = [attrs["alt"] for _, attrs in page.tags if attrs.get("alt", "").startswith("Scatter plot")]
    assert "24 common rows spread by" in alt and "% of the variance" in alt
    assert text == page_of([result], tmp_path, runs=[run])[1]  # repeatable


def test_items_of_the_first_six_runs_are_plotted(fedrap_run, tmp_path, plain_plots):
    run, result = fedrap_run
    page, _ = page_of([result] * 8 + [ranking()], tmp_path, runs=[run] * 8 + [tmp_path])
    assert "The first 6 runs are shown" in page.text


def test_without_two_readable_tables_there_is_no_item_plot(fedrap_run, tmp_path, plain_plots):
    run, result = fedrap_run
    assert item_scatter.read_plane(tmp_path, 24) is None and item_scatter.read_plane(run, 23) is None
    content = (run / "final.safetensors").read_bytes()
    for damaged in (b"", content[:99], content[:-7], b"\xff" * 64):
        (tmp_path / "final.safetensors").write_bytes(damaged)
        assert item_scatter.read_plane(tmp_path, 24) is None
    page_of([result], tmp_path, runs=[tmp_path])  # the report is written without the plot
    assert not (tmp_path / "plots" / "items.png").exists()


def test_pca_finds_the_plane_of_largest_variance():
    rng = np.random.default_rng(1)
    flat = rng.normal(size=(200, 2)) * [5, 2] @ np.linalg.qr(rng.normal(size=(6, 6)))[0][:2]
    placed, shares = item_scatter.pca(flat + 3)
    gaps = [np.linalg.norm(x[:, None] - x[None], axis=2) for x in (flat, placed)]
    assert gaps[0] == pytest.approx(gaps[1], abs=1e-9) and sum(shares) == pytest.approx(1) and shares[0] > shares[1]
    assert (item_scatter.pca(flat + 3)[0] == placed).all() and placed.mean(0) == pytest.approx([0, 0], abs=1e-9)


def test_plots_change_no_global_state_of_matplotlib(monkeypatch):
    import matplotlib

    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)  # importing it would fail
    before = {key: matplotlib.rcParams[key] for key in matplotlib.rcParams if key != "backend"}
    assert len(plots.draw([RATINGS], DataShape([3, 0, 1]))) == 3
    assert {key: matplotlib.rcParams[key] for key in before} == before


def test_docstring_examples_of_numbers_and_pareto():
    import doctest

    for module in (numbers, pareto):
        assert doctest.testmod(module).failed == 0


def test_every_method_has_a_spelling_for_people():
    assert [name for name in METHODS if method_name(name) == name] == []
