"""Several seeds: the mean result of a method over its runs, the spread over seeds, and differences of methods."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedtaste.evaluation.paired import mean_interval, paired_differences
from fedtaste.experiment.result import (
    Difference,
    Gradients,
    GroupIntervals,
    Intervals,
    RunResult,
    Scores,
    Seconds,
    SeedsOfMethod,
    SeedSpread,
    SeedSummary,
    Traffic,
)
from fedtaste.experiment.scores import PersonScores, person_sums

METRICS = ("sampled.hr@10", "sampled.ndcg@10", "full.hr@10", "full.ndcg@10", "rmse", "accuracy")
KEYS = tuple(f"{who}.{metric}" for who in ("seen", "new") for metric in METRICS)
NOT_AVERAGED = ("beyond", "new_items", "by_client", "weights", "true_weights")  # in the reports of the single runs


@dataclass(frozen=True, eq=False)
class FinishedRun:
    """A run with its result, in a comparison."""

    configuration: str  # the label of its method and settings; equal in all seeds
    folder: Path
    result: RunResult
    data_hash: str


@dataclass(frozen=True, eq=False)
class Configuration:
    """The runs of one method and its settings, one for each seed."""

    label: str
    runs: tuple[FinishedRun, ...]

    @property
    def results(self) -> list[RunResult]:
        return [run.result for run in self.runs]

    @property
    def seeds(self) -> list[int]:
        return [run.result.seed for run in self.runs]

    def scores(self, seeds: Sequence[int]) -> list[PersonScores] | None:
        """People's scores in the runs of these seeds; None where a run stores none."""
        read = [PersonScores.read(run.folder) for run in self.runs if run.result.seed in seeds]
        found = [scores for scores in read if scores is not None]
        return found if found and len(found) == len(read) else None

    def data_hashes(self, seeds: Sequence[int]) -> list[str]:
        """The fingerprints of the data of these seeds."""
        return [run.data_hash for run in self.runs if run.result.seed in seeds]

    def mean_result(self) -> RunResult:
        """The one run's result, or the mean of several. What does not average (curve, settings) is the first seed's."""
        first, results = self.results[0], self.results
        if len(results) == 1:
            return first
        seeds = ", ".join(map(str, self.seeds))
        note = f"Figures are means over seeds {seeds}; curves, maps and settings are those of seed {first.seed}."
        changes = {
            "seen": _mean_scores([result.seen for result in results]),
            "new": _mean_scores([result.new for result in results if result.new]) if first.new else None,
            "intervals": self._intervals(), "valid": _means([result.validation for result in results]) or None,
            "rounds": round(np.mean([result.rounds for result in results])),
            "traffic": Traffic(**{n: round(v) for n, v in _means([r.traffic.model_dump() for r in results]).items()}),
            "gradients": _mean_gradients(results),
            "seconds": _mean_seconds(results),
            "peak_rss_mb": max(result.peak_rss_mb for result in results),
            "notes": (note, *dict.fromkeys(text for result in results for text in result.notes)),
        }  # fmt: skip
        return first.model_copy(update=dict.fromkeys(NOT_AVERAGED) | changes)

    def _intervals(self) -> Intervals:
        """95 % intervals of the means over seeds, by a bootstrap over people; none where scores are not stored."""
        groups: dict[str, GroupIntervals] = {"seen": {}, "new": {}}
        scores = self.scores(self.seeds)
        for key in KEYS if scores else ():
            sums = person_sums(scores or [], self.data_hashes(self.seeds), key)
            if sums is None:
                continue
            who, _, name = key.partition(".")
            kind, _, metric = name.rpartition(".")
            low, high = mean_interval(sums)
            inner = groups[who].setdefault(kind, {}) if kind else groups[who]
            assert isinstance(inner, dict)
            inner[metric] = (low, high)
        return Intervals(seen=groups["seen"], new=groups["new"] or None)


def configurations(runs: Sequence[FinishedRun]) -> list[Configuration]:
    """The runs by configuration, in the order of their first runs; seeds in rising order."""
    labels = dict.fromkeys(run.configuration for run in runs)
    return [
        Configuration(
            label, tuple(sorted((run for run in runs if run.configuration == label), key=lambda run: run.result.seed))
        )
        for label in labels
    ]


def seed_summary(parts: Sequence[Configuration], names: Sequence[str]) -> SeedSummary | None:
    """Mean and spread of every metric over seeds; None where no configuration has several."""
    if all(len(part.runs) < 2 for part in parts):
        return None
    methods = []
    for part, name in zip(parts, names):
        metrics = {}
        for key in KEYS:
            values = [value for result in part.results if (value := result.metric(key)) is not None]
            if len(values) == len(part.runs) > 1:
                metrics[key] = _spread(values)
        runs = tuple(str(run.folder) for run in part.runs)
        methods.append(SeedsOfMethod(name=name, runs=runs, metrics=metrics))
    seeds = sorted({seed for part in parts for seed in part.seeds})
    return SeedSummary(seeds=tuple(seeds), methods=tuple(methods))


def differences(parts: Sequence[Configuration], names: Sequence[str]) -> tuple[Difference, ...]:
    """Paired differences of all pairs of configurations over the seeds that all of them have. Those whose people's
    scores are not stored take no part."""
    seeds = sorted(set.intersection(*(set(part.seeds) for part in parts))) if parts else []
    stored = [(name, part, scores) for name, part in zip(names, parts) if (scores := part.scores(seeds))]
    found: list[Difference] = []
    for key in (f"seen.{metric}" for metric in METRICS):
        each = [(name, person_sums(scores, part.data_hashes(seeds), key)) for name, part, scores in stored]
        known = [(name, sums) for name, sums in each if sums is not None]
        if len(known) < 2 or any(not np.array_equal(sums.counts, known[0][1].counts) for _, sums in known):
            continue  # other people, or other examples, cannot be paired
        for pair in paired_differences([sums for _, sums in known]):
            found.append(
                Difference(
                    first=known[pair.first][0], second=known[pair.second][0], metric=key,
                    difference=round(pair.mean, 6), interval=(pair.interval[0], pair.interval[1]), p=pair.p,
                    p_holm=round(pair.p_holm, 6), people=len(known[0][1].sums),
                    by_seed=tuple(round(value, 6) for value in pair.by_seed),
                )
            )  # fmt: skip
    return tuple(found)


def _spread(values: Sequence[float]) -> SeedSpread:
    mean, sd = round(float(np.mean(values)), 6), round(float(np.std(values, ddof=1)), 6)
    return SeedSpread(mean=mean, sd=sd, values=tuple(values))


def _known(values: dict[str, float | None]) -> dict[str, float]:
    return {name: value for name, value in values.items() if value is not None}


def _means(parts: Sequence[dict[str, float]]) -> dict[str, float]:
    """The mean of every name that all parts have."""
    names = [name for name in parts[0] if all(name in part for part in parts)]
    return {name: round(float(np.mean([part[name] for part in parts])), 6) for name in names}


def _mean_scores(parts: Sequence[Scores]) -> Scores:
    """Means of metrics; of people, the rounded mean of their number."""
    dumps = [part.model_dump() for part in parts]
    groups = {kind: _means([dump[kind] for dump in dumps]) for kind in ("sampled", "full") if dumps[0][kind]}
    others = _means([{n: v for n, v in dump.items() if isinstance(v, int | float)} for dump in dumps])
    return Scores.model_validate(others | {"people": round(others["people"])} | groups)


def _mean_seconds(results: Sequence[RunResult]) -> Seconds:
    means = _means([_known(result.seconds.model_dump()) for result in results])
    return Seconds.model_validate({"round": None} | means)


def _mean_gradients(results: Sequence[RunResult]) -> Gradients | None:
    counted = [result.gradients.model_dump() for result in results if result.gradients]
    return Gradients(**_means(counted)) if len(counted) == len(results) else None
