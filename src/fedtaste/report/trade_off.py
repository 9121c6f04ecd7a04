"""The trade-off between quality and cost of several runs: Pareto fronts, the run to choose, and advice in words.

A run is on the front of a cost where no other run is at least as good and as cheap, and better in one of the two. The
advice claims a difference only where intervals allow it: a run whose value lies inside the best run's 95 % interval is
within the noise, and one whose own interval holds the best run's value is not clearly worse. The theory behind the last
sentence is of "Understanding the Accuracy-Communication Trade-off in Personalized Federated Learning" (ICML 2025):
sharing pays while clients differ by less than the error of a client's own fit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from fedtaste.experiment.result import Heterogeneity, RunResult, TradeoffSummary
from fedtaste.report.numbers import decimals, digits, human_bytes, interval_text, plain
from fedtaste.report.pareto import Surface, by_epsilon, epsilon_of, surface, undominated
from fedtaste.report.tables import METRICS, Column, labels, leaks
from fedtaste.result_part import Interval

# Ratings have an accuracy too (within half a point), but are judged by RMSE
BY_KEY = {column.key: column for column in METRICS}
QUALITIES = [BY_KEY[key] for key in ("seen.sampled.ndcg@10", "seen.full.ndcg@10", "seen.rmse", "seen.accuracy")]
PROXIMAL = ("fedclup", "ditto", "pfedme")  # methods whose lam ties a personal model to the shared one
ENDS = {"local": "nothing shared", "fedavg": "one model for all"}
YARDSTICKS = ("centralised", "centralized")  # pools the data: a level to compare with, never a choice
LEAST_SAVING = 0.95  # of the bytes: what saves less is not named as cheaper
FRACTIONS = {
    3 / 4: "three quarters",
    2 / 3: "two thirds",
    1 / 2: "half",
    1 / 3: "a third",
    1 / 4: "a quarter",
    0.1: "a tenth",
}


@dataclass(frozen=True)
class Sweep:
    """The runs of one method that differ in one number."""

    key: str
    places: list[int]  # which results, by rising value
    values: list[float]
    degree: bool  # whether the number says how personal the models are: the smaller, the more


@dataclass(frozen=True)
class Tradeoff:
    """How the runs of a comparison stand against each other; runs are given by their places in `names`."""

    quality: Column
    names: list[str]
    values: list[float | None]
    intervals: list[Interval | None]
    costs: dict[str, list[float | None]]
    fronts: dict[str, list[int]]  # by cost: which results are on its front
    sweep: Sweep | None
    choice: int | None
    advice: str = ""
    surface: Surface | None = None  # of all the axes that were asked for at once

    def summary(self) -> TradeoffSummary:
        """The part of it that `--json` prints."""
        front = {cost: tuple(self.names[i] for i in places) for cost, places in self.fronts.items()}
        choice = None if self.choice is None else self.names[self.choice]
        summary = TradeoffSummary(metric=self.quality.key, front=front, choice=choice, advice=self.advice)
        if self.surface is None:
            return summary
        return summary.model_copy(update={"surface": self.surface.summary(self.names)})

    def on_front(self, i: int) -> list[str]:
        """The costs on whose front a run is."""
        return [cost for cost, places in self.fronts.items() if i in places]

    def stands(self, i: int) -> str:
        """How a run stands against the chosen one: within the noise, unclear, worse; or untold without intervals."""
        assert self.choice is not None
        mine, best = self.values[i], self.values[self.choice]
        assert mine is not None and best is not None
        ours, theirs = self.intervals[self.choice], self.intervals[i]
        if mine == best or (ours and ours[0] <= mine <= ours[1]):
            return "within"
        if theirs and theirs[0] <= best <= theirs[1]:
            return "unclear"
        return "worse" if ours else "untold"


def trade_off(
    results: Sequence[RunResult], heterogeneity: Heterogeneity | None = None, axes: tuple[str, ...] = ()
) -> Tradeoff | None:
    """Quality against every cost, and against all `axes` at once; None where there is nothing to compare."""
    having = [sum(column.value(result) is not None for result in results) for column in QUALITIES]
    quality = QUALITIES[having.index(max(having))]
    if len(results) < 2 or not max(having):
        return None
    values = [quality.value(result) for result in results]
    costs: dict[str, list[float | None]] = {
        "rounds": [result.rounds for result in results],
        "bytes": [result.traffic.up_bytes + result.traffic.down_bytes for result in results],
        "gradients": [result.gradients.total if result.gradients else None for result in results],
    }
    if any(result.epsilon is not None for result in results):
        costs["epsilon"] = [epsilon_of(result) for result in results]
    fronts = {cost: front(values, paid, quality.better) for cost, paid in costs.items()}
    intervals = [quality.interval(result) for result in results]
    choice = _choose(results, values, costs, quality.better)
    sweep = find_sweep(results, choice)
    tradeoff = Tradeoff(quality, labels(results), values, intervals, costs, fronts, sweep, choice)
    advice = " ".join(filter(None, [Advice(tradeoff, results).text(heterogeneity), by_epsilon(tradeoff, results)]))
    return replace(tradeoff, advice=advice, surface=surface(axes, tradeoff, results) if axes else None)


def front(values: Sequence[float | None], paid: Sequence[float | None], better: int = 1) -> list[int]:
    """Which runs no other beats in value or cost without losing in the other; equal ones are all on it.

    >>> front([0.7, 0.8, 0.8, 0.6, None], [1, 2, 3, 1, 0])
    [0, 1]
    """
    return undominated([(None if v is None else -better * v, c) for v, c in zip(values, paid)])


def _choose(
    results: Sequence[RunResult], values: Sequence[float | None], costs: dict[str, list[float | None]], better: int
) -> int | None:
    """The best value; of equal ones the cheapest. None where the numbers do not compare."""
    if leaks(results) or len({(result.data, result.protocol) for result in results}) > 1:
        return None
    known = [(i, value) for i, value in enumerate(values) if value is not None]
    ours = [pair for pair in known if method_key(results[pair[0]]) not in YARDSTICKS] or known

    def order(pair: tuple[int, float]) -> list[float]:
        paid = [costs[cost][pair[0]] for cost in ("bytes", "gradients", "rounds")]
        return [-better * pair[1], *(float("inf") if cost is None else cost for cost in paid)]

    return min(ours, key=order)[0]


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


class Advice:
    """The advice, sentence by sentence; a sentence whose numbers are missing is left out."""

    def __init__(self, tradeoff: Tradeoff, results: Sequence[RunResult]) -> None:
        self.tradeoff, self.results, self.sweep = tradeoff, results, tradeoff.sweep
        methods = [method_key(result) for result in results]
        self.yardsticks = [i for i, method in enumerate(methods) if method in YARDSTICKS and i != tradeoff.choice]
        self.ends = [i for i, method in enumerate(methods) if method in ENDS]
        around = {i for i, method in enumerate(methods) if method in (*ENDS, *YARDSTICKS, "popularity")}
        swept = set(self.sweep.places) if self.sweep else set()
        self.plain = swept | around == set(range(len(results)))  # then lam=1 needs no method's name before it
        self.named: set[int] = set()

    def text(self, heterogeneity: Heterogeneity | None) -> str:
        choice, known = self.tradeoff.choice, [i for i, value in enumerate(self.tradeoff.values) if value is not None]
        if choice is None:
            return "No run is advised over another: their protocol leaks, or they differ in data or protocol."
        if len(known) == 1:
            return f"Only {self.name(choice)} has {self.tradeoff.quality.title}: there is nothing to weigh it against."
        others = [i for i in known if i != choice and i not in self.yardsticks]
        said = [self.choose(choice, others), self.ends_named(choice, others), self.swept(choice), self.edge(choice)]
        if self.tradeoff.intervals[choice] is None:
            said.append("No intervals were computed, so small differences may be noise.")
        said += [self.unfinished(choice), self.pooled(), self.measured(heterogeneity)]
        return " ".join(filter(None, said))

    def unfinished(self, choice: int) -> str:
        """Where the last round that was allowed was the best one."""
        result = self.results[choice]
        last = result.best_round > 1 and result.best_round == result.stopped.round and not result.privacy
        if not (last and result.stopped.reason.startswith("all")):
            return ""
        return "It was best in the last round it had; with more rounds the order may change."

    def name(self, i: int) -> str:
        if self.sweep and self.plain and i in self.sweep.places:
            return f"{self.sweep.key}={plain(self.results[i].settings[self.sweep.key])}"
        return self.tradeoff.names[i]

    def value(self, i: int) -> str:
        return decimals(self.tradeoff.values[i] or 0)

    def choose(self, choice: int, others: list[int]) -> str:
        interval, sent = self.tradeoff.intervals[choice], self.tradeoff.costs["bytes"][choice]
        text = f"Choose {self.name(choice)}{self.meaning(choice)}: {self.tradeoff.quality.title} {self.value(choice)}"
        text += f" [{interval_text(interval)}]" if interval else ""
        text += "" if sent is None else ", nothing sent" if sent == 0 else f", {human_bytes(sent)} sent"
        return f"{text}; {self.rivals(choice, others)}." if others else f"{text}."

    def meaning(self, choice: int) -> str:
        if not (self.sweep and self.sweep.degree):
            return ""
        if choice in self.sweep.places:
            return f" (the smaller {self.sweep.key}, the more personal)"
        end = ENDS.get(method_key(self.results[choice]))
        return f" ({end})" if end else ""

    def rivals(self, choice: int, others: list[int]) -> str:
        """What cannot be told from the chosen run, the cheapest of it first of all; or else what comes next."""
        within = [i for i in others if self.tradeoff.stands(i) == "within"]
        paid, better = self.tradeoff.costs["bytes"], self.tradeoff.quality.better
        if not within:
            second = max(others, key=lambda i: better * (self.tradeoff.values[i] or 0))
            self.named.add(second)
            unclear = ", not clearly worse" if self.tradeoff.stands(second) == "unclear" else ""
            return f"next comes {self.name(second)} with {self.value(second)}{unclear}"
        everyone = len(within) == len(others) > 1
        self.named.update(within if everyone else ())
        top = paid[choice]
        savers = [(cost, i) for i in within if (cost := paid[i]) is not None and top and cost <= LEAST_SAVING * top]
        if savers and top:
            cost, i = min(savers, key=lambda saver: (saver[0], -better * (self.tradeoff.values[saver[1]] or 0)))
            self.named.add(i)
            lead = f"all others are within the noise of that, and {self.name(i)} " if everyone else f"{self.name(i)} "
            saving = _saving(cost, top)
            if everyone:
                return lead + (f"takes {saving}" if cost else "sends nothing")
            return lead + "is within the noise of that " + (f"at {saving}" if cost else "and sends nothing")
        self.named.update(within)
        who = "all others" if everyone else _listed([self.name(i) for i in within])
        return f"{who} {'is' if len(within) == 1 else 'are'} within the noise of that, but no cheaper in bytes"

    def ends_named(self, choice: int, others: list[int]) -> str:
        """How local training and one model for all do, where how personal to be is the question."""
        ends = [i for i in self.ends if i in others and i not in self.named]
        if not (ends and self.sweep and self.sweep.degree and choice in self.sweep.places):
            return ""
        figures = [f"{self.name(i)} {self.value(i)}" for i in ends]
        how = [self.tradeoff.stands(i) for i in ends]
        words = {"within": "within the noise too", "unclear": "not clearly worse", "worse": "worse", "untold": "below"}
        if self.tradeoff.quality.better < 0:
            words["untold"] = "above"
        if len(set(how)) == 1:
            return (
                f"{'Both ends, ' if len(ends) == 2 else ''}{' and '.join(figures)}{',' if len(ends) == 2 else ''} "
                + (f"{'is' if len(ends) == 1 else 'are'} {words[how[0]]}.")
            )
        return "Of the ends, " + " and ".join(f"{text} is {words[state]}" for text, state in zip(figures, how)) + "."

    def swept(self, choice: int) -> str:
        """The best of a sweep that did not win."""
        places = [i for i in self.sweep.places if self.tradeoff.values[i] is not None] if self.sweep else []
        if not self.sweep or choice in self.sweep.places or not places or self.named & set(places):
            return ""
        best = max(places, key=lambda i: self.tradeoff.quality.better * (self.tradeoff.values[i] or 0))
        return f"Of the {self.sweep.key} tried, {self.name(best)} is best with {self.value(best)}."

    def edge(self, choice: int) -> str:
        places = [i for i in self.sweep.places if self.tradeoff.values[i] is not None] if self.sweep else []
        if not self.sweep or choice not in (places[:1] + places[-1:]) or len(places) < 2:
            return ""
        if (
            all(self.tradeoff.stands(i) == "within" for i in places)
            or self.sweep.values[0] <= 0
            and choice == places[0]
        ):
            return ""
        return f"The best is at the edge of what was tried: try {'larger' if choice == places[-1] else 'smaller'} ones."

    def pooled(self) -> str:
        measured = [i for i in self.yardsticks if self.tradeoff.values[i] is not None]
        return f"{self.name(measured[0])}, which pools the data, has {self.value(measured[0])}." if measured else ""

    def measured(self, heterogeneity: Heterogeneity | None) -> str:
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
            against = "fedavg" if far > error else "local"
            chosen = self.tradeoff.choice is not None and method_key(self.results[self.tradeoff.choice])
            text += ", which these runs do not show" if chosen == against else ""
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
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
