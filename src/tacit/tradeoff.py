"""What a method, or a degree of personalisation, buys and what it costs: the runs that nothing beats, and advice.

A run is on the front of a cost where no other run is at least as good and as cheap, and better in one of the two. The
advice claims a difference only where intervals allow it: a run whose value lies inside the best run's 95 % interval is
within the noise, and one whose own interval holds the best run's value is not clearly worse. The theory behind the last
sentence is of "Understanding the Accuracy-Communication Trade-off in Personalized Federated Learning" (ICML 2025):
sharing pays while clients differ by less than the error of a client's own fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from .axes import Surface, by_epsilon, epsilon_of, surface
from .tables import (
    METRICS,
    Column,
    Result,
    at,
    decimals,
    digits,
    human_bytes,
    interval_text,
    labels,
    leaks,
    number,
    plain,
)

# Ratings have an accuracy too (within half a point), but are judged by RMSE
PATHS: tuple[tuple[str, ...], ...] = (
    ("seen", "sampled", "ndcg@10"),
    ("seen", "full", "ndcg@10"),
    ("seen", "rmse"),
    ("seen", "accuracy"),
)
BY_PATH = {column.path: column for column in METRICS}
SPRINGS = ("fedclup", "ditto", "pfedme")  # methods whose lam ties a personal model to the shared one
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
    quality: Column
    names: list[str]
    values: list[float | None]
    intervals: list[tuple[float, float] | None]
    costs: dict[str, list[float | None]]
    fronts: dict[str, list[int]]  # by cost: which results are on its front
    sweep: Sweep | None
    choice: int | None
    advice: str = ""
    surface: Surface | None = None  # of all the axes that were asked for at once

    def summary(self) -> dict[str, Any]:
        """As JSON tells it."""
        front = {cost: [self.names[i] for i in places] for cost, places in self.fronts.items()}
        choice = None if self.choice is None else self.names[self.choice]
        told = {"metric": ".".join(self.quality.path), "front": front, "choice": choice, "advice": self.advice}
        return told | ({"surface": self.surface.summary(self.names)} if self.surface else {})

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


def weigh(
    results: Sequence[Result], heterogeneity: dict[str, Any] | None = None, axes: tuple[str, ...] = ()
) -> Tradeoff | None:
    """Quality against every cost, and against all `axes` at once; None where there is nothing to weigh."""
    having = {path: sum(BY_PATH[path].value(result) is not None for result in results) for path in PATHS}
    quality = BY_PATH[max(PATHS, key=lambda path: having[path])]  # the first in order among equals
    if len(results) < 2 or not having[quality.path]:
        return None
    values = [quality.value(result) for result in results]
    costs = {
        "rounds": [number(at(result, "rounds")) for result in results],
        "bytes": [total_bytes(result) for result in results],
        "gradients": [number(at(result, "gradients", "total")) for result in results],
    }
    if any(number(at(result, "privacy", "epsilon")) is not None for result in results):
        costs["epsilon"] = [epsilon_of(result) for result in results]
    fronts = {cost: front(values, paid, quality.better) for cost, paid in costs.items()}
    intervals = [quality.interval(result) for result in results]
    choice = _choose(results, values, costs, quality.better)
    sweep = find_sweep(results, choice)
    found = Tradeoff(quality, labels(results), values, intervals, costs, fronts, sweep, choice)
    advice = " ".join(filter(None, [Words(found, results).advice(heterogeneity), by_epsilon(found, results)]))
    return replace(found, advice=advice, surface=surface(axes, found, results) if axes else None)


def total_bytes(result: Result) -> float | None:
    up, down = (number(at(result, "traffic", key)) for key in ("up_bytes", "down_bytes"))
    return None if up is None or down is None else up + down


def front(values: Sequence[float | None], paid: Sequence[float | None], better: int = 1) -> list[int]:
    """Which runs no other beats in value or cost without losing in the other; equal ones are all on it.

    >>> front([0.7, 0.8, 0.8, 0.6, None], [1, 2, 3, 1, 0])
    [0, 1]
    """
    points = [(i, better * v, c) for i, (v, c) in enumerate(zip(values, paid)) if v is not None and c is not None]
    beaten = lambda v, c: any(w >= v and d <= c and (w, d) != (v, c) for _, w, d in points)
    return [i for i, v, c in points if not beaten(v, c)]


def _choose(
    results: Sequence[Result], values: Sequence[float | None], costs: dict[str, list[float | None]], better: int
) -> int | None:
    """The best value; of equal ones the cheapest. None where the numbers do not compare."""
    if leaks(results) or any(len({str(at(r, key)) for r in results}) > 1 for key in ("data", "protocol")):
        return None
    known = [(i, value) for i, value in enumerate(values) if value is not None]
    ours = [pair for pair in known if method_key(results[pair[0]]) not in YARDSTICKS] or known

    def order(pair: tuple[int, float]) -> list[float]:
        paid = [costs[cost][pair[0]] for cost in ("bytes", "gradients", "rounds")]
        return [-better * pair[1], *(float("inf") if cost is None else cost for cost in paid)]

    return min(ours, key=order)[0]


def method_key(result: Result) -> str:
    return str(at(result, "method")).lower()


def find_sweep(results: Sequence[Result], choice: int | None = None) -> Sweep | None:
    """The swept number of the chosen run's method, or else of the method with most runs."""
    found = [sweep for method in dict.fromkeys(map(method_key, results)) if (sweep := _sweep_of(results, method))]
    return max(found, key=lambda sweep: (choice in sweep.places, len(sweep.places)), default=None)


def _sweep_of(results: Sequence[Result], method: str) -> Sweep | None:
    """One setting with another number in every run; where several are like that, lam, from which others may follow."""
    runs = [i for i, result in enumerate(results) if method_key(result) == method]
    swept = {}
    for key in dict.fromkeys(key for i in runs for key in at(results[i], "settings") or ()):
        told = {i: value for i in runs if (value := number(at(results[i], "settings", key))) is not None}
        if len(told) > 1 and len(set(told.values())) == len(told):
            swept[key] = told
    key = "lam" if "lam" in swept else next(iter(swept)) if len(swept) == 1 else None
    if key is None:
        return None
    places = sorted(swept[key], key=lambda i: swept[key][i])
    return Sweep(key, places, [swept[key][i] for i in places], key == "lam" and method in SPRINGS)


class Words:
    """The advice, sentence by sentence; what a sentence lacks the numbers for is left out."""

    def __init__(self, found: Tradeoff, results: Sequence[Result]) -> None:
        self.found, self.results, self.sweep = found, results, found.sweep
        methods = [method_key(result) for result in results]
        self.yardsticks = [i for i, method in enumerate(methods) if method in YARDSTICKS and i != found.choice]
        self.ends = [i for i, method in enumerate(methods) if method in ENDS]
        around = {i for i, method in enumerate(methods) if method in (*ENDS, *YARDSTICKS, "popularity")}
        swept = set(self.sweep.places) if self.sweep else set()
        self.plain = swept | around == set(range(len(results)))  # then lam=1 needs no method's name before it
        self.named: set[int] = set()

    def advice(self, heterogeneity: dict[str, Any] | None) -> str:
        choice, known = self.found.choice, [i for i, value in enumerate(self.found.values) if value is not None]
        if choice is None:
            return "No run is advised over another: their protocol leaks, or they differ in data or protocol."
        if len(known) == 1:
            return f"Only {self.name(choice)} has {self.found.quality.title}: there is nothing to weigh it against."
        others = [i for i in known if i != choice and i not in self.yardsticks]
        said = [self.choose(choice, others), self.ends_told(choice, others), self.swept(choice), self.edge(choice)]
        if self.found.intervals[choice] is None:
            said.append("No intervals were computed, so small differences may be noise.")
        said += [self.unfinished(choice), self.pooled(), self.measured(heterogeneity)]
        return " ".join(filter(None, said))

    def unfinished(self, choice: int) -> str:
        """Where the last round that was allowed was the best one."""
        result = self.results[choice]
        rounds, reason = number(at(result, "best_round")), str(at(result, "stopped", "reason") or "")
        capped = (
            rounds is not None and rounds > 1 and not at(result, "privacy") and rounds == at(result, "stopped", "round")
        )
        return (
            "It was best in the last round it had; with more rounds the order may change."
            if (capped and reason.startswith("all"))
            else ""
        )

    def name(self, i: int) -> str:
        if self.sweep and self.plain and i in self.sweep.places:
            return f"{self.sweep.key}={plain(at(self.results[i], 'settings', self.sweep.key))}"
        return self.found.names[i]

    def value(self, i: int) -> str:
        return decimals(self.found.values[i] or 0)

    def choose(self, choice: int, others: list[int]) -> str:
        interval, sent = self.found.intervals[choice], self.found.costs["bytes"][choice]
        text = f"Choose {self.name(choice)}{self.meaning(choice)}: {self.found.quality.title} {self.value(choice)}"
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
        within = [i for i in others if self.found.stands(i) == "within"]
        paid, better = self.found.costs["bytes"], self.found.quality.better
        if not within:
            second = max(others, key=lambda i: better * (self.found.values[i] or 0))
            self.named.add(second)
            unclear = ", not clearly worse" if self.found.stands(second) == "unclear" else ""
            return f"next comes {self.name(second)} with {self.value(second)}{unclear}"
        everyone = len(within) == len(others) > 1
        self.named.update(within if everyone else ())
        top = paid[choice]
        savers = [(cost, i) for i in within if (cost := paid[i]) is not None and top and cost <= LEAST_SAVING * top]
        if savers and top:
            cost, i = min(savers, key=lambda saver: (saver[0], -better * (self.found.values[saver[1]] or 0)))
            self.named.add(i)
            lead = f"all others are within the noise of that, and {self.name(i)} " if everyone else f"{self.name(i)} "
            saving = _saving(cost, top)
            if everyone:
                return lead + (f"takes {saving}" if cost else "sends nothing")
            return lead + "is within the noise of that " + (f"at {saving}" if cost else "and sends nothing")
        self.named.update(within)
        who = "all others" if everyone else _listed([self.name(i) for i in within])
        return f"{who} {'is' if len(within) == 1 else 'are'} within the noise of that, but no cheaper in bytes"

    def ends_told(self, choice: int, others: list[int]) -> str:
        """How local training and one model for all do, where how personal to be is the question."""
        ends = [i for i in self.ends if i in others and i not in self.named]
        if not (ends and self.sweep and self.sweep.degree and choice in self.sweep.places):
            return ""
        told = [f"{self.name(i)} {self.value(i)}" for i in ends]
        how = [self.found.stands(i) for i in ends]
        words = {"within": "within the noise too", "unclear": "not clearly worse", "worse": "worse", "untold": "below"}
        if self.found.quality.better < 0:
            words["untold"] = "above"
        if len(set(how)) == 1:
            return f"{'Both ends, ' if len(ends) == 2 else ''}{' and '.join(told)}{',' if len(ends) == 2 else ''} " + (
                f"{'is' if len(ends) == 1 else 'are'} {words[how[0]]}."
            )
        return "Of the ends, " + " and ".join(f"{text} is {words[state]}" for text, state in zip(told, how)) + "."

    def swept(self, choice: int) -> str:
        """The best of a sweep that did not win."""
        places = [i for i in self.sweep.places if self.found.values[i] is not None] if self.sweep else []
        if not self.sweep or choice in self.sweep.places or not places or self.named & set(places):
            return ""
        best = max(places, key=lambda i: self.found.quality.better * (self.found.values[i] or 0))
        return f"Of the {self.sweep.key} tried, {self.name(best)} is best with {self.value(best)}."

    def edge(self, choice: int) -> str:
        places = [i for i in self.sweep.places if self.found.values[i] is not None] if self.sweep else []
        if not self.sweep or choice not in (places[:1] + places[-1:]) or len(places) < 2:
            return ""
        if all(self.found.stands(i) == "within" for i in places) or self.sweep.values[0] <= 0 and choice == places[0]:
            return ""
        return f"The best is at the edge of what was tried: try {'larger' if choice == places[-1] else 'smaller'} ones."

    def pooled(self) -> str:
        told = [i for i in self.yardsticks if self.found.values[i] is not None]
        return f"{self.name(told[0])}, which pools the data, has {self.value(told[0])}." if told else ""

    def measured(self, heterogeneity: dict[str, Any] | None) -> str:
        """How far clients differ against how well one client's own data can tell, and what theory makes of it."""
        far, error, n, lam = (number(at(heterogeneity, key)) for key in ("R", "noise", "n", "lam"))
        if far is None or error is None:
            return ""
        own = "a client’s own examples" if n is None else f"a client’s own n = {n:,.0f} examples"
        text = f"Clients differ by R = {digits(far)} while {own} leave an error of {digits(error)}: R is "
        if error / 1.2 <= far <= error * 1.2:
            text += "about that, so something between sharing and personalisation should pay"
        else:
            text += "above that, so personalisation should pay" if far > error else "below that, so sharing should pay"
            against = "fedavg" if far > error else "local"
            chosen = self.found.choice is not None and method_key(self.results[self.found.choice])
            text += ", which these runs do not show" if chosen == against else ""
        if lam is None or not any(method_key(result) in SPRINGS for result in self.results):
            return f"{text}."
        return f"{text}; theory would take lam near {digits(float(f'{lam:.2g}'))}."


def _saving(cost: float, top: float) -> str:
    """`a third of the bytes (1.2 MB)`."""
    share = cost / top
    word = next((word for part, word in FRACTIONS.items() if abs(share / part - 1) < 0.05), f"{100 * share:.2g} %")
    return f"{word} of the bytes ({human_bytes(cost)})"


def _listed(names: Sequence[str]) -> str:
    if len(names) > 3:
        return f"{len(names)} others"
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
