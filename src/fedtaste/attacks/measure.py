"""Measure list-recovery attacks on single uploads and on sums: F1, AUC, errors of ratings, and baselines.

Noise that the server adds is on sums of two and more; a single upload is as the server gets it. The attack that a
figure is reported for was chosen on other people: for one half of the people by the other half, so that the best of
many attacks is not a lucky accident. All attacks except those with a list of their own know how many items a person
has. Intervals are over people; the errors of people in one sum are correlated, which makes the intervals of large sums
a little too narrow.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtaste.attacks.list_recovery import (
    POPULARITY,
    Array,
    Guess,
    Knowledge,
    MergedGuesses,
    guess_items,
    guess_ratings,
)
from fedtaste.attacks.result import Baselines, RatingError, SumFigures
from fedtaste.attacks.scoring import RankedGuesses, score_guesses, score_ranked
from fedtaste.attacks.uploads import SIZES, Step, Targets, Watch, stage_context
from fedtaste.core import StageContext, Upload
from fedtaste.evaluation.metrics import interval, rating_intervals, rating_metrics
from fedtaste.wire.rng import derive


class SumAttack:
    """All attacks on sums of one size. Uploads come one by one, because all of them would not fit into memory. With
    several rounds the same people form a group in every round, and their guesses are merged in `finish`."""

    def __init__(self, targets: Targets, step: Step, size: int, rounds: int = 1) -> None:
        self.targets, self.step, self.size, self.rounds = targets, step, size, rounds
        self.merged: dict[tuple[int, ...], MergedGuesses] = {}  # by the people of a group
        self.place = {int(who): place for place, who in enumerate(targets.people)}
        self.names: list[str] = []  # of the attacks
        self.places: list[int] = []  # of the people, in the order of the targets
        self.values: list[Array] = []  # by person [attacks, 3]: F1, AUC, AUC against equally popular items
        self.errors: list[Array] = []  # of guessed ratings, by person
        self.example: dict[str, Guess] = {}  # about the person who is the example

    def begin_round(self, context: StageContext, knowledge: Knowledge) -> None:
        """Begin a round, with this context of the server and this knowledge of the attacker."""
        self.context, self.knowledge = context, knowledge
        self.group: list[int] = []  # the people whose uploads were added up so far
        self.total: Upload | None = None  # their sum
        self.groups = 0  # how many groups were attacked

    def add(self, who: int, upload: Upload) -> None:
        """Add an upload, encoded where sums are secure; a full group is attacked and forgotten."""
        self.total = upload if self.total is None else self.total + upload
        self.group.append(who)
        if len(self.group) < self.size:
            return
        secure_sum = self.step.wire.secure_sum
        total = secure_sum.decode(self.total) if secure_sum else self.total
        context = self.context._replace(key=derive(self.context.key, self.groups), people=float(self.size))
        total = self.step.on_server(total, context, noise=self.size > 1)
        self._attack({name: value.numpy() for name, value in total.total.items()})
        self.group, self.total, self.groups = [], None, self.groups + 1

    def _attack(self, total: dict[str, NDArray[Any]]) -> None:
        group = tuple(who for who in self.group if who in self.place)  # others are only added
        if not group:
            return
        guesses = guess_items(total, self.knowledge)
        if self.rounds == 1:
            self.record(group, guesses)
        else:
            self.merged.setdefault(group, MergedGuesses()).add(guesses)
        if self.targets.ratings is not None and self.size == 1 and len(self.errors) < len(self.targets.people):
            ratings, means = guess_ratings(total, self.knowledge), self.knowledge.means
            if ratings is not None and means is not None:
                place = self.place[group[0]]
                items = self.targets.lists[place]
                guess = np.where(np.isnan(ratings[items]), means[items], ratings[items])
                self.errors.append(guess - self.targets.ratings[place])

    def record(self, group: Iterable[int], guesses: Mapping[str, Guess]) -> None:
        """Score guesses about these people against the truth."""
        ranked = RankedGuesses.of(guesses)
        self.names = ranked.names
        for place in [self.place[who] for who in group]:
            truth = self.targets.lists[place]
            self.places.append(place)
            self.values.append(score_guesses(guesses, ranked, truth, self.targets.neighbours[place]))
            if place == self.targets.example:
                self.example = {name: guess.for_length(len(truth)) for name, guess in guesses.items()}

    def finish(self) -> None:
        """Score the merged guesses of several rounds."""
        for group, merged in self.merged.items():
            self.record(group, merged.guesses())
        self.merged = {}

    def best_by_other_half(self, measure: int, only: Sequence[str] = ()) -> tuple[Array, list[str]]:
        """By person: the figure, and the attack that was best on the other half of the people; `only` of these attacks,
        where some are named."""
        named = [i for i, name in enumerate(self.names) if name in only]
        attacks = [
            i for i, name in enumerate(self.names) if name != POPULARITY
        ]  # popularity is the baseline, no attack
        at = named or attacks or list(range(len(self.names)))
        values, places = np.stack(self.values)[:, at, measure], np.array(self.places)
        first = places < np.median(places)
        best = np.zeros(len(values), np.int64)
        for mine, others in ((first, ~first), (~first, first)):
            best[mine] = np.argmax(values[others if others.any() else mine].mean(0))
        return values[np.arange(len(values)), best], [self.names[at[choice]] for choice in best]

    def figures(self) -> SumFigures:
        """The figures of this size, one row of the result."""
        measured: dict[str, object] = {"stages": self.step.label, "in_sum": self.size}
        measured |= {"seen": self.size >= self.step.group, "people": len(self.places)}
        for measure, kind in enumerate(("f1", "auc", "matched_auc")):
            values, names = self.best_by_other_half(measure)
            measured |= {kind: _mean(values), f"{kind}_interval": interval(values)}
            measured["attack" if kind == "f1" else f"{kind}_attack"] = " / ".join(dict.fromkeys(names))
            if kind == "f1":
                measured["worst_f1"] = round(float(values.max()), 6)
        pure = [name for name in self.names if POPULARITY not in name]
        measured["upload_f1"] = _mean(self.best_by_other_half(0, pure)[0]) if pure else None
        by_attack = zip(self.names, np.stack(self.values)[:, :, 0].T)
        measured["attacks"] = {name: _mean(value) for name, value in by_attack}
        if self.targets.ratings is not None and self.size == 1:
            measured["ratings"] = self.rating_error()
        return SumFigures.model_validate(measured)

    def guess_about_example(self) -> tuple[str, Guess] | None:
        """The reported attack and its guess about the person who is the example."""
        if self.targets.example not in self.places:
            return None
        name = self.best_by_other_half(0)[1][self.places.index(self.targets.example)]
        return name, self.example[name]

    def rating_error(self) -> RatingError | None:
        """How far guessed ratings are off, where an attack on ratings is known."""
        if not self.errors:
            return None
        errors, owners = np.concatenate(self.errors), np.repeat(np.arange(len(self.errors)), [*map(len, self.errors)])
        rmse, ends = round(rating_metrics(errors)["rmse"], 6), rating_intervals(errors, owners)["rmse"]
        return RatingError.model_validate({"rmse": rmse, "interval": ends})


def _mean(values: Array) -> float:
    return round(float(values.mean()), 6)


def measure_baselines(targets: Targets) -> Baselines:
    """The figures of an attacker who sees no upload: by popularity, or by a blind guess."""
    knowledge = targets.knowledge
    popular = RankedGuesses.of({POPULARITY: Guess(knowledge.popularity)})
    f1, auc, matched = np.array([score_ranked(popular, *two)[0] for two in zip(targets.lists, targets.neighbours)]).T
    blind = np.array([len(truth) / knowledge.items for truth in targets.lists])
    figures: dict[str, object] = {"popularity_f1": _mean(f1), "popularity_auc": _mean(auc), "random_auc": 0.5}
    figures |= {"popularity_matched_auc": _mean(matched), "random_f1": _mean(blind)}
    if targets.ratings is not None and knowledge.means is not None:
        pairs = zip(targets.lists, targets.ratings)
        errors = np.concatenate([knowledge.means[truth] - ratings for truth, ratings in pairs])
        figures["item_mean_rmse"] = round(rating_metrics(errors)["rmse"], 6)
    intervals = {"popularity_f1_interval": interval(f1), "popularity_auc_interval": interval(auc)}
    return Baselines.model_validate(figures | intervals)


class StepAttacks(NamedTuple):
    """The attacks on one step's uploads."""

    step: Step
    attacks: list[SumAttack]  # by how many uploads are added up

    @staticmethod
    def of(step: Step, targets: Targets, people: int, rounds: int = 1) -> StepAttacks:
        """Attacks on sums of all sizes that `people` senders allow, and of the size that the server sees."""
        sizes = sorted({min(size, people) for size in (*SIZES, step.group) if size <= max(people, step.group)})
        return StepAttacks(step, [SumAttack(targets, step, size, rounds) for size in sizes])


@dataclass(frozen=True)
class RoundUploads:
    """One round's uploads, from `people` devices before any stage. `seed` is of the random numbers of stages."""

    uploads: Iterable[tuple[int, Upload]]
    people: int
    round: int = 0
    seed: int = 0


def attack_once(
    steps: Sequence[Step], sent: RoundUploads, targets: Targets, watch: Watch | None = None
) -> list[StepAttacks]:
    """Attack the uploads of one round under every step."""
    attacks = [StepAttacks.of(step, targets, sent.people) for step in steps]
    attack_round(attacks, sent, targets.knowledge, watch)
    return attacks


def attack_round(
    attacks: Sequence[StepAttacks], sent: RoundUploads, knowledge: Knowledge, watch: Watch | None = None
) -> None:
    """Feed one round's uploads to all attacks; `knowledge` is the attacker's in that round."""
    device, server = (stage_context(sent.seed, name, sent.round, sent.people) for name in ("devices", "noise"))
    for _, sizes in attacks:
        for attack in sizes:
            attack.begin_round(server, knowledge)
    if watch:
        watch.phase(f"attacking, {attacks[-1].step.label}", sent.people, 0)
    for done, (who, upload) in enumerate(sent.uploads, 1):
        for step, sizes in attacks:
            staged = step.on_device(who, upload, device)
            encoded = step.wire.secure_sum.encode(staged) if step.wire.secure_sum else staged
            for attack in sizes:
                attack.add(who, encoded)
        if watch:
            watch.round(done, None)
