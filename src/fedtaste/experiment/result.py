"""Typed results of runs and comparisons: what `--json` prints, what result.json holds, what reports are made from.

`RunResult` and `ComparisonResult` are frozen pydantic models, and `dump` gives their JSON objects. Names of metrics
("hr@10") are data and stand in dicts; everything else is an attribute. A field that has a default here is written only
where it was set: `secure`, for example, is missing from the JSON of a run without secure sums.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, ConfigDict, Field

from fedtaste.errors import SettingError
from fedtaste.evaluation.list_metrics import BeyondAccuracy
from fedtaste.experiment.tune_result import Tuning
from fedtaste.result_part import Count, Interval, ResultPart
from fedtaste.wire import accounting

RoundNumber = Annotated[int, Field(ge=1, lt=2**63)]
Amount = Annotated[float, Field(ge=0)]
GroupIntervals = dict[str, Interval | dict[str, Interval]]  # named as the metrics of `Scores`


class Scores(ResultPart):
    """Metrics of a group of people. A ranking has `sampled` and `full`; other tasks have their metrics by name (rmse,
    accuracy, loss, ...), which `metric` reads."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, float] = Field(init=False)

    people: Count
    sampled: dict[str, float] | None = None
    """Among 99 sampled items: hr@10, ndcg@10, recall@10, mrr@10."""
    full: dict[str, float] | None = None
    """Among all items that a person has not seen."""

    def metric(self, name: str) -> float | None:
        """A metric by its name, as in `sampled.hr@10` or `rmse`; None where it was not measured."""
        group, _, key = name.rpartition(".")
        metrics = {"sampled": self.sampled, "full": self.full, "": self.__pydantic_extra__}.get(group)
        return (metrics or {}).get(key)


class Intervals(ResultPart):
    """95 % intervals of the metrics of people who took part in training (`seen`), and of `new` ones."""

    seen: GroupIntervals
    new: GroupIntervals | None


class Stopped(ResultPart):
    """The last round that was trained while the best round was searched for, and why it was the last."""

    round: Count
    reason: str


class Leak(ResultPart):
    """The leak detector: HR@10 of a memory of the negatives drawn in training, which learns nothing, and of popularity.
    Under a clean protocol the memory is no better than popularity."""

    memoriser_hr: float = Field(alias="memoriser_hr@10")
    popularity_hr: float = Field(alias="popularity_hr@10")
    leaks: bool
    memoriser_curve: tuple[tuple[Count, float], ...] | None = None
    """(round, HR@10), under the published protocol."""


class Traffic(ResultPart):
    """Bytes sent to train the final model."""

    up_bytes: Count
    down_bytes: Count
    up_bytes_per_person_round: Count


class Gradients(ResultPart):
    """Gradient evaluations of one person, each over all of that person's data."""

    per_person_round: Amount
    total: Amount


class Seconds(ResultPart):
    """Wall-clock times; `train_cpu` is CPU time, and `round` the median round."""

    setup: Amount
    train: Amount
    evaluate: Amount
    train_cpu: Amount
    round: Amount | None


class LedgerTotal(ResultPart):
    """What all private runs on the same people promise together (`fedtaste privacy ledger`)."""

    runs: Count
    epsilon: float | None
    delta: float | None
    repeatable_runs: Count


class Predictor(ResultPart):
    """FedVeil's forecast: the ratio r of noise to data, and which route it advises."""

    r: float
    advice: str


class PrivacyStatement(accounting.PrivacyStatement):
    """The privacy statement of a run, with FedVeil's forecast and the total of all runs on the same people."""

    predictor: Predictor | None = None
    ledger: LedgerTotal | None = None


class CurvePoint(ResultPart):
    """One round of the search, or of the only phase; bytes and gradients are of all rounds so far."""

    round: RoundNumber
    change: float | None
    """How far the shared parameters moved, relative to their size."""
    loss: float | None
    answered: Count | None
    zeros: float | None
    """The share of exact zeros among the shared parameters."""
    valid: dict[str, float] | None
    up_bytes: Count
    down_bytes: Count
    gradients: Amount | None


class ClientRow(ResultPart):
    """One client of a task with few clients."""

    client: str
    accuracy: float | None = None
    global_accuracy: float | None = None
    examples: Count


class SecureLeak(ResultPart):
    """What an attacker recovers from the secure sums of several rounds without noise (F1 of people's items)."""

    f1: float
    worst_f1: float
    attack: str
    people: Count
    in_sum: Count
    rounds: Count
    popularity_f1: float
    """Of somebody who knows only what is popular."""


class FederationRound(ResultPart):
    """One round over real nodes; a private run does not tell who took part."""

    phase: str
    round: Count
    nodes: tuple[str, ...] | None = None
    people: Count | None = None
    refused: dict[str, Count] | None = None
    seconds: float


class FederationHistory(ResultPart):
    """The rounds of a federation over Flower."""

    history: tuple[FederationRound, ...]


class NewItemScores(ResultPart):
    """Items that took no part in training, ranked for seen people among all such items, by vectors from features."""

    items: Count
    people: Count
    metrics: dict[str, float]
    """recall@10, hr@10, ndcg@10, mrr@10."""
    intervals: dict[str, Interval]
    random_recall: float
    """recall@10 of a random order, exactly."""
    popularity_recall: float | None = None
    """recall@10 of the popularity that the features predict, the same list for everybody; not in a private run."""

    def sentence(self) -> str:
        """The finding for readers."""
        recall, (low, high) = self.metrics["recall@10"], self.intervals["recall@10"]
        text = f"New items: recall@10 {recall:.3f} [{low:.3f}, {high:.3f}] among {self.items:,} that nobody had taken"
        popular = "" if self.popularity_recall is None else f"; popularity by features {self.popularity_recall:.3f}"
        return f"{text}, {recall / self.random_recall:.1f} times random ({self.random_recall:.3f}){popular}."


class RunResult(ResultPart):
    """The result of one run."""

    data: str
    task: str
    method: str
    settings: dict[str, object]
    """Every setting in force, defaults included."""
    protocol: str
    wire: str
    seed: int
    rounds: Count
    people: Count
    members: Count
    """People who took part in training."""
    items: Count
    feature_count: Count
    interactions: Count | None
    seen: Scores
    new: Scores | None
    intervals: Intervals
    best_round: Count
    stopped: Stopped
    leak: Leak | None
    traffic: Traffic
    gradients: Gradients | None
    privacy: PrivacyStatement | None
    seconds: Seconds
    peak_rss_mb: Amount
    rejected_updates: dict[str, Count]
    notes: tuple[str, ...]
    run: str
    """The run folder."""
    scale: tuple[float, float]
    """The smallest and the largest rating."""
    curve: tuple[CurvePoint, ...]
    valid: dict[str, float] | None = None
    """Validation metrics of the round that was chosen; None where validation chose none (`validation` reads it)."""
    weights: tuple[float, ...] | None = None
    true_weights: tuple[float, ...] | None = None
    by_client: tuple[ClientRow, ...] | None = None
    beyond: BeyondAccuracy | None = None
    """Coverage, popularity, novelty, diversity and gaps between groups, of a ranking without noise."""
    secure: SecureLeak | None = None
    federation: FederationHistory | None = None
    new_items: NewItemScores | None = None
    tuning: Tuning | None = None
    """The study that chose the settings, where there was one; its cost is not part of the traffic."""

    def metric(self, key: str) -> float | None:
        """A metric by its key, as in `seen.sampled.hr@10`, `new.rmse` or `beyond.seen.coverage`; None where it was not
        measured."""
        who, _, name = key.partition(".")
        if who == "beyond":
            lists, name = self.beyond.lists(name) if self.beyond else (None, "")
            return lists.metric(name) if lists else None
        if who == "new_items":
            return self.new_items.metrics.get(name) if self.new_items else None
        groups = {"seen": self.seen, "new": self.new}
        if who not in groups:
            raise SettingError(
                f"A metric begins with seen, new, beyond or new_items, as in seen.sampled.hr@10; got {key!r}."
            )
        scores = groups[who]
        return scores.metric(name) if scores else None

    def interval(self, key: str) -> Interval | None:
        """The 95 % interval of a metric; None where there is none."""
        who, _, name = key.partition(".")
        if who == "beyond":
            lists, name = self.beyond.lists(name) if self.beyond else (None, "")
            gap = lists.gap(name) if lists else None
            return gap.interval if gap else None
        if who == "new_items":
            return self.new_items.intervals.get(name) if self.new_items else None
        group, _, last = name.rpartition(".")
        intervals = {"seen": self.intervals.seen, "new": self.intervals.new}.get(who) or {}
        ends = intervals.get(group) if group else intervals
        interval = ends.get(last) if isinstance(ends, dict) else None
        return interval if isinstance(interval, tuple) else None

    @property
    def validation(self) -> dict[str, float]:
        """Validation metrics of the round that was chosen, also of results that earlier versions wrote; empty where
        there was no search (runs with noise, methods that release several parts of a model)."""
        found = self.valid or next((point.valid for point in self.curve if point.round == self.best_round), None)
        return found or {}

    @property
    def epsilon(self) -> float | None:
        """What the run promises; None where it promises nothing."""
        return self.privacy.epsilon if self.privacy else None


class FitResult(ResultPart):
    """The result of `fedtaste fit`: a model for production, which learnt from everything and everybody."""

    data: str
    task: str
    method: str
    settings: dict[str, object]
    """Every setting in force, defaults included."""
    wire: str
    seed: int
    rounds: Count
    """Rounds of this training."""
    total_rounds: Count
    """Rounds of this training and of the models that it continues."""
    people: Count
    members: Count
    """People who took part in training."""
    items: Count
    feature_count: Count
    interactions: Count | None
    stopped: Stopped
    valid: dict[str, float] | None
    """Validation metrics of the round that was chosen, before the final training; None where no round was chosen."""
    traffic: Traffic
    privacy: PrivacyStatement | None
    """Of the model: epsilon and delta of this training and of those that it continues, added up. Epsilon is None where
    one of them had no noise."""
    seconds: Seconds
    notes: tuple[str, ...]
    run: str
    """The folder of the model."""
    scale: tuple[float, float]
    curve: tuple[CurvePoint, ...]


class Heterogeneity(ResultPart):
    """How far clients' data are apart (`R`), against the error (`noise`) of a fit to one client's `n` examples. `lam`
    is what FedCLUP would take for the linear model that this was measured with."""

    R: float
    noise: float
    n: float
    clients: Count
    lam: float | None


def _folder_name(name: str) -> str:
    if name in ("", ".", "..") or Path(name).name != name:
        raise ValueError("must be the name of a folder in the folder of the comparison")
    return name


FolderName = Annotated[str, AfterValidator(_folder_name)]
AXES = ("accuracy", "bytes", "epsilon", "rounds", "gradients")


def _axis(name: str) -> str:
    if name not in AXES:
        raise ValueError(f"must be one of {', '.join(AXES)}")
    return name


Axis = Annotated[str, AfterValidator(_axis)]


class Comparison(ResultPart):
    """compare.json: the folders of the runs, and what their trade-off was measured with."""

    runs: Annotated[tuple[FolderName, ...], Field(min_length=1)]
    heterogeneity: Heterogeneity | None = None
    left_out: dict[str, str] = {}
    axes: tuple[Axis, ...] = ()


class SurfacePoint(ResultPart):
    """Where a run stands on the axes of `--axes`, by the axis's name; None for an infinite epsilon."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, int | float | None] = Field(init=False)

    run: str


class SurfaceSummary(ResultPart):
    """The runs that no other beats in all of the axes at once."""

    axes: tuple[str, ...]
    points: tuple[SurfacePoint, ...]
    front: tuple[str, ...]


class TradeoffSummary(ResultPart):
    """Quality against costs: the runs on each cost's front, the run to choose, and why."""

    metric: str
    front: dict[str, tuple[str, ...]]
    choice: str | None
    """Chosen by `validation`; None where runs have none, or do not compare."""
    advice: str
    surface: SurfaceSummary | None = None
    basis: str = "test"
    """Which figures fronts and surface go by: test, or validation where several settings of a method were tried."""
    validation: dict[str, float | None] | None = None
    """The metric on validation, by run."""
    not_chosen: tuple[str, ...] = ()
    """Runs of a sweep that validation did not choose. Their test figures are in no table; `results` has them, for
    studies: whoever chooses by them chooses on test."""


class SeedSpread(ResultPart):
    """A metric over the runs of several seeds."""

    mean: float
    sd: float
    """The standard deviation over seeds (n - 1)."""
    values: tuple[float, ...]
    """In the order of the seeds; their smallest and largest are the range."""


class SeedsOfMethod(ResultPart):
    """The runs of one method (with its settings) over all seeds."""

    name: str
    runs: tuple[str, ...]
    metrics: dict[str, SeedSpread]


class SeedSummary(ResultPart):
    """What several seeds say: mean and spread by method. A seed changes ties in the split, who is new, the initial
    parameters and the negatives; of generated data also the data."""

    seeds: tuple[int, ...]
    methods: tuple[SeedsOfMethod, ...]


class Difference(ResultPart):
    """`first` minus `second` in one metric, paired by person."""

    first: str
    second: str
    metric: str
    difference: float
    """The mean over seeds."""
    interval: Interval
    """95 %, by a bootstrap over people: every person keeps their scores of all seeds."""
    p: float
    """Of a two-sided randomisation test over people."""
    p_holm: float
    """Corrected by Holm's procedure for the number of pairs with this metric."""
    people: Count
    by_seed: tuple[float, ...]


class MethodTrial(ResultPart):
    """A method that `--methods auto` tried."""

    method: str
    why: str
    """Why it was tried."""
    valid: float
    """The metric of the choice on validation, in the best round."""
    bytes_per_person: Count
    """Up and down, in the whole training of the final model."""
    private: tuple[str, ...]
    """Parameters that stay with a person."""
    trains_new_people: bool
    """Whether the device of a new person trains before they are served; otherwise they are served at once."""
    secure: bool
    """Whether it works with secure sums (--wire secure)."""
    page: bool
    """Whether `fedtaste export` can write a page that recommends in the browser."""
    run: str
    """The run folder."""


class MethodChoice(ResultPart):
    """Which method `--methods auto` advises, by validation and bytes, and why."""

    take: str
    sentence: str
    metric: str
    minutes: float
    trials: tuple[MethodTrial, ...]
    left_out: dict[str, str]
    """Why other methods were not tried."""


class ComparisonResult(ResultPart):
    """The result of `fedtaste compare`."""

    results: tuple[RunResult, ...]
    report: str
    tradeoff: TradeoffSummary | None
    left_out: dict[str, str]
    """Why runs are missing from the results, by name."""
    seeds: SeedSummary | None = None
    """Where there are several seeds; `results` then has the runs of all of them."""
    differences: tuple[Difference, ...] = ()
    """Between all pairs of methods whose people's scores are stored."""
    choice: MethodChoice | None = None
    """The advice of --methods auto."""
