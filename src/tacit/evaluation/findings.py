"""What attacks find in uploads and in sums of several: that is what a server with secure sums sees. Noise that the
server adds is on the sums of two and more; one upload is as the server gets it.

The attack that a figure is reported for was chosen on other people: those of one half by the other half, so that the
best of many attacks is not a flattering accident. All attacks but those with a list of their own are told how many
items a person has. Intervals are over people; people in one sum share their luck, which makes those of large sums a
little too narrow.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..core import Seat, Upload
from ..wire.rng import derive
from .attacks import POPULARITY, Guess, Known, Merged, Ranked, alone, attacks, judge, judged, stars
from .audit import SIZES, Step, Watch, World, seat_of, seen, sent
from .metrics import interval, rating_intervals, rating_metrics

Array = NDArray[np.float64]


class Attack:
    """Everything that is tried on sums of one size. Uploads come one by one: all of them would not fit. With several
    rounds the same people stand together in every round, and guesses are merged before they are judged (`finish`)."""

    def __init__(self, world: World, step: Step, size: int, seat: Seat, rounds: int = 1) -> None:
        self.world, self.wire, self.size, self.seat, self.shown = world, step.wire, size, seat, world.usual
        self.step, self.rounds, self.known = step, rounds, world.known
        self.merged: dict[tuple[int, ...], Merged] = {}  # by the people of a group
        self.place = {int(who): place for place, who in enumerate(world.people)}
        self.group: list[int] = []
        self.total: Upload | None = None
        self.groups = 0
        self.names: list[str] = []  # of the attacks
        self.places: list[int] = []  # of the people, in the world's order
        self.values: list[Array] = []  # by person [attacks, 3]: F1, AUC, AUC against equally popular items
        self.errors: list[Array] = []  # of guessed ratings, by person
        self.guesses: dict[str, Guess] = {}  # about the person who is shown

    def take(self, who: int, upload: Upload) -> None:
        """One more upload, sealed where the wire seals; a full group is attacked and forgotten."""
        self.total = upload if self.total is None else self.total + upload
        self.group.append(who)
        if len(self.group) < self.size:
            return
        total = self.wire.seal.open(self.total) if self.wire.seal else self.total
        seat = self.seat._replace(key=derive(self.seat.key, self.groups), people=float(self.size))
        total = seen(self.step, total, seat, noise=self.size > 1)
        self._attack({name: value.numpy() for name, value in total.total.items()})
        self.group, self.total, self.groups = [], None, self.groups + 1

    def _attack(self, total: dict[str, NDArray]) -> None:
        group = tuple(who for who in self.group if who in self.place)  # others are only added
        if not group:
            return
        guesses = attacks(total, self.known)
        if self.rounds == 1:
            self.record(group, guesses)
        else:
            self.merged.setdefault(group, Merged()).add(guesses)
        if self.world.ratings is not None and self.size == 1 and len(self.errors) < len(self.world.people):
            told, means = stars(total, self.known), self.known.means
            if told is not None and means is not None:
                place = self.place[group[0]]
                truth = self.world.lists[place]
                guess = np.where(np.isnan(told[truth]), means[truth], told[truth])
                self.errors.append(guess - self.world.ratings[place])

    def record(self, group: Iterable[int], guesses: Mapping[str, Guess]) -> None:
        """Hold guesses about these people against the truth."""
        ranked = Ranked.of(guesses)
        self.names = ranked.names
        for place in [self.place[who] for who in group]:
            truth = self.world.lists[place]
            self.places.append(place)
            self.values.append(judged(guesses, ranked, truth, self.world.near[place]))
            if place == self.shown:
                self.guesses = {name: guess.about(len(truth)) for name, guess in guesses.items()}

    def begin(self, seat: Seat, known: Known) -> None:
        """Another round, with this seat of the server and this knowledge."""
        self.seat, self.known, self.group, self.total, self.groups = seat, known, [], None, 0

    def finish(self) -> None:
        """Judge what several rounds told."""
        for group, merged in self.merged.items():
            self.record(group, merged.guesses())
        self.merged = {}

    def chosen(self, measure: int, only: Iterable[str] | None = None) -> tuple[Array, list[str]]:
        """By person: the figure, and the attack, which is the one that was best on the other half."""
        named = [i for i, name in enumerate(self.names) if name in set(only)] if only is not None else []
        ours = [i for i, name in enumerate(self.names) if name != POPULARITY]  # popularity is the baseline, no attack
        at = named or ours or list(range(len(self.names)))
        values, places = np.stack(self.values)[:, at, measure], np.array(self.places)
        first = places < np.median(places)
        best = np.zeros(len(values), np.int64)
        for mine, others in ((first, ~first), (~first, first)):
            best[mine] = np.argmax(values[others if others.any() else mine].mean(0))
        return values[np.arange(len(values)), best], [self.names[at[choice]] for choice in best]

    def row(self, step: Step) -> dict[str, Any]:
        """The figures, as they stand in the table."""
        row: dict[str, Any] = {"stages": step.label, "in_sum": self.size, "seen": self.size >= step.group}
        row["people"] = len(self.places)
        for measure, kind in enumerate(("f1", "auc", "matched_auc")):
            values, names = self.chosen(measure)
            row |= {kind: _round(values), f"{kind}_interval": interval(values)}
            if kind == "f1":
                row["worst_f1"] = round(float(values.max()), 6)
            row["attack" if kind == "f1" else f"{kind}_attack"] = " / ".join(dict.fromkeys(names))
        pure = [name for name in self.names if alone(name)]
        row["upload_f1"] = _round(self.chosen(0, pure)[0]) if pure else None
        row["attacks"] = {name: _round(value) for name, value in zip(self.names, np.stack(self.values)[:, :, 0].T)}
        return row | ({"ratings": self.ratings()} if self.world.ratings is not None and self.size == 1 else {})

    def about_shown(self) -> tuple[str, Guess] | None:
        """The attack, and its guess about the person who is shown."""
        if self.shown not in self.places:
            return None
        name = self.chosen(0)[1][self.places.index(self.shown)]
        return name, self.guesses[name]

    def ratings(self) -> dict[str, Any] | None:
        """How far guessed ratings are off, where an attack is known; it is told which items were rated."""
        if not self.errors:
            return None
        errors, owners = np.concatenate(self.errors), np.repeat(np.arange(len(self.errors)), [*map(len, self.errors)])
        return {
            "rmse": round(rating_metrics(errors)["rmse"], 6),
            "interval": rating_intervals(errors, owners)["rmse"],
        }


def _round(values: Array) -> float:
    return round(float(values.mean()), 6)


def baselines(world: World) -> dict[str, Any]:
    """What knowing nothing of an upload gives: popularity, or a blind guess."""
    known = world.known
    popular = Ranked.of({POPULARITY: Guess(known.popularity)})
    f1, auc, matched = np.array([judge(popular, *person)[0] for person in zip(world.lists, world.near)]).T
    out = {"popularity_f1": _round(f1), "popularity_auc": _round(auc), "popularity_matched_auc": _round(matched)}
    out |= {"random_f1": _round(np.array([len(truth) / known.items for truth in world.lists])), "random_auc": 0.5}
    if world.ratings is not None and known.means is not None:
        errors = np.concatenate([known.means[truth] - said for truth, said in zip(world.lists, world.ratings)])
        out["item_mean_rmse"] = round(rating_metrics(errors)["rmse"], 6)
    return out | {"popularity_f1_interval": interval(f1), "popularity_auc_interval": interval(auc)}


class Tried(NamedTuple):
    """The attacks on one step's uploads."""

    step: Step
    attacks: list[Attack]  # by how many are added up

    @staticmethod
    def of(step: Step, world: World, people: int, seat: Seat, rounds: int = 1) -> Tried:
        sizes = sorted({min(size, people) for size in (*SIZES, step.group) if size <= max(people, step.group)})
        return Tried(step, [Attack(world, step, size, seat, rounds) for size in sizes if size <= people])


def measure(
    steps: Sequence[Step], uploads: Iterable[tuple[int, Upload]], world: World, people: int, *, number: int = 0,
    seed: int = 0, watch: Watch | None = None,
) -> list[Tried]:  # fmt: skip
    """What attacks find in one round, by step. `uploads` come from devices before any stage, `people` of them."""
    tried = [Tried.of(step, world, people, seat_of(seed, "noise", number, people)) for step in steps]
    feed(tried, uploads, world.known, people, number=number, seed=seed, watch=watch)
    return tried


def feed(
    found: Sequence[Tried], uploads: Iterable[tuple[int, Upload]], known: Known, people: int, *, number: int = 0,
    seed: int = 0, watch: Watch | None = None,
) -> None:  # fmt: skip
    """One round's uploads, for all attacks; `known` is what everybody knows in that round."""
    device, noise = seat_of(seed, "devices", number, people), seat_of(seed, "noise", number, people)
    for tried in found:
        for attack in tried.attacks:
            attack.begin(noise, known)
    if watch:
        watch.phase(f"attacking, {found[-1].step.label}", people, 0)
    for done, (who, upload) in enumerate(uploads, 1):
        for tried in found:
            left = sent(tried.step, who, upload, device)
            left = tried.step.wire.seal.seal(left) if tried.step.wire.seal else left
            for attack in tried.attacks:
                attack.take(who, left)
        if watch:
            watch.round(done, None)
