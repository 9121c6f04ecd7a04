"""Metrics beyond accuracy against exact examples and plain definitions; ranking metrics against ir-measures."""

from __future__ import annotations

import io
import itertools
import json
import math

import ir_measures
import numpy as np
import pytest
import torch
from ir_measures import RR, R, nDCG
from rich.console import Console

from fedtaste import __version__
from fedtaste.core import Upload
from fedtaste.data.interactions import Histories, Interactions, starts_of
from fedtaste.data.item_features import genre_bits
from fedtaste.data.sampling import SERVE
from fedtaste.data.sources import load
from fedtaste.engine.run import run
from fedtaste.evaluation.list_metrics import (
    BANDS,
    GROUP_METRICS,
    Lists,
    compare_groups,
    gini,
    item_metrics,
    list_diversity,
    metrics_of_sums,
    quartiles,
)
from fedtaste.evaluation.metric_sums import tally, withhold_groups
from fedtaste.evaluation.metrics import ranking_metrics
from fedtaste.evaluation.protocol import RankingMetrics, join_folds
from fedtaste.evaluation.ranking import rank_items
from fedtaste.evaluation.scoring import full_ranks, top_lists
from fedtaste.experiment.folder import RunFolder
from fedtaste.experiment.result import RunResult
from fedtaste.experiment.settings import Settings
from fedtaste.experiment.train import execute, prepare
from fedtaste.federation import of_histories
from fedtaste.flower.messages import MetricReport, unpack_content
from fedtaste.flower.validation import missing_counts, read_item_counts, valid_metrics
from fedtaste.methods import fedals
from fedtaste.models import factorization
from fedtaste.report.tables import list_table
from fedtaste.tasks.base import Sampling, Served
from fedtaste.tasks.ranking import ranking_task
from fedtaste.tasks.serve import personalise
from fedtaste.wire.messages import decode, encode
from support.command import fedtaste
from support.flower_worlds import federation_in_process, serve_to_the_end
from support.reports import page_of, ranking

TINY = ("--data", "synthetic:60x40x900", "--rounds", "2", "--threads", "1", "--json")


def histories(*rows):
    items = np.array([item for row in rows for item in row], np.int32)
    return Histories(starts_of([len(row) for row in rows]), items, np.ones(len(items), np.float32))


def random_lists(seed, people=50, items=80, top=10):
    """(lists [people, top], items of everybody's history, genres by item)."""
    rng = np.random.default_rng(seed)
    lists = np.stack([rng.choice(items, top, replace=False, p=np.arange(1, items + 1) / (items * (items + 1) / 2))
                      for _ in range(people)])  # fmt: skip
    taken = [rng.choice(items - 5, rng.integers(1, 30), replace=False).tolist() for _ in range(people)]
    names = ["Drama", "War", "Comedy", "Noir"]
    genres = ["|".join(rng.choice(names, rng.integers(0, 4), replace=False)) for _ in range(items)]
    return lists, taken, genres


# Ranking metrics against an independent library


@pytest.mark.parametrize("seed", range(5))
def test_ranking_metrics_equal_those_of_ir_measures(seed):
    """Rankings of a whole catalogue by random scores, with 1 to 15 relevant items and a history that is left out."""
    rng = np.random.default_rng(seed)
    people, items = 40, 120
    scores = rng.normal(size=(people, items)).astype(np.float32)
    drawn = [rng.permutation(items)[: rng.integers(6, 40)].tolist() for _ in range(people)]
    cut = [int(rng.integers(1, 16)) for _ in range(people)]
    positives = histories(*(row[:n] for row, n in zip(drawn, cut)))
    seen = histories(*(row[n:] for row, n in zip(drawn, cut)))
    ranks = full_ranks(torch.from_numpy(scores), seen, positives, np.arange(people))
    ours = ranking_metrics(ranks, positives.owners)

    qrels = [ir_measures.Qrel(str(p), str(i), 1) for p in range(people) for i in positives.of(p)]
    run = [
        ir_measures.ScoredDoc(str(p), str(i), float(scores[p, i]))
        for p in range(people)
        for i in set(range(items)) - set(seen.of(p).tolist())
    ]
    names = {nDCG @ 10: "ndcg@10", R @ 10: "recall@10", RR @ 10: "mrr@10"}
    compared = 0
    for value in ir_measures.iter_calc(list(names), qrels, run):
        assert ours[names[value.measure]][int(value.query_id)] == pytest.approx(value.value, abs=1e-9)
        compared += 1
    assert compared == 3 * people
    assert ours["hr@10"].tolist() == (ours["recall@10"] > 0).astype(float).tolist()


def test_a_list_begins_where_the_ranking_does():
    """Lists equal rank_items with equal, undefined and infinite scores, and with short and empty catalogues."""
    rng = np.random.default_rng(1)
    scores = rng.integers(0, 6, (30, 25)).astype(np.float32)
    scores[3, 4], scores[5, :], scores[6, 7] = np.nan, np.nan, np.inf
    seen = histories(*(rng.permutation(25)[:n].tolist() for n in [*range(25), 25, 25, 0, 5, 20]))
    top = top_lists(torch.from_numpy(scores), seen, np.arange(30), 10)
    defined = np.where(np.isfinite(scores), scores, -np.inf)
    for person, row in enumerate(top):
        expected = rank_items(defined[person], seen.of(person))[:10].tolist()
        assert [item for item in row.tolist() if item >= 0] == expected
        assert row.tolist() == expected + [-1] * (10 - len(expected))


# Exact examples


def test_metrics_by_item_of_a_small_example():
    """Four people, five items; item 4 is recommended and nobody has it."""
    taken, recommended = np.array([4, 2, 1, 1, 0]), np.array([3, 0, 0, 0, 1])
    assert item_metrics(recommended, taken, people=4) == {
        "coverage": 0.4,
        "gini": 0.7,  # |differences| of ordered pairs: 2 (3 x 3 + 1 x 3 + 2) = 28; over 2 x 5 x 5 x mean 0.8 = 40
        "popularity": 3.0,  # (3 x 4 + 1 x 0) / 4
        "history_popularity": 2.75,  # (16 + 4 + 1 + 1) / 8
        "popularity_bias": round(math.log2(3 / 2.75), 6),
        "novelty": 0.5,  # (3 x -log2(4/4) + 1 x -log2(1/4)) / 4
    }


def test_items_that_nobody_has_are_defined():
    nothing_known = item_metrics(np.array([0, 3]), np.array([8, 0]), people=8)
    assert nothing_known["novelty"] == 3.0 and nothing_known["popularity"] == 0.0
    assert "popularity_bias" not in nothing_known  # the logarithm of 0
    assert item_metrics(np.array([1, 1]), np.array([0, 0]), people=0) == {}


def test_gini_between_equality_and_one_item():
    assert gini(np.full(7, 3)) == 0.0
    assert gini(np.array([0] * 99 + [5])) == pytest.approx(0.99)


def test_diversity_of_known_lists():
    drama, war, both, unknown = genre_bits(["Drama", "War", "Drama, War", ""])
    assert list_diversity([drama, drama]) == 0.0 and list_diversity([drama, war]) == 1.0
    assert list_diversity([drama, war, both, unknown]) == pytest.approx((1 + 0.5 + 0.5) / 3)
    assert list_diversity([drama, unknown]) is None
    assert Lists.of(np.array([[0, 1, -1], [0, 3, -1]]), 4, [drama, war, both, unknown], np.ones(2)).diversity == [1.0]


def test_quartiles_keep_equal_lengths_together():
    label, names = quartiles(np.array([5, 5, 5, 5, 5, 9, 7, 20]))
    assert names == ["5", "7", "9–20"] and label.tolist() == [0, 0, 0, 0, 0, 2, 1, 2]
    assert quartiles(np.array([4, 4, 4]))[1] == ["4"]  # no groups to compare


def test_the_gap_is_between_the_best_and_the_worst_group():
    values = {"ndcg@10": np.array([1.0] * 40 + [0.25] * 40 + [0.5] * 40), "hr@10": np.tile([0.0, 1.0], 60)}
    groups = compare_groups(values, np.repeat([0, 1, 2], 40), ["a", "b", "c"])
    gap = groups.gaps["ndcg@10"]
    assert (gap.best, gap.worst, gap.difference, gap.interval) == ("a", "b", 0.75, (0.75, 0.75))
    assert (
        groups.gaps["hr@10"].difference == 0 and groups.gaps["hr@10"].interval[0] < 0 < groups.gaps["hr@10"].interval[1]
    )
    assert [group.metrics["ndcg@10"] for group in groups.groups] == [1.0, 0.25, 0.5]


def test_the_interval_of_a_gap_covers_the_true_difference():
    """Of 200 samples with a true gap of 0.3, about 95 % of the intervals hold it; the width is that of theory."""
    rng = np.random.default_rng(0)
    hits, label = 0, np.repeat([0, 1], 60)
    for _ in range(200):
        sample = np.concatenate([rng.normal(0.5, 0.2, 60), rng.normal(0.2, 0.2, 60)])
        low, high = compare_groups({"ndcg@10": sample}, label, ["a", "b"]).gaps["ndcg@10"].interval
        hits += low <= 0.3 <= high
    assert 180 <= hits <= 199
    assert high - low == pytest.approx(2 * 1.96 * 0.2 * math.sqrt(2 / 60), rel=0.25)


# Against plain definitions


@pytest.mark.parametrize("seed", range(4))
def test_metrics_equal_their_definitions(seed):
    lists, taken, genres = random_lists(seed)
    people, items = lists.shape[0], len(genres)
    having = [sum(item in row for row in taken) for item in range(items)]
    times = [sum(item in row for row in lists.tolist()) for item in range(items)]
    accuracy = {name: np.random.default_rng(seed).uniform(size=people).tolist() for name in GROUP_METRICS}
    kept = Lists.of(lists, items, genre_bits(genres), np.array([len(row) for row in taken]))
    metrics = kept.metrics(np.array(having), people, accuracy)

    places = [item for row in lists.tolist() for item in row]
    assert metrics.people == people
    assert metrics.coverage == pytest.approx(len(set(places)) / items, abs=1e-6)
    unequal = sum(abs(a - b) for a in times for b in times) / (2 * items**2 * np.mean(times))
    assert metrics.gini == pytest.approx(unequal, abs=1e-6)
    popularity = np.mean([having[item] for item in places])
    usual = np.mean([having[item] for row in taken for item in row])
    assert metrics.popularity == pytest.approx(popularity, abs=1e-6)
    assert metrics.history_popularity == pytest.approx(usual, abs=1e-6)
    assert metrics.popularity_bias == pytest.approx(math.log2(popularity / usual), abs=1e-6)
    assert metrics.novelty == pytest.approx(np.mean([-math.log2(max(having[i], 1) / people) for i in places]), abs=1e-6)
    sets = [set(text.split("|")) - {""} for text in genres]
    spread = []
    for row in lists:
        pairs = [(sets[a], sets[b]) for a, b in itertools.combinations(row, 2) if sets[a] and sets[b]]
        spread += [np.mean([1 - len(a & b) / len(a | b) for a, b in pairs])] if pairs else []
    assert metrics.diversity == pytest.approx(np.mean(spread), abs=1e-6)
    groups = metrics.groups.groups
    assert sum(group.people for group in groups) == people
    for group in groups:
        low, high = (int(end) for end in (group.name.split("–") * 2)[:2])
        mine = [value for value, row in zip(accuracy["ndcg@10"], taken) if low <= len(row) <= high]
        assert group.metrics["ndcg@10"] == pytest.approx(np.mean(mine), abs=1e-6) and group.people == len(mine)
    means = [group.metrics["hr@10"] for group in groups]
    assert metrics.groups.gaps["hr@10"].difference == pytest.approx(max(means) - min(means), abs=2e-6)


def test_lists_of_folds_are_joined():
    lists, taken, genres = random_lists(0)
    history, bits = np.array([len(row) for row in taken]), genre_bits(genres)
    ranks = np.ones(50, np.int64), np.arange(50)

    def part(some):
        own = Lists.of(lists[some], 80, bits, history[some])
        few = ranks[0][some], ranks[1][some]
        return RankingMetrics.of_ranks(few, few, own)

    def as_checkpoint(metrics):
        return json.loads(json.dumps({"sampled": metrics.sampled, "full": metrics.full, "lists": vars(metrics.lists)}))

    folds = [as_checkpoint(part(slice(first, None, 5))) for first in range(5)]
    order = np.concatenate([np.arange(first, 50, 5) for first in range(5)])
    assert join_folds(folds).lists == part(order).lists
    assert join_folds([{**fold, "lists": None} for fold in folds]).lists is None


# From sums


def test_metrics_of_sums_equal_those_of_everybody():
    """Nodes send sums; the groups have public limits instead of quartiles, and intervals are normal ones."""
    rng = np.random.default_rng(3)
    people, items = 600, 30
    accuracy = {name: rng.uniform(size=people).tolist() for name in GROUP_METRICS}
    history = rng.choice([5, 10, 29, 30, 99, 250], people)
    lists = np.stack([rng.choice(items, 10, replace=False) for _ in range(people)])
    bits = rng.integers(0, 16, items).tolist()

    def part(some):
        metrics = {name: np.array(values)[some].tolist() for name, values in accuracy.items()}
        return json.loads(json.dumps(Lists.of(lists[some], items, bits, history[some]).sums(metrics)))

    merged = metrics_of_sums([part(np.arange(node, people, 3)) for node in range(3)], people, {})
    everybody = Lists.of(lists, items, bits, history)
    assert merged.diversity == pytest.approx(np.mean(everybody.diversity), abs=1e-6) and merged.coverage is None
    band = np.array([0, 1, 1, 2, 2, 3])[np.searchsorted([5, 10, 29, 30, 99, 250], history)]
    values = {name: np.array(value) for name, value in accuracy.items()}
    names = ["under 10", "10–29", "30–99", "100 or more"]
    expected = compare_groups(values, band, names)
    assert BANDS == (10, 30, 100)
    for ours, theirs in zip(merged.groups.groups, expected.groups, strict=True):
        assert (ours.name, ours.people) == (theirs.name, theirs.people)
        assert ours.metrics == pytest.approx(theirs.metrics, abs=1e-6)
        for name, (low, high) in theirs.intervals.items():
            assert ours.intervals[name] == pytest.approx((low, high), abs=0.2 * (high - low))
    for name, gap in expected.gaps.items():
        ours = merged.groups.gaps[name]
        assert (ours.best, ours.worst, ours.difference) == (
            gap.best,
            gap.worst,
            pytest.approx(gap.difference, abs=2e-6),
        )
        width = gap.interval[1] - gap.interval[0]
        assert ours.interval == pytest.approx(gap.interval, abs=0.2 * width)
    assert metrics_of_sums([{}, {}], 20, {}) is None


def test_groups_of_few_people_are_withheld_together():
    """One small group would follow from the others and from the sums of everybody."""
    history = np.array([5] * 12 + [20] * 9 + [50] * 15)
    ranks = np.ones(36, np.int64), np.arange(36)
    lists = Lists.of(np.zeros((36, 10), np.int64) + np.arange(10), 20, [3] * 20, history)
    part = tally(RankingMetrics.of_ranks(ranks, ranks, lists))
    assert set(withhold_groups(part, 9)["lists"]) == {"diversity", "groups"}
    assert set(withhold_groups(part, 10)["lists"]) == {"diversity"}
    assert "lists" not in withhold_groups(part, 37) and withhold_groups(part, 37)["sums"] == part["sums"]


# Over Flower


WORLD = {"data": "synthetic:120x60x2400", "method": "fedals", "rounds": 1}


def federated(tmp_path, **fields):
    """(result, the reports of test metrics of the nodes with their blobs)."""
    folder, grid = federation_in_process(tmp_path / "run", **WORLD | fields)
    result = serve_to_the_end(folder, grid)
    replies = [unpack_content(reply) for reply in grid.replies if "fedtaste" in reply.content.config_records]
    reports = [(json.loads(text), blob) for text, blob in replies if '"gradients"' in text]
    return result, [(report, blob) for report, blob in reports if report["seen"]["sums"].get("full.hr@10")]


def test_metrics_of_a_federation_equal_those_of_one_machine(tmp_path):
    """Counts by item and diversity give the same numbers."""
    result, reports = federated(tmp_path)
    settings = Settings(**WORLD)
    data = load(settings.data, seed=settings.seed)
    folder = RunFolder.create(tmp_path / "one", settings.model_dump(), data, __version__)
    expected = execute(prepare(settings, data), folder).dump()["beyond"]
    assert len(reports) == 3 and result["beyond"]["new"] is None  # a node has 4 new people, which is fewer than ten
    without_groups = {name: value for name, value in expected["seen"].items() if name != "groups"}
    assert {name: result["beyond"]["seen"].get(name) for name in without_groups} == pytest.approx(
        without_groups, abs=1e-6
    )
    assert {"coverage", "gini", "novelty", "popularity_bias", "diversity"} <= set(without_groups)
    assert not any("without the lists" in note for note in result["notes"])


def test_the_lists_of_few_people_are_not_reported(tmp_path):
    """A node has about 36 seen and 4 new people. It reports metrics of both (fewest is 1), and lists of ten or more."""
    _, reports = federated(tmp_path / "a")
    for report, blob in reports:
        assert 0 < report["new"]["people"] < 10 <= report["seen"]["people"]
        assert "lists" not in report["new"] and "diversity" in report["seen"]["lists"]
        assert set(decode(blob)[0].total) == {"seen", "taken"}
    names, counts = {"a": "node-0", "b": "node-1"}, {"seen": np.ones(2), "taken": np.ones(2)}
    assert "node-1" in missing_counts(names, {"a": counts, "b": {}})[0]
    assert missing_counts(names, {"a": counts, "b": counts}) == missing_counts(names, {"a": {}}) == []


def test_a_secure_federation_sends_no_counts_by_item(tmp_path):
    result, reports = federated(tmp_path, wire="secure")
    assert len(reports) == 3 and not any(blob for _, blob in reports)
    assert set(result["beyond"]["seen"]) <= {"people", "diversity", "groups"}


def test_a_private_federation_sends_nothing_about_lists(tmp_path):
    result, reports = federated(tmp_path, method="fedmf", wire="clip=1,noise=5")
    assert len(reports) == 3 and "beyond" not in result
    assert not any("lists" in report["seen"] or blob for report, blob in reports)


TALLY = {"kind": "ranking", "people": 20, "sums": {"full.hr@10": [5.0, 5.0]}}
GROUP = [5, 1.0, 0.5, 2.0, 2.0]


@pytest.mark.parametrize(
    "lists",
    [
        {"diversity": [21.0, 20]}, {"diversity": [1.0, 21]}, {"diversity": [-1.0, 3]}, {"diversity": [math.nan, 3]},
        {"diversity": 3}, {"groups": [GROUP] * 3}, {"groups": [GROUP] * 5}, {"groups": [[6, *GROUP[1:]]] * 4},
        {"groups": [[5, 6.0, 0.5, 2.0, 2.0]] * 4}, {"groups": [[5, -1.0, 0.5, 2.0, 2.0]] * 4}, {"groups": "x"},
        {"groups": [[5, math.nan, 0.5, 2.0, 2.0]] * 4}, {"other": 1}, [],
    ],
    ids=str,
)  # fmt: skip
def test_impossible_sums_of_lists_are_refused(lists):
    possible = TALLY | {"lists": {"diversity": [3.5, 20], "groups": [GROUP] * 4}}
    assert valid_metrics(MetricReport(seen=possible), "ranking", 20, 0)
    assert not valid_metrics(MetricReport(seen=TALLY | {"lists": lists or 3}), "ranking", 20, 0)


def counts_blob(**counts):
    return encode(Upload({name: torch.as_tensor(value) for name, value in counts.items()}, torch.ones(())))


@pytest.mark.parametrize(
    "counts",
    [
        {"seen": [1, 2, 0]}, {"seen": [5, 0, 0], "taken": [1, 1, 1]}, {"seen": [1, 0], "taken": [1, 1, 1]},
        {"seen": [-1, 0, 0], "taken": [1, 1, 1]}, {"seen": [1.0, 0, 0], "taken": [1, 1, 1]},
        {"seen": [1, 0, 0], "taken": [1, 9, 1]}, {"new": [1, 0, 0], "taken": [1, 1, 1]},
        {"other": [0, 0, 0], "taken": [1, 1, 1]},
    ],
    ids=str,
)  # fmt: skip
def test_impossible_counts_by_item_are_refused(counts):
    people = {"seen": 4, "new": 0, "taken": 5}
    possible = read_item_counts(counts_blob(seen=[4, 0, 1], taken=[5, 0, 2]), 3, people)
    assert {name: value.tolist() for name, value in possible.items()} == {"seen": [4, 0, 1], "taken": [5, 0, 2]}
    assert read_item_counts(counts_blob(**counts), 3, people) is None
    assert read_item_counts(b"nonsense", 3, people) is None and read_item_counts(b"", 3, people) == {}


# In reports


def with_lists(method, **lists):
    """A result with metrics of lists."""
    groups = [
        {"name": name, "people": 40, "metrics": {"ndcg@10": y}, "intervals": {"ndcg@10": [y - 0.05, y + 0.05]}}
        for name, y in (("1–9", 0.3), ("10–40", 0.1))
    ]
    gap = {"best": "1–9", "worst": "10–40", "difference": 0.2, "interval": [0.1, 0.3]}
    seen = {"people": 80, "groups": {"groups": groups, "gaps": {"ndcg@10": gap}}, **lists}
    return ranking(method, beyond={"seen": seen, "new": None})


def test_the_report_has_a_table_and_a_plot_of_the_lists(tmp_path):
    results = [with_lists("fedals", coverage=0.4, novelty=2.5, popularity=212.4), with_lists("fedmf", coverage=0.1)]
    page, _ = page_of(results, tmp_path)
    first, second = [row for row in page.rows if "beyond.seen.coverage" in row]
    assert first["beyond.seen.coverage"] == {"value": 0.4, "ends": None, "best": False, "shown": "0.400"}
    assert (first["beyond.seen.popularity"]["shown"], second["beyond.seen.novelty"]["value"]) == ("212", None)
    assert second["beyond.seen.gap.ndcg@10"]["ends"] == [0.1, 0.3]
    assert not any(key.startswith(("beyond.new", "beyond.seen.gini")) for key in first)  # nobody measured them
    alt = next(tag["alt"] for name, tag in page.tags if name == "img" and "length of history" in tag["alt"])
    assert "FedMF: 0.300 for 1–9, 0.100 for 10–40" in alt
    assert (tmp_path / "plots" / "groups.png").exists()
    page_of([ranking()], tmp_path)
    assert not (tmp_path / "plots" / "groups.png").exists()  # of an earlier report
    assert "Beyond accuracy" not in (tmp_path / "report.html").read_text("utf-8")


def test_the_terminal_has_a_second_table_of_the_lists():
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(list_table([with_lists("fedals", coverage=0.4, diversity=0.71)]))
    text = console.export_text()
    assert "0.400" in text and "0.710" in text and ".10–.30" in text and max(map(len, text.splitlines())) <= 80
    assert list_table([ranking()]) is None


# In a run


def test_an_evaluation_counts_the_lists_that_its_scores_give():
    rng = np.random.default_rng(0)
    pairs = np.unique(rng.integers(0, 30 * 20, 250))
    data = Interactions(
        "mine", (pairs // 20).astype(np.int32), (pairs % 20).astype(np.int32), tuple(map(str, range(30))),
        tuple(map(str, range(20))), genres=("Drama", "War") * 10,
    )  # fmt: skip
    task = ranking_task(data, protocol_name="clean", split_name="leave-one-out", new_people=0.0, seed=0)
    model = factorization(20, k=4)
    method = fedals(model)
    *_, last = run(method, model, task.federation("final", method, Sampling(), None), rounds=2)
    served, history = Served(method, model, last.state), task.final_train
    evaluation = task.evaluate(served, task.seen, None)

    ready = personalise(served, of_histories(history, 20, stream=SERVE), task.seen, None)
    lists = {}
    for places, scores in ready.scores(torch.arange(20)):
        for place, row in zip(places, scores.numpy()):
            lists[place] = rank_items(row, history.of(task.seen[place]))[:10].tolist()
    assert len(lists) == len(task.seen)
    assert evaluation.lists.recommended == [sum(item in row for row in lists.values()) for item in range(20)]
    assert evaluation.lists.history == [len(history.of(person)) for person in task.seen]
    spread = [np.mean([(a - b) % 2 for a, b in itertools.combinations(lists[n], 2)]) for n in range(len(lists))]
    assert evaluation.lists.diversity == pytest.approx(spread)  # odd and even items have no genre in common
    having = [sum(item in history.of(person) for person in range(30)) for item in range(20)]
    assert task.item_counts().tolist() == having


def test_the_result_of_a_run_has_metrics_beyond_accuracy(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sparse = ("--data", "synthetic:60x300x900", *TINY[2:])
    output = fedtaste("run", *sparse, "--method", "popularity", "--out", "run", "--new-people", "0.2")
    result = RunResult.model_validate_json(output.out)
    seen, new = result.beyond.seen, result.beyond.new
    assert (seen.people, new.people) == (result.seen.people, result.new.people) == (48, 12)
    assert seen.popularity_bias > 0.3 and seen.coverage < 0.3  # everybody is recommended the most popular items
    groups = seen.groups.groups
    for name in GROUP_METRICS:  # the mean over groups is that of everybody
        mean = sum(group.people * group.metrics[name] for group in groups) / seen.people
        assert mean == pytest.approx(result.seen.full[name], abs=2e-6)


def test_a_run_with_noise_reports_nothing_that_epsilon_does_not_cover(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    output = fedtaste("run", *TINY, "--method", "fedmf", "--wire", "clip=1,noise=1", "--out", "run")
    assert "beyond" not in json.loads(output.out)
    assert "Beyond accuracy" not in (tmp_path / "run" / "report.html").read_text("utf-8")


@pytest.mark.parametrize("options", [("--task", "ratings"), ("--new-people", "folds")])
def test_other_tasks_have_no_lists_and_folds_have_everybodys(options, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = json.loads(fedtaste("run", *TINY, "--method", "fedals", *options, "--out", "run").out)
    if "ratings" in options:
        assert "beyond" not in result
    else:
        assert result["beyond"]["new"]["people"] == result["new"]["people"] == 60
