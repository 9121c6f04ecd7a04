"""The trade-off between quality and cost of several runs: a Pareto front per cost, the run to choose, and advice.

The choice goes by validation figures and never by test figures. Where several settings of a method were tried, the test
figures of all but the one that validation chose are withheld, and fronts and rivals go by validation, too; the width of
the choice's interval on test then stands in for the noise of validation, which is measured on about as many people.
Different methods are compared on test. Several settings of a method without validation figures, as those of runs with
noise, are on no front and take no part in the advice: the best of their test figures would flatter it.

A run is on the front of a cost where no other run is at least as good and as cheap, and better in one of the two. The
advice claims a difference only where intervals allow it: a run whose value lies inside the best run's 95 % interval is
within the noise, and one whose own interval holds the best run's value is not clearly worse. The theory behind the last
sentence is of "Understanding the Accuracy-Communication Trade-off in Personalized Federated Learning" (ICML 2025):
sharing pays while clients differ by less than the error of a client's own fit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from fedtaste.experiment.result import Heterogeneity, RunResult, TradeoffSummary
from fedtaste.report.numbers import decimals, digits, human_bytes, interval_text, plain
from fedtaste.report.pareto import Surface, by_epsilon, epsilon_of, surface, undominated
from fedtaste.report.tables import METRICS, Column, labels, leaks
from fedtaste.result_part import Interval
from fedtaste.text import listed

# Ratings have an accuracy too (within half a point), but are compared by RMSE
BY_KEY = {column.key: column for column in METRICS}
QUALITIES = [BY_KEY[key] for key in ("seen.sampled.ndcg@10", "seen.full.ndcg@10", "seen.rmse", "seen.accuracy")]
PROXIMAL = ("fedclup", "ditto", "pfedme")  # methods whose lam ties a personal model to the shared one
Costs = dict[str, list[float | None]]
ENDS = {"local": "nothing shared", "fedavg": "one model for all"}
YARDSTICKS = ("centralised", "centralized")  # pools the data: a level to compare with, never a choice
LEAST_SAVING = 0.95  # of the bytes: what saves less is not named as cheaper
FRACTIONS = {
    3 / 4: "three quarters", 2 / 3: "two thirds", 1 / 2: "half", 1 / 3: "a third", 1 / 4: "a quarter", 0.1: "a tenth",
}  # fmt: skip


@dataclass(frozen=True)
class Sweep:
    """The runs of one method that differ in one number."""

    key: str
    places: list[int]  # which results, by rising value
    values: list[float]
    degree: bool  # whether the number says how personal the models are: the smaller, the more


@dataclass(frozen=True)
class Tradeoff:
    """Quality and costs of the runs of a comparison, and which to choose. A run is its index in `names`."""

    quality: Column
    names: list[str]
    values: list[float | None]  # on test; None where withheld
    intervals: list[Interval | None]  # of these
    valid: list[float | None]  # the same metric on validation
    withheld: frozenset[int]  # runs of a sweep that validation did not choose
    costs: dict[str, list[float | None]]
    fronts: dict[str, list[int]]  # by cost: which results are on its front
    sweep: Sweep | None
    choice: int | None
    advice: str = ""
    surface: Surface | None = None  # over all requested axes at once
    undecided: frozenset[int] = frozenset()  # several settings of a method without validation figures to choose by

    def summary(self) -> TradeoffSummary:
        """The part of it that `--json` prints."""
        front = {cost: tuple(self.names[i] for i in places) for cost, places in self.fronts.items()}
        choice = None if self.choice is None else self.names[self.choice]
        not_chosen = tuple(self.names[i] for i in sorted(self.withheld))
        summary = TradeoffSummary(
            metric=self.quality.key, front=front, choice=choice, advice=self.advice, basis=self.basis,
            validation=dict(zip(self.names, self.valid)), not_chosen=not_chosen,
        )  # fmt: skip
        if self.surface is None:
            return summary
        return summary.model_copy(update={"surface": self.surface.summary(self.names)})

    @property
    def basis(self) -> str:
        """Which figures the runs are compared by: "validation" where test figures are withheld, otherwise "test"."""
        return "validation" if self.withheld else "test"

    @property
    def levels(self) -> list[float | None]:
        """The figures by which the runs are compared."""
        return self.valid if self.withheld else self.values

    @property
    def spreads(self) -> list[Interval | None]:
        """Intervals of `levels`."""
        if not self.withheld:
            return self.intervals
        interval = None if self.choice is None else self.intervals[self.choice]
        half = None if interval is None else (interval[1] - interval[0]) / 2
        return [None if v is None or half is None else (v - half, v + half) for v in self.valid]

    def on_front(self, i: int) -> list[str]:
        """The costs on whose front a run is."""
        return [cost for cost, places in self.fronts.items() if i in places]

    def value_text(self, i: int) -> str:
        """The quality of a run whose quality is known, as text."""
        return decimals(self.levels[i] or 0)

    def best(self, runs: Iterable[int]) -> int:
        """The best of these runs, whose quality is known."""
        return max(runs, key=lambda i: self.quality.better * (self.levels[i] or 0))

    def stands(self, i: int) -> str:
        """How a run stands against the chosen one: within the noise, unclear, worse (or better, on test); or unknown
        without intervals."""
        assert self.choice is not None
        value, best = self.levels[i], self.levels[self.choice]
        assert value is not None and best is not None
        interval, best_interval = self.spreads[i], self.spreads[self.choice]
        if value == best or (best_interval and best_interval[0] <= value <= best_interval[1]):
            return "within"
        if interval and interval[0] <= best <= interval[1]:
            return "unclear"
        if not best_interval:
            return "unknown"
        return "better" if self.ahead(i) else "worse"

    def ahead(self, i: int) -> bool:
        """Whether the figure of a run is better than that of the choice."""
        assert self.choice is not None
        return self.quality.better * (self.levels[i] or 0) > self.quality.better * (self.levels[self.choice] or 0)


def trade_off(
    results: Sequence[RunResult],
    heterogeneity: Heterogeneity | None = None,
    axes: tuple[str, ...] = (),
    *,
    sweeps: bool = True,
) -> Tradeoff | None:
    """Quality against every cost, and against all `axes` at once; None where there is nothing to compare. With `sweeps`
    several runs of a method are settings that were tried, of which validation chooses one."""
    counts = [sum(column.value(result) is not None for result in results) for column in QUALITIES]
    quality = QUALITIES[counts.index(max(counts))]
    if len(results) < 2 or not max(counts):
        return None
    valid = [result.validation.get(quality.key.rpartition(".")[2]) for result in results]
    costs: Costs = {
        "rounds": [result.rounds for result in results],
        "bytes": [result.traffic.up_bytes + result.traffic.down_bytes for result in results],
        "gradients": [result.gradients.total if result.gradients else None for result in results],
    }
    if any(result.epsilon is not None for result in results):
        costs["epsilon"] = [epsilon_of(result) for result in results]
    withheld = not_chosen(results, valid, costs, quality.better) if sweeps else frozenset()
    values = [None if i in withheld else quality.value(result) for i, result in enumerate(results)]
    intervals = [None if i in withheld else quality.interval(result) for i, result in enumerate(results)]
    undecided = undecided_settings(results, valid) if sweeps else frozenset()
    levels = [None if i in undecided else level for i, level in enumerate(valid if withheld else values)]
    fronts = {cost: front(levels, paid, quality.better) for cost, paid in costs.items()}
    choice = _choose(results, values, valid, costs, quality.better)
    sweep = find_sweep(results, choice)
    tradeoff = Tradeoff(
        quality, labels(results), values, intervals, valid, withheld, costs, fronts, sweep, choice, undecided=undecided
    )  # fmt: skip
    advice = " ".join(filter(None, [advise(tradeoff, results, heterogeneity), by_epsilon(tradeoff, results)]))
    return replace(tradeoff, advice=advice, surface=surface(axes, tradeoff, results) if axes else None)


def not_chosen(
    results: Sequence[RunResult], valid: Sequence[float | None], costs: Costs, better: int
) -> frozenset[int]:
    """The runs of every method with several validated runs, but for the one with the best validation figure."""
    if not _comparable(results):
        return frozenset()
    tried: dict[str, list[int]] = {}
    for i, result in enumerate(results):
        if valid[i] is not None:
            tried.setdefault(method_key(result), []).append(i)
    kept = {_best(places, valid, costs, better) for places in tried.values()}
    return frozenset(i for places in tried.values() for i in places if i not in kept)


def undecided_settings(results: Sequence[RunResult], valid: Sequence[float | None]) -> frozenset[int]:
    """The runs without validation figures that share method and epsilon: several settings were tried, and only their
    test figures could choose between them. They are on no front, and no advice names them."""
    tried: dict[tuple[str, str], list[int]] = {}
    for i, result in enumerate(results):
        if valid[i] is None:
            tried.setdefault((method_key(result), f"{epsilon_of(result):.2g}"), []).append(i)
    return frozenset(i for places in tried.values() if len(places) > 1 for i in places)


def front(values: Sequence[float | None], paid: Sequence[float | None], better: int = 1) -> list[int]:
    """Which runs no other beats in value or cost without losing in the other; equal ones are all on it.

    >>> front([0.7, 0.8, 0.8, 0.6, None], [1, 2, 3, 1, 0])
    [0, 1]
    """
    return undominated([(None if v is None else -better * v, c) for v, c in zip(values, paid)])


def _comparable(results: Sequence[RunResult]) -> bool:
    """Whether one run may be chosen over another: no protocol leaks, and data and protocol are the same."""
    return not leaks(results) and len({(result.data, result.protocol) for result in results}) == 1


def _choose(
    results: Sequence[RunResult], values: Sequence[float | None], valid: Sequence[float | None], costs: Costs,
    better: int,
) -> int | None:  # fmt: skip
    """The run with the best validation figure; None where the numbers do not compare, or a run has no such figure."""
    known = [i for i in range(len(results)) if values[i] is not None or valid[i] is not None]
    ours = [i for i in known if method_key(results[i]) not in YARDSTICKS] or known
    if not _comparable(results) or any(valid[i] is None for i in ours):
        return None
    return _best(ours, valid, costs, better)


def _best(runs: Sequence[int], valid: Sequence[float | None], costs: Costs, better: int) -> int:
    """The best validation figure; of equal ones the cheapest run."""

    def order(i: int) -> list[float]:
        paid = [costs[cost][i] for cost in ("bytes", "gradients", "rounds")]
        return [-better * (valid[i] or 0), *(float("inf") if cost is None else cost for cost in paid)]

    return min(runs, key=order)


def method_key(result: RunResult) -> str:
    return result.method.lower()


def find_sweep(results: Sequence[RunResult], choice: int | None = None) -> Sweep | None:
    """The swept number of the chosen run's method, or else of the method with most runs."""
    sweeps = [sweep for method in dict.fromkeys(map(method_key, results)) if (sweep := _sweep_of(results, method))]
    return max(sweeps, key=lambda sweep: (choice in sweep.places, len(sweep.places)), default=None)


def _sweep_of(results: Sequence[RunResult], method: str) -> Sweep | None:
    """One setting with another number in every run; where several are like that, lam, from which others may follow."""
    runs = [i for i, result in enumerate(results) if method_key(result) == method]
    swept: dict[str, dict[int, float]] = {}
    for name in dict.fromkeys(name for i in runs for name in results[i].settings):
        values = {i: value for i in runs if (value := _number(results[i].settings.get(name))) is not None}
        if len(values) > 1 and len(set(values.values())) == len(values):
            swept[name] = values
    key = "lam" if "lam" in swept else next(iter(swept)) if len(swept) == 1 else None
    if key is None:
        return None
    places = sorted(swept[key], key=lambda i: swept[key][i])
    return Sweep(key, places, [swept[key][i] for i in places], key == "lam" and method in PROXIMAL)


def _number(value: object) -> float | None:
    """The value of a setting, where it is a finite number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return value if math.isfinite(value) else None


def advise(tradeoff: Tradeoff, results: Sequence[RunResult], heterogeneity: Heterogeneity | None) -> str:
    """What to choose and why; a sentence whose numbers are missing is left out."""
    if tradeoff.choice is None:
        return " ".join(filter(None, [_no_choice(tradeoff, results), _best_settings(tradeoff, results)]))
    advice = Advice(tradeoff, results, tradeoff.choice)
    if sum(level is not None for level in tradeoff.levels) == 1:
        return f"Only {advice.name(advice.choice)} has {tradeoff.quality.title}: there is nothing to weigh it against."
    return advice.text(heterogeneity)


def _no_choice(tradeoff: Tradeoff, results: Sequence[RunResult]) -> str:
    """Why no run is chosen."""
    if not _comparable(results):
        return "No run is advised over another: their protocol leaks, or they differ in data or protocol."
    without = [
        name for name, valid, value in zip(tradeoff.names, tradeoff.valid, tradeoff.values)
        if valid is None and value is not None
    ]  # fmt: skip
    all_of_them = len(without) == len(results)
    who = "the runs have" if all_of_them else f"{_listed(without)} {'has' if len(without) == 1 else 'have'}"
    return (
        f"No choice is made: {who} no validation figures to choose by, and choosing by test figures would flatter the "
        "choice. With --validations 5 methods that plan their rounds have them too."
    )


def _best_settings(tradeoff: Tradeoff, results: Sequence[RunResult]) -> str:
    """Which settings of a method validation chose, where it could not choose between methods."""
    methods = {method_key(results[i]) for i in tradeoff.withheld}
    best = [
        f"{tradeoff.names[i]} ({decimals(valid)})" for i, valid in enumerate(tradeoff.valid)
        if valid is not None and i not in tradeoff.withheld and method_key(results[i]) in methods
    ]  # fmt: skip
    return f"Of the settings tried, validation {tradeoff.quality.title} chose {_listed(best)}." if best else ""


class Advice:
    """The sentences of the advice about a choice. A run that an earlier sentence named is not named again."""

    def __init__(self, tradeoff: Tradeoff, results: Sequence[RunResult], choice: int) -> None:
        self.tradeoff, self.results, self.choice, self.sweep = tradeoff, results, choice, tradeoff.sweep
        methods = [method_key(result) for result in results]
        known = [i for i, level in enumerate(tradeoff.levels) if level is not None and i != choice]
        self.yardsticks = [i for i in known if methods[i] in YARDSTICKS]
        self.others = [i for i in known if methods[i] not in YARDSTICKS]
        places = self.sweep.places if self.sweep else []
        self.swept = [i for i in places if tradeoff.levels[i] is not None]
        beside = (*ENDS, *YARDSTICKS, "popularity")
        self.short_names = all(i in places or method in beside for i, method in enumerate(methods))  # lam=1, no method
        self.named: set[int] = set()

    def text(self, heterogeneity: Heterogeneity | None) -> str:
        sentences = [self.choose(), self.ends(), self.best_of_sweep(), self.edge()]
        if self.tradeoff.intervals[self.choice] is None:
            sentences.append("No intervals were computed, so small differences may be noise.")
        sentences += [self.unfinished(), self.pooled(), self.theory(heterogeneity)]
        return " ".join(filter(None, sentences))

    def name(self, i: int) -> str:
        if self.sweep and self.short_names and i in self.sweep.places:
            return f"{self.sweep.key}={plain(self.results[i].settings[self.sweep.key])}"
        return self.tradeoff.names[i]

    def choose(self) -> str:
        tradeoff, title = self.tradeoff, self.tradeoff.quality.title
        interval, sent = tradeoff.intervals[self.choice], tradeoff.costs["bytes"][self.choice]
        value, valid = tradeoff.values[self.choice], tradeoff.valid[self.choice]
        text = f"Choose {self.name(self.choice)}{self.meaning()} by validation {title} {decimals(valid or 0)}"
        text += "" if value is None else f": test {title} {decimals(value)}"
        text += f" [{interval_text(interval)}]" if interval else ""
        text += "" if sent is None else ", nothing sent" if sent == 0 else f", {human_bytes(sent)} sent"
        return f"{text}; on {tradeoff.basis}, {self.rivals()}." if self.others else f"{text}."

    def meaning(self) -> str:
        """How personal the models of the choice are, in brackets."""
        if not (self.sweep and self.sweep.degree):
            return ""
        if self.choice in self.sweep.places:
            return f" (the smaller {self.sweep.key}, the more personal)"
        end = ENDS.get(method_key(self.results[self.choice]))
        return f" ({end})" if end else ""

    def rivals(self) -> str:
        """The runs within the noise of the choice, first the cheapest of them; or else the second-best run."""
        within = [i for i in self.others if self.tradeoff.stands(i) == "within"]
        if not within:
            second = self.tradeoff.best(self.others)
            self.named.add(second)
            unclear = self.tradeoff.stands(second) == "unclear"
            name, level = self.name(second), self.tradeoff.value_text(second)
            if self.tradeoff.ahead(second):
                return f"{name} is {'not clearly ' if unclear else ''}ahead with {level}"
            return f"next comes {name} with {level}{', not clearly worse' if unclear else ''}"
        everyone = len(within) == len(self.others) > 1
        sent = self.tradeoff.costs["bytes"]
        top = sent[self.choice] or 0.0
        cheaper = [i for i in within if (cost := sent[i]) is not None and top and cost <= LEAST_SAVING * top]
        self.named.update(within if everyone or not cheaper else ())
        if not cheaper:
            who = "all others" if everyone else _listed([self.name(i) for i in within])
            return f"{who} {'is' if len(within) == 1 else 'are'} within the noise of that, but no cheaper in bytes"
        least = min(sent[i] or 0.0 for i in cheaper)
        cheapest = self.tradeoff.best(i for i in cheaper if sent[i] == least)
        self.named.add(cheapest)
        name, saving = self.name(cheapest), _saving(least, top)
        if everyone:
            return (
                f"all others are within the noise of that, and {name} {f'takes {saving}' if least else 'sends nothing'}"
            )
        return f"{name} is within the noise of that {f'at {saving}' if least else 'and sends nothing'}"

    def ends(self) -> str:
        """How local training and one model for all do, where how personal to be is the question."""
        ends = [i for i in self.others if method_key(self.results[i]) in ENDS and i not in self.named]
        if not (ends and self.sweep and self.sweep.degree and self.choice in self.sweep.places):
            return ""
        unknown = "below" if self.tradeoff.quality.better > 0 else "above"
        words = {
            "within": "within the noise too", "unclear": "not clearly worse", "worse": "worse", "better": "better",
            "unknown": unknown,
        }  # fmt: skip
        figures = [f"{self.name(i)} {self.tradeoff.value_text(i)}" for i in ends]
        states = [words[self.tradeoff.stands(i)] for i in ends]
        if len(set(states)) > 1:
            return "Of the ends, " + " and ".join(f"{text} is {state}" for text, state in zip(figures, states)) + "."
        text = " and ".join(figures)
        subject = f"Both ends, {text}," if len(ends) == 2 else text
        return f"{subject} {'is' if len(ends) == 1 else 'are'} {states[0]}."

    def best_of_sweep(self) -> str:
        """The best run of a sweep that did not win."""
        if not self.sweep or self.choice in self.sweep.places or not self.swept or self.named & set(self.swept):
            return ""
        best = self.tradeoff.best(self.swept)
        figure = f"{self.tradeoff.value_text(best)} on {self.tradeoff.basis}"
        return f"Of the {self.sweep.key} tried, {self.name(best)} is best with {figure}."

    def edge(self) -> str:
        """That the best value of a sweep is its smallest or largest, where others are worse and a next one exists."""
        if not self.sweep or len(self.swept) < 2 or self.choice not in (self.swept[0], self.swept[-1]):
            return ""
        nothing_smaller = self.choice == self.swept[0] and self.sweep.values[0] <= 0
        if nothing_smaller or all(self.tradeoff.stands(i) == "within" for i in self.swept):
            return ""
        towards = "larger" if self.choice == self.swept[-1] else "smaller"
        return f"The best is at the edge of what was tried: try {towards} ones."

    def unfinished(self) -> str:
        """Where the last round that was allowed was the best one."""
        result = self.results[self.choice]
        last = result.best_round > 1 and result.best_round == result.stopped.round and not result.privacy
        if not (last and result.stopped.reason.startswith("all")):
            return ""
        return "It was best in the last round it had; with more rounds the order may change."

    def pooled(self) -> str:
        if not self.yardsticks:
            return ""
        first = self.yardsticks[0]
        figure = f"{self.tradeoff.value_text(first)} on {self.tradeoff.basis}"
        return f"{self.name(first)}, which pools the data, has {figure}."

    def theory(self, heterogeneity: Heterogeneity | None) -> str:
        """How far clients differ against how well one client's own data can tell, and what theory makes of it."""
        if heterogeneity is None:
            return ""
        far, error = heterogeneity.R, heterogeneity.noise
        text = (
            f"Clients differ by R = {digits(far)} while a client’s own n = {heterogeneity.n:,.0f} examples leave an "
            f"error of {digits(error)}: R is "
        )
        if error / 1.2 <= far <= error * 1.2:
            text += "about that, so something between sharing and personalisation should pay"
        else:
            text += "above that, so personalisation should pay" if far > error else "below that, so sharing should pay"
            opposite = "fedavg" if far > error else "local"
            chosen = method_key(self.results[self.choice])
            text += ", which these runs do not show" if chosen == opposite else ""
        if heterogeneity.lam is None or not any(method_key(result) in PROXIMAL for result in self.results):
            return f"{text}."
        return f"{text}; theory would take lam near {digits(float(f'{heterogeneity.lam:.2g}'))}."


def _saving(cost: float, top: float) -> str:
    """`a third of the bytes (1.2 MB)`."""
    share = cost / top
    word = next((word for part, word in FRACTIONS.items() if abs(share / part - 1) < 0.05), f"{100 * share:.2g} %")
    return f"{word} of the bytes ({human_bytes(cost)})"


def _listed(names: Sequence[str]) -> str:
    if len(names) > 3:
        return f"{len(names)} others"
    return listed(names)
