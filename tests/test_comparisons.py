"""Comparisons: sweeps over several keys, several seeds, resuming after kill -9, and comparing finished runs."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedtaste.experiment.comparison_record import read_record
from fedtaste.experiment.result import RunResult
from fedtaste.text import count
from support.command import fedtaste, timeless, without_times
from support.reports import Page

WORLD = ("--data", "synthetic:40x40x400", "--threads", "1")
QUICK = (*WORLD, "--rounds", "2")
pytestmark = pytest.mark.usefixtures("here")


def test_sweeps_of_several_keys_try_all_combinations():
    sweeps = ("--sweep", "k=2,4", "--sweep", "lam=0.01, 0.1,0.01")
    comparison = fedtaste("compare", "--method", "fedals", *sweeps, *QUICK, "--out", "swept", "--json").json
    tried = [(result["settings"]["k"], result["settings"]["lam"]) for result in comparison["results"]]
    assert tried == [(2, 0.01), (2, 0.1), (4, 0.01), (4, 0.1)]
    summary = comparison["tradeoff"]
    valid = summary["validation"]
    assert summary["choice"] == max(valid, key=valid.get) and summary["basis"] == "validation"
    assert {*summary["not_chosen"], summary["choice"]} == set(valid) and len(summary["not_chosen"]) == 3
    for result in comparison["results"]:  # result.json keeps the test figures, and the best round's validation
        best = next(point["valid"] for point in result["curve"] if point["round"] == result["best_round"])
        assert result["valid"] == best and result["seen"]["sampled"]
    page = Page(Path("swept/report.html").read_text())
    rows = [row for row in page.rows if "valid.ndcg@10" in row]
    tested = [row["seen.sampled.ndcg@10"]["value"] is not None for row in rows]
    assert len(rows) == 4 and sum(tested) == 1
    chosen = tested.index(True)
    assert rows[chosen]["valid.ndcg@10"]["value"] == max(row["valid.ndcg@10"]["value"] for row in rows)
    text = fedtaste("report", "swept").out
    assert "valid." in text and "chosen on validation" in " ".join(text.split())


def test_a_key_that_is_swept_twice_is_refused_and_a_repeated_method_is_reported():
    sweeps = ("--sweep", "k=2,4", "--sweep", "k=8")
    fedtaste("compare", "--method", "fedals", *sweeps, *QUICK).refused("--sweep k stands twice", "k=v1,v2")
    assert not Path("runs").exists()
    output = fedtaste("compare", "--methods", "popularity,popularity", *QUICK, "--out", "one", "--json")
    assert "popularity was named 2 times; it is trained once." in output.err and len(output.json["results"]) == 1


def test_settings_that_are_given_twice_and_runs_of_one_name_are_refused():
    swept = ("--method", "fedals", "--sweep", "lam=0.01,0.1", *QUICK)
    fedtaste("compare", *swept, "--set", "lam=5").refused("--set lam and --sweep lam were both given")
    budgets = ("--methods", "fedals", "--wire", "clip=1", "--epsilon", "1,1.0000001", *QUICK)
    fedtaste("compare", *budgets).refused("Two runs would have the name fedals-epsilon=1")
    assert not Path("runs").exists()


def test_processes_of_a_comparison_train_several_runs(monkeypatch):
    started, popen = [], subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda *args, **more: started.append(popen(*args, **more)) or started[-1])
    args = ("compare", "--methods", "popularity,fedals,fedeigen", *QUICK, "--json")
    alone, parallel = (fedtaste(*args, "--jobs", jobs, "--out", f"jobs-{jobs}").json["results"] for jobs in (1, 2))
    for ours, theirs in zip(alone, parallel, strict=True):
        assert without_times(ours) == without_times(theirs)
    assert len(started) == 2 and all(process.returncode is not None for process in started)


# Several seeds


@pytest.fixture(scope="module")
def seeds(tmp_path_factory) -> tuple[dict, Path]:
    """A comparison of two methods with three seeds, as (what --json prints, its folder)."""
    path = tmp_path_factory.mktemp("seeds") / "seeds"
    args = ("compare", "--methods", "popularity,fedals", "--seed", 3, "--seeds", 3, *QUICK, "--out", path, "--json")
    return fedtaste(*args, "--jobs", 1).json, path  # in this process


def test_seeds_give_means_spread_and_paired_differences(seeds):
    comparison, path = seeds
    assert [(r["method"], r["seed"]) for r in comparison["results"]] == [
        (method, seed) for method in ("popularity", "fedals") for seed in (3, 4, 5)
    ]
    summary = comparison["seeds"]
    assert summary["seeds"] == [3, 4, 5] and [method["name"] for method in summary["methods"]] == [
        "Popularity",
        "FedALS",
    ]
    values = [result["seen"]["sampled"]["ndcg@10"] for result in comparison["results"]]
    for method, part in zip(summary["methods"], (values[:3], values[3:])):
        spread, mean = method["metrics"]["seen.sampled.ndcg@10"], sum(part) / 3
        assert spread["values"] == part and spread["mean"] == pytest.approx(mean, abs=1e-6)
        assert spread["sd"] == pytest.approx((sum((x - mean) ** 2 for x in part) / 2) ** 0.5, abs=1e-6)
    pairs = {pair["metric"]: pair for pair in comparison["differences"]}
    assert set(pairs) == {f"seen.{kind}.{m}@10" for kind in ("sampled", "full") for m in ("hr", "ndcg")}
    pair = pairs["seen.sampled.ndcg@10"]
    assert (pair["first"], pair["second"]) == ("Popularity", "FedALS") and pair["p"] == pair["p_holm"]
    assert pair["by_seed"] == pytest.approx([a - b for a, b in zip(values[:3], values[3:])], abs=2e-6)
    assert pair["difference"] == pytest.approx(sum(pair["by_seed"]) / 3, abs=2e-6)
    assert pair["interval"][0] < pair["difference"] < pair["interval"][1]


def test_a_run_of_several_seeds_equals_the_single_runs(seeds):
    comparison, path = seeds
    alone = fedtaste("run", "--method", "fedals", "--seed", 4, *QUICK, "--out", "alone", "--json").json
    assert without_times(alone) == without_times(comparison["results"][4])
    several = fedtaste("run", "--method", "fedals", "--seed", 3, "--seeds", 3, *QUICK, "--out", "several", "--json")
    assert [without_times(r) for r in several.json["results"]] == [without_times(r) for r in comparison["results"][3:]]
    assert several.json["tradeoff"] is None and several.json["seeds"]["methods"][0]["name"] == "FedALS"
    assert {path.name for path in Path("several").iterdir()} >= {f"fedals-seed={seed}" for seed in (3, 4, 5)}
    fedtaste("run", "--seeds", 2, "--from", "alone", *QUICK).refused("--seeds and --from")
    fedtaste("run", "--seeds", 2, "--seed", 2**63 - 1, *QUICK).refused("--seed must be at most")


def test_the_rounds_of_several_seeds_are_their_mean():
    text = fedtaste("run", "--method", "fedals", "--seeds", 2, *QUICK, "--out", "two").out
    runs = [json.loads(Path(f"two/fedals-seed={seed}/result.json").read_text())["rounds"] for seed in (0, 1)]
    said = f"trained for {count(round(sum(runs) / 2), 'round')} (mean of 2 seeds)"
    assert f"fedals: {said}\n" in text and "best round" not in text
    page = Page(Path("two/report.html").read_text()).text
    assert said in page and "final training" not in page


def test_table_and_report_show_seeds_and_differences(seeds):
    comparison, path = seeds
    text = " ".join(fedtaste("report", path).out.split())
    pair = next(p for p in comparison["differences"] if p["metric"] == "seen.sampled.ndcg@10")
    figure = f"{pair['difference']:+.4f}".replace("-", "−")
    assert "mean ± sd over seeds" in text and f"Popularity − FedALS NDCG@10 (99) {figure}" in text and "3 seeds" in text
    page = Path(path / "report.html").read_text()
    assert 'id="seed-table"' in page and 'id="difference-table"' in page and figure in page
    assert (path / "plots/differences.png").exists() and "means over seeds 3, 4, 5" in Page(page).text
    means = [sum(r["seen"]["sampled"]["ndcg@10"] for r in part) / 3 for part in
             (comparison["results"][:3], comparison["results"][3:])]  # fmt: skip
    rows = [row["seen.sampled.ndcg@10"]["value"] for row in Page(page).rows if "seen.sampled.ndcg@10" in row]
    assert rows == pytest.approx(means, abs=1e-6)


def test_settings_are_chosen_by_the_mean_of_validation_over_seeds():
    args = ("--method", "fedals", "--sweep", "k=2,4", "--seeds", 2, *QUICK, "--out", "swept", "--json")
    comparison = fedtaste("compare", *args).json
    valid: dict[int, list[float]] = {}
    for result in comparison["results"]:
        valid.setdefault(result["settings"]["k"], []).append(result["valid"]["ndcg@10"])
    best = max(valid, key=lambda k: sum(valid[k]))
    assert comparison["tradeoff"]["choice"] == f"FedALS k={best}" and comparison["differences"] == []


# Finished runs


def test_finished_runs_are_compared_in_pairs(seeds):
    comparison, path = seeds
    runs = f"{path}/popularity-seed=4,{path}/fedals-seed=4"
    later = fedtaste("compare", "--runs", runs, "--out", "later", "--json").json
    (pair,) = (p for p in later["differences"] if p["metric"] == "seen.sampled.ndcg@10")
    (whole,) = (p for p in comparison["differences"] if p["metric"] == "seen.sampled.ndcg@10")
    assert pair["difference"] == pytest.approx(whole["by_seed"][1], abs=2e-6)
    assert Path("later/report.html").exists() and later["tradeoff"]["not_chosen"] == []
    again = fedtaste("compare", "--runs", path, "--out", "again", "--json").json  # all runs of a comparison
    assert again["differences"] == comparison["differences"]


def test_runs_that_do_not_compare_are_refused(seeds):
    _, path = seeds
    first = f"{path}/popularity-seed=3"
    fedtaste("compare", "--runs", f"{first},{path}/fedals-seed=4").refused("has seed 4", "has 3", "same seeds")
    fedtaste("compare", "--runs", first).refused("two runs or more")
    fedtaste("compare", "--runs", f"{first},{first}").refused("same settings and seed")
    fedtaste("compare", "--runs", f"{first},{first}", "--rounds", 2).refused("--rounds would change nothing")
    fedtaste("compare", "--runs", f"{first},nowhere").refused("nowhere")
    fedtaste("run", "--method", "fedals", "--seed", 3, "--split", "random", *QUICK, "--out", "other")
    fedtaste("compare", "--runs", f"{first},other").refused("do not compare", "split leave-one-out and random")
    fedtaste("run", "--method", "fedals", "--seed", 3, *QUICK, "--data", "synthetic:41x40x400", "--out", "else")
    fedtaste("compare", "--runs", f"{first},else").refused("their data differ")


def test_runs_that_differ_in_their_cohort_are_other_configurations(seeds):
    """Such runs are neither called equal nor averaged over seeds."""
    _, path = seeds
    fedtaste("run", "--method", "fedals", "--seed", 3, "--cohort", 20, *QUICK, "--out", "part")
    shutil.copytree("part", "threads")
    header = json.loads(Path("threads/settings.json").read_text())
    header["settings"] |= {"threads": 2, "set": {}}
    Path("threads/settings.json").write_text(json.dumps(header))
    first = f"{path}/fedals-seed=3"
    later = fedtaste("compare", "--runs", f"{first},part", "--out", "later", "--json").json
    assert len(later["results"]) == 2 and later["differences"] and later.get("seeds") is None
    fedtaste("compare", "--runs", f"{path}/fedals-seed=4,part").refused("has seed 3", "has 4")
    fedtaste("compare", "--runs", "part,threads").refused("same settings and seed")


# Resuming

FOUR = ("--methods", "popularity,fedavg,fedals,fedmf", "--data", "synthetic:80x60x1200", "--threads", "1",
        "--rounds", "8", "--patience", "0", "--jobs", "1")  # fmt: skip


def test_a_comparison_killed_in_its_second_run_is_finished_by_resume():
    """Table and report equal those of a comparison that was not interrupted, apart from times and paths."""
    whole = fedtaste("compare", *FOUR, "--out", "whole", "--json").json
    process = subprocess.Popen(
        [sys.executable, "-m", "fedtaste", "compare", *FOUR, "--out", "killed"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=dict(os.environ),
    )  # fmt: skip
    state, until = Path("killed/fedavg/state.safetensors"), time.monotonic() + 300
    while not state.exists() and process.poll() is None and time.monotonic() < until:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert Path("killed/popularity/result.json").exists() and not Path("killed/fedavg/result.json").exists()
    assert not Path("killed/compare.json").exists()
    again = fedtaste("compare", *FOUR, "--out", "killed")
    again.refused("killed holds an unfinished comparison", "`fedtaste resume killed`", "--out")
    resumed = fedtaste("resume", "killed", "--json").json
    assert timeless(resumed) == timeless(whole)
    assert page_without_times("killed") == page_without_times("whole")
    tables = [fedtaste("report", name).out for name in ("killed", "whole")]
    assert without_seconds(tables[0], "killed") == without_seconds(tables[1], "whole")
    assert Path("killed/compare.json").read_text() == Path("whole/compare.json").read_text()
    for run in ("popularity", "fedavg", "fedals", "fedmf"):
        for file in ("final.safetensors", "scores.safetensors"):
            assert Path("killed", run, file).read_bytes() == Path("whole", run, file).read_bytes()
    output = fedtaste("resume", "killed", "--json")  # has finished
    assert "had finished already" in output.err and timeless(output.json) == timeless(whole)
    fedtaste("compare", *FOUR, "--out", "killed").refused("killed is there already. Choose another --out.")


def page_without_times(name: str) -> str:
    """The page without plots by seconds, durations, memory and paths."""
    page = Path(name, "report.html").read_text()
    page = re.sub(r"<figure>(?:(?!</figure>).)*?seconds(?:(?!</figure>).)*?</figure>", "", page, flags=re.S)
    page = re.sub(r'data-key="seconds[^"]*">.*?</td>', "", page, flags=re.S)
    return re.sub(r"<dt>(time|memory, at most|run folder)</dt><dd>.*?</dd>", "", page, flags=re.S)


def without_seconds(text: str, name: str) -> str:
    """A terminal table without numbers of seconds, which stand before the last column."""
    return " ".join(re.sub(r"\d+\.\d ([rbg·]+ *\n)", r"\1", text).replace(name, "folder").split())


def test_a_plan_is_stored_before_the_first_run_and_duplicates_are_copied(monkeypatch):
    args = (
        "compare",
        "--methods",
        "all",
        "--data",
        "least-squares:clients=4,examples=12",
        "--rounds",
        1,
        "--threads",
        1,
    )
    whole = fedtaste(*args, "--jobs", 1, "--out", "whole", "--json").json
    record = read_record(Path("whole"))
    assert record.duplicates and record.refused and Path("whole/comparison.json").stat().st_mode & 0o77 == 0
    shutil.copytree("whole", "rest")
    copied, (trained, *_) = next(iter(record.duplicates)), [n for n in record.runs if n not in record.duplicates]
    for name in (record.runs[copied].folder, record.runs[trained].folder):
        shutil.rmtree(Path("rest", name))
    Path("rest/compare.json").unlink()
    rest = fedtaste("resume", "rest", "--json").json
    assert timeless(rest)["results"] == timeless(whole)["results"] and rest["left_out"] == whole["left_out"]


def test_a_comparison_is_resumed_with_its_own_data_version_and_plan(seeds):
    _, path = seeds
    shutil.copytree(path, "copy")
    Path("copy/fedals-seed=3/result.json").unlink()
    content = json.loads(Path("copy/comparison.json").read_text())
    label = next(iter(content["runs"]))
    for change, parts in (
        ({"version": "0.1.0"}, ["begun by fedtaste 0.1.0"]),
        ({"runs": content["runs"] | {label: content["runs"][label] | {"data_hash": "0"}}}, ["data have changed"]),
        ({"runs": {}}, ["comparison.json has no usable runs"]),
        ({"duplicates": {"nobody": label}}, ["comparison.json has no usable duplicates"]),
        ({"duplicates": {label: "nobody"}}, ["comparison.json has no usable duplicates"]),
        ({"duplicates": {label: label}}, ["comparison.json has no usable duplicates"]),
        ({"axes": ["accuracy", "depth"]}, ["comparison.json has no usable axes"]),
        ({"runs": {"a": content["runs"][label] | {"folder": "../a"}}}, ["comparison.json has no usable runs"]),
    ):
        Path("copy/comparison.json").write_text(json.dumps(content | change))
        fedtaste("resume", "copy", "--json").refused(*parts)
    Path("copy/comparison.json").unlink()
    Path("copy/compare.json").unlink()
    fedtaste("resume", "copy").refused("copy is a comparison", "no comparison.json", "earlier version")


def test_folders_of_other_runs_are_not_taken_for_those_of_a_comparison(seeds):
    """A comparison reads only the run folders that its comparison.json describes."""
    _, path = seeds
    shutil.copytree(path, "copy")
    folder, other = Path("copy/fedals-seed=3"), Path("copy/fedals-seed=4")
    shutil.rmtree(folder)
    shutil.copytree(other, folder)  # a finished run of another seed
    for command in ("resume", "report"):
        fedtaste(command, "copy").refused("copy/fedals-seed=3 holds a run with other settings or data")
    fedtaste("compare", "--runs", "copy").refused("copy/fedals-seed=3 holds a run with other settings or data")
    (folder / "result.json").unlink()  # an unfinished one would be continued
    fedtaste("resume", "copy").refused("copy/fedals-seed=3 holds a run with other settings or data")
    shutil.rmtree(folder)
    folder.symlink_to((path / "fedals-seed=3").resolve())
    for command in ("resume", "report"):
        fedtaste(command, "copy").refused("copy/fedals-seed=3 is a symbolic link")
    content = json.loads(Path("copy/comparison.json").read_text())
    content["runs"]["fedals-seed=3"]["folder"] = "fedals-seed=4"
    Path("copy/comparison.json").write_text(json.dumps(content))
    fedtaste("report", "copy").refused("comparison.json has no usable runs")


def test_report_of_a_comparison_of_an_earlier_version_reads_its_runs(seeds):
    _, path = seeds
    shutil.copytree(path, "old")
    Path("old/comparison.json").unlink()
    assert fedtaste("report", "old", "--json").json == {"report": "old/report.html"}


def test_validation_of_earlier_results_is_read_from_their_curve(seeds):
    comparison, _ = seeds
    result = comparison["results"][3]
    old = RunResult.model_validate({name: value for name, value in result.items() if name != "valid"})
    assert old.validation == result["valid"] == RunResult.model_validate(result).validation
